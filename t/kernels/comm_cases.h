/* t/kernels/comm_cases.h - tests of the collective kernels on any backend. */
#ifndef COMM_CASES_H
#define COMM_CASES_H

#include "tt.h"

void comm_cases(Suite *s);

#endif
