/*
 * tile.cuh - a tile of d of a GEMM by mma.sync, for block.cu, mx.cu and any.cu: 128 rows and
 * columns, by 8 warps that compute 64 x 32 each.
 *
 * A step of k is 128 bytes of each of 128 rows of a and of b in shared memory, whose 16-byte words
 * are permuted, so that ldmatrix uses all banks.
 */
#ifndef TE_GEMM_TILE_CUH
#define TE_GEMM_TILE_CUH

#include "kernels/dev.cuh"
#include "kernels/gemm/geometry.h"
#include "kernels/mma.cuh"

#define STEP_NBYTES 128 /* bytes of a row */
#define WARP_ROWS 64
#define WARP_COLS 32
#define ROW_FRAGMENTS (WARP_ROWS / MMA_ROWS)
#define COL_FRAGMENTS (WARP_COLS / MMA_COLS)
#define WARPS_ACROSS (BLOCK_GEMM_TILE / WARP_COLS)
#define OPERAND_NBYTES (BLOCK_GEMM_TILE * STEP_NBYTES) /* bytes of a step */

typedef float gemm_sums[ROW_FRAGMENTS][COL_FRAGMENTS][4];

/* the tile of this block, and the first row and column of this warp within it */
struct gemm_tile {
	int m0, n0, wm, wn;
};

/* columns of up to BLOCK_GEMM_BAND tiles, so that concurrent blocks share operands in L2 */
DEV gemm_tile gemm_tile_of_grid(const struct te_k_gemm &a)
{
	const int nrows = (int)((a.m + BLOCK_GEMM_TILE - 1) / BLOCK_GEMM_TILE);
	const int ncols = (int)((a.n + BLOCK_GEMM_TILE - 1) / BLOCK_GEMM_TILE);
	const int first = blockIdx.x / (BLOCK_GEMM_BAND * ncols) * BLOCK_GEMM_BAND;
	const int in_band = blockIdx.x - first * ncols;
	const int height = min(BLOCK_GEMM_BAND, nrows - first), warp = threadIdx.x / 32;

	return { (first + in_band % height) * BLOCK_GEMM_TILE, in_band / height * BLOCK_GEMM_TILE,
		 warp / WARPS_ACROSS * WARP_ROWS, warp % WARPS_ACROSS * WARP_COLS };
}

/* address of a 16-byte word of a row of a step */
DEV uint32_t word_at(uint32_t base, int row, int word)
{
	return base + row * STEP_NBYTES + ((word ^ row % 8) << 4);
}

/* part += a b of a step; a and b: from the warp's rows and columns on */
template <class M> DEV void multiply_step(uint32_t a, uint32_t b, gemm_sums &part)
{
	const int lane = threadIdx.x % 32;

#pragma unroll
	for (int k = 0; k < STEP_NBYTES / 32; k++) {
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
template <class T>
DEV void put2(const struct te_k_gemm &a, float alpha, int64_t row, int64_t col, float2 s)
{
	const int64_t at = row * a.n + col;
	float v[2] = { s.x, s.y };

#pragma unroll
	for (int e = 0; e < 2; e++) {
		if (col + e >= a.n)
			return;
		v[e] = mul(v[e], alpha);
		if (a.beta != 0.0f)
			v[e] = add(v[e], mul(a.beta, to_float(((const T *)a.c)[at + e])));
		if (a.bias)
			v[e] = add(v[e], to_float(((const T *)a.bias)[col + e]));
		((T *)a.d)[at + e] = from_float<T>(v[e]);
	}
}

/* d = alpha * sum + beta * c + bias */
DEV void gemm_tile_store(const struct te_k_gemm &a, const gemm_tile &t, float alpha,
			 const gemm_sums &sum)
{
	const int lane = threadIdx.x % 32, group = lane / 4, in_group = lane % 4;

#pragma unroll
	for (int i = 0; i < ROW_FRAGMENTS; i++)
#pragma unroll
		for (int half = 0; half < 2; half++) {
			const int row = t.m0 + t.wm + i * MMA_ROWS + group + 8 * half;

			if (row >= a.m)
				continue;
#pragma unroll
			for (int j = 0; j < COL_FRAGMENTS; j++) {
				const int col = t.n0 + t.wn + j * MMA_COLS + 2 * in_group;
				const float2 s = make_float2(sum[i][j][2 * half],
							     sum[i][j][2 * half + 1]);

				if (a.ddtype == TE_D_FP32)
					put2<float>(a, alpha, row, col, s);
				else
					put2<bf16>(a, alpha, row, col, s);
			}
		}
}

#endif
