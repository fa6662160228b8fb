/*
 * te_reduce.cu - sums over rows, in an order that no grid changes. sm_90a.
 *
 *  kernel    shapes                        blocks                  threads  shared  B/element
 *  colsum    x T [rows, cols]              64 rows x 512 columns   64       0       2 (BF16)
 *  part_sum  part FP32 [nparts, cols]      32 columns              256      16384   4
 *
 * colsum: a thread sums 8 columns over 64 rows, eight rows in flight. part_sum: all
 * warps bring 128 rows of partial sums to shared memory, one adds them up in order,
 * so that a chain of additions never waits for memory.
 */
#include "te_dev.cuh"

#define COLSUM_THREADS 64

template <class T> DEV void colsum_body(const struct te_k_colsum &a)
{
	const uint32_t nblocks = (uint32_t)((a.cols + COLSUM_THREADS * TE_V - 1) /
					    (COLSUM_THREADS * TE_V));
	const int64_t p = blockIdx.x / nblocks;
	const int64_t c0 = (int64_t)(blockIdx.x % nblocks) * (COLSUM_THREADS * TE_V);
	const int64_t r0 = p * TE_K_PART_ROWS;
	const int nrows = clamp_int(a.rows - r0, 0, TE_K_PART_ROWS);
	const T *x = (const T *)a.x + r0 * a.cols;
	float *part = a.part + p * a.cols;
	float sum[TE_V] = { 0.0f };

	if (a.cols % TE_V == 0 && aligned(x) && aligned(part)) {
		const int64_t c = c0 + threadIdx.x * TE_V;

		if (c >= a.cols)
			return;
		for (int r = 0; r < nrows; r += 8) {
			raw<T> w[8];

#pragma unroll
			for (int i = 0; i < 8; i++)
				if (r + i < nrows)
					w[i] = load_raw(x + (r + i) * a.cols + c);
#pragma unroll
			for (int i = 0; i < 8; i++) {
				float v[TE_V];

				if (r + i >= nrows)
					break;
				unpack(w[i], v);
#pragma unroll
				for (int e = 0; e < TE_V; e++)
					sum[e] = add(sum[e], v[e]);
			}
		}
		store_vec(part + c, sum);
		return;
	}
	/* a thread's columns lie COLSUM_THREADS apart */
	for (int r = 0; r < nrows; r++)
#pragma unroll
		for (int e = 0; e < TE_V; e++) {
			const int64_t c = c0 + e * COLSUM_THREADS + threadIdx.x;

			if (c < a.cols)
				sum[e] = add(sum[e], to_float(x[r * a.cols + c]));
		}
#pragma unroll
	for (int e = 0; e < TE_V; e++) {
		const int64_t c = c0 + e * COLSUM_THREADS + threadIdx.x;

		if (c < a.cols)
			part[c] = sum[e];
	}
}

#define TE_NAME(T, t)                                                                         \
	extern "C" __global__ void __launch_bounds__(COLSUM_THREADS)                          \
		te_k_colsum_##t(const __grid_constant__ struct te_k_colsum a)                 \
	{                                                                                     \
		te_begin();                                                                   \
		colsum_body<T>(a);                                                            \
	}
TE_NAME(float, fp32)
TE_NAME(bf16, bf16)
#undef TE_NAME

#define PART_STEP 128 /* rows a round: 16 a warp */

extern "C" __global__ void __launch_bounds__(256)
	te_k_part_sum(const __grid_constant__ struct te_k_part_sum a)
{
	te_begin();
	__shared__ float rows[PART_STEP][32];
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	const int64_t c = (int64_t)blockIdx.x * 32 + lane;
	const bool in = c < a.cols;
	float sum = 0.0f;

	for (int64_t p0 = 0; p0 < a.nparts; p0 += PART_STEP) {
		const int n = clamp_int(a.nparts - p0, 0, PART_STEP);

#pragma unroll
		for (int i = 0; i < PART_STEP / 8; i++) {
			const int p = warp * (PART_STEP / 8) + i;

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
		a.out[c] = add(a.out[c], sum);
}
