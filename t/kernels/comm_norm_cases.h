/* t/kernels/comm_norm_cases.h - tests of the fused all-reduce and norm on any backend. */
#ifndef COMM_NORM_CASES_H
#define COMM_NORM_CASES_H

#include "tt.h"

/* parts of it */
void comm_norm_failure_cases(Suite *s);
void comm_norm_launch_cases(Suite *s);

#endif
