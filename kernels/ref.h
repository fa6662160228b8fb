/*
 * ref.h - shared by the reference kernels: conversion between T and float, sums, and the quantized
 * side output.
 *
 * Kernels process chunks of at most TE__H_CHUNK elements in buffers on the stack, and take larger
 * buffers from te__k_take() (team.h), so that they neither allocate nor fail. A chunk is read
 * before it is written, so that elementwise kernels run in place.
 */
#ifndef TE__HOST_H
#define TE__HOST_H

#include "kernels/simd.h" /* before inline functions */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <te/dtype.h>
#include "kernels/kernels.h"
#include "libtecore/base/dtype_inline.h"

#define TE__H_CHUNK 1024 /* a multiple of 8 */
/* a row is summed by spans, each with te__h_sum() or a similar function */
#define TE__H_SPAN 2048

/* for (c = 0; c < n; c += TE__H_CHUNK) with len elements at c; the same of spans */
#define TE__H_CHUNKS(c, len, n) TE__H_EACH(c, len, n, TE__H_CHUNK)
#define TE__H_SPANS(c, len, n) TE__H_EACH(c, len, n, TE__H_SPAN)
#define TE__H_EACH(c, len, n, most)                                                     \
	for (int64_t c = 0, len; c < (n) && (len = te__h_min((n) - c, (most)), 1); c += (most))

static inline int64_t te__h_min(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static inline int te__h_noop(const float *noop)
{
	return noop && *noop == 1.0f;
}

/* v[i] = p[off + i] of FP32, BF16 or FP16, or of TE_K_DTYPE_SPLIT */
void te__h_load(int32_t dtype, const void *p, int64_t off, int64_t n, float *v);
/* te__h_load() for reading: in place if p is FP32, else in buf */
static inline const float *te__h_view(int32_t dtype, const void *p, int64_t off, int64_t n,
				      float *buf)
{
	if (dtype == TE_DTYPE_FP32)
		return (const float *)p + off;
	te__h_load(dtype, p, off, n, buf);
	return buf;
}

/* p[off + i] = T(v[i]), and v[i] gets the rounded value */
void te__h_store(int32_t dtype, void *p, int64_t off, int64_t n, float *v);
/* v[i] = T(v[i]) */
void te__h_round(int32_t dtype, int64_t n, float *v);

/* E4M3 or E5M2: code[i] of v[i] * scale, and back; back from E2M1 too */
void te__h_encode(int32_t dtype, const float *v, float scale, int64_t n, uint8_t *code);
void te__h_decode(int32_t dtype, const uint8_t *code, float scale, int64_t n, float *v);

/* v[i] *= by[i], v[i] *= by, v[i] += by[i] */
void te__h_multiply(float *v, const float *by, int64_t n);
void te__h_scale_by(float *v, float by, int64_t n);
void te__h_add_to(float *v, const float *by, int64_t n);
/* add to n elements of p, FP32 or BF16, from off on, which are rounded to nearest even */
void te__h_add_at(int32_t dtype, void *p, int64_t off, int64_t n, const float *by);
/* v[i] = e^(v[i] - most) */
void te__h_exp(float *v, float most, int64_t n);

/* FP64 sums over FP32, in 16 lanes: lane i of elements i, i + 16, ... */
double te__h_sum(const float *v, int64_t n);
double te__h_dot(const float *a, const float *b, int64_t n);
/* sum of (v - mean)^2 */
double te__h_sumsq_about(const float *v, double mean, int64_t n);
/* the largest v[i], NaN ignored, or m if that is larger */
float te__h_max(const float *v, int64_t n, float m);

/* the scale of elements of this amax (te_k_scale_current) */
float te__h_scale(float amax, float fmt_max, float epsilon, int pow2);
/* the scale of a 1X32 block whose amax has these bits; dtype: E4M3 or E5M2 */
float te__h_scale_mx(uint32_t bits, int32_t dtype);

/* scale-inverse number at, a te_k_scale_index(), of an array of scales with block scaling */
static inline float te__h_scale_get(const void *scales, int32_t scaling, int64_t at)
{
	uint32_t e;

	if (scaling < TE_K_SCALING_1X32)
		return ((const float *)scales)[at];
	if (scaling != TE_K_SCALING_1X32)
		return te__e4m3_decode(((const uint8_t *)scales)[at]) * *(const float *)scales;
	e = ((const uint8_t *)scales)[at];
	/* 2^-127 is subnormal */
	return te__f32_from_bits(e == 255 ? 0x7fc00000u : e ? e << 23 : 0x00400000u);
}
static inline void te__h_scale_put(void *scales, int32_t scaling, int64_t at, float inv)
{
	if (scaling == TE_K_SCALING_1X32)
		((uint8_t *)scales)[at] = (uint8_t)(te__f32_bits(inv) >> 23);
	else
		((float *)scales)[at] = inv;
}

/* bits of the largest |v|, NaN ignored, or m if that is larger */
uint32_t te__h_amax_bits(const float *v, int64_t n, uint32_t m);
/* *amax = max(*amax, the float with these bits), atomically */
void te__h_amax_fold(float *amax, uint32_t bits);

/* Rows that are worth a part of their own (te__k_for), a multiple of height. */
int64_t te__h_rows_grain(int64_t cols, int64_t height);
#define TE__H_GRAIN (64 * TE__H_CHUNK) /* elements of such a part */

/*
 * The te_k_q of a [rows, cols] result that fn computes in chunks, on the threads of a team: v gets
 * n <= TE__H_CHUNK elements from column c of row r, rounded to T. Calls for a row ascend by column
 * on one thread. So do calls for the TE_K_PART_ROWS rows of a partial sum by row, at each column.
 */
typedef void te__h_chunk_fn(const void *a, int64_t r, int64_t c, int64_t n, float *v);
void te__h_q_run(const struct te_k_q *q, int64_t rows, int64_t cols, te__h_chunk_fn *fn,
		 const void *a);
/* the x of a te_k_quantize, with its padding: a te__h_chunk_fn */
void te__h_quantize_chunk(const void *a, int64_t r, int64_t c, int64_t n, float *v);
/* te_k_quantize to E2M1 */
void te__h_quantize_nvfp4(const struct te_k_quantize *a);
/* te_k_quantize, to E2M1 with the launches before it */
void te__h_quantize_alone(const struct te_k_quantize *a);

#endif
