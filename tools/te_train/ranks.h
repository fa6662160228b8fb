/* ranks.h - the ranks of a data-parallel run: what they share, and what they agree on. */
#ifndef RANKS_H
#define RANKS_H

#include <stdint.h>

#include <te/collective.h>
#include <te/reducer.h>
#include <te/step.h>

#include "digest.h"

/* Zeroed: one rank, which has no communicator. */
struct ranks {
	struct te_comm *comm; /* NULL: there is one rank */
	int32_t rank, others; /* other ranks */
	struct te_comm_reducer *reducer; /* NULL before ranks_reduce() */
	float *words;	      /* of the device: what ranks exchange */
	int64_t nwords;
	void *grads;	      /* the sequence's gradients */
	uint64_t taken_nbytes; /* of the device, by the communicator */
};

/*
 * Join the other ranks, if a launcher has started several. seq is complete; with train it gets
 * memory for gradients that all ranks map. naccum: micro-batches of a rank, at most.
 */
int ranks_open(struct te_ctx *ctx, struct te_seq *seq, int64_t naccum, int train,
	       struct ranks *ret_r);
/* before steps are planned; seq is initialised */
int ranks_reduce(struct ranks *r, struct te_seq *seq);
/* options of a step of this rank */
void ranks_step(const struct ranks *r, struct te_step_opts *so);
/* after the sequence has been released */
void ranks_close(struct ranks *r);

/* how many there are */
int32_t ranks_n(const struct ranks *r);

/*
 * After a step, in stream order: *ret gets the blocks of all ranks, in rank order. A block has the
 * losses of the rank's micro-batches, then this rank's n numbers of x. all: pinned, for the blocks
 * of all ranks; it is read and written. Returns what the library returned.
 */
int ranks_exchange(const struct ranks *r, struct te_stream *stream, const struct te_step *step,
		   int64_t naccum, const float *x, int n, float *all);
/* 0, or a failure of the exchange, once the stream has reached it */
int ranks_check(const struct ranks *r);

/* the status of rank 0 on all ranks; an exit status, also of the exchange */
int ranks_status(const struct ranks *r, struct te_stream *stream, int status);
/* STATUS_FAILED, with a message, unless the weights of all ranks have the same bits */
int ranks_compare(const struct ranks *r, struct te_stream *stream, const struct te_seq *seq);

#endif
