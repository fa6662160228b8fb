/*
 * te_gemm.cu - small products, whose time is latency. cuBLASLt's kernels for them wait for the
 * whole kernel before, and take processors whole, so that kernels beside them wait too. sm_90a.
 *
 *  kernel                  a            b        d              blocks        threads
 *  gemm_few_A_B            A [m, k]     B [n, k] BF16 [m, n]    16 x 16 of d  128 ... 512
 *  gemm_few_bf16_bt        BF16 [m, k]  [k, n]
 *  gemm_short_A_B          A [m, k]     B [n, k] FP32 [m, n]    32 x 64 of d  128
 *  gemm_short_bf16_tt      BF16 [k, m]  [k, n]
 *  ..._odd                 the same at addresses that vectors cannot be read from
 *
 * n is a multiple of 8, m of gemm_short too; k elements of gemm_few are a multiple of 128 bytes,
 * of gemm_short, but for tt, of 64.
 *
 * Sums go in pieces of 64 bytes of k, by mma.sync. Nothing is staged: a sum's order is free, and
 * so is that of rows and columns, so that a lane reads 16 bytes of a row and calls them the
 * elements that mma.sync wants of it, of a and b alike. All that a warp of a short product reads
 * is on its way at once.
 *
 * gemm_few: each warp takes two pieces of k, and as many again behind those of the others; their
 * FP32 sums meet in 1 KiB of shared memory a warp and are added in the warps' order. gemm_short:
 * each warp has 16 rows by 32 columns of its own. Sums are scaled, added to and rounded as the
 * host function does it.
 */
#include "te_dev.cuh"

#define ROWS 16	 /* that a warp multiplies */
#define PIECE 64 /* bytes of k: 16 of each of four lanes */
#define FEW_BLOCKS 2
#define SHORT_BLOCKS 4 /* blocks of 8 columns that a warp multiplies */

/* d += a b, of 16 rows, 32 bytes of k and 8 columns */
#define MMA(A, B, PTX)                                                                          \
	struct A##_##B {                                                                        \
		static __device__ __forceinline__ void mma(float d[4], uint32_t a0, uint32_t a1, \
							   uint32_t a2, uint32_t a3,            \
							   uint32_t b0, uint32_t b1)            \
		{                                                                               \
			asm("mma.sync.aligned." PTX " {%0, %1, %2, %3}, {%4, %5, %6, %7}, "     \
			    "{%8, %9}, {%0, %1, %2, %3};"                                       \
			    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                    \
			    : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));            \
		}                                                                               \
	};
MMA(bf16, bf16, "m16n8k16.row.col.f32.bf16.bf16.f32")
MMA(e4m3, e4m3, "m16n8k32.row.col.f32.e4m3.e4m3.f32")
MMA(e4m3, e5m2, "m16n8k32.row.col.f32.e4m3.e5m2.f32")
MMA(e5m2, e4m3, "m16n8k32.row.col.f32.e5m2.e4m3.f32")
#undef MMA

/* --- operands ------------------------------------------------------------ */

template <bool VEC> DEV uint4 load16(const char *p)
{
	if constexpr (VEC) {
		return *(const uint4 *)p;
	} else {
		const unsigned short *h = (const unsigned short *)p;
		uint32_t w[4];

#pragma unroll
		for (int i = 0; i < 4; i++)
			w[i] = h[2 * i] | (uint32_t)h[2 * i + 1] << 16;
		return make_uint4(w[0], w[1], w[2], w[3]);
	}
}

/* N neighbours of BF16, two or four */
template <bool VEC, int N> DEV void load_bf16(const unsigned short *p, uint32_t w[N / 2])
{
	if constexpr (VEC && N == 4) {
		const uint2 v = *(const uint2 *)p;

		w[0] = v.x;
		w[1] = v.y;
	} else if constexpr (VEC) {
		w[0] = *(const uint32_t *)p;
	} else {
#pragma unroll
		for (int i = 0; i < N / 2; i++)
			w[i] = p[2 * i] | (uint32_t)p[2 * i + 1] << 16;
	}
}

/* v[j]: elements k to k + 7 of column col + j of x [nk, ncols], 0 behind the last */
template <bool VEC, int N>
DEV void load_columns(const void *x, int k, int nk, int ncols, int col, uint4 v[N])
{
	uint32_t w[8][N / 2];

#pragma unroll
	for (int i = 0; i < 8; i++) {
#pragma unroll
		for (int j = 0; j < N / 2; j++)
			w[i][j] = 0;
		if (k + i < nk)
			load_bf16<VEC, N>((const unsigned short *)x + (k + i) * ncols + col, w[i]);
	}
#pragma unroll
	for (int j = 0; j < N; j++) {
		uint32_t pair[4];

#pragma unroll
		for (int i = 0; i < 4; i++)
			pair[i] = __byte_perm(w[2 * i][j / 2], w[2 * i + 1][j / 2],
					      j % 2 ? 0x7632 : 0x5410);
		v[j] = make_uint4(pair[0], pair[1], pair[2], pair[3]);
	}
}

/*
 * What a lane holds of a piece: two rows of a, and of each of NB blocks of 8 columns of d one: of
 * block j column c NB + j, where mma.sync says column c.
 */
template <int NB> struct piece {
	uint4 lo, hi, b[NB];
};

/* where a lane reads: groups of four lanes share rows of a, and columns of d */
struct place {
	const char *lo, *hi; /* its rows of a [m, k], at its 16 bytes of the first piece */
	int group, in_group;
};

/* of a [m, k], and of b [n, k] or, BT, [k, n]; k in bytes */
template <bool BT, bool VEC, int NB>
DEV void load_piece(const struct te_k_gemm &a, const struct place &at, int n0, int k, int nbytes,
		    piece<NB> &p)
{
	const int n = (int)a.n, col = n0 + at.group * NB;

	p.lo = load16<VEC>(at.lo + k);
	p.hi = load16<VEC>(at.hi + k);
	/* columns behind the last are others, and not written */
	if constexpr (BT) {
		load_columns<VEC, NB>(a.b, k / 2 + 8 * at.in_group, 0x7fffffff, n,
				      min(col, n - NB), p.b);
	} else {
#pragma unroll
		for (int j = 0; j < NB; j++)
			p.b[j] = load16<VEC>((const char *)a.b + min(col + j, n - 1) * nbytes + k +
					     16 * at.in_group);
	}
}

template <class M, int NB> DEV void multiply(const piece<NB> &p, float acc[NB][4])
{
#pragma unroll
	for (int j = 0; j < NB; j++)
		M::mma(acc[j], p.lo.x, p.hi.x, p.lo.y, p.hi.y, p.b[j].x, p.b[j].y);
#pragma unroll
	for (int j = 0; j < NB; j++)
		M::mma(acc[j], p.lo.z, p.hi.z, p.lo.w, p.hi.w, p.b[j].z, p.b[j].w);
}

/* s of a product: scaled, and c and bias added */
DEV float finish(const struct te_k_gemm &a, float s, float scale, float c, float bias)
{
	s = mul(s, scale);
	if (a.beta != 0.0f)
		s = add(s, mul(a.beta, c));
	return a.bias ? add(s, bias) : s;
}

/* --- few rows ------------------------------------------------------------ */

template <class M, int ES, bool BT, bool VEC> DEV void few_body(const struct te_k_gemm &a)
{
	const int NB = FEW_BLOCKS, ncols = 8 * NB;
	extern __shared__ float part[]; /* [nwarps][ROWS][ncols] */
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, nwarps = blockDim.x / 32;
	const int m = (int)a.m, n = (int)a.n, nbytes = (int)a.k * ES;
	const int m0 = blockIdx.y * ROWS, n0 = blockIdx.x * ncols;
	/* the pair of elements that the thread writes */
	const int row = threadIdx.x * 2 / ncols, col = threadIdx.x * 2 % ncols;
	const bool writes = row < ROWS && m0 + row < m && n0 + col < n;
	const int at_d = (m0 + row) * n + n0 + col;
	struct place at = { .group = lane / 4, .in_group = lane % 4 };
	float acc[NB][4] = {}, sa = 1.0f, sb = 1.0f;
	raw2<bf16> bias = {}, c = {};

	/* rows behind the last are the last, and not written */
	at.lo = (const char *)a.a + min(m0 + at.group, m - 1) * nbytes + 16 * at.in_group;
	at.hi = (const char *)a.a + min(m0 + at.group + 8, m - 1) * nbytes + 16 * at.in_group;
	if (a.bias && writes)
		bias = load2<VEC>((const bf16 *)a.bias + n0 + col, 2);
	if (a.beta != 0.0f && writes)
		c = load2<VEC>((const bf16 *)a.c + at_d, 2);
	if (ES == 1 && a.sa)
		sa = *a.sa;
	if (ES == 1 && a.sb)
		sb = *a.sb;
#pragma unroll 1
	for (int k = warp * 2 * PIECE; k < nbytes; k += nwarps * 2 * PIECE) {
		piece<NB> p, q;

		load_piece<BT, VEC, NB>(a, at, n0, k, nbytes, p);
		load_piece<BT, VEC, NB>(a, at, n0, k + PIECE, nbytes, q);
		__syncwarp(); /* keeps ptxas from putting loads behind products */
		multiply<M, NB>(p, acc);
		multiply<M, NB>(q, acc);
	}
#pragma unroll
	for (int j = 0; j < NB; j++)
#pragma unroll
		for (int e = 0; e < 4; e++)
			part[(warp * ROWS + at.group + e / 2 * 8) * ncols +
			     (2 * at.in_group + e % 2) * NB + j] = acc[j][e];
	__syncthreads();
	if (!writes)
		return;

	const float2 *sum = (const float2 *)part + threadIdx.x;
	const float scale = mul(mul(a.alpha, sa), sb);
	float2 s = *sum;

#pragma unroll 4
	for (int w = 1; w < nwarps; w++) {
		sum += ROWS * ncols / 2;
		s.x = add(s.x, sum->x);
		s.y = add(s.y, sum->y);
	}
	s.x = finish(a, s.x, scale, unpack2(c).x, unpack2(bias).x);
	s.y = finish(a, s.y, scale, unpack2(c).y, unpack2(bias).y);
	if (VEC) {
		*(uint32_t *)((bf16 *)a.d + at_d) = pack_bf16x2(s.x, s.y);
	} else {
		((bf16 *)a.d)[at_d] = from_float<bf16>(s.x);
		((bf16 *)a.d)[at_d + 1] = from_float<bf16>(s.y);
	}
}

#define FEW(NAME, M, ES, BT, VEC)                                          \
	extern "C" __global__ void __launch_bounds__(512)                  \
	te_k_gemm_few_##NAME(const __grid_constant__ struct te_k_gemm a)   \
	{                                                                  \
		te_begin();                                                \
		few_body<M, ES, BT, VEC>(a);                               \
	}
FEW(bf16_bf16, bf16_bf16, 2, false, true)
FEW(bf16_bf16_odd, bf16_bf16, 2, false, false)
FEW(bf16_bt, bf16_bf16, 2, true, true)
FEW(bf16_bt_odd, bf16_bf16, 2, true, false)
FEW(e4m3_e4m3, e4m3_e4m3, 1, false, true)
FEW(e4m3_e4m3_odd, e4m3_e4m3, 1, false, false)
FEW(e4m3_e5m2, e4m3_e5m2, 1, false, true)
FEW(e4m3_e5m2_odd, e4m3_e5m2, 1, false, false)
FEW(e5m2_e4m3, e5m2_e4m3, 1, false, true)
FEW(e5m2_e4m3_odd, e5m2_e4m3, 1, false, false)
#undef FEW

/* --- short k ------------------------------------------------------------- */

/* of gradients of weights, which nobody needs soon: others are to stay in the L2 cache */
template <bool VEC> DEV float4 load4(const float *p)
{
	return VEC ? __ldcs((const float4 *)p) : make_float4(p[0], p[1], p[2], p[3]);
}

template <bool VEC> DEV void store4(float *p, float4 v)
{
	if (VEC) {
		__stcs((float4 *)p, v);
		return;
	}
	p[0] = v.x;
	p[1] = v.y;
	p[2] = v.z;
	p[3] = v.w;
}

/* a lane's rows of d are two neighbours, its columns eight */
template <class M, int ES, bool TT, bool VEC> DEV void short_body(const struct te_k_gemm &a)
{
	const int NB = SHORT_BLOCKS;
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	const int m = (int)a.m, n = (int)a.n, nk = (int)a.k, nbytes = nk * ES;
	struct place at = { .group = lane / 4, .in_group = lane % 4 };
	const int row = blockIdx.y * 32 + warp / 2 * ROWS + 2 * at.group, at_m = min(row, m - 2);
	const int n0 = blockIdx.x * 64 + warp % 2 * 8 * NB, col = n0 + 8 * at.in_group;
	const bool writes = row < m && col < n;
	float acc[NB][4] = {}, sa = 1.0f, sb = 1.0f;
	float4 c[4] = {};

	if (ES == 1 && a.sa)
		sa = *a.sa;
	if (ES == 1 && a.sb)
		sb = *a.sb;
	if (a.beta != 0.0f && writes) {
#pragma unroll
		for (int i = 0; i < 4; i++)
			c[i] = load4<VEC>((const float *)a.c + (row + i / 2) * n + col + i % 2 * 4);
	}
	at.lo = (const char *)a.a + at_m * nbytes + 16 * at.in_group;
	at.hi = at.lo + nbytes;
#pragma unroll 1
	for (int k = 0; k < nbytes; k += 2 * PIECE) {
		piece<NB> p[2];

#pragma unroll
		for (int i = 0; i < 2; i++) {
			const int at_k = k + i * PIECE;

			if constexpr (TT) {
				uint4 rows[2];

				load_columns<VEC, 2>(a.a, at_k / 2 + 8 * at.in_group, nk, m, at_m,
						     rows);
				p[i].lo = rows[0];
				p[i].hi = rows[1];
				load_columns<VEC, NB>(a.b, at_k / 2 + 8 * at.in_group, nk, n,
						      min(n0 + at.group * NB, n - NB), p[i].b);
			} else if (at_k < nbytes) {
				load_piece<false, VEC, NB>(a, at, n0, at_k, nbytes, p[i]);
			}
		}
		__syncwarp();
		multiply<M, NB>(p[0], acc);
		if (k + PIECE < nbytes)
			multiply<M, NB>(p[1], acc);
	}
	if (!writes)
		return;

	const float scale = mul(mul(a.alpha, sa), sb);

	/* acc[j][i] is row i / 2, column (i % 2) * NB + j */
#pragma unroll
	for (int i = 0; i < 4; i++)
		store4<VEC>((float *)a.d + (row + i / 2) * n + col + i % 2 * 4,
			    make_float4(finish(a, acc[0][i], scale, c[i].x, 0.0f),
					finish(a, acc[1][i], scale, c[i].y, 0.0f),
					finish(a, acc[2][i], scale, c[i].z, 0.0f),
					finish(a, acc[3][i], scale, c[i].w, 0.0f)));
}

#define SHORT(NAME, M, ES, TT, VEC)                                        \
	extern "C" __global__ void __launch_bounds__(128)                  \
	te_k_gemm_short_##NAME(const __grid_constant__ struct te_k_gemm a) \
	{                                                                  \
		te_begin();                                                \
		short_body<M, ES, TT, VEC>(a);                             \
	}
SHORT(bf16_tt, bf16_bf16, 2, true, true)
SHORT(bf16_tt_odd, bf16_bf16, 2, true, false)
SHORT(e4m3_e4m3, e4m3_e4m3, 1, false, true)
SHORT(e4m3_e4m3_odd, e4m3_e4m3, 1, false, false)
SHORT(e4m3_e5m2, e4m3_e5m2, 1, false, true)
SHORT(e4m3_e5m2_odd, e4m3_e5m2, 1, false, false)
SHORT(e5m2_e4m3, e5m2_e4m3, 1, false, true)
SHORT(e5m2_e4m3_odd, e5m2_e4m3, 1, false, false)
#undef SHORT
