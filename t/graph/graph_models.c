/*
 * t/graph/graph_models.c - models as graphs of parts: every way to run them gives the bits of eager
 * runs, and their memory is reused, reported and given back.
 */
#include "config.h"

#include <stddef.h>

#include <te/errno.h>
#include <te/optim.h>

#include "graph_lib.h"
#include "t/plan/plan_model.h"
#include "tt_num.h"

static const struct model_shape gpt = { 48, 32, 2, 16, 4, 4, 2, 0.2f, 0 };
static const struct model_shape llama = { 48, 32, 2, 16, 4, 2, 2, 0, 1 };
/* without dropout: callables around those of plans are user-defined, and draw other numbers */
static const struct model_shape gpt_plain = { 48, 32, 2, 16, 4, 4, 2, 0, 0 };
static const char *const recipes[] = { "fp32", "bf16", "fp8-delayed", "fp8-current", "fp8-block" };
#define NRECIPES ((int)TT_LEN(recipes))

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
static enum {
	PLAIN,
	OLDER,	  /* callables of a program that knows no spans */
	POISONED, /* that overwrite memory whose contents no later pass may need */
} style;

/* ---- callables that overwrite memory ---- */

struct poisoner {
	struct te_callable c;
	struct te_plan *plan;
};

static int fill(const struct te_graph_call *call, int span, size_t at, size_t nbytes)
{
	return nbytes ? te_fill(call->stream, (char *)call->span[span] + at, 0xff, nbytes) : 0;
}

/* what te_plan_saved does not list */
static int fill_unlisted(const struct poisoner *p, const struct te_graph_call *call, int span)
{
	struct te_plan_saved_info info = TE_PLAN_SAVED_INFO_INIT;
	const size_t n = p->c.span_nbytes[span];
	char *listed = calloc(1, n + 1);
	int r = 0;

	for (int k = 0; !te_plan_saved(p->plan, k, &info); k++)
		if ((int)info.span == span)
			memset(listed + info.span_offset, 1, info.nbytes);
	for (size_t at = 0, end; at < n && !r; at = end) {
		for (end = at; end < n && listed[end] == listed[at]; end++)
			;
		r = listed[at] ? 0 : fill(call, span, at, end - at);
	}
	free(listed);
	return r;
}

/* before a pass the memory that it is the first to use; after it what no later pass needs */
static int spoil(const struct poisoner *p, const struct te_graph_call *call, int pass, int after)
{
	static const int first[TE_SPAN_COUNT] = { 0, 1, 2, 0, 0, 1 };
	static const int last[TE_SPAN_COUNT] = { 0, 1, 2, 1, 2, 2 };
	int r = 0;

	for (int s = 0; s < TE_SPAN_COUNT && !r; s++)
		if (pass == (after ? last[s] : first[s]))
			r = fill(call, s, 0, p->c.span_nbytes[s]);
		else if (after && pass == TE_SCHED_F && first[s] == pass)
			r = fill_unlisted(p, call, s);
	return r;
}

static int poisoned_pass(const struct poisoner *p, const struct te_graph_call *call, int pass,
			 te_callable_fn fn)
{
	int r = spoil(p, call, pass, 0);

	if (!r)
		r = fn(p->c.self, call);
	return r ? r : spoil(p, call, pass, 1);
}

static int poisoned_forward(void *self, const struct te_graph_call *call)
{
	const struct poisoner *p = self;

	return poisoned_pass(p, call, TE_SCHED_F, p->c.forward);
}

static int poisoned_backward(void *self, const struct te_graph_call *call)
{
	const struct poisoner *p = self;

	return poisoned_pass(p, call, TE_SCHED_B, p->c.backward);
}

static int poisoned_backward_dw(void *self, const struct te_graph_call *call)
{
	const struct poisoner *p = self;

	return poisoned_pass(p, call, TE_SCHED_W, p->c.backward_dw);
}

static int poisoned_regions(void *self, te_region_fn fn, void *arg)
{
	const struct poisoner *p = self;

	return p->c.regions(p->c.self, fn, arg);
}

static void poisoned_release(void *self)
{
	struct poisoner *p = self;

	p->c.release(p->c.self);
	te_plan_unref(p->plan);
	free(p);
}

static struct te_callable poisoned(struct te_callable c, struct te_plan *plan)
{
	struct poisoner *p = calloc(1, sizeof(*p));

	p->c = c;
	p->plan = te_plan_ref(plan);
	c.self = p;
	c.forward = poisoned_forward;
	c.backward = poisoned_backward;
	c.backward_dw = c.backward_dw ? poisoned_backward_dw : NULL;
	c.regions = poisoned_regions;
	c.release = poisoned_release;
	return c;
}

/* ---- the parts ---- */

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
	const struct te_recipe rec = model_recipe(recipe);
	struct te_plan *plan;
	char name[16];

	o.recipe = &rec;
	o.flags = TE_PLAN_TRAIN | TE_PLAN_EXTERNAL | (p ? TE_PLAN_INPUT_GRAD : 0) |
		  (delay ? TE_PLAN_DELAY_DW : 0);
	o.x = p ? (struct te_spec){ rec.compute, 3, { m->batch, m->seqlen, m->width } } :
		  (struct te_spec){ TE_DTYPE_INT32, 2, { m->batch, m->seqlen } };
	o.start_at = cut[p];
	o.stop_before = cut[p + 1];
	DO(te_plan_create(r->seq, &o, &plan));
	snprintf(name, sizeof(name), "part %d", p);
	if (style == OLDER)
		c.size = offsetof(struct te_callable, span_nbytes);
	DO(te_callable_from_plan(plan, name, &c));
	if (style == POISONED)
		c = poisoned(c, plan);
	te_plan_unref(plan);
	return c;
}

/* in the order of the schedule; returns how many */
static int callables(struct run *r, const struct model_shape *m, const char *recipe,
		     const struct layout *l, struct te_callable c[PARTS * MICRO])
{
	int delay = !strcmp(l->order, "zero-bubble") || strstr(l->order, ".5") != NULL;
	int n = 0, p = 0;

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
	return n;
}

static int run_try(struct run *r, const struct model_shape *m, const char *recipe,
		   const struct layout *l, uint32_t flags)
{
	struct te_schedule_opts so = TE_SCHEDULE_OPTS_INIT;
	struct te_graph_opts o = TE_GRAPH_OPTS_INIT;
	struct te_callable c[PARTS * MICRO];
	int n, ret;

	r->seq = model_create(ctx, m, 3);
	DO(te_adamw_create(r->seq, NULL, &r->opt));
	DO(te_adamw_set_lr(r->opt, st, 1e-2f));
	r->nmicro = l->nmicro;
	n = callables(r, m, recipe, l, c);
	so.nchunks = l->nchunks;
	so.nmicro = l->nmicro;
	so.nlayers = l->nlayers;
	DO(te_schedule_parse(l->order, &so, &o.schedule));
	o.flags = TE_GRAPH_CHAIN | flags;
	o.first = zero;
	o.last = update;
	o.regions = run_regions;
	o.arg = r;
	/* an array of what the program takes for a callable */
	for (int i = 0; i < n && style == OLDER; i++)
		memmove((char *)c + (size_t)i * c[0].size, &c[i], c[0].size);
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

/* three steps of all, whatever the way, with the same bits; then they are gone */
static void same_steps(struct run run[WAYS], const struct model_shape *m)
{
	struct run *all[WAYS];

	for (int w = 0; w < WAYS; w++)
		all[w] = &run[w];
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

CTX_CASE(bits, "graph numeric");

/* three steps of two or three micro-batches, in every layout, recipe and way to run */
TEST_EACH(bits, every_way_gives_the_same_bits, NRECIPES * (int)TT_LEN(layouts), .parts = 3)
{
	const struct layout *l = &layouts[_i / NRECIPES];
	const char *recipe = recipes[_i % NRECIPES];
	const struct model_shape *m = _i % 2 ? &gpt : &llama;
	struct run run[WAYS];

	for (int w = 0; w < WAYS; w++)
		run_create(&run[w], m, recipe, l, ways[w]);
	same_steps(run, m);
}

/* the same where passes overwrite all memory whose contents no later pass of theirs may need, and
 * with memory as a program asks for it that knows no spans */
TEST_EACH(bits, only_what_is_saved_is_needed, NRECIPES * (int)TT_LEN(layouts), .parts = 3)
{
	const struct layout *l = &layouts[_i / NRECIPES];
	const char *recipe = recipes[_i % NRECIPES];
	const struct model_shape *m = _i % 2 ? &llama : &gpt_plain;
	struct run run[WAYS];

	run_create(&run[0], m, recipe, l, ways[0]);
	style = OLDER;
	run_create(&run[1], m, recipe, l, ways[_i % WAYS]);
	style = POISONED;
	for (int w = 2; w < WAYS; w++)
		run_create(&run[w], m, recipe, l, ways[(w + _i) % WAYS]);
	style = PLAIN;
	same_steps(run, m);
}

/* an update to larger batches lays the pool out anew: nothing stays bound to the earlier spans */
TEST_EACH(bits, an_update_has_the_memory_of_a_new_graph, NRECIPES)
{
	static const struct model_shape larger = { 48, 32, 3, 16, 4, 2, 2, 0, 1 };
	const struct layout *l = &layouts[_i % TT_LEN(layouts)];
	const uint32_t flags = ways[_i % WAYS] | TE_GRAPH_REUSE;
	struct te_graph_report rep[2] = { TE_GRAPH_REPORT_INIT, TE_GRAPH_REPORT_INIT };
	struct te_callable c[PARTS * MICRO];
	struct run run[2], *both[2] = { &run[0], &run[1] };

	style = POISONED;
	run_create(&run[0], &llama, recipes[_i], l, flags);
	DO(te_graph_update(run[0].g, callables(&run[0], &larger, recipes[_i], l, c), c, NULL));
	style = PLAIN;
	run_create(&run[1], &larger, recipes[_i], l, flags);
	for (int i = 0; i < 2; i++)
		DO(te_graph_report(run[i].g, &rep[i]));
	ck_assert_uint_eq(rep[0].peak_nbytes, rep[1].peak_nbytes);
	ck_assert_uint_eq(rep[0].scratch_nbytes, rep[1].scratch_nbytes);
	for (int step = 0; step < 2; step++) {
		feed(both, 2, &larger);
		for (int i = 0; i < 2; i++)
			DO(te_graph_run(run[i].g, st));
		DO(te_stream_sync(st));
		same_runs(&run[0], &run[1]);
	}
	for (int i = 0; i < 2; i++)
		run_destroy(&run[i]);
}

/* micro-batches that are never under way at once run on one plan a part */
TEST_EACH(bits, micro_batches_in_turn_share_a_plan, NRECIPES)
{
	static const struct layout turns = { "1,-1,1,-1,1,-1", 1, 3, one_chunk };
	const uint32_t flags = TE_GRAPH_REUSE;
	struct run run[WAYS];

	run_create(&run[0], &gpt, recipes[_i], &turns, flags);
	sharing = 1;
	for (int w = 1; w < WAYS; w++)
		run_create(&run[w], &gpt, recipes[_i], &turns, flags | ways[w - 1]);
	sharing = 0;
	same_steps(run, &gpt);
}

/* two under way on one plan would take each other's memory */
TEST_EACH(bits, micro_batches_at_once_cannot_share_a_plan, 2)
{
	static const struct layout both[] = { { "1,1,-1,-1", 1, 2, one_chunk },
					      { "1,-1,1,-1.5,-1,-1.5", 1, 2, one_chunk } };
	struct run run = { .g = NULL };

	sharing = 1;
	fails(run_try(&run, &gpt, "bf16", &both[_i], _i ? TE_GRAPH_WHOLE : TE_GRAPH_REUSE),
	      -TE_ESTATE,
	      _i ? "backward_dw of part 2 (chunk 1, micro-batch 1): the plan of part 2: another" :
		   "backward of part 2 (chunk 1, micro-batch 1): the plan of part 2: another "
		   "micro-batch began before the end of this one");
	sharing = 0;
	run_destroy(&run);
}

/* the same as te_graph_run, pass by pass with tensors of the caller */
TEST(bits, passes_one_by_one_give_the_same_bits)
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
	run_create(&b, &gpt, "fp8-current", l, TE_GRAPH_REUSE);
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

/* the trap: the optimizer must find the gradients of the second and third step where it looked
 * for those of the first */
TEST(bits, gradients_stay_where_the_optimizer_reads_them)
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

/* ---- memory and numbers ---- */

CTX_CASE(memory, "graph memory");

TEST(memory, buffers_are_reused_and_reported)
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
			  all.in_nbytes + all.out_nbytes + all.grad_nbytes + all.saved_nbytes +
				  all.scratch_nbytes);
	/* scratch alone is shared: the passes run serially */
	ck_assert_uint_gt(all.scratch_nbytes, 0);
	ck_assert_uint_ge(all.peak_nbytes, all.sum_nbytes - all.scratch_nbytes);
	ck_assert_uint_lt(all.peak_nbytes, all.sum_nbytes);
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

TEST(memory, a_thousand_graphs_leave_nothing)
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
