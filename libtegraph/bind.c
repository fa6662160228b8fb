/* bind.c - memory of the caller in place of the graph's, and other callables in place of those. */
#define TE_LOG_CATEGORY "graph"
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "graph_internal.h"

/* ---- arguments ---- */

/* an argument of a node, by its place in n->in */
struct place {
	int32_t at;
	const struct te_arg *arg;
};

static int no_such(const struct te__node *n, const char *name, uint32_t flags)
{
	return te__fail(-EINVAL, "te_graph_bind: %s has no %s%s", n->c.name,
			flags & TE_BIND_GRAD ? "gradient of " : "", name);
}

/* the first input and the first output of a chain, and their gradients, are the neighbours' too */
static int is_shared(const struct te__node *n, int32_t at)
{
	const int32_t nin = n->c.nin, nout = n->c.nout;

	if (at < 2 * nin)
		return n->prev >= 0 && at % nin == 0;
	return n->next >= 0 && (at - 2 * nin) % nout == 0;
}

static int find(const struct te__node *n, const char *name, uint32_t flags, struct place *ret)
{
	const int32_t nin = n->c.nin, nout = n->c.nout;
	const int grad = !!(flags & TE_BIND_GRAD);
	int32_t k = 0;

	while (k < nin && strcmp(n->c.in[k].name, name))
		k++;
	if (k < nin) {
		*ret = (struct place){ k + grad * nin, &n->c.in[k] };
	} else {
		for (k = 0; k < nout && strcmp(n->c.out[k].name, name);)
			k++;
		if (k == nout)
			return no_such(n, name, flags);
		*ret = (struct place){ 2 * nin + k + grad * nout, &n->c.out[k] };
	}
	if (!n->in[ret->at])
		return no_such(n, name, flags);
	if (is_shared(n, ret->at))
		return te__fail(-EINVAL,
				"te_graph_bind: %s shares %s%s with its neighbour in the chain",
				n->c.name, grad ? "the gradient of " : "", name);
	return 0;
}

static int check_tensor(const struct te_graph *g, const struct te__node *n, const struct place *p,
			const struct te_tensor *t)
{
	const struct te_spec *want = &p->arg->spec;
	struct te_spec have;
	char a[96], b[96];

	if (te_tensor_ctx(t) != g->ctx)
		return te__fail(-EINVAL, "te_graph_bind: %s of %s is of another context",
				p->arg->name, n->c.name);
	te__graph_spec_of(t, &have);
	te__graph_spec_str(want, a, sizeof(a));
	te__graph_spec_str(&have, b, sizeof(b));
	if (!strcmp(a, b) && te_tensor_data(t))
		return 0;
	return te__fail(want->dtype == have.dtype ? -TE_ESHAPE : -TE_EDTYPE,
			"te_graph_bind: %s of %s is %s, captured was %s", p->arg->name, n->c.name,
			b, a);
}

/* ---- patching ---- */

/* the recordings in which an argument of the node is used */
static int recordings(const struct te_graph *g, const struct te__node *n,
		      struct te_recording *ret[3])
{
	int m = 0;

	if (g->whole) {
		ret[0] = g->whole;
		return 1;
	}
	for (int k = 0; k < 3; k++)
		if (n->rec[k])
			ret[m++] = n->rec[k];
	return m;
}

static int node_slots(struct te_graph *g, struct te__node *n)
{
	const int32_t nargs = 2 * (n->c.nin + n->c.nout);
	struct te_recording *rec[3];
	int m = recordings(g, n, rec), r = 0;

	for (int32_t at = 0; at < nargs && r >= 0; at++) {
		struct te__bound *b = &n->bound[at];
		const struct te_tensor *own = b->own ? b->own : n->in[at];

		if (!own || is_shared(n, at))
			continue;
		for (int i = 0; i < m && r >= 0; i++)
			r = b->slot[i] = te_recording_slot(rec[i], te_tensor_data(own),
							   te_tensor_nbytes(own), NULL);
	}
	return r < 0 ? r : 0;
}

/*
 * The slots of all arguments in the node's recordings, found while each uses memory of its own:
 * once two are bound to the same memory, or to that of each other, nobody can tell whose the uses
 * are. Never asked for where buffers of a whole graph serve again.
 */
static int find_slots(struct te_graph *g, struct te__node *n)
{
	struct te__node *first = g->whole ? g->node : n;
	const int32_t nnodes = g->whole ? g->nnodes : 1;
	int r = 0;

	if (n->has_slots)
		return 0;
	for (int32_t i = 0; i < nnodes && !r; i++)
		r = node_slots(g, &first[i]);
	for (int32_t i = 0; i < nnodes && !r; i++)
		first[i].has_slots = 1;
	return r;
}

/* all recordings use the other memory, or none does. 0, or why not, recorded */
static int patch(const struct te_graph *g, const struct te__node *n, int32_t at,
		 const struct te_tensor *from, const struct te_tensor *to)
{
	const struct te__bound *b = &n->bound[at];
	void *ptr = te_tensor_data(to), *old = te_tensor_data(from);
	struct te_recording *rec[3];
	int m = recordings(g, n, rec), done = 0, r = 0;

	for (; done < m; done++) {
		r = te_recording_rebind(rec[done], 1, &b->slot[done], &ptr);
		if (r)
			break;
	}
	while (r && done--)
		te_recording_rebind(rec[done], 1, &b->slot[done], &old);
	return r;
}

/* what a copy of so much costs: the CPU to queue it, and the device; INFINITY: not known */
static double copy_cost_us(struct te_graph *g, size_t nbytes)
{
	struct te_event *from = NULL, *to = NULL;
	double cpu = INFINITY, ms = INFINITY;
	char *p = NULL;

	/* between memory of its own: the caller's may be in use */
	if (!te_mem_alloc(g->stream, 2 * nbytes, (void **)&p) && !te_event_create(g->ctx, &from) &&
	    !te_event_create(g->ctx, &to) && !te_fill(g->stream, p, 0, 2 * nbytes) &&
	    !te_event_record(from, g->stream)) {
		cpu = te__graph_now_us();
		if (te_copy(g->stream, p, p + nbytes, nbytes))
			cpu = INFINITY;
		cpu = te__graph_now_us() - cpu;
		if (te_event_record(to, g->stream) || te_stream_sync(g->stream) ||
		    te_event_elapsed_ms(from, to, &ms))
			ms = INFINITY;
	}
	if (p)
		te_mem_free(g->stream, p);
	te_event_unref(from);
	te_event_unref(to);
	return cpu + ms * 1e3;
}

/* 1: the recordings hold host calls, and nobody knows what those read and write */
static int calls_host(const struct te_graph *g, const struct te__node *n)
{
	struct te_recording *rec[3];
	int m = recordings(g, n, rec);

	for (int i = 0; i < m; i++) {
		struct te_recording_info info = TE_RECORDING_INFO_INIT;

		if (te_recording_info(rec[i], &info) || info.nhost)
			return 1;
	}
	return 0;
}

/*
 * The first time that the nodes have taken memory of the caller: which way is cheaper? 0: they
 * keep it, 1: they have their own again, as they do after a failure.
 */
static int settle(struct te_graph *g, struct te__node *n, int32_t at, const struct te_tensor *t)
{
	struct te__bound *b = &n->bound[at];
	const struct te_tensor *own = n->in[at];
	double begin = te__graph_now_us();
	int r = 0;

	/* there and back, now that all is warm; what cannot go back stays as it is, patched */
	if (!patch(g, n, at, t, own))
		r = patch(g, n, at, own, t);
	if (r)
		return r;
	b->patch_us = (te__graph_now_us() - begin) / 2;
	b->copy_us = copy_cost_us(g, te_tensor_nbytes(t));
	b->prefers = TE_BIND_PATCHED;
	if (b->patch_us <= b->copy_us || patch(g, n, at, t, own))
		return 0;
	b->prefers = TE_BIND_COPIED;
	return 1;
}

/*
 * 1: it lies in memory of the graph that another argument has left for the caller's. That one may
 * come back at any time, and edges by data know nothing of who is there by then.
 */
static int takes_a_place(const struct te_graph *g, const struct te__node *n, int32_t self,
			 const struct te_tensor *t)
{
	const struct te__node *first = g->whole ? g->node : n;
	const int32_t nnodes = g->whole ? g->nnodes : 1;
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

/* 0: the nodes use the tensor, 1: it is to be copied, and the nodes use what they did */
static int try_patch(struct te_graph *g, struct te__node *n, int32_t at, const struct te_tensor *t)
{
	struct te__bound *b = &n->bound[at];
	int r = 0;

	if (g->opts.flags & TE_GRAPH_EAGER)
		return 0;
	/* in a whole graph buffers that serve again are arguments of others too */
	if ((g->whole && g->opts.flags & TE_GRAPH_REUSE) || b->prefers == TE_BIND_COPIED ||
	    calls_host(g, n) ||
	    (!(g->opts.flags & TE_GRAPH_IN_ORDER) && takes_a_place(g, n, at, t)))
		return 1;
	r = find_slots(g, n);
	if (!r)
		r = patch(g, n, at, n->in[at], t);
	/* a node that is not ours, or memory that is aligned otherwise */
	if (r == -EOPNOTSUPP || r == -EINVAL) {
		te_error_clear();
		return 1;
	}
	return r || b->prefers ? r : settle(g, n, at, t);
}

/* ---- te_graph_bind ---- */

static void drop_copied(struct te__node *n, struct te__bound *b)
{
	n->ncopied -= b->copied != NULL;
	b->copied = te_tensor_unref(b->copied);
}

/* from the caller's memory to the graph's own */
static int unbind(struct te_graph *g, struct te__node *n, int32_t at)
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

static int bind_to(struct te_graph *g, struct te__node *n, int32_t at, struct te_tensor *t)
{
	struct te__bound *b = &n->bound[at];
	int copied = try_patch(g, n, at, t), r = 0;

	if (copied < 0)
		return copied;
	te_tensor_ref(t); /* which may be the one that is bound */
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
	struct te__node *n;
	struct place p;
	int r;

	if (!graph || !name)
		return te__fail(-EINVAL, "te_graph_bind: %s is NULL", graph ? "name" : "graph");
	if (callable < 0 || callable >= graph->nnodes)
		return te__fail(-EINVAL, "te_graph_bind: callable %" PRId32 " of %" PRId32,
				callable, graph->nnodes);
	if (flags & ~TE_BIND_GRAD)
		return te__fail(-EINVAL, "te_graph_bind: unknown flags 0x%x", (unsigned)flags);
	if (graph->gone)
		return te__fail(-TE_ESTATE, "te_graph_bind: the graph has been reset");
	if (graph->failed)
		return te__fail(graph->failed, "te_graph_bind: the graph failed before: %s",
				graph->failed_text);
	n = &graph->node[callable];
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

int te__graph_copy_bound(const struct te__node *n, int kind, int after, struct te_stream *stream)
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

/* everything but the references changes places */
static void swap(struct te_graph *a, struct te_graph *b)
{
	const size_t at = offsetof(struct te_graph, ctx), n = sizeof(*a) - at;
	struct te_graph t;

	memcpy((char *)&t + at, (char *)a + at, n);
	memcpy((char *)a + at, (char *)b + at, n);
	memcpy((char *)b + at, (char *)&t + at, n);
}

/* of what has been: how often it was launched, and the stream that the next replay follows */
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
	for (int32_t i = 0; i < g->nnodes; i++) {
		struct te__node *n = &g->node[i];

		for (int32_t at = 0; at < 2 * (n->c.nin + n->c.nout); at++) {
			struct te_tensor *t = n->bound[at].own;

			if (!t)
				continue;
			n->bound[at].own = n->in[at];
			n->in[at] = t;
		}
	}
}

/* what is patched to memory of the caller is captured on memory of its own, and patched again */
static int recapture(struct te_graph *g)
{
	int r;

	g->fn = "te_graph_update";
	swap_own(g);
	r = te__graph_recapture(g);
	swap_own(g);
	for (int32_t i = 0; i < g->nnodes; i++)
		g->node[i].has_slots = 0;
	for (int32_t i = 0; i < g->nnodes && !r; i++) {
		struct te__node *n = &g->node[i];

		for (int32_t at = 0; at < 2 * (n->c.nin + n->c.nout) && !r; at++) {
			const struct te_tensor *own = n->bound[at].own;

			if (own)
				r = find_slots(g, n);
			if (own && !r)
				r = patch(g, n, at, own, n->in[at]);
		}
	}
	return r;
}

static int rolled_back(struct te_graph *g, const struct te_graph *failed, int r)
{
	char detail[512];

	/* nothing has been updated by then: the recordings are as they were */
	if (!failed->change.nin_place && !failed->change.ninstantiated)
		return r;
	strncpy(detail, te_error_detail(), sizeof(detail) - 1);
	detail[sizeof(detail) - 1] = '\0';
	if (recapture(g)) {
		g->failed = -TE_ESTATE;
		strcpy(g->failed_text, "te_graph_update failed, and what was before cannot be "
				       "captured again");
	}
	return te__fail(r, "%s", detail);
}

/* what is queued may change what the snapshot of an update is to hold */
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
	if (ret_change && ret_change->size != sizeof(*ret_change))
		return te__fail(-EINVAL, "te_graph_update: ret_change is not initialised by "
					 "TE_GRAPH_CHANGE_INIT");
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
	te__graph_take_over(next, callables);
	if (ret_change)
		*ret_change = next->change;
	inherit(next, graph);
	swap(graph, next);
	te__graph_free(next); /* by now what was before */
	return 0;
}
