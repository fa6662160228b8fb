/*
 * build.h - from ops to basic steps.
 *
 * build_steps.c makes values, buffers and steps; build_forward.c and build_backward.c add the two
 * passes' steps; build.c calls them.
 */
#ifndef TE__PLAN_BUILD_H
#define TE__PLAN_BUILD_H

#include "libtecore/plan/plan.h"
#include "libtecore/quant/quant.h"

/* the roles of a step, all without a value */
int te__build_roles(struct te__roles *r, int nin, int nout, int nsaved);
void te__build_copy_roles(struct te__roles *dst, const struct te__roles *src);
/* appends a step of op node, without references */
int te__build_step(struct te_plan *p, enum te__step_kind kind, int node, const char *name,
		   struct te__step **ret);
/* adds a reference to the forms of a value; none if value is -1 or forms is 0 */
void te__build_refer(struct te__step *s, int value, uint32_t forms, int write);
const char *te__build_op_name(const struct te_plan *p, int i);
/* index of a channel, or -1 */
int te__build_channel(const struct te_plan *p, const char *name);
/* 1: the plan computes gradients of weights of op i */
int te__build_has_dw(const struct te_plan *p, int i);
/* 1: gradients must reach ops before op i */
int te__build_need_dx(const struct te_plan *p, int i);
/* the first op whose weights need gradients; -1: the input needs one too */
int te__build_first_grad(const struct te_plan *p);
/* 0, or -TE_EPLAN: op i reads codes of another recipe than the slot's; what: for the message */
int te__build_same_recipe(const struct te_plan *p, int slot, int i, const char *what);
/* add a cast of value v for op node, unless there is one; forms: forms that the whole plan reads */
int te__build_quantized(struct te_plan *p, int v, int node, enum te__role role, uint32_t forms);

/* asks op i for its outputs and saved values, with main input x */
int te__build_infer(struct te_plan *p, int i, int x);
int te__build_forward(struct te_plan *p);
int te__build_backward(struct te_plan *p);
/* weight gradients after the backward pass, with TE_PLAN_DELAY_DW */
int te__build_delayed(struct te_plan *p);

#endif
