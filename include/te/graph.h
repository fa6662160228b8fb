/*
 * te/graph.h - training steps as graphs: the passes of callables are captured once and then
 * replayed in the order of a schedule.
 */
#ifndef TE_GRAPH_H
#define TE_GRAPH_H

#include <stddef.h>
#include <stdint.h>
#include <te/ctx.h>
#include <te/export.h>
#include <te/op.h>
#include <te/plan.h>
#include <te/capture.h>
#include <te/region.h>
#include <te/schedule.h>
#include <te/stream.h>
#include <te/tensor.h>

TE_BEGIN_DECLS

struct te_graph; /* opaque, reference counted */

/* ---- callables ---- */

/* input: backward writes all of its gradient; output: backward may read its gradient */
#define TE_ARG_GRAD 1u

struct te_arg {
	const char *name; /* unique among a callable's inputs and outputs */
	struct te_spec spec;
	uint32_t flags; /* TE_ARG_* */
};

/* The argument of a callable's functions. The addresses are the same in every call. */
struct te_graph_call {
	size_t size;
	struct te_stream *stream;
	struct te_tensor *const *in, *const *out; /* as declared */
	struct te_tensor *const *in_grad;	  /* NULL where TE_ARG_GRAD is not set */
	struct te_tensor *const *out_grad;
	/* saved_nbytes bytes, aligned to 256, kept from forward to the end of backward or, if there
	 * is one, of backward_dw */
	void *saved;
	/* span_nbytes bytes each, aligned to 256; NULL where that is 0. Only the passes of a span
	 * may use its memory, and not after an event that te_replay.until waits for */
	void *span[TE_SPAN_COUNT];
};

typedef int (*te_callable_fn)(void *self, const struct te_graph_call *call);

/* backward does not overwrite what it reads, so it may run twice: needed for TE_GRAPH_RETAIN */
#define TE_CALLABLE_RETAINS 1u

/*
 * The passes of one layer over one micro-batch. Each call of a function queues the work of one pass
 * on call->stream: in warm-up it runs, in capture it is recorded. The functions must not allocate
 * device memory or wait. They return 0 or a negative code.
 */
struct te_callable {
	size_t size;	  /* set by the INIT macro; lets the struct grow */
	const char *name; /* for error messages and reports */
	void *self;
	uint32_t flags; /* TE_CALLABLE_* */
	int32_t nin, nout;
	const struct te_arg *in, *out; /* [nin], [nout]; copied by te_graph_create */
	size_t saved_nbytes;
	te_callable_fn forward;
	te_callable_fn backward;    /* NULL: inference only */
	te_callable_fn backward_dw; /* weight gradients; NULL: backward computes them */
	/* calls fn for all memory that the functions write besides their arguments; NULL: none */
	int (*regions)(void *self, te_region_fn fn, void *arg);
	void (*release)(void *self); /* called once, by the graph that owns the callable; or NULL */
	size_t span_nbytes[TE_SPAN_COUNT]; /* memory for some of the passes, by enum te_span */
};
#define TE_CALLABLE_INIT \
	{ sizeof(struct te_callable), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, { 0 } }

/**
 * te_callable_from_plan - create a callable that runs a plan
 * @plan:         created with TE_PLAN_EXTERNAL and used for nothing else; the callable keeps a
 *                reference
 * @name:         copied
 * @ret_callable: initialised by TE_CALLABLE_INIT
 *
 * The inputs have the names of the plan's inputs, the output is "out". A plan with TE_PLAN_DELAY_DW
 * has a backward_dw. The caller must call release unless a te_graph_create with the callable
 * succeeds.
 * One plan can serve several micro-batches if the schedule completes all passes of one before it
 * starts the next: give te_graph_create copies of the struct, with release NULL in all but one.
 * For any other order of passes te_graph_create returns -TE_ESTATE.
 * Thread: one plan by one thread at a time.  Since: 0.1
 * Errors: -EINVAL, -TE_ESTATE (created without TE_PLAN_EXTERNAL), -EBUSY (it offloads values
 * and is a callable already), -ENOMEM.
 */
TE_EXPORT int te_callable_from_plan(struct te_plan *plan, const char *name,
				    struct te_callable *ret_callable);

/* ---- capture ---- */

#define TE_GRAPH_WHOLE 1u /* one graph for the whole schedule: te_graph_run is one launch */
/* output 0 of each callable is input 0 of the next one, in the same memory */
#define TE_GRAPH_CHAIN 2u
/* tensors and saved memory that are not needed at the same time share memory. Scratch of passes is
 * shared without this flag too, unless TE_GRAPH_WHOLE lets passes run concurrently */
#define TE_GRAPH_REUSE 4u
#define TE_GRAPH_RETAIN 16u	  /* a backward may be replayed again before the next forward */
#define TE_GRAPH_EAGER 32u	  /* no capture: replays call the functions, for comparison */
/* lay out the pool for te_graph_report, and allocate, warm up and capture nothing: the graph can be
 * reported and released. Callables may come from plans with TE_PLAN_NO_ALLOC */
#define TE_GRAPH_NO_ALLOC 128u
#define TE_GRAPH_SERIAL 64u	  /* each node depends on the previous one: no te_capture_edges */

enum te_hook {
	TE_HOOK_PRE_WARMUP = 0,	 /* once, before warm-up; callable is -1 */
	TE_HOOK_POST_WARMUP = 1, /* once, after warm-up; callable is -1 */
	/* before and after every forward and backward pass in warm-up and, without TE_GRAPH_WHOLE,
	 * before and after its capture. Hooks are neither recorded nor called by replays */
	TE_HOOK_FORWARD_PRE = 2,
	TE_HOOK_FORWARD = 3,
	TE_HOOK_BACKWARD_PRE = 4,
	TE_HOOK_BACKWARD = 5
};
/* Returns 0, or a negative code that ends the capture. Hooks come in pairs: once the hook before
 * warm-up or before a pass has returned 0, the hook after it is called, also if something failed
 * between them. te_graph_create returns the first failure */
typedef int (*te_hook_fn)(void *arg, enum te_hook hook, int32_t callable,
			  struct te_stream *stream);

struct te_graph_opts {
	size_t size;		      /* set by the INIT macro; lets the struct grow */
	uint32_t flags;		      /* TE_GRAPH_* */
	int32_t nwarmup;	      /* runs of the schedule before capture; 3 by default */
	struct te_schedule *schedule; /* NULL: all forwards, then the backwards in reverse order */
	te_hook_fn hook;	      /* or NULL */
	/* work before the first and after the last pass, such as zeroing gradients and the
	 * optimizer; or NULL. TE_GRAPH_WHOLE: recorded; otherwise te_graph_run calls them */
	int (*first)(void *arg, struct te_stream *stream);
	int (*last)(void *arg, struct te_stream *stream);
	/* calls fn for all memory that first and last write; or NULL */
	int (*regions)(void *arg, te_region_fn fn, void *fn_arg);
	void *arg; /* first argument of hook, first, last and regions */
	/* device memory for the pool, aligned to 256 bytes; NULL: the graph allocates it. It must
	 * remain until the graph has been reset and its replays have run. Graphs that never run
	 * concurrently may share it */
	void *pool;
	uint64_t pool_nbytes; /* at least te_graph_report's peak_nbytes + te_ctx_workspace_nbytes */
};
#define TE_GRAPH_OPTS_INIT { sizeof(struct te_graph_opts), 0, 3, 0, 0, 0, 0, 0, 0, 0, 0 }

/**
 * te_graph_create - warm up and capture callables, and restore the memory that this changed
 * @ctx:       the device; the graph keeps a reference
 * @n:         number of callables
 * @callables: n structs, copied; one for each callable of the schedule, in its order
 * @opts:      NULL for the defaults
 * @ret_graph: the graph, with one reference
 *
 * Inputs, outputs, gradients, saved memory and scratch are in one pool, which is zero when warm-up
 * begins.
 * When the call returns, also with an error, every region that the regions functions name holds the
 * bytes it held before. Plans of one sequence draw random numbers that depend on the step, the
 * micro-batch and the op, not on the order of passes: see te_plan_set_rng. An error message names
 * the pass and the callable. On success the graph owns the callables and calls their release
 * functions; on failure the caller still owns them.
 * A schedule with forward passes only is inference and needs no backward functions.
 * A captured backward that does not write all of a gradient that it declares is -EINVAL. Passes
 * with host calls or with work queued without this library are not checked: these may write
 * anything.
 * Stream: synchronous; other streams must not use the callables during the call.
 * Thread: any; different threads may create and replay different graphs concurrently.  Since: 0.1
 * Errors: -EINVAL, -TE_ESHAPE, -TE_EDTYPE, -TE_ESTATE, -ENOMEM, and codes that the callables'
 * functions and hooks return.
 */
TE_EXPORT int te_graph_create(struct te_ctx *ctx, int32_t n, const struct te_callable *callables,
			      const struct te_graph_opts *opts, struct te_graph **ret_graph);
TE_EXPORT struct te_graph *te_graph_ref(struct te_graph *graph);
/* Releasing the last reference resets the graph. If a callable has a release function, this waits
 * until all queued replays have run and calls the release functions. If a stream of the replays is
 * in a capture that was begun without this library, it logs a warning and releases no callable. */
TE_EXPORT struct te_graph *te_graph_unref(struct te_graph *graph);

/**
 * te_graph_reset - release the recordings and the pool
 * @graph: the graph
 *
 * The pool is freed in stream order after the queued replays. Their streams may be capturing: the
 * free is not part of that capture. Bound tensors are released as te_graph_bind describes. Later
 * replays return -TE_ESTATE. On the cuda backend the call waits for queued replays of graphs that
 * hold host calls, external events or GEMMs.
 * Thread: one graph by one thread at a time.  Since: 0.1
 */
TE_EXPORT int te_graph_reset(struct te_graph *graph);

/**
 * te_graph_tensor, te_graph_grad - the static tensor of an argument, or of its gradient
 * @graph:    the graph
 * @callable: number of the callable, from 0
 * @name:     name of the argument
 *
 * Returns a borrowed tensor, or NULL and an error message if there is none. Its contents stay until
 * it is written again, unless TE_GRAPH_REUSE lets tensors share memory. Then they are valid as
 * follows:
 * - An output that the next callable of a chain takes is valid until the last passes of both
 *   callables have run; its gradient until the last pass of the first of the two.
 * - If te_graph_run() may be called: other outputs and input gradients are valid until the next run
 *   starts. Before every run, and after the results of the previous run have been read, write all
 *   inputs and all output gradients that no neighbour supplies: their memory is reused. Or pass
 *   them to te_graph_forward() and te_graph_backward().
 * - Otherwise: an output is valid until the last pass of its callable has run or, in a schedule
 *   without backward passes, until the next round of the schedule starts. An input gradient is
 *   valid until the backward pass of the preceding callable of its micro-batch has run. Write an
 *   input after the pass that precedes its forward pass in the schedule, and an output gradient
 *   after the pass that precedes its backward pass.
 * Thread: one graph by one thread at a time.  Since: 0.1
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

struct te_replay {
	size_t size; /* set by the INIT macro; lets the struct grow */
	/* forward: inputs; backward: output gradients. The first npos in the order of their
	 * declaration, the others by name. A tensor other than the static one is copied into it,
	 * and takes precedence over a bound tensor */
	int32_t npos, nnamed;
	struct te_tensor *const *pos;
	const struct te_named *named;
	/* backward: tensors to which input gradients are copied, since later replays overwrite
	 * these */
	int32_t nkept;
	const struct te_named *kept;
	/* run on this stream, after all work queued on the replay's stream; or NULL */
	struct te_stream *side;
	/* with side: event that the replay's stream waits for, which the pass must record by
	 * te_event_record_external; NULL: it waits for the end of the pass. Only later replays with
	 * a side stream wait for the work of the pass after the event */
	struct te_event *until;
};
#define TE_REPLAY_INIT \
	{ sizeof(struct te_replay), 0, 0, 0, 0, 0, 0, 0, 0 }

/**
 * te_graph_forward, te_graph_backward, te_graph_backward_dw - replay one pass of a callable
 * @graph:    the graph
 * @callable: number of the callable, from 0
 * @stream:   the replay is queued on it
 * @replay:   NULL if all arguments are in the static tensors
 *
 * Passes must be replayed in the order of the schedule, which repeats: tensors share memory on that
 * assumption. A pass out of order is -TE_ESTATE; the message names the pass that is due, and
 * nothing is queued. Do not pass inputs and gradients that a neighbour in the chain supplies.
 * Stream: asynchronous. Replays of one graph run serially on any streams, except for the work of a
 * pass after the event `until`.
 * Thread: one graph by one thread at a time.  Since: 0.1
 * Errors: -EINVAL (an argument is missing, unknown or passed twice; until), -TE_ESHAPE, -TE_EDTYPE,
 * -TE_ESTATE (order, reset, failed before), -EBUSY (the stream, the side stream or the stream of
 * the latest replay is capturing), -TE_ECUDA.
 */
TE_EXPORT int te_graph_forward(struct te_graph *graph, int32_t callable, struct te_stream *stream,
			       const struct te_replay *replay);
TE_EXPORT int te_graph_backward(struct te_graph *graph, int32_t callable, struct te_stream *stream,
				const struct te_replay *replay);
TE_EXPORT int te_graph_backward_dw(struct te_graph *graph, int32_t callable,
				   struct te_stream *stream, const struct te_replay *replay);

/**
 * te_graph_run - replay the whole schedule once
 * @graph:  the graph
 * @stream: the replay is queued on it
 *
 * Arguments are read from the static tensors. With TE_GRAPH_REUSE, write all unbound arguments
 * before each call. Needs TE_GRAPH_WHOLE or TE_GRAPH_CHAIN unless the schedule has a single
 * callable. The run starts with the first pass of the schedule, regardless of the passes replayed
 * before, and after it the first pass is due.
 * Thread: one graph by one thread at a time.  Since: 0.1
 */
TE_EXPORT int te_graph_run(struct te_graph *graph, struct te_stream *stream);
/* makes the first pass of the schedule due */
TE_EXPORT int te_graph_rewind(struct te_graph *graph);

/* ---- changes ---- */

#define TE_BIND_GRAD 1u /* the gradient of the named argument */

enum te_bind {
	TE_BIND_PATCHED = 1, /* nodes of the graph access the caller's memory */
	TE_BIND_COPIED = 2   /* each replay copies from or to the caller's memory */
};

/**
 * te_graph_bind - let later replays use the caller's memory for an argument
 * @graph:    the graph
 * @callable: number of the callable, from 0
 * @name:     an input or output of the callable that is not shared with a neighbour in the chain
 * @flags:    TE_BIND_GRAD or 0
 * @tensor:   has the argument's type and shape; the graph keeps a reference. NULL: unbind
 * @ret_how:  how the tensor was bound; NULL if not wanted
 *
 * Node arguments are patched where possible. It is not possible for GEMMs on a GPU, recordings with
 * host calls, a whole graph with TE_GRAPH_REUSE, and tensors not aligned to 16 bytes: these are
 * copied. A bind takes a microsecond or two and does not wait. te_graph_tensor returns the caller's
 * tensor for a patched argument. One tensor may be bound to several arguments. If the same pass, or
 * whole graph, writes one of them, the arguments bound later are copied, inputs before a replay and
 * outputs after it, unless TE_GRAPH_SERIAL is set.
 * Memory: the caller may release its reference while the tensor is bound. Binding another tensor
 * may then free the memory in the order of the context's stream: before that, make this stream wait
 * for replays on other streams.
 * Thread: one graph by one thread at a time.  Since: 0.1
 * Errors: -EINVAL (the message names the argument that is unknown or shared), -TE_ESHAPE,
 * -TE_EDTYPE, -TE_ESTATE, -ENOMEM, -TE_ECUDA. On failure the argument stays bound as before.
 */
TE_EXPORT int te_graph_bind(struct te_graph *graph, int32_t callable, const char *name,
			    uint32_t flags, struct te_tensor *tensor, enum te_bind *ret_how);

struct te_graph_change {
	size_t size;	      /* set by the INIT macro; lets the struct grow */
	int32_t nin_place;     /* recordings whose executable was updated in place */
	int32_t ninstantiated; /* recordings instantiated again: their nodes or edges differ */
};
#define TE_GRAPH_CHANGE_INIT { sizeof(struct te_graph_change), 0, 0 }

/**
 * te_graph_update - replace the callables of a graph
 * @graph:         the graph
 * @n, @callables: as in te_graph_create, for the same schedule; shapes may differ
 * @ret_change:    how the recordings were updated; NULL if not wanted
 *
 * Waits for queued replays, warms up and captures as te_graph_create does with the same options,
 * and updates the executables with the new nodes. Afterwards static tensors are new ones, no
 * argument is bound, the first pass of the schedule is due, and the previous callables have been
 * released. On failure the graph is unchanged, and the caller still owns the new callables; the
 * contents of a caller-provided pool are restored from a copy. If recordings had been updated by
 * then and capturing the previous callables again fails too, later replays return -TE_ESTATE.
 * Thread: one graph by one thread at a time.  Since: 0.1
 * Errors: as te_graph_create, -TE_ESTATE.
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
	/* bytes of the pool, with sizes rounded up to 256; bytes of all tensors, saved memory and
	 * scratch together, not rounded */
	uint64_t peak_nbytes, sum_nbytes;
	uint64_t in_nbytes, out_nbytes, grad_nbytes, saved_nbytes; /* parts of sum_nbytes */
	uint64_t nlaunches;
	double launch_us;     /* CPU time of a launch, mean and maximum */
	double launch_max_us;
	int32_t npatched, ncopied; /* bound arguments, by enum te_bind */
	uint64_t scratch_nbytes;   /* part of sum_nbytes: spans of one pass */
};
#define TE_GRAPH_REPORT_INIT                                                                   \
	{                                                                                      \
		sizeof(struct te_graph_report), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,   \
			0, 0, 0, 0, 0, 0, 0, 0                                                 \
	}
/* Thread, for all functions below: one graph by one thread at a time */
TE_EXPORT int te_graph_report(const struct te_graph *graph, struct te_graph_report *ret_report);
/* the report, the nodes of each pass and the bindings as one JSON object; release with free(3) */
TE_EXPORT int te_graph_json(const struct te_graph *graph, char **ret_text);
/* passes, their order and the data between them, for dot(1); release with free(3) */
TE_EXPORT int te_graph_dot(const struct te_graph *graph, char **ret_text);
/* the recording of a pass, or of the whole graph with TE_GRAPH_WHOLE, for functions such as
 * te_recording_dot; borrowed; NULL if there is none */
TE_EXPORT const struct te_recording *te_graph_recording(const struct te_graph *graph,
							int32_t callable,
							enum te_sched_kind kind);

/**
 * te_graph_version - the version of the loaded libtegraph, as "0.1.0"
 *
 * Thread: any thread.
 * Since:  0.1
 */
TE_EXPORT const char *te_graph_version(void);

TE_END_DECLS

#endif
