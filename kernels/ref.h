/*
 * ref.h - shared by the reference kernels: conversion between T and float, sums, and the quantized
 * side output.
 *
 * Kernels process chunks of at most TE__H_CHUNK elements in buffers on the stack, so that they
 * neither allocate nor fail. A chunk is read before it is written, so that elementwise kernels run
 * in place.
 */
#ifndef TE__HOST_H
#define TE__HOST_H

/*
 * Vectorize at -O2 too; none of these flags changes a result. This precedes all inline functions,
 * which would not be inlined into functions with other flags.
 */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3", "no-math-errno", "no-trapping-math")
#endif

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <te/dtype.h>
#include "kernels/kernels.h"
#include "libtecore/base/dtype_inline.h"

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

/* the scale of elements of this amax (te_k_scale_current) */
float te__h_scale(float amax, float fmt_max, float epsilon, int pow2);

/* bits of the largest |v|, NaN ignored, or m if that is larger */
uint32_t te__h_amax_bits(const float *v, int64_t n, uint32_t m);
/* *amax = max(*amax, the float with these bits), atomically */
void te__h_amax_fold(float *amax, uint32_t bits);

/*
 * The te_k_q of a [rows, cols] result that is computed in chunks, in the order that the scaling
 * requires: row by row, or in tiles of 128 rows and 128 columns, each of them row by row.
 */
struct te__h_q {
	const struct te_k_q *q; /* NULL: nothing is wanted */
	int64_t rows, cols;
	int64_t r, c; /* the next chunk */
	uint32_t amax;
	int32_t scaling;
	float tile[TE_K_BLOCK][TE_K_BLOCK];
};
void te__h_q_begin(struct te__h_q *s, const struct te_k_q *q, int64_t rows, int64_t cols);
/* 1 and the next chunk, n <= TE__H_CHUNK elements from column c of row r; 0 at the end */
int te__h_q_next(struct te__h_q *s, int64_t *ret_r, int64_t *ret_c, int64_t *ret_n);
/* v: the elements of that chunk */
void te__h_q_put(struct te__h_q *s, const float *v, int64_t r, int64_t c, int64_t n);
void te__h_q_end(struct te__h_q *s);

#endif
