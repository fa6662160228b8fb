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
 * cp.async two steps ahead; 3 steps fit into the 99 KiB that a block of 8.9 has. A warp sums the
 * unscaled codes of a step in accumulators of their own, then multiplies these by both scales and
 * adds them to its FP32 sums. Steps are added in ascending k, whatever the shape of d is.
 */
#include "kernels/gemm/tile.cuh"

/* in PTX of 9.0, for later GPUs, and not in its machine code */
#if TE_ARCH >= 89 && !defined(__CUDA_ARCH_FEAT_SM90_ALL)

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

template <class M> DEV void block_body(const struct te_k_gemm &a)
{
	extern __shared__ uint4 stages[]; /* BLOCK_GEMM_STAGES steps of a and of b */
	const gemm_tile t = gemm_tile_of_grid(a);
	const int lane = threadIdx.x % 32, group = lane / 4, in_group = lane % 4;
	const block_operand x = operand_of(a.a, a.sa, a.asc, te_k_gemm_a_rows(&a), a.k, t.m0);
	const block_operand y = operand_of(a.b, a.sb, a.bsc, te_k_gemm_b_rows(&a), a.k, t.n0);
	const int nsteps = (int)((a.k + TE_K_BLOCK - 1) / TE_K_BLOCK);
	const uint32_t base = smem_addr(stages);
	gemm_sums sum = {};

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
		gemm_sums part = {};
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
				sa[i][e] = scale_of(x, t.m0 + t.wm + i * MMA_ROWS + group +
							   8 * e, step);
#pragma unroll
			for (int j = 0; j < COL_FRAGMENTS; j++)
				sb[j][e] = scale_of(y, t.n0 + t.wn + j * MMA_COLS + 2 * in_group +
							   e, step);
		}
		multiply_step<M>(at + t.wm * STEP_NBYTES,
				 at + OPERAND_NBYTES + t.wn * STEP_NBYTES, part);
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
	gemm_tile_store(a, t, a.alpha, sum);
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
