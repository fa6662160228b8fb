/*
 * returns.h - ranks that were lost and that te_run --respawn has started again.
 *
 * They wait in the folder of te_run (TE_COMM_DIR) until the ranks that train have saved and offer
 * them an id, by which all of them create a new communicator. When every rank was lost, rank 0
 * offers it.
 */
#ifndef RETURNS_H
#define RETURNS_H

#include <stdint.h>

#include <te/comm.h>

#include "ranks.h"

/* ranks of the next communicator, in their order there: those that train, then those that return */
struct offer {
	int32_t n, nold; /* all ranks; those that train, 0 if all were lost */
	int32_t rank[MOST_RANKS];   /* initial numbers */
	int32_t start[MOST_RANKS];  /* how often each was started again; 0 for those that train */
	int64_t nrecovered;	    /* trainer.nrecovered */
	struct te_comm_id id;
};

/* how often this rank was started again; -1: te_run does not start ranks again */
int32_t returns_starts(void);
/* From now on until the process ends, other ranks see that one trains. STATUS_FAILED: a message
 * has been printed. */
int returns_train(void);
/*
 * Rank 0 notes at its first start when the checkpoint in the folder of --out was written, 0 for
 * none. Ranks that are all started again compare: a checkpoint written at another time is of this
 * run.
 */
int returns_note_written(int64_t ns);
int64_t returns_written(void);
/* 1: ranks wait with which r has more whole models that can share nmicro micro-batches; *ret_o: the
 * offer without its id */
int returns_look(const struct ranks *r, int64_t nmicro, struct offer *ret_o);
/* writes the offer to the folder, or reads the latest; a negative errno value */
int returns_write(const struct offer *o);
int returns_read(struct offer *ret_o);
/*
 * A rank that returns: waits for an offer with this rank; *ret_rank: its number there. 1: all
 * nranks wait, and this rank is number 0, which writes *ret_o with an id. A negative errno value,
 * for which a message has been printed: no rank trains any more, and not all wait.
 */
int returns_wait(int32_t number, int32_t nranks, struct offer *ret_o, int32_t *ret_rank);

#endif
