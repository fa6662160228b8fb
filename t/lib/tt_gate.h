/*
 * tt_gate.h - a host call that waits until the test opens it: what is queued behind it cannot have
 * run.
 *
 * While it is closed a test only queues work, and copies to and from pinned memory: on CUDA
 * allocating, freeing and copies of pageable memory may wait for the whole device, and host
 * calls of all streams share a thread, so there is one gate.
 */
#ifndef TT_GATE_H
#define TT_GATE_H

/* opens it, and forgets that it was not opened in time */
void tt_gate_setup(void);
/* the test fails if it was not opened within 20 s: then what waited went on */
void tt_gate_teardown(void);

/* for te_host_call(3), without bytes */
void tt_gate_wait(void *arg);
void tt_gate_close(void);
void tt_gate_open(void);
/* by a thread, which the next tt_gate_close and tt_gate_teardown wait for */
void tt_gate_open_later(int ms);
int tt_gate_is_open(void);
/* whether it was not opened in time */
int tt_gate_timed_out(void);

void tt_sleep_ms(int ms);

#endif
