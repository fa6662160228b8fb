/* build_steps.c - values, buffers and basic steps of a plan. */
#define TE_LOG_CATEGORY "core/plan"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "libtecore/base/private.h"
#include "libtecore/plan/build.h"

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

int te__build_roles(struct te__roles *r, int nin, int nout, int nsaved)
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

void te__build_copy_roles(struct te__roles *dst, const struct te__roles *src)
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
				      nw * sizeof(*s->rest) +
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
	s->rest = (const void **)(void *)(s->saved + nsaved);
	s->ref = (struct te__ref *)(void *)(s->rest + nw);
	return 0;
}

int te__build_step(struct te_plan *p, enum te__step_kind kind, int node, const char *name,
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
	r = te__build_roles(&s->role, of_op ? n->value.nin : kind == TE__STEP_SUM,
			    of_op ? n->value.nout : 0, of_op ? n->value.nsaved : 0);
	return r ? r : step_arrays(s, of_op ? p->seq->op[node]->nweights : 0);
}

int te__plan_repeat_step(struct te_plan *p, int step)
{
	const struct te__step *of;
	struct te__step *s;
	int r = te__build_step(p, p->step[step].kind, p->step[step].node, "", &s);

	if (r)
		return r;
	of = &p->step[step];
	snprintf(s->name, sizeof(s->name), "%.40s.recompute", of->name);
	s->again = 1;
	te__build_copy_roles(&s->role, &of->role);
	s->role.x_forms = of->role.x_forms;
	s->role.y_forms = of->role.y_forms;
	s->nrefs = of->nrefs;
	memcpy(s->ref, of->ref, (size_t)of->nrefs * sizeof(*s->ref));
	s->ws_nbytes = of->ws_nbytes;
	return 0;
}

void te__build_refer(struct te__step *s, int value, uint32_t forms, int write)
{
	if (value >= 0 && forms)
		s->ref[s->nrefs++] = (struct te__ref){ value, forms, write, 0 };
}

const char *te__build_op_name(const struct te_plan *p, int i)
{
	return p->seq->op[i]->name;
}

int te__build_channel(const struct te_plan *p, const char *name)
{
	return (int)(te__seq_channel(p->seq, name) - p->seq->channel);
}

int te__build_has_dw(const struct te_plan *p, int i)
{
	return p->flags & TE_PLAN_TRAIN && p->seq->op[i]->ops.backward_dw &&
	       te__seq_op_trains(p->seq, i);
}

int te__build_need_dx(const struct te_plan *p, int i)
{
	return p->flags & TE_PLAN_TRAIN && i > p->first_grad;
}

int te__build_first_grad(const struct te_plan *p)
{
	int i = p->first_op;

	if (p->flags & TE_PLAN_INPUT_GRAD)
		return -1;
	while (i < p->nops && !te__seq_op_trains(p->seq, i))
		i++;
	return i;
}

int te__build_same_recipe(const struct te_plan *p, int slot, int i, const char *what)
{
	const struct te_recipe *have = &te__plan_op_of_slot(p, slot)->recipe;
	const struct te_recipe *own = &p->node[i].recipe;

	if (te__recipe_same(have, own))
		return 0;
	return te__fail(-TE_EPLAN, "plan: op %s reads %s in codes of recipe %s, but an earlier op "
			"in codes of recipe %s: expected one recipe with equal settings",
			te__build_op_name(p, i), what, te_recipe_name(own), te_recipe_name(have));
}

int te__build_quantized(struct te_plan *p, int v, int node, enum te__role role, uint32_t forms)
{
	struct te__value *val = &p->value[v];
	struct te__step *s;
	int r;

	if (!forms)
		return 0;
	if (val->forms) /* an earlier consumer made the cast; forms were merged beforehand */
		return te__build_same_recipe(p, val->slot, node, val->label);
	if (val->spec.dtype != p->recipe.compute)
		return te__fail(-TE_EDTYPE, "op %s: its input is %s and cannot be quantized",
				te__build_op_name(p, node), te_dtype_name(val->spec.dtype));
	val->forms = forms;
	val->slot = role == TE__ROLE_GRADIENT ? 2 * p->seq->nops + node : 2 * node;
	val->qdtype = te__plan_operand(p, val->slot, role).dtype;
	val->scaling = te__plan_operand(p, val->slot, role).scaling;
	if (!val->scaling)
		val->sinv = p->nsinv++;
	/* producers write no padding: no fusion has the second name */
	r = te__build_step(p, TE__STEP_QUANT, node,
			   te__value_is_padded(val) ? "quantize.pad" : "quantize", &s);
	if (r < 0)
		return r;
	s->role.x = s->role.y = v;
	s->role.x_forms = TE_FORM_HP;
	s->role.y_forms = forms;
	te__build_refer(s, v, TE_FORM_HP, 0);
	te__build_refer(s, v, forms, 1);
	return 0;
}
