/* t/plan/plan_bind_gpu.c - plans of parts of a sequence on a GPU. */
#include "config.h"

#include "plan_bind_cases.h"

static Suite *suite(void)
{
	return parts_suite("plan/plan_bind_gpu", "cuda");
}

TT_MAIN("plan/plan_bind_gpu", TT_NEED_GPU, suite)
