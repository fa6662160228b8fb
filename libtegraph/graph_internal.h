/*
 * graph_internal.h - a graph from the inside.
 *
 * graph.c checks what it is given and owns it; memory.c lays out the pool; capture.c warms up,
 * captures and puts back; replay.c runs; bind.c rebinds and updates; report.c tells.
 */
#ifndef TE__GRAPH_INTERNAL_H
#define TE__GRAPH_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include <te/graph.h>
#include <te/private.h>

#define TE__GRAPH_ALIGN 256

/* An argument that may use memory of the caller. */
struct te__bound {
	struct te_tensor *own;	  /* the graph's, while another stands in its place; or NULL */
	struct te_tensor *copied; /* copied from or to at each replay; or NULL */
	enum te_bind how;	  /* of what is bound; 0: nothing is */
	enum te_bind prefers;	  /* settled by the first that could be patched; 0 before */
	double patch_us, copy_us; /* as measured then; 0: not measured */
	int32_t slot[3];	  /* in the recordings that there are, in their order */
};

/* One callable with its tensors. */
struct te__node {
	struct te_callable c; /* in, out and name are copies */
	/* one array: inputs, their gradients, outputs, their gradients; bound is parallel to it */
	struct te_tensor **in, **in_grad, **out, **out_grad;
	struct te__bound *bound;
	int32_t ncopied; /* arguments that replays copy */
	struct te_graph_call call;
	struct te_recording *rec[3]; /* by te_sched_kind */
	int has_slots;		     /* those of bound are known */
	int32_t chunk, micro, layer;
	int32_t prev, next; /* in the chain; -1: none, or no chain */
	int32_t at[3];	    /* its steps by te_sched_kind, -1 where the schedule has none */
	/* items of the pool, by argument; -1: none */
	int32_t *in_item, *out_item, *in_grad_item, *out_grad_item;
	int32_t saved_item;
};

struct te_graph {
	_Atomic uint32_t refs;
	struct te_ctx *ctx;
	const char *fn; /* which function builds it */
	struct te_graph_opts opts;
	struct te_schedule *schedule;
	int32_t nnodes, nsteps;
	int training; /* the schedule has backward passes */
	struct te__node *node;
	struct te_sched_step *step;
	struct te_stream *stream;    /* warm-up and capture */
	struct te_recording *whole;  /* with TE_GRAPH_WHOLE */
	struct te_graph *old;	     /* while capturing: whose recordings are updated; or NULL */
	struct te_graph_change change;
	struct te_event *order, *tail; /* between streams of replays */
	struct te_stream *last_stream; /* of the latest replay, or NULL */
	struct te_stream *trailing;    /* of the latest replay that nobody waited for to its end */
	void *pool;
	float *cached; /* the device word; NULL without TE_GRAPH_CACHE_WEIGHTS */
	int cached_now; /* what it will hold once all that is queued has run; -1: not known */
	int32_t pos;			    /* the step that is due */
	const struct te_sched_step *latest; /* replayed by itself; NULL: none since the start */
	int gone;      /* te_graph_reset has been here */
	int failed;    /* sticky */
	char failed_text[512];
	struct te_graph_report report;
	double launch_sum_us;
};

/* a sentence that begins with the function that was called */
#define te__graph_fail(fn, code, fmt, ...) te__fail(code, "%s: " fmt, fn, ##__VA_ARGS__)

/* "forward" and so on */
const char *te__graph_pass(enum te_sched_kind kind);

/* the callable before one, of the same micro-batch; -1: none. As they are in the order of chunk,
 * micro-batch, layer, it is the nearest */
int32_t te__graph_before(const struct te_graph *g, int32_t i);

/* "[2,16] bf16" */
void te__graph_spec_str(const struct te_spec *s, char *dst, size_t nbytes);
void te__graph_spec_of(const struct te_tensor *t, struct te_spec *ret_spec);

/* where and how much: allocates the pool and makes every tensor */
int te__graph_memory(struct te_graph *g);
void te__graph_memory_free(struct te_graph *g);

int te__graph_capture(struct te_graph *g);
/* each pass again, into its recording: an update by another graph's captures is undone */
int te__graph_recapture(struct te_graph *g);

/* what te_graph_create does behind its checks of the arguments' own form */
int te__graph_build(struct te_graph *g, int32_t n, const struct te_callable *callables);
struct te_graph *te__graph_new(const char *fn, struct te_ctx *ctx,
			       const struct te_graph_opts *opts);
void te__graph_free(struct te_graph *g);
void te__graph_take_over(struct te_graph *g, const struct te_callable *callables);

/* copies of bound arguments before (after 0) or behind a pass; kind -1: of all */
int te__graph_copy_bound(const struct te__node *n, int kind, int after, struct te_stream *stream);

/* what two calls differ by is the time between them */
double te__graph_now_us(void);
int te__schedule_create(const char *fn, const struct te_schedule_opts *opts,
			struct te_schedule **ret_schedule);

/* call a step's function on a stream: eagerly, in warm-up, or while capturing */
int te__graph_call(struct te_graph *g, const struct te_sched_step *s, struct te_stream *stream);
/* call the graph's first function, or its last */
int te__graph_edge(struct te_graph *g, int last, const char *fn, struct te_stream *stream);
/* have the word say whether weight copies are current, in stream order */
int te__graph_set_cached(struct te_graph *g, int cached, struct te_stream *stream);
/* the stream goes on when all queued on another so far has run */
int te__graph_follow(struct te_stream *stream, struct te_event *event, struct te_stream *other);
/* the code of a step that failed, with a sentence that names it */
int te__graph_step_failed(const struct te_graph *g, const struct te_sched_step *s, const char *fn,
			  const char *what, int code);
/* a visitor over all that the graph's functions change */
int te__graph_regions(struct te_graph *g, te_region_fn fn, void *arg);

#endif
