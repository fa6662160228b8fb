/*
 * build_forward.c - forward steps, and what the ops answer about their outputs.
 *
 * A cast to FP8 becomes a separate step just before the first op that needs it; the fusion table
 * may fuse it into its producer.
 */
#define TE_LOG_CATEGORY "core/plan"

#include "libtecore/base/private.h"
#include "libtecore/plan/build.h"

/* the value of a fed channel, made at its first taker */
static int fed_value(struct te_plan *p, int c)
{
	const struct te__channel *ch = &p->seq->channel[c];
	struct te_spec s = ch->tail;
	int lead = ch->is_whole ? 0 : p->lead.ndim < 2 ? p->lead.ndim : 2;
	char shape[256];
	int v;

	s.ndim = lead + ch->tail.ndim;
	for (int d = 0; d < lead; d++)
		s.shape[d] = p->lead.shape[d];
	for (int d = 0; d < ch->tail.ndim; d++)
		s.shape[lead + d] = ch->tail.shape[d]	? ch->tail.shape[d] :
				    d < p->lead.ndim	? p->lead.shape[d] :
							  0;
	if (!te__spec_valid(&s)) {
		te__spec_str(&s, shape, sizeof(shape));
		return te__fail(-TE_ESHAPE,
				"channel %s: is %s: extents must be above 0, of 2^48 bytes at most",
				ch->name, shape);
	}
	v = te__plan_new_value(p, &s, "%s", ch->name);
	if (v >= 0)
		p->channel_value[c] = v;
	return v;
}

int te__plan_check_spec(const char *kind, const char *name, const char *what, int k,
			const struct te_spec *s)
{
	char shape[256];

	if (s->ndim < 1 || s->ndim > TE_MAX_DIMS)
		return te__fail(-TE_ESHAPE, "%s %s: gives no shape for %s %d", kind, name, what, k);
	if (!te_dtype_nbytes(s->dtype))
		return te__fail(-TE_EDTYPE, "%s %s: the element type of %s %d is %d, which is "
				"unknown", kind, name, what, k, (int)s->dtype);
	if (te__spec_valid(s))
		return 0;
	te__spec_str(s, shape, sizeof(shape));
	return te__fail(-TE_ESHAPE,
			"%s %s: %s %d is %s: extents must be above 0, of 2^48 bytes at most", kind,
			name, what, k, shape);
}

/* check gradients of inputs that alias gradients of outputs */
static int check_gradients(const struct te_op *op, const struct te_op_infer *inf)
{
	for (int k = 0; k <= op->ops.nextra_in; k++) {
		const int a = k ? inf->dex_alias[k - 1] : inf->dx_alias;

		if (a > op->ops.nextra_out || a < -1)
			return te__fail(-TE_EPLAN, "op %s: the gradient of input %d aliases the "
					"gradient of output %d", op->name, k, a);
		if (a >= 0 && !te__spec_equal(&inf->out[a], &inf->in[k]))
			return te__fail(-TE_ESHAPE, "op %s: the gradient of input %d is the one of "
					"output %d but of another shape", op->name, k, a);
	}
	return 0;
}

static int check_answer(struct te_plan *p, int i)
{
	const struct te_op_infer *inf = &p->node[i].inf;
	const struct te_op *op = p->seq->op[i];
	uint32_t q = TE_FORM_ROW | TE_FORM_COL;
	int r;

	if (!te__recipe_casts(&p->node[i].recipe) &&
	    ((inf->fwd_x | inf->bwd_dy | inf->dw_x | inf->dw_dy |
	      (op->nweights ? inf->weight_forms[0] : 0)) & q))
		return te__fail(-TE_EPLAN, "op %s: asks for FP8 under recipe %s", op->name,
				te_recipe_name(&p->node[i].recipe));
	for (int k = 1; k < op->nweights; k++)
		if (inf->weight_forms[k] & q)
			return te__fail(-TE_EPLAN, "op %s: only weight 0 can be FP8", op->name);
	for (int k = 0; k <= op->ops.nextra_out; k++) {
		int a = inf->out_alias[k];

		if (a > op->ops.nextra_in || a < -1)
			return te__fail(-TE_EPLAN, "op %s: output %d aliases input %d", op->name, k,
					a);
		if (a >= 0 && !te__spec_equal(&inf->out[k], &inf->in[a]))
			return te__fail(-TE_ESHAPE,
					"op %s: output %d is input %d but of another shape",
					op->name, k, a);
		r = a < 0 ? te__plan_check_spec("op", op->name, "output", k, &inf->out[k]) : 0;
		if (r < 0)
			return r;
	}
	for (int k = 0; k < inf->nsaved; k++) {
		r = te__plan_check_spec("op", op->name, "saved tensor", k, &inf->saved[k]);
		if (r < 0)
			return r;
	}
	if (inf->fwd_ws_nbytes > TE__SPEC_MAX_NBYTES || inf->bwd_ws_nbytes > TE__SPEC_MAX_NBYTES ||
	    inf->dw_ws_nbytes > TE__SPEC_MAX_NBYTES)
		return te__fail(-TE_ESHAPE, "op %s: wants more than 2^48 bytes of scratch",
				op->name);
	return check_gradients(op, inf);
}

/* the values that op i reads, and the results of its infer() */
static int infer_inputs(struct te_plan *p, int i, int x)
{
	struct te_op *op = p->seq->op[i];
	struct te_spec *in = te__calloc(1 + (size_t)op->ops.nextra_in, sizeof(*in));
	int r = in ? 0 : te__no_memory("plan");

	if (!r)
		in[0] = p->value[x].spec;
	for (int k = 0; k < op->ops.nextra_in && r >= 0; k++) {
		const int c = te__build_channel(p, op->take[k]);

		r = p->channel_value[c] < 0 ? fed_value(p, c) : 0;
		if (r >= 0)
			in[1 + k] = p->value[p->channel_value[c]].spec;
	}
	if (r >= 0)
		r = te__infer(op, &p->node[i].recipe,
			      p->flags & TE_PLAN_TRAIN ? TE_INFER_TRAIN : 0, in, &p->node[i].inf);
	te__free(in);
	return r < 0 ? r : 0;
}

int te__build_infer(struct te_plan *p, int i, int x)
{
	struct te__plan_op *n = &p->node[i];
	struct te_op *op = p->seq->op[i];
	struct te_op_infer *inf = &n->inf;
	int v, r = te__op_check_heads(op, p->seq->ctx, p->value[x].spec.dtype);

	if (!r && !(p->flags & TE_PLAN_NO_ALLOC))
		r = te__op_prepare(op, p->seq->ctx);
	if (!r)
		r = infer_inputs(p, i, x);
	if (!r)
		r = check_answer(p, i);
	if (!r)
		r = te__build_roles(&n->value, op->ops.nextra_in, op->ops.nextra_out, inf->nsaved);
	if (r < 0)
		return r;
	n->grad_main = -1;
	n->value.x = x;
	for (int k = 0; k < op->ops.nextra_in; k++)
		n->value.ex[k] = p->channel_value[te__build_channel(p, op->take[k])];
	for (int k = 0; k <= op->ops.nextra_out; k++) {
		const int a = inf->out_alias[k];

		if (a >= 0)
			v = a ? n->value.ex[a - 1] : x;
		else if (k == 0)
			v = te__plan_new_value(p, &inf->out[k], "%s.y", op->name);
		else
			v = te__plan_new_value(p, &inf->out[k], "%s.y%d", op->name, k);
		if (v < 0)
			return v;
		if (k == 0)
			n->value.y = v;
		else
			n->value.ey[k - 1] = v;
		if (k > 0)
			p->channel_value[te__build_channel(p, op->give[k - 1])] = v;
	}
	for (int k = 0; k < inf->nsaved; k++) {
		v = te__plan_new_value(p, &inf->saved[k], "%s.saved%d", op->name, k);
		if (v < 0)
			return v;
		n->value.saved[k] = v;
	}
	p->uses_rng |= inf->uses_rng;
	return 0;
}

/* FP8 forms of value v over all consumers, including the backward pass */
static uint32_t forward_forms(const struct te_plan *p, int v)
{
	uint32_t f = 0;

	for (int i = p->first_op; i < p->nops; i++)
		if (p->node[i].value.x == v)
			f |= p->node[i].inf.fwd_x |
			     (te__build_has_dw(p, i) ? p->node[i].inf.dw_x : 0) |
			     (te__build_need_dx(p, i) ? p->node[i].inf.save_x : 0);
	return f & (TE_FORM_ROW | TE_FORM_COL);
}

/* 1: forward() writes an output. Outputs that alias inputs need no step */
static int gives(const struct te__plan_op *n, const struct te_op_ops *ops)
{
	for (int k = 0; k <= ops->nextra_out; k++)
		if (n->inf.out_alias[k] < 0)
			return 1;
	return n->inf.nsaved > 0;
}

int te__build_forward(struct te_plan *p)
{
	for (int i = p->first_op; i < p->nops; i++) {
		struct te__plan_op *n = &p->node[i];
		const struct te_op_ops *ops = &p->seq->op[i]->ops;
		struct te__step *s;
		int r;

		if ((n->inf.fwd_x | (te__build_has_dw(p, i) ? n->inf.dw_x : 0)) &
		    (TE_FORM_ROW | TE_FORM_COL)) {
			r = te__build_quantized(p, n->value.x, i, TE__ROLE_ACTIVATION,
						forward_forms(p, n->value.x));
			if (r < 0)
				return r;
		}
		if (!ops->forward || !gives(n, ops))
			continue;
		r = te__build_step(p, TE__STEP_FWD, i, ops->name, &s);
		if (r < 0)
			return r;
		te__build_copy_roles(&s->role, &n->value);
		s->role.x_forms = n->inf.fwd_x;
		s->role.y_forms = TE_FORM_HP;
		s->ws_nbytes = n->inf.fwd_ws_nbytes;
		te__build_refer(s, n->value.x, n->inf.fwd_x, 0);
		for (int k = 0; k < ops->nextra_in; k++)
			te__build_refer(s, n->value.ex[k], TE_FORM_HP, 0);
		if (n->inf.out_alias[0] < 0)
			te__build_refer(s, n->value.y, TE_FORM_HP, 1);
		for (int k = 0; k < ops->nextra_out; k++)
			if (n->inf.out_alias[1 + k] < 0)
				te__build_refer(s, n->value.ey[k], TE_FORM_HP, 1);
		for (int k = 0; k < n->inf.nsaved; k++)
			te__build_refer(s, n->value.saved[k], TE_FORM_HP, 1);
		if (n->inf.inplace_fwd) {
			s->share_to = n->value.y;
			s->share_from[0] = n->value.x;
		}
	}
	return 0;
}
