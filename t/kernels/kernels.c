/* t/kernels/kernels.c - kernels on the host backend, which tests kernel_check.c. */
#include "config.h"

#include "kernel_cases.h"

static Suite *suite(void)
{
	return kernel_suite("kernels/kernels", "host");
}

TT_MAIN("kernels/kernels", TT_NEED_NOTHING, suite)
