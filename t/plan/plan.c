/* t/plan/plan.c - te_plan_*(3): planned sequences and hooks. */
#include "config.h"

#include "plan_cases.h"

TT_PAIR("plan/plan", plan_suite)
