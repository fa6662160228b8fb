/* t/graph/graph.c - te_graph_*(3): capture and replay of schedules. */
#include "config.h"

#include "graph_cases.h"

TT_PAIR("graph/graph", graph_suite)
