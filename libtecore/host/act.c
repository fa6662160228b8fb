/* act.c - reference kernels: activation functions, plain and gated. */
#include "config.h"

#include "libtecore/host/host.h"

#include <te/op.h>

static inline float sig(float x)
{
	return 1.0f / (1.0f + expf(-x));
}

/* the tanh form: 0.5 (1 + tanh(u)) is sig(2u), which loses no bits below 0 */
static inline float gelu_s(float x)
{
	return sig(1.5957691f * (x + 0.044715f * x * x * x));
}

static inline float relu(float x)
{
	return x <= 0.0f ? 0.0f : x;
}

static inline float gelu_d(float x)
{
	const float s = gelu_s(x), w = s * (1.0f - s);

	/* where x * x may be infinite */
	if (w == 0.0f)
		return s;
	return s + x * w * (1.5957691f * (1.0f + 0.134145f * x * x));
}

static inline float qgelu_d(float x)
{
	const float s = sig(1.702f * x);

	return s + 1.702f * x * s * (1.0f - s);
}

static inline float silu_d(float x)
{
	const float s = sig(x);

	return s + x * s * (1.0f - s);
}

#define EACH(EXPR)                            \
	for (int64_t i = 0; i < n; i++) {     \
		const float x = v[i];         \
		v[i] = (EXPR);                \
	}                                     \
	break

/* v = act(v) */
static void act(int32_t kind, float *v, int64_t n)
{
	switch (kind) {
	case TE_ACT_GELU:
		EACH(x * gelu_s(x));
	case TE_ACT_QGELU:
		EACH(x * sig(1.702f * x));
	case TE_ACT_RELU:
		EACH(relu(x));
	case TE_ACT_SRELU:
		EACH(relu(x) * relu(x));
	case TE_ACT_SILU:
		EACH(x * sig(x));
	case TE_ACT_SIGMOID:
		EACH(sig(x));
	}
}

/* v = act'(v) */
static void act_d(int32_t kind, float *v, int64_t n)
{
	switch (kind) {
	case TE_ACT_GELU:
		EACH(gelu_d(x));
	case TE_ACT_QGELU:
		EACH(qgelu_d(x));
	case TE_ACT_RELU:
		EACH(x <= 0.0f ? 0.0f : 1.0f);
	case TE_ACT_SRELU:
		EACH(2.0f * relu(x));
	case TE_ACT_SILU:
		EACH(silu_d(x));
	case TE_ACT_SIGMOID:
		EACH(sig(x) * (1.0f - sig(x)));
	}
}

static void multiply(float *v, const float *by, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		v[i] *= by[i];
}

void te__h_act_fwd(const struct te_k_act_fwd *a)
{
	const int64_t xcols = a->gated ? 2 * a->cols : a->cols;
	float x[TE__H_CHUNK], gate[TE__H_CHUNK];
	struct te__h_q q;

	if (te__h_noop(a->q.noop))
		return;
	te__h_q_begin(&q, &a->q, a->rows, a->cols);
	for (int64_t r = 0; r < a->rows; r++)
		TE__H_CHUNKS(c, len, a->cols) {
			te__h_load(a->dtype, a->x, r * xcols + c, len, x);
			act(a->act, x, len);
			if (a->gated) {
				te__h_load(a->dtype, a->x, r * xcols + a->cols + c, len, gate);
				multiply(x, gate, len);
			}
			if (a->y)
				te__h_store(a->dtype, a->y, r * a->cols + c, len, x);
			else
				te__h_round(a->dtype, len, x);
			te__h_q_put(&q, x, r, c, len);
		}
	te__h_q_end(&q);
}

/* a piece of dx at column c of row r: rounded, stored, summed, quantized */
static void put_dx(const struct te_k_act_bwd *a, struct te__h_q *q, int64_t r, int64_t c,
		   int64_t n, float *v)
{
	const int64_t xcols = q->cols;

	if (a->dx)
		te__h_store(a->dtype, a->dx, r * xcols + c, n, v);
	else
		te__h_round(a->dtype, n, v);
	if (a->part) {
		float *part = a->part + r / TE_K_PART_ROWS * xcols + c;

		for (int64_t i = 0; i < n; i++)
			part[i] += v[i];
	}
	te__h_q_put(q, v, r, c, n);
}

void te__h_act_bwd(const struct te_k_act_bwd *a)
{
	const int64_t xcols = a->gated ? 2 * a->cols : a->cols;
	float x[TE__H_CHUNK], dy[TE__H_CHUNK], gate[TE__H_CHUNK], d[TE__H_CHUNK];
	struct te__h_q q;

	if (te__h_noop(a->q.noop))
		return;
	te__h_q_begin(&q, &a->q, a->rows, xcols);
	if (a->part)
		memset(a->part, 0, (size_t)(TE_K_NPARTS(a->rows) * xcols) * sizeof(*a->part));
	for (int64_t r = 0; r < a->rows; r++)
		TE__H_CHUNKS(c, len, a->cols) {
			te__h_load(a->dtype, a->x, r * xcols + c, len, x);
			te__h_load(a->dtype, a->dy, r * a->cols + c, len, dy);
			memcpy(d, x, (size_t)len * sizeof(*d));
			act_d(a->act, d, len);
			if (!a->gated) {
				multiply(d, dy, len);
				put_dx(a, &q, r, c, len, d);
				continue;
			}
			te__h_load(a->dtype, a->x, r * xcols + a->cols + c, len, gate);
			multiply(gate, dy, len);
			multiply(gate, d, len);
			put_dx(a, &q, r, c, len, gate);
			act(a->act, x, len);
			multiply(dy, x, len);
			put_dx(a, &q, r, a->cols + c, len, dy);
		}
	te__h_q_end(&q);
}
