/* norm.c - reference kernels: LayerNorm and RMSNorm, forward and backward. */
#include "config.h"

#include "kernels/ref.h"
#include "kernels/team.h"

/* gain of element i: one is 1 where gamma is zero-centered, else -0, which changes no bit */
static float gain_one(int zero_centered)
{
	return zero_centered ? 1.0f : -0.0f;
}

/* y = (x - mean) * rstd * gain */
TE__SIMD_BODY void normalize_body(float *restrict y, const float *x, float mean, float rstd,
				  const float *gamma, float one, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		y[i] = (x[i] - mean) * rstd * (one + gamma[i]);
}
static TE__SIMD(void, normalize,
		(float *y, const float *x, float mean, float rstd, const float *gamma, float one,
		 int64_t n),
		(y, x, mean, rstd, gamma, one, n))

/* g = dy * gain, xhat = (x - mean) * rstd */
TE__SIMD_BODY void g_xhat_body(float *restrict g, float *restrict xhat, const float *restrict dy,
			       const float *restrict x, float mean, float rstd,
			       const float *restrict gamma, float one, int64_t n)
{
	for (int64_t i = 0; i < n; i++) {
		g[i] = dy[i] * (one + gamma[i]);
		xhat[i] = (x[i] - mean) * rstd;
	}
}
static TE__SIMD(void, g_xhat,
		(float *g, float *xhat, const float *dy, const float *x, float mean, float rstd,
		 const float *gamma, float one, int64_t n),
		(g, xhat, dy, x, mean, rstd, gamma, one, n))

/* g = rstd * (g - mean_g - xhat * mean_gx) */
TE__SIMD_BODY void dx_body(float *restrict g, const float *restrict xhat, float rstd, float mean_g,
			   float mean_gx, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		g[i] = rstd * (g[i] - mean_g - xhat[i] * mean_gx);
}
static TE__SIMD(void, dx,
		(float *g, const float *xhat, float rstd, float mean_g, float mean_gx, int64_t n),
		(g, xhat, rstd, mean_g, mean_gx, n))

/* sum += dy * xhat */
TE__SIMD_BODY void add_dw_body(float *restrict sum, const float *restrict dy,
			       const float *restrict x, float mean, float rstd, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		sum[i] += dy[i] * ((x[i] - mean) * rstd);
}
static TE__SIMD(void, add_dw,
		(float *sum, const float *dy, const float *x, float mean, float rstd, int64_t n),
		(sum, dy, x, mean, rstd, n))

/* in FP64; the mean of RMSNorm is 0, so that its variance is the mean of squares */
static void row_stats(const struct te_k_norm_fwd *a, int64_t r)
{
	double mean = 0.0, var = 0.0;
	float x[TE__H_SPAN];

	if (a->mean) {
		TE__H_SPANS(c, len, a->cols) {
			mean += te__h_sum(te__h_view(a->dtype, a->x, r * a->cols + c, len, x), len);
		}
		mean /= (double)a->cols;
	}
	TE__H_SPANS(c, len, a->cols) {
		var += te__h_sumsq_about(te__h_view(a->dtype, a->x, r * a->cols + c, len, x), mean,
					 len);
	}
	if (a->mean)
		a->mean[r] = (float)mean;
	a->rstd[r] = (float)(1.0 / sqrt(var / (double)a->cols + (double)a->eps));
}

static void fwd_chunk(const void *arg, int64_t r, int64_t c, int64_t n, float *v)
{
	const struct te_k_norm_fwd *a = arg;
	float x[TE__H_CHUNK];

	if (!c) /* first chunk of the row, before y, which may be x, is written */
		row_stats(a, r);
	normalize(v, te__h_view(a->dtype, a->x, r * a->cols + c, n, x), a->mean ? a->mean[r] : 0.0f,
		  a->rstd[r], a->gamma + c, gain_one(a->zero_centered), n);
	if (a->beta)
		te__h_add_to(v, a->beta + c, n);
	if (a->y)
		te__h_store(a->dtype, a->y, r * a->cols + c, n, v);
	else
		te__h_round(a->dtype, n, v);
}

void te__h_norm_fwd(const struct te_k_norm_fwd *a)
{
	if (!te__h_noop(a->q.noop))
		te__h_q_run(&a->q, a->rows, a->cols, fwd_chunk, a);
}

/* g = dy * gain and xhat of a span of a row */
static void load_g_xhat(const struct te_k_norm_bwd *a, int64_t r, int64_t c, int64_t n, float *g,
			float *xhat)
{
	float dy[TE__H_CHUNK], x[TE__H_CHUNK];

	TE__H_CHUNKS(i, len, n) {
		const int64_t at = r * a->cols + c + i;

		g_xhat(g + i, xhat + i, te__h_view(a->dtype, a->dy, at, len, dy),
		       te__h_view(a->dtype, a->x, at, len, x), a->mean ? a->mean[r] : 0.0f,
		       a->rstd[r], a->gamma + c + i, gain_one(a->zero_centered), len);
	}
}

/* g and xhat: of a span */
static void bwd_row(const struct te_k_norm_bwd *a, int64_t r, float *g, float *xhat)
{
	double sum_g = 0.0, sum_gx = 0.0;
	float mean_g, mean_gx;

	TE__H_SPANS(c, len, a->cols) {
		load_g_xhat(a, r, c, len, g, xhat);
		if (a->mean)
			sum_g += te__h_sum(g, len);
		sum_gx += te__h_dot(g, xhat, len);
	}
	mean_g = (float)(sum_g / (double)a->cols);
	mean_gx = (float)(sum_gx / (double)a->cols);
	TE__H_SPANS(c, len, a->cols) {
		load_g_xhat(a, r, c, len, g, xhat);
		dx(g, xhat, a->rstd[r], mean_g, mean_gx, len);
		if (a->dres)
			te__h_add_to(g, te__h_view(a->dtype, a->dres, r * a->cols + c, len, xhat),
				     len);
		te__h_store(a->dtype, a->dx, r * a->cols + c, len, g);
	}
}

static void bwd_part(void *arg, int64_t begin, int64_t end)
{
	float *g = te__k_take(2 * TE__H_SPAN * sizeof(*g));

	for (int64_t r = begin; r < end; r++)
		bwd_row(arg, r, g, g + TE__H_SPAN);
	te__k_give(g);
}

/* dx has been computed: its row sums need whole rows, and chunks are not */
static void bwd_chunk(const void *arg, int64_t r, int64_t c, int64_t n, float *v)
{
	const struct te_k_norm_bwd *a = arg;

	te__h_load(a->dtype, a->dx, r * a->cols + c, n, v);
}

void te__h_norm_bwd(const struct te_k_norm_bwd *a)
{
	if (te__h_noop(a->q.noop))
		return;
	te__k_for(a->rows, te__h_rows_grain(a->cols, 1), bwd_part, (void *)(uintptr_t)a);
	if (a->q.row || a->q.col || a->q.amax)
		te__h_q_run(&a->q, a->rows, a->cols, bwd_chunk, a);
}

/* begin is the first row of a partial sum */
static void dw_part(void *arg, int64_t begin, int64_t end)
{
	const struct te_k_norm_dw *a = arg;
	float dybuf[TE__H_CHUNK], xbuf[TE__H_CHUNK];

	for (int64_t r = begin; r < end; r++) {
		const int64_t part = r / TE_K_PART_ROWS * a->cols;
		const float mean = a->mean ? a->mean[r] : 0.0f, rstd = a->rstd[r];

		TE__H_CHUNKS(c, len, a->cols) {
			const size_t nbytes = (size_t)len * sizeof(float);
			const int64_t at = r * a->cols + c;
			const float *dy = te__h_view(a->dtype, a->dy, at, len, dybuf);
			const float *x = te__h_view(a->dtype, a->x, at, len, xbuf);
			float *gamma = a->part_gamma + part + c;
			float *beta = a->part_beta ? a->part_beta + part + c : NULL;

			if (r % TE_K_PART_ROWS == 0) {
				memset(gamma, 0, nbytes);
				if (beta)
					memset(beta, 0, nbytes);
			}
			add_dw(gamma, dy, x, mean, rstd, len);
			if (beta)
				te__h_add_to(beta, dy, len);
		}
	}
}

void te__h_norm_dw(const struct te_k_norm_dw *a)
{
	te__k_for(a->rows, te__h_rows_grain(a->cols, TE_K_PART_ROWS), dw_part,
		  (void *)(uintptr_t)a);
}

void te__h_norm_both(const struct te_k_norm_both *a)
{
	const struct te_k_norm_bwd b = {
		.dy = a->dy,
		.x = a->x,
		.gamma = a->gamma,
		.mean = a->mean,
		.rstd = a->rstd,
		.dres = a->dres,
		.dx = a->dx,
		.rows = a->rows,
		.cols = a->cols,
		.zero_centered = a->zero_centered,
		.dtype = a->dtype,
		.q = a->q,
	};
	const struct te_k_norm_dw w = { a->dy,	       a->x,	     a->mean, a->rstd,
					a->part_gamma, a->part_beta, a->rows, a->cols,
					a->dtype,      0 };
	const struct te_k_colsum dx = { a->dx, a->part_dx, a->rows, a->cols, a->dtype, 0 };

	if (te__h_noop(a->q.noop))
		return;
	te__h_norm_dw(&w); /* first: dx may be dy */
	te__h_norm_bwd(&b);
	if (a->part_dx)
		te__h_colsum(&dx);
}

/* the first column and the width of group g of a row */
static void group_of(int64_t g, int64_t nq, int64_t qcols, int64_t kcols, int64_t *ret_at,
		     int64_t *ret_cols)
{
	*ret_at = g < nq ? g * qcols : nq * qcols + (g - nq) * kcols;
	*ret_cols = g < nq ? qcols : kcols;
}

static void *qk_at(int32_t dtype, const void *p, int64_t i)
{
	return (char *)(uintptr_t)p + i * (dtype == TE_DTYPE_FP32 ? 4 : 2);
}

static void qk_fwd_part(void *arg, int64_t begin, int64_t end)
{
	const struct te_k_qk_norm_fwd *a = arg;
	const int64_t cols = TE_K_QK_COLS(a), normed = a->nq + a->nk;
	float v[TE__H_CHUNK];

	for (int64_t r = begin; r < end; r++) {
		for (int64_t g = 0, at, n; g < normed + a->nk; g++) {
			struct te_k_norm_fwd k = { .rows = 1, .eps = a->eps, .dtype = a->dtype };

			group_of(g, a->nq, a->qcols, a->kcols, &at, &n);
			k.x = qk_at(a->dtype, a->x, r * cols + at);
			k.y = qk_at(a->dtype, a->y, r * cols + at);
			k.gamma = g < a->nq ? a->gamma_q : a->gamma_k;
			k.rstd = a->rstd + r * normed + g;
			k.cols = n;
			k.zero_centered = a->zero_centered;
			TE__H_CHUNKS(c, len, n) {
				if (g < normed) {
					fwd_chunk(&k, 0, c, len, v);
				} else {
					te__h_load(a->dtype, k.x, c, len, v);
					te__h_store(a->dtype, k.y, c, len, v);
				}
			}
		}
	}
}

void te__h_qk_norm_fwd(const struct te_k_qk_norm_fwd *a)
{
	te__k_for(a->rows, te__h_rows_grain(TE_K_QK_COLS(a), 1), qk_fwd_part,
		  (void *)(uintptr_t)a);
}

static void qk_bwd_part(void *arg, int64_t begin, int64_t end)
{
	const struct te_k_qk_norm_bwd *a = arg;
	const int64_t cols = TE_K_QK_COLS(a), normed = a->nq + a->nk;
	float *v = te__k_take(2 * TE__H_SPAN * sizeof(*v));

	for (int64_t r = begin; r < end; r++) {
		for (int64_t g = 0, at, n; g < normed + a->nk; g++) {
			struct te_k_norm_bwd k = { .rows = 1, .dtype = a->dtype };

			group_of(g, a->nq, a->qcols, a->kcols, &at, &n);
			k.dy = qk_at(a->dtype, a->dy, r * cols + at);
			k.x = qk_at(a->dtype, a->x, r * cols + at);
			k.dx = qk_at(a->dtype, a->dx, r * cols + at);
			k.gamma = g < a->nq ? a->gamma_q : a->gamma_k;
			k.rstd = a->rstd + r * normed + g;
			k.cols = n;
			k.zero_centered = a->zero_centered;
			if (g < normed)
				bwd_row(&k, 0, v, v + TE__H_SPAN);
			else
				TE__H_SPANS(c, len, n) {
					te__h_load(a->dtype, k.dy, c, len, v);
					te__h_store(a->dtype, k.dx, c, len, v);
				}
		}
	}
	te__k_give(v);
}

void te__h_qk_norm_bwd(const struct te_k_qk_norm_bwd *a)
{
	te__k_for(a->rows, te__h_rows_grain(TE_K_QK_COLS(a), 1), qk_bwd_part,
		  (void *)(uintptr_t)a);
}

/* begin is the first row of a partial sum */
static void qk_dw_part(void *arg, int64_t begin, int64_t end)
{
	const struct te_k_qk_norm_dw *a = arg;
	const int64_t cols = TE_K_QK_COLS(a), normed = a->nq + a->nk;
	float dybuf[TE__H_CHUNK], xbuf[TE__H_CHUNK];

	for (int64_t r = begin; r < end; r++) {
		const int64_t part = r / TE_K_PART_ROWS;
		float *q = a->part_q + part * a->qcols, *k = a->part_k + part * a->kcols;

		if (r % TE_K_PART_ROWS == 0) {
			memset(q, 0, (size_t)a->qcols * sizeof(*q));
			memset(k, 0, (size_t)a->kcols * sizeof(*k));
		}
		for (int64_t g = 0, at, n; g < normed; g++) {
			group_of(g, a->nq, a->qcols, a->kcols, &at, &n);
			at += r * cols;
			TE__H_CHUNKS(c, len, n) {
				add_dw((g < a->nq ? q : k) + c,
				       te__h_view(a->dtype, a->dy, at + c, len, dybuf),
				       te__h_view(a->dtype, a->x, at + c, len, xbuf), 0.0f,
				       a->rstd[r * normed + g], len);
			}
		}
	}
}

void te__h_qk_norm_dw(const struct te_k_qk_norm_dw *a)
{
	te__k_for(a->rows, te__h_rows_grain(TE_K_QK_COLS(a), TE_K_PART_ROWS), qk_dw_part,
		  (void *)(uintptr_t)a);
}
