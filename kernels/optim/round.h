/*
 * round.h - formats of moments and weights other than FP32, for C and CUDA. Exact integer
 * arithmetic, so that host and device store the same bits.
 *
 * Rounding is stochastic: up with the probability of the fraction that is cut off, by a number r of
 * 16 bits. An average that moves by less than half a step would otherwise never move (Topollai and
 * Choromanska, arXiv:2603.16731). r = TE_ROUND_NEAREST rounds to nearest, ties away from zero.
 *
 * FP8 blocks: TE_K_ALIGN_WEIGHT elements and one exponent byte s; a value is code * 2^(s - 127),
 * and 0 where s is 0. COAT (arXiv:2410.19313) stores both moments in E4M3 by groups of 128; here a
 * group is the 64 elements to which weights are padded, so that no scale is common to two weights,
 * and scales are powers of two (E8M0 of OCP MX 1.0), which are exact.
 *	first	E4M3 (OCP OFP8 1.0), largest 448
 *	second	UE5M3, the upper bits of FP16 without its sign: 5 bits of exponent, 3 of mantissa,
 *		largest 1.875 * 2^15. It has no sign to store, and as it is a square it needs twice
 *		the range of the first. A value above 0 has a code above 0: after a moment of 0, the
 *		quotient of the moments is not bounded.
 */
#ifndef TE_OPTIM_ROUND_H
#define TE_OPTIM_ROUND_H

#include "kernels/philox.h"

#ifdef __CUDACC__
TE_PHILOX_FN uint32_t te_round_bits(float x)
{
	return __float_as_uint(x);
}
TE_PHILOX_FN float te_round_float(uint32_t bits)
{
	return __uint_as_float(bits);
}
TE_PHILOX_FN float te_round_mul(float a, float b)
{
	return __fmul_rn(a, b);
}
#else
TE_PHILOX_FN uint32_t te_round_bits(float x)
{
	union {
		float f;
		uint32_t u;
	} v = { x };

	return v.u;
}
TE_PHILOX_FN float te_round_float(uint32_t bits)
{
	union {
		uint32_t u;
		float f;
	} v = { bits };

	return v.f;
}
TE_PHILOX_FN float te_round_mul(float a, float b)
{
	return a * b;
}
#endif

#define TE_ROUND_NEAREST 0x8000u
#define TE_ROUND_FINITE 0x7f7fffffu /* bits of the largest finite FP32 */
#define TE_ROUND_GROUP 8 /* elements that share a draw of random numbers */

/* the random numbers of elements 8 group .. 8 group + 7 in a step; which: enum te_k_rounded */
TE_PHILOX_FN struct te_philox te_round_draw(uint64_t step, uint32_t which, int64_t group)
{
	return te_philox_flat(0, step, which, (uint64_t)group);
}

/* BF16 of an FP32 number: infinity and NaN remain, and no finite number becomes one */
TE_PHILOX_FN uint32_t te_round_bf16(float x, uint32_t r)
{
	const uint32_t bits = te_round_bits(x), mag = bits & 0x7fffffffu;
	const uint32_t up = mag + r;
	const uint32_t cut = mag > 0x7f800000u ? mag | 0x400000u : mag;

	return (bits >> 16 & 0x8000u) | (mag > TE_ROUND_FINITE || up > TE_ROUND_FINITE ? cut : up)
						>> 16;
}

/* an FP8 format with 3 bits of mantissa */
struct te_round_fp8 {
	uint32_t emin;	/* exponent field, in FP32, of the smallest normal number */
	uint32_t top;	/* exponent of the largest number */
	uint32_t carry; /* a mantissa to which this adds more than 23 bits exceeds the largest's */
};

/* which: 0 for E4M3, 1 for UE5M3 */
TE_PHILOX_FN struct te_round_fp8 te_round_format(int which)
{
	struct te_round_fp8 f;

	f.emin = which ? 127 - 14 : 127 - 6;
	f.top = which ? 15 : 8;
	f.carry = which ? 0x0fffff : 0x1fffff;
	return f;
}

/* bits of |x|, or of the largest finite number */
TE_PHILOX_FN uint32_t te_round_magnitude(float x)
{
#ifdef __CUDACC__
	return te_round_bits(fminf(fabsf(x), te_round_float(TE_ROUND_FINITE)));
#else
	const uint32_t mag = te_round_bits(x) & 0x7fffffffu;

	return mag > TE_ROUND_FINITE ? TE_ROUND_FINITE : mag;
#endif
}

/* the exponent byte of a block with this largest magnitude: the least without saturation */
TE_PHILOX_FN uint32_t te_round_exponent(struct te_round_fp8 f, uint32_t magnitude)
{
	const uint32_t e = (magnitude + f.carry) >> 23;

	return e > f.top ? e - f.top : 1;
}

/* code, without sign, of a magnitude in a block of exponent s */
#ifdef __CUDACC__
/*
 * The same bits as below. Scaled so that codes below 8 are subnormal FP32 numbers, the product,
 * rounded towards 0, has the code in its upper bits.
 */
TE_PHILOX_FN uint32_t te_round_code(struct te_round_fp8 f, uint32_t magnitude, uint32_t s,
				    uint32_t r)
{
	const float y = te_round_mul(te_round_float(magnitude), te_round_float((254 - s) << 23));
	const float scaled = __fmul_rz(y, te_round_float((128 - f.emin) << 23));

	return ((te_round_bits(scaled) >> 4) + r) >> 16;
}
#else
TE_PHILOX_FN uint32_t te_round_code(struct te_round_fp8 f, uint32_t magnitude, uint32_t s,
				    uint32_t r)
{
	const uint32_t y = te_round_bits(
		te_round_mul(te_round_float(magnitude), te_round_float((254 - s) << 23)));
	const uint32_t e = y >> 23, at = e > f.emin ? e : f.emin;
	const uint32_t shift = 4 + at - e; /* leaves 16 bits of fraction */
	const uint32_t fixed = ((y & 0x7fffffu) | 0x800000u) >> (shift < 31 ? shift : 31);

	return ((fixed + r) >> 16) + ((at - f.emin) << 3);
}
#endif

/* the value of a code without sign */
#ifdef __CUDACC__
/* subnormal FP32 numbers, of which codes below 8 become the bits, cost a GPU nothing */
TE_PHILOX_FN float te_round_value(struct te_round_fp8 f, uint32_t code, uint32_t s)
{
	return te_round_mul(te_round_mul(te_round_float(code << 20),
					 te_round_float((f.emin + 126) << 23)),
			    te_round_float(s << 23));
}
#else
TE_PHILOX_FN float te_round_value(struct te_round_fp8 f, uint32_t code, uint32_t s)
{
	const uint32_t e = code >> 3;
	const float base = te_round_float(f.emin << 23);
	const float y = te_round_float(((e ? e - 1 : 0) + f.emin) << 23 | (code & 7) << 20);

	/* a subnormal number lacks the leading 1; the difference is exact */
	return te_round_mul(e ? y : y - base, te_round_float(s << 23));
}
#endif

/* stored first moment, and second moment: from FP32, and back */
TE_PHILOX_FN uint32_t te_round_first(float m, uint32_t s, uint32_t r)
{
	const uint32_t code = te_round_code(te_round_format(0), te_round_magnitude(m), s, r);

	return m < 0.0f && code ? code | 0x80u : code; /* zero and NaN have no sign */
}
TE_PHILOX_FN uint32_t te_round_second(float v, uint32_t s, uint32_t r)
{
	const uint32_t mag = te_round_magnitude(v);
	const uint32_t code = te_round_code(te_round_format(1), mag, s, r);

	return code ? code : mag != 0;
}
TE_PHILOX_FN float te_round_first_value(uint32_t code, uint32_t s)
{
	const float x = te_round_value(te_round_format(0), code & 0x7f, s);

	return te_round_float(te_round_bits(x) | (code & 0x80u) << 24);
}
TE_PHILOX_FN float te_round_second_value(uint32_t code, uint32_t s)
{
	return te_round_value(te_round_format(1), code, s);
}

/*
 * An FP32 weight as BF16, rounded to nearest with ties away from zero, and 16 bits from which the
 * weight is restored exactly, unless it is NaN: its lower half, which also tells whether BF16 was
 * rounded away from zero.
 */
TE_PHILOX_FN uint32_t te_round_upper(float w)
{
	const uint32_t bits = te_round_bits(w), mag = bits & 0x7fffffffu;

	return (mag > 0x7f800000u ? bits | 0x400000u : bits + 0x8000u) >> 16;
}
TE_PHILOX_FN uint32_t te_round_lower(float w)
{
	const uint32_t bits = te_round_bits(w);

	return (bits & 0x7fffffffu) > 0x7f800000u ? 0 : bits & 0xffffu;
}
TE_PHILOX_FN float te_round_join(uint32_t upper, uint32_t lower)
{
	return te_round_float((upper << 16) - (lower >> 15 << 16) + lower);
}

#endif
