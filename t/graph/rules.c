/* t/graph/rules.c - what graphs refuse, call and leave alone, on the host backend. */
#include "config.h"

#include "rules_cases.h"

static Suite *suite(void)
{
	return rules_suite("graph/rules", "host");
}

TT_MAIN("graph/rules", TT_NEED_NOTHING, suite)
