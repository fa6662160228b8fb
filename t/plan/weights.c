/* t/plan/weights.c - frozen weights and weights without a master, on either backend. */
#include "config.h"

#include "tt_ctx.h"
#include "weights_cases.h"

TT_PAIR_SUITE("plan/weights")
{

	frozen_cases(s);
	bound_cases(s);
	grads_cases(s);
}
