/* ref.c - shared by the reference kernels, see ref.h. */
#include "config.h"

#include "kernels/ref.h"

void te__h_load(int32_t dtype, const void *p, int64_t off, int64_t n, float *restrict v)
{
	const uint16_t *h = (const uint16_t *)p + off;

	switch (dtype) {
	case TE_DTYPE_BF16:
		for (int64_t i = 0; i < n; i++)
			v[i] = te__bf16_decode(h[i]);
		break;
	case TE_DTYPE_FP16:
		for (int64_t i = 0; i < n; i++)
			v[i] = te__fp16_decode(h[i]);
		break;
	default:
		memcpy(v, (const float *)p + off, (size_t)n * sizeof(*v));
	}
}

void te__h_store(int32_t dtype, void *p, int64_t off, int64_t n, float *restrict v)
{
	uint16_t *h = (uint16_t *)p + off;

	switch (dtype) {
	case TE_DTYPE_BF16:
		for (int64_t i = 0; i < n; i++) {
			h[i] = te__bf16_encode(v[i]);
			v[i] = te__bf16_decode(h[i]);
		}
		break;
	case TE_DTYPE_FP16:
		for (int64_t i = 0; i < n; i++) {
			h[i] = te__fp16_encode(v[i]);
			v[i] = te__fp16_decode(h[i]);
		}
		break;
	default:
		memcpy((float *)p + off, v, (size_t)n * sizeof(*v));
	}
}

void te__h_round(int32_t dtype, int64_t n, float *v)
{
	switch (dtype) {
	case TE_DTYPE_BF16:
		for (int64_t i = 0; i < n; i++)
			v[i] = te__bf16_decode(te__bf16_encode(v[i]));
		break;
	case TE_DTYPE_FP16:
		for (int64_t i = 0; i < n; i++)
			v[i] = te__fp16_decode(te__fp16_encode(v[i]));
		break;
	}
}

#define LANES 8

static double lanes_sum(const double *acc)
{
	return ((acc[0] + acc[1]) + (acc[2] + acc[3])) + ((acc[4] + acc[5]) + (acc[6] + acc[7]));
}

/* EXPR is the term of element i */
#define SUM_BODY(EXPR)                                     \
	double acc[LANES] = { 0 };                         \
	int64_t i0 = 0;                                    \
                                                           \
	for (; i0 + LANES <= n; i0 += LANES)               \
		for (int k = 0; k < LANES; k++) {          \
			const int64_t i = i0 + k;          \
			acc[k] += (EXPR);                  \
		}                                          \
	for (int64_t i = i0; i < n; i++)                   \
		acc[i - i0] += (EXPR);                     \
	return lanes_sum(acc)

double te__h_sum(const float *v, int64_t n)
{
	SUM_BODY((double)v[i]);
}

double te__h_dot(const float *a, const float *b, int64_t n)
{
	SUM_BODY((double)a[i] * (double)b[i]);
}

double te__h_sumsq_about(const float *v, double mean, int64_t n)
{
	SUM_BODY(((double)v[i] - mean) * ((double)v[i] - mean));
}

uint32_t te__h_amax_bits(const float *v, int64_t n, uint32_t m)
{
	int32_t most = (int32_t)m; /* signed, because SSE2 has no unsigned comparison */

	for (int64_t i = 0; i < n; i++) {
		int32_t a = (int32_t)(te__f32_bits(v[i]) & 0x7fffffffu);

		a = a > (int32_t)TE__F32_INF ? 0 : a;
		most = a > most ? a : most;
	}
	return (uint32_t)most;
}

void te__h_amax_fold(float *amax, uint32_t bits)
{
	uint32_t *word = (uint32_t *)(void *)amax;
	uint32_t old = __atomic_load_n(word, __ATOMIC_RELAXED);

	while (old < bits && !__atomic_compare_exchange_n(word, &old, bits, 1, __ATOMIC_RELAXED,
							  __ATOMIC_RELAXED))
		;
}

void te__h_q_begin(struct te__h_q *s, const struct te_k_q *q, int64_t rows, int64_t cols)
{
	s->q = q->row || q->col || q->amax ? q : NULL;
	s->rows = rows;
	s->cols = cols;
	s->r = s->c = 0;
	s->amax = 0;
	s->scaling = s->q ? q->scaling : TE_K_SCALING_TENSOR;
	if (s->scaling == TE_K_SCALING_TENSOR)
		return;
	/* padding stays 0 */
	if (q->row)
		memset(q->scale_inv, 0,
		       (size_t)te_k_scale_nfloats(q->scaling, rows, cols) * sizeof(float));
	if (q->col)
		memset(q->col_scale_inv, 0,
		       (size_t)te_k_scale_nfloats(q->scaling, cols, rows) * sizeof(float));
}

int te__h_q_next(struct te__h_q *s, int64_t *ret_r, int64_t *ret_c, int64_t *ret_n)
{
	const int64_t height = s->scaling ? TE_K_BLOCK : 1;
	const int64_t width = s->scaling ? TE_K_BLOCK : TE__H_CHUNK;
	const int64_t r0 = s->r / height * height;

	if (s->r >= s->rows)
		return 0;
	*ret_r = s->r;
	*ret_c = s->c;
	*ret_n = te__h_min(s->cols - s->c, width);
	/* next row of the tile, else next tile of these rows, else first tile of the next rows */
	if (++s->r < te__h_min(s->rows, r0 + height))
		return 1;
	s->r = r0;
	s->c += width;
	if (s->c >= s->cols) {
		s->r += height;
		s->c = 0;
	}
	return 1;
}

static uint8_t encode(int32_t dtype, float x)
{
	return dtype == TE_DTYPE_E4M3 ? te__e4m3_encode(x) : te__e5m2_encode(x);
}

/* the scales of the first nr rows and nc columns of the tile */
static void tile_scales(const struct te__h_q *s, int64_t nr, int64_t nc, float *row, float *col)
{
	const float fmt_max = s->q->dtype == TE_DTYPE_E4M3 ? 448.0f : 57344.0f;
	uint32_t row_bits[TE_K_BLOCK] = { 0 }, col_bits[TE_K_BLOCK] = { 0 }, all = 0;

	for (int64_t i = 0; i < nr; i++) {
		row_bits[i] = te__h_amax_bits(s->tile[i], nc, 0);
		all = row_bits[i] > all ? row_bits[i] : all;
		for (int64_t j = 0; j < nc; j++) {
			uint32_t a = te__f32_bits(s->tile[i][j]) & 0x7fffffffu;

			a = a > TE__F32_INF ? 0 : a; /* NaN */
			col_bits[j] = a > col_bits[j] ? a : col_bits[j];
		}
	}
	for (int64_t i = 0; i < TE_K_BLOCK; i++) {
		const int each = s->scaling == TE_K_SCALING_1X128;

		row[i] = te__h_scale(te__f32_from_bits(each ? row_bits[i] : all), fmt_max,
				     s->q->epsilon, s->q->pow2);
		col[i] = te__h_scale(te__f32_from_bits(each ? col_bits[i] : all), fmt_max,
				     s->q->epsilon, s->q->pow2);
	}
}

/* the copies of nr rows and nc columns at (r0, c0) */
static void tile_put(const struct te__h_q *s, int64_t r0, int64_t c0, int64_t nr, int64_t nc)
{
	const struct te_k_q *q = s->q;
	float row[TE_K_BLOCK], col[TE_K_BLOCK];
	uint8_t *to;

	tile_scales(s, nr, nc, row, col);
	for (int64_t i = 0; i < nr && q->row; i++) {
		to = (uint8_t *)q->row + (r0 + i) * s->cols + c0;
		for (int64_t j = 0; j < nc; j++)
			to[j] = encode(q->dtype, s->tile[i][j] * row[i]);
		q->scale_inv[te_k_scale_index(s->scaling, s->rows, s->cols, r0 + i, c0)] =
			1.0f / row[i];
	}
	for (int64_t j = 0; j < nc && q->col; j++) {
		to = (uint8_t *)q->col + (c0 + j) * s->rows + r0;
		for (int64_t i = 0; i < nr; i++)
			to[i] = encode(q->dtype, s->tile[i][j] * col[j]);
		q->col_scale_inv[te_k_scale_index(s->scaling, s->cols, s->rows, c0 + j, r0)] =
			1.0f / col[j];
	}
}

void te__h_q_put(struct te__h_q *s, const float *v, int64_t r, int64_t c, int64_t n)
{
	const struct te_k_q *q = s->q;
	uint8_t code[TE__H_CHUNK];

	if (!q)
		return;
	if (s->scaling != TE_K_SCALING_TENSOR) {
		const int64_t r0 = r / TE_K_BLOCK * TE_K_BLOCK;

		memcpy(s->tile[r - r0], v, (size_t)n * sizeof(*v));
		if (r + 1 == te__h_min(s->rows, r0 + TE_K_BLOCK))
			tile_put(s, r0, c, r + 1 - r0, n);
		return;
	}
	if (q->amax)
		s->amax = te__h_amax_bits(v, n, s->amax);
	if (!q->row && !q->col)
		return;
	if (q->dtype == TE_DTYPE_E4M3) {
		const float scale = *q->scale;

		for (int64_t i = 0; i < n; i++)
			code[i] = te__e4m3_encode(v[i] * scale);
	} else {
		const float scale = *q->scale;

		for (int64_t i = 0; i < n; i++)
			code[i] = te__e5m2_encode(v[i] * scale);
	}
	if (q->row)
		memcpy((uint8_t *)q->row + r * s->cols + c, code, (size_t)n);
	if (q->col) {
		uint8_t *col = (uint8_t *)q->col + c * s->rows + r;

		for (int64_t i = 0; i < n; i++)
			col[i * s->rows] = code[i];
	}
}

void te__h_q_end(struct te__h_q *s)
{
	if (!s->q || s->scaling != TE_K_SCALING_TENSOR)
		return;
	if (s->q->row || s->q->col)
		*s->q->scale_inv = 1.0f / *s->q->scale;
	if (s->q->amax)
		te__h_amax_fold(s->q->amax, s->amax);
}
