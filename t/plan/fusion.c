/* t/plan/fusion.c - built-in and user fusions against their steps, on the host backend. */
#include "config.h"

#include "fusion_cases.h"

static Suite *suite(void)
{
	return fusion_suite("plan/fusion", "host");
}

TT_MAIN("plan/fusion", TT_NEED_NOTHING, suite)
