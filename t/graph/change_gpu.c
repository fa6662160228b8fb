/* t/graph/change_gpu.c - te_graph_bind(3), te_graph_update(3) on a GPU: the same cases. */
#include "config.h"

#include "change_cases.h"

static Suite *suite(void)
{
	return change_suite("graph/change_gpu", "cuda");
}

TT_MAIN("graph/change_gpu", TT_NEED_GPU, suite)
