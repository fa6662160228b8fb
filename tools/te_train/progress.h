/* progress.h - what a run shows while it runs: the progress line and the JSON log. */
#ifndef PROGRESS_H
#define PROGRESS_H

#include "loop.h"

/* open the log, if there is one, and write its first line: what runs */
int progress_begin(struct trainer *t);
/* a step's loss came back */
int progress_step(struct trainer *t, int64_t step, double loss, double lr);
/* a validation at done.step */
int progress_eval(struct trainer *t);
/* the last line of a run, to stdout; with --json an object, which takes the samples (stolen) */
void progress_end(struct trainer *t, json_t *samples);

#endif
