/* t/core/parts.c - plans of parts of a sequence on the host backend. */
#include "config.h"

#include "parts_cases.h"

static Suite *suite(void)
{
	return parts_suite("core/parts", "host");
}

TT_MAIN("core/parts", TT_NEED_NOTHING, suite)
