/*
 * t/kernels/host_kernels.c - the reference kernels of kernels/ against independent FP64
 * computations, on uneven shapes, with poisoned outputs, infinities and NaN.
 */
#include "config.h"

#include "host_kernels_lib.h"

TT_SUITE("kernels/host_kernels", TT_ONE_PROCESS)
{

	host_elem_cases(s);
	host_row_cases(s);
	host_act_cases(s);
	host_train_cases(s);
	host_block_cases(s);
	host_nvfp4_cases(s);
}
