/*
 * t/core/host_kernels.c - the reference kernels of libtecore/host against FP64 computations
 * written here, on odd shapes, with poisoned outputs and numbers that are not.
 *
 * Bounds: U32 and unit(T) are the unit roundoffs 2^-24 and, BF16, 2^-8. A result that takes k FP32
 * operations on terms of total size s and is rounded to T is within k U32 s + unit(T) |want|,
 * to first order; k is generous by up to 2, which also covers second order.
 */
#include "config.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <te/dtype.h>
#include <te/op.h>
#include "libtecore/backend/backend.h"
#include "libtecore/dtype_inline.h"
#include "kernels/te_philox.h"
#include "tt.h"
#include "tt_num.h"

#define U32 0x1p-24

static const int32_t compute[] = { TE_DTYPE_FP32, TE_DTYPE_BF16 };

static double unit(int32_t dtype)
{
	return dtype == TE_DTYPE_BF16 ? 0x1p-8 : dtype == TE_DTYPE_FP16 ? 0x1p-11 : U32;
}

/* ---- arrays of T; outputs have a poisoned element behind them ---- */

static size_t width(int32_t dtype)
{
	return te_dtype_nbytes((enum te_dtype)dtype);
}

static void *fresh(int32_t dtype, int64_t n)
{
	const size_t nbytes = (size_t)(n + 1) * width(dtype);
	void *p = malloc(nbytes);

	ck_assert_ptr_nonnull(p);
	tt_poison(p, nbytes);
	return p;
}

static void *normal(int32_t dtype, int64_t n, float scale)
{
	void *p = fresh(dtype, n);

	for (int64_t i = 0; i < n; i++)
		tt_set(dtype, p, i, scale * tt_rand_normal());
	return p;
}

static void *copy_of(int32_t dtype, const void *p, int64_t n)
{
	void *c = fresh(dtype, n);

	memcpy(c, p, (size_t)n * width(dtype));
	return c;
}

/* the element behind the end is as it was */
static void check_end(int32_t dtype, const void *p, int64_t n)
{
	ck_assert(tt_is_poison((const char *)p + (size_t)n * width(dtype), width(dtype)));
}

static void check_same(int32_t dtype, const void *a, const void *b, int64_t n)
{
	ck_assert_int_eq(memcmp(a, b, (size_t)n * width(dtype)), 0);
}

static void check_near(double got, double want, double tol, const char *what, int64_t i)
{
	ck_assert_msg(fabs(got - want) <= tol, "%s[%lld]: got %.9g want %.9g, off %.3g, bound %.3g",
		      what, (long long)i, got, want, fabs(got - want), tol);
}

static const struct { int64_t rows, cols; } shapes[] = {
	{ 1, 1 }, { 3, 7 }, { 64, 33 }, { 65, 8 }, { 130, 5 }, { 2, 2048 }, { 3, 4099 },
};

/* ---- quantized outputs ---- */

struct side {
	uint8_t *row, *col;
	float scale, scale_inv, amax;
	struct te_k_q q;
};

static void side_init(struct side *s, int32_t dtype, int64_t n, float scale)
{
	s->row = fresh(TE_DTYPE_UINT8, n);
	s->col = fresh(TE_DTYPE_UINT8, n);
	s->scale = scale;
	s->scale_inv = -1.0f;
	s->amax = 0.0f;
	s->q = (struct te_k_q){ s->row,	  s->col, &s->scale, &s->scale_inv,
				&s->amax, NULL,	  dtype,     0 };
}

static void side_free(struct side *s)
{
	free(s->row);
	free(s->col);
}

/* codes, transpose, amax and inverse are those of the T values y */
static void check_side(const struct side *s, int32_t dtype, const void *y, int64_t rows,
		       int64_t cols)
{
	float amax = 0.0f;

	for (int64_t r = 0; r < rows; r++)
		for (int64_t c = 0; c < cols; c++) {
			const float v = tt_get(dtype, y, r * cols + c);
			const uint8_t code =
				te_fp8_encode((enum te_dtype)s->q.dtype, v * s->scale);

			ck_assert_uint_eq(s->row[r * cols + c], code);
			ck_assert_uint_eq(s->col[c * rows + r], code);
			if (!isnan(v) && fabsf(v) > amax)
				amax = fabsf(v);
		}
	ck_assert_float_eq(s->amax, amax);
	ck_assert_float_eq(s->scale_inv, 1.0f / s->scale);
	check_end(TE_DTYPE_UINT8, s->row, rows * cols);
	check_end(TE_DTYPE_UINT8, s->col, rows * cols);
}

static void check_side_untouched(const struct side *s, int64_t n)
{
	ck_assert(tt_is_poison(s->row, (size_t)n + 1));
	ck_assert(tt_is_poison(s->col, (size_t)n + 1));
	ck_assert_float_eq(s->scale_inv, -1.0f);
	ck_assert_float_eq(s->amax, 0.0f);
}

static const float noop_on = 1.0f, noop_off = 0.0f;

START_TEST(clear_and_amax)
{
	const int32_t dtype = compute[_i];

	for (size_t k = 0; k < TT_LEN(shapes); k++) {
		const int64_t n = shapes[k].rows * shapes[k].cols;
		void *x = normal(dtype, n, 3.0f);
		float amax = 7.0f, want = 0.0f;
		struct te_k_clear clear = { &amax, &noop_on };
		struct te_k_amax a = { x, n, &amax, &noop_on, dtype, 0 };

		tt_set(dtype, x, tt_rand_int(0, n - 1), NAN);
		tt_set(dtype, x, tt_rand_int(0, n - 1), -NAN);
		for (int64_t i = 0; i < n; i++)
			if (fabsf(tt_get(dtype, x, i)) > want)
				want = fabsf(tt_get(dtype, x, i));
		te__h_clear(&clear);
		ck_assert_float_eq(amax, 7.0f);
		clear.noop = &noop_off;
		te__h_clear(&clear);
		te__h_amax(&a);
		ck_assert_float_eq(amax, 0.0f);
		a.noop = NULL;
		te__h_amax(&a);
		ck_assert_float_eq(amax, want);
		amax = 1e6f; /* folds: a larger one stays */
		te__h_amax(&a);
		ck_assert_float_eq(amax, 1e6f);
		tt_set(dtype, x, n - 1, -INFINITY);
		te__h_amax(&a);
		ck_assert_float_eq(amax, INFINITY);
		free(x);
	}
}
END_TEST

START_TEST(quantize_gives_codes_both_ways)
{
	const int32_t dtype = compute[_i & 1];
	const int32_t qdtype = _i & 2 ? TE_DTYPE_E5M2 : TE_DTYPE_E4M3;

	for (size_t k = 0; k < TT_LEN(shapes); k++) {
		const int64_t rows = shapes[k].rows, cols = shapes[k].cols, n = rows * cols;
		void *x = normal(dtype, n, 1.0f);
		struct side s;
		struct te_k_quantize a;

		for (int64_t i = 0; i < n; i += 3)
			tt_set(dtype, x, i, tt_rand_bits_f32());
		tt_set(dtype, x, 0, k & 1 ? NAN : 0x1p-140f);
		tt_set(dtype, x, n / 2, k & 1 ? -INFINITY : -0.0f);
		side_init(&s, qdtype, n, tt_rand_float(0.01f, 200.0f));
		a = (struct te_k_quantize){ x, rows, cols, s.q, dtype, 0 };
		a.q.noop = &noop_on;
		te__h_quantize(&a);
		check_side_untouched(&s, n);
		a.q.noop = &noop_off;
		te__h_quantize(&a);
		check_side(&s, dtype, x, rows, cols);

		/* each output is optional */
		tt_poison(s.row, (size_t)n);
		tt_poison(s.col, (size_t)n);
		a.q.col = NULL;
		a.q.amax = NULL;
		s.amax = 0.0f;
		te__h_quantize(&a);
		ck_assert(tt_is_poison(s.col, (size_t)n));
		ck_assert_float_eq(s.amax, 0.0f);
		a.q.col = s.col;
		a.q.row = NULL;
		a.q.amax = &s.amax;
		te__h_quantize(&a);
		check_side(&s, dtype, x, rows, cols);
		a.q.col = NULL;
		s.scale_inv = -1.0f;
		te__h_quantize(&a);
		ck_assert_float_eq(s.scale_inv, -1.0f); /* no code was written */
		side_free(&s);
		free(x);
	}
}
END_TEST

START_TEST(dequantize_and_cast_round_once)
{
	const int64_t n = 2 * 2048 + 13;
	const int32_t from = _i / 3, to = _i % 3; /* FP32, BF16, FP16 */
	void *x = normal(from, n, 100.0f), *y = fresh(to, n);
	struct te_k_cast a = { x, y, n, from, to, &noop_on };

	for (int64_t i = 0; i < n; i += 2)
		tt_set(from, x, i, tt_rand_bits_f32());
	te__h_cast(&a);
	ck_assert(tt_is_poison(y, (size_t)n * width(to)));
	a.noop = NULL;
	te__h_cast(&a);
	for (int64_t i = 0; i < n; i++) {
		const float want = tt_round(to, tt_get(from, x, i)), got = tt_get(to, y, i);

		ck_assert(isnan(want) ? isnan(got) : te__f32_bits(want) == te__f32_bits(got));
	}
	check_end(to, y, n);
	free(y);
	free(x);

	if (to != TE_DTYPE_FP16) {
		const int32_t qdtype = from & 1 ? TE_DTYPE_E5M2 : TE_DTYPE_E4M3;
		const float scale_inv = tt_rand_float(1e-4f, 10.0f);
		uint8_t *code = fresh(TE_DTYPE_UINT8, n);
		struct te_k_dequantize d = { code, NULL, &scale_inv, n, qdtype, to };

		for (int64_t i = 0; i < n; i++)
			code[i] = (uint8_t)tt_rand_u64();
		d.y = y = fresh(to, n);
		te__h_dequantize(&d);
		for (int64_t i = 0; i < n; i++) {
			const float v = te_fp8_decode((enum te_dtype)qdtype, code[i]) * scale_inv;
			const float want = tt_round(to, v), got = tt_get(to, y, i);

			ck_assert(isnan(want) ? isnan(got) : want == got);
		}
		check_end(to, y, n);
		free(y);
		free(code);
	}
}
END_TEST

/* ---- norms: _i bit 0 dtype, bit 1 LayerNorm, bit 2 zero-centered ---- */

#define NORM_EPS 1e-5f

struct norm {
	int32_t dtype;
	int ln, zero_centered;
	int64_t rows, cols;
	void *x, *y;
	float *gamma, *beta, *mean, *rstd;
};

static void norm_init(struct norm *m, int i, int64_t rows, int64_t cols)
{
	*m = (struct norm){ .dtype = compute[i & 1], .ln = i >> 1 & 1, .zero_centered = i >> 2,
			    .rows = rows, .cols = cols };
	m->x = normal(m->dtype, rows * cols, 2.0f);
	/* a large mean is where a one-pass variance fails */
	for (int64_t j = 0; j < cols; j++)
		tt_set(m->dtype, m->x, j, tt_get(m->dtype, m->x, j) + 100.0f);
	m->y = fresh(m->dtype, rows * cols);
	m->gamma = normal(TE_DTYPE_FP32, cols, 1.0f);
	m->beta = m->ln ? normal(TE_DTYPE_FP32, cols, 1.0f) : NULL;
	m->mean = m->ln ? fresh(TE_DTYPE_FP32, rows) : NULL;
	m->rstd = fresh(TE_DTYPE_FP32, rows);
}

static void norm_free(struct norm *m)
{
	free(m->x);
	free(m->y);
	free(m->gamma);
	free(m->beta);
	free(m->mean);
	free(m->rstd);
}

static struct te_k_norm_fwd norm_args(const struct norm *m)
{
	return (struct te_k_norm_fwd){
		.x = m->x, .gamma = m->gamma, .beta = m->beta, .y = m->y, .mean = m->mean,
		.rstd = m->rstd, .rows = m->rows, .cols = m->cols, .eps = NORM_EPS,
		.zero_centered = m->zero_centered, .dtype = m->dtype,
	};
}

static double norm_gain(const struct norm *m, int64_t c)
{
	return m->zero_centered ? 1.0 + (double)m->gamma[c] : (double)m->gamma[c];
}

static void norm_row(const struct norm *m, int64_t r, double *ret_mean, double *ret_rstd)
{
	double mean = 0.0, var = 0.0;

	for (int64_t c = 0; m->ln && c < m->cols; c++)
		mean += (double)tt_get(m->dtype, m->x, r * m->cols + c) / (double)m->cols;
	for (int64_t c = 0; c < m->cols; c++)
		var += pow((double)tt_get(m->dtype, m->x, r * m->cols + c) - mean, 2.0) /
		       (double)m->cols;
	*ret_mean = mean;
	*ret_rstd = 1.0 / sqrt(var + (double)NORM_EPS);
}

START_TEST(norm_forward)
{
	for (size_t k = 0; k < TT_LEN(shapes); k++) {
		const int64_t rows = shapes[k].rows, cols = shapes[k].cols, n = rows * cols;
		struct te_k_norm_fwd a;
		struct side s;
		struct norm m;
		void *y;

		norm_init(&m, _i, rows, cols);
		a = norm_args(&m);
		te__h_norm_fwd(&a);
		for (int64_t r = 0; r < rows; r++) {
			double mean, rstd;

			norm_row(&m, r, &mean, &rstd);
			/* FP64 sums: only the last rounding, and what a mean cancels */
			if (m.ln)
				check_near(m.mean[r], mean, 1e-12 + 2 * U32 * fabs(mean), "mean",
					   r);
			check_near(m.rstd[r], rstd, 2 * U32 * rstd, "rstd", r);
			for (int64_t c = 0; c < cols; c++) {
				const double x = tt_get(m.dtype, m.x, r * cols + c);
				const double gain = norm_gain(&m, c);
				const double beta = m.ln ? (double)m.beta[c] : 0.0;
				const double want = (x - mean) * rstd * gain + beta;
				/* the mean rounds at |mean| rstd |gain|; 6 operations */
				const double s = (fabs(x - mean) + fabs(mean)) * rstd *
							 (fabs(gain) + 1.0) + fabs(beta);

				check_near(tt_get(m.dtype, m.y, r * cols + c), want,
					   8 * U32 * s + unit(m.dtype) * fabs(want), "y", c);
			}
		}
		check_end(m.dtype, m.y, n);

		/* quantized too, in place, and with nothing but the codes */
		y = copy_of(m.dtype, m.y, n);
		side_init(&s, TE_DTYPE_E4M3, n, 37.0f);
		a.q = s.q;
		a.q.noop = &noop_on;
		tt_poison(m.y, (size_t)n * width(m.dtype));
		te__h_norm_fwd(&a);
		check_side_untouched(&s, n);
		ck_assert(tt_is_poison(m.y, (size_t)n * width(m.dtype)));
		a.q.noop = NULL;
		te__h_norm_fwd(&a);
		check_same(m.dtype, m.y, y, n);
		check_side(&s, m.dtype, y, rows, cols);
		side_free(&s);
		side_init(&s, TE_DTYPE_E4M3, n, 37.0f);
		a.q = s.q;
		a.y = NULL;
		te__h_norm_fwd(&a);
		check_side(&s, m.dtype, y, rows, cols);
		a.q = (struct te_k_q){ 0 };
		a.y = m.x;
		te__h_norm_fwd(&a);
		check_same(m.dtype, m.x, y, n);
		side_free(&s);
		free(y);
		norm_free(&m);
	}
}
END_TEST

START_TEST(norm_backward)
{
	for (size_t k = 0; k < TT_LEN(shapes); k++) {
		const int64_t rows = shapes[k].rows, cols = shapes[k].cols, n = rows * cols;
		const int64_t nparts = TE_K_NPARTS(rows);
		struct te_k_norm_fwd f;
		struct te_k_norm_bwd b;
		struct te_k_norm_dw w;
		struct norm m;
		void *dy, *dres, *dx, *again;

		norm_init(&m, _i, rows, cols);
		f = norm_args(&m);
		te__h_norm_fwd(&f);
		dy = normal(m.dtype, n, 1.0f);
		dres = k & 1 ? normal(m.dtype, n, 1.0f) : NULL;
		dx = fresh(m.dtype, n);
		b = (struct te_k_norm_bwd){ dy, m.x, m.gamma, m.mean, m.rstd, dres, dx, rows, cols,
					    m.zero_centered, m.dtype };
		te__h_norm_bwd(&b);
		for (int64_t r = 0; r < rows; r++) {
			const double mean = m.ln ? (double)m.mean[r] : 0.0, rstd = m.rstd[r];
			double mg = 0.0, mgx = 0.0, ag = 0.0, agx = 0.0;

			for (int64_t c = 0; c < cols; c++) {
				const double g =
					tt_get(m.dtype, dy, r * cols + c) * norm_gain(&m, c);
				const double xh =
					(tt_get(m.dtype, m.x, r * cols + c) - mean) * rstd;

				mg += m.ln ? g / (double)cols : 0.0;
				mgx += g * xh / (double)cols;
				ag += fabs(g) / (double)cols;
				agx += fabs(g * xh) / (double)cols;
			}
			for (int64_t c = 0; c < cols; c++) {
				const int64_t i = r * cols + c;
				const double g = tt_get(m.dtype, dy, i) * norm_gain(&m, c);
				const double xh = (tt_get(m.dtype, m.x, i) - mean) * rstd;
				const double res = dres ? (double)tt_get(m.dtype, dres, i) : 0.0;
				const double want = rstd * (g - mg - xh * mgx) + res;
				/* |gamma| + 1: 1 + gamma rounds at that size */
				const double g1 = fabs((double)tt_get(m.dtype, dy, i)) *
						  (fabs(norm_gain(&m, c)) + 1.0);
				const double s = rstd * (g1 + ag + fabs(xh) * agx) + fabs(res);

				check_near(tt_get(m.dtype, dx, i), want,
					   16 * U32 * s + unit(m.dtype) * fabs(want), "dx", i);
			}
		}
		check_end(m.dtype, dx, n);
		again = copy_of(m.dtype, dy, n);
		b.dy = b.dx = again;
		te__h_norm_bwd(&b);
		check_same(m.dtype, again, dx, n);
		if (dres) {
			memcpy(again, dres, (size_t)n * width(m.dtype));
			b.dy = dy;
			b.dres = b.dx = again;
			te__h_norm_bwd(&b);
			check_same(m.dtype, again, dx, n);
		}

		/* the same operations in the stated order: equal bits */
		w = (struct te_k_norm_dw){ dy, m.x, m.mean, m.rstd,
					   fresh(TE_DTYPE_FP32, nparts * cols),
					   m.ln ? fresh(TE_DTYPE_FP32, nparts * cols) : NULL,
					   rows, cols, m.dtype, 0 };
		te__h_norm_dw(&w);
		for (int64_t p = 0; p < nparts; p++)
			for (int64_t c = 0; c < cols; c++) {
				float dg = 0.0f, db = 0.0f;

				for (int64_t r = p * 64; r < rows && r < p * 64 + 64; r++) {
					const float x = tt_get(m.dtype, m.x, r * cols + c);
					const float d = tt_get(m.dtype, dy, r * cols + c);
					const float mean = m.ln ? m.mean[r] : 0.0f;

					dg += d * ((x - mean) * m.rstd[r]);
					db += d;
				}
				ck_assert_float_eq(w.part_gamma[p * cols + c], dg);
				if (m.ln)
					ck_assert_float_eq(w.part_beta[p * cols + c], db);
			}
		check_end(TE_DTYPE_FP32, w.part_gamma, nparts * cols);
		free(w.part_gamma);
		free(w.part_beta);
		free(again);
		free(dx);
		free(dres);
		free(dy);
		norm_free(&m);
	}
}
END_TEST

START_TEST(norm_of_constant_and_of_nan)
{
	float x[4] = { 3.0f, 3.0f, 3.0f, 3.0f }, gamma[4] = { 1, 1, 1, 1 };
	float beta[4] = { 5, 6, 7, 8 }, y[4], mean, rstd;
	struct te_k_norm_fwd a = { .x = x, .gamma = gamma, .beta = beta, .y = y, .mean = &mean,
				   .rstd = &rstd, .rows = 1, .cols = 4, .eps = NORM_EPS };

	te__h_norm_fwd(&a);
	for (int i = 0; i < 4; i++)
		ck_assert_float_eq(y[i], beta[i]);
	ck_assert_float_eq(mean, 3.0f);
	x[2] = NAN;
	te__h_norm_fwd(&a);
	for (int i = 0; i < 4; i++)
		ck_assert(isnan(y[i]));
	/* squares of these overflow and underflow FP32 */
	for (int i = 0; i < 4; i++)
		x[i] = i & 1 ? 1e30f : -1e30f;
	te__h_norm_fwd(&a);
	for (int i = 0; i < 4; i++)
		check_near(y[i], (i & 1 ? 1.0 : -1.0) + beta[i], 8 * U32 * 9, "y", i);
	a.eps = 0.0f;
	for (int i = 0; i < 4; i++)
		x[i] = i & 1 ? 1e-30f : -1e-30f;
	te__h_norm_fwd(&a);
	for (int i = 0; i < 4; i++)
		check_near(y[i], (i & 1 ? 1.0 : -1.0) + beta[i], 8 * U32 * 9, "y", i);
}
END_TEST

/* ---- sums over rows ---- */

START_TEST(column_sums_in_the_stated_order)
{
	const int32_t dtype = compute[_i];

	for (size_t k = 0; k < TT_LEN(shapes); k++) {
		const int64_t rows = shapes[k].rows, cols = shapes[k].cols;
		const int64_t nparts = TE_K_NPARTS(rows);
		void *x = normal(dtype, rows * cols, 1.0f);
		float *part = fresh(TE_DTYPE_FP32, nparts * cols);
		float *out = normal(TE_DTYPE_FP32, cols, 1.0f);
		float *was = copy_of(TE_DTYPE_FP32, out, cols);
		struct te_k_colsum a = { x, part, rows, cols, dtype, 0 };
		struct te_k_part_sum b = { part, out, nparts, cols };

		te__h_colsum(&a);
		te__h_part_sum(&b);
		for (int64_t c = 0; c < cols; c++) {
			double want = was[c], size = fabs((double)was[c]);
			float sum = 0.0f;

			for (int64_t p = 0; p < nparts; p++) {
				float s = 0.0f;

				for (int64_t r = p * 64; r < rows && r < p * 64 + 64; r++)
					s += tt_get(dtype, x, r * cols + c);
				ck_assert_float_eq(part[p * cols + c], s);
				sum += s;
			}
			ck_assert_float_eq(out[c], was[c] + sum);
			for (int64_t r = 0; r < rows; r++) {
				want += (double)tt_get(dtype, x, r * cols + c);
				size += fabs((double)tt_get(dtype, x, r * cols + c));
			}
			check_near(out[c], want, (double)(rows + 1) * U32 * size, "out", c);
		}
		check_end(TE_DTYPE_FP32, part, nparts * cols);
		check_end(TE_DTYPE_FP32, out, cols);
		free(x);
		free(part);
		free(out);
		free(was);
	}
}
END_TEST

/* ---- elementwise ---- */

START_TEST(bias_and_add_round_once)
{
	const int32_t dtype = compute[_i];

	for (size_t k = 0; k < TT_LEN(shapes); k++) {
		const int64_t rows = shapes[k].rows, cols = shapes[k].cols, n = rows * cols;
		void *x = normal(dtype, n, 3.0f), *bias = normal(dtype, cols, 1.0f);
		void *b = normal(dtype, n, 5.0f), *y = fresh(dtype, n);
		struct te_k_bias_fwd f = { x, bias, y, rows, cols, dtype, 0 };
		struct te_k_add a = { x, b, y, n, dtype, 0 };

		tt_set(dtype, x, n - 1, NAN);
		te__h_bias_fwd(&f);
		for (int64_t i = 0; i < n - 1; i++)
			ck_assert_float_eq(tt_get(dtype, y, i),
					   tt_round(dtype, tt_get(dtype, x, i) +
								   tt_get(dtype, bias, i % cols)));
		ck_assert(isnan(tt_get(dtype, y, n - 1)));
		te__h_add(&a);
		for (int64_t i = 0; i < n - 1; i++)
			ck_assert_float_eq(tt_get(dtype, y, i),
					   tt_round(dtype,
						    tt_get(dtype, x, i) + tt_get(dtype, b, i)));
		check_end(dtype, y, n);
		a.y = b; /* in place */
		te__h_add(&a);
		check_same(dtype, b, y, n - 1);
		te__h_bias_fwd(&f);
		f.y = x;
		te__h_bias_fwd(&f);
		check_same(dtype, x, y, n - 1);
		free(x);
		free(bias);
		free(b);
		free(y);
	}
}
END_TEST

static const struct { uint64_t key; uint32_t ctr[4], want[4]; } philox_kat[] = {
	/* kat_vectors of the Random123 distribution, philox4x32 of 10 rounds */
	{ 0, { 0, 0, 0, 0 }, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
	{ UINT64_MAX,
	  { 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff },
	  { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
	{ 0x299f31d0a4093822,
	  { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 },
	  { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
};

START_TEST(philox_known_answers)
{
	const uint32_t *c = philox_kat[_i].ctr;
	const struct te_philox r = te_philox(philox_kat[_i].key, c[0], c[1], c[2], c[3]);

	for (int i = 0; i < 4; i++) {
		ck_assert_uint_eq(r.w[i], philox_kat[_i].want[i]);
		ck_assert_uint_eq(te_philox_lane(&r, 2 * i), r.w[i] & 0xffff);
		ck_assert_uint_eq(te_philox_lane(&r, 2 * i + 1), r.w[i] >> 16);
	}
}
END_TEST

START_TEST(dropout_keeps_scales_and_repeats)
{
	const int32_t dtype = compute[_i];
	const int64_t n = 400003;
	const uint32_t threshold = 6554; /* 0.1 */
	const float factor = 65536.0f / (65536 - 6554);
	uint64_t seed = tt_rand_u64(), offset = tt_rand_u64();
	void *x = normal(dtype, n, 1.0f), *y = fresh(dtype, n), *z = fresh(dtype, n);
	struct te_k_dropout a = { x, y, &seed, &offset, n, threshold, 5, dtype, 0 };
	int64_t kept = 0, differ = 0;

	for (int64_t i = 0; i < n; i++) /* so that a zero says dropped */
		if (tt_get(dtype, x, i) == 0.0f)
			tt_set(dtype, x, i, 1.0f);
	te__h_dropout(&a);
	for (int64_t i = 0; i < n; i++) {
		const struct te_philox r = te_philox(seed, (uint32_t)(i / 8),
						     (uint32_t)((uint64_t)i / 8 >> 32), 5,
						     (uint32_t)offset);
		const float v = tt_get(dtype, y, i);

		if (te_philox_lane(&r, (int)(i % 8)) >= threshold) {
			ck_assert_float_eq(v, tt_round(dtype, tt_get(dtype, x, i) * factor));
			kept++;
		} else {
			ck_assert_uint_eq(te__f32_bits(v), 0);
		}
	}
	check_end(dtype, y, n);
	/* binomial: 6 deviations, less than one failure in 10^8 runs */
	check_near((double)kept, (double)n * (65536 - 6554) / 65536, 6 * sqrt(n * 0.1 * 0.9),
		   "kept", 0);

	a.y = z; /* the same again, then another seed, offset or tag */
	te__h_dropout(&a);
	check_same(dtype, y, z, n);
	for (int what = 0; what < 3; what++) {
		seed += what == 0;
		offset += what == 1;
		a.tag += what == 2;
		te__h_dropout(&a);
		differ = 0;
		for (int64_t i = 0; i < n; i++)
			differ += (tt_get(dtype, y, i) == 0.0f) != (tt_get(dtype, z, i) == 0.0f);
		check_near((double)differ, 2 * n * 0.1 * 0.9, 6 * sqrt(n * 0.18 * 0.82), "differ",
			   what);
	}
	a.threshold = 0;
	te__h_dropout(&a);
	check_same(dtype, x, z, n);
	a.threshold = 65535;
	a.y = x;
	te__h_dropout(&a);
	kept = 0;
	for (int64_t i = 0; i < n; i++)
		kept += tt_get(dtype, x, i) != 0.0f;
	ck_assert_int_lt(kept, 60); /* Poisson of mean 6.1 */
	free(x);
	free(y);
	free(z);
}
END_TEST

START_TEST(rng_words_advance)
{
	uint64_t words[4] = { 11, 7, 99, 42 };
	struct te_k_rng_next a = { words + 1, words + 2 };

	te__h_rng_next(&a);
	te__h_rng_next(&a);
	ck_assert_uint_eq(words[0], 11);
	ck_assert_uint_eq(words[1], 9);
	ck_assert_uint_eq(words[2], 8);
	ck_assert_uint_eq(words[3], 42);
}
END_TEST

START_TEST(rope_turns_and_turns_back)
{
	const int32_t dtype = compute[_i];
	static const struct { int nheads, nrot, head_dim; int64_t batch, seqlen; } cases[] = {
		{ 3, 2, 8, 2, 5 }, { 5, 5, 128, 1, 33 }, { 4, 0, 6, 3, 1 }, { 1, 1, 2, 1, 700 },
	};

	for (size_t k = 0; k < TT_LEN(cases); k++) {
		const int hd = cases[k].head_dim, half = hd / 2;
		const int64_t rows = cases[k].batch * cases[k].seqlen, cols = cases[k].nheads * hd;
		void *x = normal(dtype, rows * cols, 1.0f), *y = fresh(dtype, rows * cols);
		struct te_k_rope a = { .x = x, .y = y, .rows = rows, .seqlen = cases[k].seqlen,
				       .nheads = cases[k].nheads, .nrot = cases[k].nrot,
				       .head_dim = hd, .dtype = dtype };

		for (int i = 0; i < half; i++)
			a.inv_freq[i] = powf(10000.0f, -2.0f * (float)i / (float)hd);
		te__h_rope(&a);
		for (int64_t r = 0; r < rows; r++)
			for (int64_t c = 0; c < cols; c++) {
				const int h = (int)(c / hd), d = (int)(c % hd), i = d % half;
				/* the product is FP32 by contract; sine and cosine within 2 ulp */
				const float angle = (float)(r % a.seqlen) * a.inv_freq[i];
				const double x0 = tt_get(dtype, x, r * cols + h * hd + i);
				const double x1 = tt_get(dtype, x, r * cols + h * hd + i + half);
				double want = d < half ? x0 * cos(angle) - x1 * sin(angle) :
							 x1 * cos(angle) + x0 * sin(angle);

				if (h >= a.nrot) {
					want = d < half ? x0 : x1;
					ck_assert_double_eq(tt_get(dtype, y, r * cols + c), want);
					continue;
				}
				check_near(tt_get(dtype, y, r * cols + c), want,
					   8 * U32 * (fabs(x0) + fabs(x1)) +
						   unit(dtype) * fabs(want),
					   "y", c);
			}
		check_end(dtype, y, rows * cols);
		/* the opposite angle, in place: x again, up to both roundings */
		a.x = y;
		a.inverse = 1;
		te__h_rope(&a);
		for (int64_t r = 0; r < rows; r++)
			for (int64_t c = 0; c < cols; c++) {
				const int64_t at = r * cols + c - c % hd + c % half;
				const double size = fabs((double)tt_get(dtype, x, at)) +
						    fabs((double)tt_get(dtype, x, at + half));

				check_near(tt_get(dtype, y, r * cols + c),
					   tt_get(dtype, x, r * cols + c),
					   (16 * U32 + 3 * unit(dtype)) * size, "x", c);
			}
		free(x);
		free(y);
	}
}
END_TEST

/* ---- activations: act and derivative in FP64; a: the argument of the sigmoid ---- */

static double sigmoid(double x)
{
	return 1.0 / (1.0 + exp(-x));
}

static double act_ref(int act, double x, double *ret_d, double *ret_a)
{
	const double r = x > 0.0 ? x : 0.0;
	double s, t, u;

	*ret_a = 0.0;
	switch (act) {
	case TE_ACT_GELU: /* as published, with tanh */
		u = 0.7978845608028654 * (x + 0.044715 * x * x * x);
		t = tanh(u);
		*ret_a = 2.0 * u;
		/* 1 - t and 1 + t by way of exp, else FP64 loses the tails */
		s = sigmoid(2.0 * u);
		*ret_d = s + 0.5 * x * (4.0 * s * sigmoid(-2.0 * u)) * 0.7978845608028654 *
				     (1.0 + 3.0 * 0.044715 * x * x);
		if (fabs(x) < 3.0)
			ck_assert(fabs(x * s - 0.5 * x * (1.0 + t)) < 1e-14);
		return x * s;
	case TE_ACT_QGELU:
		*ret_a = 1.702 * x;
		s = sigmoid(1.702 * x);
		*ret_d = s + 1.702 * x * s * sigmoid(-1.702 * x);
		return x * s;
	case TE_ACT_RELU:
		*ret_d = x > 0.0;
		return r;
	case TE_ACT_SRELU:
		*ret_d = 2.0 * r;
		return r * r;
	case TE_ACT_SILU:
		*ret_a = x;
		s = sigmoid(x);
		*ret_d = s + x * s * sigmoid(-x);
		return x * s;
	default:
		*ret_a = x;
		s = sigmoid(x);
		*ret_d = s * sigmoid(-x);
		return s;
	}
}

/*
 * The sigmoid's argument carries up to 6 roundings, which exp turns into a relative error of 6 |a|
 * U32; exp, the sum and the quotient add 4. Where exp(-a) overflows, beyond |a| = 88, the
 * sigmoid is 0 where 2^-127 is due, and subnormal results lose up to 2^-149. A
 * derivative also has 1 - s, whose error U32 counts absolutely, times |x| and the polynomial.
 */
static double act_bound(double x, double a, double value)
{
	return (12 + 12 * fabs(a)) * U32 * fabs(value) + 0x1p-126 * (1.0 + fabs(x));
}

static double act_d_bound(int act, double x, double a, double d)
{
	const double slope = act == TE_ACT_GELU ? 1.6 * (1.0 + 0.134145 * x * x) : 1.702;
	const double s = act == TE_ACT_RELU || act == TE_ACT_SRELU ? 0.0 : sigmoid(a);
	const double wide = s * (1.0 + fabs(x) * slope);

	/* beyond |a| = 40 the product of s and 1 - s is below every rounding of s */
	return (16 + 16 * fmin(fabs(a), 40.0)) * U32 * (wide * fmin(1.0, exp(1.0 - fabs(a)) + U32) +
	       s + fabs(d)) + 0x1p-120 * (1.0 + fabs(x) * slope);
}

static void act_inputs(int32_t dtype, void *x, int64_t n)
{
	static const float edge[] = { 0.0f, -0.0f, 1e-40f, -1e-40f, 1e-3f, 5.0f, -5.0f, 10.0f,
				      -10.0f, 30.0f, -30.0f, 80.0f, -80.0f, -100.0f, 1e4f, -1e4f };

	for (int64_t i = 0; i < n; i++)
		tt_set(dtype, x, i, i < (int64_t)TT_LEN(edge) ? edge[i] : 3.0f * tt_rand_normal());
}

START_TEST(activations_forward_and_backward)
{
	const int32_t dtype = compute[_i & 1];
	const int gated = _i >> 1 & 1, act = _i >> 2;

	for (size_t k = 0; k < TT_LEN(shapes); k++) {
		const int64_t rows = shapes[k].rows, cols = shapes[k].cols, n = rows * cols;
		const int64_t xcols = gated ? 2 * cols : cols, nx = rows * xcols;
		const int64_t nparts = TE_K_NPARTS(rows);
		void *x = fresh(dtype, nx), *y = fresh(dtype, n), *dy = normal(dtype, n, 1.0f);
		void *dx = fresh(dtype, nx);
		float *part = fresh(TE_DTYPE_FP32, nparts * xcols);
		struct te_k_act_fwd f = { .x = x, .y = y, .rows = rows, .cols = cols, .act = act,
					  .gated = gated, .dtype = dtype };
		struct te_k_act_bwd b = { .dy = dy, .x = x, .dx = dx, .part = part, .rows = rows,
					  .cols = cols, .act = act, .gated = gated,
					  .dtype = dtype };
		struct side s;

		act_inputs(dtype, x, nx);
		te__h_act_fwd(&f);
		te__h_act_bwd(&b);
		for (int64_t i = 0; i < n; i++) {
			const int64_t at = i / cols * xcols + i % cols;
			const double v = tt_get(dtype, x, at), g = tt_get(dtype, dy, i);
			const double gate = gated ? (double)tt_get(dtype, x, at + cols) : 1.0;
			double d, a, value = act_ref(act, v, &d, &a), want = value * gate;
			const double tol = act_bound(v, a, value);

			check_near(tt_get(dtype, y, i), want,
				   tol * fabs(gate) + (2 * U32 + unit(dtype)) * fabs(want) +
					   0x1p-133,
				   "y", i);
			want = g * gate * d;
			check_near(tt_get(dtype, dx, at), want,
				   act_d_bound(act, v, a, d) * fabs(g * gate) +
					   (4 * U32 + unit(dtype)) * fabs(want) + 0x1p-133,
				   "dx", i);
			if (gated) {
				want = g * value;
				check_near(tt_get(dtype, dx, at + cols), want,
					   tol * fabs(g) + (2 * U32 + unit(dtype)) * fabs(want) +
						   0x1p-133,
					   "dgate", i);
			}
		}
		check_end(dtype, y, n);
		check_end(dtype, dx, nx);
		for (int64_t p = 0; p < nparts; p++)
			for (int64_t c = 0; c < xcols; c++) {
				float sum = 0.0f;

				for (int64_t r = p * 64; r < rows && r < p * 64 + 64; r++)
					sum += tt_get(dtype, dx, r * xcols + c);
				ck_assert_float_eq(part[p * xcols + c], sum);
			}
		check_end(TE_DTYPE_FP32, part, nparts * xcols);

		/* quantized: the codes of what was written, with and without writing it */
		for (int pass = 0; pass < 3; pass++) {
			void *was = copy_of(dtype, y, n), *dwas = copy_of(dtype, dx, nx);

			side_init(&s, TE_DTYPE_E4M3, n, 20.0f);
			f.q = s.q;
			f.q.noop = pass == 0 ? &noop_on : NULL;
			f.y = pass == 2 ? NULL : y;
			te__h_act_fwd(&f);
			if (pass == 0)
				check_side_untouched(&s, n);
			else
				check_side(&s, dtype, y, rows, cols);
			check_same(dtype, y, was, n);
			side_free(&s);
			side_init(&s, TE_DTYPE_E5M2, nx, 20.0f);
			b.q = s.q;
			b.q.noop = f.q.noop;
			b.dx = pass == 2 ? NULL : dx;
			te__h_act_bwd(&b);
			if (pass == 0)
				check_side_untouched(&s, nx);
			else
				check_side(&s, dtype, dx, rows, xcols);
			check_same(dtype, dx, dwas, nx);
			side_free(&s);
			free(was);
			free(dwas);
		}
		if (!gated) { /* in place of either input */
			void *into = copy_of(dtype, dy, n);

			b.q = (struct te_k_q){ 0 };
			b.part = NULL;
			b.dy = b.dx = into;
			te__h_act_bwd(&b);
			check_same(dtype, into, dx, n);
			b.dy = dy;
			b.dx = x;
			te__h_act_bwd(&b);
			check_same(dtype, x, dx, n);
			free(into);
		}
		free(x);
		free(y);
		free(dy);
		free(dx);
		free(part);
	}
}
END_TEST

START_TEST(activations_of_huge_and_nan)
{
	float x[4] = { NAN, 1e30f, -1e30f, INFINITY }, dy[4] = { 1, 1, 1, 1 }, y[4], dx[4];
	struct te_k_act_fwd f = { .x = x, .y = y, .rows = 1, .cols = 3, .act = _i };
	struct te_k_act_bwd b = { .dy = dy, .x = x, .dx = dx, .rows = 1, .cols = 3, .act = _i };
	double d, a;

	te__h_act_fwd(&f);
	te__h_act_bwd(&b);
	ck_assert(isnan(y[0]));
	if (_i != TE_ACT_RELU) /* its slope is a step */
		ck_assert(isnan(dx[0]));
	for (int i = 1; i < 3; i++) {
		ck_assert_float_eq(y[i], (float)act_ref(_i, x[i], &d, &a));
		if (_i == TE_ACT_SRELU)
			ck_assert_float_eq(dx[i], i == 1 ? 2e30f : 0.0f);
		else
			ck_assert_float_eq(dx[i], _i != TE_ACT_SIGMOID && i == 1 ? 1.0f : 0.0f);
	}
}
END_TEST

/* ---- tables ---- */

START_TEST(embedding_forward_and_backward)
{
	const int32_t dtype = compute[_i & 1];
	const int with_pos = _i >> 1;
	const int64_t batch = 3, seqlen = 23, rows = batch * seqlen, vocab = 11;
	static const int64_t widths[] = { 1, 7, 2050 };

	for (size_t k = 0; k < TT_LEN(widths); k++) {
		const int64_t w = widths[k];
		float *table = normal(TE_DTYPE_FP32, vocab * w, 1.0f);
		float *pos = normal(TE_DTYPE_FP32, seqlen * w, 1.0f);
		float *dtable = normal(TE_DTYPE_FP32, vocab * w, 1.0f);
		float *dpos = normal(TE_DTYPE_FP32, seqlen * w, 1.0f);
		float *dtable_was = copy_of(TE_DTYPE_FP32, dtable, vocab * w);
		float *dpos_was = copy_of(TE_DTYPE_FP32, dpos, seqlen * w);
		void *y = fresh(dtype, rows * w), *dy = normal(dtype, rows * w, 1.0f);
		int32_t tokens[3 * 23];
		struct te_k_embed_fwd f = { tokens, table, with_pos ? pos : NULL, y, rows, seqlen,
					    vocab, w, dtype, 0 };
		struct te_k_embed_bwd b = { tokens, dy, dtable, rows, vocab, w, dtype, 0 };
		struct te_k_pos_bwd p = { dy, dpos, batch, seqlen, w, dtype, 0 };

		for (int64_t r = 0; r < rows; r++) /* token 2 never: its row stays */
			tokens[r] = (int32_t)(tt_rand_int(0, 3) ? tt_rand_int(3, vocab - 1) : 1);
		tokens[5] = -1;
		tokens[6] = (int32_t)vocab;
		tokens[7] = INT32_MAX;
		tokens[8] = INT32_MIN;
		te__h_embed_fwd(&f);
		te__h_embed_bwd(&b);
		te__h_pos_bwd(&p);
		for (int64_t i = 0; i < rows * w; i++) {
			const int64_t t = tokens[i / w];
			float v = t >= 0 && t < vocab ? table[t * w + i % w] : 0.0f;

			if (with_pos)
				v += pos[i / w % seqlen * w + i % w];
			ck_assert_float_eq(tt_get(dtype, y, i), tt_round(dtype, v));
		}
		for (int64_t i = 0; i < vocab * w; i++) {
			float sum = 0.0f;

			for (int64_t r = 0; r < rows; r++)
				if (tokens[r] == i / w)
					sum += tt_get(dtype, dy, r * w + i % w);
			ck_assert_float_eq(dtable[i], dtable_was[i] + sum);
		}
		for (int64_t i = 0; i < seqlen * w; i++) {
			float sum = 0.0f;

			for (int64_t q = 0; q < batch; q++)
				sum += tt_get(dtype, dy, (q * seqlen + i / w) * w + i % w);
			ck_assert_float_eq(dpos[i], dpos_was[i] + sum);
		}
		check_end(dtype, y, rows * w);
		check_end(TE_DTYPE_FP32, dtable, vocab * w);
		check_end(TE_DTYPE_FP32, dpos, seqlen * w);
		free(table);
		free(pos);
		free(dtable);
		free(dpos);
		free(dtable_was);
		free(dpos_was);
		free(y);
		free(dy);
	}
}
END_TEST

/* ---- loss ---- */

START_TEST(cross_entropy)
{
	const int32_t dtype = compute[_i];
	static const struct { int64_t rows, cols, nclasses; float scale; } cases[] = {
		{ 9, 5, 5, 1.0f },
		{ 9, 64, 50, 3.0f },
		{ 7, 5000, 4099, 10.0f },
		{ 12, 2, 1, 1.0f },
	};

	for (size_t k = 0; k < TT_LEN(cases); k++) {
		const int64_t rows = cases[k].rows, cols = cases[k].cols, nc = cases[k].nclasses;
		void *x = normal(dtype, rows * cols, cases[k].scale);
		void *dx = fresh(dtype, rows * cols);
		float *lse = fresh(TE_DTYPE_FP32, rows), *row_loss = fresh(TE_DTYPE_FP32, rows);
		float loss = -1.0f, count = -1.0f;
		int32_t targets[16];
		struct te_k_ce_fwd f = { x, targets, lse, row_loss, rows, cols, nc, -100, dtype };
		struct te_k_ce_reduce d = { row_loss, targets, &loss, &count, rows, nc, -100, 0 };
		struct te_k_ce_bwd b = { x, targets, lse, &count, dx, rows, cols, nc, -100, 0.25f,
					 dtype, 0 };
		double want = 0.0;
		int64_t n = 0;

		for (int64_t r = 0; r < rows; r++) {
			targets[r] = (int32_t)tt_rand_int(0, nc - 1);
			for (int64_t c = nc; c < cols; c++) /* padding must not be read */
				tt_set(dtype, x, r * cols + c, NAN);
		}
		targets[1] = -100;
		targets[2] = -1;
		targets[3] = (int32_t)nc;
		tt_set(dtype, x, 4 * cols, 1e4f); /* exp of it overflows */
		tt_set(dtype, x, 5 * cols, -1e4f);
		tt_set(dtype, x, 6 * cols, nc > 1 ? -INFINITY : 0.0f); /* a masked class */
		if (nc > 1)
			targets[6] = 1;
		te__h_ce_fwd(&f);
		te__h_ce_reduce(&d);
		te__h_ce_bwd(&b);
		for (int64_t r = 0; r < rows; r++) {
			const int on = targets[r] >= 0 && targets[r] < nc;
			double most = -INFINITY, sum = 0.0, l;

			n += on;
			for (int64_t c = 0; c < nc; c++)
				most = fmax(most, (double)tt_get(dtype, x, r * cols + c));
			for (int64_t c = 0; c < nc; c++)
				sum += exp((double)tt_get(dtype, x, r * cols + c) - most);
			l = most + log(sum);
			/* expf: 1 ulp and its argument's rounding, which the weight exp(x - most)
			 * times |x - most| < 0.37 bounds; then lse is rounded */
			check_near(lse[r], l, 4 * U32 + 2 * U32 * fabs(l), "lse", r);
			if (!on) {
				ck_assert_float_eq(row_loss[r], 0.0f);
			} else {
				const double t =
					l - (double)tt_get(dtype, x, r * cols + targets[r]);

				check_near(row_loss[r], t, 4 * U32 + 2 * U32 * fabs(t), "row_loss",
					   r);
				want += t;
			}
		}
		ck_assert_float_eq(count, (float)n);
		want /= (double)n;
		check_near(loss, want, 4 * U32 + 4 * U32 * fabs(want), "loss", 0);
		for (int64_t i = 0; i < rows * cols; i++) {
			const int64_t r = i / cols, c = i % cols;
			const int on = targets[r] >= 0 && targets[r] < nc;
			double p = 0.0, g;

			if (!on || c >= nc) {
				ck_assert_uint_eq(te__f32_bits(tt_get(dtype, dx, i)), 0);
				continue;
			}
			/* x - lse rounds at its size, which p bounds: p |log p| < 0.37 */
			p = exp((double)tt_get(dtype, x, i) - (double)lse[r]);
			g = (p - (targets[r] == c)) * 0.25 / (double)n;
			check_near(tt_get(dtype, dx, i), g,
				   4 * U32 * 0.25 / (double)n + (4 * U32 + unit(dtype)) * fabs(g),
				   "dx", i);
		}
		check_end(dtype, dx, rows * cols);
		b.dlogits = x; /* in place */
		te__h_ce_bwd(&b);
		check_same(dtype, x, dx, rows * cols);

		/* no row counts */
		for (int64_t r = 0; r < rows; r++)
			targets[r] = -100;
		te__h_ce_reduce(&d);
		ck_assert_float_eq(loss, 0.0f);
		ck_assert_float_eq(count, 0.0f);
		te__h_ce_bwd(&b);
		for (int64_t i = 0; i < rows * cols; i++)
			ck_assert_float_eq(tt_get(dtype, x, i), 0.0f);
		free(x);
		free(dx);
		free(lse);
		free(row_loss);
	}
}
END_TEST

START_TEST(cross_entropy_hands_nan_on)
{
	float x[6] = { 1, NAN, 2, 1, INFINITY, 2 }, lse[2], row_loss[2], loss, count, dx[6];
	int32_t targets[2] = { 0, 0 };
	struct te_k_ce_fwd f = { x, targets, lse, row_loss, 2, 3, 3, -100, TE_DTYPE_FP32 };
	struct te_k_ce_reduce d = { row_loss, targets, &loss, &count, 2, 3, -100, 0 };
	struct te_k_ce_bwd b = { x, targets, lse, &count, dx, 2, 3, 3, -100, 1.0f,
				 TE_DTYPE_FP32, 0 };

	te__h_ce_fwd(&f);
	te__h_ce_reduce(&d);
	te__h_ce_bwd(&b);
	ck_assert(isnan(lse[0]) && isnan(lse[1]) && isnan(row_loss[0]) && isnan(loss));
	ck_assert(isnan(dx[0]) && isnan(dx[1]));
}
END_TEST

/* ---- AdamW ---- */

START_TEST(sum_of_squares_by_runs)
{
	static const int64_t sizes[] = { 1, 1023, 1024, 1025, 5000, 70001 };

	for (size_t k = 0; k < TT_LEN(sizes); k++) {
		const int64_t n = sizes[k], run = (n + 1023) / 1024;
		float *x = normal(TE_DTYPE_FP32, n, 1e3f);
		double part[TE_K_SUMSQ_PARTS];
		struct te_k_sumsq a = { x, part, n };

		x[0] = 3e38f; /* its square overflows FP32 */
		te__h_sumsq(&a);
		for (int64_t p = 0; p < TE_K_SUMSQ_PARTS; p++) {
			double sum = 0.0;

			for (int64_t i = p * run; i < n && i < (p + 1) * run; i++)
				sum += (double)x[i] * (double)x[i];
			check_near(part[p], sum, 1e-13 * sum, "part", p);
		}
		free(x);
	}
}
END_TEST

START_TEST(adamw_begin_clips_and_skips)
{
	double part[TE_K_SUMSQ_PARTS] = { [0] = 9.0, [1023] = 16.0 };
	struct te_k_adamw_state s = { 0, 0, 1.0, 1.0, 0.5f, 0.0f, 0.0f, 7 };
	struct te_k_adamw_begin a = { part, &s, 0.9f, 0.95f, 10.0f, 0 };

	te__h_adamw_begin(&a);
	ck_assert_float_eq(s.grad_norm, 5.0f);
	ck_assert_float_eq(s.clip, 1.0f);
	ck_assert_uint_eq(s.skip, 0);
	a.max_norm = 2.0f;
	te__h_adamw_begin(&a);
	ck_assert_float_eq(s.clip, 0.4f);
	a.max_norm = 0.0f;
	te__h_adamw_begin(&a);
	ck_assert_float_eq(s.clip, 1.0f);
	ck_assert_uint_eq(s.nsteps, 3);
	ck_assert_double_eq(s.beta1_t, (double)0.9f * (double)0.9f * (double)0.9f);
	part[5] = NAN;
	te__h_adamw_begin(&a);
	ck_assert_uint_eq(s.skip, 1);
	ck_assert(isnan(s.grad_norm));
	part[5] = 1e77; /* finite, but not its root in FP32 */
	part[6] = INFINITY;
	te__h_adamw_begin(&a);
	ck_assert_uint_eq(s.nskipped, 2);
	ck_assert_uint_eq(s.nsteps, 3);
	ck_assert_double_eq(s.beta1_t, (double)0.9f * (double)0.9f * (double)0.9f);
	ck_assert_float_eq(s.lr, 0.5f);
	part[6] = 0.0;
	part[5] = 0.0;
	te__h_adamw_begin(&a);
	ck_assert_uint_eq(s.skip, 0);
	ck_assert_uint_eq(s.nsteps, 4);
}
END_TEST

START_TEST(adamw_follows_the_paper)
{
	const int64_t n = 5 * TE_K_ALIGN_WEIGHT;
	const float b1 = 0.9f, b2 = 0.95f, eps = 1e-8f, wd = 0.1f, lr = 1e-2f;
	float *w = normal(TE_DTYPE_FP32, n, 1.0f), *g = fresh(TE_DTYPE_FP32, n);
	float *m = calloc((size_t)n, sizeof(float)), *v = calloc((size_t)n, sizeof(float));
	double *wr = malloc((size_t)n * 8), *mr = calloc((size_t)n, 8), *vr = calloc((size_t)n, 8);
	const uint8_t decay[5] = { 1, 0, 1, 0, 0 };
	double part[TE_K_SUMSQ_PARTS];
	struct te_k_adamw_state s = { 0, 0, 1.0, 1.0, lr, 0.0f, 0.0f, 0 };
	struct te_k_sumsq q = { g, part, n };
	struct te_k_adamw_begin begin = { part, &s, b1, b2, 3.0f, 0 };
	struct te_k_adamw a = { w, m, v, g, decay, &s, n, b1, b2, eps, wd };
	float *was;

	for (int64_t i = 0; i < n; i++)
		wr[i] = w[i];
	for (int step = 1; step <= 10; step++) {
		double norm = 0.0, clip;

		for (int64_t i = 0; i < n; i++) {
			/* away from 0, where m^ / sqrt(v^) magnifies the roundings of m */
			g[i] = tt_rand_float(0.5f, 1.0f) * (i % 3 ? 1.0f : -1.0f);
			norm += (double)g[i] * (double)g[i];
		}
		norm = sqrt(norm);
		clip = norm > 3.0 ? 3.0 / norm : 1.0;
		te__h_sumsq(&q);
		te__h_adamw_begin(&begin);
		te__h_adamw(&a);
		for (int64_t i = 0; i < n; i++) {
			const double gc = g[i] * clip, r1 = b1, r2 = b2;
			double u;

			mr[i] = r1 * mr[i] + (1 - r1) * gc;
			vr[i] = r2 * vr[i] + (1 - r2) * gc * gc;
			u = mr[i] / (1 - pow(r1, step)) /
			    (sqrt(vr[i] / (1 - pow(r2, step))) + (double)eps);
			if (decay[i / TE_K_ALIGN_WEIGHT])
				u += (double)wd * wr[i];
			wr[i] -= (double)lr * u;
			/* moments: 4 roundings a step and that of clip, all terms of one sign */
			check_near(m[i], mr[i], 8 * step * U32 * fabs(mr[i]), "m", i);
			check_near(v[i], vr[i], 10 * step * U32 * vr[i], "v", i);
			/* u within 20 step U32 |u| and |u| < 2; w rounds once a step */
			check_near(w[i], wr[i],
				   step * U32 * (40 * step * (double)lr + 2 * fabs(wr[i]) + 2),
				   "w", i);
		}
	}
	check_end(TE_DTYPE_FP32, w, n);

	/* a gradient that is not finite changes nothing */
	was = copy_of(TE_DTYPE_FP32, w, n);
	g[17] = INFINITY;
	te__h_sumsq(&q);
	te__h_adamw_begin(&begin);
	te__h_adamw(&a);
	check_same(TE_DTYPE_FP32, w, was, n);
	ck_assert_uint_eq(s.nskipped, 1);
	for (int64_t i = 0; i < n; i++)
		ck_assert(isfinite(m[i]) && isfinite(v[i]));
	free(was);
	free(w);
	free(g);
	free(m);
	free(v);
	free(wr);
	free(mr);
	free(vr);
}
END_TEST

/* the sequence of te_k.h, which a GPU gives bit for bit */
START_TEST(adamw_in_the_stated_order)
{
	const int64_t n = TE_K_ALIGN_WEIGHT * 3;
	float *w = normal(TE_DTYPE_FP32, n, 1.0f), *m = normal(TE_DTYPE_FP32, n, 1.0f);
	float *v = normal(TE_DTYPE_FP32, n, 1.0f), *g = normal(TE_DTYPE_FP32, n, 1.0f);
	const uint8_t decay[3] = { 0, 1, 0 };
	struct te_k_adamw_state s = { 3, 0, 0.729, 0.857375, 0.01f, 1.0f, 0.37f, 0 };
	struct te_k_adamw a = { w, m, v, g, decay, &s, n, 0.9f, 0.95f, 1e-8f, 0.1f };
	const float c1 = (float)(1.0 - 0.729), c2 = (float)(1.0 - 0.857375);
	float *wa, *ma, *va;

	for (int64_t i = 0; i < n; i++)
		v[i] = fabsf(v[i]);
	g[0] = 0.0f;
	m[0] = v[0] = 0.0f; /* 0 / (0 + eps) */
	v[1] = 1e-42f;
	wa = copy_of(TE_DTYPE_FP32, w, n);
	ma = copy_of(TE_DTYPE_FP32, m, n);
	va = copy_of(TE_DTYPE_FP32, v, n);
	te__h_adamw(&a);
	for (int64_t i = 0; i < n; i++) {
		volatile float gc = g[i] * 0.37f, t, u;

		t = (1.0f - 0.9f) * gc;
		ma[i] = 0.9f * ma[i];
		ma[i] = ma[i] + t;
		t = (1.0f - 0.95f) * gc;
		t = t * gc;
		va[i] = 0.95f * va[i];
		va[i] = va[i] + t;
		t = sqrtf(va[i] / c2);
		t = t + 1e-8f;
		u = ma[i] / c1;
		u = u / t;
		if (decay[i / TE_K_ALIGN_WEIGHT]) {
			t = 0.1f * wa[i];
			u = u + t;
		}
		t = 0.01f * u;
		wa[i] = wa[i] - t;
	}
	check_same(TE_DTYPE_FP32, m, ma, n);
	check_same(TE_DTYPE_FP32, v, va, n);
	check_same(TE_DTYPE_FP32, w, wa, n);
	free(w);
	free(m);
	free(v);
	free(g);
	free(wa);
	free(ma);
	free(va);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("core/host_kernels");
	TCase *c = tt_case(s, "quant", "host numeric");

	tcase_add_loop_test(c, clear_and_amax, 0, 2);
	tcase_add_loop_test(c, quantize_gives_codes_both_ways, 0, 4);
	tcase_add_loop_test(c, dequantize_and_cast_round_once, 0, 9);
	c = tt_case(s, "norm", "host numeric");
	tcase_add_loop_test(c, norm_forward, 0, 8);
	tcase_add_loop_test(c, norm_backward, 0, 8);
	tcase_add_test(c, norm_of_constant_and_of_nan);
	c = tt_case(s, "reduce", "host numeric");
	tcase_add_loop_test(c, column_sums_in_the_stated_order, 0, 2);
	c = tt_case(s, "elem", "host numeric");
	tcase_add_loop_test(c, bias_and_add_round_once, 0, 2);
	tcase_add_loop_test(c, philox_known_answers, 0, TT_LEN(philox_kat));
	tcase_add_loop_test(c, dropout_keeps_scales_and_repeats, 0, 2);
	tcase_add_test(c, rng_words_advance);
	tcase_add_loop_test(c, rope_turns_and_turns_back, 0, 2);
	c = tt_case(s, "act", "host numeric");
	tcase_add_loop_test(c, activations_forward_and_backward, 0, 4 * TE_ACT_COUNT);
	tcase_add_loop_test(c, activations_of_huge_and_nan, 0, TE_ACT_COUNT);
	c = tt_case(s, "embed", "host numeric");
	tcase_add_loop_test(c, embedding_forward_and_backward, 0, 4);
	c = tt_case(s, "loss", "host numeric");
	tcase_add_loop_test(c, cross_entropy, 0, 2);
	tcase_add_test(c, cross_entropy_hands_nan_on);
	c = tt_case(s, "optim", "host numeric");
	tcase_add_loop_test(c, sum_of_squares_by_runs, 0, 1);
	tcase_add_test(c, adamw_begin_clips_and_skips);
	tcase_add_test(c, adamw_follows_the_paper);
	tcase_add_test(c, adamw_in_the_stated_order);
	return s;
}

TT_MAIN("core/host_kernels", TT_NEED_NOTHING, suite)
