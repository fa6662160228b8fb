/* t/tensor/window.c - windows of shared memory on the host backend. */
#include "config.h"

#include "window_cases.h"

static Suite *suite(void)
{
	return window_suite("tensor/window", "host");
}

TT_MAIN("tensor/window", TT_NEED_NOTHING, suite)
