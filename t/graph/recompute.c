/* t/graph/recompute.c - values that backward computes again: te_op_recompute(3). */
#include "config.h"

#include "recompute_cases.h"

TT_PAIR("graph/recompute", recompute_suite)
