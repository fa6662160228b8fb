/* norm.cuh - arithmetic of norms, shared by the kernels of norms and the fused all-reduce. */
#ifndef TE_NORM_CUH
#define TE_NORM_CUH

#include "kernels/dev.cuh"
#include "kernels/norm/geometry.h"

DEV float sum8(const float v[TE_V])
{
	return add(add(add(v[0], v[1]), add(v[2], v[3])), add(add(v[4], v[5]), add(v[6], v[7])));
}

/* warps that te_k_norm_bwd has for a row of whole vectors; its sums are added in ascending order */
DEV int norm_bwd_warps(int cols)
{
	return (cols + NORM_WARP_COLS - 1) / NORM_WARP_COLS;
}

/* warps that te_k_norm_fwd has for a row of whole vectors; its sums are added in ascending order */
DEV int norm_row_warps(int cols, bool bf16)
{
	if (bf16 && cols <= NORM_ROWS_COLS)
		return cols <= 2 * NORM_WIDE_COLS ? 1 : cols <= 4 * NORM_WIDE_COLS ? 4 : 8;
	return norm_bwd_warps(cols); /* norm_fwd */
}

/*
 * Sums over a warp of N values of each lane. Each step halves the values that a lane has, as long
 * as there are several: lane l returns the sum of value l / (32 / N).
 */
template <int N> DEV float warp_sums(float v[N])
{
	const int lane = threadIdx.x % 32;
	int d = 16;

#pragma unroll
	for (int n = N / 2; n; n /= 2, d /= 2) {
		const bool up = lane & d;

#pragma unroll
		for (int i = 0; i < n; i++) {
			const float give = up ? v[i] : v[i + n], keep = up ? v[i + n] : v[i];

			v[i] = add(keep, __shfl_xor_sync(0xffffffffu, give, d));
		}
	}
#pragma unroll
	for (; d; d /= 2)
		v[0] = add(v[0], __shfl_xor_sync(0xffffffffu, v[0], d));
	return v[0];
}

DEV float normed(float x, float mean, float rstd, float gain)
{
	return mul(mul(sub(x, mean), rstd), gain);
}

#endif
