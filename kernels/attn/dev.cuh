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

/*
 * Where heads are; variants without MORE have packed ones, and compute with 32 bits. Each call
 * computes it, so that no registers hold it in the meantime.
 */
template <bool MORE, class A> DEV struct te_k_attn_views views_of(const A &a)
{
	const int hd = a.head_dim, width = (a.nheads + 2 * a.nkv) * hd, owidth = a.nheads * hd;
	const void *k = a.more.k;
	struct te_k_attn_views w;

	w.head_dim_v = hd;
	if (MORE) {
		asm volatile("" : "+l"(k));
		if (a.more.head_dim_v)
			w.head_dim_v = a.more.head_dim_v;
	}
	if (MORE && k) {
		w.q = a.more.qs;
		w.k = a.more.ks;
		w.v = a.more.vs;
		w.out = a.more.os;
		w.k_at = w.v_at = 0;
		return w;
	}
	w.q = { a.seqlen * width, width, hd };
	w.k = w.v = w.q;
	w.out = { a.seqlen * owidth, owidth, hd };
	w.k_at = owidth;
	w.v_at = owidth + a.nkv * hd;
	return w;
}

/* a distance, which has 32 bits among packed heads */
template <bool MORE> DEV int64_t times(int n, int64_t stride)
{
	return MORE ? n * stride : n * (int)stride;
}

/* tokens are at most 2^24 elements apart; with MORE, no register holds multiples of the distance */
template <bool MORE> DEV int opaque(int64_t stride)
{
	int x = (int)stride;

	if (MORE)
		asm volatile("" : "+r"(x));
	return x;
}

/* keys of a sequence */
template <bool MORE, class A> DEV int keys_of(const A &a)
{
	return (int)(MORE && a.more.klen ? a.more.klen : a.seqlen);
}

template <class E> DEV E *at_head(E *p, const struct te_k_strides &s, int64_t b, int head)
{
	return p + b * s.batch + head * s.head;
}

#define NO_KEY 0x7fffffff

/* keys of a query: from to to - 1, or from NO_KEY to 0; at: the diagonal */
struct span {
	int from, to, at;
};

DEV struct span span_of(const struct te_k_attn_mask &m, int64_t b, int q)
{
	const struct te_k_attn_span s = te_k_attn_keys(&m, b, q);
	const bool none = s.from >= s.to;

	return { none ? NO_KEY : (int)s.from, none ? 0 : (int)s.to, (int)s.at };
}

/* the keys of n queries from q0 on; each warp computes them, and all of its threads have them */
DEV struct span span_of_rows(const struct te_k_attn_mask &m, int64_t b, int q0, int n)
{
	struct span all = { NO_KEY, 0, 0 };

#pragma unroll 1
	for (int q = q0 + LANE; q < min(q0 + n, (int)m.qlen); q += 32) {
		const struct span s = span_of(m, b, q);

		all.from = min(all.from, s.from);
		all.to = max(all.to, s.to);
	}
	all.from = __reduce_min_sync(~0u, all.from);
	all.to = __reduce_max_sync(~0u, all.to);
	if (all.from >= all.to)
		all.from = all.to = 0;
	return all;
}

/*
 * Queries from from to to - 1 of sequence b are those that may have one of n keys from k0 on; at is
 * not used. All threads of a block have them.
 */
DEV struct span queries_of_keys(const struct te_k_attn_mask &m, int64_t b, int k0, int n)
{
	__shared__ int first, end;
	const int T = (int)m.qlen, all = m.full && !m.right;
	const int ahead = k0 - m.right - (m.bottom ? (int)(m.klen - m.qlen) : 0);
	struct span s = { all ? 0 : min(max(ahead, 0), T), T, 0 };

	if (!m.first && !m.q_offsets) {
		if (m.window)
			s.to = (int)te_k_attn_clamp((int64_t)ahead + m.right + n - 1 + m.window, T);
		s.to = max(s.to, s.from);
		return s;
	}
	if (m.q_offsets) {
		const int64_t i = te_k_attn_above(m.k_offsets, 0, m.nseqs + 1, k0) - 1;
		const int64_t past = te_k_attn_above(m.k_offsets, 0, m.nseqs + 1, k0 + n - 1);

		s.from = i < 0 ? 0 : (int)te_k_attn_clamp(m.q_offsets[min(i, (int64_t)m.nseqs)], T);
		s.to = (int)te_k_attn_clamp(m.q_offsets[min(past, (int64_t)m.nseqs)], T);
	}
	if (!threadIdx.x) {
		first = NO_KEY;
		end = 0;
	}
	__syncthreads();
	{
		int least = NO_KEY, most = 0;

#pragma unroll 1
		for (int q = s.from + threadIdx.x; q < s.to; q += blockDim.x) {
			const struct span keys = span_of(m, b, q);

			if (keys.from < k0 + n && keys.to > k0) {
				least = min(least, q);
				most = q + 1;
			}
		}
		least = __reduce_min_sync(~0u, least);
		most = __reduce_max_sync(~0u, most);
		if (LANE == 0 && most) {
			atomicMin(&first, least);
			atomicMax(&end, most);
		}
	}
	__syncthreads();
	s.from = min(first, end);
	s.to = end;
	return s;
}

/* may scores have terms of more? */
template <class A> DEV bool has_terms(const A &a)
{
	return a.more.bias || a.more.slopes;
}

/* the terms of a score of query q and key k, which is at - k from its diagonal */
template <class A> DEV float terms_of(const A &a, int h, int q, int k, int at)
{
	float x = 0.0f;

	if (a.more.bias && q < a.seqlen && k < keys_of<true>(a))
		x = a.more.bias[h * a.more.bias_head + (int64_t)q * keys_of<true>(a) + k];
	if (a.more.slopes)
		x = fmaf(-a.more.slopes[h], fabsf((float)(k - at)), x);
	return x;
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
