/* report.c - te_offload_report(3), te_offload_print(3): the plans that share a te_offload. */
#define TE_LOG_CATEGORY "core/offload"
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "libtecore/base/private.h"
#include "libtecore/plan/moves.h"

#define DAY_MS 86400e3

static double copy_seconds(const struct te_offload *o, const struct te__move *v)
{
	return (double)v->nbytes * (1 / o->rates.out + 1 / o->rates.in);
}

static double hidden_of(double copy, double stall)
{
	return copy > stall ? 1 - stall / copy : copy > 0 ? 0 : 1;
}

static void add_plan(const struct te_offload *o, const struct te_plan *p,
		     struct te_offload_report *rep)
{
	const struct te__moves *m = p->moves;

	rep->nplans++;
	rep->ngroups += m->n;
	rep->moved_nbytes += m->nbytes;
	rep->peak_nbytes += p->arena_nbytes;
	rep->plain_nbytes += m->plain_nbytes;
	rep->pass_ms += te__moves_pass_ms(p);
	rep->waited_ms += te__moves_waited_ms(m);
	for (int i = 0; i < m->n; i++) {
		rep->copy_ms += 1e3 * copy_seconds(o, &m->v[i]);
		rep->stall_ms += 1e3 * m->v[i].stall;
	}
}

static void fill_report(const struct te_offload *o, struct te_offload_report *rep)
{
	struct te__spill_stats st;

	*rep = (struct te_offload_report)TE_OFFLOAD_REPORT_INIT;
	rep->pinned_nbytes = o->slots ? te__pinned_held_nbytes(o->slots) : o->pinned_nbytes;
	rep->write_rate = o->rates.write;
	rep->read_rate = o->rates.read;
	if (o->spill) {
		te__spill_stats(o->spill, &st);
		rep->written_nbytes = st.nbytes[TE__SPILL_WRITE];
		rep->read_nbytes = st.nbytes[TE__SPILL_READ];
		rep->write_ms = 1e-6 * (double)st.busy_ns[TE__SPILL_WRITE];
		rep->read_ms = 1e-6 * (double)st.busy_ns[TE__SPILL_READ];
		rep->nerrors = st.nerrors;
	}
	rep->out_rate = o->rates.out;
	rep->in_rate = o->rates.in;
	rep->mem_rate = o->rates.mem;
	rep->flop_rate = o->rates.flop;
	rep->nforwards = o->nforwards;
	rep->ncopies = o->ncopies;
	rep->out_nbytes = o->nbytes_out;
	rep->in_nbytes = o->nbytes_in;
	for (const struct te_plan *p = o->plans; p; p = p->moves->next)
		add_plan(o, p, rep);
	rep->hidden = hidden_of(rep->copy_ms, rep->stall_ms);
	if (o->spill && rep->moved_nbytes)
		rep->drive_days = (double)o->opts.endurance_nbytes / (double)rep->moved_nbytes *
				  rep->pass_ms / DAY_MS;
}

int te_offload_report(struct te_offload *offload, struct te_offload_report *ret_report)
{
	struct te_offload_report rep;
	int r = te__sized_check("te_offload_report", te_offload_report, ret_report);

	if (r)
		return r;
	if (!offload)
		return te__fail(-EINVAL, "te_offload_report: offload is NULL");
	pthread_mutex_lock(&offload->lock);
	fill_report(offload, &rep);
	pthread_mutex_unlock(&offload->lock);
	te__sized_out(te_offload_report, &rep, ret_report);
	return 0;
}

static double mib(uint64_t nbytes)
{
	return (double)nbytes / 1048576.0;
}

static void print_plan(FILE *f, const struct te_offload *o, const struct te_plan *p, int number)
{
	const struct te__moves *m = p->moves;

	fprintf(f, "plan %d: %d groups forward, %d backward; arena %.2f MiB, %.2f MiB if nothing "
		"moves; %.2f MiB move\n", number, p->fwd_groups, p->ngroups - p->fwd_groups,
		mib(p->arena_nbytes), mib(m->plain_nbytes), mib(m->nbytes));
	fprintf(f, "%10s %6s %6s %6s%s %6s %6s %8s%s  %s\n", "MiB", "values", "leaves", "free",
		o->spill ? "  filed  fetch" : "", "back", "read", "hidden",
		o->opts.timed ? "  waited ms" : "", "first value");
	for (int i = 0; i < m->n; i++) {
		const struct te__move *v = &m->v[i];

		fprintf(f, "%10.3f %6d %6d %6d", mib(v->nbytes), v->nvalues, v->out_after,
			v->free_after);
		if (o->spill)
			fprintf(f, " %6d %6d", v->written_by, v->read_before);
		fprintf(f, " %6d %6d %7.1f%%", v->in_before, v->needed,
			100 * hidden_of(copy_seconds(o, v), v->stall));
		if (o->opts.timed)
			fprintf(f, " %10.3f", te__move_waited_ms(v));
		fprintf(f, "  %s\n", v->name);
	}
}

/* bytes in use in each group; buffers that share memory count once. first, last: of nbufs */
static void add_used(const struct te__buf *buf, int nbufs, int ngroups, int *first, int *last,
		     uint64_t *ret)
{
	for (int i = 0; i < nbufs; i++) {
		first[i] = ngroups;
		last[i] = -1;
	}
	for (int i = 0; i < nbufs; i++) {
		int root = i;

		while (buf[root].share >= 0)
			root = buf[root].share;
		if (buf[i].first >= 0 && buf[i].first < first[root])
			first[root] = buf[i].first;
		if (buf[i].first >= 0 && buf[i].last > last[root])
			last[root] = buf[i].last;
	}
	for (int i = 0; i < nbufs; i++)
		for (int t = first[i]; t <= last[i] && t < ngroups; t++)
			ret[t] += buf[i].nbytes;
}

static uint64_t most_of(const uint64_t *v, int first, int end)
{
	uint64_t most = 0;

	for (int t = first; t < end; t++)
		most = v[t] > most ? v[t] : most;
	return most;
}

#define ROWS 24
#define BAR 48

/* plain: memory in use without moves */
static void draw(FILE *f, int ngroups, const uint64_t *used, const uint64_t *plain)
{
	const int rows = ngroups < ROWS ? ngroups : ROWS;
	const uint64_t most = most_of(plain, 0, ngroups);

	fprintf(f, "%13s %10s %10s  in use (#), in addition if nothing moves (.)\n", "groups",
		"MiB", "plain MiB");
	for (int i = 0; i < rows; i++) {
		const int first = i * ngroups / rows, end = (i + 1) * ngroups / rows;
		const uint64_t u = most_of(used, first, end), p = most_of(plain, first, end);
		const int nu = most ? (int)(u * BAR / most) : 0;
		const int np = most ? (int)(p * BAR / most) : 0;

		fprintf(f, "%6d-%-6d %10.3f %10.3f  ", first, end - 1, mib(u), mib(p));
		for (int k = 0; k < nu || k < np; k++)
			fputc(k < nu ? '#' : '.', f);
		fputc('\n', f);
	}
}

static int print_memory(FILE *f, const struct te_plan *p)
{
	const struct te__moves *m = p->moves;
	uint64_t *used = te__calloc(2 * (size_t)p->ngroups + 2, sizeof(*used));
	int *span = te__calloc(2 * (size_t)p->nbufs + 2, sizeof(*span));

	if (used && span) {
		uint64_t *plain = used + p->ngroups;

		add_used(p->buf, p->nbufs, p->ngroups, span, span + p->nbufs, used);
		add_used(m->buf, m->nbufs, p->ngroups, span, span + p->nbufs, plain);
		draw(f, p->ngroups, used, plain);
	}
	te__free(used);
	te__free(span);
	return used && span ? 0 : te__no_memory("te_offload_print");
}

static void print_file(FILE *f, const struct te_offload_report *rep)
{
	fprintf(f, "file: %.2f MiB are written a pass, %.2f TB a day if passes follow each other",
		mib(rep->moved_nbytes),
		rep->pass_ms > 0 ? 1e-12 * (double)rep->moved_nbytes * DAY_MS / rep->pass_ms : 0);
	if (rep->drive_days > 0)
		fprintf(f, ", for %.1f days of the drive's life", rep->drive_days);
	fprintf(f, "\nso far: %.2f MiB written in %.1f ms, %.2f MiB read in %.1f ms, %" PRIu64
		" requests failed\n", mib(rep->written_nbytes), rep->write_ms,
		mib(rep->read_nbytes), rep->read_ms, rep->nerrors);
}

static int print(FILE *f, const void *arg)
{
	const struct te_offload *offload = arg;
	struct te_offload_report rep;
	int number = 0, r = 0;

	fill_report(offload, &rep);
	fprintf(f, "offload: out %.2f GB/s, in %.2f GB/s; kernels %.1f GB/s, %.3f Tflop/s\n",
		1e-9 * rep.out_rate, 1e-9 * rep.in_rate, 1e-9 * rep.mem_rate,
		1e-12 * rep.flop_rate);
	if (offload->spill)
		fprintf(f, "file: writes %.2f GB/s, reads %.2f GB/s\n", 1e-9 * rep.write_rate,
			1e-9 * rep.read_rate);
	for (const struct te_plan *p = offload->plans; p && !r; p = p->moves->next) {
		print_plan(f, offload, p, number++);
		r = print_memory(f, p);
	}
	if (offload->spill)
		print_file(f, &rep);
	fprintf(f, "total: %.2f MiB move in %" PRId32 " groups of %" PRId32 " plans, %.2f MiB "
		"pinned, copies take %.3f ms, passes wait %.3f ms, hidden %.1f%%\n",
		mib(rep.moved_nbytes), rep.ngroups, rep.nplans, mib(rep.pinned_nbytes), rep.copy_ms,
		rep.stall_ms, 100 * rep.hidden);
	return r;
}

int te_offload_print(struct te_offload *offload, char **ret_text)
{
	int r;

	if (!offload || !ret_text)
		return te__fail(-EINVAL, "te_offload_print: %s is NULL",
				offload ? "ret_text" : "offload");
	pthread_mutex_lock(&offload->lock);
	r = te__text("te_offload_print", print, offload, ret_text);
	pthread_mutex_unlock(&offload->lock);
	return r;
}
