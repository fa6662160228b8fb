/*
 * te_k.h - the arguments of every kernel, for C and CUDA.
 *
 * A launch is (kernel id, struct). The struct is the device kernel's only parameter and the
 * reference function's only argument, so that recording, patching, tracing and fault injection are
 * each implemented once for all kernels. Grid and block are computed from the struct
 * (kernels/FAMILY/launch.c).
 *
 * Common rules
 * - T is the compute dtype: FP32 or BF16 (field dtype, enum te_dtype). Arithmetic is FP32
 *   unless stated otherwise, without contraction into fused multiply-adds where
 *   bits are specified; results are rounded once to T.
 * - "amax" is folded by an atomic maximum on the bits of |x|; NaN elements are ignored.
 * - A kernel that also quantizes first rounds its result to T and quantizes that,
 *   so that a fused kernel gives the same bits as two separate ones.
 * - noop: device word or NULL. If it is 1.0f, the kernel writes nothing; that holds for q.noop of a
 *   fused kernel too.
 * - Matrices are row-major and dense. Pointers are device pointers, aligned to their elements;
 *   alignment to 16 bytes lets a kernel load vectors. Arguments must not overlap unless stated.
 * - Reductions over rows are two launches: partial sums of TE_K_PART_ROWS rows,
 *   each summed in ascending row order, then te_k_part_sum over the partials
 *   in ascending order, so that results do not depend on the grid. A sum starts at +0.
 * - Formulas are FP32, evaluated as written, one rounding per
 *   operation: a + b + c is (a + b) + c. Division and sqrt are IEEE. "mean over" is a sum in
 *   FP64 on the host, in any order and at least FP32 with fixed order on a GPU.
 * - Sign and payload of a NaN result are unspecified.
 */
#ifndef TE_K_H
#define TE_K_H

#ifdef __CUDACC__
#include <cuda/std/cstdint>
typedef unsigned char uint8_t;
using cuda::std::uint16_t;
using cuda::std::int32_t;
using cuda::std::int64_t;
using cuda::std::uint32_t;
using cuda::std::uint64_t;
#else
#include <stdint.h>
#endif

#define TE_K_PART_ROWS 64
#define TE_K_NPARTS(rows) (((rows) + TE_K_PART_ROWS - 1) / TE_K_PART_ROWS)
#define TE_K_ALIGN_WEIGHT 64 /* elements; weights in flat buffers are padded to it */

enum te_k_id {
#define TE_K(ID, name, args, family, ...) TE_K_##ID,
#include "kernels/kernels.def"
#undef TE_K
	TE_K_COUNT
};

/* sets of elements of an FP8 matrix that share a scale; enum te_scaling of te/tensor.h */
enum te_k_scaling {
	TE_K_SCALING_TENSOR = 0,  /* all */
	TE_K_SCALING_1X128 = 1,	  /* 128 consecutive elements of a row of the copy as stored */
	TE_K_SCALING_128X128 = 2, /* a square of 128 rows and 128 columns */
	TE_K_SCALING_1X32 = 3,	  /* 32 consecutive elements of a row; E8M0 */
	TE_K_SCALING_1X16 = 4,	  /* 16 consecutive elements of a row; E4M3 */
	TE_K_SCALING_16X16 = 5,	  /* a square of 16 rows and 16 columns, as 16 1X16 */
};

#define TE_K_BLOCK 128
#define TE_K_BLOCK_MX 32
#define TE_K_BLOCK_NV 16
#define TE_K_MX_TILE (4 * TE_K_BLOCK) /* scales of one byte: 128 rows and 4 blocks of each */
#define TE_K_NV_HEAD 16 /* bytes before the scales of 1X16 and 16X16 */
/* words of the head after the first: te_k_nvfp4_amax() */
#define TE_K_NV_AMAX 1
#define TE_K_NV_AMAX_X 2
#define TE_K_NV_SUM 3

#ifdef __CUDACC__
#define TE_K_INLINE static __host__ __device__ __forceinline__
#else
#define TE_K_INLINE static inline
#endif

/*
 * The scales of a copy stored as [rows, cols] (a column-wise copy: the transpose's extents) are a
 * matrix of FP32 words, as cuBLASLt takes them. TENSOR: one word. 1X128: [cols / 128, rows], a word
 * at (c / 128, r). 128X128: [rows / 128, cols / 128], a word at (r / 128, c / 128). Quotients of
 * extents are rounded up, and the last extent is padded to a multiple of 4: te_k_scale_ld.
 *
 * 1X32: E8M0 bytes, each 2^(byte - 127) or, 255, NaN. Squares of 128 rows and 128 columns, in
 * row-major order, have TE_K_MX_TILE bytes each, as cuBLASLt takes them: the scale of row r and
 * columns from 32 c on, within its square, is at 16 (r % 32) + 4 (r / 32) + c.
 *
 * 1X16, 16X16: an FP32 word, the scale of the whole copy, and the words that a cast computes it
 * from, TE_K_NV_HEAD bytes in all; then E4M3 bytes in the order of 1X32, for 128 rows and 64
 * columns. The scale of an element is the product of the word and the byte, rounded to FP32. The
 * index is in bytes, from the word on.
 */
TE_K_INLINE int64_t te_k_scale_ld(int32_t scaling, int64_t rows, int64_t cols)
{
	const int64_t n = scaling == TE_K_SCALING_1X128 ? rows :
							  (cols + TE_K_BLOCK - 1) / TE_K_BLOCK;

	return scaling == TE_K_SCALING_TENSOR ? 1 : (n + 3) & ~(int64_t)3;
}

/* columns that have one scale, under block scaling */
TE_K_INLINE int64_t te_k_scale_width(int32_t scaling)
{
	return scaling == TE_K_SCALING_1X32 ? TE_K_BLOCK_MX :
	       scaling >= TE_K_SCALING_1X16 ? TE_K_BLOCK_NV :
					      TE_K_BLOCK;
}

/* bytes before scales of one byte, and squares of them in a row of squares */
TE_K_INLINE int64_t te_k_scale_head(int32_t scaling)
{
	return scaling >= TE_K_SCALING_1X16 ? TE_K_NV_HEAD : 0;
}
TE_K_INLINE int64_t te_k_scale_tiles(int32_t scaling, int64_t cols)
{
	const int64_t width = 4 * te_k_scale_width(scaling);

	return (cols + width - 1) / width;
}

/* words of 4 bytes, with the padding */
TE_K_INLINE int64_t te_k_scale_nfloats(int32_t scaling, int64_t rows, int64_t cols)
{
	const int64_t n = scaling == TE_K_SCALING_1X128 ? cols : rows;

	if (scaling == TE_K_SCALING_TENSOR)
		return 1;
	if (te_k_scale_width(scaling) < TE_K_BLOCK)
		return te_k_scale_head(scaling) / 4 +
		       (rows + TE_K_BLOCK - 1) / TE_K_BLOCK *
			       te_k_scale_tiles(scaling, cols) * (TE_K_MX_TILE / 4);
	return (n + TE_K_BLOCK - 1) / TE_K_BLOCK * te_k_scale_ld(scaling, rows, cols);
}

/* index of the scale of element (r, c) of the copy: of a word or, from 1X32 on, of a byte */
TE_K_INLINE int64_t te_k_scale_index(int32_t scaling, int64_t rows, int64_t cols, int64_t r,
				     int64_t c)
{
	const int64_t ld = te_k_scale_ld(scaling, rows, cols);
	const int64_t width = te_k_scale_width(scaling);

	if (width < TE_K_BLOCK)
		return te_k_scale_head(scaling) +
		       (r / TE_K_BLOCK * te_k_scale_tiles(scaling, cols) + c / (4 * width)) *
			       TE_K_MX_TILE +
		       r % 32 * 16 + r % TE_K_BLOCK / 32 * 4 + c % (4 * width) / width;
	if (scaling == TE_K_SCALING_1X128)
		return c / TE_K_BLOCK * ld + r;
	return scaling == TE_K_SCALING_TENSOR ? 0 : r / TE_K_BLOCK * ld + c / TE_K_BLOCK;
}

/*
 * Quantized side output of a [rows, cols] result v (already rounded to T).
 *
 * Scaling TENSOR: row holds codes of v * *scale and col the same codes transposed; *scale_inv
 * receives 1 / *scale when row or col is written.
 *
 * Block scaling: a scale for each block of v, from its own elements, by the formula of
 * te_k_scale_current: a = amax < epsilon ? epsilon : amax; s = fmt_max / a, and FLT_MAX where that
 * is infinite; a zero, infinite or NaN: s = 1; pow2: mantissa bits of s cleared. Codes are those
 * of v * s, and 1 / s is stored at te_k_scale_index() of the copy. Padding words of the scales
 * receive 0. 1X128: a block of row is a row and 128 columns of v, a block of col 128 rows and a
 * column, so that the codes of the two copies differ. 128X128: both copies hold the same codes and
 * scales. scale and amax are not used.
 *
 * 1X32: blocks as of 1X128, with 32 elements. 1 / s is the least power of two, from 2^-127 on, that
 * is not below amax / fmt_max, and 2^127 for an infinite amax; epsilon and pow2 are not used. Its
 * E8M0 byte is stored in the arrays of scales, whose padding receives 0.
 *
 * Producers cast by 1X32 on the host only, and by 1X16 and 16X16 nowhere: te_k_quantize does, and
 * te_k_weights_cast by 1X32 and 16X16.
 */
struct te_k_q {
	void *row;	      /* [rows, cols], or NULL */
	void *col;	      /* [cols, rows], or NULL */
	const float *scale;   /* TENSOR: needed with row or col */
	float *scale_inv;     /* TENSOR: of row and col; else of row, needed with it */
	float *col_scale_inv; /* scale-inverses of col, needed with it; TENSOR: not used */
	float *amax;	      /* TENSOR: folds max |v|, or NULL; also without row and col */
	const float *noop;
	float epsilon;	 /* block scaling only */
	int32_t dtype;	 /* E4M3, E5M2, or E2M1 if the scaling is 1X16 or 16X16 */
	int32_t scaling; /* enum te_k_scaling */
	int32_t pow2;	 /* block scaling only */
};

#include "kernels/act/act.h"
#include "kernels/attn/attn.h"
#include "kernels/comm/comm.h"
#include "kernels/comm/messages.h"
#include "kernels/comm/norm.h"
#include "kernels/elem/elem.h"
#include "kernels/embed/embed.h"
#include "kernels/gemm/gemm.h"
#include "kernels/loss/loss.h"
#include "kernels/norm/norm.h"
#include "kernels/optim/optim.h"
#include "kernels/quant/quant.h"
#include "kernels/reduce/reduce.h"
#include "kernels/rope/rope.h"
#include "kernels/attn/cached.h"
#include "kernels/weights/weights.h"

#endif
