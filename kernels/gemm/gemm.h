/* gemm.h - arguments of matrix multiplication. Included by te_k.h, which has the common rules. */
#ifndef TE_K_GEMM_H
#define TE_K_GEMM_H

/*
 * d[M,N] = alpha * *sa * *sb * op(a) op(b)^T + beta * c + bias[n]. a [M,K] or, a_t, [K,M]; b
 * [N,K] or, b_t, [K,N]. Dense. FP8 operands are always K-major here (te_gemm picks the copy). sa,
 * sb: NULL means 1. FP8 operands may have rows after those that d needs, up to a multiple of 16;
 * k includes padding whose codes are 0.
 *
 * Block scaling (asc, bsc): both operands are codes and block-scaled, at most one of them 128X128,
 * both or none 1X32, both or none E2M1, by 1X16 or 16X16. sa and sb are the scales of the copies a
 * and b with all their rows (te_k_scale_index). The host multiplies each code by its scale, rounds
 * that to FP32, and then multiplies the matrices. A device sums 128 terms of unscaled codes first
 * and multiplies the sum by both scales: with scales that are powers of two, the two differ by the
 * order of additions only.
 *
 * From 1X32 on a device multiplies codes by the scales of their blocks to BF16, which holds these
 * from 2^-126 on, and multiplies the matrices; the words of E2M1 multiply the sums. With 1X32 the
 * two differ by the order of additions only; with E2M1 also by four roundings of a term of the host
 * and two of a device, 2^-24 each.
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
	int32_t fixed;		/* 1: no kernel writes b, or gamma, that may still run */
	int32_t pad;
};

/*
 * A product of few rows with what is before and after it, each step rounded to T:
 *
 *	gamma	a is RMSNorm of g.a, T [M,K], as by te_k_norm_fwd without beta
 *	E4M3	(g.adtype) a is cast by blocks of 1X128, as by te_k_quantize
 *	g	the product, with its bias and c
 *	act	an activation, as by te_k_act_fwd; gated: d [M,N / 2]
 *
 * T is BF16. ws is memory for values in between on the host, and not used on a device.
 */
enum te_k_few_rows_act { TE_K_FEW_ROWS_LINEAR, TE_K_FEW_ROWS_SILU, TE_K_FEW_ROWS_GELU };
struct te_k_few_rows {
	struct te_k_gemm g; /* a is T [M,K], without scales; FP8: b is 128X128 */
	const float *gamma; /* [K], or NULL */
	void *ws;	    /* te_k_few_rows_ws() bytes, aligned to 256 */
	float eps;
	float epsilon; /* FP8 */
	int32_t pow2, zero_centered;
	int32_t act; /* enum te_k_few_rows_act */
	int32_t gated;
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

/*
 * A GEMM for each of several groups of rows. Group g has the rows offsets[g] to offsets[g + 1] - 1:
 *
 *	m-grouped: d[r,N] = alpha * sa * sb * a[r,K] b[g]^T + beta * d[r,N] for its rows r of
 *		a [M,K] and d [M,N]; b [groups,N,K] or, b_t, [groups,K,N], whose copy in FP8 is
 *		[N,groups * K]
 *	by_k: d[g] = alpha * sa * sb * sums over its rows of a[r,M]^T b[r,N] + beta * d[g];
 *		a [K,M], b [K,N], in FP8 their copies [M,K] and [N,K]; d [groups,M,N]
 *
 * *status: 0; or 1 + the first i for which offsets[i] is negative, less than offsets[i - 1] or
 * more than the rows, and then nothing else is written. Rows outside of all groups are not
 * computed.
 */
struct te_k_gemm_grouped {
	const void *a, *b;
	void *d;
	const float *sa, *sb; /* one word or, a_each, b_each, one for each group; NULL: 1 */
	const int32_t *offsets; /* [groups + 1] */
	int32_t *status;
	int64_t m, n, k, groups;
	float alpha, beta;
	int32_t by_k, b_t, a_each, b_each;
	int32_t adtype, bdtype, ddtype;
};

/* offsets in ws of values in between, and its bytes */
enum { TE_K_FEW_ROWS_NORMED, TE_K_FEW_ROWS_RSTD, TE_K_FEW_ROWS_CODES, TE_K_FEW_ROWS_SCALES,
       TE_K_FEW_ROWS_Y, TE_K_FEW_ROWS_END };
TE_K_INLINE int64_t te_k_few_rows_at(const struct te_k_few_rows *a, int part)
{
	const int64_t nbytes[] = {
		2 * a->g.m * a->g.k, 4 * a->g.m, a->g.m * a->g.k,
		4 * te_k_scale_nfloats(TE_K_SCALING_1X128, a->g.m, a->g.k), 2 * a->g.m * a->g.n,
	};
	int64_t at = 0;

	for (int i = 0; i < part; i++)
		at += (nbytes[i] + 255) / 256 * 256;
	return at;
}

/* rows of the operands */
TE_K_INLINE int64_t te_k_gemm_a_rows(const struct te_k_gemm *g)
{
	return g->a_rows ? g->a_rows : g->m;
}
TE_K_INLINE int64_t te_k_gemm_b_rows(const struct te_k_gemm *g)
{
	return g->b_rows ? g->b_rows : g->n;
}

/* rows that the offsets divide */
TE_K_INLINE int64_t te_k_gemm_grouped_rows(const struct te_k_gemm_grouped *g)
{
	return g->by_k ? g->k : g->m;
}

/* are the rows before offsets[i] a group's? */
TE_K_INLINE int te_k_gemm_grouped_ok(const struct te_k_gemm_grouped *g, int64_t i)
{
	return g->offsets[i] >= (i ? g->offsets[i - 1] : 0) &&
	       g->offsets[i] <= te_k_gemm_grouped_rows(g);
}

#endif
