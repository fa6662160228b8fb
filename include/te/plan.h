/* te/plan.h - a plan: the steps that run a sequence at given shapes under a recipe. */
#ifndef TE_PLAN_H
#define TE_PLAN_H

#include <stddef.h>
#include <stdint.h>
#include <te/offload.h>
#include <te/op.h>
#include <te/seq.h>

TE_BEGIN_DECLS

struct te_plan; /* opaque, reference counted */

#define TE_PLAN_TRAIN 1u	/* plan backward too */
#define TE_PLAN_DELAY_DW 2u	/* te_plan_backward_dw computes weight gradients */
#define TE_PLAN_NO_FUSION 4u	/* basic ops only, for comparison */
#define TE_PLAN_INPUT_GRAD 8u	/* compute the first op's dx: te_plan_input_grad */
/* allocate nothing: te_plan_print and te_plan_memory work, running returns -TE_ESTATE */
#define TE_PLAN_NO_ALLOC 16u
#define TE_PLAN_EXTERNAL 32u	/* the caller provides arena, inputs, outputs: te_plan_bind */

/* ops with TE_OP_REPEATS_COSTLY, such as linear and attention, can run again in backward, too */
#define TE_PLAN_RECOMPUTE_COSTLY 64u

enum te_pass { TE_PASS_FORWARD = 0, TE_PASS_BACKWARD = 1, TE_PASS_JOINT = 2 /* fusions only */ };

/* ---- hooks ---- */

enum te_plan_event_kind {
	TE_PLAN_EVENT_BEGIN = 0, /* before a step, and TE_PLAN_EVENT_END after it */
	TE_PLAN_EVENT_END = 1,
	/* a weight's gradient is complete: no later step of the plan adds to it */
	TE_PLAN_EVENT_GRAD = 2,
	/* the amaxes of a pass are recorded (te_quant_amax_ptr); scales are updated next */
	TE_PLAN_EVENT_SCALES = 3,
	/* current scaling: the amax of a tensor is complete, and its scale is computed next. Comes
	 * during the step that casts, or its fusion */
	TE_PLAN_EVENT_AMAX = 4,
	TE_PLAN_EVENT_COUNT
};

struct te_plan_event {
	size_t size; /* set by the library; lets the struct grow */
	enum te_plan_event_kind kind;
	struct te_stream *stream; /* stream of the pass */
	enum te_pass pass;
	struct te_op *op;  /* op of the step, or of the weight; NULL: SCALES */
	const char *step;  /* step name, as in fusions: "linear", "linear.dw"; NULL: SCALES */
	int32_t weight;	   /* GRAD: index for te_seq_weight(); else -1 */
	int32_t slot, nslots; /* SCALES, AMAX: slots of te_seq_quant() whose amaxes are used */
};

/*
 * Called while a pass is queued: work that the hook queues on the stream runs at that point, and is
 * recorded if the pass is captured. The steps of a fusion begin together and end together. Events
 * of weights come in backward order. A forward step that runs again in backward is
 * "NAME.recompute". The hook returns 0, or a negative code that ends the pass; te_fail() may set
 * the message.
 */
typedef int (*te_plan_hook_fn)(void *arg, struct te_plan *plan, const struct te_plan_event *event);

struct te_plan_opts {
	size_t size; /* set by the INIT macro; lets the struct grow */
	const struct te_recipe *recipe; /* copied; NULL: bf16, as TE_RECIPE_INIT */
	uint32_t flags;
	struct te_spec x; /* main input, for example [B,T] INT32 */
	/* plan only the ops before this op; its input is the plan's output. NULL: all */
	const char *stop_before;
	/* plan only this op and those after it; x is its main input. NULL: from the first */
	const char *start_at;
	te_plan_hook_fn hook; /* or NULL */
	void *hook_arg;
	uint32_t hooks; /* events that call it: 1u << TE_PLAN_EVENT_GRAD | ... */
	/* factor on the gradient that the loss begins backward with, multiplied with the op's
	 * grad_scale: 1 / n makes the gradients of n micro-batches add up to the gradient of their
	 * mean. 1 by default */
	double grad_scale;
	struct te_offload *offload; /* offload for saved values of a training plan; or NULL */
	/* with start_at: main input of the whole sequence, which determines [B,T] of the channels
	 * of te_seq_input; ndim 0: x */
	struct te_spec whole_x;
	/* patterns of fnmatch(3) for names of values as te_plan_saved() lists them, "h.*.norm.y":
	 * matching values are computed again in backward, as by te_op_recompute. -EINVAL if a
	 * pattern matches no value of a plan of the whole sequence */
	int32_t nrecompute;
	const char *const *recompute;
};
#define TE_PLAN_OPTS_INIT                                                                     \
	{                                                                                     \
		sizeof(struct te_plan_opts), 0, 0, { TE_DTYPE_INT32, 0, { 0 } }, 0, 0, 0, 0, \
			0, 1, 0, { TE_DTYPE_INT32, 0, { 0 } }, 0, 0                           \
	}

/**
 * te_plan_create - infer shapes, fuse, lay out memory, allocate it
 * @seq:      the sequence; the plan keeps a reference
 * @opts:     copied; not NULL
 * @ret_plan: the plan, with one reference
 *
 * Thread: one sequence by one thread at a time.  Since: 0.1
 * Errors: -EINVAL, -ENOMEM (the message gives the needed and the free size), -TE_ESHAPE and
 * -TE_EDTYPE (naming the op), -TE_EPLAN, -TE_ESTATE (sequence not initialised; with
 * TE_PLAN_NO_ALLOC not complete), -EOPNOTSUPP (FP8 recipe on a GPU without FP8 tensor cores),
 * -TE_ECUDA.
 * Release a plan only after its work on streams other than the context's default stream has run.
 */
TE_EXPORT int te_plan_create(struct te_seq *seq, const struct te_plan_opts *opts,
			     struct te_plan **ret_plan);
TE_EXPORT struct te_plan *te_plan_ref(struct te_plan *plan);
TE_EXPORT struct te_plan *te_plan_unref(struct te_plan *plan);
TE_EXPORT uint32_t te_plan_flags(const struct te_plan *plan); /* TE_PLAN_* of its options */

/* static tensors, borrowed; name: "x" or a channel of te_seq_input. NULL if the plan has no such
 * input */
TE_EXPORT struct te_tensor *te_plan_input(struct te_plan *plan, const char *name);
/* main output of the last op */
TE_EXPORT struct te_tensor *te_plan_output(struct te_plan *plan);
/* write it after forward, which may use its memory, and before backward; NULL if the last op is a
 * loss */
TE_EXPORT struct te_tensor *te_plan_output_grad(struct te_plan *plan);
TE_EXPORT struct te_tensor *te_plan_input_grad(struct te_plan *plan);

/*
 * Spans: the memory of a plan with TE_PLAN_EXTERNAL, by the passes that use it: F forward, B
 * backward, W backward_dw. A span keeps its contents from the first of these passes to the end of
 * the last one. The span of a single pass is scratch: passes that do not run concurrently can share
 * it, also with other plans.
 */
enum te_span {
	TE_SPAN_F = 0,
	TE_SPAN_B = 1,
	TE_SPAN_W = 2,
	TE_SPAN_FB = 3, /* saved by forward for backward */
	TE_SPAN_FW = 4, /* saved by forward for backward_dw */
	TE_SPAN_BW = 5, /* saved by backward for backward_dw */
	TE_SPAN_COUNT
};

/* Caller-provided memory of a plan with TE_PLAN_EXTERNAL. Tensors must match te_plan_spec. */
struct te_plan_binding {
	size_t size; /* set by the INIT macro; lets the struct grow */
	/* memory of all passes: te_plan_memory's arena_nbytes, aligned to 256; NULL: use span */
	void *arena;
	int32_t nin; /* inputs: "x" and the channels of te_seq_input that the plan reads */
	const char *const *in_name;
	struct te_tensor *const *in;
	struct te_tensor *out;
	struct te_tensor *out_grad; /* NULL if te_plan_spec has none; in_grad likewise */
	struct te_tensor *in_grad;
	/* te_plan_memory's span_nbytes each, aligned to 256 bytes; NULL where that is 0 */
	void *span[TE_SPAN_COUNT];
};
#define TE_PLAN_BINDING_INIT { sizeof(struct te_plan_binding), 0, 0, 0, 0, 0, 0, 0, { 0 } }

/**
 * te_plan_bind - set the memory of passes that are queued later
 * @plan:    a plan with TE_PLAN_EXTERNAL
 * @binding: memory and tensors; copied
 *
 * Takes references to the tensors; the caller owns the memory. Passes queued or recorded
 * earlier keep the memory they were queued with. An arena holds data only from a
 * forward to the end of its backward (and backward_dw), spans as enum te_span describes.
 * Thread: one plan by one thread at a time.  Since: 0.1
 * Errors: -EINVAL (names the tensor that is missing, unknown or in another context), -TE_ESHAPE,
 * -TE_EDTYPE, -TE_ESTATE (plan without TE_PLAN_EXTERNAL), -ENOMEM.
 */
TE_EXPORT int te_plan_bind(struct te_plan *plan, const struct te_plan_binding *binding);

/**
 * te_plan_spec - dtype and shape of an input, output or boundary gradient
 * @plan:     the plan
 * @name:     "x", a channel that the plan reads, "out", "out_grad" or "in_grad"
 * @ret_spec: type and shape
 *
 * Thread: one plan by one thread at a time.  Since: 0.1
 * Errors: -ENOENT if the plan has no such value; it records no error message.
 */
TE_EXPORT int te_plan_spec(const struct te_plan *plan, const char *name, struct te_spec *ret_spec);
/* names of inputs in order, "x" first; NULL after the last */
TE_EXPORT const char *te_plan_input_name(const struct te_plan *plan, int index);

/**
 * te_plan_forward, te_plan_backward, te_plan_backward_dw - queue a pass
 * @plan:   the plan
 * @stream: the pass is queued on it
 * @flags:  0
 *
 * The forward first refreshes the FP8 and BF16 copies of the weights unless they are current, that
 * is, made from the present masters. The device decides this when the pass runs, so eager passes,
 * replays and all plans of a sequence cast weights once after each change of the masters. Call
 * te_seq_weights_changed after changing masters other than by te_adamw_step.
 * Nothing is allocated; during capture the same launches are recorded. The forward of
 * a training plan records amaxes and, at its end, updates the forward scales; the backward
 * ends with an update of the gradient scales. Weight gradients are added to te_seq_grads.
 * Thread: one plan, and one stream, by one thread at a time.  Since: 0.1
 * Errors: -TE_ESTATE (backward without forward, no training plan), -TE_ECUDA, ...
 */
TE_EXPORT int te_plan_forward(struct te_plan *plan, struct te_stream *stream, uint32_t flags);
TE_EXPORT int te_plan_backward(struct te_plan *plan, struct te_stream *stream);
TE_EXPORT int te_plan_backward_dw(struct te_plan *plan, struct te_stream *stream);

/**
 * te_plan_set_rng - choose the random numbers of later forward passes of a training plan
 * @plan:    the plan
 * @index:   a forward draws at the sequence's offset plus index; 0 by default
 * @advance: added to the sequence's offset after the draw; 1 by default
 *
 * With the defaults the masks of dropout depend on how many forward passes of all plans with
 * dropout ran before. With index m for micro-batch m, and advance 0 except in the last forward of a
 * step, they depend on the step, the micro-batch and the op only. te_graph_create does this for the
 * plans of its callables. Recorded passes keep their values.
 * Thread: one plan by one thread at a time.  Since: 0.1
 * Errors: -EINVAL.
 */
TE_EXPORT int te_plan_set_rng(struct te_plan *plan, uint64_t index, uint64_t advance);

/**
 * te_plan_regions - memory that a plan's passes modify, including its sequence's regions
 * @plan:     the plan
 * @fn, @arg: called for each region, with arg as its first argument
 *
 * The arena is not included: its contents are not needed after a backward pass.
 * Thread: one plan by one thread at a time.  Since: 0.1
 */
TE_EXPORT int te_plan_regions(const struct te_plan *plan, te_region_fn fn, void *arg);

struct te_plan_memory {
	size_t size;		 /* set by the INIT macro; lets the struct grow */
	uint64_t arena_nbytes;	 /* peak of all activations, gradients and scratch, from liveness */
	uint64_t sum_nbytes;	 /* arena_nbytes without reuse of memory */
	uint64_t weights_nbytes; /* masters and gradients */
	uint64_t copies_nbytes;	 /* compute-dtype and FP8 weight copies, with their tables */
	uint64_t state_nbytes;	 /* quantizers, random state, inputs and outputs */
	uint64_t own_nbytes;	 /* part of state_nbytes that plans of a sequence do not share */
	uint64_t total_nbytes;	 /* sequence and plan, without te_mem_info's GPU workspaces */
	uint64_t bound_nbytes;	 /* tensors of te_seq_bind_weight; not in total_nbytes */
	/* TE_PLAN_EXTERNAL: parts of the arena, by enum te_span. The arena holds all spans of
	 * several passes and the largest span of a single pass, which it reuses. Else 0 */
	uint64_t span_nbytes[TE_SPAN_COUNT];
	/* predicted time of a forward and a backward pass by the rates of te_plan_opts.offload,
	 * with the waits for its copies; 0: the plan has no offload */
	double pass_ms;
};
#define TE_PLAN_MEMORY_INIT { sizeof(struct te_plan_memory), 0, 0, 0, 0, 0, 0, 0, 0, { 0 }, 0 }
TE_EXPORT int te_plan_memory(const struct te_plan *plan, struct te_plan_memory *ret_mem);

/* How a value is kept between forward and backward. */
enum te_policy {
	TE_POLICY_KEEP = 0,    /* in its memory */
	TE_POLICY_OFFLOAD = 1, /* copied to host memory and back: te_offload_create */
	TE_POLICY_RECOMPUTE = 2 /* not kept: the steps that wrote it run again: te_op_recompute */
};

/*
 * A value in the arena that forward saves for backward. A group is a set of steps that run as one;
 * groups are counted from 0, forward before backward: te_plan_print() lists them.
 */
struct te_plan_saved_info {
	size_t size;	     /* set by the INIT macro; lets the struct grow */
	const char *name;    /* "h.0.norm.y"; valid as long as the plan */
	struct te_spec spec; /* dtype of the form: E4M3 or E5M2 for FP8 copies */
	uint32_t form;	     /* TE_FORM_HP, TE_FORM_ROW or TE_FORM_COL */
	uint64_t nbytes;     /* with the scales of block scaling; rounded up to 256 */
	uint64_t offset;     /* from the beginning of the arena */
	int32_t written;     /* group that writes it */
	int32_t last_forward;	/* last group of the forward pass that uses it */
	/* first and last group of backward, or of delayed weight gradients, that uses it;
	 * TE_POLICY_RECOMPUTE: the group that writes it again is the first */
	int32_t first_backward;
	int32_t last_backward;
	/* span that holds it in a plan with TE_PLAN_EXTERNAL; else TE_SPAN_F: the arena */
	enum te_span span;
	uint64_t span_offset; /* from the beginning of the span's memory */
	enum te_policy policy;
	/* reason why a value that was to be computed again is not; valid as long as the plan. NULL
	 * for other values */
	const char *why;
};
#define TE_PLAN_SAVED_INFO_INIT                                                               \
	{                                                                                     \
		sizeof(struct te_plan_saved_info), 0, { TE_DTYPE_FP32, 0, { 0 } }, 0, 0, 0, 0, \
			0, 0, 0, TE_SPAN_F, 0, TE_POLICY_KEEP, 0                              \
	}

/**
 * te_plan_saved - describe a value that is saved by forward for backward
 * @plan:     the plan
 * @index:    number of the value, from 0, in plan order
 * @ret_info: initialised by TE_PLAN_SAVED_INFO_INIT
 *
 * Inputs are not listed: they are not in the arena.
 * Thread: one plan by one thread at a time.  Since: 0.1
 * Errors: -EINVAL, -ENOENT (no such value; records no error message).
 */
TE_EXPORT int te_plan_saved(const struct te_plan *plan, int index,
			    struct te_plan_saved_info *ret_info);

enum te_plan_format {
	TE_PLAN_TEXT = 0,
	TE_PLAN_DOT = 1,
	TE_PLAN_JSON = 2 /* te_plan_profile_print only */
};
/* print steps, fusions and values with offsets; release *ret_text with free(3) */
TE_EXPORT int te_plan_print(const struct te_plan *plan, enum te_plan_format format,
			    char **ret_text);

/* ---- profiles ---- */

struct te_plan_profile_opts {
	size_t size;   /* set by the INIT macro; lets the struct grow */
	int32_t nruns; /* measured runs of all passes; 5 by default */
	int32_t nwarm; /* runs before them that are not measured; 2 by default */
	/* bytes per second that a copy in device memory reads and writes; 0: measured */
	double copy_rate;
	/* floating-point operations per second of a GEMM of FP8 operands, and of operands in the
	 * recipe's compute dtype; 0: measured if the plan has such GEMMs */
	double fp8_rate, gemm_rate;
};
#define TE_PLAN_PROFILE_OPTS_INIT { sizeof(struct te_plan_profile_opts), 5, 2, 0, 0, 0 }

/* Sums over the groups of a plan. Times are medians over runs. */
struct te_plan_profile {
	size_t size;	 /* set by the INIT macro; lets the struct grow */
	int32_t nruns;	 /* measured runs */
	int32_t nsteps;	 /* entries of te_plan_profile_step */
	double us;	 /* time of the passes, in microseconds */
	double bound_us; /* time that their bytes and FLOPs need at the rates below */
	double lost_us;	 /* sum of the groups' lost_us */
	uint64_t nbytes;
	double flops;
	double copy_rate, fp8_rate, gemm_rate; /* rates used, as in the options; 0: not needed */
};
#define TE_PLAN_PROFILE_INIT { sizeof(struct te_plan_profile), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* A group of steps that run as one, or work of a pass outside of its groups. */
struct te_plan_profile_step {
	size_t size;	   /* set by the INIT macro; lets the struct grow */
	/* the fusion or the step: "linear"; outside of groups "weights" or "scales" */
	const char *name;
	const char *steps; /* "h.0.fc1 + quantize(h.0.fc1.y)"; valid until the next profile */
	enum te_pass pass; /* forward or backward; weight gradients that are delayed: backward */
	int32_t group;	   /* as te_plan_print() counts them; -1: outside of groups */
	double us;	   /* median time in microseconds */
	double min_us;	   /* shortest time */
	double bound_us;   /* time that nbytes and flops need, the longer one: te_plan_profile(3) */
	double lost_us;	   /* us - bound_us, at least 0 */
	uint64_t nbytes;   /* bytes that it reads and writes, each once */
	double flops;	   /* FLOPs of matrix products: te_op_infer */
};
#define TE_PLAN_PROFILE_STEP_INIT \
	{ sizeof(struct te_plan_profile_step), 0, 0, TE_PASS_FORWARD, 0, 0, 0, 0, 0, 0, 0 }

/**
 * te_plan_profile - run a plan's passes, and measure the time of each group on the device
 * @plan:        the plan; its inputs, and the gradient of its output, have been written
 * @stream:      the passes are queued on it
 * @opts:        NULL for the defaults
 * @ret_profile: sums over all groups, or NULL; initialised by TE_PLAN_PROFILE_INIT
 *
 * Runs forward and, in a training plan, backward and backward_dw, with an event before each group.
 * They have the effects of ordinary passes: gradients are added to te_seq_grads, scales and the
 * random offset advance, hooks are called, and what hooks queue counts as time of the group. Where
 * kernels are shorter than the time to queue them, that time is measured.
 * Stream: waits for it; -EBUSY while it is capturing.
 * Thread: one plan, and one stream, by one thread at a time.  Since: 0.1
 * Errors: -EINVAL, -ENOMEM, -EBUSY, -TE_ESTATE, and codes of te_plan_forward and te_gemm.
 */
TE_EXPORT int te_plan_profile(struct te_plan *plan, struct te_stream *stream,
			      const struct te_plan_profile_opts *opts,
			      struct te_plan_profile *ret_profile);
/**
 * te_plan_profile_step - describe a group of the latest te_plan_profile of a plan
 * @plan:     the plan
 * @index:    number of the group from 0, in descending order of lost_us
 * @ret_step: initialised by TE_PLAN_PROFILE_STEP_INIT
 *
 * Thread: one plan by one thread at a time.  Since: 0.1
 * Errors: -EINVAL, -TE_ESTATE (no profile), -ENOENT (no such entry; records no error message).
 */
TE_EXPORT int te_plan_profile_step(const struct te_plan *plan, int index,
				   struct te_plan_profile_step *ret_step);
/* print the latest profile as TE_PLAN_TEXT or TE_PLAN_JSON; release *ret_text with free(3) */
TE_EXPORT int te_plan_profile_print(const struct te_plan *plan, enum te_plan_format format,
				    char **ret_text);

/*
 * A value that a pass has written, or a weight that it casts. FP8 values are counted before the
 * cast, so that nelems - nnan - ninf elements are finite; nsaturated and nunderflow count what the
 * cast changes.
 */
struct te_plan_numerics {
	size_t size;	    /* set by the library; lets the struct grow */
	const char *value;  /* "h.0.fc1.y", as te_plan_saved() names values, or the weight */
	enum te_pass pass;  /* pass that wrote it; weights: forward */
	enum te_dtype dtype; /* FP32, BF16, or for a cast E4M3 or E5M2 */
	int64_t nelems, nnan, ninf, nzero;
	/* elements above the largest FP8 magnitude at this scale, infinities included; with block
	 * scaling no finite element is */
	int64_t nsaturated;
	int64_t nunderflow; /* elements other than 0 whose code is 0 */
	float amax;	    /* the largest finite magnitude */
	float scale_inv;    /* value of a code of 1; 0: no cast, or a scale for each block */
};
typedef int (*te_plan_numerics_fn)(void *arg, const struct te_plan_numerics *numerics);

/**
 * te_plan_watch - count special values in the output of each group of later passes
 * @plan: the plan
 * @fn:   called for each value in the order of the passes, before forward for each weight with an
 *        FP8 copy; its second argument is valid until it returns. A negative result ends the pass,
 *        as the failure of a hook does. NULL: later passes are ordinary ones again
 * @arg:  first argument of fn
 *
 * After each group a pass waits for the stream, copies the values to host memory and counts there,
 * which takes much longer than the pass; results are the same. A value of FP32 or BF16 that exists
 * inside a fusion only is not counted, nor is its cast: a plan with TE_PLAN_NO_FUSION has all. A
 * watched pass cannot be captured (-EBUSY).
 * Thread: one plan by one thread at a time.  Since: 0.1
 * Errors: -EINVAL, -ENOMEM.
 */
TE_EXPORT int te_plan_watch(struct te_plan *plan, te_plan_numerics_fn fn, void *arg);

/* ---- fusions ---- */

/* Argument of a fusion's functions: the calls of the basic steps that it replaces, in order.
 * A value that is used only between two parts has no memory: its hp is NULL. */
struct te_fusion;

struct te_fused {
	size_t size; /* set by the library; lets the struct grow */
	int32_t nparts;
	const struct te_op_call *const *part; /* [nparts] */
	void *ws;
	size_t ws_nbytes;
	const struct te_fusion *fusion; /* the fusion, for its user pointer */
	void *state;			/* from bind() */
	/* [nsaved] joint fusion, once addresses are known: tensors that save() declared */
	struct te_tensor *const *saved;
	int32_t nsaved;
};

/*
 * A fusion replaces adjacent basic steps. Step names are the op's name in forward; "<op>" for its
 * backward and "<op>.dw" for its weight gradient in the backward pass; "quantize" for a cast that
 * planning inserted (part->x.hp to part->y.q), "quantize.pad" if y.q has padding. The pattern is a
 * list of step names, divided by spaces; a word may list alternatives: "layernorm|rmsnorm
 * quantize". After "<op>", "<op>.dw" matches the weight gradient of the same op only. The
 * libraries' fusions match no step of a user-defined op, even if it has the name of a library op.
 *
 * A joint fusion replaces steps of both passes, or none. In forward its pattern is matched. The
 * pattern of its backward, another struct te_fusion with separate functions, is matched among the
 * backward steps of the same ops and of adjacent ops without a forward step (fork). Values that
 * pass between the replaced steps have no memory; save() declares the tensors kept instead.
 */
struct te_fusion {
	size_t size;	  /* sizeof(struct te_fusion); lets the struct grow */
	const char *name; /* as plans print it */
	enum te_pass pass;
	const char *pattern;
	/* does the fusion apply? Specs are known, addresses are not: hp and q of a part are
	 * non-NULL if the value is needed outside the fusion */
	int (*applies)(const struct te_fused *f); /* 1, 0 or an error; NULL: always */
	size_t (*ws_nbytes)(const struct te_fused *f); /* NULL: the largest of its parts */
	int (*run)(const struct te_fused *f);
	const char *test; /* the test that compares it with the unfused parts */
	void *user;
	/* bit k: outputs of part k have memory even if only later parts read them */
	uint32_t keep;
	/* backward of a joint fusion, bit k: part k reads no value from the forward pass: its x, y,
	 * ex and saved are NULL, and no memory is kept for it */
	uint32_t drop;
	/* as te_op_ops.bind and unbind */
	int (*bind)(const struct te_fused *f, void **ret_state);
	void (*unbind)(const struct te_fused *f, void *state);
	/* TE_PASS_JOINT: fusion of the backward steps, with TE_PASS_BACKWARD; copied. Else NULL */
	const struct te_fusion *backward;
	/* TE_PASS_JOINT: write the spec of value index, which forward writes and backward reads,
	 * and return 1; return 0 if there are only index values. f has the forward steps. Or
	 * NULL */
	int (*save)(const struct te_fused *f, int32_t index, struct te_spec *ret_spec);
	uint32_t flags; /* TE_FUSION_* */
};
/* run() of a forward fusion can run again in backward if all its ops can (TE_OP_REPEATS). A cast
 * among its parts then uses quantizers that have the scales of the forward pass and record
 * nothing */
#define TE_FUSION_REPEATS 1u
#define TE_FUSION_INIT \
	{ sizeof(struct te_fusion), 0, TE_PASS_FORWARD, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
/* registered fusions are tried before the built-in ones, in order of registration; register them
 * before the first plan, -EBUSY afterwards */
TE_EXPORT int te_seq_add_fusion(struct te_seq *seq, const struct te_fusion *fusion);

TE_END_DECLS

#endif
