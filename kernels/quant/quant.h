/*
 * quant.h - arguments of amax, scales, FP8 casts and casts between floating-point types. Included
 * by te_k.h, which has the common rules.
 */
#ifndef TE_K_QUANT_H
#define TE_K_QUANT_H

/* *word = 0 */
struct te_k_clear {
	float *word;
	const float *noop;
};

/* write value n times: its lowest byte if elem is 1, all four bytes if elem is 4 */
struct te_k_fill {
	void *dst; /* aligned to elem */
	int64_t n;
	uint32_t value;
	int32_t elem;
};

/* amax of n elements */
struct te_k_amax {
	const void *x;
	int64_t n;
	float *amax; /* folded into; te_k_clear clears it first */
	const float *noop;
	int32_t dtype;
	int32_t pad;
};

/*
 * Current recipe: *scale from *amax. a = *amax < epsilon ? epsilon : *amax; s = fmt_max / a, and
 * FLT_MAX if that is infinite; a zero, infinite or NaN: s = 1; pow2: mantissa bits of s cleared
 */
struct te_k_scale_current {
	const float *amax;
	float *scale;
	const float *noop;
	float fmt_max;
	float epsilon;
	int32_t pow2;
	int32_t pad;
};

/*
 * Delayed recipe: slots first .. first+count-1 of packed state. For a slot with history h[L]:
 * h[0] == 0: nothing changes. Else a = most_recent ? h[0] : fmaxf over h; then h'[i] = h[i+1] for
 * 1 <= i < L-1, h'[L-1] = h[0], h'[0] = 0; then unless a is 0, infinite or NaN scale =
 * (fmt_max * margin_factor) / a, and FLT_MAX where that is infinite
 */
struct te_k_scale_delayed {
	float *history;	      /* [nslots, history_len] */
	float *scale;	      /* [nslots] */
	const float *fmt_max; /* [nslots] */
	int32_t first, count;
	int32_t history_len;
	int32_t most_recent; /* 1: newest amax, 0: maximum of the window */
	float margin_factor; /* 2^-margin, exact */
	int32_t pad;
};

/*
 * The copies are [rows, cols]. x ends earlier by a padding, which has codes of 0.
 *
 * NVFP4: codes of E2M1, the first of two in the lower half of a byte; cols, and with q.col rows
 * too, are multiples of 16. A block is 16 elements of a row of the copy, scaling 1X16, or a square
 * of 16 rows and columns of x, 16X16, whose copies have the same codes and scales. With 1X16 the
 * column-wise copy is cast from t and not x: column c of rows 16 g .. 16 g + 15 of t is R times
 * this column of x, R[i][j] = (-1)^popcount(i & j) s[j] / 4, with the signs s of TE_K_RHT_SIGNS. It
 * is computed from s[j] x[j] by butterflies of distances 1, 2, 4 and 8, (a, b) to (a + b, a - b),
 * and a multiplication by 1/4, each operation rounded. R is orthogonal: a^T b is t_a^T t_b.
 *
 * A cast is three launches with this struct. nvfp4_begin sets the words TE_K_NV_AMAX to TE_K_NV_SUM
 * of each copy's scales to 0, nvfp4_amax folds the bits of the amax of the copy and of x into the
 * first two, and with stochastic adds up the bits of x in the third. quantize reads them.
 *
 * Scales, for each copy: S is the scale of te_k_scale_current for the amax of all its elements and
 * a fmt_max of 448 * 6; its word is T = 1 / S. A block with amax b has the byte e = E4M3(b / 6 *
 * S), or 0x7f, NaN, if an element is NaN. Its codes are E2M1(v * f) with f = min(1 / (float(e) *
 * T), FLT_MAX), or 0 if e is 0 or NaN. Operations are FP32, rounded one by one.
 *
 * E2M1 rounds to nearest, ties to even, saturates at 6, and makes a NaN 0. With stochastic, for
 * 1X16 only, z = |v * f|, at most 6, is rounded away from 0 if u + floor(2^16 (z - lo) / (hi - lo))
 * is 2^16 or more, where lo and hi are the neighbours of z among the values, and u 16 bits of
 * te_philox: element i of the copy takes lane i % 8 of group i / 8, te_philox(seed, group, group >>
 * 32, col, 0), col 1 for the column-wise copy. The seed has the bits of x's amax and, in the upper
 * half, the sum of the FP32 bits of all elements of x: the numbers depend on x only, so that a cast
 * that is repeated has the same codes.
 */
struct te_k_quantize {
	const void *x; /* T [rows - pad_rows, cols - pad_cols] */
	int64_t rows, cols;
	struct te_k_q q;
	int32_t dtype;
	int16_t pad_rows, pad_cols;
	int32_t stochastic; /* NVFP4 */
	int32_t pad;
};

#define TE_K_RHT_SIGNS 0xd7e8u /* bit j: s[j] is -1; the signs of Transformer Engine 2.19 */

/* y = T(float(code) * scale_inv[te_k_scale_index(...)]), without x's padding */
struct te_k_dequantize {
	const void *x; /* [rows, cols], E4M3, E5M2 or E2M1 */
	void *y;       /* [rows - pad_rows, cols - pad_cols] */
	const float *scale_inv;
	int64_t rows, cols;
	int32_t xdtype, ydtype;
	int32_t scaling; /* enum te_k_scaling */
	int16_t pad_rows, pad_cols;
};

/* between FP32, BF16, FP16 */
struct te_k_cast {
	const void *x;
	void *y;
	int64_t n;
	int32_t xdtype, ydtype;
	const float *noop;
};

#endif
