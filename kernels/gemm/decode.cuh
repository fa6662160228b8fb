/* decode.cuh - values of FP8 codes, for kernels that decode them to BF16: mx.cu and any.cu. */
#ifndef TE_GEMM_DECODE_CUH
#define TE_GEMM_DECODE_CUH

#include "kernels/dev.cuh"

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

#endif
