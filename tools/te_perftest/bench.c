/* bench.c - the device under test: clocks, and samples within a time limit. */
#include "config.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <te/comm.h>
#include <te/errno.h>
#include "libtecore/base/splitmix64.h"

#include "bench.h"
#include "tools/lib/say.h"

/* the longest time that a stream is blocked, and how many such attempts may fail */
#define PLUG_SECONDS 0.2
#define PLUG_TRIES 3

int64_t bench_extent(const struct bench *b, int64_t given, int64_t on_host, int64_t on_gpu)
{
	return given ? given : strcmp(b->dev.backend, "host") ? on_gpu : on_host;
}

static double clock_read_ns(void)
{
	double x[101];
	struct stats s;

	for (int i = 0; i < 101; i++) {
		double from = now_s();

		for (int k = 0; k < 20; k++)
			x[i] = now_s();
		x[i] = (x[i] - from) / 20 * 1e9;
	}
	stats_of(x, 101, &s);
	return s.median;
}

int bench_open(struct bench *b, const struct opts *o)
{
	struct te_ctx_opts c = TE_CTX_OPTS_INIT;
	int r;

	memset(b, 0, sizeof(*b));
	b->o = o;
	b->rng = (uint64_t)o->seed;
	record_begin(&b->rec);
	record_open_list(&b->rec, "rows");
	b->sample = calloc((size_t)o->iters * BENCH_VALUES_MAX, sizeof(*b->sample));
	if (!b->sample)
		return say_failed("out of memory");
	c.backend = o->backend;
	c.device = (int32_t)o->device;
	if (c.device < 0)
		c.device = te_comm_launch_device(o->backend);
	r = te_ctx_create(&c, &b->ctx);
	if (r < 0)
		return say_te(r, "no device");
	b->stream = te_ctx_stream(b->ctx);
	b->dev = (struct te_device_info)TE_DEVICE_INFO_INIT;
	r = te_ctx_device_info(b->ctx, &b->dev);
	for (int i = 0; i < te_backend_count() && r >= 0; i++) {
		b->backend = (struct te_backend_info)TE_BACKEND_INFO_INIT;
		r = te_backend_info(i, &b->backend);
		if (r >= 0 && !strcmp(b->backend.name, te_ctx_backend(b->ctx)))
			break;
	}
	if (r >= 0)
		r = te_event_create(b->ctx, &b->from);
	if (r >= 0)
		r = te_event_create(b->ctx, &b->to);
	if (r < 0)
		return say_te(r, "the device");
	b->clock_read_ns = clock_read_ns();
	b->until = now_s() + o->seconds;
	return STATUS_OK;
}

void bench_close(struct bench *b)
{
	json_decref(b->report ? b->report : b->rec.at[0]);
	free(b->sample);
	te_event_unref(b->from);
	te_event_unref(b->to);
	te_ctx_unref(b->ctx);
}

/* the report's rows */

int bench_row(struct bench *b, int rows_left, int figures)
{
	const double now = now_s();
	const int n = b->nrows;
	char text[80];

	if (n && now > b->until) {
		b->left_out++;
		return 0;
	}
	if (!b->silent && say_on_terminal()) {
		snprintf(text, sizeof(text), "%s: row %d of %d, %.0f of %g s", b->o->test->name,
			 n + 1, n + rows_left, b->o->seconds - fmax(0, b->until - now),
			 b->o->seconds);
		say_line(text);
	}
	if (b->nrows++)
		record_close(&b->rec);
	record_open(&b->rec, NULL);
	b->row_until = now + fmax(0, b->until - now) / rows_left;
	b->figures = figures;
	return 1;
}

void bench_text(struct bench *b, const char *key, const char *value)
{
	record_text(&b->rec, key, value);
}

void bench_int(struct bench *b, const char *key, int64_t value)
{
	record_int(&b->rec, key, value);
}

void bench_num(struct bench *b, const char *key, double value)
{
	record_real(&b->rec, key, value);
}

void bench_stats(struct bench *b, const char *key, const struct stats *s)
{
	if (!s->n) {
		record_text(&b->rec, key, NULL);
		return;
	}
	record_open(&b->rec, key);
	record_real(&b->rec, "median", s->median);
	record_real(&b->rec, "p5", s->p5);
	record_real(&b->rec, "p95", s->p95);
	record_real(&b->rec, "mad", s->mad);
	record_real(&b->rec, "min", s->min);
	record_real(&b->rec, "max", s->max);
	record_int(&b->rec, "samples", (int64_t)s->n);
	record_close(&b->rec);
}

int bench_end(struct bench *b)
{
	b->report = record_end(&b->rec, "the report");
	b->rows = json_object_get(b->report, "rows");
	return b->report ? STATUS_OK : STATUS_FAILED;
}

/* samples */

int bench_series(struct bench *b, bench_fn fn, void *arg, int nvalues, struct stats *ret)
{
	const int64_t iters = b->o->iters;
	double now = now_s(), share = fmax(0, b->row_until - now) / (b->figures--);
	double until = now + share, us[BENCH_VALUES_MAX];
	int64_t n = 0, tries, missed = 0;
	int r = 0;

	/* a quarter of the time at most */
	for (tries = 0; tries < b->o->warmup && r >= 0; tries++) {
		if (tries && now_s() > now + share / 4)
			break;
		r = fn(arg, us);
	}
	for (tries = 0; tries < iters && r >= 0; tries++) {
		if (tries && now_s() > until)
			break;
		r = fn(arg, us);
		if (r == BENCH_NONE && !n && ++missed == PLUG_TRIES)
			break;
		if (r)
			continue;
		for (int i = 0; i < nvalues; i++)
			b->sample[i * iters + n] = us[i];
		n++;
	}
	if (r < 0)
		return say_te(r, "%s", b->o->test->name);
	for (int i = 0; i < nvalues; i++)
		stats_of(b->sample + i * iters, (size_t)n, &ret[i]);
	return STATUS_OK;
}

static int repeat(bench_work work, void *arg, int n)
{
	int r = 0;

	for (int i = 0; i < n && r >= 0; i++)
		r = work(arg);
	return r;
}

int bench_idle(struct bench *b, int r)
{
	int synced = te_stream_sync(b->stream);

	return r < 0 ? r : synced < 0 ? synced : 0;
}

int bench_cpu_us(struct bench *b, bench_work work, void *arg, int n, double *ret_us)
{
	double from;
	int r = te_stream_sync(b->stream);

	if (r < 0)
		return r;
	from = now_s();
	r = repeat(work, arg, n);
	*ret_us = (now_s() - from) / n * 1e6;
	return bench_idle(b, r);
}

/* CPU time of each call */
static int repeat_timed(bench_work work, void *arg, int n, double *ret_cpu_us)
{
	double from = now_s(), now;
	int r = 0;

	for (int i = 0; i < n && r >= 0; i++) {
		r = work(arg);
		now = now_s();
		ret_cpu_us[i] = (now - from) * 1e6;
		from = now;
	}
	return r;
}

/* from event to event; ret_cpu_us: or NULL */
static int queue_span(struct bench *b, bench_work work, void *arg, int n, double *ret_cpu_us)
{
	int r = te_event_record(b->from, b->stream);

	if (r >= 0)
		r = ret_cpu_us ? repeat_timed(work, arg, n, ret_cpu_us) : repeat(work, arg, n);
	return r < 0 ? r : te_event_record(b->to, b->stream);
}

static int read_span(struct bench *b, int n, double *ret_us)
{
	double ms;
	int r = te_event_elapsed_ms(b->from, b->to, &ms);

	if (r >= 0)
		*ret_us = ms * 1e3 / n;
	return r;
}

int bench_span_us(struct bench *b, bench_work work, void *arg, int n, double *ret_us)
{
	int r = te_stream_sync(b->stream);

	if (r >= 0)
		r = bench_idle(b, queue_span(b, work, arg, n, NULL));
	return r < 0 ? r : read_span(b, n, ret_us);
}

/* in stream order: blocks the stream until the plug is opened or its time is over */
static void plug_wait(void *arg)
{
	struct bench *b = arg;
	double until = now_s() + PLUG_SECONDS;

	while (!atomic_load(&b->plug.open)) {
		if (now_s() > until) {
			atomic_store(&b->plug.late, 1);
			return;
		}
		sched_yield();
	}
}

int bench_calls_us(struct bench *b, bench_work work, void *arg, int n, double *ret_cpu_us,
		   double *ret_us)
{
	int r = te_stream_sync(b->stream);

	if (r < 0)
		return r;
	atomic_store(&b->plug.open, 0);
	atomic_store(&b->plug.late, 0);
	r = te_host_call(b->stream, plug_wait, b, 0);
	if (r >= 0)
		r = queue_span(b, work, arg, n, ret_cpu_us);
	atomic_store(&b->plug.open, 1);
	/* the plug belongs to the bench: do not return while it is queued */
	r = bench_idle(b, r);
	if (r >= 0)
		r = read_span(b, n, ret_us);
	return r >= 0 && atomic_load(&b->plug.late) ? BENCH_NONE : r;
}

int bench_device_us(struct bench *b, bench_work work, void *arg, int n, double *ret_us)
{
	return bench_calls_us(b, work, arg, n, NULL, ret_us);
}

int bench_batch(struct bench *b, bench_work work, void *arg, double us, int lo, int hi, int *ret_n)
{
	double one;
	int r = bench_span_us(b, work, arg, 1, &one); /* loads and chooses kernels */

	if (r >= 0)
		r = bench_span_us(b, work, arg, 1, &one);
	if (r < 0)
		return say_te(r, "%s", b->o->test->name);
	*ret_n = one * lo > us ? lo : one * hi < us ? hi : (int)(us / one);
	return STATUS_OK;
}

/* data */

int bench_nsets(const struct bench *b, double nbytes)
{
	/* four times the cache: when a set is used again, none of it is cached */
	double n = ceil(4 * (double)b->dev.l2_nbytes / nbytes);

	if (!strcmp(b->cache, "warm"))
		return 1;
	return n < 2 ? 1 : n > 4096 ? 4096 : (int)n;
}

void bench_random(struct bench *b, void *p, size_t nbytes)
{
	for (size_t i = 0; i < nbytes; i += 8) {
		uint64_t z = te__splitmix64(&b->rng);

		memcpy((char *)p + i, &z, nbytes - i < 8 ? nbytes - i : 8);
	}
}

void bench_normal(struct bench *b, float *x, size_t n)
{
	/* twelve uniform numbers of 16 bits have variance 1 (Irwin-Hall) */
	for (size_t i = 0; i < n; i++) {
		int32_t sum = 0;

		for (int k = 0; k < 3; k++) {
			uint64_t z = te__splitmix64(&b->rng);

			sum += (int32_t)((z & 0xffff) + (z >> 16 & 0xffff) + (z >> 32 & 0xffff) +
					 (z >> 48));
		}
		x[i] = (float)(sum - 6 * 65536 + 6) * 0x1p-16f;
	}
}

int bench_equal(const char *what, const void *got, const void *want, size_t nbytes)
{
	const unsigned char *g = got, *w = want;

	if (!memcmp(got, want, nbytes))
		return STATUS_OK;
	while (*g == *w) {
		g++;
		w++;
	}
	return say_failed("verify: %s: byte %zu is 0x%02x, want 0x%02x", what,
			  (size_t)(g - (const unsigned char *)got), *g, *w);
}
