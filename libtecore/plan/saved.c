/* saved.c - te_plan_saved(3): what a plan keeps from the forward pass to the backward pass. */
#define TE_LOG_CATEGORY "core/plan"
#include <errno.h>
#include <string.h>

#include "libtecore/base/private.h"

#include "libtecore/plan/plan.h"

#define NFORMS 3
static const uint32_t forms[NFORMS] = { TE_FORM_HP, TE_FORM_ROW, TE_FORM_COL };

static void use(const struct te_plan *p, struct te_plan_saved_info *i, int t)
{
	if (i->written < 0)
		i->written = t;
	if (t < p->fwd_groups) {
		i->last_forward = t;
		return;
	}
	if (i->first_backward < 0)
		i->first_backward = t;
	i->last_backward = t;
}

/* the groups that use each form of each value */
static void find_uses(const struct te_plan *p, struct te_plan_saved_info *all)
{
	for (int t = 0; t < p->ngroups; t++)
		for (int k = 0; k < p->group[t].n; k++) {
			const struct te__step *s = &p->step[p->group[t].first + k];

			for (int i = 0; i < s->nrefs; i++)
				for (int f = 0; f < NFORMS; f++)
					if (te__ref_forms(s, &s->ref[i]) & forms[f])
						use(p, &all[s->ref[i].value * NFORMS + f], t);
		}
}

int te__plan_find_saved(struct te_plan *p)
{
	const size_t nall = (size_t)p->nvalues * NFORMS;
	struct te_plan_saved_info *all = te__calloc(nall + 1, sizeof(*all));

	if (!all)
		return te__fail(-ENOMEM, "plan: no memory");
	for (size_t i = 0; i < nall; i++) {
		all[i].size = sizeof(*all);
		all[i].written = all[i].last_forward = -1;
		all[i].first_backward = all[i].last_backward = -1;
	}
	find_uses(p, all);
	p->saved = all;
	for (int v = 0; v < p->nvalues; v++) {
		const struct te__value *val = &p->value[v];
		const int buf[NFORMS] = { val->hp, val->row, val->col };

		for (int f = 0; f < NFORMS; f++) {
			struct te_plan_saved_info info = all[v * NFORMS + f];
			const struct te__buf *b = buf[f] < 0 ? NULL : &p->buf[buf[f]];

			if (!b || info.last_forward < 0 || info.first_backward < 0)
				continue;
			info.name = val->label;
			info.spec = val->spec;
			info.spec.dtype = forms[f] == TE_FORM_HP ? val->spec.dtype : val->qdtype;
			info.form = forms[f];
			info.nbytes = b->nbytes;
			info.span = (enum te_span)b->span;
			info.span_offset = b->offset;
			info.offset = te__plan_arena_offset(p, b->span) + b->offset;
			p->saved[p->nsaved++] = info; /* at or before its own place */
		}
	}
	return 0;
}

int te_plan_saved(const struct te_plan *plan, int index, struct te_plan_saved_info *ret_info)
{
	int r = te__sized_check("te_plan_saved", te_plan_saved_info, ret_info);

	if (r)
		return r;
	if (!plan || index < 0)
		return te__fail(-EINVAL, "te_plan_saved: %s",
				plan ? "index is below 0" : "plan is NULL");
	if (index >= plan->nsaved)
		return -ENOENT;
	te__sized_out(te_plan_saved_info, &plan->saved[index], ret_info);
	return 0;
}
