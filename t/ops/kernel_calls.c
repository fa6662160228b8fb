/* t/ops/kernel_calls.c - the calls of te/kernel.h. */
#include "config.h"

#include "kernel_calls_cases.h"

TT_PAIR("ops/kernel_calls", kc_suite)
