/* replay.c - replaying single passes or the whole schedule. */
#define TE_LOG_CATEGORY "graph"
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "graph_internal.h"

/* the arguments of a replay, for checks and error messages */
struct call {
	struct te_graph *g;
	struct te__graph_callable *node;
	enum te_sched_kind kind;
	const char *fn;
	struct te_stream *stream;
	const struct te_replay *replay;
};

/* ---- checks ---- */

static int sticky(struct te_graph *g, int r)
{
	if (r < 0) {
		g->failed = r;
		snprintf(g->failed_text, sizeof(g->failed_text), "%s", te_error_detail());
	}
	return r;
}

static int usable(const struct te_graph *g, const struct te_stream *stream, const char *fn)
{
	int r = g ? te__stream_check(fn, stream, g->ctx) :
		    te__fail(-EINVAL, "%s: graph is NULL", fn);

	if (r)
		return r;
	if (g->gone)
		return te__fail(-TE_ESTATE, "%s: the graph has been reset", fn);
	if (g->failed)
		return te__fail(g->failed, "%s: the graph failed before: %s", fn, g->failed_text);
	return 0;
}

/* Work on a capturing stream is recorded, and a stream that waits for it joins the capture. So a
 * replay must neither run on one nor depend on one. */
static int not_capturing(const struct te_graph *g, const struct te_stream *stream,
			 const struct te_stream *side, const char *fn)
{
	int r = te__stream_not_capturing(stream, fn);

	if (!r && side)
		r = te__stream_not_capturing(side, fn);
	if (!r && g->last_stream)
		r = te__stream_not_capturing(g->last_stream, fn);
	if (!r && side && g->trailing)
		r = te__stream_not_capturing(g->trailing, fn);
	return r;
}

static int wrong_order(const struct call *c, int32_t callable)
{
	const struct te_sched_step *due = &c->g->step[c->g->pos];
	const struct te__graph_callable *want = &c->g->callable[due->callable];

	return te__fail(-TE_ESTATE,
			"%s: %s of callable %" PRId32 " (%s, chunk %" PRId32
			", micro-batch %" PRId32 ") is due, not %s of callable %" PRId32 " (%s)",
			c->fn, te__graph_pass(due->kind), due->callable, want->c.name,
			due->chunk + 1, due->micro + 1, te__graph_pass(c->kind), callable,
			c->node->c.name);
}

static int not_recorded(const struct call *c)
{
	return te__fail(-EINVAL,
			"%s: until: %s of %s does not record this event, expected one that it "
			"records by te_event_record_external",
			c->fn, te__graph_pass(c->kind), c->node->c.name);
}

/* A wait for an event that the pass does not record would not wait for the pass. An eager graph
 * knows only after the functions have been called: see queue(). */
static int check_until(const struct call *c)
{
	const struct te_recording *rec = c->node->rec[c->kind];

	if (!c->replay->until || c->g->opts.flags & TE_GRAPH_EAGER)
		return 0;
	return rec && te__recording_records(rec, c->replay->until) ? 0 : not_recorded(c);
}

static int check_replay(const struct call *c)
{
	const struct te_replay *r = c->replay;

	if (r->npos < 0 || r->nnamed < 0 || r->nkept < 0 || (r->npos && !r->pos) ||
	    (r->nnamed && !r->named) || (r->nkept && !r->kept))
		return te__fail(-EINVAL,
				"%s: %" PRId32 " arguments by position, %" PRId32
				" by name, %" PRId32 " kept, and no list of them",
				c->fn, r->npos, r->nnamed, r->nkept);
	if (r->nkept && c->kind != TE_SCHED_B)
		return te__fail(-EINVAL, "%s: only backward has gradients to keep", c->fn);
	if (r->until && !r->side)
		return te__fail(-EINVAL, "%s: until without a side stream", c->fn);
	if (r->side && te_stream_ctx(r->side) != c->g->ctx)
		return te__fail(-EINVAL, "%s: the side stream belongs to another context", c->fn);
	return check_until(c);
}

/* ---- arguments ---- */

/* one side of a callable's arguments: inputs for forward, outputs' gradients for backward */
struct side {
	const struct te_arg *arg;
	struct te_tensor *const *t; /* static tensors; NULL: the argument has none */
	int32_t n;
	int chained; /* a neighbour supplies the first */
};

static struct side given_side(const struct call *c)
{
	const struct te__graph_callable *n = c->node;

	if (c->kind == TE_SCHED_F)
		return (struct side){ n->c.in, n->in, n->c.nin, n->prev >= 0 };
	if (c->kind == TE_SCHED_B)
		return (struct side){ n->c.out, n->out_grad, n->c.nout, n->next >= 0 };
	return (struct side){ NULL, NULL, 0, 0 };
}

static int takes(const struct side *s, int32_t k)
{
	return s->t[k] && !(k == 0 && s->chained);
}

static int check_tensor(const struct call *c, const struct te_tensor *want,
			const struct te_tensor *have, const char *name)
{
	struct te_spec x, y;
	char a[96], b[96];
	int same;

	if (!have)
		return te__fail(-EINVAL, "%s: %s of %s is NULL", c->fn, name, c->node->c.name);
	if (te_tensor_ctx(have) != c->g->ctx)
		return te__fail(-EINVAL, "%s: %s of %s belongs to another context", c->fn, name,
				c->node->c.name);
	x = te__spec_of(want);
	y = te__spec_of(have);
	te__spec_str(&x, a, sizeof(a));
	te__spec_str(&y, b, sizeof(b));
	same = !strcmp(a, b);
	if (same && te_tensor_data(have))
		return 0;
	return te__fail(x.dtype == y.dtype ? -TE_ESHAPE : -TE_EDTYPE,
			"%s: %s of %s is %s, captured was %s", c->fn, name, c->node->c.name, b, a);
}

static int32_t by_name(const struct side *s, const char *name)
{
	for (int32_t k = 0; k < s->n; k++)
		if (!strcmp(s->arg[k].name, name))
			return k;
	return -1;
}

/* the tensor passed for argument k by position or by name, or NULL */
static struct te_tensor *given(const struct call *c, const struct side *s, int32_t k)
{
	const struct te_replay *r = c->replay;
	int32_t pos = 0;

	for (int32_t j = 0; j < k; j++)
		pos += takes(s, j);
	if (pos < r->npos)
		return r->pos[pos];
	for (int32_t i = 0; i < r->nnamed; i++)
		if (r->named[i].name && !strcmp(r->named[i].name, s->arg[k].name))
			return r->named[i].tensor;
	return NULL;
}

static const char *what(const struct call *c)
{
	return c->kind == TE_SCHED_F ? "input" : "output gradient";
}

static int check_named(const struct call *c, const struct side *s, int32_t i)
{
	const struct te_named *named = &c->replay->named[i];
	int32_t k, pos = 0;

	if (!named->name)
		return te__fail(-EINVAL, "%s: named argument %" PRId32 " has no name", c->fn, i);
	k = by_name(s, named->name);
	if (k < 0 || !s->t[k])
		return te__fail(-EINVAL, "%s: %s has no %s %s", c->fn, c->node->c.name, what(c),
				named->name);
	if (!takes(s, k))
		return te__fail(-EINVAL,
				"%s: the %s %s of %s comes from its neighbour in the "
				"chain",
				c->fn, what(c), named->name, c->node->c.name);
	for (int32_t j = 0; j < k; j++)
		pos += takes(s, j);
	if (pos < c->replay->npos)
		return te__fail(-EINVAL, "%s: %s of %s is given by position and by name", c->fn,
				named->name, c->node->c.name);
	for (int32_t j = 0; j < i; j++)
		if (!strcmp(c->replay->named[j].name, named->name))
			return te__fail(-EINVAL, "%s: %s of %s is given twice", c->fn, named->name,
					c->node->c.name);
	return 0;
}

static int check_args(const struct call *c, const struct side *s)
{
	int32_t most = 0;
	int r = 0;

	for (int32_t k = 0; k < s->n; k++)
		most += takes(s, k);
	if (c->replay->npos > most)
		return te__fail(-EINVAL, "%s: %" PRId32 " arguments by position, %s takes %" PRId32,
				c->fn, c->replay->npos, c->node->c.name, most);
	for (int32_t i = 0; i < c->replay->nnamed && !r; i++)
		r = check_named(c, s, i);
	for (int32_t k = 0; k < s->n && !r; k++) {
		struct te_tensor *t;

		if (!takes(s, k))
			continue;
		t = given(c, s, k);
		r = t ? check_tensor(c, s->t[k], t, s->arg[k].name) :
			te__fail(-EINVAL, "%s: the %s %s of %s was captured and is not given",
				 c->fn, what(c), s->arg[k].name, c->node->c.name);
	}
	return r;
}

static int check_kept(const struct call *c)
{
	const struct te__graph_callable *n = c->node;
	const struct side s = { n->c.in, n->in_grad, n->c.nin, 0 };
	int r = 0;

	for (int32_t i = 0; i < c->replay->nkept && !r; i++) {
		const struct te_named *kept = &c->replay->kept[i];
		int32_t k = kept->name ? by_name(&s, kept->name) : -1;

		if (k < 0 || !s.t[k])
			r = te__fail(-EINVAL, "%s: %s computes no gradient of %s", c->fn, n->c.name,
				     kept->name ? kept->name : "an input without a name");
		else
			r = check_tensor(c, s.t[k], kept->tensor, kept->name);
	}
	return r;
}

static int copy_if_other(struct te_stream *stream, struct te_tensor *dst, struct te_tensor *src)
{
	if (te_tensor_data(dst) == te_tensor_data(src))
		return 0;
	return te_copy(stream, te_tensor_data(dst), te_tensor_data(src), te_tensor_nbytes(dst));
}

static int copy_args(const struct call *c, const struct side *s, struct te_stream *on)
{
	int r = 0;

	for (int32_t k = 0; k < s->n && !r; k++)
		if (takes(s, k))
			r = copy_if_other(on, s->t[k], given(c, s, k));
	return r;
}

static int copy_kept(const struct call *c)
{
	const struct side s = { c->node->c.in, c->node->in_grad, c->node->c.nin, 0 };
	int r = 0;

	for (int32_t i = 0; i < c->replay->nkept && !r; i++)
		r = copy_if_other(c->stream, c->replay->kept[i].tensor,
				  s.t[by_name(&s, c->replay->kept[i].name)]);
	return r;
}

/* ---- launching ---- */

/* later work on the stream runs after all work queued on the other stream */
static int follow(struct te_stream *stream, struct te_event *event, struct te_stream *other)
{
	int r = te_event_record(event, other);

	return r ? r : te_event_wait(event, stream);
}

/* replays run serially, also on different streams */
static int take_turn(struct te_graph *g, struct te_stream *stream)
{
	int r = 0;

	if (g->last_stream == stream)
		return 0;
	if (g->last_stream)
		r = follow(stream, g->order, g->last_stream);
	if (r)
		return r;
	te_stream_unref(g->last_stream);
	g->last_stream = te_stream_ref(stream);
	return 0;
}

static double now_us(void)
{
	return 1e-3 * (double)te__now_ns();
}

static int launch(struct te_graph *g, struct te_recording *rec, struct te_stream *stream)
{
	double t = now_us();
	int r = te_recording_launch(rec, stream);

	t = now_us() - t;
	if (r)
		return r;
	g->report.nlaunches++;
	g->launch_sum_us += t;
	if (t > g->report.launch_max_us)
		g->report.launch_max_us = t;
	return 0;
}

/* weight gradients of a callable without backward_dw have no recording */
static int run_step(struct te_graph *g, const struct te_sched_step *s, struct te_stream *stream)
{
	struct te_recording *rec = g->callable[s->callable].rec[s->kind];

	if (g->opts.flags & TE_GRAPH_EAGER)
		return te__graph_call(g, s, stream);
	return rec ? launch(g, rec, stream) : 0;
}

/* a pass with the copies of its arguments and gradients */
static int queue(const struct call *c, const struct te_sched_step *s)
{
	const struct te_replay *rep = c->replay;
	struct te_stream *on = rep->side ? rep->side : c->stream;
	const uint64_t nrecords = rep->until ? te__event_nrecords(rep->until) : 0;
	const struct side given = given_side(c);
	struct te_graph *g = c->g;
	int r = 0;

	if (rep->side)
		r = follow(rep->side, g->tail, c->stream);
	/* only one stream at a time may have work that no replay waits for */
	if (!r && rep->side && g->trailing && g->trailing != rep->side)
		r = follow(rep->side, g->tail, g->trailing);
	if (!r)
		r = take_turn(g, on);
	if (!r && c->node->ncopied)
		r = te__graph_copy_bound(c->node, (int)c->kind, 0, on);
	/* after those: a tensor passed to this replay takes precedence */
	if (!r && (rep->npos || rep->nnamed))
		r = copy_args(c, &given, on);
	if (!r)
		r = run_step(g, s, on);
	if (!r && rep->until && g->opts.flags & TE_GRAPH_EAGER &&
	    te__event_nrecords(rep->until) == nrecords)
		r = not_recorded(c);
	if (!r && c->node->ncopied)
		r = te__graph_copy_bound(c->node, (int)c->kind, 1, on);
	if (!r && rep->side) {
		r = rep->until ? te_event_wait(rep->until, c->stream) :
				 follow(c->stream, g->tail, rep->side);
		/* no stream waits for the work of the replay after the event */
		te_stream_unref(g->trailing);
		g->trailing = rep->until || r ? te_stream_ref(rep->side) : NULL;
		te_stream_unref(g->last_stream);
		g->last_stream = te_stream_ref(c->stream);
	}
	return r ? r : copy_kept(c);
}

static int replay(struct te_graph *g, int32_t callable, enum te_sched_kind kind,
		  struct te_stream *stream, const struct te_replay *rep, const char *fn)
{
	struct te_replay given_replay = TE_REPLAY_INIT;
	struct call c = { g, NULL, kind, fn, stream, &given_replay };
	const struct te_sched_step *due;
	struct side given;
	int again, r = usable(g, stream, fn);

	if (r)
		return r;
	if (callable < 0 || callable >= g->ncallables)
		return te__fail(-EINVAL, "%s: callable %" PRId32 " of %" PRId32, fn, callable,
				g->ncallables);
	if (g->opts.flags & TE_GRAPH_WHOLE && !(g->opts.flags & TE_GRAPH_EAGER))
		return te__fail(-TE_ESTATE, "%s: a whole graph is replayed by te_graph_run", fn);
	c.node = &g->callable[callable];
	due = &g->step[g->pos];
	again = (g->opts.flags & TE_GRAPH_RETAIN) && kind == TE_SCHED_B && g->latest &&
		g->latest->callable == callable && g->latest->kind == kind;
	if (again)
		due = g->latest;
	if (due->callable != callable || due->kind != kind)
		return wrong_order(&c, callable);
	if (rep) {
		given = given_side(&c);
		r = te__sized_in(fn, te_replay, rep, &given_replay);
		if (!r)
			r = check_replay(&c);
		if (!r)
			r = check_args(&c, &given);
		if (!r)
			r = check_kept(&c);
		if (r)
			return r;
	}
	r = not_capturing(g, stream, c.replay->side, fn);
	if (r)
		return r;
	r = queue(&c, due);
	if (r < 0)
		return sticky(g, te__graph_step_failed(g, due, fn, "", r));
	if (!again)
		g->pos = g->pos + 1 == g->nsteps ? 0 : g->pos + 1;
	g->latest = due;
	return 0;
}

int te_graph_forward(struct te_graph *graph, int32_t callable, struct te_stream *stream,
		     const struct te_replay *rep)
{
	return replay(graph, callable, TE_SCHED_F, stream, rep, "te_graph_forward");
}

int te_graph_backward(struct te_graph *graph, int32_t callable, struct te_stream *stream,
		      const struct te_replay *rep)
{
	return replay(graph, callable, TE_SCHED_B, stream, rep, "te_graph_backward");
}

int te_graph_backward_dw(struct te_graph *graph, int32_t callable, struct te_stream *stream,
			 const struct te_replay *rep)
{
	return replay(graph, callable, TE_SCHED_W, stream, rep, "te_graph_backward_dw");
}

/* passes: the functions of the first micro-batch's passes are called, captured or not, and the last
 * function is not */
static int run_all(struct te_graph *g, struct te_stream *stream, const char *fn, int passes)
{
	int r = te__graph_edge(g, 0, fn, stream);

	for (int32_t i = 0; i < g->nsteps && !r; i++) {
		const struct te_sched_step *s = &g->step[i];

		struct te__graph_callable *n = &g->callable[s->callable];

		if (passes && s->micro)
			continue;
		if (n->ncopied)
			r = te__graph_copy_bound(n, (int)s->kind, 0, stream);
		if (!r)
			r = passes ? te__graph_call(g, s, stream) : run_step(g, s, stream);
		if (r >= 0 && n->ncopied)
			r = te__graph_copy_bound(n, (int)s->kind, 1, stream);
		if (r < 0)
			return te__graph_step_failed(g, s, fn, "", r);
		r = 0;
	}
	return r || passes ? r : te__graph_edge(g, 1, fn, stream);
}

static int run_whole(struct te_graph *g, struct te_stream *stream)
{
	int r = 0;

	for (int32_t i = 0; i < g->ncallables && !r; i++)
		if (g->callable[i].ncopied)
			r = te__graph_copy_bound(&g->callable[i], -1, 0, stream);
	if (!r)
		r = launch(g, g->whole, stream);
	for (int32_t i = 0; i < g->ncallables && !r; i++)
		if (g->callable[i].ncopied)
			r = te__graph_copy_bound(&g->callable[i], -1, 1, stream);
	return r;
}

static int run(struct te_graph *graph, struct te_stream *stream, const char *fn, int passes)
{
	int r = usable(graph, stream, fn);

	if (r)
		return r;
	if (!(graph->opts.flags & (TE_GRAPH_WHOLE | TE_GRAPH_CHAIN)) && graph->ncallables > 1)
		return te__fail(-TE_ESTATE, "%s: several callables need TE_GRAPH_CHAIN or "
					    "TE_GRAPH_WHOLE", fn);
	r = not_capturing(graph, stream, NULL, fn);
	if (r)
		return r;
	r = take_turn(graph, stream);
	if (!r)
		r = graph->whole && !passes ? run_whole(graph, stream) :
					      run_all(graph, stream, fn, passes);
	graph->pos = 0;
	graph->latest = NULL;
	return sticky(graph, r);
}

int te__graph_run(struct te_graph *graph, struct te_stream *stream, const char *fn)
{
	return run(graph, stream, fn, 0);
}

int te__graph_passes(struct te_graph *graph, struct te_stream *stream, const char *fn)
{
	return run(graph, stream, fn, 1);
}

int te_graph_run(struct te_graph *graph, struct te_stream *stream)
{
	return te__graph_run(graph, stream, "te_graph_run");
}

int te_graph_rewind(struct te_graph *graph)
{
	if (!graph)
		return te__fail(-EINVAL, "te_graph_rewind: graph is NULL");
	graph->pos = 0;
	graph->latest = NULL;
	return 0;
}
