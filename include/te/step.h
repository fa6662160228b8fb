/*
 * te/step.h - a training step: forward and backward passes of all micro-batches, and the optimizer.
 */
#ifndef TE_STEP_H
#define TE_STEP_H

#include <stddef.h>
#include <stdint.h>
#include <te/export.h>
#include <te/graph.h>
#include <te/optim.h>
#include <te/plan.h>
#include <te/schedule.h>
#include <te/seq.h>

TE_BEGIN_DECLS

struct te_step; /* opaque, reference counted */

#define TE_STEP_GRAPH 1u       /* one graph for the whole step: te_step_run is one launch */
#define TE_STEP_PASS_GRAPHS 2u /* a graph for each pass */
/* allocate nothing: te_step_memory, te_step_plan and te_step_graph work, running returns
 * -TE_ESTATE */
#define TE_STEP_NO_ALLOC 4u
#define TE_STEP_RECOMPUTE_COSTLY 8u /* its plans have TE_PLAN_RECOMPUTE_COSTLY */

struct te_step_opts {
	size_t size;			/* set by the INIT macro; lets the struct grow */
	const struct te_recipe *recipe; /* copied; NULL: bf16, as TE_RECIPE_INIT */
	uint32_t flags;			/* TE_STEP_*; no graph: passes are queued one by one */
	int32_t micro_batches;		/* micro-batches in a step; 1 by default */
	struct te_spec x;		/* main input of one micro-batch, for example [B,T] INT32 */
	/* [nshapes] several x to choose from in each step, instead of x; they share memory */
	const struct te_spec *shapes;
	int32_t nshapes;
	/* divide the sequence into ncuts + 1 plans: names of the first ops of the second and later
	 * plans. Only the main value may pass from one plan to another */
	int32_t ncuts;
	const char *const *cut;
	/* order of the passes, with micro_batches micro-batches and a layer for each plan; NULL:
	 * the backward of each micro-batch follows its forward */
	struct te_schedule *schedule;
	/* hook of all plans; or NULL. TE_PLAN_EVENT_GRAD comes once per step, in the last pass that
	 * adds to the weight's gradient */
	te_plan_hook_fn hook;
	void *hook_arg;
	uint32_t hooks; /* as in te_plan_opts */
	/* for a larger step that several ranks share: number of this rank's first micro-batch, from
	 * 0, and number of micro-batches of all ranks. Total 0: micro_batches */
	int32_t first_micro_batch;
	int32_t total_micro_batches;
	/* offload for saved activations, or NULL; its target bounds the step's pool, and its
	 * move_nbytes bounds all plans of a shape together, first plans first */
	struct te_offload *offload;
	/* values that are computed again in backward, as in te_plan_opts. -EINVAL if a pattern
	 * here or in offload matches no value of any plan */
	int32_t nrecompute;
	const char *const *recompute;
};
#define TE_STEP_OPTS_INIT                                                                          \
	{                                                                                          \
		sizeof(struct te_step_opts), 0, 0, 1, { TE_DTYPE_INT32, 0, { 0 } }, 0, 0, 0, 0, 0, \
			0, 0, 0, 0, 0, 0, 0, 0                                                     \
	}

/**
 * te_step_create - plan a training step, and capture it with TE_STEP_GRAPH or _PASS_GRAPHS
 * @seq:      initialised; its last op is a loss
 * @adamw:    the sequence's optimizer; NULL: steps compute gradients and do not change weights
 * @opts:     copied; not NULL
 * @ret_step: the step, with one reference
 *
 * The gradient of a step is the gradient of the mean of the micro-batches' losses: each micro-batch
 * begins backward with 1 / total_micro_batches times the loss op's factor.
 * Dropout masks depend on the sequence's seed, the step, the micro-batch's number in the larger
 * step and the op. So a step has the same bits with and without graphs. Other divisions into plans
 * and orders of passes give the same bits too, if gradients are added in the same order and the
 * plans have the same fusions (te_plan_print) with a sum or a factor. Such fusions round once where
 * separate steps round twice; see te_step_create(3).
 * All plans and shapes share one memory, laid out for the largest shape. Before capture the passes
 * run once; quantizers and random state are restored, and gradients are undefined until the first
 * step.
 * Thread: one sequence by one thread at a time.  Since: 0.1
 * Errors: -EINVAL, -ENOMEM, -TE_ESHAPE, -TE_EDTYPE, -TE_EPLAN, -TE_ESTATE, and codes that
 * te_plan_create and te_graph_create return.
 */
TE_EXPORT int te_step_create(struct te_seq *seq, struct te_adamw *adamw,
			     const struct te_step_opts *opts, struct te_step **ret_step);
TE_EXPORT struct te_step *te_step_ref(struct te_step *step);
/* releasing the last reference waits for queued steps, as te_graph_unref does */
TE_EXPORT struct te_step *te_step_unref(struct te_step *step);

/**
 * te_step_input, te_step_output - static tensors of a micro-batch
 * @step:        the step
 * @shape:       index of the step's shape in shapes; 0 for x
 * @micro_batch: number of the micro-batch, from 0
 * @name:        "x" or a channel of te_seq_input
 *
 * Borrowed; NULL if there is none. Before every step, and after the results of the previous one
 * have been read, write all inputs: their memory is reused. The output, the loss, is valid until
 * the next step.
 * Thread: one step by one thread at a time.  Since: 0.1
 */
TE_EXPORT struct te_tensor *te_step_input(const struct te_step *step, int32_t shape,
					  int32_t micro_batch, const char *name);
TE_EXPORT struct te_tensor *te_step_output(const struct te_step *step, int32_t shape,
					   int32_t micro_batch);

/**
 * te_step_run - queue a step: zero gradients, passes of all micro-batches, AdamW
 * @step:   the step
 * @shape:  index of the step's shape in shapes; 0 for x
 * @stream: the step is queued on it
 *
 * Steps run serially, also on different streams. te_seq_grads then holds the gradients.
 * Stream: asynchronous; the first step waits for te_step_calibrate. With TE_ADAMW_FILE the call
 * returns after the update, which it has undone if it returns an error of the file.
 * Thread: one step by one thread at a time.  Since: 0.1
 * Errors: -EINVAL, -EBUSY (the stream is capturing), -TE_ESTATE, -TE_ECUDA, codes of the file.
 */
TE_EXPORT int te_step_run(struct te_step *step, int32_t shape, struct te_stream *stream);
/**
 * te_step_calibrate - compute the first scales of recipe fp8-delayed, from the inputs written
 * @step:   the step
 * @shape:  index of the step's shape in shapes; 0 for x
 * @stream: the passes are queued on it
 *
 * Runs the passes of the first micro-batch four times, each with the scales that result from the
 * previous run; other micro-batches add no time. If a step has several, hooks are not called for
 * the gradients of these passes. Weights, optimizer, random state and inputs do not change;
 * te_seq_grads has the gradients. If a quantizer of an input or of a weight has recorded an amax,
 * or the recipe has no such state, it does nothing. A step's first te_step_run calibrates before it
 * runs; call this for passes that run earlier, such as a validation. Plans alone do not calibrate:
 * their first pass has scales of 1.
 * Stream: waits for the device.  Errors: as te_step_run.
 * Thread: one step by one thread at a time.  Since: 0.1
 */
TE_EXPORT int te_step_calibrate(struct te_step *step, int32_t shape, struct te_stream *stream);
/**
 * te_step_loss - the mean loss of this rank's micro-batches in the latest step
 * @step:     the step
 * @ret_loss: the mean loss
 *
 * Stream: waits for the step.
 * Thread: one step by one thread at a time.  Since: 0.1
 * Errors: -EINVAL, -TE_EDTYPE (the loss is not FP32), -TE_ESTATE (no step has run), -ERANGE
 * (*ret_loss is set, but since the last call there were targets that are neither classes nor
 * ignore_index, or tokens outside the vocabulary; the error message gives their number).
 */
TE_EXPORT int te_step_loss(struct te_step *step, double *ret_loss);

/* the plan of a part, counted from 0, borrowed, for inspection; NULL if there is none */
TE_EXPORT struct te_plan *te_step_plan(const struct te_step *step, int32_t shape, int32_t part);
/* the graph, borrowed, for te_graph_report, te_graph_bind and other functions that neither run nor
 * change it; NULL if there is none */
TE_EXPORT struct te_graph *te_step_graph(const struct te_step *step, int32_t shape);

struct te_step_memory {
	size_t size;		   /* set by the INIT macro; lets the struct grow */
	uint64_t pool_nbytes;	   /* inputs, outputs and activations of the largest shape */
	uint64_t workspace_nbytes; /* scratch of GEMMs, allocated with the pool */
	uint64_t plans_nbytes;	   /* memory that plans do not share: te_plan_memory's own_nbytes */
	double passes_ms; /* sum of te_plan_memory's pass_ms over the passes of the first shape */
};
#define TE_STEP_MEMORY_INIT { sizeof(struct te_step_memory), 0, 0, 0, 0 }
TE_EXPORT int te_step_memory(const struct te_step *step, struct te_step_memory *ret_memory);

TE_END_DECLS

#endif
