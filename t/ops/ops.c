/* t/ops/ops.c - the built-in ops on the host backend: values and gradients, dropout, casts. */
#include "config.h"

#include <math.h>

#include <te/plan.h>

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
	double *x, *ex[MOST], *w[MOST], *dy, *y;
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

/* 1: a case of the host on another backend; op is released */
static int refused(const struct op_case *k, struct te_op *op)
{
	if (!k->host_only || !strcmp(te_ctx_backend(ctx), "host"))
		return 0;
	te_op_unref(op);
	return 1;
}

CTX_CASE(values, "host numeric");

TEST_EACH(values, matches_fp64_forward_and_backward, op_ncases)
{
	const struct op_case *k = &op_cases[_i];
	struct te_op *op = op_case_create(k);
	double *got, *dey = NULL;
	struct fp64 f = { .k = k };
	struct op_run r;

	if (refused(k, op))
		return;
	op_case_init(k, &r, ctx, op, "fp32");
	f.r = &r;
	f.x = doubles(r.call.x.hp);
	for (int i = 0; i < r.ops->nextra_in; i++)
		f.ex[i] = doubles(r.call.ex[i].hp);
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
	for (int i = 0; i < r.ops->nextra_in; i++)
		if (r.inf.in[1 + i].dtype != TE_DTYPE_INT32)
			ck_gradient(&f, "dex", op_run_dex(&r, i), f.ex[i], NULL, 0);
	for (int i = 0; i < r.op->nweights; i++)
		ck_gradient(&f, r.op->decl[i].name, r.call.grad[i], f.w[i], NULL, 0.5);

	for (int i = 0; i < r.op->nweights; i++)
		free(f.w[i]);
	free(f.x);
	for (int i = 0; i < r.ops->nextra_in; i++)
		free(f.ex[i]);
	free(f.y);
	free(f.dy);
	free(dey);
	op_run_fini(&r);
	te_op_unref(op);
}

/*
 * BF16 against FP64 on the rounded inputs: the FP32 bound of the case, and one rounding to BF16
 * of the result, up to 2^-8 of it; weight gradients stay FP32.
 */
TEST_EACH(values, computes_in_bf16_with_one_rounding, op_ncases)
{
	const struct op_case *k = &op_cases[_i];
	struct te_op *op = op_case_create(k);
	struct fp64 f = { .k = k };
	struct op_run r;
	double *got, most = 0;

	if (refused(k, op))
		return;
	op_case_init(k, &r, ctx, op, "bf16");
	ck_assert_int_eq(r.inf.out[0].dtype, strcmp(r.ops->name, "cross_entropy") ? TE_DTYPE_BF16 :
										    TE_DTYPE_FP32);
	op_run_forward(&r);
	f.r = &r;
	f.x = doubles(r.call.x.hp);
	for (int i = 0; i < r.ops->nextra_in; i++)
		f.ex[i] = doubles(r.call.ex[i].hp);
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
	for (int i = 0; i < r.ops->nextra_in; i++)
		free(f.ex[i]);
	free(f.y);
	op_run_fini(&r);
	te_op_unref(op);
}

/* ---- dropout ---- */

static float *drop(struct op_run *r, struct te_tensor *t)
{
	op_run_forward(r);
	return tt_tensor_get(t);
}

TEST(values, dropout_draws_one_mask_a_step_and_op)
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

CASE(details, "host");

TEST(details, dropout_of_nothing_is_its_input)
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

/*
 * Angles that pairs of a head turn from token to token. Python 3 computed them by the formula of
 * transformers' _compute_dynamic_ntk_parameters(), dim: elements that turn, L: max(T, P), with
 * theta 10000 and dim 8, then theta 100 and dim 4:
 *	base = theta * ((4 * L / P) - (4 - 1)) ** (dim / (dim - 2))
 *	1.0 / base ** (i / dim) for i in range(0, dim, 2)
 */
static const struct {
	int64_t seqlen;
	const float *inv_freq;
	double want[4];
} turns[] = {
	{ 5, NULL, { 1, 0.1, 0.01, 0.001 } },
	{ 9, NULL, { 1, 0.0619798094, 0.00384149678, 0.000238095238 } },
	{ 9, (const float[]){ 1, 0.1f, 0, 0 }, { 1, 0.0238095238, 0, 0 } },
};

TEST_EACH(values, dynamic_rope_turns_as_transformers, TT_LEN(turns))
{
	const struct te_rope_attrs a = TE_ATTRS(rope, 1, 1, 8, 1e4f, turns[_i].inv_freq,
						.dynamic_positions = 5, .dynamic_factor = 4);
	const struct op_case k = { .in = { { TE_DTYPE_FP32, 3, { 1, turns[_i].seqlen, 24 } } } };
	float x[9 * 24] = { 0 }, *y;
	struct te_op *op;
	struct op_run r;

	DO(te_op_rope(&a, "rope", &op));
	op_case_init(&k, &r, ctx, op, "fp32");
	for (int i = 0; i < 4; i++)
		x[24 + i] = 1;
	tt_tensor_set(r.call.x.hp, x);
	op_run_forward(&r);
	y = tt_tensor_get(op_run_y(&r));
	for (int i = 0; i < 4; i++) {
		const double got = atan2((double)y[24 + 4 + i], (double)y[24 + i]);

		/* cosine and sine have an error of 1 ulp of the largest */
		ck_assert_msg(fabs(got - turns[_i].want[i]) < 2e-7,
			      "pair %d turns by %.9g, not %.9g", i, got, turns[_i].want[i]);
	}
	free(y);
	op_run_fini(&r);
	te_op_unref(op);
}

TEST(values, attention_drops_only_in_training)
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

/* rope, or i: attention, on random values; documents, if there are any, begin at 64 and 128 */
static void init_documents(int i, int64_t n, int documents, struct op_run *r)
{
	const struct te_rope_attrs rope = TE_ATTRS(rope, 2, 1, 8, 1e4f, NULL, documents);
	const struct te_attention_attrs attention =
		TE_ATTRS(attention, 2, 1, 8, .documents = documents);
	const struct op_case k = { .in = { { TE_DTYPE_FP32, 3, { 1, n, 32 } },
					   { TE_DTYPE_INT32, 2, { 1, n } } } };
	struct te_op *op;
	float first[187];

	DO(i ? te_op_attention(&attention, "op", &op) : te_op_rope(&rope, "op", &op));
	op_case_init(&k, r, ctx, op, "fp32");
	if (!documents)
		return;
	for (int t = 0; t < 187; t++)
		first[t] = (float)(t / 64 * 64);
	tt_tensor_set(r->call.ex[0].hp, first);
}

static void end_documents(struct op_run *r)
{
	struct te_op *op = r->op;

	op_run_fini(r);
	te_op_unref(op);
}

/* rows of src from `from` on become dst, both of n columns */
static void put_rows(struct te_tensor *dst, const struct te_tensor *src, int64_t from)
{
	float *v = tt_tensor_get(src);

	tt_tensor_set(dst, v + from * te_tensor_cols(src));
	free(v);
}

static void same_rows(const struct te_tensor *packed, const struct te_tensor *alone, int64_t from,
		      const char *what)
{
	float *v = tt_tensor_get(packed), *w = tt_tensor_get(alone);

	ck_assert_msg(!memcmp(v + from * te_tensor_cols(packed), w,
			      (size_t)te_tensor_nelems(alone) * sizeof(*w)),
		      "%s of the document from token %d on", what, (int)from);
	free(v);
	free(w);
}

/* of attention, 1, the host promises it for documents at multiples of its tiles; 0: rope */
TEST_EACH(values, packed_documents_have_the_bits_of_them_alone, 2)
{
	struct op_run packed, alone;

	if (_i && strcmp(te_ctx_backend(ctx), "host"))
		return;
	init_documents(_i, 187, 1, &packed);
	op_run_forward(&packed);
	op_run_backward(&packed);
	for (int64_t from = 0; from < 187; from += 64) {
		const int64_t n = from + 64 < 187 ? 64 : 187 - from;

		init_documents(_i, n, 0, &alone);
		put_rows(alone.call.x.hp, packed.call.x.hp, from);
		put_rows(alone.call.dy.hp, packed.call.dy.hp, from);
		op_run_forward(&alone);
		op_run_backward(&alone);
		same_rows(op_run_y(&packed), op_run_y(&alone), from, "output");
		same_rows(op_run_dx(&packed), op_run_dx(&alone), from, "gradient");
		end_documents(&alone);
	}
	end_documents(&packed);
}

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
TEST_EACH(values, quantize_is_a_cast_and_back, 4 * NCASTS)
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
	tt_append(seq, op);
	/* so that the output is no input */
	DO(te_op_scale(&(struct te_scale_attrs)TE_SCALE_ATTRS_INIT, "s", &op));
	tt_append(seq, op);
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
	tt_drop(p, seq);
}

static void ck_line(const struct te_quantize_attrs *a, const char *want)
{
	char text[64];
	struct te_op *op;

	DO(te_op_quantize(a, "q", &op));
	ck_assert_int_gt(te_op_table(op)->describe(op, text, sizeof(text)), 0);
	ck_assert_str_eq(text, want);
	te_op_unref(op);
}

TEST(details, quantize_describes_its_passes)
{
	ck_line(&(struct te_quantize_attrs)TE_QUANTIZE_ATTRS_INIT, "forward, backward");
	ck_line(&(struct te_quantize_attrs)TE_ATTRS(quantize, 1, 0), "forward");
	ck_line(&(struct te_quantize_attrs)TE_ATTRS(quantize, 0, 1), "backward");
	ck_line(&(struct te_quantize_attrs)TE_ATTRS(quantize, 0, 0), "neither pass");
}

/* ---- a plan of ops that compute nothing ---- */

static void *address(const struct te_plan *p, const char *value)
{
	for (int i = 0; i < p->nvalues; i++)
		if (!strcmp(p->value[i].label, value))
			return te_tensor_data(p->value[i].t_hp);
	ck_abort_msg("no value %s", value);
}

/* the identity has no step; a reshape copies only what is needed later */
TEST(values, nothing_is_copied_without_need)
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
		tt_append(seq, op);
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
	tt_drop(p, seq);
}

TT_MAIN("ops/ops", TT_ONE_PROCESS)
