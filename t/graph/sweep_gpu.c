/* t/graph/sweep_gpu.c - every op and recipe as graphs, on a GPU: the same cases. */
#include "config.h"

#include "sweep_cases.h"

static Suite *suite(void)
{
	return sweep_suite("graph/sweep_gpu", "cuda");
}

TT_MAIN("graph/sweep_gpu", TT_NEED_GPU, suite)
