/*
 * verbs.c - te_perftest verbs: messages between two ranks by a transport between nodes, and by the
 * programs of perftest, in turn.
 */
#include "config.h"

#include <math.h>
#include <stdlib.h>

#include <te/comm.h>

#include "bench.h"
#include "ib_write.h"
#include "tools/lib/say.h"

static struct verbs_opts opt;

static const struct option_field options[] = {
	{ "bytes", OPTION_LIST, AT(bytes), "8,64,1K,4K,64K,1M,4M", 0, 1e9, 0, "N,...",
	  "bytes of a message" },
	{ "transport", OPTION_WORD, AT(transport), "verbs", 0, 0, 0, "verbs|tcp",
	  "transport of the messages" },
	{ "depth", OPTION_COUNT, AT(depth), "16", 1, 64, 0, "N",
	  "messages that are sent at once, for the rate" },
	{ "perftest", OPTION_TEXT, AT(perftest), NULL, 0, 0, 0, "HOST",
	  "measure ib_write_lat and ib_write_bw in turn; HOST is the host of rank 1" },
	{ 0 },
};

#define ROUNDS 5 /* with perftest: runs of each program, --iters at most */

enum { LAT, BATCH, NFIGURES };

struct verbs {
	struct comm c;
	struct ib_write w;
	int nrounds;
	double *us; /* times of a series with its warm-up */
	double *sample[NFIGURES]; /* samples of all rounds */
	/* results of perftest: a sample each round */
	double lat[ROUNDS], least[ROUNDS], p99[ROUNDS], bytes_per_s[ROUNDS];
};

/* the samples after the warm-up */
static int measure(struct verbs *v, int64_t nbytes, int figure, int round)
{
	const struct opts *o = v->c.b->o;
	const int32_t depth = figure == LAT ? 0 : (int32_t)opt.depth;
	double *to = v->sample[figure] + (int64_t)round * o->iters;
	const int r = te_transport_measure(v->c.comm, opt.transport, (size_t)nbytes, depth,
					   (int32_t)(o->warmup + o->iters), v->us);

	if (r < 0)
		return say_te(r, "verbs");
	for (int64_t i = 0; i < o->iters; i++)
		to[i] = v->us[o->warmup + i];
	return STATUS_OK;
}

static int measure_perftest(struct verbs *v, int64_t nbytes, int figure, int round)
{
	struct ib_write_lat lat = { 0 };
	int r;

	if (figure == BATCH)
		return ib_write_bw(&v->w, nbytes, &v->bytes_per_s[round]);
	r = ib_write_lat(&v->w, nbytes, &lat);
	v->lat[round] = lat.median_us;
	v->least[round] = lat.least_us;
	v->p99[round] = lat.p99_us;
	return r;
}

static void report_perftest(struct verbs *v, int64_t nbytes, const struct stats *lat,
			    const struct stats *rate, int n)
{
	struct bench *b = v->c.b;
	struct stats least, p99;

	stats_of(v->least, (size_t)n, &least);
	stats_of(v->p99, (size_t)n, &p99);
	bench_row(b, 1, 0);
	bench_text(b, "transport", "perftest");
	bench_int(b, "bytes", nbytes);
	bench_int(b, "depth", opt.depth);
	bench_stats(b, "half_round_trip_us", lat);
	bench_num(b, "least_us", least.min);
	bench_num(b, "p99_us", p99.median);
	bench_num(b, "bytes_per_s", rate->median);
}

static void report(struct verbs *v, int64_t nbytes, int rows_left, int nrounds, int has_perftest)
{
	struct bench *b = v->c.b;
	const size_t n = (size_t)(nrounds * b->o->iters);
	struct stats one, batch, lat = { 0 }, rate = { 0 };
	double bytes_per_s;

	stats_of(v->sample[LAT], n, &one);
	stats_of(v->sample[BATCH], n, &batch);
	bytes_per_s = (double)(nbytes * opt.depth) / batch.median * 1e6;
	bench_row(b, rows_left, 1);
	bench_text(b, "transport", opt.transport);
	bench_int(b, "bytes", nbytes);
	bench_int(b, "depth", opt.depth);
	bench_stats(b, "half_round_trip_us", &one);
	bench_num(b, "least_us", one.min);
	bench_num(b, "p99_us", one.p99);
	bench_stats(b, "batch_us", &batch);
	bench_num(b, "bytes_per_s", bytes_per_s);
	if (!has_perftest)
		return;
	stats_of(v->lat, (size_t)nrounds, &lat);
	stats_of(v->bytes_per_s, (size_t)nrounds, &rate);
	bench_num(b, "perftest_time_ratio", one.median / lat.median);
	bench_num(b, "perftest_rate_ratio", bytes_per_s / rate.median);
	report_perftest(v, nbytes, &lat, &rate, nrounds);
}

/* the order alternates between rounds */
static int row(struct verbs *v, int64_t nbytes, int rows_left)
{
	struct bench *b = v->c.b;
	const int has_perftest = ib_write_takes(&v->w, nbytes);
	const int nrounds = has_perftest ? v->nrounds : 1;
	int r = STATUS_OK;

	for (int round = 0; round < nrounds; round++)
		for (int k = 0; k < 2 * NFIGURES && !r; k++) {
			if ((k + round) % 2 == 0)
				r = measure(v, nbytes, k / 2, round);
			else if (has_perftest)
				r = measure_perftest(v, nbytes, k / 2, round);
		}
	b->until = INFINITY; /* ranks measure the same rows */
	if (!r)
		report(v, nbytes, rows_left, nrounds, has_perftest);
	return r;
}

static int rows(struct verbs *v)
{
	const struct opts *o = v->c.b->o;
	const size_t n = (size_t)(v->nrounds * o->iters);
	int r = ib_write_open(&v->w, &v->c, &opt);

	v->us = calloc((size_t)(o->warmup + o->iters), sizeof(*v->us));
	v->sample[0] = calloc(NFIGURES * n, sizeof(*v->us));
	if (!r && (!v->us || !v->sample[0]))
		r = say_failed("no memory for %zu samples", NFIGURES * n);
	for (int i = 0; i < NFIGURES && !r; i++)
		v->sample[i] = v->sample[0] + (size_t)i * n;
	for (int i = 0; i < opt.bytes.n && !r; i++)
		r = row(v, opt.bytes.v[i], opt.bytes.n - i);
	free(v->sample[0]);
	free(v->us);
	ib_write_close(&v->w);
	return r;
}

static int run(struct bench *b)
{
	struct verbs v = { .c = { .b = b } };
	int r = te_comm_create(b->ctx, NULL, &v.c.comm);

	if (!r)
		r = te_mem_alloc(b->stream, 3 * sizeof(*v.c.word), (void **)&v.c.word);
	if (r < 0) {
		te_comm_unref(v.c.comm);
		return say_te(r, "verbs");
	}
	v.c.rank = te_comm_rank(v.c.comm);
	v.nrounds = !opt.perftest ? 1 : b->o->iters < ROUNDS ? (int)b->o->iters : ROUNDS;
	b->silent = v.c.rank != 0;
	r = te_comm_nranks(v.c.comm) > 1 ? rows(&v) :
		say_bad("verbs: there is one rank, expected 2 or more: te_run -n 2 te_perftest "
			"verbs");
	te_mem_free(b->stream, v.c.word);
	te_comm_unref(v.c.comm);
	return r;
}

static const struct column columns[] = {
	{ "transport", "\ntransport", 0, 0 },
	{ "bytes", "\nbytes", 0, 0 },
	{ "half_round_trip_us", "half round\ntrip us", 0, 1 },
	{ "perftest_time_ratio", "of perf-\ntest %", 100, 0 },
	{ "least_us", "least\nus", 0, 0 },
	{ "p99_us", "p99\nus", 0, 0 },
	{ "depth", "\ndepth", 0, 0 },
	{ "batch_us", "batch\nus", 0, 1 },
	{ "bytes_per_s", "\nGB/s", 1e-9, 0 },
	{ "perftest_rate_ratio", "of perf-\ntest %", 100, 0 },
	{ NULL, NULL, 0, 0 },
};

const struct test test_verbs = {
	.name = "verbs",
	.text = "messages between two ranks by a transport between nodes",
	.options = options,
	.values = &opt,
	.columns = columns,
	.run = run,
};
