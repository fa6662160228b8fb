/*
 * pipeline.h - the training step of a rank that has a stage of a model: the passes of all
 * micro-batches, and messages to the stages before and after it.
 */
#ifndef PIPELINE_H
#define PIPELINE_H

#include <te/optim.h>
#include <te/step.h>

#include "program.h"
#include "tools/lib/model.h"

struct pipeline_opts {
	const struct te_recipe *recipe;
	const char *schedule; /* PROGRAM_NAMES */
	int graph;	      /* 1: steps after the first replay a recording */
	int32_t nmicro;	      /* micro-batches of a step */
	int64_t B, T;
	struct te_adamw *adamw;
	/* numbers of micro-batches, and the hook of plans, for te_step_create(): ranks_step() */
	const struct te_step_opts *step;
};

struct pipeline;

/* m outlives it. Returns the library's code */
int pipeline_create(const struct model *m, const struct pipeline_opts *o,
		    struct pipeline **ret_pipeline);
/* returns NULL; after the work that was queued has run */
struct pipeline *pipeline_free(struct pipeline *p);
/* tensors of a micro-batch; NULL: in another stage */
void pipeline_tensors(const struct pipeline *p, int32_t micro, struct te_tensor **ret_x,
		      struct te_tensor **ret_targets, struct te_tensor **ret_loss);
/* queue a step; returns the library's code */
int pipeline_run(struct pipeline *p, struct te_stream *stream);

/* times of this rank's chunk in the last step, after it has run; returns the library's code */
int pipeline_times(const struct pipeline *p, int32_t chunk, struct part_times *ret);
/*
 * The fraction of time in which ranks do not run passes, from the first pass to the last one: as it
 * was, and as the schedule makes it with these times of passes of all parts, and messages that
 * take none. Returns the library's code.
 */
int pipeline_bubble(const struct pipeline *p, const struct part_times *times, double *ret_was,
		    double *ret_predicted);

/* create a plan of a chunk of this stage; opts: all but the input and the operations. Returns the
 * library's code */
int pipeline_plan(const struct model *m, const struct te_plan_opts *opts, int32_t chunk, int64_t B,
		  int64_t T, struct te_plan **ret_plan);
/* queue the forward pass of an evaluation, of a plan for each chunk; all stages do so. Returns the
 * library's code */
int pipeline_forward(const struct model *m, struct te_plan *const *plan, struct te_stream *stream);

#endif
