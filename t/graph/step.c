/* t/graph/step.c - te_step_*(3): training steps of micro-batches. */
#include "config.h"

#include "step_cases.h"

TT_PAIR("graph/step", step_suite)
