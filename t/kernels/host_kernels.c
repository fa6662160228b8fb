/*
 * t/kernels/host_kernels.c - the reference kernels of kernels/ against independent FP64
 * computations, on uneven shapes, with poisoned outputs, infinities and NaN.
 */
#include "config.h"

#include "host_kernels_lib.h"

static Suite *suite(void)
{
	Suite *s = suite_create("kernels/host_kernels");

	host_elem_cases(s);
	host_row_cases(s);
	host_act_cases(s);
	host_train_cases(s);
	host_block_cases(s);
	return s;
}

TT_MAIN("kernels/host_kernels", TT_NEED_NOTHING, suite)
