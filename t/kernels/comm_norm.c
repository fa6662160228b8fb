/* t/kernels/comm_norm.c - the fused all-reduce and norm; ranks are streams of one device. */
#include "config.h"

#include <stdlib.h>

#include "comm_norm_cases.h"

static Suite *suite(const char *name, const char *on)
{
	/* by default, eight queues of a GPU: two of nine streams would share one */
	setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
	return comm_norm_suite(name, on);
}

TT_PAIR("kernels/comm_norm", suite)
