/* replay.h - the same work queued call by call and replayed: what each costs. */
#ifndef REPLAY_H
#define REPLAY_H

#include "bench.h"

struct replay {
	struct bench *b;  /* to be set, with queue and arg; the rest 0 */
	bench_work queue; /* all of the work, as calls of the library */
	void *arg;
	uint32_t edges; /* TE_CAPTURE_*, of all recordings */
	struct te_recording *rec;
	int64_t nupdates, nin_place;
	int launches; /* of a sample that is taken back to back */
};

/* how many sorts of edges --edges names; and the row says which one it is about */
#define REPLAY_EDGES 4
int replay_nedges(const struct bench *b);
void replay_row(struct replay *p);
/* records the work: the return of the library */
int replay_record(struct replay *p);
/* records it again, into the same recording */
int replay_update(struct replay *p);
/* queues one launch of what is recorded: a bench_work */
int replay_launch(void *arg);
/* measures, and adds its figures to the row, REPLAY_SERIES of them; an exit status */
#define REPLAY_SERIES 5
int replay_measure(struct replay *p);
void replay_free(struct replay *p);

/* columns of those figures, behind the keys that tell rows of each test apart */
extern const struct column replay_columns[];

#endif
