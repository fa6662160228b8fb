/* saved.c - te_plan_saved(3): values that forward saves for backward. */
#define TE_LOG_CATEGORY "core/plan"
#include <errno.h>

#include "libtecore/base/private.h"

#include "libtecore/plan/plan.h"

const uint32_t te__form[TE__NFORMS] = { TE_FORM_HP, TE_FORM_ROW, TE_FORM_COL };

static int ref_uses(const struct te_plan *p, const struct te__step *s, const struct te__ref *ref,
		    int group, te__use_fn *fn, void *arg)
{
	const struct te__value *v = &p->value[ref->value];
	const int buf[TE__NFORMS] = { v->hp, v->row, v->col };
	int r = 0;

	for (int f = 0; f < TE__NFORMS && !r; f++) {
		const struct te__use u = { s, ref, group, ref->value * TE__NFORMS + f, buf[f] };

		if (te__ref_forms(s, ref) & te__form[f])
			r = fn(arg, &u);
	}
	return r;
}

int te__plan_each_use(const struct te_plan *p, int first, int n, te__use_fn *fn, void *arg)
{
	for (int t = first; t < first + n; t++)
		for (int k = 0; k < p->group[t].n; k++) {
			const struct te__step *s = &p->step[p->group[t].first + k];

			for (int i = 0; i < s->nrefs; i++) {
				const int r = ref_uses(p, s, &s->ref[i], t, fn, arg);

				if (r)
					return r;
			}
		}
	return 0;
}

static int add_use(void *arg, const struct te__use *u)
{
	struct te_plan *p = arg;
	struct te__kept *k = &p->kept[u->form];

	k->buf = u->buf;
	if (k->written < 0)
		k->written = u->group;
	if (u->group < p->fwd_groups) {
		k->last_forward = u->group;
		if (u->ref->write)
			k->last_write = u->group;
		return 0;
	}
	k->nreads += !u->step->again && !u->ref->write;
	if (k->first_backward < 0)
		k->first_backward = u->group;
	k->last_backward = u->group;
	return 0;
}

int te__plan_find_kept(struct te_plan *p)
{
	const size_t nall = (size_t)p->nvalues * TE__NFORMS;
	struct te__kept *all = te__calloc(nall + 1, sizeof(*all));

	if (!all)
		return te__no_memory("plan");
	for (size_t i = 0; i < nall; i++)
		all[i] = (struct te__kept){ (int)i / TE__NFORMS, -1, te__form[i % TE__NFORMS],
					    -1, -1, -1, -1, -1, 0 };
	p->kept = all;
	te__plan_each_use(p, 0, p->ngroups, add_use, p);
	for (size_t i = 0; i < nall; i++)
		if (all[i].buf >= 0 && all[i].last_forward >= 0 && all[i].first_backward >= 0 &&
		    all[i].nreads)
			all[p->nkept++] = all[i]; /* at or before its own place */
	return 0;
}

int te_plan_saved(const struct te_plan *plan, int index, struct te_plan_saved_info *ret_info)
{
	int r = te__sized_check("te_plan_saved", te_plan_saved_info, ret_info);
	struct te_plan_saved_info info;
	const struct te__kept *k;
	const struct te__value *v;
	const struct te__buf *b;

	if (r)
		return r;
	if (!plan || index < 0)
		return te__fail(-EINVAL, "te_plan_saved: %s",
				plan ? "index is below 0" : "plan is NULL");
	if (index >= plan->nkept)
		return -ENOENT;
	k = &plan->kept[index];
	v = &plan->value[k->value];
	b = &plan->buf[k->buf];
	info = (struct te_plan_saved_info){
		.size = sizeof(info),
		.name = v->label,
		.spec = v->spec,
		.form = k->form,
		.nbytes = b->nbytes,
		.offset = te__plan_arena_offset(plan, b->span) + b->offset,
		.written = k->written,
		.last_forward = k->last_forward,
		.first_backward = k->first_backward,
		.last_backward = k->last_backward,
		.span = (enum te_span)b->span,
		.span_offset = b->offset,
		.policy = b->again      ? TE_POLICY_RECOMPUTE :
			  b->back >= 0 ? TE_POLICY_OFFLOAD :
					  TE_POLICY_KEEP,
		.why = b->again ? NULL : v->why,
	};
	info.spec.dtype = k->form == TE_FORM_HP ? v->spec.dtype : v->qdtype;
	te__sized_out(te_plan_saved_info, &info, ret_info);
	return 0;
}
