/*
 * layout.c - the life of each value, and its place in the arena.
 *
 * A buffer lives from the group that writes it to the last one that reads it.
 * te__place() gives buffers whose lifetimes overlap disjoint ranges of the arena.
 */
#define TE_LOG_CATEGORY "core/plan"
#include <errno.h>

#include "libtecore/base/private.h"
#include "libtecore/plan/place.h"
#include "libtecore/plan/plan.h"
#include "libtecore/tensor/ctx.h"

/*
 * Nodes of a graph depend on each other where their buffers share memory, even if neither reads
 * what the other writes. With TE__BACKEND_SEPARATE_SMALL small buffers keep their memory to the
 * end of the plan, or for SLACK_GROUPS more groups if all of them take more than SMALL_TOTAL.
 * Without it a plan takes the least memory.
 */
#define SMALL_NBYTES ((size_t)1 << 20)
#define SMALL_TOTAL ((size_t)32 << 20)
#define SLACK_GROUPS 8

static void touch(struct te__buf *b, int t)
{
	if (b->first < 0 || t < b->first)
		b->first = t;
	if (t > b->last)
		b->last = t;
}

size_t te__value_scales_at(const struct te__value *v)
{
	const size_t codes = (size_t)te__spec_nelems(&v->spec);

	return (codes + TE__PLAN_ALIGN - 1) / TE__PLAN_ALIGN * TE__PLAN_ALIGN;
}

/* a copy stored as [rows, cols]: codes, and the scales of block scaling */
static int copy_buf(struct te_plan *p, const struct te__value *v, int64_t rows, int64_t cols)
{
	size_t nbytes = (size_t)te__spec_nelems(&v->spec);

	if (v->scaling)
		nbytes = te__value_scales_at(v) +
			 (size_t)te_scaling_nfloats(v->scaling, rows, cols) * sizeof(float);
	return te__plan_new_buf(p, nbytes);
}

static int value_bufs(struct te_plan *p, struct te__value *v)
{
	const int64_t cols = v->spec.shape[v->spec.ndim - 1];
	const int64_t rows = te__spec_nelems(&v->spec) / cols;
	size_t n = te__spec_nbytes(&v->spec);

	if (!v->fixed && !v->no_hp && (v->hp = te__plan_new_buf(p, n)) < 0)
		return v->hp;
	if ((v->forms & TE_FORM_ROW) && (v->row = copy_buf(p, v, rows, cols)) < 0)
		return v->row;
	if ((v->forms & TE_FORM_COL) && (v->col = copy_buf(p, v, cols, rows)) < 0)
		return v->col;
	return 0;
}

static void live_refs(struct te_plan *p, const struct te__step *s, int t)
{
	for (int k = 0; k < s->nrefs; k++) {
		const struct te__value *v = &p->value[s->ref[k].value];
		const uint32_t forms = te__ref_forms(s, &s->ref[k]);

		if ((forms & TE_FORM_HP) && v->hp >= 0)
			touch(&p->buf[v->hp], t);
		if ((forms & TE_FORM_ROW) && v->row >= 0)
			touch(&p->buf[v->row], t);
		if ((forms & TE_FORM_COL) && v->col >= 0)
			touch(&p->buf[v->col], t);
	}
}

/* the output of step s may take over the memory of an input that dies in it */
static void share(struct te_plan *p, const struct te__step *s, int t)
{
	struct te__buf *to;
	int b;

	if (s->share_to < 0 || p->value[s->share_to].hp < 0)
		return;
	b = p->value[s->share_to].hp;
	to = &p->buf[b];
	if (to->first != t || to->share >= 0)
		return;
	for (int k = 0; k < 3; k++) {
		const struct te__value *v =
			s->share_from[k] < 0 ? NULL : &p->value[s->share_from[k]];
		struct te__buf *from;
		int root;

		if (!v || v->hp < 0 || v->hp == b || v->keep)
			continue;
		from = &p->buf[v->hp];
		if (from->last != t || from->first == t || from->nbytes != to->nbytes)
			continue;
		for (root = v->hp; p->buf[root].share >= 0; root = p->buf[root].share)
			;
		if (p->buf[root].last != t)
			continue; /* somebody took it over in this group already */
		to->share = root;
		p->buf[root].last = to->last;
		return;
	}
}

static int is_small(const struct te__buf *b)
{
	return b->first >= 0 && b->share < 0 && b->nbytes <= SMALL_NBYTES;
}

/* groups that small ones keep their places for after their last use */
static int slack(const struct te_plan *p)
{
	size_t total = 0;

	if (!(p->ctx->traits & TE__BACKEND_SEPARATE_SMALL))
		return 0;
	for (int i = 0; i < p->nbufs; i++)
		total += is_small(&p->buf[i]) ? p->buf[i].nbytes : 0;
	return total <= SMALL_TOTAL ? p->ngroups : SLACK_GROUPS;
}

/* roots of shared buffers get a place each, the others that of their root */
static int place(struct te_plan *p)
{
	const int more = slack(p);
	struct te__place_item *item = te__calloc((size_t)p->nbufs + 1, sizeof(*item));
	uint64_t peak;
	int n = 0, r;

	if (!item)
		return te__fail(-ENOMEM, "plan: no memory");
	for (int i = 0; i < p->nbufs; i++) {
		const struct te__buf *b = &p->buf[i];

		if (b->first >= 0 && b->share < 0)
			item[n++] = (struct te__place_item){
				b->nbytes,
				b->first,
				b->last + (is_small(b) ? more : 0),
				0,
			};
	}
	r = te__place(item, n, TE__PLAN_ALIGN, &peak);
	n = 0;
	for (int i = 0; i < p->nbufs && !r; i++)
		if (p->buf[i].first >= 0 && p->buf[i].share < 0) {
			p->buf[i].offset = item[n++].offset;
			p->sum_nbytes += p->buf[i].nbytes;
		}
	te__free(item);
	if (r)
		return r;
	p->arena_nbytes = peak;
	for (int i = 0; i < p->nbufs; i++) {
		int root = i;

		while (p->buf[root].share >= 0)
			root = p->buf[root].share;
		if (root != i) {
			p->buf[i].offset = p->buf[root].offset;
			p->sum_nbytes += p->buf[i].nbytes;
		}
	}
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

		for (int k = 0; k < g->n; k++)
			live_refs(p, &p->step[g->first + k], t);
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
	for (int t = 0; t < p->ngroups; t++)
		if (!p->group[t].fusion)
			share(p, &p->step[p->group[t].first], t);
	return place(p);
}
