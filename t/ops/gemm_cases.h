/* t/ops/gemm_cases.h - cases of te_gemm that hold on every backend. */
#ifndef GEMM_CASES_H
#define GEMM_CASES_H

#include "tt.h"

/* the suite on the named backend */
Suite *gemm_suite(const char *name, const char *backend);

#endif
