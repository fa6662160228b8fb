/* progress.h - output of a run: the progress line, the JSON log and the summary. */
#ifndef PROGRESS_H
#define PROGRESS_H

#include "loop.h"

/* open the log, if any, and write its first line, which describes the run */
int progress_begin(struct trainer *t);
/* the loss of a step is known */
void progress_step(struct trainer *t, int64_t step, double loss, double lr);
/* a validation at done.step */
int progress_eval(struct trainer *t);
/* summary of a run, to stdout; with --json an object, which takes the reference to samples */
void progress_end(struct trainer *t, json_t *samples);

#endif
