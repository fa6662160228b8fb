/* t/plan/fusion_gpu.c - built-in and user fusions against their steps, on a GPU. */
#include "config.h"

#include "fusion_cases.h"

static Suite *suite(void)
{
	return fusion_suite("plan/fusion_gpu", "cuda");
}

TT_MAIN("plan/fusion_gpu", TT_NEED_GPU, suite)
