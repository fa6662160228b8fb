/*
 * bias.cu - gradient of a bias of attention's scores, for every level, type and width: products of
 * queries and keys, and of gradients and values, are FP32 by FFMA, 64 channels at a time.
 *
 *  kernel    grid                                        threads  shared
 *  bwd_bias  biases times ceil(keys / 64), ceil(T / 64)  256      34 KiB
 *
 * A block has 64 queries and 64 keys of a bias, and sums the gradients of these scores over
 * sequences and over the heads that have the bias, in ascending order. A thread has the elements of
 * add_dots_fp32(). It computes gradients from scores in shared memory, so that the loop over them
 * is compiled once.
 */
#include "kernels/attn/fp32.cuh"

#define BIAS_LD (64 + ATTN_FP32_PAD(TE_ARCH))

/* 64 rows of a head, of which n exist */
template <class E> struct head_rows {
	const E *p;
	int stride, n;
};

template <class E>
DEV struct head_rows<E> rows_of(const E *p, const struct te_k_strides &s, int64_t b, int head,
				int row, int end)
{
	return { at_head(p, s, b, head) + row * s.token, (int)s.token, end - row };
}

/* s = x y^T, for hd channels, by way of shared memory */
template <class E>
DEV void products(float (&s)[4][4], float *sx, float *sy, const struct head_rows<E> &x,
		  const struct head_rows<E> &y, int hd)
{
#pragma unroll
	for (int e = 0; e < 16; e++)
		s[e / 4][e % 4] = 0.0f;
#pragma unroll 1
	for (int c = 0; c < hd; c += 64) {
		__syncthreads(); /* no thread reads the previous numbers any more */
		load_tile_fp32<64>(sx, x.p + c, x.stride, x.n, hd - c);
		load_tile_fp32<64>(sy, y.p + c, y.stride, y.n, hd - c);
		__syncthreads();
		add_dots_fp32<64>(s, sx, sy);
	}
}

template <class E> DEV void bwd_bias(const struct te_k_attn_bwd &a)
{
	__shared__ __align__(16) float sx[64 * BIAS_LD], sy[64 * BIAS_LD];
	const int T = (int)a.seqlen, K = keys_of<true>(a), group = a.nheads / a.nkv;
	const int n = a.more.bias_head ? 1 : a.nheads, nbiases = a.nheads / n;
	const int h0 = blockIdx.x % nbiases, k0 = blockIdx.x / nbiases * 64, q0 = blockIdx.y * 64;
	const struct te_k_attn_views w = views_of<true>(a);
	const struct te_k_attn_mask mask = TE_K_ATTN_MASK(&a);
	const E *q = (const E *)a.qkv, *dout = (const E *)a.dout;
	const E *k = a.more.k ? (const E *)a.more.k : q + w.k_at;
	const E *v = a.more.k ? (const E *)a.more.v : q + w.v_at;
	struct drop drop = drop_of(a, 0);
	float sum[4][4] = {};

#pragma unroll 1
	for (int i = 0; i < (int)a.batch * n; i++) {
		const int h = h0 + i % n, g = h / group, b = i / n;
		const int64_t bh = (int64_t)b * a.nheads + h;
		const float *lse = a.lse + bh * T, *delta = a.delta + bh * T;
		const struct span all = span_of_rows(mask, b, q0, 64);
		float s[4][4], dp[4][4];

		if (all.to <= k0 || all.from >= k0 + 64)
			continue;
		products(s, sx, sy, rows_of(q, w.q, b, h, q0, T), rows_of(k, w.k, b, g, k0, K),
			 a.head_dim);
		products(dp, sx, sy, rows_of(dout, w.out, b, h, q0, T),
			 rows_of(v, w.v, b, g, k0, K), w.head_dim_v);
		drop.head = drop_head(a, (uint32_t)bh);
		__syncthreads();
#pragma unroll
		for (int e = 0; e < 16; e++) {
			const int at = (TY * 4 + e / 4) * BIAS_LD + TX + 16 * (e % 4);

			sx[at] = s[e / 4][e % 4];
			sy[at] = dp[e / 4][e % 4];
		}
#pragma unroll 1
		for (int e = 0; e < 16; e++) {
			const int row = TY * 4 + e / 4, col = TX + 16 * (e % 4);
			const int at = row * BIAS_LD + col, qi = q0 + row, ki = k0 + col;
			const struct span keys = qi < T ? span_of(mask, b, qi) :
							  span{ NO_KEY, 0, 0 };
			float x = sx[at] * a.scale, ds = 0.0f;

			if (ki >= keys.from && ki < keys.to && lse[qi] != -INFINITY) {
				if (a.softcap != 0.0f)
					x = cap_fp32(x, a.softcap);
				x = expf(x + terms_of(a, h, qi, ki, keys.at) - lse[qi]);
				ds = x * (sy[at] * keep_fp32(drop, qi, ki) - delta[qi]);
			}
			sx[at] = ds;
		}
#pragma unroll
		for (int e = 0; e < 16; e++)
			sum[e / 4][e % 4] += sx[(TY * 4 + e / 4) * BIAS_LD + TX + 16 * (e % 4)];
	}
#pragma unroll
	for (int e = 0; e < 16; e++) {
		const int qi = q0 + TY * 4 + e / 4, ki = k0 + TX + 16 * (e % 4);

		if (qi < T && ki < K)
			a.dbias[h0 * a.more.bias_head + (int64_t)qi * K + ki] = sum[e / 4][e % 4];
	}
}

KERNEL(te_k_attn_bwd_bias_fp32, ATTN_FP32_THREADS, 2, te_k_attn_bwd, bwd_bias<float>)
KERNEL(te_k_attn_bwd_bias_bf16, ATTN_FP32_THREADS, 2, te_k_attn_bwd, bwd_bias<uint16_t>)
