/* t/kernels/kernels_gpu.c - kernels on a GPU against the reference functions. */
#include "config.h"

#include "kernel_cases.h"

static Suite *suite(void)
{
	return kernel_suite("kernels/kernels_gpu", "cuda");
}

TT_MAIN("kernels/kernels_gpu", TT_NEED_GPU, suite)
