/* t/graph/step.c - te_step_*(3) on the host backend. */
#include "config.h"

#include "step_cases.h"

static Suite *suite(void)
{
	return step_suite("graph/step", "host");
}

TT_MAIN("graph/step", TT_NEED_NOTHING, suite)
