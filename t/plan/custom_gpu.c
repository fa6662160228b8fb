/* t/plan/custom_gpu.c - user-defined operations and joint fusions, on a GPU. */
#include "config.h"

#include "custom_cases.h"

static Suite *suite(void)
{
	return custom_suite("plan/custom_gpu", "cuda");
}

TT_MAIN("plan/custom_gpu", TT_NEED_GPU, suite)
