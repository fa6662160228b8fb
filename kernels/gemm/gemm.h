/* gemm.h - arguments of matrix multiplication. Included by te_k.h, which has the common rules. */
#ifndef TE_K_GEMM_H
#define TE_K_GEMM_H

/*
 * d[M,N] = alpha * *sa * *sb * op(a) op(b)^T + beta * c + bias[n]. a [M,K] or, a_t, [K,M]; b
 * [N,K] or, b_t, [K,N]. Dense. FP8 operands are always K-major here (te_gemm picks the copy). sa,
 * sb: NULL means 1.
 *
 * Block scaling (asc, bsc): both operands are FP8 and block-scaled, at most one of them 128X128. sa
 * and sb are the scales of the copies a [M,K] and b [N,K] (te_k_scale_index). The host multiplies
 * each code by its scale, rounds that to FP32, and then multiplies the matrices. A device sums
 * 128 terms of unscaled codes first and multiplies the sum by both scales: with scales that are
 * powers of two, the two differ by the order of additions only.
 */
struct te_k_gemm {
	const void *a, *b, *c;
	void *d; /* may be c */
	const void *bias;
	const float *sa, *sb;
	int64_t m, n, k;
	float alpha, beta;
	int32_t a_t, b_t;
	int32_t adtype, bdtype, cdtype, ddtype; /* c, d and bias have one type */
	int32_t asc, bsc;			/* enum te_k_scaling */
};

#endif
