/*
 * elem.cu - bias, addition, dropout, random-number words. sm_90a.
 *
 *  kernel    shapes            blocks         threads  shared  B/element (BF16)
 *  bias_fwd  x T [rows, cols]  4096 elements  256      0       4
 *  add       a, b T [n]        4096 elements  256      0       6
 *  dropout   x T [n]           4096 elements  256      0       4
 *  rng_next  2 words           1              1        0
 *
 * Bound by memory: each thread has two vectors of 8 elements in flight, and eight blocks are
 * resident on a multiprocessor. One Philox draw serves one vector.
 */
#include "kernels/dev.cuh"
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
	}
TE_NAME(float, fp32)
TE_NAME(bf16, bf16)
#undef TE_NAME
