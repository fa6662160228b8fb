/* run.c - the passes of a plan: groups of steps in order, and the hooks between them. */
#define TE_LOG_CATEGORY "core/plan"
#include <errno.h>
#include <stdio.h>

#include "libtecore/base/private.h"

#include "libtecore/plan/moves.h"
#include "libtecore/plan/plan.h"
#include "libtecore/quant/quant.h"
#include "libtecore/tensor/ctx.h"

static int run_sum(const struct te_op_call *c)
{
	struct te_k_add a = {
		.a = te_tensor_data(c->x.hp),
		.b = te_tensor_data(c->ex[0].hp),
		.y = te_tensor_data(c->y.hp),
		.n = te_tensor_nelems(c->y.hp),
		.dtype = te_tensor_dtype(c->y.hp),
	};

	return TE__LAUNCH(c->stream, ADD, &a);
}

/* ---- hooks ---- */

static int call_hook(struct te_plan *p, struct te_stream *stream, struct te_plan_event e)
{
	const uint64_t nfails = te__nfails();
	int r;

	if (!(p->hooks & (1u << e.kind)))
		return 0;
	e.size = sizeof(e);
	e.stream = stream;
	r = p->hook(p->hook_arg, p, &e);
	return r < 0 ? te__callback_failed(nfails, r, "the hook of a plan") : 0;
}

static enum te_pass pass_of(const struct te__step *s, const struct te_plan *p)
{
	return s - p->step < p->fwd_steps ? TE_PASS_FORWARD : TE_PASS_BACKWARD;
}

static int hook_steps(struct te_plan *p, struct te_stream *stream, const struct te__group *g,
		      enum te_plan_event_kind kind)
{
	int r = 0;

	for (int k = 0; k < g->n && !r; k++) {
		const struct te__step *s = &p->step[g->first + k];

		r = call_hook(p, stream, (struct te_plan_event){
			.kind = kind,
			.pass = pass_of(s, p),
			.op = p->seq->op[s->node],
			.step = s->name,
			.weight = -1,
		});
	}
	return r;
}

/* the weights whose gradients no later group adds to */
static int hook_grads(struct te_plan *p, struct te_stream *stream, int t)
{
	const struct te__group *g = &p->group[t];
	int r = 0;

	for (int k = 0; k < g->n; k++) {
		const struct te__step *s = &p->step[g->first + k];
		const struct te_op *op = p->seq->op[s->node];

		for (int i = 0; s->kind == TE__STEP_DW && i < op->nweights && !r; i++) {
			const int w = p->seq->op_weight[s->node][i];

			if (p->grad_group[w] == t)
				r = call_hook(p, stream, (struct te_plan_event){
					.kind = TE_PLAN_EVENT_GRAD,
					.pass = TE_PASS_BACKWARD,
					.op = p->seq->weight[w].op,
					.step = s->name,
					.weight = w,
				});
		}
	}
	return r;
}

int te__plan_find_grads(struct te_plan *p)
{
	p->grad_group = te__malloc(((size_t)p->seq->nweights + 1) * sizeof(*p->grad_group));
	if (!p->grad_group)
		return te__no_memory("plan");
	for (int w = 0; w < p->seq->nweights; w++)
		p->grad_group[w] = -1;
	for (int t = 0; t < p->ngroups; t++)
		for (int k = 0; k < p->group[t].n; k++) {
			const struct te__step *s = &p->step[p->group[t].first + k];

			for (int i = 0; s->kind == TE__STEP_DW && i < p->seq->op[s->node]->nweights;
			     i++) {
				const int w = p->seq->op_weight[s->node][i];

				if (te__weight_trains(&p->seq->weight[w]))
					p->grad_group[w] = t;
			}
		}
	return 0;
}

/* ---- casts ---- */

static int hook_amax(const struct te__quantize *z)
{
	const struct te__step *s = z->arg;

	return call_hook(s->plan, z->stream, (struct te_plan_event){
		.kind = TE_PLAN_EVENT_AMAX,
		.pass = pass_of(s, s->plan),
		.op = s->plan->seq->op[s->node],
		.step = s->name,
		.weight = -1,
		.slot = z->slot,
		.nslots = 1,
	});
}

struct te__quantize te__plan_quantize(const struct te_op_call *c)
{
	char *const step = (char *)(uintptr_t)c - offsetof(struct te__step, call);
	const struct te_plan *p = ((const struct te__step *)(const void *)step)->plan;
	const int gradient = c->y.slot >= 2 * p->seq->nops;
	uint32_t flags = c->flags & TE_CALL_NO_AMAX ? TE_QUANTIZE_NO_AMAX : 0;

	if (gradient && te__plan_operand(p, c->y.slot, TE__ROLE_GRADIENT).stochastic)
		flags |= TE_QUANTIZE_STOCHASTIC;
	return (struct te__quantize){
		.stream = c->stream,
		.quant = c->y.quant,
		.slot = c->y.slot,
		.y = c->y.q,
		.flags = flags,
		.amax = hook_amax,
		.arg = step,
	};
}

static int run_quantize(const struct te_op_call *c)
{
	const struct te__quantize z = te__plan_quantize(c);

	return te__stream_queued(c->stream, te__quantize_alone(&z, c->x.hp));
}

int te__plan_quantize_part(const struct te_op_call *quantize, const struct te__quantize_part *part)
{
	const struct te__quantize z = te__plan_quantize(quantize);

	return te__quantize_part(&z, part);
}

/* ---- passes ---- */

static int sticky(struct te_plan *p, int r)
{
	if (r < 0 && r != -EBUSY && r != -TE_ESTATE) {
		p->failed = r;
		snprintf(p->failed_text, sizeof(p->failed_text), "%s", te_error_detail());
	}
	return r;
}

int te__plan_runnable(struct te_plan *p, struct te_stream *stream, const char *what)
{
	int r = p ? te__stream_check(what, stream, p->ctx) :
		    te__fail(-EINVAL, "%s: plan is NULL", what);

	if (r)
		return r;
	if (p->flags & TE_PLAN_NO_ALLOC)
		return te__fail(-TE_ESTATE, "%s: the plan was made without memory", what);
	if (!p->bound)
		return te__fail(-TE_ESTATE, "%s: te_plan_bind has given no memory yet", what);
	if (p->failed)
		return te__fail(p->failed, "%s: the plan failed before: %s", what, p->failed_text);
	return 0;
}

static int run_step(const struct te_plan *p, const struct te__step *s)
{
	const struct te_op_ops *ops = &p->seq->op[s->node]->ops;

	switch (s->kind) {
	case TE__STEP_FWD:
		return ops->forward(&s->call);
	case TE__STEP_BWD:
		return ops->backward(&s->call);
	case TE__STEP_DW:
		return ops->backward_dw(&s->call);
	case TE__STEP_QUANT:
		return run_quantize(&s->call);
	case TE__STEP_SUM:
		return run_sum(&s->call);
	}
	return 0;
}

static int run_group(struct te_plan *p, struct te_stream *stream, int t)
{
	struct te__group *g = &p->group[t];
	const struct te__step *s = &p->step[g->first];
	const uint64_t nfails = te__nfails();
	int r;

	for (int k = 0; k < g->n; k++)
		p->step[g->first + k].call.stream = stream;
	r = te__hosted_run(p, stream, t, 0);
	if (!r)
		r = te__columns_run(p, stream, g);
	if (r)
		return r;
	r = g->fusion ? g->fusion->run(&g->fused) : run_step(p, s);
	if (r < 0)
		return te__callback_failed(nfails, r, "%s %s", g->fusion ? "fusion" : s->name,
					   g->fusion ? g->fusion->name : p->seq->op[s->node]->name);
	return te__hosted_run(p, stream, t, 1);
}

/* te_plan_profile() measures the time from each mark to the next one */
static int mark(const struct te_plan *p, struct te_stream *stream)
{
	return p->probe ? te_event_record(p->probe->event[p->probe->n++], stream) : 0;
}

/* a group between its hooks */
static int run_hooked(struct te_plan *p, struct te_stream *stream, int t)
{
	struct te__group *g = &p->group[t];
	int r = hook_steps(p, stream, g, TE_PLAN_EVENT_BEGIN);

	if (!r)
		r = run_group(p, stream, t);
	if (!r)
		r = hook_steps(p, stream, g, TE_PLAN_EVENT_END);
	return r ? r : hook_grads(p, stream, t);
}

static int run_groups(struct te_plan *p, struct te_stream *stream, int first, int n)
{
	const int moves = p->moves && p->moves->n;
	int r = moves ? te__moves_begin(p, stream, first) : 0;

	if (!r)
		r = te__columns_begin(p, stream, first, n);
	for (int t = first; t < first + n && !r; t++) {
		r = mark(p, stream);
		if (!r && moves)
			r = te__moves_run(p, stream, t, 0);
		if (!r)
			r = p->hooks ? run_hooked(p, stream, t) :
				       run_group(p, stream, t);
		if (!r && p->watch)
			r = te__watch_group(p, stream, t);
		if (!r && moves)
			r = te__moves_run(p, stream, t, 1);
	}
	if (!r)
		r = mark(p, stream);
	return r && moves ? te__moves_drain(p, r) : r;
}

static int update_scales(struct te_plan *p, struct te_stream *stream, int first, int n)
{
	int r;

	if (!p->quant || !(p->flags & TE_PLAN_TRAIN))
		return 0;
	r = call_hook(p, stream, (struct te_plan_event){
		.kind = TE_PLAN_EVENT_SCALES,
		.pass = first < 2 * p->seq->nops ? TE_PASS_FORWARD : TE_PASS_BACKWARD,
		.weight = -1,
		.slot = first,
		.nslots = n,
	});
	return r ? r : te_quant_update(stream, p->quant, first, n);
}

/* the scales of this pass, for casts that run again in backward */
static int keep_scales(struct te_plan *p, struct te_stream *stream)
{
	const int first = 2 * p->first_op, n = 2 * (p->nops - p->first_op);

	return p->scale_again ? te_copy(stream, p->scale_again + first,
					te_quant_scale_ptr(p->quant, first),
					(size_t)n * sizeof(float)) : 0;
}

static int forward(struct te_plan *p, struct te_stream *stream, uint32_t flags)
{
	struct te_k_rng_next next;
	int r = te__plan_runnable(p, stream, "te_plan_forward");

	if (r < 0)
		return r;
	if (flags)
		return te__fail(-EINVAL, "te_plan_forward: unknown flags 0x%x", flags);
	if (p->dw_pending)
		return te__fail(-TE_ESTATE,
				"te_plan_forward: te_plan_backward_dw of the last pass is due");
	r = mark(p, stream);
	if (!r && p->uses_rng && (p->flags & TE_PLAN_TRAIN)) {
		next = (struct te_k_rng_next){
			.next = p->seq->rng + 1,
			.used = p->rng_used,
			.index = p->rng_index,
			.advance = p->rng_advance,
		};
		r = TE__LAUNCH(stream, RNG_NEXT, &next);
	}
	if (!r)
		r = te__plan_refresh(p, stream);
	if (!r)
		r = te__parts_meet(p->seq, stream);
	if (!r)
		r = run_groups(p, stream, 0, p->fwd_groups);
	if (!r)
		r = keep_scales(p, stream);
	if (!r)
		r = update_scales(p, stream, 2 * p->first_op, 2 * (p->nops - p->first_op));
	if (!r)
		r = mark(p, stream);
	if (!r)
		p->forwarded = 1;
	return sticky(p, r);
}

int te_plan_forward(struct te_plan *p, struct te_stream *stream, uint32_t flags)
{
	return te__stream_queued(stream, forward(p, stream, flags));
}

static int backward(struct te_plan *p, struct te_stream *stream)
{
	int r = te__plan_runnable(p, stream, "te_plan_backward");

	if (r < 0)
		return r;
	if (!(p->flags & TE_PLAN_TRAIN))
		return te__fail(-TE_ESTATE, "te_plan_backward: the plan has no backward pass");
	if (!p->forwarded)
		return te__fail(-TE_ESTATE, "te_plan_backward: no forward pass went before");
	r = mark(p, stream);
	if (!r)
		r = run_groups(p, stream, p->fwd_groups, p->bwd_groups);
	if (!r)
		r = update_scales(p, stream, 2 * p->seq->nops + p->first_op,
				  p->nops - p->first_op);
	if (!r)
		r = mark(p, stream);
	if (!r) {
		p->forwarded = 0; /* saved values have been overwritten */
		p->dw_pending = p->flags & TE_PLAN_DELAY_DW ? 1 : 0;
	}
	return sticky(p, r);
}

int te_plan_backward(struct te_plan *p, struct te_stream *stream)
{
	return te__stream_queued(stream, backward(p, stream));
}

static int backward_dw(struct te_plan *p, struct te_stream *stream)
{
	int first, r = te__plan_runnable(p, stream, "te_plan_backward_dw");

	if (r < 0)
		return r;
	if (!p->dw_pending)
		return te__fail(-TE_ESTATE, p->flags & TE_PLAN_DELAY_DW ?
				"te_plan_backward_dw: no backward pass went before" :
				"te_plan_backward_dw: the plan does not delay weight gradients");
	first = p->fwd_groups + p->bwd_groups;
	r = mark(p, stream);
	if (!r)
		r = run_groups(p, stream, first, p->ngroups - first);
	if (!r)
		r = mark(p, stream);
	if (!r)
		p->dw_pending = 0;
	return sticky(p, r);
}

int te_plan_backward_dw(struct te_plan *p, struct te_stream *stream)
{
	return te__stream_queued(stream, backward_dw(p, stream));
}
