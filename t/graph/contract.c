/* t/graph/contract.c - what graphs refuse, call and leave alone. */
#include "config.h"

#include "contract_cases.h"

TT_PAIR("graph/contract", contract_suite)
