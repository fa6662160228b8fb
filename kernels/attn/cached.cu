/*
 * cached.cu - attention to a cache of keys and values, compute capability 8.0 and up. Compiled
 * without spills.
 *
 *  kernel       blocks                                  threads  shared
 *  attn_append  a row                                   128      0
 *  attn_cached  a row, up to 4 query heads of a key/    128      17 KiB
 *               value head, and a part of the keys
 *
 * T is FP32 or BF16; the type of the cache is one of these or E4M3. With E4M3 a warp of append has
 * a head at a time, and attn_cached multiplies scores and weights by the scale-inverses of keys and
 * values.
 *
 * In attn_cached a lane has 8 channels, and as
 * many lanes as a head needs, a power of two, have a key: the group. A group computes the softmax
 * of STEPS keys at a time, and rescales its sums (online.h); a key is loaded once for all heads of
 * the block. Groups are joined in the order of a tree, then warps and then parts in ascending
 * order, so that results depend on the arguments only. Of several parts, the block that counts the
 * last one in ready joins all of them.
 */
#include "kernels/attn/cached.cuh"
#include "kernels/attn/geometry.h"

/* blocks of a multiprocessor, whose registers need no spills */
#define BLOCKS(T, C) (sizeof(C) == 4 ? 2 : sizeof(T) == 4 ? 3 : 4)
#define WARPS (ATTN_CACHED_THREADS / 32)
#define STEPS 4
#define MAX_D TE_K_ATTN_CUDA_HEAD_DIM
#define HEADS TE_K_ATTN_CACHED_HEADS
#define SPLITS TE_K_ATTN_CACHED_SPLITS

/* x: the keys of all heads of a row, and then their values; the token is where they are stored */
template <class T>
DEV void append_codes(const struct te_k_attn_cached &a, const T *x, int64_t token)
{
	const int lane = threadIdx.x % 32, d = a.head_dim;

#pragma unroll 1
	for (int i = threadIdx.x / 32; i < 2 * a.nkv; i += WARPS) {
		const int is_v = i >= a.nkv;
		const int64_t block = token * a.nkv + (is_v ? i - a.nkv : i);
		uint8_t *code = (uint8_t *)(is_v ? a.v : a.k) + block * d;
		float v[MAX_D / 32], s, amax = 0.0f;
		uint32_t byte;

#pragma unroll
		for (int k = 0; k < MAX_D / 32; k++) {
			const int c = 32 * k + lane;

			v[k] = c < d ? to_float(x[(int64_t)i * d + c]) : 0.0f;
			amax = amax_of(amax, v[k]);
		}
		byte = mx_byte(TE_D_E4M3, warp_amax(amax));
		s = mx_scale(byte);
#pragma unroll
		for (int k = 0; k < MAX_D / 32; k++)
			if (32 * k + lane < d)
				code[32 * k + lane] =
					(uint8_t)fp8x2(TE_D_E4M3, mul(v[k], s), 0.0f);
		if (!lane)
			(is_v ? a.v_scale : a.k_scale)[block] = (uint8_t)byte;
	}
}

template <class T, class C> DEV void append(const struct te_k_attn_cached &a)
{
	const int64_t r = blockIdx.x, width = (int64_t)a.nkv * a.head_dim;
	const int64_t qwidth = (int64_t)a.nheads * a.head_dim;
	const T *x = (const T *)a.qkv + r * (qwidth + 2 * width) + qwidth;
	const enum where where = find(a, r);
	int64_t to;

	if (where == OUTSIDE && a.noutside && !threadIdx.x)
		atomicAdd((unsigned *)a.noutside, 1u);
	if (where != INSIDE)
		return;
	to = token_at(a, a.sequence[r], a.position[r]);
	if constexpr (is_same<C, e4m3>) {
		append_codes(a, x, to);
	} else {
		to *= width;
		for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
			((C *)a.k)[to + i] = from_float<C>(to_float(x[i]));
			((C *)a.v)[to + i] = from_float<C>(to_float(x[width + i]));
		}
	}
}

/* n of TE_V channels; vec: n is 0 or TE_V, and p is aligned to 16 bytes */
template <class T> DEV raw<T> load_channels(const T *p, int n, bool vec)
{
	float v[TE_V];

	if (vec)
		return n ? load_raw(p) : zero_raw<T>();
	load_some(p, n, v);
	return pack<T>(v); /* exact */
}

DEV uint2 load_channels(const e4m3 *p, int n, bool vec)
{
	uint2 r = make_uint2(0, 0);

	if (vec)
		return n ? *(const uint2 *)p : r;
#pragma unroll
	for (int e = 0; e < TE_V; e++)
		(e < 4 ? r.x : r.y) |= e < n ? (uint32_t)p[e].bits << e % 4 * 8 : 0;
	return r;
}

/* the channels of a lane as loaded from the cache, and as they are unpacked for each head */
template <class C> struct channels {
	typedef raw<C> as_loaded, as_used;
};
template <> struct channels<e4m3> {
	typedef uint2 as_loaded;
	typedef raw<fp16> as_used;
};

DEV raw<fp16> use(const uint2 &x)
{
	return decode_codes(x);
}

template <class R> DEV R use(const R &x)
{
	return x;
}

/* the parts of this block's heads, of which another block may have written all but one */
template <class T>
DEV void join_parts(const struct te_k_attn_cached &a, int64_t head, int nh, int n)
{
	__shared__ float f[HEADS][SPLITS], inverse[HEADS];
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, d = a.head_dim;
	const int64_t stride = d + 2;
	const float *parts = a.parts + head * a.nsplits * stride;

	for (int h = warp; h < nh; h += WARPS) {
		const float *p = parts + h * a.nsplits * stride + d;
		float most = -TE_INF, sum = 0.0f;

		for (int i = lane; i < n; i += 32)
			most = fmaxf(most, __ldcg(p + i * stride));
#pragma unroll
		for (int w = 16; w; w /= 2)
			most = fmaxf(most, __shfl_xor_sync(~0u, most, w));
		for (int i = lane; i < n; i += 32) {
			f[h][i] = weight_of(__ldcg(p + i * stride), most);
			sum += f[h][i] * __ldcg(p + i * stride + 1);
		}
#pragma unroll
		for (int w = 16; w; w /= 2)
			sum += __shfl_xor_sync(~0u, sum, w);
		if (!lane)
			inverse[h] = inverse_of(sum);
	}
	__syncthreads();
	for (int i = threadIdx.x; i < nh * d; i += blockDim.x) {
		const int h = i / d;
		const float *p = parts + h * a.nsplits * stride + i % d;
		float y = 0.0f;

#pragma unroll 8
		for (int k = 0; k < n; k++)
			y += f[h][k] * __ldcg(p + k * stride);
		((T *)a.out)[head * d + i] = from_float<T>(y * inverse[h]);
	}
}

/* what a block computes: part split of nsplits of a row's keys, for a chunk of the heads of g */
struct work {
	int size, nchunks, nsplits, split, chunk, g;
	int64_t r;
};

DEV struct work work_of_block(const struct te_k_attn_cached &a)
{
	const int size = a.nheads / a.nkv, nchunks = (size + HEADS - 1) / HEADS;
	const int nsplits = a.nsplits > 1 ? a.nsplits : 1, b = blockIdx.x / nsplits;

	return { size, nchunks, nsplits, (int)blockIdx.x % nsplits, b % nchunks,
		 b / nchunks % a.nkv, b / nchunks / a.nkv };
}

/* lanes that have a key */
DEV int lanes_of(int head_dim)
{
	int lanes = 1;

	while (lanes * TE_V < head_dim)
		lanes *= 2;
	return lanes;
}

/* keys of a part, a multiple of what the warps of a block take at a time */
DEV int keys_of_part(int nkeys, int nsplits, int lanes)
{
	const int per = (nkeys + nsplits - 1) / nsplits, step = WARPS * STEPS * 32 / lanes;

	return (per + step - 1) / step * step;
}

/*
 * The first keys and values of the part into L2, while kernels before this one may still run. What
 * is read here may be written by them: it is only a guess of addresses inside of the cache.
 */
template <class C> DEV void prefetch(const struct te_k_attn_cached &a)
{
	const struct work w = work_of_block(a);
	const int64_t s = __ldcg(a.sequence + w.r), pos = __ldcg(a.position + w.r);
	const int64_t nbytes = (int64_t)sizeof(C) * a.head_dim;
	int first, per, end;

	if (w.chunk || s < 0 || s >= a.nseqs || pos < 0 || pos >= a.max_pages * a.page)
		return;
	first = (int)te_k_attn_first(pos, a.window, 0);
	per = keys_of_part((int)pos + 1 - first, w.nsplits, lanes_of(a.head_dim));
	first += w.split * per;
	end = min((int)pos + 1, first + min(per, (int)blockDim.x));
	if (first + (int)threadIdx.x < end) {
		const int p = first + threadIdx.x, i = p / (int)a.page;
		const int64_t entry = s * a.max_pages + i;
		const int64_t page = a.pages ? __ldcg(a.pages + entry) : entry;
		const int64_t at = ((page * a.page + p % (int)a.page) * a.nkv + w.g) * nbytes;

		if (page < 0 || page >= a.npages)
			return;
		for (int64_t k = 0; k < nbytes; k += 128) {
			asm volatile("prefetch.global.L2 [%0];" :: "l"((const char *)a.k + at + k));
			asm volatile("prefetch.global.L2 [%0];" :: "l"((const char *)a.v + at + k));
		}
	}
}

template <class T, class C> DEV void attend(const struct te_k_attn_cached &a)
{
	__shared__ float most[WARPS][HEADS], sums[WARPS][HEADS], parts[WARPS][HEADS][MAX_D];
	__shared__ float slopes[HEADS];
	__shared__ int last, at_pos; /* the row's position */
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, d = a.head_dim;
	const struct work mine = work_of_block(a);
	const int size = mine.size, nchunks = mine.nchunks, nsplits = mine.nsplits;
	const int split = mine.split, chunk = mine.chunk, g = mine.g;
	const int64_t r = mine.r;
	const int nh = min(size - chunk * HEADS, HEADS);
	const int64_t head = r * a.nheads + g * size + chunk * HEADS; /* in out */
	const enum where where = find(a, r);
	const int lanes = lanes_of(d);
	int begin, end, first, per, nparts;

	if (where != INSIDE) {
		for (int i = threadIdx.x; i < nh * d && !split; i += blockDim.x)
			((T *)a.out)[head * d + i] = from_float<T>(0.0f);
		return;
	}
	first = (int)te_k_attn_first(a.position[r], a.window, 0);
	end = a.position[r] + 1;
	per = keys_of_part(end - first, nsplits, lanes);
	nparts = (end - first + per - 1) / per;
	if (split >= nparts)
		return;
	begin = first + split * per;
	end = min(end, begin + per);

	const int at = lane % lanes * TE_V, n = clamp_int(d - at, 0, TE_V), nkeys = 32 / lanes;
	const bool vec = d % TE_V == 0 && aligned(a.qkv) && aligned(a.k) && aligned(a.v);
	const T *q = (const T *)a.qkv + r * (a.nheads + 2 * a.nkv) * d +
		     (int64_t)(g * size + chunk * HEADS) * d + at;
	const int64_t sequence = a.sequence[r];
	struct softmax x[HEADS];
	float qs[HEADS][TE_V];

	if (a.slopes) {
		if (threadIdx.x < nh)
			slopes[threadIdx.x] = a.slopes[g * size + chunk * HEADS + threadIdx.x];
		if (!threadIdx.x)
			at_pos = a.position[r];
		__syncthreads();
	}

	/* the first keys of a row are joined with its sinks */
#pragma unroll
	for (int h = 0; h < HEADS; h++) {
		x[h] = { -TE_INF, 0.0f, {} };
		if (a.sinks && h < nh && !split && threadIdx.x < lanes)
			x[h] = { a.sinks[g * size + chunk * HEADS + h], 1.0f, {} };
		unpack(load_channels(q + h * d, h < nh ? n : 0, vec), qs[h]);
	}
#pragma unroll 1
	for (int p0 = begin + warp * nkeys * STEPS; p0 < end; p0 += WARPS * nkeys * STEPS) {
		typename channels<C>::as_loaded loaded[STEPS], values[STEPS];
		typename channels<C>::as_used keys[STEPS];
		float s[STEPS], ks[STEPS], vs[STEPS];

#pragma unroll
		for (int i = 0; i < STEPS; i++) {
			const int p = p0 + i * nkeys + lane / lanes, have = p < end ? n : 0;
			const int64_t t = token_at(a, sequence, min(p, end - 1)) * a.nkv + g;

			loaded[i] = load_channels((const C *)a.k + t * d + at, have, vec);
			values[i] = load_channels((const C *)a.v + t * d + at, have, vec);
			ks[i] = is_same<C, e4m3> ? mx_inverse(a.k_scale[t]) : 1.0f;
			vs[i] = is_same<C, e4m3> ? mx_inverse(a.v_scale[t]) : 1.0f;
		}
#pragma unroll
		for (int i = 0; i < STEPS; i++)
			keys[i] = use(loaded[i]);
#pragma unroll
		for (int h = 0; h < HEADS; h++) {
			float next = x[h].m, w;

			if (h >= nh)
				break;
#pragma unroll
			for (int i = 0; i < STEPS; i++) {
				float k[TE_V];

				unpack(keys[i], k);
				s[i] = 0.0f;
#pragma unroll
				for (int e = 0; e < TE_V; e++)
					s[i] = fmaf(qs[h][e], k[e], s[i]);
			}
#pragma unroll 1
			for (int l = lanes / 2; l; l /= 2)
#pragma unroll
				for (int i = 0; i < STEPS; i++)
					s[i] += __shfl_xor_sync(~0u, s[i], l);
#pragma unroll
			for (int i = 0; i < STEPS; i++) {
				const int p = p0 + i * nkeys + lane / lanes;

				s[i] *= is_same<C, e4m3> ? ks[i] * a.scale : a.scale;
				if (a.softcap != 0.0f)
					s[i] = a.softcap * tanhf(s[i] / a.softcap);
				if (a.slopes)
					s[i] -= slopes[h] * (float)(at_pos - p);
				if (p >= end)
					s[i] = -TE_INF;
				next = fmaxf(next, s[i]);
			}
			w = weight_of(x[h].m, next);
			x[h].m = next;
			x[h].l *= w;
#pragma unroll
			for (int e = 0; e < TE_V; e++)
				x[h].acc[e] *= w;
#pragma unroll
			for (int i = 0; i < STEPS; i++) {
				float v[TE_V];

				unpack(use(values[i]), v);
				w = weight_of(s[i], next);
				x[h].l += w;
				w *= vs[i];
#pragma unroll
				for (int e = 0; e < TE_V; e++)
					x[h].acc[e] = fmaf(w, v[e], x[h].acc[e]);
			}
		}
	}
#pragma unroll
	for (int h = 0; h < HEADS; h++) {
		if (h >= nh)
			break;
		for (int w = lanes; w < 32; w *= 2) {
			const float m = __shfl_xor_sync(~0u, x[h].m, w);
			const float l = __shfl_xor_sync(~0u, x[h].l, w);
			float acc[TE_V];

#pragma unroll
			for (int e = 0; e < TE_V; e++)
				acc[e] = __shfl_xor_sync(~0u, x[h].acc[e], w);
			join(x[h], m, l, acc);
		}
		if (!lane) {
			most[warp][h] = x[h].m;
			sums[warp][h] = x[h].l;
		}
#pragma unroll
		for (int e = 0; e < TE_V; e++)
			if (lane < lanes && e < n)
				parts[warp][h][at + e] = x[h].acc[e];
	}
	__syncthreads();
	for (int i = threadIdx.x; i < nh * d; i += blockDim.x) {
		const int h = i / d, c = i % d;
		float *to = a.parts + ((head + h) * nsplits + split) * (d + 2);
		float all = -TE_INF, sum = 0.0f, y = 0.0f;

#pragma unroll
		for (int w = 0; w < WARPS; w++)
			all = fmaxf(all, most[w][h]);
#pragma unroll
		for (int w = 0; w < WARPS; w++) {
			const float f = weight_of(most[w][h], all);

			sum += sums[w][h] * f;
			y += parts[w][h][c] * f;
		}
		if (nparts == 1) {
			((T *)a.out)[head * d + i] = from_float<T>(sum == 0.0f ? 0.0f : y / sum);
			continue;
		}
		to[c] = y;
		if (!c) {
			to[d] = all;
			to[d + 1] = sum;
		}
	}
	if (nparts == 1)
		return;
	__threadfence();
	__syncthreads();
	if (!threadIdx.x) {
		unsigned *ready = (unsigned *)a.ready + (r * a.nkv + g) * nchunks + chunk;

		last = atomicAdd(ready, 1u) == (unsigned)nparts - 1;
		if (last)
			*ready = 0;
	}
	__syncthreads();
	if (!last)
		return;
	__threadfence();
	join_parts<T>(a, head, nh, nparts);
}

#define TE_NAME(T, C, t)                                                                      \
	extern "C" __global__ void __launch_bounds__(ATTN_CACHED_THREADS)                     \
		te_k_attn_append_##t(const __grid_constant__ struct te_k_attn_cached a)       \
	{                                                                                     \
		te_begin_early();                                                             \
		append<T, C>(a);                                                              \
	}                                                                                     \
	extern "C" __global__ void __launch_bounds__(ATTN_CACHED_THREADS,                     \
						   BLOCKS(T, C))                              \
		te_k_attn_cached_##t(const __grid_constant__ struct te_k_attn_cached a)       \
	{                                                                                     \
		prefetch<C>(a);                                                               \
		te_begin_early();                                                             \
		attend<T, C>(a);                                                              \
	}
TE_NAME(float, float, fp32_fp32)
TE_NAME(float, bf16, fp32_bf16)
TE_NAME(float, e4m3, fp32_e4m3)
TE_NAME(bf16, float, bf16_fp32)
TE_NAME(bf16, bf16, bf16_bf16)
TE_NAME(bf16, e4m3, bf16_e4m3)
#undef TE_NAME
