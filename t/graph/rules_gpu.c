/* t/graph/rules_gpu.c - what graphs refuse, call and leave alone, on a GPU: the same cases. */
#include "config.h"

#include "rules_cases.h"

static Suite *suite(void)
{
	return rules_suite("graph/rules_gpu", "cuda");
}

TT_MAIN("graph/rules_gpu", TT_NEED_GPU, suite)
