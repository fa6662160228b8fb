/* t/core/gemm.c - te_gemm(3) on the host backend. */
#include "config.h"

#include "gemm_cases.h"

static Suite *suite(void)
{
	return gemm_suite("core/gemm", "host");
}

TT_MAIN("core/gemm", TT_NEED_NOTHING, suite)
