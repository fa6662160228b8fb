/* gemm.h - arguments of matrix multiplication. Included by te_k.h, which has the common rules. */
#ifndef TE_K_GEMM_H
#define TE_K_GEMM_H

/*
 * d[M,N] = alpha * *sa * *sb * op(a) op(b)^T + beta * c + bias[n]. a [M,K] or, a_t, [K,M]; b
 * [N,K] or, b_t, [K,N]. Dense. FP8 operands are always K-major here (te_gemm picks the copy). sa,
 * sb: NULL means 1. FP8 operands may have rows after those that d needs, up to a multiple of 16;
 * k includes padding whose codes are 0.
 *
 * Block scaling (asc, bsc): both operands are FP8 and block-scaled, at most one of them 128X128,
 * both or none 1X32. sa and sb are the scales of the copies a and b with all their rows
 * (te_k_scale_index). The host multiplies each code by its scale, rounds that to FP32, and then
 * multiplies the matrices. A device sums 128 terms of unscaled codes first and multiplies the sum
 * by both scales: with scales that are powers of two, the two differ by the order of additions
 * only.
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
	int64_t a_rows, b_rows; /* FP8: rows of a and b; 0: m and n */
};

/*
 * d[M,N] = T(sums + beta * c + bias), each operation rounded: the end of a GEMM whose FP32 sums
 * have longer rows than d. c may be d.
 */
struct te_k_gemm_finish {
	const float *sums; /* [M, ld] */
	const void *c;
	void *d;
	const void *bias; /* or NULL */
	int64_t m, n, ld;
	float beta; /* 0: c is not read */
	int32_t dtype; /* FP32 or BF16: c, d, bias */
};

/* rows of the operands */
TE_K_INLINE int64_t te_k_gemm_a_rows(const struct te_k_gemm *g)
{
	return g->a_rows ? g->a_rows : g->m;
}
TE_K_INLINE int64_t te_k_gemm_b_rows(const struct te_k_gemm *g)
{
	return g->b_rows ? g->b_rows : g->n;
}

#endif
