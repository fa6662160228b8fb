/* rows.cuh - rows of a matrix by the threads and clusters that own them, shared by the norms. */
#ifndef TE_NORM_ROWS_CUH
#define TE_NORM_ROWS_CUH

#include "kernels/norm/geometry.h"
#include "kernels/norm/norm.cuh"
#include "kernels/tile.cuh"

/* the threads of one row: tpr of them, 32 or the whole block; this is thread t */
struct team {
	int t, tpr;
	int64_t row;
};

DEV struct team team_of(int64_t cols)
{
	struct team w;

	if (cols <= NORM_WARP_COLS) {
		w.tpr = 32;
		w.t = threadIdx.x % 32;
		w.row = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
	} else {
		w.tpr = blockDim.x;
		w.t = threadIdx.x;
		w.row = blockIdx.x;
	}
	return w;
}

/* sum a and b over the threads of a row, the same bits in each; part is used by this call only */
DEV void team_sum(const struct team &w, float2 part[NORM_THREADS / 32], float &a, float &b)
{
	a = warp_sum(a);
	b = warp_sum(b);
	if (w.tpr == 32)
		return;
	if (w.t % 32 == 0)
		part[w.t / 32] = make_float2(a, b);
	__syncthreads();
	a = b = 0.0f;
	for (int i = 0; i < w.tpr / 32; i++) {
		a = add(a, part[i].x);
		b = add(b, part[i].y);
	}
}

/*
 * Column of element e of vector j of a thread. VEC: in a run of 8 columns of the thread; otherwise
 * elements are tpr columns apart. Accesses of a warp are contiguous in both cases.
 */
template <bool VEC> DEV int64_t column(const struct team &w, int64_t base, int j, int e)
{
	return VEC ? base + ((int64_t)j * w.tpr + w.t) * TE_V + e :
		     base + ((int64_t)j * TE_V + e) * w.tpr + w.t;
}

/* the sum of squares */
DEV float sumsq8(const float v[TE_V])
{
	float sq[TE_V];

#pragma unroll
	for (int e = 0; e < TE_V; e++)
		sq[e] = mul(v[e], v[e]);
	return sum8(sq);
}

/* sums of each of N values over the lanes */
template <int N> DEV void warp_sum_each(float v[N])
{
#pragma unroll
	for (int d = 16; d; d >>= 1)
#pragma unroll
		for (int i = 0; i < N; i++)
			v[i] = add(v[i], __shfl_xor_sync(0xffffffffu, v[i], d));
}

/*
 * The mean is computed from a first sum and corrected by the mean of the differences from it, so
 * that it is accurate to about the last bit of FP32. The variance is about that mean.
 * d1, d2: sums of x - *mean and of its square over the n elements of a row; per is 1 / n.
 */
DEV void norm_stats(const struct te_k_norm_fwd &a, float n, float per, float d1, float d2,
		    float *mean, float *ret_rstd)
{
	d2 = plain_quotient(d2, n, per);
	if (a.mean) {
		d1 = plain_quotient(d1, n, per);
		d2 = sub(d2, mul(d1, d1));
		d2 = d2 < 0.0f ? 0.0f : d2; /* keeps NaN */
		if (fabsf(*mean) < TE_INF)
			*mean = add(*mean, d1);
	}
	*ret_rstd = reciprocal_root(add(d2, a.eps));
}

/* vector j of a row; elements beyond the row are 0 */
template <bool VEC, class T>
DEV raw<T> row_load(const struct team &w, const T *x, int64_t cols, int64_t base, int j)
{
	if constexpr (VEC) {
		const int64_t c = column<VEC>(w, base, j, 0);

		return c < cols ? load_raw(x + c) : zero_raw<T>();
	} else {
		float v[TE_V];

#pragma unroll
		for (int e = 0; e < TE_V; e++) {
			const int64_t c = column<VEC>(w, base, j, e);

			v[e] = c < cols ? to_float(x[c]) : 0.0f;
		}
		return pack<T>(v);
	}
}

template <bool VEC>
DEV void gain_load(const struct team &w, const float *gamma, bool zero_centered, int64_t cols,
		   int64_t base, int j, float gain[TE_V])
{
	unpack(row_load<VEC>(w, gamma, cols, base, j), gain);
	if (zero_centered)
#pragma unroll
		for (int e = 0; e < TE_V; e++)
			gain[e] = add(1.0f, gain[e]);
}

/* store r as vector j of row y */
template <bool VEC, class T>
DEV void row_store(const struct team &w, T *y, int64_t cols, int64_t base, int j, const raw<T> &r)
{
	if constexpr (VEC) {
		const int64_t c = column<VEC>(w, base, j, 0);

		if (c < cols)
			store_raw(y + c, r);
	} else {
		float v[TE_V];

		unpack(r, v);
#pragma unroll
		for (int e = 0; e < TE_V; e++) {
			const int64_t c = column<VEC>(w, base, j, e);

			if (c < cols)
				y[c] = from_float<T>(v[e]);
		}
	}
}

/* f(base) for each chunk of a row, of NV vectors per thread; not LONG: there is one chunk */
template <int NV, bool LONG, class F> DEV void chunks(const struct team &w, int64_t cols, F f)
{
	if constexpr (LONG) {
		for (int64_t base = 0; base < cols; base += (int64_t)w.tpr * (NV * TE_V))
			f(base);
	} else {
		f((int64_t)0);
	}
}

/*
 * Four rows from r0, a warp each: store the column-wise codes, which are transposed in shared
 * memory and stored as 4 bytes per column, fold the amax, of which m is this thread's, and store
 * 1 / scale.
 */
template <int NV>
DEV void small_m_finish(const struct te_k_q &q, int64_t rows, int64_t cols, int64_t r0, float scale,
			const uint2 codes[NORM_SMALL_M_ROWS][32 * NV],
			float amax[NORM_SMALL_M_ROWS], float m)
{
	uint8_t *col = (uint8_t *)q.col;

	m = warp_amax(m);
	if (threadIdx.x % 32 == 0)
		amax[threadIdx.x / 32] = m;
	__syncthreads();
	for (int k = threadIdx.x; col && k < cols / 4; k += NORM_SMALL_M_ROWS * 32) {
		uint32_t in[4], out[4]; /* out[c]: the rows of column c */

#pragma unroll
		for (int r = 0; r < 4; r++)
			in[r] = ((const uint32_t *)codes[r])[k];
		transpose4(in, out);
#pragma unroll
		for (int c = 0; c < 4; c++) {
			uint8_t *to = col + ((int64_t)k * 4 + c) * rows + r0;

			if (rows % 4 == 0 && aligned(col)) {
				*(uint32_t *)to = out[c];
				continue;
			}
#pragma unroll
			for (int r = 0; r < 4; r++)
				if (r0 + r < rows)
					to[r] = (uint8_t)(out[c] >> (8 * r));
		}
	}
	if (threadIdx.x == 0 && q.amax)
		atomic_amax(q.amax, fmaxf(fmaxf(amax[0], amax[1]), fmaxf(amax[2], amax[3])));
	q_scale_inv(&q, scale);
}

/* for kernels with C > 1 and their functions; only kernels with C = 1 exist below 9.0 */
#if __CUDA_ARCH__ >= 900
#define CLUSTER_DIMS(C) __cluster_dims__(C, 1, 1)
#else
#define CLUSTER_DIMS(C)
#endif

DEV uint32_t cluster_rank(void)
{
	uint32_t r;

	asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
	return r;
}

/* a barrier of all threads of the cluster, which also orders their writes to shared memory */
DEV void cluster_barrier(void)
{
	asm volatile("barrier.cluster.arrive.release.aligned;\n\t"
		     "barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* *p of the shared memory of another block of the cluster */
DEV float2 cluster_read(const float2 *p, uint32_t rank)
{
	uint32_t at = (uint32_t)__cvta_generic_to_shared(p);
	float2 v;

	asm volatile("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(at) : "r"(rank));
	asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];"
		     : "=f"(v.x), "=f"(v.y)
		     : "r"(at)
		     : "memory");
	return v;
}

/*
 * Sum s[i] of row i over the 16 threads of the row, then over the cluster, to total[row]. part and
 * total are used by this call only; a block must not exit or overwrite part before the next cluster
 * barrier, since other blocks read it.
 */
template <int C>
DEV void cluster_sum(float2 part[TILE_ROWS], float2 total[TILE_ROWS], float2 s[TILE_R])
{
#pragma unroll
	for (int i = 0; i < TILE_R; i++) {
#pragma unroll
		for (int d = 8; d; d >>= 1) {
			s[i].x = add(s[i].x, __shfl_xor_sync(0xffffffffu, s[i].x, d));
			s[i].y = add(s[i].y, __shfl_xor_sync(0xffffffffu, s[i].y, d));
		}
		if (threadIdx.x % 16 == 0)
			part[threadIdx.x / 16 * TILE_R + i] = s[i];
	}
	cluster_barrier();
	if (threadIdx.x < TILE_ROWS) {
		float2 sum = make_float2(0.0f, 0.0f), other[C];

#pragma unroll
		for (int k = 0; k < C; k++)
			other[k] = cluster_read(&part[threadIdx.x], k);
#pragma unroll
		for (int k = 0; k < C; k++)
			sum = make_float2(add(sum.x, other[k].x), add(sum.y, other[k].y));
		total[threadIdx.x] = sum;
	}
	__syncthreads();
}
#endif
