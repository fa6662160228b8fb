/* t/backend/backend_gpu.c - the cuda backend's table on a GPU: the same cases. */
#include "config.h"

#include "backend_cases.h"

static Suite *suite(void)
{
	return backend_suite("backend/backend_gpu", "cuda");
}

TT_MAIN("backend/backend_gpu", TT_NEED_GPU, suite)
