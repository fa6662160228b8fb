/* mx.cuh - scales of blocks that are cast as by 1X32: E8M0 bytes, which have 1 / s. */
#ifndef TE_QUANT_MX_CUH
#define TE_QUANT_MX_CUH

#include "kernels/fp8.cuh"

/* the E8M0 byte of 1 / s for this amax: te__h_scale_mx() */
DEV uint32_t mx_byte(int dtype, float amax)
{
	const uint32_t bits = __float_as_uint(amax);
	const int e = (int)(bits >> 23) - (dtype == TE_D_E4M3 ? 8 : 15) +
		      ((bits & 0x007fffffu) > 0x00600000u);

	return bits >= 0x7f800000u ? 254 : e > 0 ? e : 0;
}

/* s; 2^-127 is subnormal */
DEV float mx_scale(uint32_t byte)
{
	return __uint_as_float(byte == 254 ? 0x00400000u : (254 - byte) << 23);
}

/* 1 / s: te__h_scale_get() */
DEV float mx_inverse(uint32_t byte)
{
	return __uint_as_float(byte == 255 ? 0x7fc00000u : byte ? byte << 23 : 0x00400000u);
}

#endif
