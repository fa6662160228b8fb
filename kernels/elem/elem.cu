/*
 * elem.cu - bias, addition, scale, dropout, transpose, random-number words. sm_90a.
 *
 *  kernel     shapes            blocks          threads  shared  B/element (BF16)
 *  bias_fwd   x T [rows, cols]  4096 elements   256      0       4
 *  add        a, b T [n]        4096 elements   256      0       6
 *  scaled     x T [n]           4096 elements   256      0       4
 *  dropout    x T [n]           4096 elements   256      0       4
 *  transpose  x [rows, cols]    a 64 x 64 tile  256      8448    4
 *  rng_next   2 words           1               1        0
 *
 * Bound by memory: each thread has two vectors of 8 elements in flight, and eight blocks are
 * resident on a multiprocessor. One Philox draw serves one vector. A transpose reads and writes
 * runs of 64 elements; its shared memory is 4352 bytes for elements of 1 byte, 16640 of 4.
 */
#include "kernels/dev.cuh"
#include "kernels/elem/geometry.h"
#include "kernels/philox.h"

/* --- bias ---------------------------------------------------------------- */

/* at % cols, by 32-bit division where both fit */
DEV int64_t column_of(int64_t at, int64_t cols)
{
	if ((uint64_t)at <= 0xffffffffu && (uint64_t)cols <= 0xffffffffu)
		return (uint32_t)at % (uint32_t)cols;
	return at % cols;
}

template <class T> DEV void bias_fwd_body(const struct te_k_bias_fwd &a)
{
	const T *x = (const T *)a.x, *bias = (const T *)a.bias;
	const bool vec = a.cols % TE_V == 0 && aligned(x) && aligned(bias) && aligned(a.y);
	const int64_t n = a.rows * a.cols;
	float v[TE_FLAT_UNROLL][TE_V], b[TE_FLAT_UNROLL][TE_V];

#pragma unroll
	for (int u = 0; u < TE_FLAT_UNROLL; u++) {
		const int64_t at = flat_at(u);
		int64_t c;

		if (at >= n)
			break;
		c = column_of(at, a.cols);
		if (vec) {
			load_vec(x + at, v[u]);
			load_vec(bias + c, b[u]);
			continue;
		}
		load_some(x + at, clamp_int(n - at, 0, TE_V), v[u]);
#pragma unroll
		for (int e = 0; e < TE_V; e++) {
			b[u][e] = to_float(bias[c]);
			c = c + 1 < a.cols ? c + 1 : 0;
		}
	}
#pragma unroll
	for (int u = 0; u < TE_FLAT_UNROLL; u++) {
		const int64_t at = flat_at(u);

		if (at >= n)
			break;
#pragma unroll
		for (int e = 0; e < TE_V; e++)
			v[u][e] = add(v[u][e], b[u][e]);
		if (vec)
			store_vec((T *)a.y + at, v[u]);
		else
			store_some((T *)a.y + at, clamp_int(n - at, 0, TE_V), v[u]);
	}
}

/* --- add ----------------------------------------------------------------- */

template <class T> DEV void add_body(const struct te_k_add &a)
{
	const bool vec = aligned(a.a) && aligned(a.b) && aligned(a.y);
	float v[TE_FLAT_UNROLL][TE_V], w[TE_FLAT_UNROLL][TE_V];

#pragma unroll
	for (int u = 0; u < TE_FLAT_UNROLL; u++) {
		const int64_t at = flat_at(u);
		const int n = clamp_int(a.n - at, 0, TE_V);

		if (vec && n == TE_V) {
			load_vec((const T *)a.a + at, v[u]);
			load_vec((const T *)a.b + at, w[u]);
		} else {
			load_some((const T *)a.a + at, n, v[u]);
			load_some((const T *)a.b + at, n, w[u]);
		}
	}
#pragma unroll
	for (int u = 0; u < TE_FLAT_UNROLL; u++) {
		const int64_t at = flat_at(u);
		const int n = clamp_int(a.n - at, 0, TE_V);

#pragma unroll
		for (int e = 0; e < TE_V; e++)
			v[u][e] = add(v[u][e], w[u][e]);
		if (vec && n == TE_V)
			store_vec((T *)a.y + at, v[u]);
		else
			store_some((T *)a.y + at, n, v[u]);
	}
}

/* --- scale --------------------------------------------------------------- */

template <class T> DEV void scale_body(const struct te_k_scaled &a)
{
	const bool vec = aligned(a.x) && aligned(a.y);
	float v[TE_FLAT_UNROLL][TE_V];

#pragma unroll
	for (int u = 0; u < TE_FLAT_UNROLL; u++)
		flat_get((const T *)a.x, a.n, vec, u, v[u]);
#pragma unroll
	for (int u = 0; u < TE_FLAT_UNROLL; u++) {
#pragma unroll
		for (int e = 0; e < TE_V; e++)
			v[u][e] = mul(v[u][e], a.factor);
		flat_put((T *)a.y, a.n, vec, u, v[u]);
	}
}

/* --- dropout ------------------------------------------------------------- */

template <class T> DEV void dropout_body(const struct te_k_dropout &a)
{
	const bool vec = aligned(a.x) && aligned(a.y);
	const float factor = __fdiv_rn(65536.0f, (float)(65536 - a.threshold));
	const uint64_t seed = *a.seed, offset = *a.offset;
	float v[TE_FLAT_UNROLL][TE_V];

#pragma unroll
	for (int u = 0; u < TE_FLAT_UNROLL; u++)
		flat_get((const T *)a.x, a.n, vec, u, v[u]);
#pragma unroll
	for (int u = 0; u < TE_FLAT_UNROLL; u++) {
		const struct te_philox r =
			te_philox_flat(seed, offset, a.tag,
				       te_k_dropout_group(&a, (uint64_t)flat_at(u) / TE_V));

#pragma unroll
		for (int e = 0; e < TE_V; e++)
			v[u][e] = te_philox_lane(&r, e) >= a.threshold ? mul(v[u][e], factor) :
									 0.0f;
		flat_put((T *)a.y, a.n, vec, u, v[u]);
	}
}

/* --- transpose ------------------------------------------------------------ */

/* a run of elements: 16 bytes, of single bytes 8 */
template <class E> struct run {
	static constexpr int N = sizeof(E) == 1 ? 8 : 16 / sizeof(E); /* elements */
	static constexpr int WORDS = N * sizeof(E) / 4;
	static constexpr int PER_TILE = TRANSPOSE_TILE / N; /* vectors of a row of a tile */

	uint32_t w[WORDS];
};

template <class E> DEV E run_get(const run<E> &v, int e)
{
	const int byte = e * (int)sizeof(E);

	return (E)(v.w[byte / 4] >> (byte % 4 * 8));
}

template <class E> DEV run<E> run_load(const E *p)
{
	run<E> v;

	if (run<E>::WORDS == 2) {
		const uint2 w = *(const uint2 *)p;

		v.w[0] = w.x;
		v.w[1] = w.y;
	} else {
		const uint4 w = *(const uint4 *)p;

		v.w[0] = w.x;
		v.w[1] = w.y;
		v.w[run<E>::WORDS - 2] = w.z;
		v.w[run<E>::WORDS - 1] = w.w;
	}
	return v;
}

template <class E> DEV void run_store(E *p, const run<E> &v)
{
	if (run<E>::WORDS == 2)
		*(uint2 *)p = make_uint2(v.w[0], v.w[1]);
	else
		*(uint4 *)p = make_uint4(v.w[0], v.w[1], v.w[run<E>::WORDS - 2],
					 v.w[run<E>::WORDS - 1]);
}

/* A column of the tile is TRANSPOSE_TILE elements and a word, so that banks differ. */
template <class E> DEV void transpose_body(const struct te_k_transpose &a)
{
	constexpr int N = run<E>::N, PER_TILE = run<E>::PER_TILE;
	constexpr int LD = TRANSPOSE_TILE + 4 / (int)sizeof(E);
	constexpr int EACH = TRANSPOSE_TILE * PER_TILE / TRANSPOSE_THREADS;
	__shared__ uint32_t word[TRANSPOSE_TILE * LD * sizeof(E) / 4];
	E *tile = (E *)word;
	const uint32_t nc = (uint32_t)((a.cols + TRANSPOSE_TILE - 1) / TRANSPOSE_TILE);
	const int64_t r0 = (int64_t)(blockIdx.x / nc) * TRANSPOSE_TILE;
	const int64_t c0 = (int64_t)(blockIdx.x % nc) * TRANSPOSE_TILE;
	const E *x = (const E *)a.x + r0 * a.cols + c0;
	E *y = (E *)a.y + c0 * a.rows + r0;
	const int rows = clamp_int(a.rows - r0, 0, TRANSPOSE_TILE);
	const int cols = clamp_int(a.cols - c0, 0, TRANSPOSE_TILE);
	const bool xvec = a.cols % N == 0 && aligned(a.x);
	const bool yvec = a.rows % N == 0 && aligned(a.y);

	if (noop_set(a.noop))
		return;
	if (a.scale_inv && blockIdx.x == 0 && threadIdx.x == 0)
		*a.y_scale_inv = *a.scale_inv;
#pragma unroll
	for (int i = 0; i < EACH; i++) {
		const int k = i * TRANSPOSE_THREADS + threadIdx.x;
		const int r = k / PER_TILE, c = k % PER_TILE * N;

		if (r >= rows || c >= cols)
			continue;
		if (xvec) {
			const run<E> v = run_load(x + r * a.cols + c);

#pragma unroll
			for (int e = 0; e < N; e++)
				tile[(c + e) * LD + r] = run_get(v, e);
		} else {
#pragma unroll
			for (int e = 0; e < N; e++)
				if (c + e < cols)
					tile[(c + e) * LD + r] = x[r * a.cols + c + e];
		}
	}
	__syncthreads();
#pragma unroll
	for (int i = 0; i < EACH; i++) {
		const int k = i * TRANSPOSE_THREADS + threadIdx.x;
		const int c = k / PER_TILE, r = k % PER_TILE * N;

		if (r >= rows || c >= cols)
			continue;
		if (yvec) {
			run<E> v;

#pragma unroll
			for (int w = 0; w < run<E>::WORDS; w++)
				v.w[w] = word[(c * LD + r) * sizeof(E) / 4 + w];
			run_store(y + c * a.rows + r, v);
		} else {
#pragma unroll
			for (int e = 0; e < N; e++)
				if (r + e < rows)
					y[c * a.rows + r + e] = tile[c * LD + r + e];
		}
	}
}

#define TE_NAME(E, t)   \
	TE_KERNEL(transpose_##t, transpose, (TRANSPOSE_THREADS), transpose_body<E>(a))
TE_NAME(uint8_t, 1)
TE_NAME(unsigned short, 2)
TE_NAME(uint32_t, 4)
#undef TE_NAME

extern "C" __global__ void te_k_rng_next(const __grid_constant__ struct te_k_rng_next a)
{
	te_begin();
	*a.used = *a.next + a.index;
	*a.next += a.advance;
}

#define TE_NAME(T, t)                                                                   \
	TE_KERNEL(bias_fwd_##t, bias_fwd, (TE_FLAT_THREADS), bias_fwd_body<T>(a))       \
	TE_KERNEL(add_##t, add, (TE_FLAT_THREADS), add_body<T>(a))                      \
	TE_KERNEL(scaled_##t, scaled, (TE_FLAT_THREADS), scale_body<T>(a))              \
	TE_KERNEL(dropout_##t, dropout, (TE_FLAT_THREADS), dropout_body<T>(a))
TE_NAME(float, fp32)
TE_NAME(bf16, bf16)
#undef TE_NAME
