/* t/graph/equivalence.c - every op and recipe: graphs give the bits of eager runs, on host. */
#include "config.h"

#include "equivalence_cases.h"

static Suite *suite(void)
{
	return equivalence_suite("graph/equivalence", "host");
}

TT_MAIN("graph/equivalence", TT_NEED_NOTHING, suite)
