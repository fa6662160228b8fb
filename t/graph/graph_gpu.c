/* t/graph/graph_gpu.c - te_graph_*(3) on a GPU: the same cases. */
#include "config.h"

#include "graph_cases.h"

static Suite *suite(void)
{
	return graph_suite("graph/graph_gpu", "cuda");
}

TT_MAIN("graph/graph_gpu", TT_NEED_GPU, suite)
