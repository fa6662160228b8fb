/*
 * t/core/backend_cases.c - every row of struct te__backend_ops, on whichever backend.
 */
#include "config.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <te/ctx.h>
#include <te/dtype.h>
#include <te/errno.h>
#include <te/private.h>
#include <te/stream.h>
#include <te/tensor.h>

#include "backend_cases.h"
#include "libtecore/backend/backend.h"
#include "tt_ctx.h"
#include "tt_gate.h"

#define PAD 64 /* poison on either side of what is written */

static const struct te__backend_ops *ops;
static int is_host;
static void *dev, *a, *b; /* a device and two of its streams */

static struct {
	void *ptr[64];
	int kind[64];
	int n;
} owned;

enum place { DEVICE, PINNED, PAGEABLE, NPLACES };

static void gate_close(void *stream)
{
	tt_gate_close();
	DO(ops->host_call(stream, tt_gate_wait, NULL, 0));
}

/* ---- memory that the teardown gives back ---- */

static void *get(enum place where, size_t nbytes)
{
	void *p = NULL;

	ck_assert_int_lt(owned.n, (int)TT_LEN(owned.ptr));
	if (where == DEVICE) {
		DO(ops->mem_alloc(a, nbytes, &p));
		DO(ops->stream_sync(a)); /* so that b may use it */
	} else if (where == PINNED) {
		DO(ops->pinned_alloc(dev, nbytes, &p));
	} else {
		p = malloc(nbytes);
	}
	ck_assert_ptr_nonnull(p);
	owned.kind[owned.n] = where;
	owned.ptr[owned.n++] = p;
	return p;
}

static void give_back(void)
{
	while (owned.n) {
		void *p = owned.ptr[--owned.n];

		if (owned.kind[owned.n] == DEVICE)
			DO(ops->mem_free(a, p));
		else if (owned.kind[owned.n] == PINNED)
			DO(ops->pinned_free(dev, p));
		else
			free(p);
	}
}

static void setup(void)
{
	ops = te__backend_by_name(backend);
	is_host = !strcmp(backend, "host");
	dev = a = b = NULL;
	tt_gate_setup();
	te_error_clear();
	DO(ops->open(0, &dev));
	DO(ops->stream_create(dev, &a));
	DO(ops->stream_create(dev, &b));
}

static void teardown(void)
{
	tt_gate_open();
	/* a test that failed may leave a capture behind */
	ops->stream_destroy(b);
	if (ops->capture_active(a)) {
		void *graph;

		if (!ops->capture_end(a, &graph))
			ops->graph_destroy(graph);
	}
	(void)ops->stream_sync(a);
	give_back();
	ops->stream_destroy(a);
	ops->close(dev);
	tt_gate_teardown();
}

/* between any memory and memory that the CPU sees, now */
static void move(void *dst, const void *src, size_t n)
{
	DO(ops->copy(a, dst, src, n));
	DO(ops->stream_sync(a));
}

static void poison(void *p, size_t n)
{
	void *t = malloc(n);

	tt_poison(t, n);
	move(p, t, n);
	free(t);
}

static void check_bytes(const void *p, const void *want, size_t n, const char *what)
{
	unsigned char *got = malloc(n);
	size_t i = 0;

	move(got, p, n);
	while (i < n && got[i] == ((const unsigned char *)want)[i])
		i++;
	ck_assert_msg(i == n, "%s: byte %zu of %zu is 0x%x, not 0x%x", what, i, n, got[i],
		      ((const unsigned char *)want)[i]);
	free(got);
}

static void check_filled(const void *p, int value, size_t n, const char *what)
{
	unsigned char *want = malloc(n);

	memset(want, value, n);
	check_bytes(p, want, n, what);
	free(want);
}

/* ---- devices ---- */

START_TEST(describes_its_device)
{
	struct te_backend_info i = TE_BACKEND_INFO_INIT;
	struct te_device_info d = TE_DEVICE_INFO_INIT;

	DO(ops->probe(&i));
	ck_assert_int_ge(i.ndevices, 1);
	ck_assert_str_eq(i.reason, "");
	DO(ops->device_info(0, &d));
	ck_assert_str_ne(d.name, "");
	ck_assert_int_eq(d.usable, 1);
	ck_assert_str_eq(d.reason, "");
	/* a CPU has no compute capability */
	ck_assert_int_eq(d.cc_major, is_host ? 0 : 9);
	ck_assert_int_eq(d.cc_minor, 0);
	ck_assert_int_ge(d.nprocs, 1);
	ck_assert_uint_gt(d.mem_total_nbytes, 0);
	ck_assert_uint_le(d.mem_free_nbytes, d.mem_total_nbytes);
	/* rates are known of Hopper GPUs only */
	ck_assert_int_eq(d.peak_fp8_flops > 0, !is_host);
	ck_assert_int_eq(d.peak_bandwidth > 0, !is_host);
}
END_TEST

START_TEST(refuses_a_device_that_is_not_there)
{
	struct te_backend_info i = TE_BACKEND_INFO_INIT;
	struct te_device_info d = TE_DEVICE_INFO_INIT;
	int bad[3] = { -1, 0, INT_MAX };
	void *p = &i;
	char text[16];

	DO(ops->probe(&i));
	bad[1] = i.ndevices;
	for (size_t k = 0; k < TT_LEN(bad); k++) {
		snprintf(text, sizeof(text), "device %d", bad[k]);
		ck_assert_int_eq(ops->device_info(bad[k], &d), -EINVAL);
		tt_said(text);
		te_error_clear();
		ck_assert_int_eq(ops->open(bad[k], &p), -ENODEV);
		tt_said(text);
		te_error_clear();
	}
	ck_assert_ptr_eq(p, &i);
	ck_assert_str_eq(d.name, "");
}
END_TEST

START_TEST(opens_a_device_twice)
{
	void *d, *s, *p;

	DO(ops->open(0, &d));
	DO(ops->stream_create(d, &s));
	DO(ops->mem_alloc(s, 1000, &p));
	DO(ops->fill8(s, p, 0x3c, 1000));
	DO(ops->stream_sync(s));
	check_filled(p, 0x3c, 1000, "memory of the other handle");
	DO(ops->mem_free(s, p));
	ops->stream_destroy(s);
	ops->close(d);
	/* the first one stays as it was */
	p = get(DEVICE, 100);
	DO(ops->fill8(a, p, 1, 100));
	check_filled(p, 1, 100, "memory of the first handle");
}
END_TEST

/* memory that the device holds for us, once what was queued has been given back */
static struct te__mem_held held(void)
{
	struct te__mem_held h;

	DO(ops->stream_sync(a));
	DO(ops->mem_held(dev, &h));
	ck_assert_uint_le(h.used_nbytes, h.peak_nbytes);
	ck_assert_uint_le(h.workspace_nbytes, h.used_nbytes);
	return h;
}

static void check_same_held(uint64_t before, const char *what)
{
	uint64_t now = held().used_nbytes;

	ck_assert_msg(now == before, "%s: %llu bytes were held, now %llu", what,
		      (unsigned long long)before, (unsigned long long)now);
}

START_TEST(counts_its_memory)
{
	const size_t n = (8 << 20) + 13;
	struct te__mem_held h;
	uint64_t before, left, total;
	void *p;

	DO(ops->mem_alloc(a, n, &p));
	DO(ops->mem_free(a, p));
	before = held().used_nbytes;
	DO(ops->mem_alloc(a, n, &p));
	h = held();
	ck_assert_uint_ge(h.used_nbytes, before + n);
	ck_assert_uint_lt(h.used_nbytes, before + n + (2 << 20));
	/* other users of a GPU may come and go: what is free is not compared */
	DO(ops->dev_mem(dev, &left, &total));
	ck_assert_uint_gt(left, 0);
	ck_assert_uint_le(left + n, total);
	DO(ops->mem_free(a, p));
	check_same_held(before, "alloc and free");
	ck_assert_uint_ge(held().peak_nbytes, h.used_nbytes);
}
END_TEST

/* the host has no native stream */
START_TEST(shows_native_streams)
{
	if (is_host) {
		ck_assert_ptr_null(ops->stream_native(a));
		return;
	}
	ck_assert_ptr_nonnull(ops->stream_native(a));
	ck_assert_ptr_ne(ops->stream_native(a), ops->stream_native(b));
}
END_TEST

/* ---- memory ---- */

#define NBLOCKS 24

START_TEST(allocations_are_aligned_and_apart)
{
	unsigned char *p[NBLOCKS];
	size_t n[NBLOCKS];

	for (int i = 0; i < NBLOCKS; i++) {
		n[i] = (size_t)tt_rand_int(1, i % 2 ? 300 : 100000);
		p[i] = get(DEVICE, n[i]);
		ck_assert_uint_eq((uintptr_t)p[i] % 256, 0);
		DO(ops->fill8(a, p[i], (uint8_t)(i + 1), n[i]));
	}
	for (int i = 0; i < NBLOCKS; i++)
		check_filled(p[i], i + 1, n[i], "a block");
}
END_TEST

/* more than there is in all: what is queued to be freed counts as free */
START_TEST(memory_comes_and_goes_in_stream_order)
{
	const size_t n = (5 << 20) + 3;
	unsigned char *out = get(PINNED, 40);
	void *p;

	for (int i = 0; i < 40; i++) {
		DO(ops->mem_alloc(a, n, &p));
		DO(ops->fill8(a, p, (uint8_t)i, n));
		DO(ops->copy(a, out + i, (char *)p + n - 1, 1));
		DO(ops->mem_free(a, p));
	}
	DO(ops->stream_sync(a));
	for (int i = 0; i < 40; i++)
		ck_assert_int_eq(out[i], i);
}
END_TEST

START_TEST(too_much_is_refused_with_the_sizes)
{
	uint64_t left, total, before = held().used_nbytes;
	void *p = &total;
	char text[32];
	size_t n[2];

	DO(ops->dev_mem(dev, &left, &total));
	n[0] = (size_t)total + 1;
	n[1] = (size_t)(total + total / 2);
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(ops->mem_alloc(a, n[i], &p), -ENOMEM);
		snprintf(text, sizeof(text), "%zu bytes", n[i]);
		tt_said(text);
		snprintf(text, sizeof(text), "%llu", (unsigned long long)total);
		tt_said(text);
		ck_assert_ptr_eq(p, &total);
		te_error_clear();
	}
	check_same_held(before, "a refused allocation");
	/* the stream is none the worse for it */
	p = get(DEVICE, 1001);
	DO(ops->fill8(a, p, 0x77, 1001));
	check_filled(p, 0x77, 1001, "memory after a refusal");
}
END_TEST

START_TEST(pinned_memory_is_the_cpus)
{
	const size_t n = 12345;
	unsigned char *p = get(PINNED, n), *q = get(PINNED, 1), *d = get(DEVICE, n);
	unsigned char *want = get(PAGEABLE, n);

	tt_fill_bytes(want, n);
	memcpy(p, want, n);
	*q = 9;
	DO(ops->copy(a, d, p, n));
	DO(ops->stream_sync(a));
	memset(p, 0, n);
	DO(ops->copy(a, p, d, n));
	DO(ops->stream_sync(a));
	ck_assert_int_eq(memcmp(p, want, n), 0);
	ck_assert_int_eq(*q, 9);
}
END_TEST

/*
 * More than an address space holds. The driver may call such a size invalid rather than too
 * much: that it is refused with a sentence is what both promise.
 */
START_TEST(too_much_pinned_memory_is_refused)
{
	void *p = &p;
	int r = ops->pinned_alloc(dev, (size_t)PTRDIFF_MAX - 4096, &p);

	ck_assert_msg(r == -ENOMEM || (!is_host && r == -TE_ECUDA), "%d", r);
	ck_assert_str_ne(te_error_detail(), "");
	ck_assert_ptr_eq(p, &p);
	p = get(PINNED, 3);
	memset(p, 1, 3);
}
END_TEST

/* ---- streams ---- */

START_TEST(work_of_a_stream_runs_in_order)
{
	const int n = 500;
	unsigned char *d = get(DEVICE, (size_t)n), *out = get(PINNED, (size_t)n);

	for (int i = 0; i < n; i++) {
		DO(ops->fill8(a, d, (uint8_t)(i * 7), 1));
		DO(ops->copy(a, out + i, d, 1));
	}
	DO(ops->stream_sync(a));
	for (int i = 0; i < n; i++)
		ck_assert_int_eq(out[i], (uint8_t)(i * 7));
}
END_TEST

START_TEST(calls_return_before_the_work_is_done)
{
	unsigned char *d = get(DEVICE, 64), *out = get(PINNED, 64);

	tt_poison(out, 64);
	gate_close(a);
	DO(ops->fill8(a, d, 0x11, 64));
	DO(ops->copy(a, out, d, 64));
	tt_sleep_ms(20);
	ck_assert(tt_is_poison(out, 64));
	tt_gate_open_later(60);
	DO(ops->stream_sync(a));
	/* sync came back after the gate was opened, and after what stood behind it */
	ck_assert(tt_gate_is_open());
	ck_assert_int_eq(out[0], 0x11);
	ck_assert_int_eq(out[63], 0x11);
}
END_TEST

START_TEST(query_tells_busy_from_idle)
{
	ck_assert_int_eq(ops->stream_query(a), 1);
	gate_close(a);
	ck_assert_int_eq(ops->stream_query(a), 0);
	ck_assert_int_eq(ops->stream_query(b), 1);
	tt_gate_open();
	DO(ops->stream_sync(a));
	ck_assert_int_eq(ops->stream_query(a), 1);
}
END_TEST

START_TEST(streams_run_beside_each_other)
{
	unsigned char *d = get(DEVICE, 2), *out = get(PINNED, 2);

	out[0] = out[1] = 0;
	gate_close(a);
	DO(ops->fill8(a, d, 1, 1));
	DO(ops->copy(a, out, d, 1));
	DO(ops->fill8(b, d + 1, 2, 1));
	DO(ops->copy(b, out + 1, d + 1, 1));
	/* a waits still: would b wait for it, nobody would open the gate */
	DO(ops->stream_sync(b));
	ck_assert_int_eq(out[0], 0);
	ck_assert_int_eq(out[1], 2);
	tt_gate_open();
	DO(ops->stream_sync(a));
	ck_assert_int_eq(out[0], 1);
}
END_TEST

/* queues are of 1024 commands on both backends: who queues more waits, and loses none */
START_TEST(takes_more_work_than_a_queue_holds)
{
	const int n = 3000;
	uint32_t *d = get(DEVICE, (size_t)n * 4), *out = get(PINNED, (size_t)n * 4);

	gate_close(a);
	tt_gate_open_later(60);
	for (int i = 0; i < n; i++)
		DO(ops->fill32(a, d + i, (uint32_t)i * 2654435761u, 1));
	DO(ops->copy(a, out, d, (size_t)n * 4));
	DO(ops->stream_sync(a));
	for (int i = 0; i < n; i++)
		ck_assert_uint_eq(out[i], (uint32_t)i * 2654435761u);
}
END_TEST

START_TEST(a_destroyed_stream_finishes_its_work)
{
	unsigned char *d = get(DEVICE, 1), *out = get(PINNED, 1);
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
END_TEST

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

START_TEST(threads_use_streams_of_their_own)
{
	struct worker w[4] = { { 0 } };

	for (int i = 0; i < 4; i++) {
		DO(ops->stream_create(dev, &w[i].stream));
		w[i].d = get(DEVICE, 100);
		w[i].out = get(PINNED, 100);
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
END_TEST

/* ---- events ---- */

START_TEST(a_wait_orders_two_streams)
{
	const size_t n = 1001;
	unsigned char *d = get(DEVICE, n), *out = get(PINNED, n);
	void *e;

	poison(d, n);
	memset(out, 0, n);
	DO(ops->event_create(dev, &e));
	gate_close(a);
	DO(ops->fill8(a, d, 0x42, n));
	DO(ops->event_record(e, a));
	DO(ops->event_wait(e, b));
	DO(ops->copy(b, out, d, n));
	tt_sleep_ms(30);
	ck_assert_int_eq(ops->event_query(e), 0);
	ck_assert_int_eq(ops->stream_query(b), 0);
	ck_assert_int_eq(out[0], 0);
	tt_gate_open();
	/* b alone is waited for: that a has come so far is the event's doing */
	DO(ops->stream_sync(b));
	for (size_t i = 0; i < n; i++)
		ck_assert_int_eq(out[i], 0x42);
	ck_assert_int_eq(ops->event_query(e), 1);
	DO(ops->event_sync(e));
	ops->event_destroy(e);
}
END_TEST

START_TEST(an_event_is_reached_after_the_work_before_it)
{
	unsigned char *d = get(DEVICE, 1), *out = get(PINNED, 1);
	void *e;

	*out = 0;
	DO(ops->event_create(dev, &e));
	gate_close(a);
	DO(ops->fill8(a, d, 5, 1));
	DO(ops->copy(a, out, d, 1));
	DO(ops->event_record(e, a));
	tt_gate_open_later(60);
	DO(ops->event_sync(e));
	ck_assert_int_eq(*out, 5);
	ops->event_destroy(e);
}
END_TEST

START_TEST(an_event_never_recorded_is_reached)
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
END_TEST

/* who waited waits for the record that there was, however the event moves on */
START_TEST(recording_again_moves_an_event)
{
	void *e;

	DO(ops->event_create(dev, &e));
	DO(ops->event_record(e, a));
	DO(ops->event_sync(e));
	DO(ops->event_wait(e, b));
	gate_close(a);
	DO(ops->event_record(e, a));
	ck_assert_int_eq(ops->event_query(e), 0);
	DO(ops->stream_sync(b)); /* the gate is closed: it waited for the first record */
	tt_gate_open();
	DO(ops->event_sync(e));
	ck_assert_int_eq(ops->event_query(e), 1);
	/* and on another stream */
	gate_close(b);
	DO(ops->event_record(e, b));
	DO(ops->stream_sync(a));
	ck_assert_int_eq(ops->event_query(e), 0);
	tt_gate_open();
	DO(ops->event_sync(e));
	ops->event_destroy(e);
}
END_TEST

/* though it is reached last, where its stream is the slower one */
START_TEST(an_older_record_does_not_come_back)
{
	double ms = -1;
	void *e, *f;

	DO(ops->event_create(dev, &e));
	DO(ops->event_create(dev, &f));
	DO(ops->event_record(f, a));
	gate_close(b);
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
END_TEST

static void nap(void *arg)
{
	tt_sleep_ms(*(int *)arg);
}

START_TEST(elapsed_time_is_what_passed)
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
	gate_close(a);
	DO(ops->event_record(f, a));
	fails(ops->event_elapsed_ms(e, f, &back), -EBUSY, "");
	ck_assert(back == -1);
	tt_gate_open();
	DO(ops->event_sync(f));
	ops->event_destroy(e);
	ops->event_destroy(f);
}
END_TEST

START_TEST(a_destroyed_event_still_orders)
{
	unsigned char *d = get(DEVICE, 1), *out = get(PINNED, 1);
	void *e;

	*out = 0;
	DO(ops->fill8(a, d, 1, 1));
	DO(ops->stream_sync(a));
	DO(ops->event_create(dev, &e));
	gate_close(a);
	DO(ops->fill8(a, d, 2, 1));
	DO(ops->event_record(e, a));
	DO(ops->event_wait(e, b));
	DO(ops->copy(b, out, d, 1));
	ops->event_destroy(e);
	tt_gate_open();
	DO(ops->stream_sync(b));
	ck_assert_int_eq(*out, 2);
}
END_TEST

/* ---- work ---- */

START_TEST(copies_between_all_kinds_of_memory)
{
	const enum place to = _i / NPLACES, from = _i % NPLACES;
	const size_t max = 5000;
	unsigned char *dst = get(to, max), *src = get(from, max);
	unsigned char *want = get(PAGEABLE, max), *data = get(PAGEABLE, max);

	tt_fill_bytes(data, max);
	move(src, data, max);
	for (int i = 0; i < 25; i++) {
		size_t n = i ? (size_t)tt_rand_int(1, i % 3 ? 70 : 4000) : 1;
		size_t x = (size_t)tt_rand_int(0, (int64_t)(max - n));
		size_t y = (size_t)tt_rand_int(0, (int64_t)(max - n));

		poison(dst, max);
		tt_poison(want, max);
		memcpy(want + y, data + x, n);
		DO(ops->copy(a, dst + y, src + x, n));
		check_bytes(dst, want, max, "a copy");
	}
	check_bytes(src, data, max, "the source");
}
END_TEST

START_TEST(copies_megabytes)
{
	const size_t n = (3 << 20) + 7;
	unsigned char *p = get(DEVICE, n), *q = get(DEVICE, n), *data = get(PAGEABLE, n);

	tt_fill_bytes(data, n);
	move(p, data, n);
	DO(ops->copy(a, q + 1, p + 3, n - 3));
	check_bytes(q + 1, data + 3, n - 3, "a copy");
}
END_TEST

/* that none is not even a node: see counts_nodes_of_every_kind */
START_TEST(no_bytes_are_no_work)
{
	unsigned char *d = get(DEVICE, 8);

	poison(d, 8);
	DO(ops->copy(a, d, d + 1, 0));
	DO(ops->fill8(a, d, 1, 0));
	DO(ops->fill32(a, d, 1, 0));
	DO(ops->copy(a, NULL, NULL, 0));
	DO(ops->fill8(a, NULL, 1, 0));
	DO(ops->stream_sync(a));
	check_filled(d, 0xa5, 8, "untouched memory"); /* what tt_poison() writes */
}
END_TEST

START_TEST(fills_bytes_and_no_more)
{
	const size_t max = 3 * PAD + 70000;
	unsigned char *d = get(DEVICE, max), *want = get(PAGEABLE, max);

	for (int i = 0; i < 40; i++) {
		size_t n = (size_t)(i < 20 ? i + 1 : tt_rand_int(1, 70000));
		size_t at = PAD + (size_t)tt_rand_int(0, 17);
		uint8_t v = (uint8_t)tt_rand_u64();

		poison(d, max);
		tt_poison(want, max);
		memset(want + at, v, n);
		DO(ops->fill8(a, d + at, v, n));
		check_bytes(d, want, max, "fill8");
	}
}
END_TEST

START_TEST(fills_words_and_no_more)
{
	const size_t max = 3 * PAD + 4 * 20000;
	unsigned char *d = get(DEVICE, max), *want = get(PAGEABLE, max);

	for (int i = 0; i < 40; i++) {
		size_t n = (size_t)(i < 20 ? i + 1 : tt_rand_int(1, 20000));
		size_t at = PAD + 4 * (size_t)tt_rand_int(0, 7);
		uint32_t v = (uint32_t)tt_rand_u64();

		poison(d, max);
		tt_poison(want, max);
		for (size_t k = 0; k < n; k++)
			memcpy(want + at + 4 * k, &v, 4);
		DO(ops->fill32(a, d + at, v, n));
		check_bytes(d, want, max, "fill32");
	}
}
END_TEST

struct note {
	int *at;
	int value;
	unsigned char pad[1000]; /* more than a command of the host backend holds */
};

/* value where the pad arrived whole, else -1 */
static void write_note(void *arg)
{
	const struct note *n = arg;

	*n->at = n->value;
	for (size_t i = 0; i < sizeof(n->pad); i++)
		if (n->pad[i] != (unsigned char)(n->value + (int)i))
			*n->at = -1;
}

static void note_set(struct note *n, int *at, int value)
{
	n->at = at;
	n->value = value;
	for (size_t i = 0; i < sizeof(n->pad); i++)
		n->pad[i] = (unsigned char)(value + (int)i);
}

START_TEST(a_host_call_gets_a_copy)
{
	struct note n;
	int got[3] = { 0 };

	gate_close(a);
	for (int i = 0; i < 3; i++) {
		note_set(&n, &got[i], 70 + i);
		DO(ops->host_call(a, write_note, &n, sizeof(n)));
		memset(&n, 0, sizeof(n));
	}
	tt_gate_open();
	DO(ops->stream_sync(a));
	for (int i = 0; i < 3; i++)
		ck_assert_int_eq(got[i], 70 + i);
}
END_TEST

static void increment(void *arg)
{
	++*(int *)arg;
}

START_TEST(a_host_call_without_bytes_gets_the_pointer)
{
	int count = 5;

	for (int i = 0; i < 4; i++)
		DO(ops->host_call(a, increment, &count, 0));
	DO(ops->stream_sync(a));
	ck_assert_int_eq(count, 9);
}
END_TEST

static int cast(void *stream, const float *x, void *y, int64_t n)
{
	struct te_k_cast k = {
		.x = x,
		.y = y,
		.n = n,
		.xdtype = TE_DTYPE_FP32,
		.ydtype = TE_DTYPE_BF16,
	};
	struct te__launch l = { TE_K_CAST, &k, sizeof(k) };
	int r = ops->launch(stream, &l);

	/* the backend has a copy */
	memset(&k, 0xff, sizeof(k));
	memset(&l, 0xff, sizeof(l));
	return r;
}

START_TEST(a_launch_runs_the_kernel)
{
	const int64_t n = tt_rand_int(1000, 5000);
	float *x = get(DEVICE, (size_t)n * 4), *h = get(PINNED, (size_t)n * 4);
	uint16_t *y = get(DEVICE, (size_t)n * 2 + PAD), *want = get(PAGEABLE, (size_t)n * 2 + PAD);

	tt_fill_normal(h, (size_t)n, 3.0f);
	poison(y, (size_t)n * 2 + PAD);
	tt_poison(want, (size_t)n * 2 + PAD);
	for (int64_t i = 0; i < n; i++)
		want[i] = te_bf16_encode(h[i]);
	gate_close(a);
	DO(ops->copy(a, x, h, (size_t)n * 4));
	DO(cast(a, x, y, n));
	tt_gate_open();
	check_bytes(y, want, (size_t)n * 2 + PAD, "the cast");
}
END_TEST

struct look {
	const uint16_t *at;
	int *ret;
	uint16_t want;
};

static void look(void *arg)
{
	const struct look *l = arg;

	*l->ret = *l->at == l->want;
}

/* kernel, copy, host call, kernel, copy, host call: each sees what was before it */
START_TEST(host_calls_run_between_kernels)
{
	float *x = get(DEVICE, 4), *h = get(PINNED, 8);
	uint16_t *y = get(DEVICE, 2), *out = get(PINNED, 2);
	int seen[2] = { -1, -1 };

	h[0] = 1.5f;
	h[1] = -2.25f;
	for (int i = 0; i < 2; i++) {
		struct look l = { out, &seen[i], te_bf16_encode(h[i]) };

		DO(ops->copy(a, x, &h[i], 4));
		DO(cast(a, x, y, 1));
		DO(ops->copy(a, out, y, 2));
		DO(ops->host_call(a, look, &l, sizeof(l)));
	}
	DO(ops->stream_sync(a));
	ck_assert_int_eq(seen[0], 1);
	ck_assert_int_eq(seen[1], 1);
}
END_TEST

START_TEST(a_kernel_that_is_not_there_is_refused)
{
	struct te_k_clear k = { 0 };
	struct te__launch l = { TE_K_COUNT, &k, sizeof(k) };

	fails(ops->launch(a, &l), -TE_EKERNEL, "");
	l.id = (enum te_k_id)(TE_K_COUNT + 1000);
	fails(ops->launch(a, &l), -TE_EKERNEL, "");
	DO(ops->stream_sync(a));
}
END_TEST

static void fail_full(void *arg)
{
	(void)arg;
	te__k_fail(te__fail(-ENOSPC, "the disk of rank 3 is full"));
}

/*
 * te__k_fail() speaks to the worker of a host stream. A CUDA stream has none: the driver runs
 * the call on a thread of its own and offers no way to fail a stream from it, so there the
 * call has no effect, as its comment in backend.h says, and the work goes on.
 */
START_TEST(a_host_call_can_fail_its_stream)
{
	unsigned char *d = get(DEVICE, 2);
	void *before, *after, *p = &before;

	DO(ops->fill8(a, d, 7, 2));
	DO(ops->event_create(dev, &before));
	DO(ops->event_create(dev, &after));
	DO(ops->event_record(before, a));
	gate_close(a);
	DO(ops->host_call(a, fail_full, NULL, 0));
	DO(ops->fill8(a, d, 8, 1));
	DO(ops->event_record(after, a));
	DO(ops->event_wait(after, b));
	tt_gate_open();
	if (!is_host) {
		DO(ops->stream_sync(a));
		DO(ops->stream_sync(b));
		check_filled(d, 8, 1, "work behind the call");
		goto done;
	}
	ck_assert_int_eq(ops->stream_sync(a), -ENOSPC);
	tt_said("the disk of rank 3 is full");
	tt_said("stream");
	/* for good, at every call that queues or asks; not the destructors */
	fails(ops->stream_query(a), -ENOSPC, "");
	fails(ops->fill8(a, d, 9, 1), -ENOSPC, "");
	fails(ops->copy(a, d, d + 1, 1), -ENOSPC, "");
	fails(ops->host_call(a, increment, NULL, 0), -ENOSPC, "");
	fails(ops->event_record(before, a), -ENOSPC, "");
	fails(ops->capture_begin(a), -ENOSPC, "");
	fails(ops->mem_alloc(a, 1, &p), -ENOSPC, "");
	ck_assert_ptr_eq(p, &before);
	/* events know on which side of the failure they are */
	DO(ops->event_sync(before));
	ck_assert_int_eq(ops->event_query(before), 1);
	fails(ops->event_sync(after), -ENOSPC, "");
	fails(ops->event_query(after), -ENOSPC, "");
	/* who waited for what did not happen fails too, and says why */
	ck_assert_int_eq(ops->stream_sync(b), -ENOSPC);
	tt_said("the disk of rank 3 is full");
	/* what stood behind the call did not run, what stood before it did */
	ck_assert_int_eq(d[0], 7);
done:
	ops->event_destroy(before);
	ops->event_destroy(after);
}
END_TEST

/* ---- captures ---- */

static int note(void *stream, int *at, int value)
{
	struct note n;

	note_set(&n, at, value);
	return ops->host_call(stream, write_note, &n, sizeof(n));
}

static struct te_recording_info info(void *graph)
{
	struct te_recording_info i = TE_RECORDING_INFO_INIT;

	DO(ops->graph_info(graph, &i));
	ck_assert_uint_eq(i.size, sizeof(i));
	return i;
}

/* instantiates, drops the graph: an exec outlives it */
static void *exec_of(void *graph)
{
	void *exec;

	DO(ops->graph_instantiate(graph, &exec));
	ops->graph_destroy(graph);
	return exec;
}

static void run(void *exec, void *stream)
{
	DO(ops->graph_launch(exec, stream));
	DO(ops->stream_sync(stream));
}

START_TEST(nothing_runs_while_capturing)
{
	unsigned char *d = get(DEVICE, 4), *out = get(PINNED, 4);
	void *graph, *exec;
	int got = 0;

	poison(d, 4);
	tt_poison(out, 4);
	ck_assert_int_eq(ops->capture_active(a), 0);
	DO(ops->capture_begin(a));
	ck_assert_int_eq(ops->capture_active(a), 1);
	ck_assert_int_eq(ops->capture_active(b), 0);
	DO(ops->fill8(a, d, 3, 4));
	DO(ops->copy(a, out, d, 4));
	DO(note(a, &got, 11));
	tt_sleep_ms(20);
	DO(ops->capture_end(a, &graph));
	ck_assert_int_eq(ops->capture_active(a), 0);
	exec = exec_of(graph);
	DO(ops->stream_sync(a));
	check_filled(d, 0xa5, 4, "memory after a capture");
	ck_assert(tt_is_poison(out, 4));
	ck_assert_int_eq(got, 0);
	run(exec, a);
	ck_assert_int_eq(out[3], 3);
	ck_assert_int_eq(got, 11);
	ops->exec_destroy(exec);
}
END_TEST

START_TEST(counts_nodes_of_every_kind)
{
	unsigned char *d = get(DEVICE, 64);
	struct te_recording_info i;
	void *graph;
	int got;

	DO(ops->capture_begin(a));
	DO(ops->fill8(a, d, 1, 7));
	DO(ops->fill32(a, d + 8, 2, 3));
	DO(ops->copy(a, d + 32, d, 4));
	DO(ops->copy(a, d, d, 0)); /* no bytes: no node */
	DO(ops->fill8(a, d, 1, 0));
	DO(ops->fill32(a, d, 1, 0));
	DO(cast(a, (float *)d, d + 48, 2));
	DO(note(a, &got, 1));
	DO(ops->host_call(a, increment, &got, 0));
	DO(ops->capture_end(a, &graph));
	i = info(graph);
	ck_assert_uint_eq(i.nnodes, 6);
	ck_assert_uint_eq(i.nedges, 5);
	ck_assert_uint_eq(i.nfills, 2);
	ck_assert_uint_eq(i.ncopies, 1);
	ck_assert_uint_eq(i.nkernels, 1);
	ck_assert_uint_eq(i.nhost, 2);
	ops->graph_destroy(graph);
}
END_TEST

START_TEST(an_empty_capture_is_a_graph)
{
	struct te_recording_info i;
	void *graph, *exec;

	DO(ops->capture_begin(a));
	DO(ops->capture_end(a, &graph));
	i = info(graph);
	ck_assert_uint_eq(i.nnodes, 0);
	ck_assert_uint_eq(i.nedges, 0);
	ck_assert_uint_eq(i.nkernels + i.ncopies + i.nfills + i.nhost, 0);
	exec = exec_of(graph);
	run(exec, a);
	run(exec, b);
	ops->exec_destroy(exec);
}
END_TEST

#define STATE_NBYTES 300
#define STATE_NELEMS 77

/* what a step changes, so that n steps differ from n - 1 */
struct state {
	unsigned char *p, *q;
	float *x, *dx;
	uint16_t *y;
	int *count;
};

static struct state state_new(const unsigned char *bytes, const float *x, const float *dx,
			      int *count)
{
	struct state s = { .count = count };

	s.p = get(DEVICE, STATE_NBYTES);
	s.q = get(DEVICE, STATE_NBYTES);
	s.x = get(DEVICE, STATE_NELEMS * 4);
	s.dx = get(DEVICE, STATE_NELEMS * 4);
	s.y = get(DEVICE, STATE_NELEMS * 2);
	move(s.p, bytes, STATE_NBYTES);
	move(s.x, x, STATE_NELEMS * 4);
	move(s.dx, dx, STATE_NELEMS * 4);
	return s;
}

static void step(void *stream, const struct state *s)
{
	struct te_k_add add = { .a = s->x, .b = s->dx, .y = s->x, .n = STATE_NELEMS,
				.dtype = TE_DTYPE_FP32 };
	struct te__launch l = { TE_K_ADD, &add, sizeof(add) };

	DO(ops->copy(stream, s->q, s->p + 3, STATE_NBYTES - 3));
	DO(ops->fill8(stream, s->q + STATE_NBYTES - 3, 0x5a, 3));
	DO(ops->copy(stream, s->p, s->q, STATE_NBYTES));
	DO(ops->fill32(stream, s->p + 20, 0x01020304, 2));
	DO(ops->launch(stream, &l));
	memset(&add, 0xff, sizeof(add));
	DO(cast(stream, s->x, s->y, STATE_NELEMS));
	DO(ops->host_call(stream, increment, s->count, 0));
}

START_TEST(replay_gives_the_bits_of_eager_work)
{
	unsigned char *bytes = get(PAGEABLE, STATE_NBYTES), *p = get(PAGEABLE, STATE_NBYTES);
	float x[STATE_NELEMS], dx[STATE_NELEMS], sum[STATE_NELEMS];
	uint16_t y[STATE_NELEMS];
	int neager = 0, nreplay = 0;
	struct state eager, replay;
	void *graph, *exec;

	tt_fill_bytes(bytes, STATE_NBYTES);
	tt_fill_normal(x, STATE_NELEMS, 1.0f);
	tt_fill_normal(dx, STATE_NELEMS, 1.0f);
	eager = state_new(bytes, x, dx, &neager);
	replay = state_new(bytes, x, dx, &nreplay);
	DO(ops->capture_begin(a));
	step(a, &replay);
	DO(ops->capture_end(a, &graph));
	exec = exec_of(graph);
	for (int i = 0; i < 7; i++) {
		step(a, &eager);
		DO(ops->graph_launch(exec, a));
	}
	DO(ops->stream_sync(a));
	ck_assert_int_eq(neager, 7);
	ck_assert_int_eq(nreplay, 7);
	move(p, eager.p, STATE_NBYTES);
	check_bytes(replay.p, p, STATE_NBYTES, "bytes");
	move(sum, eager.x, sizeof(sum));
	check_bytes(replay.x, sum, sizeof(sum), "sums");
	move(y, eager.y, sizeof(y));
	check_bytes(replay.y, y, sizeof(y), "casts");
	/* and eager work did what it should */
	ck_assert_int_eq(memcmp(p + 28, bytes + 28 + 21, STATE_NBYTES - 28 - 21), 0);
	for (int i = 0; i < STATE_NELEMS; i++) {
		for (int k = 0; k < 7; k++)
			x[i] += dx[i];
		ck_assert(x[i] == sum[i]);
		ck_assert_uint_eq(y[i], te_bf16_encode(x[i]));
	}
	ops->exec_destroy(exec);
}
END_TEST

START_TEST(a_graph_has_many_execs_that_run_anywhere)
{
	unsigned char *d = get(DEVICE, 100);
	void *graph, *exec[2], *s;
	int count = 0, got = 0;

	DO(ops->capture_begin(a));
	DO(ops->fill8(a, d, 0x61, 99));
	DO(ops->host_call(a, increment, &count, 0));
	DO(note(a, &got, 33));
	DO(ops->capture_end(a, &graph));
	DO(ops->graph_instantiate(graph, &exec[0]));
	DO(ops->graph_instantiate(graph, &exec[1]));
	for (int i = 0; i < 2; i++) {
		poison(d, 100);
		run(exec[i], i ? a : b);
		check_filled(d, 0x61, 99, "what was recorded");
		check_filled(d + 99, 0xa5, 1, "the byte behind");
	}
	/* either lives on without the other and without the graph */
	ops->exec_destroy(exec[0]);
	ops->graph_destroy(graph);
	DO(ops->stream_create(dev, &s));
	got = 0;
	run(exec[1], s);
	run(exec[1], s);
	ops->stream_destroy(s);
	ck_assert_int_eq(count, 4);
	ck_assert_int_eq(got, 33);
	ops->exec_destroy(exec[1]);
}
END_TEST

/* launched work keeps what it needs, gate or no gate */
START_TEST(an_exec_that_runs_can_be_destroyed)
{
	unsigned char *d = get(DEVICE, 10);
	int got = 0;
	void *graph, *exec;

	poison(d, 10);
	DO(ops->capture_begin(a));
	DO(note(a, &got, 5));
	DO(ops->fill8(a, d, 1, 10));
	DO(ops->capture_end(a, &graph));
	exec = exec_of(graph);
	gate_close(a);
	DO(ops->graph_launch(exec, a));
	tt_gate_open_later(60);
	/* on CUDA this waits for the launch, so another thread opens the gate */
	ops->exec_destroy(exec);
	DO(ops->stream_sync(a));
	ck_assert_int_eq(got, 5);
	check_filled(d, 1, 10, "what was recorded");
}
END_TEST

START_TEST(launches_keep_the_order_of_their_stream)
{
	unsigned char *d = get(DEVICE, 1), *out = get(PINNED, 20);
	void *graph, *exec;

	DO(ops->capture_begin(a));
	DO(ops->fill8(a, d, 200, 1));
	DO(ops->capture_end(a, &graph));
	exec = exec_of(graph);
	for (int i = 0; i < 20; i += 2) {
		DO(ops->fill8(b, d, (uint8_t)i, 1));
		DO(ops->copy(b, out + i, d, 1));
		DO(ops->graph_launch(exec, b));
		DO(ops->copy(b, out + i + 1, d, 1));
	}
	DO(ops->stream_sync(b));
	for (int i = 0; i < 20; i += 2) {
		ck_assert_int_eq(out[i], i);
		ck_assert_int_eq(out[i + 1], 200);
	}
	ops->exec_destroy(exec);
}
END_TEST

/*
 * fill x -> copy x to y (on b) -> copy y to z
 *        \-> fill w -----------/
 */
START_TEST(streams_fork_and_join_by_events)
{
	unsigned char *x = get(DEVICE, 16), *y = get(DEVICE, 16), *z = get(DEVICE, 16);
	unsigned char *w = get(DEVICE, 16);
	struct te_recording_info i;
	void *graph, *exec, *fork, *join;

	DO(ops->event_create(dev, &fork));
	DO(ops->event_create(dev, &join));
	poison(x, 16);
	poison(y, 16);
	poison(z, 16);
	DO(ops->capture_begin(a));
	DO(ops->fill8(a, x, 0x21, 16));
	DO(ops->event_record(fork, a));
	ck_assert_int_eq(ops->capture_active(b), 0);
	DO(ops->event_wait(fork, b));
	ck_assert_int_eq(ops->capture_active(b), 1);
	DO(ops->copy(b, y, x, 16));
	DO(ops->event_record(join, b));
	DO(ops->fill8(a, w, 0x22, 16));
	DO(ops->event_wait(join, a));
	DO(ops->copy(a, z, y, 15));
	DO(ops->capture_end(a, &graph));
	/* the capture ended for both */
	ck_assert_int_eq(ops->capture_active(a), 0);
	ck_assert_int_eq(ops->capture_active(b), 0);
	i = info(graph);
	ck_assert_uint_eq(i.nnodes, 4);
	ck_assert_uint_eq(i.nedges, 4);
	ck_assert_uint_eq(i.ncopies, 2);
	ck_assert_uint_eq(i.nfills, 2);
	exec = exec_of(graph);
	check_filled(x, 0xa5, 16, "memory after a capture");
	check_filled(y, 0xa5, 16, "memory after a capture");
	for (int k = 0; k < 3; k++) {
		poison(z, 16);
		run(exec, k % 2 ? b : a);
		check_filled(z, 0x21, 15, "what was joined");
		check_filled(w, 0x22, 16, "the other branch");
		check_filled(z + 15, 0xa5, 1, "the byte behind");
	}
	/* both streams are themselves again */
	DO(ops->fill8(b, y, 1, 16));
	DO(ops->stream_sync(b));
	check_filled(y, 1, 16, "eager work after a capture");
	ops->exec_destroy(exec);
	ops->event_destroy(fork);
	ops->event_destroy(join);
}
END_TEST

/* both branches are done before what follows the graph, joined at its end */
START_TEST(a_branch_may_be_joined_without_more_work)
{
	unsigned char *d = get(DEVICE, 2), *out = get(PINNED, 1);
	void *graph, *exec, *e;

	*out = 0;
	DO(ops->event_create(dev, &e));
	DO(ops->capture_begin(a));
	DO(ops->fill8(a, d, 1, 1));
	DO(ops->event_record(e, a));
	DO(ops->event_wait(e, b));
	DO(ops->fill8(b, d + 1, 2, 1));
	DO(ops->copy(b, out, d + 1, 1));
	DO(ops->event_record(e, b));
	DO(ops->event_wait(e, a));
	DO(ops->capture_end(a, &graph));
	exec = exec_of(graph);
	run(exec, a);
	ck_assert_int_eq(*out, 2);
	ops->exec_destroy(exec);
	ops->event_destroy(e);
}
END_TEST

START_TEST(a_capture_inside_a_capture_is_refused)
{
	unsigned char *d = get(DEVICE, 1);
	void *graph, *e;

	DO(ops->event_create(dev, &e));
	DO(ops->capture_begin(a));
	DO(ops->fill8(a, d, 1, 1));
	fails(ops->capture_begin(a), -EBUSY, "");
	DO(ops->event_record(e, a));
	DO(ops->event_wait(e, b));
	/* a stream that joined is in it too */
	fails(ops->capture_begin(b), -EBUSY, "");
	fails(ops->capture_end(b, &graph), -TE_ESTATE, "");
	DO(ops->fill8(b, d, 2, 1));
	DO(ops->event_record(e, b));
	DO(ops->event_wait(e, a));
	/* and nothing was spoilt */
	DO(ops->capture_end(a, &graph));
	ck_assert_uint_eq(info(graph).nnodes, 2);
	ops->graph_destroy(graph);
	ops->event_destroy(e);
}
END_TEST

START_TEST(an_end_without_a_begin_is_refused)
{
	void *graph = &graph;

	fails(ops->capture_end(a, &graph), -TE_ESTATE, "");
	ck_assert_ptr_eq(graph, &graph);
	DO(ops->capture_begin(a));
	fails(ops->capture_end(b, &graph), -TE_ESTATE, "");
	DO(ops->capture_end(a, &graph));
	ops->graph_destroy(graph);
	graph = &graph;
	fails(ops->capture_end(a, &graph), -TE_ESTATE, "");
	ck_assert_ptr_eq(graph, &graph);
}
END_TEST

START_TEST(what_cannot_be_captured_is_refused_and_spoils_nothing)
{
	unsigned char *d = get(DEVICE, 3);
	void *p = &p, *graph, *exec;

	DO(ops->mem_alloc(a, 10, &p));
	DO(ops->capture_begin(a));
	DO(ops->fill8(a, d, 1, 3));
	fails(ops->stream_sync(a), -EBUSY, "");
	fails(ops->stream_query(a), -EBUSY, "");
	fails(ops->mem_free(a, p), -EBUSY, "");
	fails(ops->mem_alloc(a, 10, &graph), -EBUSY, "");
	/* the other stream does as it likes meanwhile */
	DO(ops->fill8(b, p, 9, 10));
	DO(ops->stream_sync(b));
	ck_assert_int_eq(ops->stream_query(b), 1);
	DO(ops->copy(a, d, d + 2, 1));
	DO(ops->capture_end(a, &graph));
	ck_assert_uint_eq(info(graph).nnodes, 2);
	exec = exec_of(graph);
	run(exec, a);
	check_filled(d, 1, 3, "what was recorded");
	check_filled(p, 9, 10, "what the other stream did");
	DO(ops->mem_free(a, p));
	ops->exec_destroy(exec);
}
END_TEST

/* a graph, or none: the driver says of some refused calls that they spoil a capture */
static void end_either(void *stream)
{
	void *graph;
	int r = ops->capture_end(stream, &graph);

	if (!r)
		ops->graph_destroy(graph);
	else
		ck_assert_msg(r == -TE_ESTATE && !is_host, "%d: %s", r, te_error_detail());
	te_error_clear();
	ck_assert_int_eq(ops->capture_active(stream), 0);
}

static void check_usable(void)
{
	unsigned char *d = get(DEVICE, 2);

	ck_assert_int_eq(ops->capture_active(a), 0);
	ck_assert_int_eq(ops->capture_active(b), 0);
	DO(ops->fill8(a, d, 4, 1));
	DO(ops->fill8(b, d + 1, 4, 1));
	DO(ops->stream_sync(b));
	check_filled(d, 4, 2, "work after a capture");
}

/* on a GPU such a call also spoils the capture and the event, so each gets its own */
START_TEST(an_event_of_a_capture_is_no_moment)
{
	double ms = -1;
	void *e, *f;

	DO(ops->event_create(dev, &e));
	DO(ops->event_create(dev, &f));
	for (int i = 0; i < 4; i++) {
		DO(ops->event_record(e, a));
		DO(ops->event_record(f, a));
		DO(ops->stream_sync(a));
		DO(ops->capture_begin(a));
		DO(ops->event_record(e, a));
		fails(i == 0 ? ops->event_query(e) :
		      i == 1 ? ops->event_sync(e) :
		      i == 2 ? ops->event_elapsed_ms(f, e, &ms) :
			       ops->event_elapsed_ms(e, f, &ms),
		      -EBUSY, "");
		ck_assert(ms == -1);
		end_either(a);
	}
	/* recorded outside again it is */
	DO(ops->event_record(e, a));
	DO(ops->event_sync(e));
	ck_assert_int_eq(ops->event_query(e), 1);
	DO(ops->event_elapsed_ms(f, e, &ms));
	check_usable();
	ops->event_destroy(e);
	ops->event_destroy(f);
}
END_TEST

START_TEST(a_branch_that_is_not_joined_fails_the_end)
{
	unsigned char *d = get(DEVICE, 1);
	void *graph = &graph, *e;

	DO(ops->event_create(dev, &e));
	DO(ops->capture_begin(a));
	DO(ops->fill8(a, d, 1, 1));
	DO(ops->event_record(e, a));
	DO(ops->event_wait(e, b));
	DO(ops->fill8(b, d, 2, 1));
	fails(ops->capture_end(a, &graph), -TE_ESTATE, "");
	ck_assert_ptr_eq(graph, &graph);
	check_usable();
	ops->event_destroy(e);
}
END_TEST

START_TEST(a_capture_does_not_wait_for_what_is_outside)
{
	unsigned char *d = get(DEVICE, 1);
	void *e;

	DO(ops->event_create(dev, &e));
	DO(ops->fill8(b, d, 1, 1));
	DO(ops->event_record(e, b));
	DO(ops->capture_begin(a));
	fails(ops->event_wait(e, a), -TE_ESTATE, "");
	end_either(a);
	check_usable();
	ops->event_destroy(e);
}
END_TEST

START_TEST(captures_do_not_merge)
{
	unsigned char *d = get(DEVICE, 1);
	void *e;

	DO(ops->event_create(dev, &e));
	DO(ops->capture_begin(a));
	DO(ops->capture_begin(b));
	DO(ops->fill8(a, d, 1, 1));
	DO(ops->event_record(e, a));
	fails(ops->event_wait(e, b), -TE_ESTATE, "");
	end_either(b);
	end_either(a);
	check_usable();
	ops->event_destroy(e);
}
END_TEST

START_TEST(a_stream_that_captures_can_be_destroyed)
{
	unsigned char *d = get(DEVICE, 1);
	int got = 0;
	void *s;

	poison(d, 1);
	DO(ops->stream_create(dev, &s));
	DO(ops->capture_begin(s));
	DO(ops->fill8(s, d, 1, 1));
	DO(note(s, &got, 1));
	ops->stream_destroy(s);
	check_filled(d, 0xa5, 1, "what a dropped capture would change");
	ck_assert_int_eq(got, 0);
	check_usable();
}
END_TEST

/* see a_host_call_can_fail_its_stream for why this is the host's alone */
START_TEST(a_recorded_host_call_can_fail_its_stream)
{
	unsigned char *d = get(DEVICE, 1);
	void *graph, *exec;
	int r;

	poison(d, 1);
	DO(ops->capture_begin(b));
	DO(ops->host_call(b, fail_full, NULL, 0));
	DO(ops->fill8(b, d, 1, 1));
	DO(ops->capture_end(b, &graph));
	exec = exec_of(graph);
	DO(ops->graph_launch(exec, b));
	r = ops->stream_sync(b);
	if (is_host) {
		ck_assert_int_eq(r, -ENOSPC);
		tt_said("the disk of rank 3 is full");
		fails(ops->graph_launch(exec, b), -ENOSPC, "");
		check_filled(d, 0xa5, 1, "what stood behind the call");
	} else {
		ck_assert_int_eq(r, 0);
		check_filled(d, 1, 1, "what stood behind the call");
	}
	/* the recording itself is whole: another stream fails by it as well */
	ops->exec_destroy(exec);
}
END_TEST

/* ---- faults ---- */

struct things {
	void *s, *t, *e, *f, *d, *pinned, *graph, *exec;
	int got;
};

/* every row, on a device that is open; stops at the first that fails */
static int use_rows(struct things *o)
{
	struct te_recording_info i = TE_RECORDING_INFO_INIT;
	struct te_device_info d = TE_DEVICE_INFO_INIT;
	uint64_t left, total;
	double ms;
	int r;

#define ROW(call)          \
	do {               \
		r = call;  \
		if (r < 0) \
			return r; \
	} while (0)
	ROW(ops->device_info(0, &d));
	ROW(ops->dev_mem(dev, &left, &total));
	ROW(ops->stream_create(dev, &o->s));
	ROW(ops->stream_create(dev, &o->t));
	ROW(ops->event_create(dev, &o->e));
	ROW(ops->event_create(dev, &o->f));
	ROW(ops->mem_alloc(o->s, 4096, &o->d));
	ROW(ops->pinned_alloc(dev, 4096, &o->pinned));
	ROW(ops->event_record(o->f, o->s));
	ROW(ops->fill8(o->s, o->d, 1, 100));
	ROW(ops->fill32(o->s, o->d, 2, 100));
	ROW(cast(o->s, o->d, (char *)o->d + 2048, 30));
	ROW(ops->copy(o->s, o->pinned, o->d, 4000));
	ROW(note(o->s, &o->got, 3));
	ROW(ops->event_record(o->e, o->s));
	ROW(ops->event_wait(o->e, o->t));
	ROW(ops->stream_sync(o->t));
	ROW(ops->event_query(o->e));
	ROW(ops->event_sync(o->e));
	ROW(ops->event_elapsed_ms(o->f, o->e, &ms));
	ROW(ops->stream_query(o->s));
	ROW(ops->capture_begin(o->s));
	ROW(ops->fill8(o->s, o->d, 1, 100));
	ROW(ops->event_record(o->e, o->s));
	ROW(ops->event_wait(o->e, o->t));
	ROW(cast(o->t, o->d, (char *)o->d + 2048, 30));
	ROW(note(o->t, &o->got, 3));
	ROW(ops->event_record(o->e, o->t));
	ROW(ops->event_wait(o->e, o->s));
	ROW(ops->copy(o->s, o->pinned, o->d, 4000));
	ROW(ops->capture_end(o->s, &o->graph));
	ROW(ops->graph_info(o->graph, &i));
	ROW(ops->graph_instantiate(o->graph, &o->exec));
	ROW(ops->graph_launch(o->exec, o->s));
	ROW(ops->stream_sync(o->s));
#undef ROW
	return i.nnodes == 4 && o->got == 3 ? 0 : -EPROTO;
}

/* whatever there is; the fault is behind us, so all of it works */
static void drop(struct things *o)
{
	char detail[512];

	snprintf(detail, sizeof(detail), "%s", te_error_detail());
	if (o->graph)
		ops->graph_destroy(o->graph);
	if (o->s && ops->capture_active(o->s) && !ops->capture_end(o->s, &o->graph))
		ops->graph_destroy(o->graph);
	/* a faulted sync has not waited, and host calls in flight hold memory */
	if (o->s)
		ck_assert_int_eq(ops->stream_sync(o->s), 0);
	if (o->t)
		ck_assert_int_eq(ops->stream_sync(o->t), 0);
	if (o->exec)
		ops->exec_destroy(o->exec);
	if (o->d)
		ck_assert_int_eq(ops->mem_free(o->s, o->d), 0);
	if (o->s)
		ck_assert_int_eq(ops->stream_sync(o->s), 0);
	if (o->pinned)
		ck_assert_int_eq(ops->pinned_free(dev, o->pinned), 0);
	if (o->e)
		ops->event_destroy(o->e);
	if (o->f)
		ops->event_destroy(o->f);
	if (o->t)
		ops->stream_destroy(o->t);
	if (o->s)
		ops->stream_destroy(o->s);
	if (detail[0])
		te__fail(-EPROTO, "%s", detail); /* as it was, for who looks at it */
}

static int rows_once(void)
{
	struct things o = { 0 };
	int r = use_rows(&o);

	/* without a fault nothing is left to go wrong below */
	if (r >= 0 && te__fault_fired())
		ck_abort_msg("a fault went by unseen");
	if (r >= 0)
		te__fault_set(0);
	drop(&o);
	return r;
}

START_TEST(each_row_fails_cleanly)
{
	uint64_t before;

	DO(rows_once()); /* what a first use allocates for good */
	before = held().used_nbytes;
	ck_assert_int_ge(tt_fault_each(rows_once), 35);
	check_same_held(before, "failing rows");
	DO(rows_once());
}
END_TEST

/* opening a GPU makes thousands of calls and takes long: some of them fail, each once */
START_TEST(opening_fails_cleanly)
{
	int64_t live = te__alloc_live();
	uint64_t n = 1;
	void *d;
	int r;

	for (;; n = n * 3 / 2 + 1) {
		d = NULL;
		te_error_clear();
		te__fault_set(n);
		r = ops->open(0, &d);
		if (!te__fault_fired())
			break;
		te__fault_set(0);
		ck_assert_msg(r < 0, "fault %llu was not reported", (unsigned long long)n);
		ck_assert_str_ne(te_error_detail(), "");
		ck_assert_ptr_null(d);
		ck_assert_int_eq(te__alloc_live(), live);
	}
	te__fault_set(0);
	DO(r);
	ck_assert_uint_gt(n, 2);
	ops->close(d);
	ck_assert_int_eq(te__alloc_live(), live);
}
END_TEST

/* ---- what the public functions promise on every backend ---- */

static struct te_stream *su;

static void setup_ctx(void)
{
	is_host = !strcmp(backend, "host");
	te_error_clear();
	tt_setup();
	DO(te_stream_create(ctx, &su));
}

static void teardown_ctx(void)
{
	su = te_stream_unref(su);
	tt_teardown();
}

/* refused, and the sentence names the function */
#define REFUSED(code, fn, ...) fails(fn(__VA_ARGS__), (code), #fn)

static void check_words(const void *d, uint32_t want, size_t n)
{
	uint32_t got[8];

	ck_assert_uint_le(n, TT_LEN(got));
	DO(te_copy(st, got, d, 4 * n));
	DO(te_stream_sync(st));
	for (size_t i = 0; i < n; i++)
		ck_assert_uint_eq(got[i], want);
}

static void *words(uint32_t value, size_t n)
{
	void *d;

	DO(te_mem_alloc(st, 4 * n, &d));
	DO(te_fill_u32(st, d, value, 4 * n));
	DO(te_stream_sync(st));
	return d;
}

START_TEST(a_capture_refuses_what_needs_a_result_now)
{
	struct te_recording_info i = TE_RECORDING_INFO_INIT;
	struct te_recording *rec, *other;
	const int64_t shape[1] = { 4 };
	uint32_t *d = words(1, 8);
	struct te_tensor *t, *u;
	struct te_event *e;
	double ms;
	void *p;

	DO(te_tensor_create(ctx, TE_DTYPE_FP32, 1, shape, NULL, &t));
	DO(te_event_create(ctx, &e));
	DO(te_capture_begin(st));
	DO(te_capture_end(st, &other));
	DO(te_capture_begin(st));
	DO(te_fill_u32(st, d, 2, 16));
	REFUSED(-EBUSY, te_stream_sync, st);
	REFUSED(-EBUSY, te_stream_query, st);
	REFUSED(-EBUSY, te_ctx_sync, ctx);
	REFUSED(-EBUSY, te_mem_alloc, st, 4, &p);
	REFUSED(-EBUSY, te_mem_free, st, d);
	REFUSED(-EBUSY, te_capture_begin, st);
	REFUSED(-EBUSY, te_recording_launch, other, st);
	REFUSED(-EBUSY, te_tensor_write, t, d, 16);
	REFUSED(-EBUSY, te_tensor_read, t, &ms, 16);
	ck_assert_int_eq(te_tensor_create(ctx, TE_DTYPE_FP32, 1, shape, NULL, &u), -EBUSY);
	DO(te_event_record(e, st));
	REFUSED(-EBUSY, te_event_query, e);
	REFUSED(-EBUSY, te_event_sync, e);
	REFUSED(-EBUSY, te_event_elapsed_ms, e, e, &ms);
	/* the other stream is free */
	DO(te_fill_u32(su, d + 4, 3, 16));
	DO(te_stream_sync(su));
	ck_assert_int_eq(te_stream_query(su), 1);
	/* and the capture is as it was */
	DO(te_fill_u32(st, d, 4, 16));
	DO(te_capture_end(st, &rec));
	DO(te_recording_info(rec, &i));
	ck_assert_uint_eq(i.nnodes, 2);
	ck_assert_uint_eq(i.nfills, 2);
	check_words(d, 1, 4);
	check_words(d + 4, 3, 4);
	DO(te_recording_launch(rec, su));
	DO(te_stream_sync(su));
	check_words(d, 4, 4);
	/* a capture that ended is no place to wait for */
	REFUSED(-TE_ESTATE, te_event_query, e);
	REFUSED(-TE_ESTATE, te_event_sync, e);
	REFUSED(-TE_ESTATE, te_event_elapsed_ms, e, e, &ms);
	REFUSED(-TE_ESTATE, te_event_wait, e, su);
	te_event_unref(e);
	te_tensor_unref(t);
	te_recording_unref(rec);
	te_recording_unref(other);
	DO(te_mem_free(st, d));
}
END_TEST

/* on the stream itself, or on one that joined */
START_TEST(a_failed_call_spoils_a_capture)
{
	struct te_recording *rec = NULL;
	uint32_t *d = words(1, 4);
	struct te_event *e;

	DO(te_event_create(ctx, &e));
	DO(te_capture_begin(st));
	DO(te_fill_u32(st, d, 2, 4));
	DO(te_event_record(e, st));
	DO(te_event_wait(e, su));
	ck_assert_int_eq(te_fill_u32(_i ? su : st, (char *)d + 1, 2, 4), -EINVAL);
	DO(te_event_record(e, su));
	DO(te_event_wait(e, st));
	/* the first failure is what is told, not a later one */
	ck_assert_int_eq(te_host_call(st, NULL, NULL, 0), -EINVAL);
	te_error_clear();
	ck_assert_int_eq(te_capture_end(st, &rec), -EINVAL);
	tt_said("te_fill_u32: 4 bytes at");
	ck_assert_ptr_null(rec);
	te_error_clear();
	DO(te_fill_u32(st, d, 3, 8));
	DO(te_fill_u32(su, d + 2, 3, 8));
	DO(te_stream_sync(su));
	check_words(d, 3, 4);
	DO(te_capture_begin(st));
	DO(te_capture_end(st, &rec));
	te_recording_unref(rec);
	te_event_unref(e);
	DO(te_mem_free(st, d));
}
END_TEST

START_TEST(a_stream_destroyed_in_a_capture_spoils_it)
{
	struct te_recording *rec = NULL;
	struct te_stream *s;
	struct te_event *e;

	DO(te_stream_create(ctx, &s));
	DO(te_event_create(ctx, &e));
	DO(te_capture_begin(st));
	DO(te_event_record(e, st));
	DO(te_event_wait(e, s));
	te_stream_unref(s);
	ck_assert_int_eq(te_capture_end(st, &rec), -TE_ESTATE);
	tt_said("a stream was destroyed inside a capture");
	ck_assert_ptr_null(rec);
	/* the origin itself ends it */
	DO(te_stream_create(ctx, &s));
	DO(te_capture_begin(s));
	DO(te_event_record(e, s));
	DO(te_event_wait(e, su));
	te_stream_unref(s);
	DO(te_stream_sync(su));
	DO(te_ctx_sync(ctx));
	te_event_unref(e);
}
END_TEST

START_TEST(an_event_never_recorded_joins_nobody)
{
	struct te_recording *rec;
	uint32_t *d = words(1, 1);
	struct te_event *e;
	double ms;

	DO(te_event_create(ctx, &e));
	ck_assert_int_eq(te_event_query(e), 1);
	DO(te_event_sync(e));
	REFUSED(-EBUSY, te_event_elapsed_ms, e, e, &ms);
	DO(te_capture_begin(st));
	DO(te_event_wait(e, st));
	DO(te_event_wait(e, su));
	DO(te_fill_u32(su, d, 2, 4));
	DO(te_stream_sync(su));
	DO(te_capture_end(st, &rec));
	check_words(d, 2, 1);
	te_recording_unref(rec);
	te_event_unref(e);
	DO(te_mem_free(st, d));
}
END_TEST

START_TEST(memory_is_checked_before_the_backend_sees_it)
{
	uint32_t *d = words(1, 2), host = 5;
	void *p = &p;

	REFUSED(-EINVAL, te_mem_alloc, st, 0, &p);
	REFUSED(-EINVAL, te_mem_alloc, NULL, 1, &p);
	REFUSED(-EINVAL, te_mem_alloc, st, 1, NULL);
	REFUSED(-EINVAL, te_pinned_alloc, ctx, 0, &p);
	REFUSED(-EINVAL, te_pinned_alloc, NULL, 1, &p);
	REFUSED(-EINVAL, te_pinned_alloc, ctx, 1, NULL);
	ck_assert_ptr_eq(p, &p);
	REFUSED(-EINVAL, te_mem_free, st, &host);
	REFUSED(-EINVAL, te_mem_free, st, d + 1);
	REFUSED(-EINVAL, te_mem_free, NULL, d);
	REFUSED(-EINVAL, te_pinned_free, ctx, d); /* device memory is no pinned memory */
	REFUSED(-EINVAL, te_pinned_free, NULL, d);
	DO(te_mem_free(st, NULL));
	DO(te_pinned_free(ctx, NULL));
	REFUSED(-EINVAL, te_copy, st, NULL, d, 4);
	REFUSED(-EINVAL, te_copy, st, d, NULL, 4);
	REFUSED(-EINVAL, te_copy, NULL, d, d, 4);
	REFUSED(-EINVAL, te_fill, st, NULL, 1, 4);
	REFUSED(-EINVAL, te_fill, NULL, d, 1, 4);
	REFUSED(-EINVAL, te_fill_u32, st, d, 1, 6);
	REFUSED(-EINVAL, te_fill_u32, st, (char *)d + 2, 1, 4);
	REFUSED(-EINVAL, te_host_call, st, NULL, &host, 4);
	REFUSED(-EINVAL, te_host_call, st, increment, NULL, 4);
	REFUSED(-EINVAL, te_host_call, NULL, increment, &host, 4);
	DO(te_copy(st, NULL, NULL, 0));
	DO(te_fill(st, NULL, 1, 0));
	DO(te_fill_u32(st, NULL, 1, 0));
	check_words(d, 1, 2);
	DO(te_mem_free(st, d));
	REFUSED(-EINVAL, te_mem_free, st, d); /* twice */
}
END_TEST

START_TEST(launches_are_checked_before_the_backend_sees_them)
{
	struct te_k_clear k = { 0 };
	char want[80];

	snprintf(want, sizeof(want), "(clear): %zu bytes of arguments, not %zu", sizeof(k) - 1,
		 sizeof(k));
	fails(te__launch_k(NULL, TE_K_CLEAR, &k, sizeof(k)), -EINVAL, "");
	fails(te__launch_k(st, TE_K_CLEAR, NULL, sizeof(k)), -EINVAL, "");
	fails(te__launch_k(st, TE_K_COUNT, &k, sizeof(k)), -EINVAL, "");
	fails(te__launch_k(st, (enum te_k_id)9999, &k, 0), -EINVAL, "");
	ck_assert_int_eq(te__launch_k(st, TE_K_CLEAR, &k, sizeof(k) - 1), -EINVAL);
	tt_said(want);
	te_error_clear();
	DO(te_stream_sync(st));
}
END_TEST

START_TEST(workspaces_are_given_whole)
{
	struct te_stream *s = te_ctx_stream(ctx);
	size_t n = te_ctx_workspace_nbytes(ctx);
	struct te_recording *rec;
	void *p;

	ck_assert_int_eq(n > 0, !is_host);
	ck_assert_int_eq(te_mem_alloc(s, n + 512, &p), 0);
	ck_assert_int_eq(te_stream_workspace(s, p, n), 0);
	ck_assert_int_eq(te_stream_workspace(s, (char *)p + 1, n), -EINVAL);
	tt_said("aligned to 256");
	if (n) {
		ck_assert_int_eq(te_stream_workspace(s, p, n - 1), -EINVAL);
		tt_said("are needed");
	}
	ck_assert_int_eq(te_stream_workspace(NULL, p, n), -EINVAL);
	ck_assert_int_eq(te_capture_begin(s), 0);
	ck_assert_int_eq(te_stream_workspace(s, NULL, 0), -EBUSY);
	ck_assert_int_eq(te_capture_end(s, &rec), 0);
	te_recording_unref(rec);
	ck_assert_int_eq(te_stream_workspace(s, NULL, 0), 0);
	ck_assert_int_eq(te_mem_free(s, p), 0);
}
END_TEST

START_TEST(contexts_do_not_mix)
{
	struct te_recording *rec;
	struct te_event *e, *f;
	struct te_ctx *other;
	double ms;

	DO(tt_ctx_new(&other));
	DO(te_event_create(other, &e));
	DO(te_event_create(ctx, &f));
	DO(te_event_record(e, te_ctx_stream(other)));
	DO(te_event_record(f, st));
	DO(te_ctx_sync(other));
	DO(te_ctx_sync(ctx));
	REFUSED(-EINVAL, te_event_record, e, st);
	REFUSED(-EINVAL, te_event_wait, e, st);
	REFUSED(-EINVAL, te_event_elapsed_ms, e, f, &ms);
	DO(te_capture_begin(st));
	DO(te_capture_end(st, &rec));
	REFUSED(-EINVAL, te_recording_launch, rec, te_ctx_stream(other));
	te_recording_unref(rec);
	te_event_unref(e);
	te_event_unref(f);
	te_ctx_unref(other);
}
END_TEST

START_TEST(nulls_are_refused)
{
	struct te_recording_info i = TE_RECORDING_INFO_INIT;
	struct te_recording *rec;
	struct te_event *e;
	double ms;

	DO(te_event_create(ctx, &e));
	REFUSED(-EINVAL, te_stream_create, NULL, &su);
	REFUSED(-EINVAL, te_stream_create, ctx, NULL);
	REFUSED(-EINVAL, te_stream_sync, NULL);
	REFUSED(-EINVAL, te_stream_query, NULL);
	REFUSED(-EINVAL, te_event_create, NULL, &e);
	REFUSED(-EINVAL, te_event_create, ctx, NULL);
	REFUSED(-EINVAL, te_event_record, NULL, st);
	REFUSED(-EINVAL, te_event_record, e, NULL);
	REFUSED(-EINVAL, te_event_wait, NULL, st);
	REFUSED(-EINVAL, te_event_wait, e, NULL);
	REFUSED(-EINVAL, te_event_sync, NULL);
	REFUSED(-EINVAL, te_event_query, NULL);
	REFUSED(-EINVAL, te_event_elapsed_ms, NULL, e, &ms);
	REFUSED(-EINVAL, te_event_elapsed_ms, e, NULL, &ms);
	REFUSED(-EINVAL, te_capture_begin, NULL);
	REFUSED(-EINVAL, te_capture_end, NULL, &rec);
	REFUSED(-EINVAL, te_capture_end, st, NULL);
	REFUSED(-TE_ESTATE, te_capture_end, st, &rec);
	REFUSED(-EINVAL, te_recording_launch, NULL, st);
	REFUSED(-EINVAL, te_recording_info, NULL, &i);
	DO(te_capture_begin(st));
	DO(te_capture_end(st, &rec));
	REFUSED(-EINVAL, te_recording_launch, rec, NULL);
	REFUSED(-EINVAL, te_recording_info, rec, NULL);
	i.size--;
	REFUSED(-EINVAL, te_recording_info, rec, &i);
	te_recording_unref(rec);
	te_event_unref(e);
	ck_assert_ptr_null(te_stream_ref(NULL));
	ck_assert_ptr_null(te_stream_unref(NULL));
	ck_assert_ptr_null(te_event_ref(NULL));
	ck_assert_ptr_null(te_event_unref(NULL));
	ck_assert_ptr_null(te_recording_ref(NULL));
	ck_assert_ptr_null(te_recording_unref(NULL));
	ck_assert_ptr_null(te_ctx_ref(NULL));
	ck_assert_ptr_null(te_ctx_unref(NULL));
}
END_TEST

START_TEST(memory_is_accounted_for)
{
	struct te_mem_info m0 = TE_MEM_INFO_INIT, m1 = TE_MEM_INFO_INIT;
	void *d, *e, *p;

	DO(te_ctx_mem_info(ctx, &m0));
	DO(te_mem_alloc(st, 1001, &d));
	DO(te_mem_alloc(su, 3, &e));
	DO(te_pinned_alloc(ctx, 77, &p));
	DO(te_ctx_mem_info(ctx, &m1));
	ck_assert_uint_eq(m1.used_nbytes, m0.used_nbytes + 1004);
	ck_assert_uint_eq(m1.pinned_nbytes, m0.pinned_nbytes + 77);
	ck_assert_uint_eq(m1.nallocs, m0.nallocs + 3);
	ck_assert_uint_ge(m1.peak_nbytes, m1.used_nbytes);
	ck_assert_uint_gt(m1.device_total_nbytes, 0);
	ck_assert_uint_le(m1.device_free_nbytes, m1.device_total_nbytes);
	DO(te_mem_free(su, e));
	DO(te_mem_free(st, d));
	DO(te_pinned_free(ctx, p));
	m0.peak_nbytes = m1.peak_nbytes;
	DO(te_ctx_mem_info(ctx, &m1));
	ck_assert_uint_eq(m1.used_nbytes, m0.used_nbytes);
	ck_assert_uint_eq(m1.pinned_nbytes, m0.pinned_nbytes);
	ck_assert_uint_eq(m1.peak_nbytes, m0.peak_nbytes);
	m1.size--;
	REFUSED(-EINVAL, te_ctx_mem_info, ctx, &m1);
	REFUSED(-EINVAL, te_ctx_mem_info, ctx, NULL);
}
END_TEST

/* what is on a context keeps it; what was forgotten goes with it */
START_TEST(a_context_lives_as_long_as_what_is_on_it)
{
	int64_t live = te__alloc_live();
	struct te_recording *rec;
	struct te_stream *s;
	struct te_event *e;
	struct te_ctx *c;
	void *d, *p;

	DO(tt_ctx_new(&c));
	DO(te_mem_alloc(te_ctx_stream(c), 100, &d));
	DO(te_pinned_alloc(c, 100, &p));
	DO(te_stream_create(c, &s));
	DO(te_event_create(c, &e));
	DO(te_capture_begin(s));
	DO(te_fill(s, d, 7, 100));
	DO(te_capture_end(s, &rec));
	te_ctx_unref(c);
	ck_assert_ptr_eq(te_stream_ctx(s), c);
	DO(te_recording_launch(rec, s));
	DO(te_event_record(e, s));
	te_stream_unref(s);
	DO(te_event_sync(e));
	te_event_unref(e);
	ck_assert_str_eq(te_ctx_backend(c), backend);
	ck_assert_int_gt(te__alloc_live(), live);
	te_recording_unref(rec); /* the last */
	ck_assert_int_eq(te__alloc_live(), live);
}
END_TEST

/* see a_host_call_can_fail_its_stream: a CUDA stream cannot be made to fail like this */
START_TEST(ctx_sync_tells_the_first_failure)
{
	DO(te_ctx_sync(ctx));
	DO(te_host_call(su, fail_full, NULL, 0));
	if (!is_host) {
		DO(te_ctx_sync(ctx));
		return;
	}
	ck_assert_int_eq(te_ctx_sync(ctx), -ENOSPC);
	tt_said("the disk of rank 3 is full");
	ck_assert_int_eq(te_stream_sync(su), -ENOSPC);
	DO(te_stream_sync(st));
}
END_TEST

static Suite *whole(const char *name)
{
	Suite *s = suite_create(name);
	TCase *c;

#define CASE(title)                                         \
	do {                                                \
		c = tt_case(s, title, "backend");           \
		tcase_add_checked_fixture(c, setup, teardown); \
	} while (0)
	CASE("device");
	tcase_add_test(c, describes_its_device);
	tcase_add_test(c, refuses_a_device_that_is_not_there);
	tcase_add_test(c, opens_a_device_twice);
	tcase_add_test(c, counts_its_memory);
	tcase_add_test(c, shows_native_streams);
	CASE("memory");
	tcase_add_test(c, allocations_are_aligned_and_apart);
	tcase_add_test(c, memory_comes_and_goes_in_stream_order);
	tcase_add_test(c, too_much_is_refused_with_the_sizes);
	tcase_add_test(c, pinned_memory_is_the_cpus);
	tcase_add_test(c, too_much_pinned_memory_is_refused);
	CASE("streams");
	tcase_add_test(c, work_of_a_stream_runs_in_order);
	tcase_add_test(c, calls_return_before_the_work_is_done);
	tcase_add_test(c, query_tells_busy_from_idle);
	tcase_add_test(c, streams_run_beside_each_other);
	tcase_add_test(c, takes_more_work_than_a_queue_holds);
	tcase_add_test(c, a_destroyed_stream_finishes_its_work);
	tcase_add_test(c, threads_use_streams_of_their_own);
	CASE("events");
	tcase_add_test(c, a_wait_orders_two_streams);
	tcase_add_test(c, an_event_is_reached_after_the_work_before_it);
	tcase_add_test(c, an_event_never_recorded_is_reached);
	tcase_add_test(c, recording_again_moves_an_event);
	tcase_add_test(c, an_older_record_does_not_come_back);
	tcase_add_test(c, elapsed_time_is_what_passed);
	tcase_add_test(c, a_destroyed_event_still_orders);
	CASE("work");
	tcase_add_loop_test(c, copies_between_all_kinds_of_memory, 0, NPLACES * NPLACES);
	tcase_add_test(c, copies_megabytes);
	tcase_add_test(c, no_bytes_are_no_work);
	tcase_add_test(c, fills_bytes_and_no_more);
	tcase_add_test(c, fills_words_and_no_more);
	tcase_add_test(c, a_host_call_gets_a_copy);
	tcase_add_test(c, a_host_call_without_bytes_gets_the_pointer);
	tcase_add_test(c, a_launch_runs_the_kernel);
	tcase_add_test(c, host_calls_run_between_kernels);
	tcase_add_test(c, a_kernel_that_is_not_there_is_refused);
	tcase_add_test(c, a_host_call_can_fail_its_stream);
	CASE("captures");
	tcase_add_test(c, nothing_runs_while_capturing);
	tcase_add_test(c, counts_nodes_of_every_kind);
	tcase_add_test(c, an_empty_capture_is_a_graph);
	tcase_add_test(c, replay_gives_the_bits_of_eager_work);
	tcase_add_test(c, a_graph_has_many_execs_that_run_anywhere);
	tcase_add_test(c, an_exec_that_runs_can_be_destroyed);
	tcase_add_test(c, launches_keep_the_order_of_their_stream);
	tcase_add_test(c, streams_fork_and_join_by_events);
	tcase_add_test(c, a_branch_may_be_joined_without_more_work);
	tcase_add_test(c, a_capture_inside_a_capture_is_refused);
	tcase_add_test(c, an_end_without_a_begin_is_refused);
	tcase_add_test(c, what_cannot_be_captured_is_refused_and_spoils_nothing);
	tcase_add_test(c, an_event_of_a_capture_is_no_moment);
	tcase_add_test(c, a_branch_that_is_not_joined_fails_the_end);
	tcase_add_test(c, a_capture_does_not_wait_for_what_is_outside);
	tcase_add_test(c, captures_do_not_merge);
	tcase_add_test(c, a_stream_that_captures_can_be_destroyed);
	tcase_add_test(c, a_recorded_host_call_can_fail_its_stream);
	CASE("faults");
	tcase_add_test(c, each_row_fails_cleanly);
	tcase_add_test(c, opening_fails_cleanly);
#undef CASE
	c = tt_case(s, "public", "backend");
	tcase_add_checked_fixture(c, setup_ctx, teardown_ctx);
	tcase_add_test(c, a_capture_refuses_what_needs_a_result_now);
	tcase_add_loop_test(c, a_failed_call_spoils_a_capture, 0, 2);
	tcase_add_test(c, a_stream_destroyed_in_a_capture_spoils_it);
	tcase_add_test(c, an_event_never_recorded_joins_nobody);
	tcase_add_test(c, memory_is_checked_before_the_backend_sees_it);
	tcase_add_test(c, launches_are_checked_before_the_backend_sees_them);
	tcase_add_test(c, workspaces_are_given_whole);
	tcase_add_test(c, contexts_do_not_mix);
	tcase_add_test(c, nulls_are_refused);
	tcase_add_test(c, memory_is_accounted_for);
	tcase_add_test(c, a_context_lives_as_long_as_what_is_on_it);
	tcase_add_test(c, ctx_sync_tells_the_first_failure);
	return s;
}

Suite *backend_suite(const char *name, const char *on)
{
	backend = on;
	return whole(name);
}
