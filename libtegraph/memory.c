/*
 * memory.c - the pool of a graph: an offset for every buffer, by the steps in which it is needed.
 *
 * Time is the index of a step, from 0 to nsteps, which means after the schedule. F, B and W are the
 * steps of the callable's passes, last is the latest of them. Lifetimes:
 *
 *	input		F (0 if te_graph_run may be called) .. last
 *	output		F .. last, or .. nsteps if no neighbour takes it and there is no
 *			backward pass or te_graph_run may be called
 *	saved		F .. last
 *	span		its first .. its last pass that the schedule has; F if it has none
 *	output gradient	B (0 if te_graph_run may be called) .. the later of B and W
 *	input gradient	B .. B of the preceding callable, otherwise .. nsteps
 *
 * In a chain an output and the next input are one buffer with the union of their lifetimes; so are
 * their gradients. Without TE_GRAPH_REUSE all lifetimes are from 0 to nsteps, except lifetimes of
 * spans of one pass if passes run serially, without TE_GRAPH_WHOLE.
 */
#define TE_LOG_CATEGORY "graph"
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "graph_internal.h"
#include "libtecore/plan/place.h"
#include "libtecore/plan/span.h"

struct items {
	struct te__place_item *v;
	int32_t n;
};

static uint64_t spec_nbytes(const struct te_spec *s)
{
	uint64_t n = te_dtype_nbytes(s->dtype);

	for (int d = 0; d < s->ndim; d++)
		n *= (uint64_t)s->shape[d];
	return n;
}

static int32_t later(int32_t a, int32_t b)
{
	return a > b ? a : b;
}

static int32_t add(struct items *it, uint64_t nbytes, int32_t first, int32_t last)
{
	it->v[it->n] = (struct te__place_item){
		.nbytes = nbytes,
		.first = first,
		.last = later(first, last),
	};
	return it->n++;
}

/* another argument uses the buffer too */
static void extend(struct items *it, int32_t i, int32_t first, int32_t last)
{
	if (it->v[i].first > first)
		it->v[i].first = first;
	it->v[i].last = later(it->v[i].last, last);
}

/* parameters of all lifetimes */
struct when {
	int32_t end;
	int reuse;
	int serial; /* no two passes run concurrently */
	int runs; /* te_graph_run may be called: arguments are written before the first step */
};

static void span_items(struct te_graph *g, struct te__graph_callable *n, const struct when *w,
		       struct items *it)
{
	for (int s = 0; s < TE_SPAN_COUNT; s++) {
		const int exact = w->reuse || (w->serial && !te__span_saves(s));
		const uint64_t nbytes = n->c.span_nbytes[s];
		int32_t first = later(n->at[TE_SCHED_F], n->at[te__span_first(s)]), last = first;

		n->span_item[s] = -1;
		if (!nbytes)
			continue;
		for (int pass = te__span_first(s); pass <= te__span_last(s); pass++)
			last = later(last, n->at[pass]);
		n->span_item[s] = add(it, nbytes, exact ? first : 0, exact ? last : w->end);
		*(te__span_saves(s) ? &g->report.saved_nbytes : &g->report.scratch_nbytes) +=
			nbytes;
	}
}

static void callable_items(struct te_graph *g, int32_t i, const struct when *w, struct items *it)
{
	struct te__graph_callable *n = &g->callable[i];
	const int32_t f = w->reuse ? n->at[TE_SCHED_F] : 0, b = n->at[TE_SCHED_B];
	const int32_t dw = n->c.backward_dw ? n->at[TE_SCHED_W] : -1;
	const int32_t last = w->reuse ? later(f, later(b, dw)) : w->end;
	const int32_t back = w->reuse ? b : 0, fed = w->runs ? 0 : f;
	const struct te__graph_callable *prev = n->prev < 0 ? NULL : &g->callable[n->prev];
	/* without te_graph_run, the caller passes it to the backward of the preceding callable */
	const int32_t before = w->reuse && !w->runs ? te__graph_before(g, i) : -1;
	const int32_t taken = before < 0 ? w->end : g->callable[before].at[TE_SCHED_B];

	for (int32_t k = 0; k < n->c.nin; k++) {
		const struct te_arg *a = &n->c.in[k];
		uint64_t nbytes = spec_nbytes(&a->spec);

		if (!k && prev) {
			n->in_item[k] = prev->out_item[0];
			extend(it, n->in_item[k], f, last);
		} else {
			n->in_item[k] = add(it, nbytes, fed, last);
			g->report.in_nbytes += nbytes;
		}
		n->in_grad_item[k] = -1;
		if (!(a->flags & TE_ARG_GRAD) || b < 0)
			continue;
		if (!k && prev) {
			n->in_grad_item[k] = prev->out_grad_item[0];
			extend(it, n->in_grad_item[k], back, back);
		} else {
			n->in_grad_item[k] = add(it, nbytes, back, taken);
			g->report.grad_nbytes += nbytes;
		}
	}
	for (int32_t k = 0; k < n->c.nout; k++) {
		const struct te_arg *a = &n->c.out[k];
		uint64_t nbytes = spec_nbytes(&a->spec);
		int chained = !k && n->next >= 0;

		n->out_item[k] =
			add(it, nbytes, f, chained || (b >= 0 && !w->runs) ? last : w->end);
		g->report.out_nbytes += nbytes;
		n->out_grad_item[k] = -1;
		if (!(a->flags & TE_ARG_GRAD) || b < 0)
			continue;
		n->out_grad_item[k] = add(it, nbytes, w->runs && !chained ? 0 : back,
					  w->reuse ? later(b, dw) : w->end);
		g->report.grad_nbytes += nbytes;
	}
	n->saved_item = -1;
	if (n->c.saved_nbytes) {
		n->saved_item = add(it, n->c.saved_nbytes, f, last);
		g->report.saved_nbytes += n->c.saved_nbytes;
	}
	span_items(g, n, w, it);
}

static void *address(const struct te_graph *g, const struct items *it, int32_t item)
{
	return item < 0 ? NULL : (char *)g->pool + it->v[item].offset;
}

static int wrap(struct te_graph *g, const struct items *it, int32_t item, const struct te_arg *a,
		struct te_tensor **ret_t)
{
	if (item < 0)
		return 0;
	return te_tensor_wrap(g->ctx, a->spec.dtype, a->spec.ndim, a->spec.shape,
			      address(g, it, item), NULL, NULL, ret_t);
}

/* the callable's passes in the lifetime of a buffer; NULL: there is none */
static uint32_t passes(const struct te__graph_callable *n, const struct te__place_item *buffer)
{
	uint32_t bits = 0;

	for (int k = 0; buffer && k < 3; k++)
		if (buffer->first <= n->at[k] && n->at[k] <= buffer->last)
			bits |= 1u << k;
	return bits;
}

static int callable_tensors(struct te_graph *g, struct te__graph_callable *n,
			    const struct items *it)
{
	int r = 0;

	for (int32_t at = 0; at < 2 * (n->c.nin + n->c.nout); at++)
		n->bound[at].passes = passes(n, n->in_item[at] < 0 ? NULL : &it->v[n->in_item[at]]);
	for (int32_t k = 0; k < n->c.nin && !r; k++) {
		r = wrap(g, it, n->in_item[k], &n->c.in[k], &n->in[k]);
		if (!r)
			r = wrap(g, it, n->in_grad_item[k], &n->c.in[k], &n->in_grad[k]);
	}
	for (int32_t k = 0; k < n->c.nout && !r; k++) {
		r = wrap(g, it, n->out_item[k], &n->c.out[k], &n->out[k]);
		if (!r)
			r = wrap(g, it, n->out_grad_item[k], &n->c.out[k], &n->out_grad[k]);
	}
	n->call = (struct te_graph_call){
		.size = sizeof(n->call),
		.in = n->in,
		.out = n->out,
		.in_grad = n->in_grad,
		.out_grad = n->out_grad,
		.saved = address(g, it, n->saved_item),
	};
	for (int s = 0; s < TE_SPAN_COUNT; s++)
		n->call.span[s] = address(g, it, n->span_item[s]);
	return r;
}

static int no_room(struct te_graph *g, uint64_t nbytes)
{
	return te__graph_fail(g->fn, -ENOMEM, "the pool needs %.1f MiB: %s",
			      (double)nbytes / 1048576.0, te_error_detail());
}

static int allocate(struct te_graph *g, uint64_t nbytes)
{
	struct te_stream *st = g->stream;
	/* the buffers, and one workspace for all passes */
	const size_t work = te_ctx_workspace_nbytes(g->ctx);
	size_t all;
	void *p;
	int r;

	if (__builtin_add_overflow(work, nbytes, &all))
		return te__graph_fail(g->fn, -ENOMEM, "the pool needs more than 2^64 bytes");
	if (g->opts.pool && g->opts.pool_nbytes < all)
		return te__graph_fail(g->fn, -EINVAL, "pool has %" PRIu64 " bytes, %zu are needed",
				      g->opts.pool_nbytes, all);
	if (!all)
		return 0; /* no tensors */
	p = g->opts.pool;
	r = p ? 0 : te_mem_alloc(st, all, &p);
	if (r)
		return r == -ENOMEM ? no_room(g, nbytes) : r;
	r = te_stream_workspace(st, (char *)p + nbytes, work);
	if (r) {
		if (!g->opts.pool)
			te_mem_free(st, p);
		return r;
	}
	g->pool = p;
	return 0;
}

int te__graph_memory(struct te_graph *g)
{
	const struct when w = {
		.end = g->nsteps,
		.reuse = !!(g->opts.flags & TE_GRAPH_REUSE),
		.serial = !(g->opts.flags & TE_GRAPH_WHOLE),
		.runs = g->opts.flags & (TE_GRAPH_WHOLE | TE_GRAPH_CHAIN) || g->ncallables == 1,
	};
	struct items it = { NULL, 0 };
	size_t most = 0;
	int r;

	for (int32_t i = 0; i < g->ncallables; i++)
		most += 2 * (size_t)(g->callable[i].c.nin + g->callable[i].c.nout) + 1 +
			TE_SPAN_COUNT;
	it.v = te__calloc(most, sizeof(*it.v));
	if (!it.v)
		return te__no_memory(g->fn);
	/* in the order of the chain: outputs exist before the inputs that share their buffers */
	for (int32_t i = 0; i < g->ncallables; i++)
		callable_items(g, i, &w, &it);
	for (int32_t i = 0; i < it.n; i++)
		g->report.sum_nbytes += it.v[i].nbytes;
	r = te__place(it.v, it.n, TE__GRAPH_ALIGN, &g->report.peak_nbytes);
	if (r == -EOVERFLOW)
		r = te__graph_fail(g->fn, -ENOMEM, "the pool needs more than 2^64 bytes");
	if (!r && !(g->opts.flags & TE_GRAPH_NO_ALLOC))
		r = allocate(g, g->report.peak_nbytes);
	if (g->opts.flags & TE_GRAPH_NO_ALLOC) {
		te__free(it.v);
		return r;
	}
	for (int32_t i = 0; i < g->ncallables && !r; i++)
		r = callable_tensors(g, &g->callable[i], &it);
	te__free(it.v);
	return r;
}

int te__graph_await(struct te_stream *stream, struct te_stream *other)
{
	int r = te__stream_follow(stream, other);

	/* -EBUSY: a capture that was begun through the driver API, which cannot be waited for */
	if (!r || r == -EBUSY || te__stream_not_capturing(other, NULL))
		return r;
	te_stream_sync(other); /* a failed stream runs no more work */
	return 0;
}

/* Free the pool in stream order after the replays. If the stream of the latest replay is capturing,
 * a free or a wait there would be captured: queue both on the graph's own stream. */
static int pool_free(struct te_graph *g)
{
	struct te_stream *on = g->last_stream;
	int r = 0;

	if (!on || te__stream_not_capturing(on, NULL))
		on = g->stream;
	if (g->last_stream && on != g->last_stream)
		r = te__graph_await(on, g->last_stream);
	if (!r && g->trailing)
		r = te__graph_await(on, g->trailing);
	return r ? r : te_mem_free(on, g->pool);
}

void te__graph_memory_free(struct te_graph *g)
{
	for (int32_t i = 0; i < g->ncallables; i++) {
		struct te__graph_callable *n = &g->callable[i];

		for (int32_t k = 0; n->in && n->bound && k < 2 * (n->c.nin + n->c.nout); k++) {
			n->in[k] = te_tensor_unref(n->in[k]);
			n->bound[k].own = te_tensor_unref(n->bound[k].own);
			n->bound[k].copied = te_tensor_unref(n->bound[k].copied);
		}
	}
	if (g->pool && !g->opts.pool && pool_free(g))
		te__log_warn("the pool of a graph is not freed before its context: %s",
			     te_error_detail());
	g->pool = NULL;
}
