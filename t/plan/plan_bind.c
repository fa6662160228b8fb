/* t/plan/plan_bind.c - plans of parts of a sequence on the host backend. */
#include "config.h"

#include "plan_bind_cases.h"

static Suite *suite(void)
{
	return parts_suite("plan/plan_bind", "host");
}

TT_MAIN("plan/plan_bind", TT_NEED_NOTHING, suite)
