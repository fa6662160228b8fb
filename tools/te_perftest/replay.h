/* replay.h - compares queueing work call by call with replaying a recording of it. */
#ifndef REPLAY_H
#define REPLAY_H

#include "bench.h"

struct replay {
	struct bench *b;  /* the caller sets b, queue and arg; the rest is 0 */
	bench_work queue; /* all of the work, as calls of the library */
	void *arg;
	uint32_t edges; /* TE_CAPTURE_* of all recordings */
	struct te_recording *rec;
	int64_t nupdates, nin_place;
	int launches; /* launches queued back to back in one sample */
};

/* bit i of the option's field: value i of TE_CAPTURE_*. replay_row() adds the mode to the row */
#define REPLAY_EDGES 4
#define EDGES_OPTION                                                            \
	{                                                                       \
		"edges", OPTION_WORDS, AT(edges), "serial,pdl,all", 0, 0, 0,    \
			"serial|concurrent|pdl|all",                            \
			"capture flags: 0, TE_CAPTURE_CONCURRENT, _PDL or both" \
	}
void replay_row(struct replay *p);
/* records the work; returns the library's code */
int replay_record(struct replay *p);
/* records the work again, into the same recording */
int replay_update(struct replay *p);
/* queues one launch of the recording; a bench_work */
int replay_launch(void *arg);
/* measures and adds REPLAY_SERIES figures to the row; returns an exit status */
#define REPLAY_SERIES 5
int replay_measure(struct replay *p);
void replay_free(struct replay *p);

/* columns of these figures; a test puts the keys that identify its rows before them */
extern const struct column replay_columns[];

#endif
