/* t/plan/plan.c - te_plan_*(3) on the host backend. */
#include "config.h"

#include "plan_cases.h"

static Suite *suite(void)
{
	return plan_suite("plan/plan", "host");
}

TT_MAIN("plan/plan", TT_NEED_NOTHING, suite)
