/* t/comm/pool_gpu.c - symmetric memory of threads that share one GPU. */
#include "config.h"

#include "pool_cases.h"

static Suite *suite(void)
{
	return pool_suite("comm/pool_gpu", "cuda");
}

TT_MAIN("comm/pool_gpu", TT_NEED_GPU, suite)
