/* t/core/kernels.c - kernels on the host backend: the check of the checks. */
#include "config.h"

#include "kernel_cases.h"

static Suite *suite(void)
{
	return kernel_suite("core/kernels", "host");
}

TT_MAIN("core/kernels", TT_NEED_NOTHING, suite)
