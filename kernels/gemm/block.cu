/*
 * block.cu - FP8 GEMMs with scales of blocks, for GPUs where cuBLASLt has none: from compute
 * capability 8.9 on, all but 9.0. t/kernels/block.cc emulates them on the host.
 *
 *  kernel                 a            b            d                   blocks   threads  shared
 *  gemm_block_A_B         A [m, k]     B [n, k]     BF16, FP32 [m, n]   128x128  256      96 KiB
 *
 * k is a multiple of 16. An operand has scales of 1x128 or of 128x128 blocks. d and bias have any
 * alignment.
 *
 * A step is 128 bytes of k, which is a block: 128 rows of a and of b, copied to shared memory by
 * cp.async two steps ahead; 3 steps fit into the 99 KiB that a block of 8.9 has. Rows of 128 bytes
 * have their 16-byte words permuted, so that ldmatrix uses all banks. Each of 8 warps
 * computes 64 x 32 of d: it sums the unscaled codes of a step in accumulators of their own, then
 * multiplies these by both scales and adds them to its FP32 sums. Steps are added in ascending k,
 * whatever the shape of d is.
 */
#include "kernels/dev.cuh"
#include "kernels/gemm/geometry.h"
#include "kernels/mma.cuh"

/* in PTX of 9.0, for later GPUs, and not in its machine code */
#if TE_ARCH >= 89 && !defined(__CUDA_ARCH_FEAT_SM90_ALL)

#define WARP_ROWS 64
#define WARP_COLS 32
#define ROW_FRAGMENTS (WARP_ROWS / MMA_ROWS)
#define COL_FRAGMENTS (WARP_COLS / MMA_COLS)
#define WARPS_ACROSS (BLOCK_GEMM_TILE / WARP_COLS)
#define OPERAND_NBYTES (BLOCK_GEMM_TILE * TE_K_BLOCK) /* bytes of a step */

/* an operand [rows, k], its rows from row on, and scales: ld words apart, of row / 128 if square */
struct block_operand {
	const char *p;
	const float *scale;
	int64_t k, ld;
	int rows, row;
	bool square;
};

DEV block_operand operand_of(const void *p, const float *scale, int scaling, int64_t rows,
			     int64_t k, int row)
{
	block_operand o;

	o.p = (const char *)p;
	o.scale = scale;
	o.k = k;
	o.ld = te_k_scale_ld(scaling, rows, k);
	o.rows = (int)rows;
	o.row = row;
	o.square = scaling == TE_K_SCALING_128X128;
	return o;
}

/* the scale of a row of a step */
DEV float scale_of(const block_operand &o, int row, int step)
{
	return o.square ? o.scale[row / TE_K_BLOCK * o.ld + step] :
			  o.scale[step * o.ld + min(row, o.rows - 1)];
}

/* address of a 16-byte word of a row of a step */
DEV uint32_t word_at(uint32_t base, int row, int word)
{
	return base + row * TE_K_BLOCK + ((word ^ row % 8) << 4);
}

/* starts the copies of a step to shared memory; zeros where the operand has no elements */
DEV void copy_step(const block_operand &o, uint32_t to, int step)
{
	const int word = threadIdx.x % 8;
	const int64_t k = (int64_t)step * TE_K_BLOCK + 16 * word;

#pragma unroll
	for (int r = threadIdx.x / 8; r < BLOCK_GEMM_TILE; r += BLOCK_GEMM_THREADS / 8) {
		const bool in = o.row + r < o.rows && k < o.k;

		cp_async16(word_at(to, r, word),
			   in ? o.p + (int64_t)(o.row + r) * o.k + k : o.p, in ? 16 : 0);
	}
}

/* part += a b of a step */
template <class M>
DEV void multiply_step(uint32_t a, uint32_t b, float part[ROW_FRAGMENTS][COL_FRAGMENTS][4])
{
	const int lane = threadIdx.x % 32;

#pragma unroll
	for (int k = 0; k < TE_K_BLOCK / 32; k++) {
		uint32_t x[ROW_FRAGMENTS][4], y[COL_FRAGMENTS / 2][4];

#pragma unroll
		for (int i = 0; i < ROW_FRAGMENTS; i++)
			ldmatrix(x[i], word_at(a, i * MMA_ROWS + lane % 16, 2 * k + lane / 16));
		/* two fragments of 8 columns each */
#pragma unroll
		for (int j = 0; j < COL_FRAGMENTS / 2; j++)
			ldmatrix(y[j], word_at(b, 16 * j + lane / 16 * 8 + lane % 8,
					       2 * k + lane / 8 % 2));
#pragma unroll
		for (int i = 0; i < ROW_FRAGMENTS; i++)
#pragma unroll
			for (int j = 0; j < COL_FRAGMENTS; j++)
				M::mma(part[i][j], x[i][0], x[i][1], x[i][2], x[i][3],
				       y[j / 2][j % 2 * 2], y[j / 2][j % 2 * 2 + 1]);
	}
}

/* two elements of d, or the first if it is in the last column */
template <class T> DEV void put2(const struct te_k_gemm &a, int64_t row, int64_t col, float2 s)
{
	const int64_t at = row * a.n + col;
	float v[2] = { s.x, s.y };

#pragma unroll
	for (int e = 0; e < 2; e++) {
		if (col + e >= a.n)
			return;
		v[e] = mul(v[e], a.alpha);
		if (a.beta != 0.0f)
			v[e] = add(v[e], mul(a.beta, to_float(((const T *)a.c)[at + e])));
		if (a.bias)
			v[e] = add(v[e], to_float(((const T *)a.bias)[col + e]));
		((T *)a.d)[at + e] = from_float<T>(v[e]);
	}
}

template <class M> DEV void block_body(const struct te_k_gemm &a)
{
	extern __shared__ uint4 stages[]; /* BLOCK_GEMM_STAGES steps of a and of b */
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	const int group = lane / 4, in_group = lane % 4;
	const int wm = warp / WARPS_ACROSS * WARP_ROWS, wn = warp % WARPS_ACROSS * WARP_COLS;
	/* columns of up to BLOCK_GEMM_BAND tiles, so that concurrent blocks share operands in L2 */
	const int nrows = (int)((a.m + BLOCK_GEMM_TILE - 1) / BLOCK_GEMM_TILE);
	const int ncols = (int)((a.n + BLOCK_GEMM_TILE - 1) / BLOCK_GEMM_TILE);
	const int first = blockIdx.x / (BLOCK_GEMM_BAND * ncols) * BLOCK_GEMM_BAND;
	const int in_band = blockIdx.x - first * ncols;
	const int height = min(BLOCK_GEMM_BAND, nrows - first);
	const int m0 = (first + in_band % height) * BLOCK_GEMM_TILE;
	const int n0 = in_band / height * BLOCK_GEMM_TILE;
	const block_operand x = operand_of(a.a, a.sa, a.asc, te_k_gemm_a_rows(&a), a.k, m0);
	const block_operand y = operand_of(a.b, a.sb, a.bsc, te_k_gemm_b_rows(&a), a.k, n0);
	const int nsteps = (int)((a.k + TE_K_BLOCK - 1) / TE_K_BLOCK);
	const uint32_t base = smem_addr(stages);
	float sum[ROW_FRAGMENTS][COL_FRAGMENTS][4] = {};

#pragma unroll
	for (int i = 0; i < BLOCK_GEMM_STAGES - 1; i++) {
		if (i < nsteps) {
			copy_step(x, base + 2 * i * OPERAND_NBYTES, i);
			copy_step(y, base + (2 * i + 1) * OPERAND_NBYTES, i);
		}
		cp_async_commit();
	}
#pragma unroll 1
	for (int step = 0; step < nsteps; step++) {
		const int ahead = step + BLOCK_GEMM_STAGES - 1;
		const uint32_t at = base + step % BLOCK_GEMM_STAGES * 2 * OPERAND_NBYTES;
		const uint32_t to = base + ahead % BLOCK_GEMM_STAGES * 2 * OPERAND_NBYTES;
		float part[ROW_FRAGMENTS][COL_FRAGMENTS][4] = {};
		float sa[ROW_FRAGMENTS][2], sb[COL_FRAGMENTS][2];

		cp_async_wait<BLOCK_GEMM_STAGES - 2>();
		__syncthreads(); /* the step is there for all, and the one before it multiplied */
		if (ahead < nsteps) {
			copy_step(x, to, ahead);
			copy_step(y, to + OPERAND_NBYTES, ahead);
		}
		cp_async_commit();
#pragma unroll
		for (int e = 0; e < 2; e++) {
#pragma unroll
			for (int i = 0; i < ROW_FRAGMENTS; i++)
				sa[i][e] = scale_of(x, m0 + wm + i * MMA_ROWS + group + 8 * e,
						    step);
#pragma unroll
			for (int j = 0; j < COL_FRAGMENTS; j++)
				sb[j][e] = scale_of(y, n0 + wn + j * MMA_COLS + 2 * in_group + e,
						    step);
		}
		multiply_step<M>(at + wm * TE_K_BLOCK, at + OPERAND_NBYTES + wn * TE_K_BLOCK, part);
#pragma unroll
		for (int i = 0; i < ROW_FRAGMENTS; i++)
#pragma unroll
			for (int j = 0; j < COL_FRAGMENTS; j++)
#pragma unroll
				for (int e = 0; e < 4; e++)
					sum[i][j][e] = __fmaf_rn(part[i][j][e],
								 mul(sa[i][e / 2], sb[j][e % 2]),
								 sum[i][j][e]);
	}
#pragma unroll
	for (int i = 0; i < ROW_FRAGMENTS; i++)
#pragma unroll
		for (int half = 0; half < 2; half++) {
			const int row = m0 + wm + i * MMA_ROWS + group + 8 * half;

			if (row >= a.m)
				continue;
#pragma unroll
			for (int j = 0; j < COL_FRAGMENTS; j++) {
				const int col = n0 + wn + j * MMA_COLS + 2 * in_group;
				const float2 s = make_float2(sum[i][j][2 * half],
							     sum[i][j][2 * half + 1]);

				if (a.ddtype == TE_D_FP32)
					put2<float>(a, row, col, s);
				else
					put2<bf16>(a, row, col, s);
			}
		}
}

#define BLOCK_GEMM(NAME)                                                        \
	extern "C" __global__ void __launch_bounds__(BLOCK_GEMM_THREADS)        \
	te_k_gemm_block_##NAME(const __grid_constant__ struct te_k_gemm a)      \
	{                                                                       \
		te_begin();                                                     \
		block_body<NAME>(a);                                            \
	}
BLOCK_GEMM(e4m3_e4m3)
BLOCK_GEMM(e4m3_e5m2)
BLOCK_GEMM(e5m2_e4m3)

#endif
