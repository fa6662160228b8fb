/* t/kernels/host_kernels_rows.c - norms, and sums over rows. */
#include "config.h"

#include <math.h>

#include "host_kernels_lib.h"

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
	*m = (struct norm){ .dtype = hk_types[i & 1],
			    .ln = i >> 1 & 1,
			    .zero_centered = i >> 2,
			    .rows = rows,
			    .cols = cols };
	m->x = hk_normal(m->dtype, rows * cols, 2.0f);
	/* with a large mean, a one-pass variance would fail */
	for (int64_t j = 0; j < cols; j++)
		tt_set(m->dtype, m->x, j, tt_get(m->dtype, m->x, j) + 100.0f);
	m->y = hk_fresh(m->dtype, rows * cols);
	m->gamma = hk_normal(TE_DTYPE_FP32, cols, 1.0f);
	m->beta = m->ln ? hk_normal(TE_DTYPE_FP32, cols, 1.0f) : NULL;
	m->mean = m->ln ? hk_fresh(TE_DTYPE_FP32, rows) : NULL;
	m->rstd = hk_fresh(TE_DTYPE_FP32, rows);
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
		.x = m->x,
		.gamma = m->gamma,
		.beta = m->beta,
		.y = m->y,
		.mean = m->mean,
		.rstd = m->rstd,
		.rows = m->rows,
		.cols = m->cols,
		.eps = NORM_EPS,
		.zero_centered = m->zero_centered,
		.dtype = m->dtype,
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

CASE(norm, "host numeric");

TEST_EACH(norm, norm_forward, 8)
{
	for (size_t k = 0; k < HK_NSHAPES; k++) {
		const int64_t rows = hk_shapes[k].rows, cols = hk_shapes[k].cols, n = rows * cols;
		struct te_k_norm_fwd a;
		struct hk_side s;
		struct norm m;
		void *y;

		norm_init(&m, _i, rows, cols);
		a = norm_args(&m);
		te__h_norm_fwd(&a);
		for (int64_t r = 0; r < rows; r++) {
			double mean, rstd;

			norm_row(&m, r, &mean, &rstd);
			/* FP64 sums: only the last rounding, and the cancellation of the mean */
			if (m.ln)
				hk_check_near(m.mean[r], mean, 1e-12 + 2 * U32 * fabs(mean), "mean",
					      r);
			hk_check_near(m.rstd[r], rstd, 2 * U32 * rstd, "rstd", r);
			for (int64_t c = 0; c < cols; c++) {
				const double x = tt_get(m.dtype, m.x, r * cols + c);
				const double gain = norm_gain(&m, c);
				const double beta = m.ln ? (double)m.beta[c] : 0.0;
				const double want = (x - mean) * rstd * gain + beta;
				/* the mean rounds at |mean| rstd |gain|; 6 operations */
				const double s =
					(fabs(x - mean) + fabs(mean)) * rstd * (fabs(gain) + 1.0) +
					fabs(beta);

				hk_check_near(tt_get(m.dtype, m.y, r * cols + c), want,
					      8 * U32 * s + tt_unit(m.dtype) * fabs(want), "y", c);
			}
		}
		hk_check_end(m.dtype, m.y, n);

		/* with quantization, in place, and with codes only */
		y = hk_copy(m.dtype, m.y, n);
		hk_side_init(&s, TE_DTYPE_E4M3, n, 37.0f);
		a.q = s.q;
		a.q.noop = &hk_noop_on;
		tt_poison(m.y, (size_t)n * hk_width(m.dtype));
		te__h_norm_fwd(&a);
		hk_check_side_untouched(&s, n);
		ck_assert(tt_is_poison(m.y, (size_t)n * hk_width(m.dtype)));
		a.q.noop = NULL;
		te__h_norm_fwd(&a);
		hk_check_same(m.dtype, m.y, y, n);
		hk_check_side(&s, m.dtype, y, rows, cols);
		hk_side_free(&s);
		hk_side_init(&s, TE_DTYPE_E4M3, n, 37.0f);
		a.q = s.q;
		a.y = NULL;
		te__h_norm_fwd(&a);
		hk_check_side(&s, m.dtype, y, rows, cols);
		a.q = (struct te_k_q){ 0 };
		a.y = m.x;
		te__h_norm_fwd(&a);
		hk_check_same(m.dtype, m.x, y, n);
		hk_side_free(&s);
		free(y);
		norm_free(&m);
	}
}

TEST_EACH(norm, norm_backward, 8)
{
	for (size_t k = 0; k < HK_NSHAPES; k++) {
		const int64_t rows = hk_shapes[k].rows, cols = hk_shapes[k].cols, n = rows * cols;
		const int64_t nparts = TE_K_NPARTS(rows);
		struct te_k_norm_fwd f;
		struct te_k_norm_bwd b;
		struct te_k_norm_dw w;
		struct norm m;
		void *dy, *dres, *dx, *again;

		norm_init(&m, _i, rows, cols);
		f = norm_args(&m);
		te__h_norm_fwd(&f);
		dy = hk_normal(m.dtype, n, 1.0f);
		dres = k & 1 ? hk_normal(m.dtype, n, 1.0f) : NULL;
		dx = hk_fresh(m.dtype, n);
		b = (struct te_k_norm_bwd){ dy, m.x,  m.gamma, m.mean,		m.rstd, dres,
					    dx, rows, cols,    m.zero_centered, m.dtype, { 0 } };
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

				hk_check_near(tt_get(m.dtype, dx, i), want,
					      16 * U32 * s + tt_unit(m.dtype) * fabs(want), "dx",
					      i);
			}
		}
		hk_check_end(m.dtype, dx, n);
		again = hk_copy(m.dtype, dy, n);
		b.dy = b.dx = again;
		te__h_norm_bwd(&b);
		hk_check_same(m.dtype, again, dx, n);
		if (dres) {
			memcpy(again, dres, (size_t)n * hk_width(m.dtype));
			b.dy = dy;
			b.dres = b.dx = again;
			te__h_norm_bwd(&b);
			hk_check_same(m.dtype, again, dx, n);
		}

		/* the same operations in the specified order: equal bits */
		w = (struct te_k_norm_dw){ dy,
					   m.x,
					   m.mean,
					   m.rstd,
					   hk_fresh(TE_DTYPE_FP32, nparts * cols),
					   m.ln ? hk_fresh(TE_DTYPE_FP32, nparts * cols) : NULL,
					   rows,
					   cols,
					   m.dtype,
					   0 };
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
		hk_check_end(TE_DTYPE_FP32, w.part_gamma, nparts * cols);
		free(w.part_gamma);
		free(w.part_beta);
		free(again);
		free(dx);
		free(dres);
		free(dy);
		norm_free(&m);
	}
}

/* neither result nor codes nor amax of the backward kernels that fusions cast in. _i: dtype */
TEST_EACH(norm, backward_writes_nothing_if_noop, HK_NTYPES)
{
	enum { ROWS = 3, WIDTH = 8, N = ROWS * WIDTH };
	const int32_t dtype = hk_types[_i];
	void *x = hk_normal(dtype, N, 1.0f), *dx = hk_fresh(dtype, N);
	float *gamma = hk_normal(TE_DTYPE_FP32, WIDTH, 1.0f);
	float *rstd = hk_normal(TE_DTYPE_FP32, ROWS, 1.0f);
	struct te_k_norm_bwd b = {
		.dy = x, .x = x, .gamma = gamma, .rstd = rstd, .dx = dx,
		.rows = ROWS, .cols = WIDTH, .dtype = dtype,
	};
	struct te_k_rope r = {
		.x = x, .y = dx, .rows = ROWS, .seqlen = ROWS, .nheads = 2, .nrot = 1,
		.head_dim = WIDTH / 2, .inverse = 1, .dtype = dtype, .inv_freq = { 1.0f, 0.5f },
	};

	for (int casts = 0; casts < 2; casts++) {
		struct hk_side s;

		hk_side_init(&s, TE_DTYPE_E5M2, N, 37.0f);
		if (casts)
			b.q = r.q = s.q;
		b.q.noop = r.q.noop = &hk_noop_on;
		tt_poison(dx, N * hk_width(dtype));
		te__h_norm_bwd(&b);
		te__h_rope(&r);
		ck_assert(tt_is_poison(dx, N * hk_width(dtype)));
		hk_check_side_untouched(&s, N);
		b.q.noop = r.q.noop = &hk_noop_off;
		te__h_norm_bwd(&b);
		ck_assert(!tt_is_poison(dx, N * hk_width(dtype)));
		tt_poison(dx, N * hk_width(dtype));
		te__h_rope(&r);
		ck_assert(!tt_is_poison(dx, N * hk_width(dtype)));
		hk_side_free(&s);
	}
	free(x);
	free(dx);
	free(gamma);
	free(rstd);
}

TEST(norm, norm_of_constant_and_of_nan)
{
	float x[4] = { 3.0f, 3.0f, 3.0f, 3.0f }, gamma[4] = { 1, 1, 1, 1 };
	float beta[4] = { 5, 6, 7, 8 }, y[4], mean, rstd;
	struct te_k_norm_fwd a = { .x = x,
				   .gamma = gamma,
				   .beta = beta,
				   .y = y,
				   .mean = &mean,
				   .rstd = &rstd,
				   .rows = 1,
				   .cols = 4,
				   .eps = NORM_EPS };

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
		hk_check_near(y[i], (i & 1 ? 1.0 : -1.0) + beta[i], 8 * U32 * 9, "y", i);
	a.eps = 0.0f;
	for (int i = 0; i < 4; i++)
		x[i] = i & 1 ? 1e-30f : -1e-30f;
	te__h_norm_fwd(&a);
	for (int i = 0; i < 4; i++)
		hk_check_near(y[i], (i & 1 ? 1.0 : -1.0) + beta[i], 8 * U32 * 9, "y", i);
}

/* ---- sums over rows ---- */

CASE(reduce, "host numeric");

/* also the last group, which has fewer parts, and sums that another order rounds otherwise */
TEST_EACH(reduce, partial_sums_in_the_specified_order, 12)
{
	static const int64_t nparts[] = { 1, 31, 32, 33, 64, 1000 };
	const int64_t n = nparts[_i / 2], cols = 37;
	float *part = hk_normal(TE_DTYPE_FP32, n * cols, 1.0f);
	const int32_t type = hk_types[_i & 1];
	void *out = hk_normal(type, cols, 1.0f), *was = hk_copy(type, out, cols);

	te__h_part_sum(&(struct te_k_part_sum){ .part = part, .out = out, .nparts = n,
						.cols = cols, .dtype = type });
	for (int64_t c = 0; c < cols; c++) {
		float sum = 0.0f;

		for (int64_t first = 0; first < n; first += 32) {
			float group = 0.0f;

			for (int64_t p = first; p < n && p < first + 32; p++)
				group += part[p * cols + c];
			sum += group;
		}
		ck_assert_float_eq(tt_get(type, out, c),
				   tt_round(type, tt_get(type, was, c) + sum));
	}
	hk_check_end(type, out, cols);
	free(part);
	free(out);
	free(was);
}

TEST_EACH(reduce, column_sums_in_the_specified_order, 2)
{
	const int32_t dtype = hk_types[_i];

	for (size_t k = 0; k < HK_NSHAPES; k++) {
		const int64_t rows = hk_shapes[k].rows, cols = hk_shapes[k].cols;
		const int64_t nparts = TE_K_NPARTS(rows);
		void *x = hk_normal(dtype, rows * cols, 1.0f);
		float *part = hk_fresh(TE_DTYPE_FP32, nparts * cols);
		float *out = hk_normal(TE_DTYPE_FP32, cols, 1.0f);
		float *was = hk_copy(TE_DTYPE_FP32, out, cols);
		struct te_k_colsum a = { x, part, rows, cols, dtype, 0 };
		float *twin = hk_copy(TE_DTYPE_FP32, out, cols);
		struct te_k_part_sum b = {
			part, out, nparts, cols, TE_DTYPE_FP32, 0, part, twin
		};

		te__h_colsum(&a);
		te__h_part_sum(&b);
		ck_assert_mem_eq(twin, out, (size_t)cols * sizeof(*out));
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
			hk_check_near(out[c], want, (double)(rows + 1) * U32 * size, "out", c);
		}
		hk_check_end(TE_DTYPE_FP32, part, nparts * cols);
		hk_check_end(TE_DTYPE_FP32, out, cols);
		hk_check_end(TE_DTYPE_FP32, twin, cols);
		free(x);
		free(part);
		free(out);
		free(was);
		free(twin);
	}
}
