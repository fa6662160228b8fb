/*
 * recompute.c - values that backward computes again, instead of keeping them.
 *
 * A group of the forward pass can run again if its steps can, which are casts and ops with
 * TE_OP_REPEATS, and so can its fusion; and if backward has its inputs: something else in backward
 * reads them, or the group that writes them can run again, too. If the policy of one of its outputs
 * asks for it, a copy of the group is added to the groups of backward. It runs before the first
 * reader of its outputs, and before the last readers of its inputs, so that no input is kept longer
 * than without it. What it writes has a second buffer there (layout.c).
 *
 * The copy gives the same bits: it runs the same functions on the same inputs, and casts with the
 * scales of the forward pass, which has kept them (te__quant_repeat).
 */
#define TE_LOG_CATEGORY "core/plan"
#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "libtecore/base/private.h"

#include "libtecore/plan/plan.h"
#include "libtecore/quant/quant.h"
#include "libtecore/tensor/ctx.h"

#define ROW 1 /* of te__form */
#define NONE (-1)
#define MANY (-2)

/* Groups that use a form of a value. */
struct use {
	int writer;	 /* of forward: NONE or MANY if it is not one */
	int first, last; /* that read it in backward, or NONE */
	int again;	 /* before this one a group runs again that reads it; or NONE */
};

struct search {
	struct te_plan *p;
	int npatterns;
	const char *const *pattern;
	struct use *use;    /* [nvalues * TE__NFORMS] */
	int *before;	    /* [fwd_groups] the group before which it runs again, or NONE */
	unsigned char *can; /* [fwd_groups] it can run again */
	unsigned char *is_wanted;
	int n, ncasts; /* groups, and steps of casts, that run again */
};

int te__plan_matches(const char *name, const char *const *pattern, int n)
{
	for (int i = 0; i < n; i++)
		if (!fnmatch(pattern[i], name, 0))
			return 1;
	return 0;
}

/* ---- policies ---- */

static void set_policy(struct te_plan *p, int value, enum te__policy policy)
{
	if (value >= 0 && policy && p->value[value].policy != TE__POLICY_KEEP)
		p->value[value].policy = policy;
}

/* those of ops, for what they give and save; returns whether one asks to compute again */
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
		te__plan_matches(v->label, a->pattern, a->npatterns));
}

/* ---- uses ---- */

static void add_use(const struct te_plan *p, struct use *u, int t, int write)
{
	if (write)
		u->writer = t < p->fwd_groups && (u->writer == NONE || u->writer == t) ? t : MANY;
	if (write || t < p->fwd_groups)
		return;
	if (u->first == NONE)
		u->first = t;
	u->last = t;
}

static void find_uses(struct search *a)
{
	const struct te_plan *p = a->p;

	for (int i = 0; i < p->nvalues * TE__NFORMS; i++)
		a->use[i] = (struct use){ NONE, NONE, NONE, NONE };
	for (int t = 0; t < p->ngroups; t++)
		for (int k = 0; k < p->group[t].n; k++) {
			const struct te__step *s = &p->step[p->group[t].first + k];

			for (int i = 0; i < s->nrefs; i++)
				for (int f = 0; f < TE__NFORMS; f++)
					if (te__ref_forms(s, &s->ref[i]) & te__form[f])
						add_use(p,
							&a->use[s->ref[i].value * TE__NFORMS + f],
							t, s->ref[i].write);
		}
}

/* A form that a group reads or writes. */
struct access {
	const struct te__step *step;
	const struct te__ref *ref;
	struct use *use;
};

/* calls fn for each; the first value that is not 0, or 0 */
static int each_access(struct search *a, int g, int (*fn)(struct search *a, int g,
							  const struct access *c, void *arg),
		       void *arg)
{
	const struct te__group *group = &a->p->group[g];

	for (int k = 0; k < group->n; k++) {
		const struct te__step *s = &a->p->step[group->first + k];

		for (int i = 0; i < s->nrefs; i++)
			for (int f = 0; f < TE__NFORMS; f++) {
				const struct te__ref *ref = &s->ref[i];
				const struct access c = { s, ref,
							  &a->use[ref->value * TE__NFORMS + f] };
				const int r = ref->forms & te__form[f] ? fn(a, g, &c, arg) : 0;

				if (r)
					return r;
			}
	}
	return 0;
}

/* ---- which groups can ---- */

#define WHY_NBYTES 256

static int can_repeat(struct search *a, int g, char why[WHY_NBYTES]);

/* 1: the access keeps the group from running again; why is set */
static int hinders(struct search *a, int g, const struct access *c, void *why)
{
	const struct te__value *v = &a->p->value[c->ref->value];
	const char *fault = NULL;

	if (c->ref->write) {
		if (c->use->writer != g)
			fault = "is written twice";
		else if (v->fixed || v->keep || v->fed)
			fault = "is a result of the plan";
		else if (c->use->first >= 0 && v->policy == TE__POLICY_KEEP)
			fault = "is to be kept";
	} else if (c->use->writer != g && c->use->first < 0) {
		if (c->use->writer == NONE)
			fault = "is an input, and no other step of backward reads it";
		else if (c->use->writer == MANY || !a->can[c->use->writer])
			fault = "is not kept";
		/* a cast: what hinders its producer */
		if (fault && c->use->writer >= 0 && c->step->kind == TE__STEP_QUANT)
			return !can_repeat(a, c->use->writer, why);
	}
	if (fault)
		snprintf(why, WHY_NBYTES, "%s %s", v->label, fault);
	return fault != NULL;
}

/* 1: group g can run again, those before it are known; else why is set */
static int can_repeat(struct search *a, int g, char why[WHY_NBYTES])
{
	const struct te_plan *p = a->p;
	const struct te__group *group = &p->group[g];
	const struct te_fusion *f = group->fusion;

	for (int k = 0; k < group->n; k++) {
		const struct te__step *s = &p->step[group->first + k];
		const struct te_op *op = p->seq->op[s->node];

		if (s->kind != TE__STEP_QUANT && !(op->ops.flags & TE_OP_REPEATS)) {
			snprintf(why, WHY_NBYTES, "op %s of type %s does not run again", op->name,
				 op->ops.name);
			return 0;
		}
	}
	if (f && (f->pass == TE_PASS_JOINT || !(f->flags & TE_FUSION_REPEATS))) {
		snprintf(why, WHY_NBYTES, "fusion %s does not run again", f->name);
		return 0;
	}
	return !each_access(a, g, hinders, why);
}

static int is_saved(const struct te__step *s, int value)
{
	for (int k = 0; k < s->role.nsaved; k++)
		if (s->role.saved[k] == value)
			return 1;
	return 0;
}

/* for an output that backward reads: the group is wanted, or the value gets why it is kept */
static int want(struct search *a, int g, const struct access *c, void *why)
{
	struct te__value *v = &a->p->value[c->ref->value];

	if (!c->ref->write || c->use->first < 0 || !is_asked(a, v))
		return 0;
	if (a->can[g]) {
		/* what an op saves is small: it is not computed again for its own sake */
		a->is_wanted[g] |= !is_saved(c->step, c->ref->value);
		return 0;
	}
	if (!v->why)
		v->why = te__strdup(why);
	return v->why ? 0 : te__fail(-ENOMEM, "plan: no memory");
}

/* ---- when ---- */

static void not_after(int *t, int other)
{
	if (other >= 0 && (*t < 0 || other < *t))
		*t = other;
}

static int needs(struct search *a, int g, const struct access *c, void *arg)
{
	(void)a;
	(void)g;
	(void)arg;
	return c->ref->write && c->use->again >= 0 && c->use->first < 0;
}

static int find_time(struct search *a, int g, const struct access *c, void *arg)
{
	int *const before = arg;

	(void)a;
	if (c->ref->write) {
		not_after(before, c->use->first);
		not_after(before, c->use->again);
	} else if (c->use->writer != g) {
		not_after(before, c->use->last);
	}
	return 0;
}

static int read_again(struct search *a, int g, const struct access *c, void *arg)
{
	(void)arg;
	if (!c->ref->write)
		not_after(&c->use->again, a->before[g]);
	return 0;
}

static int choose(struct search *a)
{
	const struct te_plan *p = a->p;
	char why[WHY_NBYTES];

	for (int g = 0; g < p->fwd_groups; g++) {
		int r;

		a->can[g] = (unsigned char)can_repeat(a, g, why);
		r = each_access(a, g, want, why);
		if (r)
			return r;
	}
	/* readers before writers */
	for (int g = p->fwd_groups - 1; g >= 0; g--) {
		a->before[g] = NONE;
		if (!a->is_wanted[g] && !(a->can[g] && each_access(a, g, needs, NULL)))
			continue;
		each_access(a, g, find_time, &a->before[g]);
		each_access(a, g, read_again, NULL);
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
		const struct use *row = &a->use[ref->value * TE__NFORMS + ROW];

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
		return te__fail(-ENOMEM, "plan: no memory");
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
	a.use = te__malloc(((size_t)p->nvalues * TE__NFORMS + 1) * sizeof(*a.use));
	a.before = te__calloc(ngroups, sizeof(*a.before) + 2);
	a.can = a.before ? (unsigned char *)(a.before + ngroups) : NULL;
	a.is_wanted = a.before ? a.can + ngroups : NULL;
	r = a.use && a.before ? run(&a) : te__fail(-ENOMEM, "plan: no memory");
	te__free(a.use);
	te__free(a.before);
	return r;
}
