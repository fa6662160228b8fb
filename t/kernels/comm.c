/* t/kernels/comm.c - the collective kernels on the host backend: ranks are streams. */
#include "config.h"

#include "comm_cases.h"

static Suite *suite(void)
{
	return comm_suite("kernels/comm", "host");
}

TT_MAIN("kernels/comm", TT_NEED_NOTHING, suite)
