/*
 * t/quant/recipe.c - the table of recipes: a row that only this test has, "toy", trains a model
 * through plans and fusions; rows keep the rules of recipe.h; structs of other sizes are taken.
 */
#define TE_LOG_CATEGORY "core/quant"
#include "config.h"

#include <te/errno.h>

#include "../plan/plan_model.h"
#include "libtecore/quant/recipe.h"
#include "tt_ctx.h"

#define TOY ((enum te_recipe_kind)1000)

extern const struct te__recipe_ops te__recipe_toy;

/* the library's table with one more row, linked instead of the library's own */
#define TE__RECIPES_OF_A_TEST(X) X(toy)
#include "libtecore/quant/recipe.c"

static int nbegins, nupdates;

/* the scale is always 1: what the delayed recipe has until the first update */
static struct te__operand toy_operand(const struct te_recipe *r, enum te__role role)
{
	return (struct te__operand){ role == TE__ROLE_GRADIENT ? TE_DTYPE_E5M2 : TE_DTYPE_E4M3,
				     TE_SCALING_TENSOR, 0 };
}

static struct te__slot_words toy_words(const struct te_recipe *r)
{
	return (struct te__slot_words){ .nscale = 1 };
}

static int toy_begin(const struct te__quantize *z, struct te_k_q *ret_q)
{
	nbegins++;
	te__quantize_by_slot(z, ret_q);
	return 0;
}

static int toy_update(struct te_stream *stream, struct te_quant *q, int first, int count)
{
	(void)stream, (void)q, (void)first, (void)count;
	nupdates++;
	return 0;
}

const struct te__recipe_ops te__recipe_toy = {
	.name = "toy",
	.kind = TOY,
	.compute = TE_DTYPE_BF16,
	.operand = toy_operand,
	.words = toy_words,
	.begin = toy_begin,
	.update = toy_update,
};

static const struct model_shape gpt = { 40, 32, 2, 16, 4, 4, 2, 0.0f, 0 };
static const struct model_shape llama = { 40, 32, 2, 16, 4, 2, 2, 0.0f, 1 };

CTX_CASE(table, "host");

TEST_EACH(table, a_row_is_all_that_a_recipe_needs, 2)
{
	static const char *const names[2] = { "toy", "fp8-delayed" };
	const struct model_shape *m = _i ? &llama : &gpt;
	struct te_seq *seq[2];
	struct te_plan *p[2];
	char *text;
	void *blob;
	size_t n;

	nbegins = nupdates = 0;
	for (int k = 0; k < 2; k++) {
		seq[k] = model_create(ctx, m, 5);
		p[k] = model_plan(seq[k], m, names[k], TE_PLAN_TRAIN);
		model_feed(p[k], m);
	}
	/* the same data for both */
	for (int k = 0; k < 2; k++) {
		struct te_tensor *a = te_plan_input(p[0], k ? "targets" : "x");
		struct te_tensor *b = te_plan_input(p[1], k ? "targets" : "x");

		DO(te_copy(st, te_tensor_data(b), te_tensor_data(a), te_tensor_nbytes(a)));
	}
	for (int k = 0; k < 2; k++) {
		DO(te_seq_zero_grads(seq[k], st));
		DO(te_plan_forward(p[k], st, 0));
		if (!k)
			ck_assert_int_eq(nupdates, 1);
	}
	/* the delayed recipe's forward scales have changed by now, after all casts of this step */
	ck_assert_float_eq(model_loss(p[0]), model_loss(p[1]));
	DO(te_plan_backward(p[0], st));
	ck_assert_int_eq(nupdates, 2);
	DO(te_plan_backward(p[1], st));
	model_same(te_seq_grads(seq[0]), te_seq_grads(seq[1]), "gradients");
	ck_assert_int_gt(nbegins, 0);

	DO(te_plan_print(p[0], TE_PLAN_TEXT, &text));
	ck_assert_ptr_nonnull(strstr(text, "recipe toy"));
	ck_assert_ptr_nonnull(strstr(text, "norm+quantize"));
	free(text);
	n = te_quant_nbytes(te_seq_quant(seq[0]));
	blob = malloc(n);
	DO(te_quant_save(te_seq_quant(seq[0]), blob, n));
	DO(te_quant_load(te_seq_quant(seq[0]), blob, n));
	ck_assert_int_eq(te_quant_load(te_seq_quant(seq[1]), blob, n), -EINVAL);
	tt_said("recipe toy");
	free(blob);
	tt_drop_both(p, seq);
}

TEST(table, rows_are_whole)
{
	for (size_t i = 0; i < NROWS; i++) {
		const struct te__recipe_ops *row = rows[i];
		struct te_recipe r = TE_RECIPE_INIT;
		struct te__operand op[3];
		enum te_dtype dtype;

		DO(te_recipe_from_name(row->name, &r));
		ck_assert_int_eq(r.kind, row->kind);
		ck_assert_int_eq(r.compute, row->compute);
		ck_assert_ptr_eq(te__recipe_row(&r), row);
		ck_assert_str_eq(te_recipe_name(&r), row->name);
		DO(te__recipe_check("test", &r));
		for (int role = 0; role < 3; role++)
			op[role] = te__recipe_operand(&r, role);
		ck_assert_int_eq(te__recipe_casts(&r), row->operand != NULL);
		if (!row->operand) {
			ck_assert_int_eq(op[TE__ROLE_WEIGHT].dtype, row->compute);
			ck_assert(!row->begin && !row->keeps_x && !row->update && !row->words);
			continue;
		}
		ck_assert_ptr_nonnull(row->begin);
		dtype = row->kind == TE_RECIPE_NVFP4 ? TE_DTYPE_E2M1 : TE_DTYPE_E4M3;
		ck_assert_int_eq(op[TE__ROLE_ACTIVATION].dtype, dtype);
		ck_assert_int_eq(op[TE__ROLE_WEIGHT].dtype, dtype);
		/* the compute dtype does not matter to a recipe that casts */
		r.compute = TE_DTYPE_FP32;
		ck_assert_str_eq(te_recipe_name(&r), row->name);
	}
}

TEST(table, names_are_those_of_the_header)
{
	char text[256] = "";
	size_t n = 0;

	for (size_t i = 0; i < NROWS; i++)
		if (rows[i]->kind != TOY)
			n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%s", n ? "|" : "",
					      rows[i]->name);
	ck_assert_str_eq(text, TE_RECIPE_NAMES);
}

TEST(table, unknown_names_are_refused)
{
	struct te_recipe r = TE_RECIPE_INIT;

	fails(te_recipe_from_name("fp4", &r), -EINVAL,
	      "there is no recipe \"fp4\": fp32, bf16, fp8-delayed, fp8-current, fp8-block, "
	      "mxfp8, nvfp4");
	r.size = 0;
	fails(te_recipe_from_name("bf16", &r), -EINVAL, "TE_RECIPE_INIT");
	fails(te_recipe_from_name("bf16", NULL), -EINVAL, "no struct te_recipe");
}

TT_MAIN("quant/recipe", TT_ONE_PROCESS)
