/* norm.h - arguments of LayerNorm and RMSNorm. Included by te_k.h, which has the common rules. */
#ifndef TE_K_NORM_H
#define TE_K_NORM_H

/*
 * LayerNorm (beta, mean not NULL) or RMSNorm (both NULL) over the last extent:
 * y = (x - mean) * rstd * gamma + beta, rstd = 1/sqrt(var + eps), var biased (RMS: mean of
 * squares). gain is gamma, or 1 + gamma when zero_centered. Both statistics in FP64, rounded once;
 * var is the mean over (x - mean)^2, before mean is rounded. xhat = (x - mean) * rstd.
 */
struct te_k_norm_fwd {
	const void *x;	    /* T [rows, cols] */
	const float *gamma; /* [cols] */
	const float *beta;
	void *y;	    /* T, or NULL if only q is wanted; may be x */
	float *mean, *rstd; /* [rows] */
	int64_t rows, cols;
	struct te_k_q q;
	float eps;
	int32_t zero_centered;
	int32_t dtype;
	int32_t pad;
};

/*
 * dx of the norm, plus dres if not NULL (the gradient of the residual branch):
 * g = dy * gain, a = mean over g, b = mean over g * xhat, each rounded to FP32;
 * dx = rstd * (g - a - xhat * b) + dres; RMSNorm: without a. q is of dx, without block scaling on a
 * device.
 */
struct te_k_norm_bwd {
	const void *dy, *x; /* T */
	const float *gamma;
	const float *mean, *rstd; /* mean NULL: RMSNorm */
	const void *dres;	  /* T or NULL */
	void *dx;		  /* T; may be dy or dres, if nothing is written to q */
	int64_t rows, cols;
	int32_t zero_centered;
	int32_t dtype;
	struct te_k_q q;
};

/*
 * te_k_norm_bwd and te_k_norm_dw at once, of up to TE_K_NORM_BOTH_COLS columns; dx may be dy or
 * dres. part_dx: partial sums of dx, which is rounded to T first; or NULL. A device computes it and
 * q where TE_K_NORM_BOTH_CASTS.
 */
struct te_k_norm_both {
	const void *dy, *x; /* T */
	const float *gamma;
	const float *mean, *rstd;
	const void *dres;
	void *dx;
	float *part_gamma;
	float *part_beta;
	int64_t rows, cols;
	int32_t zero_centered;
	int32_t dtype;
	float *part_dx;
	struct te_k_q q;
};
#define TE_K_NORM_BOTH_COLS(dtype) ((dtype) == TE_DTYPE_BF16 ? 8192 : 4096)

/* extents that a device casts and sums, if everything is aligned to vectors */
#define TE_K_NORM_BOTH_CASTS(dtype, rows, cols) \
	((dtype) == TE_DTYPE_BF16 && (cols) <= 4096 && (cols) % 8 == 0 && (rows) % 16 == 0)
#define TE_K_NORM_BOTH_CAST_NBYTES 232192 /* shared memory of a block, at most */

/* partial sums of dy * xhat and, with part_beta, of dy: [TE_K_NPARTS(rows), cols] each */
struct te_k_norm_dw {
	const void *dy, *x; /* T */
	const float *mean, *rstd;
	float *part_gamma;
	float *part_beta; /* NULL: RMSNorm */
	int64_t rows, cols;
	int32_t dtype;
	int32_t pad;
};

/*
 * RMSNorm of the queries and the keys among packed heads: a row of x is nq groups of qcols
 * elements, then nk groups of kcols, then nk groups of kcols values, which are copied. y of a group
 * is as in te_k_norm_fwd, with gamma_q or gamma_k. rstd [rows, nq + nk]. y may be x, and dx dy.
 */
struct te_k_qk_norm_fwd {
	const void *x; /* T */
	const float *gamma_q; /* [qcols] */
	const float *gamma_k; /* [kcols] */
	void *y;
	float *rstd;
	int64_t rows, qcols, kcols;
	int32_t nq, nk;
	float eps;
	int32_t zero_centered;
	int32_t dtype;
	int32_t pad;
};

/* dx of a group as in te_k_norm_bwd */
struct te_k_qk_norm_bwd {
	const void *dy, *x; /* T */
	const float *gamma_q;
	const float *gamma_k;
	const float *rstd;
	void *dx;
	int64_t rows, qcols, kcols;
	int32_t nq, nk;
	int32_t zero_centered;
	int32_t dtype;
};

/* partial sums of dy * xhat over the groups of a row in ascending order, then over rows:
 * [TE_K_NPARTS(rows), qcols] and [TE_K_NPARTS(rows), kcols] */
struct te_k_qk_norm_dw {
	const void *dy, *x; /* T */
	const float *rstd;
	float *part_q;
	float *part_k;
	int64_t rows, qcols, kcols;
	int32_t nq, nk;
	int32_t dtype;
	int32_t pad;
};
#define TE_K_QK_COLS(a) ((a)->nq * (a)->qcols + 2 * (a)->nk * (a)->kcols)

#endif
