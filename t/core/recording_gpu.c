/* t/core/recording_gpu.c - te/recording.h on a GPU: the same cases. */
#include "config.h"

#include "recording_cases.h"

static Suite *suite(void)
{
	return recording_suite("core/recording_gpu", "cuda");
}

TT_MAIN("core/recording_gpu", TT_NEED_GPU, suite)
