/* t/plan/weights_gpu.c - frozen weights and weights without a master on a GPU. */
#include "config.h"

#include "weights_cases.h"

static Suite *suite(void)
{
	return weights_suite("plan/weights_gpu", "cuda");
}

TT_MAIN("plan/weights_gpu", TT_NEED_GPU, suite)
