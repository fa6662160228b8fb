/*
 * attn/fp32.cuh - attention in FP32, for exactness and not for speed: every step is FP32, by FFMA
 * on 64 x 64 tiles, 256 threads of 4 x 4 scores. The grids are as in attn/tile.cuh with 64 rows
 * per block; shared memory is 3 (fwd) or 4 (bwd) tiles of 64 (D + 4) floats and 1 or 2 of 64 x 68.
 */
#ifndef TE_ATTN_FP32_CUH
#define TE_ATTN_FP32_CUH

#include "kernels/attn/dev.cuh"

#define TX (threadIdx.x & 15)
#define TY (threadIdx.x >> 4)
#define LDP (ATTN_FP32_TILE + ATTN_FP32_PAD(TE_ARCH))

/* 64 rows of hd elements to shared memory; rows from nrows on and columns from hd on are zeros */
template <int D>
DEV void load_tile_fp32(float *s, const float *g, int stride, int nrows, int hd)
{
	constexpr int LD = D + ATTN_FP32_PAD(TE_ARCH);

	for (int i = threadIdx.x; i < 64 * D; i += ATTN_FP32_THREADS) {
		int r = i / D, c = i % D;

		s[r * LD + c] = r < nrows && c < hd ? g[(int64_t)r * stride + c] : 0.0f;
	}
}

/* s[i][j] = row 4 TY + i of a times row TX + 16 j of b */
template <int D> DEV void dots_fp32(float (&s)[4][4], const float *a, const float *b)
{
	constexpr int LD = D + ATTN_FP32_PAD(TE_ARCH);

#pragma unroll
	for (int i = 0; i < 4; i++)
#pragma unroll
		for (int j = 0; j < 4; j++)
			s[i][j] = 0.0f;
#pragma unroll 2
	for (int d = 0; d < D; d += 4) {
		float4 x[4], y[4];

#pragma unroll
		for (int i = 0; i < 4; i++) {
			x[i] = *(const float4 *)(a + (TY * 4 + i) * LD + d);
			y[i] = *(const float4 *)(b + (TX + 16 * i) * LD + d);
		}
#pragma unroll
		for (int i = 0; i < 4; i++)
#pragma unroll
			for (int j = 0; j < 4; j++) {
				s[i][j] = fmaf(x[i].x, y[j].x, s[i][j]);
				s[i][j] = fmaf(x[i].y, y[j].y, s[i][j]);
				s[i][j] = fmaf(x[i].z, y[j].z, s[i][j]);
				s[i][j] = fmaf(x[i].w, y[j].w, s[i][j]);
			}
	}
}

/* acc[i][c] += row 4 TY + i of p times column TX + 16 c of b */
template <int D> DEV void accumulate_fp32(float (&acc)[4][D / 16], const float *p, const float *b)
{
	for (int k = 0; k < 64; k++) {
		float x[4];

#pragma unroll
		for (int i = 0; i < 4; i++)
			x[i] = p[(TY * 4 + i) * LDP + k];
#pragma unroll
		for (int c = 0; c < D / 16; c++) {
			float y = b[k * (D + ATTN_FP32_PAD(TE_ARCH)) + TX + 16 * c];

#pragma unroll
			for (int i = 0; i < 4; i++)
				acc[i][c] = fmaf(x[i], y, acc[i][c]);
		}
	}
}

template <int D>
DEV void store_fp32(float *g, int stride, int nrows, int hd, const float (&acc)[4][D / 16],
		   const float (&f)[4])
{
#pragma unroll
	for (int i = 0; i < 4; i++)
#pragma unroll
		for (int c = 0; c < D / 16; c++)
			if (TY * 4 + i < nrows && TX + 16 * c < hd)
				g[(int64_t)(TY * 4 + i) * stride + TX + 16 * c] = acc[i][c] * f[i];
}

/* the dropout factor of a probability */
DEV float keep_fp32(const struct drop &d, int q, int k)
{
	if (!d.threshold)
		return 1.0f;
	return keep8(d, q, k >> 3) >> (k & 7) & 1 ? drop_scale(d.threshold) : 0.0f;
}

DEV float cap_fp32(float s, float c)
{
	return c * tanhf(s / c);
}

template <int D, bool MORE> DEV void fwd_fp32(const struct te_k_attn_fwd &a)
{
	constexpr int LD = D + ATTN_FP32_PAD(TE_ARCH);
	const int T = (int)a.seqlen, hd = a.head_dim;
	const int stride = (a.nheads + 2 * a.nkv) * hd;
	const int h = blockIdx.x % a.nheads;
	const int64_t b = blockIdx.x / a.nheads;
	const int q0 = (gridDim.y - 1 - blockIdx.y) * 64;
	const float *base = (const float *)a.qkv + b * T * stride;
	const float *gk = base + (int64_t)(a.nheads + h / (a.nheads / a.nkv)) * hd;
	const float *gv = gk + (int64_t)a.nkv * hd;
	const struct drop drop = drop_of(a, blockIdx.x);
	float *sq = (float *)te_smem, *sk = sq + 64 * LD, *sv = sk + 64 * LD, *sp = sv + 64 * LD;
	const bool full = MORE && a.full;
	const int first = MORE ? least_first_key(a, b, q0, 64) / 64 * 64 : 0;
	float acc[4][D / 16] = {}, m[4], l[4] = {};

#pragma unroll
	for (int i = 0; i < 4; i++)
		m[i] = -INFINITY;
	load_tile_fp32<D>(sq, base + (int64_t)q0 * stride + h * hd, stride, T - q0, hd);
	for (int k0 = first; k0 < (full ? T : q0 + 1); k0 += 64) {
		float s[4][4];

		load_tile_fp32<D>(sk, gk + (int64_t)k0 * stride, stride, T - k0, hd);
		load_tile_fp32<D>(sv, gv + (int64_t)k0 * stride, stride, T - k0, hd);
		__syncthreads();
		dots_fp32<D>(s, sq, sk);
#pragma unroll
		for (int i = 0; i < 4; i++) {
			const int q = q0 + TY * 4 + i;
			float top = m[i], sum = 0.0f, shrink, base;
			const int from = MORE ? first_key(a, b, min(q, T - 1)) : 0;

#pragma unroll
			for (int j = 0; j < 4; j++) {
				const int k = k0 + TX + 16 * j;

				if (MORE && a.softcap != 0.0f)
					s[i][j] = cap_fp32(s[i][j] * a.scale, a.softcap);
				else
					s[i][j] *= a.scale;
				if (k > (full ? T - 1 : q) || (MORE && k < from))
					s[i][j] = -INFINITY;
				top = fmaxf(top, s[i][j]);
			}
#pragma unroll
			for (int w = 1; w < 16; w *= 2)
				top = fmaxf(top, __shfl_xor_sync(~0u, top, w));
			/* with MORE a tile may have no key of a row */
			base = MORE && top == -INFINITY ? 0.0f : top;
			shrink = expf(m[i] - base);
			m[i] = top;
#pragma unroll
			for (int j = 0; j < 4; j++) {
				const int k = k0 + TX + 16 * j;
				float p = expf(s[i][j] - base);

				sum += p;
				sp[(TY * 4 + i) * LDP + TX + 16 * j] = p * keep_fp32(drop, q, k);
			}
#pragma unroll
			for (int w = 1; w < 16; w *= 2)
				sum += __shfl_xor_sync(~0u, sum, w);
			l[i] = l[i] * shrink + sum;
#pragma unroll
			for (int c = 0; c < D / 16; c++)
				acc[i][c] *= shrink;
		}
		__syncwarp(); /* a row of sp is written and read by one half-warp */
		accumulate_fp32<D>(acc, sp, sv);
		__syncthreads();
	}
#pragma unroll
	for (int i = 0; i < 4; i++) {
		const int q = q0 + TY * 4 + i;

		if (q < T && TX == 0)
			a.lse[(int64_t)blockIdx.x * T + q] = m[i] + logf(l[i]);
		l[i] = 1.0f / l[i];
	}
	store_fp32<D>((float *)a.out + ((b * T + q0) * a.nheads + h) * hd, a.nheads * hd, T - q0,
		      hd, acc, l);
}

/* as bwd_bf16, with tiles of 64 rows and 64 columns */
template <bool DKV, int D, bool MORE> DEV void bwd_fp32(const struct te_k_attn_bwd &a)
{
	constexpr int LD = D + ATTN_FP32_PAD(TE_ARCH);
	const int T = (int)a.seqlen, hd = a.head_dim, group = a.nheads / a.nkv;
	const int qstride = (a.nheads + 2 * a.nkv) * hd, ostride = a.nheads * hd;
	const int nrowheads = DKV ? a.nkv : a.nheads;
	const int rowhead = blockIdx.x % nrowheads, kvhead = DKV ? rowhead : rowhead / group;
	const int64_t b = blockIdx.x / nrowheads;
	const int r0 = (DKV ? blockIdx.y : gridDim.y - 1 - blockIdx.y) * 64;
	const int head0 = DKV ? rowhead * group : rowhead, nheads = DKV ? group : 1;
	const float *qkv = (const float *)a.qkv + b * T * qstride;
	const float *dout = (const float *)a.dout + b * T * ostride;
	const float *k = qkv + (int64_t)(a.nheads + kvhead) * hd, *v = k + (int64_t)a.nkv * hd;
	const bool full = MORE && a.full;
	const int first = MORE && !DKV ? least_first_key(a, b, r0, 64) / 64 * 64 :
			  DKV && !full ? r0 :
					 0;
	const int end = MORE && DKV ? queries_end(a, b, r0, 64) : DKV || full ? T : r0 + 1;
	struct drop drop = drop_of(a, 0);
	float *sa0 = (float *)te_smem, *sa1 = sa0 + 64 * LD, *sb0 = sa1 + 64 * LD;
	float *sb1 = sb0 + 64 * LD, *sp = sb1 + 64 * LD, *sds = sp + 64 * LDP;
	float acc0[4][D / 16] = {}, acc1[4][D / 16] = {}, f0[4], f1[4];

	if (DKV) {
		load_tile_fp32<D>(sa0, k + (int64_t)r0 * qstride, qstride, T - r0, hd);
		load_tile_fp32<D>(sa1, v + (int64_t)r0 * qstride, qstride, T - r0, hd);
	} else {
		load_tile_fp32<D>(sa0, qkv + (int64_t)r0 * qstride + rowhead * hd, qstride, T - r0,
				  hd);
		load_tile_fp32<D>(sa1, dout + (int64_t)r0 * ostride + rowhead * hd, ostride, T - r0,
				  hd);
	}
	for (int head = head0; head < head0 + nheads; head++) {
		const int64_t bh = b * a.nheads + head;
		const float *lse = a.lse + bh * T, *delta = a.delta + bh * T;

		drop.head = drop_head(a, (uint32_t)bh);
		for (int c0 = first; c0 < end; c0 += 64) {
			float s[4][4], dp[4][4];

			if (DKV) {
				load_tile_fp32<D>(sb0, qkv + (int64_t)c0 * qstride + head * hd,
						  qstride, T - c0, hd);
				load_tile_fp32<D>(sb1, dout + (int64_t)c0 * ostride + head * hd,
						  ostride, T - c0, hd);
			} else {
				load_tile_fp32<D>(sb0, k + (int64_t)c0 * qstride, qstride, T - c0,
						  hd);
				load_tile_fp32<D>(sb1, v + (int64_t)c0 * qstride, qstride, T - c0,
						  hd);
			}
			__syncthreads();
			dots_fp32<D>(s, sa0, sb0);
			dots_fp32<D>(dp, sa1, sb1);
#pragma unroll
			for (int i = 0; i < 4; i++)
#pragma unroll
				for (int j = 0; j < 4; j++) {
					const int row = r0 + TY * 4 + i, col = c0 + TX + 16 * j;
					const int q = DKV ? col : row, key = DKV ? row : col;
					const int at = (TY * 4 + i) * LDP + TX + 16 * j;
					float p = 0.0f, keep = 0.0f, ds = 0.0f;

					const bool has = q < T && key <= (full ? T - 1 : q) &&
							 (!MORE || key >= first_key(a, b, q));

					if (has) {
						float x = s[i][j] * a.scale;

						if (MORE && a.softcap != 0.0f)
							x = cap_fp32(x, a.softcap);
						p = expf(x - lse[q]);
						keep = keep_fp32(drop, q, key);
						ds = p * (dp[i][j] * keep - delta[q]);
						if (MORE && a.softcap != 0.0f) {
							x /= a.softcap;
							ds *= 1.0f - x * x;
						}
					}
					sp[at] = p * keep;
					sds[at] = ds;
				}
			__syncwarp(); /* a row of sp and sds is written and read by one half-warp */
			accumulate_fp32<D>(acc0, sds, sb0);
			if (DKV)
				accumulate_fp32<D>(acc1, sp, sb1);
			__syncthreads();
		}
	}

	float *dqkv = (float *)a.dqkv + (b * T + r0) * qstride;

#pragma unroll
	for (int i = 0; i < 4; i++) {
		f0[i] = a.scale;
		f1[i] = 1.0f;
	}
	store_fp32<D>(dqkv + (DKV ? a.nheads + kvhead : rowhead) * hd, qstride, T - r0, hd, acc0,
		      f0);
	if (DKV)
		store_fp32<D>(dqkv + (a.nheads + a.nkv + kvhead) * hd, qstride, T - r0, hd, acc1,
			      f1);
}

#endif
