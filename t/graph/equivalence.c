/* t/graph/equivalence.c - every op and recipe: graphs give the bits of eager runs. */
#include "config.h"

#include "equivalence_cases.h"

TT_PAIR("graph/equivalence", equivalence_suite)
