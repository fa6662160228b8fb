/* t/plan/fusion_side.h - what the sources of t/plan/fusion share: plans of small sequences. */
#ifndef FUSION_SIDE_H
#define FUSION_SIDE_H

#include <te/plan.h>

#include "libtecore/plan/plan.h"
#include "tt_ctx.h"
#include "tt_num.h"

#define WIDTH 32
#define NROWS (5 * 16) /* more than one run of partial sums */
#define NELEMS (NROWS * WIDTH)
#define PASSES 3

/* flags of a plan besides TE_PLAN_* */
#define EVAL 0x80000000u  /* neither training nor input gradient */
/* the steps are fused, too, but for casts and sums of norms' gradients */
#define UNCAST 0x10000000u
#define NO_DX 0x20000000u /* no input gradient */
#define APART 0x40000000u /* forward has the roundings of linear and bias */

/* one of the two sequences that are compared */
struct side {
	struct te_seq *seq;
	struct te_plan *p;
	float *y, *dx, *grads;
};

/* a user's fusion, tried before the built-in ones: the same two launches */
extern const struct te_fusion apart;
int apart_run(const struct te_fused *f);

/* an op by its letter, see fusion_side.c; at: its number, for its name */
struct te_op *op_of(char letter, int at);
struct te_seq *seq_of(const char *letters);
struct te_plan *plan_in(struct te_seq *seq, const char *recipe, enum te_dtype compute,
			uint32_t flags);
/* with the recipe's compute type */
struct te_plan *plan_of(struct te_seq *seq, const char *recipe, uint32_t flags);
int has_group(const struct te_plan *p, const char *name);
/* fails unless the plan has a group of that name, or has none */
void ck_group(const struct te_plan *p, const char *name, int want);

void side_open(struct side *s, const char *letters, const char *recipe, uint32_t flags);
/* one pass, after which y, dx and grads are its results; dy: NULL for a loss */
void side_run(struct side *s, const float *x, const float *dy);
void side_close(struct side *s);

void ck_bits(const char *what, const float *a, const float *b, size_t n);
/* scales and amax histories are equal */
void ck_quant(const struct te_seq *a, const struct te_seq *b);

/* tests with fused plans */
CTX_CASE(equal, "numeric");

#endif
