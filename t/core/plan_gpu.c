/* t/core/plan_gpu.c - te_plan_*(3) on a GPU: the same cases. */
#include "config.h"

#include "plan_cases.h"

static Suite *suite(void)
{
	return plan_suite("core/plan_gpu", "cuda");
}

TT_MAIN("core/plan_gpu", TT_NEED_GPU, suite)
