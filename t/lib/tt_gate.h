/*
 * tt_gate.h - a host call that waits until the test opens the gate: work queued after it cannot
 * run before that.
 *
 * While the gate is closed, a test must only queue work and copies to and from pinned memory: on
 * CUDA allocating, freeing and copies of pageable memory may wait for the whole device. Host calls
 * of all streams share a thread, so there is only one gate.
 */
#ifndef TT_GATE_H
#define TT_GATE_H

/* opens the gate and clears tt_gate_timed_out() */
void tt_gate_setup(void);
/* the test fails if a waiter was released by the timeout of 20 s */
void tt_gate_teardown(void);

/* a function for te_host_call(3), with nbytes 0 */
void tt_gate_wait(void *arg);
void tt_gate_close(void);
void tt_gate_open(void);
/* opens it from a thread, which the next tt_gate_close or tt_gate_teardown joins */
void tt_gate_open_later(int ms);
int tt_gate_is_open(void);
/* 1: a waiter was released by the timeout */
int tt_gate_timed_out(void);

void tt_sleep_ms(int ms);

#endif
