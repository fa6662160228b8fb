/*
 * cast.cu - LayerNorm and RMSNorm of BF16 with a transposed FP8 copy, in one pass over the rows.
 *
 *  kernel             shapes          blocks         threads  shared     B/element
 *  norm_cast_NV       x [rows, cols]  32 rows        256      32 x cols  2, and what is written
 *  norm_cast_clusterC the same        C for 32 rows  256      33408      the same
 *
 * A warp holds a row of up to 256 NV columns in registers, P rows at a time. Codes are collected in
 * shared memory, from where a thread transposes 16 rows of 4 columns. _clusterC, for up to 1024 C
 * columns and any number of rows: a warp holds 4 rows of the columns of its block, and the blocks
 * of a cluster add their sums. Rows have the sums of norm_rows, except where clusters compute 1025
 * to 2048 columns.
 */
#include "kernels/norm/geometry.h"
#include "kernels/norm/rows.cuh"

#define ROWS NORM_CAST_ROWS
#define CLUSTER_THREADS NORM_CAST_CLUSTER_THREADS

/* byte of column c of row r in shared memory; the halves of a warp read rows that are 16 apart */
DEV int codes_at(int r, int c, int pitch)
{
	return r * pitch + (c ^ (r & 16 ? 64 : 0));
}

DEV void codes_transpose(const uint8_t *codes, int pitch, const struct te_k_norm_fwd &a, int64_t r0)
{
	for (int i = threadIdx.x; i < (int)a.cols / 2; i += blockDim.x) {
		const int c = i / 2 * 4, r = i % 2 * 16;
		uint8_t *to = (uint8_t *)a.q.col + c * a.rows + r0 + r;
		uint32_t out[4][4]; /* 4 rows a word */

		if (r0 + r >= a.rows)
			continue;
#pragma unroll
		for (int k = 0; k < 4; k++) {
			uint32_t in[4];

#pragma unroll
			for (int j = 0; j < 4; j++)
				in[j] = *(const uint32_t *)(codes +
							    codes_at(r + 4 * k + j, c, pitch));
			transpose4(in, out[k]);
		}
#pragma unroll
		for (int j = 0; j < 4; j++)
			*(uint4 *)(to + j * a.rows) =
				make_uint4(out[0][j], out[1][j], out[2][j], out[3][j]);
	}
}

template <int NV, int P, int WARPS> DEV void norm_cast_body(const struct te_k_norm_fwd &a)
{
	extern __shared__ uint4 words[];
	uint8_t *const codes = (uint8_t *)words;
	const int pitch = NORM_CAST_PITCH((int)a.cols);
	const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * (ROWS / WARPS);
	const int64_t r0 = (int64_t)blockIdx.x * ROWS;
	const float n = (float)a.cols, per = plain_reciprocal(n);
	float scale, m = 0.0f;

	if (noop_set(a.q.noop))
		return;
	scale = q_scale(&a.q);
	q_scale_inv(&a.q, scale);
#pragma unroll 1
	for (int i0 = first; i0 < first + ROWS / WARPS && r0 + i0 < a.rows; i0 += P) {
		const bf16 *x = (const bf16 *)a.x + (r0 + i0) * a.cols + lane * TE_V;
		float mean[P], rstd[P], d1[P], d2[P];
		raw<bf16> held[P][NV];

#pragma unroll
		for (int i = 0; i < P; i++)
#pragma unroll
			for (int j = 0; j < NV; j++)
				held[i][j] = j * 256 + lane * TE_V < a.cols ?
						     load_raw(x + i * a.cols + j * 256) :
						     zero_raw<bf16>();
#pragma unroll
		for (int i = 0; i < P; i++)
			mean[i] = d1[i] = d2[i] = 0.0f;
		if (a.mean) {
#pragma unroll
			for (int i = 0; i < P; i++)
#pragma unroll
				for (int j = 0; j < NV; j++) {
					float v[TE_V];

					unpack(held[i][j], v);
					mean[i] = add(mean[i], sum8(v));
				}
			warp_sum_each<P>(mean);
#pragma unroll
			for (int i = 0; i < P; i++)
				mean[i] = plain_quotient(mean[i], n, per);
		}
#pragma unroll
		for (int i = 0; i < P; i++)
#pragma unroll
			for (int j = 0; j < NV; j++) {
				const bool in = j * 256 + lane * TE_V < a.cols;
				float v[TE_V];

				unpack(held[i][j], v);
#pragma unroll
				for (int e = 0; e < TE_V; e++)
					v[e] = in ? sub(v[e], mean[i]) : 0.0f;
				if (a.mean)
					d1[i] = add(d1[i], sum8(v));
				d2[i] = add(d2[i], sumsq8(v));
			}
		warp_sum_each<P>(d2);
		if (a.mean)
			warp_sum_each<P>(d1);
#pragma unroll
		for (int i = 0; i < P; i++) {
			norm_stats(a, n, per, d1[i], d2[i], &mean[i], &rstd[i]);
			if (lane)
				continue;
			if (a.mean)
				a.mean[r0 + i0 + i] = mean[i];
			a.rstd[r0 + i0 + i] = rstd[i];
		}
#pragma unroll
		for (int j = 0; j < NV; j++) {
			const int c = j * 256 + lane * TE_V;
			float gain[TE_V], beta[TE_V];

			if (c >= a.cols)
				break;
			if (NV >= 8) /* no loads ahead, which would need registers */
				asm volatile("" ::: "memory");
			load_vec(a.gamma + c, gain);
			if (a.beta)
				load_vec(a.beta + c, beta);
#pragma unroll
			for (int e = 0; e < TE_V; e++)
				gain[e] = a.zero_centered ? add(1.0f, gain[e]) : gain[e];
#pragma unroll
			for (int i = 0; i < P; i++) {
				const int64_t at = (r0 + i0 + i) * a.cols + c;
				float v[TE_V];
				uint2 code;

				unpack(held[i][j], v);
#pragma unroll
				for (int e = 0; e < TE_V; e++) {
					v[e] = normed(v[e], mean[i], rstd[i], gain[e]);
					if (a.beta)
						v[e] = add(v[e], beta[e]);
				}
				held[i][j] = pack<bf16>(v);
				if (a.y)
					store_raw((bf16 *)a.y + at, held[i][j]);
				unpack(held[i][j], v);
#pragma unroll
				for (int e = 0; e < TE_V; e++)
					m = amax_of(m, v[e]);
				code = fp8x8(a.q.dtype, v, scale);
				if (a.q.row)
					*(uint2 *)((uint8_t *)a.q.row + at) = code;
				*(uint2 *)(codes + codes_at(i0 + i, c, pitch)) = code;
			}
		}
	}
	__syncthreads();
	codes_transpose(codes, pitch, a, r0);
	if (a.q.amax)
		block_amax(a.q.amax, m);
}

/* sums of a and b over the C blocks of a cluster, of 4 rows; part is used by this call only */
template <int C> DEV void cluster_sum_each(float a[4], float b[4], float2 part[ROWS])
{
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	float2 s = make_float2(0.0f, 0.0f), total = s;

	if (C == 1)
		return;
	if (lane == 0)
#pragma unroll
		for (int i = 0; i < 4; i++)
			part[warp * 4 + i] = make_float2(a[i], b[i]);
	cluster_barrier();
	if (lane % 8 < C)
		s = cluster_read(&part[warp * 4 + lane / 8], lane % 8);
#pragma unroll
	for (int k = 0; k < C; k++) {
		total.x = add(total.x, __shfl_sync(0xffffffffu, s.x, (lane & 24) + k));
		total.y = add(total.y, __shfl_sync(0xffffffffu, s.y, (lane & 24) + k));
	}
#pragma unroll
	for (int i = 0; i < 4; i++) {
		a[i] = __shfl_sync(0xffffffffu, total.x, i * 8);
		b[i] = __shfl_sync(0xffffffffu, total.y, i * 8);
	}
}

/* column-wise codes of the columns of this block: a word has 4 rows of a column */
template <int C>
DEV void cluster_codes_store(const uint32_t *codes, const struct te_k_norm_fwd &a, int64_t r0,
			     int rank)
{
	constexpr int PITCH = NORM_CAST_CLUSTER_PITCH;
	const int cols = (int)a.cols, at = threadIdx.x / 2, half = threadIdx.x % 2;
	const uint32_t *w = codes + half * 4 * PITCH + at;
	uint8_t *const to = (uint8_t *)a.q.col + (rank * 256 + at) * a.rows + r0 + half * 16;

	if (a.rows % 16 || !aligned(a.q.col)) {
#pragma unroll 1
		for (int k = threadIdx.x; k < NORM_CAST_CLUSTER_COLS * ROWS; k += blockDim.x) {
			const int i = k / ROWS, r = k % ROWS;
			const int c = (i / 256 * C + rank) * 256 + i % 256;

			if (c < cols && r0 + r < a.rows)
				((uint8_t *)a.q.col)[c * a.rows + r0 + r] =
					(uint8_t)(codes[r / 4 * PITCH + i] >> r % 4 * 8);
		}
		return;
	}
	if (r0 + half * 16 >= a.rows)
		return;
#pragma unroll
	for (int k = 0; k < NORM_CAST_CLUSTER_COLS / 128; k++, w += 128) {
		const int c = k / 2 * C * 256 + k % 2 * 128; /* after rank * 256 */

		if (rank * 256 + at + c < cols)
			*(uint4 *)(to + c * a.rows) =
				make_uint4(w[0], w[PITCH], w[2 * PITCH], w[3 * PITCH]);
	}
}

template <int C> DEV void norm_cluster_body(const struct te_k_norm_fwd &a)
{
	constexpr int NV = NORM_CAST_CLUSTER_COLS / 256, PITCH = NORM_CAST_CLUSTER_PITCH;
	extern __shared__ uint4 words[];
	__shared__ float2 part[2][ROWS];
	uint32_t *const codes = (uint32_t *)words;
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	const int rank = C == 1 ? 0 : (int)cluster_rank();
	const int64_t r0 = (int64_t)(blockIdx.x / C) * ROWS, row = r0 + warp * 4;
	const int cols = (int)a.cols, nr = clamp_int(a.rows - row, 0, 4);
	const int c0 = rank * 256 + lane * TE_V; /* columns of vector 0 */
	const float n = (float)cols, per = plain_reciprocal(n);
	const bf16 *x = (const bf16 *)a.x + row * a.cols + c0;
	float mean[4] = {}, d1[4] = {}, d2[4] = {}, rstd[4], scale, m = 0.0f;
	raw<bf16> held[4][NV];

	if (noop_set(a.q.noop))
		return;
#pragma unroll
	for (int i = 0; i < 4; i++)
#pragma unroll
		for (int j = 0; j < NV; j++)
			held[i][j] = i < nr && c0 + j * C * 256 < cols ?
					     load_raw(x + i * a.cols + j * C * 256) :
					     zero_raw<bf16>();
	scale = q_scale(&a.q);
	q_scale_inv(&a.q, scale);
	if (a.mean) {
#pragma unroll
		for (int i = 0; i < 4; i++)
#pragma unroll
			for (int j = 0; j < NV; j++) {
				float v[TE_V];

				unpack(held[i][j], v);
				mean[i] = add(mean[i], sum8(v));
			}
		warp_sum_each<4>(mean);
		cluster_sum_each<C>(mean, d1, part[0]);
#pragma unroll
		for (int i = 0; i < 4; i++)
			mean[i] = plain_quotient(mean[i], n, per);
	}
#pragma unroll
	for (int j = 0; j < NV; j++)
		if (c0 + j * C * 256 < cols)
#pragma unroll
			for (int i = 0; i < 4; i++) {
				float v[TE_V];

				unpack(held[i][j], v);
#pragma unroll
				for (int e = 0; e < TE_V; e++)
					v[e] = sub(v[e], mean[i]);
				if (a.mean)
					d1[i] = add(d1[i], sum8(v));
				d2[i] = add(d2[i], sumsq8(v));
			}
	warp_sum_each<4>(d2);
	if (a.mean)
		warp_sum_each<4>(d1);
	cluster_sum_each<C>(d1, d2, part[1]);
#pragma unroll
	for (int i = 0; i < 4; i++) {
		norm_stats(a, n, per, d1[i], d2[i], &mean[i], &rstd[i]);
		if (lane || rank || i >= nr)
			continue;
		if (a.mean)
			a.mean[row + i] = mean[i];
		a.rstd[row + i] = rstd[i];
	}
#pragma unroll
	for (int j = 0; j < NV; j++) {
		const int c = c0 + j * C * 256;
		uint4 *const to = (uint4 *)(codes + warp * PITCH + j * 256 + lane * TE_V);
		float gain[TE_V], beta[TE_V];
		uint2 code[4];

		if (c >= cols)
			break;
		asm volatile("" ::: "memory"); /* no loads ahead, which would need registers */
		load_vec(a.gamma + c, gain);
		if (a.beta)
			load_vec(a.beta + c, beta);
		if (a.zero_centered)
#pragma unroll
			for (int e = 0; e < TE_V; e++)
				gain[e] = add(1.0f, gain[e]);
#pragma unroll
		for (int i = 0; i < 4; i++) {
			const int64_t at = (row + i) * a.cols + c;
			float v[TE_V];

			unpack(held[i][j], v);
#pragma unroll
			for (int e = 0; e < TE_V; e++)
				v[e] = normed(v[e], mean[i], rstd[i], gain[e]);
			if (a.beta)
#pragma unroll
				for (int e = 0; e < TE_V; e++)
					v[e] = add(v[e], beta[e]);
			held[i][j] = pack<bf16>(v);
			unpack(held[i][j], v);
			code[i] = fp8x8(a.q.dtype, v, scale);
			if (i >= nr)
				continue;
			if (a.y)
				store_raw((bf16 *)a.y + at, held[i][j]);
			if (a.q.row)
				*(uint2 *)((uint8_t *)a.q.row + at) = code[i];
#pragma unroll
			for (int e = 0; e < TE_V; e++)
				m = amax_of(m, v[e]);
		}
#pragma unroll
		for (int half = 0; half < 2; half++) {
			uint32_t in[4], w[4];

#pragma unroll
			for (int i = 0; i < 4; i++)
				in[i] = half ? code[i].y : code[i].x;
			transpose4(in, w);
			to[half] = make_uint4(w[0], w[1], w[2], w[3]);
		}
	}
	__syncthreads();
	cluster_codes_store<C>(codes, a, r0, rank);
	if (a.q.amax)
		block_amax(a.q.amax, m);
	if (C > 1)
		cluster_barrier(); /* other blocks may still read part */
}

#define FUNC(NV, P, WARPS, BLOCKS)                                                         \
	extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS)                   \
		te_k_norm_cast_##NV(const __grid_constant__ struct te_k_norm_fwd a)        \
	{                                                                                  \
		te_begin();                                                                \
		norm_cast_body<NV, P, WARPS>(a);                                           \
	}
NORM_CASTS(FUNC)
#undef FUNC

#define CLUSTER(C)                                                                        \
	extern "C" __global__ void CLUSTER_DIMS(C) __launch_bounds__(CLUSTER_THREADS, 2)  \
		te_k_norm_cast_cluster##C(const __grid_constant__ struct te_k_norm_fwd a) \
	{                                                                                 \
		te_begin();                                                               \
		norm_cluster_body<C>(a);                                                  \
	}
CLUSTER(1)
#if __CUDA_ARCH__ >= 900
CLUSTER(2)
CLUSTER(4)
CLUSTER(8)
#endif
#undef CLUSTER
