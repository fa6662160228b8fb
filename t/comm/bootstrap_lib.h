/* t/comm/bootstrap_lib.h - ranks that meet, for t/comm/bootstrap_{faults,setup,strangers}.c. */
#ifndef BOOTSTRAP_LIB_H
#define BOOTSTRAP_LIB_H

#include "libtecomm/meet/bootstrap.h"
#include "tt.h"

#define SOON 20000.0 /* ms: less than the time-out of 30 s */

/* opens with a time-out */
int bf_open(int rank, int timeout_ms, struct te__boot **ret_b);
/* the same, and closes */
int bf_open_only(int rank, int timeout_ms);
int bf_gather(struct te__boot *b, const char *what, int64_t ms);
/* the end of the message of a rank that has waited for TT_SLOWER(ms): "WHAT within TIME" */
const char *bf_within(const char *what, int ms);
/* a rank that opens, exchanges once and closes */
int bf_meet(int rank, void *arg);

#endif
