/* t/graph/equivalence_gpu.c - every op and recipe as graphs, on a GPU: the same cases. */
#include "config.h"

#include "equivalence_cases.h"

static Suite *suite(void)
{
	return equivalence_suite("graph/equivalence_gpu", "cuda");
}

TT_MAIN("graph/equivalence_gpu", TT_NEED_GPU, suite)
