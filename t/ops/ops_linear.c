/* t/ops/ops_linear.c - linear under the recipes: its operands, its shapes, tied weights. */
#include "config.h"

#include <math.h>

#include <te/errno.h>

#include "op_cases.h"
#include "tt_ctx.h"
#include "tt_num.h"

static const char *const linear_recipes[] = { "bf16", "fp8-delayed", "fp8-current",
						    "fp8-block", "fp8-block" };

struct operand {
	float *v;
	int64_t rows, cols;
	int t; /* stored [k, rows] */
};

static double at(const struct operand *o, int64_t row, int64_t k)
{
	return o->v[o->t ? k * o->cols + row : row * o->cols + k];
}

/*
 * The GEMM of the operands that were really used: FP8 codes are dequantized (exactly: scale-inverse
 * times a code of at most 4 bits has FP32's bits, up to one rounding). FP32 sums of K terms:
 * (K + 4) 2^-24 of the sum of magnitudes; a BF16 result is rounded once more, by up to 2^-8 of it.
 */
static void ck_product(const char *what, struct operand a, struct operand b, int64_t k,
		       const struct te_tensor *d, double before)
{
	int64_t m = a.t ? a.cols : a.rows, n = b.t ? b.cols : b.rows;
	float *got = tt_tensor_get(d);

	ck_assert_int_eq(te_tensor_nelems(d), m * n);
	for (int64_t i = 0; i < m; i++)
		for (int64_t j = 0; j < n; j++) {
			double sum = 0, mag = 0, bound;

			for (int64_t p = 0; p < k; p++) {
				sum += at(&a, i, p) * at(&b, j, p);
				mag += fabs(at(&a, i, p) * at(&b, j, p));
			}
			sum += before;
			bound = (double)(k + 4) * ldexp(mag + fabs(before), -24);
			if (te_tensor_dtype(d) == TE_DTYPE_BF16)
				bound += ldexp(fabs(sum), -8) * 1.01;
			ck_assert_msg(fabs(got[i * n + j] - sum) <= bound,
				      "%s [%lld,%lld] is %.9g, not %.9g +- %.3g", what,
				      (long long)i, (long long)j, (double)got[i * n + j], sum,
				      bound);
		}
	free(got);
}

/* the operand that a GEMM reads: one of the FP8 copies, or the full-precision value */
static struct operand operand(const struct te_op_value *v, const struct te_tensor *master, int t)
{
	const struct te_tensor *hp = v->q ? v->q : v->hp ? v->hp : master;

	return (struct operand){ v->q ? op_run_get_fp8(v->q, t) : tt_tensor_get(hp),
				 te_tensor_rows(hp), te_tensor_cols(hp), t };
}

CTX_CASE(linear, "host numeric");

TEST_EACH(linear, linear_multiplies_what_the_recipe_gives, TT_LEN(linear_recipes))
{
	/* the last has several blocks each way, of which some are not whole */
	const int large = _i == TT_LEN(linear_recipes) - 1;
	const int64_t rows = large ? 144 : 48, in = large ? 272 : 32, out = large ? 400 : 80;
	struct op_case k = { .name = "linear",
			     .in = { { TE_DTYPE_FP32, 3, { 2, rows / 2, in } } } };
	struct te_linear_attrs a = TE_ATTRS(linear, in, out, 0.02f, 0, NULL);
	const char *recipe = linear_recipes[_i];
	struct operand x, w, dy, dyt, xt, wt;
	struct te_op *op;
	struct op_run r;

	DO(te_op_linear(&a, "linear", &op));
	op_case_init(&k, &r, ctx, op, recipe);
	ck_assert_int_eq(r.inf.weight_forms[0],
			 _i ? (int)(TE_FORM_ROW | TE_FORM_COL) : (int)TE_FORM_HP);
	DO(te_fill_u32(r.stream, te_tensor_data(r.call.grad[0]), 0x3f800000,
		       te_tensor_nbytes(r.call.grad[0])));
	op_run_forward(&r);
	op_run_backward(&r);
	op_run_dw(&r);
	x = operand(&r.call.x, NULL, 0);
	xt = operand(&r.call.x, NULL, 1);
	w = operand(&r.call.weight[0], r.call.master[0], 0);
	wt = operand(&r.call.weight[0], r.call.master[0], 1);
	dy = operand(&r.call.dy, NULL, 0);
	dyt = operand(&r.call.dy, NULL, 1);
	ck_product("y", x, w, in, r.call.y.hp, 0);
	ck_product("dx", dy, wt, out, r.call.dx.hp, 0);
	ck_product("dw", dyt, xt, rows, r.call.grad[0], 1);
	free(x.v);
	free(xt.v);
	free(w.v);
	free(wt.v);
	free(dy.v);
	free(dyt.v);
	op_run_fini(&r);
	te_op_unref(op);
}

CASE(linear_shapes, "host");

TEST(linear_shapes, linear_keeps_full_precision_when_told)
{
	/* no multiple of 16, and no need */
	struct te_linear_attrs a = TE_ATTRS(linear, 7, 5, 0.02f, 1, NULL);
	struct te_spec in = op_run_spec(TE_DTYPE_BF16, 2, 3, 7, 0);
	struct te_recipe rec = op_run_recipe("fp8-current");
	struct te_op_infer inf;
	struct te_op *op;

	DO(te_op_linear(&a, "head", &op));
	DO(te__infer(op, &rec, TE_INFER_TRAIN, &in, &inf));
	ck_assert_uint_eq(inf.fwd_x, TE_FORM_HP);
	ck_assert_uint_eq(inf.bwd_dy, TE_FORM_HP);
	ck_assert_uint_eq(inf.dw_x, TE_FORM_HP);
	ck_assert_uint_eq(inf.dw_dy, TE_FORM_HP);
	ck_assert_uint_eq(inf.weight_forms[0], TE_FORM_HP);
	te__infer_free(&inf);
	te_op_unref(op);
}

TEST(linear_shapes, tied_linear_keeps_its_embedding_alive)
{
	struct te_embedding_attrs e = TE_ATTRS(embedding, 12, 6, 0, 0.02f, 0);
	struct te_linear_attrs a = TE_ATTRS(linear, 6, 12, 0.02f, 1, NULL);
	struct te_op *emb, *op, *bad;
	char text[128];

	DO(te_op_embedding(&e, "emb", &emb));
	a.tied_op = emb;
	DO(te_op_linear(&a, "head", &op));
	te_op_unref(emb);
	ck_assert_int_eq(op->nweights, 1);
	ck_assert_str_eq(te_op_name(op->decl[0].tied_op), "emb");
	ck_assert_int_eq(op->decl[0].tied_index, 0);
	ck_assert_int_gt(te_op_table(op)->describe(op, text, sizeof(text)), 0);
	ck_assert_msg(strstr(text, "tied to emb") != NULL, "%s", text);
	a.out = 13;
	ck_assert_int_eq(te_op_linear(&a, "other", &bad), -EINVAL);
	tt_said("[12,6]");
	a.out = 12;
	a.in = 7;
	ck_assert_int_eq(te_op_linear(&a, "other", &bad), -EINVAL);
	tt_said("a table of [12,6], not [12,7]");
	a.tied_op = op;
	ck_assert_int_eq(te_op_linear(&a, "other", &bad), -EINVAL);
	tt_said("no embedding");
	te_op_unref(op);
}
