/*
 * quant.cu - amax, scales, FP8 casts both ways, casts of T. sm_90a.
 *
 *  kernel             shapes                     blocks               threads  shared  B/element
 *  clear              1 word                     1                    1        0
 *  fill               n words or bytes           16 KiB, 528 at most  256      0       1 per byte
 *  scale_current      1 word                     1                    1        0
 *  scale_delayed      [nslots, history_len]      a slot               256      32      8 per word
 *  amax               x T [n]                    1056 at most         256      128     2 (BF16)
 *  quantize           x T [rows, cols] to codes  a 64 x 128 tile      256      8320    3; both: 4
 *  quantize_small_m   the same, whole vectors    a 64 x 32 tile       256      2080    the same
 *  quantize_1x128     the same, block-scaled     a 128 x 128 tile     256      20992   3; both: 4
 *  quantize_128x128   the same, block-scaled     a 128 x 128 tile     256      20992   3; both: 4
 *  dequantize         codes [n] to T             4096 elements        256      0       3 (BF16)
 *  cast               [n]                        4096 elements        256      0       by types
 *
 * quantize reads its input once and writes both copies, see tile.cuh. The block-scaled variants
 * compute a scale for each block from the tile that they hold, see block.cuh. The others are bound
 * by memory: two vectors in flight per thread, eight blocks per multiprocessor.
 */
#define TE_FP8_INLINE __forceinline__ /* kernels that are nothing else */
#include "kernels/block.cuh"
#include "kernels/quant/geometry.h"
#include "kernels/tile.cuh"

extern "C" __global__ void te_k_clear(const __grid_constant__ struct te_k_clear a)
{
	te_begin();
	if (!noop_set(a.noop))
		*a.word = 0.0f;
}

/* --- fill ---------------------------------------------------------------- */

extern "C" __global__ void __launch_bounds__(FILL_THREADS)
	te_k_fill(const __grid_constant__ struct te_k_fill a)
{
	te_begin();

	const uint32_t byte = a.value & 0xff;
	const uint32_t word = a.elem == 4 ? a.value : byte * 0x01010101u;
	const uint64_t begin = (uint64_t)a.dst, end = begin + (uint64_t)a.n * a.elem;
	/* vectors in the middle, elements at both ends; a vector repeats one aligned word */
	const uint64_t lo = min((begin + 15) & ~(uint64_t)15, end);
	const uint64_t hi = max(end & ~(uint64_t)15, lo);
	const uint64_t step = (uint64_t)FILL_UNROLL * FILL_THREADS * 16;

	for (uint64_t p = lo + blockIdx.x * step + threadIdx.x * 16; p < hi; p += gridDim.x * step)
#pragma unroll
		for (int u = 0; u < FILL_UNROLL; u++)
			if (p + u * FILL_THREADS * 16 < hi)
				__stcs((uint4 *)(p + u * FILL_THREADS * 16),
				       make_uint4(word, word, word, word));
	if (blockIdx.x || threadIdx.x >= 32)
		return;
	for (int side = 0; side < 2; side++) {
		const uint64_t p = (side ? hi : begin) + (uint64_t)threadIdx.x * a.elem;

		if (p >= (side ? end : lo))
			continue;
		if (a.elem == 4)
			*(uint32_t *)p = word;
		else
			*(unsigned char *)p = (unsigned char)byte;
	}
}

/* --- amax ---------------------------------------------------------------- */

template <class T> DEV void amax_body(const struct te_k_amax &a)
{
	const T *x = (const T *)a.x;
	const int64_t nthreads = (int64_t)gridDim.x * blockDim.x;
	const int64_t nvec = aligned(x) ? a.n / TE_V : 0;
	int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
	float m = 0.0f, v[TE_V];

	if (noop_set(a.noop))
		return;
	for (int64_t j = nvec * TE_V + i; j < a.n; j += nthreads)
		m = amax_of(m, to_float(x[j]));
	for (; i + (AMAX_UNROLL - 1) * nthreads < nvec; i += AMAX_UNROLL * nthreads) {
		raw<T> r[AMAX_UNROLL];

#pragma unroll
		for (int u = 0; u < AMAX_UNROLL; u++)
			r[u] = load_raw(x + (i + u * nthreads) * TE_V);
#pragma unroll
		for (int u = 0; u < AMAX_UNROLL; u++) {
			unpack(r[u], v);
#pragma unroll
			for (int e = 0; e < TE_V; e++)
				m = amax_of(m, v[e]);
		}
	}
	for (; i < nvec; i += nthreads) {
		load_vec(x + i * TE_V, v);
#pragma unroll
		for (int e = 0; e < TE_V; e++)
			m = amax_of(m, v[e]);
	}
	block_amax(a.amax, m);
}

TE_KERNEL(amax_fp32, amax, (AMAX_THREADS), amax_body<float>(a))
TE_KERNEL(amax_bf16, amax, (AMAX_THREADS), amax_body<bf16>(a))

/* --- scales -------------------------------------------------------------- */

DEV bool no_scale_from(float amax)
{
	/* zero, infinite or NaN */
	return amax == 0.0f || !(fabsf(amax) < TE_INF);
}

DEV float scale_from(float most, float amax)
{
	const float s = __fdiv_rn(most, amax);

	return fabsf(s) == TE_INF ? TE_FLT_MAX : s;
}

extern "C" __global__ void
te_k_scale_current(const __grid_constant__ struct te_k_scale_current a)
{
	te_begin();
	float amax, s;

	if (noop_set(a.noop))
		return;
	amax = *a.amax < a.epsilon ? a.epsilon : *a.amax;
	s = no_scale_from(amax) ? 1.0f : scale_from(a.fmt_max, amax);
	if (a.pow2)
		s = __uint_as_float(__float_as_uint(s) & 0x7f800000u);
	*a.scale = s;
}

/*
 * The history is shifted by one, 1024 words at a time. All words of a step are read before any is
 * written, and the next step reads only words that this one did not write.
 */
extern "C" __global__ void __launch_bounds__(DELAYED_THREADS)
	te_k_scale_delayed(const __grid_constant__ struct te_k_scale_delayed a)
{
	te_begin();
	__shared__ float part[DELAYED_THREADS / 32];
	const int slot = a.first + blockIdx.x, len = a.history_len;
	float *h = a.history + (int64_t)slot * len;
	const float newest = h[0], fmt_max = a.fmt_max[slot];
	float m = newest;

	for (int i0 = 1 + threadIdx.x; i0 - (int)threadIdx.x < len;
	     i0 += DELAYED_THREADS * DELAYED_UNROLL) {
		float now[DELAYED_UNROLL], next[DELAYED_UNROLL];

#pragma unroll
		for (int u = 0; u < DELAYED_UNROLL; u++) {
			const int i = i0 + u * DELAYED_THREADS;

			now[u] = i < len ? h[i] : newest;
			next[u] = i + 1 < len ? h[i + 1] : newest;
		}
		if (newest == 0.0f)
			return;
		__syncthreads();
#pragma unroll
		for (int u = 0; u < DELAYED_UNROLL; u++) {
			const int i = i0 + u * DELAYED_THREADS;

			m = fmaxf(m, now[u]);
			if (i < len)
				h[i] = next[u];
		}
	}
	if (newest == 0.0f)
		return;
	m = warp_max(m);
	if (threadIdx.x % 32 == 0)
		part[threadIdx.x / 32] = m;
	__syncthreads(); /* and every thread has read h[0] */
	if (threadIdx.x)
		return;
#pragma unroll
	for (int w = 0; w < DELAYED_THREADS / 32; w++)
		m = fmaxf(m, part[w]);
	if (a.most_recent)
		m = newest;
	h[0] = 0.0f;
	if (!no_scale_from(m))
		a.scale[slot] = scale_from(mul(fmt_max, a.margin_factor), m);
}

/* --- quantize, dequantize, cast ------------------------------------------ */

/* PAD: the copies have padding, for which elements of x are 0 */
template <class T, int D, int R, bool PAD> DEV void quantize_body(const struct te_k_quantize &a)
{
	__shared__ tile_codes<R> codes;
	const tile<R> t = tile_of_block<R>(a.rows, a.cols);
	struct tile_out<T> o = {
		NULL, a.q, NULL, 0, 1.0f,
		R == TILE_SMALL_R || tile_vec(a.cols, PAD ? NULL : a.x, NULL, &a.q),
	};
	float v[R][TE_V], m;
	tile_raw<T, R> x;

	/* small tiles are bound by latency: their noop word is loaded together with x */
	if (R != TILE_SMALL_R && noop_set(a.q.noop))
		return;
	/* FP32: master weights, which are read once */
	if constexpr (PAD) {
		const tile<R> in = tile_unpadded(t, a.pad_rows, a.pad_cols);

		x = tile_load<T, sizeof(T) == 4>(&in, a.x, in.end, t.c,
						 tile_vec(in.end, a.x, NULL, &a.q));
	} else {
		x = tile_load<T, sizeof(T) == 4>(&t, a.x, a.cols, t.c, o.vec);
	}
	o.scale = q_scale(&a.q);
	o.q.dtype = D;
	if (R == TILE_SMALL_R && noop_set(a.q.noop))
		return;
	if (R != TILE_SMALL_R)
		q_scale_inv(&a.q, o.scale);
#pragma unroll
	for (int i = 0; i < R; i++)
		unpack(x.row[i], v[i]);
	m = tile_put<T, R, R == TILE_SMALL_R>(&o, &t, v, &codes, NULL, 0.0f);
	if (R != TILE_SMALL_R && a.q.amax)
		block_amax(a.q.amax, m);
	if (R == TILE_SMALL_R)
		q_scale_inv(&a.q, o.scale);
}

#define FUNC(T, D, R, PAD, name)                                                                \
	TE_KERNEL(quantize_##name, quantize, (TILE_THREADS, PAD ? 3 : sizeof(T) == 2 ? 5 : 4),  \
		  quantize_body<T, D, R, PAD>(a))
#define TE_NAME(T, D, name)                             \
	FUNC(T, D, TILE_R, false, name)                 \
	FUNC(T, D, TILE_R, true, pad_##name)            \
	FUNC(T, D, TILE_SMALL_R, false, small_m_##name)
TE_NAME(float, TE_D_E4M3, fp32_e4m3)
TE_NAME(float, TE_D_E5M2, fp32_e5m2)
TE_NAME(bf16, TE_D_E4M3, bf16_e4m3)
TE_NAME(bf16, TE_D_E5M2, bf16_e5m2)
#undef TE_NAME
#undef FUNC

/* block scaling; SCALING: 128X128 of weights, 1X128 of activations and gradients */
template <class T, int SCALING, bool PAD>
DEV void quantize_block_body(const struct te_k_quantize &a)
{
	__shared__ block_shared<false> shared;
	const block_tile t = block_of_grid(a.rows, a.cols, 0);
	const block_out<T> o = { NULL, a.q, NULL, block_vec(a.cols, PAD ? NULL : a.x, NULL, a.q) };
	const T *x = (const T *)a.x + t.r * (PAD ? a.cols - a.pad_cols : a.cols) + t.c;
	raw<T> v[BLOCK_R];

	if (noop_set(a.q.noop))
		return;
	/* FP32: master weights, which are read once */
	if constexpr (PAD) {
		const block_tile in = block_unpadded(t, a.pad_rows, a.pad_cols);
		const bool vec = block_vec(in.cols, a.x, NULL, a.q);

#pragma unroll
		for (int i = 0; i < BLOCK_R; i++)
			v[i] = block_load<sizeof(T) == 4>(x + i * in.cols, block_n(in, i), vec);
	} else {
#pragma unroll
		for (int i = 0; i < BLOCK_R; i++)
			v[i] = block_load<sizeof(T) == 4>(x + i * a.cols, block_n(t, i), o.vec);
	}
	block_put(o, SCALING, t, v, &shared);
}

#define FUNC(T, SCALING, PAD, name)                                                             \
	TE_KERNEL(quantize_##name, quantize, (BLOCK_THREADS, sizeof(T) == 2 && !PAD ? 3 : 2),   \
		  quantize_block_body<T, SCALING, PAD>(a))
#define TE_NAME(T, SCALING, name)            \
	FUNC(T, SCALING, false, name)        \
	FUNC(T, SCALING, true, pad_##name)
TE_NAME(float, TE_K_SCALING_1X128, 1x128_fp32)
TE_NAME(bf16, TE_K_SCALING_1X128, 1x128_bf16)
TE_NAME(float, TE_K_SCALING_128X128, 128x128_fp32)
TE_NAME(bf16, TE_K_SCALING_128X128, 128x128_bf16)
#undef TE_NAME
#undef FUNC

template <int D, class T> DEV void dequantize_body(const struct te_k_dequantize &a)
{
	const uint8_t *x = (const uint8_t *)a.x;
	const bool vec = ((uint64_t)x & 7) == 0 && aligned(a.y) && !a.pad_cols;
	const int64_t width = a.cols - a.pad_cols, n = (a.rows - a.pad_rows) * width;
	/* otherwise a vector could have elements of several blocks */
	const bool blocks = a.scaling != TE_K_SCALING_TENSOR, whole = width % TE_V == 0;
	const float one = blocks ? 0.0f : *a.scale_inv;
	uint2 code[TE_FLAT_UNROLL];

#pragma unroll
	for (int u = 0; u < TE_FLAT_UNROLL; u++) {
		const int64_t at = flat_at(u);

		code[u] = make_uint2(0, 0);
		if (vec && at + TE_V <= n) {
			code[u] = *(const uint2 *)(x + at);
			continue;
		}
#pragma unroll
		for (int e = 0; e < TE_V; e++)
			if (at + e < n) {
				const int64_t skipped =
					a.pad_cols ? (at + e) / width * a.pad_cols : 0;
				const uint32_t c = (uint32_t)x[at + e + skipped] << (e % 4 * 8);

				if (e < 4)
					code[u].x |= c;
				else
					code[u].y |= c;
			}
	}
#pragma unroll
	for (int u = 0; u < TE_FLAT_UNROLL; u++) {
		const int64_t at = flat_at(u);
		const uint32_t half[4] = { fp8x2_decode(D, code[u].x),
					   fp8x2_decode(D, code[u].x >> 16),
					   fp8x2_decode(D, code[u].y),
					   fp8x2_decode(D, code[u].y >> 16) };
		float v[TE_V], scale_inv = one;

#pragma unroll
		for (int e = 0; e < TE_V; e++) {
			if (blocks && at + e < n && (e == 0 || !whole))
				scale_inv = a.scale_inv[te_k_scale_index(
					a.scaling, a.rows, a.cols, (at + e) / width,
					(at + e) % width)];
			v[e] = mul(to_float(fp16{ (unsigned short)(half[e / 2] >> (e % 2 * 16)) }),
				   scale_inv);
		}
		flat_put((T *)a.y, n, vec, u, v);
	}
}

#define TE_NAME(D, T, d, t)                                             \
	TE_KERNEL(dequantize_##d##_##t, dequantize, (TE_FLAT_THREADS),  \
		  dequantize_body<D, T>(a))
TE_NAME(TE_D_E4M3, float, e4m3, fp32)
TE_NAME(TE_D_E4M3, bf16, e4m3, bf16)
TE_NAME(TE_D_E4M3, fp16, e4m3, fp16)
TE_NAME(TE_D_E5M2, float, e5m2, fp32)
TE_NAME(TE_D_E5M2, bf16, e5m2, bf16)
TE_NAME(TE_D_E5M2, fp16, e5m2, fp16)
#undef TE_NAME

template <class X, class Y> DEV void cast_body(const struct te_k_cast &a)
{
	const bool vec = aligned(a.x) && aligned(a.y);
	float v[TE_FLAT_UNROLL][TE_V];

	if (noop_set(a.noop))
		return;
#pragma unroll
	for (int u = 0; u < TE_FLAT_UNROLL; u++) {
		const int64_t at = flat_at(u);

		if (vec && at + TE_V <= a.n)
			unpack(load_raw<true>((const X *)a.x + at), v[u]);
		else
			load_some((const X *)a.x + at, clamp_int(a.n - at, 0, TE_V), v[u]);
	}
#pragma unroll
	for (int u = 0; u < TE_FLAT_UNROLL; u++)
		flat_put((Y *)a.y, a.n, vec, u, v[u]);
}

#define TE_NAME(X, Y, x, y)     \
	TE_KERNEL(cast_##x##_##y, cast, (TE_FLAT_THREADS), cast_body<X, Y>(a))
TE_NAME(float, float, fp32, fp32)
TE_NAME(float, bf16, fp32, bf16)
TE_NAME(float, fp16, fp32, fp16)
TE_NAME(bf16, float, bf16, fp32)
TE_NAME(bf16, bf16, bf16, bf16)
TE_NAME(bf16, fp16, bf16, fp16)
TE_NAME(fp16, float, fp16, fp32)
TE_NAME(fp16, bf16, fp16, bf16)
TE_NAME(fp16, fp16, fp16, fp16)
#undef TE_NAME
