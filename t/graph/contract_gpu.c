/* t/graph/contract_gpu.c - what graphs refuse, call and leave alone, on a GPU: the same cases. */
#include "config.h"

#include "contract_cases.h"

static Suite *suite(void)
{
	return contract_suite("graph/contract_gpu", "cuda");
}

TT_MAIN("graph/contract_gpu", TT_NEED_GPU, suite)
