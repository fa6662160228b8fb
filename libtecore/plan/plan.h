/*
 * plan.h - a plan from the inside.
 *
 * Building goes: build.c turns the ops into basic steps over values;
 * fuse.c groups adjacent steps; recompute.c has some groups of forward run again in backward;
 * layout.c finds each value's life in groups
 * and its offset in one arena or in spans; bind.c binds tensors to addresses; run.c runs.
 * Time is the index of a group: forward, then backward, then delayed weight gradients.
 */
#ifndef TE__PLAN_INTERNAL_H
#define TE__PLAN_INTERNAL_H

#include <stdatomic.h>

#include <te/plan.h>

#include "libtecore/ops/op.h"
#include "libtecore/plan/seq.h"

#define TE__PLAN_ALIGN 256
#define TE__PLAN_SINV_STRIDE 4 /* floats: cuBLASLt wants scales on 16 bytes */

/* The memory of a value during one lifetime. */
struct te__buf {
	size_t nbytes;
	int first, last; /* groups; first -1: never used */
	int share;	 /* buffer whose memory this one takes over, or -1 */
	size_t at;	 /* where in that memory */
	int back; /* offloaded or computed again: the buffer that backward uses instead; or -1 */
	int again;	 /* 1: backward computes its contents again, in back */
	int span;	 /* enum te_span */
	size_t offset;	 /* in the span */
};

/* A form of a value that forward leaves for backward: groups that use it. */
struct te__kept {
	int value, buf;
	uint32_t form;
	int written, last_write, last_forward, first_backward, last_backward;
	int nreads; /* by backward, but for steps that run again */
};

/* One logical value: an activation, a gradient, something saved. */
struct te__value {
	char label[112];
	struct te_spec spec;
	struct te_tensor *fixed; /* lives outside the arena: inputs */
	int hp, row, col;	 /* buffers, or -1 */
	int sinv;		 /* index of its scale-inverse word, or -1: block scaling */
	uint32_t forms;		 /* FP8 forms that anybody reads */
	enum te_dtype qdtype;
	enum te_scaling scaling; /* block scaling: scales come after the codes, in row and in col */
	int slot;
	int keep;  /* an output of the plan: lives to the end */
	int fed;   /* the caller writes it before backward */
	int no_hp; /* used inside a fusion only */
	int nreads; /* of the full-precision form, by all steps */
	enum te__policy policy;
	char *why; /* te_plan_saved_info's, or NULL */
	struct te_tensor *t_hp, *t_q;
	struct te_tensor *back_hp, *back_q; /* as backward sees it; the same unless offloaded */
};

/* Which values play which part in a step's call; -1 where none. */
struct te__roles {
	int x, y, dx, dy;
	int nin, nout, nsaved;
	int *ex, *dex, *ey, *dey, *saved;    /* one allocation */
	uint32_t x_forms, y_forms, dy_forms; /* what the call may see of them */
};

struct te__ref {
	int value;
	uint32_t forms;
	int write;
	int kept; /* backward reads it from the forward pass */
};

enum te__step_kind { TE__STEP_FWD, TE__STEP_BWD, TE__STEP_DW, TE__STEP_QUANT, TE__STEP_SUM };

struct te__step {
	enum te__step_kind kind;
	struct te_plan *plan;
	int node; /* op index, or that of the consumer for a quantize */
	char name[64];
	struct te__roles role;
	int nrefs;
	struct te__ref *ref; /* one allocation with the arrays of call, or more_ref */
	struct te__ref *more_ref; /* with what a joint fusion saves, or NULL */
	int joint; /* backward step of a joint fusion: 1 + the group of its forward steps */
	int drops; /* its fusion reads nothing that was kept */
	int again; /* a forward step that runs again in backward */
	int share_from[3]; /* values whose memory the main output may take over, or -1 */
	int share_to;
	size_t ws_nbytes;
	struct te_op_call call;
	int has_state; /* bind() has given call.state */
	/* the arrays of call */
	struct te_op_value *ex, *ey, *dex, *dey, *weight;
	struct te_tensor **master, **grad, **saved;
};

struct te__group {
	const struct te_fusion *fusion; /* NULL: one basic step */
	int first, n;			/* steps */
	int ws;				/* buffer or -1 */
	struct te_fused fused;
	int has_state; /* bind() has given fused.state */
	int *saved; /* [fused.nsaved] values of a joint fusion, in its forward group */
	struct te_tensor **t_saved;
};

struct te__plan_op {
	struct te_op_infer inf;
	struct te__roles value; /* x, y, ex, ey, saved */
	int grad_main;		/* gradient of the main output, filled when going back */
};

/* a weight copy this plan reads */
struct te__need {
	int weight; /* index in the sequence */
	uint32_t forms;
	int slot;
	struct te_tensor *t_hp, *t_q; /* the sequence's, or stand-ins of a plan without memory */
};

struct te_plan {
	atomic_int refs;
	struct te_seq *seq;
	struct te_ctx *ctx;
	struct te_recipe recipe;
	struct te_quant *quant; /* the sequence's; TE_PLAN_NO_ALLOC: or others without memory */
	/* of casts that run again, and where forward leaves its scales for them; or NULL */
	struct te_quant *quant_again;
	float *scale_again;
	uint32_t flags;
	struct te_spec xspec;
	struct te_spec lead; /* its first two extents begin the shapes of fed channels */
	int first_op, nops; /* planned: ops [first_op, nops) of the sequence */
	/* the first op whose outputs have gradients; backward ends there: -1 for the gradient of
	 * the main input, else the first op that has trained weights */
	int first_grad;
	struct te__plan_op *node;
	int nvalues, cap_values;
	struct te__value *value;
	int nbufs, cap_bufs;
	struct te__buf *buf;
	int nsteps, cap_steps;
	struct te__step *step;
	te_plan_hook_fn hook;
	void *hook_arg;
	uint32_t hooks;	 /* bit te_plan_event_kind */
	int *grad_group; /* by weight of the sequence: last group that adds to its gradient; -1 */
	int nkept;
	struct te__kept *kept;
	struct te_offload *offload; /* or NULL */
	struct te__moves *moves;    /* what it moves, or NULL */
	const struct te_op_call **part; /* [nsteps] their calls, as groups take them */
	int fwd_steps, bwd_steps; /* then delayed dw */
	int ngroups, fwd_groups, bwd_groups;
	struct te__group *group;
	int nneeds;
	struct te__need *need;
	int *need_of; /* by weight of the sequence: its need, or -1 */
	int nsets; /* sets of copies that hold the needs */
	struct te__copies **set;
	int *channel_value, *channel_grad; /* by channel of the sequence */
	int x_value, out_value, out_grad, in_grad;
	int uses_rng, nsinv;
	uint64_t rng_index, rng_advance; /* te_plan_set_rng */
	float grad_scale;
	/* device words, one allocation: the random offset of this plan's last forward, then
	 * the scale-inverses */
	uint64_t *rng_used;
	float *sinv;
	void *arena; /* the plan's own, or NULL */
	size_t arena_nbytes, sum_nbytes;
	/* arena: all buffers are in TE_SPAN_F. TE_PLAN_EXTERNAL: by the passes that use them */
	char *span[TE_SPAN_COUNT];
	size_t span_nbytes[TE_SPAN_COUNT];
	uint64_t state_nbytes;
	uint64_t copies_nbytes; /* of all its needs, also if earlier plans made them */
	int bound; /* span is set: te_plan_bind has been here, or the plan has an arena */
	int forwarded, dw_pending;
	int failed; /* sticky */
	char failed_text[512];
};

/* the forms of a reference; 0: the step's fusion does without it */
static inline uint32_t te__ref_forms(const struct te__step *s, const struct te__ref *ref)
{
	return s->drops && ref->kept ? 0 : ref->forms;
}

int te__plan_build(struct te_plan *p, const char *start_at, const char *stop_before);
int te__plan_fuse(struct te_plan *p);
/* the group g: n steps from the first, replaced by a fusion; NULL: one step as it is */
void te__plan_fill_group(struct te_plan *p, struct te__group *g, const struct te_fusion *fusion,
			 int first, int n);
/* p->part, after steps were added */
int te__plan_parts(struct te_plan *p);
/* appends a forward step that runs again */
int te__plan_repeat_step(struct te_plan *p, int step);
int te__plan_recompute(struct te_plan *p, int npatterns, const char *const *pattern);
/* 1: one of n patterns matches the name of a value */
int te__patterns_match(const char *name, const char *const *pattern, int n);
/* -EINVAL of fn: the list of an option "X" does not have the nX patterns */
int te__patterns_check(const char *fn, const char *option, int32_t n, const char *const *pattern);
int te__plan_layout(struct te_plan *p);
int te__plan_find_grads(struct te_plan *p);
int te__plan_find_kept(struct te_plan *p);
#define TE__NFORMS 3
extern const uint32_t te__form[TE__NFORMS];
/* A form of a value that a step of a group reads or writes. */
struct te__use {
	const struct te__step *step;
	const struct te__ref *ref;
	int group;
	int form; /* value * TE__NFORMS + index in te__form */
	int buf;  /* its buffer, or -1 */
};
typedef int te__use_fn(void *arg, const struct te__use *u);
/* calls fn for all uses in n groups, in order; its first result that is not 0, or 0 */
int te__plan_each_use(const struct te_plan *p, int first, int n, te__use_fn *fn, void *arg);
/* offsets of all buffers, of which some are offloaded */
int te__plan_place(struct te_plan *p);

/* tensors of all values in the spans; before bound is set: stand-ins that only carry specs */
int te__plan_bind(struct te_plan *p);
void te__plan_unbind(struct te_plan *p);
void te__plan_bind_groups(struct te_plan *p); /* calls get their tensors, groups their scratch */
/* bind() and unbind() of ops and fusions, for the addresses that they have now */
int te__plan_bind_states(struct te_plan *p);
void te__plan_unbind_states(struct te_plan *p);
void te__plan_fill_call(struct te_plan *p, struct te__step *s);
struct te__quantize;
/* the cast of a step, whose call it is: its event of amaxes calls the hook */
struct te__quantize te__plan_quantize(const struct te_op_call *quantize);
int te__plan_new_value(struct te_plan *p, const struct te_spec *spec, const char *fmt, ...)
	TE_PRINTF(3, 4);
int te__plan_new_buf(struct te_plan *p, size_t nbytes);
/* 0 or -TE_ESHAPE, naming the k-th what of the kind of that name */
int te__plan_check_spec(const char *kind, const char *name, const char *what, int k,
			const struct te_spec *s);
extern const char *const te__span_name[TE_SPAN_COUNT]; /* "FB" */
/* the offset of a span in an arena of all spans: those that save, then scratch */
size_t te__plan_arena_offset(const struct te_plan *p, int span);
/* where in row and col of a block-scaled value the scales begin */
size_t te__value_scales_at(const struct te__value *v);

/* weights.c: the copies that the plan needs; and their refresh, unless they are current */
int te__plan_weights(struct te_plan *p);
int te__plan_refresh(struct te_plan *p, struct te_stream *stream);

/* libtecore/plan/fusions.c */
extern const struct te_fusion te__fusions[];
extern const int te__nfusions;

#endif
