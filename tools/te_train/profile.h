/* profile.h - the time of each step of a training plan: te_train --profile. */
#ifndef PROFILE_H
#define PROFILE_H

#include "loop.h"

/* a training plan of a micro-batch; flags: TE_PLAN_* besides. The functions return exit statuses */
int profile_plan(const struct trainer *t, uint32_t flags, struct te_plan **ret_plan);
/* write rows of the training data, at offsets that depend on the step, to its inputs */
int profile_draw(const struct trainer *t, struct te_plan *plan, int64_t step);

/*
 * Plans a micro-batch, runs its passes eagerly on tokens of the training data, and prints the
 * profile on rank 0; before, trainer_open(). Returns an exit status.
 */
int profile_print(const struct trainer *t);

#endif
