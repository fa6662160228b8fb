/* schedule.c - te_schedule_*(3): check, parse and print orders of passes, expand them to steps. */
#define TE_LOG_CATEGORY "graph/schedule"
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph_internal.h"

const char *te__graph_pass(enum te_sched_kind kind)
{
	static const char *const name[] = { "forward", "backward", "backward_dw" };

	return name[kind];
}

struct te_schedule {
	_Atomic uint32_t refs;
	struct te_schedule_info info;
	int32_t *nlayers; /* [nchunks] */
	struct te_sched_entry *order;
	struct te_sched_step *step;
};

static const char *const pass[] = { "forward", "backward", "weight gradients" };

/* "-1.5" is the longest for a chunk of one digit */
static void entry_text(const struct te_sched_entry *e, char *dst, size_t nbytes)
{
	/* 64 bits: the chunk may be out of range */
	snprintf(dst, nbytes, "%s%" PRId64 "%s", e->kind == TE_SCHED_F ? "" : "-",
		 (int64_t)e->chunk + 1, e->kind == TE_SCHED_W ? ".5" : "");
}

/* ---- rules ---- */

/* Entries so far, by kind and chunk. A forward follows the forwards of all previous chunks, so the
 * entries that have been checked reach at most as many chunks as there are entries. */
struct visits {
	int32_t *n[3];
	int32_t nchunks;
};

static int32_t seen(const struct visits *v, enum te_sched_kind kind, int32_t chunk)
{
	return chunk < v->nchunks ? v->n[kind][chunk] : 0;
}

static int refuse(const char *fn, const struct te_schedule *s, int32_t i, const char *why)
{
	char text[32];

	entry_text(&s->order[i], text, sizeof(text));
	return te__graph_fail(fn, -TE_EORDER, "entry %" PRId32 " (%s): %s", i + 1, text, why);
}

/* "first" and so on, "21st" */
static const char *ordinal(int32_t n, char *dst, size_t nbytes)
{
	static const char *const word[] = { "first", "second",	"third",  "fourth", "fifth",
					    "sixth", "seventh", "eighth", "ninth",  "tenth" };
	const int teen = n / 10 % 10 == 1;

	if (n >= 1 && n <= 10)
		return word[n - 1];
	snprintf(dst, nbytes, "%" PRId32 "%s", n,
		 n % 10 == 1 && !teen ? "st" :
		 n % 10 == 2 && !teen ? "nd" :
		 n % 10 == 3 && !teen ? "rd" :
					"th");
	return dst;
}

static int check_entry(const char *fn, const struct te_schedule *s, int32_t i,
		       const struct visits *v)
{
	const struct te_sched_entry *e = &s->order[i];
	const int32_t c = e->chunk;
	char why[160], number[24];
	int32_t m;

	if (e->kind < TE_SCHED_F || e->kind > TE_SCHED_W)
		return te__graph_fail(fn, -EINVAL, "entry %" PRId32 " is of kind %d", i + 1,
				      (int)e->kind);
	if (c < 0 || c >= s->info.nchunks) {
		snprintf(why, sizeof(why), "there are %" PRId32 " chunks", s->info.nchunks);
		return refuse(fn, s, i, why);
	}
	m = seen(v, e->kind, c);
	if (m >= s->info.nmicro)
		snprintf(why, sizeof(why),
			 "%s %s of chunk %" PRId32 ", but there %s only %" PRId32 " micro-batch%s",
			 ordinal(m + 1, number, sizeof(number)), pass[e->kind], c + 1,
			 s->info.nmicro == 1 ? "is" : "are", s->info.nmicro,
			 s->info.nmicro == 1 ? "" : "es");
	else if (e->kind == TE_SCHED_F && c > 0 && seen(v, TE_SCHED_F, c - 1) <= m)
		snprintf(why, sizeof(why),
			 "forward of micro-batch %" PRId32 " has not run in chunk %" PRId32, m + 1,
			 c);
	else if (e->kind == TE_SCHED_B && seen(v, TE_SCHED_F, c) <= m)
		snprintf(why, sizeof(why), "forward of micro-batch %" PRId32 " has not run", m + 1);
	else if (e->kind == TE_SCHED_B && c + 1 < s->info.nchunks &&
		 seen(v, TE_SCHED_B, c + 1) <= m)
		snprintf(why, sizeof(why),
			 "backward of micro-batch %" PRId32 " has not run in chunk %" PRId32, m + 1,
			 c + 2);
	else if (e->kind == TE_SCHED_W && seen(v, TE_SCHED_B, c) <= m)
		snprintf(why, sizeof(why), "backward of micro-batch %" PRId32 " has not run",
			 m + 1);
	else
		return 0;
	return refuse(fn, s, i, why);
}

/* every chunk has all its entries */
static int check_end(const char *fn, const struct te_schedule *s, const struct visits *v)
{
	for (int k = 0; k < 3; k++)
		for (int32_t c = 0; c < s->info.nchunks; c++) {
			int32_t want = s->info.nmicro, have = seen(v, (enum te_sched_kind)k, c);

			if (k == TE_SCHED_B && !(s->info.kinds & (1u << TE_SCHED_B)))
				want = 0;
			if (k == TE_SCHED_W && !have)
				want = 0;
			if (have != want)
				return te__graph_fail(fn, -TE_EORDER,
						      "the order ends without %s of chunk %" PRId32
						      ", micro-batch %" PRId32,
						      pass[k], c + 1, have + 1);
		}
	return 0;
}

static int check_order(const char *fn, const struct te_schedule *s)
{
	const int32_t n = s->info.nchunks < s->info.nentries ? s->info.nchunks : s->info.nentries;
	int32_t *count = te__calloc(3 * (size_t)n, sizeof(*count));
	struct visits v;
	int r = 0;

	if (!count)
		return te__no_memory(fn);
	v = (struct visits){ { count, count + n, count + 2 * (size_t)n }, n };
	for (int32_t i = 0; i < s->info.nentries && !r; i++) {
		r = check_entry(fn, s, i, &v);
		if (!r)
			v.n[s->order[i].kind][s->order[i].chunk]++;
	}
	if (!r)
		r = check_end(fn, s, &v);
	te__free(count);
	return r;
}

/* ---- creating ---- */

static int too_many(const char *fn)
{
	return te__graph_fail(fn, -EOVERFLOW, "more than 2^31 steps");
}

static int check_opts(const char *fn, const struct te_schedule_opts *o,
		      struct te_schedule *const *ret)
{
	int64_t layers;

	if (!ret)
		return te__graph_fail(fn, -EINVAL, "ret_schedule is NULL");
	if (o->flags & ~(TE_SCHED_FORWARD_ONLY | TE_SCHED_DELAY_W))
		return te__graph_fail(fn, -EINVAL, "unknown flags 0x%x", (unsigned)o->flags);
	if (o->order ? o->flags != 0 : o->norder != 0)
		return te__graph_fail(fn, -EINVAL, "%s",
				      o->order ? "flags are for the default order" :
						 "norder without an order");
	if (o->flags == (TE_SCHED_FORWARD_ONLY | TE_SCHED_DELAY_W))
		return te__graph_fail(fn, -EINVAL, "weight gradients without backward");
	if (o->nchunks < 1 || o->nmicro < 0 || (!o->order && !o->nmicro) ||
	    (o->order && o->norder < 1))
		return te__graph_fail(fn, -EINVAL,
				      "%" PRId32 " chunks, %" PRId32 " micro-batches, %" PRId32
				      " entries",
				      o->nchunks, o->nmicro, o->norder);
	layers = o->nlayers ? 0 : o->nchunks;
	for (int32_t c = 0; o->nlayers && c < o->nchunks; c++) {
		if (o->nlayers[c] < 1)
			return te__graph_fail(fn, -EINVAL,
					      "chunk %" PRId32 " has %" PRId32 " layers", c + 1,
					      o->nlayers[c]);
		layers += o->nlayers[c];
	}
	/* the steps of a given order are counted after its check */
	if (!o->order && (layers > INT32_MAX || layers * o->nmicro > INT32_MAX / 3))
		return too_many(fn);
	return 0;
}

static void put(struct te_schedule *s, int32_t chunk, enum te_sched_kind kind)
{
	s->order[s->info.nentries++] = (struct te_sched_entry){ chunk, kind };
}

/* append a micro-batch's passes of all chunks, in the direction of the data */
static void put_all(struct te_schedule *s, enum te_sched_kind kind)
{
	for (int32_t c = 0; c < s->info.nchunks; c++)
		put(s, kind == TE_SCHED_F ? c : s->info.nchunks - 1 - c, kind);
}

/* B of all chunks, each followed by its W if delayed */
static void put_backward(struct te_schedule *s, int delayed)
{
	for (int32_t c = s->info.nchunks - 1; c >= 0; c--) {
		put(s, c, TE_SCHED_B);
		if (delayed)
			put(s, c, TE_SCHED_W);
	}
}

static int fill_order(const char *fn, struct te_schedule *s, const struct te_schedule_opts *o)
{
	const size_t n = o->order ? (size_t)o->norder : 3 * (size_t)o->nchunks * (size_t)o->nmicro;

	s->order = te__malloc(n * sizeof(*s->order));
	if (!s->order)
		return te__graph_fail(fn, -ENOMEM, "no memory for %zu entries", n);
	if (o->order) {
		memcpy(s->order, o->order, n * sizeof(*s->order));
		s->info.nentries = o->norder;
		return 0;
	}
	for (int32_t m = 0; m < o->nmicro; m++)
		put_all(s, TE_SCHED_F);
	for (int32_t m = 0; m < o->nmicro && !(o->flags & TE_SCHED_FORWARD_ONLY); m++)
		put_backward(s, !!(o->flags & TE_SCHED_DELAY_W));
	return 0;
}

/* the number of forward entries of the first chunk */
static void count_micro(struct te_schedule *s)
{
	for (int32_t i = 0; i < s->info.nentries; i++)
		s->info.nmicro += s->order[i].kind == TE_SCHED_F && !s->order[i].chunk;
}

static int32_t layers(const struct te_schedule *s, int32_t chunk)
{
	return s->nlayers[chunk];
}

static int unroll(const char *fn, struct te_schedule *s)
{
	const size_t nchunks = (size_t)s->info.nchunks;
	int32_t *count = te__calloc(4 * nchunks, sizeof(*count)), *base;
	int64_t nsteps = 0, ncallables = 0;

	if (!count)
		return te__no_memory(fn);
	base = count + 3 * nchunks;
	for (int32_t c = 0; c < s->info.nchunks; c++) {
		base[c] = (int32_t)ncallables;
		ncallables += (int64_t)layers(s, c) * s->info.nmicro;
	}
	for (int32_t i = 0; i < s->info.nentries; i++)
		nsteps += layers(s, s->order[i].chunk);
	s->info.ncallables = (int32_t)ncallables;
	if (nsteps > INT32_MAX) {
		te__free(count);
		return too_many(fn);
	}
	s->step = te__malloc((size_t)nsteps * sizeof(*s->step));
	if (!s->step) {
		te__free(count);
		return te__graph_fail(fn, -ENOMEM, "no memory for %" PRId64 " steps", nsteps);
	}
	for (int32_t i = 0; i < s->info.nentries; i++) {
		const struct te_sched_entry *e = &s->order[i];
		int32_t n = layers(s, e->chunk), m = count[3 * e->chunk + (int32_t)e->kind]++;

		for (int32_t k = 0; k < n; k++) {
			int32_t l = e->kind == TE_SCHED_F ? k : n - 1 - k;

			s->step[s->info.nsteps++] = (struct te_sched_step){
				.entry = i,
				.kind = e->kind,
				.chunk = e->chunk,
				.micro = m,
				.layer = l,
				.callable = base[e->chunk] + m * n + l,
			};
		}
	}
	te__free(count);
	return 0;
}

static int copy_layers(const char *fn, struct te_schedule *s, const struct te_schedule_opts *o)
{
	s->nlayers = te__malloc((size_t)s->info.nchunks * sizeof(*s->nlayers));
	if (!s->nlayers)
		return te__graph_fail(fn, -ENOMEM, "no memory for %" PRId32 " chunks",
				      s->info.nchunks);
	for (int32_t c = 0; c < s->info.nchunks; c++)
		s->nlayers[c] = o->nlayers ? o->nlayers[c] : 1;
	return 0;
}

static int finish(const char *fn, struct te_schedule *s, const struct te_schedule_opts *o,
		  struct te_schedule **ret_schedule)
{
	int r;

	if (!s->info.nmicro)
		count_micro(s);
	for (int32_t i = 0; i < s->info.nentries; i++)
		if (s->order[i].kind >= TE_SCHED_F && s->order[i].kind <= TE_SCHED_W)
			s->info.kinds |= 1u << s->order[i].kind;
	/* before allocating by nchunks: a valid order has no more chunks than entries */
	r = check_order(fn, s);
	if (!r)
		r = copy_layers(fn, s, o);
	if (!r)
		r = unroll(fn, s);
	if (r) {
		te_schedule_unref(s);
		return r;
	}
	*ret_schedule = s;
	return 0;
}

static struct te_schedule *start(const struct te_schedule_opts *o)
{
	struct te_schedule *s = te__calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	atomic_init(&s->refs, 1);
	s->info.size = sizeof(s->info);
	s->info.nchunks = o->nchunks;
	s->info.nmicro = o->nmicro;
	return s;
}

int te__schedule_create(const char *fn, const struct te_schedule_opts *opts,
			struct te_schedule **ret_schedule)
{
	struct te_schedule *s;
	int r = check_opts(fn, opts, ret_schedule);

	if (r)
		return r;
	s = start(opts);
	if (!s)
		return te__no_memory(fn);
	r = fill_order(fn, s, opts);
	if (r) {
		te_schedule_unref(s);
		return r;
	}
	return finish(fn, s, opts, ret_schedule);
}

int te_schedule_create(const struct te_schedule_opts *opts, struct te_schedule **ret_schedule)
{
	struct te_schedule_opts o = TE_SCHEDULE_OPTS_INIT;
	int r = te__sized_in("te_schedule_create", te_schedule_opts, opts, &o);

	return r ? r : te__schedule_create("te_schedule_create", &o, ret_schedule);
}

/* ---- text ---- */

/* at most nchunks micro-batches are between forward and backward */
static void one_f_one_b(struct te_schedule *s, int delayed)
{
	const int32_t n = s->info.nmicro;
	int32_t lead = s->info.nchunks < n ? s->info.nchunks : n;

	for (int32_t m = 0; m < lead; m++)
		put_all(s, TE_SCHED_F);
	for (int32_t m = 0; m < n; m++) {
		put_all(s, TE_SCHED_B);
		if (m + lead < n)
			put_all(s, TE_SCHED_F);
		if (delayed)
			put_all(s, TE_SCHED_W);
	}
}

/*
 * Megatron's order for virtual stages (core/pipeline_parallel/schedules.py,
 * get_pp_rank_microbatches and convert_schedule_table_to_order) on the one rank of a pipeline of
 * one stage, where groups have one micro-batch: nchunks - 1 forward passes first, then forward and
 * backward passes alternate.
 */
static void interleaved(struct te_schedule *s)
{
	const int32_t n = s->info.nchunks, total = n * s->info.nmicro, lead = n - 1;

	for (int32_t i = 0; i < total + lead; i++) {
		if (i < total)
			put(s, i % n, TE_SCHED_F);
		if (i >= lead)
			put(s, n - 1 - (i - lead) % n, TE_SCHED_B);
	}
}

enum name { NAME_GPIPE, NAME_1F1B, NAME_INTERLEAVED, NAME_ZERO_BUBBLE, NAME_NONE };

static enum name name_of(const char *text)
{
	static const char *const name[] = { "gpipe", "1f1b", "interleaved", "zero-bubble" };
	int i = 0;

	while (i < NAME_NONE && strcmp(text, name[i]))
		i++;
	return (enum name)i;
}

static int named(const char *text, const struct te_schedule_opts *o, struct te_schedule **ret)
{
	const char *fn = "te_schedule_parse";
	const enum name name = name_of(text);
	struct te_schedule *s;
	int r;

	if (!o->nchunks || !o->nmicro)
		return te__fail(-EINVAL,
				"te_schedule_parse: %s needs the number of chunks and of "
				"micro-batches",
				text);
	if (name == NAME_GPIPE)
		return te__schedule_create(fn, o, ret);
	r = check_opts(fn, o, ret);
	if (r)
		return r;
	s = start(o);
	if (s)
		s->order =
			te__malloc(3 * (size_t)o->nchunks * (size_t)o->nmicro * sizeof(*s->order));
	if (!s || !s->order) {
		te_schedule_unref(s);
		return te__no_memory("te_schedule_parse");
	}
	if (name == NAME_INTERLEAVED)
		interleaved(s);
	else
		one_f_one_b(s, name == NAME_ZERO_BUBBLE);
	return finish(fn, s, o, ret);
}

/* parses one entry at *at and advances *at past it */
static int parse_entry(const char **at, struct te_sched_entry *e)
{
	const char *p = *at + (**at == '-');
	const int negative = **at == '-';
	char *end;
	unsigned long c;
	int half;

	if (*p < '0' || *p > '9')
		return 0;
	errno = 0;
	c = strtoul(p, &end, 10);
	half = !strncmp(end, ".5", 2);
	end += 2 * half;
	if (errno || !c || c > INT32_MAX || (half && !negative) || (*end && *end != ','))
		return 0;
	e->chunk = (int32_t)c - 1;
	e->kind = !negative ? TE_SCHED_F : half ? TE_SCHED_W : TE_SCHED_B;
	*at = end;
	return 1;
}

static int parse_entries(const char *text, struct te_schedule_opts *o,
			 struct te_sched_entry **ret_order)
{
	struct te_sched_entry *order;
	size_t most = 1;
	int32_t n = 0, highest = 0;
	const char *p = text;

	for (const char *q = text; *q; q++)
		most += *q == ',';
	order = te__malloc(most * sizeof(*order));
	if (!order)
		return te__fail(-ENOMEM, "te_schedule_parse: no memory for %zu entries", most);
	for (;;) {
		if (!parse_entry(&p, &order[n])) {
			int len = (int)strcspn(p, ",");

			te__free(order);
			return te__fail(-EINVAL,
					"te_schedule_parse: \"%.*s\" is neither an entry "
					"such as 1, -1 or -1.5 nor the name of a schedule",
					len < 64 ? len : 64, p);
		}
		if (order[n].chunk >= highest)
			highest = order[n].chunk + 1;
		n++;
		if (!*p)
			break;
		p++;
	}
	if (!o->nchunks)
		o->nchunks = highest;
	o->order = order;
	o->norder = n;
	*ret_order = order;
	return 0;
}

int te_schedule_parse(const char *text, const struct te_schedule_opts *opts,
		      struct te_schedule **ret_schedule)
{
	struct te_schedule_opts o = TE_SCHEDULE_OPTS_INIT;
	struct te_sched_entry *order = NULL;
	int r;

	if (!text || !ret_schedule)
		return te__fail(-EINVAL, "te_schedule_parse: %s is NULL",
				text ? "ret_schedule" : "text");
	r = opts ? te__sized_in("te_schedule_parse", te_schedule_opts, opts, &o) : 0;
	if (r)
		return r;
	if (!opts)
		o.nchunks = 0;
	if (o.order || o.norder || o.flags || o.nchunks < 0 || o.nmicro < 0)
		return te__fail(-EINVAL, "te_schedule_parse: opts holds more than the numbers of "
					 "chunks, micro-batches and layers");
	if (o.nlayers && !o.nchunks)
		return te__fail(-EINVAL, "te_schedule_parse: nlayers needs nchunks");
	if (name_of(text) != NAME_NONE)
		return named(text, &o, ret_schedule);
	r = parse_entries(text, &o, &order);
	if (r)
		return r;
	r = te__schedule_create("te_schedule_parse", &o, ret_schedule);
	te__free(order);
	return r;
}

int te_schedule_print(const struct te_schedule *schedule, char **ret_text)
{
	size_t most, n = 0;
	char *text;

	if (!schedule || !ret_text)
		return te__fail(-EINVAL, "te_schedule_print: %s is NULL",
				schedule ? "ret_text" : "schedule");
	most = 16 * (size_t)schedule->info.nentries; /* "-2147483648.5," */
	text = te__malloc(most);
	if (!text)
		return te__no_memory("te_schedule_print");
	for (int32_t i = 0; i < schedule->info.nentries; i++) {
		if (i)
			text[n++] = ',';
		entry_text(&schedule->order[i], text + n, most - n);
		n += strlen(text + n);
	}
	*ret_text = te__give(text);
	return 0;
}

/* ---- references and queries ---- */

struct te_schedule *te_schedule_ref(struct te_schedule *schedule)
{
	if (schedule)
		atomic_fetch_add(&schedule->refs, 1);
	return schedule;
}

struct te_schedule *te_schedule_unref(struct te_schedule *schedule)
{
	if (!schedule || atomic_fetch_sub(&schedule->refs, 1) != 1)
		return NULL;
	te__free(schedule->nlayers);
	te__free(schedule->order);
	te__free(schedule->step);
	te__free(schedule);
	return NULL;
}

int te_schedule_info(const struct te_schedule *schedule, struct te_schedule_info *ret_info)
{
	int r = te__sized_check("te_schedule_info", te_schedule_info, ret_info);

	if (r)
		return r;
	if (!schedule)
		return te__fail(-EINVAL, "te_schedule_info: schedule is NULL");
	te__sized_out(te_schedule_info, &schedule->info, ret_info);
	return 0;
}

int te_schedule_step(const struct te_schedule *schedule, int32_t index,
		     struct te_sched_step *ret_step)
{
	if (!schedule || !ret_step || index < 0 || index >= schedule->info.nsteps)
		return te__fail(-EINVAL, "te_schedule_step: step %" PRId32 " of %" PRId32, index,
				schedule ? schedule->info.nsteps : 0);
	*ret_step = schedule->step[index];
	return 0;
}
