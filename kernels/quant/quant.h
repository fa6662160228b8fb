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

/* The copies are [rows, cols]. x ends earlier by a padding, which has codes of 0. */
struct te_k_quantize {
	const void *x; /* T [rows - pad_rows, cols - pad_cols] */
	int64_t rows, cols;
	struct te_k_q q;
	int32_t dtype;
	int16_t pad_rows, pad_cols;
};

/* y = T(float(code) * scale_inv[te_k_scale_index(...)]), without x's padding */
struct te_k_dequantize {
	const void *x; /* [rows, cols] */
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
