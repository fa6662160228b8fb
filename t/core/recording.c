/* t/core/recording.c - te/recording.h on the host backend. */
#include "config.h"

#include "recording_cases.h"

static Suite *suite(void)
{
	return recording_suite("core/recording", "host");
}

TT_MAIN("core/recording", TT_NEED_NOTHING, suite)
