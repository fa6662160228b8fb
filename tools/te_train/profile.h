/* profile.h - the time of each step of a training plan: te_train --profile. */
#ifndef PROFILE_H
#define PROFILE_H

#include "loop.h"

/*
 * Plans a micro-batch, runs its passes eagerly on tokens of the training data, and prints the
 * profile on rank 0; before, trainer_open(). Returns an exit status.
 */
int profile_print(const struct trainer *t);

#endif
