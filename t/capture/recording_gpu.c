/* t/capture/recording_gpu.c - te/capture.h on a GPU: the same cases. */
#include "config.h"

#include "recording_cases.h"

static Suite *suite(void)
{
	return recording_suite("capture/recording_gpu", "cuda");
}

TT_MAIN("capture/recording_gpu", TT_NEED_GPU, suite)
