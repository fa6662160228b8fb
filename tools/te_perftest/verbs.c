/* verbs.c - te_perftest verbs: messages between two ranks by a transport between nodes. */
#include "config.h"

#include <math.h>
#include <stdlib.h>

#include <te/comm.h>

#include "bench.h"
#include "tools/te_train/say.h"

/* the samples after the warm-up */
static int samples(struct bench *b, struct te_comm *comm, size_t nbytes, int32_t depth, double *us,
		   struct stats *ret)
{
	const int32_t skip = (int32_t)b->o->warmup, n = (int32_t)b->o->iters;
	const int r = te_transport_measure(comm, b->o->transport, nbytes, depth, skip + n, us);

	if (r < 0)
		return say_te(r, "verbs");
	stats_of(us + skip, (size_t)n, ret);
	return STATUS_OK;
}

static int row(struct bench *b, struct te_comm *comm, int64_t nbytes, int rows_left, double *us)
{
	const int32_t depth = (int32_t)b->o->verbs_depth;
	struct stats one, batch;
	int r;

	b->until = fmax(b->until, bench_now() + 1); /* ranks measure the same rows */
	bench_row(b, rows_left, 1);
	r = samples(b, comm, (size_t)nbytes, 0, us, &one);
	if (!r)
		r = samples(b, comm, (size_t)nbytes, depth, us, &batch);
	if (r)
		return r;
	bench_text(b, "transport", b->o->transport);
	bench_int(b, "bytes", nbytes);
	bench_int(b, "depth", depth);
	bench_stats(b, "half_round_trip_us", &one);
	bench_num(b, "least_us", one.min);
	bench_num(b, "p99_us", one.p99);
	bench_stats(b, "batch_us", &batch);
	bench_num(b, "bytes_per_s", (double)nbytes * depth / batch.median * 1e6);
	return STATUS_OK;
}

static int run(struct bench *b)
{
	struct te_comm *comm;
	double *us = calloc((size_t)(b->o->warmup + b->o->iters), sizeof(*us));
	int r = us ? te_comm_create(b->ctx, NULL, &comm) : 0;

	if (!us)
		return say_failed("no memory for %lld samples", (long long)b->o->iters);
	if (r < 0) {
		free(us);
		return say_te(r, "verbs");
	}
	b->silent = te_comm_rank(comm) != 0;
	for (int i = 0; i < b->o->verbs_bytes.n && !r; i++)
		r = row(b, comm, b->o->verbs_bytes.v[i], b->o->verbs_bytes.n - i, us);
	te_comm_unref(comm);
	free(us);
	return r;
}

static const struct column columns[] = {
	{ "transport", "\ntransport", 0, 0 },
	{ "bytes", "\nbytes", 0, 0 },
	{ "half_round_trip_us", "half round\ntrip us", 0, 1 },
	{ "least_us", "least\nus", 0, 0 },
	{ "p99_us", "p99\nus", 0, 0 },
	{ "depth", "\ndepth", 0, 0 },
	{ "batch_us", "batch\nus", 0, 1 },
	{ "bytes_per_s", "\nGB/s", 1e-9, 0 },
	{ NULL, NULL, 0, 0 },
};

const struct test test_verbs = {
	.name = "verbs",
	.text = "messages between two ranks by a transport between nodes",
	.columns = columns,
	.run = run,
};
