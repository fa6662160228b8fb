/*
 * t/graph/graph.c - graphs give the bits of eager runs, keep to their order, name what is
 * wrong, and leave no trace of warm-up.
 */
#include "config.h"

#include "graph_lib.h"

TT_PAIR("graph/graph", TT_ONE_PROCESS)
