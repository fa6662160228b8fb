/*
 * signals.c - te_spill_measure_signals(3): the words by which graphs and the I/O thread signal each
 * other, timed with blocks that are kept in memory.
 */
#define TE_LOG_CATEGORY "core/offload"
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include <te/capture.h>
#include <te/spill.h>
#include <te/stream.h>

#include "libtecore/base/private.h"
#include "libtecore/offload/spill_impl.h"
#include "libtecore/tensor/ctx.h"

#define NBYTES 4096
#define REPLAYS 31
/* the I/O thread polls words most rarely 0.1 s after the latest request */
#define IDLE_NS 120000000

enum { START_WRITE, WRITTEN, START_READ, READ_DONE, BARE, NWORDS };

struct signals {
	struct te_ctx *ctx;
	struct te__pinned *arena;
	struct te__spill *spill;
	struct te_stream *stream;
	struct te_recording *write, *pair, *bare;
	struct te_event *from, *to;
	uint64_t before_ns, after_ns; /* host calls of the graph */
};

static void stamp(void *arg)
{
	*(uint64_t *)arg = te__now_ns();
}

static void *word_of(const struct signals *s, int i)
{
	return te__pinned_device_ptr(s->arena, (void *)te__pinned_word(s->arena, (uint32_t)i));
}

/* sets one word and takes another */
static int exchange(const struct signals *s, int set, int take)
{
	int r = te__word_set(s->stream, word_of(s, set), 1);

	return r ? r : te__word_take(s->stream, word_of(s, take));
}

static int queue_write(struct signals *s)
{
	int r = te_host_call(s->stream, stamp, &s->before_ns, 0);

	if (!r)
		r = exchange(s, START_WRITE, WRITTEN);
	return r ? r : te_host_call(s->stream, stamp, &s->after_ns, 0);
}

static int queue_pair(struct signals *s)
{
	int r = exchange(s, START_WRITE, WRITTEN);

	return r ? r : exchange(s, START_READ, READ_DONE);
}

static int queue_bare(struct signals *s)
{
	int r = exchange(s, BARE, BARE);

	return r ? r : exchange(s, BARE, BARE);
}

static int record(struct signals *s, int (*queue)(struct signals *s), struct te_recording **ret)
{
	int r = te_capture_begin(s->stream), end;

	if (r)
		return r;
	r = queue(s);
	end = te_capture_end(s->stream, ret);
	return r ? r : end;
}

static int by_value(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *v, int n)
{
	qsort(v, (size_t)n, sizeof(*v), by_value);
	return v[n / 2];
}

static int replay_us(struct signals *s, struct te_recording *rec, double *ret_us)
{
	double ms = 0;
	int r = te_event_record(s->from, s->stream);

	if (!r)
		r = te_recording_launch(rec, s->stream);
	if (!r)
		r = te_event_record(s->to, s->stream);
	if (!r)
		r = te_stream_sync(s->stream);
	if (!r)
		r = te_event_elapsed_ms(s->from, s->to, &ms);
	*ret_us = ms * 1e3;
	return r;
}

static int time_replays(struct signals *s, struct te_recording *rec, double *ret_us)
{
	double us[REPLAYS];
	int r = 0;

	for (int i = 0; i < REPLAYS && !r; i++)
		r = replay_us(s, rec, &us[i]);
	if (!r)
		*ret_us = median(us, REPLAYS);
	return r;
}

/* n writes, each after a pause */
static int time_writes(struct signals *s, int n, int64_t pause_ns, double *ret_start,
		       double *ret_return)
{
	const struct timespec pause = { 0, (long)pause_ns };
	double start[REPLAYS], back[REPLAYS], us;
	uint64_t begin_ns;
	int r = 0;

	for (int i = 0; i < n && !r; i++) {
		if (pause_ns)
			nanosleep(&pause, NULL);
		r = replay_us(s, s->write, &us);
		pthread_mutex_lock(&s->spill->lock);
		begin_ns = s->spill->group[0].req[TE__SPILL_WRITE].begin_ns;
		pthread_mutex_unlock(&s->spill->lock);
		start[i] = 1e-3 * (double)(int64_t)(begin_ns - s->before_ns);
		back[i] = 1e-3 * (double)(int64_t)(s->after_ns - begin_ns);
	}
	if (r)
		return r;
	*ret_start = median(start, n);
	*ret_return = median(back, n);
	return 0;
}

static int measure(struct signals *s, struct te_spill_signals *ret)
{
	double none;
	int r = time_writes(s, REPLAYS, 0, &ret->start_us, &ret->return_us);

	if (!r)
		r = time_replays(s, s->pair, &ret->pair_us);
	if (!r)
		r = time_replays(s, s->bare, &ret->bare_pair_us);
	if (!r)
		r = time_writes(s, 1, IDLE_NS, &ret->idle_start_us, &none);
	/* the requests that the words started */
	return r ? r : te__spill_error(s->spill, NULL);
}

static int bind(struct signals *s)
{
	void *slot = te__pinned_base(s->arena);
	int r = te__spill_reserve(s->spill, 0, NBYTES);

	if (!r)
		r = te__spill_bind(s->spill, TE__SPILL_WRITE, 0, slot, NBYTES,
				   te__pinned_word(s->arena, START_WRITE),
				   te__pinned_word(s->arena, WRITTEN));
	if (!r)
		r = te__spill_bind(s->spill, TE__SPILL_READ, 0, slot, NBYTES,
				   te__pinned_word(s->arena, START_READ),
				   te__pinned_word(s->arena, READ_DONE));
	if (!r)
		te__spill_arm(s->spill, 1);
	return r;
}

static int create(struct signals *s)
{
	const struct te__spill_opts so = {
		.dir = "memory",
		.quota_nbytes = (uint64_t)1 << 20,
		.ngroups = 1,
		.block_nbytes = NBYTES,
		.engine = TE__SPILL_MEMORY,
	};
	int r = te__pinned_create(s->ctx, NBYTES, &s->arena);

	if (!r)
		r = te__spill_create(s->arena, &so, &s->spill);
	if (!r)
		r = te_stream_create(s->ctx, &s->stream);
	if (!r)
		r = te_event_create(s->ctx, &s->from);
	if (!r)
		r = te_event_create(s->ctx, &s->to);
	return r ? r : bind(s);
}

/* 1: the device has no such words */
static int record_all(struct signals *s)
{
	/* outside a capture first: an operation that is refused would make a capture invalid */
	int r = exchange(s, BARE, BARE);

	if (r == -EOPNOTSUPP)
		return 1;
	if (!r)
		r = record(s, queue_write, &s->write);
	if (!r)
		r = record(s, queue_pair, &s->pair);
	return r ? r : record(s, queue_bare, &s->bare);
}

static void destroy(struct signals *s)
{
	if (s->stream)
		(void)te_stream_sync(s->stream);
	te_recording_unref(s->write);
	te_recording_unref(s->pair);
	te_recording_unref(s->bare);
	te_event_unref(s->from);
	te_event_unref(s->to);
	te_stream_unref(s->stream);
	te__spill_destroy(s->spill);
	te__pinned_destroy(s->arena);
}

int te_spill_measure_signals(struct te_ctx *ctx, struct te_spill_signals *ret_signals)
{
	struct te_spill_signals found = TE_SPILL_SIGNALS_INIT;
	struct signals s = { .ctx = ctx };
	int r = te__sized_check("te_spill_measure_signals", te_spill_signals, ret_signals);

	if (r)
		return r;
	if (!ctx)
		return te__fail(-EINVAL, "te_spill_measure_signals: ctx is NULL");
	r = create(&s);
	if (!r)
		r = record_all(&s);
	if (!r) {
		found.words = 1;
		r = measure(&s, &found);
	} else if (r > 0) {
		te_error_clear();
		r = 0;
	}
	destroy(&s);
	if (!r)
		te__sized_out(te_spill_signals, &found, ret_signals);
	return r;
}
