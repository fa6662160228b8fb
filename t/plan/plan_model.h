/* t/plan/plan_model.h - a small transformer for tests of plans, on either backend. */
#ifndef PLAN_MODEL_H
#define PLAN_MODEL_H

#include <te/ctx.h>
#include <te/plan.h>
#include <te/seq.h>

#include "tt.h"

struct model_shape {
	int64_t vocab, width, batch, seqlen;
	int nheads, nkv, nlayers;
	float dropout;
	int llama; /* RMSNorm, RoPE, SwiGLU, no biases; else GPT-2 style, tied head */
};

/* a sequence of that shape with targets, initialised with the seed */
struct te_seq *model_create(struct te_ctx *ctx, const struct model_shape *m, uint64_t seed);
/* the same, not yet complete */
struct te_seq *model_create_unbound(struct te_ctx *ctx, const struct model_shape *m);
/* the recipe of that name, with a short history */
struct te_recipe model_recipe(const char *name);
struct te_plan *model_plan(struct te_seq *seq, const struct model_shape *m, const char *recipe,
			   uint32_t flags);
/* random tokens and targets into a plan's inputs */
void model_feed(struct te_plan *plan, const struct model_shape *m);
float model_loss(struct te_plan *plan);
/* nops linear ops, "l" or "l0" to "l9", initialised */
struct te_seq *linear_seq(int nops, int64_t in, int64_t out, int keep_hp);
/* a context of its own with a plan, in inference, of a linear op from BF16 [rows, in] */
struct linear_plan {
	struct te_ctx *ctx;
	struct te_seq *seq;
	struct te_plan *plan;
};
/* for fault tests: returns the library's code; linear_plan_free() after a failure, too */
int linear_plan_create(const char *recipe, int64_t rows, int64_t in, int64_t out,
		       struct linear_plan *ret);
void linear_plan_free(struct linear_plan *p);
/* x and dy into a plan; previous contents of its memory must not matter, so they are NaN */
void plan_feed(struct te_plan *p, const float *x, const float *dy);
/* gradients of 0, and both passes, which are queued */
void plan_passes(struct te_plan *p);
/* both hold the same bytes */
void model_same(const struct te_tensor *a, const struct te_tensor *b, const char *what);
/* both have the same state; NULL equals any */
void model_same_scales(struct te_quant *a, struct te_quant *b);

#endif
