/* norm.cuh - arithmetic of norms, shared by the kernels of norms and the fused all-reduce. */
#ifndef TE_NORM_CUH
#define TE_NORM_CUH

#include "kernels/dev.cuh"

DEV float sum8(const float v[TE_V])
{
	return add(add(add(v[0], v[1]), add(v[2], v[3])), add(add(v[4], v[5]), add(v[6], v[7])));
}

DEV float normed(float x, float mean, float rstd, float gain)
{
	return mul(mul(sub(x, mean), rstd), gain);
}

#endif
