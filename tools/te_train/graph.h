/* graph.h - the training step of a run: its options, and its report. */
#ifndef GRAPH_H
#define GRAPH_H

#include <te/step.h>

#include "opts.h"
#include "pipeline.h"
#include "ranks.h"
#include "tools/lib/model.h"

/*
 * --accum is the number of micro-batches. Without --pipeline-schedule the backward pass of each
 * follows its forward pass, so that all share memory.
 */
struct step_graph {
	const struct opts *o;
	struct config cfg;
	struct te_recipe recipe;
	const struct ranks *ranks;
	int64_t B, T;
	int32_t accum, nchunks, ncuts;
	const char **cut; /* ops with which the second and later plans begin */
	int32_t *nlayers; /* [nchunks] */
	struct te_schedule *schedule; /* NULL: the default */
	struct te_offload *offload;   /* or NULL */
	int32_t nrecompute; /* values that are computed again in backward, if backward needs them */
	char **recompute;
	uint32_t costly; /* not 0: such as linear operations are among them */
	/* after step_graph_create(): one of the two; a pipeline if model is a stage */
	struct te_step *step;
	struct pipeline *pipeline;
	const struct model *model;
	/* [accum] tensors of the micro-batches; NULL: in another stage */
	struct te_tensor **x, **targets, **documents, **loss;
};

/* creates schedule and plans from the options; cfg, recipe, B, T, accum and ranks of g are set */
int step_graph_plan(const struct opts *o, struct step_graph *g);
/* capture, unless it is off; the model outlives g */
int step_graph_create(struct step_graph *g, const struct model *m, struct te_adamw *opt);
/* queue a step; returns the library's code */
int step_graph_run(const struct step_graph *g, struct te_stream *stream);
void step_graph_free(struct step_graph *g);

/* create a step with micro-batches of B sequences; flags: TE_STEP_*, in addition to the options'.
 * Returns the library's code */
int step_graph_make(const struct step_graph *g, struct te_seq *seq, struct te_adamw *opt, int64_t B,
		    uint32_t flags, struct te_step **ret_step);

/* selects the values to recompute, as --recompute says; returns an exit status */
int step_graph_recompute(struct step_graph *g, const struct te_seq *seq);

/* Effect of --recompute in all parts of a step. */
struct recomputed {
	uint64_t nbytes; /* bytes of values that are computed again */
	int n, nstay;	 /* number of values that are computed again; of values that stay */
	char why[512];	 /* name of the first value that stays, and the reason */
};
void step_graph_recomputed(const struct step_graph *g, struct recomputed *ret);

/* create an offload that moves values until the activations of a step take target_nbytes; 0: all
 * values that move without delays, up to move_nbytes, 0: no limit. Returns the library's code */
int step_graph_offload(const struct step_graph *g, struct te_ctx *ctx, uint64_t target_nbytes,
		       uint64_t move_nbytes, struct te_offload **ret_offload);

/* returns a new object for the log */
json_t *step_graph_to_json(const struct step_graph *g);

#endif
