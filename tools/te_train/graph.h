/* graph.h - a training step as a graph: the model's parts, and the order of their passes. */
#ifndef GRAPH_H
#define GRAPH_H

#include <te/graph.h>
#include <te/optim.h>

#include "model.h"
#include "opts.h"

/*
 * --accum is the number of micro-batches of the schedule. Without --pipeline-schedule the backward
 * pass of each follows its forward pass, so that all share memory.
 */
struct step_graph {
	const struct opts *o;
	struct config cfg;
	struct te_recipe recipe;
	int64_t B, T;
	int32_t accum;
	struct te_seq *seq; /* borrowed, as is opt: see step_graph_create */
	struct te_adamw *opt;
	struct te_schedule *schedule;
	int32_t nchunks, nparts;
	int32_t *nlayers; /* [nchunks] number of parts */
	struct te_graph *graph;
};

/* schedule and parts from the options; before, set cfg, recipe, B and T of g */
int step_graph_plan(const struct opts *o, struct step_graph *g);
/* capture, unless it is off; seq and opt must outlive g */
int step_graph_create(struct step_graph *g, struct te_seq *seq, struct te_adamw *opt);
void step_graph_free(struct step_graph *g);

struct step_memory {
	uint64_t pool_nbytes; /* activations, without workspace */
	uint64_t own_nbytes;  /* of the plans, outside the pool */
};
/* what step_graph_create would allocate with micro-batches of B sequences. seq is complete. Returns
 * what the library returned */
int step_graph_measure(const struct step_graph *g, struct te_seq *seq, int64_t B,
		       struct step_memory *ret);

/* a plan of one part; flags: in addition to those that the part needs */
int step_graph_part(const struct step_graph *g, struct te_seq *seq, int32_t part, uint32_t flags,
		    struct te_plan **ret_plan);

/* the tokens "x" and MODEL_TARGETS of a micro-batch, and its loss, "out" */
struct te_tensor *step_graph_tensor(const struct step_graph *g, int64_t micro, const char *name);

/* for the log: a new reference */
json_t *step_graph_to_json(const struct step_graph *g);

#endif
