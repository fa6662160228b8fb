/* t/kernels/kernel_cases.h - each kernel except attention against its reference function. */
#ifndef KERNEL_CASES_H
#define KERNEL_CASES_H

#include "tt.h"

/* the suite on the named backend */
Suite *kernel_suite(const char *name, const char *backend);

#endif
