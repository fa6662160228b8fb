/*
 * t/graph/graph_cases.c - graphs give the bits of eager runs, keep to their order, name what is
 * wrong, and leave no trace of warm-up.
 */
#include "config.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <te/errno.h>
#include <te/graph.h>
#include <te/optim.h>

#include "caster.h"
#include "graph_cases.h"
#include "../core/plan_model.h"
#include "tt_ctx.h"
#include "tt_gate.h"
#include "tt_num.h"

static const struct model_shape gpt = { 48, 32, 2, 16, 4, 4, 2, 0.2f, 0 };
static const struct model_shape llama = { 48, 32, 2, 16, 4, 2, 2, 0, 1 };
static const char *const recipes[] = { "fp32", "bf16", "fp8-delayed", "fp8-current" };

/* ---- a model as a graph of parts ---- */

#define PARTS 3
#define MICRO 3

struct run {
	struct te_seq *seq;
	struct te_adamw *opt;
	struct te_graph *g;
	int nmicro;
	int first[MICRO], last[MICRO]; /* callables with the tokens and with the loss */
};

static const int32_t one_chunk[] = { 3 }, two_chunks[] = { 2, 1 }, three_chunks[] = { 1, 1, 1 };

static const struct layout {
	const char *order;
	int32_t nchunks, nmicro;
	const int32_t *nlayers;
} layouts[] = {
	{ "gpipe", 1, 2, one_chunk },
	{ "1,2,1,2,-2,-1,1,2,-2,-1,-2,-1", 2, 3, two_chunks },
	{ "1f1b", 3, 2, three_chunks },
	{ "zero-bubble", 2, 3, two_chunks },
};

static int sharing; /* all micro-batches have one plan for each part */

static int zero(void *arg, struct te_stream *stream)
{
	return te_seq_zero_grads(((struct run *)arg)->seq, stream);
}

static int update(void *arg, struct te_stream *stream)
{
	return te_adamw_step(((struct run *)arg)->opt, stream);
}

static int run_regions(void *arg, te_region_fn fn, void *fn_arg)
{
	return te_adamw_regions(((struct run *)arg)->opt, fn, fn_arg);
}

static struct te_callable part(struct run *r, const struct model_shape *m, const char *recipe,
			       int p, int delay)
{
	static const char *const cut[] = { NULL, "h.1.ln1", "norm", NULL };
	struct te_callable c = TE_CALLABLE_INIT;
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_plan *plan;
	char name[16];

	DO(te_recipe_from_name(recipe, &o.recipe));
	if (o.recipe.kind == TE_RECIPE_DELAYED)
		o.recipe.history_len = 16;
	o.flags = TE_PLAN_TRAIN | TE_PLAN_EXTERNAL | (p ? TE_PLAN_INPUT_GRAD : 0) |
		  (delay ? TE_PLAN_DELAY_DW : 0);
	o.x = p ? (struct te_spec){ o.recipe.compute, 3, { m->batch, m->seqlen, m->width } } :
		  (struct te_spec){ TE_DTYPE_INT32, 2, { m->batch, m->seqlen } };
	o.start_at = cut[p];
	o.stop_before = cut[p + 1];
	DO(te_plan_create(r->seq, &o, &plan));
	snprintf(name, sizeof(name), "part %d", p);
	DO(te_callable_from_plan(plan, name, &c));
	te_plan_unref(plan);
	return c;
}

static int run_try(struct run *r, const struct model_shape *m, const char *recipe,
		   const struct layout *l, uint32_t flags)
{
	struct te_schedule_opts so = TE_SCHEDULE_OPTS_INIT;
	struct te_graph_opts o = TE_GRAPH_OPTS_INIT;
	int delay = !strcmp(l->order, "zero-bubble") || strstr(l->order, ".5") != NULL;
	struct te_callable c[PARTS * MICRO];
	int n = 0, p = 0, ret;

	r->seq = model_create(ctx, m, 3);
	DO(te_adamw_create(r->seq, NULL, &r->opt));
	DO(te_adamw_set_lr(r->opt, st, 1e-2f));
	r->nmicro = l->nmicro;
	for (int k = 0; k < l->nchunks; p += l->nlayers[k++])
		for (int i = 0; i < l->nmicro; i++)
			for (int j = 0; j < l->nlayers[k]; j++) {
				if (p + j == 0)
					r->first[i] = n;
				if (p + j == PARTS - 1)
					r->last[i] = n;
				if (i && sharing) {
					c[n] = c[n - l->nlayers[k]];
					c[n++].release = NULL;
				} else {
					c[n++] = part(r, m, recipe, p + j, delay);
				}
			}
	so.nchunks = l->nchunks;
	so.nmicro = l->nmicro;
	so.nlayers = l->nlayers;
	DO(te_schedule_parse(l->order, &so, &o.schedule));
	o.flags = TE_GRAPH_CHAIN | flags;
	o.first = zero;
	o.last = update;
	o.regions = run_regions;
	o.arg = r;
	ret = te_graph_create(ctx, n, c, &o, &r->g);
	te_schedule_unref(o.schedule);
	for (int i = 0; ret && i < n; i++)
		if (c[i].release)
			c[i].release(c[i].self);
	return ret;
}

static void run_create(struct run *r, const struct model_shape *m, const char *recipe,
		       const struct layout *l, uint32_t flags)
{
	DO(run_try(r, m, recipe, l, flags));
}

static void run_destroy(struct run *r)
{
	te_graph_unref(r->g);
	te_adamw_unref(r->opt);
	te_seq_unref(r->seq);
}

/* tokens of one step for all runs, into their static inputs */
static void feed(struct run *const *runs, int nruns, const struct model_shape *m)
{
	size_t n = (size_t)(m->batch * m->seqlen);
	int32_t *t = malloc(n * sizeof(*t));

	for (int i = 0; i < runs[0]->nmicro; i++)
		for (int k = 0; k < 2; k++) {
			for (size_t j = 0; j < n; j++)
				t[j] = (int32_t)tt_rand_int(0, m->vocab - 1);
			for (int j = 0; j < nruns; j++)
				DO(te_tensor_write(te_graph_tensor(runs[j]->g,
								   k ? runs[j]->last[i] :
								       runs[j]->first[i],
								   k ? "targets" : "x"),
						   t, n * sizeof(*t)));
		}
	free(t);
}

static void same_runs(const struct run *a, const struct run *b)
{
	uint64_t seed[2], offset[2];

	for (int i = 0; i < a->nmicro; i++)
		model_same(te_graph_tensor(a->g, a->last[i], "out"),
			   te_graph_tensor(b->g, b->last[i], "out"), "losses");
	model_same(te_seq_grads(a->seq), te_seq_grads(b->seq), "gradients");
	model_same(te_seq_masters(a->seq), te_seq_masters(b->seq), "weights");
	model_same(te_adamw_v(a->opt), te_adamw_v(b->opt), "moments");
	model_same_scales(te_seq_quant(a->seq), te_seq_quant(b->seq));
	DO(te_seq_rng_get(a->seq, &seed[0], &offset[0]));
	DO(te_seq_rng_get(b->seq, &seed[1], &offset[1]));
	ck_assert_uint_eq(offset[0], offset[1]);
}

#define WAYS 5
static const uint32_t ways[WAYS] = {
	TE_GRAPH_EAGER, 0, TE_GRAPH_WHOLE, TE_GRAPH_REUSE, TE_GRAPH_WHOLE | TE_GRAPH_REUSE,
};

/* three steps of two or three micro-batches, in every layout, recipe and way to run */
START_TEST(every_way_gives_the_same_bits)
{
	const struct layout *l = &layouts[_i / 4];
	const char *recipe = recipes[_i % 4];
	const struct model_shape *m = _i % 2 ? &gpt : &llama;
	const uint32_t cache = _i / 4 % 2 ? TE_GRAPH_CACHE_WEIGHTS : 0;
	struct run run[WAYS], *all[WAYS];

	for (int w = 0; w < WAYS; w++) {
		run_create(&run[w], m, recipe, l, ways[w] | cache);
		all[w] = &run[w];
	}
	for (int step = 0; step < 3; step++) {
		feed(all, WAYS, m);
		for (int w = 0; w < WAYS; w++) {
			DO(te_graph_run(run[w].g, st));
			DO(te_stream_sync(st));
			if (w)
				same_runs(&run[0], &run[w]);
		}
	}
	for (int w = 0; w < WAYS; w++)
		run_destroy(&run[w]);
}
END_TEST

/* caching casts changes nothing but how often weights are cast */
START_TEST(cached_weights_give_the_same_bits)
{
	struct run run[3], *all[3];

	for (int w = 0; w < 3; w++) {
		run_create(&run[w], &gpt, recipes[1 + _i], &layouts[1],
			   (w ? TE_GRAPH_CACHE_WEIGHTS : 0) | (w == 2 ? TE_GRAPH_WHOLE : 0));
		all[w] = &run[w];
	}
	for (int step = 0; step < 3; step++) {
		feed(all, 3, &gpt);
		for (int w = 0; w < 3; w++) {
			DO(te_graph_run(run[w].g, st));
			DO(te_stream_sync(st));
		}
		for (int i = 0; i < MICRO; i++)
			model_same(te_graph_tensor(run[1].g, run[1].last[i], "out"),
				   te_graph_tensor(run[2].g, run[2].last[i], "out"), "losses");
		if (_i == 1) /* delayed: a weight's amax is recorded once, not three times */
			continue;
		model_same(te_seq_masters(run[0].seq), te_seq_masters(run[1].seq), "weights");
	}
	for (int w = 0; w < 3; w++)
		run_destroy(&run[w]);
}
END_TEST

/* micro-batches that are never under way at once run on one plan a part */
START_TEST(micro_batches_in_turn_share_a_plan)
{
	static const struct layout turns = { "1,-1,1,-1,1,-1", 1, 3, one_chunk };
	const uint32_t flags = TE_GRAPH_REUSE | TE_GRAPH_CACHE_WEIGHTS;
	struct run run[WAYS], *all[WAYS];

	run_create(&run[0], &gpt, recipes[_i], &turns, flags);
	sharing = 1;
	for (int w = 1; w < WAYS; w++)
		run_create(&run[w], &gpt, recipes[_i], &turns, flags | ways[w - 1]);
	sharing = 0;
	for (int w = 0; w < WAYS; w++)
		all[w] = &run[w];
	for (int step = 0; step < 3; step++) {
		feed(all, WAYS, &gpt);
		for (int w = 0; w < WAYS; w++) {
			DO(te_graph_run(run[w].g, st));
			DO(te_stream_sync(st));
			if (w)
				same_runs(&run[0], &run[w]);
		}
	}
	for (int w = 0; w < WAYS; w++)
		run_destroy(&run[w]);
}
END_TEST

/* two under way on one plan would take each other's memory */
START_TEST(micro_batches_at_once_cannot_share_a_plan)
{
	static const struct layout both[] = { { "1,1,-1,-1", 1, 2, one_chunk },
					      { "1,-1,1,-1.5,-1,-1.5", 1, 2, one_chunk } };
	struct run run = { .g = NULL };

	sharing = 1;
	fails(run_try(&run, &gpt, "bf16", &both[_i], _i ? TE_GRAPH_WHOLE : TE_GRAPH_REUSE),
	      -TE_ESTATE,
	      _i ? "backward_dw of part 2 (chunk 1, micro-batch 1): the plan of part 2 has begun" :
		   "backward of part 2 (chunk 1, micro-batch 1): the plan of part 2 has begun "
		   "another micro-batch before the end of this one");
	sharing = 0;
	run_destroy(&run);
}
END_TEST

/* the same as te_graph_run, pass by pass with tensors of the caller */
START_TEST(passes_one_by_one_give_the_same_bits)
{
	const struct layout *l = &layouts[1];
	struct run a, b, *both[2] = { &a, &b };
	struct te_sched_step s;
	struct te_schedule_opts so = TE_SCHEDULE_OPTS_INIT;
	struct te_schedule *order;
	struct te_stream *side;

	so.nchunks = l->nchunks;
	so.nmicro = l->nmicro;
	so.nlayers = l->nlayers;
	DO(te_schedule_parse(l->order, &so, &order));
	DO(te_stream_create(ctx, &side));
	run_create(&a, &gpt, "fp8-current", l, 0);
	run_create(&b, &gpt, "fp8-current", l, TE_GRAPH_REUSE | TE_GRAPH_CACHE_WEIGHTS);
	for (int step = 0; step < 2; step++) {
		struct te_tensor *x[MICRO], *y[MICRO];

		feed(both, 2, &gpt);
		for (int i = 0; i < MICRO; i++) {
			struct te_tensor *t[2] = { te_graph_tensor(b.g, b.first[i], "x"),
						   te_graph_tensor(b.g, b.last[i], "targets") };
			int64_t shape[2] = { gpt.batch, gpt.seqlen };

			DO(te_tensor_create(ctx, TE_DTYPE_INT32, 2, shape, NULL, &x[i]));
			DO(te_tensor_create(ctx, TE_DTYPE_INT32, 2, shape, NULL, &y[i]));
			DO(te_copy(st, te_tensor_data(x[i]), te_tensor_data(t[0]),
				   te_tensor_nbytes(x[i])));
			DO(te_copy(st, te_tensor_data(y[i]), te_tensor_data(t[1]),
				   te_tensor_nbytes(y[i])));
			DO(te_fill(st, te_tensor_data(t[0]), 0, te_tensor_nbytes(x[i])));
			DO(te_fill(st, te_tensor_data(t[1]), 0, te_tensor_nbytes(y[i])));
		}
		DO(te_graph_run(a.g, st));
		DO(te_seq_zero_grads(b.seq, st));
		for (int i = 0; !te_schedule_step(order, i, &s); i++) {
			struct te_replay rep = TE_REPLAY_INIT;
			struct te_named named = { "targets", y[s.micro] };

			rep.first = s.micro ? TE_FIRST_NO : TE_FIRST_YES;
			if (i % 3 == 1)
				rep.side = side;
			if (s.callable == b.first[s.micro]) {
				rep.npos = s.kind == TE_SCHED_F;
				rep.pos = &x[s.micro];
			} else if (s.callable == b.last[s.micro]) {
				rep.nnamed = s.kind == TE_SCHED_F;
				rep.named = &named;
			}
			if (s.kind == TE_SCHED_F)
				DO(te_graph_forward(b.g, s.callable, st, &rep));
			else
				DO(te_graph_backward(b.g, s.callable, st, i % 2 ? NULL : &rep));
		}
		DO(te_adamw_step(b.opt, st));
		DO(te_stream_sync(st));
		model_same(te_seq_grads(a.seq), te_seq_grads(b.seq), "gradients");
		model_same(te_seq_masters(a.seq), te_seq_masters(b.seq), "weights");
		model_same_scales(te_seq_quant(a.seq), te_seq_quant(b.seq));
		for (int i = 0; i < MICRO; i++) {
			te_tensor_unref(x[i]);
			te_tensor_unref(y[i]);
		}
	}
	run_destroy(&a);
	run_destroy(&b);
	te_stream_unref(side);
	te_schedule_unref(order);
}
END_TEST

/* ---- small callables of their own ---- */

struct axpy {
	float *w, *dw; /* one device word each */
	int fail_at;   /* the call that fails, counted down; 0: none */
	int silent;    /* without a sentence */
	int ncalls;
	int released;
};

static int count_down(struct axpy *a)
{
	a->ncalls++;
	if (!a->fail_at || --a->fail_at)
		return 0;
	if (!a->silent)
		te_mem_alloc(NULL, 0, NULL); /* leaves a sentence: stream is NULL */
	return -EIO;
}

/* y = x; saves x */
static int axpy_forward(void *self, const struct te_graph_call *c)
{
	struct axpy *a = self;
	int r = count_down(a);

	if (!r)
		r = te_copy(c->stream, c->saved, te_tensor_data(c->in[0]),
			    te_tensor_nbytes(c->in[0]));
	if (!r)
		r = te_copy(c->stream, te_tensor_data(c->out[0]), te_tensor_data(c->in[0]),
			    te_tensor_nbytes(c->in[0]));
	if (!r && a->w)
		r = te_copy(c->stream, a->w, c->saved, sizeof(float));
	return r;
}

/* y = x */
static int copy_forward(void *self, const struct te_graph_call *c)
{
	(void)self;
	return te_copy(c->stream, te_tensor_data(c->out[0]), te_tensor_data(c->in[0]),
		       te_tensor_nbytes(c->in[0]));
}

/* dx = saved x, whatever dy; dw = dy's first word */
static int axpy_backward(void *self, const struct te_graph_call *c)
{
	struct axpy *a = self;
	int r = count_down(a);

	if (!r)
		r = te_copy(c->stream, te_tensor_data(c->in_grad[0]), c->saved,
			    te_tensor_nbytes(c->in[0]));
	if (!r && a->dw)
		r = te_copy(c->stream, a->dw, te_tensor_data(c->out_grad[0]), sizeof(float));
	return r;
}

static int axpy_regions(void *self, te_region_fn fn, void *arg)
{
	const struct axpy *a = self;
	const struct te_region w = { "w", TE_REGION_DEVICE, a->w, sizeof(float) };
	const struct te_region dw = { "dw", TE_REGION_DEVICE, a->dw, sizeof(float) };
	int r = a->w ? fn(arg, &w) : 0;

	return !r && a->dw ? fn(arg, &dw) : r;
}

static void axpy_release(void *self)
{
	((struct axpy *)self)->released++;
}

static const struct te_arg axpy_in[] = { { "x", { TE_DTYPE_FP32, 2, { 3, 5 } }, TE_ARG_GRAD } };
static const struct te_arg axpy_out[] = { { "y", { TE_DTYPE_FP32, 2, { 3, 5 } }, TE_ARG_GRAD } };

static struct te_callable axpy(struct axpy *a, const char *name)
{
	struct te_callable c = TE_CALLABLE_INIT;

	c.name = name;
	c.self = a;
	c.nin = c.nout = 1;
	c.in = axpy_in;
	c.out = axpy_out;
	c.saved_nbytes = 15 * sizeof(float);
	c.forward = axpy_forward;
	c.backward = axpy_backward;
	c.regions = axpy_regions;
	c.release = axpy_release;
	return c;
}

static struct te_tensor *filled(float x)
{
	struct te_tensor *t;
	float v[15];

	for (int i = 0; i < 15; i++)
		v[i] = x + (float)i;
	DO(te_tensor_create(ctx, TE_DTYPE_FP32, 2, axpy_in[0].spec.shape, NULL, &t));
	DO(te_tensor_write(t, v, sizeof(v)));
	return t;
}

static float first_of(struct te_tensor *t)
{
	float v[15];

	DO(te_stream_sync(st));
	DO(te_tensor_read(t, v, sizeof(v)));
	return v[0];
}

static float word_of(const float *device)
{
	float v;

	DO(te_copy(st, &v, device, sizeof(v)));
	DO(te_stream_sync(st));
	return v;
}

START_TEST(replays_only_in_order)
{
	struct axpy a[2] = { { .w = NULL }, { .w = NULL } };
	struct te_callable c[2] = { axpy(&a[0], "low"), axpy(&a[1], "high") };
	struct te_graph *g;

	DO(te_graph_create(ctx, 2, c, NULL, &g));
	for (int i = 0; i < 2; i++) {
		fails(te_graph_forward(g, 1, st, NULL), -TE_ESTATE,
		      "forward of callable 0 (low, chunk 1, micro-batch 1) is due, not forward of "
		      "callable 1 (high)");
		fails(te_graph_backward(g, 0, st, NULL), -TE_ESTATE,
		      "is due, not backward of callable 0 (low)");
		DO(te_graph_forward(g, 0, st, NULL));
		fails(te_graph_forward(g, 0, st, NULL), -TE_ESTATE, "forward of callable 1 (high");
		DO(te_graph_forward(g, 1, st, NULL));
		DO(te_graph_backward(g, 1, st, NULL));
		fails(te_graph_backward_dw(g, 1, st, NULL), -TE_ESTATE,
		      "backward of callable 0 (low, chunk 1, micro-batch 1) is due, not "
		      "backward_dw of callable 1 (high)");
		if (i) {
			DO(te_graph_rewind(g));
			DO(te_graph_forward(g, 0, st, NULL));
		} else {
			DO(te_graph_backward(g, 0, st, NULL));
		}
	}
	fails(te_graph_forward(g, 2, st, NULL), -EINVAL, "callable 2 of 2");
	fails(te_graph_forward(g, -1, st, NULL), -EINVAL, "callable -1 of 2");
	fails(te_graph_forward(NULL, 0, st, NULL), -EINVAL, "graph is NULL");
	fails(te_graph_forward(g, 0, NULL, NULL), -EINVAL, "stream is NULL");
	fails(te_graph_run(g, st), -TE_ESTATE, "nothing joins the callables");
	DO(te_graph_reset(g));
	DO(te_graph_reset(g));
	fails(te_graph_forward(g, 0, st, NULL), -TE_ESTATE, "has been reset");
	ck_assert_ptr_null(te_graph_tensor(g, 0, "x"));
	ck_assert_int_eq(a[0].released + a[1].released, 0);
	te_graph_unref(g);
	ck_assert_int_eq(a[0].released, 1);
	ck_assert_int_eq(a[1].released, 1);
}
END_TEST

START_TEST(arguments_are_refused_by_name)
{
	struct axpy a = { .w = NULL };
	struct te_callable c = axpy(&a, "only");
	struct te_tensor *x = filled(1), *dy = filled(100), *wrong, *typed, *pos[2] = { x, x };
	const int64_t shape[] = { 5, 3 };
	struct te_named named[2] = { { "x", x }, { "x", x } };
	struct te_replay r = TE_REPLAY_INIT;
	struct te_graph *g;

	DO(te_tensor_create(ctx, TE_DTYPE_FP32, 2, shape, NULL, &wrong));
	DO(te_tensor_create(ctx, TE_DTYPE_INT32, 2, axpy_in[0].spec.shape, NULL, &typed));
	DO(te_graph_create(ctx, 1, &c, NULL, &g));
	fails(te_graph_forward(g, 0, st, &r), -EINVAL,
	      "the input x of only was captured and is not given");
	r.npos = 2;
	r.pos = pos;
	fails(te_graph_forward(g, 0, st, &r), -EINVAL, "2 arguments by position, only takes 1");
	r.npos = 1;
	r.nnamed = 1;
	r.named = named;
	fails(te_graph_forward(g, 0, st, &r), -EINVAL,
	      "x of only is given by position and by name");
	r.npos = 0;
	r.nnamed = 2;
	fails(te_graph_forward(g, 0, st, &r), -EINVAL, "x of only is given twice");
	named[1].name = "mask";
	fails(te_graph_forward(g, 0, st, &r), -EINVAL, "only has no input mask");
	named[1].name = NULL;
	fails(te_graph_forward(g, 0, st, &r), -EINVAL, "argument 1 by name has none");
	r.nnamed = 1;
	named[0].tensor = wrong;
	fails(te_graph_forward(g, 0, st, &r), -TE_ESHAPE,
	      "x of only is [5,3] fp32, captured was [3,5] fp32");
	named[0].tensor = typed;
	fails(te_graph_forward(g, 0, st, &r), -TE_EDTYPE,
	      "x of only is [3,5] int32, captured was [3,5] fp32");
	named[0].tensor = NULL;
	fails(te_graph_forward(g, 0, st, &r), -EINVAL, "x of only was captured and is not given");
	named[0].tensor = x;
	r.nkept = 1;
	r.kept = named;
	fails(te_graph_forward(g, 0, st, &r), -EINVAL, "only backward has gradients to keep");
	r.nkept = 0;
	r.size--;
	fails(te_graph_forward(g, 0, st, &r), -EINVAL, "TE_REPLAY_INIT");
	r.size++;
	/* nothing of all this has used up a step */
	DO(te_graph_forward(g, 0, st, &r));
	fails(te_graph_backward(g, 0, st, &r), -EINVAL, "only has no output gradient x");
	named[0] = (struct te_named){ "y", dy };
	DO(te_graph_backward(g, 0, st, &r));
	ck_assert(first_of(te_graph_tensor(g, 0, "y")) == 1);
	ck_assert(first_of(te_graph_grad(g, 0, "x")) == 1);
	ck_assert(first_of(te_graph_grad(g, 0, "y")) == 100);
	te_graph_unref(g);
	te_tensor_unref(x);
	te_tensor_unref(dy);
	te_tensor_unref(wrong);
	te_tensor_unref(typed);
}
END_TEST

/* what replay n gave stays as it is when replay n + 1 has run, if it was asked to be kept */
START_TEST(kept_gradients_are_the_callers)
{
	struct axpy a = { .w = NULL };
	struct te_callable c = axpy(&a, "only");
	struct te_tensor *kept = filled(0), *alias, *x[2] = { filled(7), filled(9) };
	struct te_named keep = { "x", kept };
	struct te_graph *g;

	DO(te_graph_create(ctx, 1, &c, NULL, &g));
	alias = te_graph_grad(g, 0, "x");
	for (int i = 0; i < 2; i++) {
		struct te_replay f = TE_REPLAY_INIT, b = TE_REPLAY_INIT;

		f.npos = b.npos = 1;
		f.pos = b.pos = &x[i];
		b.nkept = !i;
		b.kept = &keep;
		DO(te_graph_forward(g, 0, st, &f));
		DO(te_graph_backward(g, 0, st, &b));
	}
	ck_assert(first_of(kept) == 7);
	ck_assert(first_of(alias) == 9);
	te_graph_unref(g);
	te_tensor_unref(kept);
	te_tensor_unref(x[0]);
	te_tensor_unref(x[1]);
}
END_TEST

/* ---- warm-up leaves no trace ---- */

struct log {
	char text[512];
	size_t n;
	int fail_at;
};

static int note(void *arg, enum te_hook hook, int32_t callable, struct te_stream *stream)
{
	static const char *const name[] = { "(", ")", "f", "F", "b", "B" };
	struct log *log = arg;

	ck_assert_ptr_nonnull(stream);
	if (log->fail_at && !--log->fail_at)
		return -ECANCELED;
	log->n +=
		(size_t)snprintf(log->text + log->n, sizeof(log->text) - log->n, "%s", name[hook]);
	if (callable >= 0)
		log->n += (size_t)snprintf(log->text + log->n, sizeof(log->text) - log->n, "%d",
					   (int)callable);
	return 0;
}

START_TEST(hooks_run_in_this_order)
{
	struct axpy a[2] = { { .w = NULL }, { .w = NULL } };
	struct te_callable c[2] = { axpy(&a[0], "low"), axpy(&a[1], "high") };
	struct te_graph_opts o = TE_GRAPH_OPTS_INIT;
	struct log log = { "", 0, 0 };
	struct te_graph *g;

	o.hook = note;
	o.arg = &log;
	o.nwarmup = 2;
	DO(te_graph_create(ctx, 2, c, &o, &g));
	ck_assert_str_eq(log.text, "(f0F0f1F1b1B1b0B0f0F0f1F1b1B1b0B0)f0F0f1F1b1B1b0B0");
	ck_assert_int_eq(a[0].ncalls, 6);
	DO(te_graph_forward(g, 0, st, NULL));
	DO(te_graph_forward(g, 1, st, NULL));
	DO(te_graph_backward(g, 1, st, NULL));
	DO(te_graph_backward(g, 0, st, NULL));
	DO(te_stream_sync(st));
	ck_assert_int_eq((int)strlen(log.text), 50);
	ck_assert_int_eq(a[0].ncalls, 6); /* nor do functions run at replay */
	te_graph_unref(g);
	log = (struct log){ "", 0, 0 };
	o.flags = TE_GRAPH_WHOLE | TE_GRAPH_CHAIN;
	o.nwarmup = 1;
	DO(te_graph_create(ctx, 2, c, &o, &g));
	ck_assert_str_eq(log.text, "(f0F0f1F1b1B1b0B0)");
	te_graph_unref(g);
}
END_TEST

/* a failure in whatever call leaves the regions, and says which call it was */
START_TEST(a_failed_capture_leaves_nothing)
{
	struct te_mem_info before = TE_MEM_INFO_INIT, after = TE_MEM_INFO_INIT;
	const float five = 5, six = 6;
	struct axpy a[2] = { { .w = NULL }, { .w = NULL } };
	void *w, *dw;

	DO(te_mem_alloc(st, sizeof(float), &w));
	DO(te_mem_alloc(st, sizeof(float), &dw));
	a[0].w = w;
	a[0].dw = dw;
	for (int fail = 1; fail <= 8; fail++)
		for (int whole = 0; whole < 2; whole++) {
			struct te_callable c[2] = { axpy(&a[0], "low"), axpy(&a[1], "high") };
			struct te_graph_opts o = TE_GRAPH_OPTS_INIT;
			struct te_graph *g = NULL;
			int r;

			DO(te_copy(st, w, &five, sizeof(five)));
			DO(te_copy(st, dw, &six, sizeof(six)));
			DO(te_ctx_sync(ctx));
			DO(te_ctx_mem_info(ctx, &before));
			o.nwarmup = 3;
			o.flags = TE_GRAPH_CHAIN | (whole ? TE_GRAPH_WHOLE : 0);
			a[0].fail_at = fail;
			a[0].silent = fail % 2;
			r = te_graph_create(ctx, 2, c, &o, &g);
			ck_assert_int_eq(r, -EIO);
			tt_said(fail <= 6 ? "warm-up of" : "capture of");
			tt_said(fail % 2 ? "forward of low (chunk 1, micro-batch 1)" :
					   "backward of low (chunk 1, micro-batch 1)");
			tt_said(fail % 2 ? te_strerror(-EIO) : "stream is NULL");
			ck_assert_ptr_null(g);
			ck_assert_int_eq(a[0].released, 0);
			ck_assert(word_of(w) == 5 && word_of(dw) == 6);
			DO(te_ctx_sync(ctx));
			DO(te_ctx_mem_info(ctx, &after));
			ck_assert_uint_eq(before.used_nbytes, after.used_nbytes);
			ck_assert_uint_eq(before.pinned_nbytes, after.pinned_nbytes);
		}
	a[0].fail_at = 0;
	DO(te_mem_free(st, w));
	DO(te_mem_free(st, dw));
}
END_TEST

START_TEST(warm_up_leaves_regions_as_they_were)
{
	const float five = 5, six = 6;
	struct axpy a = { .w = NULL };
	struct te_callable c = axpy(&a, "only");
	struct te_tensor *x = filled(3);
	struct te_replay r = TE_REPLAY_INIT;
	struct te_graph *g;
	void *w, *dw;

	DO(te_mem_alloc(st, sizeof(float), &w));
	DO(te_mem_alloc(st, sizeof(float), &dw));
	a.w = w;
	a.dw = dw;
	DO(te_copy(st, w, &five, sizeof(five)));
	DO(te_copy(st, dw, &six, sizeof(six)));
	DO(te_graph_create(ctx, 1, &c, NULL, &g));
	ck_assert(word_of(w) == 5 && word_of(dw) == 6);
	r.npos = 1;
	r.pos = &x;
	DO(te_graph_forward(g, 0, st, &r));
	ck_assert(word_of(w) == 3 && word_of(dw) == 6);
	te_graph_unref(g);
	te_tensor_unref(x);
	DO(te_mem_free(st, w));
	DO(te_mem_free(st, dw));
}
END_TEST

static int no_regions(void *self, te_region_fn fn, void *arg)
{
	(void)fn;
	(void)arg;
	((struct axpy *)self)->ncalls++;
	return -EIO;
}

/* what nothing runs or hooks could change is not copied: weights and moments are large */
START_TEST(regions_are_kept_only_where_something_runs)
{
	struct axpy a = { .w = NULL };
	struct te_callable c = axpy(&a, "low");
	struct te_graph_opts o = TE_GRAPH_OPTS_INIT;
	struct te_graph *g;

	c.regions = no_regions;
	o.flags = TE_GRAPH_EAGER;
	for (int i = 0; i < 3; i++) {
		o.nwarmup = i == 0;
		o.hook = i == 1 ? no_hook : NULL;
		o.flags = i == 2 ? 0 : TE_GRAPH_EAGER;
		ck_assert_int_eq(te_graph_create(ctx, 1, &c, &o, &g), -EIO);
	}
	ck_assert_int_eq(a.ncalls, 3);
	o.flags = TE_GRAPH_EAGER;
	DO(te_graph_create(ctx, 1, &c, &o, &g));
	ck_assert_int_eq(a.ncalls, 3);
	te_graph_unref(g);
}
END_TEST

/* the trap: the optimizer must find the gradients of the second and third step where it looked
 * for those of the first */
START_TEST(gradients_stay_where_the_optimizer_reads_them)
{
	struct run r, *all[] = { &r };
	const void *where;

	run_create(&r, &llama, "bf16", &layouts[0], TE_GRAPH_WHOLE);
	where = te_tensor_data(te_seq_grads(r.seq));
	for (int step = 0; step < 3; step++) {
		float *before = tt_tensor_get(te_seq_masters(r.seq)), *after, *grads;
		int64_t moved = 0, n = te_tensor_nelems(te_seq_masters(r.seq));
		double norm = 0;

		feed(all, 1, &llama);
		DO(te_graph_run(r.g, st));
		DO(te_stream_sync(st));
		after = tt_tensor_get(te_seq_masters(r.seq));
		grads = tt_tensor_get(te_seq_grads(r.seq));
		for (int64_t i = 0; i < n; i++) {
			moved += before[i] != after[i];
			norm += (double)grads[i] * grads[i];
		}
		/* a stale buffer would be zero, a doubled one grow with the steps */
		ck_assert_ptr_eq(where, te_tensor_data(te_seq_grads(r.seq)));
		ck_assert_int_gt(moved, n / 4);
		ck_assert(norm > 1e-6 && norm < 1e6);
		free(before);
		free(after);
		free(grads);
	}
	run_destroy(&r);
}
END_TEST

/* ---- refusals of te_graph_create ---- */

static void refused(int32_t n, const struct te_callable *c, const struct te_graph_opts *o, int code,
		    const char *text)
{
	struct te_graph *g = NULL;

	fails(te_graph_create(ctx, n, c, o, &g), code, text);
	ck_assert_ptr_null(g);
}

START_TEST(what_does_not_fit_is_named)
{
	static const struct te_arg narrow[] = {
		{ "x", { TE_DTYPE_FP32, 2, { 3, 4 } }, TE_ARG_GRAD },
	};
	static const struct te_arg plain[] = { { "x", { TE_DTYPE_FP32, 2, { 3, 5 } }, 0 } };
	static const struct te_arg twice[] = {
		{ "x", { TE_DTYPE_FP32, 1, { 3 } }, 0 },
		{ "x", { TE_DTYPE_FP32, 1, { 3 } }, 0 },
	};
	static const struct te_arg flat[] = { { "x", { TE_DTYPE_FP32, 2, { 3, 0 } }, 0 } };
	static const struct te_arg unnamed[] = { { NULL, { TE_DTYPE_FP32, 1, { 3 } }, 0 } };
	struct axpy a[2] = { { .w = NULL }, { .w = NULL } };
	struct te_callable c[2] = { axpy(&a[0], "low"), axpy(&a[1], "high") }, good = c[1];
	struct te_graph_opts o = TE_GRAPH_OPTS_INIT, clean = o;
	struct te_schedule_opts so = TE_SCHEDULE_OPTS_INIT;
	struct te_schedule *w;

	so.nmicro = 2;
	so.flags = TE_SCHED_DELAY_W;
	DO(te_schedule_create(&so, &w));
	refused(0, c, NULL, -EINVAL, "no callables");
	o.size--;
	refused(2, c, &o, -EINVAL, "TE_GRAPH_OPTS_INIT");
	o = clean;
	o.flags = 1u << 30;
	refused(2, c, &o, -EINVAL, "unknown flags 0x40000000");
	o = clean;
	o.nwarmup = -1;
	refused(2, c, &o, -EINVAL, "-1 runs of warm-up");
	o = clean;
	o.flags = TE_GRAPH_RETAIN;
	refused(2, c, &o, -EINVAL, "low cannot run backward twice");
	o = clean;
	o.schedule = w;
	refused(1, c, &o, -EINVAL, "1 callables, the schedule has 2");
	refused(2, c, &o, -EINVAL, "no callable there has a backward_dw");
	o.schedule = NULL;
	o.flags = TE_GRAPH_CHAIN;
	c[1].in = narrow;
	refused(2, c, &o, -TE_ESHAPE, "low gives y [3,5] fp32, high takes x [3,4] fp32");
	c[1].in = plain;
	refused(2, c, &o, -EINVAL, "low reads a gradient of y, high does not write one of x");
	c[1] = good;
	c[1].in = twice;
	c[1].nin = 2;
	refused(2, c, NULL, -EINVAL, "high has two arguments named x");
	c[1] = good;
	c[1].in = flat;
	refused(2, c, NULL, -TE_ESHAPE, "x of high: extent 1 is 0");
	c[1].in = unnamed;
	refused(2, c, NULL, -EINVAL, "input 0 of high has no name");
	c[1] = good;
	c[1].forward = NULL;
	refused(2, c, NULL, -EINVAL, "high has no forward function");
	c[1] = good;
	c[1].backward = NULL;
	refused(2, c, NULL, -EINVAL, "high has no backward function");
	c[1] = good;
	c[1].size = 0;
	refused(2, c, NULL, -EINVAL, "callable 1 is not initialised");
	ck_assert_int_eq(a[0].ncalls + a[1].ncalls + a[0].released + a[1].released, 0);
	te_schedule_unref(w);
}
END_TEST

START_TEST(inference_needs_no_backward)
{
	struct axpy a[2] = { { .w = NULL }, { .w = NULL } };
	struct te_callable c[2] = { axpy(&a[0], "low"), axpy(&a[1], "high") };
	struct te_graph_opts o = TE_GRAPH_OPTS_INIT;
	struct te_tensor *x = filled(4);
	struct te_graph *g;

	c[0].backward = c[1].backward = NULL;
	o.flags = TE_GRAPH_CHAIN | TE_GRAPH_REUSE;
	DO(te_graph_create(ctx, 2, c, &o, &g));
	ck_assert_ptr_null(te_graph_grad(g, 0, "x"));
	ck_assert_ptr_eq(te_tensor_data(te_graph_tensor(g, 0, "y")),
			 te_tensor_data(te_graph_tensor(g, 1, "x")));
	DO(te_copy(st, te_tensor_data(te_graph_tensor(g, 0, "x")), te_tensor_data(x),
		   te_tensor_nbytes(x)));
	DO(te_graph_run(g, st));
	ck_assert(first_of(te_graph_tensor(g, 1, "y")) == 4);
	fails(te_graph_backward(g, 1, st, NULL), -TE_ESTATE, "forward of callable 0");
	te_graph_unref(g);
	te_tensor_unref(x);
}
END_TEST

/* what the next callable has read is no longer there: two outputs of eight at a time */
START_TEST(a_chain_of_inference_takes_two_buffers)
{
	struct te_graph_report rep = TE_GRAPH_REPORT_INIT;
	struct te_graph_opts o = TE_GRAPH_OPTS_INIT;
	struct axpy a[8] = { { .w = NULL } };
	struct te_tensor *x = filled(4);
	struct te_callable c[8];
	struct te_graph *g;

	for (int i = 0; i < 8; i++) {
		c[i] = axpy(&a[i], "layer");
		c[i].backward = NULL;
		c[i].saved_nbytes = 1; /* unused; of 256 bytes in the pool */
		c[i].forward = copy_forward;
	}
	for (int i = 0; i < 4; i++) {
		o.flags = TE_GRAPH_CHAIN | (i & 1 ? TE_GRAPH_WHOLE : 0) |
			  (i & 2 ? TE_GRAPH_REUSE : 0);
		DO(te_graph_create(ctx, 8, c, &o, &g));
		DO(te_graph_report(g, &rep));
		ck_assert_uint_eq(rep.peak_nbytes, (uint64_t)256 * (i & 2 ? 3 : 9 + 8));
		DO(te_copy(st, te_tensor_data(te_graph_tensor(g, 0, "x")), te_tensor_data(x),
			   te_tensor_nbytes(x)));
		DO(te_graph_run(g, st));
		ck_assert(first_of(te_graph_tensor(g, 7, "y")) == 4);
		te_graph_unref(g);
	}
	te_tensor_unref(x);
}
END_TEST

START_TEST(retained_backward_may_run_again)
{
	struct axpy a = { .w = NULL };
	struct te_callable c = axpy(&a, "only");
	struct te_graph_opts o = TE_GRAPH_OPTS_INIT;
	struct te_tensor *x = filled(8);
	struct te_replay rep = TE_REPLAY_INIT;
	struct te_graph *g;

	c.flags = TE_CALLABLE_RETAINS;
	o.flags = TE_GRAPH_RETAIN;
	DO(te_graph_create(ctx, 1, &c, &o, &g));
	fails(te_graph_backward(g, 0, st, NULL), -TE_ESTATE, "forward of callable 0");
	rep.npos = 1;
	rep.pos = &x;
	DO(te_graph_forward(g, 0, st, &rep));
	for (int i = 0; i < 3; i++) {
		struct te_tensor *dx = te_graph_grad(g, 0, "x");

		DO(te_fill(st, te_tensor_data(dx), 0xff, te_tensor_nbytes(dx)));
		DO(te_graph_backward(g, 0, st, NULL));
		ck_assert(first_of(dx) == 8);
	}
	DO(te_graph_forward(g, 0, st, &rep));
	fails(te_graph_forward(g, 0, st, &rep), -TE_ESTATE, "backward of callable 0");
	te_graph_unref(g);
	te_tensor_unref(x);
}
END_TEST

/* ---- streams and threads ---- */

/* y = x, then the event, then work that ends only when the gate opens */
static int gate_forward(void *self, const struct te_graph_call *c)
{
	struct te_event *mid = self;
	int r = te_copy(c->stream, te_tensor_data(c->out[0]), te_tensor_data(c->in[0]),
			te_tensor_nbytes(c->in[0]));

	if (!r)
		r = te_event_record_external(mid, c->stream);
	return r ? r : te_host_call(c->stream, tt_gate_wait, NULL, 0);
}

START_TEST(trailing_work_outlives_the_wait)
{
	struct te_event *mid;
	struct axpy unused = { .w = NULL };
	struct te_callable c = axpy(&unused, "gate");
	struct te_tensor *x = filled(6);
	struct te_replay rep = TE_REPLAY_INIT;
	struct te_stream *side;
	struct te_graph *g;

	DO(te_event_create(ctx, &mid));
	DO(te_stream_create(ctx, &side));
	c.self = mid;
	c.forward = gate_forward;
	c.backward = NULL;
	c.regions = NULL;
	c.release = NULL;
	DO(te_graph_create(ctx, 1, &c, NULL, &g));
	rep.npos = 1;
	rep.pos = &x;
	rep.side = side;
	rep.until = mid;
	for (int i = 0; i < 2; i++) {
		tt_gate_close();
		DO(te_graph_forward(g, 0, st, &rep));
		/* the stream goes on though the replay has not ended */
		DO(te_stream_sync(st));
		ck_assert_int_eq(te_stream_query(side), 0);
		ck_assert(first_of(te_graph_tensor(g, 0, "y")) == 6);
		tt_gate_open();
		DO(te_stream_sync(side));
		ck_assert(!tt_gate_timed_out());
	}
	/* without the event the stream waits for all of it */
	rep.until = NULL;
	DO(te_graph_forward(g, 0, st, &rep));
	DO(te_stream_sync(st));
	ck_assert_int_eq(te_stream_query(side), 1);
	rep.side = NULL;
	rep.until = mid;
	fails(te_graph_forward(g, 0, st, &rep), -EINVAL, "until without a side stream");
	/* a graph whose last replay trails can go: its memory does not before that has ended */
	rep.side = side;
	tt_gate_close();
	DO(te_graph_forward(g, 0, st, &rep));
	tt_gate_open();
	te_graph_unref(g);
	DO(te_ctx_sync(ctx));
	te_event_unref(mid);
	te_stream_unref(side);
	te_tensor_unref(x);
}
END_TEST

struct worker {
	pthread_t thread;
	float base;
	int r; /* the first code that was not 0 */
	int wrong;
};

/* a graph of one's own, made, replayed and dropped while others do the same */
static void *work(void *arg)
{
	struct worker *w = arg;
	const int64_t shape[] = { 3, 5 };
	struct te_stream *stream = NULL;
	struct te_tensor *x = NULL;

	w->r = te_stream_create(ctx, &stream);
	if (!w->r)
		w->r = te_tensor_create(ctx, TE_DTYPE_FP32, 2, shape, NULL, &x);
	for (int i = 0; i < 5 && !w->r; i++) {
		struct axpy a[2] = { { .w = NULL }, { .w = NULL } };
		struct te_callable c[2] = { axpy(&a[0], "low"), axpy(&a[1], "high") };
		struct te_graph_opts o = TE_GRAPH_OPTS_INIT;
		struct te_graph *g = NULL;
		float v[15], got[15];

		o.flags = TE_GRAPH_CHAIN | (i % 2 ? TE_GRAPH_WHOLE : 0);
		w->r = te_graph_create(ctx, 2, c, &o, &g);
		for (int k = 0; k < 20 && !w->r; k++) {
			for (int j = 0; j < 15; j++)
				v[j] = w->base + (float)(j + k);
			w->r = te_copy(stream, te_tensor_data(te_graph_tensor(g, 0, "x")), v,
				       sizeof(v));
			if (!w->r)
				w->r = te_graph_run(g, stream);
			if (!w->r)
				w->r = te_copy(stream, got,
					       te_tensor_data(te_graph_tensor(g, 1, "y")),
					       sizeof(got));
			if (!w->r)
				w->r = te_stream_sync(stream);
			w->wrong += !w->r && memcmp(v, got, sizeof(v)) != 0;
		}
		te_graph_unref(g);
	}
	te_tensor_unref(x);
	te_stream_unref(stream);
	return NULL;
}

START_TEST(threads_have_graphs_of_their_own)
{
	struct worker w[4];

	for (int i = 0; i < 4; i++) {
		w[i] = (struct worker){ .base = (float)(1000 * i) };
		ck_assert_int_eq(pthread_create(&w[i].thread, NULL, work, &w[i]), 0);
	}
	for (int i = 0; i < 4; i++) {
		pthread_join(w[i].thread, NULL);
		ck_assert_int_eq(w[i].r, 0);
		ck_assert_int_eq(w[i].wrong, 0);
	}
}
END_TEST

/* ---- memory and numbers ---- */

START_TEST(buffers_are_reused_and_reported)
{
	struct te_graph_report all = TE_GRAPH_REPORT_INIT, few = TE_GRAPH_REPORT_INIT;
	struct te_mem_info before = TE_MEM_INFO_INIT, after = TE_MEM_INFO_INIT;
	struct run a, b, *one[] = { &a };
	uint64_t work;
	char *text;

	DO(te_ctx_mem_info(ctx, &before));
	work = before.workspace_nbytes;
	run_create(&a, &llama, "bf16", &layouts[1], 0);
	DO(te_ctx_mem_info(ctx, &before));
	ck_assert_uint_eq(before.workspace_nbytes, work); /* passes share one, in the pool */
	DO(te_graph_report(a.g, &all));
	feed(one, 1, &llama);
	for (int i = 0; i < 3; i++)
		DO(te_graph_run(a.g, st));
	DO(te_ctx_sync(ctx));
	DO(te_ctx_mem_info(ctx, &after));
	ck_assert_uint_eq(before.nallocs, after.nallocs);
	DO(te_graph_report(a.g, &all));
	ck_assert_int_eq(all.ncallables, 9);
	ck_assert_int_eq(all.nsteps, 18);
	ck_assert_uint_eq(all.nrecordings, 18);
	ck_assert_uint_eq(all.nlaunches, 54);
	ck_assert_uint_gt(all.nkernels, 100);
	ck_assert_uint_ge(all.nnodes, all.nkernels + all.nfills + all.ncopies);
	ck_assert(all.launch_us > 0 && all.launch_max_us >= all.launch_us);
	ck_assert_uint_eq(all.sum_nbytes,
			  all.in_nbytes + all.out_nbytes + all.grad_nbytes + all.saved_nbytes);
	ck_assert_uint_ge(all.peak_nbytes, all.sum_nbytes);
	run_create(&b, &llama, "bf16", &layouts[1], TE_GRAPH_REUSE);
	DO(te_graph_report(b.g, &few));
	ck_assert_uint_eq(few.sum_nbytes, all.sum_nbytes);
	/* two of three micro-batches are in flight at most */
	ck_assert_uint_lt(few.peak_nbytes, all.peak_nbytes * 3 / 4);
	DO(te_graph_json(b.g, &text));
	ck_assert_ptr_nonnull(strstr(text, "\"pass\": \"backward\", \"callable\": 8, \"name\": "
					   "\"part 2\", \"chunk\": 1, \"micro_batch\": 2"));
	free(text);
	run_destroy(&a);
	run_destroy(&b);
}
END_TEST

START_TEST(a_thousand_graphs_leave_nothing)
{
	struct te_mem_info before = TE_MEM_INFO_INIT, after = TE_MEM_INFO_INIT;
	struct axpy a[2] = { { .w = NULL }, { .w = NULL } };
	struct te_callable c[2] = { axpy(&a[0], "low"), axpy(&a[1], "high") };

	DO(te_ctx_sync(ctx));
	DO(te_ctx_mem_info(ctx, &before));
	for (int i = 0; i < 1000; i++) {
		struct te_graph_opts o = TE_GRAPH_OPTS_INIT;
		struct te_graph *g;

		o.flags = TE_GRAPH_CHAIN | (i % 2 ? TE_GRAPH_WHOLE : 0);
		o.nwarmup = 1;
		DO(te_graph_create(ctx, 2, c, &o, &g));
		DO(te_graph_run(g, st));
		if (i % 3)
			DO(te_graph_reset(g));
		te_graph_unref(g);
	}
	DO(te_ctx_sync(ctx));
	DO(te_ctx_mem_info(ctx, &after));
	ck_assert_uint_eq(before.used_nbytes, after.used_nbytes);
	ck_assert_uint_eq(before.pinned_nbytes, after.pinned_nbytes);
	ck_assert_int_eq(a[0].released, 1000);
}
END_TEST

static int graph_once(void)
{
	struct te_graph_opts o = TE_GRAPH_OPTS_INIT;
	struct axpy a[2] = { { .w = NULL }, { .w = NULL } };
	struct te_callable c[2] = { axpy(&a[0], "low"), axpy(&a[1], "high") };
	struct te_graph *g = NULL;
	struct te_ctx *own = NULL;
	char *text = NULL;
	int r;

	o.flags = TE_GRAPH_CHAIN | TE_GRAPH_CACHE_WEIGHTS;
	o.nwarmup = 1;
	r = tt_ctx_new(&own);
	if (!r)
		r = te_graph_create(own, 2, c, &o, &g);
	if (!r)
		r = te_graph_run(g, te_ctx_stream(own));
	if (!r)
		r = te_stream_sync(te_ctx_stream(own));
	if (!r)
		r = te_graph_json(g, &text);
	free(text);
	te_graph_unref(g);
	te_ctx_unref(own);
	return r;
}

START_TEST(survives_every_fault)
{
	ck_assert_int_gt(tt_fault_each(graph_once), 40);
}
END_TEST

Suite *graph_suite(const char *name, const char *on)
{
	Suite *s = suite_create(name);
	TCase *c = tt_case(s, "bits", "graph numeric");

	backend = on;
	tcase_add_checked_fixture(c, tt_setup, tt_teardown);
	tcase_add_loop_test(c, every_way_gives_the_same_bits, 0, 4 * TT_LEN(layouts));
	tcase_add_loop_test(c, cached_weights_give_the_same_bits, 0, 3);
	tcase_add_loop_test(c, micro_batches_in_turn_share_a_plan, 0, 4);
	tcase_add_loop_test(c, micro_batches_at_once_cannot_share_a_plan, 0, 2);
	tcase_add_test(c, passes_one_by_one_give_the_same_bits);
	tcase_add_test(c, gradients_stay_where_the_optimizer_reads_them);
	c = tt_case(s, "replay", "graph");
	tcase_add_checked_fixture(c, tt_setup, tt_teardown);
	tcase_add_test(c, replays_only_in_order);
	tcase_add_test(c, arguments_are_refused_by_name);
	tcase_add_test(c, kept_gradients_are_the_callers);
	tcase_add_test(c, inference_needs_no_backward);
	tcase_add_test(c, a_chain_of_inference_takes_two_buffers);
	tcase_add_test(c, retained_backward_may_run_again);
	tcase_add_test(c, trailing_work_outlives_the_wait);
	tcase_add_test(c, threads_have_graphs_of_their_own);
	c = tt_case(s, "capture", "graph");
	tcase_add_checked_fixture(c, tt_setup, tt_teardown);
	tcase_add_test(c, hooks_run_in_this_order);
	tcase_add_test(c, a_failed_capture_leaves_nothing);
	tcase_add_test(c, warm_up_leaves_regions_as_they_were);
	tcase_add_test(c, regions_are_kept_only_where_something_runs);
	tcase_add_test(c, what_does_not_fit_is_named);
	c = tt_case(s, "memory", "graph memory");
	tcase_add_checked_fixture(c, tt_setup, tt_teardown);
	tcase_add_test(c, buffers_are_reused_and_reported);
	tcase_add_test(c, a_thousand_graphs_leave_nothing);
	c = tt_case(s, "faults", "fault");
	tcase_add_test(c, survives_every_fault);
	return s;
}
