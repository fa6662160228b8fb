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
 * FP8 needs K and the rows of B in multiples of 16, and with block scaling the rows of A, which
 * cuBLASLt requires and the host too, so that plans agree. M and N may be smaller than the rows of
 * A and B by up to 15: te_quantize writes operands with such padding, and zeros after K.
 * Numerics: sums over K are FP32, in an order that depends on the provider; two providers agree
 * within the bound that t/ops/gemm_cases.c derives. On a GPU the choice between the library's
 * kernels and cuBLASLt depends on shapes and types, with TE_GEMM_PROVIDER=sm90 also on alignment.
 * cuBLASLt uses the tensor cores' fast accumulation for E4M3 by E4M3 with one scale each, and full
 * accumulation if an operand is E5M2 or has block scaling, which needs cuBLASLt 12.9. D is rounded
 * once; but with a bias cuBLASLt may also round a BF16 D before each of the additions (seen with K
 * 51, and from FP8).
 * Stream: asynchronous, captures. The first cuBLASLt GEMM of a shape tries TE_GEMM_TUNE algorithms,
 * also during a capture.
 * Thread: one stream by one thread at a time.  Since: 0.1
 * Errors: -EINVAL, -TE_ESHAPE, -TE_EDTYPE, -TE_EBLAS (cuBLASLt is absent, too old or failed; the
 * detail reports which).
 */
TE_EXPORT int te_gemm(struct te_stream *stream, const struct te_tensor *a,
		      const struct te_tensor *b, struct te_tensor *d,
		      const struct te_gemm_opts *opts);

TE_END_DECLS

#endif
