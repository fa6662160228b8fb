/* gelu.cuh - GELU of BF16 numbers, for act.cu. */
#ifndef TE_GELU_CUH
#define TE_GELU_CUH

#include "kernels/approx.cuh"

/*
 * The tanh form, x / (1 + e) with e = exp(-1.5957691 (x + 0.044715 x^3)), for an x that is a BF16
 * number: its square is exact. e's argument rounds three times, fewer than the formula as written
 * in act.h. Numerator and denominator are an eighth, so that the reciprocal of a large denominator
 * is no subnormal number. If e is infinite, so may be x: the result is -0.
 */
DEV float gelu_bf16(float x)
{
	const float t = mul(x, __fmaf_rn(-0.10294324f, mul(x, x), -2.3022082f));
	const float d = __fmaf_rn(exp2_approx(t), 0.125f, 0.125f);

	return mul(fmaxf(mul(x, 0.125f), -TE_FLT_MAX), reciprocal_approx(d));
}

/*
 * The derivative s + x s (1 - s) 1.5957691 (1 + 0.134145 x^2), with s = 1 / (1 + e) as above. It is
 * 0 or 1 for an x outside of [-16, 16], whose square need not be finite; NaN stays NaN.
 */
DEV float gelu_d_bf16(float x)
{
	const float c = min_nan(max_nan(x, -16.0f), 16.0f), z = mul(c, c);
	const float t = mul(c, __fmaf_rn(-0.10294324f, z, -2.3022082f));
	const float d = __fmaf_rn(exp2_approx(t), 0.125f, 0.125f);
	const float s = mul(reciprocal_approx(d), 0.125f);

	return __fmaf_rn(__fmaf_rn(-s, s, s), mul(c, __fmaf_rn(0.21406445f, z, 1.5957691f)), s);
}

#endif
