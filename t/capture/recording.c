/* t/capture/recording.c - the cases of recordings, for both backends. */
#include "config.h"

#include "recording_lib.h"

TT_PAIR("capture/recording", TT_ONE_PROCESS)
