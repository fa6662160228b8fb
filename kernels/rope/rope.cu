/*
 * rope.cu - rotary position embedding. sm_90a.
 *
 *  kernel      shapes                         blocks             threads  shared  bytes an element
 *  rope        x T [rows, nheads * head_dim]  a row              256      512     4 (BF16)
 *  rope_heads  the same in BF16, with q       64 rows, 8 tiles   256      16448   2, to FP8 2
 *  rope_q      the same, with q               64 rows, 512 cols  256      8320 +  2, 2 of L1, FP8 2
 *                                                                         256 head_dim
 *
 * Bound by memory. A block computes the sines and cosines of its rows once, in shared memory, and
 * uses them for all its heads; rope_heads, which is for a head_dim of 16, 32, 64 and 128 without
 * interleaved pairs, has them in registers. In place, rope copies no heads that it does not rotate.
 */
#include "kernels/rope/geometry.h"
#include "kernels/rope/sincos.cuh"
#include "kernels/tile.cuh"

/*
 * One element: u of a head, w the other of its pair, with the cosine and sine of the pair at the
 * position.
 */
DEV float rotated(float u, float w, float c, float s, bool second)
{
	return second ? add(mul(u, c), mul(w, s)) : sub(mul(u, c), mul(w, s));
}

/* the pairs of two vectors, or with interleaved, each vector's; lo begins with element i */
DEV void rotate_vectors(const struct te_k_rope &a, float lo[TE_V], float hi[TE_V], int i,
			const float *cosine, const float *sine)
{
#pragma unroll
	for (int e = 0; e < TE_V; e++) {
		const float u = lo[e], w = hi[e];

		if (!a.interleaved) {
			lo[e] = rotated(u, w, cosine[i + e], sine[i + e], false);
			hi[e] = rotated(w, u, cosine[i + e], sine[i + e], true);
		} else if (e % 2) {
			const int k = (i + e) / 2, m = k + a.head_dim / 4;
			const float first = lo[e - 1], third = hi[e - 1];

			lo[e - 1] = rotated(first, u, cosine[k], sine[k], false);
			lo[e] = rotated(u, first, cosine[k], sine[k], true);
			hi[e - 1] = rotated(third, w, cosine[m], sine[m], false);
			hi[e] = rotated(w, third, cosine[m], sine[m], true);
		}
	}
}

template <class T> DEV void rope_body(const struct te_k_rope &a)
{
	__shared__ float cosine[TE_K_ROPE_MAX_HALF], sine[TE_K_ROPE_MAX_HALF];
	const int half = a.head_dim / 2;
	const int64_t width = (int64_t)a.nheads * a.head_dim;
	const int64_t r = blockIdx.x;
	const T *x = (const T *)a.x + r * width;
	T *y = (T *)a.y + r * width;
	const bool vec = half % TE_V == 0 && aligned(a.x) && aligned(a.y);
	const int step = vec ? TE_V : 1, per_head = half / step;
	const int nheads = x == y ? a.nrot : a.nheads; /* in place, the others keep their values */

	for (int i = threadIdx.x; i < half; i += blockDim.x) {
		sincos_of(mul((float)te_k_rope_position(&a, r), a.inv_freq[i]), &sine[i],
			  &cosine[i]);
		if (a.inverse)
			sine[i] = -sine[i];
	}
	__syncthreads();
	for (int k = threadIdx.x; k < nheads * per_head; k += blockDim.x) {
		const int head = k / per_head, i = k % per_head * step;
		const int64_t at = (int64_t)head * a.head_dim + i;

		if (vec) {
			float lo[TE_V], hi[TE_V];

			load_vec(x + at, lo);
			load_vec(x + at + half, hi);
			if (head < a.nrot)
				rotate_vectors(a, lo, hi, i, cosine, sine);
			store_vec(y + at, lo);
			store_vec(y + at + half, hi);
		} else {
			const int64_t first = a.interleaved ? at + i : at;
			const int64_t second = a.interleaved ? first + 1 : at + half;
			T lo = x[first], hi = x[second];

			if (head < a.nrot) {
				const float c = cosine[i], s = sine[i];
				const float u = to_float(lo), w = to_float(hi);

				lo = from_float<T>(rotated(u, w, c, s, false));
				hi = from_float<T>(rotated(w, u, c, s, true));
			}
			y[first] = lo;
			y[second] = hi;
		}
	}
}

template <class T> DEV void rope_q_body(const struct te_k_rope &a)
{
	__shared__ tile_codes<TILE_R> codes;
	extern __shared__ float cosine[]; /* [TILE_ROWS][half] */
	const int half = a.head_dim / 2;
	float *sine = cosine + TILE_ROWS * half;
	const int cols = a.nheads * a.head_dim, rot = a.nrot * a.head_dim;
	const int width = TILE_COLS * ROPE_Q_TILES, ngroups = (cols + width - 1) / width;
	const int64_t r0 = (int64_t)(blockIdx.x / ngroups) * TILE_ROWS;
	const int first = (int)(blockIdx.x % ngroups) * width;
	struct tile_out<T> o = { (T *)a.y, a.q, NULL, 0, 1.0f, tile_vec(cols, a.x, a.y, &a.q) };
	/* a vector is in one half of one head, and its pairs are in another vector */
	const bool whole = o.vec && half % TE_V == 0 && !a.interleaved;
	float m = 0.0f;

	if (noop_set(a.q.noop))
		return;
	o.scale = q_scale(&a.q);
	q_scale_inv(&a.q, o.scale);
	for (int k = threadIdx.x; first < rot && k < TILE_ROWS * half; k += TILE_THREADS) {
		const int row = k / half, i = k % half;
		const int64_t position = te_k_rope_position(&a, min(r0 + row, a.rows - 1));

		sincos_of(mul((float)position, a.inv_freq[i]), &sine[k], &cosine[k]);
		if (a.inverse)
			sine[k] = -sine[k];
	}
	__syncthreads();
	for (int c0 = first; c0 < min(cols, first + width); c0 += TILE_COLS) {
		const tile<TILE_R> t = tile_at<TILE_R>(a.rows, cols, r0, c0);
		const int c = (int)t.c, in = c % a.head_dim, row = (int)(t.r - r0);
		float v[TILE_R][TE_V];

		if (whole) {
			const tile_raw<T, TILE_R> x = tile_load<T>(&t, a.x, cols, c, true);
			const bool second = te_k_rope_is_second(&a, in);
			const int at = row * half + te_k_rope_pair(&a, in);
			tile_raw<T, TILE_R> other;

			if (c < rot)
				other = tile_load<T>(&t, a.x, cols,
						     c - in + te_k_rope_other(&a, in), true);
#pragma unroll
			for (int i = 0; i < TILE_R; i++) {
				float w[TE_V];

				unpack(x.row[i], v[i]);
				if (c >= rot)
					continue;
				unpack(other.row[i], w);
#pragma unroll
				for (int e = 0; e < TE_V; e++)
					v[i][e] = rotated(v[i][e], w[e], cosine[at + i * half + e],
							  sine[at + i * half + e], second);
			}
		} else {
#pragma unroll
			for (int i = 0; i < TILE_R; i++) {
				const T *x = (const T *)a.x + (t.r + i) * cols;
				const int n = tile_n(&t, i);

#pragma unroll
				for (int e = 0; e < TE_V; e++) {
					const int at = (c + e) % a.head_dim;
					const int k = (row + i) * half + te_k_rope_pair(&a, at);
					const int other = te_k_rope_other(&a, at) - at;

					v[i][e] = e < n ? to_float(x[c + e]) : 0.0f;
					if (e < n && c + e < rot)
						v[i][e] = rotated(v[i][e],
								  to_float(x[c + e + other]),
								  cosine[k], sine[k],
								  te_k_rope_is_second(&a, at));
				}
			}
		}
		m = tile_put<T, TILE_R>(&o, &t, v, &codes, NULL, m);
		__syncthreads(); /* the codes in shared memory have been read */
	}
	if (a.q.amax)
		block_amax(a.q.amax, m);
}

/*
 * rope_heads: a thread has 4 rows of a tile, in each 4 elements of the first half of a head and the
 * 4 of the second that are rotated with them, so that it needs the same sines and cosines in each
 * tile. For stores, it gives 4 of them to an adjacent lane: an even lane then has 8 elements of
 * the first half, an odd one 8 of the second.
 */
#define ROPE_E (TE_V / 2)

struct rope_pairs {
	uint2 lo[TILE_R], hi[TILE_R];
};

DEV rope_pairs rope_load(const bf16 *x, int64_t pitch, int nrows, int half)
{
	rope_pairs p;

#pragma unroll
	for (int i = 0; i < TILE_R; i++) {
		p.lo[i] = i < nrows ? *(const uint2 *)(x + i * pitch) : make_uint2(0, 0);
		p.hi[i] = i < nrows ? *(const uint2 *)(x + i * pitch + half) : make_uint2(0, 0);
	}
	return p;
}

/* 4 elements of both halves, rotated */
DEV void rope_rotate(uint2 *lo, uint2 *hi, const float c[ROPE_E], const float s[ROPE_E])
{
	uint32_t *const w[2] = { &lo->x, &hi->x };

#pragma unroll
	for (int k = 0; k < 2; k++) {
		const float2 u = unpack_bf16x2(w[0][k]), v = unpack_bf16x2(w[1][k]);

		w[0][k] = pack_bf16x2(sub(mul(u.x, c[2 * k]), mul(v.x, s[2 * k])),
				      sub(mul(u.y, c[2 * k + 1]), mul(v.y, s[2 * k + 1])));
		w[1][k] = pack_bf16x2(add(mul(v.x, c[2 * k]), mul(u.x, s[2 * k])),
				      add(mul(v.y, c[2 * k + 1]), mul(u.y, s[2 * k + 1])));
	}
}

/* the vector that the thread stores */
DEV raw<bf16> rope_exchange(uint2 lo, uint2 hi, bool odd)
{
	const uint2 give = odd ? lo : hi, keep = odd ? hi : lo;
	const uint2 got = make_uint2(__shfl_xor_sync(0xffffffffu, give.x, 1),
				     __shfl_xor_sync(0xffffffffu, give.y, 1));
	raw<bf16> v;

	v.q[0] = odd ? make_uint4(got.x, got.y, keep.x, keep.y) :
		       make_uint4(keep.x, keep.y, got.x, got.y);
	return v;
}

DEV void rope_heads_body(const struct te_k_rope &a)
{
	__shared__ tile_codes<TILE_R> codes[2]; /* two tiles: one barrier a tile */
	const int half = a.head_dim / 2, cols = a.nheads * a.head_dim;
	const int ntiles = (cols + TILE_COLS - 1) / TILE_COLS;
	const int ngroups = gridDim.x / (uint32_t)((a.rows + TILE_ROWS - 1) / TILE_ROWS);
	const int each = (ntiles + ngroups - 1) / ngroups;
	const tile<TILE_R> at = tile_number<TILE_R>(a.rows, ngroups * TILE_COLS, blockIdx.x);
	const int tx = threadIdx.x % tile<TILE_R>::TX, pair = tx * ROPE_E;
	const int begin = (int)at.c0 / TILE_COLS * each, end = min(ntiles, begin + each);
	const int head = pair / half, i0 = pair % half; /* in a tile */
	const int in = head * a.head_dim + i0;
	const int out = tx & 1 ? in - ROPE_E + half : in;
	const int nrows = clamp_int(a.rows - at.r, 0, TILE_R);
	const bf16 *x = (const bf16 *)a.x + at.r * cols + in;
	float cosine[TILE_R][ROPE_E], sine[TILE_R][ROPE_E], m = 0.0f, scale;
	rope_pairs p = {};

	if (begin * TILE_COLS + in < cols && begin < end)
		p = rope_load(x + begin * TILE_COLS, cols, nrows, half);
	if (noop_set(a.q.noop))
		return;
	scale = q_scale(&a.q);
	q_scale_inv(&a.q, scale);
#pragma unroll
	for (int i = 0; i < TILE_R; i++) {
		const int64_t r = min(at.r + i, a.rows - 1);
		const float position = (float)te_k_rope_position(&a, r);

#pragma unroll
		for (int e = 0; e < ROPE_E; e++) {
			sincos_of(mul(position, a.inv_freq[i0 + e]), &sine[i][e], &cosine[i][e]);
			if (a.inverse)
				sine[i][e] = -sine[i][e];
		}
	}
#pragma unroll 1
	for (int k = begin; k < end; k++) {
		const int c0 = k * TILE_COLS;
		const bool rotates = c0 / a.head_dim + head < a.nrot;
		const int n = c0 + in < cols ? nrows : 0;
		rope_pairs next = {};
		uint2 code[TILE_R];

		if (k + 1 < end && c0 + TILE_COLS + in < cols)
			next = rope_load(x + c0 + TILE_COLS, cols, nrows, half);
#pragma unroll
		for (int i = 0; i < TILE_R; i++) {
			const int64_t to = (at.r + i) * cols + c0 + out;
			float v[TE_V];
			raw<bf16> w;

			if (rotates)
				rope_rotate(&p.lo[i], &p.hi[i], cosine[i], sine[i]);
			w = rope_exchange(p.lo[i], p.hi[i], tx & 1);
			unpack(w, v);
			if (a.y && i < n)
				store_raw((bf16 *)a.y + to, w);
#pragma unroll
			for (int e = 0; e < TE_V; e++)
				m = amax_of(m, v[e]);
			code[i] = fp8x8(a.q.dtype, v, scale);
			if (a.q.row && i < n)
				*(uint2 *)((uint8_t *)a.q.row + to) = code[i];
		}
		if (a.q.col) {
			const tile<TILE_R> t = tile_at<TILE_R>(a.rows, cols, at.r0, c0);

			codes_put(&codes[k & 1], code, out / TE_V);
			__syncthreads();
			codes_store<false>(&codes[k & 1], &t, (uint8_t *)a.q.col);
		}
		p = next;
	}
	if (a.q.amax)
		block_amax(a.q.amax, m);
}

TE_KERNEL(rope_heads_bf16, rope, (TILE_THREADS, 2), rope_heads_body(a))

#define TE_NAME(T, t)                                                           \
	extern "C" __global__ void __launch_bounds__(ROPE_THREADS)              \
		te_k_rope_##t(const __grid_constant__ struct te_k_rope a)       \
	{                                                                       \
		te_begin_early();                                               \
		rope_body<T>(a);                                                \
	}                                                                       \
	TE_KERNEL(rope_q_##t, rope, (TILE_THREADS, 1), rope_q_body<T>(a))
TE_NAME(float, fp32)
TE_NAME(bf16, bf16)
#undef TE_NAME
