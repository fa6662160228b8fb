/*
 * graph_internal.h - a graph, shared by the files of te_graph_*(3).
 *
 * graph.c checks arguments and owns the graph; memory.c lays out the pool; rng.c chooses random
 * numbers; capture.c warms up, captures and restores; grads.c checks gradients; replay.c replays;
 * bind.c binds and updates; report.c prints. step.c is a training step as a graph.
 */
#ifndef TE__GRAPH_INTERNAL_H
#define TE__GRAPH_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include <te/graph.h>
#include "libtecore/base/private.h"

#define TE__GRAPH_ALIGN 256

/* State of an argument for te_graph_bind. */
struct te__bound {
	struct te_tensor *own;	  /* patched: the graph's tensor, which is not in use; or NULL */
	struct te_tensor *copied; /* each replay copies from or to this tensor; or NULL */
	enum te_bind how;	  /* how the tensor is bound; 0: not bound */
	/* bit te_sched_kind: the argument's memory is not shared during that pass of the
	 * callable */
	uint32_t passes;
	int32_t binding[3]; /* numbers of the bindings in recording() */
};

/* One callable with its tensors. */
struct te__graph_callable {
	struct te_callable c; /* in, out and name are copies */
	void (*release)(void *self); /* from the callable, until the graph owns it */
	/* one array: inputs, their gradients, outputs, their gradients; bound has the same order */
	struct te_tensor **in, **in_grad, **out, **out_grad;
	struct te__bound *bound;
	int32_t ncopied; /* arguments that replays copy */
	struct te_graph_call call;
	struct te_recording *rec[3]; /* by te_sched_kind */
	int has_bindings;	     /* bound[].binding is valid */
	int32_t chunk, micro, layer;
	uint64_t rng_index, rng_advance; /* for the callable's plan: see rng.c */
	int32_t prev, next; /* neighbours in the chain; -1: none, or no chain */
	int32_t at[3];	    /* its steps by te_sched_kind; -1: the schedule has none */
	/* buffers of the pool, by argument; -1: none */
	int32_t *in_item, *out_item, *in_grad_item, *out_grad_item;
	int32_t saved_item, span_item[TE_SPAN_COUNT];
};

struct te_graph {
	_Atomic uint32_t refs;
	struct te_ctx *ctx;
	const char *fn; /* the public function that builds it, for error messages */
	struct te_graph_opts opts;
	struct te_schedule *schedule;
	int32_t ncallables, nsteps;
	int training; /* the schedule has backward passes */
	/* number of the first micro-batch in a larger step, and the step's number of them; 0:
	 * none */
	int32_t first_micro, total_micro;
	/* warm-up runs the passes of the first so many micro-batches; 0: of all */
	int32_t nwarm_micro;
	/* sequence of a te_step, or NULL: warm-up leaves out the last function, the optimizer, and
	 * does not restore what te__seq_renews() names */
	const struct te_seq *renewed;
	struct te__graph_callable *callable;
	struct te_sched_step *step;
	struct te_stream *stream;    /* warm-up and capture */
	struct te_recording *whole;  /* with TE_GRAPH_WHOLE */
	struct te_graph
		*old; /* during an update: the graph whose recordings are updated; or NULL */
	struct te_graph_change change;
	struct te_event *order, *tail; /* order the streams of replays */
	struct te_stream *last_stream; /* stream of the latest replay, or NULL */
	/* side stream of the latest replay whose end no stream of a replay waits for, or NULL */
	struct te_stream *trailing;
	void *pool;
	int32_t pos;	/* the step that is due */
	const struct te_sched_step
		*latest; /* the latest pass replayed, not by te_graph_run; or NULL */
	int gone;	 /* te_graph_reset has been called */
	int failed;	 /* code of the first failed replay, or 0 */
	char failed_text[512];
	struct te_graph_report report;
	double launch_sum_us;
};

/* an error message that begins with the public function that was called */
#define te__graph_fail(fn, code, fmt, ...) te__fail(code, "%s: " fmt, fn, ##__VA_ARGS__)

/* "forward" and so on */
const char *te__graph_pass(enum te_sched_kind kind);

/* the preceding callable of the same micro-batch; -1: none. Callables are in the order of chunk,
 * micro-batch, layer */
int32_t te__graph_before(const struct te_graph *g, int32_t i);

/* lays out and allocates the pool, and creates all static tensors */
int te__graph_memory(struct te_graph *g);
void te__graph_memory_free(struct te_graph *g);

/* the plan of a callable that te_callable_from_plan made, or NULL */
struct te_plan *te__callable_plan(const struct te_callable *c);
/* rng_index and rng_advance of all callables */
void te__graph_rng(struct te_graph *g);

int te__graph_capture(struct te_graph *g);
/* captures each pass again into its recording: undoes an update by another graph's captures */
int te__graph_recapture(struct te_graph *g);

/* te_graph_create after the checks of its arguments */
int te__graph_build(struct te_graph *g, int32_t n, const struct te_callable *callables);
struct te_graph *te__graph_new(const char *fn, struct te_ctx *ctx,
			       const struct te_graph_opts *opts);
void te__graph_free(struct te_graph *g);
/* the static tensor of an argument or of its gradient; NULL, without a message, if there is none */
struct te_tensor *te__graph_arg(const struct te_graph *g, int32_t callable, const char *name,
				int grad);
void te__graph_take_over(struct te_graph *g);

/* queues the copies of bound arguments before (after 0) or after a pass; kind -1: of all passes */
int te__graph_copy_bound(const struct te__graph_callable *n, int kind, int after,
			 struct te_stream *stream);

int te__schedule_create(const char *fn, const struct te_schedule_opts *opts,
			struct te_schedule **ret_schedule);

/* calls a step's function on a stream: eagerly, in warm-up, or in a capture */
int te__graph_call(struct te_graph *g, const struct te_sched_step *s, struct te_stream *stream);
/* calls the first or the last function of the options */
int te__graph_edge(struct te_graph *g, int last, const char *fn, struct te_stream *stream);
/* later work on the stream runs after all work queued on the other stream; if that cannot be
 * queued, the CPU waits for the other */
int te__graph_await(struct te_stream *stream, struct te_stream *other);
/* te_graph_run, called by fn */
int te__graph_run(struct te_graph *graph, struct te_stream *stream, const char *fn);
/* queues the passes of the first micro-batch one by one, captured or not, without the last
 * function */
int te__graph_passes(struct te_graph *graph, struct te_stream *stream, const char *fn);
/* returns the code of a failed step with an error message that names the step */
int te__graph_step_failed(const struct te_graph *g, const struct te_sched_step *s, const char *fn,
			  const char *what, int code);
/*
 * A gradient that backward must write and does not: the input, and the number of bytes written.
 * Returns 1, or 0 if all gradients of the callable are written or that is unknown.
 */
struct te__grad_gap {
	int32_t in;
	size_t nbytes_written;
};
int te__graph_grad_gap(const struct te__graph_callable *n, struct te__writes *writes,
		       struct te__grad_gap *ret_gap);


#endif
