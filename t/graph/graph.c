/* t/graph/graph.c - te_graph_*(3) on the host backend. */
#include "config.h"

#include "graph_cases.h"

static Suite *suite(void)
{
	return graph_suite("graph/graph", "host");
}

TT_MAIN("graph/graph", TT_NEED_NOTHING, suite)
