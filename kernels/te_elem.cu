/*
 * te_elem.cu - bias, addition, dropout, random-number words, RoPE. sm_90a.
 *
 *  kernel    shapes                      blocks         threads  shared  B/element (BF16)
 *  bias_fwd  x T [rows, cols]            4096 elements  256      0       4
 *  add       a, b T [n]                  4096 elements  256      0       6
 *  dropout   x T [n]                     4096 elements  256      0       4
 *  rng_next  2 words                     1              1        0
 *  rope      x T [rows, heads * dim]     a row          256      512     4, in place less
 *
 * All move data: two vectors of 8 elements in flight a thread, eight blocks a
 * processor. One draw of random numbers serves one vector. RoPE computes the
 * sines and cosines of a row once, for all heads.
 */
#include "te_dev.cuh"
#include "te_philox.h"

/* --- bias ---------------------------------------------------------------- */

/* the column of element at of a matrix; 64-bit division only where it is needed */
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

/* --- dropout ------------------------------------------------------------- */

template <class T> DEV void dropout_body(const struct te_k_dropout &a)
{
	const bool vec = aligned(a.x) && aligned(a.y);
	const float factor = __fdiv_rn(65536.0f, (float)(65536 - a.threshold));
	const uint64_t seed = *a.seed, offset = *a.offset;
	float v[TE_FLAT_UNROLL][TE_V];

#pragma unroll
	for (int u = 0; u < TE_FLAT_UNROLL; u++) {
		const int64_t at = flat_at(u);
		const int n = clamp_int(a.n - at, 0, TE_V);

		if (vec && n == TE_V)
			load_vec((const T *)a.x + at, v[u]);
		else
			load_some((const T *)a.x + at, n, v[u]);
	}
#pragma unroll
	for (int u = 0; u < TE_FLAT_UNROLL; u++) {
		const int64_t at = flat_at(u);
		const int n = clamp_int(a.n - at, 0, TE_V);
		const struct te_philox r =
			te_philox_flat(seed, offset, a.tag, (uint64_t)at / TE_V);

#pragma unroll
		for (int e = 0; e < TE_V; e++)
			v[u][e] = te_philox_lane(&r, e) >= a.threshold ? mul(v[u][e], factor) :
									 0.0f;
		if (vec && n == TE_V)
			store_vec((T *)a.y + at, v[u]);
		else
			store_some((T *)a.y + at, n, v[u]);
	}
}

extern "C" __global__ void te_k_rng_next(const __grid_constant__ struct te_k_rng_next a)
{
	te_begin();
	*a.used = *a.next;
	*a.next += 1;
}

/* --- RoPE ---------------------------------------------------------------- */

/*
 * Sine and cosine of an FP32 angle of any size a position gives. The angle is turned
 * into [-pi/4, pi/4] in FP64, where it keeps more than 24 bits up to 2^26; the
 * polynomials are those of Cephes' sinf.c, about 1 ulp there. The libm's functions
 * would keep a table in local memory for angles that do not occur.
 */
DEV void sincos_of(float angle, float *ret_sin, float *ret_cos)
{
	const double turns = rint((double)angle * 0.63661977236758134308);
	const float x = (float)fma(turns, -6.12323399573676603587e-17,
				   fma(turns, -1.57079632679489655800, (double)angle));
	const int quarter = (int)(int64_t)turns & 3;
	const float z = x * x;
	const float s = fmaf(fmaf(fmaf(-1.9515295891e-4f, z, 8.3321608736e-3f), z,
				  -1.6666654611e-1f) * z, x, x);
	const float c = fmaf(fmaf(fmaf(2.443315711809948e-5f, z, -1.388731625493765e-3f), z,
				  4.166664568298827e-2f) * z, z, fmaf(-0.5f, z, 1.0f));

	*ret_sin = quarter & 1 ? c : s;
	*ret_cos = quarter & 1 ? s : c;
	if (quarter & 2)
		*ret_sin = -*ret_sin;
	if ((quarter + 1) & 2)
		*ret_cos = -*ret_cos;
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
	const int nheads = x == y ? a.nrot : a.nheads; /* in place the others stay */

	for (int i = threadIdx.x; i < half; i += blockDim.x) {
		sincos_of(mul((float)(r % a.seqlen), a.inv_freq[i]), &sine[i], &cosine[i]);
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
			if (head < a.nrot) {
#pragma unroll
				for (int e = 0; e < TE_V; e++) {
					const float c = cosine[i + e], s = sine[i + e];
					const float u = lo[e], w = hi[e];

					lo[e] = sub(mul(u, c), mul(w, s));
					hi[e] = add(mul(w, c), mul(u, s));
				}
			}
			store_vec(y + at, lo);
			store_vec(y + at + half, hi);
		} else {
			T lo = x[at], hi = x[at + half];

			if (head < a.nrot) {
				const float c = cosine[i], s = sine[i];
				const float u = to_float(lo), w = to_float(hi);

				lo = from_float<T>(sub(mul(u, c), mul(w, s)));
				hi = from_float<T>(add(mul(w, c), mul(u, s)));
			}
			y[at] = lo;
			y[at + half] = hi;
		}
	}
}

#define TE_NAME(T, t)                                                                         \
	extern "C" __global__ void __launch_bounds__(TE_FLAT_THREADS)                         \
		te_k_bias_fwd_##t(const __grid_constant__ struct te_k_bias_fwd a)             \
	{                                                                                     \
		te_begin();                                                                   \
		bias_fwd_body<T>(a);                                                          \
	}                                                                                     \
	extern "C" __global__ void __launch_bounds__(TE_FLAT_THREADS)                         \
		te_k_add_##t(const __grid_constant__ struct te_k_add a)                       \
	{                                                                                     \
		te_begin();                                                                   \
		add_body<T>(a);                                                               \
	}                                                                                     \
	extern "C" __global__ void __launch_bounds__(TE_FLAT_THREADS)                         \
		te_k_dropout_##t(const __grid_constant__ struct te_k_dropout a)               \
	{                                                                                     \
		te_begin();                                                                   \
		dropout_body<T>(a);                                                           \
	}                                                                                     \
	extern "C" __global__ void __launch_bounds__(256)                                     \
		te_k_rope_##t(const __grid_constant__ struct te_k_rope a)                     \
	{                                                                                     \
		te_begin();                                                                   \
		rope_body<T>(a);                                                              \
	}
TE_NAME(float, fp32)
TE_NAME(bf16, bf16)
#undef TE_NAME
