/*
 * program.c - see program.h.
 *
 * Each rank has a fixed order of forward and backward passes. A clock on which every pass takes one
 * tick puts weight gradients between them, and gives each message a tick from which both ends can
 * exchange it: the result exists, and the receiver's plan is not in use. All ranks have the
 * messages in one order, by that tick. So a message waits for passes of earlier ticks and for
 * messages before it only, and ranks cannot wait for each other, even if a message is sent only
 * when it is received.
 */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "program.h"

enum { KINDS = 3 };

static const struct row {
	const char *name;
	int all_first, chunks, separate;
} rows[] = {
	{ "gpipe", 1, 0, 0 },
	{ "1f1b", 0, 0, 0 },
	{ "interleaved", 0, 1, 0 },
	{ "zero-bubble", 0, 1, 1 },
};

static const struct row *find(const char *name)
{
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		if (!strcmp(rows[i].name, name))
			return &rows[i];
	return NULL;
}

int program_knows(const char *name)
{
	return find(name) != NULL;
}

int program_has_chunks(const char *name)
{
	return find(name) && find(name)->chunks;
}

/* ---- passes ---- */

struct maker {
	struct program *p;
	const struct row *row;
	int32_t nbase;	   /* forward and backward passes of a rank */
	struct pass *base; /* [nranks][nbase] their order */
	int32_t *end;	   /* [KINDS][parts][nmicro] tick at which a pass has ended; 0: not yet */
	int32_t *begin;	   /* [nranks][npasses] ticks */
	struct message *message;
	int32_t nmessages;
};

static int32_t nparts(const struct program *p)
{
	return p->nranks * p->nchunks;
}

static int32_t part_of(const struct program *p, int32_t rank, int32_t chunk)
{
	return chunk * p->nranks + rank;
}

static int32_t *end_of(const struct maker *k, enum te_sched_kind kind, int32_t part, int32_t micro)
{
	return &k->end[((int32_t)kind * nparts(k->p) + part) * k->p->nmicro + micro];
}

/* the part whose pass of the same kind comes first; -1: there is none */
static int32_t part_before(const struct program *p, enum te_sched_kind kind, int32_t part)
{
	const int32_t before = part + (kind == TE_SCHED_F ? -1 : 1);

	return kind == TE_SCHED_W || before == nparts(p) ? -1 : before;
}

/*
 * Pass i of one kind: N micro-batches of a chunk, then as many of the next chunk; the last group of
 * micro-batches may be smaller. Backward passes have the chunks in reverse order.
 */
static struct pass nth(const struct program *p, enum te_sched_kind kind, int32_t i)
{
	const int32_t group = i / nparts(p), first = group * p->nranks, left = p->nmicro - first;
	const int32_t n = left < p->nranks ? left : p->nranks;
	const int32_t at = i % nparts(p), chunk = at / n;

	return (struct pass){ kind, kind == TE_SCHED_F ? chunk : p->nchunks - 1 - chunk,
			      first + at % n };
}

/* forward passes of a rank before its first backward pass */
static int32_t lead_of(const struct maker *k, int32_t rank)
{
	const struct program *p = k->p;
	const int32_t lead = (p->nchunks - 1) * p->nranks + p->nranks - rank;

	return k->row->all_first || lead > k->nbase / 2 ? k->nbase / 2 : lead;
}

static void order_passes(const struct maker *k, int32_t rank)
{
	struct pass *pass = k->base + rank * k->nbase;
	const int32_t n = k->nbase / 2, lead = lead_of(k, rank);

	for (int32_t i = 0; i < lead; i++)
		*pass++ = nth(k->p, TE_SCHED_F, i);
	for (int32_t i = 0; i < n; i++) {
		*pass++ = nth(k->p, TE_SCHED_B, i);
		if (i + lead < n)
			*pass++ = nth(k->p, TE_SCHED_F, i + lead);
	}
}

/* a rank of the clock: numbers of passes so far */
struct state {
	int32_t nbase, ndone[KINDS], n;
};

/* the pass that a rank begins at a tick; 0: it waits */
static int choose(const struct maker *k, const struct state *s, int32_t rank, int32_t tick,
		  struct pass *ret)
{
	const struct program *p = k->p;
	const struct pass *next = s->nbase < k->nbase ? &k->base[rank * k->nbase + s->nbase] : NULL;
	const int due = k->p->separate && s->ndone[TE_SCHED_W] < s->ndone[TE_SCHED_B];
	int ready = next != NULL;

	if (next) {
		const int32_t before = part_before(p, next->kind, part_of(p, rank, next->chunk));

		if (before >= 0) {
			const int32_t end = *end_of(k, next->kind, before, next->micro);

			ready = end && end <= tick;
		}
		/* plans that wait for W are in use */
		if (due && next->kind == TE_SCHED_F &&
		    s->ndone[TE_SCHED_F] - s->ndone[TE_SCHED_W] >= lead_of(k, 0))
			ready = 0;
	}
	if (ready)
		*ret = *next;
	else if (due)
		*ret = nth(p, TE_SCHED_B, s->ndone[TE_SCHED_W]);
	if (!ready && due)
		ret->kind = TE_SCHED_W;
	return ready || due;
}

/* run the clock; returns 0 if ranks wait for each other */
static int run_clock(const struct maker *k, struct state *s)
{
	const struct program *p = k->p;
	int32_t left = p->nranks * p->npasses, last = 0;

	for (int32_t tick = 1; left && tick <= last + 2; tick++) {
		for (int32_t r = 0; r < p->nranks; r++) {
			struct pass pass;

			if (!choose(k, &s[r], r, tick, &pass))
				continue;
			p->rank[r].pass[s[r].n] = pass;
			k->begin[r * p->npasses + s[r].n++] = tick;
			*end_of(k, pass.kind, part_of(p, r, pass.chunk), pass.micro) = tick + 1;
			s[r].ndone[pass.kind]++;
			s[r].nbase += pass.kind != TE_SCHED_W;
			last = tick;
			left--;
		}
	}
	return !left;
}

/* as many as micro-batches of a chunk are between the begin of forward and the end of their last
 * pass */
static void count_plans(const struct maker *k, int32_t rank)
{
	const struct program *p = k->p;
	const enum te_sched_kind last = k->p->separate ? TE_SCHED_W : TE_SCHED_B;

	for (int32_t c = 0; c < p->nchunks; c++) {
		int32_t n = 0, *most = &p->rank[rank].nplans[c];

		for (int32_t i = 0; i < p->npasses; i++) {
			const struct pass *pass = &p->rank[rank].pass[i];

			if (pass->chunk != c)
				continue;
			n += pass->kind == TE_SCHED_F;
			*most = n > *most ? n : *most;
			n -= pass->kind == last;
		}
	}
}

/* ---- messages ---- */

struct message {
	int32_t tick, made; /* from which it can be exchanged; end of the pass that made it */
	int32_t from, to;   /* ranks */
	struct pass sends, receives;
};

/* the last pass of the micro-batch that used the plan before */
static int32_t plan_is_free(const struct maker *k, int32_t rank, const struct pass *pass)
{
	const struct program *p = k->p;
	const int32_t micro = pass->micro - p->rank[rank].nplans[pass->chunk];
	const enum te_sched_kind last = k->p->separate ? TE_SCHED_W : TE_SCHED_B;

	return micro < 0 ? 0 : *end_of(k, last, part_of(p, rank, pass->chunk), micro);
}

static int by_tick(const void *a, const void *b)
{
	const struct message *x = a, *y = b;
	const int32_t key[][2] = {
		{ x->tick, y->tick },
		{ (int32_t)x->sends.kind, (int32_t)y->sends.kind },
		{ x->made, y->made },
		{ x->from, y->from },
	};

	for (size_t i = 0; i < sizeof(key) / sizeof(key[0]); i++)
		if (key[i][0] != key[i][1])
			return key[i][0] < key[i][1] ? -1 : 1;
	return 0;
}

static void list_messages(struct maker *k)
{
	const struct program *p = k->p;

	for (int32_t r = 0; r < p->nranks; r++) {
		for (int32_t i = 0; i < p->npasses; i++) {
			const struct pass pass = p->rank[r].pass[i];
			const int32_t part = part_before(p, pass.kind, part_of(p, r, pass.chunk));
			struct message m = { .to = r, .receives = pass };
			int32_t free_at = 0;

			if (part < 0)
				continue;
			m.from = part % p->nranks;
			m.sends = (struct pass){ pass.kind, part / p->nranks, pass.micro };
			m.made = *end_of(k, pass.kind, part, pass.micro);
			if (pass.kind == TE_SCHED_F)
				free_at = plan_is_free(k, r, &pass);
			m.tick = m.made > free_at ? m.made : free_at;
			k->message[k->nmessages++] = m;
		}
	}
	qsort(k->message, (size_t)k->nmessages, sizeof(*k->message), by_tick);
}

static struct action *add_action(struct rank_program *r, int32_t pass)
{
	struct action *a = &r->action[r->nactions++];

	*a = (struct action){ .pass = pass, .to = -1, .from = -1 };
	return a;
}

/* One call sends and receives. Without a pass in between that starts both messages as early as the
 * first one of two calls, so it delays nothing */
static void add_message(struct rank_program *r, int32_t rank, const struct message *m)
{
	struct action *a = r->nactions ? &r->action[r->nactions - 1] : NULL;

	if (!a || a->pass >= 0 || (m->from == rank ? a->to : a->from) >= 0)
		a = add_action(r, -1);
	if (m->from == rank) {
		a->to = m->to;
		a->sends = m->sends;
	} else {
		a->from = m->from;
		a->receives = m->receives;
	}
}

static void list_actions(const struct maker *k, int32_t rank)
{
	const int32_t n = k->p->npasses;
	struct rank_program *r = &k->p->rank[rank];
	int32_t i = 0;

	for (int32_t pass = 0; pass <= n; pass++) {
		const int32_t tick = pass < n ? k->begin[rank * n + pass] : INT32_MAX;

		for (; i < k->nmessages && k->message[i].tick <= tick; i++)
			if (k->message[i].from == rank || k->message[i].to == rank)
				add_message(r, rank, &k->message[i]);
		if (pass < n)
			add_action(r, pass);
	}
}

/* ---- creating ---- */

static int allocate(struct maker *k)
{
	struct program *p = k->p;
	const size_t n = (size_t)p->nranks, all = (size_t)p->npasses;

	p->rank = calloc(n, sizeof(*p->rank));
	k->base = calloc(n * (size_t)k->nbase, sizeof(*k->base));
	k->end = calloc(KINDS * (size_t)nparts(p) * (size_t)p->nmicro, sizeof(*k->end));
	k->begin = calloc(n * all, sizeof(*k->begin));
	k->message = calloc(n * all, sizeof(*k->message));
	if (!p->rank || !k->base || !k->end || !k->begin || !k->message)
		return -ENOMEM;
	for (size_t r = 0; r < n; r++) {
		p->rank[r].pass = calloc(all, sizeof(*p->rank[r].pass));
		p->rank[r].action = calloc(3 * all, sizeof(*p->rank[r].action));
		p->rank[r].nplans = calloc((size_t)p->nchunks, sizeof(*p->rank[r].nplans));
		if (!p->rank[r].pass || !p->rank[r].action || !p->rank[r].nplans)
			return -ENOMEM;
	}
	return 0;
}

static int fill(struct maker *k)
{
	struct state *s = calloc((size_t)k->p->nranks, sizeof(*s));
	int done;

	if (!s)
		return -ENOMEM;
	for (int32_t r = 0; r < k->p->nranks; r++)
		order_passes(k, r);
	done = run_clock(k, s);
	free(s);
	if (!done)
		return -EINVAL;
	for (int32_t r = 0; r < k->p->nranks; r++)
		count_plans(k, r);
	list_messages(k);
	for (int32_t r = 0; r < k->p->nranks; r++)
		list_actions(k, r);
	return 0;
}

int program_create(const char *name, int32_t nranks, int32_t nchunks, int32_t nmicro,
		   struct program *ret_p)
{
	struct maker k = { .p = ret_p, .row = find(name) };
	int r;

	*ret_p = (struct program){ .nranks = nranks, .nchunks = nchunks, .nmicro = nmicro };
	if (!k.row || nranks < 2 || nmicro < 1 || nchunks < 1 || (nchunks > 1 && !k.row->chunks))
		return -EINVAL;
	k.nbase = 2 * nchunks * nmicro;
	ret_p->separate = k.row->separate;
	ret_p->npasses = (ret_p->separate ? 3 : 2) * nchunks * nmicro;
	r = allocate(&k);
	if (!r)
		r = fill(&k);
	free(k.base);
	free(k.end);
	free(k.begin);
	free(k.message);
	return r;
}

void program_free(struct program *p)
{
	for (int32_t r = 0; p->rank && r < p->nranks; r++) {
		free(p->rank[r].pass);
		free(p->rank[r].action);
		free(p->rank[r].nplans);
	}
	free(p->rank);
	p->rank = NULL;
}

/* ---- times ---- */

/* 1: the next pass of a rank has run; 0: it waits for another rank */
static int step(const struct program *p, const struct part_times *time, int32_t rank, int32_t next,
		double *now, double *end)
{
	const struct pass pass = p->rank[rank].pass[next];
	const int32_t part = part_of(p, rank, pass.chunk);
	const int32_t before = part_before(p, pass.kind, part);
	double *const of_kind = end + (int32_t)pass.kind * nparts(p) * p->nmicro;
	double begin = now[rank];

	if (before >= 0) {
		if (!(of_kind[before * p->nmicro + pass.micro] > 0))
			return 0;
		begin = fmax(begin, of_kind[before * p->nmicro + pass.micro]);
	}
	now[rank] = begin + fmax(time[part].pass[pass.kind], 1e-9);
	of_kind[part * p->nmicro + pass.micro] = now[rank];
	return 1;
}

double program_span(const struct program *p, const struct part_times *time)
{
	double *now = calloc((size_t)p->nranks, sizeof(*now)), last = 0;
	double *end = calloc(KINDS * (size_t)nparts(p) * (size_t)p->nmicro, sizeof(*end));
	int32_t *next = calloc((size_t)p->nranks, sizeof(*next));
	int more = now && end && next;

	while (more) {
		more = 0;
		for (int32_t r = 0; r < p->nranks; r++)
			while (next[r] < p->npasses && step(p, time, r, next[r], now, end)) {
				next[r]++;
				more = 1;
			}
	}
	if (!now || !end || !next)
		last = -1;
	for (int32_t r = 0; r < p->nranks && last >= 0; r++)
		last = fmax(last, now[r]);
	free(now);
	free(end);
	free(next);
	return last;
}
