/* numerics.h - special values in the passes of a micro-batch: te_train --numerics. */
#ifndef NUMERICS_H
#define NUMERICS_H

#include "loop.h"

/*
 * Runs the passes of a micro-batch of training data once more, without fusions, and appends a JSON
 * line for each value that they write to --numerics, on rank 0. The first value that is not finite
 * is named on stderr. All ranks call it together. Training has the bits that it has without it.
 * Returns an exit status.
 */
int numerics_write(struct trainer *t);
/* The same with the tokens of a step, up to the first micro-batch with a value that is not
 * finite. */
int numerics_of_step(struct trainer *t, const struct slot *s);

#endif
