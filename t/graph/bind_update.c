/* t/graph/bind_update.c - te_graph_bind(3), te_graph_update(3) on the host backend. */
#include "config.h"

#include "bind_update_cases.h"

static Suite *suite(void)
{
	return bind_update_suite("graph/bind_update", "host");
}

TT_MAIN("graph/bind_update", TT_NEED_NOTHING, suite)
