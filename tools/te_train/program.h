/*
 * program.h - the order in which the ranks of a pipeline run passes and exchange messages.
 *
 * Chunk c of rank r is part c N + r of a model that N ranks divide. Its forward pass of a
 * micro-batch needs the output of the part before, and its backward pass the gradient that the part
 * after it computes.
 */
#ifndef PROGRAM_H
#define PROGRAM_H

#include <te/schedule.h>

struct pass {
	enum te_sched_kind kind;
	int32_t chunk, micro;
};

/* a pass, or the messages of one te_comm_sendrecv() */
struct action {
	int32_t pass;	      /* index of the pass; -1: messages */
	int32_t to, from;     /* ranks, or -1: no message */
	struct pass sends;    /* the pass whose result goes to `to` */
	struct pass receives; /* the pass that needs what comes from `from` */
};

struct rank_program {
	struct pass *pass; /* [npasses] */
	struct action *action;
	int32_t nactions;
	int32_t *nplans; /* [nchunks] plans that serve the micro-batches of a chunk in turn */
};

struct program {
	int32_t nranks, nchunks, nmicro;
	int32_t npasses;	   /* passes of a rank */
	int separate;		   /* 1: weight gradients have passes, TE_SCHED_W */
	struct rank_program *rank; /* [nranks] */
};

/* schedules of ranks, by name */
#define PROGRAM_NAMES "gpipe|1f1b|interleaved|zero-bubble"
int program_knows(const char *name);
/* 1: ranks can have several chunks */
int program_has_chunks(const char *name);

/*
 * name: one of PROGRAM_NAMES.
 *	gpipe		all forward passes first
 *	1f1b		rank r runs N - r forward passes, then backward and forward alternate
 *	interleaved	the same with several chunks, whose passes take turns after N micro-batches
 *	zero-bubble	interleaved, or 1f1b with one chunk, with weight gradients in passes that
 *			run where a rank would wait, or would keep more than the first rank of
 *			interleaved does
 * Returns 0, -EINVAL or -ENOMEM. program_free() after a failure, too.
 */
int program_create(const char *name, int32_t nranks, int32_t nchunks, int32_t nmicro,
		   struct program *ret_p);
void program_free(struct program *p);

/* times in milliseconds of a part of the model, without waits except in span */
struct part_times {
	float pass[3]; /* mean by enum te_sched_kind; 0: none */
	float span;    /* from the begin of its rank's first pass to the end of the last one */
};

/* the end of the last pass if passes take time[part], and messages none; negative: no memory */
double program_span(const struct program *p, const struct part_times *time);

#endif
