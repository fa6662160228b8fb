/* t/daemon/ted.c - ted(8): messages, limits, restart, sockets, configuration, any bytes. */
#include "config.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <te/errno.h>

#include "daemon/ted.h"
#include "tt_ted.h"
#include "tt_wire.h"

/* ---- wrong requests ---- */

CASE(clients, "host serial");

TEST(clients, wrong_requests_are_answered)
{
	static const uint8_t zero[TE__WIRE_KEY_NBYTES];
	/* those that are not known, also a reply */
	static const uint32_t unknown[] = { 0, 77, UINT32_MAX, TE__WIRE_REPLY, 2, 3, 4 };
	struct te__wire m = message(TE__WIRE_GRANT);
	const int fd = memory("x");
	int a;

	run_begin("");
	a = dial(&run);
	ck_assert_int_eq(call(a, &m, -1, NULL, NULL), -TE_ESTATE);
	ck_reply("GRANT before HELLO");
	ck_assert_int_eq(hello(a, zero), -EINVAL);
	ck_assert_int_eq(hello(a, key), 0);
	ck_assert_int_eq(hello(a, key), -TE_ESTATE);
	ck_reply("it was said already");
	for (size_t i = 0; i < TT_LEN(unknown); i++) {
		m = message(unknown[i]);
		ck_assert_int_eq(call(a, &m, -1, NULL, NULL), -EOPNOTSUPP);
		m = message(unknown[i]);
		ck_assert_int_eq(call(a, &m, fd, NULL, NULL), -EOPNOTSUPP);
	}
	m = message(TE__WIRE_JOBS);
	ck_assert_int_eq(call(a, &m, fd, NULL, NULL), -EINVAL);
	ck_reply("JOBS with a file descriptor");
	ck_assert_int_eq(ping(a), 0);
	/* requests have no data */
	m = message(TE__WIRE_JOBS);
	ck_assert_int_eq(te__wire_send(a, &m, "data", 4, -1), 0);
	ck_assert_int_eq(next(a, &m, NULL, NULL), 1);
	ck_assert_int_eq(m.code, -EPROTO);
	ck_reply("a packet of 256 bytes is no message of this version");
	ck_assert_int_eq(next(a, &m, NULL, NULL), 0);
	close(a);
	close(fd);
	run_end(&run);
}

/* each is told, ends its connection, and changes nothing */
TEST(clients, damaged_messages_end_the_connection)
{
	enum { MAGIC = 32, SHORT = MAGIC + 1, LONG, ENDLESS, NONE, N };
	struct te__wire m, hurt;
	char packet[sizeof(m) + 1];

	run_begin("");
	for (int i = 0; i < N; i++) {
		const int s = dial(&run);
		size_t n = sizeof(m);

		hurt = message(TE__WIRE_HELLO);
		memcpy(hurt.key, key, sizeof(hurt.key));
		if (i < MAGIC)
			hurt.magic ^= 1u << i;
		if (i == ENDLESS)
			memset(hurt.text, 'x', sizeof(hurt.text));
		memset(packet, 0, sizeof(packet));
		memcpy(packet, &hurt, sizeof(hurt));
		n = i == SHORT ? n - 1 : i == LONG ? n + 1 : n;
		ck_assert_int_eq((int)send(s, packet, n, 0), (int)n);
		ck_assert_int_eq(next(s, &m, NULL, NULL), 1);
		ck_assert_int_eq(m.code, i == MAGIC || i == NONE ? 0 : -EPROTO);
		if (m.code)
			ck_reply("is no message of this version");
		else
			ck_assert_int_eq(ping(s), 0);
		if (m.code)
			ck_assert_int_eq(next(s, &m, NULL, NULL), 0);
		close(s);
	}
	run_end(&run);
}

TEST_EACH(clients, connections_are_limited, 2)
{
	struct te__wire m;
	int s[3], late, before;

	run_begin(_i ? "clients = 3\n" : "clients_uid = 3\n");
	for (int i = 0; i < 3; i++)
		s[i] = join(&run, key);
	late = dial(&run);
	ck_assert_int_eq(next(late, &m, NULL, NULL), 1);
	ck_assert_int_eq(m.code, -EBUSY);
	ck_reply(_i ? "3 clients, the limit is 3 (clients)" : "3 clients, the limit (clients_uid)");
	ck_assert_int_eq(next(late, &m, NULL, NULL), 0);
	close(late);
	before = nfds_of(run.pid);
	close(s[1]);
	ck_nfds(&run, before - 1);
	s[1] = join(&run, key);
	for (int i = 0; i < 3; i++)
		close(s[i]);
	run_end(&run);
}

TEST(clients, clients_that_say_nothing_are_dropped)
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

TEST(clients, connections_are_limited_by_the_process)
{
	run_init(&run, "clients = 8\n");
	/* as many as the clients and ted itself need, and one less */
	run.nofile = 8 + 32;
	run_start(&run);
	ck_assert_int_eq(run_stop(&run, SIGTERM), 0);
	run.nofile--;
	ck_assert_int_eq(run_try(&run), 2);
	ck_assert_ptr_nonnull(strstr(run_log(&run), "clients = 8: the process may open 39 files"));
	run_end(&run);
}

/* while it serves: whoever connects is told, and the others are served */
TEST(clients, a_full_file_table_refuses_clients)
{
	struct rlimit few, old;
	struct te__wire m;
	int a, late;

	run_begin("");
	a = join(&run, key);
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
		ck_assert_int_eq(ping(a), 0);
	}
	ck_assert_int_eq(prlimit(run.pid, RLIMIT_NOFILE, &old, NULL), 0);
	late = join(&run, key);
	close(late);
	close(a);
	run_end(&run);
}

/* ---- slow clients ---- */

/* the metrics, whole: 1 with them */
static int status(int sock)
{
	static char text[TE__WIRE_DATA_MAX];
	struct te__wire m = message(TE__WIRE_STATUS);
	struct te__wire_data data = { text, sizeof(text), 0 };

	ck_assert_int_eq(call(sock, &m, -1, &data, NULL), 0);
	return data.nbytes == m.nbytes && memmem(text, data.nbytes, "te_up 1\n", 8) != NULL;
}

TEST(clients, slow_readers_are_dropped)
{
	enum { N = TT_FEWER(256), SLOW = TT_FEWER(64), ASKED = 1000 };
	struct te__wire m = message(TE__WIRE_STATUS);
	int s[N], slow[SLOW], before;

	run_begin("queue = 128k\n");
	s[0] = join(&run, key);
	ck_assert(status(s[0]));
	before = nfds_of(run.pid);
	for (int i = 1; i < N; i++)
		s[i] = join(&run, key);
	for (int i = 0; i < SLOW; i++) {
		slow[i] = join(&run, key);
		/* ted ends the connection before it has sent all replies: EPIPE */
		for (int k = 0; k < ASKED;) {
			const int r = te__wire_send(slow[i], &m, NULL, 0, -1);

			if (r && r != -EAGAIN)
				break;
			k += !r;
		}
	}
	for (int i = 0; i < N; i++)
		ck_assert(status(s[i]));
	ck_nfds(&run, before + N - 1);
	for (int i = 0; i < SLOW; i++) {
		int replies = 0;

		while (next(slow[i], &m, NULL, NULL))
			replies++;
		ck_assert_int_ge(replies, 1);
		ck_assert_int_lt(replies, ASKED);
		close(slow[i]);
	}
	/* all others are there still */
	for (int i = 0; i < N; i++) {
		ck_assert_int_eq(ping(s[i]), 0);
		close(s[i]);
	}
	run_end(&run);
}

/* those that are on their way are counted for the user of ted, and are few for all clients */
TEST(clients, one_descriptor_is_on_its_way_to_a_client)
{
	struct te__wire m = message(TE__WIRE_GRANT);
	int a, b, c, got, replies = 0;

	run_begin("clients = 3\nspill = @\nspill_keep = 0\n");
	a = join(&run, key);
	b = join(&run, key);
	m.nbytes = 1;
	for (int i = 0; i < 5; i++)
		if (te__wire_send(b, &m, NULL, 0, -1))
			break;
	/* it has left, but its descriptor is not read: it counts */
	c = join(&run, key);
	ck_assert_int_eq(grant(c, 1, &got), 0);
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
	ck_assert_int_eq(ping(c), 0);
	got = join(&run, key);
	for (int i = 0; i < 20; i++) {
		int again;

		ck_assert_int_eq(grant(got, 1, &again), 0);
		close(again);
	}
	close(got);
	close(a);
	close(b);
	close(c);
	run_end(&run);
}

/* ---- restart ---- */

TEST(clients, a_restart_has_another_instance)
{
	struct ted_run second;
	struct te__wire m;
	char first[sizeof(reply_text)], want[160];
	int a, pid;

	run_begin("");
	a = join(&run, key);
	strcpy(first, reply_text);
	ck_assert_uint_eq(strlen(first), 32);
	/* a second one at the same socket is refused, as long as the first one lives */
	second = run;
	pid = run.pid;
	ck_assert_int_eq(run_try(&second), 1);
	snprintf(want, sizeof(want), "sock is served by another ted, process %d", pid);
	ck_assert_ptr_nonnull(strstr(run_log(&run), want));
	ck_assert_int_eq(ping(a), 0);
	/* the socket of a dead one is replaced */
	ck_assert_int_eq(run_stop(&run, SIGKILL), -SIGKILL);
	ck_assert_int_eq(next(a, &m, NULL, NULL), 0);
	close(a);
	run_start(&run);
	a = join(&run, key);
	ck_assert_uint_eq(strlen(reply_text), 32);
	ck_assert_str_ne(reply_text, first);
	close(a);
	run_end(&run);
}

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

CASE(service, "host serial");

TEST(service, serves_a_socket_that_it_is_given)
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
	ck_assert_int_eq(hello(a, key), 0);
	close(a);
	ck_assert_int_eq(run_stop(&run, SIGTERM), 0);
	/* the socket is the service manager's */
	ck_assert_int_eq(stat(run.sock, &st), 0);
	run_end(&run);
	close(run.pass[0]);
}

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

TEST_EACH(service, wrong_sockets_of_the_service_manager_are_refused, TT_LEN(wrong_socket))
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

TEST(service, gives_signs_of_life)
{
	run_init(&run, "");
	run.watchdog_us = 4000;
	run_start(&run);
	for (int i = 0; i < 3; i++)
		ck_assert_str_eq(run_notified(&run), "WATCHDOG=1");
	run_end(&run);
}

TEST(service, the_socket_is_private)
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

/* ---- configuration ---- */

static const struct {
	const char *conf, *text;
} wrong_conf[] = {
	{ "queue = 1M\nqeue = 1M\n", ":3: there is no key \"qeue\"" },
	{ "clients\n", ":2: expected key = value" },
	{ "clients =\n", ":2: clients has no value" },
	{ "clients = 0\n", ":2: clients = 0: expected a number from 1 to 65536" },
	{ "clients = 12x\n", ":2: clients = 12x: expected a number" },
	{ "clients = 1k\n", ":2: clients = 1k: expected a number" },
	{ "clients = 99999999999999999999\n", "expected a number" },
	{ "queue = 1M\nqueue = 1M\n", ":3: queue is set in line 2 already" },
	{ "queue = 9999999999T\n", "with k, M, G or T, from 131072" },
	{ "spill = var\n", "spill = var: expected a path from the root" },
	{ "spill_keep = 101%\n", ":2: spill_keep = 101%: expected 0% to 100%, or a size" },
	{ "spill_keep = %\n", ":2: spill_keep = %: expected 0% to 100%" },
	{ "spill_keep = -1\n", ":2: spill_keep = -1: expected 0% to 100%" },
	{ "hello_ms = 0\n", ":2: hello_ms = 0: expected a number from 1 to 3600000" },
	{ "spill_daily_job = x\n", "spill_daily_job = x: expected a number, with k, M, G or T" },
	{ "allow = all\n", ":2: allow = all: expected own or any" },
	{ "socket = /other\n", ":2: socket is set in line 1 already" },
};

CASE(configuration, "host serial");

TEST_EACH(configuration, a_wrong_configuration_names_the_line, TT_LEN(wrong_conf))
{
	run_init(&run, wrong_conf[_i].conf);
	ck_assert_int_eq(run_try(&run), 2);
	ck_assert_msg(strstr(run_log(&run), wrong_conf[_i].text) != NULL, "%s", run_log(&run));
	run_end(&run);
}

TEST(configuration, a_configuration_is_read)
{
	struct ted_conf c;
	char text[256];

	run_init(&run, " # a comment\n\n\tclients=7\nspill_job = 3M\n  queue =  1G  \n"
		       "allow = any\ngroup = g");
	ted_conf_init(&c);
	ck_assert_int_ne(ted_conf_read(run.conf, &c, text, sizeof(text)), 0);
	ck_assert_ptr_nonnull(strstr(text, ":6: queue = 1G"));
	ck_assert_int_eq(c.clients, 1024);
	run_end(&run);
	run_init(&run, " # a comment\n\n\tclients=7\nspill_job = 3M\nallow = any\ngroup = g");
	ck_assert_int_eq(ted_conf_read(run.conf, &c, text, sizeof(text)), 0);
	ck_assert_int_eq(c.clients, 7);
	ck_assert_int_eq(c.spill_job, 3 << 20);
	ck_assert_int_eq(c.any, 1);
	ck_assert_int_eq(c.spill_files, 1024);
	ck_assert_str_eq(c.group, "g");
	ck_assert_str_eq(c.socket, run.sock);
	run_end(&run);
	/* no path from the root */
	ck_assert_int_ne(ted_conf_read("/nowhere/ted.conf", &c, text, sizeof(text)), 0);
}

/* ---- any bytes ---- */

CASE(fuzz, "host serial", .limit_s = getenv("TT_WIRE_MESSAGES") ? 3600 : 0);

TEST(fuzz, copes_with_any_messages)
{
	enum { N = 8 };
	static uint8_t packet[TT_WIRE_MOST];
	const int64_t total = tt_wire_total();
	const int fd = memory("x");
	char hex[2 * TE__WIRE_KEY_NBYTES + 1];
	int s[N], good, before;
	uint8_t other[TE__WIRE_KEY_NBYTES];
	size_t n;

	run_begin("spill = @\nspill_files = 3\nspill_job = 1M\n");
	make_key(other);
	good = join(&run, other);
	ck_assert_int_eq(ping(good), 0);
	before = nfds_of(run.pid);
	for (int i = 0; i < N; i++)
		s[i] = -1;
	for (int64_t k = 0; k < total;) {
		const int i = (int)tt_rand_int(0, N - 1);
		char drain[64];

		if (s[i] < 0) {
			s[i] = dial(&run);
			if (tt_rand_int(0, 7))
				(void)hello(s[i], key);
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
			ck_assert_int_eq(ping(good), 0);
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

TT_MAIN("daemon/ted", TT_NEED_NOTHING)
