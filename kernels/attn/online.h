/*
 * online.h - softmax over tiles of keys, for MR rows at a time: each tile rescales the results of
 * the previous ones (Milakov and Gimelshein, arXiv 1805.02867). attn.c and cached.c give a query
 * the same bits because both use it with tiles that begin at multiples of TILE.
 */
#ifndef TE_ATTN_ONLINE_H
#define TE_ATTN_ONLINE_H

#include "kernels/exp.h"
#include "kernels/micro.h"
#include "kernels/ref.h"

#define TILE 64 /* keys, and in attn.c queries */
#define MR TE__H_MR
#define NR TE__H_NR
#define LANES 16

/* vectors for any instruction set; comparisons are of vec4, which GCC 12 splits for none */
typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef float vec8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef float vec4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t ivec4 __attribute__((vector_size(16)));

/* the state of MR queries */
struct online {
	float m[MR];  /* the largest score */
	double l[MR]; /* the sum of e^(score - m) */
};

/* x or, where it is larger, y */
#define MASKED(mask, x) ((mask) & (ivec4)(x))
#define MAX(x, y) ((vec4)(MASKED((y) > (x), y) | MASKED(~((y) > (x)), x)))
/* fold four numbers */
#define LARGER(x, y) ((y) > (x) ? (y) : (x))
#define ADD(x, y) ((x) + (y))
#define FOLD(one, x) one(one((x)[0], (x)[2]), one((x)[1], (x)[3]))

/* the end of the keys of MR queries, in chunks of LANES */
TE__SIMD_BODY int32_t round_up_keys(const int32_t *n)
{
	int32_t most = 0;

	for (int r = 0; r < MR; r++)
		most = n[r] > most ? n[r] : most;
	return (most + LANES - 1) / LANES * LANES;
}

/*
 * Scores v [MR, TILE], before scaling, become probabilities relative to the new maxima. Row r has
 * n[r] keys, at most TILE. acc [MR, dp] and the sums are rescaled.
 */
TE__SIMD_BODY void soften_body(float *restrict v, const int32_t *n, float scale, struct online *o,
			       float *restrict acc, int64_t dp)
{
	const int32_t end = round_up_keys(n);
	float m[MR], shrink[MR];

	for (int r = 0; r < MR; r++) {
		float *x = TE__H_ALIGNED_TO(v + r * TILE);
		vec4 most = o->m[r] + (vec4){ 0 };

		for (int32_t k = 0; k < end; k++)
			x[k] *= scale;
		for (int32_t k = n[r]; k < end; k++)
			x[k] = -INFINITY;
		for (int32_t k = 0; k < end; k += 4)
			most = MAX(most, *(vec4 *)(x + k));
		m[r] = FOLD(LARGER, most);
	}
	for (int r = 0; r < MR; r++) {
		/* equal also if both are -inf, whose difference is NaN */
		shrink[r] = o->m[r] == m[r] ? 0.0f : o->m[r] - m[r];
		o->m[r] = m[r];
	}
	te__h_exp(shrink, 0.0f, MR);
	for (int r = 0; r < MR; r++) {
		float *x = TE__H_ALIGNED_TO(v + r * TILE), *y = TE__H_ALIGNED_TO(acc + r * dp);
		const float most = m[r] == -INFINITY ? 0.0f : m[r];
		TE__H_ALIGNED float lanes[LANES] = { 0 };

		for (int32_t k = 0; k < end; k++)
			x[k] = te__expf(x[k] - most);
		for (int32_t k = n[r]; k < end; k++)
			x[k] = 0.0f;
		for (int32_t k = 0; k < end; k += LANES)
			*(vec *)lanes += *(vec *)(x + k);
		*(vec8 *)lanes += *(vec8 *)(lanes + 8);
		*(vec4 *)lanes += *(vec4 *)(lanes + 4);
		o->l[r] = o->l[r] * (double)shrink[r] + (double)FOLD(ADD, lanes);
		for (int64_t c = 0; c < dp; c++)
			y[c] *= shrink[r];
	}
}
static TE__SIMD(void, soften,
		(float *v, const int32_t *n, float scale, struct online *o, float *acc,
		 int64_t dp),
		(v, n, scale, o, acc, dp))

/*
 * v [MR, TILE], of which n columns are used, are scores before scaling: each becomes
 * c tanh(scale v / c). tanh(u) is 1 - 2 / (1 + e^2u), with an absolute error of 4 units.
 */
TE__SIMD_BODY void cap_scores_body(float *v, int64_t n, float scale, float c)
{
	const float f = 2.0f * (scale / c);

	for (int r = 0; r < MR; r++) {
		float *x = TE__H_ALIGNED_TO(v + r * TILE);

		for (int64_t k = 0; k < n; k++)
			x[k] = c * (1.0f - 2.0f / (1.0f + te__expf(f * x[k])));
	}
}
static TE__SIMD(void, cap_scores, (float *v, int64_t n, float scale, float c), (v, n, scale, c))

/* x [n] = f x + bias - slope |k - at|; bias: or NULL */
TE__SIMD_BODY void add_bias_body(float *restrict x, int32_t n, float f, const float *restrict bias,
				 float slope, int32_t at)
{
	for (int32_t k = 0; k < n; k++)
		x[k] *= f;
	for (int32_t k = 0; k < n && bias; k++)
		x[k] += bias[k];
	for (int32_t k = 0; k < n && slope != 0.0f; k++)
		x[k] -= slope * (float)(k < at ? at - k : k - at);
}
static TE__SIMD(void, add_bias,
		(float *x, int32_t n, float f, const float *bias, float slope, int32_t at),
		(x, n, f, bias, slope, at))

/* keys lo[r] to hi[r] - 1 of a tile, for MR queries r; none: both 0 */
struct span {
	const int32_t *lo, *hi;
};

/* the scores of keys before a query's first one; with soften() their probabilities are 0 */
static inline void hide_keys(float *v, struct span w)
{
	for (int r = 0; r < MR; r++)
		for (int32_t k = 0; k < w.lo[r]; k++)
			v[r * TILE + k] = -INFINITY;
}

/* bit r of mask[k]: query r has key k */
static inline void mask_keys(uint8_t *mask, struct span w)
{
	memset(mask, 0, TILE);
	for (int r = 0; r < MR; r++)
		for (int32_t k = w.lo[r]; k < w.hi[r]; k++)
			mask[k] |= (uint8_t)(1 << r);
}

/*
 * acc [m of MR, dp] += a [m, TILE] y [TILE, dp], only the terms t of row r where bit r of mask[t]
 * is set. Terms ascend, so that a row's bits do not depend on other rows' masks.
 */
static inline void add_masked(float *acc, int64_t m, struct te__h_rows a, const float *y,
			      const uint8_t *mask, int64_t dp)
{
	int64_t end;

	for (int64_t t = 0; t < TILE; t = end) {
		const int all = mask[t] == (1 << MR) - 1;
		const struct te__h_rows at = { a.p + t * a.cs, a.rs, a.cs };

		for (end = t + 1; end < TILE && mask[end] == mask[t]; end++)
			;
		for (int64_t c = 0; c < dp && all; c += NR)
			te__h_micro(m, end - t, at, y + t * dp + c, dp, acc + c, dp, 1);
		for (int64_t r = 0; r < te__h_min(m, MR) && !all; r++)
			for (int64_t c = 0; c < dp && mask[t] >> r & 1; c += NR)
				te__h_micro(1, end - t,
					    (struct te__h_rows){ at.p + r * a.rs, a.rs, a.cs },
					    y + t * dp + c, dp, acc + r * dp + c, dp, 1);
	}
}

#endif
