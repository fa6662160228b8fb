/* t/core/plan.c - te_plan_*(3) on the host backend. */
#include "config.h"

#include "plan_cases.h"

static Suite *suite(void)
{
	return plan_suite("core/plan", "host");
}

TT_MAIN("core/plan", TT_NEED_NOTHING, suite)
