/*
 * rows.cu - LayerNorm and RMSNorm of BF16 without a transposed copy, up to 8192 columns.
 *
 *  kernel          shapes         blocks                threads  shared  B/element
 *  norm_rows_NV    x [rows, cols]  4 P rows              128      0       4, to FP8 3
 *  norm_rows_wide  the same        as a GPU has room for  64..256  384     4, to FP8 3
 *
 * A warp holds P rows of up to 256 NV columns in registers; _wide: the warps of a block hold two
 * rows, and load the next two before they compute these. Loads go to registers, since copies to
 * shared memory took longer.
 */
#include "kernels/norm/geometry.h"
#include "kernels/norm/rows.cuh"

/*
 * Sums of each of N values over the threads of a row: over the lanes of warps, then over up to 8
 * warps. part is 0 beyond these. comm/norm.cu adds in this order, too.
 */
template <int N, bool WIDE> DEV void team_sum_each(float v[N], float part[N][8])
{
	warp_sum_each<N>(v);
	if (!WIDE)
		return;
	if (threadIdx.x % 32 == 0)
#pragma unroll
		for (int i = 0; i < N; i++)
			part[i][threadIdx.x / 32] = v[i];
	__syncthreads();
#pragma unroll
	for (int i = 0; i < N; i++) {
		const float4 p = *(const float4 *)part[i], q = *(const float4 *)(part[i] + 4);

		v[i] = add(add(add(p.x, p.y), p.z), p.w);
		v[i] = add(add(add(add(v[i], q.x), q.y), q.z), q.w);
	}
}

/* P rows at a time, of each of which a thread holds NV vectors. WIDE: a block has these rows */
template <int NV, int P, bool WIDE> DEV void norm_rows_body(const struct te_k_norm_fwd &a)
{
	alignas(16) __shared__ float part[2][3 * P][8];
	const int tid = threadIdx.x, tpr = WIDE ? blockDim.x : 32, t = WIDE ? tid : tid % 32;
	const int cols = (int)a.cols;
	const int64_t step = (int64_t)gridDim.x * P * (WIDE ? 1 : blockDim.x / 32);
	const float n = (float)cols, per = plain_reciprocal(n);
	const bf16 *const x = (const bf16 *)a.x + t * TE_V;
	const float *const gamma = a.gamma + t * TE_V, *const beta = a.beta + t * TE_V;
	int64_t r0 = (WIDE ? blockIdx.x : (int64_t)blockIdx.x * (blockDim.x / 32) + tid / 32) * P;
	raw<bf16> ahead[WIDE ? P : 1][WIDE ? NV : 1];
	float scale, m = 0.0f;
	int odd = 0;

	if (noop_set(a.q.noop))
		return;
	for (int i = tid; WIDE && i < 2 * 3 * P * 8; i += blockDim.x)
		part[0][0][i] = 0.0f;
	auto inside = [&](int j) { return (j * tpr + t) * TE_V < cols; };
	auto load = [&](int64_t r, auto &to) {
#pragma unroll
		for (int i = 0; i < P; i++) {
			const bf16 *p = x + (r + i) * a.cols;

#pragma unroll
			for (int j = 0; j < NV; j++)
				to[i][j] = r + i < a.rows && inside(j) ?
						   load_raw(p + j * tpr * TE_V) : zero_raw<bf16>();
		}
	};
	if constexpr (WIDE) {
		load(r0, ahead);
		__syncthreads();
	}
	scale = q_scale(&a.q);
	q_scale_inv(&a.q, scale);
#pragma unroll 1
	for (; r0 < a.rows; r0 += step, odd ^= 1) {
		float mean[P], rstd[P], d[2 * P];
		raw<bf16> held[P][NV];

		if constexpr (WIDE) {
#pragma unroll
			for (int i = 0; i < P; i++)
#pragma unroll
				for (int j = 0; j < NV; j++)
					held[i][j] = ahead[i][j];
			load(r0 + step, ahead);
		} else {
			load(r0, held);
		}
#pragma unroll
		for (int i = 0; i < P; i++)
			mean[i] = d[2 * i] = d[2 * i + 1] = 0.0f;
		if (a.mean) {
#pragma unroll
			for (int i = 0; i < P; i++)
#pragma unroll
				for (int j = 0; j < NV; j++) {
					float v[TE_V];

					unpack(held[i][j], v);
					mean[i] = add(mean[i], sum8(v));
				}
			team_sum_each<P, WIDE>(mean, part[odd]);
#pragma unroll
			for (int i = 0; i < P; i++)
				mean[i] = plain_quotient(mean[i], n, per);
		}
#pragma unroll
		for (int j = 0; j < NV; j++)
			if (inside(j))
#pragma unroll
				for (int i = 0; i < P; i++) {
					float v[TE_V];

					unpack(held[i][j], v);
#pragma unroll
					for (int e = 0; e < TE_V; e++)
						v[e] = sub(v[e], mean[i]);
					if (a.mean)
						d[2 * i] = add(d[2 * i], sum8(v));
					d[2 * i + 1] = add(d[2 * i + 1], sumsq8(v));
				}
		team_sum_each<2 * P, WIDE>(d, part[odd] + P);
#pragma unroll
		for (int i = 0; i < P; i++) {
			norm_stats(a, n, per, d[2 * i], d[2 * i + 1], &mean[i], &rstd[i]);
			if (t == 0 && r0 + i < a.rows) {
				if (a.mean)
					a.mean[r0 + i] = mean[i];
				a.rstd[r0 + i] = rstd[i];
			}
		}
#pragma unroll
		for (int j = 0; j < NV; j++) {
			float gain[TE_V], shift[TE_V];

			if (!inside(j))
				continue;
			if (NV >= 5) /* no loads ahead, which would need registers */
				asm volatile("" ::: "memory");
			load_vec(gamma + j * tpr * TE_V, gain);
			if (a.beta)
				load_vec(beta + j * tpr * TE_V, shift);
			if (a.zero_centered)
#pragma unroll
				for (int e = 0; e < TE_V; e++)
					gain[e] = add(1.0f, gain[e]);
#pragma unroll
			for (int i = 0; i < P; i++) {
				const int64_t at = (r0 + i) * a.cols + (j * tpr + t) * TE_V;
				float v[TE_V];

				unpack(held[i][j], v);
#pragma unroll
				for (int e = 0; e < TE_V; e++)
					v[e] = normed(v[e], mean[i], rstd[i], gain[e]);
				if (a.beta)
#pragma unroll
					for (int e = 0; e < TE_V; e++)
						v[e] = add(v[e], shift[e]);
				held[i][j] = pack<bf16>(v);
				if (r0 + i >= a.rows)
					continue;
				if (a.y)
					store_raw((bf16 *)a.y + at, held[i][j]);
				if (!a.q.amax && !a.q.row)
					continue;
				unpack(held[i][j], v);
#pragma unroll
				for (int e = 0; e < TE_V; e++)
					m = amax_of(m, v[e]);
				if (a.q.row)
					*(uint2 *)((uint8_t *)a.q.row + at) =
						fp8x8(a.q.dtype, v, scale);
			}
		}
	}
	if (a.q.amax)
		block_amax(a.q.amax, m);
}

#define FUNC(name, THREADS, BLOCKS, ...)                                                    \
	extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)                       \
		te_k_norm_rows_##name(const __grid_constant__ struct te_k_norm_fwd a)       \
	{                                                                                   \
		te_begin_early();                                                           \
		norm_rows_body<__VA_ARGS__>(a);                                             \
	}
#define ROWS(NV, P, BLOCKS) FUNC(NV, NORM_ROWS_THREADS, BLOCKS, NV, P, false)
NORM_ROWS(ROWS)
#undef ROWS
FUNC(wide, NORM_WIDE_BLOCK, NORM_WIDE_THREADS / NORM_WIDE_BLOCK, 4, NORM_WIDE_ROWS, true)
#undef FUNC
