/* t/backend/backend_cases.c - every row of struct te__backend_ops, on whichever backend. */
#include "config.h"

#include "backend_cases.h"
#include "backend_lib.h"
#include "tt_ctx.h"

Suite *backend_suite(const char *name, const char *on)
{
	Suite *s = suite_create(name);

	backend = on;
	backend_memory_cases(s);
	backend_share_cases(s);
	backend_stream_cases(s);
	backend_work_cases(s);
	backend_capture_cases(s);
	backend_branch_cases(s);
	backend_fault_cases(s);
	backend_public_cases(s);
	return s;
}
