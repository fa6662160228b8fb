/*
 * t/daemon/ted_stop.c - ted(8) and clients that are stopped, say nothing, or read nothing.
 *
 * TED_STOP_MS is how long they are stopped: as long as the test takes; 60000 is a minute.
 */
#include "config.h"

#include <signal.h>
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

/* ---- a client ---- */

CASE(stopped, "host serial", .limit_s = getenv("TED_STOP_MS") ? 600 : 0);

TEST(stopped, a_client_that_is_stopped_goes_on_and_delays_no_other)
{
	const int64_t begin = now_ms();
	int a, child, status, ready[2];
	char byte;

	run_begin("spill = @\nspill_keep = 0\n");
	ck_assert_int_eq(pipe(ready), 0);
	child = fork();
	if (!child) {
		/* it is stopped between a request and its reply */
		struct te__wire m = message(TE__WIRE_JOBS);
		const int s = join(&run, key);

		send_only(s, m);
		if (write(ready[1], "", 1) != 1)
			_exit(1);
		raise(SIGSTOP);
		_exit(next(s, &m, NULL, NULL) != 1 || m.code || grant(s, 1, NULL));
	}
	ck_assert_int_eq((int)read(ready[0], &byte, 1), 1);
	ck_assert_int_eq(waitpid(child, &status, WUNTRACED), child);
	ck_assert(WIFSTOPPED(status));
	a = join(&run, key);
	/* others are served for as long as it is stopped */
	for (int i = 0; i < 3 || now_ms() < begin + stop_ms(); i++) {
		const int other = join(&run, key);

		ck_assert_int_eq(grant(other, 1, NULL), 0);
		ck_assert_int_eq(ping(a), 0);
		close(other);
	}
	ck_assert_int_eq(kill(child, SIGCONT), 0);
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert_int_eq(status, 0);
	close(ready[0]);
	close(ready[1]);
	close(a);
	run_end(&run);
}

/* ---- ted ---- */

TEST(stopped, a_ted_that_is_stopped_goes_on)
{
	struct te__spill_ted *spill;
	struct te__wire m = message(TE__WIRE_JOBS);
	int a, b, gone, file;

	run_begin("spill = @\nspill_keep = 0\nspill_uid = 1M\n");
	a = join(&run, key);
	b = join(&run, key);
	gone = join(&run, key);
	ck_assert_int_eq(te__spill_ted_open(run.sock, 1 << 20, &file, &spill), 0);
	stop(run.pid);
	/* requests, an end, and a connection come meanwhile */
	send_only(a, m);
	m = message(TE__WIRE_GRANT);
	m.nbytes = 1;
	send_only(b, m);
	close(gone);
	te__spill_ted_wrote(spill, 1000);
	gone = dial(&run);
	usleep((useconds_t)stop_ms() * 1000);
	ck_assert_int_eq(kill(run.pid, SIGCONT), 0);
	ck_assert_int_eq(next(a, &m, NULL, NULL), 1);
	ck_assert_int_eq(m.code, 0);
	ck_assert_int_eq(next(b, &m, NULL, NULL), 1);
	ck_assert_int_eq(m.code, -EDQUOT);
	ck_assert_int_eq(hello(gone, key), 0);
	/* all is as before */
	te__spill_ted_close(spill);
	close(file);
	ck_assert_int_eq(ping(a), 0);
	close(a);
	close(b);
	close(gone);
	run_end(&run);
}

/* a request to a ted that is stopped ends at its deadline */
TEST(stopped, a_ted_that_is_stopped_is_not_waited_for)
{
	struct te__wire m = message(TE__WIRE_REVOKE);
	struct te__wire_call call = {
		.who = "ted", .what = "revoke", .late = "it does not answer", .fd = -1,
	};

	run_begin("");
	call.sock = join(&run, key);
	stop(run.pid);
	call.deadline_ns = (now_ms() + 30) * 1000000;
	ck_assert_int_eq(te__wire_call(&call, &m), -ETIMEDOUT);
	ck_assert_str_eq(te_error_detail(), "revoke: it does not answer");
	close(call.sock);
	ck_assert_int_eq(kill(run.pid, SIGCONT), 0);
	run_end(&run);
}

/* the process that starts it, such as a supervisor, may block all signals */
TEST_EACH(stopped, blocked_signals_end_it, 2)
{
	static const int signals[] = { SIGTERM, SIGINT };
	sigset_t all, before;

	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, &before);
	run_begin("spill = @\nspill_keep = 0\n");
	sigprocmask(SIG_SETMASK, &before, NULL);
	ck_assert_int_eq(run_stop(&run, signals[_i]), 0);
	run_end(&run);
}

/* ---- clients that say nothing ---- */

CASE(silent, "host serial");

TEST(silent, who_says_no_hello_is_disconnected)
{
	struct te__wire m = message(TE__WIRE_GRANT);
	int s[4], good;

	run_begin("hello_ms = 150\nclients = 5\n");
	good = join(&run, key);
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
		s[i] = join(&run, key);
	ck_assert_int_eq(ping(good), 0);
	for (int i = 0; i < 4; i++)
		close(s[i]);
	close(good);
	run_end(&run);
}

TT_MAIN("daemon/ted_stop", TT_NEED_NOTHING)
