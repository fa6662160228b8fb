/* t/graph/sweep.c - every op and recipe as graphs, on the host backend. */
#include "config.h"

#include "sweep_cases.h"

static Suite *suite(void)
{
	return sweep_suite("graph/sweep", "host");
}

TT_MAIN("graph/sweep", TT_NEED_NOTHING, suite)
