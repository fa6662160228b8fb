/*
 * cast.cu - LayerNorm and RMSNorm of BF16 with a transposed FP8 copy, in one pass over the rows.
 *
 *  kernel         shapes            blocks   threads  shared      B/element
 *  norm_cast_NV   x [rows, cols]    32 rows  256      32 x cols   2, and those that are written
 *
 * A warp holds a row of up to 256 NV columns in registers, P rows at a time. Codes are collected in
 * shared memory, from where a thread transposes 16 rows of 4 columns. The sums of a row are those
 * of norm_fwd for rows of a warp.
 */
#include "kernels/norm/geometry.h"
#include "kernels/norm/rows.cuh"

#define ROWS NORM_CAST_ROWS

/* sums of each of N values over the lanes */
template <int N> DEV void warp_sum_each(float v[N])
{
#pragma unroll
	for (int d = 16; d; d >>= 1)
#pragma unroll
		for (int i = 0; i < N; i++)
			v[i] = add(v[i], __shfl_xor_sync(0xffffffffu, v[i], d));
}

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
				float v[TE_V], sq[TE_V];

				unpack(held[i][j], v);
#pragma unroll
				for (int e = 0; e < TE_V; e++) {
					v[e] = in ? sub(v[e], mean[i]) : 0.0f;
					sq[e] = mul(v[e], v[e]);
				}
				if (a.mean)
					d1[i] = add(d1[i], sum8(v));
				d2[i] = add(d2[i], sum8(sq));
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

#define FUNC(NV, P, WARPS, BLOCKS)                                                         \
	extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS)                   \
		te_k_norm_cast_##NV(const __grid_constant__ struct te_k_norm_fwd a)        \
	{                                                                                  \
		te_begin();                                                                \
		norm_cast_body<NV, P, WARPS>(a);                                           \
	}
NORM_CASTS(FUNC)
#undef FUNC
