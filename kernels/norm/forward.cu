/*
 * forward.cu - LayerNorm and RMSNorm. Clusters, so blockC with C > 1, from compute capability 9.0
 * on. rows.cu and cast.cu have BF16 of up to 8192 columns.
 *
 *  kernel             shapes             blocks            threads  shared  B/element (BF16)
 *  norm_fwd           x T [rows, cols]   4 rows, or a row  64..512  384     4, to FP8 3
 *  norm_fwd_small_mN  the same           4 rows            128      1040; N = 1024: 4112
 *  norm_fwd_col       the same, any      64 rows           256      8832    6
 *  norm_fwd_blockC    block-scaled q     C for 128 rows    256      25088   4, and 4 to 8 of L2
 *
 * A warp computes a row of up to 1024 columns, a block one of up to 16384. The row stays in
 * registers, 32 elements per thread, between the statistics and the result. _long, for more
 * columns, reads rows repeatedly, from L2. _unaligned, for widths that are not a multiple of 8 and
 * for pointers that are not aligned to vectors, accesses single elements. _small_mN, for up to 528
 * rows of up to N columns, is bound by latency: it issues all loads at once, and a warp transposes
 * the codes of its row itself.
 *
 * A transposed copy needs consecutive rows, and statistics need whole rows: norm_fwd_col takes two
 * passes over 64 rows.
 *
 * A block-scaled copy needs tiles of 128 rows, too many for registers: a cluster of C blocks reads
 * its 128 rows two or three times, the first time from memory and then from L2.
 */
#include "kernels/block.cuh"
#include "kernels/norm/rows.cuh"

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

#define ROWS(T, t, variant, NV, VEC, LONG)                                                      \
	extern "C" __global__ void __launch_bounds__(NORM_THREADS)                              \
		te_k_norm_fwd_##variant##t(const __grid_constant__ struct te_k_norm_fwd a)      \
	{                                                                                       \
		te_begin_early();                                                               \
		norm_fwd_body<T, NV, VEC, LONG>(a);                                             \
	}
#define BLOCKS(T, t, C)                                                                         \
	extern "C" __global__ void CLUSTER_DIMS(C)                                              \
		__launch_bounds__(BLOCK_THREADS, 2)                                             \
		te_k_norm_fwd_block##C##_##t(const __grid_constant__ struct te_k_norm_fwd a)    \
	{                                                                                       \
		te_begin();                                                                     \
		norm_fwd_block_body<T, C>(a);                                                   \
	}
BLOCKS(float, fp32, 1)
#if __CUDA_ARCH__ >= 900
BLOCKS(float, fp32, 2)
BLOCKS(float, fp32, 4)
BLOCKS(float, fp32, 8)
#endif
BLOCKS(bf16, bf16, 1)
#if __CUDA_ARCH__ >= 900
BLOCKS(bf16, bf16, 2)
BLOCKS(bf16, bf16, 4)
BLOCKS(bf16, bf16, 8)
#endif
#undef BLOCKS

#define SMALL_M(T, t, COLS)                                                                       \
	extern "C" __global__ void __launch_bounds__(NORM_SMALL_M_ROWS * 32)                      \
		te_k_norm_fwd_small_m##COLS##_##t(const __grid_constant__ struct te_k_norm_fwd a) \
	{                                                                                         \
		te_begin_early();                                                                 \
		norm_fwd_small_m_body<T, COLS / (32 * TE_V)>(a);                                  \
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
	SMALL_M(T, t, 256)                                                              \
	SMALL_M(T, t, 1024)
TE_NAME(float, fp32)
TE_NAME(bf16, bf16)
#undef TE_NAME
#undef SMALL_M
#undef ROWS
