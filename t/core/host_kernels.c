/*
 * t/core/host_kernels.c - the reference kernels of libtecore/host against FP64 computations
 * written beside them, on odd shapes, with poisoned outputs and numbers that are not.
 */
#include "config.h"

#include "host_kernels_lib.h"

static Suite *suite(void)
{
	Suite *s = suite_create("core/host_kernels");

	host_elem_cases(s);
	host_row_cases(s);
	host_act_cases(s);
	host_train_cases(s);
	return s;
}

TT_MAIN("core/host_kernels", TT_NEED_NOTHING, suite)
