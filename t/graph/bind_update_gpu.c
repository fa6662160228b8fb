/* t/graph/bind_update_gpu.c - te_graph_bind(3), te_graph_update(3) on a GPU: the same cases. */
#include "config.h"

#include "bind_update_cases.h"

static Suite *suite(void)
{
	return bind_update_suite("graph/bind_update_gpu", "cuda");
}

TT_MAIN("graph/bind_update_gpu", TT_NEED_GPU, suite)
