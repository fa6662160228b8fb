/*
 * elem.h - arguments of the elementwise kernels. Included by te_k.h, which has the common rules.
 */
#ifndef TE_K_ELEM_H
#define TE_K_ELEM_H

/* y = T(x + bias); may be in place */
struct te_k_bias_fwd {
	const void *x, *bias; /* T [rows, cols], T [cols] */
	void *y;
	int64_t rows, cols;
	int32_t dtype;
	int32_t pad;
};

/* y = T(a + b); y may be a or b */
struct te_k_add {
	const void *a, *b;
	void *y;
	int64_t n;
	int32_t dtype;
	int32_t pad;
};

/* y = T(x * factor); y may be x */
struct te_k_scaled {
	const void *x;
	void *y;
	int64_t n;
	float factor;
	int32_t dtype;
};

/*
 * y = kept ? T(x * 65536/(65536-threshold)) : 0; the mask is a function of (seed, offset, tag,
 * number), see philox.h. Backward is the same launch on dy. In place allowed. The factor is
 * one FP32 division; threshold < 65536. The number of element i is i; where x is a part of a larger
 * tensor, of which it has runs of elements, it is first + i / run * stride + i % run.
 */
struct te_k_dropout {
	const void *x;
	void *y;
	const uint64_t *seed, *offset;
	int64_t n;
	uint32_t threshold; /* round(p * 65536) */
	uint32_t tag;
	int32_t dtype;
	int32_t pad;
	int64_t run, stride, first; /* multiples of 8; run 0: not a part */
};

/* number of the group of 8 elements in the larger tensor */
TE_K_INLINE uint64_t te_k_dropout_group(const struct te_k_dropout *a, uint64_t group)
{
	const uint64_t run = (uint64_t)a->run / 8;

	return !run ? group : ((uint64_t)a->first + group / run * (uint64_t)a->stride) / 8 +
			      group % run;
}

/* y [cols, rows] = the transpose of x; with scale_inv, *y_scale_inv = *scale_inv */
struct te_k_transpose {
	const void *x; /* [rows, cols] */
	void *y;
	const float *scale_inv; /* both or neither */
	float *y_scale_inv;
	const float *noop;
	int64_t rows, cols;
	int32_t elem; /* bytes of an element: 1, 2 or 4 */
	int32_t pad;
};

/* used = next + index; next += advance */
struct te_k_rng_next {
	uint64_t *next, *used;
	uint64_t index, advance;
};

#endif
