/*
 * t/quant/block.c - recipe fp8-block on the host backend: scales and codes of each block against
 * the formulas of te_quantize(3), written here once more; quantizers without device words.
 */
#include "config.h"

#include <math.h>

#include <te/dtype.h>
#include <te/errno.h>
#include <te/quant.h>

#include "libtecore/quant/quant.h"
#include "tt_ctx.h"
#include "tt_num.h"

#define BOTH (TE_TENSOR_ROWWISE | TE_TENSOR_COLWISE)

static struct te_quant *quants(uint32_t flags, float epsilon, enum te_dtype dtype)
{
	const enum te_dtype dtypes[2] = { TE_DTYPE_E4M3, dtype };
	struct te_recipe r = TE_RECIPE_INIT;
	struct te_quant *q;

	DO(te_recipe_from_name("fp8-block", &r));
	r.flags |= flags;
	r.amax_epsilon = epsilon;
	DO(te_quant_create(ctx, &r, 2, dtypes, &q));
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

/* the scale of the block that begins at element (r0, c0) of a copy stored as [m, n] */
static float block_scale(const struct rules *k, const float *x, int64_t rows, int64_t cols, int col,
			 int64_t r0, int64_t c0)
{
	const int64_t m = col ? cols : rows, n = col ? rows : cols;
	const int64_t h = k->scaling == TE_SCALING_1X128 ? 1 : 128;
	float amax = 0, s;
	int e;

	for (int64_t i = r0; i < m && i < r0 + h; i++)
		for (int64_t j = c0; j < n && j < c0 + 128; j++)
			amax = fmaxf(amax, fabsf(elem(x, cols, col, i, j)));
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
	const int64_t h = k->scaling == TE_SCALING_1X128 ? 1 : 128;
	float *s = malloc((size_t)(m * n) * sizeof(*s));

	ck_assert_ptr_nonnull(s);
	for (int64_t r = 0; r < m; r++)
		for (int64_t c = 0; c < n; c++)
			s[r * n + c] = r % h || c % 128 ?
					       s[r / h * h * n + c / 128 * 128] :
					       block_scale(k, x, rows, cols, col, r, c);
	return s;
}

static void ck_copy(const struct rules *k, const float *x, const struct te_tensor *y, int col)
{
	const int64_t rows = te_tensor_rows(y), cols = te_tensor_cols(y);
	const int64_t m = col ? cols : rows, n = col ? rows : cols;
	const size_t nscales = (size_t)te_scaling_nfloats(k->scaling, m, n);
	uint8_t *code = tt_bytes(col ? te_tensor_coldata(y) : te_tensor_data(y), (size_t)(m * n));
	float *inv = tt_bytes(col ? te_tensor_col_scale_inv(y) : te_tensor_scale_inv(y),
			      nscales * sizeof(*inv));
	float *scale = scales_of(k, x, rows, cols, col);

	for (int64_t r = 0; r < m; r++)
		for (int64_t c = 0; c < n; c++) {
			const float v = elem(x, cols, col, r, c);
			const float s = scale[r * n + c];
			const float got = inv[te_scaling_index(k->scaling, m, n, r, c)];

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
};

START_TEST(each_block_has_the_scale_of_its_amax)
{
	const struct rules *k = &casts[_i].k;
	const int64_t rows = casts[_i].rows, cols = casts[_i].cols;
	const size_t n = (size_t)(rows * cols);
	struct te_quant *q = quants(k->pow2 ? 0 : TE_RECIPE_FP32_SCALES, k->epsilon, k->dtype);
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
END_TEST

START_TEST(a_set_noop_word_leaves_codes_and_scales)
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
END_TEST

static int count_region(void *arg, const struct te_region *region)
{
	++*(int *)arg;
	return 0;
}

/* ---- slots without device words ---- */

START_TEST(slots_have_no_device_words)
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
END_TEST

START_TEST(refuses_other_scalings_and_options)
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
	r.flags = TE_RECIPE_FP32_SCALES;
	te_quant_unref(plain);
	fails(te_quant_create(ctx, &r, 1, &e4m3, &plain), -EINVAL,
	      "recipe fp8-current: flags 0x8 do not apply");
	DO(te_recipe_from_name("fp8-block", &r));
	for (size_t i = 0; i < TT_LEN(flags); i++) {
		r.flags = flags[i];
		fails(te_quant_create(ctx, &r, 1, &e4m3, &plain), -EINVAL, "recipe fp8-block");
	}
	te_tensor_unref(x);
	te_tensor_unref(y);
	te_tensor_unref(b);
	te_quant_unref(q);
}
END_TEST

START_TEST(operands_are_as_the_recipe_defines)
{
	struct te_recipe r = TE_RECIPE_INIT;

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
END_TEST

TT_SUITE("quant/block", TT_NEED_NOTHING)
{
	TCase *c = tt_ctx_case(s, "cast", "host numeric");

	tcase_add_loop_test(c, each_block_has_the_scale_of_its_amax, 0, TT_LEN(casts));
	tcase_add_test(c, a_set_noop_word_leaves_codes_and_scales);
	c = tt_ctx_case(s, "state", "host");
	tcase_add_test(c, slots_have_no_device_words);
	tcase_add_test(c, refuses_other_scalings_and_options);
	tcase_add_test(c, operands_are_as_the_recipe_defines);
}
