/* te/plan.h - a plan: what runs for a sequence at given shapes under a recipe. */
#ifndef TE_PLAN_H
#define TE_PLAN_H

#include <stddef.h>
#include <stdint.h>
#include <te/op.h>
#include <te/seq.h>

TE_BEGIN_DECLS

struct te_plan; /* opaque, reference counted */

#define TE_PLAN_TRAIN 1u	/* plan backward too */
#define TE_PLAN_DELAY_DW 2u	/* weight gradients only by te_plan_backward_dw */
#define TE_PLAN_NO_FUSION 4u	/* basic ops only, for comparison */
#define TE_PLAN_INPUT_GRAD 8u	/* the first op's dx is wanted: te_plan_input_grad */
/* plan and lay out only: prints and memory work, running is -TE_ESTATE */
#define TE_PLAN_NO_ALLOC 16u
#define TE_PLAN_EXTERNAL 32u	/* arena, inputs and outputs are the caller's: te_plan_bind */

struct te_plan_opts {
	size_t size;
	struct te_recipe recipe;
	uint32_t flags;
	struct te_spec x; /* main input, for example [B,T] INT32 */
	/* plan only the ops before this one; its input is the output. NULL: all */
	const char *stop_before;
	/* plan only this op and those behind it; x is its main input. NULL: from the first */
	const char *start_at;
};
#define TE_PLAN_OPTS_INIT \
	{ sizeof(struct te_plan_opts), TE_RECIPE_INIT, 0, { TE_DTYPE_INT32, 0, { 0 } }, 0, 0 }

/**
 * te_plan_create - infer shapes, fuse, lay out memory, allocate it
 *
 * Errors: -EINVAL, -ENOMEM (how much it needs and what is there), -TE_ESHAPE and
 * -TE_EDTYPE (naming the op), -TE_EPLAN, -TE_ESTATE (sequence not initialised), -TE_ECUDA.
 * Release a plan only when streams other than the context's own have finished with it.
 */
TE_EXPORT int te_plan_create(struct te_seq *seq, const struct te_plan_opts *opts,
			     struct te_plan **ret_plan);
TE_EXPORT struct te_plan *te_plan_ref(struct te_plan *plan);
TE_EXPORT struct te_plan *te_plan_unref(struct te_plan *plan);
TE_EXPORT uint32_t te_plan_flags(const struct te_plan *plan); /* TE_PLAN_* it was made with */

/* static tensors, borrowed: "x" or a channel of te_seq_input; NULL when there is none of
 * that name */
TE_EXPORT struct te_tensor *te_plan_input(struct te_plan *plan, const char *name);
/* main output of the last op */
TE_EXPORT struct te_tensor *te_plan_output(struct te_plan *plan);
/* write before backward; NULL when the last op is a loss */
TE_EXPORT struct te_tensor *te_plan_output_grad(struct te_plan *plan);
TE_EXPORT struct te_tensor *te_plan_input_grad(struct te_plan *plan);

/* Memory of the caller for a plan with TE_PLAN_EXTERNAL. Tensors have the specs of te_plan_spec. */
struct te_plan_binding {
	size_t size; /* set by the INIT macro; lets the struct grow */
	void *arena; /* te_plan_memory's arena_nbytes, aligned to 256 bytes */
	int32_t nin; /* inputs: "x" and the channels of te_seq_input that the plan reads */
	const char *const *in_name;
	struct te_tensor *const *in;
	struct te_tensor *out;
	struct te_tensor *out_grad; /* NULL where te_plan_spec has none, and so below */
	struct te_tensor *in_grad;
	/*
	 * device FP32 word: a forward that finds 1.0 there leaves the weights' copies as they
	 * are: one recording serves all micro-batches. NULL: TE_RUN_WEIGHTS_CACHED decides
	 */
	const float *weights_cached;
};
#define TE_PLAN_BINDING_INIT { sizeof(struct te_plan_binding), 0, 0, 0, 0, 0, 0, 0, 0 }

/**
 * te_plan_bind - run on this memory from now on
 *
 * References are taken to the tensors, the arena stays the caller's. What is queued or
 * recorded already keeps the memory it was queued with. Nothing lives in the arena but from a
 * forward to the end of its backward (and backward_dw).
 * Errors: -EINVAL (names what is missing, unknown or another tensor too), -TE_ESHAPE, -TE_EDTYPE,
 * -TE_ESTATE (made without TE_PLAN_EXTERNAL), -ENOMEM.
 */
TE_EXPORT int te_plan_bind(struct te_plan *plan, const struct te_plan_binding *binding);

/**
 * te_plan_spec - dtype and shape of a boundary value
 * @name: "x", a channel that the plan reads, "out", "out_grad" or "in_grad"
 *
 * Errors: -ENOENT, when the plan has no such value, without a sentence.
 */
TE_EXPORT int te_plan_spec(const struct te_plan *plan, const char *name, struct te_spec *ret_spec);
/* names of inputs in order, "x" first; NULL behind the last */
TE_EXPORT const char *te_plan_input_name(const struct te_plan *plan, int index);

/* weight copies are current: skip casting them (micro-batches after the first) */
#define TE_RUN_WEIGHTS_CACHED 1u
/**
 * te_plan_forward, te_plan_backward, te_plan_backward_dw - queue a pass
 *
 * Nothing is allocated; under capture the same calls are recorded. Forward of
 * a training plan records amaxes and, at its end, updates forward scales; backward
 * ends with the gradient scales. Weight gradients are added to te_seq_grads.
 * Errors: -TE_ESTATE (backward without forward, no training plan), -TE_ECUDA, ...
 */
TE_EXPORT int te_plan_forward(struct te_plan *plan, struct te_stream *stream, uint32_t flags);
TE_EXPORT int te_plan_backward(struct te_plan *plan, struct te_stream *stream);
TE_EXPORT int te_plan_backward_dw(struct te_plan *plan, struct te_stream *stream);

/**
 * te_plan_regions - what a plan's passes change, with its sequence's regions
 *
 * Not the arena, whose contents nobody needs once a backward pass has ended.
 */
TE_EXPORT int te_plan_regions(const struct te_plan *plan, te_region_fn fn, void *arg);

struct te_plan_memory {
	size_t size;
	uint64_t arena_nbytes;	 /* peak of all activations, gradients and scratch, from liveness */
	uint64_t sum_nbytes;	 /* the same without any reuse */
	uint64_t weights_nbytes; /* masters and gradients */
	uint64_t copies_nbytes;	 /* compute-dtype and FP8 weight copies */
	uint64_t state_nbytes;	 /* quantizers, random state, inputs and outputs */
	uint64_t total_nbytes;	 /* sequence and plan; a GPU adds te_mem_info's workspace */
};
TE_EXPORT int te_plan_memory(const struct te_plan *plan, struct te_plan_memory *ret_mem);

enum te_plan_format { TE_PLAN_TEXT = 0, TE_PLAN_DOT = 1 };
/* the steps, their fusions, values with offsets; *ret_text is released with free(3) */
TE_EXPORT int te_plan_print(const struct te_plan *plan, enum te_plan_format format,
			    char **ret_text);

/* ---- fusions ---- */

enum te_pass { TE_PASS_FORWARD = 0, TE_PASS_BACKWARD = 1 };
#define TE_FUSION_MAX 6

/* What a fusion's functions see: the calls of the basic steps it replaces, in order.
 * A value between two parts that nobody else needs has no memory: its hp is NULL. */
struct te_fused {
	size_t size;
	int32_t nparts;
	const struct te_op_call *part[TE_FUSION_MAX];
	void *ws;
	size_t ws_nbytes;
};

/*
 * A fusion replaces adjacent basic steps. Step names are the op's name in forward;
 * "<op>" for its backward and "<op>.dw" for its weight gradient in the backward
 * pass; "quantize" for a cast that planning put in (part->x.hp to part->y.q).
 * A pattern word may give choices: "layernorm|rmsnorm".
 */
struct te_fusion {
	size_t size;
	const char *name; /* as plans print it */
	enum te_pass pass;
	const char *pattern[TE_FUSION_MAX]; /* NULL ends it */
	/* may it apply? specs are known, addresses are not: parts' hp/q are non-NULL where
	 * the value is needed outside */
	int (*applies)(const struct te_fused *f); /* 1, 0 or an error; NULL: always */
	size_t (*ws_nbytes)(const struct te_fused *f); /* NULL: the largest of the parts' */
	int (*run)(const struct te_fused *f);
	const char *test; /* the test that shows it equal to the parts */
};
/* tried before the built-in ones, in the order registered; before the first plan (-EBUSY after) */
TE_EXPORT int te_seq_add_fusion(struct te_seq *seq, const struct te_fusion *fusion);

TE_END_DECLS

#endif
