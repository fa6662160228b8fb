/* t/graph/step_gpu.c - te_step_*(3) on a GPU: the same cases. */
#include "config.h"

#include "step_cases.h"

static Suite *suite(void)
{
	return step_suite("graph/step_gpu", "cuda");
}

TT_MAIN("graph/step_gpu", TT_NEED_GPU, suite)
