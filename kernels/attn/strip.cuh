/*
 * attn/strip.cuh - attention in BF16 for few rows, which is bound by latency. A block owns 16
 * rows, and its four warps share the columns of each tile: each computes 16 of 64 columns of
 * scores and a quarter of the result, so that P or dS is exchanged between warps through shared
 * memory. Independent loads are issued together, and nothing is divided by a variable. Each
 * element is summed in the order of attn/tile.cuh, so that the results have the same bits. The
 * backward pass is one kernel with blocks of dkv and of dq, which compute delta themselves, in the
 * order of pre.
 *
 *   fwd  grid (nheads, ceil(T / 16), batch), 128 threads, (16 + 256) rows of smem + 4864 bytes
 *   bwd  grid (nkv + nheads, ceil(T / 16), batch), 128 threads, (32 + 256) rows + 5376 bytes
 */
#ifndef TE_ATTN_STRIP_CUH
#define TE_ATTN_STRIP_CUH

#include "kernels/attn/tile.cuh"

/* as load_tile(), for an hd that is a multiple of 8, by THREADS threads, of which this is t */
template <int D, int ROWS, int THREADS>
DEV void load_strip(uint16_t *s, const uint16_t *g, int stride, int nrows, int hd, unsigned t)
{
	constexpr unsigned LD = D + ATTN_PAD, CHUNKS = D / 8, N = ROWS * CHUNKS;

#pragma unroll
	for (unsigned n = 0; n < N; n += THREADS) {
		const unsigned i = n + t, r = i / CHUNKS, c = i % CHUNKS * 8;

		if (N % THREADS == 0 || i < N)
			cp_async16(smem_addr(s + r * LD + c), g + (int)r * stride + c,
				   (int)r < nrows && (int)c < hd ? 16 : 0);
	}
}

/* operands of N mmas, 16 columns apart; loaded before the first mma, so that there is one wait */
template <int N> DEV void load_operands(uint32_t (&r)[N][4], uint32_t addr)
{
#pragma unroll
	for (int k = 0; k < N; k++)
		ldmatrix(r[k], addr + k * 32);
}

/* 8 N columns of 64 rows, B operands stored [k][n] */
template <int LD, int N> DEV void load_operands_kn(uint32_t (&r)[N][8], const uint16_t *s)
{
#pragma unroll
	for (int j = 0; j < N; j++) {
		uint32_t lo[4], hi[4];

		ldmatrix_trans(lo, smem_addr(s + LANE * LD + j * 8));
		ldmatrix_trans(hi, smem_addr(s + (32 + LANE) * LD + j * 8));
#pragma unroll
		for (int i = 0; i < 4; i++) {
			r[j][i] = lo[i];
			r[j][4 + i] = hi[i];
		}
	}
}

template <int N>
DEV void mma_strip(float (&acc)[N][4], const uint32_t (&a)[4][4], const uint32_t (&b)[N][8])
{
#pragma unroll
	for (int k = 0; k < 4; k++)
#pragma unroll
		for (int j = 0; j < N; j++)
			mma(acc[j], a[k], b[j][2 * k], b[j][2 * k + 1]);
}

/* store 8 N columns of 16 rows, times f0 or f1; only nrows rows and ncols columns exist */
template <int N>
DEV void store_strip(uint16_t *g, int stride, int nrows, int ncols, const float (&acc)[N][4],
		    float f0, float f1)
{
	const int row = QUAD, col = PAIR;

#pragma unroll
	for (int j = 0; j < N; j++) {
		uint16_t *to = g + row * stride + j * 8 + col;

		if (j * 8 + col < ncols && row < nrows)
			*(uint32_t *)to = pack_bf16(acc[j][0] * f0, acc[j][1] * f0);
		if (j * 8 + col < ncols && row + 8 < nrows)
			*(uint32_t *)(to + 8 * stride) =
				pack_bf16(acc[j][2] * f1, acc[j][3] * f1);
	}
}

template <int D> DEV auto fwd_strip(const struct te_k_attn_fwd &a)
{
	constexpr int LD = D + ATTN_PAD, BN = ATTN_COLS, LDS = BN + ATTN_PAD;
	constexpr int WD = D / ATTN_STRIP_WARPS; /* columns of a warp */
	const int T = (int)a.seqlen, hd = a.head_dim, stride = (a.nheads + 2 * a.nkv) * hd;
	const int h = blockIdx.x, kvhead = a.nkv == a.nheads ? h : h / (a.nheads / a.nkv);
	const int64_t b = blockIdx.z;
	const int q0 = (gridDim.y - 1 - blockIdx.y) * 16, end = min(T, q0 + 16);
	const int wkey = WARP * 16, wcol = WARP * WD;
	const uint16_t *base = (const uint16_t *)a.qkv + b * T * stride;
	const uint16_t *gk = base + (a.nheads + kvhead) * hd, *gv = gk + a.nkv * hd;
	const float scale2 = a.scale * LOG2E;
	uint16_t *sq = (uint16_t *)te_smem, *sk = sq + 16 * LD, *sv = sk + 2 * BN * LD;
	float *sp = (float *)(sv + 2 * BN * LD);
	float *stop = sp + 16 * LDS; /* [row][warp] */

	return [=] {
		float acc[WD / 8][4], m[2] = { -INFINITY, -INFINITY }, l[2] = { 0.0f, 0.0f };

		if (noop_set(a.q.noop))
			return;
		out_scale_inv(a.q);

		/* keys, which are needed first, in a group of their own, then values */
		const auto load = [&](int n) {
			const int key = n * BN + wkey, to = ((n & 1) * BN + wkey) * LD;

			if (n * BN < end)
				load_strip<D, 16, 32>(sk + to, gk + (int64_t)key * stride, stride,
						      end - key, hd, LANE);
			cp_async_commit();
			if (n * BN < end)
				load_strip<D, 16, 32>(sv + to, gv + (int64_t)key * stride, stride,
						      end - key, hd, LANE);
			cp_async_commit();
		};

		load_strip<D, 16, 128>(sq, base + (int64_t)q0 * stride + h * hd, stride, T - q0, hd,
				       threadIdx.x);
		load(0);
		clear(acc);
#pragma unroll 1
		for (int n = 0; n * BN < end; n++) {
			const int k0 = n * BN + wkey, at = (n & 1) * BN * LD;
			uint32_t q[D / 16][4], k[D / 16][4], v[WD / 8][8], p[4][4];
			float s[2][4], top[2], shrink[2], sum[2] = { 0.0f, 0.0f };

			/* the keys of tile n have arrived, and no warp reads tile n - 1 any more */
			cp_async_wait<1>();
			__syncthreads();
			load(n + 1);
			load_operands(q, tile_addr<LD>(sq));
			load_operands(k, tile_addr_nk<LD>(sk + at + wkey * LD));
			clear(s);
#pragma unroll
			for (int i = 0; i < D / 16; i++) {
				mma(s[0], q[i], k[i][0], k[i][1]);
				mma(s[1], q[i], k[i][2], k[i][3]);
			}
#pragma unroll
			for (int j = 0; j < 2; j++)
#pragma unroll
				for (int c = 0; c < 4; c++)
					if (k0 + j * 8 + PAIR + (c & 1) > q0 + (c >> 1) * 8 + QUAD)
						s[j][c] = -INFINITY;
#pragma unroll
			for (int e = 0; e < 2; e++)
				top[e] = fmaxf(fmaxf(s[0][2 * e], s[0][2 * e + 1]),
					       fmaxf(s[1][2 * e], s[1][2 * e + 1]));
#pragma unroll
			for (int w = 1; w <= 2; w *= 2)
#pragma unroll
				for (int e = 0; e < 2; e++)
					top[e] = fmaxf(top[e], __shfl_xor_sync(~0u, top[e], w));
			if (PAIR == 0) {
				stop[QUAD * 4 + WARP] = top[0];
				stop[(8 + QUAD) * 4 + WARP] = top[1];
			}
			cp_async_wait<2>(); /* the values of tile n */
			__syncthreads();
			/* m is finite if the scores are, as in fwd_bf16() */
#pragma unroll
			for (int e = 0; e < 2; e++) {
				const float4 t = *(const float4 *)(stop + (e * 8 + QUAD) * 4);

				top[e] = fmaxf(m[e], fmaxf(fmaxf(t.x, t.y), fmaxf(t.z, t.w)));
				shrink[e] = exp2_approx((m[e] - top[e]) * scale2);
				m[e] = top[e];
#pragma unroll
				for (int j = 0; j < 2; j++) {
					const float x = fmaf(s[j][2 * e], scale2, -top[e] * scale2);
					const float y =
						fmaf(s[j][2 * e + 1], scale2, -top[e] * scale2);

					*(float2 *)(sp + (e * 8 + QUAD) * LDS + wkey + j * 8 +
						    PAIR) =
						make_float2(exp2_approx(x), exp2_approx(y));
				}
			}
			load_operands_kn<LD>(v, sv + at + wcol);
			__syncthreads();
			/* each warp sums the whole rows, in FP32 and in the order of fwd_bf16() */
#pragma unroll
			for (int j = 0; j < BN / 8; j++)
#pragma unroll
				for (int e = 0; e < 2; e++) {
					const float2 x =
						*(const float2 *)(sp + (e * 8 + QUAD) * LDS +
								  j * 8 + PAIR);

					sum[e] += x.x;
					sum[e] += x.y;
					p[j / 2][j % 2 * 2 + e] = pack_bf16(x.x, x.y);
				}
#pragma unroll
			for (int e = 0; e < 2; e++) {
				l[e] = l[e] * shrink[e] + sum[e];
#pragma unroll
				for (int j = 0; j < WD / 8; j++) {
					acc[j][2 * e] *= shrink[e];
					acc[j][2 * e + 1] *= shrink[e];
				}
			}
			mma_strip(acc, p, v);
		}
#pragma unroll
		for (int w = 1; w <= 2; w *= 2)
#pragma unroll
			for (int e = 0; e < 2; e++)
				l[e] += __shfl_xor_sync(~0u, l[e], w);
		if (a.out)
			store_strip((uint16_t *)a.out + ((b * T + q0) * a.nheads + h) * hd + wcol,
				    a.nheads * hd, T - q0, hd - wcol, acc, inverse(l[0]),
				    inverse(l[1]));
		if (quantizes(a.q)) {
			/* no warp reads the queries any more */
			store_strip(sq + wcol, LD, 16, WD, acc, inverse(l[0]), inverse(l[1]));
			__syncwarp();
			quantize_rows<16, WD>(a.q, a.batch * T, a.nheads * hd, b * T + q0,
					      h * hd + wcol, T - q0, hd - wcol,
					      rows_at<LD>{ sq + wcol });
		}
		if (WARP == 0 && PAIR == 0)
#pragma unroll
			for (int e = 0; e < 2; e++) {
				const int row = q0 + e * 8 + QUAD;

				if (row < T)
					a.lse[(b * a.nheads + h) * T + row] =
						m[e] * a.scale + logf(l[e]);
			}
	};
}

/*
 * The part of 16 rows of out and of dout, of hd elements each, that one of THREADS threads holds: N
 * times 16 bytes. LANES threads share a row.
 */
template <int D, int THREADS> struct rows16 {
	static constexpr int LANES = D == 96 ? 16 : D / 8, N = (16 * LANES + THREADS - 1) / THREADS;
	uint4 x[N], y[N];

	DEV int row(int i)
	{
		return (i * THREADS + threadIdx.x % THREADS) / LANES;
	}

	DEV int col()
	{
		return threadIdx.x % LANES * 8;
	}

	__device__ __forceinline__ void load(const uint16_t *out, const uint16_t *dout, int stride,
					     int nrows, int hd)
	{
#pragma unroll
		for (int i = 0; i < N; i++) {
			const int at = row(i) * stride + col();

			x[i] = y[i] = make_uint4(0, 0, 0, 0);
			if (row(i) < min(nrows, 16) && col() < hd) {
				x[i] = *(const uint4 *)(out + at);
				y[i] = *(const uint4 *)(dout + at);
			}
		}
	}

	/* dout and delta to shared memory */
	__device__ __forceinline__ void put(uint16_t *sdout, float *sdelta) const
	{
		float sum[N];

#pragma unroll
		for (int i = 0; i < N; i++) {
			if (row(i) < 16 && col() < D)
				*(uint4 *)(sdout + row(i) * (D + ATTN_PAD) + col()) = y[i];
			sum[i] = dot16<uint16_t>(x[i], y[i]);
		}
#pragma unroll
		for (int w = LANES / 2; w; w /= 2)
#pragma unroll
			for (int i = 0; i < N; i++)
				sum[i] += __shfl_xor_sync(~0u, sum[i], w);
#pragma unroll
		for (int i = 0; i < N; i++)
			if (row(i) < 16 && col() == 0)
				sdelta[row(i)] = sum[i];
	}
};

/*
 * As bwd_bf16(), for the keys or queries of head rowhead. delta is computed here: of dkv's columns
 * by the warp that loads them, tile by tile; of dq's rows once.
 */
template <bool DKV, int D> DEV auto bwd_strip(const struct te_k_attn_bwd &a, int rowhead)
{
	constexpr int LD = D + ATTN_PAD, BC = ATTN_COLS, LDS = BC + ATTN_PAD;
	constexpr int WD = D / ATTN_STRIP_WARPS;
	const int T = (int)a.seqlen, hd = a.head_dim;
	const int qstride = (a.nheads + 2 * a.nkv) * hd, ostride = a.nheads * hd;
	const int group = a.nkv == a.nheads ? 1 : a.nheads / a.nkv;
	const int kvhead = DKV || group == 1 ? rowhead : rowhead / group;
	const int64_t b = blockIdx.z;
	const int r0 = (DKV ? blockIdx.y : gridDim.y - 1 - blockIdx.y) * 16;
	const int first = DKV ? r0 : 0, end = DKV ? T : min(T, r0 + 16);
	const int head0 = DKV ? rowhead * group : rowhead, head_end = head0 + (DKV ? group : 1);
	const int warp16 = WARP * 16, wcol = WARP * WD;
	const uint16_t *qkv = (const uint16_t *)a.qkv + b * T * qstride;
	const uint16_t *dout = (const uint16_t *)a.dout + b * T * ostride;
	const uint16_t *out = (const uint16_t *)a.out + b * T * ostride;
	const uint16_t *gk = qkv + (a.nheads + kvhead) * hd, *gv = gk + a.nkv * hd;
	const float *lse = a.lse + b * a.nheads * T;
	const float scale2 = a.scale * LOG2E;
	uint16_t *sa0 = (uint16_t *)te_smem, *sa1 = sa0 + 16 * LD;
	uint16_t *sb0 = sa1 + 16 * LD, *sb1 = sb0 + 2 * BC * LD;
	uint16_t *sds = sb1 + 2 * BC * LD, *sp = sds + 16 * LDS;
	float *sdelta = (float *)(sp + (DKV ? 16 * LDS : 0));
	float *slse = sdelta + BC; /* dkv: [stage][BC] */

	return [=] {
		float acc0[WD / 8][4], acc1[DKV ? WD / 8 : 1][4];
		float lse2[2]; /* dq: of the rows */
		struct rows16<D, DKV ? 32 : 128> o;

		/* all columns, except out and dout of dkv */
		const auto load = [&](int n, int head, int c0) {
			const int col = c0 + warp16, to = ((n & 1) * BC + warp16) * LD;

			if (DKV) {
				load_strip<D, 16, 32>(sb0 + to,
						      qkv + (int64_t)col * qstride + head * hd,
						      qstride, end - col, hd, LANE);
				if (LANE < 16)
					cp_async4(smem_addr(slse + (n & 1) * BC + warp16 + LANE),
						  lse + (int64_t)head * T + col + LANE,
						  col + (int)LANE < end ? 4 : 0);
			} else {
				load_strip<D, 16, 32>(sb0 + to, gk + (int64_t)col * qstride,
						      qstride, end - col, hd, LANE);
				load_strip<D, 16, 32>(sb1 + to, gv + (int64_t)col * qstride,
						      qstride, end - col, hd, LANE);
			}
			cp_async_commit();
		};
		const auto load_o = [&](int head, int row, int nrows) {
			const int64_t at = (int64_t)row * ostride + head * hd;

			o.load(out + at, dout + at, ostride, nrows, hd);
		};

		load_o(head0, DKV ? first + warp16 : r0, DKV ? end - first - warp16 : T - r0);
		if (DKV) {
			load_strip<D, 16, 128>(sa0, gk + (int64_t)r0 * qstride, qstride, T - r0, hd,
					       threadIdx.x);
			load_strip<D, 16, 128>(sa1, gv + (int64_t)r0 * qstride, qstride, T - r0, hd,
					       threadIdx.x);
		} else {
			load_strip<D, 16, 128>(sa0, qkv + (int64_t)r0 * qstride + rowhead * hd,
					       qstride, T - r0, hd, threadIdx.x);
#pragma unroll
			for (int e = 0; e < 2; e++) {
				const int row = r0 + e * 8 + QUAD;

				lse2[e] = row < T ? lse[(int64_t)rowhead * T + row] * LOG2E : 0.0f;
			}
		}
		load(0, head0, first);
		if (!DKV)
			o.put(sa1, sdelta);
		clear(acc0);
		clear(acc1);
		for (int n = 0, head = head0, c0 = first; head < head_end; n++) {
			const int next = c0 + BC < end ? c0 + BC : first;
			const int next_head = head + (c0 + BC >= end);
			const int at = (n & 1) * BC * LD, wat = at + warp16 * LD;
			uint32_t a0[D / 16][4], a1[D / 16][4], b0[D / 16][4], b1[D / 16][4];
			uint32_t k0[WD / 8][8], k1[DKV ? WD / 8 : 1][8], p[4][4];
			float s[2][4], dp[2][4];

			if (DKV)
				o.put(sb1 + wat, sdelta + warp16);
			/* tile n has arrived, and no warp reads tile n - 1 any more */
			cp_async_wait<0>();
			__syncthreads();
			if (next_head < head_end)
				load(n + 1, next_head, next);
			if (DKV && D <= 64 && next_head < head_end)
				load_o(next_head, next + warp16, end - next - warp16);
			load_operands(a0, tile_addr<LD>(sa0));
			load_operands(b0, tile_addr_nk<LD>(sb0 + wat));
			load_operands(a1, tile_addr<LD>(sa1));
			load_operands(b1, tile_addr_nk<LD>(sb1 + wat));
			clear(s);
			clear(dp);
#pragma unroll
			for (int i = 0; i < D / 16; i++) {
				mma(s[0], a0[i], b0[i][0], b0[i][1]);
				mma(s[1], a0[i], b0[i][2], b0[i][3]);
				mma(dp[0], a1[i], b1[i][0], b1[i][1]);
				mma(dp[1], a1[i], b1[i][2], b1[i][3]);
			}
			load_operands_kn<LD>(k0, sb0 + at + wcol);
			if constexpr (DKV)
				load_operands_kn<LD>(k1, sb1 + at + wcol);
#pragma unroll
			for (int j = 0; j < 2; j++) {
				const int wat_j = warp16 + j * 8 + PAIR;
				float2 lse_j, delta_j;

				if (DKV) {
					lse_j = *(const float2 *)(slse + (n & 1) * BC + wat_j);
					delta_j = *(const float2 *)(sdelta + wat_j);
					lse_j.x *= LOG2E;
					lse_j.y *= LOG2E;
				}
#pragma unroll
				for (int c = 0; c < 4; c++) {
					const int row = r0 + (c >> 1) * 8 + QUAD;
					const int col = c0 + wat_j + (c & 1);
					const float lse_c = !DKV  ? lse2[c >> 1] :
							    c & 1 ? lse_j.y :
								    lse_j.x;
					const float del = !DKV	? sdelta[(c >> 1) * 8 + QUAD] :
							  c & 1 ? delta_j.y :
								  delta_j.x;
					float x = exp2_approx(fmaf(s[j][c], scale2, -lse_c));

					if (DKV ? row > col : col > row)
						x = 0.0f;
					s[j][c] = x;
					dp[j][c] = x * (dp[j][c] - del);
				}
#pragma unroll
				for (int e = 0; e < 2; e++) {
					const int to = (e * 8 + QUAD) * LDS + wat_j;

					*(uint32_t *)(sds + to) =
						pack_bf16(dp[j][2 * e], dp[j][2 * e + 1]);
					if (DKV)
						*(uint32_t *)(sp + to) =
							pack_bf16(s[j][2 * e], s[j][2 * e + 1]);
				}
			}
			__syncthreads();
			/* D > 64: too few registers to issue these loads earlier */
			if (DKV && D > 64 && next_head < head_end)
				load_o(next_head, next + warp16, end - next - warp16);
			if constexpr (DKV) {
				load_operands(p, tile_addr<LDS>(sp));
				mma_strip(acc1, p, k1);
			}
			load_operands(p, tile_addr<LDS>(sds));
			mma_strip(acc0, p, k0);
			head = next_head;
			c0 = next;
		}

		uint16_t *g = (uint16_t *)a.dqkv + (b * T + r0) * qstride + wcol;

		store_strip(g + (DKV ? a.nheads + kvhead : rowhead) * hd, qstride, T - r0,
			    hd - wcol, acc0, a.scale, a.scale);
		if constexpr (DKV)
			store_strip(g + (a.nheads + a.nkv + kvhead) * hd, qstride, T - r0,
				    hd - wcol, acc1, 1.0f, 1.0f);
	};
}

#endif
