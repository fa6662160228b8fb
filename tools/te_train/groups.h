/* groups.h - weights with a learning rate and other options of AdamW of their own. */
#ifndef GROUPS_H
#define GROUPS_H

#include "opts.h"

/*
 * Sets o->group from o->groups: groups separated by semicolons, each with patterns, a colon, and
 * rate=X, decay=X, beta1=X and beta2=X, of which those that are missing are as for other weights.
 * Returns an exit status.
 */
int groups_parse(struct opts *o);
void groups_free(struct opts *o);

#endif
