/* stop.h - signals that end a run after the step that it makes. */
#ifndef STOP_H
#define STOP_H

#include <stdint.h>

/* what the run does, for the message that a signal prints */
/* STOP_RANKS: of several ranks, which agree on the step */
enum stop_phase { STOP_STEP, STOP_VALIDATION, STOP_SAVE, STOP_SAMPLE, STOP_RANKS };

/*
 * From now on SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2 and SIGXCPU ask the run to stop, once
 * stop_at() is told the step. SIGINT ends the process at once if it is not the first of them.
 * Those that are ignored, as by nohup(1) or for what a script starts with &, stay so.
 */
void stop_on_signals(void);
/* the run is in this phase, and step is the last one it makes if a signal arrives; saves: or not */
void stop_phase(enum stop_phase phase, int64_t step, int saves);
/* the run begins again with an earlier step: if it was asked to stop, it does at this one */
void stop_again(int64_t step);
/* was the run asked to stop at this step, or before */
int stop_at(int64_t step);
/* the step at which it was asked to stop; INT64_MAX: it was not */
int64_t stop_requested(void);

#endif
