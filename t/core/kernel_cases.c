/*
 * t/core/kernel_cases.c - see kernel_cases.h.
 *
 * Where te_k.h fixes the order of operations, device and host give the same bits.
 * Elsewhere each is within a bound of the exact value, and the sum of both bounds is the
 * bound here. U is 2^-24; unit(T) bounds the relative error of one rounding to T, and
 * since both sides round once, results of T have 2 unit(T) |want| on top.
 */
#include "config.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <te/op.h>

#include "kernel_cases.h"
#include "kernel_check.h"

static const int32_t compute[] = { TE_DTYPE_FP32, TE_DTYPE_BF16 };
static const int32_t fp8[] = { TE_DTYPE_E4M3, TE_DTYPE_E5M2 };

/* tiles are 64 x 128, vectors 8, columns of codes go out by 16 rows */
static const struct {
	int64_t rows, cols;
} shapes[] = {
	{ 1, 1 },
	{ 3, 63 },
	{ 64, 64 },
	{ 65, 65 },
	{ 63, 127 },
	{ 64, 128 },
	{ 16, 136 },
	{ 32, 768 },
	{ 127, 1000 },
	{ 128, 1032 },
	{ 130, 33 },
	{ 5, 4096 },
	/* tiles of 64 x 128 enough for each processor of a GPU; the host has one way for all, and
	 * so have odd addresses */
	{ 9, 17000 },
	{ 8449, 24 },
	{ 67, 8584 },
};
static const char *backend_name;

static size_t nshapes(size_t n, size_t for_gpus)
{
	return strcmp(backend_name, "host") && !kc_is_odd() ? n : n - for_gpus;
}
#define NSHAPES nshapes(TT_LEN(shapes), 3)

/* at odd addresses every third shape is enough */
static size_t every(void)
{
	return kc_is_odd() ? 3 : 1;
}

static size_t first_shape(void)
{
	return kc_is_odd() ? (size_t)tt_rand_int(0, 2) : 0;
}

/* of a kernel that has a noop word: T by the low bit of the loop, noop now and then */
static const float *some_noop(void)
{
	switch (tt_rand_int(0, 3)) {
	case 0:
		return kc_word(1.0f);
	case 1:
		return kc_word(0.0f);
	default:
		return NULL;
	}
}

/* ---- quant ---- */

START_TEST(clear_and_amax)
{
	const int32_t dtype = compute[_i & 1];
	static const int64_t sizes[] = { 1, 3, 63, 64, 65, 1000, 4097, 300007 };

	for (size_t k = first_shape(); k < TT_LEN(sizes); k += every()) {
		const int64_t n = sizes[k];
		void *x = _i & 2 ? kc_anything(dtype, n) : kc_normal(dtype, n, 3.0f);
		float *amax = kc_word(tt_rand_float(0.0f, 1.0f));
		struct te_k_clear c = { kc_word(5.0f), some_noop() };
		struct te_k_amax a = { x, n, amax, some_noop(), dtype, 0 };

		tt_set(dtype, x, tt_rand_int(0, n - 1), NAN);
		KC_RUN(CLEAR, &c);
		KC_RUN(AMAX, &a);
		kc_reset();
	}
}
END_TEST

/* bytes and words at any address: whole vectors in the middle, what is left at both ends */
START_TEST(fill)
{
	static const int64_t sizes[] = { 0,	1,  2,	 3,   4,    5,	   12,	   15,	   16,
					 17,	31, 63,	 64,  65,   255,   1000,   4095,   16384,
					 16385, 77, 333, 999, 9973, 65537, 262144, 1000003 };
	const int32_t elem = _i ? 4 : 1;

	for (size_t k = 0; k < TT_LEN(sizes); k++) {
		const int64_t at = tt_rand_int(0, 40), behind = tt_rand_int(1, 40);
		const int64_t n = sizes[k];
		uint8_t *x = kc_poison(TE_DTYPE_UINT8, (at + n + behind) * elem);
		struct te_k_fill a = { x + at * elem, n, (uint32_t)tt_rand_u64(), elem };

		KC_RUN(FILL, &a);
		for (int64_t i = 0; i < n * elem; i++)
			if (x[at * elem + i] != (uint8_t)(a.value >> (i % elem * 8)))
				ck_abort_msg("byte %lld of %lld times %d is %02x, want one of %08x",
					     (long long)i, (long long)n, elem, x[at * elem + i],
					     a.value);
		kc_reset();
	}
}
END_TEST

START_TEST(scale_current)
{
	static const float amaxes[] = { 0.0f, 1.0f, 448.0f, 1e-45f, 1e-38f, 3e38f, INFINITY, NAN };

	for (int i = 0; i < 64; i++) {
		const float x = i < 8 ? amaxes[i] : fabsf(tt_rand_bits_f32());
		struct te_k_scale_current a = { kc_word(x),
						kc_word(7.0f),
						some_noop(),
						i & 1 ? 448.0f : 57344.0f,
						i & 2 ? 0.0f : tt_rand_float(0.0f, 2.0f),
						i & 4,
						0 };

		KC_RUN(SCALE_CURRENT, &a);
		kc_reset();
	}
}
END_TEST

START_TEST(scale_delayed)
{
	static const int32_t lens[] = { 1, 2, 3, 16, 255, 256, 257, 258, 1024, 5000 };

	for (size_t k = 0; k < TT_LEN(lens); k++) {
		const int32_t len = lens[k], nslots = 9;
		float *h = kc_normal(TE_DTYPE_FP32, (int64_t)nslots * len, 3.0f);
		float *max = kc_normal(TE_DTYPE_FP32, nslots, 1.0f);
		struct te_k_scale_delayed a = { h,	    kc_normal(TE_DTYPE_FP32, nslots, 1.0f),
						max,	    1,
						nslots - 2, len,
						_i & 1,	    0x1p-3f,
						0 };

		for (int64_t i = 0; i < (int64_t)nslots * len; i++)
			h[i] = fabsf(h[i]);
		for (int i = 0; i < nslots; i++)
			max[i] = i & 1 ? 448.0f : 57344.0f;
		h[2 * len] = 0.0f;
		h[3 * len] = INFINITY;
		h[4 * len + len - 1] = NAN;
		h[5 * len] = NAN;
		memset(h + 6 * len, 0, (size_t)len * sizeof(*h));
		h[6 * len] = 1e-44f; /* an infinite scale */
		for (int32_t i = 0; i < len; i++)
			h[7 * len + i] = -h[7 * len + i]; /* the largest is below 0 */
		KC_RUN(SCALE_DELAYED, &a);
		KC_RUN(SCALE_DELAYED, &a); /* now most have 0 as the newest */
		kc_reset();
	}
}
END_TEST

START_TEST(quantize)
{
	const int32_t dtype = compute[_i % 2], qdtype = fp8[_i / 2 % 2];

	for (size_t k = first_shape(); k < NSHAPES; k += every()) {
		const int64_t rows = shapes[k].rows, cols = shapes[k].cols, n = rows * cols;
		void *x = k & 1 ? kc_anything(dtype, n) : kc_normal(dtype, n, 1.0f);
		struct te_k_quantize a = {
			x,     rows, cols, kc_q(qdtype, n, tt_rand_float(0.1f, 99.0f), some_noop()),
			dtype, 0
		};

		if (_i / 4 & 1)
			a.q.row = NULL;
		if (_i / 4 & 2)
			a.q.col = NULL;
		if (tt_rand_int(0, 3) == 0)
			a.q.amax = NULL;
		KC_RUN(QUANTIZE, &a);
		kc_reset();
	}
}
END_TEST

START_TEST(dequantize_and_cast)
{
	static const int32_t types[] = { TE_DTYPE_FP32, TE_DTYPE_BF16, TE_DTYPE_FP16 };
	static const int64_t sizes[] = { 1, 7, 8, 9, 256, 4096, 4097, 10001 };
	const int32_t to = types[_i % 3];

	for (size_t k = first_shape(); k < TT_LEN(sizes); k += every()) {
		const int64_t n = sizes[k];
		const int32_t from = types[_i / 3];
		uint8_t *codes = kc_poison(fp8[k & 1], n);
		struct te_k_dequantize d = {
			codes, kc_poison(to, n), kc_word(tt_rand_float(0.001f, 9.0f)),
			n,     fp8[k & 1],	 to
		};
		struct te_k_cast c = { kc_anything(from, n), kc_poison(to, n), n, from, to,
				       some_noop() };

		for (int64_t i = 0; i < n; i++)
			codes[i] = (uint8_t)(n < 256 ? tt_rand_u64() : (uint64_t)i);
		KC_RUN(DEQUANTIZE, &d);
		KC_RUN(CAST, &c);
		kc_reset();
	}
}
END_TEST

/* ---- norms ---- */

static const struct {
	int64_t rows, cols;
} norm_shapes[] = {
	{ 1, 1 },     { 3, 7 },	   { 65, 63 },	 { 64, 64 },   { 5, 768 },   { 67, 1000 },
	{ 9, 1023 },  { 2, 1024 }, { 3, 1025 },	 { 6, 1032 },  { 80, 2048 }, { 17, 4096 },
	{ 48, 5120 }, { 2, 8200 }, { 2, 16384 }, { 2, 16385 }, { 1, 33000 }, { 2, 16640 },
};

/*
 * The longest chain of FP32 additions to a row's sum: eight elements in a tree, vectors
 * of a thread one after the other (a thread in 32 at least), lanes, up to 16 warps.
 */
static double depth_of(int64_t cols)
{
	return 28.0 + (double)cols / 256.0;
}

static double gain_of(const float *gamma, int zero_centered, int64_t c)
{
	return zero_centered ? 1.0 + (double)gamma[c] : (double)gamma[c];
}

/*
 * With A the mean of |x - mean|, and d the depth, the GPU's mean is off by (d + 4) U A and two
 * roundings at |mean|; host: one rounding. rstd: half the variance's (d + 4) U, and roundings
 * of the sum with eps, root and quotient. y: four operations after these.
 */
static void check_norm_fwd(const struct te_k_norm_fwd *a, const void *x)
{
	const double d = depth_of(a->cols);

	for (int64_t r = 0; r < a->rows; r++) {
		const double mean = a->mean ? (double)a->mean[r] : 0.0, rstd = a->rstd[r];
		double spread = 0.0, tol_mean, tol_rstd;

		for (int64_t c = 0; c < a->cols; c++)
			spread += fabs((double)tt_get(a->dtype, x, r * a->cols + c) - mean);
		spread /= (double)a->cols;
		tol_mean = a->mean ? (d + 4.0) * U32 * spread + 3.0 * U32 * fabs(mean) : 0.0;
		tol_rstd = (0.5 * (d + 4.0) + 4.0) * U32 * rstd;
		if (a->mean)
			kc_near(a->mean, r, tol_mean);
		kc_near(a->rstd, r, tol_rstd);
		for (int64_t c = 0; c < a->cols && a->y; c++) {
			const double dx = (double)tt_get(a->dtype, x, r * a->cols + c) - mean;
			const double gain = gain_of(a->gamma, a->zero_centered, c);
			const double size = fabs(dx * rstd * gain);
			const double want = tt_get(a->dtype, a->y, r * a->cols + c);
			const double beta = a->beta ? fabs((double)a->beta[c]) : 0.0;

			kc_near(a->y, r * a->cols + c,
				fabs(rstd * gain) * tol_mean + size * (tol_rstd / rstd) +
					8.0 * U32 * (size + beta) +
					2.0 * tt_unit(a->dtype) * fabs(want));
		}
	}
}

START_TEST(norm_fwd)
{
	const int32_t dtype = compute[_i & 1];
	const int ln = _i >> 1 & 1, zero_centered = _i >> 2 & 1;

	for (size_t k = first_shape(); k < TT_LEN(norm_shapes); k += every()) {
		const int64_t rows = norm_shapes[k].rows, cols = norm_shapes[k].cols;
		const int64_t n = rows * cols;
		/* side: none; row; row and col; col. y or not */
		const int side = (int)tt_rand_int(0, 3);
		void *x = kc_normal(dtype, n, 2.0f), *was;
		struct te_k_norm_fwd a = {
			.x = x,
			.gamma = kc_normal(TE_DTYPE_FP32, cols, 1.0f),
			.beta = ln ? kc_normal(TE_DTYPE_FP32, cols, 1.0f) : NULL,
			.y = kc_poison(dtype, n),
			.mean = ln ? kc_poison(TE_DTYPE_FP32, rows) : NULL,
			.rstd = kc_poison(TE_DTYPE_FP32, rows),
			.rows = rows,
			.cols = cols,
			.eps = 1e-5f,
			.zero_centered = zero_centered,
			.dtype = dtype,
		};
		struct te_k_q q;

		for (int64_t i = 0; i < n; i++)
			tt_set(dtype, x, i, tt_get(dtype, x, i) + (float)(i / cols % 5));
		if (side)
			a.q = kc_q(fp8[k & 1], n, 40.0f, kc_word(0.0f));
		if (side == 1)
			a.q.col = NULL;
		if (side == 3)
			a.q.row = NULL;
		q = a.q;
		kc_defer(a.y);
		kc_defer(a.mean);
		kc_defer(a.rstd);
		kc_defer_q(&a.q);
		KC_RUN(NORM_FWD, &a);
		check_norm_fwd(&a, x);
		kc_check_q(&q, dtype, kc_got(a.y), rows, cols);

		/* the codes do not depend on whether y is wanted, nor y on being x */
		was = malloc((size_t)n * te_dtype_nbytes((enum te_dtype)dtype));
		ck_assert_ptr_nonnull(was);
		memcpy(was, kc_got(a.y), (size_t)n * te_dtype_nbytes((enum te_dtype)dtype));
		if (side && !kc_is_odd()) { /* y's address chooses the variant */
			a.y = NULL;
			*q.amax = 0.0f;
			kc_defer(a.mean);
			kc_defer(a.rstd);
			kc_defer_q(&a.q);
			KC_RUN(NORM_FWD, &a);
			kc_check_q(&q, dtype, was, rows, cols);
			/* then the codes stay as they are */
			*(float *)a.q.noop = 1.0f;
			*(float *)a.q.scale = 7.0f;
			KC_RUN(NORM_FWD, &a);
		}
		a.q = (struct te_k_q){ 0 };
		a.y = x;
		kc_defer(a.y);
		kc_defer(a.mean);
		kc_defer(a.rstd);
		KC_RUN(NORM_FWD, &a);
		if (side < 2 && !kc_is_odd()) /* the same variant of the kernel */
			ck_assert(!memcmp(kc_got(x), was,
					  (size_t)n * te_dtype_nbytes((enum te_dtype)dtype)));
		free(was);
		kc_reset();
	}
}
END_TEST

/* 64 rows at a time, and tiles of 128 columns shared out among blocks; 16 where both are few */
START_TEST(norm_fwd_transposed)
{
	static const struct {
		int64_t rows, cols;
	} sizes[] = {
		{ 64, 128 },   { 65, 256 },   { 130, 384 },  { 16, 512 },    { 127, 768 },
		{ 80, 1024 },  { 33, 1536 },  { 64, 1608 },  { 70, 2048 },   { 3, 2560 },
		{ 128, 3072 }, { 48, 4096 },  { 16, 5120 },  { 17, 6144 },   { 32, 8192 },
		{ 5, 8200 },   { 64, 40 },    { 1, 8 },	     { 8451, 1024 }, { 1025, 128 },
		{ 1030, 256 }, { 1040, 384 }, { 1026, 512 }, { 1100, 768 },  { 1024, 1024 },
	};
	const int ln = _i & 1;

	for (size_t k = first_shape(); k < nshapes(TT_LEN(sizes), 7); k += every()) {
		const int64_t rows = sizes[k].rows, cols = sizes[k].cols, n = rows * cols;
		void *x = kc_normal(TE_DTYPE_BF16, n, 2.0f);
		struct te_k_norm_fwd a = {
			.x = x,
			.gamma = kc_normal(TE_DTYPE_FP32, cols, 1.0f),
			.beta = ln ? kc_normal(TE_DTYPE_FP32, cols, 1.0f) : NULL,
			.y = kc_poison(TE_DTYPE_BF16, n),
			.mean = ln ? kc_poison(TE_DTYPE_FP32, rows) : NULL,
			.rstd = kc_poison(TE_DTYPE_FP32, rows),
			.rows = rows,
			.cols = cols,
			.eps = 1e-5f,
			.dtype = TE_DTYPE_BF16,
			.q = kc_q(fp8[k & 1], n, 40.0f, NULL),
		};

		for (int64_t i = 0; i < n && ln; i++)
			tt_set(TE_DTYPE_BF16, x, i,
			       tt_get(TE_DTYPE_BF16, x, i) + (float)(i / cols % 7));
		if (k & 1)
			a.q.row = NULL;
		kc_defer(a.y);
		kc_defer(a.mean);
		kc_defer(a.rstd);
		kc_defer_q(&a.q);
		KC_RUN(NORM_FWD, &a);
		check_norm_fwd(&a, x);
		kc_check_q(&a.q, TE_DTYPE_BF16, kc_got(a.y), rows, cols);
		kc_reset();
	}
}
END_TEST

START_TEST(norm_fwd_of_numbers_that_are_not)
{
	const int32_t dtype = compute[_i & 1];

	for (int64_t cols = 40; cols < 3000; cols *= 8) {
		void *x = kc_normal(dtype, 4 * cols, 1.0f);
		struct te_k_norm_fwd a = {
			.x = x,
			.gamma = kc_normal(TE_DTYPE_FP32, cols, 1.0f),
			.beta = kc_normal(TE_DTYPE_FP32, cols, 1.0f),
			.y = kc_poison(dtype, 4 * cols),
			.mean = kc_poison(TE_DTYPE_FP32, 4),
			.rstd = kc_poison(TE_DTYPE_FP32, 4),
			.rows = 4,
			.cols = cols,
			.eps = 1e-5f,
			.dtype = dtype,
		};

		if (_i & 2)
			a.q = kc_q(TE_DTYPE_E4M3, 4 * cols, 1.0f, NULL);
		kc_defer_q(&a.q);
		for (int64_t c = 0; c < cols; c++)
			tt_set(dtype, x, cols + c, 100.0f);
		tt_set(dtype, x, 3, NAN);
		tt_set(dtype, x, 2 * cols + cols - 1, INFINITY);
		kc_defer(a.y);
		kc_defer(a.mean);
		kc_defer(a.rstd);
		KC_RUN(NORM_FWD, &a);
		check_norm_fwd(&a, x);
		kc_reset();
	}
}
END_TEST

START_TEST(norm_bwd_and_dw)
{
	const int32_t dtype = compute[_i & 1];
	const int ln = _i >> 1 & 1, zero_centered = _i >> 2 & 1;

	for (size_t k = first_shape(); k < TT_LEN(norm_shapes); k += every()) {
		const int64_t rows = norm_shapes[k].rows, cols = norm_shapes[k].cols;
		const int64_t n = rows * cols, nparts = TE_K_NPARTS(rows);
		const double depth = depth_of(cols);
		const int place = (int)tt_rand_int(0, 2);
		void *x = kc_normal(dtype, n, 1.0f), *dy = kc_normal(dtype, n, 1.0f);
		void *dres = k & 1 ? kc_normal(dtype, n, 1.0f) : NULL;
		float *gamma = kc_normal(TE_DTYPE_FP32, cols, 1.0f);
		float *mean = ln ? kc_normal(TE_DTYPE_FP32, rows, 0.3f) : NULL;
		float *rstd = kc_normal(TE_DTYPE_FP32, rows, 0.2f);
		struct te_k_norm_dw w = { dy,
					  x,
					  mean,
					  rstd,
					  kc_poison(TE_DTYPE_FP32, nparts * cols),
					  ln ? kc_poison(TE_DTYPE_FP32, nparts * cols) : NULL,
					  rows,
					  cols,
					  dtype,
					  0 };
		struct te_k_norm_bwd b = {
			dy,   x,    gamma,	   mean, rstd, dres, kc_poison(dtype, n),
			rows, cols, zero_centered, dtype
		};
		double *tol = malloc((size_t)n * sizeof(*tol));

		ck_assert_ptr_nonnull(tol);
		for (int64_t r = 0; r < rows; r++)
			rstd[r] = 1.0f + fabsf(rstd[r]);
		KC_RUN(NORM_DW, &w);
		/*
		 * Each mean is off by depth U of the mean of absolute values on a GPU, and the
		 * rest is 8 operations on a side.
		 */
		for (int64_t r = 0; r < rows; r++) {
			const double m = mean ? (double)mean[r] : 0.0;
			double ag = 0.0, agx = 0.0;

			for (int64_t pass = 0; pass < 2; pass++)
				for (int64_t c = 0; c < cols; c++) {
					const int64_t i = r * cols + c;
					const double g = fabs((double)tt_get(dtype, dy, i)) *
							 (fabs((double)gamma[c]) + 1.0);
					const double xh = fabs((double)tt_get(dtype, x, i) - m) *
							  (double)rstd[r];
					const double res =
						dres ? fabs((double)tt_get(dtype, dres, i)) : 0.0;

					if (!pass) {
						ag += ln ? g / (double)cols : 0.0;
						agx += g * xh / (double)cols;
						continue;
					}
					tol[i] = U32 * (double)rstd[r] *
							 ((depth + 8.0) * (ag + xh * agx) +
							  16.0 * (g + ag + xh * agx)) +
						 4.0 * U32 * res;
				}
		}
		/* a row of the host's answer is read after its arrays may be overwritten */
		if (place == 1)
			b.dx = dy;
		if (place == 2 && dres)
			b.dx = dres;
		kc_defer(b.dx);
		KC_RUN(NORM_BWD, &b);
		for (int64_t i = 0; i < n; i++)
			kc_near(b.dx, i,
				tol[i] + 2.0 * tt_unit(dtype) *
						 fabs((double)tt_get(dtype, b.dx, i)));
		free(tol);
		kc_reset();
	}
}
END_TEST

/* ---- sums ---- */

START_TEST(colsum_and_part_sum)
{
	static const int64_t heights[] = { 1, 63, 64, 65, 1000, 8192, 8193, 20000 };
	static const int64_t widths[] = { 1, 3, 31, 32, 33, 100, 520, 1024 };
	const int32_t dtype = compute[_i & 1];

	for (size_t k = first_shape(); k < TT_LEN(heights); k += every()) {
		const int64_t rows = heights[k], cols = widths[TT_LEN(widths) - 1 - k];
		const int64_t nparts = TE_K_NPARTS(rows);
		float *part = kc_poison(TE_DTYPE_FP32, nparts * cols);
		struct te_k_colsum a = {
			kc_normal(dtype, rows * cols, 1.0f), part, rows, cols, dtype, 0
		};
		struct te_k_part_sum b = { part, kc_normal(TE_DTYPE_FP32, cols, 1.0f), nparts,
					   cols };

		KC_RUN(COLSUM, &a);
		KC_RUN(PART_SUM, &b);
		kc_reset();
	}
	for (size_t k = 0; k < TT_LEN(widths); k++) {
		const int64_t rows = 130, cols = widths[k];
		struct te_k_colsum a = { kc_normal(dtype, rows * cols, 1.0f),
					 kc_poison(TE_DTYPE_FP32, 3 * cols),
					 rows,
					 cols,
					 dtype,
					 0 };

		KC_RUN(COLSUM, &a);
		kc_reset();
	}
}
END_TEST

/* ---- elementwise ---- */

START_TEST(bias_and_add)
{
	const int32_t dtype = compute[_i & 1];

	for (size_t k = first_shape(); k < NSHAPES; k += every()) {
		const int64_t rows = shapes[k].rows, cols = shapes[k].cols, n = rows * cols;
		void *x = kc_anything(dtype, n), *y = kc_poison(dtype, n);
		struct te_k_bias_fwd f = {
			x, kc_normal(dtype, cols, 1.0f), y, rows, cols, dtype, 0
		};
		struct te_k_add a = { x, kc_normal(dtype, n, 1.0f), y, n, dtype, 0 };

		KC_RUN(BIAS_FWD, &f);
		KC_RUN(ADD, &a);
		f.y = x;
		KC_RUN(BIAS_FWD, &f);
		a.y = (void *)a.b;
		KC_RUN(ADD, &a);
		a.y = x;
		KC_RUN(ADD, &a);
		kc_reset();
	}
}
END_TEST

START_TEST(dropout_and_its_words)
{
	static const int64_t sizes[] = { 1, 7, 8, 9, 4095, 4096, 4104, 100003 };
	const int32_t dtype = compute[_i & 1];

	for (size_t k = first_shape(); k < TT_LEN(sizes); k += every()) {
		const int64_t n = sizes[k];
		uint64_t *words = kc_poison(TE_DTYPE_UINT8, 24);
		struct te_k_rng_next r = { words + 1, words + 2 };
		struct te_k_dropout a = { kc_normal(dtype, n, 1.0f),
					  kc_poison(dtype, n),
					  words,
					  words + 2,
					  n,
					  (uint32_t)tt_rand_int(0, 65535),
					  (uint32_t)tt_rand_u64(),
					  dtype,
					  0 };

		words[0] = tt_rand_u64();
		words[1] = tt_rand_u64();
		if (k == 3)
			a.threshold = 0;
		KC_RUN(RNG_NEXT, &r);
		KC_RUN(DROPOUT, &a);
		a.y = (void *)a.x;
		KC_RUN(DROPOUT, &a);
		kc_reset();
	}
}
END_TEST

START_TEST(rope)
{
	static const struct {
		int32_t nheads, nrot, head_dim;
		int64_t seqlen, batch;
	} cases[] = {
		{ 1, 1, 2, 5, 1 },     { 3, 2, 6, 7, 3 },    { 6, 4, 64, 33, 2 },
		{ 12, 8, 128, 17, 2 }, { 5, 5, 16, 300, 1 }, { 4, 0, 32, 3, 1 },
	};
	const int32_t dtype = compute[_i & 1];

	for (size_t k = 0; k < TT_LEN(cases); k++) {
		const int32_t dim = cases[k].head_dim, half = dim / 2;
		const int64_t rows = cases[k].seqlen * cases[k].batch;
		const int64_t width = (int64_t)cases[k].nheads * dim, n = rows * width;
		void *x = kc_normal(dtype, n, 1.0f), *y = kc_poison(dtype, n);
		struct te_k_rope a = { .x = x,
				       .y = y,
				       .rows = rows,
				       .seqlen = cases[k].seqlen,
				       .nheads = cases[k].nheads,
				       .nrot = cases[k].nrot,
				       .head_dim = dim,
				       .inverse = _i >> 1 & 1,
				       .dtype = dtype };
		double *pair = malloc((size_t)n * sizeof(*pair));

		ck_assert_ptr_nonnull(pair);
		for (int i = 0; i < half; i++) /* the last case turns by far */
			a.inv_freq[i] =
				powf(10000.0f, -(float)i / (float)half) * (k == 4 ? 300.0f : 1.0f);
		for (int64_t i = 0; i < n; i++) {
			const int64_t in = i % dim, other = in < half ? i + half : i - half;

			pair[i] = fabs((double)tt_get(dtype, x, i)) +
				  fabs((double)tt_get(dtype, x, other));
		}
		/*
		 * The angle has the same bits on both sides. Sine and cosine are off by 1 ulp
		 * on the host and 2 on a GPU, of numbers up to 1; two operations follow.
		 */
		for (int place = 0; place < 2; place++) {
			a.y = place ? x : y;
			kc_defer(a.y);
			KC_RUN(ROPE, &a);
			for (int64_t i = 0; i < n; i++)
				kc_near(a.y, i,
					i % width / dim >= a.nrot ?
						0.0 :
						8.0 * U32 * pair[i] +
							2.0 * tt_unit(dtype) *
								fabs((double)tt_get(dtype, a.y,
										    i)));
		}
		free(pair);
		kc_reset();
	}
}
END_TEST

/* ---- activations ---- */

/*
 * exp is off by 4 ulp (8 U) on a GPU and 1 on the host, tanh by 4 and 2; arguments have the
 * same bits. So sig is off by 14 U of itself, and 1 - s by that or a rounding of 1; results near
 * the end of FP32's range, where exp becomes infinite on one side first, by 1e-36.
 */
static double act_tol(int32_t act, double x, double y)
{
	const double ax = fabs(x);

	switch (act) {
	case TE_ACT_GELU: /* 1 + t cancels */
		return 8.0 * U32 * ax + 20.0 * U32 * fabs(y);
	case TE_ACT_RELU:
	case TE_ACT_SRELU:
		return 0.0;
	default:
		return 20.0 * U32 * fabs(y) + 1e-36;
	}
}

static double act_d_tol(int32_t act, double x)
{
	const double ax = fabs(x);

	switch (act) {
	case TE_ACT_GELU: /* 1 - t * t cancels: 14 U, times half x and the slope */
		return 16.0 * U32 * 0.5 * ax * 0.8 * (1.0 + 0.1342 * ax * ax) + 20.0 * U32;
	case TE_ACT_RELU:
	case TE_ACT_SRELU:
		return 0.0;
	default:
		return 20.0 * U32 * (1.0 + 2.0 * ax) + 1e-36;
	}
}

static void *act_input(int32_t dtype, int64_t n)
{
	void *x = kc_normal(dtype, n, 3.0f);
	static const float odd[] = { 0.0f,   -0.0f, 1e-40f, -1e-40f, 30.0f,  -30.0f, 88.0f,
				     -88.0f, 1e10f, -1e10f, 1e30f,   -1e30f, NAN,    INFINITY };

	for (int64_t i = 0; i < n; i += 37)
		tt_set(dtype, x, i, odd[i / 37 % (int64_t)TT_LEN(odd)]);
	return x;
}

static void check_act_fwd(const struct te_k_act_fwd *a)
{
	const int64_t pitch = a->gated ? 2 * a->cols : a->cols;

	for (int64_t i = 0; i < a->rows * a->cols; i++) {
		const int64_t r = i / a->cols, c = i % a->cols;
		const double x = tt_get(a->dtype, a->x, r * pitch + c);
		const double gate =
			a->gated ? (double)tt_get(a->dtype, a->x, r * pitch + a->cols + c) : 1.0;
		const double y = tt_get(a->dtype, a->y, i);

		kc_near(a->y, i,
			act_tol(a->act, x, gate != 0.0 ? y / gate : 0.0) * fabs(gate) +
				2.0 * tt_unit(a->dtype) * fabs(y) + 1e-37);
	}
}

START_TEST(act_fwd)
{
	const int32_t dtype = compute[_i & 1], act = _i / 4;
	const int gated = _i >> 1 & 1;

	for (size_t k = first_shape(); k < NSHAPES; k += every()) {
		const int64_t rows = shapes[k].rows, cols = shapes[k].cols, n = rows * cols;
		const int side = (int)tt_rand_int(0, 3);
		struct te_k_act_fwd a = { act_input(dtype, n * (1 + gated)),
					  kc_poison(dtype, n),
					  rows,
					  cols,
					  { 0 },
					  act,
					  gated,
					  dtype,
					  0 };
		void *y = a.y;

		if (side)
			a.q = kc_q(fp8[k & 1], n, 3.0f, kc_word(0.0f));
		if (side == 1)
			a.q.col = NULL;
		if (side == 3)
			a.q.row = NULL;
		kc_defer(y);
		kc_defer_q(&a.q);
		KC_RUN(ACT_FWD, &a);
		check_act_fwd(&a);
		kc_check_q(&a.q, dtype, kc_got(y), rows, cols);
		if (side) {
			size_t nbytes = (size_t)n * te_dtype_nbytes((enum te_dtype)dtype);
			void *was = malloc(nbytes);

			ck_assert_ptr_nonnull(was);
			memcpy(was, kc_got(y), nbytes);
			a.y = NULL;
			*a.q.amax = 0.0f;
			kc_defer_q(&a.q);
			KC_RUN(ACT_FWD, &a);
			kc_check_q(&a.q, dtype, was, rows, cols);
			/* then the codes stay as they are */
			*(float *)a.q.noop = 1.0f;
			*(float *)a.q.scale = 7.0f;
			a.y = y;
			KC_RUN(ACT_FWD, &a);
			free(was);
		}
		kc_reset();
	}
}
END_TEST

/* of element i of dx */
static double act_bwd_tol(const struct te_k_act_bwd *a, const void *x, const void *dy, int64_t i)
{
	const int64_t width = a->gated ? 2 * a->cols : a->cols, r = i / width, c = i % width;
	const int second = c >= a->cols;
	const int64_t k = second ? c - a->cols : c;
	const double v = tt_get(a->dtype, x, r * width + k);
	const double g = fabs((double)tt_get(a->dtype, dy, r * a->cols + k));
	const double gate =
		a->gated ? fabs((double)tt_get(a->dtype, x, r * width + a->cols + k)) : 1.0;

	/* |act(v)| <= |v| + 1 */
	if (second)
		return g * act_tol(a->act, v, fabs(v) + 1.0) + 1e-37;
	return g * gate * act_d_tol(a->act, v) + 1e-37;
}

START_TEST(act_bwd)
{
	const int32_t dtype = compute[_i & 1], act = _i / 4;
	const int gated = _i >> 1 & 1;

	for (size_t k = first_shape(); k < NSHAPES; k += every()) {
		const int64_t rows = shapes[k].rows, cols = shapes[k].cols, n = rows * cols;
		const int64_t width = cols * (1 + gated), nx = rows * width;
		const int64_t nparts = TE_K_NPARTS(rows);
		const int side = (int)tt_rand_int(0, 3);
		struct te_k_act_bwd a = { kc_normal(dtype, n, 1.0f),
					  act_input(dtype, nx),
					  kc_poison(dtype, nx),
					  NULL,
					  rows,
					  cols,
					  { 0 },
					  act,
					  gated,
					  dtype,
					  0 };
		const float *part;
		double *tol = malloc((size_t)nx * sizeof(*tol));

		ck_assert_ptr_nonnull(tol);
		for (int64_t i = 0; i < nx; i++)
			tol[i] = act_bwd_tol(&a, a.x, a.dy, i);
		if (k % 3)
			a.part = kc_poison(TE_DTYPE_FP32, nparts * width);
		if (side)
			a.q = kc_q(fp8[k & 1], nx, 3.0f, NULL);
		if (side == 1)
			a.q.col = NULL;
		if (side == 3)
			a.q.row = NULL;
		if (!gated && k % 4 == 1)
			a.dx = (void *)a.dy;
		if (!gated && k % 4 == 2)
			a.dx = (void *)a.x;
		kc_defer(a.dx);
		kc_defer(a.part);
		kc_defer_q(&a.q);
		KC_RUN(ACT_BWD, &a);
		for (int64_t i = 0; i < nx; i++)
			kc_near(a.dx, i,
				tol[i] + (4.0 * U32 + 2.0 * tt_unit(dtype)) *
						 fabs((double)tt_get(dtype, a.dx, i)));
		kc_check_q(&a.q, dtype, kc_got(a.dx), rows, width);
		/* the sums are of the device's own dx, in the stated order: equal bits */
		part = a.part ? kc_got(a.part) : NULL;
		for (int64_t p = 0; part && p < nparts; p++)
			for (int64_t c = 0; c < width; c++) {
				const float got = part[p * width + c];
				float sum = 0.0f;

				for (int64_t r = p * 64; r < rows && r < p * 64 + 64; r++)
					sum += tt_get(dtype, kc_got(a.dx), r * width + c);
				if (got != sum && !(isnan(got) && isnan(sum)))
					ck_abort_msg("part %lld column %lld: got %.9g, want %.9g",
						     (long long)p, (long long)c, (double)got,
						     (double)sum);
			}
		if (side) {
			a.q.noop = kc_word(1.0f);
			*(float *)a.q.scale = 7.0f;
			KC_RUN(ACT_BWD, &a);
		}
		free(tol);
		kc_reset();
	}
}
END_TEST

/* ---- embedding ---- */

START_TEST(embedding)
{
	/* the last fill lists of any length */
	static const struct {
		int64_t batch, seqlen, vocab, width;
	} cases[] = {
		{ 1, 1, 1, 1 },	      { 2, 9, 5, 7 },	     { 3, 65, 33, 64 },
		{ 2, 100, 50, 1000 }, { 1, 40, 70000, 24 },  { 4, 513, 300, 40 },
		{ 2, 3000, 3, 16 },   { 1, 5000, 20, 2056 }, { 5, 1000, 9000, 12 },
	};
	const int32_t dtype = compute[_i & 1];

	for (size_t k = first_shape(); k < TT_LEN(cases); k += every()) {
		const int64_t batch = cases[k].batch, seqlen = cases[k].seqlen;
		const int64_t vocab = cases[k].vocab, width = cases[k].width, rows = batch * seqlen;
		int32_t *tokens = kc_poison(TE_DTYPE_INT32, rows);
		float *table = kc_normal(TE_DTYPE_FP32, vocab * width, 1.0f);
		float *pos = k & 1 ? NULL : kc_normal(TE_DTYPE_FP32, (seqlen + 3) * width, 1.0f);
		void *dy = kc_normal(dtype, rows * width, 1.0f);
		struct te_k_embed_fwd f = { tokens, table,  pos,   kc_poison(dtype, rows * width),
					    rows,   seqlen, vocab, width,
					    dtype,  0 };
		struct te_k_embed_bwd b = { tokens, dy, table, rows, vocab, width, dtype, 0 };
		struct te_k_pos_bwd p = { dy, pos, batch, seqlen, width, dtype, 0 };

		for (int64_t i = 0; i < rows; i++)
			tokens[i] = (int32_t)tt_rand_int(0, vocab - 1);
		for (int64_t i = 0; i < rows; i += 11)
			tokens[i] = (int32_t)(i & 1 ? vocab : -1 - i % 3);
		for (int64_t i = 5; i < rows; i += 17)
			tokens[i] = (int32_t)(vocab / 2);
		KC_RUN(EMBED_FWD, &f);
		KC_RUN(EMBED_BWD, &b);
		if (pos)
			KC_RUN(POS_BWD, &p);
		kc_reset();
	}
}
END_TEST

/* ---- loss ---- */

START_TEST(cross_entropy)
{
	static const struct {
		int64_t rows, cols, nclasses;
	} cases[] = {
		{ 1, 1, 1 },	   { 3, 7, 5 },		{ 5, 64, 64 },	     { 4, 1000, 990 },
		{ 2, 4104, 4099 }, { 3, 50304, 50257 }, { 2, 50257, 50257 }, { 70, 128, 100 },
	};
	const int32_t dtype = compute[_i & 1];

	for (size_t k = first_shape(); k < TT_LEN(cases); k += every()) {
		const int64_t rows = cases[k].rows, cols = cases[k].cols, ncl = cases[k].nclasses;
		void *x = kc_normal(dtype, rows * cols, 3.0f);
		int32_t *targets = kc_poison(TE_DTYPE_INT32, rows);
		float *lse = kc_poison(TE_DTYPE_FP32, rows), *loss = kc_poison(TE_DTYPE_FP32, rows);
		float *mean = kc_word(-1.0f), *count = kc_word(-1.0f);
		struct te_k_ce_fwd f = { x, targets, lse, loss, rows, cols, ncl, -100, dtype };
		struct te_k_ce_reduce r = { loss, targets, mean, count, rows, ncl, -100, 0 };
		struct te_k_ce_bwd b = { x,	targets, lse, count, kc_poison(dtype, rows * cols),
					 rows,	cols,	 ncl, -100,  0.7f,
					 dtype, 0 };
		/* exp and its argument in each term, and a chain of sums on a GPU */
		const double depth = 64.0 + (double)cols / 256.0;
		float *got;

		for (int64_t i = 0; i < rows; i++)
			targets[i] = (int32_t)tt_rand_int(0, ncl - 1);
		if (rows > 2) {
			targets[0] = -100;
			targets[2] = (int32_t)ncl;
		}
		for (int64_t i = 0; i < rows * cols; i++)
			if (i % cols >= ncl)
				tt_set(dtype, x, i, i & 1 ? NAN : 1e30f); /* padding */
			else if (i % 13 == 0 && ncl > 5)
				tt_set(dtype, x, i, -INFINITY);
		for (int64_t i = 0; i < rows; i++)
			tt_set(dtype, x,
			       i * cols + (targets[i] >= 0 && targets[i] < ncl ? targets[i] : 0),
			       1.5f);
		kc_defer(lse);
		kc_defer(loss);
		KC_RUN(CE_FWD, &f);
		for (int64_t i = 0; i < rows; i++) {
			kc_near(lse, i, 2.0 * U32 * (depth + fabs((double)lse[i])));
			kc_near(loss, i, 2.0 * U32 * (depth + fabs((double)loss[i])));
		}
		/* FP64 in another order, one rounding to FP32 */
		kc_defer(mean);
		KC_RUN(CE_REDUCE, &r);
		kc_near(mean, 0, 2.0 * U32 * fabs((double)*mean));
		for (int place = 0; place < 2; place++) {
			if (place)
				b.dlogits = x;
			got = malloc((size_t)(rows * cols) * sizeof(*got));
			ck_assert_ptr_nonnull(got);
			for (int64_t i = 0; i < rows * cols; i++)
				got[i] = expf(tt_get(dtype, x, i) - lse[i / cols]);
			kc_defer(b.dlogits);
			KC_RUN(CE_BWD, &b);
			for (int64_t i = 0; i < rows * cols; i++) {
				const double want = tt_get(dtype, b.dlogits, i);
				const double p = i % cols < ncl ? (double)got[i] : 0.0;

				/* exp within 4 ulp and 1, then two operations a side */
				kc_near(b.dlogits, i,
					(16.0 * U32 * p + 2.0 * U32) * 0.7 / fmax(*count, 1.0) *
							(want != 0.0) +
						2.0 * tt_unit(dtype) * fabs(want) + 1e-37);
			}
			free(got);
		}
		kc_reset();
	}
}
END_TEST

START_TEST(cross_entropy_of_numbers_that_are_not)
{
	const int32_t dtype = compute[_i & 1];
	const int64_t rows = 5, cols = 600;
	void *x = kc_normal(dtype, rows * cols, 1.0f);
	int32_t *targets = kc_poison(TE_DTYPE_INT32, rows);
	float *lse = kc_poison(TE_DTYPE_FP32, rows), *loss = kc_poison(TE_DTYPE_FP32, rows);
	struct te_k_ce_fwd f = { x, targets, lse, loss, rows, cols, cols, -1, dtype };
	struct te_k_ce_reduce r = {
		loss, targets, kc_word(-1.0f), kc_word(-1.0f), rows, cols, -1, 0
	};

	for (int64_t i = 0; i < rows; i++)
		targets[i] = (int32_t)i;
	tt_set(dtype, x, 77, NAN);
	tt_set(dtype, x, cols + 99, INFINITY);
	for (int64_t c = 0; c < cols; c++)
		tt_set(dtype, x, 2 * cols + c, -INFINITY);
	for (int64_t c = 1; c < cols; c++)
		tt_set(dtype, x, 3 * cols + c, -INFINITY);
	kc_defer(lse);
	kc_defer(loss);
	KC_RUN(CE_FWD, &f);
	for (int64_t i = 0; i < rows; i++) {
		kc_near(lse, i, 256.0 * U32);
		kc_near(loss, i, fabsf(loss[i]) < INFINITY ? 256.0 * U32 : 0.0);
	}
	KC_RUN(CE_REDUCE, &r);
	for (int64_t i = 0; i < rows; i++)
		targets[i] = -1; /* none counts */
	KC_RUN(CE_REDUCE, &r);
	kc_reset();
}
END_TEST

/* ---- products ---- */

static void *whole_numbers(int32_t dtype, int64_t n)
{
	void *p = kc_poison(dtype, n);

	for (int64_t i = 0; i < n; i++) {
		const float x = (float)tt_rand_int(-4, 4);

		if (dtype == TE_DTYPE_E4M3 || dtype == TE_DTYPE_E5M2)
			((uint8_t *)p)[i] = te_fp8_encode((enum te_dtype)dtype, x);
		else
			tt_set(dtype, p, i, x);
	}
	return p;
}

/* of numbers whose products and sums are exact in any order */
START_TEST(gemm)
{
	const int32_t types[] = { TE_DTYPE_FP32, TE_DTYPE_BF16, TE_DTYPE_E4M3 };
	const int32_t type = types[_i % 3], out = _i & 1 ? TE_DTYPE_FP32 : TE_DTYPE_BF16;

	for (int k = 0; k < 16; k++) {
		const int64_t m = tt_rand_int(1, 70), n = tt_rand_int(1, 70);
		const int64_t depth = tt_rand_int(1, 40);
		struct te_k_gemm a = { .a = whole_numbers(type, m * depth),
				       .b = whole_numbers(type, n * depth),
				       .d = whole_numbers(out, m * n),
				       .m = m,
				       .n = n,
				       .k = depth,
				       .alpha = 1.0f,
				       .a_t = k & 1,
				       .b_t = k >> 1 & 1,
				       .adtype = type,
				       .bdtype = type,
				       .cdtype = out,
				       .ddtype = out };

		if (k & 4) {
			a.c = k & 8 ? a.d : whole_numbers(out, m * n);
			a.beta = 1.0f;
		}
		if (_i & 2)
			a.bias = whole_numbers(out, n);
		if (type == TE_DTYPE_E4M3) {
			a.sa = kc_word(2.0f);
			a.sb = kc_word(0.5f);
		}
		KC_RUN(GEMM, &a);
		kc_reset();
	}
}
END_TEST

/* ---- optimizer ---- */

START_TEST(sumsq_and_adamw)
{
	static const int64_t sizes[] = { 1, 63, 64, 1000, 1024, 1025, 65536, 300001, 1000000 };

	for (size_t k = first_shape(); k < TT_LEN(sizes); k += every()) {
		const int64_t n = sizes[k];
		float *g = kc_normal(TE_DTYPE_FP32, n, 1.0f);
		float *v = kc_normal(TE_DTYPE_FP32, n, 0.1f);
		double *part = kc_poison(TE_DTYPE_UINT8, TE_K_SUMSQ_PARTS * 8);
		struct te_k_adamw_state *s = kc_poison(TE_DTYPE_UINT8, sizeof(*s));
		uint8_t *decay = kc_poison(TE_DTYPE_UINT8, (n + 63) / 64);
		struct te_k_sumsq q = { g, part, n };
		struct te_k_adamw_begin b = { part, s, 0.9f, 0.95f, 0.0f, 0 };
		struct te_k_adamw a = { kc_normal(TE_DTYPE_FP32, n, 1.0f),
					kc_normal(TE_DTYPE_FP32, n, 0.1f),
					v,
					g,
					decay,
					s,
					n,
					0.9f,
					0.95f,
					1e-8f,
					0.1f };

		for (int64_t i = 0; i < n; i++)
			v[i] = v[i] * v[i];
		for (int64_t i = 0; i < (n + 63) / 64; i++)
			decay[i] = (uint8_t)(tt_rand_u64() & 1);
		*s = (struct te_k_adamw_state){
			.nsteps = 3, .beta1_t = 0.729, .beta2_t = 0.857, .lr = 1e-3f
		};
		/* FP64 in another order */
		kc_defer(part);
		KC_RUN(SUMSQ, &q);
		for (int p = 0; p < TE_K_SUMSQ_PARTS; p++)
			ck_assert_double_le(fabs(((const double *)kc_got(part))[p] - part[p]),
					    (double)(n + 8) * 0x1p-53 * part[p]);
		if (k & 1)
			b.max_norm = k & 2 ? 0.5f : 1e9f;
		for (int step = 0; step < 2; step++) {
			KC_RUN(ADAMW_BEGIN, &b);
			KC_RUN(ADAMW, &a);
		}
		part[17] = k & 1 ? (double)INFINITY : (double)NAN;
		KC_RUN(ADAMW_BEGIN, &b);
		KC_RUN(ADAMW, &a); /* skipped */
		kc_reset();
	}
}
END_TEST

/* ---- */

static void setup(void)
{
	kc_open(backend_name);
}

static void setup_odd(void)
{
	setup();
	kc_odd(1);
}

Suite *kernel_suite(const char *name, const char *backend)
{
	Suite *s = suite_create(name);
	TCase *c;

	backend_name = backend;
#define CASE(what)                       \
	c = tt_case(s, what, "numeric"); \
	tcase_add_checked_fixture(c, setup, kc_close)
	CASE("quant");
	tcase_add_loop_test(c, clear_and_amax, 0, 4);
	tcase_add_loop_test(c, fill, 0, 2);
	tcase_add_test(c, scale_current);
	tcase_add_loop_test(c, scale_delayed, 0, 2);
	tcase_add_loop_test(c, quantize, 0, 16);
	tcase_add_loop_test(c, dequantize_and_cast, 0, 9);
	CASE("norm");
	tcase_add_loop_test(c, norm_fwd, 0, 8);
	tcase_add_loop_test(c, norm_fwd_transposed, 0, 2);
	tcase_add_loop_test(c, norm_fwd_of_numbers_that_are_not, 0, 4);
	tcase_add_loop_test(c, norm_bwd_and_dw, 0, 8);
	CASE("reduce");
	tcase_add_loop_test(c, colsum_and_part_sum, 0, 2);
	CASE("elem");
	tcase_add_loop_test(c, bias_and_add, 0, 2);
	tcase_add_loop_test(c, dropout_and_its_words, 0, 2);
	tcase_add_loop_test(c, rope, 0, 4);
	CASE("act");
	tcase_add_loop_test(c, act_fwd, 0, 4 * TE_ACT_COUNT);
	tcase_add_loop_test(c, act_bwd, 0, 4 * TE_ACT_COUNT);
	CASE("embed");
	tcase_add_loop_test(c, embedding, 0, 2);
	CASE("loss");
	tcase_add_loop_test(c, cross_entropy, 0, 2);
	tcase_add_loop_test(c, cross_entropy_of_numbers_that_are_not, 0, 2);
	/* a GPU's are cuBLASLt's, of fewer layouts: gemm_exact_gpu.c */
	if (!strcmp(backend, "host")) {
		CASE("gemm");
		tcase_add_loop_test(c, gemm, 0, 6);
	}
	CASE("optim");
	tcase_add_test(c, sumsq_and_adamw);
#undef CASE
	c = tt_case(s, "odd addresses", "numeric");
	tcase_add_checked_fixture(c, setup_odd, kc_close);
	tcase_add_loop_test(c, clear_and_amax, 0, 4);
	tcase_add_loop_test(c, quantize, 0, 16);
	tcase_add_loop_test(c, dequantize_and_cast, 0, 9);
	tcase_add_loop_test(c, norm_fwd, 0, 8);
	tcase_add_loop_test(c, norm_fwd_transposed, 0, 2);
	tcase_add_loop_test(c, norm_bwd_and_dw, 0, 8);
	tcase_add_loop_test(c, colsum_and_part_sum, 0, 2);
	tcase_add_loop_test(c, bias_and_add, 0, 2);
	tcase_add_loop_test(c, dropout_and_its_words, 0, 2);
	tcase_add_loop_test(c, rope, 0, 2);
	tcase_add_loop_test(c, act_fwd, 0, 4);
	tcase_add_loop_test(c, act_bwd, 0, 4);
	tcase_add_loop_test(c, embedding, 0, 2);
	tcase_add_loop_test(c, cross_entropy, 0, 2);
	tcase_add_test(c, sumsq_and_adamw);
	return s;
}
