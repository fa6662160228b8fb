/* stop.h - signals that end a run after the step in progress. */
#ifndef STOP_H
#define STOP_H

#include <signal.h>
#include <stdint.h>

/* phase of a run, for the message that a signal prints; STOP_RANKS: several ranks, which agree on
 * the step */
enum stop_phase { STOP_STEP, STOP_VALIDATION, STOP_SAVE, STOP_SAMPLE, STOP_RANKS };

/*
 * From now on SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2 and SIGXCPU ask the run to stop; stop_at()
 * reports it. SIGINT ends the process if it is not the first of them. Ignored signals, as
 * by nohup(1) or in a background process of a script, stay ignored.
 */
void stop_on_signals(void);
/* set the action of a signal, unless it is ignored */
void stop_action(int sig, const struct sigaction *sa);
/* set the phase of the run, and the last step if a signal arrives; saves: 1 if it saves then */
void stop_phase(enum stop_phase phase, int64_t step, int saves);
/* the run restarts with an earlier step: if it was asked to stop, it stops at this step */
void stop_again(int64_t step);
/* was the run asked to stop at this step or before? */
int stop_at(int64_t step);
/* the step at which it was asked to stop; INT64_MAX: it was not */
int64_t stop_requested(void);

#endif
