/* attn/dev.cuh - what all variants of attention share: sums of rows, dropout. */
#ifndef TE_ATTN_DEV_CUH
#define TE_ATTN_DEV_CUH

#include "kernels/attn/geometry.h"
#include "kernels/mma.cuh"
#include "kernels/philox.h"
#include "kernels/te_k.h"

#define LOG2E 1.4426950408889634f

extern __shared__ uint4 te_smem[];

DEV uint32_t pack_bf16(float lo, float hi)
{
	uint32_t r;

	asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
	return r;
}

DEV float exp2_approx(float x)
{
	float y;

	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

/* 1 / x, rounded to nearest, for 1 <= x < 2^125: 1.0f / x without its branches */
DEV float inverse(float x)
{
	float y;

	asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return fmaf(y, -fmaf(x, y, -1.0f), y);
}

DEV float bf16_to_float(uint16_t x)
{
	return __uint_as_float((uint32_t)x << 16);
}

DEV float to_float(uint16_t x)
{
	return bf16_to_float(x);
}

DEV float to_float(float x)
{
	return x;
}

/* the dot product of 16 bytes of two rows; delta is its sum over the lanes of a row, by a tree */
template <class E> DEV float dot16(const uint4 &x, const uint4 &y)
{
	union {
		uint4 v;
		E e[16 / sizeof(E)];
	} xs = { x }, ys = { y };
	float sum = 0.0f;

#pragma unroll
	for (int i = 0; i < (int)(16 / sizeof(E)); i++)
		sum = fmaf(to_float(xs.e[i]), to_float(ys.e[i]), sum);
	return sum;
}

/* sum over the n lanes of a row, a power of two */
DEV float sum_lanes(float sum, int n)
{
	for (int w = n / 2; w; w /= 2)
		sum += __shfl_xor_sync(~0u, sum, w);
	return sum;
}

struct drop {
	uint64_t seed, offset;
	uint32_t tag, threshold, bh;
};

template <class A> DEV struct drop drop_of(const A &a, uint32_t bh)
{
	struct drop d = { 0, 0, a.tag, a.threshold, bh };

	if (a.threshold) {
		d.seed = *a.seed;
		d.offset = *a.offset;
	}
	return d;
}

DEV float drop_scale(uint32_t threshold)
{
	return 65536.0f / (float)(65536u - threshold);
}

/* bit i: key 8 group + i of query q is kept */
DEV uint32_t keep8(const struct drop &d, int q, int group)
{
	struct te_philox r = te_philox_attn(d.seed, d.offset, d.tag, d.bh, (uint32_t)q,
					    (uint32_t)group);
	uint32_t bits = 0;

#pragma unroll
	for (int i = 0; i < 8; i++)
		bits |= (te_philox_lane(&r, i) >= d.threshold ? 1u : 0u) << i;
	return bits;
}

#endif
