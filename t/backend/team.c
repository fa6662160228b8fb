/* t/backend/team.c - te__k_for of the host backend: parts of a range on the threads of a device. */
#include "config.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "kernels/kernels.h"
#include "kernels/team.h"
#include "libtecore/base/private.h"
#include "tt_ctx.h"
#include "tt_gate.h"

#define MOST 3000
#define MAX_MS 20000

static const struct {
	int64_t n, grain;
} ranges[] = {
	{ 0, 1 }, { 1, 1 },    { 2, 1 },     { 7, 8 },	  { 8, 8 },
	{ 9, 8 }, { 1000, 1 }, { MOST, 64 }, { MOST, 7 },
};
static const char *const nthreads[] = { "1", "2", "3", "8" };

/* what a host call gets: units of its range that have been visited */
struct range {
	int64_t n, grain;
	atomic_int *times;
	struct range *inner; /* each part splits this one too */
};

static void visit(void *arg, int64_t begin, int64_t end)
{
	const struct range *r = arg;

	if (begin % r->grain || (end % r->grain && end != r->n) || begin >= end)
		atomic_fetch_add(&r->times[MOST], 1);
	for (int64_t i = begin; i < end; i++)
		atomic_fetch_add(&r->times[i], 1);
	if (r->inner)
		te__k_for(r->inner->n, r->inner->grain, visit, r->inner);
}

static void split(void *arg)
{
	const struct range *r = arg;

	te__k_for(r->n, r->grain, visit, (void *)(uintptr_t)r);
}

static void check_visits(const struct range *r, int want)
{
	for (int64_t i = 0; i <= MOST; i++)
		ck_assert_msg(atomic_load(&r->times[i]) == (i < r->n ? want : 0),
			      "%d of %d in grains of %d: unit %d: visited %d times", (int)i,
			      (int)r->n, (int)r->grain, (int)i, atomic_load(&r->times[i]));
}

static void open_with(const char *n)
{
	setenv("TE_HOST_THREADS", n, 1);
	tt_setup();
}

CASE(team, "host");

TEST_EACH(team, each_unit_is_in_one_part, TT_LEN(nthreads))
{
	atomic_int *times = calloc(MOST + 1, sizeof(*times));

	ck_assert_ptr_nonnull(times);
	open_with(nthreads[_i]);
	for (size_t k = 0; k < TT_LEN(ranges); k++) {
		struct range r = { ranges[k].n, ranges[k].grain, times, NULL };

		for (int again = 0; again < 20; again++) {
			memset(times, 0, (MOST + 1) * sizeof(*times));
			DO(te_host_call(st, split, &r, sizeof(r)));
			DO(te_stream_sync(st));
			check_visits(&r, 1);
		}
	}
	free(times);
	tt_teardown();
}

#define NSTREAMS 3
#define NCALLS 40

/* parts that split further, of several streams at once: each caller can finish alone */
TEST_EACH(team, ranges_nest_and_streams_share_the_helpers, TT_LEN(nthreads))
{
	atomic_int *times = calloc(2 * NSTREAMS * (MOST + 1), sizeof(*times));
	struct range inner[NSTREAMS], outer[NSTREAMS];
	struct te_stream *s[NSTREAMS];

	ck_assert_ptr_nonnull(times);
	open_with(nthreads[_i]);
	for (int i = 0; i < NSTREAMS; i++) {
		inner[i] = (struct range){ 50, 3, times + 2 * i * (MOST + 1), NULL };
		outer[i] = (struct range){ 64, 64, times + (2 * i + 1) * (MOST + 1), &inner[i] };
		DO(te_stream_create(ctx, &s[i]));
	}
	for (int k = 0; k < NCALLS; k++)
		for (int i = 0; i < NSTREAMS; i++)
			DO(te_host_call(s[i], split, &outer[i], sizeof(outer[i])));
	for (int i = 0; i < NSTREAMS; i++) {
		DO(te_stream_sync(s[i]));
		check_visits(&inner[i], NCALLS);
		check_visits(&outer[i], NCALLS);
		te_stream_unref(s[i]);
	}
	free(times);
	tt_teardown();
}

static atomic_int arrived, met;

/* returns once another part has begun too */
static void meet_part(void *arg, int64_t begin, int64_t end)
{
	atomic_fetch_add(&arrived, 1);
	for (int ms = 0; ms < MAX_MS && atomic_load(&arrived) < 2; ms++)
		tt_sleep_ms(1);
	if (atomic_load(&arrived) >= 2)
		atomic_fetch_add(&met, 1);
}

static void meet(void *arg)
{
	te__k_for(2, 1, meet_part, NULL);
}

TEST(team, helpers_execute_parts)
{
	open_with("2");
	for (int i = 0; i < 20; i++) {
		atomic_store(&arrived, 0);
		atomic_store(&met, 0);
		DO(te_host_call(st, meet, NULL, 0));
		DO(te_stream_sync(st));
		ck_assert_int_eq(atomic_load(&met), 2);
	}
	tt_teardown();
}

/* the last part fails, on whatever thread */
static void fail_part(void *arg, int64_t begin, int64_t end)
{
	const int64_t n = *(const int64_t *)arg;

	tt_sleep_ms(1);
	if (begin < n && end == n)
		te__k_fail(te__fail(-EDOM, "part %d of the range is bad", (int)n - 1));
}

static void split_badly(void *arg)
{
	te__k_for(*(const int64_t *)arg, 1, fail_part, arg);
}

TEST_EACH(team, a_part_that_fails_fails_the_stream, TT_LEN(nthreads))
{
	open_with(nthreads[_i]);
	for (int64_t n = 1; n < 40; n += 4) {
		char want[80];
		struct te_stream *s;

		DO(te_stream_create(ctx, &s));
		DO(te_host_call(s, split_badly, &n, sizeof(n)));
		snprintf(want, sizeof(want), "part %d of the range is bad", (int)n - 1);
		fails(te_stream_sync(s), -EDOM, want);
		te_stream_unref(s);
	}
	tt_teardown();
}

TEST(team, threads_of_the_program_get_no_helper)
{
	atomic_int *times = calloc(MOST + 1, sizeof(*times));
	struct range r = { MOST, 1, times, NULL };

	ck_assert_ptr_nonnull(times);
	open_with("8");
	split(&r);
	check_visits(&r, 1);
	free(times);
	tt_teardown();
}

/* a thread of the library that took it would end the process */
TEST(team, signals_are_for_threads_of_the_program)
{
	const struct timespec most = { .tv_sec = 20 };
	sigset_t set, old;

	open_with("2");
	DO(te_host_call(st, meet, NULL, 0));
	DO(te_stream_sync(st));
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, &set, &old);
	ck_assert_int_eq(kill(getpid(), SIGUSR1), 0);
	ck_assert_int_eq(sigtimedwait(&set, NULL, &most), SIGUSR1);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	tt_teardown();
}

TT_MAIN("backend/team", TT_NEED_NOTHING)
