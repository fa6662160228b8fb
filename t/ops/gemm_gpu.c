/* t/ops/gemm_gpu.c - te_gemm(3) on a GPU: the same cases. */
#include "config.h"

#include "gemm_cases.h"

static Suite *suite(void)
{
	return gemm_suite("ops/gemm_gpu", "cuda");
}

TT_MAIN("ops/gemm_gpu", TT_NEED_GPU, suite)
