/* t/core/attn.c - attention on the host backend, which defines it. */
#include "config.h"

#include "attn_cases.h"

static Suite *suite(void)
{
	return attn_suite("core/attn", "host");
}

TT_MAIN("core/attn", TT_NEED_NOTHING, suite)
