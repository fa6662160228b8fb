/*
 * t/kernels/comm_gpu.c - the collective kernels on one GPU: ranks are streams, whose kernels run
 * concurrently.
 */
#include "config.h"

#include <stdlib.h>

#include "comm_cases.h"

static Suite *suite(void)
{
	return comm_suite("kernels/comm_gpu", "cuda");
}

TT_MAIN("kernels/comm_gpu", TT_NEED_GPU, suite)
