/* t/capture/recording.c - te/capture.h: what is recorded, rebound, updated and launched. */
#include "config.h"

#include "recording_cases.h"

TT_PAIR("capture/recording", recording_suite)
