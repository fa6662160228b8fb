/*
 * ranks.h - the ranks of a run: communicators, and agreement.
 *
 * Ranks whose numbers are neighbours divide a model: rank r has part r % nparts of it, which with
 * nshards ranks of a stage is shard r % nshards. Ranks with the same part divide the micro-batches:
 * r / nparts is the number among them. Parts are of the weights, or with context of the tokens of
 * each sequence: then all ranks have equal weights.
 */
#ifndef RANKS_H
#define RANKS_H

#include <stdint.h>

#include <te/collective.h>
#include <te/reducer.h>
#include <te/step.h>

#include "tools/lib/digest.h"
#include "tools/lib/model.h"

#define MOST_RANKS 64

enum rank_state {
	RANK_TRAINS,
	RANK_LOST, /* has ended, has stopped, or cannot be reached */
	RANK_IDLE  /* was left over */
};

/* Zeroed: one rank, which has no communicator. */
struct ranks {
	struct te_comm *comm; /* NULL: there is one rank */
	int32_t rank, others; /* other ranks */
	int32_t nfirst;	      /* initial number of ranks; 0: one. Messages use initial numbers */
	int32_t number[MOST_RANKS]; /* initial number of each present rank */
	uint8_t state[MOST_RANKS];  /* enum rank_state, indexed by initial number */
	/* likewise: the latest start of a rank that waited to return, and then did not come */
	int32_t absent[MOST_RANKS];
	struct te_comm *model; /* ranks that share one model; NULL: one rank */
	struct te_comm *data;  /* ranks that have equal weights; NULL: one rank */
	struct te_comm *stage; /* ranks that divide a stage, if there are several stages; or NULL */
	int32_t nparts;	       /* parts of a model; 0: one */
	int32_t nshards;       /* parts of a stage */
	int context;	       /* 1: parts are of tokens */
	int32_t data_rank;     /* number among ranks that divide micro-batches */
	struct te_comm_reducer *reducer; /* NULL before ranks_reduce() */
	struct te_comm_reducer *amaxes;	 /* reducer for the ranks of a model, likewise */
	/* [te_seq_nweights] 1: each rank of a model has the gradient of its tokens; or NULL */
	uint8_t *divided;
	const struct te_seq *seq; /* with divided, borrowed */
	float *words;	      /* device memory that ranks exchange */
	int64_t nwords;
	void *taken;	      /* memory of the communicator data, or NULL */
	void *grads;	      /* in it, the sequence's gradients; NULL: each rank has a part */
	/* in it, the sequence's weights that other ranks read: all with --zero 1 and 2, this rank's
	 * part with 3; or NULL */
	void *weights;
	size_t weights_nbytes;
	int mapped;	      /* 1: all ranks map the weights of all */
	struct te_event *met; /* with weights */
	uint64_t taken_nbytes; /* device memory of the communicator */
};

/*
 * Join the ranks, if a launcher has started several. nstages, nshards, ncontext: of a model;
 * naccum: micro-batches of a rank, at most. A rank that was started again joins them by
 * ranks_return().
 */
int ranks_open(struct te_ctx *ctx, int32_t nstages, int32_t nshards, int32_t ncontext,
	       int64_t naccum, struct ranks *ret_r);
/* STATUS_BAD, once all ranks are here, of which one has printed the error */
int ranks_refuse(const struct ranks *r);
/* create the communicators of each model and of equal shards */
int ranks_divide(struct ranks *r);
/* create the communicator data, with room for nbytes of memory, or 0 */
int ranks_share(struct ranks *r, size_t nbytes);
/* bind the complete sequence, flags as in te_seq_bind(); trains: with gradients that the ranks with
 * equal weights map, or for --zero 2 divide; for --zero 3 they divide the weights, too, and with
 * copies their BF16 copies */
int ranks_bind(struct ranks *r, struct te_seq *seq, uint32_t flags, int trains, int64_t zero,
	       int copies);
/* set the options of the optimizer, for --zero: this rank's part of the moments */
void ranks_optimizer(const struct ranks *r, int64_t zero, struct te_adamw_opts *ao);
/* elements of the gradients that this rank has */
int64_t ranks_own_grads(const struct ranks *r, const struct te_seq *seq, int64_t zero);
/* create the reducers, before steps are planned; the model is initialised */
int ranks_reduce(struct ranks *r, const struct model *m, struct te_adamw *opt);
/* set the options of a step of this rank */
void ranks_step(const struct ranks *r, struct te_step_opts *so);
/* release all that was created since ranks_open(), after the sequence was released */
void ranks_undivide(struct ranks *r);
void ranks_close(struct ranks *r);
/*
 * Restores the state after ranks_open(), with the remaining ranks, after a failure and
 * ranks_undivide(). They have whole models, as many as can share nmicro micro-batches; the others
 * are left over, and can only be closed. own: n numbers for the others; all: the numbers of all
 * ranks, in rank order. Returns the library's code.
 */
int ranks_recover(struct ranks *r, struct te_stream *stream, int64_t nmicro, const int32_t *own,
		  int n, int32_t *all);
int ranks_is_idle(const struct ranks *r);
/*
 * With ranks that wait to return, see returns.h, after ranks_undivide(). 1: the state is as after
 * ranks_open(), with more ranks; 0: with the same ranks, because the others have ended or did not
 * come. Returns the library's code after a failure.
 */
int ranks_grow(struct te_ctx *ctx, struct ranks *r, struct te_stream *stream, int64_t nmicro,
	       int64_t nrecovered);
/*
 * A rank that was started again waits until the others take it in, or until all ranks wait.
 * *ret_nrecovered: how often they have recovered; *ret_all: 1 if all ranks were started again.
 */
int ranks_return(struct te_ctx *ctx, struct ranks *r, struct te_stream *stream,
		 int64_t *ret_nrecovered, int *ret_all);

#define RANKS_TEXT (4 * MOST_RANKS + 8)
/* "rank 2" or "ranks 2, 3": ranks that are in this state, and were not before. Returns their
 * number */
int ranks_name(const struct ranks *r, const struct ranks *before, enum rank_state state,
	       char ret_text[RANKS_TEXT]);

/* number of ranks: all, in a model, with this shard */
int32_t ranks_n(const struct ranks *r);
int32_t ranks_nparts(const struct ranks *r);
/* ranks that divide a stage, or a model without stages; NULL: one rank */
struct te_comm *ranks_shards(const struct ranks *r);
int32_t ranks_ndata(const struct ranks *r);
/* number of models at first */
int32_t ranks_first_ndata(const struct ranks *r);
/* all ranks fail */
void ranks_abort(const struct ranks *r, const char *why);

/*
 * After a step, in stream order: *ret gets the blocks of all ranks, in rank order. A block has the
 * losses of the rank's micro-batches, 0 where loss is NULL, then this rank's n numbers of x. all:
 * pinned, for the blocks of all ranks; it is read and written. Returns the library's code.
 */
int ranks_exchange(const struct ranks *r, struct te_stream *stream, struct te_tensor *const *loss,
		   int64_t naccum, const float *x, int n, float *all);
/* 0, or a failure of the exchange, once the stream has reached it */
int ranks_check(const struct ranks *r);

/* *ret_any: is x set on any rank? Waits; returns the library's code. */
int ranks_any(const struct ranks *r, struct te_stream *stream, int x, int *ret_any);
/* sets *x to rank 0's on all ranks; waits; returns the library's code */
int ranks_first(const struct ranks *r, struct te_stream *stream, int *x);
/* all: n numbers of each rank, in rank order; waits; returns the library's code */
int ranks_all(const struct ranks *r, struct te_stream *stream, const float *own, int n, float *all);
/* *ret_i, *ret_rank: a number that differs from rank 0's, of n, and the first rank that has it; -1:
 * all have the same; waits; returns the library's code */
int ranks_differ(const struct ranks *r, struct te_stream *stream, const int32_t *own, int n,
		 int *ret_i, int32_t *ret_rank);
/* sets *x to the value on the last rank of the model; waits; returns the library's code */
int ranks_last(const struct ranks *r, struct te_stream *stream, float *x);
/* *ret_step: the largest step of all ranks; *ret_rank: the first rank that has it; *ret_all: 1 if
 * all have it; waits; returns the library's code */
int ranks_newest(const struct ranks *r, struct te_stream *stream, int64_t step, int32_t *ret_rank,
		 int64_t *ret_step, int *ret_all);
/* sends bytes in host memory to all ranks, which have equal weights; waits; an exit status */
int ranks_send(const struct ranks *r, struct te_stream *stream, int32_t root, void *p,
	       size_t nbytes);
/* returns rank 0's status on all ranks, or the failure of the exchange */
int ranks_status(const struct ranks *r, struct te_stream *stream, int status);
/* STATUS_FAILED, with a message, unless the ranks with equal weights have the same bits */
int ranks_compare(const struct ranks *r, struct te_stream *stream, const struct te_seq *seq);

#endif
