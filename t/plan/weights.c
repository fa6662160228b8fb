/* t/plan/weights.c - frozen weights and weights without a master. */
#include "config.h"

#include "weights_cases.h"

TT_PAIR("plan/weights", weights_suite)
