/*
 * t/kernels/host_kernels.c - the reference kernels of kernels/ against independent FP64
 * computations, on uneven shapes, with poisoned outputs, infinities and NaN.
 */
#include "config.h"

#include "host_kernels_lib.h"

TT_MAIN("kernels/host_kernels", TT_ONE_PROCESS)
