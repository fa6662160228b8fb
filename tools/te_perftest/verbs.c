/* verbs.c - te_perftest verbs: messages between two ranks by a transport between nodes. */
#include "config.h"

#include <math.h>
#include <stdlib.h>

#include <te/comm.h>

#include "bench.h"
#include "tools/lib/say.h"

static struct {
	struct option_list bytes;
	char *transport;
	int64_t depth;
} opt;

static const struct option_field options[] = {
	{ "bytes", OPTION_LIST, AT(bytes), "8,64,1K,4K,64K,1M,4M", 0, 1e9, 0, "N,...",
	  "bytes of a message" },
	{ "transport", OPTION_WORD, AT(transport), "verbs", 0, 0, 0, "verbs|tcp",
	  "transport of the messages" },
	{ "depth", OPTION_COUNT, AT(depth), "16", 1, 64, 0, "N",
	  "messages in flight together, for the rate" },
	{ 0 },
};

/* us: room for the samples of a series and its warm-up; depth: 0: one message and its answer */
static int measure(struct bench *b, struct te_comm *comm, int64_t nbytes, int64_t depth, double *us,
		   struct stats *ret)
{
	const struct opts *o = b->o;
	const int r = te_transport_measure(comm, opt.transport, (size_t)nbytes, (int32_t)depth,
					   (int32_t)(o->warmup + o->iters), us);

	if (r < 0)
		return say_te(r, "verbs");
	stats_of(us + o->warmup, (size_t)o->iters, ret);
	return STATUS_OK;
}

static int row(struct bench *b, struct te_comm *comm, int64_t nbytes, int rows_left, double *us)
{
	struct stats one, batch;
	int r = measure(b, comm, nbytes, 0, us, &one);

	if (!r)
		r = measure(b, comm, nbytes, opt.depth, us, &batch);
	b->until = INFINITY; /* ranks measure the same rows */
	if (r)
		return r;
	bench_row(b, rows_left, 1);
	bench_text(b, "transport", opt.transport);
	bench_int(b, "bytes", nbytes);
	bench_int(b, "depth", opt.depth);
	bench_stats(b, "half_round_trip_us", &one);
	bench_num(b, "least_us", one.min);
	bench_num(b, "p99_us", one.p99);
	bench_stats(b, "batch_us", &batch);
	bench_num(b, "bytes_per_s", (double)(nbytes * opt.depth) / batch.median * 1e6);
	return STATUS_OK;
}

static int rows(struct bench *b, struct te_comm *comm)
{
	const size_t n = (size_t)(b->o->warmup + b->o->iters);
	double *us = calloc(n, sizeof(*us));
	int r = us ? STATUS_OK : say_failed("no memory for %zu samples", n);

	for (int i = 0; i < opt.bytes.n && !r; i++)
		r = row(b, comm, opt.bytes.v[i], opt.bytes.n - i, us);
	free(us);
	return r;
}

static int run(struct bench *b)
{
	struct te_comm *comm = NULL;
	int r = te_comm_create(b->ctx, NULL, &comm);

	if (r < 0)
		return say_te(r, "verbs");
	b->silent = te_comm_rank(comm) != 0;
	r = te_comm_nranks(comm) > 1 ? rows(b, comm) :
		say_bad("verbs: there is one rank, expected 2 or more: te_run -n 2 te_perftest "
			"verbs");
	te_comm_unref(comm);
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
	.options = options,
	.values = &opt,
	.columns = columns,
	.run = run,
};
