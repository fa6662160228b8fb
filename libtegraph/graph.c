/* graph.c - te_graph_create(3): checks of callables and schedule; references, reset, tensors. */
#define TE_LOG_CATEGORY "graph"
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "graph_internal.h"

/* ---- callables ---- */

static void args_free(const struct te_arg *a, int32_t n)
{
	for (int32_t k = 0; a && k < n; k++)
		te__free((char *)(uintptr_t)a[k].name);
	te__free((void *)(uintptr_t)a);
}

/* NULL if out of memory */
static struct te_arg *args_copy(const struct te_arg *a, int32_t n)
{
	struct te_arg *copy = te__calloc((size_t)n + 1, sizeof(*copy));

	for (int32_t k = 0; copy && k < n; k++) {
		copy[k] = a[k];
		copy[k].name = te__strdup(a[k].name);
		if (!copy[k].name) {
			args_free(copy, k);
			copy = NULL;
		}
	}
	return copy;
}

static int check_args(const char *fn, const struct te_callable *c, const struct te_arg *a,
		      int32_t n, const char *what)
{
	for (int32_t k = 0; k < n; k++) {
		const struct te_spec *s = &a[k].spec;
		int64_t nbytes;

		if (!a[k].name || !a[k].name[0])
			return te__graph_fail(fn, -EINVAL, "%s %" PRId32 " of %s has no name", what,
					      k, c->name);
		if (a[k].flags & ~TE_ARG_GRAD)
			return te__graph_fail(fn, -EINVAL, "%s of %s: unknown flags 0x%x",
					      a[k].name, c->name, (unsigned)a[k].flags);
		if (s->ndim < 1 || s->ndim > TE_MAX_DIMS)
			return te__graph_fail(fn, -TE_ESHAPE, "%s of %s has %" PRId32 " extents",
					      a[k].name, c->name, s->ndim);
		if (!te_dtype_nbytes(s->dtype))
			return te__graph_fail(fn, -TE_EDTYPE, "%s of %s: no type has number %d",
					      a[k].name, c->name, (int)s->dtype);
		nbytes = (int64_t)te_dtype_nbytes(s->dtype);
		for (int32_t d = 0; d < s->ndim; d++) {
			if (s->shape[d] < 1)
				return te__graph_fail(fn, -TE_ESHAPE,
						      "%s of %s: extent %" PRId32 " is %" PRId64,
						      a[k].name, c->name, d, s->shape[d]);
			if (__builtin_mul_overflow(nbytes, s->shape[d], &nbytes))
				return te__graph_fail(fn, -TE_ESHAPE,
						      "%s of %s has more than 2^63 bytes",
						      a[k].name, c->name);
		}
	}
	return 0;
}

static int check_names(const char *fn, const struct te_callable *c)
{
	for (int32_t i = 0; i < c->nin + c->nout; i++) {
		const struct te_arg *a = i < c->nin ? &c->in[i] : &c->out[i - c->nin];

		for (int32_t j = 0; j < i; j++) {
			const struct te_arg *b = j < c->nin ? &c->in[j] : &c->out[j - c->nin];

			if (!strcmp(a->name, b->name))
				return te__graph_fail(fn, -EINVAL,
						      "%s has two arguments "
						      "named %s",
						      c->name, a->name);
		}
	}
	return 0;
}

static int check_callable(const char *fn, const struct te_callable *c, int32_t i)
{
	int r;

	if (!c->name)
		return te__graph_fail(fn, -EINVAL, "callable %" PRId32 " has no name", i);
	if (c->flags & ~TE_CALLABLE_RETAINS)
		return te__graph_fail(fn, -EINVAL, "%s: unknown flags 0x%x", c->name,
				      (unsigned)c->flags);
	if (c->nin < 0 || c->nout < 0 || (c->nin && !c->in) || (c->nout && !c->out))
		return te__graph_fail(fn, -EINVAL,
				      "%s has %" PRId32 " inputs and %" PRId32
				      " outputs, and no list of them",
				      c->name, c->nin, c->nout);
	if (c->saved_nbytes > INT64_MAX)
		return te__graph_fail(fn, -EINVAL, "%s saves more than 2^63 bytes", c->name);
	for (int s = 0; s < TE_SPAN_COUNT; s++)
		if (c->span_nbytes[s] > INT64_MAX)
			return te__graph_fail(fn, -EINVAL, "%s has a span of more than 2^63 bytes",
					      c->name);
	if (!c->forward)
		return te__graph_fail(fn, -EINVAL, "%s has no forward function", c->name);
	r = check_args(fn, c, c->in, c->nin, "input");
	if (!r)
		r = check_args(fn, c, c->out, c->nout, "output");
	return r ? r : check_names(fn, c);
}

static int callable_copy(const char *fn, struct te__graph_callable *n, const struct te_callable *c)
{
	const size_t nin = (size_t)c->nin, nout = (size_t)c->nout;
	int32_t *item;

	n->c = *c;
	n->c.release = NULL; /* set when te_graph_create has succeeded */
	n->release = c->release;
	n->c.in = n->c.out = NULL;
	n->c.name = te__strdup(c->name);
	n->c.in = args_copy(c->in, c->nin);
	n->c.out = args_copy(c->out, c->nout);
	n->in = te__calloc(2 * (nin + nout) + 1, sizeof(*n->in));
	n->bound = te__calloc(2 * (nin + nout) + 1, sizeof(*n->bound));
	n->in_item = item = te__calloc(2 * (nin + nout) + 1, sizeof(*item));
	if (!n->c.name || !n->c.in || !n->c.out || !n->in || !n->bound || !item)
		return te__no_memory(fn);
	n->in_grad = n->in + nin;
	n->out = n->in_grad + nin;
	n->out_grad = n->out + nout;
	n->in_grad_item = item + nin;
	n->out_item = n->in_grad_item + nin;
	n->out_grad_item = n->out_item + nout;
	return 0;
}

static void callable_free(struct te__graph_callable *n)
{
	te__free((char *)(uintptr_t)n->c.name);
	args_free(n->c.in, n->c.nin);
	args_free(n->c.out, n->c.nout);
	te__free(n->in);
	te__free(n->bound);
	te__free(n->in_item);
}

/* ---- options, schedule, chain ---- */

static int check_opts(const char *fn, const struct te_graph_opts *o)
{
	const uint32_t known = TE_GRAPH_WHOLE | TE_GRAPH_CHAIN | TE_GRAPH_REUSE |
			       TE_GRAPH_RETAIN | TE_GRAPH_EAGER |
			       TE_GRAPH_SERIAL | TE_GRAPH_NO_ALLOC;

	if (o->flags & ~known)
		return te__graph_fail(fn, -EINVAL, "unknown flags 0x%x",
				      (unsigned)(o->flags & ~known));
	if (o->nwarmup < 0)
		return te__graph_fail(fn, -EINVAL, "%" PRId32 " runs of warm-up", o->nwarmup);
	if ((uintptr_t)o->pool % TE__GRAPH_ALIGN)
		return te__graph_fail(fn, -EINVAL, "pool is %p, not aligned to %d", o->pool,
				      TE__GRAPH_ALIGN);
	return 0;
}

/* all forwards, then the backwards in reverse order, if callables have them */
static int default_schedule(struct te_graph *g, int32_t n, const struct te_callable *c)
{
	struct te_schedule_opts o = TE_SCHEDULE_OPTS_INIT;
	int backward = 0, dw = 0;

	for (int32_t i = 0; i < n; i++) {
		backward |= c[i].backward != NULL;
		dw |= c[i].backward_dw != NULL;
	}
	o.flags = !backward ? TE_SCHED_FORWARD_ONLY : dw ? TE_SCHED_DELAY_W : 0;
	o.nmicro = 1;
	o.nlayers = &n;
	return te__schedule_create(g->fn, &o, &g->schedule);
}

static int get_schedule(struct te_graph *g, int32_t n, const struct te_callable *c)
{
	struct te_schedule_info info = TE_SCHEDULE_INFO_INIT;
	int r = 0;

	if (g->opts.schedule)
		g->schedule = te_schedule_ref(g->opts.schedule);
	else
		r = default_schedule(g, n, c);
	g->opts.schedule = NULL;
	if (!r)
		r = te_schedule_info(g->schedule, &info);
	if (r)
		return r;
	if (info.ncallables != n)
		return te__graph_fail(g->fn, -EINVAL,
				      "%" PRId32 " callables, the schedule has %" PRId32, n,
				      info.ncallables);
	g->nsteps = info.nsteps;
	g->training = !!(info.kinds & (1u << TE_SCHED_B));
	g->step = te__calloc((size_t)info.nsteps, sizeof(*g->step));
	g->callable = te__calloc((size_t)n, sizeof(*g->callable));
	if (!g->step || !g->callable)
		return te__no_memory(g->fn);
	g->ncallables = n;
	for (int32_t i = 0; i < n; i++)
		g->callable[i].at[0] = g->callable[i].at[1] = g->callable[i].at[2] = -1;
	for (int32_t i = 0; i < g->nsteps; i++) {
		struct te_sched_step *s = &g->step[i];
		struct te__graph_callable *node;

		te_schedule_step(g->schedule, i, s);
		node = &g->callable[s->callable];
		node->at[s->kind] = i;
		node->chunk = s->chunk;
		node->micro = s->micro;
		node->layer = s->layer;
	}
	return 0;
}

static int check_passes(const struct te_graph *g, const struct te__graph_callable *n)
{
	const struct te_callable *c = &n->c;

	if (g->training && !c->backward)
		return te__graph_fail(g->fn, -EINVAL,
				      "%s has no backward function, and the "
				      "schedule trains",
				      c->name);
	if (g->training && c->backward_dw && n->at[TE_SCHED_W] < 0)
		return te__graph_fail(
			g->fn, -EINVAL,
			"%s leaves weight gradients to backward_dw, and the schedule has no entry "
			"for weight gradients of chunk %" PRId32,
			c->name, n->chunk + 1);
	if ((g->opts.flags & TE_GRAPH_RETAIN) && !(c->flags & TE_CALLABLE_RETAINS))
		return te__graph_fail(g->fn, -EINVAL,
				      "%s cannot run backward twice, as "
				      "TE_GRAPH_RETAIN asks",
				      c->name);
	return 0;
}

/* a chunk with weight-gradient entries must have a callable with backward_dw */
static int check_delayed(const struct te_graph *g)
{
	for (int32_t i = 0, end; i < g->ncallables; i = end) {
		const struct te__graph_callable *n = &g->callable[i];
		int any = 0;

		for (end = i; end < g->ncallables && g->callable[end].chunk == n->chunk; end++)
			any |= g->callable[end].c.backward_dw != NULL;
		if (n->at[TE_SCHED_W] >= 0 && !any)
			return te__graph_fail(g->fn, -EINVAL,
					      "the schedule has weight gradients "
					      "of chunk %" PRId32 ", and no callable there has a "
					      "backward_dw",
					      n->chunk + 1);
	}
	return 0;
}

static int same_spec(const struct te_spec *a, const struct te_spec *b)
{
	if (a->dtype != b->dtype || a->ndim != b->ndim)
		return 0;
	for (int32_t d = 0; d < a->ndim; d++)
		if (a->shape[d] != b->shape[d])
			return 0;
	return 1;
}

static int link(struct te_graph *g, int32_t from, int32_t to)
{
	struct te__graph_callable *a = &g->callable[from], *b = &g->callable[to];
	char x[96], y[96];

	if (!a->c.nout || !b->c.nin)
		return te__graph_fail(g->fn, -EINVAL, "%s has no %s to be chained",
				      a->c.nout ? b->c.name : a->c.name,
				      a->c.nout ? "input" : "output");
	if (!same_spec(&a->c.out[0].spec, &b->c.in[0].spec)) {
		te__spec_str(&a->c.out[0].spec, x, sizeof(x));
		te__spec_str(&b->c.in[0].spec, y, sizeof(y));
		return te__graph_fail(g->fn,
				      a->c.out[0].spec.dtype != b->c.in[0].spec.dtype ? -TE_EDTYPE :
											-TE_ESHAPE,
				      "%s gives %s %s, %s takes %s %s", a->c.name, a->c.out[0].name,
				      x, b->c.name, b->c.in[0].name, y);
	}
	if (g->training && (a->c.out[0].flags ^ b->c.in[0].flags) & TE_ARG_GRAD)
		return te__graph_fail(g->fn, -EINVAL, "%s %s gradient of %s, %s %s one of %s",
				      a->c.name,
				      a->c.out[0].flags & TE_ARG_GRAD ? "reads a" : "reads no",
				      a->c.out[0].name, b->c.name,
				      b->c.in[0].flags & TE_ARG_GRAD ? "writes" : "does not write",
				      b->c.in[0].name);
	a->next = to;
	b->prev = from;
	return 0;
}

static int make_chain(struct te_graph *g)
{
	int r = 0;

	for (int32_t i = 0; i < g->ncallables; i++)
		g->callable[i].prev = g->callable[i].next = -1;
	for (int32_t i = 0; i < g->ncallables && !r && (g->opts.flags & TE_GRAPH_CHAIN); i++) {
		const int32_t before = te__graph_before(g, i);

		if (before >= 0)
			r = link(g, before, i);
	}
	return r;
}

/* the caller's array, whose elements may be of another version's size; released by te__free */
static int read_callables(const char *fn, int32_t n, const struct te_callable *callables,
			  struct te_callable **ret)
{
	struct te_callable *c = te__calloc((size_t)n, sizeof(*c));
	int r = c ? 0 : te__no_memory(fn);

	for (int32_t i = 0; i < n && !r; i++) {
		const char *src = (const char *)callables + (size_t)i * callables->size;
		char which[64];

		snprintf(which, sizeof(which), "%s: callable %" PRId32, fn, i);
		c[i] = (struct te_callable)TE_CALLABLE_INIT;
		r = te__sized_in(which, te_callable, (const struct te_callable *)(const void *)src,
				 &c[i]);
		if (!r)
			r = check_callable(fn, &c[i], i);
	}
	if (r) {
		te__free(c);
		c = NULL;
	}
	*ret = c;
	return r;
}

static int fit(struct te_graph *g, int32_t n, const struct te_callable *callables)
{
	struct te_callable *c;
	int r = read_callables(g->fn, n, callables, &c);

	if (!r)
		r = get_schedule(g, n, c);
	for (int32_t i = 0; i < n && !r; i++)
		r = callable_copy(g->fn, &g->callable[i], &c[i]);
	te__free(c);
	for (int32_t i = 0; i < n && !r; i++)
		r = check_passes(g, &g->callable[i]);
	if (!r)
		r = check_delayed(g);
	if (!r)
		r = make_chain(g);
	if (!r)
		te__graph_rng(g);
	return r;
}

/* ---- creating and releasing ---- */

static void drop_recordings(struct te_graph *g)
{
	for (int32_t i = 0; i < g->ncallables; i++)
		for (int k = 0; k < 3; k++)
			g->callable[i].rec[k] = te_recording_unref(g->callable[i].rec[k]);
	g->whole = te_recording_unref(g->whole);
}

/* 0 once the stream has run the replays that are queued on it */
static int await_replays(struct te_graph *g, struct te_stream *stream)
{
	int r = te_stream_sync(stream);

	if (r != -EBUSY)
		return 0; /* a failed stream runs no more work */
	/* a capturing stream: the graph's own stream waits for its earlier work */
	r = te__stream_follow(g->stream, stream);
	return r ? r : te_stream_sync(g->stream);
}

/* Release functions may free memory that replays use, so wait for the replays. If that is not
 * possible, such as during a capture that began without this library, release nothing. */
static void release_callables(struct te_graph *g)
{
	int nreleases = 0, r = 0;

	for (int32_t i = 0; i < g->ncallables; i++)
		nreleases += g->callable[i].c.release != NULL;
	if (!nreleases)
		return;
	if (g->last_stream)
		r = await_replays(g, g->last_stream);
	if (!r && g->trailing)
		r = await_replays(g, g->trailing);
	if (r) {
		te__log_warn("te_graph_unref: callables are not released, replays may use their "
			     "memory: %s",
			     te_error_detail());
		return;
	}
	for (int32_t i = 0; i < g->ncallables; i++)
		if (g->callable[i].c.release)
			g->callable[i].c.release(g->callable[i].c.self);
}

void te__graph_free(struct te_graph *g)
{
	drop_recordings(g);
	te__graph_memory_free(g);
	release_callables(g);
	for (int32_t i = 0; i < g->ncallables; i++)
		callable_free(&g->callable[i]);
	te_event_unref(g->order);
	te_event_unref(g->tail);
	te_stream_unref(g->last_stream);
	te_stream_unref(g->trailing);
	te_stream_unref(g->stream);
	te_schedule_unref(g->schedule);
	te__free(g->callable);
	te__free(g->step);
	te_ctx_unref(g->ctx);
	te__free(g);
}

int te__graph_build(struct te_graph *g, int32_t n, const struct te_callable *callables)
{
	int r = fit(g, n, callables);

	if (!r)
		r = te_stream_create(g->ctx, &g->stream);
	if (!r)
		r = te_event_create(g->ctx, &g->order);
	if (!r)
		r = te_event_create(g->ctx, &g->tail);
	if (!r)
		r = te__graph_memory(g);
	if (!r && g->opts.flags & TE_GRAPH_NO_ALLOC) {
		g->gone = 1; /* replays are not possible */
		return 0;
	}
	return r ? r : te__graph_capture(g);
}

struct te_graph *te__graph_new(const char *fn, struct te_ctx *ctx, const struct te_graph_opts *opts)
{
	struct te_graph *g = te__calloc(1, sizeof(*g));

	if (!g) {
		te__graph_fail(fn, -ENOMEM, "no memory for a graph");
		return NULL;
	}
	g->fn = fn;
	atomic_init(&g->refs, 1);
	g->ctx = te_ctx_ref(ctx);
	g->opts = *opts;
	g->report.size = sizeof(g->report);
	return g;
}

void te__graph_take_over(struct te_graph *g)
{
	for (int32_t i = 0; i < g->ncallables; i++)
		g->callable[i].c.release = g->callable[i].release;
}

int te_graph_create(struct te_ctx *ctx, int32_t n, const struct te_callable *callables,
		    const struct te_graph_opts *opts, struct te_graph **ret_graph)
{
	struct te_graph_opts o = TE_GRAPH_OPTS_INIT;
	struct te_graph *g;
	int r;

	if (!ctx || !callables || n < 1 || !ret_graph)
		return te__fail(-EINVAL, "te_graph_create: %s",
				!ctx	   ? "ctx is NULL" :
				!callables ? "callables is NULL" :
				n < 1	   ? "no callables" :
					     "ret_graph is NULL");
	r = opts ? te__sized_in("te_graph_create", te_graph_opts, opts, &o) : 0;
	if (!r)
		r = check_opts("te_graph_create", &o);
	if (r)
		return r;
	g = te__graph_new("te_graph_create", ctx, &o);
	if (!g)
		return -ENOMEM;
	r = te__graph_build(g, n, callables);
	if (r) {
		te__graph_free(g);
		return r;
	}
	te__graph_take_over(g);
	*ret_graph = g;
	return 0;
}

struct te_graph *te_graph_ref(struct te_graph *graph)
{
	if (graph)
		atomic_fetch_add(&graph->refs, 1);
	return graph;
}

struct te_graph *te_graph_unref(struct te_graph *graph)
{
	if (graph && atomic_fetch_sub(&graph->refs, 1) == 1) {
		te__graph_free(graph);
	}
	return NULL;
}

int te_graph_reset(struct te_graph *graph)
{
	if (!graph)
		return te__fail(-EINVAL, "te_graph_reset: graph is NULL");
	if (graph->gone)
		return 0;
	graph->gone = 1;
	drop_recordings(graph);
	te__graph_memory_free(graph);
	return 0;
}

/* ---- tensors ---- */

struct te_tensor *te__graph_arg(const struct te_graph *g, int32_t callable, const char *name,
				int grad)
{
	const struct te__graph_callable *n;

	if (!g || !name || callable < 0 || callable >= g->ncallables)
		return NULL;
	n = &g->callable[callable];
	for (int32_t k = 0; k < n->c.nin; k++)
		if (!strcmp(n->c.in[k].name, name))
			return grad ? n->in_grad[k] : n->in[k];
	for (int32_t k = 0; k < n->c.nout; k++)
		if (!strcmp(n->c.out[k].name, name))
			return grad ? n->out_grad[k] : n->out[k];
	return NULL;
}

/* te__graph_arg(), with an error message for NULL */
static struct te_tensor *get(const char *fn, const struct te_graph *g, int32_t callable,
			     const char *name, int grad)
{
	struct te_tensor *t = te__graph_arg(g, callable, name, grad);

	if (t)
		return t;
	if (!g || !name)
		te__graph_fail(fn, -EINVAL, "%s is NULL", g ? "name" : "graph");
	else if (callable < 0 || callable >= g->ncallables)
		te__graph_fail(fn, -EINVAL, "%s: callable %" PRId32 " of %" PRId32, name, callable,
			       g->ncallables);
	else if (g->gone)
		te__graph_fail(fn, -TE_ESTATE, "%s: the graph has been reset", name);
	else
		te__graph_fail(fn, -EINVAL, "%s has no %s%s", g->callable[callable].c.name,
			       grad ? "gradient of " : "", name);
	return NULL;
}

struct te_tensor *te_graph_tensor(const struct te_graph *graph, int32_t callable, const char *name)
{
	return get("te_graph_tensor", graph, callable, name, 0);
}

struct te_tensor *te_graph_grad(const struct te_graph *graph, int32_t callable, const char *name)
{
	return get("te_graph_grad", graph, callable, name, 1);
}
