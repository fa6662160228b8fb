/*
 * t/plan/weights_frozen.c - te_seq_freeze(3): the other weights get the bits of a run that
 * computes all gradients; no step, no memory and no optimizer state for frozen weights.
 */
#include "config.h"

#include <te/errno.h>
#include <te/optim.h>
#include <te/plan.h>

#include "plan_model.h"
#include "tt_ctx.h"
#include "tt_num.h"
#include "weights_cases.h"

static const struct model_shape gpt = { 48, 32, 2, 16, 4, 4, 2, 0.2f, 0 };
static const struct model_shape llama = { 48, 32, 2, 16, 4, 2, 2, 0, 1 };
static const char *const recipes[] = { "fp32", "bf16", "fp8-delayed", "fp8-current", "fp8-block" };

/* what is frozen, then what is trained after all */
static const struct {
	const char *freeze, *train;
} choice[] = {
	{ "h.0.*", NULL },		/* a whole layer between trained ones */
	{ "*.qkv", NULL },		/* ops by name */
	{ "*.weight", NULL },		/* some weights of an op: norms, and the tied head */
	{ "*.bias", NULL },		/* the others */
	{ "emb.position", NULL },
	{ "*", "h.1.up.weight" },	/* one is left: backward ends there */
	{ "*", "h.0.ln2.norm" },
	{ "[!n]*", NULL },		/* only the last norm */
};
#define NCHOICES ((int)TT_LEN(choice))
#define NWAYS (NCHOICES * (int)TT_LEN(recipes))

static struct te_seq *frozen(const struct model_shape *m, int k)
{
	struct te_seq *s = model_create_unbound(ctx, m);

	DO(te_seq_complete(s));
	ck_assert_int_gt(te_seq_freeze(s, choice[k].freeze, 1), 0);
	if (choice[k].train)
		ck_assert_int_gt(te_seq_freeze(s, choice[k].train, 0), 0);
	DO(te_seq_init(s, 5));
	return s;
}

static int is_frozen(const struct te_seq *s, int i)
{
	const struct te_weight_info w = weight(s, i);

	ck_assert_int_eq(!w.grad, (w.flags & TE_WEIGHT_FROZEN) != 0);
	return !w.grad;
}

static void pass(struct te_seq *s, struct te_plan *p)
{
	DO(te_seq_zero_grads(s, st));
	DO(te_plan_forward(p, st, 0));
	DO(te_plan_backward(p, st));
	if (te_plan_flags(p) & TE_PLAN_DELAY_DW)
		DO(te_plan_backward_dw(p, st));
	DO(te_stream_sync(st));
}

/* s[1] trains all: gradients of what s[0] has frozen are set to 0, and such weights restored */
static void step_restoring(struct te_seq *s[2], struct te_adamw *opt)
{
	for (int i = 0; i < te_seq_nweights(s[1]); i++) {
		const struct te_weight_info w = weight(s[1], i);

		if (is_frozen(s[0], i))
			DO(te_fill(st, te_tensor_data(w.grad), 0, te_tensor_nbytes(w.grad)));
	}
	DO(te_adamw_step(opt, st));
	for (int i = 0; i < te_seq_nweights(s[1]); i++)
		if (is_frozen(s[0], i))
			DO(te_copy(st, te_tensor_data(weight(s[1], i).master),
				   te_tensor_data(weight(s[0], i).master),
				   te_tensor_nbytes(weight(s[0], i).master)));
	DO(te_seq_weights_changed(s[1], st));
	DO(te_stream_sync(st));
}

/* the norms are sums in another order: FP64, so they differ by one rounding at most */
static void same_norm(struct te_adamw *const opt[2])
{
	struct te_adamw_stats s[2] = { TE_ADAMW_STATS_INIT, TE_ADAMW_STATS_INIT };

	for (int i = 0; i < 2; i++)
		DO(te_adamw_stats(opt[i], &s[i]));
	ck_assert_int_le(tt_ulps_f32(s[0].grad_norm, s[1].grad_norm), 1);
	ck_assert(s[0].grad_norm > 0);
}

/* the same random tokens */
static void feed_both(struct te_plan *const p[2], const struct model_shape *m)
{
	model_feed(p[0], m);
	for (int i = 0; i < 2; i++) {
		const char *name = i ? "targets" : "x";
		struct te_tensor *t = te_plan_input(p[0], name);

		DO(te_copy(st, te_tensor_data(te_plan_input(p[1], name)), te_tensor_data(t),
			   te_tensor_nbytes(t)));
	}
}

CTX_CASE(frozen, "plan numeric");

TEST_EACH(frozen, other_weights_keep_their_bits, NWAYS)
{
	const int k = _i % NCHOICES;
	const char *recipe = recipes[_i / NCHOICES];
	const struct model_shape *m = k % 2 ? &gpt : &llama;
	const uint32_t flags = TE_PLAN_TRAIN | (_i % 3 ? 0 : TE_PLAN_DELAY_DW);
	struct te_adamw_opts o = TE_ADAMW_OPTS_INIT;
	struct te_seq *s[2];
	struct te_plan *p[2];
	struct te_adamw *opt[2];

	if (k >= 2 && k <= 4) /* Llama has no biases, and no table of positions */
		m = &gpt;
	o.max_grad_norm = 0;
	s[0] = frozen(m, k);
	s[1] = model_create(ctx, m, 5);
	for (int i = 0; i < 2; i++) {
		p[i] = model_plan(s[i], m, recipe, flags);
		DO(te_adamw_create(s[i], &o, &opt[i]));
		DO(te_adamw_set_lr(opt[i], st, 1e-2f));
	}
	for (int step = 0; step < 3; step++) {
		feed_both(p, m);
		for (int i = 0; i < 2; i++)
			pass(s[i], p[i]);
		model_same(te_plan_output(p[0]), te_plan_output(p[1]), "losses");
		for (int i = 0; i < te_seq_nweights(s[0]); i++)
			if (!is_frozen(s[0], i))
				model_same(weight(s[0], i).grad, weight(s[1], i).grad,
					   weight(s[0], i).name);
		DO(te_adamw_step(opt[0], st));
		step_restoring(s, opt[1]);
		same_norm(opt);
		for (int i = 0; i < te_seq_nweights(s[0]); i++)
			model_same(weight(s[0], i).master, weight(s[1], i).master,
				   weight(s[0], i).name);
	}
	for (int i = 0; i < 2; i++) {
		te_adamw_unref(opt[i]);
		tt_drop(p[i], s[i]);
	}
}

/* first, fork, bias, linear, add: with the bias trained the sum at the fork is in no GEMM */
static struct te_seq *branch(int freezes)
{
	const struct te_linear_attrs l = TE_ATTRS(linear, 32, 32, 0.3f);
	const struct te_bias_attrs b = TE_ATTRS(bias, 32);
	struct te_seq *s;
	struct te_op *op[5];

	DO(te_seq_create(ctx, &s));
	DO(te_op_linear(&l, "first", &op[0]));
	DO(te_op_fork("f", &op[1]));
	DO(te_op_give(op[1], 0, "r"));
	DO(te_op_bias(&b, "b", &op[2]));
	DO(te_op_linear(&l, "l", &op[3]));
	DO(te_op_add("a", &op[4]));
	DO(te_op_take(op[4], 0, "r"));
	for (int i = 0; i < 5; i++) {
		DO(te_seq_append(s, op[i]));
		te_op_unref(op[i]);
	}
	DO(te_seq_complete(s));
	if (freezes)
		ck_assert_int_eq(te_seq_freeze(s, "b", 1), 1);
	DO(te_seq_init(s, 7));
	return s;
}

TEST_EACH(frozen, fusions_of_sums_do_not_depend_on_it, TT_LEN(recipes))
{
	const struct te_recipe r = tt_recipe(recipes[_i]);
	float x[2][16 * 32];
	struct te_seq *s[2];
	struct te_plan *p[2];

	for (int k = 0; k < 2; k++)
		tt_fill_normal(x[k], 16 * 32, 1);
	for (int i = 0; i < 2; i++) {
		s[i] = branch(i);
		p[i] = tt_plan(s[i], &r, TE_PLAN_TRAIN | TE_PLAN_INPUT_GRAD,
			       (struct te_spec){ r.compute, 2, { 16, 32 } });
		tt_tensor_set(te_plan_input(p[i], "x"), x[0]);
		tt_tensor_set(te_plan_output_grad(p[i]), x[1]);
		pass(s[i], p[i]);
	}
	model_same(te_plan_input_grad(p[0]), te_plan_input_grad(p[1]), "gradients of x");
	for (int w = 0; w < te_seq_nweights(s[0]); w++)
		if (!is_frozen(s[1], w))
			model_same(weight(s[0], w).grad, weight(s[1], w).grad,
				   weight(s[0], w).name);
	tt_drop_both(p, s);
}

static int64_t padded(int64_t n)
{
	return (n + 63) / 64 * 64;
}

/* gradients and two moments of 4 bytes, and the byte of each 64 weights that are decayed or not */
TEST_EACH(frozen, frozen_weights_take_no_memory, 7, .from = 4)
{
	struct te_plan_memory mem[2] = { TE_PLAN_MEMORY_INIT, TE_PLAN_MEMORY_INIT };
	const struct model_shape *m = _i == 4 ? &gpt : &llama;
	int64_t nfrozen = 0, ntrained = 0;
	uint64_t used[3];
	struct te_seq *s[2];
	struct te_adamw *opt;

	used[0] = tt_used();
	s[1] = model_create(ctx, m, 5);
	used[1] = tt_used();
	s[0] = frozen(m, _i);
	used[2] = tt_used();
	for (int i = 0; i < te_seq_nweights(s[0]); i++) {
		const int64_t n = padded(te_tensor_nelems(weight(s[0], i).master));

		*(is_frozen(s[0], i) ? &nfrozen : &ntrained) += n;
	}
	ck_assert_int_gt(nfrozen, 0);
	ck_assert_int_eq(te_seq_nelems(s[0]), nfrozen + ntrained);
	ck_assert_int_eq(te_seq_grad_nelems(s[0]), ntrained);
	ck_assert_int_eq(te_tensor_nelems(te_seq_grads(s[0])), ntrained);
	ck_assert_uint_eq(used[1] - used[0] - (used[2] - used[1]), 4 * (uint64_t)nfrozen);
	ck_assert_uint_eq(te_adamw_nbytes(s[1], NULL) - te_adamw_nbytes(s[0], NULL),
			  8 * (uint64_t)nfrozen + (uint64_t)nfrozen / 64);
	for (int i = 0; i < 2; i++) {
		struct te_plan *p = model_plan(s[i], m, "bf16", TE_PLAN_TRAIN);

		DO(te_plan_memory(p, &mem[i]));
		te_plan_unref(p);
	}
	ck_assert_uint_eq(mem[1].weights_nbytes - mem[0].weights_nbytes, 4 * (uint64_t)nfrozen);
	ck_assert_uint_le(mem[0].arena_nbytes, mem[1].arena_nbytes);
	DO(te_adamw_create(s[0], NULL, &opt));
	ck_assert_int_eq(te_tensor_nelems(te_adamw_m(opt)), ntrained);
	ck_assert_int_eq(te_tensor_nelems(te_adamw_v(opt)), ntrained);
	te_adamw_unref(opt);
	te_seq_unref(s[0]);
	te_seq_unref(s[1]);
}

static char *plan_text(struct te_seq *s, const struct model_shape *m, const char *recipe,
		       uint32_t flags)
{
	struct te_plan *p = model_plan(s, m, recipe, TE_PLAN_TRAIN | TE_PLAN_NO_FUSION | flags);
	char *text;

	DO(te_plan_print(p, TE_PLAN_TEXT, &text));
	te_plan_unref(p);
	return text;
}

static int has(const char *text, const char *step)
{
	char line[64];

	snprintf(line, sizeof(line), " %s\n", step);
	return strstr(text, line) != NULL;
}

TEST_EACH(frozen, plans_have_no_steps_for_frozen_weights, TT_LEN(recipes))
{
	struct te_seq *s = frozen(&llama, 0);
	char *text = plan_text(s, &llama, recipes[_i], 0);

	/* the first layer is frozen, but the embedding before it is not */
	ck_assert(has(text, "emb.dw") && has(text, "h.0.qkv.bwd") && !has(text, "h.0.qkv.dw"));
	ck_assert(has(text, "h.1.qkv.dw") && !has(text, "h.0.ln1.norm.dw"));
	free(text);
	te_seq_unref(s);
	s = frozen(&llama, 5);
	text = plan_text(s, &llama, recipes[_i], 0);
	/* nothing before h.1.up is trained: no gradient of its input, and nothing before it */
	ck_assert(has(text, "head.bwd") && has(text, "h.1.down.bwd") && has(text, "h.1.up.dw"));
	ck_assert(!has(text, "head.dw") && !has(text, "h.1.up.bwd") && !has(text, "h.1.proj.bwd"));
	ck_assert(!has(text, "h.1.down.dw") && !has(text, "emb.dw"));
	free(text);
	te_seq_unref(s);
}

/* a part of the model without trained weights: only the gradient of its input, or nothing */
TEST_EACH(frozen, a_frozen_part_passes_gradients_on, TT_LEN(recipes))
{
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_recipe recipe = tt_recipe(recipes[_i]);
	struct te_seq *s[2] = { frozen(&llama, 0), model_create(ctx, &llama, 5) };
	struct te_plan *p[2];
	char *text;

	o.recipe = &recipe;
	o.x = (struct te_spec){ recipe.compute, 3, { 2, 16, 32 } };
	o.start_at = "h.0.ln1";
	o.stop_before = "h.1.ln1";
	o.flags = TE_PLAN_TRAIN | TE_PLAN_INPUT_GRAD;
	for (int i = 0; i < 2; i++) {
		DO(te_plan_create(s[i], &o, &p[i]));
		DO(te_fill_u32(st, te_tensor_data(te_plan_input(p[i], "x")), 0x3e993e80,
			       te_tensor_nbytes(te_plan_input(p[i], "x"))));
		DO(te_fill_u32(st, te_tensor_data(te_plan_output_grad(p[i])), 0x3c823c81,
			       te_tensor_nbytes(te_plan_output_grad(p[i]))));
		pass(s[i], p[i]);
	}
	model_same(te_plan_input_grad(p[0]), te_plan_input_grad(p[1]), "gradients of the input");
	for (int i = 0; i < 2; i++)
		te_plan_unref(p[i]);
	o.flags = TE_PLAN_TRAIN;
	DO(te_plan_create(s[0], &o, &p[0]));
	DO(te_plan_print(p[0], TE_PLAN_TEXT, &text));
	ck_assert_ptr_null(strstr(text, "backward:"));
	free(text);
	pass(s[0], p[0]);
	tt_drop(p[0], s[0]);
	te_seq_unref(s[1]);
}

static int count_grads(void *arg, struct te_plan *plan, const struct te_plan_event *e)
{
	int *n = arg;

	ck_assert_int_eq(e->kind, TE_PLAN_EVENT_GRAD);
	n[e->weight]++;
	return 0;
}

TEST_EACH(frozen, hooks_hear_of_trained_weights_only, NCHOICES)
{
	struct te_seq *s = frozen(&gpt, _i);
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_recipe recipe = TE_RECIPE_INIT;
	struct te_plan *p;
	int n[64] = { 0 };

	recipe.compute = TE_DTYPE_FP32;
	o.recipe = &recipe;
	o.flags = TE_PLAN_TRAIN;
	o.x = (struct te_spec){ TE_DTYPE_INT32, 2, { 2, 16 } };
	o.hook = count_grads;
	o.hook_arg = n;
	o.hooks = 1u << TE_PLAN_EVENT_GRAD;
	DO(te_plan_create(s, &o, &p));
	model_feed(p, &gpt);
	pass(s, p);
	for (int i = 0; i < te_seq_nweights(s); i++)
		ck_assert_int_eq(n[i], !is_frozen(s, i));
	tt_drop(p, s);
}

/* gradients in the caller's memory are as small */
TEST(frozen, gradients_end_with_trained_weights)
{
	struct te_seq_binding b = TE_SEQ_BINDING_INIT;
	struct te_seq *s = model_create_unbound(ctx, &llama);
	size_t nbytes;
	char *past;
	void *g;

	DO(te_seq_complete(s));
	ck_assert_int_gt(te_seq_freeze(s, "*.norm", 1), 0);
	nbytes = (size_t)te_seq_grad_nelems(s) * sizeof(float);
	DO(te_mem_alloc(st, nbytes + 256, &g));
	DO(te_fill(st, g, 0xa5, nbytes + 256));
	DO(te_stream_sync(st));
	b.grads = g;
	DO(te_seq_bind(s, &b));
	DO(te_seq_init(s, 5));
	for (int i = 0; i < 2; i++) {
		struct te_plan *p = model_plan(s, &llama, "bf16", TE_PLAN_TRAIN);

		model_feed(p, &llama);
		pass(s, p);
		te_plan_unref(p);
	}
	past = tt_bytes((char *)g + nbytes, 256);
	for (int i = 0; i < 256; i++)
		ck_assert_int_eq((unsigned char)past[i], 0xa5);
	free(past);
	te_seq_unref(s);
	DO(te_mem_free(st, g));
}

/* all weights are frozen: passes run, the optimizer changes nothing */
TEST(frozen, everything_may_be_frozen)
{
	struct te_seq *s = model_create_unbound(ctx, &gpt);
	struct te_adamw *opt;
	struct te_plan *p;
	void *before, *after;
	size_t nbytes;

	DO(te_seq_complete(s));
	ck_assert_int_eq(te_seq_freeze(s, "*", 1), te_seq_nweights(s));
	DO(te_seq_init(s, 5));
	p = model_plan(s, &gpt, "fp8-current", TE_PLAN_TRAIN);
	DO(te_adamw_create(s, NULL, &opt));
	DO(te_adamw_set_lr(opt, st, 1.0f));
	nbytes = te_tensor_nbytes(te_seq_masters(s));
	before = tt_bytes(te_tensor_data(te_seq_masters(s)), nbytes);
	model_feed(p, &gpt);
	pass(s, p);
	DO(te_adamw_step(opt, st));
	after = tt_bytes(te_tensor_data(te_seq_masters(s)), nbytes);
	ck_assert_mem_eq(before, after, nbytes);
	free(before);
	free(after);
	te_adamw_unref(opt);
	tt_drop(p, s);
}

/* TE_SEQ_ROUND_FROZEN: as with remainders that are 0, without memory for them */
TEST_EACH(frozen, frozen_weights_without_remainders, NWAYS - NCHOICES)
{
	static const uint32_t split = TE_SEQ_BF16_MASTERS | TE_SEQ_REMAINDERS;
	const int k = _i % NCHOICES;
	const struct model_shape *m = k >= 2 && k <= 4 ? &gpt : &llama;
	struct te_seq *s[2];
	struct te_plan *p[2];
	struct te_adamw *opt[2];
	uint64_t used[3] = { tt_used() };
	int64_t n, trained;
	float *w, *after[2];

	for (int i = 0; i < 2; i++) {
		struct te_seq_binding b = TE_SEQ_BINDING_INIT;

		s[i] = model_create_unbound(ctx, m);
		DO(te_seq_complete(s[i]));
		ck_assert_int_gt(te_seq_freeze(s[i], choice[k].freeze, 1), 0);
		if (choice[k].train)
			ck_assert_int_gt(te_seq_freeze(s[i], choice[k].train, 0), 0);
		b.flags = split | (i ? TE_SEQ_ROUND_FROZEN : 0);
		DO(te_seq_bind(s[i], &b));
		DO(te_seq_init(s[i], 5));
		used[i + 1] = tt_used();
	}
	n = te_seq_nelems(s[0]);
	trained = te_seq_grad_nelems(s[0]);
	ck_assert_uint_ge(used[1] - used[0], used[2] - used[1] + 2 * (uint64_t)(n - trained));
	w = malloc((size_t)n * sizeof(*w));
	ck_assert_ptr_nonnull(w);
	/* in two parts, of which one has both kinds */
	DO(te_seq_masters_get(s[1], 0, trained - 8, w));
	DO(te_seq_masters_get(s[1], trained - 8, n - trained + 8, w + trained - 8));
	for (int64_t i = trained; i < n; i++)
		ck_assert_float_eq(w[i], te_bf16_decode(te_bf16_encode(w[i])));
	DO(te_seq_masters_set(s[0], 0, n, w));
	DO(te_seq_masters_set(s[1], trained - 8, n - trained + 8, w + trained - 8));
	for (int i = 0; i < 2; i++) {
		p[i] = model_plan(s[i], m, recipes[1 + _i / NCHOICES], TE_PLAN_TRAIN);
		DO(te_adamw_create(s[i], NULL, &opt[i]));
		DO(te_adamw_set_lr(opt[i], st, 1e-2f));
	}
	for (int step = 0; step < 3; step++) {
		feed_both(p, m);
		for (int i = 0; i < 2; i++) {
			pass(s[i], p[i]);
			DO(te_adamw_step(opt[i], st));
			DO(te_stream_sync(st));
		}
		model_same(te_plan_output(p[0]), te_plan_output(p[1]), "losses");
	}
	for (int i = 0; i < 2; i++) {
		after[i] = malloc((size_t)n * sizeof(*after[i]));
		ck_assert_ptr_nonnull(after[i]);
		DO(te_seq_masters_get(s[i], 0, n, after[i]));
		te_adamw_unref(opt[i]);
		tt_drop(p[i], s[i]);
	}
	ck_assert_mem_eq(after[0], after[1], (size_t)n * sizeof(*w));
	ck_assert_mem_eq(after[0] + trained, w + trained, (size_t)(n - trained) * sizeof(*w));
	ck_assert_mem_ne(after[0], w, (size_t)trained * sizeof(*w));
	free(after[0]);
	free(after[1]);
	free(w);
}

TEST(frozen, bad_requests_to_freeze_are_refused)
{
	struct te_seq *s = model_create_unbound(ctx, &gpt);

	fails(te_seq_freeze(NULL, "*", 1), -EINVAL, "seq is NULL");
	fails(te_seq_freeze(s, "*", 1), -TE_ESTATE, "te_seq_complete has not run");
	DO(te_seq_complete(s));
	fails(te_seq_freeze(s, NULL, 1), -EINVAL, "pattern is NULL");
	fails(te_seq_freeze(s, "*", 2), -EINVAL, "frozen is neither 0 nor 1");
	fails(te_seq_freeze(s, "h.7.*", 1), -ENOENT, "no weight is named h.7.*");
	/* its weight is that of emb */
	fails(te_seq_freeze(s, "head", 1), -ENOENT, "no weight is named head");
	ck_assert_int_eq(te_seq_freeze(s, "h.0.ln1.norm", 1), 2);
	ck_assert_int_eq(te_seq_freeze(s, "h.0.ln1.norm.bias", 0), 1);
	DO(te_seq_init(s, 5));
	fails(te_seq_freeze(s, "*", 1), -EBUSY, "has been initialised");
	te_seq_unref(s);
}
