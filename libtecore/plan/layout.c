/*
 * layout.c - the buffers of each value, and their lifetimes.
 *
 * A buffer lives from the group that writes it to the last one that reads it. Values that backward
 * computes again have two buffers, one for each pass, and so have offloaded values (moves.c).
 */
#define TE_LOG_CATEGORY "core/plan"
#include "libtecore/base/private.h"
#include "libtecore/base/base.h"
#include "libtecore/plan/moves.h"
#include "libtecore/plan/plan.h"

static void touch(struct te__buf *b, int t)
{
	if (b->first < 0 || t < b->first)
		b->first = t;
	if (t > b->last)
		b->last = t;
}

size_t te__value_scales_at(const struct te__value *v)
{
	int64_t rows, cols;
	size_t codes;

	te__value_extents(v, &rows, &cols);
	codes = (size_t)te__nbytes_of((int32_t)v->qdtype, rows * cols);
	return (codes + TE__PLAN_ALIGN - 1) / TE__PLAN_ALIGN * TE__PLAN_ALIGN;
}

/* a copy stored as [rows, cols]: codes, and the scales of block scaling */
static int copy_buf(struct te_plan *p, const struct te__value *v, int64_t rows, int64_t cols)
{
	size_t nbytes = (size_t)te__nbytes_of((int32_t)v->qdtype, rows * cols);

	if (v->scaling)
		nbytes = te__value_scales_at(v) +
			 (size_t)te_scaling_nfloats(v->scaling, rows, cols) * sizeof(float);
	return te__plan_new_buf(p, nbytes);
}

static int value_bufs(struct te_plan *p, struct te__value *v)
{
	size_t n = te__spec_nbytes(&v->spec);
	int64_t rows, cols;

	te__value_extents(v, &rows, &cols);
	if (!v->fixed && !v->no_hp && (v->hp = te__plan_new_buf(p, n)) < 0)
		return v->hp;
	if ((v->forms & TE_FORM_ROW) && (v->row = copy_buf(p, v, rows, cols)) < 0)
		return v->row;
	if ((v->forms & TE_FORM_COL) && (v->col = copy_buf(p, v, cols, rows)) < 0)
		return v->col;
	return 0;
}

/* steps that run again write buffers that only backward has */
static int live(void *arg, const struct te__use *u)
{
	struct te_plan *p = arg;
	int back;

	if (u->buf < 0)
		return 0;
	if (u->step->again && u->ref->write && p->buf[u->buf].back < 0) {
		back = te__plan_new_buf(p, p->buf[u->buf].nbytes);
		if (back < 0)
			return back;
		p->buf[u->buf].back = back;
		p->buf[u->buf].again = 1;
	}
	back = u->group < p->fwd_groups ? -1 : p->buf[u->buf].back;
	touch(&p->buf[back < 0 ? u->buf : back], u->group);
	return 0;
}

int te__plan_layout(struct te_plan *p)
{
	int r;

	for (int i = 0; i < p->nvalues; i++) {
		r = value_bufs(p, &p->value[i]);
		if (r < 0)
			return r;
	}
	for (int t = 0; t < p->ngroups; t++) {
		struct te__group *g = &p->group[t];

		r = te__plan_each_use(p, t, 1, live, p);
		if (r)
			return r;
		if (g->fused.ws_nbytes) {
			g->ws = te__plan_new_buf(p, g->fused.ws_nbytes);
			if (g->ws < 0)
				return g->ws;
			touch(&p->buf[g->ws], t);
		}
	}
	for (int i = 0; i < p->nvalues; i++) {
		const struct te__value *v = &p->value[i];

		if (v->hp < 0)
			continue;
		if (v->keep)
			touch(&p->buf[v->hp], p->ngroups);
		if (v->fed) /* written by the caller between forward and backward */
			touch(&p->buf[v->hp], p->fwd_groups);
	}
	r = te__columns_find(p);
	if (!r)
		r = te__hosted_find(p);
	if (!r)
		r = te__plan_find_kept(p);
	return r ? r : te__moves_plan(p);
}
