/*
 * control.h - the control page of a node's ranks: a memfd that all of them map and their devices
 * poll. It records an abort of the communicator, its reason, and the ranks that recover.
 */
#ifndef TE__CONTROL_H
#define TE__CONTROL_H

#include <stdatomic.h>
#include <stdint.h>

#define TE__CONTROL_NBYTES ((size_t)64 << 10)
#define TE__CONTROL_RANKS 4096
#define TE__CONTROL_REASON 240 /* bytes */

/* values of left[]: a rank has left in order; or after a failure, which makes the others fail */
enum { TE__LEFT = 1, TE__LEFT_FAILED };

struct te__control {
	/* words that devices poll are alone in 128 bytes */
	_Alignas(128) _Atomic uint32_t abort; /* not 0: aborted */
	_Alignas(128) _Atomic uint32_t told;  /* 1: the members below are written */
	int32_t code;
	char reason[TE__CONTROL_REASON];
	/* members.h */
	_Alignas(128) _Atomic uint32_t outcome;
	_Atomic uint32_t member[TE__CONTROL_RANKS]; /* by local rank */
	_Atomic uint8_t left[TE__CONTROL_RANKS]; /* by local rank: TE__LEFT* */
};

/* the first call counts; any thread of any process */
void te__control_abort(struct te__control *c, int code, const char *reason);
/* 0, or the code of the abort, and its reason, if that is not NULL */
int te__control_why(const struct te__control *c, char ret_reason[TE__CONTROL_REASON]);
/* 0, or the code with the message "<fn>: <reason>" */
int te__control_check(const struct te__control *c, const char *fn);

#endif
