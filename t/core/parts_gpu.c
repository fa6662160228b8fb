/* t/core/parts_gpu.c - plans of parts of a sequence on a GPU. */
#include "config.h"

#include "parts_cases.h"

static Suite *suite(void)
{
	return parts_suite("core/parts_gpu", "cuda");
}

TT_MAIN("core/parts_gpu", TT_NEED_GPU, suite)
