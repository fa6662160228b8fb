/*
 * t/graph/recompute.c - te_op_recompute(3): a step has the same bits whether values are kept
 * or computed again, and takes less memory.
 */
#include "config.h"

#include <te/kernel.h>

#include "libtecore/plan/plan.h"
#include "offload_lib.h"
#include "recompute_cases.h"

static const struct model_shape gpt = { 48, 32, 2, 16, 4, 4, 2, 0.2f, 0 };
static const char *const recipes[] = { "fp32", "bf16", "fp8-delayed", "fp8-current", "fp8-block" };
#define RECIPES ((int)TT_LEN(recipes))
static const char *const everything[] = { "*" };

/* values of a plan with this policy */
static int count(const struct te_plan *p, enum te_policy policy)
{
	struct te_plan_saved_info s = TE_PLAN_SAVED_INFO_INIT;
	int n = 0;

	for (int i = 0; !te_plan_saved(p, i, &s); i++)
		n += s.policy == policy;
	return n;
}

/* ---- steps: each way with some recipe, each recipe with some way ---- */

static void same_bits(int at, const char *pattern)
{
	const struct way *w = &ways[at];
	const char *recipe = recipes[(at + 2) % RECIPES];
	const struct model_shape *m = w->ncuts || at % 2 ? &small : &gpt;
	struct run plain = run_create(m, w, recipe, NULL), run;

	recompute = pattern;
	run = run_create(m, w, recipe, NULL);
	recompute = NULL;
	for (int k = 0; k <= w->ncuts; k++) {
		const int n = count(te_step_plan(run.step, 0, k), TE_POLICY_RECOMPUTE);

		/* the last part has the head */
		ck_assert(n > 0 || (costly && k == w->ncuts));
		ck_assert_int_eq(count(te_step_plan(plain.step, 0, k), TE_POLICY_RECOMPUTE), 0);
	}
	ck_assert_uint_lt(pool_of(&run), pool_of(&plain));
	same_steps(&plain, &run);
	run_destroy(&plain);
	run_destroy(&run);
}

static void setup(void)
{
	tt_setup();
	/* a test that a level refused leaves them */
	recompute = NULL;
	costly = 0;
}

CASE(bits, "graph", .setup = setup, .teardown = tt_teardown);

TEST_EACH(bits, a_step_has_the_bits_of_kept_values, WAYS, .parts = 3)
{
	same_bits(_i, "*");
}

/* linear operations and attention run again, too; the last output of a layer is kept */
TEST_EACH(bits, a_step_that_repeats_layers_has_these_bits, WAYS, .parts = 3)
{
	costly = 1;
	same_bits(_i, "h.*[!2].y");
	costly = 0;
}

/* what is offloaded is not computed again, but what it is computed from may be offloaded */
TEST_EACH(bits, offloaded_inputs_give_the_same_bits, RECIPES, .parts = 3)
{
	const struct way *w = &ways[(2 * _i + 1) % WAYS];
	const char *recipe = recipes[_i];
	const struct te_offload_opts o = _i % 3 ? rates(_i % 3 == 1 ? FAST : SLOW) :
						  through_file(FAST);
	const struct model_shape *m = w->ncuts || _i % 2 ? &small : &gpt;
	struct run plain = run_create(m, w, recipe, NULL), run;
	struct te_plan_saved_info s = TE_PLAN_SAVED_INFO_INIT;
	const struct te_plan *p;
	uint64_t moved = 0;
	int inputs = 0;

	recompute = "*";
	run = run_create(m, w, recipe, &o);
	recompute = NULL;
	p = te_step_plan(run.step, 0, 0);
	ck_assert_int_gt(count(p, TE_POLICY_RECOMPUTE), 0);
	ck_assert_uint_lt(pool_of(&run), pool_of(&plain));
	for (int i = 0; !te_plan_saved(p, i, &s); i++) {
		if (s.policy != TE_POLICY_OFFLOAD)
			continue;
		moved += s.nbytes;
		inputs += !strcmp(s.name, m->llama ? "h.0.up.y" : "h.0.up.b.y") ||
			  !strcmp(s.name, "h.0.add1.y");
	}
	ck_assert(w->ncuts || moved == report_of(run.off).moved_nbytes);
	ck_assert(w->ncuts || _i % 3 == 2 || inputs > 0);
	same_steps(&plain, &run);
	run_destroy(&plain);
	run_destroy(&run);
}

/* ---- plans ---- */

/* the first plan keeps, the second computes again */
struct pair {
	struct te_seq *seq[2];
	struct te_adamw *opt[2];
	struct te_plan *p[2];
};

static struct te_plan *make_plan(struct te_seq *seq, const struct model_shape *m,
				 const char *recipe, uint32_t flags, int nrecompute)
{
	const struct te_recipe rec = model_recipe(recipe);
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_plan *p;

	o.recipe = &rec;
	o.flags = TE_PLAN_TRAIN | flags;
	o.x = (struct te_spec){ TE_DTYPE_INT32, 2, { m->batch, m->seqlen } };
	o.nrecompute = nrecompute;
	o.recompute = everything;
	DO(te_plan_create(seq, &o, &p));
	return p;
}

/* fusion: of the sequences, or NULL */
static struct pair pair_create(const struct model_shape *m, const char *recipe, uint32_t flags,
			       const struct te_fusion *fusion)
{
	struct pair a;

	for (int k = 0; k < 2; k++) {
		a.seq[k] = model_create(ctx, m, 3);
		if (fusion)
			DO(te_seq_add_fusion(a.seq[k], fusion));
		DO(te_adamw_create(a.seq[k], NULL, &a.opt[k]));
		DO(te_adamw_set_lr(a.opt[k], st, 1e-2f));
		a.p[k] = make_plan(a.seq[k], m, recipe, flags, k);
	}
	return a;
}

static void pair_destroy(struct pair *a)
{
	for (int k = 0; k < 2; k++) {
		te_plan_unref(a->p[k]);
		te_adamw_unref(a->opt[k]);
		te_seq_unref(a->seq[k]);
	}
}

static void pair_feed(struct te_plan *const p[2], const struct model_shape *m)
{
	for (int k = 0; k < 2; k++) {
		const size_t n = (size_t)(m->batch * m->seqlen);
		const char *name = k ? "targets" : "x";
		int32_t t[NTOKENS];

		ck_assert_uint_eq(n, NTOKENS);
		for (size_t i = 0; i < n; i++)
			t[i] = (int32_t)tt_rand_int(0, m->vocab - 1);
		for (int i = 0; i < 2; i++)
			DO(te_tensor_write(te_plan_input(p[i], name), t, sizeof(t)));
	}
}

static int by_offset(const void *a, const void *b)
{
	const struct te_plan_saved_info *x = a, *y = b;

	return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* the whole arena but for the values that are kept; they, and it, end at multiples of 256 */
void poison_arena(struct te_plan *p)
{
	struct te_plan_saved_info s[256];
	uint64_t at = 0;
	int n = 0;

	for (int i = 0;; i++) {
		s[n] = (struct te_plan_saved_info)TE_PLAN_SAVED_INFO_INIT;
		if (te_plan_saved(p, i, &s[n]))
			break;
		n += s[n].policy == TE_POLICY_KEEP;
		ck_assert_int_lt(n, (int)TT_LEN(s));
	}
	qsort(s, (size_t)n, sizeof(s[0]), by_offset);
	for (int i = 0; i <= n; i++) {
		const uint64_t end = i < n ? s[i].offset : p->arena_nbytes;

		ck_assert_uint_le(at, end);
		if (end > at)
			DO(te_fill(st, (char *)p->arena + at, 0xff, end - at));
		at = i < n ? end + s[i].nbytes : end;
	}
}

static void pair_same(const struct pair *a)
{
	model_same(te_seq_grads(a->seq[0]), te_seq_grads(a->seq[1]), "gradients");
	model_same(te_seq_masters(a->seq[0]), te_seq_masters(a->seq[1]), "weights");
	model_same_scales(te_seq_quant(a->seq[0]), te_seq_quant(a->seq[1]));
}

static const uint32_t flag_sets[] = { 0, TE_PLAN_NO_FUSION, TE_PLAN_DELAY_DW,
				      TE_PLAN_DELAY_DW | TE_PLAN_NO_FUSION };
#define FLAG_SETS ((int)TT_LEN(flag_sets))

/* nothing but what te_plan_saved() calls kept is read by backward */
TEST_EACH(bits, backward_needs_kept_values_only, 2 * RECIPES, .parts = 6)
{
	const int at = _i % RECIPES;
	const uint32_t flags = flag_sets[at % FLAG_SETS] |
			       (at < _i ? TE_PLAN_RECOMPUTE_COSTLY : 0);
	const struct model_shape *m = at % 2 ? &small : &gpt;
	struct pair a = pair_create(m, recipes[at], flags, NULL);

	ck_assert_int_gt(count(a.p[1], TE_POLICY_RECOMPUTE), 4 * m->nlayers);
	for (int step = 0; step < 2; step++) {
		pair_feed(a.p, m);
		for (int k = 0; k < 2; k++) {
			DO(te_seq_zero_grads(a.seq[k], st));
			DO(te_plan_forward(a.p[k], st, 0));
			poison_arena(a.p[k]);
			DO(te_plan_backward(a.p[k], st));
			if (flags & TE_PLAN_DELAY_DW)
				DO(te_plan_backward_dw(a.p[k], st));
			DO(te_adamw_step(a.opt[k], st));
		}
		DO(te_ctx_sync(ctx));
		pair_same(&a);
	}
	pair_destroy(&a);
}

/* another plan of the sequence updates scales, or overwrites them, between the passes */
TEST_EACH(bits, casts_have_the_scales_of_their_forward_pass, 3)
{
	struct pair a = pair_create(&small, recipes[2 + _i], 0, NULL);
	struct te_plan *between[2];

	for (int k = 0; k < 2; k++)
		between[k] = make_plan(a.seq[k], &small, recipes[2 + _i], 0, k);
	for (int step = 0; step < 2; step++) {
		struct te_plan *const order[] = { a.p[0], between[0], a.p[1], between[1] };

		pair_feed(a.p, &small);
		pair_feed(between, &small);
		for (int k = 0; k < 2; k++) {
			DO(te_seq_zero_grads(a.seq[k], st));
			for (int i = 2 * k; i < 2 * k + 2; i++)
				DO(te_plan_forward(order[i], st, 0));
			for (int i = 2 * k; i < 2 * k + 2; i++)
				DO(te_plan_backward(order[i], st));
			DO(te_adamw_step(a.opt[k], st));
		}
		DO(te_ctx_sync(ctx));
		pair_same(&a);
	}
	for (int k = 0; k < 2; k++)
		te_plan_unref(between[k]);
	pair_destroy(&a);
}

static int nruns, nagain;

/* a norm, and its cast by the quantizers of the call */
static int user_run(const struct te_fused *f)
{
	struct te_kernel_norm_opts o = TE_KERNEL_NORM_OPTS_INIT;
	const struct te_op_call *c = f->part[0], *q = f->part[1];
	const struct te_norm_attrs *a = te_op_attrs(c->op);
	int r;

	nruns++;
	nagain += (q->flags & TE_CALL_REPEAT) != 0;
	ck_assert_uint_eq(c->flags, q->flags);
	o.eps = a->eps;
	r = te_kernel_norm_forward(c->stream, c->x.hp, c->master[0], NULL, c->y.hp, NULL,
				   c->saved[0], &o);
	return r ? r : te_quantize(c->stream, q->y.quant, q->y.slot, q->x.hp, q->y.q, NULL,
				   q->flags & TE_CALL_NO_AMAX ? TE_QUANTIZE_NO_AMAX : 0);
}

TEST_EACH(bits, casts_of_users_have_these_scales_too, 3)
{
	struct te_fusion f = TE_FUSION_INIT;
	struct pair a;

	f.name = "user";
	f.pattern = "rmsnorm quantize";
	f.run = user_run;
	f.keep = 1;
	f.test = "t/graph/recompute";
	f.flags = TE_FUSION_REPEATS;
	a = pair_create(&small, recipes[2 + _i], 0, &f);
	for (int step = 0; step < 2; step++) {
		pair_feed(a.p, &small);
		nruns = nagain = 0;
		for (int k = 0; k < 2; k++) {
			DO(te_seq_zero_grads(a.seq[k], st));
			DO(te_plan_forward(a.p[k], st, 0));
			DO(te_plan_backward(a.p[k], st));
			DO(te_adamw_step(a.opt[k], st));
		}
		ck_assert_int_eq(nruns, 6 * small.nlayers);
		ck_assert_int_eq(nagain, 2 * small.nlayers);
		DO(te_ctx_sync(ctx));
		pair_same(&a);
	}
	pair_destroy(&a);
}

static struct te_plan_memory memory_of(const struct te_plan *p)
{
	struct te_plan_memory pm = TE_PLAN_MEMORY_INIT;

	DO(te_plan_memory(p, &pm));
	return pm;
}

/* by the backend's count, and a tenth of the arena at least */
TEST_EACH(bits, memory_is_what_the_plan_predicts, RECIPES)
{
	const struct model_shape *m = _i % 2 ? &small : &gpt;
	const char *recipe = recipes[_i];
	struct te_seq *seq = model_create(ctx, m, 3);
	struct te_plan *first = make_plan(seq, m, recipe, 0, 0); /* makes the copies of weights */
	struct te_plan_memory told[2];
	uint64_t used[2];

	for (int k = 0; k < 2; k++) {
		struct te_plan *p = make_plan(seq, m, recipe, TE_PLAN_NO_ALLOC, k);
		const uint64_t before = tt_used();
		struct te_mem_info mi;

		told[k] = memory_of(p);
		te_plan_unref(p);
		p = make_plan(seq, m, recipe, 0, k);
		ck_assert_uint_eq(memory_of(p).arena_nbytes, told[k].arena_nbytes);
		used[k] = mem_now().used_nbytes - before;
		model_feed(p, m);
		DO(te_plan_forward(p, st, 0));
		DO(te_plan_backward(p, st));
		mi = mem_now();
		ck_assert_uint_eq(mi.used_nbytes - before, used[k]);
		te_plan_unref(p);
	}
	/* own_nbytes: it has the scales */
	ck_assert_uint_eq(used[0] - used[1], told[0].arena_nbytes + told[0].own_nbytes -
						     told[1].arena_nbytes - told[1].own_nbytes);
	ck_assert_uint_lt(told[1].arena_nbytes, told[0].arena_nbytes - told[0].arena_nbytes / 10);
	ck_assert_uint_le(told[1].own_nbytes - told[0].own_nbytes,
			  (uint64_t)te_seq_nops(seq) * 2 * sizeof(float));
	tt_drop(first, seq);
}

TT_PAIR_SUITE("graph/recompute")
{
	/* these small models are laid out as large ones are: all buffers share memory */
	setenv("TE_PLAN_SEPARATE", "off", 1);
}
