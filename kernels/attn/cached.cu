/*
 * cached.cu - attention to a cache of keys and values, sm_90a. Compiled without spills,
 * and not yet run on hardware.
 *
 *  kernel       blocks           threads  shared
 *  attn_append  a row            128      0
 *  attn_cached  a row and head   128      2096
 *
 * T is FP32 or BF16, and so is the type of the cache. In attn_cached each warp takes every fourth
 * key, with the channels distributed over its lanes, and the block combines the four softmaxes.
 */
#include "kernels/attn/geometry.h"
#include "kernels/dev.cuh"

#define WARPS (ATTN_CACHED_THREADS / 32)
#define PER_LANE (TE_K_ATTN_CUDA_HEAD_DIM / 32)

DEV int64_t token_at(const struct te_k_attn_cached &a, int64_t s, int64_t pos)
{
	const int64_t i = s * a.max_pages + pos / a.page;

	return (a.pages ? a.pages[i] : i) * a.page + pos % a.page;
}

/* 0: inside, 1: padding, 2: outside; the same for all threads */
DEV int find(const struct te_k_attn_cached &a, int64_t r)
{
	const int64_t s = a.sequence[r], pos = a.position[r];

	if (s < 0)
		return 1;
	if (s >= a.nseqs || pos < 0 || pos >= a.max_pages * a.page)
		return 2;
	for (int64_t i = 0; i <= pos / a.page; i++) {
		const int64_t at = s * a.max_pages + i, page = a.pages ? a.pages[at] : at;

		if (page < 0 || page >= a.npages)
			return 2;
	}
	return 0;
}

template <class T, class C> DEV void append(const struct te_k_attn_cached &a)
{
	const int64_t r = blockIdx.x, width = (int64_t)a.nkv * a.head_dim;
	const int64_t qwidth = (int64_t)a.nheads * a.head_dim;
	const T *x = (const T *)a.qkv + r * (qwidth + 2 * width) + qwidth;
	const int where = find(a, r);
	int64_t to;

	if (where == 2 && a.noutside && !threadIdx.x)
		atomicAdd((unsigned *)a.noutside, 1u);
	if (where)
		return;
	to = token_at(a, a.sequence[r], a.position[r]) * width;
	for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
		((C *)a.k)[to + i] = from_float<C>(to_float(x[i]));
		((C *)a.v)[to + i] = from_float<C>(to_float(x[width + i]));
	}
}

template <class T, class C> DEV void attend(const struct te_k_attn_cached &a)
{
	__shared__ float most[WARPS], sums[WARPS], parts[WARPS][TE_K_ATTN_CUDA_HEAD_DIM];
	const int64_t r = blockIdx.x / a.nheads;
	const int h = (int)(blockIdx.x % a.nheads), g = h / (a.nheads / a.nkv);
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, d = a.head_dim;
	const T *q = (const T *)a.qkv + r * (a.nheads + 2 * a.nkv) * d + (int64_t)h * d;
	T *out = (T *)a.out + (r * a.nheads + h) * d;
	float x[PER_LANE], acc[PER_LANE], m = -TE_INF, l = 0.0f, all = -TE_INF, sum = 0.0f;

	if (find(a, r)) {
		for (int i = threadIdx.x; i < d; i += blockDim.x)
			out[i] = from_float<T>(0.0f);
		return;
	}
#pragma unroll
	for (int i = 0; i < PER_LANE; i++) {
		x[i] = lane + 32 * i < d ? to_float(q[lane + 32 * i]) : 0.0f;
		acc[i] = 0.0f;
	}
	for (int64_t p = te_k_attn_first(a.position[r], a.window, 0) + warp; p <= a.position[r];
	     p += WARPS) {
		const int64_t at = (token_at(a, a.sequence[r], p) * a.nkv + g) * d;
		float s = 0.0f, next, w;

#pragma unroll
		for (int i = 0; i < PER_LANE; i++)
			if (lane + 32 * i < d)
				s = fmaf(x[i], to_float(((const C *)a.k)[at + lane + 32 * i]), s);
#pragma unroll
		for (int n = 16; n; n /= 2)
			s += __shfl_xor_sync(~0u, s, n);
		s *= a.scale;
		if (a.softcap != 0.0f)
			s = a.softcap * tanhf(s / a.softcap);
		next = fmaxf(m, s);
		w = m == next ? 1.0f : __expf(m - next);
		s = __expf(s - next);
		l = fmaf(l, w, s);
		m = next;
#pragma unroll
		for (int i = 0; i < PER_LANE; i++)
			if (lane + 32 * i < d)
				acc[i] = fmaf(s, to_float(((const C *)a.v)[at + lane + 32 * i]),
					      acc[i] * w);
	}
#pragma unroll
	for (int i = 0; i < PER_LANE; i++)
		parts[warp][lane + 32 * i] = acc[i];
	if (!lane) {
		most[warp] = m;
		sums[warp] = l;
	}
	__syncthreads();
	for (int i = 0; i < WARPS; i++)
		all = fmaxf(all, most[i]);
	for (int i = 0; i < WARPS; i++)
		sum += sums[i] * (most[i] == all ? 1.0f : __expf(most[i] - all));
	for (int c = threadIdx.x; c < d; c += blockDim.x) {
		float y = 0.0f;

		for (int i = 0; i < WARPS; i++)
			y += parts[i][c] * (most[i] == all ? 1.0f : __expf(most[i] - all));
		out[c] = from_float<T>(y / sum);
	}
}

#define TE_NAME(T, C, t)                                                                      \
	extern "C" __global__ void __launch_bounds__(ATTN_CACHED_THREADS)                     \
		te_k_attn_append_##t(const __grid_constant__ struct te_k_attn_cached a)       \
	{                                                                                     \
		te_begin();                                                                   \
		append<T, C>(a);                                                              \
	}                                                                                     \
	extern "C" __global__ void __launch_bounds__(ATTN_CACHED_THREADS)                     \
		te_k_attn_cached_##t(const __grid_constant__ struct te_k_attn_cached a)       \
	{                                                                                     \
		te_begin();                                                                   \
		attend<T, C>(a);                                                              \
	}
TE_NAME(float, float, fp32_fp32)
TE_NAME(float, bf16, fp32_bf16)
TE_NAME(bf16, float, bf16_fp32)
TE_NAME(bf16, bf16, bf16_bf16)
#undef TE_NAME
