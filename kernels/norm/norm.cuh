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

DEV float normed(float x, float mean, float rstd, float gain)
{
	return mul(mul(sub(x, mean), rstd), gain);
}

#endif
