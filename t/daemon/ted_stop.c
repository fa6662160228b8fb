/*
 * t/daemon/ted_stop.c - ted(8) and clients that are stopped, say nothing, or read nothing.
 *
 * TED_STOP_MS is how long they are stopped: as long as the test takes; 60000 is a minute.
 */
#include "config.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <te/errno.h>

#include "libtecore/base/private.h"
#include "libtecore/offload/spill_io.h"
#include "tt_ted.h"

static int stop_ms(void)
{
	const char *env = getenv("TED_STOP_MS");

	return env ? atoi(env) : 200;
}

static int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* stops the process; it is stopped when this returns */
static void stop(pid_t pid)
{
	int status;

	ck_assert_int_eq(kill(pid, SIGSTOP), 0);
	ck_assert_int_eq(waitpid(pid, &status, WUNTRACED), pid);
	ck_assert(WIFSTOPPED(status));
}

static struct te__wire fence_of(uint32_t wait_ms)
{
	struct te__wire m = message(TE__WIRE_FENCE);

	m.wait_ms = wait_ms;
	return m;
}

/* ---- a client ---- */

/* rank 1, which is stopped after it has published and while it waits for a value */
static void be_rank_1(void)
{
	const int s = join(&run, key, 1, 2), fd = memory("of rank 1");
	char got[16] = "";
	size_t n;

	if (publish(s, 5, 9, fd) || get(s, "value", 600000, got, sizeof(got), &n) ||
	    strcmp(got, "of rank 0") || fence(s, 600000) || fence(s, 600000) || bye(s, 0, ""))
		_exit(1);
	_exit(0);
}

START_TEST(a_client_that_is_stopped_goes_on_and_delays_no_other)
{
	struct te__wire m;
	const int64_t begin = now_ms();
	uint64_t n;
	int a, child, status, fd, r = 0;

	run_begin("");
	child = fork();
	if (!child)
		be_rank_1();
	a = join(&run, key, 0, 2);
	ck_assert_int_eq(fetch(a, 5, 600000, &n, &fd), 0);
	close(fd);
	stop(child);
	ck_assert_int_eq(put(a, "value", "of rank 0", 10), 0);
	/* others are served for as long as it is stopped, and what it published can be fetched */
	for (int i = 0; i < 3 || now_ms() < begin + stop_ms(); i++) {
		const int other = join(&run, key, TE__WIRE_NO_RANK, 0);

		ck_assert_int_eq(fetch(other, 5, 0, &n, &fd), 0);
		close(fd);
		close(other);
		r = fence(a, (uint32_t)stop_ms() / 4 + 1);
		ck_assert_int_eq(r, -ETIMEDOUT);
		ck_reply("1 of 2 ranks are missing: 1");
	}
	ck_assert_int_eq(kill(child, SIGCONT), 0);
	m = fence_of(600000);
	for (int i = 0; i < 2; i++) {
		send_only(a, m);
		ck_assert_int_eq(next(a, &m, NULL, NULL), 1);
		ck_assert_int_eq(m.code, 0);
		m = fence_of(600000);
	}
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert_int_eq(status, 0);
	close(a);
	run_end(&run);
}
END_TEST

/* ---- ted ---- */

START_TEST(a_ted_that_is_stopped_goes_on)
{
	struct te__spill_ted *spill;
	struct te__wire m = message(TE__WIRE_GET), late = message(TE__WIRE_GET);
	struct te__wire_data value = { (char[16]){ 0 }, 16, 0 };
	const int shm = memory("x");
	int a, b, c, gone, file;
	size_t n;
	uint64_t nbytes;
	char got[8];

	run_begin("spill = /dev/shm\nspill_keep = 0\nspill_uid = 1M\n");
	a = join(&run, key, 0, 3);
	b = join(&run, key, 1, 3);
	c = join(&run, key, 2, 3);
	gone = join(&run, key, TE__WIRE_NO_RANK, 0);
	ck_assert_int_eq(te__spill_ted_open(run.sock, 1 << 20, &file, &spill), 0);
	strcpy(late.text, "never");
	late.wait_ms = 1;
	strcpy(m.text, "value");
	m.wait_ms = 600000;
	send_only(a, m);
	ck_assert_int_eq(get(b, "no such key", 0, got, sizeof(got), &n), -ENOENT);
	stop(run.pid);
	/* requests, an end, and a connection come meanwhile */
	send_only(c, late);
	m = message(TE__WIRE_PUT);
	strcpy(m.text, "value");
	ck_assert_int_eq(te__wire_send(b, &m, "stored", 7, -1), 0);
	close(gone);
	te__spill_ted_wrote(spill, 1000);
	gone = dial(&run);
	usleep((useconds_t)stop_ms() * 1000);
	ck_assert_int_eq(kill(run.pid, SIGCONT), 0);
	ck_assert_int_eq(next(b, &m, NULL, NULL), 1);
	ck_assert_int_eq(m.code, 0);
	ck_assert_int_eq(next(a, &m, &value, NULL), 1);
	ck_assert_str_eq(value.buf, "stored");
	ck_assert_int_eq(next(c, &m, NULL, NULL), 1);
	ck_assert_int_eq(m.code, -ETIMEDOUT);
	ck_assert_int_eq(hello(gone, key, TE__WIRE_NO_RANK, 0), 0);
	/* all is as before */
	ck_assert_int_eq(publish(a, 1, 1, shm), 0);
	ck_assert_int_eq(fetch(b, 1, 0, &nbytes, NULL), 0);
	ck_assert_int_eq(grant(b, 1, NULL), -EDQUOT);
	te__spill_ted_close(spill);
	close(file);
	m = fence_of(600000);
	send_only(a, m);
	send_only(b, m);
	ck_assert_int_eq(fence(c, 600000), 0);
	close(a);
	close(b);
	close(c);
	close(gone);
	close(shm);
	run_end(&run);
}
END_TEST

/* a request to a ted that is stopped ends at its deadline */
START_TEST(a_ted_that_is_stopped_is_not_waited_for)
{
	struct te__wire m = message(TE__WIRE_PUT);
	struct te__wire_call call = {
		.who = "ted", .what = "put", .late = "it does not answer", .fd = -1,
		.data = "x", .nbytes = 1,
	};

	run_begin("");
	call.sock = join(&run, key, 0, 1);
	stop(run.pid);
	call.deadline_ns = (now_ms() + 30) * 1000000;
	strcpy(m.text, "name");
	ck_assert_int_eq(te__wire_call(&call, &m), -ETIMEDOUT);
	ck_assert_str_eq(te_error_detail(), "put: it does not answer");
	close(call.sock);
	ck_assert_int_eq(kill(run.pid, SIGCONT), 0);
	run_end(&run);
}
END_TEST

/* ---- clients that say nothing ---- */

START_TEST(who_says_no_hello_is_disconnected)
{
	struct te__wire m = message(TE__WIRE_GET);
	int s[4], good;

	run_begin("hello_ms = 150\nclients = 5\n");
	good = join(&run, key, 0, 1);
	for (int i = 0; i < 4; i++)
		s[i] = dial(&run);
	/* an answer that it gets is no HELLO */
	send_only(s[0], m);
	ck_assert_int_eq(next(s[0], &m, NULL, NULL), 1);
	ck_assert_int_eq(m.code, -TE_ESTATE);
	for (int i = 0; i < 4; i++) {
		ck_assert_int_eq(next(s[i], &m, NULL, NULL), 1);
		ck_assert_int_eq(m.code, -ETIMEDOUT);
		ck_reply("no HELLO after 150 ms");
		ck_assert_int_eq(next(s[i], &m, NULL, NULL), 0);
		close(s[i]);
	}
	/* there is room for others, and who has said it stays */
	for (int i = 0; i < 4; i++)
		s[i] = join(&run, key, TE__WIRE_NO_RANK, 0);
	ck_assert_int_eq(put(good, "x", "y", 1), 0);
	for (int i = 0; i < 4; i++)
		close(s[i]);
	close(good);
	run_end(&run);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("daemon/ted_stop");
	TCase *c = tt_case(s, "stopped", "host serial");

	if (getenv("TED_STOP_MS"))
		tcase_set_timeout(c, 600);
	tcase_add_test(c, a_client_that_is_stopped_goes_on_and_delays_no_other);
	tcase_add_test(c, a_ted_that_is_stopped_goes_on);
	tcase_add_test(c, a_ted_that_is_stopped_is_not_waited_for);
	c = tt_case(s, "silent", "host serial");
	tcase_add_test(c, who_says_no_hello_is_disconnected);
	return s;
}

TT_MAIN("daemon/ted_stop", TT_NEED_NOTHING, suite)
