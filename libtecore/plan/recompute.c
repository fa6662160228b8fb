/*
 * recompute.c - values that backward computes again, instead of keeping them.
 *
 * A group of the forward pass can run again if its steps can, which are casts and ops with
 * TE_OP_REPEATS or, in plans that allow it, TE_OP_REPEATS_COSTLY, and so can its fusion; and if
 * backward has its inputs: something else in backward reads them, or the group that writes them can
 * run again, too. If the policy of one of its outputs asks for it, a copy of the group is added to
 * the groups of backward. It runs before the first reader of its outputs, and before the last
 * readers of its inputs, so that no input is kept longer than without it. Its outputs have a second
 * buffer there (layout.c).
 *
 * The copy gives the same bits: it runs the same functions on the same inputs, and casts with the
 * scales of the forward pass, which has kept them (te__quant_repeat).
 */
#define TE_LOG_CATEGORY "core/plan"
#include <stdio.h>

#include "libtecore/base/private.h"

#include "libtecore/plan/plan.h"
#include "libtecore/quant/quant.h"
#include "libtecore/tensor/ctx.h"

#define ROW 1 /* index in te__form */
#define NONE (-1)
#define MANY (-2)

/* Groups that use a form of a value. */
struct form {
	int writer;	 /* forward step; NONE or MANY if it is not one step */
	int first, last; /* steps that read it in backward, or NONE */
	int again;	 /* group before which a group that reads it runs again; or NONE */
};

struct search {
	struct te_plan *p;
	int npatterns;
	const char *const *pattern;
	struct form *form;  /* [nvalues * TE__NFORMS] */
	int *before;	    /* [fwd_groups] the group before which it runs again, or NONE */
	unsigned char *can; /* [fwd_groups] 1: it can run again */
	unsigned char *is_wanted;
	int n, ncasts; /* groups, and steps of casts, that run again */
	char why[256]; /* the reason for the latest 0 of can_repeat() */
};

/* ---- policies ---- */

static void set_policy(struct te_plan *p, int value, enum te__policy policy)
{
	if (value >= 0 && policy && p->value[value].policy != TE__POLICY_KEEP)
		p->value[value].policy = policy;
}

/* set the policies of values from their ops; returns 1 if an op asks for recomputation */
static int set_policies(struct te_plan *p)
{
	int any = 0;

	for (int i = p->first_op; i < p->nops; i++) {
		const enum te__policy policy = p->seq->op[i]->policy;
		const struct te__roles *r = &p->node[i].value;

		any |= policy == TE__POLICY_RECOMPUTE;
		set_policy(p, r->y, policy);
		for (int k = 0; k < r->nout; k++)
			set_policy(p, r->ey[k], policy);
		for (int k = 0; k < r->nsaved; k++)
			set_policy(p, r->saved[k], policy);
	}
	return any;
}

static int is_asked(const struct search *a, const struct te__value *v)
{
	return v->policy == TE__POLICY_RECOMPUTE ||
	       (v->policy == TE__POLICY_ANY &&
		te__patterns_match(v->label, a->pattern, a->npatterns));
}

/* ---- uses ---- */

static int add_use(void *arg, const struct te__use *u)
{
	struct search *a = arg;
	struct form *f = &a->form[u->form];
	const int t = u->group, is_forward = t < a->p->fwd_groups;

	if (u->ref->write) {
		f->writer = is_forward && (f->writer == NONE || f->writer == t) ? t : MANY;
	} else if (!is_forward) {
		f->first = f->first == NONE ? t : f->first;
		f->last = t;
	}
	return 0;
}

static void find_uses(struct search *a)
{
	const struct te_plan *p = a->p;

	for (int i = 0; i < p->nvalues * TE__NFORMS; i++)
		a->form[i] = (struct form){ NONE, NONE, NONE, NONE };
	te__plan_each_use(p, 0, p->ngroups, add_use, a);
}

/* calls fn for the uses in group g, as te__plan_each_use() */
static int each_use(struct search *a, int g, te__use_fn *fn)
{
	return te__plan_each_use(a->p, g, 1, fn, a);
}

/* ---- which groups can ---- */

static int can_repeat(struct search *a, int g);

/* 1: the use keeps the group from running again; a->why is set */
static int hinders(void *arg, const struct te__use *u)
{
	struct search *a = arg;
	const struct te__value *v = &a->p->value[u->ref->value];
	const struct form *f = &a->form[u->form];
	const char *fault = NULL;

	if (u->ref->write) {
		if (f->writer != u->group)
			fault = "is written twice";
		else if (v->fixed || v->keep || v->fed)
			fault = "is a result of the plan";
		else if (f->first >= 0 && v->policy == TE__POLICY_KEEP)
			fault = "is to be kept";
	} else if (f->writer != u->group && f->first < 0) {
		if (f->writer == NONE)
			fault = "is an input, and no other step of backward reads it";
		else if (f->writer == MANY || !a->can[f->writer])
			fault = "is not kept";
		/* a cast: the obstacle is in its producer */
		if (fault && f->writer >= 0 && u->step->kind == TE__STEP_QUANT)
			return !can_repeat(a, f->writer);
	}
	if (fault)
		snprintf(a->why, sizeof(a->why), "%s %s", v->label, fault);
	return fault != NULL;
}

/* 1: group g can run again, else a->why is set; earlier groups are known */
static int can_repeat(struct search *a, int g)
{
	const struct te_plan *p = a->p;
	const struct te__group *group = &p->group[g];
	const struct te_fusion *f = group->fusion;
	const uint32_t flags = TE_OP_REPEATS | (p->flags & TE_PLAN_RECOMPUTE_COSTLY ?
						TE_OP_REPEATS_COSTLY : 0);

	for (int k = 0; k < group->n; k++) {
		const struct te__step *s = &p->step[group->first + k];
		const struct te_op *op = p->seq->op[s->node];

		if (s->kind != TE__STEP_QUANT && !(op->ops.flags & flags)) {
			snprintf(a->why, sizeof(a->why), "op %s of type %s does not run again",
				 op->name, op->ops.name);
			return 0;
		}
	}
	if (f && (f->pass == TE_PASS_JOINT || !(f->flags & TE_FUSION_REPEATS))) {
		snprintf(a->why, sizeof(a->why), "fusion %s does not run again", f->name);
		return 0;
	}
	return !each_use(a, g, hinders);
}

static int is_saved(const struct te__step *s, int value)
{
	for (int k = 0; k < s->role.nsaved; k++)
		if (s->role.saved[k] == value)
			return 1;
	return 0;
}

/* an output that backward reads: repeat the group, or record why the value is kept */
static int want(void *arg, const struct te__use *u)
{
	struct search *a = arg;
	struct te__value *v = &a->p->value[u->ref->value];

	if (!u->ref->write || a->form[u->form].first < 0 || !is_asked(a, v))
		return 0;
	if (a->can[u->group]) {
		/* saved tensors are small: they alone are no reason to compute again */
		a->is_wanted[u->group] |= !is_saved(u->step, u->ref->value);
		return 0;
	}
	if (!v->why)
		v->why = te__strdup(a->why);
	return v->why ? 0 : te__no_memory("plan");
}

/* ---- when ---- */

static void not_after(int *t, int other)
{
	if (other >= 0 && (*t < 0 || other < *t))
		*t = other;
}

static int needs(void *arg, const struct te__use *u)
{
	const struct search *a = arg;
	const struct form *f = &a->form[u->form];

	return u->ref->write && f->again >= 0 && f->first < 0;
}

static int find_time(void *arg, const struct te__use *u)
{
	struct search *a = arg;
	const struct form *f = &a->form[u->form];
	int *const before = &a->before[u->group];

	if (u->ref->write) {
		not_after(before, f->first);
		not_after(before, f->again);
	} else if (f->writer != u->group) {
		not_after(before, f->last);
	}
	return 0;
}

static int read_again(void *arg, const struct te__use *u)
{
	struct search *a = arg;

	if (!u->ref->write)
		not_after(&a->form[u->form].again, a->before[u->group]);
	return 0;
}

static int choose(struct search *a)
{
	const struct te_plan *p = a->p;

	for (int g = 0; g < p->fwd_groups; g++) {
		int r;

		a->can[g] = (unsigned char)can_repeat(a, g);
		r = each_use(a, g, want);
		if (r)
			return r;
	}
	/* readers before writers */
	for (int g = p->fwd_groups - 1; g >= 0; g--) {
		a->before[g] = NONE;
		if (!a->is_wanted[g] && !(a->can[g] && each_use(a, g, needs)))
			continue;
		each_use(a, g, find_time);
		each_use(a, g, read_again);
		a->n++;
		for (int k = 0; k < p->group[g].n; k++)
			a->ncasts += p->step[p->group[g].first + k].kind == TE__STEP_QUANT;
	}
	return 0;
}

/* ---- copies of groups ---- */

/* The row-wise copy is not written if backward does not read it. The column-wise one always is: on
 * a GPU the order of a norm's sums depends on it. */
static void drop_row(const struct search *a, struct te__step *s)
{
	for (int k = 0; k < s->nrefs; k++) {
		struct te__ref *ref = &s->ref[k];
		const struct form *row = &a->form[ref->value * TE__NFORMS + ROW];

		if (ref->write && ref->forms & TE_FORM_COL && row->first < 0 && row->again < 0)
			ref->forms &= ~te__form[ROW];
	}
}

/* *ret_g: not filled, as steps are still added */
static int repeat_group(const struct search *a, int g, struct te__group *ret_g)
{
	struct te_plan *p = a->p;
	const struct te__group *of = &p->group[g];

	*ret_g = (struct te__group){ .fusion = of->fusion, .first = p->nsteps, .n = of->n };
	for (int k = 0; k < of->n; k++) {
		const int r = te__plan_repeat_step(p, of->first + k);

		if (r)
			return r;
		drop_row(a, &p->step[p->nsteps - 1]);
	}
	return 0;
}

static int add_groups(const struct search *a)
{
	struct te_plan *p = a->p;
	const int bwd_end = p->fwd_groups + p->bwd_groups;
	struct te__group *all = te__calloc((size_t)(p->ngroups + a->n) + 1, sizeof(*all));
	int n = 0, r = 0;

	if (!all)
		return te__no_memory("plan");
	for (int t = 0; t < p->ngroups; t++) {
		for (int g = 0; t >= p->fwd_groups && g < p->fwd_groups && !r; g++)
			if (a->before[g] == t) {
				r = repeat_group(a, g, &all[n++]);
				p->bwd_groups += t < bwd_end;
			}
		if (r) {
			te__free(all);
			return r;
		}
		all[n++] = p->group[t];
	}
	te__free(p->group);
	p->group = all;
	p->ngroups = n;
	r = te__plan_parts(p);
	for (int t = p->fwd_groups; t < n && !r; t++)
		if (p->step[all[t].first].again)
			te__plan_fill_group(p, &all[t], all[t].fusion, all[t].first, all[t].n);
	return r;
}

/* quantizers of casts that run again, and the scales that forward leaves for them */
static int make_quant(struct te_plan *p)
{
	const int nslots = 2 * p->nops;
	const size_t nbytes = (size_t)nslots * sizeof(float);
	float *scale = (float *)TE__NOWHERE;
	void *ptr;
	int r;

	if (te_quant_scale_ptr(p->quant, 0)) {
		p->state_nbytes += nbytes;
		if (!(p->flags & TE_PLAN_NO_ALLOC)) {
			r = te__mem_get(p->ctx, nbytes, &ptr);
			if (r)
				return r;
			scale = p->scale_again = ptr;
		}
	}
	return te__quant_repeat(p->quant, scale, nslots, &p->quant_again);
}

static int run(struct search *a)
{
	struct te_plan *p = a->p;
	int r;

	find_uses(a);
	r = choose(a);
	if (!r && a->ncasts)
		r = make_quant(p);
	return r || !a->n ? r : add_groups(a);
}

int te__plan_recompute(struct te_plan *p, int npatterns, const char *const *pattern)
{
	const size_t ngroups = (size_t)p->fwd_groups + 1;
	struct search a = { .p = p, .npatterns = npatterns, .pattern = pattern };
	int r = set_policies(p);

	if (!(p->flags & TE_PLAN_TRAIN) || (!r && !npatterns))
		return 0;
	a.form = te__malloc(((size_t)p->nvalues * TE__NFORMS + 1) * sizeof(*a.form));
	a.before = te__calloc(ngroups, sizeof(*a.before) + 2);
	a.can = a.before ? (unsigned char *)(a.before + ngroups) : NULL;
	a.is_wanted = a.before ? a.can + ngroups : NULL;
	r = a.form && a.before ? run(&a) : te__no_memory("plan");
	te__free(a.form);
	te__free(a.before);
	return r;
}
