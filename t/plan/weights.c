/* t/plan/weights.c - frozen weights and weights without a master, on either backend. */
#include "config.h"

#include "tt_ctx.h"
#include "weights_cases.h"

static Suite *suite(const char *name, const char *on)
{
	Suite *s = suite_create(name);

	frozen_cases(s);
	bound_cases(s);
	return s;
}

TT_PAIR("plan/weights", suite)
