/*
 * te/reducer.h - data-parallel training: gradients and amaxes of all ranks are reduced while the
 * backward pass runs.
 */
#ifndef TE_REDUCER_H
#define TE_REDUCER_H

#include <stddef.h>
#include <stdint.h>

#include <te/comm.h>
#include <te/export.h>
#include <te/plan.h>
#include <te/seq.h>

TE_BEGIN_DECLS

struct te_comm_reducer; /* opaque, reference counted */

struct te_comm_reducer_opts {
	size_t size;		/* set by the INIT macro; lets the struct grow */
	uint64_t bucket_nbytes; /* bytes of gradients that one all-reduce sums; 0: 16 MiB */
};
#define TE_COMM_REDUCER_OPTS_INIT { sizeof(struct te_comm_reducer_opts), 0 }

/**
 * te_comm_reducer_create - create a reducer of the gradients and amaxes of a sequence
 * @comm:        the communicator, on the sequence's context
 * @seq:         initialised; the same on all ranks
 * @opts:        NULL: defaults; equal on all ranks
 * @ret_reducer: the reducer, with one reference
 *
 * Gradients whose memory is symmetric (te_comm_alloc, te_seq_bind) are reduced in place without a
 * copy.
 * Thread: one communicator by one thread at a time.  Since: 0.1
 * Errors: -EINVAL, -ENOMEM, -TE_ESTATE (the sequence is not initialised, or has no gradients).
 */
TE_EXPORT int te_comm_reducer_create(struct te_comm *comm, struct te_seq *seq,
				     const struct te_comm_reducer_opts *opts,
				     struct te_comm_reducer **ret_reducer);
TE_EXPORT struct te_comm_reducer *te_comm_reducer_ref(struct te_comm_reducer *reducer);
TE_EXPORT struct te_comm_reducer *te_comm_reducer_unref(struct te_comm_reducer *reducer);

/* events for te_comm_reducer_hook(), as the hooks of options: GRAD and SCALES */
#define TE_COMM_REDUCER_HOOKS 12u

/**
 * te_comm_reducer_hook - the hook of te_step_opts or te_plan_opts; hook_arg is the reducer
 * @reducer: the struct te_comm_reducer
 * @plan:    the plan that calls the hook
 * @event:   the event
 *
 * TE_PLAN_EVENT_GRAD: when complete gradients fill a bucket, and when all are complete, queues
 * their sum over the ranks, in rank order, in place. There must be one event a step for each weight
 * with a gradient, as te_step_create() makes.
 * TE_PLAN_EVENT_SCALES: queues the maximum over the ranks of the amaxes, from which scales are
 * computed next. TE_PLAN_EVENT_AMAX: the same for a tensor with current scaling. It is not in
 * TE_COMM_REDUCER_HOOKS: only a caller that wants the ranks' scales to be equal adds it.
 * Work is queued on the stream of the pass. In a recording with TE_CAPTURE_CONCURRENT, as
 * te_graph_create() and te_step_create() make, it runs concurrently with the rest of the pass.
 * Thread: the thread that queues the pass.  Since: 0.1
 * Errors: as te_comm_allreduce(); -TE_ESTATE (a weight's second event in a step).
 */
TE_EXPORT int te_comm_reducer_hook(void *reducer, struct te_plan *plan,
				   const struct te_plan_event *event);

TE_END_DECLS

#endif
