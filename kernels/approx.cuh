/* approx.cuh - the approximations of a multiprocessor's special function units. */
#ifndef TE_APPROX_CUH
#define TE_APPROX_CUH

#include "kernels/begin.cuh"

/* 2^x within 2 ulp; a subnormal result is 0 */
DEV float exp2_approx(float x)
{
	float y;

	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

/* 1 / x within 1 ulp, for x up to 2^126 and infinite */
DEV float reciprocal_approx(float x)
{
	float y;

	asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

/* NaN if an operand is */
DEV float max_nan(float a, float b)
{
	float y;

	asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
	return y;
}

DEV float min_nan(float a, float b)
{
	float y;

	asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
	return y;
}

#endif
