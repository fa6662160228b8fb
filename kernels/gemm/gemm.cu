/*
 * gemm.cu - small GEMMs, which are bound by latency. cuBLASLt's kernels wait for the whole
 * preceding kernel and occupy whole multiprocessors, so that concurrent kernels wait for them too.
 * FP8 from compute capability 8.9 on.
 *
 *  kernel                 a            b            d              blocks        threads   shared
 *  gemm_small_m_A_B       A [m, k]     B [n, k]     BF16 [m, n]    16 x 16 of d  128..512  1 KiB
 *  gemm_small_m_bf16_bt   BF16 [m, k]  BF16 [k, n]  the same                               a warp
 *  gemm_short_k_A_B       A [m, k]     B [n, k]     FP32 [m, n]    32 x 64 of d  128       0
 *  gemm_short_k_bf16_tt   BF16 [k, m]  BF16 [k, n]  the same
 *  ..._unaligned          the same, at addresses that vectors cannot be loaded from
 *  gemm_grouped           any types and layouts of te_k_gemm_grouped       16 x 16 of d  256  8 B
 *  gemm_finish            sums FP32 [m, ld]         T [m, n]       1024          256       0
 *
 * n is a multiple of 8, and so is m of gemm_short_k. k elements are a multiple of 128 bytes for
 * gemm_small_m, of 64 bytes for gemm_short_k, and any number for tt. launch.c has the limits on
 * size.
 *
 * k is processed in chunks of 64 bytes by mma.sync. Operands go from global memory to registers
 * without shared memory: the order of a sum over k is free, and so is the assignment of rows and
 * columns to lanes, so that a lane loads 16 consecutive bytes of a row and uses them as the
 * elements that mma.sync expects of it, for a and b alike. The loads of two chunks are in
 * flight at once.
 *
 * gemm_small_m: warp w takes two chunks of k in every 2 nwarps; the warps' FP32 sums are added in
 * the order of the warps, through shared memory. gemm_short_k: each warp has its own 16 rows and 32
 * columns. Sums are scaled, accumulated and rounded as by the host function.
 */
#include "kernels/dev.cuh"
#include "kernels/gemm/finish.cuh"
#include "kernels/gemm/geometry.h"
#include "kernels/mma.cuh"

#define SMALL_M_BLOCKS (SMALL_M_TILE / MMA_COLS) /* blocks of 8 columns of a warp */
#define SHORT_K_BLOCKS (SHORT_K_COLS / 2 / MMA_COLS)

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

/* N consecutive BF16 elements, two or four */
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

/* v[j]: elements k..k + 7 of column col + j of x [nk, ncols], 0 beyond the last */
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
 * The part of a chunk that a lane holds: two rows of a, and one column of each of NB blocks of 8
 * columns of d. Column c of block j of mma.sync is column c NB + j of d.
 */
template <int NB> struct chunk {
	uint4 lo, hi, b[NB];
};

/* elements that a lane loads: the four lanes of a group share rows of a, and columns of d */
struct lane_rows {
	const char *lo, *hi; /* its rows of a [m, k], at its 16 bytes of the first chunk */
	int group, in_group;
};

/* load the chunk at byte k of a [m, k] and of b [n, k] or, with BT, [k, n] */
template <bool BT, bool VEC, int NB>
DEV void load_chunk(const struct te_k_gemm &a, const struct lane_rows &at, int n0, int k,
		    int nbytes, chunk<NB> &p)
{
	const int n = (int)a.n, col = n0 + at.group * NB;

	p.lo = load16<VEC>(at.lo + k);
	p.hi = load16<VEC>(at.hi + k);
	/* columns beyond the last load other columns; their results are not stored */
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

template <class M, int NB> DEV void multiply(const chunk<NB> &p, float acc[NB][4])
{
#pragma unroll
	for (int j = 0; j < NB; j++)
		M::mma(acc[j], p.lo.x, p.hi.x, p.lo.y, p.hi.y, p.b[j].x, p.b[j].y);
#pragma unroll
	for (int j = 0; j < NB; j++)
		M::mma(acc[j], p.lo.z, p.hi.z, p.lo.w, p.hi.w, p.b[j].z, p.b[j].w);
}

/* --- small m ------------------------------------------------------------- */

template <class M, int ES, bool BT, bool VEC> DEV void small_m_body(const struct te_k_gemm &a)
{
	const int NB = SMALL_M_BLOCKS, ncols = 8 * NB;
	extern __shared__ float part[]; /* [nwarps][MMA_ROWS][ncols] */
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, nwarps = blockDim.x / 32;
	const int m = (int)a.m, n = (int)a.n, nbytes = (int)a.k * ES;
	const int m0 = blockIdx.y * MMA_ROWS, n0 = blockIdx.x * ncols;
	/* the two elements that the thread stores */
	const int row = threadIdx.x * 2 / ncols, col = threadIdx.x * 2 % ncols;
	const bool writes = row < MMA_ROWS && m0 + row < m && n0 + col < n;
	const int at_d = (m0 + row) * n + n0 + col;
	struct lane_rows at = { .group = lane / 4, .in_group = lane % 4 };
	float acc[NB][4] = {}, sa = 1.0f, sb = 1.0f;
	raw2<bf16> bias = {}, c = {};

	/* rows beyond the last load the last row; their results are not stored */
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
	for (int k = warp * SMALL_M_STEP; k < nbytes; k += nwarps * SMALL_M_STEP) {
		chunk<NB> p, q;

		load_chunk<BT, VEC, NB>(a, at, n0, k, nbytes, p);
		load_chunk<BT, VEC, NB>(a, at, n0, k + GEMM_CHUNK, nbytes, q);
		__syncwarp(); /* keeps ptxas from moving loads after the multiplications */
		multiply<M, NB>(p, acc);
		multiply<M, NB>(q, acc);
	}
#pragma unroll
	for (int j = 0; j < NB; j++)
#pragma unroll
		for (int e = 0; e < 4; e++)
			part[(warp * MMA_ROWS + at.group + e / 2 * 8) * ncols +
			     (2 * at.in_group + e % 2) * NB + j] = acc[j][e];
	__syncthreads();
	if (!writes)
		return;

	const float2 *sum = (const float2 *)part + threadIdx.x;
	const float scale = mul(mul(a.alpha, sa), sb);
	float2 s = *sum;

#pragma unroll 4
	for (int w = 1; w < nwarps; w++) {
		sum += MMA_ROWS * ncols / 2;
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

#define SMALL_M(NAME, M, ES, BT, VEC)                                           \
	extern "C" __global__ void __launch_bounds__(32 * SMALL_M_MAX_WARPS)    \
	te_k_gemm_small_m_##NAME(const __grid_constant__ struct te_k_gemm a)    \
	{                                                                       \
		te_begin();                                                     \
		small_m_body<M, ES, BT, VEC>(a);                                \
	}
SMALL_M(bf16_bf16, bf16_bf16, 2, false, true)
SMALL_M(bf16_bf16_unaligned, bf16_bf16, 2, false, false)
SMALL_M(bf16_bt, bf16_bf16, 2, true, true)
SMALL_M(bf16_bt_unaligned, bf16_bf16, 2, true, false)
#if __CUDA_ARCH__ >= 890
SMALL_M(e4m3_e4m3, e4m3_e4m3, 1, false, true)
SMALL_M(e4m3_e4m3_unaligned, e4m3_e4m3, 1, false, false)
SMALL_M(e4m3_e5m2, e4m3_e5m2, 1, false, true)
SMALL_M(e4m3_e5m2_unaligned, e4m3_e5m2, 1, false, false)
SMALL_M(e5m2_e4m3, e5m2_e4m3, 1, false, true)
SMALL_M(e5m2_e4m3_unaligned, e5m2_e4m3, 1, false, false)
#endif
#undef SMALL_M

/* --- short k ------------------------------------------------------------- */

/* weight gradients: evict first, because they are not read soon */
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

/* a lane has two consecutive rows of d and eight consecutive columns */
template <class M, int ES, bool TT, bool VEC> DEV void short_k_body(const struct te_k_gemm &a)
{
	const int NB = SHORT_K_BLOCKS;
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	const int m = (int)a.m, n = (int)a.n, nk = (int)a.k, nbytes = nk * ES;
	struct lane_rows at = { .group = lane / 4, .in_group = lane % 4 };
	const int row = blockIdx.y * SHORT_K_ROWS + warp / 2 * MMA_ROWS + 2 * at.group;
	const int at_m = min(row, m - 2);
	const int n0 = blockIdx.x * SHORT_K_COLS + warp % 2 * 8 * NB;
	const int col = n0 + 8 * at.in_group;
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
	for (int k = 0; k < nbytes; k += 2 * GEMM_CHUNK) {
		chunk<NB> p[2];

#pragma unroll
		for (int i = 0; i < 2; i++) {
			const int at_k = k + i * GEMM_CHUNK;

			if constexpr (TT) {
				uint4 rows[2];

				load_columns<VEC, 2>(a.a, at_k / 2 + 8 * at.in_group, nk, m, at_m,
						     rows);
				p[i].lo = rows[0];
				p[i].hi = rows[1];
				load_columns<VEC, NB>(a.b, at_k / 2 + 8 * at.in_group, nk, n,
						      min(n0 + at.group * NB, n - NB), p[i].b);
			} else if (at_k < nbytes) {
				load_chunk<false, VEC, NB>(a, at, n0, at_k, nbytes, p[i]);
			}
		}
		__syncwarp();
		multiply<M, NB>(p[0], acc);
		if (k + GEMM_CHUNK < nbytes)
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

#define SHORT_K(NAME, M, ES, TT, VEC)                                           \
	extern "C" __global__ void __launch_bounds__(SHORT_K_THREADS)           \
	te_k_gemm_short_k_##NAME(const __grid_constant__ struct te_k_gemm a)    \
	{                                                                       \
		te_begin();                                                     \
		short_k_body<M, ES, TT, VEC>(a);                                \
	}
SHORT_K(bf16_tt, bf16_bf16, 2, true, true)
SHORT_K(bf16_tt_unaligned, bf16_bf16, 2, true, false)
#if __CUDA_ARCH__ >= 890
SHORT_K(e4m3_e4m3, e4m3_e4m3, 1, false, true)
SHORT_K(e4m3_e4m3_unaligned, e4m3_e4m3, 1, false, false)
SHORT_K(e4m3_e5m2, e4m3_e5m2, 1, false, true)
SHORT_K(e4m3_e5m2_unaligned, e4m3_e5m2, 1, false, false)
SHORT_K(e5m2_e4m3, e5m2_e4m3, 1, false, true)
SHORT_K(e5m2_e4m3_unaligned, e5m2_e4m3, 1, false, false)
#endif
#undef SHORT_K

/* --- sums with longer rows than d ------------------------------------------ */

/* elements of d, one by one: its rows start anywhere */
template <class T> DEV void finish_body(const struct te_k_gemm_finish &a)
{
	const int64_t first = (int64_t)blockIdx.x * FINISH_ELEMS + threadIdx.x, n = a.m * a.n;

#pragma unroll
	for (int u = 0; u < FINISH_ELEMS / FINISH_THREADS; u++) {
		const int64_t at = first + u * FINISH_THREADS;
		int64_t row, col;

		if (at >= n)
			return;
		if (n <= 0xffffffff)
			row = (uint32_t)at / (uint32_t)a.n;
		else
			row = at / a.n;
		col = at - row * a.n;

		float v = a.sums[row * a.ld + col];

		if (a.beta != 0.0f)
			v = add(v, mul(a.beta, to_float(((const T *)a.c)[at])));
		if (a.bias)
			v = add(v, to_float(((const T *)a.bias)[col]));
		((T *)a.d)[at] = from_float<T>(v);
	}
}

#define TE_NAME(T, t)                                                                \
	extern "C" __global__ void __launch_bounds__(FINISH_THREADS)                 \
	te_k_gemm_finish_##t(const __grid_constant__ struct te_k_gemm_finish a)      \
	{                                                                            \
		te_begin();                                                          \
		finish_body<T>(a);                                                   \
	}
TE_NAME(float, fp32)
TE_NAME(bf16, bf16)
#undef TE_NAME

/* --- groups of rows ---------------------------------------------------------- */

/* consecutive terms of a sum: elements first, first + step and so on */
struct terms {
	int64_t first, step;
};

DEV float term(int dtype, const void *x, int64_t at)
{
	if (dtype == TE_D_FP32)
		return ((const float *)x)[at];
	if (dtype == TE_D_BF16)
		return to_float(((const bf16 *)x)[at]);

	const fp16 v = { (unsigned short)fp8x2_decode(dtype, ((const uint8_t *)x)[at]) };

	return to_float(v);
}

/* the first offset that is not in order, or groups + 1; all threads of the block */
DEV int first_wrong(const struct te_k_gemm_grouped &a)
{
	__shared__ int first;

	if (threadIdx.x == 0)
		first = (int)a.groups + 1;
	__syncthreads();
	for (int i = threadIdx.x; i <= (int)a.groups; i += blockDim.x)
		if (!te_k_gemm_grouped_ok(&a, i))
			atomicMin(&first, i);
	__syncthreads();
	return first;
}

/* the group of a row, or -1 */
DEV int group_of(const struct te_k_gemm_grouped &a, int64_t row)
{
	int lo = 0, hi = (int)a.groups; /* offsets[lo] <= row < offsets[hi] */

	if (row < a.offsets[0] || row >= a.offsets[hi])
		return -1;
	while (hi - lo > 1) {
		const int mid = (lo + hi) / 2;

		if (row < a.offsets[mid])
			hi = mid;
		else
			lo = mid;
	}
	return lo;
}

/* any types; k in ascending order; exists so that every GPU computes groups, and is not fast */
extern "C" __global__ void __launch_bounds__(GROUPED_TILE *GROUPED_TILE)
te_k_gemm_grouped(const __grid_constant__ struct te_k_gemm_grouped a)
{
	const bool fp8 = a.adtype == TE_D_E4M3 || a.adtype == TE_D_E5M2;
	const int64_t row = (int64_t)blockIdx.x * GROUPED_TILE + threadIdx.x / GROUPED_TILE;
	const int64_t col = (int64_t)blockIdx.y * GROUPED_TILE + threadIdx.x % GROUPED_TILE;
	int64_t n = a.k, g, at = row * a.n + col;
	struct terms x, y;
	float sum = 0.0f, scale;
	int wrong;

	te_begin();
	wrong = first_wrong(a);
	if (threadIdx.x == 0 && blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0)
		*a.status = wrong <= a.groups ? wrong + 1 : 0;
	if (wrong <= a.groups || row >= a.m || col >= a.n)
		return;
	if (a.by_k) {
		g = blockIdx.z;
		n = a.offsets[g + 1] - a.offsets[g];
		x.first = fp8 ? row * a.k + a.offsets[g] : a.offsets[g] * a.m + row;
		x.step = fp8 ? 1 : a.m;
		y.first = fp8 ? col * a.k + a.offsets[g] : a.offsets[g] * a.n + col;
		y.step = fp8 ? 1 : a.n;
		at += g * a.m * a.n;
	} else {
		g = group_of(a, row);
		if (g < 0)
			return;
		x.first = row * a.k;
		x.step = 1;
		y.first = !a.b_t ? (g * a.n + col) * a.k :
			  fp8	 ? (col * a.groups + g) * a.k :
				   g * a.k * a.n + col;
		y.step = a.b_t && !fp8 ? a.n : 1;
	}
	for (int64_t i = 0; i < n; i++)
		sum = __fmaf_rn(term(a.adtype, a.a, x.first + i * x.step),
				term(a.bdtype, a.b, y.first + i * y.step), sum);
	scale = a.alpha;
	if (a.sa)
		scale = mul(scale, a.sa[a.a_each ? g : 0]);
	if (a.sb)
		scale = mul(scale, a.sb[a.b_each ? g : 0]);
	sum = mul(sum, scale);
	if (a.ddtype == TE_D_FP32) {
		float *d = (float *)a.d + at;

		*d = a.beta != 0.0f ? add(sum, mul(a.beta, *d)) : sum;
	} else {
		bf16 *d = (bf16 *)a.d + at;

		*d = from_float<bf16>(a.beta != 0.0f ? add(sum, mul(a.beta, to_float(*d))) : sum);
	}
}
