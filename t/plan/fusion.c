/* t/plan/fusion.c - built-in and user fusions against their steps. */
#include "config.h"

#include "fusion_cases.h"

TT_PAIR("plan/fusion", fusion_suite)
