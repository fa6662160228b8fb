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
template <int D, class E>
DEV void load_tile_fp32(float *s, const E *g, int stride, int nrows, int hd)
{
	constexpr int LD = D + ATTN_FP32_PAD(TE_ARCH);

	for (int i = threadIdx.x; i < 64 * D; i += ATTN_FP32_THREADS) {
		int r = i / D, c = i % D;

		s[r * LD + c] = r < nrows && c < hd ? to_float(g[(int64_t)r * stride + c]) : 0.0f;
	}
}

/* s[i][j] += row 4 TY + i of a times row TX + 16 j of b */
template <int D> DEV void add_dots_fp32(float (&s)[4][4], const float *a, const float *b)
{
	constexpr int LD = D + ATTN_FP32_PAD(TE_ARCH);

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

/* the same, s[i][j] = */
template <int D> DEV void dots_fp32(float (&s)[4][4], const float *a, const float *b)
{
#pragma unroll
	for (int i = 0; i < 4; i++)
#pragma unroll
		for (int j = 0; j < 4; j++)
			s[i][j] = 0.0f;
	add_dots_fp32<D>(s, a, b);
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
	const int T = (int)a.seqlen, K = keys_of<MORE>(a), hd = a.head_dim;
	const struct te_k_attn_views w = views_of<MORE>(a);
	const struct te_k_attn_mask mask = TE_K_ATTN_MASK(&a);
	const int h = blockIdx.x % a.nheads, kvhead = h / (a.nheads / a.nkv);
	const int64_t b = blockIdx.x / a.nheads;
	const int q0 = (gridDim.y - 1 - blockIdx.y) * 64;
	const bool separate = MORE && a.more.k;
	const float *qkv = (const float *)a.qkv;
	const float *gk = at_head(separate ? (const float *)a.more.k : qkv + w.k_at, w.k, b,
				  kvhead);
	const float *gv = at_head(separate ? (const float *)a.more.v : qkv + w.v_at, w.v, b,
				  kvhead);
	const struct drop drop = drop_of(a, blockIdx.x);
	float *sq = (float *)te_smem, *sk = sq + 64 * LD, *sv = sk + 64 * LD, *sp = sv + 64 * LD;
	const struct span all = MORE ? span_of_rows(mask, b, q0, 64) : span{ 0, q0 + 1, 0 };
	const bool sink = MORE && a.more.sinks && a.more.sinks[h] != -INFINITY;
	float acc[4][D / 16] = {}, m[4], l[4];

#pragma unroll
	for (int i = 0; i < 4; i++) {
		m[i] = sink ? a.more.sinks[h] : -INFINITY;
		l[i] = sink ? 1.0f : 0.0f;
	}
	load_tile_fp32<D>(sq, at_head(qkv, w.q, b, h) + q0 * w.q.token, (int)w.q.token, T - q0, hd);
	for (int k0 = all.from / 64 * 64; k0 < all.to; k0 += 64) {
		float s[4][4];

		load_tile_fp32<D>(sk, gk + k0 * w.k.token, (int)w.k.token, K - k0, hd);
		load_tile_fp32<D>(sv, gv + k0 * w.v.token, (int)w.v.token, K - k0, w.head_dim_v);
		__syncthreads();
		dots_fp32<D>(s, sq, sk);
#pragma unroll
		for (int i = 0; i < 4; i++) {
			const int q = q0 + TY * 4 + i;
			float top = m[i], sum = 0.0f, shrink, base;
			const struct span keys = MORE ? span_of(mask, b, min(q, T - 1)) :
							span{ 0, q + 1, 0 };

#pragma unroll
			for (int j = 0; j < 4; j++) {
				const int k = k0 + TX + 16 * j;

				if (MORE && a.softcap != 0.0f)
					s[i][j] = cap_fp32(s[i][j] * a.scale, a.softcap);
				else
					s[i][j] *= a.scale;
				if (MORE && has_terms(a))
					s[i][j] += terms_of(a, h, q, k, keys.at);
				if (k >= keys.to || (MORE && k < keys.from))
					s[i][j] = -INFINITY;
				top = fmaxf(top, s[i][j]);
			}
#pragma unroll
			for (int w = 1; w < 16; w *= 2)
				top = fmaxf(top, __shfl_xor_sync(~0u, top, w));
			/* all scores may be -inf, and with MORE a tile may have no key of a row */
			base = top == -INFINITY ? 0.0f : top;
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
		if (l[i] != 0.0f) /* without keys, out is 0 */
			l[i] = 1.0f / l[i];
	}
	store_fp32<D>(at_head((float *)a.out, w.out, b, h) + q0 * w.out.token, (int)w.out.token,
		      T - q0, w.head_dim_v, acc, l);
}

/* as bwd_bf16, with tiles of 64 rows and 64 columns */
template <bool DKV, int D, bool MORE> DEV void bwd_fp32(const struct te_k_attn_bwd &a)
{
	constexpr int LD = D + ATTN_FP32_PAD(TE_ARCH);
	const int T = (int)a.seqlen, K = keys_of<MORE>(a), hd = a.head_dim;
	const int group = a.nheads / a.nkv;
	const struct te_k_attn_views w = views_of<MORE>(a);
	const struct te_k_attn_mask mask = TE_K_ATTN_MASK(&a);
	const int nrowheads = DKV ? a.nkv : a.nheads;
	const int rowhead = blockIdx.x % nrowheads, kvhead = DKV ? rowhead : rowhead / group;
	const int64_t b = blockIdx.x / nrowheads;
	const int r0 = (DKV ? blockIdx.y : gridDim.y - 1 - blockIdx.y) * 64;
	const int head0 = DKV ? rowhead * group : rowhead, nheads = DKV ? group : 1;
	const bool separate = MORE && a.more.k;
	const float *qkv = (const float *)a.qkv;
	const float *q0 = qkv + b * w.q.batch, *dout = (const float *)a.dout + b * w.out.batch;
	const float *k = at_head(separate ? (const float *)a.more.k : qkv + w.k_at, w.k, b, kvhead);
	const float *v = at_head(separate ? (const float *)a.more.v : qkv + w.v_at, w.v, b, kvhead);
	const struct span all = MORE && DKV ? queries_of_keys(mask, b, r0, 64) :
				MORE ? span_of_rows(mask, b, r0, 64) :
				DKV  ? span{ r0, T, 0 } :
				       span{ 0, r0 + 1, 0 };
	const int first = all.from / 64 * 64, end = all.to;
	struct drop drop = drop_of(a, 0);
	float *sa0 = (float *)te_smem, *sa1 = sa0 + 64 * LD, *sb0 = sa1 + 64 * LD;
	float *sb1 = sb0 + 64 * LD, *sp = sb1 + 64 * LD, *sds = sp + 64 * LDP;
	float acc0[4][D / 16] = {}, acc1[4][D / 16] = {}, f0[4], f1[4];

	if (DKV) {
		load_tile_fp32<D>(sa0, k + r0 * w.k.token, (int)w.k.token, K - r0, hd);
		load_tile_fp32<D>(sa1, v + r0 * w.v.token, (int)w.v.token, K - r0, w.head_dim_v);
	} else {
		load_tile_fp32<D>(sa0, q0 + rowhead * w.q.head + r0 * w.q.token, (int)w.q.token,
				  T - r0, hd);
		load_tile_fp32<D>(sa1, dout + rowhead * w.out.head + r0 * w.out.token,
				  (int)w.out.token, T - r0, w.head_dim_v);
	}
	for (int head = head0; head < head0 + nheads; head++) {
		const int64_t bh = b * a.nheads + head;
		const float *lse = a.lse + bh * T, *delta = a.delta + bh * T;

		drop.head = drop_head(a, (uint32_t)bh);
		for (int c0 = first; c0 < end; c0 += 64) {
			float s[4][4], dp[4][4];

			if (DKV) {
				load_tile_fp32<D>(sb0, q0 + head * w.q.head + c0 * w.q.token,
						  (int)w.q.token, T - c0, hd);
				load_tile_fp32<D>(sb1, dout + head * w.out.head + c0 * w.out.token,
						  (int)w.out.token, T - c0, w.head_dim_v);
			} else {
				load_tile_fp32<D>(sb0, k + c0 * w.k.token, (int)w.k.token, K - c0,
						  hd);
				load_tile_fp32<D>(sb1, v + c0 * w.v.token, (int)w.v.token, K - c0,
						  w.head_dim_v);
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

					const struct span keys = MORE && q < T ?
									 span_of(mask, b, q) :
									 span{ 0, q + 1, 0 };

					if (q < T && key >= keys.from && key < keys.to) {
						float x = s[i][j] * a.scale, terms = 0.0f;

						if (MORE && a.softcap != 0.0f)
							x = cap_fp32(x, a.softcap);
						if (MORE && has_terms(a))
							terms = terms_of(a, head, q, key, keys.at);
						if (lse[q] != -INFINITY)
							p = expf(x + terms - lse[q]);
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

	float *dqkv = (float *)a.dqkv;
	float *dk = separate ? (float *)a.dk : dqkv + w.k_at;
	float *dv = separate ? (float *)a.dv : dqkv + w.v_at;

#pragma unroll
	for (int i = 0; i < 4; i++) {
		f0[i] = a.scale;
		f1[i] = 1.0f;
	}
	if (!DKV) {
		store_fp32<D>(at_head(dqkv, w.q, b, rowhead) + r0 * w.q.token, (int)w.q.token,
			      T - r0, hd, acc0, f0);
		return;
	}
	store_fp32<D>(at_head(dk, w.k, b, kvhead) + r0 * w.k.token, (int)w.k.token, K - r0, hd,
		      acc0, f0);
	store_fp32<D>(at_head(dv, w.v, b, kvhead) + r0 * w.v.token, (int)w.v.token, K - r0,
		      w.head_dim_v, acc1, f1);
}

#endif
