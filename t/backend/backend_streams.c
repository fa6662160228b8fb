/* t/backend/backend_streams.c - streams and events. */
#include "config.h"

#include <pthread.h>
#include <time.h>

#include "backend_lib.h"
#include "tt_ctx.h"
#include "tt_gate.h"

/* ---- streams ---- */

BK_CASE(streams);

TEST(streams, work_of_a_stream_runs_in_order)
{
	const int n = 500;
	unsigned char *d = bk_get(DEVICE, (size_t)n), *out = bk_get(PINNED, (size_t)n);

	for (int i = 0; i < n; i++) {
		DO(ops->fill8(a, d, (uint8_t)(i * 7), 1));
		DO(ops->copy(a, out + i, d, 1));
	}
	DO(ops->stream_sync(a));
	for (int i = 0; i < n; i++)
		ck_assert_int_eq(out[i], (uint8_t)(i * 7));
}

TEST(streams, calls_return_before_the_work_is_done)
{
	unsigned char *d = bk_get(DEVICE, 64), *out = bk_get(PINNED, 64);

	tt_poison(out, 64);
	bk_hold_up(a);
	DO(ops->fill8(a, d, 0x11, 64));
	DO(ops->copy(a, out, d, 64));
	tt_sleep_ms(20);
	ck_assert(tt_is_poison(out, 64));
	tt_gate_open_later(60);
	DO(ops->stream_sync(a));
	/* sync returned after the gate was opened and the work after it had run */
	ck_assert(tt_gate_is_open());
	ck_assert_int_eq(out[0], 0x11);
	ck_assert_int_eq(out[63], 0x11);
}

TEST(streams, query_tells_busy_from_idle)
{
	ck_assert_int_eq(ops->stream_query(a), 1);
	bk_hold_up(a);
	ck_assert_int_eq(ops->stream_query(a), 0);
	ck_assert_int_eq(ops->stream_query(b), 1);
	tt_gate_open();
	DO(ops->stream_sync(a));
	ck_assert_int_eq(ops->stream_query(a), 1);
}

TEST(streams, streams_run_concurrently)
{
	unsigned char *d = bk_get(DEVICE, 2), *out = bk_get(PINNED, 2);

	out[0] = out[1] = 0;
	bk_hold_up(a);
	DO(ops->fill8(a, d, 1, 1));
	DO(ops->copy(a, out, d, 1));
	DO(ops->fill8(b, d + 1, 2, 1));
	DO(ops->copy(b, out + 1, d + 1, 1));
	/* a still waits: if b waited for it, the gate would never be opened */
	DO(ops->stream_sync(b));
	ck_assert_int_eq(out[0], 0);
	ck_assert_int_eq(out[1], 2);
	tt_gate_open();
	DO(ops->stream_sync(a));
	ck_assert_int_eq(out[0], 1);
}

/* queues hold 1024 commands on both backends: queueing more blocks, and loses none */
TEST(streams, takes_more_work_than_a_queue_holds)
{
	const int n = 3000;
	uint32_t *d = bk_get(DEVICE, (size_t)n * 4), *out = bk_get(PINNED, (size_t)n * 4);

	bk_hold_up(a);
	tt_gate_open_later(60);
	for (int i = 0; i < n; i++)
		DO(ops->fill32(a, d + i, (uint32_t)i * 2654435761u, 1));
	DO(ops->copy(a, out, d, (size_t)n * 4));
	DO(ops->stream_sync(a));
	for (int i = 0; i < n; i++)
		ck_assert_uint_eq(out[i], (uint32_t)i * 2654435761u);
}

TEST(streams, a_destroyed_stream_finishes_its_work)
{
	unsigned char *d = bk_get(DEVICE, 1), *out = bk_get(PINNED, 1);
	void *s, *e;

	*out = 0;
	DO(ops->event_create(dev, &e));
	DO(ops->stream_create(dev, &s));
	for (int i = 0; i < 100; i++)
		DO(ops->fill8(s, d, (uint8_t)i, 1));
	DO(ops->copy(s, out, d, 1));
	DO(ops->event_record(e, s));
	ops->stream_destroy(s);
	DO(ops->event_sync(e));
	ck_assert_int_eq(*out, 99);
	ck_assert_int_eq(ops->event_query(e), 1);
	ops->event_destroy(e);
}

struct worker {
	pthread_t thread;
	void *stream;
	unsigned char *d, *out;
	int r;
};

/* its own stream, no assertions: those are the test's thread's */
static void *worker(void *arg)
{
	struct worker *w = arg;

	for (int i = 0; !w->r && i < 300; i++) {
		w->r = ops->fill8(w->stream, w->d, (uint8_t)i, 100);
		if (!w->r)
			w->r = ops->copy(w->stream, w->out, w->d, 100);
		if (!w->r && i % 16 == 0)
			w->r = ops->stream_sync(w->stream);
	}
	if (!w->r)
		w->r = ops->stream_sync(w->stream);
	return NULL;
}

TEST(streams, threads_use_streams_of_their_own)
{
	struct worker w[4] = { { 0 } };

	for (int i = 0; i < 4; i++) {
		DO(ops->stream_create(dev, &w[i].stream));
		w[i].d = bk_get(DEVICE, 100);
		w[i].out = bk_get(PINNED, 100);
	}
	for (int i = 0; i < 4; i++)
		ck_assert_int_eq(pthread_create(&w[i].thread, NULL, worker, &w[i]), 0);
	for (int i = 0; i < 4; i++) {
		pthread_join(w[i].thread, NULL);
		ck_assert_int_eq(w[i].r, 0);
		ck_assert_int_eq(w[i].out[99], (uint8_t)299);
		ops->stream_destroy(w[i].stream);
	}
}

/* waits at once for short work so often that the host backend leaves it to who waits */
static void wait_promptly(unsigned char *d)
{
	for (int i = 0; i < 300; i++) {
		DO(ops->fill8(a, d, (uint8_t)i, 1));
		DO(ops->stream_sync(a));
	}
}

TEST(streams, work_without_a_wait_runs)
{
	unsigned char *d = bk_get(DEVICE, 1), *out = bk_get(PINNED, 2);
	int at = 0;

	for (int round = 0; round < 6; round++) {
		wait_promptly(d);
		out[0] = out[1] = 0;
		DO(ops->fill8(a, d, 7, 1));
		DO(ops->copy(a, out, d, 1));
		if (round % 3 == 1)
			DO(bk_note(a, &at, round)); /* wakes the worker */
		if (round % 3 == 2)
			tt_sleep_ms(1);
		DO(ops->copy(a, out + 1, d, 1));
		while (ops->stream_query(a) != 1)
			tt_sleep_ms(1);
		ck_assert_int_eq(out[0], 7);
		ck_assert_int_eq(out[1], 7);
		ck_assert(round % 3 != 1 || at == round);
	}
}

TEST(streams, an_event_does_not_wait_for_later_work)
{
	unsigned char *d = bk_get(DEVICE, 1), *out = bk_get(PINNED, 1);
	void *e;

	DO(ops->event_create(dev, &e));
	wait_promptly(d);
	DO(ops->copy(a, out, d, 1));
	DO(ops->event_record(e, a));
	bk_hold_up(a);
	DO(ops->event_sync(e));
	ck_assert_int_eq(*out, (uint8_t)299);
	ck_assert_int_eq(ops->stream_query(a), 0);
	tt_gate_open();
	DO(ops->stream_sync(a));
	ops->event_destroy(e);
}

/* a stream that others use, too, whose work it waits for by its own events */
static void *sharer(void *arg)
{
	struct worker *w = arg;
	void *e;

	w->r = ops->event_create(dev, &e);
	for (int i = 0; !w->r && i < 500; i++) {
		w->r = ops->fill8(w->stream, w->d, (uint8_t)i, 100);
		if (!w->r)
			w->r = ops->copy(w->stream, w->out, w->d, 100);
		if (!w->r)
			w->r = ops->event_record(e, w->stream);
		if (!w->r)
			w->r = i % 7 ? ops->event_sync(e) : ops->stream_sync(w->stream);
		if (!w->r && w->out[99] != (uint8_t)i)
			w->r = -EBADMSG;
	}
	ops->event_destroy(e);
	return NULL;
}

TEST(streams, threads_wait_for_one_stream)
{
	struct worker w[3] = { { 0 } };

	for (int i = 0; i < 3; i++) {
		w[i].stream = a;
		w[i].d = bk_get(DEVICE, 100);
		w[i].out = bk_get(PINNED, 100);
	}
	for (int i = 0; i < 3; i++)
		ck_assert_int_eq(pthread_create(&w[i].thread, NULL, sharer, &w[i]), 0);
	for (int i = 0; i < 3; i++) {
		pthread_join(w[i].thread, NULL);
		ck_assert_int_eq(w[i].r, 0);
	}
}

/* ---- events ---- */

BK_CASE(events);

TEST(events, a_wait_orders_two_streams)
{
	const size_t n = 1001;
	unsigned char *d = bk_get(DEVICE, n), *out = bk_get(PINNED, n);
	void *e;

	bk_poison(d, n);
	memset(out, 0, n);
	DO(ops->event_create(dev, &e));
	bk_hold_up(a);
	DO(ops->fill8(a, d, 0x42, n));
	DO(ops->event_record(e, a));
	DO(ops->event_wait(e, b));
	DO(ops->copy(b, out, d, n));
	tt_sleep_ms(30);
	ck_assert_int_eq(ops->event_query(e), 0);
	ck_assert_int_eq(ops->stream_query(b), 0);
	ck_assert_int_eq(out[0], 0);
	tt_gate_open();
	/* this waits for b only; the event makes b wait for a */
	DO(ops->stream_sync(b));
	for (size_t i = 0; i < n; i++)
		ck_assert_int_eq(out[i], 0x42);
	ck_assert_int_eq(ops->event_query(e), 1);
	DO(ops->event_sync(e));
	ops->event_destroy(e);
}

TEST(events, an_event_is_reached_after_the_work_before_it)
{
	unsigned char *d = bk_get(DEVICE, 1), *out = bk_get(PINNED, 1);
	void *e;

	*out = 0;
	DO(ops->event_create(dev, &e));
	bk_hold_up(a);
	DO(ops->fill8(a, d, 5, 1));
	DO(ops->copy(a, out, d, 1));
	DO(ops->event_record(e, a));
	tt_gate_open_later(60);
	DO(ops->event_sync(e));
	ck_assert_int_eq(*out, 5);
	ops->event_destroy(e);
}

TEST(events, an_event_never_recorded_is_reached)
{
	double ms = -1;
	void *e, *f;

	DO(ops->event_create(dev, &e));
	DO(ops->event_create(dev, &f));
	ck_assert_int_eq(ops->event_query(e), 1);
	DO(ops->event_sync(e));
	DO(ops->event_wait(e, a));
	DO(ops->stream_sync(a));
	/* but it has no time */
	DO(ops->event_record(f, a));
	DO(ops->event_sync(f));
	fails(ops->event_elapsed_ms(e, f, &ms), -EBUSY, "");
	fails(ops->event_elapsed_ms(f, e, &ms), -EBUSY, "");
	ck_assert(ms == -1);
	ops->event_destroy(e);
	ops->event_destroy(f);
}

/* who waited waits for the record that there was, however the event moves on */
TEST(events, recording_again_moves_an_event)
{
	void *e;

	DO(ops->event_create(dev, &e));
	DO(ops->event_record(e, a));
	DO(ops->event_sync(e));
	DO(ops->event_wait(e, b));
	bk_hold_up(a);
	DO(ops->event_record(e, a));
	ck_assert_int_eq(ops->event_query(e), 0);
	DO(ops->stream_sync(b)); /* the gate is closed: it waited for the first record */
	tt_gate_open();
	DO(ops->event_sync(e));
	ck_assert_int_eq(ops->event_query(e), 1);
	/* and on another stream */
	bk_hold_up(b);
	DO(ops->event_record(e, b));
	DO(ops->stream_sync(a));
	ck_assert_int_eq(ops->event_query(e), 0);
	tt_gate_open();
	DO(ops->event_sync(e));
	ops->event_destroy(e);
}

/* though it is reached last, where its stream is the slower one */
TEST(events, an_older_record_does_not_come_back)
{
	double ms = -1;
	void *e, *f;

	DO(ops->event_create(dev, &e));
	DO(ops->event_create(dev, &f));
	DO(ops->event_record(f, a));
	bk_hold_up(b);
	DO(ops->event_record(e, b));
	DO(ops->event_record(e, a));
	DO(ops->event_sync(e)); /* the gate is closed: this is the record on a */
	tt_gate_open();
	DO(ops->stream_sync(b));
	ck_assert_int_eq(ops->event_query(e), 1);
	DO(ops->event_elapsed_ms(f, e, &ms));
	ck_assert_msg(ms >= 0, "%g ms", ms);
	ops->event_destroy(e);
	ops->event_destroy(f);
}

static void nap(void *arg)
{
	tt_sleep_ms(*(int *)arg);
}

TEST(events, elapsed_time_is_what_passed)
{
	struct timespec t0, t1;
	double ms = -1, back, wall;
	void *e, *f;
	int n = 25;

	DO(ops->event_create(dev, &e));
	DO(ops->event_create(dev, &f));
	clock_gettime(CLOCK_MONOTONIC, &t0);
	DO(ops->event_record(e, a));
	DO(ops->host_call(a, nap, &n, sizeof(n)));
	DO(ops->event_record(f, a));
	DO(ops->stream_sync(a));
	clock_gettime(CLOCK_MONOTONIC, &t1);
	wall = (double)(t1.tv_sec - t0.tv_sec) * 1e3 + (double)(t1.tv_nsec - t0.tv_nsec) * 1e-6;
	DO(ops->event_elapsed_ms(e, f, &ms));
	/* clocks of GPU and CPU differ by far less than a tenth */
	ck_assert_msg(ms >= 0.9 * n && ms <= 1.1 * wall, "%g ms, of %g", ms, wall);
	DO(ops->event_elapsed_ms(f, e, &back));
	ck_assert_msg(back < -0.9 * n && ms + back < 0.01 && ms + back > -0.01, "%g and %g", ms,
		      back);
	DO(ops->event_elapsed_ms(e, e, &back));
	ck_assert(back == 0);
	/* not reached: no time yet */
	back = -1;
	bk_hold_up(a);
	DO(ops->event_record(f, a));
	fails(ops->event_elapsed_ms(e, f, &back), -EBUSY, "");
	ck_assert(back == -1);
	tt_gate_open();
	DO(ops->event_sync(f));
	ops->event_destroy(e);
	ops->event_destroy(f);
}

TEST(events, a_destroyed_event_still_orders)
{
	unsigned char *d = bk_get(DEVICE, 1), *out = bk_get(PINNED, 1);
	void *e;

	*out = 0;
	DO(ops->fill8(a, d, 1, 1));
	DO(ops->stream_sync(a));
	DO(ops->event_create(dev, &e));
	bk_hold_up(a);
	DO(ops->fill8(a, d, 2, 1));
	DO(ops->event_record(e, a));
	DO(ops->event_wait(e, b));
	DO(ops->copy(b, out, d, 1));
	ops->event_destroy(e);
	tt_gate_open();
	DO(ops->stream_sync(b));
	ck_assert_int_eq(*out, 2);
}
