/* t/ops/ops.c - the built-in ops on the host backend: values, gradients, shapes, attributes. */
#include "config.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <te/errno.h>
#include <te/plan.h>
#include "libtecore/base/private.h"
#include "libtecore/plan/plan.h"

#include "op_cases.h"
#include "tt_ctx.h"
#include "tt_num.h"

static double *doubles(const struct te_tensor *t)
{
	size_t n = (size_t)te_tensor_nelems(t);
	double *d = malloc(n * sizeof(*d));
	float *v = tt_tensor_get(t);

	for (size_t i = 0; i < n; i++)
		d[i] = v[i];
	free(v);
	return d;
}

static size_t len(const struct te_tensor *t)
{
	return (size_t)te_tensor_nelems(t);
}

/* ---- values and gradients against FP64 ---- */

struct fp64 {
	const struct op_case *k;
	const struct op_run *r;
	double *x, *ex, *w[MOST], *dy, *y;
	size_t ny;
};

/* what the gradients are of */
static double objective(struct fp64 *f)
{
	double sum = 0;

	f->k->ref(f->r, f->x, f->ex, f->w, f->y);
	for (size_t i = 0; i < f->ny; i++)
		sum += f->dy[i] * f->y[i];
	return sum;
}

static double derivative(struct fp64 *f, double *at)
{
	const double was = *at, h = 1e-5;
	double up, down;

	*at = was + h;
	up = objective(f);
	*at = was - h;
	down = objective(f);
	*at = was;
	return (up - down) / (2 * h);
}

/* the finite difference itself is good to 1e-8: h^2 f'''/6 and 2^-53 |f| / h */
static void ck_near(const struct op_case *k, const char *what, const double *got,
		    const double *want, size_t n)
{
	double most = 0, bound;

	for (size_t i = 0; i < n; i++)
		most = fmax(most, fabs(want[i]));
	bound = k->depth * ldexp(most, -24) + 1e-8;
	for (size_t i = 0; i < n; i++)
		ck_assert_msg(fabs(got[i] - want[i]) <= bound, "%s: %s[%zu] is %.9g, not %.9g",
			      k->name, what, i, got[i], want[i]);
}

static void ck_gradient(struct fp64 *f, const char *what, const struct te_tensor *got, double *of,
			const double *plus, double before)
{
	double *g = doubles(got), *want = malloc(len(got) * sizeof(*want));

	for (size_t i = 0; i < len(got); i++)
		want[i] = derivative(f, &of[i]) + (plus ? plus[i] : 0) + before;
	ck_near(f->k, what, g, want, len(got));
	free(g);
	free(want);
}

START_TEST(matches_fp64_forward_and_backward)
{
	const struct op_case *k = &op_cases[_i];
	struct te_op *op = op_case_create(k);
	double *got, *dey = NULL;
	struct fp64 f = { .k = k };
	struct op_run r;

	op_case_init(k, &r, ctx, op, "fp32");
	f.r = &r;
	f.x = doubles(r.call.x.hp);
	f.ex = r.ops->nextra_in ? doubles(r.call.ex[0].hp) : NULL;
	f.ny = len(r.call.y.hp);
	f.y = malloc(f.ny * sizeof(*f.y));
	f.dy = doubles(r.call.dy.hp);
	if (!r.inf.bwd_dy)
		f.dy[0] = (double)k->a.ce.grad_scale;
	if (r.ops->nextra_out)
		dey = doubles(r.call.dey[0].hp);
	for (int i = 0; i < r.op->nweights; i++) {
		f.w[i] = doubles(r.call.master[i]);
		/* gradients are added to what is there */
		DO(te_fill_u32(r.stream, te_tensor_data(r.call.grad[i]), 0x3f000000,
			       te_tensor_nbytes(r.call.grad[i])));
	}

	op_run_forward(&r);
	objective(&f);
	got = doubles(op_run_y(&r));
	ck_near(k, "y", got, f.y, f.ny);
	free(got);

	op_run_backward(&r);
	op_run_dw(&r);
	if (!r.inf.no_dx)
		ck_gradient(&f, "dx", op_run_dx(&r), f.x, dey, 0);
	if (f.ex && r.inf.in[1].dtype != TE_DTYPE_INT32)
		ck_gradient(&f, "dex", op_run_dex(&r, 0), f.ex, NULL, 0);
	for (int i = 0; i < r.op->nweights; i++)
		ck_gradient(&f, r.op->decl[i].name, r.call.grad[i], f.w[i], NULL, 0.5);

	for (int i = 0; i < r.op->nweights; i++)
		free(f.w[i]);
	free(f.x);
	free(f.ex);
	free(f.y);
	free(f.dy);
	free(dey);
	op_run_fini(&r);
	te_op_unref(op);
}
END_TEST

/*
 * BF16 against FP64 on the rounded inputs: the FP32 bound of the case, and one rounding to BF16
 * of the result, up to 2^-8 of it; weight gradients stay FP32.
 */
START_TEST(computes_in_bf16_with_one_rounding)
{
	const struct op_case *k = &op_cases[_i];
	struct te_op *op = op_case_create(k);
	struct fp64 f = { .k = k };
	struct op_run r;
	double *got, most = 0;

	op_case_init(k, &r, ctx, op, "bf16");
	ck_assert_int_eq(r.inf.out[0].dtype,
			 r.ops->nextra_in && r.inf.in[1].dtype == TE_DTYPE_INT32 ? TE_DTYPE_FP32 :
										    TE_DTYPE_BF16);
	op_run_forward(&r);
	f.r = &r;
	f.x = doubles(r.call.x.hp);
	f.ex = r.ops->nextra_in ? doubles(r.call.ex[0].hp) : NULL;
	for (int i = 0; i < r.op->nweights; i++)
		f.w[i] = doubles(r.call.weight[i].hp ? r.call.weight[i].hp : r.call.master[i]);
	f.ny = len(r.call.y.hp);
	f.y = malloc(f.ny * sizeof(*f.y));
	k->ref(&r, f.x, f.ex, f.w, f.y);
	got = doubles(op_run_y(&r));
	for (size_t i = 0; i < f.ny; i++)
		most = fmax(most, fabs(f.y[i]));
	for (size_t i = 0; i < f.ny; i++)
		ck_assert_msg(fabs(got[i] - f.y[i]) <=
				      k->depth * ldexp(most, -24) * 1.01 + ldexp(fabs(f.y[i]), -8),
			      "%s: y[%zu] is %.9g, not %.9g", k->name, i, got[i], f.y[i]);
	op_run_backward(&r);
	op_run_dw(&r);
	for (int i = 0; i < r.op->nweights; i++) {
		free(f.w[i]);
		f.w[i] = doubles(r.call.grad[i]);
		for (size_t j = 0; j < len(r.call.grad[i]); j++)
			ck_assert_msg(isfinite(f.w[i][j]), "%s: %s", k->name, r.op->decl[i].name);
		free(f.w[i]);
	}
	free(got);
	free(f.x);
	free(f.ex);
	free(f.y);
	op_run_fini(&r);
	te_op_unref(op);
}
END_TEST

/* ---- linear under the other recipes ---- */

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

START_TEST(linear_multiplies_what_the_recipe_gives)
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
END_TEST

START_TEST(linear_keeps_full_precision_when_told)
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
END_TEST

START_TEST(linear_needs_multiples_of_16_for_fp8)
{
	static const struct {
		int64_t rows, in, out;
		const char *words;
	} bad[] = {
		{ 24, 32, 16, "24 rows" },
		{ 16, 24, 16, "in 24" },
		{ 16, 16, 40, "out 40" },
	};
	struct te_recipe rec = op_run_recipe(linear_recipes[1 + _i / 3]);
	struct te_linear_attrs a = TE_ATTRS(linear, bad[_i % 3].in, bad[_i % 3].out, 0.02f, 0,
					    NULL);
	struct te_spec in = op_run_spec(TE_DTYPE_BF16, 3, bad[_i % 3].rows / 8, 8, bad[_i % 3].in);
	struct te_op_infer inf;
	struct te_op *op;

	DO(te_op_linear(&a, "h.0.up", &op));
	ck_assert_int_eq(te__infer(op, &rec, TE_INFER_TRAIN, &in, &inf), -TE_ESHAPE);
	tt_said("h.0.up");
	tt_said(bad[_i % 3].words);
	te__infer_free(&inf);
	te_op_unref(op);
}
END_TEST

START_TEST(tied_linear_keeps_its_embedding_alive)
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
END_TEST

/* ---- dropout ---- */

static float *drop(struct op_run *r, struct te_tensor *t)
{
	op_run_forward(r);
	return tt_tensor_get(t);
}

START_TEST(dropout_draws_one_mask_a_step_and_op)
{
	struct te_dropout_attrs a = TE_ATTRS(dropout, .p = 0.4f);
	struct op_case k = { .in = { { TE_DTYPE_FP32, 2, { 61, 67 } } } };
	const size_t n = 61 * 67;
	float *first, *again, *other, *dx, *ones;
	size_t kept = 0, differ = 0;
	struct te_op *op;
	struct op_run r;

	DO(te_op_dropout(&a, "drop", &op));
	op_case_init(&k, &r, ctx, op, "fp32");
	ones = malloc(n * sizeof(*ones));
	for (size_t i = 0; i < n; i++)
		ones[i] = 1;
	tt_tensor_set(r.call.x.hp, ones);
	tt_tensor_set(r.call.dy.hp, ones);
	first = drop(&r, r.call.y.hp);
	again = drop(&r, r.call.y.hp);
	ck_assert_mem_eq(first, again, n * sizeof(*first));
	op_run_backward(&r);
	dx = tt_tensor_get(r.call.dx.hp);
	ck_assert_mem_eq(first, dx, n * sizeof(*first));
	for (size_t i = 0; i < n; i++)
		kept += first[i] != 0;
	/* binomial: 5 deviations of sqrt(n p q) */
	ck_assert_msg(fabs((double)kept - 0.6 * n) < 5 * sqrt(0.24 * n),
		      "%zu of %zu kept", kept, n);
	for (int i = 0; i < 2; i++) {
		if (i)
			op_run_seed(&r, tt_seed(), 4); /* the next step */
		else
			r.call.tag++; /* another op */
		other = drop(&r, r.call.y.hp);
		differ = 0;
		for (size_t j = 0; j < n; j++)
			differ += (other[j] != 0) != (first[j] != 0);
		ck_assert_msg(fabs((double)differ - 0.48 * n) < 5 * sqrt(0.25 * n),
			      "%zu of %zu differ", differ, n);
		free(other);
	}
	/* evaluation keeps all */
	r.call.flags = 0;
	other = drop(&r, r.call.y.hp);
	ck_assert_mem_eq(other, ones, n * sizeof(*ones));
	free(other);
	free(first);
	free(again);
	free(dx);
	free(ones);
	op_run_fini(&r);
	te_op_unref(op);
}
END_TEST

START_TEST(dropout_of_nothing_is_its_input)
{
	struct te_dropout_attrs none = TE_ATTRS(dropout, .p = 0);
	struct te_dropout_attrs some = TE_ATTRS(dropout, .p = 0.5f);
	struct te_recipe rec = op_run_recipe("fp32");
	struct te_spec in = op_run_spec(TE_DTYPE_FP32, 2, 3, 5, 0);
	struct te_op_infer inf;
	struct te_op *op;

	DO(te_op_dropout(&none, "none", &op));
	DO(te__infer(op, &rec, TE_INFER_TRAIN, &in, &inf));
	ck_assert_int_eq(inf.out_alias[0], 0);
	ck_assert_int_eq(inf.dx_alias, 0);
	ck_assert_int_eq(inf.uses_rng, 0);
	te__infer_free(&inf);
	te_op_unref(op);
	DO(te_op_dropout(&some, "some", &op));
	DO(te__infer(op, &rec, 0, &in, &inf));
	ck_assert_int_eq(inf.out_alias[0], 0);
	te__infer_free(&inf);
	DO(te__infer(op, &rec, TE_INFER_TRAIN, &in, &inf));
	ck_assert_int_eq(inf.out_alias[0], -1);
	ck_assert_int_eq(inf.uses_rng, 1);
	te__infer_free(&inf);
	te_op_unref(op);
}
END_TEST

START_TEST(attention_drops_only_in_training)
{
	struct te_attention_attrs a = TE_ATTRS(attention, 2, 2, 5, 0, 0.5f, 0, 0, 0);
	struct op_case k = { .in = { { TE_DTYPE_FP32, 3, { 1, 7, 30 } } } };
	struct op_run r, plain;
	struct te_op *op, *dry;
	float *y, *want, *x;

	DO(te_op_attention(&a, "attn", &op));
	a.dropout = 0;
	DO(te_op_attention(&a, "dry", &dry));
	op_case_init(&k, &r, ctx, op, "fp32");
	op_case_init(&k, &plain, ctx, dry, "fp32");
	x = tt_tensor_get(r.call.x.hp);
	tt_tensor_set(plain.call.x.hp, x);
	op_run_forward(&plain);
	want = tt_tensor_get(plain.call.y.hp);
	op_run_forward(&r);
	y = tt_tensor_get(r.call.y.hp);
	ck_assert_int_ne(memcmp(y, want, 70 * sizeof(*y)), 0);
	free(y);
	r.call.flags = 0;
	op_run_forward(&r);
	y = tt_tensor_get(r.call.y.hp);
	ck_assert_mem_eq(y, want, 70 * sizeof(*y));
	free(y);
	free(want);
	free(x);
	op_run_fini(&r);
	op_run_fini(&plain);
	te_op_unref(op);
	te_op_unref(dry);
}
END_TEST

/* ---- attributes and shapes ---- */

struct bad {
	int (*create)(const struct op_case *k, struct te_op **ret_op);
	const char *words[2]; /* that the message contains */
	union {
		struct te_embedding_attrs embedding;
		struct te_linear_attrs linear;
		struct te_bias_attrs bias;
		struct te_norm_attrs norm;
		struct te_act_attrs act;
		struct te_rope_attrs rope;
		struct te_attention_attrs attention;
		struct te_dropout_attrs dropout;
		struct te_scale_attrs scale;
		struct te_reshape_attrs reshape;
		struct te_quantize_attrs quantize;
		struct te_cross_entropy_attrs ce;
	} a;
};

#define MAKE(op)                                                            \
	static int bad_##op(const struct op_case *k, struct te_op **ret_op) \
	{                                                                   \
		return te_op_##op((const void *)&k->a, "odd", ret_op);      \
	}
MAKE(embedding)
MAKE(linear)
MAKE(bias)
MAKE(layernorm)
MAKE(rmsnorm)
MAKE(activation)
MAKE(rope)
MAKE(attention)
MAKE(dropout)
MAKE(scale)
MAKE(reshape)
MAKE(quantize)
MAKE(cross_entropy)

static const struct bad bad[] = {
	{ bad_embedding, { "embedding odd", "vocab is 0" }, .a.embedding = TE_ATTRS(embedding, 0, 4,
								0, 1, 0) },
	{ bad_embedding, { "embedding odd", "vocab" }, .a.embedding = TE_ATTRS(embedding, 1ll << 31,
								4, 0, 1, 0) },
	{ bad_embedding, { "embedding odd", "width is -1" }, .a.embedding = TE_ATTRS(embedding, 4,
								-1, 0, 1, 0) },
	{ bad_embedding, { "embedding odd", "max_pos is -2" }, .a.embedding = TE_ATTRS(embedding, 4,
								4, -2, 1, 0) },
	{ bad_embedding, { "embedding odd", "init_std" }, .a.embedding = TE_ATTRS(embedding, 4, 4,
								0, -1, 0) },
	{ bad_linear, { "linear odd", "in is 0" }, .a.linear = TE_ATTRS(linear, 0, 4, 1, 0, NULL) },
	{ bad_linear, { "linear odd", "out is 0" }, .a.linear = TE_ATTRS(linear, 4, 0, 1, 0,
								NULL) },
	{ bad_linear, { "linear odd", "init_std is nan" }, .a.linear = TE_ATTRS(linear, 4, 4, NAN,
								0, NULL) },
	{ bad_linear, { "linear odd", "keep_hp is 2" }, .a.linear = TE_ATTRS(linear, 4, 4, 1, 2,
								NULL) },
	{ bad_bias, { "bias odd", "width is 0" }, .a.bias = TE_ATTRS(bias, 0) },
	{ bad_layernorm, { "layernorm odd", "width is 0" }, .a.norm = TE_ATTRS(norm, 0, 1e-5f, 0) },
	{ bad_layernorm, { "layernorm odd", "eps is -1" }, .a.norm = TE_ATTRS(norm, 4, -1, 0) },
	{ bad_rmsnorm, { "rmsnorm odd", "eps is inf" }, .a.norm = TE_ATTRS(norm, 4, INFINITY, 0) },
	{ bad_rmsnorm, { "rmsnorm odd", "flags 0x4" }, .a.norm = TE_ATTRS(norm, 4, 1e-5f, 4) },
	{ bad_activation, { "activation odd", "act is 6" }, .a.act = TE_ATTRS(act, TE_ACT_COUNT,
								0) },
	{ bad_activation, { "activation odd", "gated is 3" }, .a.act = TE_ATTRS(act, TE_ACT_SILU,
								3) },
	{ bad_rope, { "rope odd", "nheads is 0" }, .a.rope = TE_ATTRS(rope, 0, 1, 4, 1e4f) },
	{ bad_rope, { "rope odd", "nkv is 0" }, .a.rope = TE_ATTRS(rope, 1, 0, 4, 1e4f) },
	{ bad_rope, { "rope odd", "head_dim is 5" }, .a.rope = TE_ATTRS(rope, 1, 1, 5, 1e4f) },
	{ bad_rope, { "rope odd", "head_dim is 130" }, .a.rope = TE_ATTRS(rope, 1, 1, 130, 1e4f) },
	{ bad_rope, { "rope odd", "theta is 0" }, .a.rope = TE_ATTRS(rope, 1, 1, 4, 0) },
	{ bad_attention, { "attention odd", "nheads is 0" }, .a.attention = TE_ATTRS(attention, 0,
								1, 4, 0, 0, 0, 0, 0) },
	{ bad_attention, { "attention odd", "no multiple" }, .a.attention = TE_ATTRS(attention, 4,
								3, 4, 0, 0, 0, 0, 0) },
	{ bad_attention, { "attention odd", "nkv 0" }, .a.attention = TE_ATTRS(attention, 4, 0, 4,
								0, 0, 0, 0, 0) },
	{ bad_attention, { "attention odd", "head_dim is 129" },
	  .a.attention = TE_ATTRS(attention, 1, 1, 129, 0, 0, 0, 0, 0) },
	{ bad_attention, { "attention odd", "scale is -1" }, .a.attention = TE_ATTRS(attention, 1,
								1, 4, -1, 0, 0, 0, 0) },
	{ bad_attention, { "attention odd", "dropout is 1" }, .a.attention = TE_ATTRS(attention, 1,
								1, 4, 0, 1, 0, 0, 0) },
	{ bad_attention, { "attention odd", "4 heads from number 1 on, of 4" },
	  .a.attention = TE_ATTRS(attention, 4, 2, 4, 0, 0, 0, 1, 0) },
	{ bad_attention, { "attention odd", "4 heads from number 5 on, of 8" },
	  .a.attention = TE_ATTRS(attention, 4, 2, 4, 0, 0, 0, 5, 8) },
	{ bad_attention, { "attention odd", "4 heads from number -1 on, of 8" },
	  .a.attention = TE_ATTRS(attention, 4, 2, 4, 0, 0, 0, -1, 8) },
	{ bad_attention, { "attention odd", "tag is -1" },
	  .a.attention = TE_ATTRS(attention, 4, 2, 4, 0, 0, -1, 0, 8) },
	{ bad_dropout, { "dropout odd", "tag is 2147483648" },
	  .a.dropout = TE_ATTRS(dropout, 0.5f, INT64_C(1) << 31, 0, 0, 0) },
	{ bad_dropout, { "dropout odd", "part 3 of 3" },
	  .a.dropout = TE_ATTRS(dropout, 0.5f, 0, 0, 3, 3) },
	{ bad_dropout, { "dropout odd", "part 1 of 1" },
	  .a.dropout = TE_ATTRS(dropout, 0.5f, 0, 0, 0, 1) },
	{ bad_dropout, { "dropout odd", "axis is 8, not 0 to 7" },
	  .a.dropout = TE_ATTRS(dropout, 0.5f, 0, 8, 2, 1) },
	{ bad_dropout, { "dropout odd", "p is 1" }, .a.dropout = TE_ATTRS(dropout, .p = 1) },
	{ bad_dropout, { "dropout odd", "p is 0.999999" },
	  .a.dropout = TE_ATTRS(dropout, .p = 0.999999f) },
	{ bad_scale, { "scale odd", "factor is nan" }, .a.scale = TE_ATTRS(scale, NAN) },
	{ bad_scale, { "scale odd", "factor is -inf" }, .a.scale = TE_ATTRS(scale, -INFINITY) },
	{ bad_reshape, { "reshape odd", "ndim is -1" }, .a.reshape = TE_ATTRS(reshape, -1, { 1 }) },
	{ bad_reshape, { "reshape odd", "ndim is 9" }, .a.reshape = TE_ATTRS(reshape, 9, { 1 }) },
	{ bad_reshape, { "reshape odd", "extent 1 is 0" }, .a.reshape = TE_ATTRS(reshape, 2,
								{ 4, 0 }) },
	{ bad_reshape, { "reshape odd", "extent 0 is -2" }, .a.reshape = TE_ATTRS(reshape, 1,
								{ -2 }) },
	{ bad_reshape, { "reshape odd", "2 extents are -1" }, .a.reshape = TE_ATTRS(reshape, 3,
								{ -1, 2, -1 }) },
	{ bad_quantize, { "fake_quantize odd", "forward is 2" }, .a.quantize = TE_ATTRS(quantize, 2,
								1) },
	{ bad_quantize, { "fake_quantize odd", "backward is -1" }, .a.quantize = TE_ATTRS(quantize,
								0, -1) },
	{ bad_dropout, { "dropout odd", "p is -0.1" }, .a.dropout = TE_ATTRS(dropout, .p = -0.1f) },
	{ bad_dropout, { "dropout odd", "p is nan" }, .a.dropout = TE_ATTRS(dropout, .p = NAN) },
	{ bad_dropout, { "dropout odd", "p is inf" },
	  .a.dropout = TE_ATTRS(dropout, .p = INFINITY) },
	{ bad_cross_entropy, { "cross_entropy odd", "nclasses is 0" },
	  .a.ce = TE_ATTRS(cross_entropy, 0, 0, 1) },
	{ bad_cross_entropy, { "cross_entropy odd", "grad_scale is inf" },
	  .a.ce = TE_ATTRS(cross_entropy, 4, 0, INFINITY) },
};

START_TEST(names_the_op_and_the_attribute_at_fault)
{
	struct op_case k = { 0 };
	struct te_op *op = (void *)&k;

	memcpy(&k.a, &bad[_i].a, sizeof(bad[_i].a));
	ck_assert_int_eq(bad[_i].create(&k, &op), -EINVAL);
	ck_assert_ptr_eq(op, (void *)&k); /* outputs are written on success only */
	tt_said(bad[_i].words[0]);
	tt_said(bad[_i].words[1]);
}
END_TEST

START_TEST(needs_attributes_and_a_name)
{
	struct te_bias_attrs a = TE_ATTRS(bias, 3);
	struct te_op *op;

	ck_assert_int_eq(te_op_bias(NULL, "b", &op), -EINVAL);
	ck_assert_int_eq(te_op_bias(&a, NULL, &op), -EINVAL);
	ck_assert_int_eq(te_op_bias(&a, "", &op), -EINVAL);
	ck_assert_int_eq(te_op_bias(&a, "b", NULL), -EINVAL);
	ck_assert_int_eq(te_op_fork(NULL, &op), -EINVAL);
}
END_TEST

/* ---- the cast that is an op ---- */

static const char *const cast_recipes[] = { "fp32", "bf16", "fp8-delayed", "fp8-current",
					    "fp8-block" };
#define NCASTS ((int)TT_LEN(cast_recipes))

/* t after a cast by the slot and back, by the calls; a recipe without FP8: as it is */
static float *cast_and_back(struct te_quant *quant, int slot, const struct te_tensor *t)
{
	struct te_tensor_opts o = TE_TENSOR_OPTS_INIT;
	const int64_t shape[] = { te_tensor_rows(t), te_tensor_cols(t) };
	struct te_tensor *q, *back;
	float *v;

	if (!quant)
		return tt_tensor_get(t);
	o.flags = TE_TENSOR_ROWWISE;
	if (te_quant_recipe(quant)->kind == TE_RECIPE_BLOCK)
		o.scaling = TE_SCALING_1X128;
	DO(te_tensor_create(ctx, te_quant_dtype(quant, slot), 2, shape, &o, &q));
	DO(te_tensor_create(ctx, te_tensor_dtype(t), 2, shape, NULL, &back));
	DO(te_quantize(st, quant, slot, t, q, NULL, 0));
	DO(te_dequantize(st, q, back));
	DO(te_stream_sync(st));
	v = tt_tensor_get(back);
	te_tensor_unref(q);
	te_tensor_unref(back);
	return v;
}

static void ck_values(struct te_tensor *got, float *want)
{
	float *v = tt_tensor_get(got);

	ck_assert_mem_eq(v, want, (size_t)te_tensor_nelems(got) * sizeof(*v));
	free(v);
	free(want);
}

/* _i: recipe, forward, backward. Two steps: delayed scales change */
START_TEST(quantize_is_a_cast_and_back)
{
	const struct te_recipe rec = op_run_recipe(cast_recipes[_i % NCASTS]);
	const struct te_quantize_attrs a =
		TE_ATTRS(quantize, _i / NCASTS & 1, _i / NCASTS >> 1 & 1);
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_quant *mine = NULL, *quant;
	enum te_dtype dtypes[2];
	float x[35], dy[35], *y, *dx;
	struct te_seq *seq;
	struct te_plan *p;
	struct te_op *op;

	DO(te_seq_create(ctx, &seq));
	DO(te_op_quantize(&a, "q", &op));
	DO(te_seq_append(seq, op));
	te_op_unref(op);
	/* so that the output is no input */
	DO(te_op_scale(&(struct te_scale_attrs)TE_SCALE_ATTRS_INIT, "s", &op));
	DO(te_seq_append(seq, op));
	te_op_unref(op);
	DO(te_seq_init(seq, 1));
	o.recipe = &rec;
	o.flags = TE_PLAN_TRAIN | TE_PLAN_INPUT_GRAD;
	o.x = (struct te_spec){ rec.compute, 2, { 5, 7 } };
	DO(te_plan_create(seq, &o, &p));
	quant = te_seq_quant(seq);
	ck_assert_int_eq(quant != NULL, rec.kind != TE_RECIPE_NONE);
	if (quant) {
		dtypes[0] = te_quant_dtype(quant, 0); /* of the op's input, and of its gradient */
		dtypes[1] = te_quant_dtype(quant, 4);
		DO(te_quant_create(ctx, &rec, 2, dtypes, &mine));
	}
	for (int step = 0; step < 2; step++) {
		tt_fill_normal(x, 35, 3.0f + 40.0f * (float)step);
		tt_fill_normal(dy, 35, 0.5f + (float)step);
		tt_tensor_set(te_plan_input(p, "x"), x);
		y = cast_and_back(a.forward ? mine : NULL, 0, te_plan_input(p, "x"));
		DO(te_plan_forward(p, st, 0));
		tt_tensor_set(te_plan_output_grad(p), dy);
		dx = cast_and_back(a.backward ? mine : NULL, 1, te_plan_output_grad(p));
		DO(te_plan_backward(p, st));
		DO(te_stream_sync(st));
		ck_values(te_plan_output(p), y);
		ck_values(te_plan_input_grad(p), dx);
		if (mine)
			DO(te_quant_update(st, mine, 0, 2));
	}
	te_quant_unref(mine);
	te_plan_unref(p);
	te_seq_unref(seq);
}
END_TEST

static void ck_line(const struct te_quantize_attrs *a, const char *want)
{
	char text[64];
	struct te_op *op;

	DO(te_op_quantize(a, "q", &op));
	ck_assert_int_gt(te_op_table(op)->describe(op, text, sizeof(text)), 0);
	ck_assert_str_eq(text, want);
	te_op_unref(op);
}

START_TEST(quantize_describes_its_passes)
{
	ck_line(&(struct te_quantize_attrs)TE_QUANTIZE_ATTRS_INIT, "forward, backward");
	ck_line(&(struct te_quantize_attrs)TE_ATTRS(quantize, 1, 0), "forward");
	ck_line(&(struct te_quantize_attrs)TE_ATTRS(quantize, 0, 1), "backward");
	ck_line(&(struct te_quantize_attrs)TE_ATTRS(quantize, 0, 0), "neither pass");
}
END_TEST

/* ---- a plan of ops that compute nothing ---- */

static void *address(const struct te_plan *p, const char *value)
{
	for (int i = 0; i < p->nvalues; i++)
		if (!strcmp(p->value[i].label, value))
			return te_tensor_data(p->value[i].t_hp);
	ck_abort_msg("no value %s", value);
}

/* the identity has no step; a reshape copies only what is needed later */
START_TEST(nothing_is_copied_without_need)
{
	const struct te_reshape_attrs flat = TE_RESHAPE_ATTRS_INIT;
	const struct te_reshape_attrs back = TE_ATTRS(reshape, 2, { 5, 7 });
	const struct te_recipe rec = op_run_recipe("fp32");
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	float x[35], dy[35], got[35];
	struct te_seq *seq;
	struct te_plan *p;
	struct te_op *op;
	char *text;

	DO(te_seq_create(ctx, &seq));
	for (int i = 0; i < 4; i++) {
		if (i == 1)
			DO(te_op_identity("i", &op));
		else if (i == 3)
			DO(te_op_scale(&(struct te_scale_attrs)TE_ATTRS(scale, 2), "s", &op));
		else
			DO(te_op_reshape(i ? &back : &flat, i ? "back" : "flat", &op));
		DO(te_seq_append(seq, op));
		te_op_unref(op);
	}
	DO(te_seq_init(seq, 1));
	o.recipe = &rec;
	o.flags = TE_PLAN_TRAIN | TE_PLAN_INPUT_GRAD;
	o.x = (struct te_spec){ TE_DTYPE_FP32, 2, { 5, 7 } };
	DO(te_plan_create(seq, &o, &p));
	DO(te_plan_print(p, TE_PLAN_TEXT, &text));
	ck_assert_msg(strstr(text, "4 ops, 6 steps"), "%s", text);
	ck_assert_ptr_nonnull(strstr(text, "[35] fp32"));
	free(text);
	ck_assert_ptr_eq(address(p, "flat.y"), address(p, "back.y"));
	ck_assert_ptr_eq(address(p, "flat.y"), address(p, "s.y"));
	ck_assert_ptr_eq(address(p, "flat.dx"), address(p, "s.dx"));
	ck_assert_ptr_ne(address(p, "flat.y"), address(p, "x")); /* the caller's */
	tt_fill_normal(x, 35, 1);
	tt_fill_normal(dy, 35, 1);
	DO(te_tensor_write(te_plan_input(p, "x"), x, sizeof(x)));
	DO(te_plan_forward(p, st, 0));
	DO(te_tensor_read(te_plan_output(p), got, sizeof(got)));
	for (int i = 0; i < 35; i++)
		ck_assert_float_eq(got[i], 2 * x[i]);
	DO(te_tensor_write(te_plan_output_grad(p), dy, sizeof(dy)));
	DO(te_plan_backward(p, st));
	DO(te_tensor_read(te_plan_input_grad(p), got, sizeof(got)));
	for (int i = 0; i < 35; i++)
		ck_assert_float_eq(got[i], 2 * dy[i]);
	te_plan_unref(p);
	te_seq_unref(seq);
}
END_TEST

/* a good op asked about inputs that do not fit it */
static const struct {
	const char *name; /* of the case */
	struct te_spec in[2];
	int code;
	const char *words;
} misfit[] = {
	{ "embedding", { { TE_DTYPE_FP32, 2, { 2, 3 } } }, -TE_EDTYPE, "tokens are fp32" },
	{ "embedding with positions", { { TE_DTYPE_INT32, 2, { 2, 9 } } }, -TE_ESHAPE,
	  "max_pos is 8" },
	{ "embedding", { { TE_DTYPE_INT32, 8, { 1, 1, 1, 1, 1, 1, 1, 1 } } }, -TE_ESHAPE,
	  "8 extents" },
	{ "linear", { { TE_DTYPE_FP32, 2, { 2, 12 } } }, -TE_ESHAPE, "12 wide" },
	{ "linear", { { TE_DTYPE_BF16, 2, { 2, 11 } } }, -TE_EDTYPE, "input is bf16" },
	{ "bias", { { TE_DTYPE_FP32, 2, { 9, 2 } } }, -TE_ESHAPE, "2 wide" },
	{ "layernorm", { { TE_DTYPE_FP32, 2, { 2, 12 } } }, -TE_ESHAPE, "takes 13" },
	{ "rmsnorm", { { TE_DTYPE_INT32, 2, { 2, 13 } } }, -TE_EDTYPE, "input is int32" },
	{ "gated silu", { { TE_DTYPE_FP32, 2, { 2, 7 } } }, -TE_ESHAPE, "odd number" },
	{ "gelu", { { TE_DTYPE_FP16, 2, { 2, 7 } } }, -TE_EDTYPE, "input is fp16" },
	{ "rope", { { TE_DTYPE_FP32, 1, { 30 } } }, -TE_ESHAPE, "1 extents" },
	{ "rope", { { TE_DTYPE_FP32, 2, { 4, 24 } } }, -TE_ESHAPE, "takes 30" },
	{ "attention", { { TE_DTYPE_FP32, 1, { 30 } } }, -TE_ESHAPE, "1 extents" },
	{ "attention", { { TE_DTYPE_FP32, 2, { 4, 31 } } }, -TE_ESHAPE, "takes 30" },
	{ "attention with dropout", { { TE_DTYPE_FP32, 2, { 65537, 24 } } }, -TE_ESHAPE,
	  "65537 positions" },
	{ "dropout", { { TE_DTYPE_INT32, 2, { 4, 3 } } }, -TE_EDTYPE, "input is int32" },
	{ "scale", { { TE_DTYPE_INT32, 2, { 4, 3 } } }, -TE_EDTYPE, "input is int32" },
	{ "identity", { { TE_DTYPE_FP16, 2, { 4, 3 } } }, -TE_EDTYPE, "input is fp16" },
	{ "reshape", { { TE_DTYPE_FP32, 2, { 4, 3 } } }, -TE_ESHAPE, "its input is [4,3]" },
	{ "reshape", { { TE_DTYPE_FP32, 2, { 3, 1 } } }, -TE_ESHAPE, "its input is [3,1]" },
	{ "fork", { { TE_DTYPE_INT32, 2, { 4, 3 } } }, -TE_EDTYPE, "fork fork" },
	{ "add", { { TE_DTYPE_FP32, 2, { 4, 3 } }, { TE_DTYPE_FP32, 2, { 3, 4 } } }, -TE_ESHAPE,
	  "[3,4]" },
	{ "add", { { TE_DTYPE_FP32, 2, { 4, 3 } }, { TE_DTYPE_BF16, 2, { 4, 3 } } }, -TE_ESHAPE,
	  "[4,3] bf16" },
	{ "cross_entropy", { { TE_DTYPE_FP32, 2, { 4, 12 } }, { TE_DTYPE_INT32, 1, { 4 } } },
	  -TE_ESHAPE, "nclasses is 13" },
	{ "cross_entropy", { { TE_DTYPE_FP32, 2, { 4, 13 } }, { TE_DTYPE_INT32, 1, { 5 } } },
	  -TE_ESHAPE, "5 targets for 4 rows" },
	{ "cross_entropy", { { TE_DTYPE_FP32, 2, { 4, 13 } }, { TE_DTYPE_FP32, 1, { 4 } } },
	  -TE_EDTYPE, "targets are fp32" },
};

static const struct op_case *find_case(const char *name)
{
	for (int i = 0; i < op_ncases; i++)
		if (!strcmp(op_cases[i].name, name))
			return &op_cases[i];
	ck_abort_msg("no case %s", name);
}

START_TEST(names_the_input_that_does_not_fit)
{
	struct te_op *op = op_case_create(find_case(misfit[_i].name));
	struct te_recipe rec = op_run_recipe("fp32");
	struct te_op_infer inf;

	ck_assert_int_eq(te__infer(op, &rec, TE_INFER_TRAIN, misfit[_i].in, &inf),
			 misfit[_i].code);
	tt_said(te_op_name(op));
	tt_said(misfit[_i].words);
	te__infer_free(&inf);
	te_op_unref(op);
}
END_TEST

/* extents of a reshape, and those that it gives to 12 elements; none: it is refused */
static const struct {
	struct te_reshape_attrs a;
	struct te_spec want;
} reshaped[] = {
	{ TE_ATTRS(reshape, 2, { 3, -1 }), { TE_DTYPE_FP32, 2, { 3, 4 } } },
	{ TE_ATTRS(reshape, 3, { -1, 2, 3 }), { TE_DTYPE_FP32, 3, { 2, 2, 3 } } },
	{ TE_ATTRS(reshape, 1, { 12 }), { TE_DTYPE_FP32, 1, { 12 } } },
	{ TE_ATTRS(reshape, 0, { 0 }), { TE_DTYPE_FP32, 1, { 12 } } },
	{ TE_ATTRS(reshape, 2, { 5, -1 }), { TE_DTYPE_FP32, 0, { 0 } } },
	{ TE_ATTRS(reshape, 2, { -1, 8 }), { TE_DTYPE_FP32, 0, { 0 } } },
	{ TE_ATTRS(reshape, 2, { 2, 5 }), { TE_DTYPE_FP32, 0, { 0 } } },
	{ TE_ATTRS(reshape, 2, { 13, -1 }), { TE_DTYPE_FP32, 0, { 0 } } },
	{ TE_ATTRS(reshape, 2, { 5, 3 }), { TE_DTYPE_FP32, 0, { 0 } } },
};

START_TEST(reshape_keeps_the_number_of_elements)
{
	const struct te_spec x = { TE_DTYPE_FP32, 2, { 6, 2 } };
	const struct te_recipe rec = op_run_recipe("fp32");
	const struct te_spec *want = &reshaped[_i].want;
	struct te_op_infer inf;
	struct te_op *op;
	int r;

	DO(te_op_reshape(&reshaped[_i].a, "r", &op));
	r = te__infer(op, &rec, TE_INFER_TRAIN, &x, &inf);
	if (want->ndim) {
		ck_assert_msg(!r, "%s", te_error_detail());
		ck_assert_int_eq(inf.out[0].ndim, want->ndim);
		for (int i = 0; i < want->ndim; i++)
			ck_assert_int_eq(inf.out[0].shape[i], want->shape[i]);
	} else {
		ck_assert_int_eq(r, -TE_ESHAPE);
		tt_said("reshape r: its input is [6,2]");
	}
	te__infer_free(&inf);
	te_op_unref(op);
}
END_TEST

/* ---- declarations ---- */

static const struct {
	const char *name, *weight[2];
	enum te_init init[2];
	uint32_t flags[2];
} decls[] = {
	{ "embedding", { "weight" }, { TE_INIT_NORMAL }, { TE_WEIGHT_DECAY } },
	{ "embedding with positions", { "weight", "position" }, { TE_INIT_NORMAL, TE_INIT_NORMAL },
	  { TE_WEIGHT_DECAY, TE_WEIGHT_DECAY } },
	{ "linear", { "weight" }, { TE_INIT_NORMAL },
	  { TE_WEIGHT_DECAY | TE_WEIGHT_COMPUTE | TE_WEIGHT_GEMM } },
	{ "bias", { "bias" }, { TE_INIT_ZERO }, { TE_WEIGHT_COMPUTE } },
	{ "layernorm", { "weight", "bias" }, { TE_INIT_ONE, TE_INIT_ZERO }, { 0, 0 } },
	{ "rmsnorm", { "weight" }, { TE_INIT_ONE }, { 0 } },
	{ "rmsnorm, zero-centered", { "weight" }, { TE_INIT_ZERO }, { 0 } },
};

START_TEST(declares_its_weights)
{
	struct te_op *op = op_case_create(find_case(decls[_i].name));
	const struct te_weight_decl *d = op->decl;

	ck_assert_int_eq(op->nweights, decls[_i].weight[1] ? 2 : 1);
	for (int i = 0; i < op->nweights; i++) {
		ck_assert_str_eq(d[i].name, decls[_i].weight[i]);
		ck_assert_int_eq(d[i].init, decls[_i].init[i]);
		ck_assert_uint_eq(d[i].flags, decls[_i].flags[i]);
		ck_assert_ptr_null(d[i].tied_op);
	}
	te_op_unref(op);
}
END_TEST

START_TEST(describes_itself_in_one_line)
{
	struct te_op *op = op_case_create(&op_cases[_i]);
	const struct te_op_ops *ops = te_op_table(op);
	char text[256] = "", cut[4] = "zz";

	if (ops->describe) {
		ck_assert_int_gt(ops->describe(op, text, sizeof(text)), 0);
		ck_assert_msg(strlen(text) > 2 && !strchr(text, '\n'), "%s", text);
		ck_assert_int_eq(ops->describe(op, cut, sizeof(cut)), (int)strlen(text));
		ck_assert_uint_eq(strlen(cut), 3);
	} else {
		ck_assert_uint_eq(ops->attrs_nbytes, 0);
	}
	te_op_unref(op);
}
END_TEST

static int create_tied(void)
{
	struct te_embedding_attrs e = TE_ATTRS(embedding, 12, 6, 0, 0.02f, 0);
	struct te_linear_attrs a = TE_ATTRS(linear, 6, 12, 0.02f, 1, NULL);
	struct te_op *emb, *op = NULL;
	int r = te_op_embedding(&e, "emb", &emb);

	if (r < 0)
		return r;
	a.tied_op = emb;
	r = te_op_linear(&a, "head", &op);
	te_op_unref(emb);
	te_op_unref(op);
	return r;
}

START_TEST(survives_every_failed_allocation)
{
	ck_assert_int_ge(tt_fault_each(create_tied), 6);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("ops/ops");
	TCase *c = tt_case(s, "values", "host numeric");

	tcase_add_checked_fixture(c, tt_setup, tt_teardown);
	tcase_add_loop_test(c, matches_fp64_forward_and_backward, 0, op_ncases);
	tcase_add_loop_test(c, computes_in_bf16_with_one_rounding, 0, op_ncases);
	tcase_add_loop_test(c, linear_multiplies_what_the_recipe_gives, 0, TT_LEN(linear_recipes));
	tcase_add_test(c, dropout_draws_one_mask_a_step_and_op);
	tcase_add_test(c, attention_drops_only_in_training);
	tcase_add_loop_test(c, quantize_is_a_cast_and_back, 0, 4 * NCASTS);
	tcase_add_test(c, nothing_is_copied_without_need);
	c = tt_case(s, "shapes", "host");
	tcase_add_test(c, linear_keeps_full_precision_when_told);
	tcase_add_loop_test(c, linear_needs_multiples_of_16_for_fp8, 0, 9);
	tcase_add_test(c, dropout_of_nothing_is_its_input);
	tcase_add_loop_test(c, names_the_input_that_does_not_fit, 0, TT_LEN(misfit));
	tcase_add_loop_test(c, reshape_keeps_the_number_of_elements, 0, TT_LEN(reshaped));
	c = tt_case(s, "attributes", "host");
	tcase_add_test(c, quantize_describes_its_passes);
	tcase_add_test(c, tied_linear_keeps_its_embedding_alive);
	tcase_add_loop_test(c, names_the_op_and_the_attribute_at_fault, 0, TT_LEN(bad));
	tcase_add_test(c, needs_attributes_and_a_name);
	tcase_add_loop_test(c, declares_its_weights, 0, TT_LEN(decls));
	tcase_add_loop_test(c, describes_itself_in_one_line, 0, op_ncases);
	tcase_add_test(c, survives_every_failed_allocation);
	return s;
}

TT_MAIN("ops/ops", TT_NEED_NOTHING, suite)
