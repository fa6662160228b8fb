/* t/graph/change.c - te_graph_bind(3), te_graph_update(3) on the host backend. */
#include "config.h"

#include "change_cases.h"

static Suite *suite(void)
{
	return change_suite("graph/change", "host");
}

TT_MAIN("graph/change", TT_NEED_NOTHING, suite)
