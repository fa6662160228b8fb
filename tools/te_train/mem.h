/* mem.h - the memory that a run takes, known before anything is allocated. */
#ifndef MEM_H
#define MEM_H

#include "graph.h"
#include "opts.h"
#include "tools/lib/choices.h"
#include "tools/lib/model.h"

/* A planned run. The sequence of the model is complete; it needs no memory yet. */
struct mem_run {
	const struct opts *o;
	const struct model *model;
	const struct step_graph *graph;
	int train; /* else samples only */
	struct te_offload *offload; /* offload whose target --offload auto sets; NULL: new ones */
	const struct choices *choices; /* questions of --eval-choices, perhaps none */
};

/* sizes in bytes, on the device unless stated otherwise */
struct mem {
	uint64_t weights, grads, moments, copies;
	uint64_t all_moments; /* moments of all ranks, which rank 0 saves */
	uint64_t host_states; /* in host memory: moments, remainders, masters and gradients */
	uint64_t file_states; /* in the file of --states-file */
	uint64_t host_rereads; /* bytes of them that a step reads a second time */
	uint64_t activations; /* activations of a step, and of validation or samples */
	uint64_t state;	      /* quantizers, random state, optimizer, workspaces of GEMMs */
	uint64_t total;	      /* peak */
	uint64_t host;	      /* host memory: tokens, tensors of a file, offloaded, moments */
	uint64_t pool;	      /* activations of a step */
	uint64_t offloaded;   /* bytes that --offload moves */
	uint64_t pinned;      /* bytes of pinned memory for --offload */
	double hidden;	      /* predicted share of these copies that no pass waits for */
	double step_ms;	      /* predicted time of a step; 0 without an offload's rates */
};

/* returns text: in GiB, or in MiB below 1 GiB */
const char *mem_amount(uint64_t nbytes, char text[32]);

/* B: sequences of a micro-batch. Returns the library's code. */
int mem_estimate(const struct mem_run *run, int64_t B, struct mem *ret);

struct mem_fit {
	int fits, moves; /* moves: with an offload that moves as little as makes the run fit */
};
/*
 * Estimate without an offload if the run fits so, else with one, if it may move. run->offload
 * predicts the times and is not NULL. Returns an exit status.
 */
int mem_try(const struct mem_run *run, int may_move, struct mem *ret, struct mem_fit *ret_fit);

/* sets the offload of g, the graph of run, as --offload says; returns an exit status */
int mem_offload(const struct mem_run *run, struct step_graph *g);
/* STATUS_BAD, with a message, if the run takes more than is free */
int mem_check(const struct mem_run *run);
/* --estimate: prints the memory and the largest batch that fits; returns an exit status */
int mem_print(const struct mem_run *run);

#endif
