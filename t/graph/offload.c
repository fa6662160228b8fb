/* t/graph/offload.c - te_offload_*(3): values leave device memory between forward and backward. */
#include "config.h"

#include "offload_cases.h"

TT_PAIR("graph/offload", offload_suite)
