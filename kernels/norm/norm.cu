/*
 * norm.cu - LayerNorm and RMSNorm, forward and backward. sm_90a.
 *
 *  kernel             shapes             blocks            threads  shared  B/element (BF16)
 *  norm_fwd           x T [rows, cols]   4 rows, or a row  64..512  384     4, to FP8 3
 *  norm_fwd_small_mN  the same           4 rows            128      1040; N = 1024: 4112
 *  norm_fwd_colCxN    the same, q.col    C for 64 rows     256      10368   4, to FP8 + FP8^T
 *  norm_fwd_col       the same, any      64 rows           256      8832    6
 *  norm_fwd_blockC    block-scaled q     C for 128 rows    256      25088   4, and 4 to 8 of L2
 *  norm_bwd           dy, x, dres T      4 rows, or a row  64..512  128     6, with dres 8
 *  norm_bwd_small_mN  the same           4 rows            128      1040; N = 1024: 4112
 *  norm_bwd_colCxN    the same, with q   C for 64 rows     256      9248    6 to 8, and FP8 2
 *  norm_bwd_col       the same, any      64 rows           256      9248    10 to 12, and FP8 2
 *  norm_dw            dy, x T            64 rows, 64 cols  128      32768   4
 *
 * A warp computes a row of up to 1024 columns, a block one of up to 16384. The row stays in
 * registers, 32 elements per thread, between the statistics and the result. _long, for more
 * columns, reads rows repeatedly, from L2. _unaligned, for widths that are not a multiple of 8 and
 * for pointers that are not aligned to vectors, accesses single elements. _small_mN, for up to 528
 * rows of up to N columns, is bound by latency: it issues all loads at once, and a warp transposes
 * the codes of its row itself.
 *
 * A transposed copy needs consecutive rows, and statistics need whole rows: colCxN holds 64 rows of
 * up to C N 128 columns in the registers of a cluster of C blocks, so that BF16 of up to 8192
 * columns is read once. norm_fwd_col takes two passes over 64 rows for all other shapes.
 *
 * A block-scaled copy needs tiles of 128 rows, too many for registers: a cluster of C blocks reads
 * its 128 rows two or three times, the first time from memory and then from L2.
 */
#include "kernels/block.cuh"
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

/* --- forward ------------------------------------------------------------- */

/*
 * The mean is that of a first sum, corrected by the mean of the differences from it, so that it is
 * accurate to about the last bit of FP32. The variance is about that mean.
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

/* held: the row or, if LONG, a chunk of it */
template <class T, int NV, bool VEC, bool LONG>
DEV void row_stats(const struct te_k_norm_fwd &a, const struct team &w, const T *x,
		   float2 part[2][NORM_THREADS / 32], raw<T> held[NV], float *ret_mean,
		   float *ret_rstd)
{
	const float n = (float)a.cols, per = plain_reciprocal(n);
	float mean = 0.0f, d1 = 0.0f, d2 = 0.0f, zero = 0.0f, v[TE_V];

	if (a.mean) {
		chunks<NV, LONG>(w, a.cols, [&](int64_t base) {
			if (LONG)
#pragma unroll
				for (int j = 0; j < NV; j++)
					held[j] = row_load<VEC>(w, x, a.cols, base, j);
#pragma unroll
			for (int j = 0; j < NV; j++) {
				unpack(held[j], v);
				mean = add(mean, sum8(v));
			}
		});
		team_sum(w, part[0], mean, zero);
		mean = plain_quotient(mean, n, per);
	}
	chunks<NV, LONG>(w, a.cols, [&](int64_t base) {
		if (LONG)
#pragma unroll
			for (int j = 0; j < NV; j++)
				held[j] = row_load<VEC>(w, x, a.cols, base, j);
#pragma unroll
		for (int j = 0; j < NV; j++) {
			const bool vec = VEC && column<VEC>(w, base, j, 0) < a.cols;
			float sq[TE_V];

			unpack(held[j], v);
#pragma unroll
			for (int e = 0; e < TE_V; e++) {
				const bool in = VEC ? vec : column<VEC>(w, base, j, e) < a.cols;

				v[e] = in ? sub(v[e], mean) : 0.0f;
				sq[e] = mul(v[e], v[e]);
			}
			if (a.mean)
				d1 = add(d1, sum8(v));
			d2 = add(d2, sum8(sq));
		}
	});
	team_sum(w, part[1], d1, d2);
	norm_stats(a, n, per, d1, d2, &mean, ret_rstd);
	*ret_mean = mean;
}

/* by single elements */
DEV void codes_scatter(const struct team &w, uint8_t *row, int64_t cols, int64_t base, int j,
		       uint2 code)
{
#pragma unroll
	for (int e = 0; e < TE_V; e++) {
		const int64_t c = column<false>(w, base, j, e);

		if (c < cols)
			row[c] = (uint8_t)((e < 4 ? code.x : code.y) >> (e % 4 * 8));
	}
}

template <class T, int NV, bool VEC, bool LONG>
DEV void norm_fwd_body(const struct te_k_norm_fwd &a)
{
	__shared__ float2 part[2][NORM_THREADS / 32];
	const struct team w = team_of(a.cols);
	const T *x = (const T *)a.x + w.row * a.cols;
	uint8_t *row = (uint8_t *)a.q.row;
	const float scale = q_scale(&a.q);
	float mean, rstd, m = 0.0f;
	raw<T> held[NV];

	if (noop_set(a.q.noop))
		return;
	q_scale_inv(&a.q, scale);
	if (w.row < a.rows) { /* otherwise whole warps, for which team_sum() has no barrier */
		if (!LONG)
#pragma unroll
			for (int j = 0; j < NV; j++)
				held[j] = row_load<VEC>(w, x, a.cols, 0, j);
		row_stats<T, NV, VEC, LONG>(a, w, x, part, held, &mean, &rstd);
		if (w.t == 0) {
			if (a.mean)
				a.mean[w.row] = mean;
			a.rstd[w.row] = rstd;
		}
		chunks<NV, LONG>(w, a.cols, [&](int64_t base) {
			if (LONG)
#pragma unroll
				for (int j = 0; j < NV; j++)
					held[j] = row_load<VEC>(w, x, a.cols, base, j);
#pragma unroll
			for (int j = 0; j < NV; j++) {
				const int64_t c = column<VEC>(w, base, j, 0);
				float v[TE_V], gain[TE_V], beta[TE_V];

				if (c >= a.cols)
					break;
				gain_load<VEC>(w, a.gamma, a.zero_centered, a.cols, base, j, gain);
				if (a.beta)
					unpack(row_load<VEC>(w, a.beta, a.cols, base, j), beta);
				unpack(held[j], v);
#pragma unroll
				for (int e = 0; e < TE_V; e++) {
					v[e] = normed(v[e], mean, rstd, gain[e]);
					if (a.beta)
						v[e] = add(v[e], beta[e]);
				}
				held[j] = pack<T>(v);
				unpack(held[j], v);
				if (a.y)
					row_store<VEC>(w, (T *)a.y + w.row * a.cols, a.cols, base,
						       j, held[j]);
				if (a.q.amax) {
#pragma unroll
					for (int e = 0; e < TE_V; e++)
						if (VEC || column<VEC>(w, base, j, e) < a.cols)
							m = amax_of(m, v[e]);
				}
				if (row) {
					const uint2 code = fp8x8(a.q.dtype, v, scale);

					if constexpr (VEC)
						*(uint2 *)(row + w.row * a.cols + c) = code;
					else
						codes_scatter(w, row + w.row * a.cols, a.cols,
							      base, j, code);
				}
			}
		});
	}
	if (a.q.amax)
		block_amax(a.q.amax, m);
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

/*
 * Four rows, a warp each. Rows beyond the end have no columns.
 */
template <class T, int NV> DEV void norm_fwd_small_m_body(const struct te_k_norm_fwd &a)
{
	__shared__ uint2 codes[NORM_SMALL_M_ROWS][32 * NV];
	__shared__ float amax[NORM_SMALL_M_ROWS];
	const int64_t r0 = (int64_t)blockIdx.x * NORM_SMALL_M_ROWS;
	const struct team w = { (int)threadIdx.x % 32, 32, r0 + threadIdx.x / 32 };
	const int64_t cols = w.row < a.rows ? a.cols : 0, at = w.row * a.cols;
	uint8_t *row = (uint8_t *)a.q.row, *col = (uint8_t *)a.q.col;
	float gain[NV][TE_V], beta[NV][TE_V], mean, rstd, scale, m = 0.0f;
	raw<T> held[NV];
	bool noop;

#pragma unroll
	for (int j = 0; j < NV; j++)
		held[j] = row_load<true>(w, (const T *)a.x + at, cols, 0, j);
#pragma unroll
	for (int j = 0; j < NV; j++) {
		gain_load<true>(w, a.gamma, a.zero_centered, cols, 0, j, gain[j]);
		unpack(row_load<true>(w, a.beta, a.beta ? cols : 0, 0, j), beta[j]);
	}
	scale = q_scale(&a.q);
	noop = noop_set(a.q.noop);
	row_stats<T, NV, true, false>(a, w, NULL, NULL, held, &mean, &rstd);
	if (noop)
		return;
	if (w.t == 0 && cols) {
		if (a.mean)
			a.mean[w.row] = mean;
		a.rstd[w.row] = rstd;
	}
#pragma unroll
	for (int j = 0; j < NV; j++) {
		const int64_t c = column<true>(w, 0, j, 0);
		float v[TE_V];
		uint2 code;

		if (c >= cols)
			break;
		unpack(held[j], v);
#pragma unroll
		for (int e = 0; e < TE_V; e++) {
			v[e] = normed(v[e], mean, rstd, gain[j][e]);
			if (a.beta)
				v[e] = add(v[e], beta[j][e]);
		}
		held[j] = pack<T>(v);
		unpack(held[j], v);
		if (a.y)
			store_raw((T *)a.y + at + c, held[j]);
		if (!a.q.amax && !row && !col)
			continue;
#pragma unroll
		for (int e = 0; e < TE_V; e++)
			m = amax_of(m, v[e]);
		code = fp8x8(a.q.dtype, v, scale);
		if (row)
			*(uint2 *)(row + at + c) = code;
		codes[threadIdx.x / 32][c / TE_V] = code;
	}
	if (a.q.amax || row || col)
		small_m_finish<NV>(a.q, a.rows, a.cols, r0, scale, codes, amax, m);
}

template <class T> DEV void norm_fwd_col_body(const struct te_k_norm_fwd &a)
{
	__shared__ tile_codes<TILE_R> codes;
	__shared__ float2 stats[TILE_ROWS]; /* mean, rstd */
	const int64_t r0 = (int64_t)blockIdx.x * TILE_ROWS;
	struct team w = { (int)threadIdx.x % 32, 32, 0 };
	struct tile_out<T> o = { (T *)a.y, a.q, NULL, 0, 1.0f,
				 tile_vec(a.cols, a.x, a.y, &a.q) };
	float m = 0.0f;

	if (noop_set(a.q.noop))
		return;
	o.scale = q_scale(&a.q);
	q_scale_inv(&a.q, o.scale);
	for (int i = threadIdx.x / 32; i < TILE_ROWS && r0 + i < a.rows; i += TILE_THREADS / 32) {
		const T *x = (const T *)a.x + (r0 + i) * a.cols;
		raw<T> held[NORM_NV];
		float mean, rstd;

		if (o.vec)
			row_stats<T, NORM_NV, true, true>(a, w, x, NULL, held, &mean, &rstd);
		else
			row_stats<T, 1, false, true>(a, w, x, NULL, held, &mean, &rstd);
		if (w.t == 0) {
			stats[i] = make_float2(mean, rstd);
			if (a.mean)
				a.mean[r0 + i] = mean;
			a.rstd[r0 + i] = rstd;
		}
	}
	__syncthreads();
	for (int64_t c0 = 0; c0 < a.cols; c0 += TILE_COLS) {
		const tile<TILE_R> t = tile_at<TILE_R>(a.rows, a.cols, r0, c0);
		const tile_raw<T, TILE_R> x = tile_load<T>(&t, a.x, a.cols, t.c, o.vec);
		const int n = clamp_int(a.cols - t.c, 0, TE_V);
		float v[TILE_R][TE_V], gain[TE_V], beta[TE_V];

		load_some(a.gamma + t.c, n, gain);
		load_some(a.beta + t.c, a.beta ? n : 0, beta);
#pragma unroll
		for (int i = 0; i < TILE_R; i++) {
			const float2 s = stats[t.r - r0 + i];

			unpack(x.row[i], v[i]);
#pragma unroll
			for (int e = 0; e < TE_V; e++) {
				v[i][e] = normed(v[i][e], s.x, s.y,
						 a.zero_centered ? add(1.0f, gain[e]) : gain[e]);
				if (a.beta)
					v[i][e] = add(v[i][e], beta[e]);
			}
		}
		m = tile_put<T, TILE_R>(&o, &t, v, &codes, NULL, m);
		__syncthreads();
	}
	if (a.q.amax)
		block_amax(a.q.amax, m);
}

/*
 * The same with the rows in registers, so that they are read once. A cluster of C blocks owns 64
 * rows; its block k computes tiles k, k + C, ..., at most NS of them. The blocks exchange their
 * sums of the rows through distributed shared memory and add them in the order of blocks.
 */
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

template <int C, int NS> DEV void norm_fwd_cluster_body(const struct te_k_norm_fwd &a)
{
	__shared__ tile_codes<TILE_R> codes;
	__shared__ float2 part[2][TILE_ROWS], total[2][TILE_ROWS];
	const int rank = (int)cluster_rank();
	const int64_t r0 = (int64_t)(blockIdx.x / C) * TILE_ROWS;
	const float n = (float)a.cols, per = plain_reciprocal(n);
	struct tile_out<bf16> o = { (bf16 *)a.y, a.q, NULL, 0, 1.0f, true };
	float2 s[TILE_R], stats[TILE_R]; /* stats: mean, rstd */
	tile_raw<bf16, TILE_R> x[NS];
	float m = 0.0f;

	if (noop_set(a.q.noop))
		return; /* every block of the cluster */
#pragma unroll
	for (int k = 0; k < NS; k++) {
		const tile<TILE_R> t = tile_at<TILE_R>(a.rows, a.cols, r0,
						       (int64_t)(k * C + rank) * TILE_COLS);

		x[k] = tile_load<bf16>(&t, a.x, a.cols, t.c, true);
	}
	o.scale = q_scale(&a.q);
	q_scale_inv(&a.q, o.scale);
#pragma unroll
	for (int i = 0; i < TILE_R; i++)
		stats[i] = s[i] = make_float2(0.0f, 0.0f);
	if (a.mean) {
#pragma unroll
		for (int k = 0; k < NS; k++)
#pragma unroll
			for (int i = 0; i < TILE_R; i++) {
				float v[TE_V];

				unpack(x[k].row[i], v);
				s[i].x = add(s[i].x, sum8(v));
			}
		cluster_sum<C>(part[0], total[0], s);
#pragma unroll
		for (int i = 0; i < TILE_R; i++) {
			stats[i].x = plain_quotient(total[0][threadIdx.x / 16 * TILE_R + i].x, n,
						    per);
			s[i] = make_float2(0.0f, 0.0f);
		}
	}
#pragma unroll
	for (int k = 0; k < NS; k++) {
		const int64_t c = (int64_t)(k * C + rank) * TILE_COLS + threadIdx.x % 16 * TE_V;

#pragma unroll
		for (int i = 0; i < TILE_R; i++) {
			float v[TE_V], sq[TE_V];

			unpack(x[k].row[i], v);
#pragma unroll
			for (int e = 0; e < TE_V; e++) {
				v[e] = c < a.cols ? sub(v[e], stats[i].x) : 0.0f;
				sq[e] = mul(v[e], v[e]);
			}
			if (a.mean)
				s[i].x = add(s[i].x, sum8(v));
			s[i].y = add(s[i].y, sum8(sq));
		}
	}
	cluster_sum<C>(part[1], total[1], s);
#pragma unroll
	for (int i = 0; i < TILE_R; i++) {
		const int row = threadIdx.x / 16 * TILE_R + i;

		norm_stats(a, n, per, total[1][row].x, total[1][row].y, &stats[i].x,
			   &stats[i].y);
		if (rank == 0 && threadIdx.x % 16 == 0 && r0 + row < a.rows) {
			if (a.mean)
				a.mean[r0 + row] = stats[i].x;
			a.rstd[r0 + row] = stats[i].y;
		}
	}
#pragma unroll
	for (int k = 0; k < NS; k++) {
		const tile<TILE_R> t = tile_at<TILE_R>(a.rows, a.cols, r0,
						       (int64_t)(k * C + rank) * TILE_COLS);
		float v[TILE_R][TE_V], gain[TE_V], beta[TE_V];

		if (t.c0 >= a.cols)
			break; /* the whole block */
		if (t.c < a.cols) {
			load_vec(a.gamma + t.c, gain);
			if (a.beta)
				load_vec(a.beta + t.c, beta);
		}
#pragma unroll
		for (int i = 0; i < TILE_R; i++) {
			unpack(x[k].row[i], v[i]);
#pragma unroll
			for (int e = 0; e < TE_V; e++) {
				v[i][e] = normed(v[i][e], stats[i].x, stats[i].y,
						 a.zero_centered ? add(1.0f, gain[e]) : gain[e]);
				if (a.beta)
					v[i][e] = add(v[i][e], beta[e]);
			}
		}
		m = tile_put<bf16, TILE_R>(&o, &t, v, &codes, NULL, m);
		__syncthreads();
	}
	if (a.q.amax)
		block_amax(a.q.amax, m);
	cluster_barrier(); /* other blocks may still read part */
}

/* --- forward, block scaling ----------------------------------------------- */

/* sums over the blocks of a cluster, in their order; part and total are used by this call only */
template <int C> DEV void block_rows_sum(float2 part[BLOCK], float2 total[BLOCK], float a[BLOCK_R],
					 float b[BLOCK_R])
{
	const int row = threadIdx.x / 2;
	const float2 mine = make_float2(half_warp_rows<op_add>(a), half_warp_rows<op_add>(b));

	/* lane 2 i of 16 has row i of its 8: thread 2 r has row r */
	if (threadIdx.x % 2 == 0)
		part[row] = mine;
	if (C == 1)
		__syncthreads();
	else
		cluster_barrier();
	if (threadIdx.x < BLOCK) {
		float2 sum = make_float2(0.0f, 0.0f), other[C];

#pragma unroll
		for (int k = 0; k < C; k++)
			other[k] = C == 1 ? part[threadIdx.x] : cluster_read(&part[threadIdx.x], k);
#pragma unroll
		for (int k = 0; k < C; k++)
			sum = make_float2(add(sum.x, other[k].x), add(sum.y, other[k].y));
		total[threadIdx.x] = sum;
	}
	__syncthreads();
}

/*
 * A cluster of C blocks owns 128 rows; its block k computes tiles k, k + C, ... It reads them for
 * the mean, for the variance and for the result, the first time from memory and then from L2.
 */
template <class T, int C> DEV void norm_fwd_block_body(const struct te_k_norm_fwd &a)
{
	__shared__ block_shared<false> shared;
	__shared__ float2 part[2][BLOCK], stats[2][BLOCK]; /* sums; then stats[0]: mean, rstd */
	const int64_t first = C == 1 ? 0 : (int64_t)cluster_rank() * BLOCK;
	const int64_t r0 = (int64_t)(blockIdx.x / C) * BLOCK;
	const float n = (float)a.cols, per = plain_reciprocal(n);
	const block_out<T> o = { (T *)a.y, a.q, NULL, block_vec(a.cols, a.x, a.y, a.q) };
	const int ty = threadIdx.x / 16;
	float s1[BLOCK_R] = {}, s2[BLOCK_R] = {}, mean[BLOCK_R] = {};

	if (noop_set(a.q.noop))
		return; /* every block of the cluster */
#pragma unroll 1
	for (int pass = a.mean ? 0 : 1; pass < 2; pass++) {
		for (int64_t c0 = first; c0 < a.cols; c0 += C * BLOCK) {
			const block_tile t = block_at(a.rows, a.cols, r0, c0);
			const T *x = (const T *)a.x + t.r * a.cols + t.c;
			raw<T> held[BLOCK_R];

#pragma unroll
			for (int i = 0; i < BLOCK_R; i++)
				held[i] = block_load<false>(x + i * a.cols, block_n(t, i), o.vec);
#pragma unroll
			for (int i = 0; i < BLOCK_R; i++) {
				const int count = block_n(t, i);
				float v[TE_V], sq[TE_V];

				unpack(held[i], v);
				if (pass == 0) {
					s1[i] = add(s1[i], sum8(v));
					continue;
				}
#pragma unroll
				for (int e = 0; e < TE_V; e++) {
					v[e] = e < count ? sub(v[e], mean[i]) : 0.0f;
					sq[e] = mul(v[e], v[e]);
				}
				if (a.mean)
					s1[i] = add(s1[i], sum8(v));
				s2[i] = add(s2[i], sum8(sq));
			}
		}
		block_rows_sum<C>(part[pass], stats[pass], s1, s2);
		if (pass == 0)
#pragma unroll
			for (int i = 0; i < BLOCK_R; i++) {
				mean[i] = plain_quotient(stats[0][ty * BLOCK_R + i].x, n, per);
				s1[i] = s2[i] = 0.0f;
			}
	}
	if (threadIdx.x < BLOCK) {
		const int64_t r = r0 + threadIdx.x;
		float m = a.mean ? plain_quotient(stats[0][threadIdx.x].x, n, per) : 0.0f, rstd;
		const float2 d = stats[1][threadIdx.x];

		norm_stats(a, n, per, d.x, d.y, &m, &rstd);
		stats[0][threadIdx.x] = make_float2(m, rstd);
		if (first == 0 && r < a.rows) {
			if (a.mean)
				a.mean[r] = m;
			a.rstd[r] = rstd;
		}
	}
	__syncthreads();
	for (int64_t c0 = first; c0 < a.cols; c0 += C * BLOCK) {
		const block_tile t = block_at(a.rows, a.cols, r0, c0);
		const T *x = (const T *)a.x + t.r * a.cols + t.c;
		const int ncols = clamp_int(a.cols - t.c, 0, TE_V);
		float gain[TE_V], beta[TE_V];
		raw<T> y[BLOCK_R];

#pragma unroll
		for (int i = 0; i < BLOCK_R; i++)
			y[i] = block_load<false>(x + i * a.cols, block_n(t, i), o.vec);
		load_some(a.gamma + t.c, ncols, gain);
		load_some(a.beta + t.c, a.beta ? ncols : 0, beta);
		if (a.zero_centered)
#pragma unroll
			for (int e = 0; e < TE_V; e++)
				gain[e] = add(1.0f, gain[e]);
#pragma unroll
		for (int i = 0; i < BLOCK_R; i++) {
			const float2 s = stats[0][ty * BLOCK_R + i];
			float v[TE_V];

			unpack(y[i], v);
#pragma unroll
			for (int e = 0; e < TE_V; e++) {
				v[e] = normed(v[e], s.x, s.y, gain[e]);
				if (a.beta)
					v[e] = add(v[e], beta[e]);
			}
			y[i] = block_round<T>(block_n(t, i), v);
		}
		block_put(o, a.q.scaling, t, y, &shared);
		__syncthreads();
	}
	if (C > 1)
		cluster_barrier(); /* other blocks may still read part */
}

/* --- backward ------------------------------------------------------------ */

template <class T, int NV, bool VEC, bool LONG>
DEV void norm_bwd_body(const struct te_k_norm_bwd &a)
{
	__shared__ float2 part[NORM_THREADS / 32];
	const struct team w = team_of(a.cols);
	const int64_t at = w.row * a.cols;
	const T *dy = (const T *)a.dy + at, *x = (const T *)a.x + at;
	const T *dres = a.dres ? (const T *)a.dres + at : NULL;
	const float n = (float)a.cols, per = plain_reciprocal(n);
	float mean, rstd, sum_g = 0.0f, sum_gx = 0.0f;
	raw<T> held_dy[NV], held_x[NV];

	if (w.row >= a.rows)
		return;
	mean = a.mean ? a.mean[w.row] : 0.0f;
	rstd = a.rstd[w.row];
	chunks<NV, LONG>(w, a.cols, [&](int64_t base) {
#pragma unroll
		for (int j = 0; j < NV; j++) {
			held_dy[j] = row_load<VEC>(w, dy, a.cols, base, j);
			held_x[j] = row_load<VEC>(w, x, a.cols, base, j);
		}
#pragma unroll
		for (int j = 0; j < NV; j++) {
			float g[TE_V], v[TE_V], gain[TE_V];

			if (column<VEC>(w, base, j, 0) >= a.cols)
				break;
			gain_load<VEC>(w, a.gamma, a.zero_centered, a.cols, base, j, gain);
			unpack(held_dy[j], g);
			unpack(held_x[j], v);
#pragma unroll
			for (int e = 0; e < TE_V; e++) {
				const bool in = VEC || column<VEC>(w, base, j, e) < a.cols;

				g[e] = in ? mul(g[e], gain[e]) : 0.0f;
				v[e] = in ? mul(g[e], mul(sub(v[e], mean), rstd)) : 0.0f;
			}
			if (a.mean)
				sum_g = add(sum_g, sum8(g));
			sum_gx = add(sum_gx, sum8(v));
		}
	});
	team_sum(w, part, sum_g, sum_gx);
	sum_g = plain_quotient(sum_g, n, per);
	sum_gx = plain_quotient(sum_gx, n, per);
	chunks<NV, LONG>(w, a.cols, [&](int64_t base) {
		if (LONG)
#pragma unroll
			for (int j = 0; j < NV; j++) {
				held_dy[j] = row_load<VEC>(w, dy, a.cols, base, j);
				held_x[j] = row_load<VEC>(w, x, a.cols, base, j);
			}
#pragma unroll
		for (int j = 0; j < NV; j++) {
			float g[TE_V], v[TE_V], gain[TE_V], res[TE_V];

			if (column<VEC>(w, base, j, 0) >= a.cols)
				break;
			if (dres)
				unpack(row_load<VEC>(w, dres, a.cols, base, j), res);
			gain_load<VEC>(w, a.gamma, a.zero_centered, a.cols, base, j, gain);
			unpack(held_dy[j], g);
			unpack(held_x[j], v);
#pragma unroll
			for (int e = 0; e < TE_V; e++) {
				const float xhat = mul(sub(v[e], mean), rstd);

				g[e] = sub(mul(g[e], gain[e]), sum_g);
				g[e] = mul(rstd, sub(g[e], mul(xhat, sum_gx)));
				if (dres)
					g[e] = add(g[e], res[e]);
			}
			row_store<VEC>(w, (T *)a.dx + at, a.cols, base, j, pack<T>(g));
		}
	});
}

/* norm_bwd_small_m: the same with the same bits, a warp per row */
template <class T, int NV> DEV void norm_bwd_small_m_body(const struct te_k_norm_bwd &a)
{
	__shared__ uint2 codes[NORM_SMALL_M_ROWS][32 * NV];
	__shared__ float amax[NORM_SMALL_M_ROWS];
	const int64_t r0 = (int64_t)blockIdx.x * NORM_SMALL_M_ROWS;
	const struct team w = { (int)threadIdx.x % 32, 32, r0 + threadIdx.x / 32 };
	const int64_t cols = w.row < a.rows ? a.cols : 0, at = w.row * a.cols;
	const bool casts = a.q.amax || a.q.row || a.q.col;
	const float n = (float)a.cols, per = plain_reciprocal(n);
	float mean = 0.0f, rstd = 0.0f, sum_g = 0.0f, sum_gx = 0.0f, scale, m = 0.0f;
	float gain[NV][TE_V];
	raw<T> dy[NV], x[NV], dres[NV];

#pragma unroll
	for (int j = 0; j < NV; j++) {
		dy[j] = row_load<true>(w, (const T *)a.dy + at, cols, 0, j);
		x[j] = row_load<true>(w, (const T *)a.x + at, cols, 0, j);
		dres[j] = row_load<true>(w, (const T *)a.dres + at, a.dres ? cols : 0, 0, j);
	}
	if (cols) {
		rstd = a.rstd[w.row];
		if (a.mean)
			mean = a.mean[w.row];
	}
	scale = q_scale(&a.q);
	if (noop_set(a.q.noop))
		return;
#pragma unroll
	for (int j = 0; j < NV; j++)
		gain_load<true>(w, a.gamma, a.zero_centered, cols, 0, j, gain[j]);
#pragma unroll
	for (int j = 0; j < NV; j++) {
		float g[TE_V], v[TE_V];

		if (column<true>(w, 0, j, 0) >= cols)
			break;
		unpack(dy[j], g);
		unpack(x[j], v);
#pragma unroll
		for (int e = 0; e < TE_V; e++) {
			g[e] = mul(g[e], gain[j][e]);
			v[e] = mul(g[e], mul(sub(v[e], mean), rstd));
		}
		if (a.mean)
			sum_g = add(sum_g, sum8(g));
		sum_gx = add(sum_gx, sum8(v));
	}
	sum_g = plain_quotient(warp_sum(sum_g), n, per);
	sum_gx = plain_quotient(warp_sum(sum_gx), n, per);
#pragma unroll
	for (int j = 0; j < NV; j++) {
		const int64_t c = column<true>(w, 0, j, 0);
		float g[TE_V], v[TE_V], res[TE_V];
		uint2 code;

		if (c >= cols)
			break;
		unpack(dy[j], g);
		unpack(x[j], v);
		unpack(dres[j], res);
#pragma unroll
		for (int e = 0; e < TE_V; e++) {
			const float xhat = mul(sub(v[e], mean), rstd);

			g[e] = sub(mul(g[e], gain[j][e]), sum_g);
			g[e] = mul(rstd, sub(g[e], mul(xhat, sum_gx)));
			if (a.dres)
				g[e] = add(g[e], res[e]);
		}
		dy[j] = pack<T>(g);
		store_raw((T *)a.dx + at + c, dy[j]);
		if (!casts)
			continue;
		unpack(dy[j], g);
#pragma unroll
		for (int e = 0; e < TE_V; e++)
			m = amax_of(m, g[e]);
		code = fp8x8(a.q.dtype, g, scale);
		if (a.q.row)
			*(uint2 *)((uint8_t *)a.q.row + at + c) = code;
		codes[threadIdx.x / 32][c / TE_V] = code;
	}
	if (casts)
		small_m_finish<NV>(a.q, a.rows, a.cols, r0, scale, codes, amax, m);
}

/* the gradient of x, given mean, rstd and the means over g and over g * xhat */
DEV float norm_dx(float dy, float x, float gain, const float4 &s)
{
	const float xhat = mul(sub(x, s.x), s.y);

	return mul(s.y, sub(sub(mul(dy, gain), s.z), mul(xhat, s.w)));
}

DEV void tile_gain(const struct te_k_norm_bwd &a, int64_t c, float gain[TE_V])
{
	load_some(a.gamma + c, clamp_int(a.cols - c, 0, TE_V), gain);
	if (a.zero_centered)
#pragma unroll
		for (int e = 0; e < TE_V; e++)
			gain[e] = add(1.0f, gain[e]);
}

/* store a tile of dx, with s of the thread's rows; returns the maximum of m and |dx| */
template <class T>
DEV float norm_dx_put(const struct te_k_norm_bwd &a, const struct tile_out<T> *o,
		      const tile<TILE_R> *t, const tile_raw<T, TILE_R> &dy,
		      const tile_raw<T, TILE_R> &x, const float4 s[TILE_R],
		      tile_codes<TILE_R> *codes, float m)
{
	float v[TILE_R][TE_V], gain[TE_V];
	tile_raw<T, TILE_R> dres;

	if (a.dres)
		dres = tile_load<T>(t, a.dres, a.cols, t->c, o->vec);
	tile_gain(a, t->c, gain);
#pragma unroll
	for (int i = 0; i < TILE_R; i++) {
		float d[TE_V], res[TE_V];

		unpack(dy.row[i], d);
		unpack(x.row[i], v[i]);
		if (a.dres)
			unpack(dres.row[i], res);
#pragma unroll
		for (int e = 0; e < TE_V; e++) {
			v[i][e] = norm_dx(d[e], v[i][e], gain[e], s[i]);
			if (a.dres)
				v[i][e] = add(v[i][e], res[e]);
		}
	}
	return tile_put<T, TILE_R>(o, t, v, codes, NULL, m);
}

/* norm_bwd_col: two passes over 64 rows */
template <class T, bool VEC> DEV float2 norm_bwd_sums(const struct te_k_norm_bwd &a,
						      const struct team &w, float mean, float rstd)
{
	const T *dy = (const T *)a.dy + w.row * a.cols, *x = (const T *)a.x + w.row * a.cols;
	float sum_g = 0.0f, sum_gx = 0.0f;

	for (int64_t base = 0; base < a.cols; base += 32 * TE_V) {
		float g[TE_V], v[TE_V], gain[TE_V];

		unpack(row_load<VEC>(w, dy, a.cols, base, 0), g);
		unpack(row_load<VEC>(w, x, a.cols, base, 0), v);
		gain_load<VEC>(w, a.gamma, a.zero_centered, a.cols, base, 0, gain);
#pragma unroll
		for (int e = 0; e < TE_V; e++) {
			const bool in = column<VEC>(w, base, 0, e) < a.cols;

			g[e] = in ? mul(g[e], gain[e]) : 0.0f;
			v[e] = in ? mul(g[e], mul(sub(v[e], mean), rstd)) : 0.0f;
		}
		if (a.mean)
			sum_g = add(sum_g, sum8(g));
		sum_gx = add(sum_gx, sum8(v));
	}
	return make_float2(warp_sum(sum_g), warp_sum(sum_gx));
}

template <class T> DEV void norm_bwd_col_body(const struct te_k_norm_bwd &a)
{
	__shared__ tile_codes<TILE_R> codes;
	__shared__ float4 stats[TILE_ROWS]; /* as norm_dx() takes them */
	const int64_t r0 = (int64_t)blockIdx.x * TILE_ROWS;
	const float n = (float)a.cols, per = plain_reciprocal(n);
	struct tile_out<T> o = { (T *)a.dx, a.q, NULL, 0, 1.0f,
				 tile_vec(a.cols, a.x, a.dx, &a.q) && aligned(a.dy) &&
					 aligned(a.dres) && aligned(a.gamma) };
	float4 s[TILE_R];
	float m = 0.0f;

	if (noop_set(a.q.noop))
		return;
	o.scale = q_scale(&a.q);
	q_scale_inv(&a.q, o.scale);
	for (int i = threadIdx.x / 32; i < TILE_ROWS && r0 + i < a.rows; i += TILE_THREADS / 32) {
		const struct team w = { (int)threadIdx.x % 32, 32, r0 + i };
		const float mean = a.mean ? a.mean[w.row] : 0.0f, rstd = a.rstd[w.row];
		const float2 sum = o.vec ? norm_bwd_sums<T, true>(a, w, mean, rstd) :
					   norm_bwd_sums<T, false>(a, w, mean, rstd);

		if (w.t == 0)
			stats[i] = make_float4(mean, rstd, plain_quotient(sum.x, n, per),
					       plain_quotient(sum.y, n, per));
	}
	__syncthreads();
#pragma unroll
	for (int i = 0; i < TILE_R; i++) {
		const int row = threadIdx.x / 16 * TILE_R + i;

		s[i] = r0 + row < a.rows ? stats[row] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
	}
	for (int64_t c0 = 0; c0 < a.cols; c0 += TILE_COLS) {
		const tile<TILE_R> t = tile_at<TILE_R>(a.rows, a.cols, r0, c0);
		const tile_raw<T, TILE_R> dy = tile_load<T>(&t, a.dy, a.cols, t.c, o.vec);
		const tile_raw<T, TILE_R> x = tile_load<T>(&t, a.x, a.cols, t.c, o.vec);

		m = norm_dx_put<T>(a, &o, &t, dy, x, s, &codes, m);
		__syncthreads();
	}
	if (a.q.amax)
		block_amax(a.q.amax, m);
}

/* norm_bwd_colCxN: the same with the rows in registers, as norm_fwd_cluster_body() */
template <int C, int NS> DEV void norm_bwd_cluster_body(const struct te_k_norm_bwd &a)
{
	__shared__ tile_codes<TILE_R> codes;
	__shared__ float2 part[TILE_ROWS], total[TILE_ROWS];
	const int rank = (int)cluster_rank();
	const int64_t r0 = (int64_t)(blockIdx.x / C) * TILE_ROWS;
	const int row0 = threadIdx.x / 16 * TILE_R;
	const float n = (float)a.cols, per = plain_reciprocal(n);
	struct tile_out<bf16> o = { (bf16 *)a.dx, a.q, NULL, 0, 1.0f, true };
	tile_raw<bf16, TILE_R> dy[NS], x[NS];
	float2 sum[TILE_R];
	float4 s[TILE_R];
	float m = 0.0f;

	if (noop_set(a.q.noop))
		return; /* every block of the cluster */
#pragma unroll
	for (int k = 0; k < NS; k++) {
		const tile<TILE_R> t = tile_at<TILE_R>(a.rows, a.cols, r0,
						       (int64_t)(k * C + rank) * TILE_COLS);

		dy[k] = tile_load<bf16>(&t, a.dy, a.cols, t.c, true);
		x[k] = tile_load<bf16>(&t, a.x, a.cols, t.c, true);
	}
	o.scale = q_scale(&a.q);
	q_scale_inv(&a.q, o.scale);
#pragma unroll
	for (int i = 0; i < TILE_R; i++) {
		const bool in = r0 + row0 + i < a.rows;

		sum[i] = make_float2(0.0f, 0.0f);
		s[i] = make_float4(in && a.mean ? a.mean[r0 + row0 + i] : 0.0f,
				   in ? a.rstd[r0 + row0 + i] : 0.0f, 0.0f, 0.0f);
	}
#pragma unroll
	for (int k = 0; k < NS; k++) {
		const int64_t c = (int64_t)(k * C + rank) * TILE_COLS + threadIdx.x % 16 * TE_V;
		float gain[TE_V];

		if (c >= a.cols)
			continue;
		tile_gain(a, c, gain);
#pragma unroll
		for (int i = 0; i < TILE_R; i++) {
			float g[TE_V], v[TE_V];

			unpack(dy[k].row[i], g);
			unpack(x[k].row[i], v);
#pragma unroll
			for (int e = 0; e < TE_V; e++) {
				g[e] = mul(g[e], gain[e]);
				v[e] = mul(g[e], mul(sub(v[e], s[i].x), s[i].y));
			}
			if (a.mean)
				sum[i].x = add(sum[i].x, sum8(g));
			sum[i].y = add(sum[i].y, sum8(v));
		}
	}
	cluster_sum<C>(part, total, sum);
#pragma unroll
	for (int i = 0; i < TILE_R; i++) {
		s[i].z = plain_quotient(total[row0 + i].x, n, per);
		s[i].w = plain_quotient(total[row0 + i].y, n, per);
	}
#pragma unroll
	for (int k = 0; k < NS; k++) {
		const tile<TILE_R> t = tile_at<TILE_R>(a.rows, a.cols, r0,
						       (int64_t)(k * C + rank) * TILE_COLS);

		if (t.c0 >= a.cols)
			break; /* the whole block */
		m = norm_dx_put<bf16>(a, &o, &t, dy[k], x[k], s, &codes, m);
		__syncthreads();
	}
	if (a.q.amax)
		block_amax(a.q.amax, m);
	cluster_barrier(); /* other blocks may still read part */
}

/* --- weights ------------------------------------------------------------- */

/*
 * dy * xhat and dy of the rows and columns of this block. A warp has 16 rows, a lane two columns;
 * all loads are issued before the first value is used.
 */
template <class T, bool VEC>
DEV void norm_dw_terms(const struct te_k_norm_dw &a,
		       float2 term[2][TE_K_PART_ROWS][NORM_DW_COLS / 2], int64_t p, int64_t c)
{
	constexpr int STEP = TE_K_PART_ROWS / (NORM_DW_THREADS / 32);
	const int r0 = threadIdx.x / 32 * STEP, lane = threadIdx.x % 32, r = r0 + lane % STEP;
	const int nrows = clamp_int(a.rows - p * TE_K_PART_ROWS, 0, TE_K_PART_ROWS);
	const int n = clamp_int(a.cols - c - lane * 2, 0, 2);
	const int64_t at = (p * TE_K_PART_ROWS + r0) * a.cols + c + lane * 2;
	const T *dy = (const T *)a.dy + at, *x = (const T *)a.x + at;
	const float *stats = lane < STEP ? a.mean : a.rstd;
	raw2<T> wd[STEP], wx[STEP];
	float stat;

#pragma unroll
	for (int i = 0; i < STEP; i++, dy += a.cols, x += a.cols) {
		wd[i] = load2<VEC>(dy, r0 + i < nrows ? n : 0);
		wx[i] = load2<VEC>(x, r0 + i < nrows ? n : 0);
	}
	/* of row r: the mean in lanes below STEP, rstd in those above */
	stat = stats && r < nrows ? stats[p * TE_K_PART_ROWS + r] : 0.0f;
#pragma unroll
	for (int i = 0; i < STEP; i++) {
		const float2 d = unpack2(wd[i]), v = unpack2(wx[i]);
		const float mean = __shfl_sync(0xffffffffu, stat, i);
		const float rstd = __shfl_sync(0xffffffffu, stat, STEP + i);

		term[0][r0 + i][lane] = make_float2(mul(d.x, mul(sub(v.x, mean), rstd)),
						    mul(d.y, mul(sub(v.y, mean), rstd)));
		term[1][r0 + i][lane] = d;
	}
}

template <class T> DEV void norm_dw_body(const struct te_k_norm_dw &a)
{
	__shared__ float2 term[2][TE_K_PART_ROWS][NORM_DW_COLS / 2];
	const uint32_t nblocks = (uint32_t)((a.cols + NORM_DW_COLS - 1) / NORM_DW_COLS);
	const int64_t p = blockIdx.x / nblocks;
	const int64_t c = (int64_t)(blockIdx.x % nblocks) * NORM_DW_COLS;
	const int64_t mine = c + threadIdx.x % NORM_DW_COLS;
	const bool beta = threadIdx.x >= NORM_DW_COLS;
	const float *value = (const float *)term[beta] + threadIdx.x % NORM_DW_COLS;
	float *part = beta ? a.part_beta : a.part_gamma;
	float sum = 0.0f;

	if (a.cols % 2 == 0 && aligned(a.dy) && aligned(a.x))
		norm_dw_terms<T, true>(a, term, p, c);
	else
		norm_dw_terms<T, false>(a, term, p, c);
	__syncthreads();
	if (!part || mine >= a.cols)
		return;
	/* rows beyond the end add +0, which changes no sum that started at +0 */
#pragma unroll 32
	for (int r = 0; r < TE_K_PART_ROWS; r++)
		sum = add(sum, value[r * NORM_DW_COLS]);
	part[p * a.cols + mine] = sum;
}

#define ROWS(T, t, variant, NV, VEC, LONG)                                                      \
	extern "C" __global__ void __launch_bounds__(NORM_THREADS)                              \
		te_k_norm_fwd_##variant##t(const __grid_constant__ struct te_k_norm_fwd a)      \
	{                                                                                       \
		te_begin();                                                                     \
		norm_fwd_body<T, NV, VEC, LONG>(a);                                             \
	}                                                                                       \
	extern "C" __global__ void __launch_bounds__(NORM_THREADS)                              \
		te_k_norm_bwd_##variant##t(const __grid_constant__ struct te_k_norm_bwd a)      \
	{                                                                                       \
		te_begin();                                                                     \
		norm_bwd_body<T, NV, VEC, LONG>(a);                                             \
	}
#define CLUSTER(C, NS)                                                          \
	extern "C" __global__ void __cluster_dims__(C, 1, 1)                    \
		__launch_bounds__(TILE_THREADS, NS < 2 ? 4 : NS < 5 ? 2 : 1)    \
		te_k_norm_fwd_col##C##x##NS##_bf16(                             \
			const __grid_constant__ struct te_k_norm_fwd a)         \
	{                                                                       \
		te_begin();                                                     \
		norm_fwd_cluster_body<C, NS>(a);                                \
	}
NORM_COL_CLUSTERS(CLUSTER)
#undef CLUSTER

#define CLUSTER(C, NS)                                                          \
	extern "C" __global__ void __cluster_dims__(C, 1, 1)                    \
		__launch_bounds__(TILE_THREADS, NS < 3 ? 2 : 1)                 \
		te_k_norm_bwd_col##C##x##NS##_bf16(                             \
			const __grid_constant__ struct te_k_norm_bwd a)         \
	{                                                                       \
		te_begin();                                                     \
		norm_bwd_cluster_body<C, NS>(a);                                \
	}
NORM_BWD_COL_CLUSTERS(CLUSTER)
#undef CLUSTER

#define BLOCKS(T, t, C)                                                                         \
	extern "C" __global__ void __cluster_dims__(C, 1, 1)                                    \
		__launch_bounds__(BLOCK_THREADS, 2)                                             \
		te_k_norm_fwd_block##C##_##t(const __grid_constant__ struct te_k_norm_fwd a)    \
	{                                                                                       \
		te_begin();                                                                     \
		norm_fwd_block_body<T, C>(a);                                                   \
	}
BLOCKS(float, fp32, 1)
BLOCKS(float, fp32, 2)
BLOCKS(float, fp32, 4)
BLOCKS(float, fp32, 8)
BLOCKS(bf16, bf16, 1)
BLOCKS(bf16, bf16, 2)
BLOCKS(bf16, bf16, 4)
BLOCKS(bf16, bf16, 8)
#undef BLOCKS

#define SMALL_M(T, t, COLS)                                                                       \
	extern "C" __global__ void __launch_bounds__(NORM_SMALL_M_ROWS * 32)                      \
		te_k_norm_fwd_small_m##COLS##_##t(const __grid_constant__ struct te_k_norm_fwd a) \
	{                                                                                         \
		te_begin();                                                                       \
		norm_fwd_small_m_body<T, COLS / (32 * TE_V)>(a);                                  \
	}                                                                                         \
	extern "C" __global__ void __launch_bounds__(NORM_SMALL_M_ROWS * 32)                      \
		te_k_norm_bwd_small_m##COLS##_##t(const __grid_constant__ struct te_k_norm_bwd a) \
	{                                                                                         \
		te_begin();                                                                       \
		norm_bwd_small_m_body<T, COLS / (32 * TE_V)>(a);                                  \
	}
#define TE_NAME(T, t)                                                                   \
	ROWS(T, t, , NORM_NV, true, false)                                              \
	ROWS(T, t, long_, 2, true, true)                                                \
	ROWS(T, t, unaligned_, 1, false, true)                                          \
	extern "C" __global__ void __launch_bounds__(TILE_THREADS)                      \
		te_k_norm_fwd_col_##t(const __grid_constant__ struct te_k_norm_fwd a)   \
	{                                                                               \
		te_begin();                                                             \
		norm_fwd_col_body<T>(a);                                                \
	}                                                                               \
	extern "C" __global__ void __launch_bounds__(TILE_THREADS)                      \
		te_k_norm_bwd_col_##t(const __grid_constant__ struct te_k_norm_bwd a)   \
	{                                                                               \
		te_begin();                                                             \
		norm_bwd_col_body<T>(a);                                                \
	}                                                                               \
	SMALL_M(T, t, 256)                                                              \
	SMALL_M(T, t, 1024)                                                             \
	extern "C" __global__ void __launch_bounds__(NORM_DW_THREADS)                   \
		te_k_norm_dw_##t(const __grid_constant__ struct te_k_norm_dw a)         \
	{                                                                               \
		te_begin();                                                             \
		norm_dw_body<T>(a);                                                     \
	}
TE_NAME(float, fp32)
TE_NAME(bf16, bf16)
#undef TE_NAME
#undef SMALL_M
#undef ROWS
