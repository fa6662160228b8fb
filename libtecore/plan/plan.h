/*
 * plan.h - a plan from the inside.
 *
 * A plan is built in this order: build.c turns the ops into basic steps over values; fuse.c groups
 * adjacent steps; recompute.c repeats some groups of forward in backward; layout.c finds each
 * value's lifetime in groups and its offset in one arena or in spans; bind.c binds tensors to
 * addresses; run.c runs.
 * Time is the index of a group: forward, then backward, then delayed weight gradients.
 */
#ifndef TE__PLAN_INTERNAL_H
#define TE__PLAN_INTERNAL_H

#include <stdatomic.h>

#include <te/plan.h>

#include "libtecore/base/base.h"
#include "libtecore/ops/op.h"
#include "libtecore/plan/seq.h"
#include "libtecore/quant/quant.h"

#define TE__PLAN_ALIGN 256
#define TE__PLAN_SINV_STRIDE 4 /* floats: cuBLASLt needs scales aligned to 16 bytes */

/* The memory of a value during one lifetime. */
struct te__buf {
	size_t nbytes;
	int first, last; /* groups; first -1: never used */
	int share;	 /* buffer whose memory this one takes over, or -1 */
	size_t at;	 /* offset in that memory */
	int back; /* offloaded or computed again: the buffer that backward uses instead; or -1 */
	int again;	 /* 1: backward computes its contents again, in back */
	int span;	 /* enum te_span */
	size_t offset;	 /* offset in the span */
};
/* A form of a value that forward saves for backward, and the groups that use it. */
struct te__kept {
	int value, buf;
	uint32_t form;
	int written, last_write, last_forward, first_backward, last_backward;
	int nreads; /* reads in backward, except by repeated steps */
};

/* One logical value: an activation, a gradient, or a saved tensor. */
struct te__value {
	char label[112];
	struct te_spec spec;
	struct te_tensor *fixed; /* tensor outside the arena: inputs */
	int hp, row, col;	 /* buffers, or -1 */
	int sinv;		 /* index of its scale-inverse word, or -1: block scaling */
	uint32_t forms;		 /* FP8 forms that steps read */
	enum te_dtype qdtype;
	enum te_scaling scaling; /* block scaling: scales come after the codes, in row and in col */
	int slot;
	int keep;  /* 1: an output of the plan, kept to the end */
	int fed;   /* the caller writes it before backward */
	int no_hp; /* used inside a fusion only */
	int nreads; /* reads of the full-precision form, by all steps */
	enum te__policy policy;
	char *why; /* te_plan_saved_info's, or NULL */
	struct te_tensor *t_hp, *t_q;
	struct te_tensor *back_hp, *back_q; /* tensors for backward; equal unless offloaded */
};
/* Values of the arguments of a step's call; -1: none. */
struct te__roles {
	int x, y, dx, dy;
	int nin, nout, nsaved;
	int *ex, *dex, *ey, *dey, *saved;    /* one allocation */
	uint32_t x_forms, y_forms, dy_forms; /* forms that the call gets */
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
	int node; /* op index; for a quantize, index of the consumer */
	char name[64];
	struct te__roles role;
	int nrefs;
	struct te__ref *ref; /* one allocation with the arrays of call, or more_ref */
	struct te__ref *more_ref; /* ref, and the values that a joint fusion saves; or NULL */
	int joint; /* backward step of a joint fusion: 1 + the group of its forward steps */
	int drops; /* 1: its fusion reads no saved value */
	int again; /* 1: a forward step that runs again in backward */
	int column; /* 1 + index of the copy of its first weight in te_plan.column; 0: none */
	int share_from[3]; /* values whose memory the main output may take over, or -1 */
	int share_to;
	size_t ws_nbytes;
	struct te_op_call call;
	int has_state; /* bind() has given call.state */
	/* the arrays of call */
	struct te_op_value *ex, *ey, *dex, *dey, *weight;
	struct te_tensor **master, **grad, **saved;
	const void **rest; /* [weights] te_op_call.remainder */
};

/* A column-wise copy of the first weight of a step, made in the arena before the step's group. */
struct te__column {
	int group, step; /* the first step of the group that reads it */
	int buf;
	struct te_tensor *t; /* with the row-wise copy of the sequence */
	struct te_k_weight_transpose turn; /* the launch that makes it; row NULL: cast instead */
	struct te_k_weights cast;
	uint32_t flags; /* TE__WEIGHTS_* of the cast */
};

/* A master or a gradient that is elsewhere, in the arena from a group to the last one that needs it
 * there. */
struct te__hosted {
	int group, last, weight;
	int grad; /* 1: the gradient, which goes back, too */
	int cast; /* 1: values of a master in the other type, which come before it in the buffer */
	int buf;  /* a copy to it is queued before the first group of its lifetime */
	struct te_tensor *t;
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
	struct te_recipe recipe; /* the op's, or the plan's, with the plan's compute dtype */
	struct te_quant *quant; /* quantizers of its casts, the plan's; NULL: none */
	struct te_op_infer inf;
	struct te__roles value; /* x, y, ex, ey, saved */
	int grad_main;		/* gradient of the main output, set while building backward */
};

/* a weight copy this plan reads */
#define TE__FORM_CODES (TE_FORM_ROW | TE_FORM_COL)
#define TE__FORM_FP32 8u /* the FP32 values of a BF16 master */

struct te__need {
	int weight; /* index in the sequence */
	uint32_t forms;
	int slot;
	/* tensors of the sequence; placeholders without memory. t_fp32: values of a BF16 master */
	struct te_tensor *t_hp, *t_q, *t_fp32;
};

/* Events that te_plan_profile() lets the passes record, in order: NULL at other times. */
struct te__probe {
	struct te_event **event;
	int n; /* number of events that were recorded */
};
struct te__profile;
struct te__watch; /* from te_plan_watch() */

struct te_plan {
	atomic_int refs;
	struct te_seq *seq;
	struct te_ctx *ctx;
	struct te_recipe recipe;
	struct te_recipe casts; /* recipe of quant; one that casts nothing: the plan has none */
	struct te_quant *quant; /* quantizers of the sequence; TE_PLAN_NO_ALLOC: or a description */
	struct te_quant **other; /* quantizers of other recipes, without state; NULL: none */
	int nothers;
	/* quantizers of casts that run again, and forward's scales for them; or NULL */
	struct te_quant *quant_again;
	float *scale_again;
	uint32_t flags;
	int decodes; /* 1: a decoder's: its calls have TE__CALL_DECODES */
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
	struct te__moves *moves;    /* the plan's moves, or NULL */
	const struct te_op_call **part; /* [nsteps] calls of the steps, for te_fused.part */
	int fwd_steps, bwd_steps; /* the steps after them are delayed weight gradients */
	int ngroups, fwd_groups, bwd_groups;
	struct te__group *group;
	int nneeds;
	struct te__need *need;
	int *need_of; /* by weight of the sequence: its need, or -1 */
	int nsets; /* sets of copies that hold the needs */
	struct te__copies **set;
	int ncolumns;
	struct te__column *column; /* by group */
	void *columns_state; /* device memory: version of the passes, states of the columns */
	int nhosted;
	struct te__hosted *hosted; /* by group */
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
	/* with an arena all buffers are in TE_SPAN_F. TE_PLAN_EXTERNAL: by the passes that use
	 * them */
	char *span[TE_SPAN_COUNT];
	size_t span_nbytes[TE_SPAN_COUNT];
	uint64_t state_nbytes;
	uint64_t copies_nbytes; /* bytes of all needs, also if earlier plans made the copies */
	int bound; /* 1: span is set, by te_plan_bind or because the plan has an arena */
	int forwarded, dw_pending;
	struct te__probe *probe;
	struct te__profile *profile; /* the latest, or NULL */
	struct te__watch *watch; /* or NULL */
	int failed; /* sticky */
	char failed_text[512];
};

/* the forms of a reference; 0: the step's fusion does not use it */
static inline uint32_t te__ref_forms(const struct te__step *s, const struct te__ref *ref)
{
	return s->drops && ref->kept ? 0 : ref->forms;
}

/* te_plan_create(); decodes: as in the plan */
int te__plan_create(struct te_seq *seq, const struct te_plan_opts *opts, int decodes,
		    struct te_plan **ret_plan);
/* slots of n ops: 2i is the input of op i, 2i + 1 its weight, 2n + i the gradient of its output */
static inline const struct te__plan_op *te__plan_op_of_slot(const struct te_plan *p, int slot)
{
	const int n = p->seq->nops;

	return &p->node[slot < 2 * n ? slot / 2 : slot - 2 * n];
}

/* quantizers of a slot */
static inline struct te_quant *te__plan_quant(const struct te_plan *p, int slot)
{
	return te__plan_op_of_slot(p, slot)->quant;
}

/* copies that are cast by the slot */
static inline struct te__operand te__plan_operand(const struct te_plan *p, int slot,
						  enum te__role role)
{
	return te__recipe_operand(&te__plan_op_of_slot(p, slot)->recipe, role);
}

/* few_rows.c: a linear op of a decoder with casts and ops next to it */
int te__few_rows_applies(const struct te_fused *f);
size_t te__few_rows_ws(const struct te_fused *f);
int te__few_rows_run(const struct te_fused *f);
int te__plan_build(struct te_plan *p, const char *start_at, const char *stop_before);
int te__plan_fuse(struct te_plan *p);
/* set group g to the n steps from first, replaced by a fusion; fusion NULL: one basic step */
void te__plan_fill_group(struct te_plan *p, struct te__group *g, const struct te_fusion *fusion,
			 int first, int n);
/* set p->part after steps were added */
int te__plan_parts(struct te_plan *p);
/* appends a forward step that runs again */
int te__plan_repeat_step(struct te_plan *p, int step);
int te__plan_recompute(struct te_plan *p, int npatterns, const char *const *pattern);
int te__plan_layout(struct te_plan *p);
int te__plan_find_grads(struct te_plan *p);
int te__plan_find_kept(struct te_plan *p);
/* count what the group has written, for te_plan_watch() */
int te__watch_group(struct te_plan *p, struct te_stream *stream, int group);
void te__watch_free(struct te__watch *w);
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
/* calls fn for all uses in n groups, in order; returns its first result that is not 0, or 0 */
int te__plan_each_use(const struct te_plan *p, int first, int n, te__use_fn *fn, void *arg);
/* offsets.c: set the offsets of all buffers, some of which are offloaded */
int te__plan_place(struct te_plan *p);

/* create the tensors of all values in the spans; before bound is set: placeholders with specs
 * only */
int te__plan_bind(struct te_plan *p);
void te__plan_unbind(struct te_plan *p);
void te__plan_bind_groups(struct te_plan *p); /* calls get their tensors, groups their scratch */
/* call bind() or unbind() of ops and fusions, for their present addresses */
int te__plan_bind_states(struct te_plan *p);
void te__plan_unbind_states(struct te_plan *p);
void te__plan_fill_call(struct te_plan *p, struct te__step *s);
struct te__quantize;
/* the cast of a step with this call; its amax() calls the plan's hook */
struct te__quantize te__plan_quantize(const struct te_op_call *quantize);
int te__plan_new_value(struct te_plan *p, const struct te_spec *spec, const char *fmt, ...)
	TE_PRINTF(3, 4);
int te__plan_new_buf(struct te_plan *p, size_t nbytes);
/* 0 or -TE_ESHAPE; the message names the object, e.g. input 2 of linear qkv */
int te__plan_check_spec(const char *kind, const char *name, const char *what, int k,
			const struct te_spec *s);
extern const char *const te__span_name[TE_SPAN_COUNT]; /* "FB" */
/* the offset of a span in an arena: spans of several passes, then scratch */
size_t te__plan_arena_offset(const struct te_plan *p, int span);
/* extents of the FP8 copies of a value */
static inline void te__value_extents(const struct te__value *v, int64_t *ret_rows,
				     int64_t *ret_cols)
{
	const int64_t cols = v->spec.shape[v->spec.ndim - 1];

	*ret_rows = te__fp8_extent(te__spec_nelems(&v->spec) / cols);
	*ret_cols = te__fp8_extent(cols);
}

/* 1: rows or columns end with padding */
static inline int te__value_is_padded(const struct te__value *v)
{
	int64_t rows, cols;

	te__value_extents(v, &rows, &cols);
	return rows * cols != te__spec_nelems(&v->spec);
}

/* offset of the scales in row and col of a block-scaled value */
size_t te__value_scales_at(const struct te__value *v);

/* 0 if passes can be queued; what: function for the message */
int te__plan_runnable(struct te_plan *p, struct te_stream *stream, const char *what);
void te__profile_free(struct te__profile *f);
/* rates.c: measured rates, as in te_plan_profile_opts, on the stream */
int te__rate_copy(struct te_stream *stream, double *ret_rate);
int te__rate_gemm(struct te_stream *stream, enum te_dtype dtype, double *ret_rate);
/* "h.0.ln1" for an op's step, "quantize(h.0.ln1.y)" for a cast */
void te__plan_step_label(const struct te_plan *p, const struct te__step *s, char *dst, size_t n);
const char *te__plan_group_name(const struct te_plan *p, const struct te__group *g);

/* weights.c: create the copies that the plan needs; refresh copies that are not current */
int te__plan_weights(struct te_plan *p);
int te__plan_refresh(struct te_plan *p, struct te_stream *stream);

/* columns.c: find the column-wise copies that groups make for themselves, with a buffer for each */
int te__columns_find(struct te_plan *p);
size_t te__columns_nbytes(const struct te_plan *p); /* size of te_plan.columns_state */
int te__columns_bind(struct te_plan *p); /* tensors and launches at the present addresses */
void te__columns_unbind(struct te_plan *p);
/* before n groups from `first` on; before the steps of group g */
int te__columns_begin(const struct te_plan *p, struct te_stream *stream, int first, int n);
int te__columns_run(const struct te_plan *p, struct te_stream *stream, const struct te__group *g);
/* bytes that the launch reads; it writes as many as the buffer has */
uint64_t te__column_read_nbytes(const struct te_plan *p, const struct te__column *c);

/* hosted.c: find what groups need of host memory, or add to for all ranks, with buffers for it */
int te__hosted_find(struct te_plan *p);
int te__hosted_bind(struct te_plan *p); /* tensors at the present addresses */
void te__hosted_unbind(struct te_plan *p);
/* tensor of a weight or its gradient for a step, or NULL */
int te__hosted_reads(const struct te_plan *p, const struct te__group *g, const struct te__step *s,
		     int k); /* 1: the master of its k-th weight, which ranks divide */
struct te_tensor *te__hosted_tensor(const struct te_plan *p, const struct te__step *s, int weight,
				    int grad);
/* the values of a divided master for a step that reads the other type, FP32 or BF16; or NULL */
struct te_tensor *te__hosted_cast(const struct te_plan *p, const struct te__step *s, int weight);
/* queue the copies before group t, or after it */
int te__hosted_run(const struct te_plan *p, struct te_stream *stream, int t, int after);
/* bytes copied from and to host memory in all passes */
void te__hosted_nbytes(const struct te_plan *p, uint64_t *ret_in, uint64_t *ret_out);

/* libtecore/plan/fusions.c */
extern const struct te_fusion te__fusions[];
extern const int te__nfusions;

#endif
