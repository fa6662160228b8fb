/*
 * moves.h - the values that a plan offloads, and the times of their copies.
 *
 * moves.c chooses values and divides their lifetimes, moves_times.c plans the times of the copies,
 * moves_run.c queues them, report.c reports them. offload/offload.h has the object that plans
 * share.
 */
#ifndef TE__MOVES_H
#define TE__MOVES_H

#include <pthread.h>
#include <stdatomic.h>

#include "libtecore/offload/offload.h"
#include "libtecore/plan/plan.h"

/* A move: values that are adjacent in memory in both passes, with one copy each way. */
struct te__move {
	size_t nbytes;
	int nvalues;
	const char *name;     /* name of the first value */
	int out_buf, in_buf;  /* buffers of all its values, in forward and in backward */
	int out_after;	      /* group that writes its last value: then it is copied out */
	int last_forward;     /* last group of forward that reads it */
	int free_after;	      /* group after which the copy has ended and the memory is reused */
	int in_before;	      /* group before which the copy back is queued */
	int needed;	      /* first group of backward that reads it */
	int last;	      /* last group of backward that reads it */
	size_t slot, slot_in; /* offsets in pinned memory for the copy out and the copy back */
	/* with a file: group after which it has been written, group before which its read begins */
	int written_by, read_before;
	uint32_t file;	      /* its number in the file */
	int has_file;
	double out_end;	      /* predicted end of the copy out, in seconds, without delays */
	double stall;	      /* predicted stall, in seconds */
	/* the last write to end among the moves whose slots it reads into, itself included */
	int read_after;
	int next_out, next_in; /* moves whose copies follow on the link, or -1 */
	struct te_event *out, *in; /* the copies have run */
	struct te_event *filed;	   /* with a file: it has been written */
	/* timed: all other inputs of its first reader are ready. Moves with the same reader share
	 * one event, which the first of them records. Or NULL */
	struct te_event *ready;
	int records_ready;
	int leaving;	      /* an eager copy out that no stream of a pass has waited for */
	int writing, reading; /* a write to, or a read from, the file that no stream waited for */
};

/* An action between two groups of a pass. */
enum te__act_kind {
	TE__ACT_READ,
	TE__ACT_LOAD,
	TE__ACT_WAIT_IN,
	TE__ACT_STORE,
	TE__ACT_WAIT_OUT,
	TE__ACT_WRITTEN,
};
struct te__act {
	int group;
	enum te__act_kind kind; /* up to WAIT_IN before the group, the others after it */
	int rank; /* actions of one kind are sorted by rank, lowest first */
	int move;
};

struct te__moves {
	int n;
	struct te__move *v; /* in the order of their copies out */
	int nacts;
	struct te__act *act; /* sorted by group and kind */
	int *first_act;	     /* [ngroups + 1] */
	uint64_t nbytes;     /* bytes of all moves */
	uint64_t filed;	     /* bytes in the file, where each move begins at a multiple */
	uint64_t held;	     /* bytes of pinned memory */
	uint64_t plain_nbytes; /* size of the arena without moves */
	double *start;	     /* [ngroups + 1] estimated begin of each group, in seconds */
	uint64_t *inuse;     /* [ngroups] bytes in use without moves */
	uint64_t most_inuse; /* maximum of inuse */
	int nbufs;	     /* number of buffers before any is divided */
	struct te__buf *buf; /* their state then */
	void *pinned;
	struct te_event *point;
	int eager; /* the latest forward pass was not captured */
	int armed; /* 1: the latest forward pass was captured: the I/O thread polls its words */
	struct te_plan *next; /* in the list of the te_offload */
	int listed;
	atomic_int claimed; /* te__plan_claim() */
};

/* moves_times.c: set start, and inuse and most_inuse, from the state of all buffers in buf */
int te__moves_times(struct te_plan *p);
int te__moves_inuse(struct te_plan *p);
/* predicted time of a forward and a backward pass, with waits for moves */
double te__moves_pass_ms(const struct te_plan *p);
/* set the times of n moves, which are sorted by out_after */
int te__moves_schedule(const struct te_plan *p, struct te__move *v, int n);
/* bytes of n moves */
uint64_t te__moves_sum(const struct te__move *v, int n);

static inline int smaller(int a, int b)
{
	return a < b ? a : b;
}

static inline int larger(int a, int b)
{
	return a > b ? a : b;
}

/* chooses the moves, and places all buffers */
int te__moves_plan(struct te_plan *p);
/* allocates pinned memory and events */
int te__moves_bind(struct te_plan *p);
void te__moves_free(struct te_plan *p);
/* milliseconds that the first reader of a move waited for it in the latest pass; 0: not known */
double te__move_waited_ms(const struct te__move *v);
/* milliseconds that first readers of a plan's moves waited; concurrent waits count once */
double te__moves_waited_ms(const struct te__moves *m);
/* queue the actions before group t of a pass, or after it */
int te__moves_run(struct te_plan *p, struct te_stream *stream, int t, int after);
/* wait for copies that no pass will wait for after failure r; returns r */
int te__moves_drain(struct te_plan *p, int r);
int te__moves_begin(struct te_plan *p, struct te_stream *stream, int first);

#endif
