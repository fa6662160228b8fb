/* t/kernels/kernels.c - kernels of all families, at aligned and at unaligned addresses. */
#include "config.h"

#include "kernel_lib.h"
#include "tt_ctx.h"

static void setup_odd(void)
{
	kc_unaligned(1);
}

TT_PAIR_SUITE("kernels/kernels")
{
	TCase *odd;

	odd = kl_case(s, "unaligned addresses");
	tcase_add_checked_fixture(odd, setup_odd, NULL);
	kernel_elem_cases(s, odd);
	kernel_few_rows_cases(s);
	kernel_row_cases(s, odd);
	kernel_act_cases(s, odd);
	kernel_train_cases(s, odd);
	kernel_weights_cases(s, odd);
}
