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
/* a NaN x is NaN */
DEV float no_more_than(float x, float most)
{
#ifdef __CUDACC__
	float r;

	asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(most));
	return r;
#else
	return x > most ? most : x;
#endif
}

/*
 * A number whose low byte is the code of x, without the sign. 2^e is the largest power of two in
 * |x|, at least the smallest normal number. |x| + 2^(e + 20), or 2^(e + 21) for E5M2, is rounded to
 * a multiple of the code's last place, which ends up in the low bits; 7 * 2^e, or 15 * 2^e, and
 * the exponent of 2^e add the code's exponent there. Bit 29 of *sum is set for a NaN only.
 */
DEV uint32_t fp8_narrow(int dtype, float x, uint32_t *sum)
{
	const bool e4m3 = dtype == TE_D_E4M3;
	const float a = no_more_than(fabsf(x), e4m3 ? 448.0f : 57344.0f);
	const uint32_t power =
		__float_as_uint(fmaxf(a, e4m3 ? 0x1p-6f : 0x1p-14f)) & 0x7f800000u;

	*sum = __float_as_uint(__fmaf_rn(__uint_as_float(power), e4m3 ? 0x1p20f + 7 : 0x1p21f + 15,
					 a));
	return *sum + (power >> (e4m3 ? 20 : 21));
}

/* codes of lo (low byte) and hi */
DEV uint32_t fp8x2_narrow(int dtype, float lo, float hi, uint32_t sum[2])
{
	const uint32_t c = __byte_perm(fp8_narrow(dtype, lo, &sum[0]),
				       fp8_narrow(dtype, hi, &sum[1]), 0x0040);

	return (c & 0x7f7f) |
	       (__byte_perm(__float_as_uint(lo), __float_as_uint(hi), 0x0073) & 0x8080);
}

/* code, with those NaN of which sum says so */
DEV uint32_t fp8x2_nan(uint32_t code, const uint32_t sum[2])
{
	return code | (sum[0] & 1u << 29 ? 0x7f : 0) | (sum[1] & 1u << 29 ? 0x7f00 : 0);
}

template <int D> DEV uint32_t fp8x2_soft(float lo, float hi)
{
	uint32_t sum[2], code = fp8x2_narrow(D, lo, hi, sum);

	return fp8x2_nan(code, sum);
}

template <int D> DEV uint2 fp8x8_soft(const float v[8])
{
	uint32_t sum[4][2], c[4], any = 0;

#pragma unroll
	for (int i = 0; i < 4; i++) {
		c[i] = fp8x2_narrow(D, v[2 * i], v[2 * i + 1], sum[i]);
		any |= sum[i][0] | sum[i][1];
	}
	if (any & 1u << 29)
#pragma unroll
		for (int i = 0; i < 4; i++)
			c[i] = fp8x2_nan(c[i], sum[i]);
	return make_uint2(c[0] | c[1] << 16, c[2] | c[3] << 16);
}

/* a file's kernels may convert at hundreds of places */
#ifndef TE_FP8_INLINE
#define TE_FP8_INLINE __noinline__
#endif
static __device__ TE_FP8_INLINE uint32_t fp8x2_any(int dtype, float lo, float hi)
{
	return dtype == TE_D_E4M3 ? fp8x2_soft<TE_D_E4M3>(lo, hi) :
				    fp8x2_soft<TE_D_E5M2>(lo, hi);
}

static __device__ TE_FP8_INLINE uint2 fp8x8_any(int dtype, float4 a, float4 b)
{
	const float v[8] = { a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w };

	return dtype == TE_D_E4M3 ? fp8x8_soft<TE_D_E4M3>(v) : fp8x8_soft<TE_D_E5M2>(v);
}
#endif

/* codes of lo (low byte) and hi; saturates, NaN becomes 0x7f, below 8.9 with its sign */
DEV uint32_t fp8x2(int dtype, float lo, float hi)
{
#if __CUDA_ARCH__ < 890
	return fp8x2_any(dtype, lo, hi);
#else
	unsigned short r;

	if (dtype == TE_D_E4M3)
		asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(hi), "f"(lo));
	else
		asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(r) : "f"(hi), "f"(lo));
	return r;
#endif
}

/* codes of 8 numbers, the first in the lowest byte */
DEV uint2 fp8x8(int dtype, const float v[8])
{
#if __CUDA_ARCH__ < 890
	return fp8x8_any(dtype, make_float4(v[0], v[1], v[2], v[3]),
			 make_float4(v[4], v[5], v[6], v[7]));
#else
	uint2 r;

	if (dtype == TE_D_E4M3) {
		r.x = fp8x2(TE_D_E4M3, v[0], v[1]) | fp8x2(TE_D_E4M3, v[2], v[3]) << 16;
		r.y = fp8x2(TE_D_E4M3, v[4], v[5]) | fp8x2(TE_D_E4M3, v[6], v[7]) << 16;
	} else {
		r.x = fp8x2(TE_D_E5M2, v[0], v[1]) | fp8x2(TE_D_E5M2, v[2], v[3]) << 16;
		r.y = fp8x2(TE_D_E5M2, v[4], v[5]) | fp8x2(TE_D_E5M2, v[6], v[7]) << 16;
	}
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
