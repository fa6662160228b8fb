/* copy.c - te_perftest copy: device to device, compared with the memory's peak bandwidth. */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "copy.h"
#include "tools/lib/say.h"

static struct {
	struct option_list bytes;
	char *cache;
} opt;

static const struct option_field options[] = {
	{ "bytes", OPTION_LIST, AT(bytes), "64K,1M,16M,256M", 1, 0x1p40, 0, "N,...",
	  "bytes of a copy" },
	CACHE_OPTION,
	{ 0 },
};

int copy_work(void *arg)
{
	struct copy *c = arg;
	size_t at = (size_t)c->at * c->stride;

	c->at = (c->at + 1) % c->nsets;
	return te_copy(c->b->stream, c->dst + at, c->src + at, c->nbytes);
}

static int device_us(void *arg, double *ret_us)
{
	struct copy *c = arg;

	return bench_device_us(c->b, copy_work, c, c->batch, ret_us);
}

/* buffer i has the random bytes from i on, so that no two are equal */
static const uint8_t *host_of(const struct copy *c, int i)
{
	return c->host + i;
}

int copy_alloc(struct copy *c)
{
	struct bench *b = c->b;
	int r;

	c->nsets = bench_nsets(b, 2.0 * (double)c->nbytes);
	c->stride = (c->nbytes + 255) & ~(size_t)255;
	c->host = malloc(c->nbytes + (size_t)c->nsets);
	if (!c->host)
		return say_bad("--bytes: no memory for %zu bytes", c->nbytes);
	bench_random(b, c->host, c->nbytes + (size_t)c->nsets);
	r = te_mem_alloc(b->stream, (size_t)c->nsets * c->stride, (void **)&c->src);
	if (r >= 0)
		r = te_mem_alloc(b->stream, (size_t)c->nsets * c->stride, (void **)&c->dst);
	for (int i = 0; i < c->nsets && r >= 0; i++)
		r = te_copy(b->stream, c->src + (size_t)i * c->stride, host_of(c, i), c->nbytes);
	if (r >= 0)
		r = te_stream_sync(b->stream);
	return r < 0 ? say_te(r, "copy") : STATUS_OK;
}

void copy_free(struct copy *c)
{
	if (!c->b) /* the row was left out */
		return;
	te_stream_sync(c->b->stream);
	if (c->src)
		te_mem_free(c->b->stream, c->src);
	if (c->dst)
		te_mem_free(c->b->stream, c->dst);
	free(c->host);
}

static int verify(struct copy *c)
{
	uint8_t *got = malloc(c->nbytes);
	int r = got ? te_fill(c->b->stream, c->dst, 0xa5, (size_t)c->nsets * c->stride) : -ENOMEM;
	char what[64];

	for (int i = 0; i < c->nsets && r >= 0; i++)
		r = copy_work(c);
	for (int i = 0; i < c->nsets && !r; i++) {
		r = te_copy(c->b->stream, got, c->dst + (size_t)i * c->stride, c->nbytes);
		r = bench_idle(c->b, r);
		snprintf(what, sizeof(what), "copy %d of %zu bytes", i, c->nbytes);
		if (!r)
			r = bench_equal(what, got, host_of(c, i), c->nbytes);
	}
	free(got);
	return r < 0 ? say_te(r, "verify") : r;
}

static int measure(struct copy *c, int rows_left)
{
	struct bench *b = c->b;
	double traffic = 2.0 * (double)c->nbytes, peak = b->dev.peak_bandwidth, rate;
	struct stats us;
	int r;

	if (!bench_row(b, rows_left, 1))
		return STATUS_OK;
	r = copy_alloc(c);
	if (!r && b->o->verify)
		r = verify(c);
	if (!r)
		r = bench_batch(b, copy_work, c, 1000, 1, 16, &c->batch);
	if (!r)
		r = bench_series(b, device_us, c, 1, &us);
	if (r)
		return r;
	rate = us.n ? traffic / us.median * 1e6 : NAN;
	bench_int(b, "bytes", (int64_t)c->nbytes);
	bench_int(b, "buffers", 2 * (int64_t)c->nsets);
	bench_int(b, "buffers_bytes", 2 * (int64_t)c->nbytes * c->nsets);
	bench_stats(b, "device_us", &us);
	bench_num(b, "read_and_written_bytes_per_s", rate);
	bench_num(b, "peak_ratio", rate / (peak > 0 ? peak : NAN));
	return STATUS_OK;
}

static int run(struct bench *b)
{
	const struct option_list *bytes = &opt.bytes;
	int r = STATUS_OK;

	b->cache = opt.cache;
	for (int i = 0; i < bytes->n && !r; i++) {
		struct copy c = { .b = b, .nbytes = (size_t)bytes->v[i] };

		r = measure(&c, bytes->n - i);
		copy_free(&c);
	}
	return r;
}

void copy_compare(struct bench *b, double nbytes, const struct stats *us)
{
	double rate = us[0].n ? nbytes / us[0].median * 1e6 : NAN, peak = b->dev.peak_bandwidth;

	bench_int(b, "moved_bytes", (int64_t)nbytes);
	bench_stats(b, "device_us", &us[0]);
	bench_stats(b, "copy_us", &us[1]);
	bench_num(b, "read_and_written_bytes_per_s", rate);
	bench_num(b, "copy_ratio", us[0].n ? us[1].median / us[0].median : NAN);
	bench_num(b, "peak_ratio", rate / (peak > 0 ? peak : NAN));
}

const struct column copy_columns[] = {
	{ "call", "\ncall", 0, 0 },
	{ "op", "\nop", 0, 0 },
	{ "pass", "\npass", 0, 0 },
	{ "recipe", "\nrecipe", 0, 0 },
	{ "copies", "\ncopies", 0, 0 },
	{ "rows", "\nrows", 0, 0 },
	{ "cols", "\ncols", 0, 0 },
	{ "buffers", "\nbuffers", 0, 0 },
	{ "plans", "\nplans", 0, 0 },
	{ "blocks", "\nblocks", 0, 0 },
	{ "launches", "\nlaunches", 0, 0 },
	{ "cpu_us", "CPU\nus", 0, 1 },
	{ "cpu_p99_us", "CPU, p99\nus", 0, 0 },
	{ "moved_bytes", "a call\nMiB", 0x1p-20, 0 },
	{ "device_us", "a call\nus", 0, 1 },
	{ "copy_us", "copy\nus", 0, 1 },
	{ "read_and_written_bytes_per_s", "read + written\nGB/s", 1e-9, 0 },
	{ "copy_ratio", "of copy\n%", 100, 0 },
	{ "peak_ratio", "of peak\n%", 100, 0 },
	{ NULL, NULL, 0, 0 },
};

static const struct column columns[] = {
	{ "bytes", "\nbytes", 0, 0 },
	{ "buffers", "\nbuffers", 0, 0 },
	{ "buffers_bytes", "in all\nMiB", 0x1p-20, 0 },
	{ "device_us", "copy\nus", 0, 1 },
	{ "read_and_written_bytes_per_s", "read + written\nGB/s", 1e-9, 0 },
	{ "peak_ratio", "of peak\n%", 100, 0 },
	{ NULL, NULL, 0, 0 },
};

const struct test test_copy = {
	.name = "copy",
	.text = "device to device, compared with the peak bandwidth of the memory",
	.options = options,
	.values = &opt,
	.columns = columns,
	.run = run,
};
