/* t/tensor/caller_gpu.c - what a program brings along, on a GPU: the same cases. */
#include "config.h"

#include "caller_cases.h"

static Suite *suite(void)
{
	return caller_suite("tensor/caller_gpu", "cuda");
}

TT_MAIN("tensor/caller_gpu", TT_NEED_GPU, suite)
