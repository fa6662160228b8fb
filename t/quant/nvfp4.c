/*
 * t/quant/nvfp4.c - recipe nvfp4 on the host backend: casts and products of tensors of E2M1, and
 * what is refused. t/kernels/host_kernels_nvfp4.c has the bits.
 */
#include "config.h"

#include <math.h>

#include <te/dtype.h>
#include <te/errno.h>
#include <te/gemm.h>
#include <te/quant.h>

#include "libtecore/backend/backend.h"
#include "libtecore/quant/quant.h"
#include "libtecore/tensor/ctx.h"
#include "tt_ctx.h"
#include "tt_num.h"

#define BOTH (TE_TENSOR_ROWWISE | TE_TENSOR_COLWISE)

static const enum te_dtype e2m1 = TE_DTYPE_E2M1;

static struct te_quant *quants(void)
{
	struct te_recipe r = TE_RECIPE_INIT;
	struct te_quant *q;

	DO(te_recipe_from_name("nvfp4", &r));
	DO(te_quant_create(ctx, &r, 1, &e2m1, &q));
	return q;
}

static struct te_tensor *tensor(enum te_dtype dtype, int64_t rows, int64_t cols, uint32_t flags,
				enum te_scaling scaling)
{
	struct te_tensor_opts opts = TE_TENSOR_OPTS_INIT;
	const int64_t shape[2] = { rows, cols };
	struct te_tensor *t;

	opts.flags = flags;
	opts.scaling = scaling;
	DO(te_tensor_create(ctx, dtype, 2, shape, &opts, &t));
	return t;
}

static struct te_tensor *normal(int64_t rows, int64_t cols)
{
	struct te_tensor *t = tensor(TE_DTYPE_FP32, rows, cols, 0, TE_SCALING_TENSOR);
	float *v = malloc(te_tensor_nbytes(t));

	ck_assert_ptr_nonnull(v);
	for (int64_t i = 0; i < rows * cols; i++)
		v[i] = tt_rand_normal();
	DO(te_tensor_write(t, v, te_tensor_nbytes(t)));
	free(v);
	return t;
}

CTX_CASE(nvfp4, "host numeric");

TEST(nvfp4, a_tensor_has_half_a_byte_for_an_element)
{
	struct te_tensor *t = tensor(e2m1, 32, 48, BOTH, TE_SCALING_1X16), *v;
	const int64_t whole[2] = { 32, 48 }, other[2] = { 48, 32 };
	float *row = tt_bytes(te_tensor_scale_inv(t), 4);
	uint8_t *scales;
	const int64_t n = te_scaling_nfloats(TE_SCALING_1X16, 32, 48);

	ck_assert_uint_eq(te_tensor_nbytes(t), 32 * 48 / 2);
	ck_assert_ptr_eq((char *)te_tensor_data(t) + 768, te_tensor_coldata(t));
	ck_assert_int_eq(n, 4 + 128);
	ck_assert_int_eq(te_scaling_index(TE_SCALING_1X16, 32, 48, 2, 17), 16 + 32 + 1);
	ck_assert_int_eq(te_scaling_index(TE_SCALING_16X16, 300, 200, 130, 65),
			 16 + 512 * (1 * 4 + 1) + 2 * 16);
	ck_assert_float_eq(*row, 1);
	free(row);
	scales = tt_bytes(te_tensor_col_scale_inv(t), (size_t)n * 4);
	for (int64_t i = 16; i < 4 * n; i++)
		ck_assert_uint_eq(scales[i], 0x38); /* 1 */
	free(scales);
	DO(te_tensor_view(t, 0, 2, whole, &v));
	ck_assert_ptr_eq(te_tensor_data(v), te_tensor_data(t));
	te_tensor_unref(v);
	fails(te_tensor_view(t, 0, 2, other, &v), -EINVAL, "viewed whole");
	te_tensor_unref(t);
}

/* an input of odd extents; flags of both kinds of rounding */
TEST_EACH(nvfp4, casts_with_padding_and_back, 3)
{
	const enum te_scaling scaling = _i & 1 ? TE_SCALING_16X16 : TE_SCALING_1X16;
	struct te_quant *q = quants();
	struct te_tensor *x = normal(37, 75), *y = tensor(e2m1, 48, 80, BOTH, scaling);
	float *v = tt_tensor_get(x), *back, amax = 0;
	double error = 0, size = 0;

	DO(te_quantize(st, q, 0, x, y, NULL, _i == 2 ? TE_QUANTIZE_STOCHASTIC : 0));
	DO(te_dequantize(st, y, x));
	back = tt_tensor_get(x);
	for (int i = 0; i < 37 * 75; i++)
		amax = fmaxf(amax, fabsf(v[i]));
	for (int i = 0; i < 37 * 75; i++) {
		/* a step is at most a third of the block's amax, whose scale is off by 1/16 */
		ck_assert_msg(fabsf(v[i] - back[i]) <= amax * (_i == 2 ? 0.38f : 0.19f),
			      "element %d: %g becomes %g", i, (double)v[i], (double)back[i]);
		error += pow((double)(v[i] - back[i]), 2);
		size += pow((double)v[i], 2);
	}
	ck_assert_double_lt(sqrt(error / size), _i == 2 ? 0.2 : 0.13);
	free(v);
	free(back);
	te_tensor_unref(x);
	te_tensor_unref(y);
	te_quant_unref(q);
}

/* y = x w^T, dx = dy w, dw = dy^T x, as a linear layer computes them, against the inputs in FP64 */
TEST_EACH(nvfp4, products_are_near_those_of_the_inputs, 3)
{
	enum { M = 48, N = 32, K = 64 };
	static const struct {
		int a, b; /* operands: 0 x, 1 w, 2 dy */
		uint32_t flags;
	} gemm[] = { { 0, 1, 0 }, { 2, 1, TE_GEMM_B_T }, { 2, 0, TE_GEMM_A_T | TE_GEMM_B_T } };
	const int64_t shape[3][2] = { { M, K }, { N, K }, { M, N } };
	const uint32_t flags = gemm[_i].flags;
	const int ids[2] = { gemm[_i].a, gemm[_i].b };
	struct te_gemm_opts o = TE_GEMM_OPTS_INIT;
	struct te_quant *q = quants();
	struct te_tensor *y[2], *d;
	int64_t rows[2], inner = 0;
	double error = 0, size = 0;
	float *v[2], *got;

	for (int i = 0; i < 2; i++) {
		const int64_t *s = shape[ids[i]];
		const int t = (flags & (i ? TE_GEMM_B_T : TE_GEMM_A_T)) != 0;
		struct te_tensor *x = normal(s[0], s[1]);

		rows[i] = s[t];
		inner = s[!t];
		y[i] = tensor(e2m1, s[0], s[1], BOTH,
			      ids[i] == 1 ? TE_SCALING_16X16 : TE_SCALING_1X16);
		v[i] = tt_tensor_get(x);
		DO(te_quantize(st, q, 0, x, y[i], NULL, ids[i] == 2 ? TE_QUANTIZE_STOCHASTIC : 0));
		te_tensor_unref(x);
	}
	d = tensor(TE_DTYPE_FP32, rows[0], rows[1], 0, TE_SCALING_TENSOR);
	o.flags = flags;
	DO(te_gemm(st, y[0], y[1], d, &o));
	got = tt_tensor_get(d);
	for (int64_t i = 0; i < rows[0] * rows[1]; i++) {
		const int64_t m = i / rows[1], n = i % rows[1];
		double sum = 0;

		for (int64_t k = 0; k < inner; k++)
			sum += (double)v[0][flags & TE_GEMM_A_T ? k * rows[0] + m : m * inner + k] *
			       (double)v[1][flags & TE_GEMM_B_T ? k * rows[1] + n : n * inner + k];
		error += pow((double)got[i] - sum, 2);
		size += sum * sum;
	}
	/* errors of 0.13 and, stochastic, 0.2 of an operand's size are independent */
	ck_assert_double_lt(sqrt(error / size), 0.26);
	for (int i = 0; i < 2; i++) {
		te_tensor_unref(y[i]);
		free(v[i]);
	}
	free(got);
	te_tensor_unref(d);
	te_quant_unref(q);
}

CTX_CASE(refusals, "host");

TEST(refusals, refuses_what_it_cannot_cast_or_multiply)
{
	struct te_tensor_opts o = TE_TENSOR_OPTS_INIT;
	const int64_t odd[2] = { 16, 24 }, tall[2] = { 24, 16 };
	struct te_gemm_opts g = TE_GEMM_OPTS_INIT;
	struct te_recipe r = TE_RECIPE_INIT;
	struct te_quant *q = quants(), *other = NULL;
	struct te_tensor *x = normal(32, 32), *t = NULL;
	struct te_tensor *y = tensor(e2m1, 32, 32, BOTH, TE_SCALING_1X16);
	struct te_tensor *w = tensor(e2m1, 32, 32, BOTH, TE_SCALING_16X16);
	struct te_tensor *f = tensor(TE_DTYPE_E4M3, 32, 32, BOTH, TE_SCALING_1X32);
	const enum te_dtype e4m3 = TE_DTYPE_E4M3;

	o.scaling = TE_SCALING_1X16;
	fails(te_tensor_create(ctx, e2m1, 2, odd, &o, &t), -EINVAL, "last extent of e2m1 is 24");
	o.flags = BOTH;
	fails(te_tensor_create(ctx, e2m1, 2, tall, &o, &t), -EINVAL, "has 24 rows");
	fails(te_tensor_create(ctx, e4m3, 2, tall, &o, &t), -EINVAL, "e4m3 has 1x16 scaling");
	o.scaling = TE_SCALING_1X32;
	fails(te_tensor_create(ctx, e2m1, 2, tall, &o, &t), -EINVAL, "e2m1 has 1x32 scaling");
	fails(te_tensor_wrap(ctx, e2m1, 2, tall, te_tensor_data(y), NULL, te_tensor_scale_inv(y),
			     &t), -EINVAL, "e2m1 has per-tensor scaling");
	ck_assert_ptr_null(t);

	fails(te_quantize(st, q, 0, x, f, NULL, 0), -TE_EDTYPE, "y is e4m3");
	fails(te_quantize(st, q, 0, x, w, NULL, TE_QUANTIZE_STOCHASTIC), -EINVAL, "1x16");
	fails(te_quantize(st, q, 0, x, y, NULL, 4), -EINVAL, "unknown flags 0x4");
	DO(te_recipe_from_name("nvfp4", &r));
	fails(te_quant_create(ctx, &r, 1, &e4m3, &other), -EINVAL, "slot 0 is e4m3, not e2m1");
	r.flags = TE_RECIPE_POW2;
	fails(te_quant_create(ctx, &r, 1, &e2m1, &other), -EINVAL, "recipe nvfp4: flags 0x1");
	DO(te_recipe_from_name("mxfp8", &r));
	fails(te_quant_create(ctx, &r, 1, &e2m1, &other), -EINVAL, "not e4m3 or e5m2");
	ck_assert_ptr_null(other);

	fails(te_gemm(st, y, f, x, NULL), -TE_EDTYPE, "A is e2m1 and B is e4m3");
	g.flags = TE_GEMM_B_T;
	fails(te_gemm(st, y, y, x, &g), -TE_EDTYPE, "column-wise copy of B");
	g.flags = TE_GEMM_A_T | TE_GEMM_B_T;
	fails(te_gemm(st, y, w, x, &g), -TE_EDTYPE, "column-wise copy of A");
	DO(te_gemm(st, y, y, x, &g));
	DO(te_gemm(st, w, w, x, &g));
	te_tensor_unref(x);
	te_tensor_unref(y);
	te_tensor_unref(w);
	te_tensor_unref(f);
	te_quant_unref(q);
}

TEST(refusals, operands_are_as_the_recipe_defines)
{
	struct te_recipe r = TE_RECIPE_INIT;

	DO(te_recipe_from_name("nvfp4", &r));
	for (int role = TE__ROLE_ACTIVATION; role <= TE__ROLE_GRADIENT; role++) {
		const struct te__operand op = te__recipe_operand(&r, role);

		ck_assert_int_eq(op.dtype, e2m1);
		ck_assert_int_eq(op.scaling,
				 role == TE__ROLE_WEIGHT ? TE_SCALING_16X16 : TE_SCALING_1X16);
		ck_assert_int_eq(op.stochastic, role == TE__ROLE_GRADIENT);
	}
}

static int no_gemm(void *dev, int scaling)
{
	(void)dev;
	return te__fail(-EOPNOTSUPP, "no GEMM of %d", scaling);
}

/* a backend that has no such GEMM says so before a launch */
TEST_EACH(refusals, gemms_are_refused_without_a_kernel, 2)
{
	const struct te__backend_ops *ops = ctx->ops;
	const enum te_scaling scaling = _i ? TE_SCALING_16X16 : TE_SCALING_1X16;
	struct te__backend_ops gpu = *ops;
	struct te_tensor *y = tensor(e2m1, 32, 32, 0, scaling), *x = normal(32, 32);

	gpu.fp8_gemm = no_gemm;
	ctx->ops = &gpu;
	fails(te_gemm(st, y, y, x, NULL), -EOPNOTSUPP, _i ? "no GEMM of 5" : "no GEMM of 4");
	ctx->ops = ops;
	DO(te_gemm(st, y, y, x, NULL));
	te_tensor_unref(x);
	te_tensor_unref(y);
}

static int create(void)
{
	struct te_tensor_opts o = TE_TENSOR_OPTS_INIT;
	const int64_t shape[2] = { 32, 32 };
	struct te_tensor *t = NULL;
	int r;

	o.flags = BOTH;
	o.scaling = TE_SCALING_1X16;
	r = te_tensor_create(ctx, e2m1, 2, shape, &o, &t);
	ck_assert(r ? !t : t != NULL);
	te_tensor_unref(t);
	/* memory is freed in stream order */
	if (te_stream_sync(st) && !r)
		r = -ENOMEM;
	return r;
}

TEST(refusals, a_tensor_survives_faults)
{
	ck_assert_int_ge(tt_fault_each(create), 2);
}

TT_MAIN("quant/nvfp4", TT_ONE_PROCESS)
