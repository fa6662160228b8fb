/*
 * moves.h - what a plan offloads: which values, when each leaves and returns, and the copies.
 *
 * moves.c chooses values and divides their lifetimes, moves_run.c queues the copies, offload.c has
 * the object that plans share.
 */
#ifndef TE__MOVES_H
#define TE__MOVES_H

#include <pthread.h>
#include <stdatomic.h>

#include <te/offload.h>

#include "libtecore/offload/pinned.h"
#include "libtecore/offload/spill.h"
#include "libtecore/plan/offload.h"
#include "libtecore/plan/plan.h"

/* Values that move together: adjacent in memory in both passes, so one copy each way. */
struct te__move {
	size_t nbytes;
	int nvalues;
	const char *name;     /* of the first */
	int out_buf, in_buf;  /* of all its values, in forward and in backward */
	int out_after;	      /* group that writes its last value: then it is copied out */
	int last_forward;     /* last group of forward that reads it */
	int free_after;	      /* the copy has ended after this group: the memory is reused */
	int in_before;	      /* the copy back is queued before this group */
	int needed;	      /* the first group of backward that reads it */
	int last;	      /* and the last */
	size_t slot, slot_in; /* in the plan's pinned memory: of the copy out, of the copy back */
	/* with a file: after which group it has been written, before which reading it begins */
	int written_by, read_before;
	uint32_t file;	      /* its number in the file */
	int has_file;
	double out_end;	      /* predicted end of the copy out, in seconds, without delays */
	double stall;	      /* predicted, in seconds */
	/* of the moves whose slots it reads into, itself included: the last written before */
	int read_after;
	int next_out, next_in; /* the moves whose copies follow on the link, or -1 */
	struct te_event *out, *in; /* the copies have run */
	struct te_event *filed;	   /* with a file: it has been written */
	/* timed: what else its first reader reads is there; of moves with the same reader one
	 * event, which the first of them records. Or NULL */
	struct te_event *ready;
	int records_ready;
	int leaving;	      /* an eager copy out, and no stream of a pass waits for it yet */
	int writing, reading; /* the same of a write to the file, and of a read that has begun */
};

/* One thing to do between two groups of an eager pass. */
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
	int rank; /* of a kind, lower ones come first */
	int move;
};

struct te__moves {
	int n;
	struct te__move *v; /* in the order in which they leave */
	int nacts;
	struct te__act *act; /* sorted by group and kind */
	int *first_act;	     /* [ngroups + 1] */
	uint64_t nbytes;     /* that move */
	uint64_t filed;	     /* the same in the file, where each begins at a multiple */
	uint64_t held;	     /* of pinned memory */
	uint64_t plain_nbytes; /* of the arena if nothing moves */
	double *start;	     /* [ngroups + 1] seconds from the beginning, estimated */
	uint64_t *inuse;     /* [ngroups] of memory if nothing moves */
	uint64_t most_inuse; /* the largest of them */
	int nbufs;	     /* before any is divided, and their state then */
	struct te__buf *buf;
	void *pinned;
	struct te_event *point;
	int eager; /* the latest forward pass was not captured */
	int armed; /* it was captured: the I/O thread looks at its words */
	struct te_plan *next; /* in the list of the te_offload */
	int listed;
	atomic_int claimed; /* te__plan_claim() */
};

/* Seconds and bytes per second. */
struct te__offload_rates {
	double out, in;	  /* of the link, each way */
	double mem, flop; /* of kernels, for the time of a group */
	double write, read; /* of the file */
};

/* Room in the file: it is never given back, so another plan uses it again. */
#define TE__OFFLOAD_FILES (TE__PINNED_NWORDS / 4)
struct te__offload_file {
	size_t nbytes;
	int used;
};

struct te_offload {
	atomic_int refs;
	struct te_ctx *ctx;
	struct te_offload_opts opts; /* patterns are copies */
	struct te__offload_rates rates;
	struct te_stream *out, *in; /* of eager copies, under lock */
	struct te__pinned *slots;   /* of all plans, with a file; or NULL */
	struct te__spill *spill;
	pthread_mutex_t lock;	    /* all below, and queueing on the streams */
	struct te_plan *plans;	    /* that move values, in the order of their creation */
	uint64_t pinned_nbytes;	    /* of these plans */
	int words;		    /* the device sets and takes words in stream order */
	int narmed;		    /* plans that were captured */
	uint32_t nfiles;	    /* values in the file */
	uint64_t measured_nbytes;   /* of the file, by which its rates were measured */
	struct te__offload_file *file; /* [TE__OFFLOAD_FILES] */
	/* How many bytes plans may still move, and what passes wait for. Set for a group of plans
	 * by te__offload_allow(); 0 directed: each plan follows the options. */
	int directed;
	enum te__waits waits;
	uint64_t left_nbytes;
	uint64_t nforwards, nbytes_out, nbytes_in, ncopies;
};

/* bytes of pinned memory, or of the file, that the options leave */
uint64_t te__offload_room(struct te_offload *o);
/* room for a value in the file */
int te__offload_take_file(struct te_offload *o, size_t nbytes, uint32_t *ret_file);
void te__offload_give_file(struct te_offload *o, uint32_t file);
void te__offload_list(struct te_offload *o, struct te_plan *p, int add);

/* chooses what moves, and places all buffers */
int te__moves_plan(struct te_plan *p);
/* pinned memory and events */
int te__moves_bind(struct te_plan *p);
void te__moves_free(struct te_plan *p);
/* milliseconds that its first reader waited for it in the latest pass; 0: not known */
double te__move_waited_ms(const struct te__move *v);
/* of all first readers of a plan, as far as they did not wait at the same time */
double te__moves_waited_ms(const struct te__moves *m);
/* around group t of a pass: what is due before it, or after it */
int te__moves_run(struct te_plan *p, struct te_stream *stream, int t, int after);
/* after failure r, which it returns: copies that no pass will wait for have run */
int te__moves_drain(struct te_plan *p, int r);
int te__moves_begin(struct te_plan *p, struct te_stream *stream, int first);

#endif
