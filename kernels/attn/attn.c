/*
 * attn.c - reference kernels: causal attention, forward and backward.
 *
 * Dot products are FP32 sums over ascending channels, row sums are FP64, sums over keys or queries
 * are FP32 in ascending order. Keys are processed in blocks of TILE, converted to FP32 on the
 * stack, so that nothing is allocated and every inner loop is contiguous. Each block rescales the
 * results of the previous blocks (online softmax, Milakov and Gimelshein, arXiv 1805.02867). Keys
 * after the query are never read.
 */
#include "config.h"

#include "kernels/philox.h"
#include "kernels/ref.h"

#define TILE 64
#define MAXD TE_K_ATTN_MAX_HEAD_DIM

/* n rows of d elements, stride elements apart */
static void gather(float (*ret)[MAXD], int32_t dtype, const void *x, int64_t at, int64_t stride,
		   int64_t n, int d)
{
	for (int64_t r = 0; r < n; r++)
		te__h_load(dtype, x, at + r * stride, d, ret[r]);
}

/* the same, as columns */
static void gather_t(float (*ret)[TILE], int32_t dtype, const void *x, int64_t at, int64_t stride,
		     int64_t n, int d)
{
	float row[MAXD];

	for (int64_t r = 0; r < n; r++) {
		te__h_load(dtype, x, at + r * stride, d, row);
		for (int c = 0; c < d; c++)
			ret[c][r] = row[c];
	}
}

/* s[k] = x . yt[:, k] */
static void dots(float *restrict s, const float *x, float (*yt)[TILE], int64_t n, int d)
{
	for (int64_t k = 0; k < n; k++)
		s[k] = 0.0f;
	for (int c = 0; c < d; c++) {
		const float *restrict y = yt[c];
		float v = x[c];

		for (int64_t k = 0; k < n; k++)
			s[k] += v * y[k];
	}
}

static void axpy(float *restrict y, float a, const float *restrict x, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		y[i] += a * x[i];
}

/* f[k]: the dropout factor of key k0 + k: 0, or the scale of kept probabilities */
static void keep(float *f, const uint64_t *seed, const uint64_t *offset, uint32_t threshold,
		 uint32_t tag, int64_t bh, int64_t q, int64_t k0, int64_t n)
{
	float scale = 65536.0f / (float)(65536u - threshold);
	struct te_philox r = { { 0 } };

	for (int64_t k = 0; k < n; k++) {
		if (!threshold) {
			f[k] = 1.0f;
			continue;
		}
		if (k % 8 == 0)
			r = te_philox_attn(*seed, *offset, tag, (uint32_t)bh, (uint32_t)q,
					   (uint32_t)((k0 + k) >> 3));
		f[k] = te_philox_lane(&r, (int)(k & 7)) >= threshold ? scale : 0.0f;
	}
}

void te__h_attn_fwd(const struct te_k_attn_fwd *a)
{
	int64_t T = a->seqlen, row = (int64_t)(a->nheads + 2 * a->nkv) * a->head_dim;
	int64_t orow = (int64_t)a->nheads * a->head_dim;
	int d = a->head_dim, group = a->nheads / a->nkv;
	float kt[MAXD][TILE], v[TILE][MAXD], q[TILE][MAXD], acc[TILE][MAXD];
	float m[TILE], s[TILE], f[TILE];
	double l[TILE];

	for (int64_t bh = 0; bh < a->batch * a->nheads; bh++) {
		int64_t b = bh / a->nheads, h = bh % a->nheads, g = h / group;
		int64_t at = b * T * row;

		for (int64_t q0 = 0; q0 < T; q0 += TILE) {
			int64_t nq = te__h_min(TILE, T - q0);

			gather(q, a->dtype, a->qkv, at + q0 * row + h * d, row, nq, d);
			for (int64_t i = 0; i < nq; i++) {
				m[i] = -INFINITY;
				l[i] = 0.0;
				for (int c = 0; c < d; c++)
					acc[i][c] = 0.0f;
			}
			for (int64_t k0 = 0; k0 <= q0; k0 += TILE) {
				int64_t nk = te__h_min(TILE, T - k0);

				gather_t(kt, a->dtype, a->qkv,
					 at + k0 * row + (a->nheads + g) * d, row, nk, d);
				gather(v, a->dtype, a->qkv,
				       at + k0 * row + (a->nheads + a->nkv + g) * d, row, nk, d);
				for (int64_t i = 0; i < nq; i++) {
					int64_t n = te__h_min(nk, q0 + i - k0 + 1);
					float old = m[i], shrink;

					dots(s, q[i], kt, n, d);
					for (int64_t k = 0; k < n; k++) {
						s[k] *= a->scale;
						m[i] = fmaxf(m[i], s[k]);
					}
					/* equal also if both are -inf, whose difference is NaN */
					shrink = old == m[i] ? 1.0f : expf(old - m[i]);
					l[i] *= shrink;
					for (int c = 0; c < d; c++)
						acc[i][c] *= shrink;
					keep(f, a->seed, a->offset, a->threshold, a->tag, bh,
					     q0 + i, k0, n);
					for (int64_t k = 0; k < n; k++) {
						float p = expf(s[k] - m[i]);

						l[i] += p;
						if (f[k] != 0.0f)
							axpy(acc[i], p * f[k], v[k], d);
					}
				}
			}
			for (int64_t i = 0; i < nq; i++) {
				float inv = (float)(1.0 / l[i]);

				a->lse[bh * T + q0 + i] = (float)(m[i] + log(l[i]));
				for (int c = 0; c < d; c++)
					acc[i][c] *= inv;
				te__h_store(a->dtype, a->out, (b * T + q0 + i) * orow + h * d, d,
					    acc[i]);
			}
		}
	}
}

void te__h_attn_bwd_pre(const struct te_k_attn_bwd *a)
{
	int d = a->head_dim;
	float x[MAXD], y[MAXD];

	for (int64_t b = 0; b < a->batch; b++)
		for (int64_t t = 0; t < a->seqlen; t++)
			for (int64_t h = 0; h < a->nheads; h++) {
				int64_t at = ((b * a->seqlen + t) * a->nheads + h) * d;

				te__h_load(a->dtype, a->out, at, d, x);
				te__h_load(a->dtype, a->dout, at, d, y);
				a->delta[(b * a->nheads + h) * a->seqlen + t] =
					(float)te__h_dot(x, y, d);
			}
}

/*
 * For one query and keys k0 .. k0+n-1: pd, the probabilities after dropout, and ds, the gradients
 * of the scaled dot products.
 */
static void softmax_bwd(const struct te_k_attn_bwd *a, int64_t bh, int64_t q, int64_t k0,
			int64_t n, const float *qv, const float *dov, float (*kt)[TILE],
			float (*vt)[TILE], float *pd, float *ds)
{
	float lse = a->lse[bh * a->seqlen + q], delta = a->delta[bh * a->seqlen + q];
	float s[TILE], dp[TILE], f[TILE];

	dots(s, qv, kt, n, a->head_dim);
	dots(dp, dov, vt, n, a->head_dim);
	keep(f, a->seed, a->offset, a->threshold, a->tag, bh, q, k0, n);
	for (int64_t k = 0; k < n; k++) {
		float p = expf(s[k] * a->scale - lse);

		pd[k] = p * f[k];
		ds[k] = p * (dp[k] * f[k] - delta);
	}
}

void te__h_attn_bwd_dkv(const struct te_k_attn_bwd *a)
{
	int64_t T = a->seqlen, row = (int64_t)(a->nheads + 2 * a->nkv) * a->head_dim;
	int64_t orow = (int64_t)a->nheads * a->head_dim;
	int d = a->head_dim, group = a->nheads / a->nkv;
	float kt[MAXD][TILE], vt[MAXD][TILE], dkt[MAXD][TILE], dvt[MAXD][TILE];
	float q[1][MAXD], dout[1][MAXD], pd[TILE], ds[TILE];

	for (int64_t b = 0; b < a->batch; b++)
		for (int64_t g = 0; g < a->nkv; g++)
			for (int64_t k0 = 0; k0 < T; k0 += TILE) {
				int64_t nk = te__h_min(TILE, T - k0);
				int64_t kat = (b * T + k0) * row + (a->nheads + g) * d;
				int64_t vat = kat + (int64_t)a->nkv * d;

				gather_t(kt, a->dtype, a->qkv, kat, row, nk, d);
				gather_t(vt, a->dtype, a->qkv, vat, row, nk, d);
				for (int c = 0; c < d; c++)
					for (int64_t k = 0; k < nk; k++)
						dkt[c][k] = dvt[c][k] = 0.0f;
				for (int64_t h = g * group; h < (g + 1) * group; h++)
					for (int64_t t = k0; t < T; t++) {
						int64_t n = te__h_min(nk, t - k0 + 1);

						gather(q, a->dtype, a->qkv,
						       (b * T + t) * row + h * d, row, 1, d);
						gather(dout, a->dtype, a->dout,
						       (b * T + t) * orow + h * d, orow, 1, d);
						softmax_bwd(a, b * a->nheads + h, t, k0, n, q[0],
							    dout[0], kt, vt, pd, ds);
						for (int c = 0; c < d; c++) {
							axpy(dkt[c], q[0][c], ds, n);
							axpy(dvt[c], dout[0][c], pd, n);
						}
					}
				for (int64_t k = 0; k < nk; k++) {
					for (int c = 0; c < d; c++) {
						q[0][c] = dkt[c][k] * a->scale;
						dout[0][c] = dvt[c][k];
					}
					te__h_store(a->dtype, a->dqkv, kat + k * row, d, q[0]);
					te__h_store(a->dtype, a->dqkv, vat + k * row, d, dout[0]);
				}
			}
}

void te__h_attn_bwd_dq(const struct te_k_attn_bwd *a)
{
	int64_t T = a->seqlen, row = (int64_t)(a->nheads + 2 * a->nkv) * a->head_dim;
	int64_t orow = (int64_t)a->nheads * a->head_dim;
	int d = a->head_dim, group = a->nheads / a->nkv;
	float kt[MAXD][TILE], vt[MAXD][TILE], kr[TILE][MAXD];
	float q[TILE][MAXD], dout[TILE][MAXD], dq[TILE][MAXD], pd[TILE], ds[TILE];

	for (int64_t bh = 0; bh < a->batch * a->nheads; bh++) {
		int64_t b = bh / a->nheads, h = bh % a->nheads, g = h / group;

		for (int64_t q0 = 0; q0 < T; q0 += TILE) {
			int64_t nq = te__h_min(TILE, T - q0);
			int64_t qat = (b * T + q0) * row + h * d;

			gather(q, a->dtype, a->qkv, qat, row, nq, d);
			gather(dout, a->dtype, a->dout, (b * T + q0) * orow + h * d, orow, nq, d);
			for (int64_t i = 0; i < nq; i++)
				for (int c = 0; c < d; c++)
					dq[i][c] = 0.0f;
			for (int64_t k0 = 0; k0 <= q0; k0 += TILE) {
				int64_t nk = te__h_min(TILE, T - k0);
				int64_t kat = (b * T + k0) * row + (a->nheads + g) * d;

				gather(kr, a->dtype, a->qkv, kat, row, nk, d);
				gather_t(kt, a->dtype, a->qkv, kat, row, nk, d);
				gather_t(vt, a->dtype, a->qkv, kat + (int64_t)a->nkv * d, row, nk,
					 d);
				for (int64_t i = 0; i < nq; i++) {
					int64_t n = te__h_min(nk, q0 + i - k0 + 1);

					softmax_bwd(a, bh, q0 + i, k0, n, q[i], dout[i], kt, vt,
						    pd, ds);
					for (int64_t k = 0; k < n; k++)
						axpy(dq[i], ds[k], kr[k], d);
				}
			}
			for (int64_t i = 0; i < nq; i++) {
				for (int c = 0; c < d; c++)
					dq[i][c] *= a->scale;
				te__h_store(a->dtype, a->dqkv, qat + i * row, d, dq[i]);
			}
		}
	}
}
