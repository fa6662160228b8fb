/*
 * t/graph/graph.c - graphs give the bits of eager runs, keep to their order, name what is
 * wrong, and leave no trace of warm-up.
 */
#include "config.h"

#include "graph_lib.h"

static Suite *suite(const char *name, const char *on)
{
	Suite *s = suite_create(name);

	graph_model_cases(s);
	graph_memory_cases(s);
	graph_replay_cases(s);
	graph_capture_cases(s);
	return s;
}

TT_PAIR("graph/graph", suite)
