/*
 * te_attn.cu - causal attention with grouped queries, forward and backward, sm_80 and up.
 *
 * qkv T [batch, seqlen, (nheads + 2 nkv) head_dim]; head_dim is 1 to 128 and is padded with zeros
 * in shared memory to the D of the variant (bf16: 32, 64, 96, 128; fp32: 64, 128). Rows that are
 * no multiple of 16 bytes are read by element. The score matrix is never in memory.
 *
 * bf16: mma.sync with FP32 sums, in the manner of FlashAttention-2 (Dao, arXiv 2307.08691). One
 * block owns 128 rows (forward and dq: queries; dkv: keys) and walks over tiles of 64 columns,
 * of which the next is on its way by cp.async while one is worked on. A warp owns 16 MT
 * whole rows, so a row's maximum and sum need shuffles in quads only, and P and dS go
 * from sums to operands in registers. dkv works on transposed scores for that reason. The
 * variants _drop are apart because Philox costs registers.
 *
 *   fwd  grid (batch nheads, ceil(T / 128)), 128 threads (_drop: 256), (128 + 256) rows of smem
 *   dkv  grid (batch nkv, ceil(T / 128)), 128 threads up to D = 64, else 256, 512 rows + 1 KiB
 *   dq   grid (batch nheads, ceil(T / 128)), as dkv
 *
 * _few, for so few blocks that half of the processors would have none, has 64 for 128 rows and
 * 128 threads, and as many rows of shared memory less: 64 forward, 128 backward.
 *
 * _strip, for fewer rows yet, is made for the time from launch to end: a block owns 16 rows, and
 * its four warps share the columns of each tile, 16 of 64 columns of scores and a quarter of the
 * result each, so that P or dS goes from warp to warp through shared memory. What does not depend
 * on each other is on its way together, and nothing is divided by a variable. Each element is
 * summed in the order of the other variants, so it has the same bits. dkv and dq make delta
 * themselves, in pre's order, and pre is not launched.
 *
 *   fwd  grid (nheads, ceil(T / 16), batch), 128 threads, (16 + 256) rows of smem + 4864 bytes
 *   dkv  grid (nkv, ceil(T / 16), batch), 128 threads, (32 + 256) rows + 5376 bytes
 *   dq   grid (nheads, ceil(T / 16), batch), 128 threads, (32 + 256) rows + 2560 bytes
 *
 * A row is 2 (D + 8) bytes: 16 bytes of padding put eight consecutive rows in different
 * banks, which is all that ldmatrix needs. The longest blocks have the lowest blockIdx.y.
 *
 * fp32: FFMA on 64 x 64 tiles, 256 threads of 4 x 4 scores; grids as above with 64 for 128; shared
 * memory 3 (fwd) or 4 (bwd) times 64 (D + 4) floats and 1 or 2 times 64 x 68. It is there to be
 * right: every step is FP32.
 *
 *   pre  grid ceil(batch seqlen nheads / (256 / lanes)), 256 threads, no shared memory, where
 *        lanes is the power of two from 16 bytes a lane on
 */
#include "te_begin.cuh"
#include "te_k.h"
#include "te_philox.h"

#define FN static __device__ __forceinline__

#define LOG2E 1.4426950408889634f

extern __shared__ uint4 te_smem[];

/* ---- instructions ---- */

FN uint32_t smem_addr(const void *p)
{
	return (uint32_t)__cvta_generic_to_shared(p);
}

/* n of 16 bytes, zeros for the rest; n is 16 or 0 */
FN void cp_async16(uint32_t dst, const void *src, int n)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
		     :: "r"(dst), "l"(src), "r"(n) : "memory");
}

FN void cp_async4(uint32_t dst, const void *src, int n)
{
	asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
		     :: "r"(dst), "l"(src), "r"(n) : "memory");
}

FN void cp_async_commit(void)
{
	asm volatile("cp.async.commit_group;" ::: "memory");
}

/* for all groups but the last N */
template <int N> FN void cp_async_wait(void)
{
	asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");
}

/* four 8 x 8 matrices; lane l gives the address of row l % 8 of matrix l / 8 */
FN void ldmatrix(uint32_t (&r)[4], uint32_t addr)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
		     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(addr) : "memory");
}

FN void ldmatrix_trans(uint32_t (&r)[4], uint32_t addr)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
		     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(addr) : "memory");
}

FN void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
		     "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
		     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
		     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

FN uint32_t pack_bf16(float lo, float hi)
{
	uint32_t r;

	asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
	return r;
}

FN float exp2_approx(float x)
{
	float y;

	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

/* ---- end of instructions ---- */

/* 1 / x, to nearest, for 1 <= x < 2^125: what the compiler makes of it, less the branches */
FN float inverse(float x)
{
	float y;

	asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return fmaf(y, -fmaf(x, y, -1.0f), y);
}

FN float bf16_to_float(uint16_t x)
{
	return __uint_as_float((uint32_t)x << 16);
}

FN float to_float(uint16_t x)
{
	return bf16_to_float(x);
}

FN float to_float(float x)
{
	return x;
}

/* of 16 bytes of two rows; with the sums of a row's lanes, added in a tree, it is delta */
template <class E> FN float dot16(const uint4 &x, const uint4 &y)
{
	union {
		uint4 v;
		E e[16 / sizeof(E)];
	} xs = { x }, ys = { y };
	float sum = 0.0f;

#pragma unroll
	for (int i = 0; i < (int)(16 / sizeof(E)); i++)
		sum = fmaf(to_float(xs.e[i]), to_float(ys.e[i]), sum);
	return sum;
}

/* over the n lanes of a row, a power of two */
FN float sum_lanes(float sum, int n)
{
	for (int w = n / 2; w; w /= 2)
		sum += __shfl_xor_sync(~0u, sum, w);
	return sum;
}

struct drop {
	uint64_t seed, offset;
	uint32_t tag, threshold, bh;
};

template <class A> FN struct drop drop_of(const A &a, uint32_t bh)
{
	struct drop d = { 0, 0, a.tag, a.threshold, bh };

	if (a.threshold) {
		d.seed = *a.seed;
		d.offset = *a.offset;
	}
	return d;
}

FN float drop_scale(uint32_t threshold)
{
	return 65536.0f / (float)(65536u - threshold);
}

/* bit i: key 8 group + i of query q is kept */
FN uint32_t keep8(const struct drop &d, int q, int group)
{
	struct te_philox r = te_philox_attn(d.seed, d.offset, d.tag, d.bh, (uint32_t)q,
					    (uint32_t)group);
	uint32_t bits = 0;

#pragma unroll
	for (int i = 0; i < 8; i++)
		bits |= (te_philox_lane(&r, i) >= d.threshold ? 1u : 0u) << i;
	return bits;
}

/* ---- bf16 ---- */

/*
 * Fragments. Of a 16 x 8 tile of sums, lane l holds c0 and c1 at row l / 4, columns 2 (l % 4)
 * and the next, c2 and c3 eight rows further down. Two such tiles side by side, packed to
 * bf16, are the A operand of the next product.
 */
#define LANE (threadIdx.x & 31)
#define WARP (threadIdx.x >> 5)
#define QUAD (LANE >> 2)
#define PAIR ((LANE & 3) * 2)

/* lane's address of the 16 x 16 tile at s: an A operand, or a B operand stored [k][n], transposed
 * on load */
template <int LD> FN uint32_t tile_addr(const uint16_t *s)
{
	return smem_addr(s + (LANE & 15) * LD + (LANE >> 4) * 8);
}

/* the same for a B operand stored [n][k] */
template <int LD> FN uint32_t tile_addr_nk(const uint16_t *s)
{
	return smem_addr(s + ((LANE & 7) + (LANE >> 4) * 8) * LD + ((LANE >> 3) & 1) * 8);
}

template <int N> FN void clear(float (&s)[N][4])
{
#pragma unroll
	for (int i = 0; i < N; i++)
#pragma unroll
		for (int c = 0; c < 4; c++)
			s[i][c] = 0.0f;
}

template <int MT, int NT> FN void clear(float (&s)[MT][NT][4])
{
#pragma unroll
	for (int i = 0; i < MT; i++)
		clear(s[i]);
}

/* s += a b^T for a of 16 MT rows and b of 8 NT rows of D elements */
template <int D, int MT, int NT>
FN void mma_abt(float (&s)[MT][NT][4], uint32_t a_addr, uint32_t b_addr)
{
	constexpr int LD = D + 8;

#pragma unroll
	for (int k = 0; k < D / 16; k++) {
		uint32_t a[MT][4];

#pragma unroll
		for (int i = 0; i < MT; i++)
			ldmatrix(a[i], a_addr + (i * 16 * LD + k * 16) * 2);
#pragma unroll
		for (int j = 0; j < NT / 2; j++) {
			uint32_t b[4];

			ldmatrix(b, b_addr + (j * 16 * LD + k * 16) * 2);
#pragma unroll
			for (int i = 0; i < MT; i++) {
				mma(s[i][2 * j], a[i], b[0], b[1]);
				mma(s[i][2 * j + 1], a[i], b[2], b[3]);
			}
		}
	}
}

/* the same with a in registers */
template <int D, int MT, int NT>
FN void mma_abt(float (&s)[MT][NT][4], const uint32_t (&a)[MT][D / 16][4], uint32_t b_addr)
{
	constexpr int LD = D + 8;

#pragma unroll
	for (int k = 0; k < D / 16; k++)
#pragma unroll
		for (int j = 0; j < NT / 2; j++) {
			uint32_t b[4];

			ldmatrix(b, b_addr + (j * 16 * LD + k * 16) * 2);
#pragma unroll
			for (int i = 0; i < MT; i++) {
				mma(s[i][2 * j], a[i][k], b[0], b[1]);
				mma(s[i][2 * j + 1], a[i][k], b[2], b[3]);
			}
		}
}

/* acc += bf16(p) b for b of 8 NT rows of D elements */
template <int D, int MT, int NT>
FN void mma_pb(float (&acc)[MT][D / 8][4], const float (&p)[MT][NT][4], uint32_t b_addr)
{
	constexpr int LD = D + 8;

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
#pragma unroll
		for (int j = 0; j < D / 16; j++) {
			uint32_t b[4];

			ldmatrix_trans(b, b_addr + (k * 16 * LD + j * 16) * 2);
#pragma unroll
			for (int i = 0; i < MT; i++) {
				mma(acc[i][2 * j], a[i], b[0], b[1]);
				mma(acc[i][2 * j + 1], a[i], b[2], b[3]);
			}
		}
	}
}

/* ROWS rows of hd elements to shared memory; rows from nrows on and columns from hd on are zeros */
template <int ROWS, int D, int THREADS>
FN void load_tile(uint16_t *s, const uint16_t *g, int stride, int nrows, int hd)
{
	constexpr int LD = D + 8, CHUNKS = D / 8;

	if (hd % 8 == 0) {
#pragma unroll
		for (int n = 0; n < ROWS * CHUNKS / THREADS; n++) {
			int i = n * THREADS + threadIdx.x, r = i / CHUNKS, c = i % CHUNKS * 8;
			bool ok = r < nrows && c < hd;

			cp_async16(smem_addr(s + r * LD + c), ok ? g + r * stride + c : g,
				   ok ? 16 : 0);
		}
	} else {
		for (int i = threadIdx.x; i < ROWS * D; i += THREADS) {
			int r = i / D, c = i % D;

			s[r * LD + c] = r < nrows && c < hd ? g[r * stride + c] : 0;
		}
	}
}

/* the 16 MT rows of a warp, times f, through its part of shared memory to rows of hd elements */
template <int D, int MT>
FN void store_rows(uint16_t *g, int stride, int nrows, int hd, uint16_t *s,
		   const float (&acc)[MT][D / 8][4], const float (&f)[MT][2])
{
	constexpr int LD = D + 8, CHUNKS = D / 8;

#pragma unroll
	for (int i = 0; i < MT; i++)
#pragma unroll
		for (int j = 0; j < D / 8; j++)
#pragma unroll
			for (int e = 0; e < 2; e++)
				*(uint32_t *)(s + (i * 16 + e * 8 + QUAD) * LD + j * 8 + PAIR) =
					pack_bf16(acc[i][j][2 * e] * f[i][e],
						  acc[i][j][2 * e + 1] * f[i][e]);
	__syncwarp();
	if (hd % 8 == 0) {
		for (int i = LANE; i < 16 * MT * CHUNKS; i += 32) {
			int r = i / CHUNKS, c = i % CHUNKS * 8;

			if (r < nrows && c < hd)
				*(uint4 *)(g + (int64_t)r * stride + c) =
					*(const uint4 *)(s + r * LD + c);
		}
	} else {
		for (int i = LANE; i < 16 * MT * D; i += 32) {
			int r = i / D, c = i % D;

			if (r < nrows && c < hd)
				g[(int64_t)r * stride + c] = s[r * LD + c];
		}
	}
}

/*
 * Bit 4 j + c of bits[i]: element c of score tile (i, j) is kept. A draw covers eight keys of a
 * query, so the lanes of a warp make different draws and pass them round. q and k are those of
 * the warp's first row and column: multiples of 8.
 */
template <int MT, int NT>
FN void keep_bits_qk(uint32_t (&bits)[MT], const struct drop &d, int q, int k)
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

/* for scores with keys for rows */
template <int MT, int NT>
FN void keep_bits_kq(uint32_t (&bits)[MT], const struct drop &d, int q, int k)
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

template <int D, int WARPS, int MT, bool DROP> FN void fwd_bf16(const struct te_k_attn_fwd &a)
{
	constexpr int LD = D + 8, BM = WARPS * MT * 16, BN = 64, NT = BN / 8;
	constexpr bool Q_IN_REGS = D <= 64;
	const int T = (int)a.seqlen, hd = a.head_dim;
	const int stride = (a.nheads + 2 * a.nkv) * hd;
	const int h = blockIdx.x % a.nheads;
	const int64_t b = blockIdx.x / a.nheads;
	const int q0 = (gridDim.y - 1 - blockIdx.y) * BM, wq = q0 + WARP * MT * 16;
	const int ntiles = (min(T, q0 + BM) + BN - 1) / BN;
	const uint16_t *base = (const uint16_t *)a.qkv + b * T * stride;
	const uint16_t *gk = base + (int64_t)(a.nheads + h / (a.nheads / a.nkv)) * hd;
	const uint16_t *gv = gk + (int64_t)a.nkv * hd;
	const float scale2 = a.scale * LOG2E;
	const struct drop drop = drop_of(a, blockIdx.x);
	uint16_t *sq = (uint16_t *)te_smem, *sk = sq + BM * LD, *sv = sk + 2 * BN * LD;
	uint16_t *wsq = sq + WARP * MT * 16 * LD;
	uint32_t q[Q_IN_REGS ? MT : 1][Q_IN_REGS ? D / 16 : 1][4];
	float acc[MT][D / 8][4], m[MT][2], l[MT][2];

	load_tile<BM, D, WARPS * 32>(sq, base + (int64_t)q0 * stride + h * hd, stride, T - q0, hd);
	load_tile<BN, D, WARPS * 32>(sk, gk, stride, T, hd);
	load_tile<BN, D, WARPS * 32>(sv, gv, stride, T, hd);
	cp_async_commit();
	clear(acc);
#pragma unroll
	for (int i = 0; i < MT; i++)
#pragma unroll
		for (int e = 0; e < 2; e++) {
			m[i][e] = -INFINITY;
			l[i][e] = 0.0f;
		}
	for (int n = 0; n < ntiles; n++) {
		const int k0 = n * BN, at = (n & 1) * BN * LD;
		float s[MT][NT][4];

		/* tile n is there, and nobody reads tile n - 1 any more */
		cp_async_wait<0>();
		__syncthreads();
		if (n + 1 < ntiles) {
			const int next = k0 + BN, to = (n + 1 & 1) * BN * LD;

			load_tile<BN, D, WARPS * 32>(sk + to, gk + (int64_t)next * stride, stride,
						     T - next, hd);
			load_tile<BN, D, WARPS * 32>(sv + to, gv + (int64_t)next * stride, stride,
						     T - next, hd);
			cp_async_commit();
		}
		if (Q_IN_REGS && n == 0)
#pragma unroll
			for (int i = 0; i < MT; i++)
#pragma unroll
				for (int k = 0; k < D / 16; k++)
					if constexpr (Q_IN_REGS)
						ldmatrix(q[i][k], tile_addr<LD>(wsq) +
								  (i * 16 * LD + k * 16) * 2);
		if (k0 > wq + MT * 16 - 1)
			continue;
		clear(s);
		if constexpr (Q_IN_REGS)
			mma_abt<D>(s, q, tile_addr_nk<LD>(sk + at));
		else
			mma_abt<D>(s, tile_addr<LD>(wsq), tile_addr_nk<LD>(sk + at));
		if (k0 + BN - 1 > wq)
#pragma unroll
			for (int i = 0; i < MT; i++)
#pragma unroll
				for (int j = 0; j < NT; j++)
#pragma unroll
					for (int c = 0; c < 4; c++)
						if (k0 + j * 8 + PAIR + (c & 1) >
						    wq + i * 16 + (c >> 1) * 8 + QUAD)
							s[i][j][c] = -INFINITY;
		/* key 0 is in the first tile of every row, so m is finite if the scores are */
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
				shrink = exp2_approx((m[i][e] - top) * scale2);
				m[i][e] = top;
#pragma unroll
				for (int j = 0; j < NT; j++)
#pragma unroll
					for (int c = 2 * e; c < 2 * e + 2; c++) {
						s[i][j][c] = exp2_approx(
							fmaf(s[i][j][c], scale2, -top * scale2));
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

			keep_bits_qk<MT, NT>(bits, drop, wq, k0);
#pragma unroll
			for (int i = 0; i < MT; i++)
#pragma unroll
				for (int j = 0; j < NT; j++)
#pragma unroll
					for (int c = 0; c < 4; c++)
						if (!(bits[i] >> (4 * j + c) & 1))
							s[i][j][c] = 0.0f;
		}
		mma_pb<D>(acc, s, tile_addr<LD>(sv + at));
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
					m[i][e] * a.scale + logf(l[i][e]);
			l[i][e] = (DROP ? drop_scale(a.threshold) : 1.0f) / l[i][e];
		}
	store_rows<D, MT>((uint16_t *)a.out + ((b * T + wq) * a.nheads + h) * hd, a.nheads * hd,
			  T - wq, hd, wsq, acc, l);
}

/*
 * One body for dkv and dq. Rows are what a block owns, columns what it walks over:
 *
 *             rows       columns    s = a0 b0^T   dp = a1 b1^T   acc0 += ds b0   acc1 += p b1
 *   dkv       keys       queries    k q^T         v dout^T       dk              dv
 *   dq        queries    keys       q k^T         dout v^T       dq
 *
 * dkv's columns are the queries of all heads of the group, one head after the other. NC columns
 * of a tile of 64 are in registers at a time. Rows and columns beyond the sequence are zeros in
 * every operand, so what they add is zero.
 */
template <bool DKV, int D, int WARPS, int MT, int NC, bool DROP>
FN void bwd_bf16(const struct te_k_attn_bwd &a)
{
	constexpr int LD = D + 8, BR = WARPS * MT * 16, BC = 64, NT = NC / 8, THREADS = WARPS * 32;
	const int T = (int)a.seqlen, hd = a.head_dim, group = a.nheads / a.nkv;
	const int qstride = (a.nheads + 2 * a.nkv) * hd, ostride = a.nheads * hd;
	const int nrowheads = DKV ? a.nkv : a.nheads;
	const int rowhead = blockIdx.x % nrowheads, kvhead = DKV ? rowhead : rowhead / group;
	const int64_t b = blockIdx.x / nrowheads;
	const int r0 = (DKV ? blockIdx.y : gridDim.y - 1 - blockIdx.y) * BR;
	const int wr = r0 + WARP * MT * 16;
	const int first = DKV ? r0 : 0;
	const int per_head = ((DKV ? T : min(T, r0 + BR)) - first + BC - 1) / BC;
	const int ntiles = per_head * (DKV ? group : 1);
	const int head0 = DKV ? rowhead * group : rowhead;
	const uint16_t *qkv = (const uint16_t *)a.qkv + b * T * qstride;
	const uint16_t *dout = (const uint16_t *)a.dout + b * T * ostride;
	const uint16_t *k = qkv + (int64_t)(a.nheads + kvhead) * hd, *v = k + (int64_t)a.nkv * hd;
	const float scale2 = a.scale * LOG2E;
	const float keep_scale = DROP ? drop_scale(a.threshold) : 1.0f;
	struct drop drop = drop_of(a, 0);
	uint16_t *sa0 = (uint16_t *)te_smem, *sa1 = sa0 + BR * LD;
	uint16_t *sb0 = sa1 + BR * LD, *sb1 = sb0 + 2 * BC * LD;
	float *scol = (float *)(sb1 + 2 * BC * LD); /* dkv: [stage][lse, delta][BC] */
	uint16_t *wsa0 = sa0 + WARP * MT * 16 * LD, *wsa1 = sa1 + WARP * MT * 16 * LD;
	float acc0[MT][D / 8][4], acc1[DKV ? MT : 1][DKV ? D / 8 : 1][4];
	float lse2[MT][2], delta[MT][2]; /* dq: of the rows */

	const auto load_columns = [&](int n) {
		const int head = head0 + n / per_head, c0 = first + n % per_head * BC;
		const int to = (n & 1) * BC * LD;

		if (DKV) {
			load_tile<BC, D, THREADS>(sb0 + to, qkv + (int64_t)c0 * qstride + head * hd,
						  qstride, T - c0, hd);
			load_tile<BC, D, THREADS>(sb1 + to,
						  dout + (int64_t)c0 * ostride + head * hd, ostride,
						  T - c0, hd);
			if (threadIdx.x < 2 * BC) {
				const int c = threadIdx.x % BC;
				const bool ok = c0 + c < T;
				const float *src = (threadIdx.x < BC ? a.lse : a.delta) +
						   (b * a.nheads + head) * T + c0;

				cp_async4(smem_addr(scol + (n & 1) * 2 * BC + threadIdx.x),
					  ok ? src + c : src, ok ? 4 : 0);
			}
		} else {
			load_tile<BC, D, THREADS>(sb0 + to, k + (int64_t)c0 * qstride, qstride,
						  T - c0, hd);
			load_tile<BC, D, THREADS>(sb1 + to, v + (int64_t)c0 * qstride, qstride,
						  T - c0, hd);
		}
		cp_async_commit();
	};

	if (DKV) {
		load_tile<BR, D, THREADS>(sa0, k + (int64_t)r0 * qstride, qstride, T - r0, hd);
		load_tile<BR, D, THREADS>(sa1, v + (int64_t)r0 * qstride, qstride, T - r0, hd);
	} else {
		load_tile<BR, D, THREADS>(sa0, qkv + (int64_t)r0 * qstride + rowhead * hd, qstride,
					  T - r0, hd);
		load_tile<BR, D, THREADS>(sa1, dout + (int64_t)r0 * ostride + rowhead * hd, ostride,
					  T - r0, hd);
#pragma unroll
		for (int i = 0; i < MT; i++)
#pragma unroll
			for (int e = 0; e < 2; e++) {
				const int row = wr + i * 16 + e * 8 + QUAD;
				const int64_t at = (int64_t)blockIdx.x * T + row;

				lse2[i][e] = row < T ? a.lse[at] * LOG2E : 0.0f;
				delta[i][e] = row < T ? a.delta[at] : 0.0f;
			}
	}
	load_columns(0);
	clear(acc0);
	clear(acc1);
	for (int n = 0; n < ntiles; n++) {
		const int c0 = first + n % per_head * BC, stage = n & 1;

		/* tile n is there, and nobody reads tile n - 1 any more */
		cp_async_wait<0>();
		__syncthreads();
		if (n + 1 < ntiles)
			load_columns(n + 1);
		drop.bh = (uint32_t)(b * a.nheads + head0 + n / per_head);
#pragma unroll 1
		for (int c1 = 0; c1 < BC; c1 += NC) {
			const int col0 = c0 + c1;
			const uint16_t *b0 = sb0 + (stage * BC + c1) * LD;
			const uint16_t *b1 = sb1 + (stage * BC + c1) * LD;
			const float *cols = scol + stage * 2 * BC + c1 + PAIR;
			const bool diagonal = DKV ? col0 < wr + MT * 16 - 1 : col0 + NC - 1 > wr;
			float s[MT][NT][4], dp[MT][NT][4];
			uint32_t bits[MT];

			if (DKV ? col0 + NC - 1 < wr : col0 > wr + MT * 16 - 1)
				continue;
			clear(s);
			clear(dp);
			mma_abt<D>(s, tile_addr<LD>(wsa0), tile_addr_nk<LD>(b0));
			mma_abt<D>(dp, tile_addr<LD>(wsa1), tile_addr_nk<LD>(b1));
			if constexpr (DROP && DKV)
				keep_bits_kq<MT, NT>(bits, drop, col0, wr);
			else if constexpr (DROP)
				keep_bits_qk<MT, NT>(bits, drop, wr, col0);
#pragma unroll
			for (int j = 0; j < NT; j++) {
				float2 lse_j, delta_j;

				if (DKV) {
					lse_j = *(const float2 *)(cols + j * 8);
					delta_j = *(const float2 *)(cols + BC + j * 8);
					lse_j.x *= LOG2E;
					lse_j.y *= LOG2E;
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

						if (diagonal && (DKV ? row > col : col > row))
							p = 0.0f;
						pd = p;
						if (DROP) {
							const bool kept =
								bits[i] >> (4 * j + c) & 1;

							g = kept ? g * keep_scale : 0.0f;
							pd = kept ? p : 0.0f;
						}
						s[i][j][c] = pd;
						dp[i][j][c] = p * (g - del);
					}
			}
			if constexpr (DKV)
				mma_pb<D>(acc1, s, tile_addr<LD>(b1));
			mma_pb<D>(acc0, dp, tile_addr<LD>(b0));
		}
	}

	uint16_t *dqkv = (uint16_t *)a.dqkv + (b * T + wr) * qstride;
	float f0[MT][2], f1[MT][2];

#pragma unroll
	for (int i = 0; i < MT; i++)
#pragma unroll
		for (int e = 0; e < 2; e++) {
			f0[i][e] = a.scale;
			f1[i][e] = keep_scale;
		}
	store_rows<D, MT>(dqkv + (DKV ? a.nheads + kvhead : rowhead) * hd, qstride, T - wr, hd,
			  wsa0, acc0, f0);
	if constexpr (DKV)
		store_rows<D, MT>(dqkv + (a.nheads + a.nkv + kvhead) * hd, qstride, T - wr, hd,
				  wsa1, acc1, f1);
}

/* ---- bf16, strips of 16 rows ---- */

/* ROWS rows by THREADS threads, of which this is t; as load_tile() for an hd of 8 n */
template <int D, int ROWS, int THREADS>
FN void load_strip(uint16_t *s, const uint16_t *g, int stride, int nrows, int hd, unsigned t)
{
	constexpr unsigned LD = D + 8, CHUNKS = D / 8, N = ROWS * CHUNKS;

#pragma unroll
	for (unsigned n = 0; n < N; n += THREADS) {
		const unsigned i = n + t, r = i / CHUNKS, c = i % CHUNKS * 8;

		if (N % THREADS == 0 || i < N)
			cp_async16(smem_addr(s + r * LD + c), g + (int)r * stride + c,
				   (int)r < nrows && (int)c < hd ? 16 : 0);
	}
}

/* operands of N products, 16 columns apart; all before the first product, which waits once */
template <int N> FN void load_operands(uint32_t (&r)[N][4], uint32_t addr)
{
#pragma unroll
	for (int k = 0; k < N; k++)
		ldmatrix(r[k], addr + k * 32);
}

/* 8 N columns of 64 rows, B operands stored [k][n] */
template <int LD, int N> FN void load_operands_kn(uint32_t (&r)[N][8], const uint16_t *s)
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
FN void mma_strip(float (&acc)[N][4], const uint32_t (&a)[4][4], const uint32_t (&b)[N][8])
{
#pragma unroll
	for (int k = 0; k < 4; k++)
#pragma unroll
		for (int j = 0; j < N; j++)
			mma(acc[j], a[k], b[j][2 * k], b[j][2 * k + 1]);
}

/* 8 N columns of 16 rows, each times its f, to rows of which ncols and nrows are left */
template <int N>
FN void store_strip(uint16_t *g, int stride, int nrows, int ncols, const float (&acc)[N][4],
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

template <int D> FN auto fwd_strip(const struct te_k_attn_fwd &a)
{
	constexpr int LD = D + 8, BN = 64, LDS = BN + 8, WD = D / 4; /* WD: columns of a warp */
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

		/* keys, which are needed first, and values */
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

			/* tile n's keys are there, and nobody reads tile n - 1 any more */
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
			cp_async_wait<2>(); /* its values */
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
			/* every warp sums all of its rows: as floats, in the order of fwd_bf16() */
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
		store_strip((uint16_t *)a.out + ((b * T + q0) * a.nheads + h) * hd + wcol,
			    a.nheads * hd, T - q0, hd - wcol, acc, inverse(l[0]), inverse(l[1]));
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
 * Of 16 rows of hd elements of out and of dout, what a thread of THREADS has: 16 bytes of every
 * N-th part. LANES threads share a row.
 */
template <int D, int THREADS> struct rows16 {
	static constexpr int LANES = D == 96 ? 16 : D / 8, N = (16 * LANES + THREADS - 1) / THREADS;
	uint4 x[N], y[N];

	FN int row(int i)
	{
		return (i * THREADS + threadIdx.x % THREADS) / LANES;
	}

	FN int col()
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
				*(uint4 *)(sdout + row(i) * (D + 8) + col()) = y[i];
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
 * As bwd_bf16(), and delta is made here: of dkv's columns by the warp that loads them, tile by
 * tile; of dq's rows once.
 */
template <bool DKV, int D> FN auto bwd_strip(const struct te_k_attn_bwd &a)
{
	constexpr int LD = D + 8, BC = 64, LDS = BC + 8, WD = D / 4;
	const int T = (int)a.seqlen, hd = a.head_dim;
	const int qstride = (a.nheads + 2 * a.nkv) * hd, ostride = a.nheads * hd;
	const int group = a.nkv == a.nheads ? 1 : a.nheads / a.nkv, rowhead = blockIdx.x;
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

		/* but dkv's out and dout */
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
			/* tile n is there, and nobody reads tile n - 1 any more */
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
			/* where there are too few registers it has to wait until here */
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

/* ---- fp32 ---- */

#define TX (threadIdx.x & 15)
#define TY (threadIdx.x >> 4)
#define LDP 68

/* 64 rows of hd elements to shared memory; rows from nrows on and columns from hd on are zeros */
template <int D>
FN void load_tile_fp32(float *s, const float *g, int stride, int nrows, int hd)
{
	for (int i = threadIdx.x; i < 64 * D; i += 256) {
		int r = i / D, c = i % D;

		s[r * (D + 4) + c] = r < nrows && c < hd ? g[(int64_t)r * stride + c] : 0.0f;
	}
}

/* s[i][j] = row 4 TY + i of a times row TX + 16 j of b */
template <int D> FN void dots_fp32(float (&s)[4][4], const float *a, const float *b)
{
	constexpr int LD = D + 4;

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
template <int D> FN void accumulate_fp32(float (&acc)[4][D / 16], const float *p, const float *b)
{
	for (int k = 0; k < 64; k++) {
		float x[4];

#pragma unroll
		for (int i = 0; i < 4; i++)
			x[i] = p[(TY * 4 + i) * LDP + k];
#pragma unroll
		for (int c = 0; c < D / 16; c++) {
			float y = b[k * (D + 4) + TX + 16 * c];

#pragma unroll
			for (int i = 0; i < 4; i++)
				acc[i][c] = fmaf(x[i], y, acc[i][c]);
		}
	}
}

template <int D>
FN void store_fp32(float *g, int stride, int nrows, int hd, const float (&acc)[4][D / 16],
		   const float (&f)[4])
{
#pragma unroll
	for (int i = 0; i < 4; i++)
#pragma unroll
		for (int c = 0; c < D / 16; c++)
			if (TY * 4 + i < nrows && TX + 16 * c < hd)
				g[(int64_t)(TY * 4 + i) * stride + TX + 16 * c] = acc[i][c] * f[i];
}

/* what dropout multiplies the probability with */
FN float keep_fp32(const struct drop &d, int q, int k)
{
	if (!d.threshold)
		return 1.0f;
	return keep8(d, q, k >> 3) >> (k & 7) & 1 ? drop_scale(d.threshold) : 0.0f;
}

template <int D> FN void fwd_fp32(const struct te_k_attn_fwd &a)
{
	constexpr int LD = D + 4;
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
	float acc[4][D / 16] = {}, m[4], l[4] = {};

#pragma unroll
	for (int i = 0; i < 4; i++)
		m[i] = -INFINITY;
	load_tile_fp32<D>(sq, base + (int64_t)q0 * stride + h * hd, stride, T - q0, hd);
	for (int k0 = 0; k0 <= q0; k0 += 64) {
		float s[4][4];

		load_tile_fp32<D>(sk, gk + (int64_t)k0 * stride, stride, T - k0, hd);
		load_tile_fp32<D>(sv, gv + (int64_t)k0 * stride, stride, T - k0, hd);
		__syncthreads();
		dots_fp32<D>(s, sq, sk);
#pragma unroll
		for (int i = 0; i < 4; i++) {
			const int q = q0 + TY * 4 + i;
			float top = m[i], sum = 0.0f, shrink;

#pragma unroll
			for (int j = 0; j < 4; j++) {
				s[i][j] = k0 + TX + 16 * j > q ? -INFINITY : s[i][j] * a.scale;
				top = fmaxf(top, s[i][j]);
			}
#pragma unroll
			for (int w = 1; w < 16; w *= 2)
				top = fmaxf(top, __shfl_xor_sync(~0u, top, w));
			shrink = expf(m[i] - top);
			m[i] = top;
#pragma unroll
			for (int j = 0; j < 4; j++) {
				const int k = k0 + TX + 16 * j;
				float p = expf(s[i][j] - top);

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
		__syncwarp(); /* a row of sp is one half-warp's */
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
template <bool DKV, int D> FN void bwd_fp32(const struct te_k_attn_bwd &a)
{
	constexpr int LD = D + 4;
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

		drop.bh = (uint32_t)bh;
		for (int c0 = DKV ? r0 : 0; c0 < (DKV ? T : r0 + 1); c0 += 64) {
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

					if (q < T && key <= q) {
						p = expf(s[i][j] * a.scale - lse[q]);
						keep = keep_fp32(drop, q, key);
						ds = p * (dp[i][j] * keep - delta[q]);
					}
					sp[at] = p * keep;
					sds[at] = ds;
				}
			__syncwarp(); /* a row is one half-warp's */
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

/* ---- delta ---- */

/* rows of hd elements, h fastest as they are in memory; lanes of 16 bytes share a row */
template <class E> FN void bwd_pre(const struct te_k_attn_bwd &a)
{
	constexpr int PER = 16 / sizeof(E);
	const int hd = a.head_dim;
	int lanes = 1;

	while (lanes * PER < hd)
		lanes *= 2;
	const int64_t row = ((int64_t)blockIdx.x * 256 + threadIdx.x) / lanes;
	const int c0 = (threadIdx.x % lanes) * PER;
	const bool ok = row < a.batch * a.seqlen * a.nheads;
	const E *x = (const E *)a.out + row * hd, *y = (const E *)a.dout + row * hd;
	float sum = 0.0f;

	if (ok && c0 < hd && hd % PER == 0) {
		sum = dot16<E>(*(const uint4 *)(x + c0), *(const uint4 *)(y + c0));
	} else if (ok) {
		for (int c = c0; c < min(c0 + PER, hd); c++)
			sum = fmaf(to_float(x[c]), to_float(y[c]), sum);
	}
	sum = sum_lanes(sum, lanes);
	if (ok && c0 == 0) {
		const int64_t bt = row / a.nheads;

		a.delta[(bt / a.seqlen * a.nheads + row % a.nheads) * a.seqlen + bt % a.seqlen] =
			sum;
	}
}

/* ---- what the geometry names (libtecore/backend/cuda_kernels_attn.c) ---- */

extern "C" __global__ void __launch_bounds__(256) te_k_attn_bwd_pre_bf16(struct te_k_attn_bwd a)
{
	te_begin();
	bwd_pre<uint16_t>(a);
}

extern "C" __global__ void __launch_bounds__(256) te_k_attn_bwd_pre_fp32(struct te_k_attn_bwd a)
{
	te_begin();
	bwd_pre<float>(a);
}

#define KERNEL(name, threads, blocks, args, body)                                               \
	extern "C" __global__ void __launch_bounds__(threads, blocks) name(const struct args a) \
	{                                                                                       \
		te_begin();                                                                     \
		body(a);                                                                        \
	}
/* the body says where its memory is before anything of it may be touched */
#define KERNEL_STRIP(name, args, body)                                                   \
	extern "C" __global__ void __launch_bounds__(128, 2) name(const struct args a)   \
	{                                                                                \
		const auto run = body(a);                                                \
		te_begin();                                                              \
		run();                                                                   \
	}
#define FWD(...) fwd_bf16<__VA_ARGS__>
#define BWD(...) bwd_bf16<__VA_ARGS__>
#define BWD_STRIP(...) bwd_strip<__VA_ARGS__>

/* W warps of M tiles of 16 rows, C columns at a time, B blocks on a multiprocessor */
#define BF16(D, W, M, C, B)                                                               \
	KERNEL(te_k_attn_fwd_bf16_d##D, 128, 2, te_k_attn_fwd, FWD(D, 4, 2, false))       \
	KERNEL(te_k_attn_fwd_bf16_d##D##_drop, 256, 1, te_k_attn_fwd, FWD(D, 8, 1, true)) \
	KERNEL(te_k_attn_fwd_bf16_d##D##_few, 128, 2, te_k_attn_fwd, FWD(D, 4, 1, false)) \
	KERNEL(te_k_attn_bwd_dkv_bf16_d##D, W * 32, B, te_k_attn_bwd,                     \
	       BWD(true, D, W, M, C, false))                                              \
	KERNEL(te_k_attn_bwd_dkv_bf16_d##D##_drop, W * 32, B, te_k_attn_bwd,              \
	       BWD(true, D, W, M, C, true))                                               \
	KERNEL(te_k_attn_bwd_dkv_bf16_d##D##_few, 128, B, te_k_attn_bwd,                  \
	       BWD(true, D, 4, 1, C, false))                                              \
	KERNEL(te_k_attn_bwd_dq_bf16_d##D, W * 32, B, te_k_attn_bwd,                      \
	       BWD(false, D, W, M, C, false))                                             \
	KERNEL(te_k_attn_bwd_dq_bf16_d##D##_drop, W * 32, B, te_k_attn_bwd,               \
	       BWD(false, D, W, M, C, true))                                              \
	KERNEL(te_k_attn_bwd_dq_bf16_d##D##_few, 128, B, te_k_attn_bwd,                   \
	       BWD(false, D, 4, 1, C, false))                                             \
	KERNEL_STRIP(te_k_attn_fwd_bf16_d##D##_strip, te_k_attn_fwd, fwd_strip<D>)        \
	KERNEL_STRIP(te_k_attn_bwd_dkv_bf16_d##D##_strip, te_k_attn_bwd,                  \
		     BWD_STRIP(true, D))                                                  \
	KERNEL_STRIP(te_k_attn_bwd_dq_bf16_d##D##_strip, te_k_attn_bwd, BWD_STRIP(false, D))

BF16(32, 4, 2, 32, 2)
BF16(64, 4, 2, 32, 2)
BF16(96, 8, 1, 64, 1)
BF16(128, 8, 1, 64, 1)

#define BWD32(...) bwd_fp32<__VA_ARGS__>
#define FP32(D)                                                                           \
	KERNEL(te_k_attn_fwd_fp32_d##D, 256, 1, te_k_attn_fwd, fwd_fp32<D>)               \
	KERNEL(te_k_attn_bwd_dkv_fp32_d##D, 256, 1, te_k_attn_bwd, BWD32(true, D))        \
	KERNEL(te_k_attn_bwd_dq_fp32_d##D, 256, 1, te_k_attn_bwd, BWD32(false, D))

FP32(64)
FP32(128)
