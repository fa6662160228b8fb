/* progress.h - output of a run: the progress line, the JSON log and the summary. */
#ifndef PROGRESS_H
#define PROGRESS_H

#include "loop.h"
#include "tools/lib/record.h"

/* open the log, if any, and write its first line, which describes the run */
int progress_begin(struct trainer *t);
/* called when the loss of a step is known */
void progress_step(struct trainer *t, int64_t step, double end_s, double loss, double lr);
/* called before batch k of n of a validation, to show that it goes on */
void progress_eval_batch(struct trainer *t, int64_t k, int64_t n);
/* called for a validation at done.step */
int progress_eval(struct trainer *t);
/* prints the summary of a run on stdout, with --json an object; ends samples, a record with a list
 * of that name; returns an exit status */
int progress_end(struct trainer *t, struct record *samples);

#endif
