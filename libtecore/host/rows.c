/* rows.c - rows of T to floats and back, FP64 sums, and the quantized side output. */
#include "config.h"

#include "libtecore/host/host.h"

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
	int32_t most = (int32_t)m; /* signed: SSE2 compares only those */

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
	s->amax = 0;
}

void te__h_q_put(struct te__h_q *s, const float *v, int64_t r, int64_t c, int64_t n)
{
	const struct te_k_q *q = s->q;
	uint8_t code[TE__H_CHUNK];

	if (!q)
		return;
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
	if (!s->q)
		return;
	if (s->q->row || s->q->col)
		*s->q->scale_inv = 1.0f / *s->q->scale;
	if (s->q->amax)
		te__h_amax_fold(s->q->amax, s->amax);
}
