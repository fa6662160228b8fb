/* t/kernels/kernels.c - kernels; on the host, that is a test of kernel_check.c. */
#include "config.h"

#include "kernel_cases.h"

TT_PAIR("kernels/kernels", kernel_suite)
