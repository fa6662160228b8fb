/* t/core/kernels_gpu.c - kernels on a GPU against the reference functions. */
#include "config.h"

#include "kernel_cases.h"

static Suite *suite(void)
{
	return kernel_suite("core/kernels_gpu", "cuda");
}

TT_MAIN("core/kernels_gpu", TT_NEED_GPU, suite)
