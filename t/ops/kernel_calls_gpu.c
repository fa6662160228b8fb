/* t/ops/kernel_calls_gpu.c - the calls of te/kernel.h on a GPU: the same cases. */
#include "config.h"

#include "kernel_calls_cases.h"

static Suite *suite(void)
{
	return kc_suite("ops/kernel_calls_gpu", "cuda");
}

TT_MAIN("ops/kernel_calls_gpu", TT_NEED_GPU, suite)
