/* t/ops/gemm_cases.h - cases of te_gemm and te_gemm_grouped that hold on every backend. */
#ifndef GEMM_CASES_H
#define GEMM_CASES_H

#include "tt.h"

/* the suite on the named backend */
void gemm_cases(Suite *s);

/* cases of te_gemm_grouped */
void gemm_grouped_cases(Suite *s);

#endif
