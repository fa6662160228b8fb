/* t/plan/plan_gpu.c - te_plan_*(3) on a GPU: the same cases. */
#include "config.h"

#include "plan_cases.h"

static Suite *suite(void)
{
	return plan_suite("plan/plan_gpu", "cuda");
}

TT_MAIN("plan/plan_gpu", TT_NEED_GPU, suite)
