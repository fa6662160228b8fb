/*
 * reduce.cu - sums over rows, in an order that does not depend on the grid. sm_90a.
 *
 *  kernel    shapes                    blocks                threads  shared             B/element
 *  colsum    x T [rows, cols]          64 rows x 64 columns  128      8192; FP32: 16384  2 (BF16)
 *  part_sum  part FP32 [nparts, cols]  32 columns            32..512  2048               4
 *
 * colsum: each warp loads 16 rows into shared memory with all loads in flight, then each thread
 * adds up one column in order. A single group of 64 rows thus costs one memory latency, and many
 * rows make many blocks. part_sum: a warp holds a group of partial sums in registers, with all
 * loads in flight, and adds it up; the first warp adds up the sums of groups.
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

/* T: type of the sums; one block a multiprocessor leaves registers for all loads */
template <class T> DEV void part_sum_body(const struct te_k_part_sum &a)
{
	__shared__ float sums[PART_SUM_WARPS][PART_SUM_COLS];
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, nwarps = blockDim.x / 32;
	const int64_t c = (int64_t)blockIdx.x * PART_SUM_COLS + lane;
	const bool in = c < a.cols;
	T *const to = (T *)(blockIdx.y ? a.out_b : a.out) + c;
	const float *const parts = blockIdx.y ? a.part_b : a.part;
	const float out = in && warp == 0 ? to_float(*to) : 0.0f; /* concurrently with the parts */
	float total = 0.0f;

	for (int64_t p0 = 0; p0 < a.nparts; p0 += (int64_t)nwarps * TE_K_PART_GROUP) {
		const int64_t p = p0 + warp * TE_K_PART_GROUP;
		const int n = in ? clamp_int(a.nparts - p, 0, TE_K_PART_GROUP) : 0;
		const int64_t left = (a.nparts - p0 + TE_K_PART_GROUP - 1) / TE_K_PART_GROUP;
		const float *part = parts + p * a.cols + c;
		float row[TE_K_PART_GROUP], sum = 0.0f;

#pragma unroll
		for (int i = 0; i < TE_K_PART_GROUP; i++, part += a.cols)
			row[i] = i < n ? *part : 0.0f;
#pragma unroll
		for (int i = 0; i < TE_K_PART_GROUP; i++)
			sum = add(sum, row[i]); /* +0 changes no sum that started at +0 */
		sums[warp][lane] = sum;
		__syncthreads();
		for (int w = 0; warp == 0 && w < nwarps && w < left; w++)
			total = add(total, sums[w][lane]);
		__syncthreads();
	}
	if (warp == 0 && in)
		*to = from_float<T>(add(out, total));
}

#define TE_NAME(T, t)                                                              \
	TE_KERNEL(colsum_##t, colsum, (COLSUM_THREADS), colsum_body<T>(a))         \
	TE_KERNEL(part_sum_##t, part_sum, (PART_SUM_WARPS * 32, 1), part_sum_body<T>(a))
TE_NAME(float, fp32)
TE_NAME(bf16, bf16)
#undef TE_NAME

/* a part a block */
extern "C" __global__ void __launch_bounds__(ARGMAX_THREADS)
te_k_argmax(const __grid_constant__ struct te_k_argmax a)
{
	__shared__ uint64_t most[ARGMAX_THREADS / 32];
	const int64_t ncols = TE_K_ARGMAX_COLS(a.n), c0 = blockIdx.x % TE_K_ARGMAX_PARTS * ncols;
	const bf16 *x = (const bf16 *)a.x + blockIdx.x / TE_K_ARGMAX_PARTS * a.ld;
	const bool vec = a.ld % TE_V == 0 && aligned(a.x);
	uint64_t key = 0;

	te_begin_early();
#pragma unroll 2
	for (int64_t c = c0 + threadIdx.x * TE_V; c < min(c0 + ncols, a.n);
	     c += ARGMAX_THREADS * TE_V) {
		const int n = clamp_int(a.n - c, 0, TE_V);
		float v[TE_V];

		if (vec && n == TE_V)
			load_vec(x + c, v);
		else
			load_some(x + c, n, v);
#pragma unroll
		for (int e = 0; e < TE_V; e++)
			if (e < n)
				key = max(key, te_k_argmax_key(__float_as_uint(v[e]) >> 16, c + e));
	}
#pragma unroll
	for (int w = 16; w; w /= 2)
		key = max(key, (uint64_t)__shfl_xor_sync(~0u, (unsigned long long)key, w));
	if (threadIdx.x % 32 == 0)
		most[threadIdx.x / 32] = key;
	__syncthreads();
	if (threadIdx.x)
		return;
	for (int w = 1; w < ARGMAX_THREADS / 32; w++)
		key = max(key, most[w]);
	a.part[blockIdx.x] = key;
}
