/*
 * offsets.c - the offset of each buffer in memory.
 *
 * te__place() gives buffers whose lifetimes overlap disjoint ranges of memory: of an arena or, with
 * TE_PLAN_EXTERNAL, of a span for all buffers that live in the same passes.
 */
#define TE_LOG_CATEGORY "core/plan"
#include <string.h>

#include "libtecore/base/private.h"
#include "libtecore/plan/place.h"
#include "libtecore/plan/plan.h"
#include "libtecore/plan/span.h"
#include "libtecore/tensor/ctx.h"

#define NPASSES 3

/*
 * Nodes of a graph depend on each other if their buffers share memory, even if neither reads the
 * other's result. With TE__BACKEND_SEPARATE_SMALL small buffers keep their memory to the end of the
 * plan, or for SLACK_GROUPS more groups if they take more than SMALL_TOTAL together.
 * Without it a plan takes the least memory.
 */
#define SMALL_NBYTES ((size_t)1 << 20)
#define SMALL_TOTAL ((size_t)32 << 20)
#define SLACK_GROUPS 8

/* the output of step s may take over the memory of an input that is last used in it */
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
		if (from->last != t || from->first == t || from->nbytes != to->nbytes ||
		    from->back >= 0)
			continue;
		for (root = v->hp; p->buf[root].share >= 0; root = p->buf[root].share)
			;
		if (p->buf[root].last != t)
			continue; /* another value has taken it over in this group already */
		to->share = root;
		p->buf[root].last = to->last;
		return;
	}
}

/* 1: it does not share the memory of another buffer */
static int is_root(const struct te__buf *b)
{
	return b->first >= 0 && b->share < 0;
}

static int is_small(const struct te__buf *b)
{
	return is_root(b) && b->nbytes <= SMALL_NBYTES;
}

/* groups for which small buffers keep their memory after their last use */
static int slack(const struct te_plan *p)
{
	size_t total = 0;

	if (!(p->ctx->traits & TE__BACKEND_SEPARATE_SMALL))
		return 0;
	for (int i = 0; i < p->nbufs; i++)
		total += is_small(&p->buf[i]) ? p->buf[i].nbytes : 0;
	return total <= SMALL_TOTAL ? p->ngroups : SLACK_GROUPS;
}

/* ---- spans ---- */

const char *const te__span_name[TE_SPAN_COUNT] = { "F", "B", "W", "FB", "FW", "BW" };

/* the first group of a pass; of NPASSES, the end of the plan */
static int pass_begin(const struct te_plan *p, int pass)
{
	const int begin[NPASSES + 1] = { 0, p->fwd_groups, p->fwd_groups + p->bwd_groups,
					 p->ngroups };

	return begin[pass];
}

static int pass_of(const struct te_plan *p, int t)
{
	int pass = 0;

	while (pass + 1 < NPASSES && t >= pass_begin(p, pass + 1))
		pass++;
	return pass;
}

/* the span of an external plan that exists exactly in the passes of the buffer's lifetime */
static int span_of(const struct te_plan *p, const struct te__buf *b)
{
	int s = 0;

	if (!(p->flags & TE_PLAN_EXTERNAL))
		return TE_SPAN_F;
	while (te__span_first(s) != pass_of(p, b->first) || te__span_last(s) != pass_of(p, b->last))
		s++;
	return s;
}

size_t te__plan_arena_offset(const struct te_plan *p, int span)
{
	size_t at = 0;

	for (int s = 0; s < (te__span_saves(span) ? span : TE_SPAN_COUNT); s++)
		at += te__span_saves(s) ? p->span_nbytes[s] : 0;
	return at;
}

/* ---- offsets ---- */

/*
 * All spans in one range of offsets: first spans of several passes, each followed by space that no
 * buffer may use, so that no buffer is in two spans. All scratch spans begin at the end.
 */
struct space {
	struct te__place_item *item;
	int n;
	size_t base[TE_SPAN_COUNT];
};

static void add(struct space *sp, size_t nbytes, int first, int last, size_t offset, int fixed)
{
	if (first <= last)
		sp->item[sp->n++] = (struct te__place_item){ nbytes, first, last, offset, fixed };
}

/* Buffers that save get offsets in the order in which they are written: backward frees them in
 * reverse. No two of a span have disjoint lifetimes. */
static void stack(struct te_plan *p, struct space *sp)
{
	size_t base = 0;

	for (int i = 0; i < p->nbufs; i++) {
		struct te__buf *b = &p->buf[i];

		if (!is_root(b))
			continue;
		b->span = span_of(p, b);
		if (!te__span_saves(b->span))
			continue;
		b->offset = p->span_nbytes[b->span];
		p->span_nbytes[b->span] += b->nbytes;
	}
	for (int s = 0; s < TE_SPAN_COUNT; s++) {
		const size_t nbytes = p->span_nbytes[s];

		sp->base[s] = base;
		if (!nbytes)
			continue;
		/* only in passes in which the span exists */
		add(sp, nbytes, 0, pass_begin(p, te__span_first(s)) - 1, base, 1);
		add(sp, nbytes, pass_begin(p, te__span_last(s) + 1), p->ngroups, base, 1);
		add(sp, TE__PLAN_ALIGN, 0, p->ngroups, base + nbytes, 1);
		base += nbytes + TE__PLAN_ALIGN;
	}
	for (int s = 0; s < TE_SPAN_COUNT; s++)
		sp->base[s] = te__span_saves(s) ? sp->base[s] : base;
}

/* add all roots, fixed if they save */
static void add_roots(struct te_plan *p, struct space *sp)
{
	const int external = p->flags & TE_PLAN_EXTERNAL, more = slack(p);

	for (int i = 0; i < p->nbufs; i++) {
		const struct te__buf *b = &p->buf[i];
		int until, end;

		if (!is_root(b))
			continue;
		until = b->last + (is_small(b) ? more : 0);
		end = pass_begin(p, pass_of(p, b->last) + 1) - 1;
		add(sp, b->nbytes, b->first, external && until > end ? end : until,
		    sp->base[b->span] + b->offset, te__span_saves(b->span));
	}
}

/* scratch that fits where saved values are not yet written or no longer read moves there */
static void take(struct te_plan *p, const struct space *sp, struct te__buf *b, size_t offset)
{
	if (te__span_saves(b->span))
		return;
	for (int s = 0; s < TE_SPAN_COUNT; s++)
		if (te__span_saves(s) && offset - sp->base[s] < p->span_nbytes[s])
			b->span = s;
	b->offset = offset - sp->base[b->span];
	if (p->span_nbytes[b->span] < b->offset + b->nbytes)
		p->span_nbytes[b->span] = b->offset + b->nbytes;
}

static void sum_up(struct te_plan *p)
{
	size_t saved = 0, scratch = 0;

	p->sum_nbytes = 0;
	for (int s = 0; s < TE_SPAN_COUNT; s++)
		if (te__span_saves(s))
			saved += p->span_nbytes[s];
		else if (p->span_nbytes[s] > scratch)
			scratch = p->span_nbytes[s];
	p->arena_nbytes = saved + scratch;
	for (int i = 0; i < p->nbufs; i++) {
		size_t at = 0;
		int root = i;

		if (p->buf[i].first < 0)
			continue;
		for (; p->buf[root].share >= 0; root = p->buf[root].share)
			at += p->buf[root].at;
		p->buf[i].span = p->buf[root].span;
		p->buf[i].offset = p->buf[root].offset + at;
		p->sum_nbytes += p->buf[i].nbytes;
	}
}

/* roots of shared buffers get offsets, the others the offset of their root */
int te__plan_place(struct te_plan *p)
{
	const size_t most = (size_t)p->nbufs + 3 * TE_SPAN_COUNT;
	struct space sp = { te__calloc(most, sizeof(*sp.item)), 0, { 0 } };
	uint64_t peak;
	int r, n;

	if (!sp.item)
		return te__no_memory("plan");
	for (int t = 0; t < p->ngroups; t++)
		if (!p->group[t].fusion || p->group[t].fusion->flags & TE__FUSION_IN_PLACE)
			share(p, &p->step[p->group[t].first], t);
	memset(p->span_nbytes, 0, sizeof(p->span_nbytes));
	stack(p, &sp);
	n = sp.n;
	add_roots(p, &sp);
	r = te__place(sp.item, sp.n, TE__PLAN_ALIGN, &peak);
	for (int i = 0; i < p->nbufs && !r; i++)
		if (is_root(&p->buf[i]))
			take(p, &sp, &p->buf[i], sp.item[n++].offset);
	te__free(sp.item);
	if (!r)
		sum_up(p);
	return r;
}
