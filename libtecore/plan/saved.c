/* saved.c - te_plan_saved(3): what a plan keeps from the forward pass to the backward pass. */
#define TE_LOG_CATEGORY "core/plan"
#include <errno.h>
#include <string.h>

#include "libtecore/base/private.h"

#include "libtecore/plan/plan.h"

const uint32_t te__form[TE__NFORMS] = { TE_FORM_HP, TE_FORM_ROW, TE_FORM_COL };

static void use(const struct te_plan *p, struct te__kept *k, int t, int write, int again)
{
	if (k->written < 0)
		k->written = t;
	if (t < p->fwd_groups) {
		k->last_forward = t;
		if (write)
			k->last_write = t;
		return;
	}
	k->nreads += !again && !write;
	if (k->first_backward < 0)
		k->first_backward = t;
	k->last_backward = t;
}

/* the groups that use each form of each value */
static void find_uses(const struct te_plan *p, struct te__kept *all)
{
	for (int t = 0; t < p->ngroups; t++)
		for (int k = 0; k < p->group[t].n; k++) {
			const struct te__step *s = &p->step[p->group[t].first + k];

			for (int i = 0; i < s->nrefs; i++)
				for (int f = 0; f < TE__NFORMS; f++)
					if (te__ref_forms(s, &s->ref[i]) & te__form[f])
						use(p, &all[s->ref[i].value * TE__NFORMS + f], t,
						    s->ref[i].write, s->again);
		}
}

int te__plan_find_kept(struct te_plan *p)
{
	const size_t nall = (size_t)p->nvalues * TE__NFORMS;
	struct te__kept *all = te__calloc(nall + 1, sizeof(*all));

	if (!all)
		return te__fail(-ENOMEM, "plan: no memory");
	for (size_t i = 0; i < nall; i++)
		all[i] = (struct te__kept){ 0, 0, 0, -1, -1, -1, -1, -1, 0 };
	find_uses(p, all);
	p->kept = all;
	for (int v = 0; v < p->nvalues; v++) {
		const int buf[TE__NFORMS] = { p->value[v].hp, p->value[v].row, p->value[v].col };

		for (int f = 0; f < TE__NFORMS; f++) {
			struct te__kept k = all[v * TE__NFORMS + f];

			if (buf[f] < 0 || k.last_forward < 0 || k.first_backward < 0 ||
			    !k.nreads)
				continue;
			k.value = v;
			k.buf = buf[f];
			k.form = te__form[f];
			p->kept[p->nkept++] = k; /* at or before its own place */
		}
	}
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
