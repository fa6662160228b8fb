/* replay.c - compares queueing work call by call with replaying a recording of it. */
#include "config.h"

#include <math.h>

#include <te/capture.h>

#include "replay.h"
#include "tools/lib/say.h"

void replay_row(struct replay *p)
{
	static const char *const name[REPLAY_EDGES] = {
		[0] = "serial",
		[TE_CAPTURE_CONCURRENT] = "concurrent",
		[TE_CAPTURE_PDL] = "pdl",
		[TE_CAPTURE_CONCURRENT | TE_CAPTURE_PDL] = "all",
	};

	bench_text(p->b, "edges", name[p->edges]);
}

int replay_launch(void *arg)
{
	struct replay *p = arg;

	return te_recording_launch(p->rec, p->b->stream);
}

/*
 * Captures with the device idle, into a new recording or the existing one. Takes the time at the
 * begin of the capture, when all work is recorded, and at the end.
 */
static int record(struct replay *p, int update, double *ret_t)
{
	struct te_stream *s = p->b->stream;
	enum te_update how = TE_UPDATE_INSTANTIATED;
	int r = te_stream_sync(s), end;

	if (!update)
		p->rec = te_recording_unref(p->rec);
	ret_t[0] = now_s();
	if (r >= 0)
		r = te_capture_begin(s);
	if (r < 0)
		return r;
	r = te_capture_edges(s, p->edges);
	if (r >= 0)
		r = p->queue(p->arg);
	ret_t[1] = now_s();
	end = update ? te_capture_update(s, p->rec, &how) : te_capture_end(s, &p->rec);
	ret_t[2] = now_s();
	p->nupdates += update;
	p->nin_place += how == TE_UPDATE_IN_PLACE;
	return r < 0 ? r : end;
}

int replay_record(struct replay *p)
{
	double t[3];

	return record(p, 0, t);
}

int replay_update(struct replay *p)
{
	double t[3];

	return record(p, 1, t);
}

void replay_free(struct replay *p)
{
	p->rec = te_recording_unref(p->rec);
}

static int capture_us(void *arg, double *ret_us)
{
	struct replay *p = arg;
	double t[4];
	int r = record(p, 0, t);

	if (r >= 0)
		r = replay_launch(p);
	t[3] = now_s();
	for (int i = 0; i < 3; i++)
		ret_us[i] = (t[i + 1] - t[i]) * 1e6;
	return bench_idle(p->b, r);
}

static int update_us(void *arg, double *ret_us)
{
	struct replay *p = arg;
	double t[3];
	int r = record(p, 1, t);

	*ret_us = (t[2] - t[1]) * 1e6;
	return r;
}

static int cpu_us(void *arg, double *ret_us)
{
	struct replay *p = arg;
	int r = bench_cpu_us(p->b, replay_launch, p, 1, &ret_us[0]);

	if (r >= 0)
		r = bench_cpu_us(p->b, replay_launch, p, p->launches, &ret_us[1]);
	return r < 0 ? r : bench_cpu_us(p->b, p->queue, p->arg, 1, &ret_us[2]);
}

static int device_us(void *arg, double *ret_us)
{
	struct replay *p = arg;

	return bench_device_us(p->b, replay_launch, p, 1, ret_us);
}

/* alternately, so that clock drift affects both */
static int span_us(void *arg, double *ret_us)
{
	struct replay *p = arg;
	int r = bench_span_us(p->b, replay_launch, p, p->launches, &ret_us[0]);

	return r < 0 ? r : bench_span_us(p->b, p->queue, p->arg, p->launches, &ret_us[1]);
}

int replay_measure(struct replay *p)
{
	struct te_recording_info info = TE_RECORDING_INFO_INIT;
	struct stats capture[3], update, cpu[3], device, span[2];
	struct bench *b = p->b;
	int r = bench_series(b, capture_us, p, 3, capture), code = 0;

	p->nupdates = p->nin_place = 0;
	if (!r)
		r = bench_series(b, update_us, p, 1, &update);
	/* as many launches as take about 0.1 s, 3 to 10 */
	if (!r)
		r = bench_batch(b, replay_launch, p, 1e5, 3, 10, &p->launches);
	if (!r)
		r = bench_series(b, cpu_us, p, 3, cpu);
	if (!r)
		r = bench_series(b, device_us, p, 1, &device);
	if (!r)
		r = bench_series(b, span_us, p, 2, span);
	if (!r)
		code = te_recording_info(p->rec, &info);
	if (r || code < 0)
		return r ? r : say_te(code, "%s", b->o->test->name);
	bench_int(b, "nodes", (int64_t)info.nnodes);
	bench_int(b, "kernel_nodes", (int64_t)info.nkernels);
	bench_int(b, "edges_between", (int64_t)info.nedges);
	bench_stats(b, "capture_us", &capture[0]);
	bench_stats(b, "instantiate_us", &capture[1]);
	bench_stats(b, "first_launch_us", &capture[2]);
	bench_stats(b, "update_us", &update);
	bench_num(b, "updated_in_place_ratio", (double)p->nin_place / (double)p->nupdates);
	bench_stats(b, "launch_us", &cpu[0]);
	bench_int(b, "launches_queued", p->launches);
	bench_stats(b, "launch_queued_us", &cpu[1]);
	bench_stats(b, "eager_cpu_us", &cpu[2]);
	bench_num(b, "eager_cpu_us_per_node", cpu[2].median / (double)info.nnodes);
	bench_num(b, "cpu_ratio", cpu[2].median / cpu[0].median);
	bench_stats(b, "device_us", &device);
	bench_num(b, "device_us_per_node", device.n ? device.median / (double)info.nnodes : NAN);
	bench_stats(b, "replay_us", &span[0]);
	bench_stats(b, "eager_us", &span[1]);
	bench_num(b, "eager_to_replay_ratio", span[1].median / span[0].median);
	return STATUS_OK;
}

const struct column replay_columns[] = {
	{ "kind", "\nkind", 0, 0 },
	{ "recipe", "\nrecipe", 0, 0 },
	{ "edges", "\nedges", 0, 0 },
	{ "nodes", "\nnodes", 0, 0 },
	{ "capture_us", "capture\nus", 0, 0 },
	{ "instantiate_us", "instantiate\nus", 0, 0 },
	{ "update_us", "update\nus", 0, 0 },
	{ "rebind_us", "rebind\nus", 0, 0 },
	{ "launch_us", "launch\nCPU us", 0, 1 },
	{ "launch_queued_us", "queued\nCPU us", 0, 0 },
	{ "eager_cpu_us", "eager\nCPU us", 0, 0 },
	{ "cpu_ratio", "eager /\nlaunch", 0, 0 },
	{ "device_us", "on device\nus", 0, 1 },
	{ "device_us_per_node", "a node\nus", 0, 0 },
	{ "replay_us", "replay\nus", 0, 1 },
	{ "eager_us", "eager\nus", 0, 1 },
	{ "eager_to_replay_ratio", "eager /\nreplay", 0, 0 },
	{ NULL, NULL, 0, 0 },
};
