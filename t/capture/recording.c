/* t/capture/recording.c - the cases of recordings, for both backends. */
#include "config.h"

#include "recording_lib.h"

static Suite *suite(const char *name, const char *on)
{
	Suite *s = suite_create(name);

	recording_node_cases(s);
	recording_update_cases(s);
	recording_binding_cases(s);
	recording_event_cases(s);
	recording_access_cases(s);
	recording_fault_cases(s);
	return s;
}

TT_PAIR("capture/recording", suite)
