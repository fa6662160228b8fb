/* t/plan/weights.c - frozen weights and weights without a master on the host backend. */
#include "config.h"

#include "weights_cases.h"

static Suite *suite(void)
{
	return weights_suite("plan/weights", "host");
}

TT_MAIN("plan/weights", TT_NEED_NOTHING, suite)
