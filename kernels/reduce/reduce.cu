/*
 * reduce.cu - sums over rows, in an order that does not depend on the grid. sm_90a.
 *
 *  kernel    shapes                    blocks                threads  shared             B/element
 *  colsum    x T [rows, cols]          64 rows x 64 columns  128      8192; FP32: 16384  2 (BF16)
 *  part_sum  part FP32 [nparts, cols]  32 columns            256, 32  16384              4
 *
 * colsum: each warp loads 16 rows into shared memory with all loads in flight, then each thread
 * adds up one column in order. A single group of 64 rows thus costs one memory latency, and many
 * rows make many blocks. part_sum: all warps load 128 rows of partial sums into shared memory and
 * one warp adds them up in order, so that the chain of additions never waits for memory. Up to
 * PART_SUM_SMALL rows stay in the registers of a single warp.
 */
#include "kernels/dev.cuh"
#include "kernels/reduce/geometry.h"

template <class T, bool VEC>
DEV void colsum_columns(const struct te_k_colsum &a, raw2<T> tile[TE_K_PART_ROWS][COLSUM_COLS / 2],
			int64_t p, int64_t c)
{
	constexpr int STEP = TE_K_PART_ROWS / (COLSUM_THREADS / 32); /* rows of a warp */
	const int r0 = threadIdx.x / 32 * STEP, lane = threadIdx.x % 32;
	const int nrows = clamp_int(a.rows - p * TE_K_PART_ROWS, 0, TE_K_PART_ROWS);
	const int n = clamp_int(a.cols - c - lane * 2, 0, 2);
	const T *x = (const T *)a.x + (p * TE_K_PART_ROWS + r0) * a.cols + c + lane * 2;
	raw2<T> w[STEP];

#pragma unroll
	for (int i = 0; i < STEP; i++, x += a.cols)
		w[i] = load2<VEC>(x, r0 + i < nrows ? n : 0);
#pragma unroll
	for (int i = 0; i < STEP; i++)
		tile[r0 + i][lane] = w[i];
}

template <class T> DEV void colsum_body(const struct te_k_colsum &a)
{
	__shared__ raw2<T> tile[TE_K_PART_ROWS][COLSUM_COLS / 2];
	const uint32_t nblocks = (uint32_t)((a.cols + COLSUM_COLS - 1) / COLSUM_COLS);
	const int64_t p = blockIdx.x / nblocks;
	const int64_t c = (int64_t)(blockIdx.x % nblocks) * COLSUM_COLS;
	const T *value = (const T *)tile + threadIdx.x;
	float sum = 0.0f;

	if (a.cols % 2 == 0 && aligned(a.x))
		colsum_columns<T, true>(a, tile, p, c);
	else
		colsum_columns<T, false>(a, tile, p, c);
	__syncthreads();
	if (threadIdx.x >= COLSUM_COLS || c + threadIdx.x >= a.cols)
		return;
	/* rows beyond the end add +0, which changes no sum that started at +0 */
#pragma unroll 32
	for (int r = 0; r < TE_K_PART_ROWS; r++)
		sum = add(sum, to_float(value[r * COLSUM_COLS]));
	a.part[p * a.cols + c + threadIdx.x] = sum;
}

#define TE_NAME(T, t)                                                           \
	extern "C" __global__ void __launch_bounds__(COLSUM_THREADS)            \
		te_k_colsum_##t(const __grid_constant__ struct te_k_colsum a)   \
	{                                                                       \
		te_begin();                                                     \
		colsum_body<T>(a);                                              \
	}
TE_NAME(float, fp32)
TE_NAME(bf16, bf16)
#undef TE_NAME

#define PART_STEP 128 /* rows per iteration, 16 of each warp */

extern "C" __global__ void __launch_bounds__(PART_SUM_THREADS)
	te_k_part_sum(const __grid_constant__ struct te_k_part_sum a)
{
	te_begin();
	constexpr int ROWS = PART_STEP / (PART_SUM_THREADS / 32); /* rows of a warp */
	__shared__ float rows[PART_STEP][PART_SUM_COLS];
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	const int64_t c = (int64_t)blockIdx.x * PART_SUM_COLS + lane;
	const bool in = c < a.cols;
	const float out = in && warp == 0 ? a.out[c] : 0.0f; /* concurrently with the parts */
	float sum = 0.0f;

	if (a.nparts <= PART_SUM_SMALL) {
		float row[PART_SUM_SMALL];

#pragma unroll
		for (int p = 0; p < PART_SUM_SMALL; p++)
			row[p] = in && p < a.nparts ? a.part[p * a.cols + c] : 0.0f;
#pragma unroll
		for (int p = 0; p < PART_SUM_SMALL; p++)
			sum = add(sum, row[p]); /* +0 changes no sum that started at +0 */
		if (warp == 0 && in)
			a.out[c] = add(out, sum);
		return;
	}
	for (int64_t p0 = 0; p0 < a.nparts; p0 += PART_STEP) {
		const int n = clamp_int(a.nparts - p0, 0, PART_STEP);

#pragma unroll
		for (int i = 0; i < ROWS; i++) {
			const int p = warp * ROWS + i;

			rows[p][lane] = in && p < n ? a.part[(p0 + p) * a.cols + c] : 0.0f;
		}
		__syncthreads();
		if (warp == 0)
#pragma unroll 16
			for (int p = 0; p < n; p++)
				sum = add(sum, rows[p][lane]);
		__syncthreads();
	}
	if (warp == 0 && in)
		a.out[c] = add(out, sum);
}
