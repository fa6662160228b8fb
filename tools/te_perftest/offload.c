/*
 * offload.c - te_perftest offload: copies between device and pinned host memory as offload makes
 * them, compared with one plain copy of the same bytes; the part of their time that GEMMs do not
 * hide; and the latency between a graph and the I/O thread of a file.
 */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <te/capture.h>
#include <te/spill.h>

#include "call.h"
#include "tools/lib/say.h"

enum { OUT, IN, NDIRS };
enum { STREAMS, GRAPH, NWAYS };
#define NPASSES 3
#define BUDGET 0.8 /* share of the load's time for copies: the default of plans */

static struct {
	uint32_t way; /* bit i: i of STREAMS and GRAPH */
	int64_t nbytes, group, n;
} opt;

static const struct option_field options[] = {
	{ "bytes", OPTION_COUNT, AT(nbytes), "64M", 1 << 12, 0x1p40, 0, "N",
	  "bytes that are copied in each direction" },
	{ "group", OPTION_COUNT, AT(group), "4M", 1 << 8, 0x1p40, 0, "N", "bytes of a copy" },
	{ "way", OPTION_WORDS, AT(way), "streams,graph", 0, 0, 0, "streams|graph",
	  "copies on a stream of each direction, or the nodes of a graph" },
	{ "n", OPTION_COUNT, AT(n), "0", 0, 1 << 15, 0, "N",
	  "rows and columns of the GEMMs that are the load; 0: 4096, or 192 on the host" },
	{ 0 },
};

static const struct pass {
	const char *name;
	int uses[NDIRS];
} passes[NPASSES] = { { "out", { 1, 0 } }, { "in", { 0, 1 } }, { "both", { 1, 1 } } };
static const char *const way_name[NWAYS] = { "streams", "graph" };

struct offload {
	struct bench *b;
	size_t nbytes, group; /* bytes of all copies in one direction, and of one copy */
	uint8_t *host[NDIRS], *dev[NDIRS];
	struct te_stream *stream[NDIRS];
	struct te_event *point, *done[NDIRS];
	struct call gemm;
	int ngemms;		/* GEMMs of the load */
	const struct pass *pass;
	int way;
	struct te_recording *rec[3]; /* recordings of graphs: copies, load, both */
};

/* ---- the work ---- */

static void *dst_of(const struct offload *o, int dir, size_t at)
{
	return (dir == OUT ? o->host : o->dev)[dir] + at;
}

static const void *src_of(const struct offload *o, int dir, size_t at)
{
	return (dir == OUT ? o->dev : o->host)[dir] + at;
}

/* queue one copy in each direction, each on its stream */
static int plain(const struct offload *o)
{
	int r = 0;

	for (int d = 0; d < NDIRS && r >= 0; d++)
		if (o->pass->uses[d])
			r = te_copy(o->stream[d], dst_of(o, d, 0), src_of(o, d, 0), o->nbytes);
	return r;
}

static size_t group_at(const struct offload *o, size_t at)
{
	return o->nbytes - at < o->group ? o->nbytes - at : o->group;
}

/* copies a group after the work that its pass has queued; later work can wait for it */
static int eager_group(const struct offload *o, int dir, size_t at)
{
	int r = te_event_record(o->point, o->b->stream);

	if (r >= 0)
		r = te_event_wait(o->point, o->stream[dir]);
	if (r >= 0)
		r = te_copy(o->stream[dir], dst_of(o, dir, at), src_of(o, dir, at),
			    group_at(o, at));
	return r < 0 ? r : te_event_record(o->done[dir], o->stream[dir]);
}

static int groups(const struct offload *o, int capturing)
{
	int r = 0;

	for (size_t at = 0; at < o->nbytes && r >= 0; at += o->group)
		for (int d = 0; d < NDIRS && r >= 0; d++) {
			if (!o->pass->uses[d])
				continue;
			r = !capturing ? eager_group(o, d, at) :
					 te_copy(o->b->stream, dst_of(o, d, at), src_of(o, d, at),
						 group_at(o, at));
		}
	return r;
}

static int load(struct offload *o)
{
	int r = 0;

	for (int i = 0; i < o->ngemms && r >= 0; i++)
		r = call_work(&o->gemm);
	return r;
}

/* copies first: they run while the load is queued. A graph has no such order */
enum what { COPIES, LOAD, AT_ONCE, PLAIN };

static int queue(struct offload *o, enum what what, int capturing)
{
	int r = what == COPIES || what == AT_ONCE ? groups(o, capturing) : 0;

	return r < 0 || what == COPIES ? r : load(o);
}

static int record(struct offload *o, enum what what)
{
	struct te_stream *s = o->b->stream;
	int r = te_capture_begin(s), end;

	if (r < 0)
		return r;
	r = te_capture_edges(s, TE_CAPTURE_CONCURRENT | TE_CAPTURE_PDL);
	if (r >= 0)
		r = queue(o, what, 1);
	end = te_capture_end(s, &o->rec[what]);
	return r < 0 ? r : end;
}

static int start(struct offload *o, enum what what)
{
	if (what == PLAIN)
		return plain(o);
	return o->way == GRAPH ? te_recording_launch(o->rec[what], o->b->stream) :
				 queue(o, what, 0);
}

/* ---- samples ---- */

static int time_us(struct offload *o, enum what what, double *ret_us)
{
	int r = te_ctx_sync(o->b->ctx), end;
	double from;

	if (r < 0)
		return r;
	from = now_s();
	r = start(o, what);
	end = te_ctx_sync(o->b->ctx);
	*ret_us = (now_s() - from) * 1e6;
	return r < 0 ? r : end;
}

/* in turn, so that all see the same machine */
static int sample(void *arg, double *ret_us)
{
	static const enum what order[] = { PLAIN, COPIES, LOAD, AT_ONCE };
	int r = 0;

	for (int i = 0; i < 4 && r >= 0; i++)
		r = time_us(arg, order[i], &ret_us[i]);
	return r;
}

/* chooses the number of GEMMs so that copies take BUDGET of their time */
static int size_load(struct offload *o)
{
	double copies = INFINITY, gemm = INFINITY, us, n;
	int r = 0;

	o->ngemms = 1;
	for (int i = 0; i < 4 && r >= 0; i++) {
		r = time_us(o, PLAIN, &us);
		copies = r >= 0 && us < copies ? us : copies;
		us = now_s();
		if (r >= 0)
			r = bench_idle(o->b, load(o));
		us = (now_s() - us) * 1e6;
		gemm = r >= 0 && us < gemm ? us : gemm;
	}
	n = ceil(copies / gemm / BUDGET);
	o->ngemms = n < 4096 ? (int)n : 4096;
	return r;
}

static int row(struct offload *o, int rows_left)
{
	struct bench *b = o->b;
	const int n = o->pass->uses[OUT] + o->pass->uses[IN];
	const double nbytes = n * (double)o->nbytes;
	struct stats us[4];
	double exposed;
	int r, code;

	if (!bench_row(b, rows_left, 1))
		return STATUS_OK;
	code = size_load(o);
	for (int i = COPIES; i <= AT_ONCE && o->way == GRAPH && code >= 0; i++)
		code = record(o, (enum what)i);
	if (code < 0)
		return say_te(code, "offload");
	r = bench_series(b, sample, o, 4, us);
	if (r)
		return r;
	exposed = us[3].median - us[2].median;
	bench_text(b, "pass", o->pass->name);
	bench_text(b, "way", way_name[o->way]);
	bench_int(b, "bytes", (int64_t)o->nbytes);
	bench_int(b, "group_bytes", (int64_t)o->group);
	bench_stats(b, "plain_us", &us[0]);
	bench_stats(b, "copies_us", &us[1]);
	bench_num(b, "plain_bytes_per_s", nbytes / us[0].median * 1e6);
	bench_num(b, "copied_bytes_per_s", nbytes / us[1].median * 1e6);
	bench_num(b, "plain_ratio", us[0].median / us[1].median);
	bench_int(b, "gemms", o->ngemms);
	bench_stats(b, "load_us", &us[2]);
	bench_stats(b, "at_once_us", &us[3]);
	bench_num(b, "budget_ratio", us[1].median / us[2].median);
	bench_num(b, "hidden_ratio", 1 - fmin(1, fmax(0, exposed) / us[1].median));
	bench_num(b, "at_once_ratio", us[3].median / us[2].median);
	return STATUS_OK;
}

/* ---- memory ---- */

static int create(struct offload *o)
{
	struct bench *b = o->b;
	const int64_t n = bench_extent(b, opt.n, 192, 4096);
	int r = te_event_create(b->ctx, &o->point);

	for (int d = 0; d < NDIRS && r >= 0; d++) {
		r = te_stream_create(b->ctx, &o->stream[d]);
		if (r >= 0)
			r = te_event_create(b->ctx, &o->done[d]);
		if (r >= 0)
			r = te_pinned_alloc(b->ctx, o->nbytes, (void **)&o->host[d]);
		if (r >= 0)
			r = te_mem_alloc(b->stream, o->nbytes, (void **)&o->dev[d]);
		if (r >= 0)
			bench_random(b, o->host[d], o->nbytes);
		if (r >= 0)
			r = te_copy(b->stream, o->dev[d], o->host[d], o->nbytes);
	}
	if (r >= 0)
		r = te_ctx_sync(b->ctx);
	return r < 0 ? say_te(r, "offload") : gemm_open(&o->gemm, b, TE_DTYPE_BF16, n);
}

static void drop_recordings(struct offload *o)
{
	for (int i = 0; i < 3; i++)
		o->rec[i] = te_recording_unref(o->rec[i]);
}

static void destroy(struct offload *o)
{
	te_ctx_sync(o->b->ctx);
	drop_recordings(o);
	if (o->gemm.b)
		call_close(&o->gemm);
	for (int d = 0; d < NDIRS; d++) {
		if (o->dev[d])
			te_mem_free(o->b->stream, o->dev[d]);
		if (o->host[d])
			te_pinned_free(o->b->ctx, o->host[d]);
		te_event_unref(o->done[d]);
		te_stream_unref(o->stream[d]);
	}
	te_event_unref(o->point);
}

/* ---- the test ---- */

/* after copies in both directions: each end has the other end's bytes */
static int verify(struct offload *o)
{
	uint8_t *want = malloc(o->nbytes), *got = malloc(o->nbytes);
	int r = want && got ? STATUS_OK : say_bad("--bytes: no memory for %zu bytes", o->nbytes);
	int code = 0;
	char what[64];

	o->ngemms = 1;
	for (int d = 0; d < NDIRS && !r; d++) {
		bench_random(o->b, want, o->nbytes);
		/* source and destination of the copies */
		if (d == OUT) {
			memset(o->host[d], 0xa5, o->nbytes);
			code = te_copy(o->b->stream, o->dev[d], want, o->nbytes);
		} else {
			memcpy(o->host[d], want, o->nbytes);
			code = te_fill(o->b->stream, o->dev[d], 0xa5, o->nbytes);
		}
		if (code >= 0)
			code = te_ctx_sync(o->b->ctx);
		if (code >= 0 && o->way == GRAPH && !o->rec[AT_ONCE])
			code = record(o, AT_ONCE);
		if (code >= 0)
			code = start(o, AT_ONCE);
		if (code >= 0)
			code = te_ctx_sync(o->b->ctx);
		if (code >= 0)
			code = te_copy(o->b->stream, got, dst_of(o, d, 0), o->nbytes);
		code = code < 0 ? code : te_ctx_sync(o->b->ctx);
		snprintf(what, sizeof(what), "copies %s by %s", passes[d].name, way_name[o->way]);
		r = code < 0 ? say_te(code, "verify") :
			       bench_equal(what, got, want, o->nbytes);
	}
	te_ctx_sync(o->b->ctx);
	drop_recordings(o);
	free(want);
	free(got);
	return r;
}

static int run(struct bench *b)
{
	struct offload o = { .b = b, .nbytes = (size_t)opt.nbytes, .group = (size_t)opt.group };
	int left = NPASSES * __builtin_popcount(opt.way), r = create(&o);

	for (int w = 0; w < NWAYS && !r; w++) {
		if (!(opt.way >> w & 1))
			continue;
		o.way = w;
		o.pass = &passes[NPASSES - 1];
		if (b->o->verify)
			r = verify(&o);
		for (int i = 0; i < NPASSES && !r; i++) {
			o.pass = &passes[i];
			r = row(&o, left--);
			te_ctx_sync(b->ctx);
			drop_recordings(&o);
		}
	}
	destroy(&o);
	return r;
}

static const struct column columns[] = {
	{ "pass", "\npass", 0, 0 },
	{ "way", "\nway", 0, 0 },
	{ "plain_bytes_per_s", "plain\nGB/s", 1e-9, 0 },
	{ "copied_bytes_per_s", "copies\nGB/s", 1e-9, 0 },
	{ "plain_ratio", "of plain\n%", 100, 0 },
	{ "copies_us", "copies\nus", 0, 1 },
	{ "load_us", "load\nus", 0, 1 },
	{ "at_once_us", "together\nus", 0, 1 },
	{ "hidden_ratio", "hidden\n%", 100, 0 },
	{ "at_once_ratio", "of load\n%", 100, 0 },
	{ NULL, NULL, 0, 0 },
};

const struct test test_offload = {
	.name = "offload",
	.text = "copies of offload: alone, and under a load",
	.options = options,
	.values = &opt,
	.columns = columns,
	.run = run,
};
