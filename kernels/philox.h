/*
 * philox.h - counter-based random numbers, for C and CUDA.
 *
 * Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy
 * as 1, 2, 3", SC11). Stateless: the same (seed, offset, tag, element) gives the
 * same number on every backend. So masks are never stored, and a captured step
 * draws new ones by advancing the offset word.
 */
#ifndef TE_PHILOX_H
#define TE_PHILOX_H

#include "kernels/te_k.h"

#ifdef __CUDACC__
#define TE_PHILOX_FN static __device__ __forceinline__
#else
#define TE_PHILOX_FN static inline
#endif

#define TE_PHILOX_M0 0xD2511F53u /* multipliers */
#define TE_PHILOX_M1 0xCD9E8D57u
#define TE_PHILOX_W0 0x9E3779B9u /* steps of the key */
#define TE_PHILOX_W1 0xBB67AE85u

struct te_philox {
	uint32_t w[4];
};

TE_PHILOX_FN struct te_philox te_philox(uint64_t seed, uint32_t c0, uint32_t c1, uint32_t c2,
					uint32_t c3)
{
	uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
	struct te_philox r;

	for (int i = 0; i < 10; i++) {
		uint64_t p0 = (uint64_t)TE_PHILOX_M0 * c0;
		uint64_t p1 = (uint64_t)TE_PHILOX_M1 * c2;
		uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
		uint32_t n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;

		c1 = (uint32_t)p1;
		c3 = (uint32_t)p0;
		c0 = n0;
		c2 = n2;
		k0 += TE_PHILOX_W0;
		k1 += TE_PHILOX_W1;
	}
	r.w[0] = c0;
	r.w[1] = c1;
	r.w[2] = c2;
	r.w[3] = c3;
	return r;
}

/* Eight 16-bit numbers of one draw: lane i is half (i & 1) of word i / 2. */
TE_PHILOX_FN uint32_t te_philox_lane(const struct te_philox *r, int i)
{
	return (r->w[i >> 1] >> ((i & 1) * 16)) & 0xffffu;
}

/*
 * The counter has room for the low word of the offset only; the high one changes the key, by an odd
 * number, so that the 2^64 offsets of a seed have different numbers.
 */
TE_PHILOX_FN uint64_t te_philox_key(uint64_t seed, uint64_t offset)
{
	return seed + (offset >> 32) * 0x9E3779B97F4A7C15u;
}

/* dropout of a flat tensor: elements 8 group .. 8 group + 7; an element is kept if its lane is at
 * least the threshold */
TE_PHILOX_FN struct te_philox te_philox_flat(uint64_t seed, uint64_t offset, uint32_t tag,
					     uint64_t group)
{
	return te_philox(te_philox_key(seed, offset), (uint32_t)group, (uint32_t)(group >> 32), tag,
			 (uint32_t)offset);
}

/* dropout of attention: keys 8g .. 8g+7 of query q of a head of all batches; the tag's top bit
 * separates these numbers from the numbers of te_philox_flat() */
TE_PHILOX_FN struct te_philox te_philox_attn(uint64_t seed, uint64_t offset, uint32_t tag,
					     uint32_t head, uint32_t q, uint32_t g)
{
	return te_philox(te_philox_key(seed, offset), g | (q << 13), head, tag | 0x80000000u,
			 (uint32_t)offset);
}

#endif
