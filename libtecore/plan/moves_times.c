/*
 * moves_times.c - the times of the copies of offloaded values.
 *
 * Times are estimated: the time of a group from the bytes that it accesses and the operations of
 * its GEMMs, the time of a copy from the rate of the link. Copies of one direction run serially. A
 * copy out begins as soon as the value is written; a copy back begins as late as possible, such
 * that it and the copies after it end in time. Where a target needs more values to move, passes
 * wait, first only where memory runs out.
 *
 * Between the passes of a plan for a part of a sequence, other plans' passes run. So its copies out
 * end by the end of forward, and its copies back begin in backward.
 */
#define TE_LOG_CATEGORY "core/offload"
#include <stdlib.h>

#include "libtecore/base/base.h"
#include "libtecore/base/private.h"
#include "libtecore/plan/costs.h"
#include "libtecore/plan/moves.h"

/* ---- the time of a group ---- */

/* FLOP rate of attention divided by the rate of GEMMs. On an H100 attention has 0.36 of the peak in
 * forward and 0.25 in backward, and GEMMs are assumed to have 0.65 (doc/perf-kernels.md) */
#define ATTENTION 0.46
/* FLOP rate of FP8 GEMMs divided by the rate of BF16 GEMMs */
#define FP8 1.85
/* rate of random rows of host memory divided by the rate of copies: 2.1 of 55 GB/s on an H200, with
 * rows of 10 KiB (doc/perf-training.md) */
#define ROWS 0.04

static double seconds(const struct te__cost *c, const struct te__offload_rates *r)
{
	const double compute = (c->flops[TE__WORK_GEMM] + c->flops[TE__WORK_FP8_GEMM] / FP8 +
				c->flops[TE__WORK_ATTENTION] / ATTENTION) / r->flop;
	const double copy = (double)c->nbytes / r->mem;

	return (copy > compute ? copy : compute) + (double)c->between_nbytes / r->mem +
	       (double)c->host_nbytes / (ROWS * r->in);
}

int te__moves_times(struct te_plan *p)
{
	struct te__moves *m = p->moves;
	struct te__costs costs;
	struct te__cost c;
	int r;

	m->start = te__calloc((size_t)p->ngroups + 1, sizeof(*m->start));
	r = m->start ? te__costs_open(&costs, p) : te__no_memory("plan");
	if (r)
		return r;
	for (int t = 0; t < p->ngroups; t++) {
		te__costs_of(&costs, t, &c);
		m->start[t + 1] = m->start[t] + seconds(&c, &p->offload->rates);
	}
	te__costs_close(&costs);
	return 0;
}

double te__moves_pass_ms(const struct te_plan *p)
{
	const struct te__moves *m = p->moves;
	double s = m->start[p->ngroups], link;
	uint64_t in, out;

	for (int i = 0; i < m->n; i++)
		s += m->v[i].stall;
	/* copies of weights and gradients in host memory run concurrently with kernels */
	te__hosted_nbytes(p, &in, &out);
	link = (double)in / p->offload->rates.in;
	link = link > (double)out / p->offload->rates.out ? link :
							    (double)out / p->offload->rates.out;
	return 1e3 * (s > link ? s : link);
}

int te__moves_inuse(struct te_plan *p)
{
	struct te__moves *m = p->moves;

	m->inuse = te__calloc((size_t)p->ngroups + 1, sizeof(*m->inuse));
	if (!m->inuse)
		return te__no_memory("plan");
	for (int i = 0; i < m->nbufs; i++) {
		const struct te__buf *b = &m->buf[i];

		for (int t = b->first; b->share < 0 && t >= 0 && t <= b->last; t++)
			m->inuse[t] += b->nbytes;
	}
	for (int t = 0; t < p->ngroups; t++)
		if (m->inuse[t] > m->most_inuse)
			m->most_inuse = m->inuse[t];
	return 0;
}

/* the group that runs at that time; the last one afterwards */
static int group_at(const struct te_plan *p, double when)
{
	const double *start = p->moves->start;
	int lo = 0, hi = p->ngroups - 1;

	while (lo < hi) {
		const int mid = (lo + hi + 1) / 2;

		if (start[mid] <= when)
			lo = mid;
		else
			hi = mid - 1;
	}
	return lo;
}

/* ---- schedules ---- */

/* other passes run between forward and backward */
static int is_part(const struct te_plan *p)
{
	return p->first_op > 0 || p->nops < p->seq->nops;
}

uint64_t te__moves_sum(const struct te__move *v, int n)
{
	uint64_t sum = 0;

	for (int i = 0; i < n; i++)
		sum += v[i].nbytes;
	return sum;
}

/* gaps between buffers that are allowed for, as a fraction 1 / GAPS of memory */
#define GAPS 8

/* Group t has too little memory with gone bytes elsewhere, if moving bytes is to reduce the most
 * that is in use by as much. */
static int is_short(const struct te_plan *p, int t, uint64_t gone, uint64_t moving)
{
	const struct te__moves *m = p->moves;

	return m->inuse[t] + moving + m->most_inuse / GAPS > m->most_inuse + gone;
}

static void schedule_out(const struct te_plan *p, struct te__move *v, int n)
{
	const uint64_t moving = te__moves_sum(v, n);
	const struct te_offload *o = p->offload;
	const double rate = o->rates.out * (1 - o->opts.margin), *start = p->moves->start;
	const int most = is_part(p) ? p->fwd_groups - 1 : p->ngroups - 1;
	double end = 0, delay = 0;
	uint64_t gone = 0;
	int due = 0;

	for (int i = 0; i < n; i++) {
		struct te__move *m = &v[i];
		const double ready = start[m->out_after + 1] + delay;
		double late;

		end = (end > ready ? end : ready) + (double)m->nbytes / rate;
		m->free_after = o->waits == TE__WAITS_FILE ? m->out_after + 1 :
							       group_at(p, end - delay);
		if (o->waits == TE__WAITS_COPIES) {
			while (due < p->ngroups && !is_short(p, due, gone, moving))
				due++;
			m->free_after = larger(smaller(m->free_after, due - 1), m->out_after + 1);
			gone += m->nbytes;
		}
		m->free_after = smaller(larger(m->free_after, m->last_forward), most);
		m->out_end = end - delay;
		late = end - delay - start[m->free_after + 1];
		m->stall = late > 0 ? late : 0;
		delay += m->stall;
	}
}

/* order: by the groups that need them */
static void schedule_in(const struct te_plan *p, struct te__move **order, int n, uint64_t moving)
{
	const struct te_offload *o = p->offload;
	const double rate = o->rates.in * (1 - o->opts.margin), *start = p->moves->start;
	const int least = is_part(p) ? p->fwd_groups : 0;
	double limit = start[p->ngroups], end = 0, delay = 0;
	int room = p->ngroups;
	uint64_t gone = 0;

	for (int i = n; i-- > 0;) {
		struct te__move *m = order[i];

		limit = limit < start[m->needed] ? limit : start[m->needed];
		limit -= (double)m->nbytes / rate;
		m->in_before = o->waits == TE__WAITS_FILE ? m->needed - 1 : group_at(p, limit);
		if (o->waits == TE__WAITS_COPIES) {
			while (room > 0 && !is_short(p, room - 1, gone, moving))
				room--;
			m->in_before = smaller(larger(m->in_before, room), m->needed - 1);
			gone += m->nbytes;
		}
		m->in_before = larger(smaller(m->in_before, m->needed), least);
		m->in_before = larger(m->in_before, m->out_after + 1);
	}
	for (int i = 0; i < n; i++) {
		struct te__move *m = order[i];
		const double begin = start[m->in_before] + delay;
		double late;

		end = (end > begin ? end : begin) + (double)m->nbytes / rate;
		late = end - delay - start[m->needed];
		if (late > 0) {
			m->stall += late;
			delay += late;
		}
	}
}

/* the file: writes follow copies out, reads end before copies back begin; order as above */
static void schedule_file(const struct te_plan *p, struct te__move *v, struct te__move **order,
			  int n)
{
	const struct te__offload_rates *r = &p->offload->rates;
	const double rest = 1 - p->offload->opts.margin, *start = p->moves->start;
	const int most = is_part(p) ? p->fwd_groups - 1 : p->ngroups - 1;
	const int least = is_part(p) ? p->fwd_groups : 0;
	const int waits = p->offload->waits == TE__WAITS_FILE;
	double end = 0, delay = 0, limit = start[p->ngroups];

	for (int i = 0; i < n; i++) {
		struct te__move *m = &v[i];
		const double ready = m->out_end + delay;
		double late;

		end = (end > ready ? end : ready) + (double)m->nbytes / (r->write * rest);
		m->written_by = waits ? m->free_after + 1 : group_at(p, end);
		m->written_by = smaller(larger(m->written_by, m->free_after), most);
		late = end - delay - start[m->written_by + 1];
		if (late > 0) {
			m->stall += late;
			delay += waits ? late : 0;
		}
	}
	for (int i = n; i-- > 0;) {
		struct te__move *m = order[i];

		limit = limit < start[m->in_before] ? limit : start[m->in_before];
		limit -= (double)m->nbytes / (r->read * rest);
		m->read_before = waits ? m->in_before - 1 : group_at(p, limit);
		m->read_before = larger(smaller(m->read_before, m->in_before), least);
	}
	end = 0;
	for (int i = 0; i < n; i++) {
		struct te__move *m = order[i];

		end = (end > start[m->read_before] ? end : start[m->read_before]) +
		      (double)m->nbytes / (r->read * rest);
		if (end > start[m->in_before]) {
			m->stall += end - start[m->in_before];
			end = start[m->in_before];
		}
	}
}

static int by_needed(const void *a, const void *b)
{
	const struct te__move *x = *(struct te__move *const *)a, *y = *(struct te__move *const *)b;

	return x->needed != y->needed ? x->needed - y->needed : y->out_after - x->out_after;
}

int te__moves_schedule(const struct te_plan *p, struct te__move *v, int n)
{
	struct te__move **order = te__malloc(((size_t)n + 1) * sizeof(struct te__move *));

	if (!order)
		return te__no_memory("plan");
	for (int i = 0; i < n; i++)
		order[i] = &v[i];
	qsort(order, (size_t)n, sizeof(struct te__move *), by_needed);
	schedule_out(p, v, n);
	schedule_in(p, order, n, te__moves_sum(v, n));
	if (p->offload->spill)
		schedule_file(p, v, order, n);
	te__free(order);
	return 0;
}
