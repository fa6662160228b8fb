/* t/core/fusion.c - built-in and user fusions against their steps, on the host backend. */
#include "config.h"

#include "fusion_cases.h"

static Suite *suite(void)
{
	return fusion_suite("core/fusion", "host");
}

TT_MAIN("core/fusion", TT_NEED_NOTHING, suite)
