/* bind.c - addresses of a plan: tensors of its values, and the arguments of its calls. */
#define TE_LOG_CATEGORY "core/plan"
#include <errno.h>
#include <string.h>

#include <te/errno.h>
#include "libtecore/base/private.h"

#include "libtecore/ops/common.h"
#include "libtecore/quant/quant.h"
#include "libtecore/tensor/ctx.h"
#include "libtecore/plan/plan.h"

void te__plan_unbind(struct te_plan *p)
{
	for (int i = 0; i < p->nvalues; i++) {
		p->value[i].t_hp = te_tensor_unref(p->value[i].t_hp);
		p->value[i].t_q = te_tensor_unref(p->value[i].t_q);
		p->value[i].back_hp = te_tensor_unref(p->value[i].back_hp);
		p->value[i].back_q = te_tensor_unref(p->value[i].back_q);
	}
	te__columns_unbind(p);
	te__hosted_unbind(p);
}

/* buf is -1 before the layout */
static char *address(const struct te_plan *p, int buf)
{
	const struct te__buf *b = p->bound ? &p->buf[buf] : NULL;

	return b && b->first >= 0 ? p->span[b->span] + b->offset : TE__NOWHERE;
}

/* the buffer that a pass uses */
static int buf_of(const struct te_plan *p, int buf, int back)
{
	return back && buf >= 0 && p->buf[buf].back >= 0 ? p->buf[buf].back : buf;
}

/* address of the buffer; NULL if backward does not use it */
static char *copy_address(const struct te_plan *p, int buf, int back)
{
	const int b = buf_of(p, buf, back);

	return back && b >= 0 && p->buf[b].last < p->fwd_groups ? NULL : address(p, b);
}

static int bind_hp(const struct te_plan *p, const struct te__value *v, int back,
		   struct te_tensor **ret_t)
{
	const struct te_spec *s = &v->spec;

	return te_tensor_wrap(p->ctx, s->dtype, s->ndim, s->shape,
			      address(p, buf_of(p, v->hp, back)), NULL, NULL, ret_t);
}

static int bind_q(const struct te_plan *p, const struct te__value *v, int back,
		  struct te_tensor **ret_t)
{
	const struct te_spec *s = &v->spec;
	const int padded = te__value_is_padded(v);
	float *row_scales, *col_scales;
	char *row = NULL, *col = NULL;
	int64_t shape[2];

	if (v->forms & TE_FORM_ROW)
		row = copy_address(p, v->row, back);
	if (v->forms & TE_FORM_COL)
		col = copy_address(p, v->col, back);
	row_scales = col_scales = (float *)TE__NOWHERE;
	if (!v->scaling && p->sinv) {
		row_scales = col_scales = p->sinv + v->sinv * TE__PLAN_SINV_STRIDE;
	} else if (v->scaling && p->bound) {
		row_scales = row ? (float *)(void *)(row + te__value_scales_at(v)) : NULL;
		col_scales = col ? (float *)(void *)(col + te__value_scales_at(v)) : NULL;
	}
	te__value_extents(v, &shape[0], &shape[1]);
	return te__tensor_wrap_scaled(p->ctx, v->qdtype, padded ? 2 : s->ndim,
				      padded ? shape : s->shape, row, col, row_scales, col_scales,
				      v->scaling, ret_t);
}

/* the tensors for backward: forward's tensors, unless backward has another buffer */
static int bind_back(const struct te_plan *p, struct te__value *v)
{
	int r = 0;

	if (buf_of(p, v->hp, 1) == v->hp)
		v->back_hp = te_tensor_ref(v->t_hp);
	else
		r = bind_hp(p, v, 1, &v->back_hp);
	if (r)
		return r;
	if (buf_of(p, v->row, 1) == v->row && buf_of(p, v->col, 1) == v->col)
		v->back_q = te_tensor_ref(v->t_q);
	else
		r = bind_q(p, v, 1, &v->back_q);
	return r;
}

static int bind_value(const struct te_plan *p, struct te__value *v)
{
	int r = 0;

	if (v->fixed)
		v->t_hp = te_tensor_ref(v->fixed);
	else if (!p->bound || v->hp >= 0)
		r = bind_hp(p, v, 0, &v->t_hp);
	if (!r && v->forms)
		r = bind_q(p, v, 0, &v->t_q);
	return r ? r : bind_back(p, v);
}

int te__plan_bind(struct te_plan *p)
{
	int r;

	te__plan_unbind(p);
	for (int i = 0; i < p->nvalues; i++) {
		r = bind_value(p, &p->value[i]);
		if (r < 0)
			return r;
	}
	r = te__hosted_bind(p);
	return r ? r : te__columns_bind(p);
}

static struct te_op_value call_value(const struct te_plan *p, int v, uint32_t forms, int back)
{
	struct te_op_value ret = { NULL, NULL, NULL, -1 };
	const struct te__value *val;

	if (v < 0)
		return ret;
	val = &p->value[v];
	if ((forms & TE_FORM_HP) && !val->no_hp)
		ret.hp = back ? val->back_hp : val->t_hp;
	if (forms & (TE_FORM_ROW | TE_FORM_COL)) {
		ret.q = back ? val->back_q : val->t_q;
		ret.quant = te__plan_quant(p, val->slot);
		ret.slot = val->slot;
	}
	return ret;
}

static void call_weights(const struct te_plan *p, struct te__step *s)
{
	const struct te_seq *seq = p->seq;

	if (s->kind == TE__STEP_QUANT || s->kind == TE__STEP_SUM)
		return;
	for (int k = 0; k < seq->op[s->node]->nweights; k++) {
		int w = seq->op_weight[s->node][k];
		uint32_t forms = p->node[s->node].inf.weight_forms[k];
		struct te_op_value *v = &s->weight[k];
		struct te_tensor *arena = te__hosted_tensor(p, s, w, 1);
		struct te_tensor *cast = te__hosted_cast(p, s, w);
		const int divided = te__weight_is_divided(seq, &seq->weight[w]);
		const struct te__need *need;

		*v = (struct te_op_value){ .slot = -1 };
		s->master[k] = seq->weight[w].master;
		s->rest[k] = seq->weight[w].rest;
		s->grad[k] = arena ? arena : seq->weight[w].grad;
		need = p->need_of[w] < 0 ? NULL : &p->need[p->need_of[w]];
		if (need && need->t_fp32 &&
		    !(seq->op[s->node]->decl[k].flags & TE_WEIGHT_STORED))
			s->master[k] = need->t_fp32;
		if (divided && (arena = te__hosted_tensor(p, s, w, 0)))
			s->master[k] = arena;
		else if (cast && te__seq_is_split(seq))
			s->master[k] = cast;
		if ((forms & TE_FORM_HP) && p->recipe.compute == TE_DTYPE_FP32)
			v->hp = s->master[k];
		if (!need)
			continue;
		if (forms & TE_FORM_HP && !v->hp)
			v->hp = (arena = te__hosted_tensor(p, s, w, 0)) ? arena :
				cast					  ? cast :
									    need->t_hp;
		if (forms & (TE_FORM_ROW | TE_FORM_COL)) {
			v->q = s->column && !k ? p->column[s->column - 1].t : need->t_q;
			v->quant = te__plan_quant(p, need->slot);
			v->slot = need->slot;
		}
	}
}

/*
 * Kernels of a pass may read weights before the preceding ones are complete: nothing casts weights,
 * or the embedding comes after it, whose kernel waits for it before others begin.
 */
static int is_fixed(const struct te_plan *p)
{
	const char *first = te_op_table(p->seq->op[p->first_op])->name;

	return !p->nsets || !strcmp(first, "embedding");
}

void te__plan_fill_call(struct te_plan *p, struct te__step *s)
{
	const struct te__roles *ro = &s->role;
	const uint32_t kept = s->drops ? 0 : ~0u;
	const int back = s - p->step >= p->fwd_steps;
	struct te_op_call *c = &s->call;
	void *const state = c->state;

	memset(c, 0, sizeof(*c));
	c->state = state;
	c->size = sizeof(*c);
	c->op = p->seq->op[s->node];
	c->tag = (uint32_t)s->node;
	c->flags = p->flags & TE_PLAN_TRAIN ? TE_CALL_TRAIN : TE_CALL_NO_AMAX;
	if (p->decodes)
		c->flags |= TE__CALL_DECODES | (is_fixed(p) ? TE__CALL_FIXED_WEIGHTS : 0);
	c->x = call_value(p, ro->x, ro->x_forms & kept, back);
	c->y = call_value(p, ro->y, ro->y_forms & kept, back);
	c->dy = call_value(p, ro->dy, ro->dy_forms, back);
	c->dx = call_value(p, ro->dx, TE_FORM_HP, back);
	for (int k = 0; k < ro->nin; k++) {
		s->ex[k] = call_value(p, ro->ex[k], TE_FORM_HP & kept, back);
		s->dex[k] = call_value(p, ro->dex[k], TE_FORM_HP, back);
	}
	for (int k = 0; k < ro->nout; k++) {
		s->ey[k] = call_value(p, ro->ey[k], TE_FORM_HP, back);
		s->dey[k] = call_value(p, ro->dey[k], TE_FORM_HP, back);
	}
	for (int k = 0; k < ro->nsaved; k++)
		s->saved[k] = call_value(p, ro->saved[k], TE_FORM_HP & kept, back).hp;
	if (s->again) {
		c->flags |= TE_CALL_REPEAT | TE_CALL_NO_AMAX;
		if (c->y.quant == p->quant && p->quant)
			c->y.quant = p->quant_again;
	}
	call_weights(p, s);
	c->ex = s->ex;
	c->ey = s->ey;
	c->dex = s->dex;
	c->dey = s->dey;
	c->weight = s->weight;
	c->master = s->master;
	c->remainder = s->rest;
	c->grad = s->grad;
	c->saved = s->saved;
	c->rng.seed = p->seq->rng;
	c->rng.offset = p->rng_used;
	c->grad_scale = p->grad_scale;
}

/* calls get their final tensors, groups their scratch */
void te__plan_bind_groups(struct te_plan *p)
{
	for (int t = 0; t < p->ngroups; t++) {
		struct te__group *g = &p->group[t];
		void *ws = g->ws < 0 || !p->bound ? NULL : address(p, g->ws);
		size_t ws_nbytes = g->fused.ws_nbytes;

		g->fused.size = sizeof(g->fused);
		g->fused.nparts = g->n;
		g->fused.part = &p->part[g->first];
		g->fused.ws = ws;
		g->fused.fusion = g->fusion;
		for (int k = 0; g->saved && k < g->fused.nsaved; k++)
			g->t_saved[k] = t < p->fwd_groups ? p->value[g->saved[k]].t_hp :
							    p->value[g->saved[k]].back_hp;
		for (int k = 0; k < g->n; k++) {
			struct te__step *s = &p->step[g->first + k];

			te__plan_fill_call(p, s);
			if (!g->fusion) {
				s->call.ws = ws;
				s->call.ws_nbytes = ws_nbytes;
			}
		}
	}
}

/* ---- state of ops and fusions ---- */

static enum te_op_fn fn_of(const struct te__step *s)
{
	return s->kind == TE__STEP_FWD ? TE_OP_FORWARD :
	       s->kind == TE__STEP_BWD ? TE_OP_BACKWARD :
					 TE_OP_BACKWARD_DW;
}

static int bind_state(const struct te_plan *p, struct te__group *g)
{
	struct te__step *s = &p->step[g->first];
	const struct te_op *op = p->seq->op[s->node];
	const uint64_t nfails = te__nfails();
	int r = 0;

	if (g->fusion && g->fusion->bind) {
		r = g->fusion->bind(&g->fused, &g->fused.state);
		if (r < 0)
			return te__callback_failed(nfails, r, "bind() of fusion %s",
						   g->fusion->name);
		g->has_state = 1;
	} else if (!g->fusion && s->kind <= TE__STEP_DW && op->ops.bind) {
		r = op->ops.bind(&s->call, fn_of(s), &s->call.state);
		if (r < 0)
			return te__callback_failed(nfails, r, "op %s: bind()", op->name);
		s->has_state = 1;
	}
	return 0;
}

int te__plan_bind_states(struct te_plan *p)
{
	int r = 0;

	for (int t = 0; t < p->ngroups && !r; t++)
		r = bind_state(p, &p->group[t]);
	return r;
}

void te__plan_unbind_states(struct te_plan *p)
{
	for (int t = 0; t < p->ngroups; t++) {
		struct te__group *g = &p->group[t];
		struct te__step *s = &p->step[g->first];
		const struct te_op *op = p->seq->op[s->node];

		if (g->has_state && g->fusion->unbind)
			g->fusion->unbind(&g->fused, g->fused.state);
		if (s->has_state && op->ops.unbind)
			op->ops.unbind(op, fn_of(s), s->call.state);
		g->has_state = s->has_state = 0;
		g->fused.state = s->call.state = NULL;
	}
}

/* ---- memory of the caller ---- */

/* the index of a boundary value by its name, or -1 */
static int boundary(const struct te_plan *p, const char *name)
{
	const struct te__channel *c;

	if (!strcmp(name, "x"))
		return p->x_value;
	if (!strcmp(name, "out"))
		return p->out_value;
	if (!strcmp(name, "out_grad"))
		return p->out_grad;
	if (!strcmp(name, "in_grad"))
		return p->in_grad;
	c = te__seq_channel(p->seq, name);
	return c && c->giver < 0 ? p->channel_value[c - p->seq->channel] : -1;
}

int te_plan_spec(const struct te_plan *plan, const char *name, struct te_spec *ret_spec)
{
	int v;

	if (!plan || !name || !ret_spec)
		return te__fail(-EINVAL, "te_plan_spec: %s is NULL",
				!plan ? "plan" :
				!name ? "name" :
					"ret_spec");
	v = boundary(plan, name);
	if (v < 0)
		return -ENOENT;
	*ret_spec = plan->value[v].spec;
	return 0;
}

const char *te_plan_input_name(const struct te_plan *plan, int index)
{
	if (!plan || index < 0)
		return NULL;
	if (!index--)
		return "x";
	for (int c = 0; c < plan->seq->nchannels; c++)
		if (plan->seq->channel[c].giver < 0 && plan->channel_value[c] >= 0 && !index--)
			return plan->seq->channel[c].name;
	return NULL;
}

static int check_tensor(const struct te_plan *p, const char *name, int v, const struct te_tensor *t)
{
	char want[96], have[96];
	struct te_spec s;

	if (v < 0)
		return !t ? 0 : te__fail(-EINVAL, "te_plan_bind: the plan has no %s", name);
	if (!t)
		return te__fail(-EINVAL, "te_plan_bind: %s is missing", name);
	if (te_tensor_ctx(t) != p->ctx)
		return te__fail(-EINVAL, "te_plan_bind: %s belongs to another context", name);
	s = te__spec_of(t);
	if (te__spec_equal(&s, &p->value[v].spec))
		return 0;
	te__spec_str(&p->value[v].spec, want, sizeof(want));
	te__spec_str(&s, have, sizeof(have));
	return te__fail(s.dtype == p->value[v].spec.dtype ? -TE_ESHAPE : -TE_EDTYPE,
			"te_plan_bind: %s is %s, the plan wants %s", name, have, want);
}

static struct te_tensor *given(const struct te_plan_binding *b, const char *name)
{
	for (int i = 0; i < b->nin; i++)
		if (!strcmp(b->in_name[i], name))
			return b->in[i];
	return NULL;
}

static int check_inputs(const struct te_plan *p, const struct te_plan_binding *b)
{
	const char *name;
	int r = 0;

	if (b->nin > 0 && (!b->in_name || !b->in))
		return te__fail(-EINVAL, "te_plan_bind: nin is %d, and %s is NULL", b->nin,
				b->in_name ? "in" : "in_name");
	for (int i = 0; i < b->nin; i++)
		if (!b->in_name[i])
			return te__fail(-EINVAL, "te_plan_bind: in_name[%d] is NULL", i);
	for (int i = 0; (name = te_plan_input_name(p, i)) && !r; i++)
		r = check_tensor(p, name, boundary(p, name), given(b, name));
	for (int i = 0; i < b->nin && !r; i++) {
		int known = 0;

		for (int k = 0; (name = te_plan_input_name(p, k)); k++)
			known |= !strcmp(b->in_name[i], name);
		if (!known)
			r = te__fail(-EINVAL, "te_plan_bind: the plan has no input %s",
				     b->in_name[i]);
	}
	return r;
}

/* an arena, or all spans */
static int check_memory(const struct te_plan *p, const struct te_plan_binding *b)
{
	int any = 0;

	for (int s = 0; s < TE_SPAN_COUNT; s++)
		any |= b->span[s] != NULL;
	if (any && b->arena)
		return te__fail(-EINVAL, "te_plan_bind: both arena and span are set, expected one");
	if (!any && p->arena_nbytes && (!b->arena || (uintptr_t)b->arena % TE__PLAN_ALIGN))
		return te__fail(-EINVAL,
				"te_plan_bind: arena is %p: %zu bytes are wanted, aligned "
				"to %d",
				b->arena, p->arena_nbytes, TE__PLAN_ALIGN);
	for (int s = 0; any && s < TE_SPAN_COUNT; s++)
		if ((uintptr_t)b->span[s] % TE__PLAN_ALIGN || (!b->span[s] && p->span_nbytes[s]))
			return te__fail(-EINVAL,
					"te_plan_bind: span[TE_SPAN_%s] is %p: %zu bytes are "
					"wanted, aligned to %d",
					te__span_name[s], b->span[s], p->span_nbytes[s],
					TE__PLAN_ALIGN);
	return 0;
}

static int check_binding(const struct te_plan *p, const struct te_plan_binding *b)
{
	int r;

	if (!(p->flags & TE_PLAN_EXTERNAL))
		return te__fail(-TE_ESTATE, "te_plan_bind: the plan was made without "
					    "TE_PLAN_EXTERNAL");
	r = check_memory(p, b);
	if (!r)
		r = check_inputs(p, b);
	if (!r)
		r = check_tensor(p, "out", p->out_value, b->out);
	if (!r)
		r = check_tensor(p, "out_grad", p->out_grad, b->out_grad);
	return r ? r : check_tensor(p, "in_grad", p->in_grad, b->in_grad);
}

static void give(struct te_plan *p, int v, struct te_tensor *t)
{
	if (v < 0)
		return;
	te_tensor_unref(p->value[v].fixed);
	p->value[v].fixed = te_tensor_ref(t);
}

int te_plan_bind(struct te_plan *plan, const struct te_plan_binding *binding)
{
	struct te_plan_binding b = TE_PLAN_BINDING_INIT;
	const char *name;
	int r;

	if (!plan)
		return te__fail(-EINVAL, "te_plan_bind: plan is NULL");
	r = te__sized_in("te_plan_bind", te_plan_binding, binding, &b);
	if (!r)
		r = check_binding(plan, &b);
	if (r)
		return r;
	for (int i = 0; (name = te_plan_input_name(plan, i)); i++)
		give(plan, boundary(plan, name), given(&b, name));
	give(plan, plan->out_value, b.out);
	give(plan, plan->out_grad, b.out_grad);
	give(plan, plan->in_grad, b.in_grad);
	te__plan_unbind_states(plan);
	for (int s = 0; s < TE_SPAN_COUNT; s++) {
		const size_t at = te__plan_arena_offset(plan, s);

		plan->span[s] = b.arena ? (char *)b.arena + at : b.span[s];
	}
	plan->forwarded = plan->dw_pending = 0;
	plan->bound = 1;
	r = te__plan_bind(plan);
	if (!r) {
		te__plan_bind_groups(plan);
		r = te__plan_bind_states(plan);
	}
	plan->bound = !r;
	return r;
}
