/* t/core/gemm_gpu.c - te_gemm(3) on a GPU: the same cases. */
#include "config.h"

#include "gemm_cases.h"

static Suite *suite(void)
{
	return gemm_suite("core/gemm_gpu", "cuda");
}

TT_MAIN("core/gemm_gpu", TT_NEED_GPU, suite)
