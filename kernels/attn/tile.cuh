/*
 * attn/tile.cuh - attention in BF16: mma.sync with FP32 accumulators, as in FlashAttention-2 (Dao,
 * arXiv 2307.08691). A block owns 128 rows (forward and dq: queries; dkv: keys) and iterates over
 * tiles of 64 columns; cp.async loads the next tile during the computation on the current one. A
 * warp owns 16 MT whole rows, so that a row's maximum and sum need shuffles within quads only, and
 * P and dS go from accumulators to operands in registers. For that reason dkv computes transposed
 * scores. The _drop variants are separate because Philox needs registers.
 *
 *   fwd  grid (batch nheads, ceil(T / 128)), 128 threads (_drop: 256), (128 + 256) rows of smem
 *   dkv  grid (batch nkv, ceil(T / 128)), 128 threads up to D = 64, else 256, 512 rows + 1 KiB
 *   dq   grid (batch nheads, ceil(T / 128)), threads as dkv, 512 rows
 *
 * These are for a D of up to 128; attn/wide.cu has others for 256, where a second stage of columns
 * does not fit or warps share rows.
 * Compute capability 8.6 and 8.9: dkv and dq of D > 64 have 64 rows and 128 threads (geometry.h).
 * _small_m is for grids that would leave half of the multiprocessors idle: 64 rows instead of 128,
 * 128 threads, and 64 (forward) or 128 (backward) rows of shared memory less.
 *
 * A row of shared memory is 2 (D + 8) bytes: 16 bytes of padding put eight consecutive rows in
 * different banks, as ldmatrix requires; D = 128 of 8.6 and 8.9 is swizzled instead. Blocks with
 * the most work have the lowest blockIdx.y.
 */
#ifndef TE_ATTN_TILE_CUH
#define TE_ATTN_TILE_CUH

#include "kernels/attn/dev.cuh"
#include "kernels/attn/quantize.cuh"

/*
 * Fragments. Of a 16 x 8 tile of accumulators, lane l holds c0 and c1 at row l / 4, columns 2 (l %
 * 4) and the next, and c2 and c3 eight rows below. Two horizontally adjacent tiles, packed to
 * BF16, are the A operand of the next mma.
 */
#define WARP (threadIdx.x >> 5)
#define QUAD (LANE >> 2)
#define PAIR ((LANE & 3) * 2)

/* the lane's ldmatrix address in the 16 x 16 tile at s: of an A operand, or of a B operand stored
 * [k][n], which is transposed on load */
template <int LD> DEV uint32_t tile_addr(const uint16_t *s)
{
	return smem_addr(s + tile_index<LD>(LANE & 15, (LANE >> 4) * 8));
}

/* for a B operand stored [n][k] */
template <int LD> DEV uint32_t tile_addr_nk(const uint16_t *s)
{
	return smem_addr(s + tile_index<LD>((LANE & 7) + (LANE >> 4) * 8, ((LANE >> 3) & 1) * 8));
}

/* such an address 16 k columns further */
template <int LD> DEV uint32_t along(uint32_t addr, int k)
{
	return LD == 128 ? addr ^ k * 32 : addr + k * 32;
}

template <int N> DEV void clear(float (&s)[N][4])
{
#pragma unroll
	for (int i = 0; i < N; i++)
#pragma unroll
		for (int c = 0; c < 4; c++)
			s[i][c] = 0.0f;
}

template <int MT, int NT> DEV void clear(float (&s)[MT][NT][4])
{
#pragma unroll
	for (int i = 0; i < MT; i++)
		clear(s[i]);
}

/* s += a b^T for 16 columns of a and b: a(i) is the operand of 16 rows of a, b has 8 NT rows */
template <int LD, int MT, int NT, class A>
DEV void mma_abt_step(float (&s)[MT][NT][4], const A &a, uint32_t b_addr)
{
#pragma unroll
	for (int j = 0; j < NT / 2; j++) {
		uint32_t b[4];

		ldmatrix(b, b_addr + j * 16 * LD * 2);
#pragma unroll
		for (int i = 0; i < MT; i++) {
			mma(s[i][2 * j], a(i), b[0], b[1]);
			mma(s[i][2 * j + 1], a(i), b[2], b[3]);
		}
	}
}

/* s += a b^T for a of 16 MT rows and b of 8 NT rows of D elements */
template <int D, int MT, int NT>
DEV void mma_abt(float (&s)[MT][NT][4], uint32_t a_addr, uint32_t b_addr)
{
	constexpr int LD = D + ATTN_TILE_PAD(TE_ARCH, D);

#pragma unroll
	for (int k = 0; k < D / 16; k++) {
		uint32_t a[MT][4];

#pragma unroll
		for (int i = 0; i < MT; i++)
			ldmatrix(a[i], along<LD>(a_addr, k) + i * 16 * LD * 2);
		mma_abt_step<LD>(s, [&](int i) -> auto & { return a[i]; }, along<LD>(b_addr, k));
	}
}

/* with a in registers */
template <int D, int MT, int NT>
DEV void mma_abt(float (&s)[MT][NT][4], const uint32_t (&a)[MT][D / 16][4], uint32_t b_addr)
{
	constexpr int LD = D + ATTN_TILE_PAD(TE_ARCH, D);

#pragma unroll
	for (int k = 0; k < D / 16; k++)
		mma_abt_step<LD>(s, [&](int i) -> auto & { return a[i][k]; }, along<LD>(b_addr, k));
}

/* acc += p b for 16 rows of b, of 8 N elements: a[i] is the operand of 16 rows of p */
template <int LD, int MT, int N>
DEV void mma_pb_step(float (&acc)[MT][N][4], const uint32_t (&a)[MT][4], uint32_t b_addr)
{
#pragma unroll
	for (int j = 0; j < N / 2; j++) {
		uint32_t b[4];

		ldmatrix_trans(b, along<LD>(b_addr, j));
#pragma unroll
		for (int i = 0; i < MT; i++) {
			mma(acc[i][2 * j], a[i], b[0], b[1]);
			mma(acc[i][2 * j + 1], a[i], b[2], b[3]);
		}
	}
}

/* acc += bf16(p) b for b of 8 NT rows of D elements */
template <int D, int MT, int NT>
DEV void mma_pb(float (&acc)[MT][D / 8][4], const float (&p)[MT][NT][4], uint32_t b_addr)
{
	constexpr int LD = D + ATTN_TILE_PAD(TE_ARCH, D);

#pragma unroll
	for (int k = 0; k < NT / 2; k++) {
		uint32_t a[MT][4];

#pragma unroll
		for (int i = 0; i < MT; i++) {
			const float(&lo)[4] = p[i][2 * k], (&hi)[4] = p[i][2 * k + 1];

			a[i][0] = pack_bf16(lo[0], lo[1]);
			a[i][1] = pack_bf16(lo[2], lo[3]);
			a[i][2] = pack_bf16(hi[0], hi[1]);
			a[i][3] = pack_bf16(hi[2], hi[3]);
		}
		mma_pb_step<LD>(acc, a, b_addr + k * 16 * LD * 2);
	}
}

/* acc += p b for p of COLS columns in shared memory, PITCH elements per row */
template <int D, int COLS, int PITCH, int MT, int N>
DEV void mma_pb(float (&acc)[MT][N][4], uint32_t p_addr, uint32_t b_addr)
{
	constexpr int LD = D + ATTN_TILE_PAD(TE_ARCH, D);

#pragma unroll
	for (int k = 0; k < COLS / 16; k++) {
		uint32_t a[MT][4];

#pragma unroll
		for (int i = 0; i < MT; i++)
			ldmatrix(a[i], p_addr + (i * 16 * PITCH + k * 16) * 2);
		mma_pb_step<LD>(acc, a, b_addr + k * 16 * LD * 2);
	}
}

/* scores of 16 MT rows to shared memory in BF16, PITCH elements per row */
template <int PITCH, int MT, int NT> DEV void put_scores(uint16_t *to, const float (&s)[MT][NT][4])
{
#pragma unroll
	for (int i = 0; i < MT; i++)
#pragma unroll
		for (int j = 0; j < NT; j++)
#pragma unroll
			for (int e = 0; e < 2; e++)
				*(uint32_t *)(to + (i * 16 + e * 8 + QUAD) * PITCH + j * 8 + PAIR) =
					pack_bf16(s[i][j][2 * e], s[i][j][2 * e + 1]);
}

/* ROWS rows of hd elements to shared memory; rows from nrows on and columns from hd on are zeros */
template <int ROWS, int D, int THREADS>
DEV void load_tile(uint16_t *s, const uint16_t *g, int stride, int nrows, int hd)
{
	constexpr int LD = D + ATTN_TILE_PAD(TE_ARCH, D), CHUNKS = D / 8;

	if (hd % 8 == 0) {
#pragma unroll
		for (int n = 0; n < ROWS * CHUNKS / THREADS; n++) {
			int i = n * THREADS + threadIdx.x, r = i / CHUNKS, c = i % CHUNKS * 8;
			bool ok = r < nrows && c < hd;

			cp_async16(smem_addr(s + tile_index<LD>(r, c)),
				   ok ? g + r * stride + c : g, ok ? 16 : 0);
		}
	} else {
		for (int i = threadIdx.x; i < ROWS * D; i += THREADS) {
			int r = i / D, c = i % D;

			s[tile_index<LD>(r, c)] = r < nrows && c < hd ? g[r * stride + c] : 0;
		}
	}
}

/*
 * Store the 8 N columns of 16 MT rows of a warp, times f, through its own shared memory, as rows of
 * hd elements at g, if that is not NULL. They stay in the shared memory.
 */
template <int D, int MT, int N>
DEV void store_rows(uint16_t *g, int stride, int nrows, int hd, uint16_t *s,
		   const float (&acc)[MT][N][4], const float (&f)[MT][2])
{
	constexpr int LD = D + ATTN_TILE_PAD(TE_ARCH, D), CHUNKS = N;

#pragma unroll
	for (int i = 0; i < MT; i++)
#pragma unroll
		for (int j = 0; j < N; j++)
#pragma unroll
			for (int e = 0; e < 2; e++)
				*(uint32_t *)(s + tile_index<LD>(i * 16 + e * 8 + QUAD,
								 j * 8 + PAIR)) =
					pack_bf16(acc[i][j][2 * e] * f[i][e],
						  acc[i][j][2 * e + 1] * f[i][e]);
	__syncwarp();
	if (!g)
		return;
	if (hd % 8 == 0) {
		for (int i = LANE; i < 16 * MT * CHUNKS; i += 32) {
			int r = i / CHUNKS, c = i % CHUNKS * 8;

			if (r < nrows && c < hd)
				*(uint4 *)(g + (int64_t)r * stride + c) =
					*(const uint4 *)(s + tile_index<LD>(r, c));
		}
	} else {
		for (int i = LANE; i < 16 * MT * 8 * N; i += 32) {
			int r = i / (8 * N), c = i % (8 * N);

			if (r < nrows && c < hd)
				g[(int64_t)r * stride + c] = s[tile_index<LD>(r, c)];
		}
	}
}

template <int MT> DEV void all_bits(uint32_t (&bits)[MT])
{
#pragma unroll
	for (int i = 0; i < MT; i++)
		bits[i] = ~0u;
}

/*
 * Bit 4 j + c of bits[i]: element c of score tile (i, j) is kept. A draw covers eight keys of a
 * query, so the lanes of a warp compute different draws and exchange them. q and k are the warp's
 * first row and column, multiples of 8.
 */
template <int MT, int NT>
DEV void keep_bits_qk(uint32_t (&bits)[MT], const struct drop &d, int q, int k)
{
#pragma unroll
	for (int i = 0; i < MT; i++) {
		bits[i] = 0;
#pragma unroll
		for (int j = 0; j < NT; j += 4) {
			int row = q + i * 16 + QUAD, group = k / 8 + j + (LANE & 3);
			uint32_t mine = keep8(d, row, group) | keep8(d, row + 8, group) << 8;

#pragma unroll
			for (int n = 0; n < 4; n++) {
				uint32_t w = __shfl_sync(~0u, mine, (LANE & 28) + n) >> PAIR;

				bits[i] |= ((w & 3) | (w >> 6 & 12)) << (4 * (j + n));
			}
		}
	}
}

/* for transposed scores, whose rows are keys */
template <int MT, int NT>
DEV void keep_bits_kq(uint32_t (&bits)[MT], const struct drop &d, int q, int k)
{
#pragma unroll
	for (int i = 0; i < MT; i++) {
		bits[i] = 0;
#pragma unroll
		for (int j = 0; j < NT; j += 2) {
			uint32_t mine = keep8(d, q + j * 8 + (LANE & 15),
					      k / 8 + i * 2 + (LANE >> 4));

#pragma unroll
			for (int c = 0; c < 8; c++) {
				int src = (c >> 1 & 1) * 16 + (c >> 2) * 8 + PAIR + (c & 1);
				uint32_t w = __shfl_sync(~0u, mine, src) >> QUAD;

				bits[i] |= (w & 1) << (4 * j + c);
			}
		}
	}
}

/* log2(e) lse; +inf for a row without keys, so that its probabilities are 0 */
template <bool MORE> DEV float lse2_of(float lse)
{
	return MORE && lse == -INFINITY ? INFINITY : lse * LOG2E;
}

/* a query, a key, and the diagonal of the query */
struct score_at {
	int q, k, at;
};

/*
 * Add terms of more, times f, to the scores of head h, which become least at least. at: the struct
 * score_at of an element.
 */
template <int MT, int NT, class A, class At>
DEV void add_terms(float (&s)[MT][NT][4], const A &a, int h, float f, float least, const At &at)
{
#pragma unroll
	for (int i = 0; i < MT; i++)
#pragma unroll
		for (int j = 0; j < NT; j++) {
#pragma unroll
			for (int c = 0; c < 4; c++) {
				const struct score_at x = at(i, j, c);

				s[i][j][c] = fmaxf(fmaf(terms_of(a, h, x.q, x.k, x.at), f,
							s[i][j][c]), least);
			}
			/* few registers, not many loads at a time */
			asm volatile("" ::: "memory");
		}
}

/*
 * Keys of the rows of a thread. Of the rows of its warp: the least and the largest first key, and
 * the least and the largest end.
 */
template <int MT> struct spans {
	struct span row[MT][2];
	int least, most, least_end, most_end;

	__device__ __forceinline__ void find(const struct te_k_attn_mask &m, int64_t b, int wq)
	{
		least = least_end = NO_KEY;
		most = most_end = 0;
#pragma unroll
		for (int i = 0; i < MT; i++)
#pragma unroll
			for (int e = 0; e < 2; e++) {
				const int q = min(wq + i * 16 + e * 8 + (int)QUAD, (int)m.qlen - 1);

				row[i][e] = span_of(m, b, q);
				least = min(least, row[i][e].from);
				most = max(most, row[i][e].from);
				least_end = min(least_end, row[i][e].to);
				most_end = max(most_end, row[i][e].to);
			}
		least = __reduce_min_sync(~0u, least);
		most = __reduce_max_sync(~0u, most);
		least_end = __reduce_min_sync(~0u, least_end);
		most_end = __reduce_max_sync(~0u, most_end);
	}
};

/*
 * If STAGES is 1, the values of a tile arrive while its scores are computed, and the next keys
 * while its results are.
 */
template <int D, int WARPS, int MT, bool DROP, bool MORE = false, int STAGES = 2>
DEV void fwd_bf16(const struct te_k_attn_fwd &a)
{
	constexpr int LD = D + ATTN_TILE_PAD(TE_ARCH, D);
	constexpr int BM = WARPS * MT * 16, BN = ATTN_COLS, NT = BN / 8;
	constexpr bool Q_IN_REGS = D <= 64;
	const int T = (int)a.seqlen, K = keys_of<MORE>(a), hd = a.head_dim;
	const struct te_k_attn_views w = views_of<MORE>(a);
	const struct te_k_attn_mask mask = TE_K_ATTN_MASK(&a);
	const int h = blockIdx.x % a.nheads, kvhead = h / (a.nheads / a.nkv);
	const int64_t b = blockIdx.x / a.nheads;
	const int q0 = (gridDim.y - 1 - blockIdx.y) * BM, wq = q0 + WARP * MT * 16;
	const struct span all = MORE ? span_of_rows(mask, b, q0, BM) :
				       span{ 0, min(T, q0 + BM), 0 };
	const int first = all.from / BN, ntiles = (all.to + BN - 1) / BN;
	const uint16_t *qkv = (const uint16_t *)a.qkv;
	const bool separate = MORE && a.more.k;
	const uint16_t *gq = at_head(qkv, w.q, b, h);
	const uint16_t *gk = at_head(separate ? (const uint16_t *)a.more.k : qkv + w.k_at, w.k, b,
				     kvhead);
	const uint16_t *gv = at_head(separate ? (const uint16_t *)a.more.v : qkv + w.v_at, w.v, b,
				     kvhead);
	const float scale = MORE ? scale_of(a) : a.scale, scale2 = scale * LOG2E;
	const struct drop drop = drop_of(a, blockIdx.x);
	uint16_t *sq = (uint16_t *)te_smem, *sk = sq + BM * LD, *sv = sk + STAGES * BN * LD;
	uint16_t *wsq = sq + WARP * MT * 16 * LD;
	uint32_t q[Q_IN_REGS ? MT : 1][Q_IN_REGS ? D / 16 : 1][4];
	float acc[MT][D / 8][4], m[MT][2], l[MT][2];
	struct spans<MT> keys;

	/* tile n of keys or of values */
	const auto load = [&](uint16_t *s, const uint16_t *g, const struct te_k_strides &stride,
			      int n, int channels) {
		const int token = opaque<MORE>(stride.token);

		load_tile<BN, D, WARPS * 32>(s + (n & (STAGES - 1)) * BN * LD,
					     g + (int64_t)(n * BN) * token, token, K - n * BN,
					     channels);
	};
	const auto load_keys = [&](int n) { load(sk, gk, w.k, n, hd); };
	const auto load_values = [&](int n) { load(sv, gv, w.v, n, w.head_dim_v); };
	/* with one stage: the values of tile n have arrived, and no warp reads its keys any more */
	const auto await_values = [&](int n) {
		if (STAGES > 1)
			return;
		cp_async_wait<0>();
		__syncthreads();
		if (n + 1 < ntiles)
			load_keys(n + 1);
		cp_async_commit();
	};

	if (noop_set(a.q.noop))
		return;
	out_scale_inv(a.q);
	load_tile<BM, D, WARPS * 32>(sq, gq + q0 * w.q.token, (int)w.q.token, T - q0, hd);
	load_keys(first);
	if (STAGES > 1)
		load_values(first);
	cp_async_commit();
	if constexpr (MORE)
		keys.find(mask, b, wq);
	clear(acc);
#pragma unroll
	for (int i = 0; i < MT; i++)
#pragma unroll
		for (int e = 0; e < 2; e++) {
			m[i][e] = -INFINITY;
			l[i][e] = 0.0f;
			if (MORE && a.more.sinks && a.more.sinks[h] != -INFINITY) {
				m[i][e] = a.more.sinks[h] / scale;
				l[i][e] = PAIR == 0 ? 1.0f : 0.0f; /* lanes are added below */
			}
		}
	for (int n = first; n < ntiles; n++) {
		const int k0 = n * BN, at = (n & (STAGES - 1)) * BN * LD;
		float s[MT][NT][4];

		/* tile n has arrived, and no warp reads tile n - 1 any more */
		cp_async_wait<0>();
		__syncthreads();
		if (STAGES == 1) {
			load_values(n);
			cp_async_commit();
		} else if (n + 1 < ntiles) {
			load_keys(n + 1);
			load_values(n + 1);
			cp_async_commit();
		}
		if (Q_IN_REGS && n == first)
#pragma unroll
			for (int i = 0; i < MT; i++)
#pragma unroll
				for (int k = 0; k < D / 16; k++)
					if constexpr (Q_IN_REGS)
						ldmatrix(q[i][k],
							 along<LD>(tile_addr<LD>(wsq), k) +
								 i * 16 * LD * 2);
		if (MORE ? k0 >= keys.most_end || k0 + BN <= keys.least : k0 > wq + MT * 16 - 1) {
			await_values(n);
			continue;
		}
		clear(s);
		if constexpr (Q_IN_REGS)
			mma_abt<D>(s, q, tile_addr_nk<LD>(sk + at));
		else
			mma_abt<D>(s, tile_addr<LD>(wsq), tile_addr_nk<LD>(sk + at));
		if constexpr (MORE) {
			if (a.softcap != 0.0f)
#pragma unroll
				for (int i = 0; i < MT; i++)
#pragma unroll
					for (int j = 0; j < NT; j++)
#pragma unroll
						for (int c = 0; c < 4; c++)
							s[i][j][c] = cap_score(
								s[i][j][c], 2.0f * LOG2E * a.scale /
										    a.softcap,
								a.softcap);
			if (has_terms(a))
				add_terms(s, a, h, 1.0f / scale, -INFINITY,
					  [&](int i, int j, int c) {
					const int q = wq + i * 16 + (c >> 1) * 8 + QUAD;
					const int k = k0 + j * 8 + PAIR + (c & 1);

					return score_at{ q, k, keys.row[i][c >> 1].at };
				});
			if (k0 + BN > keys.least_end || k0 < keys.most)
#pragma unroll
				for (int i = 0; i < MT; i++)
#pragma unroll
					for (int j = 0; j < NT; j++)
#pragma unroll
						for (int c = 0; c < 4; c++) {
							const int k = k0 + j * 8 + PAIR + (c & 1);

							if (k >= keys.row[i][c >> 1].to ||
							    k < keys.row[i][c >> 1].from)
								s[i][j][c] = -INFINITY;
						}
		}
		if (!MORE && k0 + BN - 1 > wq)
#pragma unroll
			for (int i = 0; i < MT; i++)
#pragma unroll
				for (int j = 0; j < NT; j++)
#pragma unroll
					for (int c = 0; c < 4; c++)
						if (k0 + j * 8 + PAIR + (c & 1) >
						    wq + i * 16 + (c >> 1) * 8 + QUAD)
							s[i][j][c] = -INFINITY;
		/*
		 * Key 0 is in the first tile of every row, so m is finite if the scores are. With
		 * MORE a tile may have no key of a row.
		 */
#pragma unroll
		for (int i = 0; i < MT; i++)
#pragma unroll
			for (int e = 0; e < 2; e++) {
				float top = m[i][e], sum = 0.0f, shrink;

#pragma unroll
				for (int j = 0; j < NT; j++)
					top = fmaxf(top, fmaxf(s[i][j][2 * e], s[i][j][2 * e + 1]));
				top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
				top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
				const float base = MORE && top == -INFINITY ? 0.0f : top;

				shrink = exp2_approx((m[i][e] - base) * scale2);
				m[i][e] = top;
#pragma unroll
				for (int j = 0; j < NT; j++)
#pragma unroll
					for (int c = 2 * e; c < 2 * e + 2; c++) {
						s[i][j][c] = exp2_approx(
							fmaf(s[i][j][c], scale2, -base * scale2));
						sum += s[i][j][c];
					}
				l[i][e] = l[i][e] * shrink + sum;
#pragma unroll
				for (int j = 0; j < D / 8; j++) {
					acc[i][j][2 * e] *= shrink;
					acc[i][j][2 * e + 1] *= shrink;
				}
			}
		if constexpr (DROP) {
			uint32_t bits[MT];

			if (!MORE)
				keep_bits_qk<MT, NT>(bits, drop, wq, k0);
			else if (a.threshold)
				keep_bits_qk<MT, NT>(bits, drop_of(a, blockIdx.x), wq, k0);
			else
				all_bits(bits);
#pragma unroll
			for (int i = 0; i < MT; i++)
#pragma unroll
				for (int j = 0; j < NT; j++)
#pragma unroll
					for (int c = 0; c < 4; c++)
						if (!(bits[i] >> (4 * j + c) & 1))
							s[i][j][c] = 0.0f;
		}
		await_values(n);
		mma_pb<D>(acc, s, tile_addr<LD>(sv + at));
	}
	if (MORE && first >= ntiles) {
		cp_async_wait<0>();
		__syncthreads();
	}
#pragma unroll
	for (int i = 0; i < MT; i++)
#pragma unroll
		for (int e = 0; e < 2; e++) {
			const int row = wq + i * 16 + e * 8 + QUAD;

			l[i][e] += __shfl_xor_sync(~0u, l[i][e], 1);
			l[i][e] += __shfl_xor_sync(~0u, l[i][e], 2);
			if (row < T && PAIR == 0)
				a.lse[(int64_t)blockIdx.x * T + row] =
					m[i][e] * scale + logf(l[i][e]);
			if (!MORE || l[i][e] != 0.0f) /* without keys, out is 0 */
				l[i][e] = (DROP ? drop_scale(a.threshold) : 1.0f) / l[i][e];
		}

	const struct te_k_attn_views to = views_of<MORE>(a);
	const int hdv = to.head_dim_v;

	store_rows<D>(a.out ? at_head((uint16_t *)a.out, to.out, b, h) + wq * to.out.token : NULL,
		      (int)to.out.token, T - wq, hdv, wsq, acc, l);
	if (quantizes(a.q))
		quantize_rows<16 * MT, D>(a.q, a.batch * T, a.nheads * hdv, b * T + wq, h * hdv,
					  T - wq, hdv, rows_at<LD>{ wsq });
}

/*
 * One body for dkv and dq. A block owns rows and iterates over columns:
 *
 *             rows       columns    s = a0 b0^T   dp = a1 b1^T   acc0 += ds b0   acc1 += p b1
 *   dkv       keys       queries    k q^T         v dout^T       dk              dv
 *   dq        queries    keys       q k^T         dout v^T       dq
 *
 * The columns of dkv are the queries of all heads of the group, head by head. NC columns of a tile
 * of BC are in registers at a time. Rows and columns beyond the sequence are zeros in every
 * operand, so that they add zero. With a SPLIT above 1, as many warps share rows: each computes NC
 * columns of scores and a part of the sums' columns, and they exchange ds and p through shared
 * memory.
 */
template <bool DKV, int D, int WARPS, int MT, int NC, bool DROP, bool MORE = false,
	  int BC = ATTN_COLS, int STAGES = 2, int SPLIT = 1>
DEV void bwd_bf16(const struct te_k_attn_bwd &a)
{
	constexpr int LD = D + ATTN_TILE_PAD(TE_ARCH, D), PITCH = BC + ATTN_PAD, DW = D / SPLIT;
	constexpr int BR = WARPS / SPLIT * MT * 16, NT = NC / 8;
	constexpr int THREADS = WARPS * 32;
	const int T = (int)a.seqlen, K = keys_of<MORE>(a), hd = a.head_dim;
	const int group = a.nheads / a.nkv;
	const struct te_k_attn_views w = views_of<MORE>(a);
	const struct te_k_attn_mask mask = TE_K_ATTN_MASK(&a);
	const int nrowheads = DKV ? a.nkv : a.nheads;
	const int rowhead = blockIdx.x % nrowheads, kvhead = DKV ? rowhead : rowhead / group;
	const int64_t b = blockIdx.x / nrowheads;
	const int r0 = (DKV ? blockIdx.y : gridDim.y - 1 - blockIdx.y) * BR;
	const int wrow = WARP / SPLIT * MT * 16, wr = r0 + wrow, part = WARP % SPLIT;
	const struct span all = MORE && DKV ? queries_of_keys(mask, b, r0, BR) :
				MORE ? span_of_rows(mask, b, r0, BR) :
				DKV  ? span{ r0, T, 0 } :
				       span{ 0, min(T, r0 + BR), 0 };
	const int first = MORE ? all.from / BC * BC : all.from;
	const int per_head = (all.to - first + BC - 1) / BC;
	const int ntiles = per_head * (DKV ? group : 1);
	const int head0 = DKV ? rowhead * group : rowhead;
	const bool separate = MORE && a.more.k;
	const uint16_t *qkv = (const uint16_t *)a.qkv;
	const uint16_t *q = qkv + b * w.q.batch;
	const uint16_t *dout = (const uint16_t *)a.dout + b * w.out.batch;
	const uint16_t *k = at_head(separate ? (const uint16_t *)a.more.k : qkv + w.k_at, w.k, b,
				    kvhead);
	const uint16_t *v = at_head(separate ? (const uint16_t *)a.more.v : qkv + w.v_at, w.v, b,
				    kvhead);
	const float scale2 = (MORE ? scale_of(a) : a.scale) * LOG2E;
	const float inv_cap = MORE && a.softcap != 0.0f ? 1.0f / a.softcap : 0.0f;
	const float keep_scale = DROP ? drop_scale(a.threshold) : 1.0f;
	struct drop drop = drop_of(a, 0);
	uint16_t *sa0 = (uint16_t *)te_smem, *sa1 = sa0 + BR * LD;
	uint16_t *sb0 = sa1 + BR * LD, *sb1 = sb0 + STAGES * BC * LD;
	uint16_t *sds = sb1 + STAGES * BC * LD; /* SPLIT: [BR][PITCH] */
	uint16_t *sp = sds + (SPLIT > 1 ? BR * PITCH : 0); /* dkv, SPLIT: the same */
	/* dkv: [stage][lse, delta][BC] */
	float *scol = (float *)(sp + (SPLIT > 1 && DKV ? BR * PITCH : 0));
	int *scol_keys = (int *)(scol + STAGES * 2 * BC); /* dkv, MORE: [stage][span][BC] */
	uint16_t *wsa0 = sa0 + wrow * LD, *wsa1 = sa1 + wrow * LD;
	uint16_t *wsds = sds + wrow * PITCH, *wsp = sp + wrow * PITCH;
	float acc0[MT][DW / 8][4], acc1[DKV ? MT : 1][DKV ? DW / 8 : 1][4];
	float lse2[MT][2], delta[MT][2]; /* dq: of the rows */
	struct spans<MT> keys;		 /* dq, MORE */

	const auto load_columns = [&](int n) {
		const int head = head0 + n / per_head, c0 = first + n % per_head * BC;
		const int stage = n & (STAGES - 1), to = stage * BC * LD;

		const int token0 = opaque<MORE>(DKV ? w.q.token : w.k.token);
		const int token1 = opaque<MORE>(DKV ? w.out.token : w.v.token);
		const int64_t at0 = (int64_t)c0 * token0, at1 = (int64_t)c0 * token1;

		if (DKV) {
			load_tile<BC, D, THREADS>(sb0 + to,
						  q + at0 + times<MORE>(head, w.q.head), token0,
						  T - c0, hd);
			load_tile<BC, D, THREADS>(sb1 + to,
						  dout + at1 + times<MORE>(head, w.out.head),
						  token1, T - c0, w.head_dim_v);
			if (threadIdx.x < 2 * BC) {
				const int c = threadIdx.x % BC;
				const bool ok = c0 + c < T;
				const float *src = (threadIdx.x < BC ? a.lse : a.delta) +
						   (b * a.nheads + head) * T + c0;

				cp_async4(smem_addr(scol + stage * 2 * BC + threadIdx.x),
					  ok ? src + c : src, ok ? 4 : 0);
			}
			if (MORE && threadIdx.x < BC) {
				int *s = scol_keys + stage * 3 * BC + threadIdx.x;
				const struct span at =
					span_of(mask, b, min(c0 + (int)threadIdx.x, T - 1));

				s[0] = at.from;
				s[BC] = at.to;
				s[2 * BC] = at.at;
			}
		} else {
			load_tile<BC, D, THREADS>(sb0 + to, k + at0, token0, K - c0, hd);
			load_tile<BC, D, THREADS>(sb1 + to, v + at1, token1, K - c0, w.head_dim_v);
		}
		cp_async_commit();
	};

	if (DKV) {
		load_tile<BR, D, THREADS>(sa0, k + r0 * w.k.token, (int)w.k.token, K - r0, hd);
		load_tile<BR, D, THREADS>(sa1, v + r0 * w.v.token, (int)w.v.token, K - r0,
					  w.head_dim_v);
	} else {
		load_tile<BR, D, THREADS>(sa0, q + rowhead * w.q.head + r0 * w.q.token,
					  (int)w.q.token, T - r0, hd);
		load_tile<BR, D, THREADS>(sa1, dout + rowhead * w.out.head + r0 * w.out.token,
					  (int)w.out.token, T - r0, w.head_dim_v);
#pragma unroll
		for (int i = 0; i < MT; i++)
#pragma unroll
			for (int e = 0; e < 2; e++) {
				const int row = wr + i * 16 + e * 8 + QUAD;
				const int64_t at = (int64_t)blockIdx.x * T + row;

				lse2[i][e] = row < T ? lse2_of<MORE>(a.lse[at]) : 0.0f;
				delta[i][e] = row < T ? a.delta[at] : 0.0f;
			}
		if constexpr (MORE)
			keys.find(mask, b, wr);
	}
	if (!MORE || ntiles)
		load_columns(0);
	clear(acc0);
	clear(acc1);
	for (int n = 0; n < ntiles; n++) {
		const int c0 = first + n % per_head * BC, stage = n & (STAGES - 1);

		if (STAGES == 1 && n) {
			__syncthreads();
			load_columns(n);
		}
		/* tile n has arrived, and no warp reads tile n - 1 any more */
		cp_async_wait<0>();
		__syncthreads();
		if (STAGES > 1 && n + 1 < ntiles)
			load_columns(n + 1);
		if (!MORE)
			drop.head = drop_head(a, (uint32_t)(b * a.nheads + head0 + n / per_head));
#pragma unroll 1
		for (int c1 = part * NC; c1 < BC; c1 += NC * SPLIT) {
			const int col0 = c0 + c1;
			/* columns that decide, for all warps of the rows, if there are scores */
			const int lo = SPLIT > 1 ? c0 : col0, hi = lo + (SPLIT > 1 ? BC : NC);
			const uint16_t *b0 = sb0 + (stage * BC + c1) * LD;
			const uint16_t *b1 = sb1 + (stage * BC + c1) * LD;
			const float *cols = scol + stage * 2 * BC + c1 + PAIR;
			const int *keys_at = scol_keys + stage * 3 * BC;
			const bool diagonal = DKV ? col0 < wr + MT * 16 - 1 : col0 + NC - 1 > wr;
			float s[MT][NT][4], dp[MT][NT][4];
			uint32_t bits[MT];

			if (MORE && DKV) {
				int least = NO_KEY, most = 0;

				for (int c = lo - c0 + LANE; c < hi - c0; c += 32) {
					least = min(least, keys_at[c]);
					most = max(most, keys_at[BC + c]);
				}
				if (__reduce_min_sync(~0u, least) > wr + MT * 16 - 1 ||
				    __reduce_max_sync(~0u, most) <= wr)
					continue;
			} else if (MORE ? lo >= keys.most_end || hi <= keys.least :
				   DKV  ? hi - 1 < wr :
					  lo > wr + MT * 16 - 1) {
				continue;
			}
			clear(s);
			clear(dp);
			mma_abt<D>(s, tile_addr<LD>(wsa0), tile_addr_nk<LD>(b0));
			mma_abt<D>(dp, tile_addr<LD>(wsa1), tile_addr_nk<LD>(b1));
			if constexpr (MORE) {
				if (a.softcap != 0.0f)
#pragma unroll
					for (int i = 0; i < MT; i++)
#pragma unroll
						for (int j = 0; j < NT; j++)
#pragma unroll
							for (int c = 0; c < 4; c++)
								s[i][j][c] = cap_score(
									s[i][j][c],
									2.0f * LOG2E * a.scale *
										inv_cap,
									a.softcap);
				if (has_terms(a))
					/* finite, since they are multiplied by inv_cap */
					add_terms(s, a, head0 + n / per_head, 1.0f / a.scale,
						  -0x1p127f, [&](int i, int j, int c) {
						const int row = wr + i * 16 + (c >> 1) * 8 + QUAD;
						const int col = j * 8 + PAIR + (c & 1);

						if (!DKV)
							return score_at{ row, col0 + col,
									 keys.row[i][c >> 1].at };
						return score_at{ col0 + col, row,
								 keys_at[2 * BC + c1 + col] };
					});
			}
			if constexpr (DROP) {
				if (MORE && a.threshold)
					drop = drop_of(a, (uint32_t)(b * a.nheads + head0 +
								     n / per_head));
				if (MORE && !a.threshold)
					all_bits(bits);
				else if constexpr (DKV)
					keep_bits_kq<MT, NT>(bits, drop, col0, wr);
				else
					keep_bits_qk<MT, NT>(bits, drop, wr, col0);
			}
#pragma unroll
			for (int j = 0; j < NT; j++) {
				float2 lse_j, delta_j;
				int2 from_j = make_int2(0, 0), to_j = from_j;

				if (MORE && DKV) {
					const int *at = keys_at + c1 + PAIR + j * 8;

					from_j = *(const int2 *)at;
					to_j = *(const int2 *)(at + BC);
				}
				if (DKV) {
					lse_j = *(const float2 *)(cols + j * 8);
					delta_j = *(const float2 *)(cols + BC + j * 8);
					lse_j.x = lse2_of<MORE>(lse_j.x);
					lse_j.y = lse2_of<MORE>(lse_j.y);
				}
#pragma unroll
				for (int i = 0; i < MT; i++)
#pragma unroll
					for (int c = 0; c < 4; c++) {
						const int row = wr + i * 16 + (c >> 1) * 8 + QUAD;
						const int col = col0 + j * 8 + PAIR + (c & 1);
						const float lse = !DKV ? lse2[i][c >> 1] :
							c & 1 ? lse_j.y : lse_j.x;
						const float del = !DKV ? delta[i][c >> 1] :
							c & 1 ? delta_j.y : delta_j.x;
						float p = exp2_approx(
							fmaf(s[i][j][c], scale2, -lse));
						float g = dp[i][j][c], pd;

						if (MORE) {
							const int key = DKV ? row : col;
							const struct span &at = keys.row[i][c >> 1];
							const int from = !DKV  ? at.from :
									 c & 1 ? from_j.y :
										 from_j.x;
							const int to = !DKV  ? at.to :
								       c & 1 ? to_j.y :
									       to_j.x;

							if (key < from || key >= to)
								p = 0.0f;
						} else if (diagonal &&
							   (DKV ? row > col : col > row)) {
							p = 0.0f;
						}
						pd = p;
						if (DROP) {
							const bool kept =
								bits[i] >> (4 * j + c) & 1;

							g = kept ? g * keep_scale : 0.0f;
							pd = kept ? p : 0.0f;
						}
						g = p * (g - del);
						if (MORE) {
							const float t = s[i][j][c] * inv_cap;

							g *= fmaf(-t, t, 1.0f);
						}
						s[i][j][c] = pd;
						dp[i][j][c] = g;
					}
			}
			if constexpr (SPLIT > 1) {
				const int at = stage * BC * LD + part * DW;

				put_scores<PITCH>(wsds + c1, dp);
				if (DKV)
					put_scores<PITCH>(wsp + c1, s);
				sync_warps<SPLIT>(WARP / SPLIT);
				if constexpr (DKV)
					mma_pb<D, BC, PITCH>(acc1, tile_addr<PITCH>(wsp),
							     tile_addr<LD>(sb1 + at));
				mma_pb<D, BC, PITCH>(acc0, tile_addr<PITCH>(wsds),
						     tile_addr<LD>(sb0 + at));
				continue;
			} else if constexpr (DKV) {
				mma_pb<D>(acc1, s, tile_addr<LD>(b1));
			}
			if constexpr (SPLIT == 1)
				mma_pb<D>(acc0, dp, tile_addr<LD>(b0));
		}
	}
	if (MORE && !ntiles) {
		cp_async_commit(); /* the rows, which were not read */
		cp_async_wait<0>();
	}
	if (SPLIT > 1 || (MORE && !ntiles))
		__syncthreads(); /* no warp reads the rows any more */
	if (SPLIT > 1) {
		wsa0 += part * DW;
		wsa1 += part * DW;
	}

	const struct te_k_attn_views to = views_of<MORE>(a);
	uint16_t *dqkv = (uint16_t *)a.dqkv;
	float f0[MT][2], f1[MT][2];

#pragma unroll
	for (int i = 0; i < MT; i++)
#pragma unroll
		for (int e = 0; e < 2; e++) {
			f0[i][e] = a.scale;
			f1[i][e] = keep_scale;
		}
	if constexpr (DKV) {
		uint16_t *dk = separate ? (uint16_t *)a.dk : dqkv + to.k_at;
		uint16_t *dv = separate ? (uint16_t *)a.dv : dqkv + to.v_at;

		store_rows<D>(at_head(dk, to.k, b, kvhead) + wr * to.k.token + part * DW,
			      (int)to.k.token, K - wr, hd - part * DW, wsa0, acc0, f0);
		store_rows<D>(at_head(dv, to.v, b, kvhead) + wr * to.v.token + part * DW,
			      (int)to.v.token, K - wr, to.head_dim_v - part * DW, wsa1, acc1, f1);
	} else {
		store_rows<D>(at_head(dqkv, to.q, b, rowhead) + wr * to.q.token + part * DW,
			      (int)to.q.token, T - wr, hd - part * DW, wsa0, acc0, f0);
	}
}

/* tiles of 16 rows of each warp */
#define MT(rows, warps) ((rows) / (16 * (warps)))
#define FWD(D, WARPS, ROWS, ...) fwd_bf16<D, WARPS, MT(ROWS, WARPS), __VA_ARGS__>
#define BWD(DKV, D, WARPS, ROWS, COLS, ...) \
	bwd_bf16<DKV, D, WARPS, MT(ROWS, WARPS), COLS, __VA_ARGS__>

#endif
