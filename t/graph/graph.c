/*
 * t/graph/graph.c - graphs give the bits of eager runs, keep to their order, name what is
 * wrong, and leave no trace of warm-up.
 */
#include "config.h"

#include "graph_lib.h"

TT_PAIR_SUITE("graph/graph")
{

	graph_model_cases(s);
	graph_memory_cases(s);
	graph_replay_cases(s);
	graph_capture_cases(s);
}
