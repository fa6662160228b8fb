/*
 * t/kernels/host_kernels_nvfp4.c - te_k_quantize to E2M1: the reference function against an
 * independent implementation (t/data/gen_nvfp4.py), the Hadamard transform, stochastic rounding,
 * and GEMMs of the codes.
 */
#include "config.h"

#include <te/dtype.h>

#include "host_kernels_lib.h"
#include "kernels/ref.h"
#include "libtecore/base/base.h"

static const struct golden {
	int64_t rows, cols;
	int pad_rows, pad_cols, row_only;
	int32_t scaling, stochastic;
	float epsilon;
	int kind;
	uint64_t seed;
	uint32_t row, row_scales, col, col_scales; /* FNV-1a */
} golden[] = {
#define NVFP4(rows, cols, pad_rows, pad_cols, row_only, scaling, stochastic, epsilon, kind, seed, \
	      row, row_scales, col, col_scales)                                                   \
	{ rows, cols, pad_rows, pad_cols,   row_only, TE_K_SCALING_##scaling, stochastic,         \
	  epsilon, kind, seed, row, row_scales, col, col_scales },
#include "t/data/nvfp4.inc"
#undef NVFP4
};

/* the numbers of gen_nvfp4.py */
static void fill(float *x, int64_t rows, int64_t cols, int kind, uint64_t state)
{
	static const uint32_t special[] = { 0, 0x80000000, 0x7fc00000, 0x3f800000, 1,
					    0x007fffff, 0x00800000, 0xff800000 };

	for (int64_t i = 0; i < rows * cols; i++) {
		uint32_t w;

		state = state * 6364136223846793005u + 1442695040888963407u;
		w = (uint32_t)(state >> 32);
		switch (kind) {
		case 1: /* Python shifts negative numbers as signed ones */
			x[i] = (float)(((int32_t)(w >> 8 & 0xfff) - 0x800) >> (w & 7));
			continue;
		case 2:
			x[i] = 0;
			continue;
		case 3:
			x[i] = te__f32_from_bits(w & 0x80000fff);
			continue;
		}
		x[i] = te__f32_from_bits((w & 0x807fffff) | (112 + (w >> 23 & 31)) << 23);
		if (i / cols % 16 == 5 && i % 40 < 3)
			x[i] = te__f32_from_bits(special[i / 40 % (kind == 4 ? 8 : 7)]);
	}
}

static uint32_t fnv(const void *p, int64_t nbytes)
{
	const uint8_t *b = p;
	uint32_t h = 2166136261u;

	while (nbytes--)
		h = (h ^ *b++) * 16777619u;
	return h;
}

/* both copies of a [rows, cols] cast, all of it poison */
struct fp4 {
	struct te_k_q q;
	int64_t n, nrow, ncol; /* bytes of codes; words of the scales of each copy */
};

static struct fp4 fp4_new(int32_t scaling, int64_t rows, int64_t cols)
{
	struct fp4 f = {
		.q = { .dtype = TE_DTYPE_E2M1, .scaling = scaling },
		.n = rows * cols / 2,
		.nrow = te_k_scale_nfloats(scaling, rows, cols),
		.ncol = te_k_scale_nfloats(scaling, cols, rows),
	};

	f.q.row = hk_fresh(TE_DTYPE_UINT8, f.n);
	f.q.col = hk_fresh(TE_DTYPE_UINT8, f.n);
	f.q.scale_inv = hk_fresh(TE_DTYPE_FP32, f.nrow);
	f.q.col_scale_inv = hk_fresh(TE_DTYPE_FP32, f.ncol);
	return f;
}

static void fp4_check_ends(const struct fp4 *f)
{
	hk_check_end(TE_DTYPE_UINT8, f->q.row, f->n);
	hk_check_end(TE_DTYPE_UINT8, f->q.col, f->n);
	hk_check_end(TE_DTYPE_FP32, f->q.scale_inv, f->nrow);
	hk_check_end(TE_DTYPE_FP32, f->q.col_scale_inv, f->ncol);
}

static void fp4_check_same(const struct fp4 *a, const struct fp4 *b)
{
	hk_check_same(TE_DTYPE_UINT8, a->q.row, b->q.row, a->n);
	hk_check_same(TE_DTYPE_UINT8, a->q.col, b->q.col, a->n);
	hk_check_same(TE_DTYPE_FP32, a->q.scale_inv, b->q.scale_inv, a->nrow);
	hk_check_same(TE_DTYPE_FP32, a->q.col_scale_inv, b->q.col_scale_inv, a->ncol);
}

static void fp4_free(struct fp4 *f)
{
	free(f->q.row);
	free(f->q.col);
	free(f->q.scale_inv);
	free(f->q.col_scale_inv);
}

/* the words that a scale was computed from are zeros in the golden data */
static uint32_t fnv_scales(float *scales, int64_t nfloats)
{
	memset(scales + TE_K_NV_AMAX, 0, TE_K_NV_HEAD - sizeof(*scales));
	return fnv(scales, nfloats * 4);
}

CASE(nvfp4, "host numeric");

TEST_EACH(nvfp4, casts_as_another_implementation, TT_LEN(golden))
{
	const struct golden *g = &golden[_i];
	const int64_t rows = g->rows - g->pad_rows, cols = g->cols - g->pad_cols;
	struct fp4 f = fp4_new(g->scaling, g->rows, g->cols);
	float *x = hk_fresh(TE_DTYPE_FP32, rows * cols);
	struct te_k_quantize k = { .x = x, .rows = g->rows, .cols = g->cols, .q = f.q,
				   .dtype = TE_DTYPE_FP32, .stochastic = g->stochastic };

	k.pad_rows = (int16_t)g->pad_rows;
	k.pad_cols = (int16_t)g->pad_cols;
	k.q.epsilon = g->epsilon;
	if (g->row_only)
		k.q.col = NULL;
	fill(x, rows, cols, g->kind, g->seed);
	te__h_quantize_alone(&k);
	fp4_check_ends(&f);
	ck_assert_uint_eq(fnv_scales(f.q.scale_inv, f.nrow), g->row_scales);
	ck_assert_uint_eq(fnv(f.q.row, f.n), g->row);
	if (g->row_only) {
		ck_assert(tt_is_poison(f.q.col, (size_t)f.n));
		ck_assert(tt_is_poison(f.q.col_scale_inv, (size_t)f.ncol * 4));
	} else {
		ck_assert_uint_eq(fnv_scales(f.q.col_scale_inv, f.ncol), g->col_scales);
		ck_assert_uint_eq(fnv(f.q.col, f.n), g->col);
	}
	free(x);
	fp4_free(&f);
}

/* BF16 is FP32 of the same values; one copy does not change the other; noop writes nothing */
TEST_EACH(nvfp4, copies_are_independent, 3)
{
	const int32_t scaling = _i & 1 ? TE_K_SCALING_16X16 : TE_K_SCALING_1X16;
	const int64_t rows = 144, cols = 400, n = rows * cols;
	struct fp4 want = fp4_new(scaling, rows, cols), got = fp4_new(scaling, rows, cols);
	float *x = hk_normal(TE_DTYPE_FP32, n, 3.0f);
	uint16_t *h = hk_fresh(TE_DTYPE_BF16, n);
	struct te_k_quantize k = { .x = x, .rows = rows, .cols = cols, .q = want.q,
				   .dtype = TE_DTYPE_FP32, .stochastic = _i == 2 };

	for (int64_t i = 0; i < n; i++) {
		h[i] = te_bf16_encode(x[i]);
		x[i] = te_bf16_decode(h[i]);
	}
	te__h_quantize_alone(&k);
	k.x = h;
	k.dtype = TE_DTYPE_BF16;
	k.q = got.q;
	k.q.noop = &hk_noop_on;
	te__h_quantize_alone(&k);
	ck_assert(tt_is_poison(got.q.row, (size_t)got.n));
	ck_assert(tt_is_poison(got.q.scale_inv, (size_t)got.nrow * 4));
	k.q.noop = &hk_noop_off;
	k.q.col = NULL;
	te__h_quantize_alone(&k);
	ck_assert(tt_is_poison(got.q.col, (size_t)got.n));
	ck_assert(tt_is_poison(got.q.col_scale_inv, (size_t)got.ncol * 4));
	hk_check_same(TE_DTYPE_UINT8, got.q.row, want.q.row, got.n);
	k.q.col = got.q.col;
	k.q.row = NULL;
	te__h_quantize_alone(&k);
	fp4_check_same(&got, &want);
	fp4_check_ends(&got);
	free(x);
	free(h);
	fp4_free(&got);
	fp4_free(&want);
}

/* ---- values of codes ---- */

static const float value[8] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6 };

static float code_value(const void *codes, int64_t at)
{
	const int c = ((const uint8_t *)codes)[at / 2] >> at % 2 * 4 & 15;

	return c & 8 ? -value[c & 7] : value[c & 7];
}

static float scale_of(const float *scales, int32_t scaling, int64_t rows, int64_t cols, int64_t r,
		      int64_t c)
{
	const int64_t at = te_k_scale_index(scaling, rows, cols, r, c);

	return te_fp8_decode(TE_DTYPE_E4M3, ((const uint8_t *)scales)[at]) * scales[0];
}

/* half of the largest step is 1; a scale that was rounded down by 1/16 saturates at 6, of 6.375 */
TEST_EACH(nvfp4, dequantizes_within_the_format, 2)
{
	const int32_t scaling = _i ? TE_K_SCALING_16X16 : TE_K_SCALING_1X16;
	const int64_t rows = 64, cols = 320, n = rows * cols;
	struct fp4 f = fp4_new(scaling, rows, cols);
	float *x = hk_normal(TE_DTYPE_FP32, n, 1.0f), *y = hk_fresh(TE_DTYPE_FP32, n);
	struct te_k_quantize k = { .x = x, .rows = rows, .cols = cols, .q = f.q,
				   .dtype = TE_DTYPE_FP32 };
	struct te_k_dequantize d = { f.q.row, y, f.q.scale_inv, rows, cols, TE_DTYPE_E2M1,
				     TE_DTYPE_FP32, scaling, 0, 0 };

	te__h_quantize_alone(&k);
	te__h_dequantize(&d);
	hk_check_end(TE_DTYPE_FP32, y, n);
	for (int64_t i = 0; i < n; i++) {
		const int64_t r = i / cols, c = i % cols;
		const float inv = scale_of(f.q.scale_inv, scaling, rows, cols, r, c);

		ck_assert_float_eq(y[i], code_value(f.q.row, i) * inv);
		hk_check_near(y[i], x[i], 1.001 * (double)inv, "value", i);
	}
	free(x);
	free(y);
	fp4_free(&f);
}

/* both copies of 16x16 have the same values and scales */
TEST(nvfp4, squares_are_transposed)
{
	const int64_t rows = 144, cols = 272;
	struct fp4 f = fp4_new(TE_K_SCALING_16X16, rows, cols);
	float *x = hk_normal(TE_DTYPE_FP32, rows * cols, 1.0f);
	struct te_k_quantize k = { .x = x, .rows = rows, .cols = cols, .q = f.q,
				   .dtype = TE_DTYPE_FP32 };

	te__h_quantize_alone(&k);
	for (int64_t r = 0; r < rows; r++)
		for (int64_t c = 0; c < cols; c++) {
			ck_assert_float_eq(code_value(f.q.row, r * cols + c),
					   code_value(f.q.col, c * rows + r));
			ck_assert_float_eq(
				scale_of(f.q.scale_inv, f.q.scaling, rows, cols, r, c),
				scale_of(f.q.col_scale_inv, f.q.scaling, cols, rows, c, r));
		}
	free(x);
	fp4_free(&f);
}

/* ---- transform ---- */

/* row i of the matrix of the transform, from its definition */
static double rht(int i, int j)
{
	const int sign = (__builtin_popcount((unsigned)(i & j)) ^ (TE_K_RHT_SIGNS >> j)) & 1;

	return sign ? -0.25 : 0.25;
}

TEST(nvfp4, the_transform_is_orthogonal)
{
	for (int a = 0; a < 16; a++)
		for (int b = 0; b < 16; b++) {
			double rows = 0, cols = 0;

			for (int k = 0; k < 16; k++) {
				rows += rht(a, k) * rht(b, k);
				cols += rht(k, a) * rht(k, b);
			}
			ck_assert_double_eq(rows, a == b);
			ck_assert_double_eq(cols, a == b);
		}
}

/*
 * One group of 16 rows, whose transformed column c has its only block. A column of one 6 * 4 k and
 * zeros becomes 16 numbers of +-6 k, which codes hold exactly: the signs are those of the matrix.
 */
TEST(nvfp4, columns_are_transformed)
{
	enum { N = 16 };
	struct fp4 f = fp4_new(TE_K_SCALING_1X16, N, N);
	float x[N * N] = { 0 };
	struct te_k_quantize k = { .x = x, .rows = N, .cols = N, .q = f.q, .dtype = TE_DTYPE_FP32 };

	for (int c = 0; c < N; c++)
		x[c * N + c] = 24;
	te__h_quantize_alone(&k);
	for (int c = 0; c < N; c++)
		for (int i = 0; i < N; i++)
			ck_assert_double_eq((double)code_value(f.q.col, c * N + i),
					    24 * rht(i, c));
	ck_assert_float_eq(scale_of(f.q.col_scale_inv, f.q.scaling, N, N, 3, 0),
			   448 * (1 / 448.0f));
	fp4_free(&f);
}

/*
 * The product of two column-wise copies, over 16 * 12 rows, against that of the inputs. The sum of
 * n terms t a, where t and a are transformed and have errors of e_t and e_a, is off by no more than
 * sum |t e_a| + |a e_t| + |e_t e_a|; errors are at most half a step, 1 of 6, times the scale
 * (dequantizes_within_the_format). The transform's own roundings are 6, U32 of the largest sum.
 */
TEST_EACH(nvfp4, products_of_transformed_copies_are_products, 2)
{
	enum { ROWS = 192, N = 32, M = 48 };
	struct fp4 f[2] = { fp4_new(TE_K_SCALING_1X16, ROWS, M),
			    fp4_new(TE_K_SCALING_1X16, ROWS, N) };
	const int64_t cols[2] = { M, N };
	float *x[2], *d = hk_fresh(TE_DTYPE_FP32, M * N);
	struct te_k_gemm g = { .a = f[0].q.col, .b = f[1].q.col, .d = d,
			       .sa = f[0].q.col_scale_inv, .sb = f[1].q.col_scale_inv, .m = M,
			       .n = N, .k = ROWS, .alpha = 1, .adtype = TE_DTYPE_E2M1,
			       .bdtype = TE_DTYPE_E2M1, .ddtype = TE_DTYPE_FP32,
			       .asc = TE_K_SCALING_1X16, .bsc = TE_K_SCALING_1X16 };

	for (int i = 0; i < 2; i++) {
		struct te_k_quantize k = { .rows = ROWS, .cols = cols[i], .q = f[i].q,
					   .dtype = TE_DTYPE_FP32, .stochastic = _i && i };

		k.x = x[i] = hk_normal(TE_DTYPE_FP32, ROWS * cols[i], 1.0f);
		te__h_quantize_alone(&k);
	}
	te__h_gemm(&g);
	hk_check_end(TE_DTYPE_FP32, d, M * N);
	for (int64_t m = 0; m < M; m++)
		for (int64_t n = 0; n < N; n++) {
			double sum = 0, codes = 0, size = 0, most = 0;

			for (int64_t r = 0; r < ROWS; r++) {
				const double inv[2] = {
					(double)scale_of(f[0].q.col_scale_inv, f[0].q.scaling, M,
							 ROWS, m, r),
					(double)scale_of(f[1].q.col_scale_inv, f[1].q.scaling, N,
							 ROWS, n, r)
				};
				const double a = inv[0] * (double)code_value(f[0].q.col,
									     m * ROWS + r);
				const double b = inv[1] * (double)code_value(f[1].q.col,
									     n * ROWS + r);
				/* stochastic rounding: a whole step of 2 */
				const double ea = 1.01 * inv[0];
				const double eb = (_i ? 2.01 : 1.01) * inv[1];

				sum += (double)x[0][r * M + m] * (double)x[1][r * N + n];
				codes += a * b;
				size += fabs(a * b);
				most += (fabs(a) + ea) * (fabs(b) + eb) - fabs(a * b);
			}
			hk_check_near(d[m * N + n], codes, 2 * ROWS * U32 * size, "sum of codes",
				      m * N + n);
			hk_check_near(d[m * N + n], sum, most, "product", m * N + n);
		}
	for (int i = 0; i < 2; i++) {
		free(x[i]);
		fp4_free(&f[i]);
	}
	free(d);
}

/* ---- stochastic rounding ---- */

/*
 * Rows of 15 equal numbers v and a 6: the scale is 1, and codes are the neighbours of v. Of n
 * casts a fraction p = (v - lo) / (hi - lo) is rounded up: a binomial number, within 5 standard
 * deviations, sqrt(n p (1 - p)), in all but 6e-7 of all cases. The inputs are fixed.
 */
TEST_EACH(nvfp4, stochastic_rounding_has_the_mean_of_the_number, 10, .parts = 5)
{
	static const float v[] = { 0.1f, 0.25f, 0.5f, 0.7f, 1.1f, 1.9f, 2.3f, 3.9f, 4.1f, 5.0f };
	enum { ROWS = 4096, COLS = 16 };
	const float lo_of = v[_i];
	const int64_t n = (int64_t)ROWS * (COLS - 1);
	struct fp4 f = fp4_new(TE_K_SCALING_1X16, ROWS, COLS);
	float *x = hk_fresh(TE_DTYPE_FP32, (int64_t)ROWS * COLS), lo = 0, hi = 0;
	struct te_k_quantize k = { .x = x, .rows = ROWS, .cols = COLS, .q = f.q,
				   .dtype = TE_DTYPE_FP32, .stochastic = 1 };
	int64_t up = 0, equal = 0;
	double p;

	for (int i = 0; i < 8; i++) {
		lo = value[i] <= lo_of ? value[i] : lo;
		hi = hi == 0 && value[i] > lo_of ? value[i] : hi;
	}
	p = (double)((lo_of - lo) / (hi - lo));
	for (int64_t i = 0; i < (int64_t)ROWS * COLS; i++)
		x[i] = i % COLS ? (i & 1 ? -lo_of : lo_of) : 6;
	k.q.col = NULL;
	te__h_quantize_alone(&k);
	ck_assert_float_eq(scale_of(f.q.scale_inv, f.q.scaling, ROWS, COLS, 7, 0),
			   448 * (1 / 448.0f));
	for (int64_t i = 0; i < (int64_t)ROWS * COLS; i++) {
		const float got = fabsf(code_value(f.q.row, i));
		const int rounded_up = got == hi;

		if (i % COLS == 0) {
			ck_assert_float_eq(got, 6);
			continue;
		}
		ck_assert(got == lo || got == hi);
		ck_assert((code_value(f.q.row, i) < 0) == (i & 1) || got == 0);
		up += rounded_up;
		equal += i % COLS > 1 && rounded_up == (fabsf(code_value(f.q.row, i - 1)) == hi);
	}
	hk_check_near((double)up, (double)n * p, 5 * sqrt((double)n * p * (1 - p)), "rounded up",
		      0);
	/* neighbours are independent: equal with probability p^2 + (1 - p)^2; 5 deviations of a
	 * number with variance n / 4 or less, doubled as pairs overlap */
	hk_check_near((double)equal, (double)(n - ROWS) * (p * p + (1 - p) * (1 - p)),
		      5 * sqrt((double)n / 2), "equal neighbours", 0);
	free(x);
	fp4_free(&f);
}

/* another element, or another amax, has other random numbers; the same input has the same ones */
TEST(nvfp4, random_numbers_depend_on_the_input)
{
	enum { N = 64 };
	struct fp4 f[4];
	float *x = hk_normal(TE_DTYPE_FP32, N * N, 1.0f);
	struct te_k_quantize k = { .x = x, .rows = N, .cols = N, .dtype = TE_DTYPE_FP32,
				   .stochastic = 1 };
	int64_t differ = 0;

	x[0] = 6;
	for (int i = 0; i < 4; i++) {
		f[i] = fp4_new(TE_K_SCALING_1X16, N, N);
		k.q = f[i].q;
		if (i == 2)
			x[5] = -x[5];
		k.stochastic = i < 3;
		te__h_quantize_alone(&k);
	}
	fp4_check_same(&f[0], &f[1]);
	for (int64_t i = 32; i < f[0].n; i++)
		differ += ((uint8_t *)f[0].q.row)[i] != ((uint8_t *)f[2].q.row)[i];
	ck_assert_int_gt(differ, f[0].n / 4);
	differ = 0;
	for (int64_t i = 0; i < f[0].n; i++)
		differ += ((uint8_t *)f[2].q.col)[i] != ((uint8_t *)f[3].q.col)[i];
	ck_assert_int_gt(differ, f[0].n / 4);
	for (int i = 0; i < 4; i++)
		fp4_free(&f[i]);
	free(x);
}
