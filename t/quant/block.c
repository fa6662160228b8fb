/*
 * t/quant/block.c - recipes fp8-block and mxfp8 on the host backend: scales and codes of each block
 * against the formulas of te_quantize(3), written here once more; quantizers without device words.
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

static struct te_quant *quants_of(const char *recipe, uint32_t flags, float epsilon,
				  enum te_dtype dtype)
{
	const enum te_dtype dtypes[2] = { TE_DTYPE_E4M3, dtype };
	struct te_recipe r = TE_RECIPE_INIT;
	struct te_quant *q;

	DO(te_recipe_from_name(recipe, &r));
	r.flags |= flags;
	r.amax_epsilon = epsilon;
	DO(te_quant_create(ctx, &r, 2, dtypes, &q));
	return q;
}

static struct te_quant *quants(uint32_t flags, float epsilon, enum te_dtype dtype)
{
	return quants_of("fp8-block", flags, epsilon, dtype);
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

/* ---- the formulas ---- */

/* element (r, c) of the copy as it is stored */
static float elem(const float *x, int64_t cols, int col, int64_t r, int64_t c)
{
	return col ? x[c * cols + r] : x[r * cols + c];
}

struct rules {
	enum te_dtype dtype;
	enum te_scaling scaling;
	float epsilon;
	int pow2;
};

static int64_t height_of(const struct rules *k)
{
	return k->scaling == TE_SCALING_128X128 ? 128 : 1;
}

static int64_t width_of(const struct rules *k)
{
	return k->scaling == TE_SCALING_1X32 ? 32 : 128;
}

/* the reciprocal of the least power of two, from 2^-127 on, that is not below amax / fmt_max */
static float mx_scale(const struct rules *k, float amax)
{
	int e, most;
	const float f = frexpf(amax, &e), fmax = frexpf(te_dtype_max(k->dtype), &most);

	if (isinf(amax))
		return ldexpf(1, -127);
	e += (f > fmax) - most;
	return ldexpf(1, amax == 0 || e < -127 ? 127 : -e);
}

/* a scale-inverse as it is stored */
static float stored(const struct rules *k, const void *inv, int64_t at)
{
	return k->scaling == TE_SCALING_1X32 ? ldexpf(1, ((const uint8_t *)inv)[at] - 127) :
					       ((const float *)inv)[at];
}

/* the scale of the block that begins at element (r0, c0) of a copy stored as [m, n] */
static float block_scale(const struct rules *k, const float *x, int64_t rows, int64_t cols, int col,
			 int64_t r0, int64_t c0)
{
	const int64_t m = col ? cols : rows, n = col ? rows : cols;
	const int64_t h = height_of(k), w = width_of(k);
	float amax = 0, s;
	int e;

	for (int64_t i = r0; i < m && i < r0 + h; i++)
		for (int64_t j = c0; j < n && j < c0 + w; j++)
			amax = fmaxf(amax, fabsf(elem(x, cols, col, i, j)));
	if (k->scaling == TE_SCALING_1X32)
		return mx_scale(k, amax);
	if (amax < k->epsilon)
		amax = k->epsilon;
	if (amax == 0 || isinf(amax))
		return 1;
	s = te_dtype_max(k->dtype) / amax;
	if (isinf(s))
		s = 0x1.fffffep127f;
	if (!k->pow2)
		return s;
	frexpf(s, &e); /* s = f 2^e, 1/2 <= f < 1 */
	return ldexpf(1, e - 1);
}

/* of each element of the copy, the scale of its block */
static float *scales_of(const struct rules *k, const float *x, int64_t rows, int64_t cols, int col)
{
	const int64_t m = col ? cols : rows, n = col ? rows : cols;
	const int64_t h = height_of(k), w = width_of(k);
	float *s = malloc((size_t)(m * n) * sizeof(*s));

	ck_assert_ptr_nonnull(s);
	for (int64_t r = 0; r < m; r++)
		for (int64_t c = 0; c < n; c++)
			s[r * n + c] = r % h || c % w ?
					       s[r / h * h * n + c / w * w] :
					       block_scale(k, x, rows, cols, col, r, c);
	return s;
}

static void ck_copy(const struct rules *k, const float *x, const struct te_tensor *y, int col)
{
	const int64_t rows = te_tensor_rows(y), cols = te_tensor_cols(y);
	const int64_t m = col ? cols : rows, n = col ? rows : cols;
	const size_t nscales = (size_t)te_scaling_nfloats(k->scaling, m, n);
	uint8_t *code = tt_bytes(col ? te_tensor_coldata(y) : te_tensor_data(y), (size_t)(m * n));
	void *inv = tt_bytes(col ? te_tensor_col_scale_inv(y) : te_tensor_scale_inv(y),
			     nscales * sizeof(float));
	float *scale = scales_of(k, x, rows, cols, col);

	for (int64_t r = 0; r < m; r++)
		for (int64_t c = 0; c < n; c++) {
			const float v = elem(x, cols, col, r, c);
			const float s = scale[r * n + c];
			const float got =
				stored(k, inv, te_scaling_index(k->scaling, m, n, r, c));

			ck_assert_msg(got == 1 / s, "scale of [%d,%d] of copy %d is %a, not %a",
				      (int)r, (int)c, col, (double)got, (double)(1 / s));
			ck_assert_uint_eq(code[r * n + c], te_fp8_encode(k->dtype, v * s));
		}
	free(code);
	free(inv);
	free(scale);
}

static const struct {
	int64_t rows, cols;
	struct rules k;
} casts[] = {
	{ 3, 5, { TE_DTYPE_E4M3, TE_SCALING_1X128, 0, 1 } },
	{ 130, 272, { TE_DTYPE_E4M3, TE_SCALING_1X128, 0, 1 } },
	{ 130, 272, { TE_DTYPE_E5M2, TE_SCALING_1X128, 0, 0 } },
	{ 130, 272, { TE_DTYPE_E4M3, TE_SCALING_1X128, 0.5f, 0 } },
	{ 144, 130, { TE_DTYPE_E4M3, TE_SCALING_128X128, 0, 1 } },
	{ 300, 130, { TE_DTYPE_E4M3, TE_SCALING_128X128, 0, 0 } },
	{ 128, 256, { TE_DTYPE_E5M2, TE_SCALING_128X128, 2.0f, 1 } },
	{ 3, 5, { TE_DTYPE_E4M3, TE_SCALING_1X32, 0, 1 } },
	{ 130, 272, { TE_DTYPE_E4M3, TE_SCALING_1X32, 0, 1 } },
	{ 257, 48, { TE_DTYPE_E5M2, TE_SCALING_1X32, 0, 1 } },
};

CTX_CASE(cast, "host numeric");

TEST_EACH(cast, each_block_has_the_scale_of_its_amax, TT_LEN(casts))
{
	const struct rules *k = &casts[_i].k;
	const int64_t rows = casts[_i].rows, cols = casts[_i].cols;
	const size_t n = (size_t)(rows * cols);
	struct te_quant *q = quants_of(k->scaling == TE_SCALING_1X32 ? "mxfp8" : "fp8-block",
				       k->pow2 ? 0 : TE_RECIPE_FP32_SCALES, k->epsilon, k->dtype);
	struct te_tensor *x = tensor(TE_DTYPE_FP32, rows, cols, 0, TE_SCALING_TENSOR);
	struct te_tensor *y = tensor(k->dtype, rows, cols, BOTH, k->scaling);
	float *v = malloc(n * sizeof(*v)), *back, *scale;

	/* magnitudes differ from block to block; some blocks are 0 */
	for (size_t i = 0; i < n; i++)
		v[i] = tt_rand_normal() *
		       ldexpf(1, (int)(((int64_t)i % cols / 64 + (int64_t)i / cols / 64) % 9) - 4);
	for (int64_t c = 0; c < cols && c < 128; c++)
		v[c] = 0;
	DO(te_tensor_write(x, v, n * sizeof(*v)));
	DO(te_quantize(st, q, 1, x, y, NULL, 0));
	ck_copy(k, v, y, 0);
	ck_copy(k, v, y, 1);

	/* a code is off by half a step: E4M3 2^-4 of the value, E5M2 2^-3; or of the least step */
	DO(te_dequantize(st, y, x));
	back = tt_tensor_get(x);
	scale = scales_of(k, v, rows, cols, 0);
	for (size_t i = 0; i < n; i++) {
		const float rel = k->dtype == TE_DTYPE_E4M3 ? 0x1p-4f : 0x1p-3f;
		const float least = (k->dtype == TE_DTYPE_E4M3 ? 0x1p-10f : 0x1p-17f) / scale[i];

		ck_assert_msg(fabsf(back[i] - v[i]) <= 1.001f * fmaxf(rel * fabsf(v[i]), least),
			      "element %zu: %g becomes %g", i, (double)v[i], (double)back[i]);
	}
	free(back);
	free(scale);
	free(v);
	te_tensor_unref(x);
	te_tensor_unref(y);
	te_quant_unref(q);
}

/* ---- E8M0 ---- */

/* the amax of a block, and its byte if codes are E4M3 and E5M2 */
static const struct {
	float amax;
	uint8_t e4m3, e5m2;
} bytes[] = {
	{ 0.0f, 0, 0 },
	{ 448.0f, 127, 120 },
	{ 0x1.c00002p8f, 128, 121 }, /* the next after 448 */
	{ 447.0f, 127, 120 },
	{ 57344.0f, 134, 127 },
	{ 0x1.c00002p15f, 135, 128 },
	{ 1.0f, 119, 112 },
	{ 0x1p-149f, 0, 0 },
	{ 0x1p-126f, 0, 0 },
	{ 0x1.cp-119f, 0, 0 },
	{ 0x1.c00002p-119f, 1, 0 },
	{ 0x1.c00002p-118f, 2, 0 },
	{ 0x1.fffffep127f, 247, 240 },
	{ INFINITY, 254, 254 },
};

TEST_EACH(cast, a_block_of_32_has_the_byte_of_its_amax, 2)
{
	const enum te_dtype dtype = _i ? TE_DTYPE_E5M2 : TE_DTYPE_E4M3;
	struct te_quant *q = quants_of("mxfp8", 0, 1.0f, dtype); /* epsilon has no effect */
	struct te_tensor *x = tensor(TE_DTYPE_FP32, TT_LEN(bytes), 48, 0, TE_SCALING_TENSOR);
	struct te_tensor *y = tensor(dtype, TT_LEN(bytes), 48, 0, TE_SCALING_1X32);
	float v[TT_LEN(bytes)][48] = { { 0 } }, *back;
	uint8_t *code, *inv;

	for (size_t i = 0; i < TT_LEN(bytes); i++) {
		v[i][3] = -bytes[i].amax;
		v[i][7] = bytes[i].amax / 2;
		v[i][31] = NAN;
		v[i][32] = NAN; /* a block of NaN and zeros */
	}
	DO(te_tensor_write(x, v, sizeof(v)));
	inv = tt_bytes(te_tensor_scale_inv(y), 512);
	for (int i = 0; i < 512; i++)
		ck_assert_uint_eq(inv[i], 127);
	free(inv);
	DO(te_quantize(st, q, 1, x, y, NULL, 0));
	DO(te_dequantize(st, y, x));
	code = tt_bytes(te_tensor_data(y), sizeof(v) / sizeof(float));
	inv = tt_bytes(te_tensor_scale_inv(y), 512);
	back = tt_tensor_get(x);
	for (size_t i = 0; i < TT_LEN(bytes); i++) {
		const uint8_t *c = code + 48 * i;
		const int want = _i ? bytes[i].e5m2 : bytes[i].e4m3;
		const int64_t at = te_scaling_index(TE_SCALING_1X32, TT_LEN(bytes), 48, (int)i, 0);

		ck_assert_int_eq(at, 16 * (int)i);
		ck_assert_msg(inv[at] == want, "amax %a: byte %d, not %d", (double)bytes[i].amax,
			      inv[at], want);
		ck_assert_uint_eq(inv[at + 1], 0);
		ck_assert_uint_eq(inv[at + 2] | inv[at + 3], 0); /* padding */
		ck_assert_uint_eq(c[3], te_fp8_encode(dtype, ldexpf(v[i][3], 127 - want)));
		ck_assert_uint_eq(c[7], te_fp8_encode(dtype, ldexpf(v[i][7], 127 - want)));
		ck_assert(isnan(te_fp8_decode(dtype, c[31])) && isnan(back[48 * i + 31]));
		ck_assert(isnan(te_fp8_decode(dtype, c[32])));
		ck_assert_uint_eq(c[0], 0);
		ck_assert_float_eq(back[48 * i + 3],
				   ldexpf(te_fp8_decode(dtype, c[3]), want - 127));
	}
	for (size_t i = 16 * TT_LEN(bytes); i < 512; i++)
		ck_assert_msg(!inv[i] || i % 16 / 4, "byte %zu is %d", i, inv[i]);
	free(code);
	free(inv);
	free(back);
	te_tensor_unref(x);
	te_tensor_unref(y);
	te_quant_unref(q);
}

/* each block has a byte of its own, and squares of 128 x 128 have 512 bytes each */
TEST(cast, bytes_are_in_squares)
{
	const int64_t rows = 261, cols = 400;
	const int64_t n = 4 * te_scaling_nfloats(TE_SCALING_1X32, rows, cols);
	uint8_t *seen = calloc((size_t)n, 1);

	ck_assert_ptr_nonnull(seen);
	ck_assert_int_eq(n, 3 * 4 * 512);
	for (int64_t r = 0; r < rows; r++)
		for (int64_t c = 0; c < cols; c++) {
			const int64_t at = te_scaling_index(TE_SCALING_1X32, rows, cols, r, c);

			ck_assert(at >= 0 && at < n && at / 512 == r / 128 * 4 + c / 128);
			ck_assert_uint_eq(seen[at], c % 32 != 0);
			seen[at] = (uint8_t)(c % 32 != 31 && c != cols - 1);
		}
	free(seen);
}

/* the product of what te_dequantize() gives; a sum of 48 terms in FP32 */
TEST(cast, operands_are_multiplied_as_dequantized)
{
	enum { M = 144, N = 32, K = 48 };
	struct te_quant *q = quants_of("mxfp8", 0, 0, TE_DTYPE_E5M2);
	struct te_tensor *x[2] = { tensor(TE_DTYPE_FP32, M, K, 0, TE_SCALING_TENSOR),
				   tensor(TE_DTYPE_FP32, N, K, 0, TE_SCALING_TENSOR) };
	struct te_tensor *y[2] = { tensor(TE_DTYPE_E4M3, M, K, BOTH, TE_SCALING_1X32),
				   tensor(TE_DTYPE_E5M2, N, K, BOTH, TE_SCALING_1X32) };
	struct te_tensor *d = tensor(TE_DTYPE_FP32, M, N, 0, TE_SCALING_TENSOR);
	struct te_tensor *b = tensor(TE_DTYPE_E4M3, N, K, BOTH, TE_SCALING_1X128);
	float v[M * K], *a[2], *got;

	for (int i = 0; i < 2; i++) {
		for (int k = 0; k < M * K; k++)
			v[k] = tt_rand_normal() * ldexpf(1, k / 16 % 30 - 15);
		DO(te_tensor_write(x[i], v, te_tensor_nbytes(x[i])));
		DO(te_quantize(st, q, i, x[i], y[i], NULL, 0));
		DO(te_dequantize(st, y[i], x[i]));
		a[i] = tt_tensor_get(x[i]);
	}
	DO(te_gemm(st, y[0], y[1], d, NULL));
	got = tt_tensor_get(d);
	for (int i = 0; i < M * N; i++) {
		double sum = 0, size = 0;

		for (int k = 0; k < K; k++) {
			const double p = (double)a[0][i / N * K + k] * (double)a[1][i % N * K + k];

			sum += p;
			size += fabs(p);
		}
		ck_assert_msg(fabs((double)got[i] - sum) <= K * 0x1p-24 * size,
			      "element %d is %g, not %g", i, (double)got[i], sum);
	}
	fails(te_gemm(st, y[0], b, d, NULL), -TE_EDTYPE, "te_gemm: A alone is scaled by 1x32");
	for (int i = 0; i < 2; i++) {
		te_tensor_unref(x[i]);
		te_tensor_unref(y[i]);
		free(a[i]);
	}
	free(got);
	te_tensor_unref(d);
	te_tensor_unref(b);
	te_quant_unref(q);
}

CTX_CASE(state, "host");

/* on a GPU a kernel of its own casts, and no producer */
TEST(state, blocks_of_32_are_cast_by_producers_on_the_host)
{
	const struct te__backend_ops *ops = ctx->ops;
	struct te__backend_ops gpu = *ops;
	struct te_tensor_opts o = TE_TENSOR_OPTS_INIT;
	struct te_quant *q = quants_of("mxfp8", 0, 0, TE_DTYPE_E5M2);
	struct te_tensor *y = tensor(TE_DTYPE_E4M3, 32, 32, 0, TE_SCALING_1X32);
	const struct te__quantize z = { st, q, 0, y, NULL, 0, NULL, NULL };
	const int64_t shape[2] = { 32, 32 };
	struct te_k_q k = { .row = y };
	struct te_tensor *t = NULL;

	ck_assert(!te__quantize_keeps_x(q));
	gpu.name = "cuda";
	ctx->ops = &gpu;
	ck_assert(te__quantize_keeps_x(q));
	DO(te__quantize_begin(&z, &k));
	ck_assert_ptr_null(k.row);
	ctx->ops = ops;
	DO(te__quantize_begin(&z, &k));
	ck_assert_ptr_eq(k.row, te_tensor_data(y));
	te_tensor_unref(y);
	te_quant_unref(q);
	o.scaling = TE_SCALING_16X16 + 1;
	fails(te_tensor_create(ctx, TE_DTYPE_E4M3, 2, shape, &o, &t), -EINVAL, "scaling 6");
}

TEST(cast, a_set_noop_word_leaves_codes_and_scales)
{
	struct te_quant *q = quants(0, 0, TE_DTYPE_E4M3);
	struct te_tensor *x = tensor(TE_DTYPE_FP32, 32, 144, 0, TE_SCALING_TENSOR);
	struct te_tensor *y = tensor(TE_DTYPE_E4M3, 32, 144, BOTH, TE_SCALING_1X128);
	struct te_tensor *noop = tensor(TE_DTYPE_FP32, 1, 1, 0, TE_SCALING_TENSOR);
	const size_t n = (size_t)te_scaling_nfloats(TE_SCALING_1X128, 32, 144);
	float v[32 * 144], one = 1.0f, *inv;

	tt_fill_normal(v, TT_LEN(v), 100);
	DO(te_tensor_write(x, v, sizeof(v)));
	DO(te_tensor_write(noop, &one, sizeof(one)));
	DO(te_fill(st, te_tensor_data(y), 0x5a, te_tensor_nbytes(y)));
	DO(te_quantize(st, q, 0, x, y, te_tensor_data(noop), 0));
	inv = tt_bytes(te_tensor_scale_inv(y), n * sizeof(*inv));
	for (size_t i = 0; i < n; i++)
		ck_assert_float_eq(inv[i], 1.0f);
	free(inv);
	one = 0.0f;
	DO(te_tensor_write(noop, &one, sizeof(one)));
	DO(te_quantize(st, q, 0, x, y, te_tensor_data(noop), 0));
	ck_copy(&casts[0].k, v, y, 0);
	te_tensor_unref(x);
	te_tensor_unref(y);
	te_tensor_unref(noop);
	te_quant_unref(q);
}

static int count_region(void *arg, const struct te_region *region)
{
	++*(int *)arg;
	return 0;
}

/* ---- slots without device words ---- */

TEST(state, slots_have_no_device_words)
{
	struct te_quant *q = quants(0, 0.25f, TE_DTYPE_E5M2), *other = quants(0, 0, TE_DTYPE_E5M2);
	const size_t n = te_quant_nbytes(q);
	float scale = 7, history = 7;
	uint8_t *blob = malloc(n);
	int nregions = 0;

	ck_assert_ptr_null(te_quant_scale_ptr(q, 0));
	ck_assert_ptr_null(te_quant_amax_ptr(q, 0));
	ck_assert_int_eq(te_quant_dtype(q, 1), TE_DTYPE_E5M2);
	DO(te_quant_peek(q, 1, &scale, &history));
	ck_assert_float_eq(scale, 1);
	ck_assert_float_eq(history, 7); /* nothing to write */
	fails(te_quant_peek(q, 2, &scale, NULL), -EINVAL, "slot 2 of 2");
	DO(te_quant_update(st, q, 0, 2));
	ck_assert_uint_eq(te__quant_device_nbytes(q), 0);
	DO(te__quant_regions(q, count_region, &nregions));
	ck_assert_int_eq(nregions, 0);

	/* magic, nine words, two dtypes, the CRC */
	ck_assert_uint_eq(n, 8 + 9 * 4 + 2 * 4 + 4);
	DO(te_quant_save(q, blob, n));
	DO(te_quant_load(q, blob, n));
	fails(te_quant_load(other, blob, n), -EINVAL, "fp8-block");
	blob[12] ^= 1; /* the kind */
	fails(te_quant_load(q, blob, n), -TE_ECORRUPT, "checksum");
	free(blob);
	te_quant_unref(q);
	te_quant_unref(other);
}

TEST(state, refuses_other_scalings_and_options)
{
	static const uint32_t flags[] = { TE_RECIPE_POW2, TE_RECIPE_E4M3_ONLY };
	static const enum te_dtype e4m3 = TE_DTYPE_E4M3;
	struct te_quant *q = quants(0, 0, TE_DTYPE_E4M3), *plain = NULL;
	struct te_tensor *x = tensor(TE_DTYPE_FP32, 16, 32, 0, TE_SCALING_TENSOR);
	struct te_tensor *y = tensor(TE_DTYPE_E4M3, 16, 32, BOTH, TE_SCALING_TENSOR);
	struct te_tensor *b = tensor(TE_DTYPE_E4M3, 16, 32, BOTH, TE_SCALING_1X128);
	struct te_recipe r = TE_RECIPE_INIT;

	fails(te_quantize(st, q, 0, x, y, NULL, 0), -TE_EDTYPE,
	      "y has per-tensor scaling, which recipe fp8-block does not make");
	DO(te_recipe_from_name("fp8-current", &r));
	DO(te_quant_create(ctx, &r, 1, &e4m3, &plain));
	fails(te_quantize(st, plain, 0, x, b, NULL, 0), -TE_EDTYPE, "y has 1x128 block scaling");
	te_quant_unref(plain);
	DO(te_recipe_from_name("mxfp8", &r));
	DO(te_quant_create(ctx, &r, 1, &e4m3, &plain));
	fails(te_quantize(st, plain, 0, x, b, NULL, 0), -TE_EDTYPE,
	      "y has 1x128 block scaling, which recipe mxfp8 does not make");
	DO(te_recipe_from_name("fp8-current", &r));
	r.flags = TE_RECIPE_FP32_SCALES;
	te_quant_unref(plain);
	fails(te_quant_create(ctx, &r, 1, &e4m3, &plain), -EINVAL,
	      "recipe fp8-current: flags 0x8 do not apply");
	DO(te_recipe_from_name("fp8-block", &r));
	for (size_t i = 0; i < TT_LEN(flags); i++) {
		r.flags = flags[i];
		fails(te_quant_create(ctx, &r, 1, &e4m3, &plain), -EINVAL, "recipe fp8-block");
	}
	DO(te_recipe_from_name("mxfp8", &r));
	r.flags = TE_RECIPE_FP32_SCALES;
	fails(te_quant_create(ctx, &r, 1, &e4m3, &plain), -EINVAL, "recipe mxfp8: flags 0x8");
	te_tensor_unref(x);
	te_tensor_unref(y);
	te_tensor_unref(b);
	te_quant_unref(q);
}

TEST(state, operands_are_as_the_recipe_defines)
{
	struct te_recipe r = TE_RECIPE_INIT;

	DO(te_recipe_from_name("mxfp8", &r));
	for (int role = TE__ROLE_ACTIVATION; role <= TE__ROLE_GRADIENT; role++) {
		const struct te__operand op = te__recipe_operand(&r, role);

		ck_assert(op.dtype == TE_DTYPE_E4M3 && op.scaling == TE_SCALING_1X32);
	}
	r.flags = TE_RECIPE_E5M2_GRADS;
	ck_assert_int_eq(te__recipe_operand(&r, TE__ROLE_WEIGHT).dtype, TE_DTYPE_E4M3);
	ck_assert_int_eq(te__recipe_operand(&r, TE__ROLE_GRADIENT).dtype, TE_DTYPE_E5M2);
	DO(te_recipe_from_name("fp8-block", &r));
	for (int e5m2 = 0; e5m2 < 2; e5m2++) {
		const struct te__operand x = te__recipe_operand(&r, TE__ROLE_ACTIVATION);
		const struct te__operand w = te__recipe_operand(&r, TE__ROLE_WEIGHT);
		const struct te__operand dy = te__recipe_operand(&r, TE__ROLE_GRADIENT);

		ck_assert(x.dtype == TE_DTYPE_E4M3 && x.scaling == TE_SCALING_1X128);
		ck_assert(w.dtype == TE_DTYPE_E4M3 && w.scaling == TE_SCALING_128X128);
		ck_assert_int_eq(dy.dtype, e5m2 ? TE_DTYPE_E5M2 : TE_DTYPE_E4M3);
		ck_assert_int_eq(dy.scaling, TE_SCALING_1X128);
		r.flags |= TE_RECIPE_E5M2_GRADS;
	}
}

TT_MAIN("quant/block", TT_ONE_PROCESS)
