/*
 * moves.c - choice of the values that a plan offloads, and their buffers.
 *
 * A value that is offloaded has two buffers: one from the group that writes it until its copy out
 * has ended, one from the beginning of the copy back until its last use. te__plan_place() places
 * these as any others, so memory is free between the two, and all addresses are fixed.
 *
 * Values that a pass would wait for stay, unless a target needs them to move.
 */
#define TE_LOG_CATEGORY "core/offload"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libtecore/base/base.h"
#include "libtecore/base/private.h"
#include "libtecore/plan/moves.h"
#include "libtecore/plan/place.h"
#include "libtecore/quant/quant.h"

/* ---- which values ---- */

static int may_move(const struct te_plan *p, const struct te__kept *k)
{
	const struct te_offload_opts *o = &p->offload->opts;
	const struct te__value *v = &p->value[k->value];

	return !v->keep && k->last_write >= 0 && !p->buf[k->buf].again &&
	       v->policy != TE__POLICY_KEEP && p->buf[k->buf].nbytes >= o->min_nbytes &&
	       !te__patterns_match(v->label, o->keep, o->nkeep) &&
	       (!o->nmove || te__patterns_match(v->label, o->move, o->nmove));
}

static struct te__move move_of(const struct te_plan *p, const struct te__kept *k)
{
	return (struct te__move){
		.nbytes = p->buf[k->buf].nbytes,
		.nvalues = 1,
		.name = p->value[k->value].label,
		.out_buf = k->buf,
		.in_buf = -1,
		.out_after = k->last_write,
		.last_forward = k->last_forward,
		.needed = k->first_backward,
		.last = k->last_backward,
	};
}

/* value of a move: bytes times the time without use */
static double worth(const struct te_plan *p, const struct te__move *m)
{
	const double *start = p->moves->start;

	return (double)m->nbytes * (start[m->needed] - start[m->last_forward + 1]);
}

struct ranked {
	double worth;
	int move;
};

static int by_worth(const void *a, const void *b)
{
	const struct ranked *x = a, *y = b;

	if (x->worth != y->worth)
		return x->worth < y->worth ? 1 : -1;
	return x->move - y->move;
}

/* keep the most valuable moves whose sum is at most nbytes, in their order */
static int cut(const struct te_plan *p, struct te__move *v, int *n, uint64_t nbytes)
{
	struct ranked *rank = te__malloc(((size_t)*n + 1) * sizeof(*rank));
	int kept = 0;

	if (!rank)
		return te__no_memory("plan");
	for (int i = 0; i < *n; i++)
		rank[i] = (struct ranked){ worth(p, &v[i]), i };
	qsort(rank, (size_t)*n, sizeof(*rank), by_worth);
	for (int i = 0; i < *n; i++) {
		struct te__move *m = &v[rank[i].move];

		if (rank[i].worth > 0 && m->nbytes <= nbytes)
			nbytes -= m->nbytes;
		else
			m->nbytes = 0;
	}
	te__free(rank);
	for (int i = 0; i < *n; i++)
		if (v[i].nbytes)
			v[kept++] = v[i];
	*n = kept;
	return 0;
}

/* the copy out must end before the copy back begins */
static int returns_after(const struct te_plan *p, const struct te__move *m)
{
	return m->in_before > m->free_after &&
	       (!p->offload->spill || m->read_before > m->written_by);
}

/* longer than the errors of sums of times */
static int waits_for(const struct te_plan *p, const struct te__move *m)
{
	return m->stall > 1e-6 * (double)m->nbytes / p->offload->rates.out;
}

/* The value that is waited for longest stays: others may then be in time. */
static int drop_latest(const struct te_plan *p, struct te__move *v, int n)
{
	int late = -1;

	for (int i = 0; i < n; i++)
		if (waits_for(p, &v[i]) && (late < 0 || v[i].stall > v[late].stall))
			late = i;
	if (late < 0)
		return n;
	memmove(&v[late], &v[late + 1], (size_t)(n - late - 1) * sizeof(*v));
	return n - 1;
}

/* schedule; values stay that would return before they have left, or need waits not allowed */
static int settle(const struct te_plan *p, struct te__move *v, int *n)
{
	int r, kept, before;

	do {
		r = te__moves_schedule(p, v, *n);
		before = *n;
		kept = 0;
		for (int i = 0; i < *n; i++)
			if (returns_after(p, &v[i]))
				v[kept++] = v[i];
		if (kept == before && p->offload->waits == TE__WAITS_NONE)
			kept = drop_latest(p, v, kept);
		*n = kept;
	} while (!r && kept < before);
	return r;
}

/* The size of a group. Groups that are a large part of all moves would free little memory. */
#define GROUP_MOST ((uint64_t)4 << 20)
#define GROUP_SHARE 32

static uint64_t group_nbytes(const struct te_plan *p, const struct te__move *v, int n)
{
	const uint64_t sum = te__moves_sum(v, n);

	if (p->offload->opts.group_nbytes)
		return p->offload->opts.group_nbytes;
	return sum / GROUP_SHARE < GROUP_MOST ? sum / GROUP_SHARE : GROUP_MOST;
}

/* neighbours become groups; member[i]: the group of value i */
static int pack(const struct te_plan *p, struct te__move *v, int n, int *member)
{
	const uint64_t most = group_nbytes(p, v, n);
	int ngroups = 0;

	for (int i = 0; i < n; i++) {
		struct te__move *g = ngroups ? &v[ngroups - 1] : NULL;
		const struct te__move m = v[i];

		if (g && g->nbytes + m.nbytes <= most &&
		    larger(g->last_forward, m.last_forward) < smaller(g->needed, m.needed)) {
			g->nbytes += m.nbytes;
			g->nvalues++;
			g->out_after = larger(g->out_after, m.out_after);
			g->last_forward = larger(g->last_forward, m.last_forward);
			g->needed = smaller(g->needed, m.needed);
			g->last = larger(g->last, m.last);
		} else {
			v[ngroups++] = m;
		}
		member[i] = ngroups - 1;
	}
	return ngroups;
}

/* ---- buffers ---- */

/* make one buffer for a group in a pass */
static int group_buf(struct te_plan *p, const struct te__move *m, int first, int last)
{
	const int b = te__plan_new_buf(p, m->nbytes);

	if (b >= 0) {
		p->buf[b].first = first;
		p->buf[b].last = last;
	}
	return b;
}

/* place a buffer within the buffer of its group */
static void put(struct te_plan *p, int buf, int root, size_t at)
{
	p->buf[buf].first = p->buf[root].first;
	p->buf[buf].last = p->buf[root].last;
	p->buf[buf].share = root;
	p->buf[buf].at = at;
}

#define SLOT_ALIGN 4096u /* alignment of reads and writes, in bytes */

/* place slots in pinned memory, by the times of their use */
static int place_slots(struct te_plan *p)
{
	struct te__moves *m = p->moves;
	struct te__place_item *item = te__calloc(2 * (size_t)m->n + 1, sizeof(*item));
	int r;

	if (!item)
		return te__no_memory("plan");
	for (int i = 0; i < m->n; i++) {
		struct te__move *v = &m->v[i];

		/* groups of values can be worse than each of them */
		v->written_by = smaller(v->written_by, v->in_before - 1);
		v->read_before = larger(v->read_before, v->written_by + 1);
		item[2 * i] =
			(struct te__place_item){ v->nbytes, v->out_after, v->written_by, 0, 0 };
		/* to the end of forward: no copy out waits for a copy back */
		item[2 * i + 1] = (struct te__place_item){
			v->nbytes, v->read_before, larger(v->in_before, p->fwd_groups - 1), 0, 0
		};
	}
	r = te__place(item, 2 * m->n, SLOT_ALIGN, &m->held);
	for (int i = 0; i < m->n; i++) {
		m->v[i].slot = item[2 * i].offset;
		m->v[i].slot_in = item[2 * i + 1].offset;
	}
	te__free(item);
	m->filed = 0;
	for (int i = 0; i < m->n; i++)
		m->filed += (m->v[i].nbytes + SLOT_ALIGN - 1) / SLOT_ALIGN * SLOT_ALIGN;
	m->held = (m->held + TE__PINNED_UNIT - 1) / TE__PINNED_UNIT * TE__PINNED_UNIT;
	return r;
}

static int divide(struct te_plan *p, const int *buf, const int *member, int nvalues)
{
	struct te__moves *m = p->moves;
	size_t at = 0;

	m->nbytes = 0;
	for (int i = 0; i < nvalues; i++) {
		struct te__move *g = &m->v[member[i]];
		int back;

		if (!i || member[i] != member[i - 1]) {
			g->slot = g->slot_in = m->nbytes;
			m->nbytes += g->nbytes;
			at = 0;
			g->out_buf = group_buf(p, g, p->ngroups, g->free_after);
			g->in_buf = group_buf(p, g, g->in_before, g->last);
			if (g->out_buf < 0 || g->in_buf < 0)
				return -ENOMEM;
		}
		if (p->buf[buf[i]].first < p->buf[g->out_buf].first)
			p->buf[g->out_buf].first = p->buf[buf[i]].first;
		back = te__plan_new_buf(p, p->buf[buf[i]].nbytes);
		if (back < 0)
			return back;
		put(p, buf[i], g->out_buf, at);
		put(p, back, g->in_buf, at);
		p->buf[buf[i]].back = back;
		at += p->buf[buf[i]].nbytes;
	}
	m->held = m->nbytes;
	return p->offload->spill ? place_slots(p) : 0;
}

static int by_out(const void *a, const void *b)
{
	const struct te__move *x = a, *y = b;

	return x->out_after != y->out_after ? x->out_after - y->out_after : x->out_buf - y->out_buf;
}

/* places the buffers with up to nbytes moved */
static int place(struct te_plan *p, uint64_t nbytes)
{
	struct te__moves *m = p->moves;
	const size_t most = (size_t)p->nkept + 1;
	int *buf = te__malloc(2 * most * sizeof(*buf)), *member;
	int n = 0, r;

	if (!buf)
		return te__no_memory("plan");
	member = buf + most;
	memcpy(p->buf, m->buf, (size_t)m->nbufs * sizeof(*p->buf));
	p->nbufs = m->nbufs;
	for (int i = 0; i < p->nkept; i++)
		if (may_move(p, &p->kept[i]))
			m->v[n++] = move_of(p, &p->kept[i]);
	qsort(m->v, (size_t)n, sizeof(*m->v), by_out);
	r = cut(p, m->v, &n, nbytes);
	if (!r)
		r = settle(p, m->v, &n);
	for (int i = 0; i < n; i++)
		buf[i] = m->v[i].out_buf;
	if (!r) {
		m->n = pack(p, m->v, n, member);
		r = te__moves_schedule(p, m->v, m->n);
	}
	if (!r)
		r = divide(p, buf, member, n);
	te__free(buf);
	return r ? r : te__plan_place(p);
}

/* ---- how many bytes ---- */

static int peak_of(void *arg, uint64_t *ret_nbytes)
{
	struct te_plan *p = arg;
	struct te_offload *o = p->offload;
	const uint64_t room = te__offload_room(o);
	uint64_t most = room < o->left_nbytes ? room : o->left_nbytes;
	int r = place(p, most);

	/* values for a file must fit into the slots and the file */
	while (!r && o->spill &&
	       (p->moves->held > te__pinned_nbytes(o->slots) - o->pinned_nbytes ||
		p->moves->filed > room)) {
		most = p->moves->nbytes / 4 * 3;
		r = place(p, most);
	}
	*ret_nbytes = p->arena_nbytes;
	o->left_nbytes -= r ? 0 : p->moves->nbytes;
	return r;
}

static int choose(struct te_plan *p)
{
	struct te_offload *o = p->offload;
	uint64_t peak;
	int r;

	if (o->directed)
		return peak_of(p, &peak);
	if (o->opts.target_nbytes)
		return te__offload_fit(o, o->opts.target_nbytes, "the arena of the plan", peak_of,
				       p);
	te__offload_allow(o, o->opts.move_nbytes, TE__WAITS_NONE);
	r = peak_of(p, &peak);
	te__offload_release(o);
	return r;
}

static int by_act(const void *a, const void *b)
{
	const struct te__act *x = a, *y = b;

	if (x->group != y->group)
		return x->group - y->group;
	if (x->kind != y->kind)
		return (int)x->kind - (int)y->kind;
	return x->rank != y->rank ? x->rank - y->rank : x->move - y->move;
}

static int share(size_t a, size_t na, size_t b, size_t nb)
{
	return a < b + nb && b < a + na;
}

/* writes and reads are on two streams: where they use the same slots, reads wait */
static void find_order(struct te__moves *m)
{
	for (int i = 0; i < m->n; i++) {
		struct te__move *v = &m->v[i];

		v->read_after = i;
		for (int k = 0; k < m->n; k++) {
			const struct te__move *u = &m->v[k], *r = &m->v[v->read_after];

			/* in the order of their queueing: by group, then by number */
			if (u->written_by < v->read_before &&
			    share(u->slot, u->nbytes, v->slot_in, v->nbytes) &&
			    (u->written_by > r->written_by ||
			     (u->written_by == r->written_by && u > r)))
				v->read_after = k;
		}
	}
}

/* in the order of their copies, each move gets the one that follows on the link */
static void find_next(struct te__moves *m)
{
	int *next[2] = { NULL, NULL };

	for (int i = 0; i < m->nacts; i++) {
		const struct te__act *a = &m->act[i];
		struct te__move *v = &m->v[a->move];
		const int in = a->kind == TE__ACT_LOAD;

		if (!in && a->kind != TE__ACT_STORE)
			continue;
		if (next[in])
			*next[in] = a->move;
		next[in] = in ? &v->next_in : &v->next_out;
		*next[in] = -1;
	}
}

static int find_acts(struct te_plan *p)
{
	struct te__moves *m = p->moves;

	if (p->offload->spill)
		find_order(m);
	m->act = te__calloc(6 * (size_t)m->n + 1, sizeof(*m->act));
	m->first_act = te__calloc((size_t)p->ngroups + 1, sizeof(*m->first_act));
	if (!m->act || !m->first_act)
		return te__no_memory("plan");
	for (int i = 0; i < m->n; i++) {
		const struct te__move *v = &m->v[i];
		/* a group of values can return before its memory is free: not before it has left */
		const int wait_out = smaller(v->free_after, v->in_before - 1);
		const struct te__act act[] = { { v->in_before, TE__ACT_LOAD, v->needed, i },
					       { v->needed, TE__ACT_WAIT_IN, 0, i },
					       { v->out_after, TE__ACT_STORE, 0, i },
					       { wait_out, TE__ACT_WAIT_OUT, 0, i },
					       { v->written_by, TE__ACT_WRITTEN, 0, i },
					       { v->read_before, TE__ACT_READ, v->needed, i } };
		const int n = p->offload->spill ? 6 : 4;

		memcpy(&m->act[m->nacts], act, (size_t)n * sizeof(act[0]));
		m->nacts += n;
	}
	qsort(m->act, (size_t)m->nacts, sizeof(*m->act), by_act);
	for (int t = 0, i = 0; t <= p->ngroups; t++) {
		while (i < m->nacts && m->act[i].group < t)
			i++;
		m->first_act[t] = i;
	}
	find_next(m);
	return 0;
}

int te__moves_plan(struct te_plan *p)
{
	struct te__moves *m;
	int r;

	if (!p->offload)
		return te__plan_place(p);
	m = p->moves = te__calloc(1, sizeof(*m));
	if (!m)
		return te__no_memory("plan");
	m->nbufs = p->nbufs;
	m->buf = te__malloc(((size_t)p->nbufs + 1) * sizeof(*m->buf));
	m->v = te__calloc((size_t)p->nkept + 1, sizeof(*m->v));
	if (!m->buf || !m->v)
		return te__no_memory("plan");
	memcpy(m->buf, p->buf, (size_t)p->nbufs * sizeof(*m->buf));
	r = te__moves_times(p);
	if (!r)
		r = te__moves_inuse(p);
	if (!r)
		r = place(p, 0);
	m->plain_nbytes = p->arena_nbytes;
	if (!r)
		r = choose(p);
	return r ? r : find_acts(p);
}
