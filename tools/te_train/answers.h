/* answers.h - answers to the multiple-choice questions of --eval-choices. */
#ifndef ANSWERS_H
#define ANSWERS_H

#include "loop.h"

/* STATUS_BAD, with a message: the file of questions, or a line of it, is wrong */
int answers_read(struct trainer *t);
/* endings that are computed at a time */
int64_t answers_most(const struct choices *c);
/* create the decoder that computes the log probabilities of endings */
int answers_open(struct trainer *t);
/*
 * The memory of the decoder for a planned model, without scratch of attention on GPUs, and the
 * weights in its types that plans of the recipe do not have, at most. Returns the library's code.
 */
int answers_nbytes(const struct choices *c, const struct model *m, const struct te_recipe *recipe,
		   uint64_t *ret_nbytes, uint64_t *ret_copies);
/*
 * The part of a rank in round k of its questions: *ret_n of them from *ret_first on, 0 if the rank
 * has none. Returns 0 after the last round.
 */
int answers_part(const struct trainer *t, int64_t k, int64_t *ret_first, int64_t *ret_n);
/* set the accuracies of all ranks from the log probabilities that each has computed */
int answers_count(struct trainer *t);

#endif
