/*
 * t/graph/rules_cases.c - the rules of te_graph_*(3), one by one: arguments by position and by
 * name, hooks and functions in their exact order, failures of each call of them, states in
 * which a replay is refused, one weight-cache flag a graph, and nothing left of a trial.
 */
#include "config.h"

#include "rules_cases.h"
#include "rules_lib.h"

Suite *rules_suite(const char *name, const char *on)
{
	Suite *s = suite_create(name);

	backend = on;
	rules_capture_cases(s);
	rules_argument_cases(s);
	rules_replay_cases(s);
	return s;
}
