/* te/gemm.h - matrix multiplication of FP8, BF16 or FP32 operands with FP32 accumulation. */
#ifndef TE_GEMM_H
#define TE_GEMM_H

#include <stddef.h>
#include <stdint.h>
#include <te/export.h>
#include <te/tensor.h>

TE_BEGIN_DECLS

#define TE_GEMM_A_T 1u /* A is stored [K, M] */
#define TE_GEMM_B_T 2u /* B is stored [K, N] */

struct te_gemm_opts {
	size_t size;
	uint32_t flags;			 /* TE_GEMM_* */
	float alpha;			 /* 1 by default */
	float beta;			 /* 0: C is not read */
	const struct te_tensor *bias;	 /* [N] in D's dtype (FP32 D: FP32), or NULL */
	/* C, [M, N] in D's dtype; NULL with beta != 0 means D itself */
	const struct te_tensor *c;
};
#define TE_GEMM_OPTS_INIT { sizeof(struct te_gemm_opts), 0, 1.0f, 0.0f, 0, 0 }

/**
 * te_gemm - D = alpha * A * B^T + beta * C + bias
 * @stream:    work is queued on it
 * @a, @b, @d: the operands and the result
 * @opts:      NULL for the defaults
 *
 * Shapes: A [M,K], B [N,K], D [M,N], row-major: x, w and y of a linear layer. With TE_GEMM_A_T A
 * is stored [K,M], with TE_GEMM_B_T B is stored [K,N]. All extents but the last count as rows.
 * FP8 operands (E4M3 or E5M2, not both E5M2) are read from the K-major copy: row-wise without the
 * flag, column-wise with it; -EINVAL if the tensor lacks that copy. Their scale-inverses are
 * multiplied on the device. Either both operands have block scaling or neither has, and at most one
 * has TE_SCALING_128X128.
 * Types: A and B both FP8, both BF16 or both FP32; D BF16 or FP32, and FP32 if A and B are.
 * FP8 needs K and the rows of B in multiples of 16; block scaling also the rows of A. cuBLASLt
 * requires this, and the host does too, so that plans agree. M and N may be smaller than the rows
 * of A and B by up to 15: te_quantize writes operands with such padding, and zeros after K.
 * Numerics: sums over K are FP32, in an order that depends on the provider; two providers agree
 * within the bound that t/ops/gemm_cases.c derives. On a GPU the choice between the library's
 * kernels and cuBLASLt depends on shapes and types, with TE_GEMM_PROVIDER=sm90 also on alignment.
 * Without cuBLASLt the library computes GEMMs of BF16, and of FP8 with one scale each.
 * cuBLASLt uses the tensor cores' fast accumulation for E4M3 by E4M3 with one scale each, and full
 * accumulation if an operand is E5M2 or has block scaling, which needs cuBLASLt 12.9. On GPUs other
 * than 9.0 a kernel of the library computes block scaling. D is rounded once, with two exceptions:
 * cuBLASLt also rounds a BF16 D before it adds beta * C (at all of 12 shapes), and may do so before
 * it adds a bias (seen with K 51, and from FP8). With TE_GEMM_PROVIDER=sm90 the sum with C is
 * rounded once.
 * Stream: asynchronous, captures. The first cuBLASLt GEMM of a shape tries TE_GEMM_TUNE algorithms,
 * also during a capture.
 * Thread: one stream by one thread at a time.  Since: 0.1
 * Errors: -EINVAL, -TE_ESHAPE, -TE_EDTYPE, -TE_EBLAS (cuBLASLt is needed and absent, too old, or
 * failed; the detail reports which).
 */
TE_EXPORT int te_gemm(struct te_stream *stream, const struct te_tensor *a,
		      const struct te_tensor *b, struct te_tensor *d,
		      const struct te_gemm_opts *opts);

#define TE_GEMM_BY_K 4u /* te_gemm_grouped: groups divide K */

struct te_gemm_grouped_opts {
	size_t size;
	uint32_t flags; /* TE_GEMM_B_T or TE_GEMM_BY_K */
	float alpha;	/* 1 by default */
	float beta;	/* 0: D is not read; otherwise beta D is added */
	/* FP8: FP32 [groups] in place of the operand's own scale-inverse, or NULL */
	const struct te_tensor *a_scale_inv, *b_scale_inv;
};
#define TE_GEMM_GROUPED_OPTS_INIT { sizeof(struct te_gemm_grouped_opts), 0, 1.0f, 0.0f, 0, 0 }

/**
 * te_gemm_grouped - a GEMM for each of several groups of rows, with their bounds in device memory
 * @stream:  work is queued on it
 * @a, @b:   the operands
 * @offsets: INT32 [groups + 1]; group g has the rows offsets[g] to offsets[g + 1] - 1
 * @d:       the result
 * @status:  INT32 [1]: 0; or 1 + the first i for which offsets[i] is negative, less than
 *	     offsets[i - 1] or more than the number of rows, and then D is not written
 * @opts:    NULL for the defaults
 *
 * Shapes: A [M,K], B [groups,N,K], D [M,N]: for the rows r of group g, D[r] = alpha A[r] B[g]^T +
 * beta D[r], a layer with one weight a group. With TE_GEMM_B_T B is [groups,K,N]: its gradient to
 * the input. With TE_GEMM_BY_K A is [K,M], B [K,N] and D [groups,M,N]: D[g] = alpha * the sum of
 * A[r]^T B[r] over the rows r of group g + beta D[g], the gradient of the weights; beta D[g] if
 * group g has no rows. Rows outside of all groups are not added and, in D, not written. FP8
 * operands are read from the row-wise copy, with TE_GEMM_BY_K and for B with TE_GEMM_B_T from the
 * column-wise copy, and have one scale per tensor or, with opts, one per group.
 * Types: as te_gemm(), without block scaling. FP8 needs N and K in multiples of 16.
 * Numerics: as te_gemm(). A GPU computes it by a kernel that is not fast.
 * Stream: asynchronous, captures. Offsets are read when the work runs, in each replay.
 * Thread: one stream by one thread at a time.  Since: 0.1
 * Errors: -EINVAL, -TE_ESHAPE, -TE_EDTYPE, -TE_EBLAS (as te_gemm).
 */
TE_EXPORT int te_gemm_grouped(struct te_stream *stream, const struct te_tensor *a,
			      const struct te_tensor *b, const struct te_tensor *offsets,
			      struct te_tensor *d, struct te_tensor *status,
			      const struct te_gemm_grouped_opts *opts);

TE_END_DECLS

#endif
