/* plan.c - plans: creation, memory, running. */
#define TE_LOG_CATEGORY "core/plan"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <te/errno.h>
#include "libtecore/base/private.h"
#include <te/capture.h>
#include <te/stream.h>

#include "libtecore/tensor/ctx.h"
#include "libtecore/plan/moves.h"
#include "libtecore/plan/plan.h"
#include "libtecore/quant/quant.h"

/* ---- memory outside the arena ---- */

static int input_tensor(struct te_plan *p, int v)
{
	struct te_spec *s = &p->value[v].spec;
	int r;

	if (p->flags & (TE_PLAN_NO_ALLOC | TE_PLAN_EXTERNAL))
		r = te_tensor_wrap(p->ctx, s->dtype, s->ndim, s->shape, TE__NOWHERE, NULL, NULL,
				   &p->value[v].fixed);
	else
		r = te_tensor_create(p->ctx, s->dtype, s->ndim, s->shape, NULL, &p->value[v].fixed);
	if (!r && !(p->flags & TE_PLAN_EXTERNAL))
		p->state_nbytes += (te__spec_nbytes(s) + TE__PLAN_ALIGN - 1) / TE__PLAN_ALIGN *
				   TE__PLAN_ALIGN;
	return r;
}

/* values that te_plan_bind sets, except inputs */
static void ends(const struct te_plan *p, int ret[3])
{
	ret[0] = p->out_value;
	ret[1] = p->out_grad;
	ret[2] = p->in_grad;
}

/* outputs and gradients that the caller keeps: places outside the arena */
static int external_ends(struct te_plan *p)
{
	int v[3], r = 0;

	ends(p, v);
	for (int i = 0; i < 3 && !r; i++) {
		if (v[i] < 0)
			continue;
		if (p->value[v[i]].fixed)
			return te__fail(-TE_EPLAN, "plan: %s is a boundary on both sides: with "
					"TE_PLAN_EXTERNAL an op must come between",
					p->value[v[i]].label);
		r = input_tensor(p, v[i]);
	}
	return r;
}

static int make_fixed(struct te_plan *p)
{
	const size_t nbytes = (size_t)(1 + p->nsinv) * TE__PLAN_SINV_STRIDE * sizeof(float);
	void *ptr;
	int r = input_tensor(p, p->x_value);

	for (int c = 0; c < p->seq->nchannels && !r; c++)
		if (p->seq->channel[c].giver < 0 && p->channel_value[c] >= 0)
			r = input_tensor(p, p->channel_value[c]);
	if (!r && (p->flags & TE_PLAN_EXTERNAL))
		r = external_ends(p);
	if (!r)
		r = te__plan_weights(p);
	if (r < 0)
		return r;
	p->state_nbytes += nbytes;
	if (p->flags & TE_PLAN_NO_ALLOC)
		return 0;
	r = te__mem_get(p->ctx, nbytes, &ptr);
	if (r < 0)
		return r;
	p->rng_used = ptr;
	p->sinv = (float *)ptr + TE__PLAN_SINV_STRIDE;
	return 0;
}

static int make_arena(struct te_plan *p)
{
	int r;

	if (p->flags & (TE_PLAN_NO_ALLOC | TE_PLAN_EXTERNAL))
		return te__plan_bind(p);
	r = p->arena_nbytes ? te__mem_get(p->ctx, p->arena_nbytes, &p->arena) : 0;
	if (r == -ENOMEM)
		return te__fail(r, "plan: activations need %.1f MiB: %s",
				(double)p->arena_nbytes / 1048576.0, te_error_detail());
	p->span[TE_SPAN_F] = p->arena;
	p->bound = !r;
	return r ? r : te__plan_bind(p);
}

/* ---- life ---- */

static int check_opts(struct te_seq *seq, const struct te_plan_opts *o)
{
	const uint32_t known = TE_PLAN_TRAIN | TE_PLAN_DELAY_DW | TE_PLAN_NO_FUSION |
			       TE_PLAN_INPUT_GRAD | TE_PLAN_NO_ALLOC | TE_PLAN_EXTERNAL |
			       TE_PLAN_RECOMPUTE_COSTLY;
	char shape[256];

	if (o->flags & ~known)
		return te__fail(-EINVAL, "te_plan_create: unknown flags 0x%x", o->flags & ~known);
	if ((o->flags & (TE_PLAN_DELAY_DW | TE_PLAN_INPUT_GRAD)) && !(o->flags & TE_PLAN_TRAIN))
		return te__fail(-EINVAL,
				"te_plan_create: delayed or input gradients without training");
	if (o->flags & TE_PLAN_TRAIN && seq->binding.flags & TE_SEQ_NO_GRADS)
		return te__fail(-TE_ESTATE, "te_plan_create: training, and the sequence was bound "
					    "with TE_SEQ_NO_GRADS");
	if (o->hooks >> TE_PLAN_EVENT_COUNT || (o->hooks && !o->hook))
		return te__fail(-EINVAL, "te_plan_create: hooks 0x%x: %s", (unsigned)o->hooks,
				o->hook ? "there are no such events" : "hook is NULL");
	if (!isfinite(o->grad_scale))
		return te__fail(-EINVAL, "te_plan_create: grad_scale is %g", o->grad_scale);
	if (!seq->initialised && !(seq->complete && (o->flags & TE_PLAN_NO_ALLOC)))
		return te__fail(-TE_ESTATE, "te_plan_create: te_seq_init has not run");
	if (o->x.ndim < 1 || o->x.ndim > TE_MAX_DIMS)
		return te__fail(-TE_ESHAPE, "te_plan_create: x has %d extents", o->x.ndim);
	if (!te_dtype_nbytes(o->x.dtype))
		return te__fail(-TE_EDTYPE, "te_plan_create: the element type of x is %d, which is "
				"unknown", (int)o->x.dtype);
	if (o->whole_x.ndim < 0 || o->whole_x.ndim > TE_MAX_DIMS)
		return te__fail(-TE_ESHAPE, "te_plan_create: whole_x has %d extents",
				o->whole_x.ndim);
	if (!te__spec_valid(&o->x) || (o->whole_x.ndim && !te__spec_valid(&o->whole_x))) {
		const int whole = te__spec_valid(&o->x);

		te__spec_str(whole ? &o->whole_x : &o->x, shape, sizeof(shape));
		return te__fail(-TE_ESHAPE,
				"te_plan_create: %s is %s: extents must be above 0, of 2^48 bytes "
				"at most", whole ? "whole_x" : "x", shape);
	}
	return 0;
}

/* *ret_recipe has all members of this version */
static int take_recipe(const struct te_plan_opts *o, struct te_recipe *ret_recipe)
{
	int r;

	*ret_recipe = (struct te_recipe)TE_RECIPE_INIT;
	r = o->recipe ? te__sized_in("te_plan_create", te_recipe, o->recipe, ret_recipe) : 0;
	if (r < 0)
		return r;
	if (ret_recipe->compute != TE_DTYPE_FP32 && ret_recipe->compute != TE_DTYPE_BF16)
		return te__fail(-TE_EDTYPE, "te_plan_create: recipe: compute dtype %s is neither "
				"bf16 nor fp32", te_dtype_name(ret_recipe->compute));
	return te__recipe_check("te_plan_create", ret_recipe);
}

/* A plan of some ops may have none of the values: te_step_create() looks at all parts. */
static int find_patterns(struct te_plan *p, const struct te_plan_opts *o)
{
	const int whole = !p->first_op && p->nops == p->seq->nops;

	return whole && p->flags & TE_PLAN_TRAIN ?
		       te__plans_find_patterns("te_plan_create", &p, 1, o->nrecompute,
					       o->recompute) :
		       0;
}

/* which ops can add to gradients in BF16? */
static int check_grads(const struct te_seq *seq, const struct te_recipe *recipe, uint32_t flags)
{
	static const char fn[] = "te_plan_create";

	if (!(flags & TE_PLAN_TRAIN) || te__seq_grad_dtype(seq) == TE_DTYPE_FP32)
		return 0;
	if (recipe->compute != TE_DTYPE_BF16)
		return te__fail(-TE_EDTYPE, "%s: the recipe computes in %s, and TE_SEQ_BF16_GRADS: "
				"expected bf16", fn, te_dtype_name(recipe->compute));
	for (int i = 0; i < seq->nops; i++)
		if (!seq->op[i]->is_library && te__seq_op_trains(seq, i))
			return te__fail(-EOPNOTSUPP, "%s: op %s is user-defined and has a trained "
					"weight: its gradient would be FP32, and TE_SEQ_BF16_GRADS",
					fn, seq->op[i]->name);
	return 0;
}

static int make(struct te_plan *p, const struct te_plan_opts *o)
{
	int r = te__plan_build(p, o->start_at, o->stop_before);

	if (!r)
		r = make_fixed(p);
	if (!r)
		r = te__plan_bind(p);
	if (!r)
		r = te__plan_fuse(p);
	if (!r)
		r = find_patterns(p, o);
	if (!r)
		r = te__plan_recompute(p, o->nrecompute, o->recompute);
	if (!r)
		r = te__plan_layout(p);
	if (!r)
		r = te__plan_find_grads(p);
	if (!r)
		r = te__moves_bind(p);
	if (!r)
		r = make_arena(p);
	if (r)
		return r;
	te__plan_bind_groups(p);
	return o->flags & (TE_PLAN_NO_ALLOC | TE_PLAN_EXTERNAL) ? 0 : te__plan_bind_states(p);
}

int te__plan_create(struct te_seq *seq, const struct te_plan_opts *opts, int decodes,
		    struct te_plan **ret_plan)
{
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_recipe recipe;
	struct te_plan *p;
	int r;

	if (!seq || !ret_plan)
		return te__fail(-EINVAL, "te_plan_create: no sequence or no place for the result");
	r = te__sized_in("te_plan_create", te_plan_opts, opts, &o);
	if (!r)
		r = check_opts(seq, &o);
	if (!r)
		r = te__patterns_check("te_plan_create", "recompute", o.nrecompute, o.recompute);
	if (!r)
		r = take_recipe(&o, &recipe);
	if (!r)
		r = check_grads(seq, &recipe, o.flags);
	if (r)
		return r;
	p = te__calloc(1, sizeof(*p));
	if (!p)
		return te__no_memory("plan");
	atomic_init(&p->refs, 1);
	p->seq = te_seq_ref(seq);
	p->ctx = seq->ctx;
	p->recipe = recipe;
	p->flags = o.flags;
	p->decodes = decodes;
	p->xspec = o.x;
	p->lead = o.whole_x.ndim ? o.whole_x : o.x;
	p->hook = o.hook;
	p->hook_arg = o.hook_arg;
	p->hooks = o.hooks;
	p->grad_scale = (float)o.grad_scale;
	p->rng_advance = 1;
	p->offload = o.flags & TE_PLAN_TRAIN ? te_offload_ref(o.offload) : NULL;
	r = make(p, &o);
	if (r) {
		te_plan_unref(p);
		return r;
	}
	seq->planned = 1;
	*ret_plan = p;
	return 0;
}

int te_plan_create(struct te_seq *seq, const struct te_plan_opts *opts, struct te_plan **ret_plan)
{
	return te__plan_create(seq, opts, 0, ret_plan);
}

struct te_plan *te_plan_ref(struct te_plan *plan)
{
	if (plan)
		atomic_fetch_add(&plan->refs, 1);
	return plan;
}

struct te_plan *te_plan_unref(struct te_plan *p)
{
	if (!p || atomic_fetch_sub(&p->refs, 1) != 1)
		return NULL;
	te__plan_unbind_states(p);
	te__moves_free(p);
	te__plan_unbind(p);
	for (int i = 0; i < p->nvalues; i++) {
		te_tensor_unref(p->value[i].fixed);
		te__free(p->value[i].why);
	}
	for (int i = 0; i < p->nneeds; i++) {
		te_tensor_unref(p->need[i].t_hp);
		te_tensor_unref(p->need[i].t_q);
		te_tensor_unref(p->need[i].t_fp32);
	}
	te__mem_put(p->ctx, p->arena);
	te__mem_put(p->ctx, p->rng_used);
	te__mem_put(p->ctx, p->scale_again);
	te__mem_put(p->ctx, p->columns_state);
	te_quant_unref(p->quant_again);
	for (int i = 0; i < p->nothers; i++)
		te_quant_unref(p->other[i]);
	te__free(p->other);
	te_quant_unref(p->quant);
	for (int i = 0; p->node && i < p->nops; i++) {
		te__infer_free(&p->node[i].inf);
		te__free(p->node[i].value.ex);
	}
	for (int i = 0; i < p->nsteps; i++) {
		te__free(p->step[i].role.ex);
		te__free(p->step[i].ex);
		te__free(p->step[i].more_ref);
	}
	for (int t = 0; t < p->ngroups; t++) {
		te__free(p->group[t].saved);
		te__free(p->group[t].t_saved);
	}
	te__profile_free(p->profile);
	te__watch_free(p->watch);
	te__free(p->part);
	te__free(p->grad_group);
	te__free(p->kept);
	te__free(p->node);
	te__free(p->value);
	te__free(p->buf);
	te__free(p->step);
	te__free(p->group);
	te__free(p->need);
	te__free(p->need_of);
	te__free(p->set);
	te__free(p->column);
	te__free(p->hosted);
	te__free(p->channel_value);
	te__free(p->channel_grad);
	te_seq_unref(p->seq);
	te__free(p);
	return NULL;
}

uint32_t te_plan_flags(const struct te_plan *plan)
{
	return plan ? plan->flags : 0;
}

int te_plan_set_rng(struct te_plan *plan, uint64_t index, uint64_t advance)
{
	if (!plan)
		return te__fail(-EINVAL, "te_plan_set_rng: plan is NULL");
	plan->rng_index = index;
	plan->rng_advance = advance;
	return 0;
}

const struct te_seq *te__plan_draws(const struct te_plan *plan, int *ret_first, int *ret_end)
{
	*ret_first = plan->first_op;
	*ret_end = plan->nops;
	return plan->uses_rng && plan->flags & TE_PLAN_TRAIN ? plan->seq : NULL;
}

int te__plan_claim(struct te_plan *plan, const char *name, int claim)
{
	if (!plan->moves || !plan->moves->n)
		return 0;
	if (!claim) {
		atomic_store(&plan->moves->claimed, 0);
		return 0;
	}
	return atomic_exchange(&plan->moves->claimed, 1) ?
		       te__fail(-EBUSY, "te_callable_from_plan: the plan of %s offloads values and "
					"is a callable already: two could run concurrently, in one "
					"pinned memory", name) : 0;
}

int te__plan_adds(const struct te_plan *plan, int weight)
{
	return plan->grad_group[weight] >= 0;
}

struct te_tensor *te_plan_input(struct te_plan *plan, const char *name)
{
	const struct te__channel *c;

	if (plan && name && !strcmp(name, "x"))
		return plan->value[plan->x_value].fixed;
	c = plan && name ? te__seq_channel(plan->seq, name) : NULL;
	if (c && c->giver < 0 && plan->channel_value[c - plan->seq->channel] >= 0)
		return plan->value[plan->channel_value[c - plan->seq->channel]].fixed;
	te__fail(-EINVAL, "te_plan_input: the plan has no input %s", name ? name : "NULL");
	return NULL;
}

struct te_tensor *te_plan_output(struct te_plan *plan)
{
	return plan ? plan->value[plan->out_value].t_hp : NULL;
}

struct te_tensor *te_plan_output_grad(struct te_plan *plan)
{
	return !plan || plan->out_grad < 0 ? NULL : plan->value[plan->out_grad].t_hp;
}

struct te_tensor *te_plan_input_grad(struct te_plan *plan)
{
	return !plan || plan->in_grad < 0 ? NULL : plan->value[plan->in_grad].t_hp;
}

int te_plan_memory(const struct te_plan *plan, struct te_plan_memory *ret_mem)
{
	const struct te_quant *q = plan ? plan->seq->quant ? plan->seq->quant : plan->quant : NULL;
	struct te_plan_memory mem;
	int r = te__sized_check("te_plan_memory", te_plan_memory, ret_mem);

	if (r)
		return r;
	if (!plan)
		return te__fail(-EINVAL, "te_plan_memory: plan is NULL");
	mem = (struct te_plan_memory){
		.size = sizeof(mem),
		.arena_nbytes = plan->arena_nbytes,
		.sum_nbytes = plan->sum_nbytes,
		.weights_nbytes = te__seq_weights_nbytes(plan->seq),
		.copies_nbytes = plan->copies_nbytes,
		.state_nbytes = plan->state_nbytes + 3 * sizeof(uint64_t) +
				(q ? te__quant_device_nbytes(q) : 0),
		.own_nbytes = plan->state_nbytes,
		.bound_nbytes = te__seq_bound_nbytes(plan->seq),
		.pass_ms = plan->moves ? te__moves_pass_ms(plan) : 0,
	};
	for (int s = 0; plan->flags & TE_PLAN_EXTERNAL && s < TE_SPAN_COUNT; s++)
		mem.span_nbytes[s] = plan->span_nbytes[s];
	mem.total_nbytes = mem.arena_nbytes + mem.weights_nbytes + mem.copies_nbytes +
			   mem.state_nbytes;
	te__sized_out(te_plan_memory, &mem, ret_mem);
	return 0;
}

static int visit_regions(struct te_plan *p, te_region_fn fn, void *arg)
{
	const struct te_region region[] = {
		{ "plan", TE_REGION_HOST, &p->forwarded, sizeof(p->forwarded) },
		{ "plan", TE_REGION_HOST, &p->dw_pending, sizeof(p->dw_pending) },
		{ "plan", TE_REGION_DEVICE, p->rng_used,
		  (size_t)(1 + p->nsinv) * TE__PLAN_SINV_STRIDE * sizeof(float) },
		{ "plan", TE_REGION_DEVICE, p->scale_again,
		  (size_t)p->nops * 2 * sizeof(float) },
		{ "plan", TE_REGION_DEVICE, p->columns_state, te__columns_nbytes(p) },
	};
	int r = te_seq_regions(p->seq, fn, arg);

	for (size_t i = 0; i < sizeof(region) / sizeof(region[0]) && !r; i++)
		if (region[i].ptr)
			r = fn(arg, &region[i]);
	return r;
}

int te_plan_regions(const struct te_plan *plan, te_region_fn fn, void *arg)
{
	return plan ? visit_regions((struct te_plan *)(uintptr_t)plan, fn, arg) :
		      te__fail(-EINVAL, "te_plan_regions: plan is NULL");
}
