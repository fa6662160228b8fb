/* attn/dev.cuh - common code of all variants of attention: sums of rows, masks, dropout. */
#ifndef TE_ATTN_DEV_CUH
#define TE_ATTN_DEV_CUH

#include "kernels/approx.cuh"
#include "kernels/attn/geometry.h"
#include "kernels/begin.cuh"
#include "kernels/fp8.cuh"
#include "kernels/mma.cuh"
#include "kernels/philox.h"
#include "kernels/te_k.h"

#define LOG2E 1.4426950408889634f
#define LANE (threadIdx.x & 31)

/* aligned to a row of tile_index() */
extern __shared__ __align__(256) uint4 te_smem[];

/* 1 / x, rounded to nearest, for 1 <= x < 2^125: 1.0f / x without its branches */
DEV float inverse(float x)
{
	const float y = reciprocal_approx(x);

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

/*
 * Launches that are more than plain causal attention (te_k_attn_fwd, TE_K_ATTN_HAS_MORE) run
 * variants with MORE, compiled apart, which have dropout too.
 */

/* the first key of query q of sequence b */
template <class A> DEV int first_key(const A &a, int64_t b, int q)
{
	return (int)te_k_attn_first(q, a.window, a.first ? a.first[b * a.seqlen + q] : 0);
}

/* the least first key of n queries from q0 on; each warp computes it */
template <class A> DEV int least_first_key(const A &a, int64_t b, int q0, int n)
{
	int least = q0;

	for (int q = q0 + LANE; q < min(q0 + n, (int)a.seqlen); q += 32)
		least = min(least, first_key(a, b, q));
	return __reduce_min_sync(~0u, least);
}

/* the end of the queries that have one of n keys from k0 on; all threads of a block */
template <class A> DEV int queries_end(const A &a, int64_t b, int k0, int n)
{
	__shared__ int end;
	const int T = (int)a.seqlen;
	int mine = 0;

	if (!a.first)
		return a.window && a.window < T ? min(T, k0 + n - 1 + a.window) : T;
	if (!threadIdx.x)
		end = 0;
	__syncthreads();
	for (int q = (a.full ? 0 : k0) + threadIdx.x; q < T; q += blockDim.x)
		if (first_key(a, b, q) < k0 + n)
			mine = q + 1;
	mine = __reduce_max_sync(~0u, mine);
	if (LANE == 0)
		atomicMax(&end, mine);
	__syncthreads();
	return end;
}

/* c tanh(s / c) for f = 2 log2(e) / c; the absolute error is some units of c */
DEV float cap_score(float s, float f, float c)
{
	return c * (1.0f - __fdividef(2.0f, 1.0f + exp2_approx(f * s)));
}

/* the factor of scores, which a softcap includes */
template <class A> DEV float scale_of(const A &a)
{
	return a.softcap != 0.0f ? 1.0f : a.scale;
}

struct drop {
	uint64_t seed, offset;
	uint32_t tag, threshold, head;
};

/* bh: b * nheads + h */
template <class A> DEV uint32_t drop_head(const A &a, uint32_t bh)
{
	return te_k_attn_head(bh, a.nheads, a.first_head, a.other_heads);
}

template <class A> DEV struct drop drop_of(const A &a, uint32_t bh)
{
	struct drop d = { 0, 0, a.tag, a.threshold, 0 };

	if (a.threshold) {
		d.head = drop_head(a, bh);
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
	struct te_philox r = te_philox_attn(d.seed, d.offset, d.tag, d.head, (uint32_t)q,
					    (uint32_t)group);
	uint32_t bits = 0;

#pragma unroll
	for (int i = 0; i < 8; i++)
		bits |= (te_philox_lane(&r, i) >= d.threshold ? 1u : 0u) << i;
	return bits;
}

#define KERNEL(name, threads, blocks, args, ...)                                                \
	extern "C" __global__ void __launch_bounds__(threads, blocks) name(const struct args a) \
	{                                                                                       \
		te_begin();                                                                     \
		__VA_ARGS__(a);                                                                 \
	}

#endif
