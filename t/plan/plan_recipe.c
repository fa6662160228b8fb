/*
 * t/plan/plan_recipe.c - recipes of single ops: an op without FP8 in an FP8 plan, and one in FP8 in
 * a plan without it, compute the bits that they compute in a plan of their recipe; and so do ops
 * with two FP8 recipes.
 */
#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include <te/checkpoint.h>
#include <te/errno.h>
#include <te/op.h>
#include <te/optim.h>
#include <te/quant.h>

#include "libtecore/base/private.h"
#include "libtecore/base/base.h"
#include "libtecore/tensor/ctx.h"
#include "plan_cases.h"
#include "tt_ctx.h"
#include "tt_num.h"

#define ROWS 32
#define WIDTH 64

/* the recipe of that name; "NAME+e4m3": with E4M3 gradients */
static struct te_recipe named(const char *name)
{
	const char *suffix = strchr(name, '+');
	struct te_recipe recipe = TE_RECIPE_INIT;
	char text[32];

	snprintf(text, sizeof(text), "%.*s", suffix ? (int)(suffix - name) : 31, name);
	DO(te_recipe_from_name(text, &recipe));
	recipe.flags |= suffix ? TE_RECIPE_E4M3_ONLY : 0;
	return recipe;
}

/* a linear op with this recipe; NULL: the plan's */
static void add_linear(struct te_seq *seq, const char *name, const char *recipe)
{
	struct te_linear_attrs a = TE_ATTRS(linear, WIDTH, WIDTH, 0.2f, 0, NULL, NULL);
	struct te_recipe own = TE_RECIPE_INIT;
	struct te_op *op;

	if (recipe) {
		own = named(recipe);
		a.recipe = &own;
	}
	DO(te_op_linear(&a, name, &op));
	own.kind = (enum te_recipe_kind)99; /* the op has a copy */
	tt_append(seq, op);
}

static struct te_seq *two_of(const char *first, const char *second)
{
	struct te_seq *seq;

	DO(te_seq_create(ctx, &seq));
	add_linear(seq, "a", first);
	add_linear(seq, "b", second);
	return seq;
}

/* two linear ops with these recipes, and weights */
static struct te_seq *two(const char *first, const char *second)
{
	struct te_seq *seq = two_of(first, second);

	DO(te_seq_init(seq, 3));
	return seq;
}

/* op in the name of this plan's recipe; only: plan this op alone */
static struct te_plan *plan_of(struct te_seq *seq, const char *name, const char *only)
{
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_recipe recipe = named(name);
	struct te_plan *p;

	o.recipe = &recipe;
	o.flags = TE_PLAN_TRAIN | TE_PLAN_INPUT_GRAD;
	o.x = (struct te_spec){ TE_DTYPE_BF16, 2, { ROWS, WIDTH } };
	o.start_at = only;
	o.stop_before = only && *only == 'a' ? "b" : NULL;
	DO(te_plan_create(seq, &o, &p));
	return p;
}

static void fill(struct te_tensor *t, uint64_t seed)
{
	const int64_t n = te_tensor_nelems(t);
	float *x = malloc((size_t)n * sizeof(*x));

	for (int64_t i = 0; i < n; i++)
		x[i] = (float)((seed = seed * 6364136223846793005u + 1442695040888963407u) >> 40) /
			       8388608 - 1;
	tt_tensor_set(t, x);
	free(x);
}

/* two steps, so that the second has scales from the first */
static void train(struct te_plan *p)
{
	for (uint64_t k = 0; k < 2; k++) {
		fill(te_plan_input(p, "x"), 1 + k);
		DO(te_plan_forward(p, st, 0));
		DO(te_stream_sync(st));
		fill(te_plan_output_grad(p), 11 + k); /* forward uses its memory */
		DO(te_plan_backward(p, st));
	}
	DO(te_stream_sync(st));
}

/* op of a sequence of two: _i says which, and whether its own recipe has FP8 */
static const struct {
	const char *plan, *own;
} mixed[] = {
	{ "fp8-delayed", "bf16" }, { "fp8-current", "bf16" }, { "fp8-block", "fp32" },
	{ "bf16", "fp8-delayed" }, { "bf16", "fp8-current" }, { "bf16", "fp8-block" },
	{ "fp8-delayed", "fp8-delayed" }, { "fp8-block", "fp8-block" },
};

CTX_CASE(recipe, "numeric");

TEST_EACH(recipe, an_op_has_the_bits_of_its_recipe, TT_LEN(mixed))
{
	const char *own = mixed[_i].own, *plain = !strncmp(own, "fp8", 3) ? own : "bf16";
	const char *const only = "a\0b";
	struct te_seq *seq[2] = { two(own, own), two(NULL, NULL) };
	struct te_plan *p[2];

	for (int op = 0; op < 2; op++) {
		p[0] = plan_of(seq[0], mixed[_i].plan, only + 2 * op);
		p[1] = plan_of(seq[1], plain, only + 2 * op);
		train(p[0]);
		train(p[1]);
		model_same(te_plan_output(p[0]), te_plan_output(p[1]), "outputs");
		model_same(te_plan_input_grad(p[0]), te_plan_input_grad(p[1]), "gradients");
		te_plan_unref(p[0]);
		te_plan_unref(p[1]);
	}
	model_same(te_seq_grads(seq[0]), te_seq_grads(seq[1]), "weight gradients");
	if (strcmp(plain, "bf16"))
		model_same_scales(te_seq_quant(seq[0]), te_seq_quant(seq[1]));
	te_seq_unref(seq[0]);
	te_seq_unref(seq[1]);
}

/* recipes of a plan and of its two ops, and what these are in plans of one recipe */
static const struct {
	const char *plan, *own[2], *plain[2];
} pairs[] = {
	{ "bf16", { "fp8-block", "fp8-delayed" }, { "fp8-block", "fp8-delayed" } },
	{ "bf16", { "fp8-current", "mxfp8" }, { "fp8-current", "mxfp8" } },
	{ "bf16", { "nvfp4", "fp8-block" }, { "nvfp4", "fp8-block" } },
	{ "fp8-delayed", { NULL, "fp8-block" }, { "fp8-delayed", "fp8-block" } },
	{ "fp8-current", { "nvfp4", NULL }, { "nvfp4", "fp8-current" } },
	{ "fp8-block", { "mxfp8", NULL }, { "mxfp8", "fp8-block" } },
	{ "mxfp8", { NULL, "fp8-delayed" }, { "mxfp8", "fp8-delayed" } },
	{ "fp8-delayed", { "fp8-delayed+e4m3", NULL }, { "fp8-delayed+e4m3", "fp8-delayed" } },
	{ "fp8-current", { NULL, "fp8-current+e4m3" }, { "fp8-current", "fp8-current+e4m3" } },
	{ "bf16", { "fp8-delayed", "fp8-delayed+e4m3" }, { "fp8-delayed", "fp8-delayed+e4m3" } },
};

static void give(struct te_tensor *from, struct te_tensor *to)
{
	float *x = tt_tensor_get(from);

	tt_tensor_set(to, x);
	free(x);
}

/* as train(), of two plans of one op each, the second after the first */
static void train_two(struct te_plan *const p[2])
{
	for (uint64_t k = 0; k < 2; k++) {
		fill(te_plan_input(p[0], "x"), 1 + k);
		DO(te_plan_forward(p[0], st, 0));
		DO(te_stream_sync(st));
		give(te_plan_output(p[0]), te_plan_input(p[1], "x"));
		DO(te_plan_forward(p[1], st, 0));
		DO(te_stream_sync(st));
		fill(te_plan_output_grad(p[1]), 11 + k);
		DO(te_plan_backward(p[1], st));
		DO(te_stream_sync(st));
		give(te_plan_input_grad(p[1]), te_plan_output_grad(p[0]));
		DO(te_plan_backward(p[0], st));
	}
	DO(te_stream_sync(st));
}

static void same_op(struct te_seq *mixed, struct te_seq *plain, int i)
{
	struct te_weight_info a = TE_WEIGHT_INFO_INIT, b = TE_WEIGHT_INFO_INIT;

	DO(te_seq_weight(mixed, i, &a));
	DO(te_seq_weight(plain, i, &b));
	model_same(a.grad, b.grad, a.name);
}

TEST_EACH(recipe, ops_with_two_recipes_have_the_bits_of_separate_plans, TT_LEN(pairs))
{
	struct te_seq *mix = two(pairs[_i].own[0], pairs[_i].own[1]);
	struct te_seq *seq[2] = { two(NULL, NULL), two(NULL, NULL) };
	struct te_plan *p = plan_of(mix, pairs[_i].plan, NULL), *part;
	struct te_plan *q[2] = { plan_of(seq[0], pairs[_i].plain[0], "a"),
				 plan_of(seq[1], pairs[_i].plain[1], "b") };

	train(p);
	train_two(q);
	model_same(te_plan_output(p), te_plan_output(q[1]), "outputs");
	model_same(te_plan_input_grad(p), te_plan_input_grad(q[0]), "gradients");
	for (int k = 0; k < 2; k++)
		same_op(mix, seq[k], k);
	te_plan_unref(p);

	/* plans of the ops of the sequence have the state that the plan of both has left */
	for (int k = 0; k < 2; k++) {
		part = plan_of(mix, pairs[_i].plan, k ? "b" : "a");
		train(part);
		train(q[k]);
		model_same(te_plan_output(part), te_plan_output(q[k]), "outputs of one op");
		model_same(te_plan_input_grad(part), te_plan_input_grad(q[k]), "its gradients");
		same_op(mix, seq[k], k);
		te_plan_unref(part);
		te_plan_unref(q[k]);
		te_seq_unref(seq[k]);
	}
	te_seq_unref(mix);
}

static double distance(struct te_tensor *a, struct te_tensor *b)
{
	float *x = tt_tensor_get(a), *y = tt_tensor_get(b);
	double error = 0, size = 0;

	for (int64_t i = 0; i < te_tensor_nelems(a); i++) {
		error += pow((double)(x[i] - y[i]), 2);
		size += pow((double)y[i], 2);
	}
	free(x);
	free(y);
	return sqrt(error / size);
}

/*
 * Gradients under nvfp4 against gradients under bf16. Casts of normal numbers are off by 0.13 of
 * their size, stochastic ones by 0.2 (t/quant/nvfp4.c), independently. The input's gradient has two
 * casts of each kind, 0.34; a weight's gradient has two stochastic casts at most, and two others.
 */
TEST(recipe, gradients_of_nvfp4_are_near)
{
	struct te_seq *seq[2] = { two(NULL, NULL), two(NULL, NULL) };
	struct te_plan *p[2] = { plan_of(seq[0], "nvfp4", NULL), plan_of(seq[1], "bf16", NULL) };

	for (int i = 0; i < 2; i++) {
		fill(te_plan_input(p[i], "x"), 1);
		DO(te_plan_forward(p[i], st, 0));
		/* forward may write to this memory */
		fill(te_plan_output_grad(p[i]), 11);
		DO(te_plan_backward(p[i], st));
		DO(te_stream_sync(st));
	}
	ck_assert_double_lt(distance(te_plan_output(p[0]), te_plan_output(p[1])), 0.3);
	ck_assert_double_lt(distance(te_plan_input_grad(p[0]), te_plan_input_grad(p[1])), 0.4);
	ck_assert_double_lt(distance(te_seq_grads(seq[0]), te_seq_grads(seq[1])), 0.4);
	tt_drop_both(p, seq);
}

/* ---- extents that are no multiples of 16 ---- */

static const int64_t odd[][3] = { /* rows, in, out */
	{ 5, 37, 21 }, { 1, 16, 48 }, { 16, 129, 32 }, { 33, 48, 131 }, { 130, 260, 17 },
};

/* rows x cols elements at the start of a matrix of wide columns; the others are 0 */
static void set_part(struct te_tensor *t, int64_t rows, int64_t cols, int64_t wide, uint64_t seed)
{
	float *x = calloc((size_t)te_tensor_nelems(t), sizeof(*x));

	for (int64_t r = 0; r < rows; r++)
		for (int64_t c = 0; c < cols; c++) {
			seed = seed * 6364136223846793005u + 1442695040888963407u;
			x[r * wide + c] = (float)(seed >> 40) / 8388608 - 1;
		}
	tt_tensor_set(t, x);
	free(x);
}

/* part of b as b was set; on a GPU the GEMMs differ, and the order of their sums */
static void check_part(const char *what, struct te_tensor *a, struct te_tensor *b, int64_t rows,
		       int64_t cols, int64_t wide)
{
	float *x = tt_tensor_get(a), *y = tt_tensor_get(b), most = 0;

	for (int64_t i = 0; i < rows * cols; i++)
		most = fmaxf(most, fabsf(y[i / cols * wide + i % cols]));
	ck_assert_float_gt(most, 0);
	for (int64_t i = 0; i < rows * cols; i++) {
		const float want = y[i / cols * wide + i % cols];
		const float bound = strcmp(backend, "host") ? most / 64 : 0;

		ck_assert_msg(fabsf(x[i] - want) <= bound, "%s: element %d is %g, not %g", what,
			      (int)i, (double)x[i], (double)want);
	}
	free(x);
	free(y);
}

static int64_t padded(int64_t n)
{
	return (n + 15) / 16 * 16;
}

/* a linear op, and one of padded extents with zeros for the padding: the same two steps */
TEST_EACH(recipe, odd_extents_have_the_bits_of_padded_ones, 3 * TT_LEN(odd))
{
	const char *const fp8[] = { "fp8-delayed", "fp8-current", "fp8-block" };
	const int64_t *e = odd[_i / 3];
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_recipe recipe = tt_recipe(fp8[_i % 3]);
	struct te_seq *seq[2];
	struct te_plan *p[2];
	int64_t in[2] = { 0 }, out[2] = { 0 };

	o.recipe = &recipe;
	o.flags = TE_PLAN_TRAIN | TE_PLAN_INPUT_GRAD;
	for (int k = 0; k < 2; k++) {
		struct te_linear_attrs a = TE_ATTRS(linear, e[1], e[2], 0.2f, 0, NULL, NULL);
		struct te_op *op;

		a.in = in[k] = k ? padded(e[1]) : e[1];
		a.out = out[k] = k ? padded(e[2]) : e[2];
		DO(te_seq_create(ctx, &seq[k]));
		DO(te_op_linear(&a, "linear", &op));
		tt_append(seq[k], op);
		DO(te_seq_init(seq[k], 3));
		set_part(te_seq_masters(seq[k]), e[2], e[1], in[k], 7);
		DO(te_seq_weights_changed(seq[k], st));
		o.x = (struct te_spec){ TE_DTYPE_BF16, 2, { k ? padded(e[0]) : e[0], in[k] } };
		DO(te_plan_create(seq[k], &o, &p[k]));
		for (uint64_t step = 0; step < 2; step++) {
			set_part(te_plan_input(p[k], "x"), e[0], e[1], in[k], 1 + step);
			DO(te_plan_forward(p[k], st, 0));
			set_part(te_plan_output_grad(p[k]), e[0], e[2], out[k], 11 + step);
			DO(te_plan_backward(p[k], st));
		}
		DO(te_stream_sync(st));
	}
	check_part("y", te_plan_output(p[0]), te_plan_output(p[1]), e[0], e[2], out[1]);
	check_part("dx", te_plan_input_grad(p[0]), te_plan_input_grad(p[1]), e[0], e[1], in[1]);
	check_part("dw", te_seq_grads(seq[0]), te_seq_grads(seq[1]), e[2], e[1], in[1]);
	model_same_scales(te_seq_quant(seq[0]), te_seq_quant(seq[1]));
	tt_drop_both(p, seq);
}

/* both kinds in one plan: each op as in plans of its recipe, between which the values are copied */
TEST_EACH(recipe, ops_of_two_recipes_in_one_plan, 6)
{
	const char *const fp8[] = { "fp8-delayed", "fp8-current", "fp8-block" };
	const char *name = fp8[_i % 3], *const own = _i / 3 ? name : "bf16";
	struct te_seq *seq[2] = { two(own, NULL), two(NULL, NULL) }, *last = two(NULL, NULL);
	struct te_plan *whole = plan_of(seq[0], _i / 3 ? "bf16" : name, NULL);
	struct te_plan *a = plan_of(seq[1], _i / 3 ? name : "bf16", "a");
	struct te_plan *b = plan_of(last, _i / 3 ? "bf16" : name, "b");

	for (uint64_t k = 0; k < 2; k++) {
		fill(te_plan_input(whole, "x"), 1 + k);
		fill(te_plan_output_grad(whole), 11 + k);
		fill(te_plan_input(a, "x"), 1 + k);
		fill(te_plan_output_grad(b), 11 + k);
		DO(te_plan_forward(whole, st, 0));
		DO(te_plan_backward(whole, st));
		DO(te_plan_forward(a, st, 0));
		DO(te_copy(st, te_tensor_data(te_plan_input(b, "x")),
			   te_tensor_data(te_plan_output(a)), ROWS * WIDTH * 2));
		DO(te_plan_forward(b, st, 0));
		DO(te_plan_backward(b, st));
		DO(te_copy(st, te_tensor_data(te_plan_output_grad(a)),
			   te_tensor_data(te_plan_input_grad(b)), ROWS * WIDTH * 2));
		DO(te_plan_backward(a, st));
	}
	DO(te_stream_sync(st));
	model_same(te_plan_output(whole), te_plan_output(b), "outputs");
	model_same(te_plan_input_grad(whole), te_plan_input_grad(a), "gradients");
	te_plan_unref(whole);
	te_plan_unref(a);
	tt_drop(b, seq[0]);
	te_seq_unref(seq[1]);
	te_seq_unref(last);
}

/* a checkpoint has the quantizers of the only op that casts */
TEST(recipe, checkpoints_have_the_scales_of_ops)
{
	struct te_seq *seq[2] = { two(NULL, "fp8-delayed"), two(NULL, "fp8-delayed") };
	struct te_plan *p[2];
	struct te_adamw *opt[2];
	char path[4096];

	snprintf(path, sizeof(path), "%s/recipe.safetensors", tt_tmpdir());
	for (int k = 0; k < 2; k++) {
		DO(te_adamw_create(seq[k], NULL, &opt[k]));
		p[k] = plan_of(seq[k], "bf16", NULL);
	}
	train(p[0]);
	DO(te_adamw_step(opt[0], st));
	DO(te_checkpoint_save(seq[0], opt[0], path));
	DO(te_checkpoint_load(seq[1], opt[1], path, 0, NULL));
	for (int k = 0; k < 2; k++) {
		DO(te_seq_zero_grads(seq[k], st));
		train(p[k]);
	}
	model_same(te_plan_output(p[0]), te_plan_output(p[1]), "outputs");
	model_same(te_seq_grads(seq[0]), te_seq_grads(seq[1]), "weight gradients");
	model_same_scales(te_seq_quant(seq[0]), te_seq_quant(seq[1]));
	for (int k = 0; k < 2; k++) {
		te_adamw_unref(opt[k]);
		tt_drop(p[k], seq[k]);
	}
	ck_assert_int_eq(unlink(path), 0);
}

TEST(recipe, recipes_of_ops_that_are_refused)
{
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_recipe recipe = TE_RECIPE_INIT;
	struct te_linear_attrs a = TE_ATTRS(linear, .in = 16, .out = 16, .recipe = &recipe);
	struct te_seq *seq = two("fp8-current", "fp8-delayed");
	struct te_plan *p;
	struct te_op *op;
	char text[128];

	o.x = (struct te_spec){ TE_DTYPE_BF16, 2, { ROWS, WIDTH } };
	fails(te_plan_create(seq, &o, &p), -TE_EPLAN,
	      "op b has recipe fp8-delayed, but another one has recipe fp8-current");
	DO(te_recipe_from_name("fp8-delayed", &recipe));
	o.recipe = &recipe;
	fails(te_plan_create(seq, &o, &p), -TE_EPLAN,
	      "op a has recipe fp8-current, but another one has recipe fp8-delayed");
	a.keep_hp = 1;
	fails(te_op_linear(&a, "l", &op), -EINVAL, "linear l: keep_hp is 1, but its recipe is fp8");
	a.keep_hp = 0;
	DO(te_op_linear(&a, "l", &op));
	ck_assert_ptr_ne(((const struct te_linear_attrs *)te_op_attrs(op))->recipe, &recipe);
	ck_assert_int_gt(te_op_table(op)->describe(op, text, sizeof(text)), 0);
	ck_assert_str_eq(text, "in 16, out 16, recipe fp8-delayed");
	te_op_unref(op);
	recipe.margin = 99;
	fails(te_op_linear(&a, "l", &op), -EINVAL, "margin 99");
	recipe.size = 0;
	fails(te_op_linear(&a, "l", &op), -EINVAL, "struct te_recipe");
	te_seq_unref(seq);
}

/* two ops that read the codes of one value */
TEST(recipe, two_recipes_of_one_value_are_refused)
{
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_seq *seq;
	struct te_plan *p;
	struct te_op *op;

	DO(te_seq_create(ctx, &seq));
	DO(te_op_fork("fork", &op));
	DO(te_op_give(op, 0, "x"));
	tt_append(seq, op);
	add_linear(seq, "a", "fp8-block");
	DO(te_op_swap("swap", &op));
	DO(te_op_take(op, 0, "x"));
	DO(te_op_give(op, 0, "y"));
	tt_append(seq, op);
	add_linear(seq, "b", "mxfp8");
	DO(te_op_add("add", &op));
	DO(te_op_take(op, 0, "y"));
	tt_append(seq, op);
	DO(te_seq_init(seq, 3));
	o.x = (struct te_spec){ TE_DTYPE_BF16, 2, { ROWS, WIDTH } };
	fails(te_plan_create(seq, &o, &p), -TE_EPLAN,
	      "op b reads x in codes of recipe mxfp8, but an earlier op in codes of recipe "
	      "fp8-block");
	te_seq_unref(seq);
}

TEST(recipe, weights_of_two_recipes_are_not_stored_as_codes)
{
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_seq *seq = two_of("fp8-block", "mxfp8");

	o.x = (struct te_spec){ TE_DTYPE_BF16, 2, { ROWS, WIDTH } };
	DO(te_seq_complete(seq));
	DO(te_seq_bind(seq, &(struct te_seq_binding){ .size = sizeof(struct te_seq_binding),
						      .flags = TE_SEQ_NO_GRADS }));
	fails(te_seq_store_codes(seq, &o), -EOPNOTSUPP, "FP8 recipes of two kinds");
	te_seq_unref(seq);
}

static int asked; /* the scaling */

static int no_fp8(void *dev, int scaling)
{
	(void)dev;
	asked = scaling;
	return te__fail(-EOPNOTSUPP, "FP8 GEMM: GPU 0 has no FP8 tensor cores");
}

/* on a device without FP8 GEMMs a plan with an op in FP8 fails, and one in BF16 trains */
TEST(recipe, fp8_is_refused_where_the_device_has_none)
{
	const struct te__backend_ops *ops = ctx->ops;
	struct te__backend_ops broken = *ops;
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_recipe recipe = TE_RECIPE_INIT;
	struct te_seq *seq = two(NULL, NULL), *mix = two(NULL, "fp8-block");
	struct te_plan *p = NULL;

	broken.fp8_gemm = no_fp8;
	ctx->ops = &broken;
	o.x = (struct te_spec){ TE_DTYPE_BF16, 2, { ROWS, WIDTH } };
	o.recipe = &recipe;
	DO(te_recipe_from_name("fp8-current", &recipe));
	fails(te_plan_create(seq, &o, &p), -EOPNOTSUPP, "has no FP8 tensor cores");
	DO(te_recipe_from_name("bf16", &recipe));
	fails(te_plan_create(mix, &o, &p), -EOPNOTSUPP, "has no FP8 tensor cores");
	ck_assert_ptr_null(p);
	DO(te_plan_create(seq, &o, &p));
	te_plan_unref(p);
	DO(te_recipe_from_name("mxfp8", &recipe));
	fails(te_plan_create(seq, &o, &p), -EOPNOTSUPP, "has no FP8 tensor cores");
	ck_assert_int_eq(asked, TE_SCALING_1X32);
	DO(te_recipe_from_name("nvfp4", &recipe));
	fails(te_plan_create(seq, &o, &p), -EOPNOTSUPP, "has no FP8 tensor cores");
	ck_assert_int_eq(asked, TE_SCALING_1X16);
	ctx->ops = ops;
	te_seq_unref(seq);
	te_seq_unref(mix);
}

static int op_once(void)
{
	const struct te_recipe recipe = TE_RECIPE_INIT;
	struct te_linear_attrs a = TE_ATTRS(linear, .in = 16, .out = 16, .recipe = &recipe);
	struct te_op *op = NULL;
	int r = te_op_linear(&a, "l", &op);

	te_op_unref(op);
	return r;
}

static int plan_once(void)
{
	static const char *const own[] = { "fp8-block", "fp8-delayed" };
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_ctx *own_ctx = NULL;
	struct te_seq *seq = NULL;
	struct te_plan *p = NULL;
	int r = tt_ctx_new(&own_ctx);

	if (r >= 0)
		r = te_seq_create(own_ctx, &seq);
	for (int k = 0; k < 2 && r >= 0; k++) {
		const struct te_recipe recipe = named(own[k]);
		struct te_linear_attrs a = TE_ATTRS(linear, .in = WIDTH, .out = WIDTH,
						    .recipe = &recipe);
		struct te_op *op = NULL;

		r = te_op_linear(&a, k ? "b" : "a", &op);
		if (r >= 0)
			r = te_seq_append(seq, op);
		te_op_unref(op);
	}
	if (r >= 0)
		r = te_seq_init(seq, 3);
	o.flags = TE_PLAN_TRAIN;
	o.x = (struct te_spec){ TE_DTYPE_BF16, 2, { ROWS, WIDTH } };
	if (r >= 0)
		r = te_plan_create(seq, &o, &p);
	te_plan_unref(p);
	te_seq_unref(seq);
	te_ctx_unref(own_ctx);
	return r;
}

CASE(recipe_faults, "fault");

TEST(recipe_faults, an_op_with_a_recipe_survives_every_fault)
{
	ck_assert_int_gt(tt_fault_each(op_once), 4);
}

TEST(recipe_faults, a_plan_of_two_recipes_survives_every_fault)
{
	ck_assert_int_gt(tt_fault_each(plan_once), 20);
}
