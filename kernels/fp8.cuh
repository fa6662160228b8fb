/* fp8.cuh - shared by all device code: FP8 codes, amax, and the flag that stops a kernel. */
#ifndef TE_FP8_CUH
#define TE_FP8_CUH

#include "kernels/begin.cuh"
#include "kernels/te_k.h"
#include "libtecore/base/dtype_inline.h"

/* enum te_dtype, which kernels cannot include */
#define TE_D_FP32 0
#define TE_D_BF16 1
#define TE_D_FP16 2
#define TE_D_E4M3 3
#define TE_D_E5M2 4
#define TE_D_E2M1 7

DEV bool noop_set(const float *noop)
{
	return noop && *noop == 1.0f;
}

#if __CUDA_ARCH__ < 890
/* not inlined: a kernel converts at hundreds of places */
static __device__ __noinline__ uint32_t fp8x2_soft(int dtype, float lo, float hi)
{
	if (dtype == TE_D_E4M3)
		return te__e4m3_encode(lo) | (uint32_t)te__e4m3_encode(hi) << 8;
	return te__e5m2_encode(lo) | (uint32_t)te__e5m2_encode(hi) << 8;
}
#endif

/* codes of lo (low byte) and hi; saturates, NaN becomes 0x7f, below 8.9 with its sign */
DEV uint32_t fp8x2(int dtype, float lo, float hi)
{
#if __CUDA_ARCH__ < 890
	return fp8x2_soft(dtype, lo, hi);
#else
	unsigned short r;

	if (dtype == TE_D_E4M3)
		asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(hi), "f"(lo));
	else
		asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(r) : "f"(hi), "f"(lo));
	return r;
#endif
}

/* the larger of m and |x|; a NaN x leaves m */
DEV float amax_of(float m, float x)
{
	return fmaxf(m, fabsf(x));
}

DEV void atomic_amax(float *amax, float m)
{
	/* positive floats order as their bits do */
	if (m > 0.0f)
		atomicMax((unsigned *)amax, __float_as_uint(m));
}

/* the largest of non-negative numbers, none of them NaN: these order as their bits do */
DEV float warp_amax(float m)
{
	return __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(m)));
}

#endif
