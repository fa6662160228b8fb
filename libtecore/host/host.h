/*
 * host.h - what the reference kernels share: rows of T as floats, sums, and the
 * quantized side output.
 *
 * Kernels work on pieces of at most TE__H_CHUNK elements in buffers on the
 * stack, so none allocates and none can fail; and since a piece is read before it
 * is written, elementwise kernels run in place.
 */
#ifndef TE__HOST_H
#define TE__HOST_H

/*
 * Vectorize at -O2 too; neither flag changes a result. Before any inline function,
 * which would not be inlined into functions of other flags.
 */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3", "no-math-errno", "no-trapping-math")
#endif

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <te/dtype.h>
#include "libtecore/backend/backend.h"
#include "libtecore/dtype_inline.h"

#define TE__H_CHUNK 2048 /* a multiple of 8 */

/* for (c = 0; c < n; c += TE__H_CHUNK) with len elements at c */
#define TE__H_CHUNKS(c, len, n)                                                            \
	for (int64_t c = 0, len; c < (n) && (len = te__h_min((n) - c, TE__H_CHUNK), 1);    \
	     c += TE__H_CHUNK)

static inline int64_t te__h_min(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static inline int te__h_noop(const float *noop)
{
	return noop && *noop == 1.0f;
}

/* v[i] = p[off + i] of FP32, BF16 or FP16 */
void te__h_load(int32_t dtype, const void *p, int64_t off, int64_t n, float *v);
/* p[off + i] = T(v[i]), and v[i] gets the rounded value */
void te__h_store(int32_t dtype, void *p, int64_t off, int64_t n, float *v);
/* v[i] = T(v[i]) */
void te__h_round(int32_t dtype, int64_t n, float *v);

/* FP64 sums over FP32, in eight lanes */
double te__h_sum(const float *v, int64_t n);
double te__h_dot(const float *a, const float *b, int64_t n);
/* sum of (v - mean)^2 */
double te__h_sumsq_about(const float *v, double mean, int64_t n);

/* largest |v| but NaN, as bits, or m if that is larger */
uint32_t te__h_amax_bits(const float *v, int64_t n, uint32_t m);
/* *amax = max(*amax, the float of these bits), while others do so too */
void te__h_amax_fold(float *amax, uint32_t bits);

/* the te_k_q of a [rows, cols] result that is made piece by piece */
struct te__h_q {
	const struct te_k_q *q; /* NULL: nothing is wanted */
	int64_t rows, cols;
	uint32_t amax;
};
void te__h_q_begin(struct te__h_q *s, const struct te_k_q *q, int64_t rows, int64_t cols);
/* v: elements c .. c + n - 1 of row r, n <= TE__H_CHUNK */
void te__h_q_put(struct te__h_q *s, const float *v, int64_t r, int64_t c, int64_t n);
void te__h_q_end(struct te__h_q *s);

#endif
