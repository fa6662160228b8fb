/* act.c - reference kernels: activation functions, plain and gated. */
#include "config.h"

#include "kernels/exp.h"
#include "kernels/ref.h"

#include <te/op.h>

static inline float sig(float x)
{
	return 1.0f / (1.0f + te__expf(-x));
}

/* the tanh approximation; 0.5 (1 + tanh(u)) is sig(2u), without cancellation below 0 */
static inline float gelu_s(float x)
{
	return sig(1.5957691f * (x + 0.044715f * x * x * x));
}

static inline float relu(float x)
{
	return x <= 0.0f ? 0.0f : x;
}

/* x s, and its limit if s is 0, where x may be infinite; a finite x gives the same bits */
static inline float times_s(float x, float s)
{
	return s == 0.0f ? -0.0f : x * s;
}

/*
 * Derivatives: if w is 0, the slope is s, which is 0 or 1. The terms multiplied by w may be
 * infinite there.
 */
static inline float gelu_d(float x)
{
	const float s = gelu_s(x), w = s * (1.0f - s);
	const float d = s + x * w * (1.5957691f * (1.0f + 0.134145f * x * x));

	return w == 0.0f ? s : d;
}

static inline float qgelu_d(float x)
{
	const float s = sig(1.702f * x), w = s * (1.0f - s);
	const float d = s + 1.702f * x * s * (1.0f - s);

	return w == 0.0f ? s : d;
}

static inline float silu_d(float x)
{
	const float s = sig(x), w = s * (1.0f - s);
	const float d = s + x * s * (1.0f - s);

	return w == 0.0f ? s : d;
}

/*
 * Distribution function of -a, a at least 0; e: exp(-a^2/2). It is e t q(t), t = 1/(1 + 0.26 a),
 * with the q of degree 8 whose largest relative error for a up to 14.5 is smallest: 0.95 U with
 * these coefficients, U = 2^-24. The roundings of t and q add 6 U, and of a^2/2 its value times U.
 */
static inline float normal_tail(float a, float e)
{
	const float t = 1.0f / (1.0f + 0x1.0a3d70p-2f * a);
	float q = 0x1.ef4c3ep-6f;

	q = q * t - 0x1.364364p-3f;
	q = q * t + 0x1.fd692ap-3f;
	q = q * t - 0x1.2ead96p-3f;
	q = q * t + 0x1.452438p-3f;
	q = q * t + 0x1.a9b0b6p-5f;
	q = q * t + 0x1.a505e8p-4f;
	q = q * t + 0x1.a618c0p-4f;
	q = q * t + 0x1.a8fd1ep-4f;
	return e * (t * q);
}

static inline float normal_s(float x)
{
	const float a = x < 0.0f ? -x : x, s = normal_tail(a, te__expf(-0.5f * a * a));

	return x < 0.0f ? s : 1.0f - s;
}

static inline float gelu_erf_d(float x)
{
	const float a = x < 0.0f ? -x : x, e = te__expf(-0.5f * a * a), t = normal_tail(a, e);
	const float s = x < 0.0f ? t : 1.0f - t, d = s + x * (0.39894228f * e);

	return e == 0.0f ? s : d;
}

/*
 * 2 sig(2x) - 1, which cancels near 0: below 0.5 it is x (1 + x^2 q(x^2)), with the q of degree 3
 * whose largest relative error is smallest: 0.24 U.
 */
static inline float tanh_x(float x)
{
	const float z = x * x, s = 2.0f * sig(2.0f * x) - 1.0f;
	float q = 0x1.1abc24p-6f;

	q = q * z - 0x1.b29beep-5f;
	q = q * z + 0x1.10ea8cp-3f;
	q = q * z - 0x1.5554dap-2f;
	return x > -0.5f && x < 0.5f ? x * (1.0f + z * q) : s;
}

static inline float tanh_d(float x)
{
	const float s = sig(2.0f * x);

	return 4.0f * s * (1.0f - s);
}

#define EACH(EXPR)                        \
	for (int64_t i = 0; i < n; i++) { \
		const float x = from[i];  \
		y[i] = (EXPR);            \
	}                                 \
	break

/* y = act(from) by; by: NULL for 1 */
TE__SIMD_BODY void act_body(int32_t kind, float *restrict y, const float *from, const float *by,
			    int64_t n)
{
	switch (kind) {
	case TE_ACT_GELU:
		EACH(times_s(x, gelu_s(x)));
	case TE_ACT_QGELU:
		EACH(times_s(x, sig(1.702f * x)));
	case TE_ACT_RELU:
		EACH(relu(x));
	case TE_ACT_SRELU:
		EACH(relu(x) * relu(x));
	case TE_ACT_SILU:
		EACH(times_s(x, sig(x)));
	case TE_ACT_SIGMOID:
		EACH(sig(x));
	case TE_ACT_GELU_ERF:
		EACH(times_s(x, normal_s(x)));
	case TE_ACT_TANH:
		EACH(tanh_x(x));
	}
	/* not in the loops above: a masked load through a null pointer takes 118 ns on an EPYC */
	for (int64_t i = 0; by && i < n; i++)
		y[i] *= by[i];
}
static TE__SIMD(void, act,
		(int32_t kind, float *y, const float *from, const float *by, int64_t n),
		(kind, y, from, by, n))

/* y = act'(from) by, which is not NULL */
TE__SIMD_BODY void act_d_body(int32_t kind, float *restrict y, const float *from, const float *by,
			      int64_t n)
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
	case TE_ACT_GELU_ERF:
		EACH(gelu_erf_d(x));
	case TE_ACT_TANH:
		EACH(tanh_d(x));
	}
	for (int64_t i = 0; i < n; i++)
		y[i] *= by[i];
}
static TE__SIMD(void, act_d,
		(int32_t kind, float *y, const float *from, const float *by, int64_t n),
		(kind, y, from, by, n))

static void fwd_chunk(const void *arg, int64_t r, int64_t c, int64_t n, float *v)
{
	const struct te_k_act_fwd *a = arg;
	const int64_t xcols = a->gated ? 2 * a->cols : a->cols;
	const int64_t at = r * xcols + c;
	float x[TE__H_CHUNK], gate[TE__H_CHUNK];

	act(a->act, v, te__h_view(a->dtype, a->x, at, n, x),
	    a->gated ? te__h_view(a->dtype, a->x, at + a->cols, n, gate) : NULL, n);
	if (a->y)
		te__h_store(a->dtype, a->y, r * a->cols + c, n, v);
	else
		te__h_round(a->dtype, n, v);
}

void te__h_act_fwd(const struct te_k_act_fwd *a)
{
	if (!te__h_noop(a->q.noop))
		te__h_q_run(&a->q, a->rows, a->cols, fwd_chunk, a);
}

/* dx of n elements from column c of row r, all of them in one half of a gated row */
static void load_dx(const struct te_k_act_bwd *a, int64_t r, int64_t c, int64_t n, float *dx)
{
	const int64_t xcols = a->gated ? 2 * a->cols : a->cols;
	const int second = c >= a->cols;
	const int64_t k = second ? c - a->cols : c;
	const int64_t at = r * xcols + k;
	float xbuf[TE__H_CHUNK], dybuf[TE__H_CHUNK], gate[TE__H_CHUNK];
	const float *x = te__h_view(a->dtype, a->x, at, n, xbuf);
	const float *dy = te__h_view(a->dtype, a->dy, r * a->cols + k, n, dybuf);

	if (second) {
		act(a->act, dx, x, dy, n);
		return;
	}
	if (a->gated) {
		if (dy != dybuf)
			memcpy(dybuf, dy, (size_t)n * sizeof(*dy));
		te__h_multiply(dybuf, te__h_view(a->dtype, a->x, at + a->cols, n, gate), n);
		dy = dybuf;
	}
	act_d(a->act, dx, x, dy, n);
}

/* dx of a chunk, rounded, stored and added to its partial sum */
static void bwd_chunk(const void *arg, int64_t r, int64_t c, int64_t n, float *v)
{
	const struct te_k_act_bwd *a = arg;
	const int64_t xcols = a->gated ? 2 * a->cols : a->cols;
	/* it may extend from the first half of a gated row into the second */
	const int64_t first = c < a->cols ? te__h_min(n, a->cols - c) : 0;

	if (first)
		load_dx(a, r, c, first, v);
	if (first < n)
		load_dx(a, r, c + first, n - first, v + first);
	if (a->dx)
		te__h_store(a->dtype, a->dx, r * xcols + c, n, v);
	else
		te__h_round(a->dtype, n, v);
	if (a->part) {
		float *part = a->part + r / TE_K_PART_ROWS * xcols + c;

		if (r % TE_K_PART_ROWS == 0)
			memset(part, 0, (size_t)n * sizeof(*part));
		te__h_add_to(part, v, n);
	}
}

void te__h_act_bwd(const struct te_k_act_bwd *a)
{
	if (!te__h_noop(a->q.noop))
		te__h_q_run(&a->q, a->rows, a->gated ? 2 * a->cols : a->cols, bwd_chunk, a);
}
