/* te/gemm.h - matrix products with FP8, BF16 or FP32 operands and FP32 accumulation. */
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
	/* [M, N] in D's dtype; NULL with beta != 0 means D itself */
	const struct te_tensor *c;
};
#define TE_GEMM_OPTS_INIT { sizeof(struct te_gemm_opts), 0, 1.0f, 0.0f, 0, 0 }

/**
 * te_gemm - D = alpha * A * B^T + beta * C + bias
 *
 * Shapes: A [M,K], B [N,K], both K-major (a linear layer's x and w); flags say
 * where one is stored the other way. Leading extents are folded into rows.
 * FP8 operands (E4M3 or E5M2, not both E5M2) are read from the copy that is K-major:
 * row-wise without the flag, column-wise with it; -EINVAL when the tensor lacks
 * it. Their scale_inv multiply alpha on the device.
 * Types: A, B both FP8, both BF16 or both FP32; D BF16 or FP32 (FP32 only from FP32).
 * FP8 needs every extent divisible by 16 (cuBLASLt's rule, kept on host so that plans agree).
 * Numerics: products are summed in FP32; the order is the provider's, so two
 * providers agree within the bound derived in t/core/gemm_cases.c. On a GPU, by shapes and types
 * alone, a kernel of ours or cuBLASLt. That sums E4M3 by E4M3 with the tensor cores' fast
 * accumulation; an E5M2 operand is a gradient's and gets the full one. D is rounded once; but
 * with a bias cuBLASLt may round a BF16 D before each of the additions too (seen with K 51, and
 * from FP8).
 * Stream: asynchronous, captures. cuBLASLt's first product of a shape takes the time to
 * try TE_GEMM_TUNE algorithms, also inside a capture.
 * Errors: -EINVAL, -TE_ESHAPE, -TE_EDTYPE, -TE_EBLAS (cuBLASLt absent or failed; the detail says
 * which).
 */
TE_EXPORT int te_gemm(struct te_stream *stream, const struct te_tensor *a,
		      const struct te_tensor *b, struct te_tensor *d,
		      const struct te_gemm_opts *opts);

TE_END_DECLS

#endif
