/* mix.h - --memory: what is computed again, divided or offloaded so that a run fits. */
#ifndef MIX_H
#define MIX_H

#include "loop.h"

/*
 * Set --recompute, --loss-chunk and --offload of o, which t has, except those that the command line
 * gives: the mix with the shortest predicted step of all that fit into --memory. Prints all mixes
 * unless --json is set. Returns an exit status: STATUS_BAD if none fits.
 */
int mix_choose(struct opts *o, struct trainer *t);

/*
 * Does a mix with a predicted step of ms milliseconds replace the best of the previous ones?
 * moves: it offloads values. Predictions do not tell differences of 1 or 2 percent: the first mix
 * changes least, and copies take memory bandwidth that is not predicted.
 */
int mix_replaces(double ms, int moves, double best_ms, int best_moves);

#endif
