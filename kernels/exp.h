/* exp.h - e^x in FP32, the same bits with every compiler and processor. */
#ifndef TE__EXP_H
#define TE__EXP_H

#include <stdint.h>

#include "kernels/simd.h" /* before inline functions */
#include "libtecore/base/dtype_inline.h"

/*
 * e^x = 2^n e^r, n = x / ln 2 rounded to an integer, |r| <= 0.347. Without branches and without
 * fused multiply-adds.
 *
 * Reduction: ln 2 = HI + LO. HI has 9 significant bits, so n HI is exact, and x - n HI too, as the
 * difference of numbers that are close. n LO, below 0.032, and the last subtraction round: r is
 * off by 0.3 U, U = 2^-24. Polynomial: e^r = 1 + (r + r^2 q(r)), with the q of degree 4 that
 * minimizes the largest relative error of the sum, 0.06 U with these coefficients. r^2 q, below
 * 0.068, rounds four times and its sum with r once, together by 0.5 U. The sum with 1 rounds by U
 * above 1 and U / 2 below. In all 1.9 U where the unit in the last place is 2 U, 1.2 U where it is
 * U: 1.2 units in the last place. A subnormal result is rounded once more.
 *
 * Below -104 the result is 0, above 88.73 infinite; the scale 2^n is applied in two factors, each
 * of which is normal, so that only the last product overflows or rounds to a subnormal.
 * NaN gives NaN. 0 gives 1.
 */
static inline float te__expf(float x)
{
	const float log2e = 0x1.715476p+0f, hi = 0x1.63p-1f, lo = -0x1.bd0106p-13f;
	const float round = 0x1.8p+23f; /* adding it leaves an integer in the low bits */
	float t, nf, r, q;
	int32_t n, half;

	x = x < -104.0f ? -104.0f : x;
	x = x > 89.0f ? 89.0f : x;
	t = x * log2e + round;
	n = (int32_t)(te__f32_bits(t) - te__f32_bits(round));
	nf = t - round;
	r = x - nf * hi - nf * lo;
	q = 0x1.6a23ccp-10f;
	q = q * r + 0x1.123a2p-7f;
	q = q * r + 0x1.5558f2p-5f;
	q = q * r + 0x1.555492p-3f;
	q = q * r + 0x1.fffffcp-2f;
	t = 1.0f + (r + r * r * q);
	half = n >> 1;
	t *= te__f32_from_bits((uint32_t)(half + 127) << 23);
	return t * te__f32_from_bits((uint32_t)(n - half + 127) << 23);
}

#endif
