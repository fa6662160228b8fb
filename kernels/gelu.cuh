/* gelu.cuh - GELU and SiLU of BF16 numbers, for act.cu. */
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

/* x / (1 + exp(-x)), as gelu_bf16() */
DEV float silu_bf16(float x)
{
	const float d = __fmaf_rn(exp2_approx(mul(x, -1.442695f)), 0.125f, 0.125f);

	return mul(fmaxf(mul(x, 0.125f), -TE_FLT_MAX), reciprocal_approx(d));
}

/* the derivative s + x s (1 - s); s is 0 or 1 outside of [-128, 128] */
DEV float silu_d_bf16(float x)
{
	const float c = min_nan(max_nan(x, -128.0f), 128.0f);
	const float d = __fmaf_rn(exp2_approx(mul(c, -1.442695f)), 0.125f, 0.125f);
	const float s = mul(reciprocal_approx(d), 0.125f);

	return __fmaf_rn(__fmaf_rn(-s, s, s), c, s);
}

/*
 * The normal distribution function, by the polynomial of act.c with a rounding a term; *ret_e is
 * exp(-x^2 / 2), whose argument rounds once, since the square of a BF16 number is exact.
 */
DEV float normal_bf16(float x, float *ret_e)
{
	const float t = reciprocal_approx(__fmaf_rn(0x1.0a3d70p-2f, fabsf(x), 1.0f));
	float q = 0x1.ef4c3ep-6f, tail;

	q = __fmaf_rn(q, t, -0x1.364364p-3f);
	q = __fmaf_rn(q, t, 0x1.fd692ap-3f);
	q = __fmaf_rn(q, t, -0x1.2ead96p-3f);
	q = __fmaf_rn(q, t, 0x1.452438p-3f);
	q = __fmaf_rn(q, t, 0x1.a9b0b6p-5f);
	q = __fmaf_rn(q, t, 0x1.a505e8p-4f);
	q = __fmaf_rn(q, t, 0x1.a618c0p-4f);
	q = __fmaf_rn(q, t, 0x1.a8fd1ep-4f);
	*ret_e = exp2_approx(mul(-0.72134752f, mul(x, x)));
	tail = mul(*ret_e, mul(t, q));
	return x < 0.0f ? tail : sub(1.0f, tail);
}

/* the form with the normal distribution function; -0 where that is 0 */
DEV float gelu_erf_bf16(float x)
{
	float e;

	return mul(fmaxf(x, -TE_FLT_MAX), normal_bf16(x, &e));
}

DEV float gelu_erf_d_bf16(float x)
{
	const float c = min_nan(max_nan(x, -16.0f), 16.0f);
	float e;
	const float s = normal_bf16(c, &e);

	return __fmaf_rn(mul(c, 0.39894228f), e, s);
}

#endif
