/* t/capture/recording.c - te/capture.h on the host backend. */
#include "config.h"

#include "recording_cases.h"

static Suite *suite(void)
{
	return recording_suite("capture/recording", "host");
}

TT_MAIN("capture/recording", TT_NEED_NOTHING, suite)
