/* t/tensor/window_gpu.c - windows of shared memory on a GPU. */
#include "config.h"

#include "window_cases.h"

static Suite *suite(void)
{
	return window_suite("tensor/window_gpu", "cuda");
}

TT_MAIN("tensor/window_gpu", TT_NEED_GPU, suite)
