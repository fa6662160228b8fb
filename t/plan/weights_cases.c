/* t/plan/weights_cases.c - the suite of weights.c and weights_gpu.c. */
#include "config.h"

#include "tt_ctx.h"
#include "weights_cases.h"

Suite *weights_suite(const char *name, const char *on)
{
	Suite *s = suite_create(name);

	backend = on;
	frozen_cases(s);
	bound_cases(s);
	return s;
}
