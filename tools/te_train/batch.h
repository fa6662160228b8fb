/* batch.h - batches of training, drawn at random, and of validation, fixed. */
#ifndef BATCH_H
#define BATCH_H

#include <stdint.h>

#include "data.h"

/*
 * Fill nrows windows of T tokens and their successors, at offsets that depend on
 * (seed, step, row) only, so that a resumed run draws the same as an uninterrupted one. first: the
 * number of the first row in the step of all ranks.
 */
int batch_draw(const struct span *s, uint64_t seed, int64_t step, int64_t first, int64_t nrows,
	       int64_t T, int32_t *x, int32_t *y);

/*
 * The fixed windows of a validation: all of the span in steps of T, or max_batches
 * batches of them evenly spread (0: all). batch_eval fills the k-th batch; targets of missing
 * rows and ends are ignored. *ret_count: targets that are not ignored.
 */
int64_t eval_nbatches(const struct span *s, int64_t nrows, int64_t T, int64_t max_batches);
int batch_eval(const struct span *s, int64_t k, int64_t max_batches, int64_t nrows, int64_t T,
	       int32_t *x, int32_t *y, int64_t *ret_count);

#endif
