/*
 * build_backward.c - backward steps, in reverse order, following gradients along the main chain and
 * the channels; delayed weight gradients.
 */
#define TE_LOG_CATEGORY "core/plan"

#include "libtecore/base/private.h"
#include "libtecore/plan/build.h"

/* values of the forward pass that a backward or dw step of op i gets */
static void kept_roles(struct te_plan *p, int i, struct te__step *s, uint32_t x_forms,
		       uint32_t dy_forms)
{
	const struct te__plan_op *n = &p->node[i];
	const struct te_op_ops *ops = &p->seq->op[i]->ops;
	int dw = s->kind == TE__STEP_DW;

	te__build_copy_roles(&s->role, &n->value);
	s->role.dy = n->grad_main;
	s->role.x_forms = x_forms;
	s->role.y_forms = (dw ? n->inf.dw_y : n->inf.save_y) & TE_FORM_HP;
	s->role.dy_forms = dy_forms;
	te__build_refer(s, n->value.x, x_forms, 0);
	te__build_refer(s, n->value.y, s->role.y_forms, 0);
	for (int k = 0; k < n->inf.nsaved; k++)
		te__build_refer(s, n->value.saved[k], TE_FORM_HP, 0);
	for (int k = 0; k < ops->nextra_in; k++) {
		if (dw)
			s->role.dex[k] = -1;
		if (!(n->inf.save_ex[k] & (dw ? 2 : 1)))
			s->role.ex[k] = -1;
		else
			te__build_refer(s, n->value.ex[k], TE_FORM_HP, 0);
	}
	for (int k = 0; k < s->nrefs; k++)
		s->ref[k].kept = 1;
	te__build_refer(s, n->grad_main, dy_forms, 0);
	for (int k = 0; k < ops->nextra_out; k++) {
		s->role.ey[k] = -1;
		s->role.dey[k] = p->channel_grad[te__build_channel(p, p->seq->op[i]->give[k])];
		te__build_refer(s, s->role.dey[k], TE_FORM_HP, 0);
	}
}

/* gradient g of channel c arrives: keep it, or add it to an earlier one */
static int channel_gradient(struct te_plan *p, int c, int node, int g)
{
	struct te__step *s;
	int v, r;

	if (p->channel_grad[c] < 0) {
		p->channel_grad[c] = g;
		return 0;
	}
	v = te__plan_new_value(p, &p->value[g].spec, "%s.grad", p->seq->channel[c].name);
	if (v < 0)
		return v;
	r = te__build_step(p, TE__STEP_SUM, node, "sum", &s);
	if (r < 0)
		return r;
	s->role.x = p->channel_grad[c];
	s->role.ex[0] = g;
	s->role.y = v;
	s->role.x_forms = s->role.y_forms = TE_FORM_HP;
	te__build_refer(s, s->role.x, TE_FORM_HP, 0);
	te__build_refer(s, g, TE_FORM_HP, 0);
	te__build_refer(s, v, TE_FORM_HP, 1);
	s->share_to = v;
	s->share_from[0] = s->role.x;
	s->share_from[1] = g;
	p->channel_grad[c] = v;
	return 0;
}

/* the gradient of output k of op i: 0 is the main one */
static int output_gradient(const struct te_plan *p, int i, int k)
{
	return k ? p->channel_grad[te__build_channel(p, p->seq->op[i]->give[k - 1])] :
		   p->node[i].grad_main;
}

/* gradient values of op i's inputs: aliases of output gradients, or new ones; node.value.dex gets
 * the gradients of extra inputs */
static int input_gradients(struct te_plan *p, int i, int want_dx, int *ret_dx, int *ret_any)
{
	struct te__plan_op *n = &p->node[i];
	struct te_op *op = p->seq->op[i];
	int v;

	*ret_dx = -1;
	*ret_any = 0;
	if (want_dx) {
		if (n->inf.dx_alias >= 0) {
			*ret_dx = output_gradient(p, i, n->inf.dx_alias);
		} else {
			v = te__plan_new_value(p, &n->inf.in[0], "%s.dx", op->name);
			if (v < 0)
				return v;
			*ret_dx = v;
			*ret_any = 1;
		}
	}
	for (int k = 0; k < op->ops.nextra_in; k++) {
		const struct te__channel *c = te__seq_channel(p->seq, op->take[k]);

		if (c->giver < 0 || !te__build_need_dx(p, c->giver + 1))
			continue; /* none of its inputs has a gradient */
		if (n->inf.dex_alias[k] >= 0) {
			n->value.dex[k] = output_gradient(p, i, n->inf.dex_alias[k]);
			continue;
		}
		v = te__plan_new_value(p, &n->inf.in[1 + k], "%s.dx%d", op->name, k + 1);
		if (v < 0)
			return v;
		n->value.dex[k] = v;
		*ret_any = 1;
	}
	return 0;
}

/* does backward() of op i compute the gradient of an extra input? */
static int takes_gradients(const struct te_plan *p, int i)
{
	const struct te_op *op = p->seq->op[i];

	for (int k = 0; k < op->ops.nextra_in; k++)
		if (te__seq_channel(p->seq, op->take[k])->giver >= 0 &&
		    p->node[i].inf.dex_alias[k] < 0)
			return 1;
	return 0;
}

static int backward_step(struct te_plan *p, int i, int dx)
{
	struct te__plan_op *n = &p->node[i];
	struct te_op *op = p->seq->op[i];
	struct te__step *s;
	int r = te__build_step(p, TE__STEP_BWD, i, op->ops.name, &s);

	if (r < 0)
		return r;
	kept_roles(p, i, s, n->inf.save_x, n->inf.bwd_dy);
	s->ws_nbytes = n->inf.bwd_ws_nbytes;
	if (n->inf.dx_alias < 0) {
		s->role.dx = dx;
		te__build_refer(s, dx, TE_FORM_HP, 1);
	}
	for (int k = 0; k < op->ops.nextra_in; k++) {
		if (n->inf.dex_alias[k] >= 0)
			s->role.dex[k] = -1;
		else
			te__build_refer(s, s->role.dex[k], TE_FORM_HP, 1);
	}
	if (n->inf.inplace_bwd && s->role.dx >= 0) {
		s->share_to = s->role.dx;
		s->share_from[0] = n->grad_main;
		s->share_from[1] = n->value.x;
		if (s->role.nout)
			s->share_from[2] = s->role.dey[0];
	}
	return 0;
}

static int dw_step(struct te_plan *p, int i)
{
	struct te__plan_op *n = &p->node[i];
	struct te__step *s;
	int r = te__build_step(p, TE__STEP_DW, i, p->seq->op[i]->ops.name, &s);

	if (r < 0)
		return r;
	kept_roles(p, i, s, n->inf.dw_x, n->inf.dw_dy);
	s->ws_nbytes = n->inf.dw_ws_nbytes;
	return 0;
}

int te__build_backward(struct te_plan *p)
{
	int main_grad = p->out_grad;
	int r;

	for (int i = p->nops - 1; i >= p->first_op && i >= p->first_grad; i--) {
		struct te__plan_op *n = &p->node[i];
		struct te_op *op = p->seq->op[i];
		const struct te_op_ops *ops = &op->ops;
		int dx, any;
		int dw = te__build_has_dw(p, i);
		int want_dx = !n->inf.no_dx && te__build_need_dx(p, i);
		uint32_t forms = n->inf.bwd_dy | n->inf.dw_dy;

		n->grad_main = main_grad;
		if (!want_dx && !takes_gradients(p, i))
			forms = n->inf.dw_dy;
		if (!dw)
			forms &= ~n->inf.dw_dy | n->inf.bwd_dy;
		if (main_grad < 0 && forms)
			return te__fail(-TE_EPLAN, "op %s: no gradient reaches its output",
					op->name);
		forms &= TE_FORM_ROW | TE_FORM_COL;
		if (forms) {
			r = te__build_quantized(p, main_grad, i, TE__ROLE_GRADIENT, forms);
			if (r < 0)
				return r;
			if ((p->value[main_grad].forms & forms) != forms)
				return te__fail(-TE_EPLAN,
						"op %s: its output gradient is quantized otherwise",
						op->name);
		}
		r = input_gradients(p, i, want_dx, &dx, &any);
		if (!r && any)
			r = te__op_check_gradients(op, p->seq->ctx, n->inf.in[0].dtype,
						   n->value.dex);
		if (!r && ops->backward && any)
			r = backward_step(p, i, dx);
		else if (!r && any)
			r = te__fail(-TE_EPLAN, "op %s: type %s has no backward()", op->name,
				     ops->name);
		if (!r && dw && !(p->flags & TE_PLAN_DELAY_DW))
			r = dw_step(p, i);
		for (int k = 0; !r && k < ops->nextra_in; k++)
			if (n->value.dex[k] >= 0)
				r = channel_gradient(p, te__build_channel(p, op->take[k]), i,
						     n->value.dex[k]);
		if (r < 0)
			return r;
		main_grad = dx;
	}
	p->in_grad = p->flags & TE_PLAN_INPUT_GRAD ? main_grad : -1;
	return 0;
}

int te__build_delayed(struct te_plan *p)
{
	int r = 0;

	if (p->flags & TE_PLAN_DELAY_DW)
		for (int i = p->nops - 1; i >= p->first_op && !r; i--)
			if (te__build_has_dw(p, i))
				r = dw_step(p, i);
	return r;
}
