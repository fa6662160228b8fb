/* t/plan/custom.c - user-defined operations and joint fusions, on the host backend. */
#include "config.h"

#include "custom_cases.h"

static Suite *suite(void)
{
	return custom_suite("plan/custom", "host");
}

TT_MAIN("plan/custom", TT_NEED_NOTHING, suite)
