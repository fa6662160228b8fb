/* t/daemon/ted.c - ted(8): store, fences, descriptors, limits, restart, sockets, any bytes. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <te/errno.h>

#include "daemon/ted.h"
#include "tt_ted.h"
#include "tt_wire.h"

static void ck_memory(int fd, const char *text)
{
	char got[64] = "";

	ck_assert_int_eq((int)pread(fd, got, sizeof(got) - 1, 0), (int)strlen(text));
	ck_assert_str_eq(got, text);
}

/* waits until the client's request waits: the reply to another's later request says so */
static void settle(int other)
{
	size_t n;
	char buf[8];

	ck_assert_int_eq(get(other, "no such key", 0, buf, sizeof(buf), &n), -ENOENT);
}

/* ---- store ---- */

START_TEST(values_come_back)
{
	static const size_t sizes[] = { 0, 1, 255, 4097, TE__WIRE_DATA_MAX };
	static uint8_t value[TT_LEN(sizes)][TE__WIRE_DATA_MAX], got[TE__WIRE_DATA_MAX];
	char name[32];
	size_t n;
	int a, b;

	run_begin("");
	a = join(&run, key, 0, 2);
	b = join(&run, key, 1, 2);
	for (size_t i = 0; i < TT_LEN(sizes); i++) {
		tt_fill_bytes(value[i], sizes[i]);
		snprintf(name, sizeof(name), "name %zu", i * 7 % TT_LEN(sizes));
		ck_assert_int_eq(put(a, name, value[i], sizes[i]), 0);
	}
	for (size_t i = TT_LEN(sizes); i-- > 0;) {
		tt_poison(got, sizeof(got));
		snprintf(name, sizeof(name), "name %zu", i * 7 % TT_LEN(sizes));
		ck_assert_int_eq(get(b, name, 0, got, sizeof(got), &n), 0);
		ck_assert_uint_eq(n, sizes[i]);
		ck_assert_mem_eq(got, value[i], n);
		ck_assert(tt_is_poison(got + n, sizeof(got) - n));
	}
	/* a value is replaced */
	ck_assert_int_eq(put(b, "name 0", "other", 5), 0);
	ck_assert_int_eq(get(a, "name 0", 0, got, sizeof(got), &n), 0);
	ck_assert_uint_eq(n, 5);
	ck_assert_mem_eq(got, "other", 5);
	/* other jobs have other values */
	close(a);
	make_key(key);
	a = join(&run, key, 0, 1);
	ck_assert_int_eq(get(a, "name 0", 0, got, sizeof(got), &n), -ENOENT);
	ck_reply("there is no key name 0");
	close(a);
	close(b);
	run_end(&run);
}
END_TEST

START_TEST(a_get_waits_for_the_put)
{
	struct te__wire m = message(TE__WIRE_GET);
	char got[16] = "";
	struct te__wire_data data = { got, sizeof(got), 0 };
	size_t n;
	int a, b;

	run_begin("");
	a = join(&run, key, 0, 2);
	b = join(&run, key, 1, 2);
	strcpy(m.text, "late");
	m.wait_ms = 20000;
	send_only(b, m);
	settle(a);
	ck_assert_int_eq(put(a, "later", "x", 1), 0);
	ck_assert_int_eq(put(a, "late", "value", 6), 0);
	ck_assert_int_eq(next(b, &m, &data, NULL), 1);
	ck_assert_int_eq(m.code, 0);
	ck_assert_str_eq(got, "value");
	/* and not for ever */
	ck_assert_int_eq(get(b, "never", 3, got, sizeof(got), &n), -ETIMEDOUT);
	ck_reply("after 3 ms there is no key never");
	close(a);
	close(b);
	run_end(&run);
}
END_TEST

START_TEST(a_job_holds_no_more_than_its_limits)
{
	static const uint8_t value[4000];
	char name[16];
	int a;

	run_begin("keys = 3\nstore = 4096\nfds = 2\n");
	a = join(&run, key, 0, 1);
	ck_assert_int_eq(put(a, "0", value, sizeof(value)), 0);
	ck_assert_int_eq(put(a, "1", value, 97), -ENOSPC);
	ck_reply("would have 4097 bytes, the limit is 4096 (store)");
	ck_assert_int_eq(put(a, "0", value, 90), 0);
	for (int i = 1; i < 3; i++) {
		snprintf(name, sizeof(name), "%d", i);
		ck_assert_int_eq(put(a, name, value, 97), 0);
	}
	ck_assert_int_eq(put(a, "3", value, 0), -ENOSPC);
	ck_reply("3 keys, the limit (keys)");
	ck_assert_int_eq(put(a, "", value, 0), -EINVAL);
	for (int i = 0; i < 3; i++) {
		const int fd = memory("x");

		ck_assert_int_eq(publish(a, (uint32_t)i, 1, fd), i < 2 ? 0 : -ENOSPC);
		close(fd);
	}
	ck_reply("2 descriptors here, the limit (fds)");
	close(a);
	run_end(&run);
}
END_TEST

/* ---- fences ---- */

START_TEST(a_fence_ends_when_all_have_come)
{
	enum { N = 5 };
	struct te__wire m = message(TE__WIRE_FENCE);
	int s[N];

	run_begin("");
	for (int i = 0; i < N; i++)
		s[i] = join(&run, key, (uint32_t)i, N);
	m.wait_ms = 20000;
	for (int round = 0; round < 3; round++) {
		const int last = (int)tt_rand_int(0, N - 1);
		char byte;

		for (int i = 0; i < N; i++)
			if (i != last)
				send_only(s[i], m);
		settle(s[last]);
		for (int i = 0; i < N; i++)
			ck_assert_int_eq((int)recv(s[i], &byte, 1, MSG_DONTWAIT | MSG_PEEK), -1);
		ck_assert_int_eq(fence(s[last], 20000), 0);
		for (int i = 0; i < N; i++) {
			struct te__wire r;

			if (i == last)
				continue;
			ck_assert_int_eq(next(s[i], &r, NULL, NULL), 1);
			ck_assert_int_eq(r.code, 0);
		}
	}
	for (int i = 0; i < N; i++)
		close(s[i]);
	run_end(&run);
}
END_TEST

START_TEST(a_fence_names_the_missing_ranks)
{
	struct te__wire m = message(TE__WIRE_FENCE);
	int a, b, c;

	run_begin("");
	a = join(&run, key, 0, 9);
	b = join(&run, key, 2, 9);
	c = join(&run, key, 3, 9);
	ck_assert_int_eq(bye(c, 0, ""), 0);
	ck_assert_int_eq(fence(a, 5), -ETIMEDOUT);
	ck_reply("after 5 ms 8 of 9 ranks are missing: 1 (has not connected), 2, 3 (has left), "
		 "4 (has not connected), 5 (has not connected) and 3 more");
	/* the client that was late may try again */
	ck_assert_int_eq(fence(b, 1), -ETIMEDOUT);
	ck_reply("8 of 9 ranks are missing: 0, 1");
	/* the first time-out counts for all that wait */
	m.wait_ms = 20000;
	send_only(b, m);
	settle(a);
	ck_assert_int_eq(fence(a, 5), -ETIMEDOUT);
	ck_reply("after 5 ms 7 of 9 ranks are missing: 1 (has not");
	ck_assert_int_eq(next(b, &m, NULL, NULL), 1);
	ck_assert_int_eq(m.code, -ETIMEDOUT);
	ck_reply("after 5 ms 7 of 9 ranks are missing: 1 (has not");
	close(a);
	close(b);
	close(c);
	/* a client that is no rank has no part in it */
	make_key(key);
	a = join(&run, key, TE__WIRE_NO_RANK, 0);
	ck_assert_int_eq(fence(a, 1), -EINVAL);
	close(a);
	run_end(&run);
}
END_TEST

/* ---- descriptors ---- */

START_TEST(descriptors_pass_between_clients)
{
	struct te__wire m = message(TE__WIRE_FETCH);
	struct stat first, second;
	const int fd = memory("first"), fd2 = memory("second");
	uint64_t n;
	int a, b, got, again, before;

	run_begin("");
	a = join(&run, key, 0, 2);
	b = join(&run, key, 1, 2);
	before = nfds_of(run.pid);
	ck_assert_int_eq(publish(a, 7, 12345, fd), 0);
	ck_assert_int_eq(fetch(b, 7, 0, &n, &got), 0);
	ck_assert_uint_eq(n, 12345);
	ck_memory(got, "first");
	ck_assert(fcntl(got, F_GETFD) & FD_CLOEXEC);
	/* once more: the same memory by another descriptor */
	ck_assert_int_eq(fetch(b, 7, 0, &n, &again), 0);
	ck_assert_int_ne(again, got);
	fstat(got, &first);
	fstat(again, &second);
	ck_assert_uint_eq(first.st_ino, second.st_ino);
	close(again);
	ck_assert_int_eq(fetch(b, 8, 0, &n, &again), -ENOENT);
	ck_assert_int_eq(again, -1);
	ck_assert_int_eq(fetch(b, 8, 2, &n, &again), -ETIMEDOUT);
	ck_reply("after 2 ms item 8 is not published");
	/* before it is published */
	m.item = 8;
	m.wait_ms = 20000;
	send_only(b, m);
	settle(a);
	ck_assert_int_eq(publish(a, 8, 6, fd2), 0);
	ck_assert_int_eq(next(b, &m, NULL, &again), 1);
	ck_assert_uint_eq(m.nbytes, 6);
	ck_memory(again, "second");
	ck_assert_int_eq(publish(b, 8, 6, fd2), -EEXIST);
	ck_assert_int_eq(publish(a, 9, 6, -1), -EINVAL);
	ck_reply("without a file descriptor");
	ck_assert_int_eq(publish(a, 9, 6, b), -EINVAL);
	ck_reply("is not of memory");
	ck_nfds(&run, before + 2);
	ck_assert_int_eq(bye(a, 0, ""), 0);
	close(a);
	/* what the client has published has left with it; what was fetched stays */
	ck_assert_int_eq(fetch(b, 7, 0, &n, NULL), -ENOENT);
	ck_nfds(&run, before - 1);
	ck_memory(got, "first");
	close(got);
	close(again);
	close(fd);
	close(fd2);
	close(b);
	run_end(&run);
}
END_TEST

START_TEST(a_client_that_is_killed_fails_its_job)
{
	struct te__wire m = message(TE__WIRE_FETCH);
	const int fd = memory("x");
	int a, b, child, before, got = -1;

	run_begin("");
	a = join(&run, key, 0, 3);
	before = nfds_of(run.pid);
	child = fork();
	if (!child) {
		b = join(&run, key, 1, 3);
		if (publish(b, 1, 1, fd))
			_exit(1);
		kill(getpid(), SIGKILL);
	}
	m.item = 2;
	m.wait_ms = 20000;
	send_only(a, m);
	/* the fetch of another item: the error names the rank */
	ck_assert_int_eq(next(a, &m, NULL, &got), 1);
	ck_assert_int_eq(m.code, -TE_EPEER);
	ck_reply("rank 1 has ended");
	ck_assert_int_eq(got, -1);
	ck_assert_int_eq(put(a, "x", "y", 1), -TE_EPEER);
	/* no rank can join any more, until all have left: then the key is as new */
	b = dial(&run);
	ck_assert_int_eq(hello(b, key, 2, 3), -TE_EPEER);
	close(b);
	ck_nfds(&run, before);
	ck_assert_int_eq(bye(a, 0, ""), 0);
	close(a);
	a = join(&run, key, 0, 2);
	b = join(&run, key, 1, 2);
	ck_assert_int_eq(put(a, "x", "y", 1), 0);
	/* a rank that aborts says why */
	m = message(TE__WIRE_FENCE);
	m.wait_ms = 20000;
	send_only(a, m);
	settle(b);
	ck_assert_int_eq(bye(b, -5, "gives up: no more paper"), 0);
	ck_assert_int_eq(next(a, &m, NULL, NULL), 1);
	ck_assert_int_eq(m.code, -TE_EABORT);
	ck_reply("rank 1 gives up: no more paper");
	close(a);
	close(b);
	close(fd);
	run_end(&run);
}
END_TEST

/* a rank that polls memory learns it too, without a request */
START_TEST(the_abort_page_says_that_a_rank_has_ended)
{
	enum { N = 3 };
	struct te__wire m = message(TE__WIRE_CONTROL);
	volatile uint32_t *page[2];
	int s[N], fd, other;

	run_begin("");
	other = join(&run, key, TE__WIRE_NO_RANK, 0);
	ck_assert_int_eq(call(other, &m, NULL, 0, -1, NULL, &fd), -TE_ESTATE);
	ck_assert_int_eq(fd, -1);
	for (int i = 0; i < N; i++)
		s[i] = join(&run, key, (uint32_t)i, N);
	for (int i = 0; i < 2; i++) {
		m = message(TE__WIRE_CONTROL);
		ck_assert_int_eq(call(s[i], &m, NULL, 0, -1, NULL, &fd), 0);
		ck_assert_uint_eq(m.nbytes, N * sizeof(uint32_t));
		page[i] = mmap(NULL, m.nbytes, PROT_READ, MAP_SHARED, fd, 0);
		ck_assert_ptr_ne((void *)(uintptr_t)page[i], MAP_FAILED);
		for (int k = 0; k < N; k++)
			ck_assert_uint_eq(page[i][k], 0);
		/* a shorter page would crash ted */
		ck_assert_int_ne(ftruncate(fd, 0), 0);
		close(fd);
	}
	/* in order: nothing is wrong */
	ck_assert_int_eq(bye(s[1], 0, ""), 0);
	for (int k = 0; k < N; k++)
		ck_assert_uint_eq(page[0][k], 0);
	close(s[2]);
	ck_assert_int_eq(fence(s[0], 20000), -TE_EPEER);
	ck_reply("rank 2 has ended");
	for (int k = 0; k < N; k++) {
		ck_assert_uint_eq(page[0][k], TE_EPEER);
		ck_assert_uint_eq(page[1][k], TE_EPEER);
	}
	close(s[0]);
	close(s[1]);
	close(other);
	run_end(&run);
}
END_TEST

/* the job goes on without it */
START_TEST(the_end_of_ted_does_not_abort_a_job)
{
	enum { N = 3 };
	struct te__wire m = message(TE__WIRE_FENCE);
	volatile uint32_t *page;
	int s[N], fd;

	run_begin("");
	for (int i = 0; i < N; i++)
		s[i] = join(&run, key, (uint32_t)i, N);
	m.wait_ms = 20000;
	send_only(s[1], m);
	m = message(TE__WIRE_CONTROL);
	ck_assert_int_eq(call(s[0], &m, NULL, 0, -1, NULL, &fd), 0);
	page = mmap(NULL, m.nbytes, PROT_READ, MAP_SHARED, fd, 0);
	ck_assert_ptr_ne((void *)(uintptr_t)page, MAP_FAILED);
	close(fd);
	ck_assert_int_eq(run_stop(&run, SIGTERM), 0);
	/* the ranks get the end of the connection, also while they wait, and no error */
	for (int i = 0; i < N; i++) {
		ck_assert_uint_eq(page[i], 0);
		ck_assert_int_eq(next(s[i], &m, NULL, NULL), 0);
		close(s[i]);
	}
	run_end(&run);
}
END_TEST

/* ---- wrong requests ---- */

START_TEST(wrong_requests_are_answered)
{
	static const uint8_t zero[TE__WIRE_KEY_NBYTES];
	struct te__wire m = message(77);
	int a, b;

	run_begin("clients = 4\nclients_uid = 3\n");
	a = dial(&run);
	ck_assert_int_eq(put(a, "x", "y", 1), -TE_ESTATE);
	ck_reply("PUT before HELLO");
	ck_assert_int_eq(hello(a, zero, 0, 1), -EINVAL);
	ck_assert_int_eq(hello(a, key, 3, 3), -EINVAL);
	ck_reply("rank 3 of 3");
	ck_assert_int_eq(hello(a, key, 0, 5), -EINVAL);
	ck_assert_int_eq(hello(a, key, 0, 3), 0);
	ck_assert_int_eq(hello(a, key, 0, 3), -TE_ESTATE);
	b = dial(&run);
	ck_assert_int_eq(hello(b, key, 0, 3), -TE_EMISMATCH);
	ck_reply("rank 0 is connected already");
	ck_assert_int_eq(hello(b, key, 1, 2), -TE_EMISMATCH);
	ck_reply("the job has 3 ranks");
	/* kinds that are not known, or are replies */
	ck_assert_int_eq(call(a, &m, NULL, 0, -1, NULL, NULL), -EOPNOTSUPP);
	m = message(TE__WIRE_REPLY);
	ck_assert_int_eq(call(a, &m, NULL, 0, -1, NULL, NULL), -EOPNOTSUPP);
	m = message(TE__WIRE_GET);
	ck_assert_int_eq(call(a, &m, "data", 4, -1, NULL, NULL), -EINVAL);
	m = message(TE__WIRE_GET);
	ck_assert_int_eq(call(a, &m, NULL, 0, b, NULL, NULL), -EINVAL);
	ck_assert_int_eq(put(a, "x", "y", 1), 0);
	/* a second request before the reply */
	m = message(TE__WIRE_GET);
	strcpy(m.text, "never");
	m.wait_ms = 20000;
	send_only(a, m);
	m = message(TE__WIRE_PUT);
	ck_assert_int_eq(call(a, &m, NULL, 0, -1, NULL, NULL), -EPROTO);
	ck_assert_int_eq(next(a, &m, NULL, NULL), 0);
	close(a);
	close(b);
	run_end(&run);
}
END_TEST

START_TEST(connections_are_limited)
{
	struct te__wire m;
	int s[3], late;

	run_begin(_i ? "clients = 3\n" : "clients_uid = 3\n");
	for (int i = 0; i < 3; i++)
		s[i] = join(&run, key, (uint32_t)i, 3);
	late = dial(&run);
	ck_assert_int_eq(next(late, &m, NULL, NULL), 1);
	ck_assert_int_eq(m.code, -EBUSY);
	ck_reply(_i ? "3 clients, the limit is 3 (clients)" : "3 clients, the limit (clients_uid)");
	ck_assert_int_eq(next(late, &m, NULL, NULL), 0);
	close(late);
	ck_assert_int_eq(bye(s[1], 0, ""), 0);
	close(s[1]);
	s[1] = join(&run, key, 1, 3);
	for (int i = 0; i < 3; i++)
		close(s[i]);
	run_end(&run);
}
END_TEST

START_TEST(clients_that_say_nothing_are_dropped)
{
	struct te__wire m;
	int s;

	run_begin("hello_ms = 1\n");
	s = dial(&run);
	ck_assert_int_eq(next(s, &m, NULL, NULL), 1);
	ck_assert_int_eq(m.code, -ETIMEDOUT);
	ck_assert_ptr_nonnull(strstr(m.text, "no HELLO after 1 ms"));
	ck_assert_int_eq(next(s, &m, NULL, NULL), 0);
	close(s);
	run_end(&run);
}
END_TEST

START_TEST(descriptors_are_limited_by_the_process)
{
	const int fd = memory("x");
	uint64_t n;
	int a, got;

	run_init(&run, "clients = 8\n");
	/* as many as the clients and ted itself need, and 4 */
	run.nofile = 8 + 32 + 4;
	run_start(&run);
	a = join(&run, key, 0, 1);
	for (uint32_t i = 0; i < 4; i++)
		ck_assert_int_eq(publish(a, i, 1, fd), 0);
	ck_assert_int_eq(publish(a, 4, 1, fd), -EMFILE);
	ck_reply("there are 4 descriptors, the limit is 4 (RLIMIT_NOFILE)");
	ck_assert_int_eq(fetch(a, 3, 0, &n, &got), 0);
	close(got);
	close(a);
	ck_assert_int_eq(run_stop(&run, SIGTERM), 0);
	run.nofile = 8 + 31;
	ck_assert_int_eq(run_try(&run), 2);
	ck_assert_ptr_nonnull(strstr(run_log(&run), "clients = 8: the process may open 39 files"));
	close(fd);
	run_end(&run);
}
END_TEST

/* while it serves: whoever connects is told, and the others are served */
START_TEST(a_full_file_table_refuses_clients)
{
	struct rlimit few, old;
	struct te__wire m;
	int a, late;

	run_begin("");
	a = join(&run, key, 0, 1);
	few.rlim_cur = (rlim_t)nfds_of(run.pid) - 2; /* the folder has two entries of its own */
	ck_assert_int_eq(prlimit(run.pid, RLIMIT_NOFILE, NULL, &old), 0);
	few.rlim_max = old.rlim_max;
	ck_assert_int_eq(prlimit(run.pid, RLIMIT_NOFILE, &few, NULL), 0);
	for (int i = 0; i < 3; i++) {
		late = dial(&run);
		ck_assert_int_eq(next(late, &m, NULL, NULL), 1);
		ck_assert_int_eq(m.code, -EMFILE);
		ck_assert_str_eq(m.text, "ted has too many files open");
		ck_assert_int_eq(next(late, &m, NULL, NULL), 0);
		close(late);
		ck_assert_int_eq(put(a, i ? i > 1 ? "x" : "y" : "z", "1", 1), 0);
	}
	ck_assert_int_eq(prlimit(run.pid, RLIMIT_NOFILE, &old, NULL), 0);
	late = join(&run, key, TE__WIRE_NO_RANK, 0);
	close(late);
	close(a);
	run_end(&run);
}
END_TEST

/* ---- slow clients ---- */

START_TEST(slow_readers_are_dropped)
{
	enum { N = TT_FEWER(256), SLOW = TT_FEWER(64) };
	static uint8_t value[60000], got[sizeof(value)];
	struct te__wire m = message(TE__WIRE_GET);
	struct te__wire_data data = { got, sizeof(got), 0 };
	int s[N], slow[SLOW], before;
	size_t n;

	run_begin("");
	tt_fill_bytes(value, sizeof(value));
	s[0] = join(&run, key, 0, N);
	before = nfds_of(run.pid);
	ck_assert_int_eq(put(s[0], "x", value, sizeof(value)), 0);
	for (int i = 1; i < N; i++)
		s[i] = join(&run, key, (uint32_t)i, N);
	strcpy(m.text, "x");
	for (int i = 0; i < SLOW; i++) {
		slow[i] = join(&run, key, TE__WIRE_NO_RANK, 0);
		/* ted ends the connection before it has sent all replies: EPIPE */
		for (int k = 0; k < 100; k++)
			if (te__wire_send(slow[i], &m, NULL, 0, -1))
				break;
	}
	for (int i = 0; i < N; i++) {
		tt_poison(got, sizeof(got));
		ck_assert_int_eq(get(s[i], "x", 0, got, sizeof(got), &n), 0);
		ck_assert_uint_eq(n, sizeof(value));
		ck_assert_mem_eq(got, value, n);
	}
	ck_nfds(&run, before + N - 1);
	for (int i = 0; i < SLOW; i++) {
		int replies = 0;

		while (next(slow[i], &m, &data, NULL))
			replies++;
		ck_assert_int_ge(replies, 1);
		ck_assert_int_lt(replies, 100);
		close(slow[i]);
	}
	/* all others are there still */
	m = message(TE__WIRE_FENCE);
	m.wait_ms = 20000;
	for (int i = 1; i < N; i++)
		send_only(s[i], m);
	ck_assert_int_eq(fence(s[0], 20000), 0);
	for (int i = 0; i < N; i++)
		close(s[i]);
	run_end(&run);
}
END_TEST

/* those that are on their way are counted for the user of ted, and are few for all clients */
START_TEST(one_descriptor_is_on_its_way_to_a_client)
{
	struct te__wire m = message(TE__WIRE_FETCH);
	const int fd = memory("x");
	uint64_t n;
	int a, b, c, got, replies = 0;

	run_begin("clients = 3\n");
	a = join(&run, key, 0, 1);
	ck_assert_int_eq(publish(a, 0, 1, fd), 0);
	b = join(&run, key, TE__WIRE_NO_RANK, 0);
	for (int i = 0; i < 5; i++)
		if (te__wire_send(b, &m, NULL, 0, -1))
			break;
	/* it has left, but its descriptor is not read: it counts */
	c = join(&run, key, TE__WIRE_NO_RANK, 0);
	ck_assert_int_eq(fetch(c, 0, 0, &n, &got), 0);
	close(got);
	got = dial(&run);
	ck_assert_int_eq(next(got, &m, NULL, NULL), 1);
	ck_assert_int_eq(m.code, -EBUSY);
	close(got);
	while (next(b, &m, NULL, &got)) {
		ck_assert_int_ge(got, 0);
		close(got);
		replies++;
	}
	ck_assert_int_eq(replies, 1);
	/* and then no more, though its socket is open still: as soon as ted looks again */
	settle(c);
	got = join(&run, key, TE__WIRE_NO_RANK, 0);
	for (int i = 0; i < 20; i++) {
		int again;

		ck_assert_int_eq(fetch(got, 0, 0, &n, &again), 0);
		close(again);
	}
	close(got);
	close(a);
	close(b);
	close(c);
	close(fd);
	run_end(&run);
}
END_TEST

START_TEST(stores_are_limited_together)
{
	static const uint8_t value[4000];
	uint8_t other[TE__WIRE_KEY_NBYTES];
	int a, b;

	run_begin("store = 4096\nstore_all = 5000\n");
	make_key(other);
	a = join(&run, key, 0, 1);
	b = join(&run, other, 0, 1);
	ck_assert_int_eq(put(a, "x", value, sizeof(value)), 0);
	/* a name counts too */
	ck_assert_int_eq(put(b, "x", value, 489), -ENOSPC);
	ck_reply("PUT: 745 bytes more, but there are 4256 bytes in stores, the limit is 5000 "
		 "(store_all)");
	ck_assert_int_eq(put(b, "x", value, 488), 0);
	ck_assert_int_eq(put(a, "x", value, sizeof(value)), 0);
	ck_assert_int_eq(put(b, "y", value, 0), -ENOSPC);
	/* what a job has ends with it */
	ck_assert_int_eq(bye(a, 0, ""), 0);
	ck_assert_int_eq(put(b, "x", value, sizeof(value)), 0);
	close(a);
	close(b);
	run_end(&run);
}
END_TEST

/* ---- restart ---- */

START_TEST(clients_survive_a_restart)
{
	struct ted_run second;
	struct te__wire m = message(TE__WIRE_HELLO);
	char first[208], want[160];
	const int fd = memory("kept");
	uint64_t n;
	int a, b, got, pid;

	run_begin("");
	a = join(&run, key, 0, 2);
	strcpy(first, reply_text);
	ck_assert_uint_eq(strlen(first), 32);
	b = join(&run, key, 1, 2);
	ck_assert_int_eq(publish(a, 1, 4, fd), 0);
	ck_assert_int_eq(fetch(b, 1, 0, &n, &got), 0);
	/* a second one at the same socket is refused, as long as the first one lives */
	second = run;
	pid = run.pid;
	ck_assert_int_eq(run_try(&second), 1);
	snprintf(want, sizeof(want), "sock is served by another ted, process %d", pid);
	ck_assert_ptr_nonnull(strstr(run_log(&run), want));
	/* in the middle of requests */
	m = message(TE__WIRE_FENCE);
	m.wait_ms = 20000;
	send_only(a, m);
	ck_assert_int_eq(run_stop(&run, SIGKILL), -SIGKILL);
	ck_assert_int_eq(next(a, &m, NULL, NULL), 0);
	ck_memory(got, "kept");
	close(a);
	close(b);
	run_start(&run);
	a = join(&run, key, 0, 2);
	ck_assert_str_ne(reply_text, first);
	b = join(&run, key, 1, 2);
	ck_assert_int_eq(fetch(b, 1, 0, &n, NULL), -ENOENT);
	ck_assert_int_eq(publish(a, 1, 4, got), 0);
	close(got);
	ck_assert_int_eq(fetch(b, 1, 0, &n, &got), 0);
	ck_memory(got, "kept");
	close(got);
	close(fd);
	close(a);
	close(b);
	run_end(&run);
}
END_TEST

/* ---- the service manager ---- */

static int listener(const char *path, int type)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	const int s = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);

	strcpy(sa.sun_path + (*path ? 0 : 1), *path ? path : "te-ted-abstract");
	ck_assert_int_eq(bind(s, (struct sockaddr *)&sa,
			      *path ? sizeof(sa) : (socklen_t)sizeof(sa.sun_family) + 16), 0);
	return s;
}

START_TEST(serves_a_socket_that_it_is_given)
{
	struct stat st;
	int a;

	run_init(&run, "");
	run.pass[0] = listener(run.sock, SOCK_SEQPACKET);
	ck_assert_int_eq(listen(run.pass[0], 5), 0);
	run.npass = 1;
	/* who connects before it runs is served then */
	a = dial(&run);
	run_start(&run);
	ck_assert_int_eq(hello(a, key, 0, 1), 0);
	close(a);
	ck_assert_int_eq(run_stop(&run, SIGTERM), 0);
	/* the socket is the service manager's */
	ck_assert_int_eq(stat(run.sock, &st), 0);
	run_end(&run);
	close(run.pass[0]);
}
END_TEST

static const struct {
	int type, npass, listens, abstract;
	const char *text;
} wrong_socket[] = {
	{ SOCK_STREAM, 1, 1, 0, "no socket of type SOCK_SEQPACKET" },
	{ SOCK_SEQPACKET, 2, 1, 0, "descriptor 4: there is one of this type already" },
	{ SOCK_SEQPACKET, 3, 1, 0, "LISTEN_FDS: 3 sockets, expected 1 or 2" },
	{ SOCK_DGRAM, 1, 0, 0, "descriptor 3: it is neither of type" },
	{ SOCK_SEQPACKET, 1, 0, 0, "descriptor 3: it does not listen" },
	{ SOCK_SEQPACKET, 1, 1, 1, "descriptor 3: its name is abstract" },
};

START_TEST(wrong_sockets_of_the_service_manager_are_refused)
{
	run_init(&run, "");
	run.pass[0] = listener(wrong_socket[_i].abstract ? "" : run.sock, wrong_socket[_i].type);
	if (wrong_socket[_i].listens)
		ck_assert_int_eq(listen(run.pass[0], 5), 0);
	run.pass[1] = run.pass[2] = run.pass[0];
	run.npass = wrong_socket[_i].npass;
	ck_assert_int_eq(run_try(&run), 2);
	ck_assert_msg(strstr(run_log(&run), wrong_socket[_i].text) != NULL, "%s", run_log(&run));
	run_end(&run);
}
END_TEST

START_TEST(is_ready_only_after_its_self_test)
{
	run_init(&run, "");
	/* 6 requests and replies, each sent and received twice */
	for (run.fault = 1; run.fault <= 24; run.fault++) {
		ck_assert_int_eq(run_try(&run), 1);
		ck_assert_ptr_nonnull(strstr(run_log(&run), "the test of message"));
		unlink(run.log);
	}
	run.fault = 0;
	run_start(&run);
	ck_assert_int_eq(run_stop(&run, SIGTERM), 0);
	ck_assert_str_eq(run_notified(&run), "STOPPING=1");
	run_end(&run);
}
END_TEST

START_TEST(gives_signs_of_life)
{
	run_init(&run, "");
	run.watchdog_us = 4000;
	run_start(&run);
	for (int i = 0; i < 3; i++)
		ck_assert_str_eq(run_notified(&run), "WATCHDOG=1");
	run_end(&run);
}
END_TEST

START_TEST(the_socket_is_private)
{
	struct stat st;

	run_begin("");
	ck_assert_int_eq(stat(run.sock, &st), 0);
	ck_assert_int_eq((int)st.st_mode & 0777, 0600);
	ck_assert_int_eq(run_stop(&run, SIGTERM), 0);
	ck_assert_int_ne(stat(run.sock, &st), 0);
	/* others could replace it */
	ck_assert_int_eq(chmod(run.dir, 0770), 0);
	ck_assert_int_eq(run_try(&run), 2);
	ck_assert_ptr_nonnull(strstr(run_log(&run), "another user can write to the folder"));
	ck_assert_int_eq(chmod(run.dir, 0700), 0);
	/* a file that is no socket is left alone */
	close(open(run.sock, O_CREAT | O_WRONLY, 0600));
	ck_assert_int_eq(run_try(&run), 2);
	ck_assert_int_eq(stat(run.sock, &st), 0);
	run_end(&run);
}
END_TEST

/* ---- configuration ---- */

static const struct {
	const char *conf, *text;
} wrong_conf[] = {
	{ "fds = 3\nfsd = 3\n", ":3: there is no key \"fsd\"" },
	{ "clients\n", ":2: expected key = value" },
	{ "clients =\n", ":2: clients has no value" },
	{ "clients = 0\n", ":2: clients = 0: expected a number from 1 to 65536" },
	{ "clients = 12x\n", ":2: clients = 12x: expected a number" },
	{ "clients = 1k\n", ":2: clients = 1k: expected a number" },
	{ "clients = 99999999999999999999\n", "expected a number" },
	{ "store = 8G\nstore = 8G\n", ":3: store is set in line 2 already" },
	{ "store = 9999999999T\n", "with k, M, G or T, from 4096" },
	{ "spill = var\n", "spill = var: expected a path from the root" },
	{ "spill_keep = 101%\n", ":2: spill_keep = 101%: expected 0% to 100%, or a size" },
	{ "spill_keep = %\n", ":2: spill_keep = %: expected 0% to 100%" },
	{ "spill_keep = -1\n", ":2: spill_keep = -1: expected 0% to 100%" },
	{ "hello_ms = 0\n", ":2: hello_ms = 0: expected a number from 1 to 3600000" },
	{ "spill_daily_job = x\n", "spill_daily_job = x: expected a number, with k, M, G or T" },
	{ "allow = all\n", ":2: allow = all: expected own or any" },
	{ "socket = /other\n", ":2: socket is set in line 1 already" },
};

START_TEST(a_wrong_configuration_names_the_line)
{
	run_init(&run, wrong_conf[_i].conf);
	ck_assert_int_eq(run_try(&run), 2);
	ck_assert_msg(strstr(run_log(&run), wrong_conf[_i].text) != NULL, "%s", run_log(&run));
	run_end(&run);
}
END_TEST

START_TEST(a_configuration_is_read)
{
	struct ted_conf c;
	char text[256];

	run_init(&run, " # a comment\n\n\tclients=7\nstore = 3M\n  queue =  1G  \n"
		       "allow = any\ngroup = g");
	ted_conf_init(&c);
	ck_assert_int_ne(ted_conf_read(run.conf, &c, text, sizeof(text)), 0);
	ck_assert_ptr_nonnull(strstr(text, ":6: queue = 1G"));
	ck_assert_int_eq(c.clients, 1024);
	run_end(&run);
	run_init(&run, " # a comment\n\n\tclients=7\nstore = 3M\nallow = any\ngroup = g");
	ck_assert_int_eq(ted_conf_read(run.conf, &c, text, sizeof(text)), 0);
	ck_assert_int_eq(c.clients, 7);
	ck_assert_int_eq(c.store, 3 << 20);
	ck_assert_int_eq(c.any, 1);
	ck_assert_int_eq(c.fds, 64);
	ck_assert_str_eq(c.group, "g");
	ck_assert_str_eq(c.socket, run.sock);
	run_end(&run);
	/* no path from the root */
	ck_assert_int_ne(ted_conf_read("/nowhere/ted.conf", &c, text, sizeof(text)), 0);
}
END_TEST

/* ---- any bytes ---- */

START_TEST(copes_with_any_messages)
{
	enum { N = 8 };
	static uint8_t packet[TT_WIRE_MOST];
	const int64_t total = tt_wire_total();
	const int fd = memory("x");
	char hex[2 * TE__WIRE_KEY_NBYTES + 1];
	int s[N], good, before;
	uint8_t other[TE__WIRE_KEY_NBYTES];
	size_t n;

	run_begin("keys = 20\nfds = 3\n");
	make_key(other);
	good = join(&run, other, 0, 1);
	settle(good);
	before = nfds_of(run.pid);
	for (int i = 0; i < N; i++)
		s[i] = -1;
	for (int64_t k = 0; k < total;) {
		const int i = (int)tt_rand_int(0, N - 1);
		char drain[64];

		if (s[i] < 0) {
			s[i] = dial(&run);
			if (tt_rand_int(0, 7))
				(void)hello(s[i], key, (uint32_t)tt_rand_int(0, 4), 5);
		}
		n = tt_wire_draw(key, packet);
		if (tt_wire_send(s[i], packet, n, tt_wire_draw_nfds(), fd)) {
			k++;
		} else {
			close(s[i]);
			s[i] = -1;
			continue;
		}
		/* sometimes it does not read what comes */
		if (tt_rand_int(0, 3))
			while (recv(s[i], drain, sizeof(drain), MSG_DONTWAIT) > 0)
				;
		if (!tt_rand_int(0, 30)) {
			close(s[i]);
			s[i] = -1;
		}
		/* others are served meanwhile */
		if (k % 1000 == 0)
			settle(good);
	}
	for (int i = 0; i < N; i++)
		if (s[i] >= 0)
			close(s[i]);
	ck_nfds(&run, before);
	for (int i = 0; i < TE__WIRE_KEY_NBYTES; i++)
		sprintf(hex + 2 * i, "%02x", other[i]);
	close(good);
	close(fd);
	ck_assert_int_eq(run_stop(&run, SIGTERM), 0);
	/* no key is in the log */
	ck_assert_ptr_null(strstr(run_log(&run), hex));
	ck_assert_ptr_null(memmem(run_log(&run), strlen(run_log(&run)), other, sizeof(other)));
	run_end(&run);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("daemon/ted");
	TCase *c = tt_case(s, "store", "host serial");

	tcase_add_test(c, values_come_back);
	tcase_add_test(c, a_get_waits_for_the_put);
	tcase_add_test(c, a_job_holds_no_more_than_its_limits);
	c = tt_case(s, "fences", "host serial");
	tcase_add_test(c, a_fence_ends_when_all_have_come);
	tcase_add_test(c, a_fence_names_the_missing_ranks);
	c = tt_case(s, "descriptors", "host serial");
	tcase_add_test(c, descriptors_pass_between_clients);
	tcase_add_test(c, a_client_that_is_killed_fails_its_job);
	tcase_add_test(c, the_abort_page_says_that_a_rank_has_ended);
	tcase_add_test(c, the_end_of_ted_does_not_abort_a_job);
	c = tt_case(s, "clients", "host serial");
	tcase_add_test(c, wrong_requests_are_answered);
	tcase_add_loop_test(c, connections_are_limited, 0, 2);
	tcase_add_test(c, clients_that_say_nothing_are_dropped);
	tcase_add_test(c, descriptors_are_limited_by_the_process);
	tcase_add_test(c, a_full_file_table_refuses_clients);
	tcase_add_test(c, slow_readers_are_dropped);
	tcase_add_test(c, clients_survive_a_restart);
	tcase_add_test(c, one_descriptor_is_on_its_way_to_a_client);
	tcase_add_test(c, stores_are_limited_together);
	c = tt_case(s, "service", "host serial");
	tcase_add_test(c, serves_a_socket_that_it_is_given);
	tcase_add_loop_test(c, wrong_sockets_of_the_service_manager_are_refused, 0,
			    (int)TT_LEN(wrong_socket));
	tcase_add_test(c, is_ready_only_after_its_self_test);
	tcase_add_test(c, gives_signs_of_life);
	tcase_add_test(c, the_socket_is_private);
	c = tt_case(s, "configuration", "host serial");
	tcase_add_loop_test(c, a_wrong_configuration_names_the_line, 0, (int)TT_LEN(wrong_conf));
	tcase_add_test(c, a_configuration_is_read);
	c = tt_case(s, "fuzz", "host serial");
	if (getenv("TT_WIRE_MESSAGES"))
		tcase_set_timeout(c, 3600);
	tcase_add_test(c, copes_with_any_messages);
	return s;
}

TT_MAIN("daemon/ted", TT_NEED_NOTHING, suite)
