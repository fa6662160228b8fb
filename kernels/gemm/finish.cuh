/* finish.cuh - the element of d that a sum over k gives; shared by gemm.cu and few_rows.cu. */
#ifndef TE_GEMM_FINISH_CUH
#define TE_GEMM_FINISH_CUH

#include "kernels/dev.cuh"

DEV float finish(const struct te_k_gemm &a, float s, float scale, float c, float bias)
{
	s = mul(s, scale);
	if (a.beta != 0.0f)
		s = add(s, mul(a.beta, c));
	return a.bias ? add(s, bias) : s;
}

#endif
