/*
 * te_norm.cu - LayerNorm and RMSNorm over rows of [rows, cols]. sm_90a.
 *
 *  kernel          work                        blocks               threads  B/element (BF16)
 *  norm_fwd        a group a row               rows / groups        256      4, 3 with row codes
 *  norm_fwd_col    64 rows by all columns      rows / 64            256      6 of them 2 from L2
 *  norm_bwd        a group a row               rows / groups        256      6, 8 with dres
 *  norm_dw         64 rows x 256 columns       parts x columns/256  256      4
 *
 * A group is a warp for up to 1024 columns, else the block; its row stays in registers up to
 * 8192 columns (4 vectors a thread) and is read again from cache beyond. Column codes
 * need whole columns of a tile, so that variant takes statistics of 64 rows first and makes
 * tiles in a second pass; its shared memory is 8704 bytes. norm_dw repeats the order of the
 * reference.
 */
#include "te_tile.cuh"

#define THREADS 256
#define KEEP 4 /* vectors of a row a thread holds */

/* the sum over a group of G threads; the same bits in each of them */
template <int G> DEV float group_sum(float s, float *shared)
{
	s = warp_sum(s);
	if (G == 32)
		return s;
	__syncthreads(); /* the array may still be read by the sum before */
	if (threadIdx.x % 32 == 0)
		shared[threadIdx.x / 32] = s;
	__syncthreads();
	s = 0.0f;
#pragma unroll
	for (int w = 0; w < G / 32; w++)
		s += shared[w];
	return s;
}

/* a row in registers as far as it fits */
template <class T, int G> struct row {
	const T *p;
	int cols, lane;
	bool vec;
	raw<T> keep[KEEP];

	__device__ __forceinline__ void load(const T *at, int ncols, bool v)
	{
		p = at;
		cols = ncols;
		vec = v;
		lane = threadIdx.x % G;
#pragma unroll
		for (int k = 0; k < KEEP; k++)
			keep[k] = fetch(k);
	}
	__device__ __forceinline__ int n(int k) const
	{
		return clamp_int(cols - (k * G + lane) * TE_V, 0, TE_V);
	}
	__device__ __forceinline__ raw<T> fetch(int k) const
	{
		const int c = (k * G + lane) * TE_V, m = n(k);
		float v[TE_V];

		if (!m)
			return zero_raw<T>();
		if (vec)
			return load_raw(p + c);
		load_some(p + c, m, v);
		return pack<T>(v);
	}
	/* kept: k is one of the first KEEP, and a constant once unrolled */
	template <bool KEPT> __device__ __forceinline__ void get(int k, float v[TE_V]) const
	{
		unpack(KEPT ? keep[KEPT ? k : 0] : fetch(k), v);
	}
	__device__ __forceinline__ int turns(void) const
	{
		return (cols + G * TE_V - 1) / (G * TE_V);
	}
};

/* the block for each turn k of the row; the first KEEP are unrolled: constant register indices */
#define EACH_TURN(R, ...)                                    \
	do {                                                 \
		_Pragma("unroll") for (int k = 0; k < KEEP; k++) \
		{                                            \
			constexpr bool kept = true;          \
                                                             \
			if (k < (R).turns())                 \
				__VA_ARGS__                  \
		}                                            \
		for (int k = KEEP; k < (R).turns(); k++) {   \
			constexpr bool kept = false;         \
                                                             \
			__VA_ARGS__                          \
		}                                            \
	} while (0)

DEV void load_gain(const float *p, int c, int n, bool vec, float v[TE_V])
{
	if (vec && n == TE_V)
		load_vec(p + c, v);
	else
		load_some(p + c, n, v);
}

template <class T, int G>
DEV void row_stats(const struct row<T, G> &x, bool layer, float eps, float *shared, float *ret_mean,
		   float *ret_rstd)
{
	const float inv = 1.0f / (float)x.cols;
	float s = 0.0f, mean = 0.0f;

	if (layer) {
		EACH_TURN(x, {
			float v[TE_V];

			x.template get<kept>(k, v);
#pragma unroll
			for (int e = 0; e < TE_V; e++)
				s += v[e];
		});
		mean = group_sum<G>(s, shared) * inv;
	}
	s = 0.0f;
	EACH_TURN(x, {
		const int n = x.n(k);
		float v[TE_V];

		x.template get<kept>(k, v);
#pragma unroll
		for (int e = 0; e < TE_V; e++)
			s += e < n ? (v[e] - mean) * (v[e] - mean) : 0.0f;
	});
	*ret_mean = mean;
	*ret_rstd = 1.0f / sqrtf(group_sum<G>(s, shared) * inv + eps);
}

DEV void normalize(float v[TE_V], const float gain[TE_V], const float beta[TE_V], float mean,
		   float rstd, int zero_centered)
{
#pragma unroll
	for (int e = 0; e < TE_V; e++)
		v[e] = add(mul(mul(sub(v[e], mean), rstd),
			       zero_centered ? add(1.0f, gain[e]) : gain[e]),
			   beta[e]);
}

DEV void put_codes(uint8_t *row, uint2 code, int n, bool vec)
{
	if (vec) {
		*(uint2 *)row = code;
		return;
	}
#pragma unroll
	for (int e = 0; e < TE_V; e++)
		if (e < n)
			row[e] = (uint8_t)((e < 4 ? code.x : code.y) >> (e % 4 * 8));
}

template <class T, int G> DEV void norm_fwd(const struct te_k_norm_fwd &a)
{
	__shared__ float shared[THREADS / 32];
	const int64_t r = (int64_t)blockIdx.x * (THREADS / G) + threadIdx.x / G;
	const bool in = r < a.rows;
	const int cols = (int)a.cols;
	const bool vec = cols % TE_V == 0 && aligned(a.x) && aligned(a.y) &&
			 aligned(a.q.row) && aligned(a.gamma) && aligned(a.beta);
	const float scale = a.q.row ? *a.q.scale : 1.0f;
	float m = 0.0f, mean, rstd;
	struct row<T, G> x;

	if (noop_set(a.q.noop))
		return;
	q_scale_inv(&a.q);
	if (in) {
		x.load((const T *)a.x + r * a.cols, cols, vec);
		row_stats<T, G>(x, a.mean != 0, a.eps, shared, &mean, &rstd);
		if (threadIdx.x % G == 0) {
			if (a.mean)
				a.mean[r] = mean;
			a.rstd[r] = rstd;
		}
		EACH_TURN(x, {
			const int n = x.n(k), c = (k * G + x.lane) * TE_V;
			float v[TE_V], gain[TE_V], beta[TE_V] = { 0.0f };
			raw<T> w;

			if (n) {
				x.template get<kept>(k, v);
				load_gain(a.gamma, c, n, vec, gain);
				if (a.beta)
					load_gain(a.beta, c, n, vec, beta);
				normalize(v, gain, beta, mean, rstd, a.zero_centered);
				w = pack<T>(v);
				unpack(w, v);
				if (a.y && vec)
					store_raw((T *)a.y + r * a.cols + c, w);
				else if (a.y)
					store_some((T *)a.y + r * a.cols + c, n, v);
				if (a.q.amax) {
#pragma unroll
					for (int e = 0; e < TE_V; e++)
						if (e < n)
							m = amax_of(m, v[e]);
				}
				if (a.q.row)
					put_codes((uint8_t *)a.q.row + r * a.cols + c,
						  fp8x8(a.q.dtype, v, scale), n, vec);
			}
		});
	}
	if (a.q.amax)
		block_amax(a.q.amax, m);
}

/* with column codes: statistics of 64 rows by warps, then tiles */
template <class T> DEV void norm_fwd_col(const struct te_k_norm_fwd &a)
{
	__shared__ struct tile_codes codes;
	__shared__ float means[TILE_ROWS], rstds[TILE_ROWS];
	const int64_t r0 = (int64_t)blockIdx.x * TILE_ROWS;
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	struct tile_out<T> o = { (T *)a.y, a.q, NULL, 0, 1.0f,
				 tile_vec(a.cols, a.x, a.y, &a.q) && aligned(a.gamma) &&
					 aligned(a.beta) };
	float m = 0.0f;

	if (noop_set(a.q.noop))
		return;
	o.scale = q_scale(&a.q);
	q_scale_inv(&a.q);
	for (int i = warp; i < TILE_ROWS && r0 + i < a.rows; i += THREADS / 32) {
		struct row<T, 32> x;
		float mean, rstd;

		x.load((const T *)a.x + (r0 + i) * a.cols, (int)a.cols, o.vec);
		row_stats<T, 32>(x, a.mean != 0, a.eps, NULL, &mean, &rstd);
		if (lane == 0) {
			means[i] = mean;
			rstds[i] = rstd;
			if (a.mean)
				a.mean[r0 + i] = mean;
			a.rstd[r0 + i] = rstd;
		}
	}
	__syncthreads();
	for (int64_t c0 = 0; c0 < a.cols; c0 += TILE_COLS) {
		const struct tile t = tile_at(a.rows, a.cols, r0, c0);
		tile_raw<T> x = tile_load<T>(&t, a.x, a.cols, t.c, o.vec);
		const int n = clamp_int(a.cols - t.c, 0, TE_V);
		float v[TILE_R][TE_V], gain[TE_V], beta[TE_V] = { 0.0f };

		load_gain(a.gamma, (int)t.c, n, o.vec, gain);
		if (a.beta)
			load_gain(a.beta, (int)t.c, n, o.vec, beta);
#pragma unroll
		for (int i = 0; i < TILE_R; i++) {
			const int at = (int)(t.r - t.r0) + i;

			unpack(x.row[i], v[i]);
			if (tile_n(&t, i))
				normalize(v[i], gain, beta, means[at], rstds[at], a.zero_centered);
		}
		m = tile_put<T>(&o, &t, v, &codes, NULL, m);
		__syncthreads();
	}
	if (a.q.amax)
		block_amax(a.q.amax, m);
}

template <class T, int G> DEV void norm_bwd(const struct te_k_norm_bwd &a)
{
	__shared__ float shared[THREADS / 32];
	const int64_t r = (int64_t)blockIdx.x * (THREADS / G) + threadIdx.x / G;
	const int cols = (int)a.cols;
	const bool vec = cols % TE_V == 0 && aligned(a.x) && aligned(a.dy) && aligned(a.dx) &&
			 aligned(a.dres) && aligned(a.gamma);
	const float inv = 1.0f / (float)cols;
	float sum_g = 0.0f, sum_gx = 0.0f, mean, rstd;
	struct row<T, G> x, dy;

	if (r >= a.rows)
		return; /* a whole group */
	mean = a.mean ? a.mean[r] : 0.0f;
	rstd = a.rstd[r];
	x.load((const T *)a.x + r * a.cols, cols, vec);
	dy.load((const T *)a.dy + r * a.cols, cols, vec);
	EACH_TURN(x, {
		const int n = x.n(k), c = (k * G + x.lane) * TE_V;
		float xv[TE_V], g[TE_V], gain[TE_V];

		x.template get<kept>(k, xv);
		dy.template get<kept>(k, g);
		load_gain(a.gamma, c, n, vec, gain);
#pragma unroll
		for (int e = 0; e < TE_V; e++) {
			if (e >= n)
				continue;
			g[e] *= a.zero_centered ? 1.0f + gain[e] : gain[e];
			sum_g += g[e];
			sum_gx += g[e] * ((xv[e] - mean) * rstd);
		}
	});
	if (a.mean)
		sum_g = group_sum<G>(sum_g, shared) * inv;
	else
		sum_g = 0.0f;
	sum_gx = group_sum<G>(sum_gx, shared) * inv;
	EACH_TURN(x, {
		const int n = x.n(k), c = (k * G + x.lane) * TE_V;
		float xv[TE_V], g[TE_V], gain[TE_V], res[TE_V] = { 0.0f };

		if (n) {
			x.template get<kept>(k, xv);
			dy.template get<kept>(k, g);
			load_gain(a.gamma, c, n, vec, gain);
			if (a.dres && vec)
				load_vec((const T *)a.dres + r * a.cols + c, res);
			else if (a.dres)
				load_some((const T *)a.dres + r * a.cols + c, n, res);
#pragma unroll
			for (int e = 0; e < TE_V; e++) {
				const float gg =
					g[e] * (a.zero_centered ? 1.0f + gain[e] : gain[e]);

				g[e] = rstd * (gg - sum_g - (xv[e] - mean) * rstd * sum_gx) +
				       res[e];
			}
			if (vec)
				store_vec((T *)a.dx + r * a.cols + c, g);
			else
				store_some((T *)a.dx + r * a.cols + c, n, g);
		}
	});
}

template <class T> DEV void norm_dw(const struct te_k_norm_dw &a)
{
	const uint32_t nblocks = (uint32_t)((a.cols + THREADS - 1) / THREADS);
	const int64_t p = blockIdx.x / nblocks;
	const int64_t c = (int64_t)(blockIdx.x % nblocks) * THREADS + threadIdx.x;
	const int64_t r0 = p * TE_K_PART_ROWS;
	const int nrows = clamp_int(a.rows - r0, 0, TE_K_PART_ROWS);
	const T *x = (const T *)a.x + r0 * a.cols + c, *dy = (const T *)a.dy + r0 * a.cols + c;
	float gamma = 0.0f, beta = 0.0f;

	if (c >= a.cols)
		return;
#pragma unroll 8
	for (int r = 0; r < nrows; r++) {
		const float g = to_float(dy[r * a.cols]), v = to_float(x[r * a.cols]);
		const float mean = a.mean ? a.mean[r0 + r] : 0.0f;

		gamma = add(gamma, mul(g, mul(sub(v, mean), a.rstd[r0 + r])));
		beta = add(beta, g);
	}
	a.part_gamma[p * a.cols + c] = gamma;
	if (a.part_beta)
		a.part_beta[p * a.cols + c] = beta;
}

#define KERNELS(NAME, T)                                                                        \
	extern "C" __global__ void __launch_bounds__(THREADS)                                   \
		te_k_norm_fwd_##NAME##_warp(const __grid_constant__ struct te_k_norm_fwd a)     \
	{                                                                                       \
		norm_fwd<T, 32>(a);                                                             \
	}                                                                                       \
	extern "C" __global__ void __launch_bounds__(THREADS)                                   \
		te_k_norm_fwd_##NAME##_block(const __grid_constant__ struct te_k_norm_fwd a)    \
	{                                                                                       \
		norm_fwd<T, THREADS>(a);                                                        \
	}                                                                                       \
	extern "C" __global__ void __launch_bounds__(THREADS)                                   \
		te_k_norm_fwd_##NAME##_col(const __grid_constant__ struct te_k_norm_fwd a)      \
	{                                                                                       \
		norm_fwd_col<T>(a);                                                             \
	}                                                                                       \
	extern "C" __global__ void __launch_bounds__(THREADS)                                   \
		te_k_norm_bwd_##NAME##_warp(const __grid_constant__ struct te_k_norm_bwd a)     \
	{                                                                                       \
		norm_bwd<T, 32>(a);                                                             \
	}                                                                                       \
	extern "C" __global__ void __launch_bounds__(THREADS)                                   \
		te_k_norm_bwd_##NAME##_block(const __grid_constant__ struct te_k_norm_bwd a)    \
	{                                                                                       \
		norm_bwd<T, THREADS>(a);                                                        \
	}                                                                                       \
	extern "C" __global__ void __launch_bounds__(THREADS)                                   \
		te_k_norm_dw_##NAME(const __grid_constant__ struct te_k_norm_dw a)              \
	{                                                                                       \
		norm_dw<T>(a);                                                                  \
	}
KERNELS(fp32, float)
KERNELS(bf16, bf16)
