/*
 * decode.cuh - what mx.cu and any.cu share: values of FP8 codes, and sums over k of operands that
 * become BF16 on their way to shared memory.
 */
#ifndef TE_GEMM_DECODE_CUH
#define TE_GEMM_DECODE_CUH

#include "kernels/gemm/tile.cuh"

#define STEP (STEP_NBYTES / 2) /* elements of k */

#if __CUDA_ARCH__ < 890
DEV float fp8_value(uint32_t c, bool e5m2)
{
	const uint32_t sign = (c & 0x80) << 24, a = c & 0x7f;

	if (a >= (e5m2 ? 0x7c : 0x7f))
		return __uint_as_float(a == 0x7c ? sign | TE__F32_INF : TE__F32_NAN);
	return mul(__uint_as_float(sign | a << (e5m2 ? 21 : 20)), e5m2 ? 0x1p112f : 0x1p120f);
}
#endif

/* the values of the lower two of some codes */
DEV float2 fp8x2_values(uint32_t c, bool e5m2)
{
#if __CUDA_ARCH__ < 890
	return make_float2(fp8_value(c, e5m2), fp8_value(c >> 8, e5m2));
#else
	fp16 lo, hi;

	if (e5m2)
		asm("{ .reg .b32 t; cvt.rn.f16x2.e5m2x2 t, %2; mov.b32 {%0, %1}, t; }"
		    : "=h"(lo.bits), "=h"(hi.bits) : "h"((unsigned short)c));
	else
		asm("{ .reg .b32 t; cvt.rn.f16x2.e4m3x2 t, %2; mov.b32 {%0, %1}, t; }"
		    : "=h"(lo.bits), "=h"(hi.bits) : "h"((unsigned short)c));
	return make_float2(to_float(lo), to_float(hi));
#endif
}

/*
 * sum += a b, whose rows x and y of type O a thread decodes. It loads an O::elements of a step
 * while it multiplies the step before, and then stores them to the other of two stages.
 */
template <class O>
DEV void multiply_decoded(const O &x, const O &y, const gemm_tile &t, gemm_sums &sum)
{
	extern __shared__ uint4 stages[]; /* two steps of a and of b */
	const int words = OPERAND_NBYTES / sizeof(*stages);
	const int nsteps = (int)((x.k + STEP - 1) / STEP);
	const uint32_t base = smem_addr(stages);
	typename O::elements p, q;

#pragma unroll 1
	for (int step = -1; step < nsteps; step++) {
		const int at = step & 1, ahead = step + 1;

		if (ahead < nsteps) {
			load_step(x, ahead, p);
			load_step(y, ahead, q);
		}
		if (step >= 0)
			multiply_step<bf16_bf16>(
				base + 2 * at * OPERAND_NBYTES + t.wm * STEP_NBYTES,
				base + (2 * at + 1) * OPERAND_NBYTES + t.wn * STEP_NBYTES, sum);
		if (ahead < nsteps) {
			store_step(x, stages + 2 * (ahead & 1) * words, p);
			store_step(y, stages + (2 * (ahead & 1) + 1) * words, q);
		}
		__syncthreads(); /* the step ahead is there, and this one is multiplied */
	}
}

#endif
