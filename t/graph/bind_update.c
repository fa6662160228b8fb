/* t/graph/bind_update.c - te_graph_bind(3), te_graph_update(3). */
#include "config.h"

#include "bind_update_cases.h"

TT_PAIR("graph/bind_update", bind_update_suite)
