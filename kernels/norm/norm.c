/* norm.c - reference kernels: LayerNorm and RMSNorm, forward and backward. */
#include "config.h"

#include "kernels/ref.h"

static void load_gain(const float *gamma, int zero_centered, int64_t c, int64_t n, float *gain)
{
	for (int64_t i = 0; i < n; i++)
		gain[i] = zero_centered ? 1.0f + gamma[c + i] : gamma[c + i];
}

/* in FP64; the mean of RMSNorm is 0, so that its variance is the mean of squares */
static void row_stats(const struct te_k_norm_fwd *a, int64_t r)
{
	double mean = 0.0, var = 0.0;
	float x[TE__H_CHUNK];

	if (a->mean) {
		TE__H_CHUNKS(c, len, a->cols) {
			te__h_load(a->dtype, a->x, r * a->cols + c, len, x);
			mean += te__h_sum(x, len);
		}
		mean /= (double)a->cols;
	}
	TE__H_CHUNKS(c, len, a->cols) {
		te__h_load(a->dtype, a->x, r * a->cols + c, len, x);
		var += te__h_sumsq_about(x, mean, len);
	}
	if (a->mean)
		a->mean[r] = (float)mean;
	a->rstd[r] = (float)(1.0 / sqrt(var / (double)a->cols + (double)a->eps));
}

void te__h_norm_fwd(const struct te_k_norm_fwd *a)
{
	float x[TE__H_CHUNK], gain[TE__H_CHUNK];
	int64_t r, c, n;
	struct te__h_q q;

	if (te__h_noop(a->q.noop))
		return;
	te__h_q_begin(&q, &a->q, a->rows, a->cols);
	while (te__h_q_next(&q, &r, &c, &n)) {
		float mean, rstd;

		if (!c) /* first chunk of the row, before y, which may be x, is written */
			row_stats(a, r);
		mean = a->mean ? a->mean[r] : 0.0f;
		rstd = a->rstd[r];
		te__h_load(a->dtype, a->x, r * a->cols + c, n, x);
		load_gain(a->gamma, a->zero_centered, c, n, gain);
		for (int64_t i = 0; i < n; i++)
			x[i] = (x[i] - mean) * rstd * gain[i];
		if (a->beta)
			for (int64_t i = 0; i < n; i++)
				x[i] += a->beta[c + i];
		if (a->y)
			te__h_store(a->dtype, a->y, r * a->cols + c, n, x);
		else
			te__h_round(a->dtype, n, x);
		te__h_q_put(&q, x, r, c, n);
	}
	te__h_q_end(&q);
}

/* g = dy * gain and xhat of a chunk of a row */
static void load_g_xhat(const struct te_k_norm_bwd *a, int64_t r, int64_t c, int64_t n, float *g,
			float *xhat)
{
	const float mean = a->mean ? a->mean[r] : 0.0f, rstd = a->rstd[r];
	float gain[TE__H_CHUNK];

	te__h_load(a->dtype, a->dy, r * a->cols + c, n, g);
	te__h_load(a->dtype, a->x, r * a->cols + c, n, xhat);
	load_gain(a->gamma, a->zero_centered, c, n, gain);
	for (int64_t i = 0; i < n; i++) {
		g[i] *= gain[i];
		xhat[i] = (xhat[i] - mean) * rstd;
	}
}

void te__h_norm_bwd(const struct te_k_norm_bwd *a)
{
	float g[TE__H_CHUNK], xhat[TE__H_CHUNK], dres[TE__H_CHUNK];

	for (int64_t r = 0; r < a->rows; r++) {
		const float rstd = a->rstd[r];
		double sum_g = 0.0, sum_gx = 0.0;
		float mean_g, mean_gx;

		TE__H_CHUNKS(c, len, a->cols) {
			load_g_xhat(a, r, c, len, g, xhat);
			if (a->mean)
				sum_g += te__h_sum(g, len);
			sum_gx += te__h_dot(g, xhat, len);
		}
		mean_g = (float)(sum_g / (double)a->cols);
		mean_gx = (float)(sum_gx / (double)a->cols);
		TE__H_CHUNKS(c, len, a->cols) {
			load_g_xhat(a, r, c, len, g, xhat);
			for (int64_t i = 0; i < len; i++)
				g[i] = rstd * (g[i] - mean_g - xhat[i] * mean_gx);
			if (a->dres) {
				te__h_load(a->dtype, a->dres, r * a->cols + c, len, dres);
				for (int64_t i = 0; i < len; i++)
					g[i] += dres[i];
			}
			te__h_store(a->dtype, a->dx, r * a->cols + c, len, g);
		}
	}
}

void te__h_norm_dw(const struct te_k_norm_dw *a)
{
	float dy[TE__H_CHUNK], x[TE__H_CHUNK];

	for (int64_t p = 0; p < TE_K_NPARTS(a->rows); p++) {
		const int64_t end = te__h_min((p + 1) * TE_K_PART_ROWS, a->rows);
		const size_t nbytes = (size_t)a->cols * sizeof(float);

		memset(a->part_gamma + p * a->cols, 0, nbytes);
		if (a->part_beta)
			memset(a->part_beta + p * a->cols, 0, nbytes);
		for (int64_t r = p * TE_K_PART_ROWS; r < end; r++) {
			const float mean = a->mean ? a->mean[r] : 0.0f, rstd = a->rstd[r];

			TE__H_CHUNKS(c, len, a->cols) {
				float *pg = a->part_gamma + p * a->cols + c;
				float *pb = a->part_beta ? a->part_beta + p * a->cols + c : NULL;

				te__h_load(a->dtype, a->dy, r * a->cols + c, len, dy);
				te__h_load(a->dtype, a->x, r * a->cols + c, len, x);
				for (int64_t i = 0; i < len; i++)
					pg[i] += dy[i] * ((x[i] - mean) * rstd);
				if (a->part_beta)
					for (int64_t i = 0; i < len; i++)
						pb[i] += dy[i];
			}
		}
	}
}
