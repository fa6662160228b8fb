/* t/plan/custom.c - user-defined operations and joint fusions. */
#include "config.h"

#include "custom_cases.h"

TT_PAIR("plan/custom", custom_suite)
