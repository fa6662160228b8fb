/*
 * step.c - te_step_*(3): a training step. For each shape, plans of the parts of a sequence become
 * the callables of one graph, which is captured or not; all these graphs use one pool.
 */
#define TE_LOG_CATEGORY "graph/step"
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include <te/step.h>
#include "graph_internal.h"
#include "libtecore/offload/limits.h"

static const char fn[] = "te_step_create";

/* the passes of one shape */
struct shape {
	struct te_spec x;
	struct te_plan **plan; /* [nparts] the first callable of each part */
	struct te_graph *graph;
};

/* place of a part in the schedule */
struct place {
	int32_t chunk, layer;
	int32_t nlayers;  /* layers of its chunk */
	int32_t callable; /* callable of layer 0 of the chunk's first micro-batch */
	int32_t nplans;	  /* the most micro-batches that are in flight in the chunk */
	int delayed;	  /* weight gradients are separate passes */
};

struct te_step {
	_Atomic uint32_t refs;
	struct te_seq *seq;
	struct te_adamw *adamw; /* or NULL */
	struct te_ctx *ctx;
	struct te_step_opts opts; /* cut, shapes and recipe are the caller's, for te_step_create */
	struct te_schedule *schedule;
	int32_t nmicro, nparts, nshapes, ncallables;
	int32_t total; /* micro-batches of the larger step */
	/* by weight: passes of a step that add to its gradient, and passes queued so far;
	 * NULL: the hook is not called for gradients */
	int32_t *nadds, *nadded;
	struct place *place; /* [nparts] */
	struct shape *shape;
	struct te_stream *stream; /* owns the pool */
	void *pool;		  /* pool of several shapes */
	struct te_step_memory memory;
	struct te_stream *last; /* stream of the latest step, whose shape is latest; or NULL */
	int32_t latest;
	int calibrated; /* quantizers have scales */
};

/* ---- options ---- */

static int check_flags(const struct te_step_opts *o)
{
	const uint32_t known = TE_STEP_GRAPH | TE_STEP_PASS_GRAPHS | TE_STEP_NO_ALLOC |
			       TE_STEP_RECOMPUTE_COSTLY;

	if (o->flags & ~known)
		return te__graph_fail(fn, -EINVAL, "unknown flags 0x%x",
				      (unsigned)(o->flags & ~known));
	if (o->flags & TE_STEP_GRAPH && o->flags & TE_STEP_PASS_GRAPHS)
		return te__graph_fail(fn, -EINVAL, "TE_STEP_GRAPH and TE_STEP_PASS_GRAPHS exclude "
						   "each other");
	return 0;
}

static int check_opts(const struct te_step_opts *o)
{
	int r = check_flags(o);

	if (r)
		return r;
	if (o->micro_batches < 1)
		return te__graph_fail(fn, -EINVAL, "%" PRId32 " micro-batches", o->micro_batches);
	if (o->first_micro_batch < 0 || o->total_micro_batches < 0 ||
	    (int64_t)o->first_micro_batch + o->micro_batches >
		    (o->total_micro_batches ? o->total_micro_batches : o->micro_batches))
		return te__graph_fail(fn, -EINVAL,
				      "%" PRId32 " micro-batches from number %" PRId32 " on, of a "
				      "total of %" PRId32,
				      o->micro_batches, o->first_micro_batch,
				      o->total_micro_batches);
	if (o->nshapes < 0 || (o->nshapes && !o->shapes))
		return te__graph_fail(fn, -EINVAL, "%" PRId32 " shapes, and no list of them",
				      o->nshapes);
	if (o->nshapes && o->x.ndim)
		return te__graph_fail(fn, -EINVAL, "x and shapes exclude each other");
	if (o->ncuts < 0 || (o->ncuts && !o->cut))
		return te__graph_fail(fn, -EINVAL, "%" PRId32 " cuts, and no list of them",
				      o->ncuts);
	for (int32_t i = 0; i < o->ncuts; i++)
		if (!o->cut[i])
			return te__graph_fail(fn, -EINVAL, "cut %" PRId32 " has no name", i);
	return 0;
}

static int get_schedule(struct te_step *s)
{
	struct te_schedule_info info = TE_SCHEDULE_INFO_INIT;
	struct te_schedule_opts so = TE_SCHEDULE_OPTS_INIT;
	int r = 0;

	so.nmicro = s->nmicro;
	so.nlayers = &s->nparts;
	if (s->opts.schedule)
		s->schedule = te_schedule_ref(s->opts.schedule);
	else
		r = te_schedule_parse("1f1b", &so, &s->schedule);
	if (!r)
		r = te_schedule_info(s->schedule, &info);
	if (r)
		return r;
	if (info.nmicro != s->nmicro)
		return te__graph_fail(fn, -EINVAL,
				      "%" PRId32 " micro-batches, the schedule has %" PRId32,
				      s->nmicro, info.nmicro);
	if (info.ncallables / info.nmicro != s->nparts)
		return te__graph_fail(fn, -EINVAL,
				      "%" PRId32 " plans, the schedule has %" PRId32 " layers",
				      s->nparts, info.ncallables / info.nmicro);
	if (!(info.kinds & 1u << TE_SCHED_B))
		return te__graph_fail(fn, -EINVAL, "the schedule has no backward passes");
	s->ncallables = info.ncallables;
	return 0;
}

/* ---- parts ---- */

/* the steps of a chunk, by kind; each counts once, regardless of its layers */
static void find_in_flight(const struct te_step *s, struct place *p)
{
	int32_t n[3] = { 0, 0, 0 }, most[2] = { 0, 0 };
	struct te_sched_step step;

	for (int32_t i = 0; !te_schedule_step(s->schedule, i, &step); i++) {
		if (step.chunk != p->chunk || step.layer)
			continue;
		n[step.kind]++;
		for (int k = 0; k < 2; k++)
			if (n[TE_SCHED_F] - n[TE_SCHED_B + k] > most[k])
				most[k] = n[TE_SCHED_F] - n[TE_SCHED_B + k];
	}
	p->delayed = n[TE_SCHED_W] > 0;
	p->nplans = most[p->delayed];
}

static int find_places(struct te_step *s)
{
	struct te_sched_step step;
	int32_t part = 0;

	s->place = te__calloc((size_t)s->nparts, sizeof(*s->place));
	if (!s->place)
		return te__no_memory(fn);
	/* chunks begin in the order of their numbers, and so do the layers of one */
	for (int32_t i = 0; !te_schedule_step(s->schedule, i, &step); i++)
		if (step.kind == TE_SCHED_F && !step.micro)
			s->place[part++] = (struct place){
				.chunk = step.chunk,
				.layer = step.layer,
				.callable = step.callable - step.layer,
			};
	while (part--) {
		struct place *p = &s->place[part];
		const int last = part + 1 == s->nparts || !p[1].layer;

		p->nlayers = last ? p->layer + 1 : p[1].nlayers;
		find_in_flight(s, p);
	}
	return 0;
}

/* callable of a part and micro-batch; the order is chunk, micro-batch, layer */
static int32_t callable_of(const struct te_step *s, int32_t part, int32_t micro)
{
	const struct place *p = &s->place[part];

	return p->callable + micro * p->nlayers + p->layer;
}

/* Hook of plans if the step's hook is called for gradients. Passes of all micro-batches, and passes
 * of parts with a tied weight, add to a gradient; the last one completes it. */
static int step_hook(void *arg, struct te_plan *plan, const struct te_plan_event *event)
{
	struct te_step *s = arg;

	if (event->kind == TE_PLAN_EVENT_GRAD) {
		if (++s->nadded[event->weight] < s->nadds[event->weight])
			return 0;
		s->nadded[event->weight] = 0; /* for the next step, which may be the capture's */
	}
	return s->opts.hook(s->opts.hook_arg, plan, event);
}

/* x of a part is the output of the previous plan */
static int make_plan(struct te_step *s, const struct shape *shape, int32_t part,
		     uint32_t flags, struct te_plan **ret_plan)
{
	const struct te_step_opts *o = &s->opts;
	struct te_plan_opts po = TE_PLAN_OPTS_INIT;

	po.recipe = o->recipe;
	po.flags = TE_PLAN_TRAIN | TE_PLAN_EXTERNAL | (part ? TE_PLAN_INPUT_GRAD : 0) |
		   (s->place[part].delayed ? TE_PLAN_DELAY_DW : 0) |
		   (o->flags & TE_STEP_RECOMPUTE_COSTLY ? TE_PLAN_RECOMPUTE_COSTLY : 0) | flags;
	po.offload = o->offload;
	po.nrecompute = o->nrecompute;
	po.recompute = o->recompute;
	po.x = shape->x;
	po.whole_x = shape->x;
	if (part)
		te_plan_spec(shape->plan[part - 1], "out", &po.x);
	po.start_at = part ? o->cut[part - 1] : NULL;
	po.stop_before = part < o->ncuts ? o->cut[part] : NULL;
	po.hook = s->nadds ? step_hook : o->hook;
	po.hook_arg = s->nadds ? s : o->hook_arg;
	po.hooks = o->hooks;
	po.grad_scale = 1.0 / s->total;
	return te_plan_create(s->seq, &po, ret_plan);
}

/* the plan of micro-batch m, and of every nplans-th one after it */
static int make_callable(struct te_step *s, struct shape *shape, int32_t part, int32_t m,
			 uint32_t flags, struct te_callable *ret_c)
{
	const int32_t nplans = s->place[part].nplans, npasses = (s->nmicro - m - 1) / nplans + 1;
	struct te_plan_memory pm = TE_PLAN_MEMORY_INIT;
	struct te_plan *plan = NULL;
	char name[96];
	int r = make_plan(s, shape, part, flags, &plan);

	if (r)
		return r;
	snprintf(name, sizeof(name), "the plan from %s",
		 part ? s->opts.cut[part - 1] : te_op_name(te_seq_op(s->seq, 0)));
	r = te_plan_memory(plan, &pm);
	if (!r)
		r = te_callable_from_plan(plan, name, ret_c);
	if (!r && !m)
		shape->plan[part] = te_plan_ref(plan);
	te_plan_unref(plan);
	s->memory.plans_nbytes += r ? 0 : pm.own_nbytes;
	s->memory.passes_ms += r || shape != s->shape ? 0 : npasses * pm.pass_ms;
	return r;
}

static void release(struct te_callable *c, int32_t n)
{
	for (int32_t i = 0; c && i < n; i++)
		if (c[i].release)
			c[i].release(c[i].self);
}

/* Micro-batches of a chunk pass in order: as many plans as are in flight serve in turn.
 * flags: TE_PLAN_* */
static int make_callables(struct te_step *s, struct shape *shape, uint32_t flags,
			  struct te_callable *c)
{
	int r = 0;

	for (int32_t i = 0; i < s->ncallables; i++)
		c[i] = (struct te_callable)TE_CALLABLE_INIT;
	for (int32_t part = 0; part < s->nparts && !r; part++)
		for (int32_t m = 0; m < s->nmicro && !r; m++) {
			const int32_t i = callable_of(s, part, m), n = s->place[part].nplans;

			if (m < n) {
				r = make_callable(s, shape, part, m, flags, &c[i]);
				continue;
			}
			c[i] = c[callable_of(s, part, m - n)];
			c[i].release = NULL;
		}
	return r;
}

/* check that the parts can be plans: the last ends in a loss, one plan reads a channel, ... */
static int check_parts(const struct te_step *s, const struct shape *shape)
{
	struct te_spec spec;
	const char *name;

	if (!te_plan_spec(shape->plan[s->nparts - 1], "out_grad", &spec))
		return te__graph_fail(fn, -EINVAL, "op %s is the last and no loss: nothing gives "
						   "its gradient",
				      te_op_name(te_seq_op(s->seq, te_seq_nops(s->seq) - 1)));
	for (int32_t p = 1; p < s->nparts; p++)
		for (int k = 1; (name = te_plan_input_name(shape->plan[p], k)); k++)
			for (int32_t q = 0; q < p; q++)
				if (!te_plan_spec(shape->plan[q], name, &spec))
					return te__graph_fail(
						fn, -EINVAL,
						"channel %s is read by plans %" PRId32
						" and %" PRId32 ", expected by one only",
						name, q, p);
	return te__plans_find_patterns(fn, shape->plan, s->nparts, s->opts.nrecompute,
				       s->opts.recompute);
}

/* ---- graphs ---- */

static int zero_grads(void *arg, struct te_stream *stream)
{
	const struct te_step *s = arg;

	if (s->nadds)
		memset(s->nadded, 0, (size_t)te_seq_nweights(s->seq) * sizeof(*s->nadded));
	/* a recorded pass serves the first micro-batch and later ones */
	return s->opts.flags & TE_STEP_PASS_GRAPHS ?
		       te_seq_zero_grads(s->seq, stream) :
		       te__plans_zero_grads(s->shape->plan, s->nparts, stream);
}

static int update(void *arg, struct te_stream *stream)
{
	const struct te_step *s = arg;

	return s->adamw && !te__adamw_waits(s->adamw) ? te_adamw_step(s->adamw, stream) : 0;
}

/* Micro-batches that have plans of their own: later ones run the same. Gradients are complete after
 * all of them, and their hook is to run once before the capture: 0. */
static int32_t nwarm_micro(const struct te_step *s)
{
	int32_t n = 0;

	for (int32_t p = 0; p < s->nparts && !s->nadds; p++)
		n = s->place[p].nplans > n ? s->place[p].nplans : n;
	return n;
}

/* flags: in addition to the options' flags */
static int make_graph(struct te_step *s, const struct te_callable *c, uint32_t flags,
		      struct te_graph **ret_graph)
{
	const int eager = !(s->opts.flags & (TE_STEP_GRAPH | TE_STEP_PASS_GRAPHS));
	struct te_graph_opts go = TE_GRAPH_OPTS_INIT;
	struct te_graph *g;
	int r;

	go.flags = TE_GRAPH_CHAIN | TE_GRAPH_REUSE | (eager ? TE_GRAPH_EAGER : 0) |
		   (s->opts.flags & TE_STEP_GRAPH ? TE_GRAPH_WHOLE : 0) | flags;
	/* one run loads the libraries and chooses algorithms: shapes do not change */
	go.nwarmup = !eager;
	go.schedule = s->schedule;
	go.first = zero_grads;
	go.last = update;
	go.arg = s;
	go.pool = s->pool;
	go.pool_nbytes = s->memory.pool_nbytes + s->memory.workspace_nbytes;
	g = te__graph_new(fn, s->ctx, &go);
	if (!g)
		return -ENOMEM;
	g->first_micro = s->opts.first_micro_batch;
	g->total_micro = s->total;
	g->renewed = s->seq;
	g->nwarm_micro = nwarm_micro(s);
	r = te__graph_build(g, s->ncallables, c);
	if (r) {
		te__graph_free(g);
		return r;
	}
	if (s->memory.pool_nbytes < g->report.peak_nbytes)
		s->memory.pool_nbytes = g->report.peak_nbytes;
	*ret_graph = g;
	return 0;
}

/* the pool of a shape with these callables */
static int measure(struct te_step *s, const struct te_callable *c, uint64_t *ret_nbytes)
{
	const uint64_t nbytes = s->memory.pool_nbytes;
	struct te_graph *g;
	int r;

	s->memory.pool_nbytes = 0;
	r = make_graph(s, c, TE_GRAPH_NO_ALLOC, &g);
	*ret_nbytes = s->memory.pool_nbytes;
	s->memory.pool_nbytes = nbytes;
	if (!r)
		te__graph_free(g);
	return r;
}

static void drop_callables(struct te_step *s, struct shape *shape, struct te_callable *c)
{
	release(c, s->ncallables);
	for (int32_t i = 0; i < s->ncallables; i++)
		c[i].release = NULL;
	for (int32_t p = 0; p < s->nparts; p++)
		shape->plan[p] = te_plan_unref(shape->plan[p]);
}

struct trial {
	struct te_step *s;
	struct shape *shape;
	struct te_callable *c;
	struct te_step_memory memory; /* before the trial */
	uint64_t allowed; /* bytes that may move, and waits, in this trial */
	enum te__waits waits;
};

/* size of the pool with the te_offload's present limits: creates and releases the callables */
static int try_pool(void *arg, uint64_t *ret_nbytes)
{
	struct trial *t = arg;
	int r;

	t->s->memory = t->memory;
	te__offload_allowed(t->s->opts.offload, &t->allowed, &t->waits);
	r = make_callables(t->s, t->shape, TE_PLAN_NO_ALLOC, t->c);
	if (!r)
		r = measure(t->s, t->c, ret_nbytes);
	drop_callables(t->s, t->shape, t->c);
	t->s->memory = t->memory;
	return r;
}

/* create the callables of a shape; with a target, move as few bytes as reach it */
static int fit_callables(struct te_step *s, struct shape *shape, struct te_callable *c)
{
	struct te_offload *const o = s->opts.offload;
	const uint32_t flags = s->opts.flags & TE_STEP_NO_ALLOC ? TE_PLAN_NO_ALLOC : 0;
	struct trial t = { .s = s, .shape = shape, .c = c, .memory = s->memory };
	uint64_t target;
	int r = 0;

	if (!o)
		return make_callables(s, shape, flags, c);
	te__offload_limits(o, &target, &t.allowed);
	if (target)
		r = te__offload_fit(o, target, "the pool of the step", try_pool, &t);
	if (r)
		return r;
	te__offload_allow(o, t.allowed, t.waits);
	r = make_callables(s, shape, flags, c);
	te__offload_release(o);
	return r;
}

static int make_pool(struct te_step *s)
{
	const uint64_t nbytes = s->memory.pool_nbytes + s->memory.workspace_nbytes;
	int r = te_mem_alloc(s->stream, nbytes, &s->pool);

	if (r != -ENOMEM)
		return r;
	return te__graph_fail(fn, r, "the pool of the largest shape needs %.1f MiB: %s",
			      (double)nbytes / 1048576.0, te_error_detail());
}

/* all shapes have the same ops */
static void count_adds(struct te_step *s)
{
	for (int w = 0; s->nadds && w < te_seq_nweights(s->seq); w++)
		for (int32_t p = 0; p < s->nparts; p++)
			if (te__plan_adds(s->shape[0].plan[p], w))
				s->nadds[w] += s->nmicro;
}

/* c: [nshapes * ncallables], for the graphs, which own them afterwards */
static int make_graphs(struct te_step *s, struct te_callable *c)
{
	const uint32_t flags = s->opts.flags & TE_STEP_NO_ALLOC ? TE_GRAPH_NO_ALLOC : 0;
	const int shares = !flags && s->nshapes > 1; /* a single graph allocates its pool */
	uint64_t nbytes;
	int r = 0;

	for (int32_t i = 0; i < s->nshapes && !r; i++) {
		struct te_callable *of = c + (size_t)i * (size_t)s->ncallables;

		r = fit_callables(s, &s->shape[i], of);
		if (!r)
			r = check_parts(s, &s->shape[i]);
		if (!r && shares)
			r = measure(s, of, &nbytes);
		if (!r && shares && s->memory.pool_nbytes < nbytes)
			s->memory.pool_nbytes = nbytes;
	}
	if (!r && shares)
		r = make_pool(s);
	if (!r)
		count_adds(s);
	for (int32_t i = 0; i < s->nshapes && !r; i++) {
		struct te_callable *of = c + (size_t)i * (size_t)s->ncallables;

		r = make_graph(s, of, flags, &s->shape[i].graph);
		if (r)
			break;
		te__graph_take_over(s->shape[i].graph);
		for (int32_t k = 0; k < s->ncallables; k++)
			of[k].release = NULL;
	}
	return r;
}

static int make_shapes(struct te_step *s)
{
	const size_t n = (size_t)s->nshapes * (size_t)s->ncallables;
	struct te_callable *c = te__calloc(n, sizeof(*c));
	int r = 0;

	s->shape = te__calloc((size_t)s->nshapes, sizeof(*s->shape));
	if (!c || !s->shape)
		r = te__no_memory(fn);
	for (int32_t i = 0; i < s->nshapes && !r; i++) {
		s->shape[i].x = s->opts.nshapes ? s->opts.shapes[i] : s->opts.x;
		s->shape[i].plan = te__calloc((size_t)s->nparts, sizeof(struct te_plan *));
		if (!s->shape[i].plan)
			r = te__no_memory(fn);
	}
	if (!r)
		r = make_graphs(s, c);
	if (r)
		release(c, c ? (int32_t)n : 0);
	te__free(c);
	return r;
}

/* ---- creating and releasing ---- */

static void step_free(struct te_step *s)
{
	int r = 0;

	for (int32_t i = 0; s->shape && i < s->nshapes; i++) {
		te_graph_unref(s->shape[i].graph);
		for (int32_t p = 0; s->shape[i].plan && p < s->nparts; p++)
			te_plan_unref(s->shape[i].plan[p]);
		te__free(s->shape[i].plan);
	}
	if (s->pool && s->last)
		r = te__graph_await(s->stream, s->last);
	if (s->pool && (r || te_mem_free(s->stream, s->pool)))
		te__log_warn("the pool of a step is not freed before its context: %s",
			     te_error_detail());
	te__free(s->shape);
	te__free(s->place);
	te__free(s->nadds);
	te_schedule_unref(s->schedule);
	te_stream_unref(s->last);
	te_stream_unref(s->stream);
	te_adamw_unref(s->adamw);
	te_ctx_unref(s->ctx);
	te_seq_unref(s->seq);
	te__free(s);
}

static int make_counts(struct te_step *s)
{
	const size_t n = (size_t)te_seq_nweights(s->seq);

	if (!s->opts.hook || !(s->opts.hooks & 1u << TE_PLAN_EVENT_GRAD) || !n)
		return 0;
	s->nadds = te__calloc(2 * n, sizeof(*s->nadds));
	if (!s->nadds)
		return te__no_memory(fn);
	s->nadded = s->nadds + n;
	return 0;
}

static int build(struct te_step *s)
{
	int r = get_schedule(s);

	if (!r)
		r = find_places(s);
	if (!r)
		r = make_counts(s);
	if (!r)
		r = te_stream_create(s->ctx, &s->stream);
	return r ? r : make_shapes(s);
}

int te_step_create(struct te_seq *seq, struct te_adamw *adamw, const struct te_step_opts *opts,
		   struct te_step **ret_step)
{
	struct te_step_opts o = TE_STEP_OPTS_INIT;
	struct te_step *s;
	int r;

	if (!seq || !ret_step)
		return te__graph_fail(fn, -EINVAL, "%s is NULL", seq ? "ret_step" : "seq");
	r = te__sized_in(fn, te_step_opts, opts, &o);
	if (!r)
		r = check_opts(&o);
	if (!r && adamw && te__adamw_seq(adamw) != seq)
		r = te__graph_fail(fn, -EINVAL, "adamw is of another sequence");
	if (r)
		return r;
	s = te__calloc(1, sizeof(*s));
	if (!s)
		return te__no_memory(fn);
	atomic_init(&s->refs, 1);
	s->seq = te_seq_ref(seq);
	s->adamw = te_adamw_ref(adamw);
	s->ctx = te_ctx_ref(te_seq_ctx(seq));
	s->opts = o;
	s->nmicro = o.micro_batches;
	s->total = o.total_micro_batches ? o.total_micro_batches : o.micro_batches;
	s->nparts = o.ncuts + 1;
	s->nshapes = o.nshapes ? o.nshapes : 1;
	s->memory.size = sizeof(s->memory);
	s->memory.workspace_nbytes = te_ctx_workspace_nbytes(s->ctx);
	r = build(s);
	if (r) {
		step_free(s);
		return r;
	}
	*ret_step = s;
	return 0;
}

struct te_step *te_step_ref(struct te_step *step)
{
	if (step)
		atomic_fetch_add(&step->refs, 1);
	return step;
}

struct te_step *te_step_unref(struct te_step *step)
{
	if (step && atomic_fetch_sub(&step->refs, 1) == 1)
		step_free(step);
	return NULL;
}

/* ---- tensors, running ---- */

struct te_graph *te_step_graph(const struct te_step *step, int32_t shape)
{
	return step && shape >= 0 && shape < step->nshapes ? step->shape[shape].graph : NULL;
}

struct te_plan *te_step_plan(const struct te_step *step, int32_t shape, int32_t part)
{
	return te_step_graph(step, shape) && part >= 0 && part < step->nparts ?
		       step->shape[shape].plan[part] :
		       NULL;
}

static struct te_tensor *tensor(const struct te_step *s, int32_t shape, int32_t part,
				int32_t micro_batch, const char *name)
{
	if (micro_batch < 0 || micro_batch >= s->nmicro)
		return NULL;
	return te__graph_arg(te_step_graph(s, shape), callable_of(s, part, micro_batch), name, 0);
}

struct te_tensor *te_step_input(const struct te_step *step, int32_t shape, int32_t micro_batch,
				const char *name)
{
	const int found = name && strcmp(name, "out") && te_step_graph(step, shape);
	struct te_tensor *t = NULL;

	/* x of later parts is the output of the one before */
	for (int32_t p = 0; found && p < (strcmp(name, "x") ? step->nparts : 1) && !t; p++)
		t = tensor(step, shape, p, micro_batch, name);
	if (!t)
		te__graph_fail("te_step_input", -EINVAL, "there is no input %s of shape %d, "
			       "micro-batch %d", name ? name : "NULL", shape, micro_batch);
	return t;
}

struct te_tensor *te_step_output(const struct te_step *step, int32_t shape, int32_t micro_batch)
{
	struct te_tensor *t = te_step_graph(step, shape) ?
				      tensor(step, shape, step->nparts - 1, micro_batch, "out") :
				      NULL;

	if (!t)
		te__graph_fail("te_step_output", -EINVAL, "there is no output of shape %d, "
			       "micro-batch %d", shape, micro_batch);
	return t;
}

static int runnable(const struct te_step *step, int32_t shape, const struct te_stream *stream,
		    const char *run)
{
	if (!step || !stream)
		return te__graph_fail(run, -EINVAL, "%s is NULL", step ? "stream" : "step");
	if (!te_step_graph(step, shape))
		return te__graph_fail(run, -EINVAL, "shape %" PRId32 " of %" PRId32, shape,
				      step->nshapes);
	if (step->opts.flags & TE_STEP_NO_ALLOC)
		return te__graph_fail(run, -TE_ESTATE, "the step was made without memory");
	return step->opts.offload ? te__offload_check(step->opts.offload) : 0;
}

/* passes that run several times with one step's inputs, whose memory they use for other values */
struct passes {
	struct te_graph *graph;
	const char *fn;
	void *inputs; /* a copy, or NULL before the first time */
};

/* how: -1 to the copy, 1 from it, 0 only count; returns bytes or a negative code */
static int64_t copy_inputs(const struct passes *p, struct te_stream *stream, int how)
{
	char *copy = p->inputs;
	int64_t nbytes = 0;
	int r = 0;

	for (int32_t i = 0; i < p->graph->ncallables; i++) {
		const struct te__graph_callable *n = &p->graph->callable[i];

		for (int32_t k = n->prev >= 0; k < n->c.nin && !r; k++) {
			void *in = n->in[k] ? te_tensor_data(n->in[k]) : NULL;
			const size_t size = n->in[k] ? te_tensor_nbytes(n->in[k]) : 0;

			if (how && size)
				r = te_copy(stream, how > 0 ? in : copy + nbytes,
					    how > 0 ? copy + nbytes : in, size);
			nbytes += (int64_t)((size + 255) & ~(size_t)255);
		}
	}
	return r ? r : nbytes;
}

static int run_passes(void *arg, struct te_stream *stream)
{
	struct passes *p = arg;
	const int first = !p->inputs;
	int64_t r = 0;

	if (first)
		r = te_mem_alloc(stream, (size_t)copy_inputs(p, stream, 0), &p->inputs);
	if (!r)
		r = copy_inputs(p, stream, first ? -1 : 1);
	return r < 0 ? (int)r : te__graph_passes(p->graph, stream, p->fn);
}

/* the inputs are the inputs of the next step */
static int calibrate(struct te_step *step, int32_t shape, struct te_stream *stream, const char *run)
{
	struct passes p = { step->shape[shape].graph, run, NULL };
	int r = te__seq_calibrate(step->seq, stream, run_passes, &p, run);

	if (p.inputs && !r) {
		const int64_t n = copy_inputs(&p, stream, 1);

		r = n < 0 ? (int)n : te_stream_sync(stream);
	}
	if (p.inputs && te_mem_free(stream, p.inputs))
		te__log_warn("a copy of a step's inputs is not freed before its context: %s",
			     te_error_detail());
	step->calibrated = !r;
	te__outside_take(step->ctx); /* the next step counts the same inputs */
	return r;
}

/* replays of one graph run serially; make replays of different graphs run serially too */
static int take_turn(struct te_step *step, int32_t shape, struct te_stream *stream, const char *run)
{
	int r = te__stream_check(run, stream, step->ctx);

	if (!r)
		r = te__stream_not_capturing(stream, run);
	if (!r && step->last && step->last != stream)
		r = te__stream_follow(stream, step->last);
	return r || step->calibrated ? r : calibrate(step, shape, stream, run);
}

int te_step_calibrate(struct te_step *step, int32_t shape, struct te_stream *stream)
{
	static const char run[] = "te_step_calibrate";
	int r = runnable(step, shape, stream, run);

	return r ? r : take_turn(step, shape, stream, run);
}

int te_step_run(struct te_step *step, int32_t shape, struct te_stream *stream)
{
	static const char run[] = "te_step_run";
	int r = runnable(step, shape, stream, run);

	if (!r)
		r = take_turn(step, shape, stream, run);
	if (!r)
		r = te__graph_run(step->shape[shape].graph, stream, run);
	if (r)
		return r;
	if (step->last != stream) {
		te_stream_unref(step->last);
		step->last = te_stream_ref(stream);
	}
	step->latest = shape;
	return step->adamw && te__adamw_waits(step->adamw) ? te_adamw_step(step->adamw, stream) : 0;
}

static const char loss[] = "te_step_loss";

static int tell_outside(const struct te_step *step)
{
	const struct te__outside n = te__outside_take(step->ctx);

	if (n.ntargets)
		return te__graph_fail(loss, -ERANGE, "targets of %u rows, since the last call, are "
				      "neither classes nor ignore_index, and did not count%s",
				      n.ntargets,
				      n.ntokens ? "; tokens are outside of the vocabulary, too" :
						  "");
	if (n.ntokens)
		return te__graph_fail(loss, -ERANGE, "%u tokens, since the last call, are outside "
				      "of the vocabulary, and had embeddings of zeros",
				      n.ntokens);
	return 0;
}

int te_step_loss(struct te_step *step, double *ret_loss)
{
	double sum = 0;
	int r;

	if (!step || !ret_loss)
		return te__graph_fail(loss, -EINVAL, "%s is NULL", step ? "ret_loss" : "step");
	if (!step->last)
		return te__graph_fail(loss, -TE_ESTATE, "no step has run");
	r = te_stream_sync(step->last);
	for (int32_t m = 0; m < step->nmicro && !r; m++) {
		const struct te_tensor *t = te_step_output(step, step->latest, m);
		float x;

		if (te_tensor_dtype(t) != TE_DTYPE_FP32)
			return te__graph_fail(loss, -TE_EDTYPE, "the loss is %s, expected fp32",
					      te_dtype_name(te_tensor_dtype(t)));
		r = te_tensor_read(t, &x, sizeof(x));
		sum += (double)x / (double)step->nmicro;
	}
	if (r)
		return r;
	*ret_loss = sum;
	return tell_outside(step);
}

int te_step_memory(const struct te_step *step, struct te_step_memory *ret_memory)
{
	int r = te__sized_check("te_step_memory", te_step_memory, ret_memory);

	if (r)
		return r;
	if (!step)
		return te__graph_fail("te_step_memory", -EINVAL, "step is NULL");
	te__sized_out(te_step_memory, &step->memory, ret_memory);
	return 0;
}
