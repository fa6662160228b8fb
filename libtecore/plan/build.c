/*
 * build.c - from ops to basic steps.
 *
 * Forward in order, asking each op for its outputs and saved values; backward in reverse,
 * following gradients along the main chain and the channels. A cast to FP8 becomes a separate
 * step just before the first op that needs it; the fusion table may fuse it into its producer.
 */
#define TE_LOG_CATEGORY "core/plan"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "libtecore/base/private.h"

#include "kernels/te_k.h"
#include "libtecore/plan/plan.h"
#include "libtecore/quant/quant.h"

static int grow(void **array, int *cap, int n, size_t nbytes)
{
	int want = *cap ? *cap * 2 : 64;
	void *p;

	if (n < *cap)
		return 0;
	p = te__realloc(*array, (size_t)want * nbytes);
	if (!p)
		return te__no_memory("plan");
	*array = p;
	*cap = want;
	return 0;
}

int te__plan_new_buf(struct te_plan *p, size_t nbytes)
{
	int r = grow((void **)&p->buf, &p->cap_bufs, p->nbufs, sizeof(*p->buf));

	if (r < 0)
		return r;
	p->buf[p->nbufs] = (struct te__buf){
		.nbytes = (nbytes + TE__PLAN_ALIGN - 1) / TE__PLAN_ALIGN * TE__PLAN_ALIGN,
		.first = -1,
		.last = -1,
		.share = -1,
		.back = -1,
	};
	return p->nbufs++;
}

int te__plan_new_value(struct te_plan *p, const struct te_spec *spec, const char *fmt, ...)
{
	struct te__value *v;
	va_list ap;
	int r = grow((void **)&p->value, &p->cap_values, p->nvalues, sizeof(*p->value));

	if (r < 0)
		return r;
	v = &p->value[p->nvalues];
	memset(v, 0, sizeof(*v));
	va_start(ap, fmt);
	vsnprintf(v->label, sizeof(v->label), fmt, ap);
	va_end(ap);
	v->spec = *spec;
	v->hp = v->row = v->col = v->sinv = v->slot = -1;
	return p->nvalues++;
}

/* every value -1 */
static int no_roles(struct te__roles *r, int nin, int nout, int nsaved)
{
	const size_t nbytes = (size_t)(2 * nin + 2 * nout + nsaved) * sizeof(int);

	memset(r, 0, sizeof(*r));
	r->x = r->y = r->dx = r->dy = -1;
	r->nin = nin;
	r->nout = nout;
	r->nsaved = nsaved;
	r->ex = te__malloc(nbytes + 1);
	if (!r->ex)
		return te__no_memory("plan");
	memset(r->ex, 0xff, nbytes);
	r->dex = r->ex + nin;
	r->ey = r->dex + nin;
	r->dey = r->ey + nout;
	r->saved = r->dey + nout;
	return 0;
}

static void copy_roles(struct te__roles *dst, const struct te__roles *src)
{
	int *const own = dst->ex;

	memcpy(own, src->ex, (size_t)(2 * src->nin + 2 * src->nout + src->nsaved) * sizeof(int));
	dst->x = src->x;
	dst->y = src->y;
}

/* memory for references of the step, and for the arrays of its call */
static int step_arrays(struct te__step *s, int nweights)
{
	const size_t nin = (size_t)s->role.nin, nout = (size_t)s->role.nout;
	const size_t nsaved = (size_t)s->role.nsaved, nw = (size_t)nweights;
	const size_t nrefs = 4 + 2 * nin + nout + nsaved;
	struct te_op_value *v =
		te__calloc(1, (2 * nin + 2 * nout + nw) * sizeof(*s->ex) +
				      (2 * nw + nsaved) * sizeof(*s->saved) +
				      nrefs * sizeof(*s->ref) + 1);

	if (!v)
		return te__no_memory("plan");
	s->ex = v;
	s->dex = s->ex + nin;
	s->ey = s->dex + nin;
	s->dey = s->ey + nout;
	s->weight = s->dey + nout;
	s->master = (struct te_tensor **)(void *)(s->weight + nw);
	s->grad = s->master + nw;
	s->saved = s->grad + nw;
	s->ref = (struct te__ref *)(void *)(s->saved + nsaved);
	return 0;
}

static int new_step(struct te_plan *p, enum te__step_kind kind, int node, const char *name,
		    struct te__step **ret)
{
	const int of_op = kind != TE__STEP_QUANT && kind != TE__STEP_SUM;
	const struct te__plan_op *n = &p->node[node];
	struct te__step *s;
	int r = grow((void **)&p->step, &p->cap_steps, p->nsteps, sizeof(*p->step));

	if (r < 0)
		return r;
	s = &p->step[p->nsteps++];
	memset(s, 0, sizeof(*s));
	s->kind = kind;
	s->plan = p;
	s->node = node;
	snprintf(s->name, sizeof(s->name), "%s%s", name, kind == TE__STEP_DW ? ".dw" : "");
	s->share_from[0] = s->share_from[1] = s->share_from[2] = s->share_to = -1;
	*ret = s;
	r = no_roles(&s->role, of_op ? n->value.nin : kind == TE__STEP_SUM,
		     of_op ? n->value.nout : 0, of_op ? n->value.nsaved : 0);
	return r ? r : step_arrays(s, of_op ? p->seq->op[node]->nweights : 0);
}

int te__plan_repeat_step(struct te_plan *p, int step)
{
	const struct te__step *of;
	struct te__step *s;
	int r = new_step(p, p->step[step].kind, p->step[step].node, "", &s);

	if (r)
		return r;
	of = &p->step[step];
	snprintf(s->name, sizeof(s->name), "%.40s.recompute", of->name);
	s->again = 1;
	copy_roles(&s->role, &of->role);
	s->role.x_forms = of->role.x_forms;
	s->role.y_forms = of->role.y_forms;
	s->nrefs = of->nrefs;
	memcpy(s->ref, of->ref, (size_t)of->nrefs * sizeof(*s->ref));
	s->ws_nbytes = of->ws_nbytes;
	return 0;
}

static void refer(struct te__step *s, int value, uint32_t forms, int write)
{
	if (value >= 0 && forms)
		s->ref[s->nrefs++] = (struct te__ref){ value, forms, write, 0 };
}

/* ---- forward ---- */

static const char *op_name(const struct te_plan *p, int i)
{
	return p->seq->op[i]->name;
}

static int find_channel(const struct te_plan *p, const char *name)
{
	return (int)(te__seq_channel(p->seq, name) - p->seq->channel);
}

/* the value of a fed channel, made at its first taker */
static int fed_value(struct te_plan *p, int c)
{
	const struct te__channel *ch = &p->seq->channel[c];
	struct te_spec s = ch->tail;
	int lead = p->lead.ndim < 2 ? p->lead.ndim : 2;
	char shape[256];
	int v;

	s.ndim = lead + ch->tail.ndim;
	for (int d = 0; d < lead; d++)
		s.shape[d] = p->lead.shape[d];
	for (int d = 0; d < ch->tail.ndim; d++)
		s.shape[lead + d] = ch->tail.shape[d];
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

	if (!te__recipe_casts(&p->recipe) &&
	    ((inf->fwd_x | inf->bwd_dy | inf->dw_x | inf->dw_dy |
	      (op->nweights ? inf->weight_forms[0] : 0)) & q))
		return te__fail(-TE_EPLAN, "op %s: asks for FP8 under recipe %s", op->name,
				te_recipe_name(&p->recipe));
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
		const int c = find_channel(p, op->take[k]);

		r = p->channel_value[c] < 0 ? fed_value(p, c) : 0;
		if (r >= 0)
			in[1 + k] = p->value[p->channel_value[c]].spec;
	}
	if (r >= 0)
		r = te__infer(op, &p->recipe, p->flags & TE_PLAN_TRAIN ? TE_INFER_TRAIN : 0, in,
			      &p->node[i].inf);
	te__free(in);
	return r < 0 ? r : 0;
}

static int infer_node(struct te_plan *p, int i, int x)
{
	struct te__plan_op *n = &p->node[i];
	struct te_op *op = p->seq->op[i];
	struct te_op_infer *inf = &n->inf;
	int r, v;

	r = infer_inputs(p, i, x);
	if (!r)
		r = check_answer(p, i);
	if (!r)
		r = no_roles(&n->value, op->ops.nextra_in, op->ops.nextra_out, inf->nsaved);
	if (r < 0)
		return r;
	n->grad_main = -1;
	n->value.x = x;
	for (int k = 0; k < op->ops.nextra_in; k++)
		n->value.ex[k] = p->channel_value[find_channel(p, op->take[k])];
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
			p->channel_value[find_channel(p, op->give[k - 1])] = v;
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

/* add a cast of value v for op node, unless there is one; forms: forms that the whole plan reads */
static int want_quantized(struct te_plan *p, int v, int node, enum te__role role, uint32_t forms)
{
	struct te__value *val = &p->value[v];
	struct te__step *s;
	int r;

	if (val->forms)
		return 0; /* an earlier consumer made the cast; forms were merged beforehand */
	if (!forms)
		return 0;
	if (val->spec.dtype != p->recipe.compute)
		return te__fail(-TE_EDTYPE, "op %s: its input is %s and cannot be quantized",
				op_name(p, node), te_dtype_name(val->spec.dtype));
	val->forms = forms;
	val->slot = role == TE__ROLE_GRADIENT ? 2 * p->seq->nops + node : 2 * node;
	val->qdtype = te_quant_dtype(p->quant, val->slot);
	val->scaling = te__recipe_operand(&p->recipe, role).scaling;
	if (!val->scaling)
		val->sinv = p->nsinv++;
	r = new_step(p, TE__STEP_QUANT, node, "quantize", &s);
	if (r < 0)
		return r;
	s->role.x = s->role.y = v;
	s->role.x_forms = TE_FORM_HP;
	s->role.y_forms = forms;
	refer(s, v, TE_FORM_HP, 0);
	refer(s, v, forms, 1);
	return 0;
}

/* 1: the plan computes gradients of weights of op i */
static int has_dw(const struct te_plan *p, int i)
{
	return p->flags & TE_PLAN_TRAIN && p->seq->op[i]->ops.backward_dw &&
	       te__seq_op_trains(p->seq, i);
}

/* 1: gradients must reach ops before op i */
static int need_dx(const struct te_plan *p, int i)
{
	return p->flags & TE_PLAN_TRAIN && i > p->first_grad;
}

static int find_first_grad(const struct te_plan *p)
{
	int i = p->first_op;

	if (p->flags & TE_PLAN_INPUT_GRAD)
		return -1;
	while (i < p->nops && !te__seq_op_trains(p->seq, i))
		i++;
	return i;
}

/* FP8 forms of value v over all consumers, including the backward pass */
static uint32_t forward_forms(const struct te_plan *p, int v)
{
	uint32_t f = 0;

	for (int i = p->first_op; i < p->nops; i++)
		if (p->node[i].value.x == v)
			f |= p->node[i].inf.fwd_x |
			     (has_dw(p, i) ? p->node[i].inf.dw_x : 0) |
			     (need_dx(p, i) ? p->node[i].inf.save_x : 0);
	return f & (TE_FORM_ROW | TE_FORM_COL);
}

/* does forward() write an output? Outputs that alias inputs need no step */
static int gives(const struct te__plan_op *n, const struct te_op_ops *ops)
{
	for (int k = 0; k <= ops->nextra_out; k++)
		if (n->inf.out_alias[k] < 0)
			return 1;
	return n->inf.nsaved > 0;
}

static int build_forward(struct te_plan *p)
{
	for (int i = p->first_op; i < p->nops; i++) {
		struct te__plan_op *n = &p->node[i];
		const struct te_op_ops *ops = &p->seq->op[i]->ops;
		struct te__step *s;
		int r;

		if ((n->inf.fwd_x | (has_dw(p, i) ? n->inf.dw_x : 0)) &
		    (TE_FORM_ROW | TE_FORM_COL)) {
			r = want_quantized(p, n->value.x, i, TE__ROLE_ACTIVATION,
					   forward_forms(p, n->value.x));
			if (r < 0)
				return r;
		}
		if (!ops->forward || !gives(n, ops))
			continue;
		r = new_step(p, TE__STEP_FWD, i, ops->name, &s);
		if (r < 0)
			return r;
		copy_roles(&s->role, &n->value);
		s->role.x_forms = n->inf.fwd_x;
		s->role.y_forms = TE_FORM_HP;
		s->ws_nbytes = n->inf.fwd_ws_nbytes;
		refer(s, n->value.x, n->inf.fwd_x, 0);
		for (int k = 0; k < ops->nextra_in; k++)
			refer(s, n->value.ex[k], TE_FORM_HP, 0);
		if (n->inf.out_alias[0] < 0)
			refer(s, n->value.y, TE_FORM_HP, 1);
		for (int k = 0; k < ops->nextra_out; k++)
			if (n->inf.out_alias[1 + k] < 0)
				refer(s, n->value.ey[k], TE_FORM_HP, 1);
		for (int k = 0; k < n->inf.nsaved; k++)
			refer(s, n->value.saved[k], TE_FORM_HP, 1);
		if (n->inf.inplace_fwd) {
			s->share_to = n->value.y;
			s->share_from[0] = n->value.x;
		}
	}
	return 0;
}

/* ---- backward ---- */

/* values of the forward pass that a backward or dw step of op i gets */
static void kept_roles(struct te_plan *p, int i, struct te__step *s, uint32_t x_forms,
		       uint32_t dy_forms)
{
	const struct te__plan_op *n = &p->node[i];
	const struct te_op_ops *ops = &p->seq->op[i]->ops;
	int dw = s->kind == TE__STEP_DW;

	copy_roles(&s->role, &n->value);
	s->role.dy = n->grad_main;
	s->role.x_forms = x_forms;
	s->role.y_forms = dw ? 0 : n->inf.save_y & TE_FORM_HP;
	s->role.dy_forms = dy_forms;
	refer(s, n->value.x, x_forms, 0);
	refer(s, n->value.y, s->role.y_forms, 0);
	for (int k = 0; k < n->inf.nsaved; k++)
		refer(s, n->value.saved[k], TE_FORM_HP, 0);
	for (int k = 0; k < ops->nextra_in; k++) {
		if (dw)
			s->role.dex[k] = -1;
		if (dw || !n->inf.save_ex[k])
			s->role.ex[k] = -1;
		else
			refer(s, n->value.ex[k], TE_FORM_HP, 0);
	}
	for (int k = 0; k < s->nrefs; k++)
		s->ref[k].kept = 1;
	refer(s, n->grad_main, dy_forms, 0);
	for (int k = 0; k < ops->nextra_out; k++) {
		s->role.ey[k] = -1;
		s->role.dey[k] = p->channel_grad[find_channel(p, p->seq->op[i]->give[k])];
		refer(s, s->role.dey[k], TE_FORM_HP, 0);
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
	r = new_step(p, TE__STEP_SUM, node, "sum", &s);
	if (r < 0)
		return r;
	s->role.x = p->channel_grad[c];
	s->role.ex[0] = g;
	s->role.y = v;
	s->role.x_forms = s->role.y_forms = TE_FORM_HP;
	refer(s, s->role.x, TE_FORM_HP, 0);
	refer(s, g, TE_FORM_HP, 0);
	refer(s, v, TE_FORM_HP, 1);
	s->share_to = v;
	s->share_from[0] = s->role.x;
	s->share_from[1] = g;
	p->channel_grad[c] = v;
	return 0;
}

/* the gradient of output k of op i: 0 is the main one */
static int output_gradient(const struct te_plan *p, int i, int k)
{
	return k ? p->channel_grad[find_channel(p, p->seq->op[i]->give[k - 1])] :
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

		if (c->giver < 0 || !need_dx(p, c->giver + 1))
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
	int r = new_step(p, TE__STEP_BWD, i, op->ops.name, &s);

	if (r < 0)
		return r;
	kept_roles(p, i, s, n->inf.save_x, n->inf.bwd_dy);
	s->ws_nbytes = n->inf.bwd_ws_nbytes;
	if (n->inf.dx_alias < 0) {
		s->role.dx = dx;
		refer(s, dx, TE_FORM_HP, 1);
	}
	for (int k = 0; k < op->ops.nextra_in; k++) {
		if (n->inf.dex_alias[k] >= 0)
			s->role.dex[k] = -1;
		else
			refer(s, s->role.dex[k], TE_FORM_HP, 1);
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
	int r = new_step(p, TE__STEP_DW, i, p->seq->op[i]->ops.name, &s);

	if (r < 0)
		return r;
	kept_roles(p, i, s, n->inf.dw_x, n->inf.dw_dy);
	s->ws_nbytes = n->inf.dw_ws_nbytes;
	return 0;
}

static int build_backward(struct te_plan *p)
{
	int main_grad = p->out_grad;
	int r;

	for (int i = p->nops - 1; i >= p->first_op && i >= p->first_grad; i--) {
		struct te__plan_op *n = &p->node[i];
		struct te_op *op = p->seq->op[i];
		const struct te_op_ops *ops = &op->ops;
		int dx, any;
		int dw = has_dw(p, i);
		int want_dx = !n->inf.no_dx && need_dx(p, i);
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
			r = want_quantized(p, main_grad, i, TE__ROLE_GRADIENT, forms);
			if (r < 0)
				return r;
			if ((p->value[main_grad].forms & forms) != forms)
				return te__fail(
					-TE_EPLAN,
					"op %s: its output gradient is quantized otherwise",
					op->name);
		}
		r = input_gradients(p, i, want_dx, &dx, &any);
		if (!r && ops->backward && any)
			r = backward_step(p, i, dx);
		else if (!r && any)
			r = te__fail(-TE_EPLAN, "op %s: type %s has no backward()", op->name,
				     ops->name);
		if (!r && dw && !(p->flags & TE_PLAN_DELAY_DW))
			r = dw_step(p, i);
		for (int k = 0; !r && k < ops->nextra_in; k++)
			if (n->value.dex[k] >= 0)
				r = channel_gradient(p, find_channel(p, op->take[k]), i,
						     n->value.dex[k]);
		if (r < 0)
			return r;
		main_grad = dx;
	}
	p->in_grad = p->flags & TE_PLAN_INPUT_GRAD ? main_grad : -1;
	return 0;
}

static int build_delayed(struct te_plan *p)
{
	int r = 0;

	if (p->flags & TE_PLAN_DELAY_DW)
		for (int i = p->nops - 1; i >= p->first_op && !r; i--)
			if (has_dw(p, i))
				r = dw_step(p, i);
	return r;
}

/* ---- weights ---- */

/* "bf16", "e4m3 scaled by 128x128 blocks" */
static const char *type_text(enum te_dtype dtype, enum te_scaling scaling, char dst[64])
{
	static const char *const by[] = {
		[TE_SCALING_TENSOR] = "with one scale",
		[TE_SCALING_1X128] = "scaled by 1x128 blocks",
		[TE_SCALING_128X128] = "scaled by 128x128 blocks",
	};
	const int fp8 = dtype == TE_DTYPE_E4M3 || dtype == TE_DTYPE_E5M2;

	snprintf(dst, 64, "%s%s%s", te_dtype_name(dtype), fp8 ? " " : "", fp8 ? by[scaling] : "");
	return dst;
}

/* can op i read its bound weight k? forms: forms that it reads; 0: FP32 */
static int check_bound(const struct te_plan *p, int i, int k, uint32_t forms)
{
	const struct te__operand w = te__recipe_operand(&p->recipe, TE__ROLE_WEIGHT);
	const struct te__weight *weight = &p->seq->weight[p->seq->op_weight[i][k]];
	const struct te_tensor *t = weight->value;
	const int codes = (forms & (TE_FORM_ROW | TE_FORM_COL)) != 0;
	const int values = (forms & TE_FORM_HP) != 0;
	const enum te_dtype dtype = codes ? w.dtype : p->recipe.compute;
	const enum te_scaling scaling = codes ? w.scaling : TE_SCALING_TENSOR;
	char want[64], have[64];

	if (!t || (codes + values == 1 && te_tensor_dtype(t) == dtype &&
		   te_tensor_scaling(t) == scaling))
		return 0;
	type_text(dtype, scaling, want);
	return te__fail(-TE_EDTYPE,
			"op %s: under recipe %s it reads %s%s of weight %s, which is bound as %s",
			op_name(p, i), te_recipe_name(&p->recipe),
			codes + values ? want : "the FP32 master",
			codes && values ? " and other values" : "", weight->name,
			type_text(te_tensor_dtype(t), te_tensor_scaling(t), have));
}

static int collect_needs(struct te_plan *p)
{
	p->need = te__calloc((size_t)p->seq->nweights + 1, sizeof(*p->need));
	p->need_of = te__malloc(((size_t)p->seq->nweights + 1) * sizeof(*p->need_of));
	if (!p->need || !p->need_of)
		return te__no_memory("plan");
	for (int w = 0; w < p->seq->nweights; w++)
		p->need_of[w] = -1;
	for (int i = p->first_op; i < p->nops; i++) {
		for (int k = 0; k < p->seq->op[i]->nweights; k++) {
			int w = p->seq->op_weight[i][k];
			uint32_t forms = p->node[i].inf.weight_forms[k];
			int j, r;

			if (p->recipe.compute == TE_DTYPE_FP32)
				forms &= ~TE_FORM_HP; /* the master serves as the copy */
			r = check_bound(p, i, k, forms);
			if (r < 0)
				return r;
			if (!need_dx(p, i))
				forms &= ~TE_FORM_COL;
			if (!forms)
				continue;
			j = p->need_of[w];
			if (j < 0) {
				j = p->need_of[w] = p->nneeds++;
				p->need[j].weight = w;
				p->need[j].slot = 2 * i + 1;
			}
			p->need[j].forms |= forms;
		}
	}
	return 0;
}

/* ---- the whole ---- */

static int make_quant(struct te_plan *p)
{
	struct te_seq *seq = p->seq;
	const struct te_recipe *have;
	enum te_dtype *dtypes;
	int n = seq->nops;
	int r;

	if (!te__recipe_casts(&p->recipe))
		return 0;
	if (seq->quant) {
		have = te_quant_recipe(seq->quant);
		if (!te__recipe_same(have, &p->recipe))
			return te__fail(-TE_ESTATE, "plan: the sequence's quantizers follow recipe "
					"%s with other settings", te_recipe_name(have));
		p->quant = te_quant_ref(seq->quant);
		return 0;
	}
	dtypes = te__malloc((size_t)n * 3 * sizeof(*dtypes));
	if (!dtypes)
		return te__no_memory("plan");
	for (int i = 0; i < n; i++) {
		dtypes[2 * i] = te__recipe_operand(&p->recipe, TE__ROLE_ACTIVATION).dtype;
		dtypes[2 * i + 1] = te__recipe_operand(&p->recipe, TE__ROLE_WEIGHT).dtype;
		dtypes[2 * n + i] = te__recipe_operand(&p->recipe, TE__ROLE_GRADIENT).dtype;
	}
	if (p->flags & TE_PLAN_NO_ALLOC)
		r = te__quant_describe(seq->ctx, &p->recipe, 3 * n, dtypes, &p->quant);
	else
		r = te_quant_create(seq->ctx, &p->recipe, 3 * n, dtypes, &seq->quant);
	if (!p->quant)
		p->quant = te_quant_ref(seq->quant);
	te__free(dtypes);
	return r;
}

/* index of the op of that name */
static int find_op(const struct te_seq *seq, const char *name)
{
	const int i = te__seq_op(seq, name);

	return i < 0 ? te__fail(-EINVAL, "plan: no op is named %s", name) : i;
}

/* choose the planned ops; channels must not cross their ends if that would matter */
static int choose_ops(struct te_plan *p, const char *start_at, const char *stop_before)
{
	const struct te_seq *seq = p->seq;

	p->first_op = start_at ? find_op(seq, start_at) : 0;
	p->nops = stop_before ? find_op(seq, stop_before) : seq->nops;
	if (p->first_op < 0 || p->nops < 0)
		return -EINVAL;
	if (p->nops <= p->first_op)
		return te__fail(-EINVAL, "plan: nothing is left before %s", stop_before);
	for (int i = p->first_op; i < seq->nops; i++) {
		const struct te_op *op = seq->op[i];

		for (int k = 0; k < op->ops.nextra_in; k++) {
			const struct te__channel *c = te__seq_channel(seq, op->take[k]);
			int inside = c->giver >= p->first_op && c->giver < p->nops;

			if (c->giver < 0)
				continue;
			if (i < p->nops && !inside)
				return te__fail(-TE_ECHANNEL,
						"plan: op %s takes channel %s of op %s, which lies "
						"before %s", op->name, c->name,
						seq->op[c->giver]->name, start_at);
			if (i >= p->nops && inside && (p->flags & TE_PLAN_TRAIN))
				return te__fail(-TE_ECHANNEL,
						"plan: op %s gives channel %s to op %s, which does "
						"not lie before %s: its gradient is not known",
						seq->op[c->giver]->name, c->name, op->name,
						stop_before);
		}
	}
	return 0;
}

int te__plan_build(struct te_plan *p, const char *start_at, const char *stop_before)
{
	struct te_seq *seq = p->seq;
	int x, r = choose_ops(p, start_at, stop_before);

	if (r < 0)
		return r;
	p->node = te__calloc((size_t)p->nops, sizeof(*p->node));
	p->channel_value = te__calloc((size_t)seq->nchannels + 1, sizeof(int));
	p->channel_grad = te__calloc((size_t)seq->nchannels + 1, sizeof(int));
	if (!p->node || !p->channel_value || !p->channel_grad)
		return te__no_memory("plan");
	for (int c = 0; c < seq->nchannels; c++)
		p->channel_value[c] = p->channel_grad[c] = -1;
	p->out_grad = p->in_grad = -1;
	p->first_grad = find_first_grad(p);
	r = make_quant(p);
	if (r < 0)
		return r;
	x = p->x_value = te__plan_new_value(p, &p->xspec, "x");
	if (x < 0)
		return x;
	for (int i = p->first_op; i < p->nops; i++) {
		r = infer_node(p, i, x);
		if (r < 0)
			return r;
		x = p->node[i].value.y;
	}
	p->out_value = x;
	p->value[x].keep = 1;
	r = build_forward(p);
	if (r < 0)
		return r;
	p->fwd_steps = p->nsteps;
	if (p->flags & TE_PLAN_TRAIN) {
		if (p->node[p->nops - 1].inf.bwd_dy) {
			p->out_grad = te__plan_new_value(p, &p->value[x].spec, "dy");
			if (p->out_grad < 0)
				return p->out_grad;
			p->value[p->out_grad].fed = 1;
		}
		r = build_backward(p);
		if (r < 0)
			return r;
		p->bwd_steps = p->nsteps - p->fwd_steps;
		r = build_delayed(p);
		if (r < 0)
			return r;
		if (p->in_grad >= 0)
			p->value[p->in_grad].keep = 1;
	}
	return collect_needs(p);
}
