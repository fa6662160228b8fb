/* t/graph/contract.c - what graphs refuse, call and leave alone, on the host backend. */
#include "config.h"

#include "contract_cases.h"

static Suite *suite(void)
{
	return contract_suite("graph/contract", "host");
}

TT_MAIN("graph/contract", TT_NEED_NOTHING, suite)
