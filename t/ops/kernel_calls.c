/* t/ops/kernel_calls.c - the calls of te/kernel.h on the host backend. */
#include "config.h"

#include "kernel_calls_cases.h"

static Suite *suite(void)
{
	return kc_suite("ops/kernel_calls", "host");
}

TT_MAIN("ops/kernel_calls", TT_NEED_NOTHING, suite)
