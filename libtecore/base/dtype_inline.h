/*
 * dtype_inline.h - conversions between FP32 and the narrow types, for inner loops.
 *
 * Without branches, so that compilers vectorize loops over them. The FP32 adder
 * rounds, and must be in its default mode: to nearest, ties to even. Device code below compute
 * capability 8.9 includes them too.
 */
#ifndef TE__DTYPE_INLINE_H
#define TE__DTYPE_INLINE_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define TE__INLINE static __device__ __forceinline__
#else
#define TE__INLINE static inline
#endif

TE__INLINE uint32_t te__f32_bits(float x)
{
	uint32_t u;

	memcpy(&u, &x, sizeof(u));
	return u;
}

TE__INLINE float te__f32_from_bits(uint32_t u)
{
	float x;

	memcpy(&x, &u, sizeof(x));
	return x;
}

/* all 256 codes */
extern const float te__e4m3_values[256];
extern const float te__e5m2_values[256];

/*
 * |x| to a type with mbits of mantissa and the given exponent bias, for |x| at
 * most its largest finite value. Normal: adding just under half a unit in the last place, plus
 * the lowest kept bit, makes truncation round to nearest even. Subnormal: adding
 * 2^(23 + e), where 2^e is the smallest subnormal, leaves |x| / 2^e in the sum's mantissa.
 */
TE__INLINE uint32_t te__f32_narrow(uint32_t a, int mbits, int bias)
{
	const int drop = 23 - mbits;
	const uint32_t min_normal = (uint32_t)(127 + 1 - bias) << 23;
	const uint32_t magic = (uint32_t)(127 + 1 - bias - mbits + 23) << 23;
	uint32_t round = (1u << (drop - 1)) - 1 + ((a >> drop) & 1);
	uint32_t normal = ((a + round) >> drop) - ((uint32_t)(127 - bias) << mbits);
	uint32_t sub = te__f32_bits(te__f32_from_bits(a) + te__f32_from_bits(magic)) - magic;

	return a < min_normal ? sub : normal;
}

#define TE__F32_INF 0x7f800000u

TE__INLINE uint8_t te__e4m3_encode(float x)
{
	uint32_t u = te__f32_bits(x), a = u & 0x7fffffffu;
	uint32_t most = 0x43e00000u; /* 448 */
	uint32_t c = te__f32_narrow(a < most ? a : most, 3, 7);

	c = a > TE__F32_INF ? 0x7f : c;
	return (uint8_t)(c | (u >> 24 & 0x80));
}

TE__INLINE uint8_t te__e5m2_encode(float x)
{
	uint32_t u = te__f32_bits(x), a = u & 0x7fffffffu;
	uint32_t most = 0x47600000u; /* 57344 */
	uint32_t c = te__f32_narrow(a < most ? a : most, 2, 15);

	c = a > TE__F32_INF ? 0x7f : c;
	return (uint8_t)(c | (u >> 24 & 0x80));
}

/* 4 bits; a NaN becomes 0 */
TE__INLINE uint8_t te__e2m1_encode(float x)
{
	uint32_t u = te__f32_bits(x), a = u & 0x7fffffffu;
	uint32_t most = 0x40c00000u; /* 6 */
	uint32_t c = te__f32_narrow(a < most ? a : most, 1, 1);

	return (uint8_t)(a > TE__F32_INF ? 0 : c | (u >> 28 & 8));
}

/* a NaN keeps its sign and the top of its payload, and is made quiet */
TE__INLINE uint16_t te__bf16_encode(float x)
{
	uint32_t u = te__f32_bits(x);
	uint32_t r = (u + 0x7fffu + (u >> 16 & 1)) >> 16;

	return (uint16_t)((u & 0x7fffffffu) > TE__F32_INF ? (u >> 16 | 0x40) : r);
}

TE__INLINE float te__bf16_decode(uint16_t c)
{
	return te__f32_from_bits((uint32_t)c << 16);
}

TE__INLINE uint16_t te__fp16_encode(float x)
{
	uint32_t u = te__f32_bits(x), a = u & 0x7fffffffu;
	uint32_t most = 0x47800000u; /* 65536: the code of infinity */
	uint32_t c = te__f32_narrow(a < most ? a : most, 10, 15);

	c = a > TE__F32_INF ? 0x7e00u | (a >> 13 & 0x3ff) : c;
	return (uint16_t)(c | (u >> 16 & 0x8000u));
}

/*
 * |c| of a code whose mantissa ends at FP32's bit 23 - mbits and whose exponent has FP32's place:
 * a is c, shifted by that. Normal: the difference of the biases is added. Subnormal: with the
 * exponent of the smallest normal number the code's mantissa gets a leading one, which a
 * subtraction removes. No operand is subnormal, which would be slow.
 */
TE__INLINE uint32_t te__f32_widen(uint32_t a, int bias)
{
	const uint32_t min_normal = (uint32_t)(127 + 1 - bias) << 23;
	float sub = te__f32_from_bits(a | min_normal) - te__f32_from_bits(min_normal);

	return a < 1u << 23 ? te__f32_bits(sub) : a + ((uint32_t)(127 - bias) << 23);
}

/* infinity and NaN have exponent 31 and get FP32's exponent of all ones */
TE__INLINE float te__fp16_decode(uint16_t c)
{
	uint32_t a = (uint32_t)(c & 0x7fff) << 13;
	uint32_t f = a >= (31u << 23) ? a | TE__F32_INF : te__f32_widen(a, 15);

	return te__f32_from_bits(f | (uint32_t)(c & 0x8000) << 16);
}

/* the lower 4 bits of c */
TE__INLINE float te__e2m1_decode(uint32_t c)
{
	return te__f32_from_bits(te__f32_widen((c & 7) << 22, 1) | (c & 8) << 28);
}

#define TE__F32_NAN 0x7fc00000u

TE__INLINE float te__e4m3_decode(uint8_t c)
{
	uint32_t f = te__f32_widen((uint32_t)(c & 0x7f) << 20, 7);

	f = (c & 0x7f) == 0x7f ? TE__F32_NAN : f;
	return te__f32_from_bits(f | (uint32_t)(c & 0x80) << 24);
}

TE__INLINE float te__e5m2_decode(uint8_t c)
{
	uint32_t f = te__f32_widen((uint32_t)(c & 0x7f) << 21, 15);

	f = (c & 0x7f) == 0x7c ? TE__F32_INF : (c & 0x7f) > 0x7c ? TE__F32_NAN : f;
	return te__f32_from_bits(f | (uint32_t)(c & 0x80) << 24);
}

#endif
