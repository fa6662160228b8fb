/*
 * te/graph.h - training steps as graphs: callables, captured once by a schedule, replayed in its
 * order.
 */
#ifndef TE_GRAPH_H
#define TE_GRAPH_H

#include <stddef.h>
#include <stdint.h>
#include <te/ctx.h>
#include <te/export.h>
#include <te/op.h>
#include <te/plan.h>
#include <te/recording.h>
#include <te/region.h>
#include <te/schedule.h>
#include <te/stream.h>
#include <te/tensor.h>

TE_BEGIN_DECLS

struct te_graph; /* opaque, reference counted */

/* ---- callables ---- */

#define TE_ARG_GRAD 1u /* of an input: backward writes its gradient; of an output: reads it */

struct te_arg {
	const char *name; /* unique among a callable's inputs and outputs */
	struct te_spec spec;
	uint32_t flags; /* TE_ARG_* */
};

/* What a callable's functions get: the same addresses at every call. */
struct te_graph_call {
	size_t size;
	struct te_stream *stream;
	struct te_tensor *const *in, *const *out; /* as declared */
	struct te_tensor *const *in_grad;	  /* NULL where TE_ARG_GRAD is not set */
	struct te_tensor *const *out_grad;
	void *saved; /* saved_nbytes, aligned to 256, kept from forward to the last of backward */
	/* device FP32 word, 1.0: weight copies are current; NULL without TE_GRAPH_CACHE_WEIGHTS */
	const float *weights_cached;
};

typedef int (*te_callable_fn)(void *self, const struct te_graph_call *call);

#define TE_CALLABLE_RETAINS 1u /* backward leaves what it needs as it was: TE_GRAPH_RETAIN may be */

/*
 * One pass of one layer over one micro-batch. The functions queue work on call->stream, as often
 * as they are called: in warm-up it runs, in capture it is recorded. They neither allocate
 * device memory nor wait, and return 0 or a negative code with a sentence of te__fail or none.
 */
struct te_callable {
	size_t size;	  /* set by the INIT macro; lets the struct grow */
	const char *name; /* in errors and reports */
	void *self;
	uint32_t flags; /* TE_CALLABLE_* */
	int32_t nin, nout;
	const struct te_arg *in, *out; /* copied by te_graph_create */
	size_t saved_nbytes;
	te_callable_fn forward;
	te_callable_fn backward;    /* NULL: inference only */
	te_callable_fn backward_dw; /* weight gradients; NULL: backward does them */
	/* visits what the functions change besides their arguments; NULL: nothing */
	int (*regions)(void *self, te_region_fn fn, void *arg);
	void (*release)(void *self); /* called once by the graph that took it over; or NULL */
};
#define TE_CALLABLE_INIT { sizeof(struct te_callable), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/**
 * te_callable_from_plan - a callable that runs a plan
 * @plan: made with TE_PLAN_EXTERNAL, not used otherwise; a reference is kept
 * @name: copied
 *
 * Inputs are the plan's by their names, the output is "out". A plan with TE_PLAN_DELAY_DW has a
 * backward_dw. Until a graph takes it over, release is the caller's to call.
 * The callable may stand for several micro-batches that the schedule runs one behind the other, up
 * to the last pass of each: copies of the struct, whose release is NULL in all but one. Passes in
 * another order are -TE_ESTATE.
 * Errors: -EINVAL, -TE_ESTATE (made without TE_PLAN_EXTERNAL), -ENOMEM.
 */
TE_EXPORT int te_callable_from_plan(struct te_plan *plan, const char *name,
				    struct te_callable *ret_callable);

/* ---- capture ---- */

#define TE_GRAPH_WHOLE 1u /* one graph for the whole schedule: te_graph_run is one launch */
/* callables follow each other: output 0 of one is input 0 of the next, by shared memory */
#define TE_GRAPH_CHAIN 2u
#define TE_GRAPH_REUSE 4u	  /* memory serves again once the schedule is done with it */
#define TE_GRAPH_CACHE_WEIGHTS 8u /* casts of weights only for the first micro-batch */
#define TE_GRAPH_RETAIN 16u	  /* a backward may be replayed again before the next forward */
#define TE_GRAPH_EAGER 32u	  /* nothing is captured: replays call the functions, to compare */
#define TE_GRAPH_IN_ORDER 64u	  /* nodes run one behind the other: no te_capture_edges */

enum te_hook {
	TE_HOOK_PRE_WARMUP = 0,	 /* once, before all of warm-up; callable is -1 */
	TE_HOOK_POST_WARMUP = 1, /* once, after it */
	/* around every pass in warm-up, and around its capture unless the graph is whole;
	 * never recorded, never at replay */
	TE_HOOK_FORWARD_PRE = 2,
	TE_HOOK_FORWARD = 3,
	TE_HOOK_BACKWARD_PRE = 4,
	TE_HOOK_BACKWARD = 5
};
/* 0, or a negative code that ends the capture */
typedef int (*te_hook_fn)(void *arg, enum te_hook hook, int32_t callable,
			  struct te_stream *stream);

struct te_graph_opts {
	size_t size;		      /* set by the INIT macro; lets the struct grow */
	uint32_t flags;		      /* TE_GRAPH_* */
	int32_t nwarmup;	      /* runs of the schedule before it is captured */
	struct te_schedule *schedule; /* NULL: all forwards, then the backwards reversed */
	te_hook_fn hook;	      /* or NULL */
	/* recorded before the first and behind the last step of a whole graph, and called by
	 * te_graph_run otherwise: zeroing gradients, the optimizer; or NULL */
	int (*first)(void *arg, struct te_stream *stream);
	int (*last)(void *arg, struct te_stream *stream);
	/* visits what first and last change; or NULL */
	int (*regions)(void *arg, te_region_fn fn, void *fn_arg);
	void *arg; /* of the four */
};
#define TE_GRAPH_OPTS_INIT { sizeof(struct te_graph_opts), 0, 3, 0, 0, 0, 0, 0, 0 }

/**
 * te_graph_create - warm up, capture, and put everything back
 * @callables: n, copied; one for each callable of the schedule, in its order
 * @opts:      NULL for the defaults
 *
 * Inputs, outputs, gradients and saved memory lie in one pool. Everything is zero when warm-up
 * begins. When the call returns, also when it fails, every region that the callables name holds the
 * bytes it held before. A failure names the pass and the callable, and takes over no callable.
 * The pass of a callable that has no gradient to give is inference: a schedule that has
 * only forward passes needs no backward functions.
 * Stream: synchronous; other streams must not use the callables meanwhile.
 * Thread: any; several graphs may be made and replayed at once.
 * Errors: -EINVAL, -TE_ESHAPE, -TE_EDTYPE, -TE_ESTATE, -ENOMEM, and what functions return.
 */
TE_EXPORT int te_graph_create(struct te_ctx *ctx, int32_t n, const struct te_callable *callables,
			      const struct te_graph_opts *opts, struct te_graph **ret_graph);
TE_EXPORT struct te_graph *te_graph_ref(struct te_graph *graph);
/* The last one resets, and calls each callable's release at once: what that frees may be in use by
 * replays that are queued, plans give theirs back on the context's stream. On host it waits for the
 * replays if a stream of theirs is capturing. */
TE_EXPORT struct te_graph *te_graph_unref(struct te_graph *graph);

/**
 * te_graph_reset - drop the recordings and the pool
 *
 * The pool is given back behind the replays that are queued, on whatever streams; one of those may
 * be capturing by now, and nothing gets into its capture. What te_graph_bind bound goes as it says
 * there. Later replays are -TE_ESTATE. On the cuda backend the call waits for replays of graphs
 * that hold host calls, external events or products, whose scratch goes with them.
 */
TE_EXPORT int te_graph_reset(struct te_graph *graph);

/**
 * te_graph_tensor, te_graph_grad - static tensors by callable and name, borrowed
 *
 * NULL where there is none. Each keeps what is written to it until it is written again. With
 * TE_GRAPH_REUSE memory serves others too, and a tensor holds its values for so long:
 * - an output that the next callable of a chain takes: until the last pass of either has run; the
 *   gradient given for it: until the last pass of the callable whose output it is;
 * - where te_graph_run may be called, other outputs and gradients of inputs: until the schedule
 *   begins anew. Inputs, and gradients of outputs that no neighbour gives, are written before that,
 *   each time, and after what the time before gave has been used: the memory may be the same. Or
 *   they are given to their passes;
 * - else an output until the last pass of its callable has run, without backward passes until the
 *   schedule begins anew; the gradient of an input until the backward of the callable before has
 *   run. Inputs are written behind the pass before their forward, gradients of outputs behind the
 *   pass before their backward.
 */
TE_EXPORT struct te_tensor *te_graph_tensor(const struct te_graph *graph, int32_t callable,
					    const char *name);
TE_EXPORT struct te_tensor *te_graph_grad(const struct te_graph *graph, int32_t callable,
					  const char *name);

/* ---- replay ---- */

struct te_named {
	const char *name;
	struct te_tensor *tensor;
};

enum te_first { TE_FIRST_UNSAID = 0, TE_FIRST_NO = 1, TE_FIRST_YES = 2 };

struct te_replay {
	size_t size; /* set by the INIT macro; lets the struct grow */
	/* forward: inputs; backward: gradients of outputs. By position in the order declared, then
	 * by name. A tensor that is not the static one is copied into it, over what is bound */
	int32_t npos, nnamed;
	struct te_tensor *const *pos;
	const struct te_named *named;
	/* backward: input gradients to be copied out, so that the next replay leaves them alone */
	int32_t nkept;
	const struct te_named *kept;
	/* with TE_GRAPH_CACHE_WEIGHTS: is this the first micro-batch? Without a te_replay, and in
	 * te_graph_run, that of the schedule is */
	enum te_first first;
	struct te_stream *side; /* run there, behind what the replay's stream has queued; or NULL */
	/* with side: the replay's stream then waits for this event, which a callable
	 * records by te_event_record_external; NULL: for all of the replay. What is behind the
	 * event nobody waits for but later replays with a side stream */
	struct te_event *until;
};
#define TE_REPLAY_INIT \
	{ sizeof(struct te_replay), 0, 0, 0, 0, 0, 0, TE_FIRST_UNSAID, 0, 0 }

/**
 * te_graph_forward, te_graph_backward, te_graph_backward_dw - replay one pass of a callable
 * @replay: NULL: all arguments have been written to the static tensors
 *
 * Passes are replayed in the order of the schedule, over and over: memory is shared on that
 * assumption. Another order is -TE_ESTATE, naming what was expected and what came, and queues
 * nothing. Chained inputs and gradients are not given.
 * Stream: asynchronous. Replays of one graph run one after the other, on whatever streams, but
 * for what is behind an event that one of them waits until.
 * Thread: one graph by one thread at a time.
 * Errors: -EINVAL (an argument missing, unknown or given twice, by name), -TE_ESHAPE, -TE_EDTYPE,
 * -TE_ESTATE (order, reset, failed before), -EBUSY (a stream is capturing: one of these, or that of
 * the latest replay), -TE_ECUDA.
 */
TE_EXPORT int te_graph_forward(struct te_graph *graph, int32_t callable, struct te_stream *stream,
			       const struct te_replay *replay);
TE_EXPORT int te_graph_backward(struct te_graph *graph, int32_t callable, struct te_stream *stream,
				const struct te_replay *replay);
TE_EXPORT int te_graph_backward_dw(struct te_graph *graph, int32_t callable,
				   struct te_stream *stream, const struct te_replay *replay);

/**
 * te_graph_run - replay the whole schedule once
 *
 * Arguments are read from the static tensors: with TE_GRAPH_REUSE all are written again before
 * each call, but those that te_graph_bind has bound. Needs TE_GRAPH_WHOLE or TE_GRAPH_CHAIN,
 * unless the schedule has a single callable. Begins anew: passes replayed one by one before are
 * forgotten.
 */
TE_EXPORT int te_graph_run(struct te_graph *graph, struct te_stream *stream);
/* the next replay is the first of the schedule again */
TE_EXPORT int te_graph_rewind(struct te_graph *graph);

/* ---- changes ---- */

#define TE_BIND_GRAD 1u /* the gradient of the named argument */

enum te_bind {
	TE_BIND_PATCHED = 1, /* the graphs read or write the caller's memory themselves */
	TE_BIND_COPIED = 2   /* each replay copies */
};

/**
 * te_graph_bind - let later replays use the caller's memory for an argument
 * @name:    an input or an output that no neighbour shares
 * @flags:   TE_BIND_GRAD or 0
 * @tensor:  of the same type and shape; kept until another is bound. NULL: the graph's own again
 * @ret_how: which of the two it became, if a tensor was bound; or NULL
 *
 * Node arguments are patched where that can be done. The first time both ways are measured, which
 * waits for a copy on a stream of the graph's own, and the cheaper one is kept for this argument;
 * te_graph_json tells the figures. Products on a GPU cannot be patched, nor recordings with host
 * calls, nor a whole graph whose buffers are reused, and a tensor must be aligned to 16 bytes.
 * Later calls cost a microsecond or two and wait for nothing.
 * An input that is patched keeps its memory from replay to replay: te_graph_tensor is the
 * caller's tensor then. One tensor may be bound to several arguments; where one of them is written
 * by the same pass, or whole graph, those that are bound later are copied, inputs before a replay
 * and outputs behind it, unless nodes run in order (TE_GRAPH_IN_ORDER).
 * Memory: the caller's reference may go while the tensor is bound. Where it has, the memory goes
 * back on the context's stream when another is bound, which must be behind replays elsewhere.
 * Errors: -EINVAL (names what is unknown or shared), -TE_ESHAPE, -TE_EDTYPE, -TE_ESTATE, -ENOMEM,
 * -TE_ECUDA; then what was bound still is.
 */
TE_EXPORT int te_graph_bind(struct te_graph *graph, int32_t callable, const char *name,
			    uint32_t flags, struct te_tensor *tensor, enum te_bind *ret_how);

struct te_graph_change {
	size_t size;	      /* set by the INIT macro; lets the struct grow */
	int32_t nin_place;    /* recordings whose executable took the new capture */
	int32_t ninstantiated; /* those whose nodes or edges differ */
};
#define TE_GRAPH_CHANGE_INIT { sizeof(struct te_graph_change), 0, 0 }

/**
 * te_graph_update - capture other callables in place of those there are
 * @n, @callables: as te_graph_create takes them, for the same schedule; shapes may differ
 * @ret_change:    what it took; or NULL
 *
 * Warms up and captures as te_graph_create does, under the same options, and gives the executables
 * the new nodes. Static tensors are new ones; what te_graph_bind bound is forgotten; the first pass
 * of the schedule is due; binding is as with a new graph. Replays that are queued run as they were
 * before anything is captured. The callables from before are released. On failure the graph goes on
 * as it was, and the new callables remain the caller's. Only where recordings had changed by then
 * and cannot be put back is the graph of no more use: replays are -TE_ESTATE.
 * Errors: those of te_graph_create, -TE_ESTATE.
 */
TE_EXPORT int te_graph_update(struct te_graph *graph, int32_t n,
			      const struct te_callable *callables,
			      struct te_graph_change *ret_change);

/* ---- inspection ---- */

struct te_graph_report {
	size_t size; /* set by the INIT macro; lets the struct grow */
	int32_t ncallables, nsteps;
	uint64_t nrecordings, ninstantiated, nupdated;
	uint64_t nnodes, nedges, nkernels, ncopies, nfills, nhost;
	/* bytes of the pool: what lives at once at most, each rounded up to 256; and the sum of
	 * what lives, not rounded */
	uint64_t peak_nbytes, sum_nbytes;
	uint64_t in_nbytes, out_nbytes, grad_nbytes, saved_nbytes; /* of sum_nbytes */
	uint64_t nlaunches;
	double launch_us;     /* CPU time of a launch, mean over all */
	double launch_max_us;
	int32_t npatched, ncopied; /* arguments bound either way */
};
#define TE_GRAPH_REPORT_INIT                                                                   \
	{                                                                                      \
		sizeof(struct te_graph_report), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,   \
			0, 0, 0, 0, 0, 0, 0                                                    \
	}
/* Thread, for these and all that is asked of a graph: as replays */
TE_EXPORT int te_graph_report(const struct te_graph *graph, struct te_graph_report *ret_report);
/* the same and each pass's nodes as one JSON object; released with free(3) */
TE_EXPORT int te_graph_json(const struct te_graph *graph, char **ret_text);
/* passes, their order and the data between them, for dot(1); released with free(3) */
TE_EXPORT int te_graph_dot(const struct te_graph *graph, char **ret_text);
/* the recording of a pass, or of all with TE_GRAPH_WHOLE, for te_recording_dot and the like;
 * borrowed, not to be changed; NULL where there is none */
TE_EXPORT const struct te_recording *te_graph_recording(const struct te_graph *graph,
							int32_t callable,
							enum te_sched_kind kind);

/**
 * te_graph_version - the version of the libtegraph that runs, as "0.1.0"
 *
 * Thread: any thread.
 * Since:  0.1
 */
TE_EXPORT const char *te_graph_version(void);

TE_END_DECLS

#endif
