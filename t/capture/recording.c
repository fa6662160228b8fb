/* t/capture/recording.c - the cases of recordings, for both backends. */
#include "config.h"

#include "recording_lib.h"

TT_PAIR_SUITE("capture/recording")
{

	recording_node_cases(s);
	recording_update_cases(s);
	recording_binding_cases(s);
	recording_event_cases(s);
	recording_access_cases(s);
	recording_fault_cases(s);
}
