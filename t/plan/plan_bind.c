/* t/plan/plan_bind.c - plans of parts of a sequence. */
#include "config.h"

#include "plan_bind_cases.h"

TT_PAIR("plan/plan_bind", parts_suite)
