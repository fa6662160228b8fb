/*
 * t/graph/contract.c - what te_graph_*(3) promise: arguments by position and by name, the
 * exact order of hooks and functions, the failure of each of their calls, states in which a replay
 * is refused, one weight-cache flag for each graph, and no trace of warm-up and capture.
 */
#include "config.h"

#include "contract_lib.h"

TT_PAIR("graph/contract", TT_ONE_PROCESS)
