/* t/graph/recompute_cases.h - te_op_recompute(3) on either backend. */
#ifndef RECOMPUTE_CASES_H
#define RECOMPUTE_CASES_H

#include <te/plan.h>

#include "tt.h"

/* fills the arena of a plan, but for the values that forward has kept, with 0xff */
void poison_arena(struct te_plan *p);

#endif
