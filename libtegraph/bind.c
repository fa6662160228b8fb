/* bind.c - te_graph_bind(3) and te_graph_update(3): the caller's memory, and other callables. */
#define TE_LOG_CATEGORY "graph"
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "graph_internal.h"

/* ---- arguments ---- */

/* an argument of a callable or its gradient */
struct arg_ref {
	int32_t at; /* index in n->in */
	const struct te_arg *arg;
};

static int no_such(const struct te__graph_callable *n, const char *name, uint32_t flags)
{
	return te__fail(-EINVAL, "te_graph_bind: %s has no %s%s", n->c.name,
			flags & TE_BIND_GRAD ? "gradient of " : "", name);
}

/* in a chain, neighbours share the first input and output and their gradients */
static int is_shared(const struct te__graph_callable *n, int32_t at)
{
	const int32_t nin = n->c.nin, nout = n->c.nout;

	if (at < 2 * nin)
		return n->prev >= 0 && at % nin == 0;
	return n->next >= 0 && (at - 2 * nin) % nout == 0;
}

static int find(const struct te__graph_callable *n, const char *name, uint32_t flags,
		struct arg_ref *ret)
{
	const int32_t nin = n->c.nin, nout = n->c.nout;
	const int grad = !!(flags & TE_BIND_GRAD);
	int32_t k = 0;

	while (k < nin && strcmp(n->c.in[k].name, name))
		k++;
	if (k < nin) {
		*ret = (struct arg_ref){ k + grad * nin, &n->c.in[k] };
	} else {
		for (k = 0; k < nout && strcmp(n->c.out[k].name, name);)
			k++;
		if (k == nout)
			return no_such(n, name, flags);
		*ret = (struct arg_ref){ 2 * nin + k + grad * nout, &n->c.out[k] };
	}
	if (!n->in[ret->at])
		return no_such(n, name, flags);
	if (is_shared(n, ret->at))
		return te__fail(-EINVAL,
				"te_graph_bind: %s shares %s%s with its neighbour in the chain",
				n->c.name, grad ? "the gradient of " : "", name);
	return 0;
}

static int check_tensor(const struct te_graph *g, const struct te__graph_callable *n,
			const struct arg_ref *p, const struct te_tensor *t)
{
	const struct te_spec *want = &p->arg->spec;
	struct te_spec have;
	char a[96], b[96];

	if (te_tensor_ctx(t) != g->ctx)
		return te__fail(-EINVAL, "te_graph_bind: %s of %s belongs to another context",
				p->arg->name, n->c.name);
	have = te__spec_of(t);
	te__spec_str(want, a, sizeof(a));
	te__spec_str(&have, b, sizeof(b));
	if (!strcmp(a, b) && te_tensor_data(t))
		return 0;
	return te__fail(want->dtype == have.dtype ? -TE_ESHAPE : -TE_EDTYPE,
			"te_graph_bind: %s of %s is %s, captured was %s", p->arg->name, n->c.name,
			b, a);
}

/* ---- patching ---- */

/* the recordings that may use an argument, by k from 0 to 2; NULL: none, another one may follow */
static struct te_recording *recording(const struct te_graph *g, const struct te__graph_callable *n,
				      int32_t at, int k)
{
	if (g->whole)
		return k ? NULL : g->whole;
	return n->bound[at].passes & 1u << k ? n->rec[k] : NULL;
}

static int callable_bindings(struct te_graph *g, struct te__graph_callable *n)
{
	const int32_t nargs = 2 * (n->c.nin + n->c.nout);
	int r = 0;

	for (int32_t at = 0; at < nargs && r >= 0; at++) {
		struct te__bound *b = &n->bound[at];
		const struct te_tensor *own = b->own ? b->own : n->in[at];

		if (!own || is_shared(n, at))
			continue;
		for (int k = 0; k < 3 && r >= 0; k++) {
			struct te_recording *rec = recording(g, n, at, k);

			if (rec)
				r = b->binding[k] = te_recording_binding(rec, te_tensor_data(own),
									 te_tensor_nbytes(own),
									 NULL);
		}
	}
	return r < 0 ? r : 0;
}

/*
 * Find the bindings of all arguments in the callable's recordings while each argument still has its
 * own memory: once two arguments have the same memory, their uses cannot be told apart. Never
 * called for a whole graph with TE_GRAPH_REUSE.
 */
static int find_bindings(struct te_graph *g, struct te__graph_callable *n)
{
	struct te__graph_callable *first = g->whole ? g->callable : n;
	const int32_t nnodes = g->whole ? g->ncallables : 1;
	int r = 0;

	if (n->has_bindings)
		return 0;
	for (int32_t i = 0; i < nnodes && !r; i++)
		r = callable_bindings(g, &first[i]);
	for (int32_t i = 0; i < nnodes && !r; i++)
		first[i].has_bindings = 1;
	return r;
}

static int rebind(const struct te_graph *g, const struct te__graph_callable *n, int32_t at, int k,
		  const struct te_tensor *to)
{
	struct te_recording *rec = recording(g, n, at, k);
	void *ptr = te_tensor_data(to);

	return rec ? te_recording_rebind(rec, 1, &n->bound[at].binding[k], &ptr) : 0;
}

/* let all recordings use the memory of to instead of from; on failure none does */
static int patch(const struct te_graph *g, const struct te__graph_callable *n, int32_t at,
		 const struct te_tensor *from, const struct te_tensor *to)
{
	int k = 0, r = 0;

	while (k < 3 && !r)
		r = rebind(g, n, at, k++, to);
	for (k--; r && k--;)
		rebind(g, n, at, k, from);
	return r;
}

/* 1: recordings that may use the argument hold host calls, which may access any memory */
static int calls_host(const struct te_graph *g, const struct te__graph_callable *n, int32_t at)
{
	for (int k = 0; k < 3; k++) {
		struct te_recording_info info = TE_RECORDING_INFO_INIT;
		const struct te_recording *rec = recording(g, n, at, k);

		if (rec && (te_recording_info(rec, &info) || info.nhost))
			return 1;
	}
	return 0;
}

/*
 * Does @t overlap a static buffer whose argument is bound to caller memory? Unbinding that argument
 * would bring the buffer back into use, and no captured dependency orders the two.
 */
static int overlaps_unbound(const struct te_graph *g, const struct te__graph_callable *n,
			    int32_t self, const struct te_tensor *t)
{
	const struct te__graph_callable *first = g->whole ? g->callable : n;
	const int32_t nnodes = g->whole ? g->ncallables : 1;
	const uintptr_t p = (uintptr_t)te_tensor_data(t), end = p + te_tensor_nbytes(t);

	for (int32_t i = 0; i < nnodes; i++)
		for (int32_t at = 0; at < 2 * (first[i].c.nin + first[i].c.nout); at++) {
			const struct te_tensor *own = first[i].bound[at].own;
			const uintptr_t q = own ? (uintptr_t)te_tensor_data(own) : 0;

			if (own && (&first[i] != n || at != self) &&
			    p < q + te_tensor_nbytes(own) && q < end)
				return 1;
		}
	return 0;
}

/* 0: the nodes use the tensor; 1: it is to be copied, and the nodes are unchanged; or an error */
static int try_patch(struct te_graph *g, struct te__graph_callable *n, int32_t at,
		     const struct te_tensor *t)
{
	int r = 0;

	if (g->opts.flags & TE_GRAPH_EAGER)
		return 0;
	/* in a whole graph with TE_GRAPH_REUSE, arguments of several callables share buffers */
	if ((g->whole && g->opts.flags & TE_GRAPH_REUSE) || calls_host(g, n, at) ||
	    (!(g->opts.flags & TE_GRAPH_SERIAL) && overlaps_unbound(g, n, at, t)))
		return 1;
	r = find_bindings(g, n);
	if (!r)
		r = patch(g, n, at, n->in[at], t);
	/* an opaque node, or memory with another alignment */
	if (r == -EOPNOTSUPP || r == -EINVAL) {
		te_error_clear();
		return 1;
	}
	return r;
}

/* ---- te_graph_bind ---- */

static void drop_copied(struct te__graph_callable *n, struct te__bound *b)
{
	n->ncopied -= b->copied != NULL;
	b->copied = te_tensor_unref(b->copied);
}

/* from the caller's memory back to the graph's */
static int unbind(struct te_graph *g, struct te__graph_callable *n, int32_t at)
{
	struct te__bound *b = &n->bound[at];
	int r = 0;

	if (b->own && !(g->opts.flags & TE_GRAPH_EAGER))
		r = patch(g, n, at, n->in[at], b->own);
	if (r)
		return r;
	if (b->own) {
		te_tensor_unref(n->in[at]);
		n->in[at] = b->own;
		b->own = NULL;
	}
	drop_copied(n, b);
	b->how = (enum te_bind)0;
	return 0;
}

static int bind_to(struct te_graph *g, struct te__graph_callable *n, int32_t at,
		   struct te_tensor *t)
{
	struct te__bound *b = &n->bound[at];
	int copied = try_patch(g, n, at, t), r = 0;

	if (copied < 0)
		return copied;
	te_tensor_ref(t); /* first: it may be the bound tensor */
	if (copied)
		r = unbind(g, n, at);
	if (r) {
		te_tensor_unref(t);
		return r;
	}
	if (copied) {
		b->copied = t;
		n->ncopied++;
	} else {
		if (b->own)
			te_tensor_unref(n->in[at]);
		else
			b->own = n->in[at];
		n->in[at] = t;
		drop_copied(n, b);
	}
	b->how = copied ? TE_BIND_COPIED : TE_BIND_PATCHED;
	return 0;
}

int te_graph_bind(struct te_graph *graph, int32_t callable, const char *name, uint32_t flags,
		  struct te_tensor *tensor, enum te_bind *ret_how)
{
	struct te__graph_callable *n;
	struct arg_ref p;
	int r;

	if (!graph || !name)
		return te__fail(-EINVAL, "te_graph_bind: %s is NULL", graph ? "name" : "graph");
	if (callable < 0 || callable >= graph->ncallables)
		return te__fail(-EINVAL, "te_graph_bind: callable %" PRId32 " of %" PRId32,
				callable, graph->ncallables);
	if (flags & ~TE_BIND_GRAD)
		return te__fail(-EINVAL, "te_graph_bind: unknown flags 0x%x", (unsigned)flags);
	if (graph->gone)
		return te__fail(-TE_ESTATE, "te_graph_bind: the graph has been reset");
	if (graph->failed)
		return te__fail(graph->failed, "te_graph_bind: the graph failed before: %s",
				graph->failed_text);
	n = &graph->callable[callable];
	r = find(n, name, flags, &p);
	if (!r && tensor)
		r = check_tensor(graph, n, &p, tensor);
	if (r)
		return r;
	r = tensor ? bind_to(graph, n, p.at, tensor) : unbind(graph, n, p.at);
	if (!r && tensor && ret_how)
		*ret_how = n->bound[p.at].how;
	return r;
}

int te__graph_copy_bound(const struct te__graph_callable *n, int kind, int after,
			 struct te_stream *stream)
{
	const int32_t nin = n->c.nin, nout = n->c.nout;
	int r = 0;

	for (int32_t at = 0; at < 2 * (nin + nout) && !r; at++) {
		/* inputs, input gradients, outputs, output gradients */
		const int grad = at < 2 * nin ? at >= nin : at >= 2 * nin + nout;
		const int out = at < 2 * nin ? grad : !grad;
		struct te_tensor *own = n->in[at], *other = n->bound[at].copied;

		if (!other || out != after ||
		    (kind >= 0 && kind != (grad ? TE_SCHED_B : TE_SCHED_F)))
			continue;
		r = te_copy(stream, te_tensor_data(out ? other : own),
			    te_tensor_data(out ? own : other), te_tensor_nbytes(own));
	}
	return r;
}

/* ---- te_graph_update ---- */

/* exchange everything except the reference counts */
static void swap(struct te_graph *a, struct te_graph *b)
{
	const size_t at = offsetof(struct te_graph, ctx), n = sizeof(*a) - at;
	struct te_graph t;

	memcpy((char *)&t + at, (char *)a + at, n);
	memcpy((char *)a + at, (char *)b + at, n);
	memcpy((char *)b + at, (char *)&t + at, n);
}

/* keep the launch statistics and the streams that the next replay must follow */
static void inherit(struct te_graph *g, const struct te_graph *old)
{
	g->report.nlaunches = old->report.nlaunches;
	g->report.launch_max_us = old->report.launch_max_us;
	g->launch_sum_us = old->launch_sum_us;
	g->last_stream = te_stream_ref(old->last_stream);
	g->trailing = te_stream_ref(old->trailing);
	g->old = NULL;
}

static void swap_own(struct te_graph *g)
{
	for (int32_t i = 0; i < g->ncallables; i++) {
		struct te__graph_callable *n = &g->callable[i];

		for (int32_t at = 0; at < 2 * (n->c.nin + n->c.nout); at++) {
			struct te_tensor *t = n->bound[at].own;

			if (!t)
				continue;
			n->bound[at].own = n->in[at];
			n->in[at] = t;
		}
	}
}

/* capture again with the graph's own memory, then patch the bound arguments again */
static int recapture(struct te_graph *g)
{
	int r;

	g->fn = "te_graph_update";
	swap_own(g);
	r = te__graph_recapture(g);
	swap_own(g);
	for (int32_t i = 0; i < g->ncallables; i++)
		g->callable[i].has_bindings = 0;
	for (int32_t i = 0; i < g->ncallables && !r; i++) {
		struct te__graph_callable *n = &g->callable[i];

		for (int32_t at = 0; at < 2 * (n->c.nin + n->c.nout) && !r; at++) {
			const struct te_tensor *own = n->bound[at].own;

			if (own)
				r = find_bindings(g, n);
			if (own && !r)
				r = patch(g, n, at, own, n->in[at]);
		}
	}
	return r;
}

static int rolled_back(struct te_graph *g, const struct te_graph *failed, int r)
{
	char detail[512];

	/* no recording has been updated */
	if (!failed->change.nin_place && !failed->change.ninstantiated)
		return r;
	snprintf(detail, sizeof(detail), "%s", te_error_detail());
	if (recapture(g)) {
		g->failed = -TE_ESTATE;
		strcpy(g->failed_text, "te_graph_update failed, and the previous callables could "
				       "not be captured again");
	}
	return te__fail(r, "%s", detail);
}

/* wait for queued replays, which may write the regions of the snapshot */
static int idle(const struct te_graph *g)
{
	int r = g->last_stream ? te_stream_sync(g->last_stream) : 0;

	return !r && g->trailing ? te_stream_sync(g->trailing) : r;
}

int te_graph_update(struct te_graph *graph, int32_t n, const struct te_callable *callables,
		    struct te_graph_change *ret_change)
{
	struct te_graph *next;
	int r;

	if (!graph || !callables || n < 1)
		return te__fail(-EINVAL, "te_graph_update: %s",
				!graph ? "graph is NULL" :
				n < 1  ? "no callables" :
					 "callables is NULL");
	r = ret_change ? te__sized_check("te_graph_update", te_graph_change, ret_change) : 0;
	if (r)
		return r;
	if (graph->gone)
		return te__fail(-TE_ESTATE, "te_graph_update: the graph has been reset");
	if (graph->failed)
		return te__fail(graph->failed, "te_graph_update: the graph failed before: %s",
				graph->failed_text);
	r = idle(graph);
	if (r)
		return r;
	next = te__graph_new("te_graph_update", graph->ctx, &graph->opts);
	if (!next)
		return -ENOMEM;
	next->opts.schedule = graph->schedule;
	next->old = graph;
	next->change.size = sizeof(next->change);
	r = te__graph_build(next, n, callables);
	if (r) {
		r = rolled_back(graph, next, r);
		te__graph_free(next);
		return r;
	}
	te__graph_take_over(next);
	if (ret_change)
		te__sized_out(te_graph_change, &next->change, ret_change);
	inherit(next, graph);
	swap(graph, next);
	/* next is now the previous graph, whose replays have run: see idle() */
	next->last_stream = te_stream_unref(next->last_stream);
	next->trailing = te_stream_unref(next->trailing);
	te__graph_free(next);
	return 0;
}
