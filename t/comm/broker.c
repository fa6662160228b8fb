/*
 * t/comm/broker.c - the broker of a node with clients in other processes: descriptors arrive,
 * and each way in which a process or a message can fail ends in a named error, in time.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "libtecomm/memory/broker.h"
#include "libtecore/base/private.h"
#include "tt_ctx.h"
#include "tt_wire.h"

#define MOST 8
#define SOON_MS 2000 /* far below the deadline: what is seen at once, on a slow machine too */

static const char *const name[MOST] = { "rank 0", "rank 1", "rank 2", "rank 3",
					"rank 4", "rank 5", "rank 6", "rank 7" };
static uint8_t key[TE__BROKER_KEY_NBYTES];
static struct te__node_info info = { .key = key, .name = name };

static int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static int64_t in_ms(int ms)
{
	return (now_ms() + ms) * 1000000;
}

static int nfds(void)
{
	int n = 0;

	for (int fd = 0; fd < 1024; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

/* a memfd of that size whose bytes are all value */
static int filled_fd(size_t nbytes, int value)
{
	const int fd = memfd_create("test", MFD_CLOEXEC);
	unsigned char *p;

	ck_assert_int_eq(ftruncate(fd, (off_t)nbytes), 0);
	p = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	memset(p, value, nbytes);
	munmap(p, nbytes);
	return fd;
}

static int fd_byte(int fd, size_t at)
{
	unsigned char b = 0;

	ck_assert_int_eq(pread(fd, &b, 1, (off_t)at), 1);
	return b;
}

/* processes: forked before this one has threads; each begins when it is told to */

struct process {
	pid_t pid;
	int go, said; /* pipes */
};

static struct process process[MOST];
static int said_fd, go_fd;

/* in a process: one line for the parent */
static void say(const char *text)
{
	char line[256];
	int n = snprintf(line, sizeof(line), "%s\n", text);

	if (write(said_fd, line, (size_t)n) != n)
		_exit(9);
}

/* in a process: until the parent lets it go on */
static void await_go(void)
{
	char c;

	if (read(go_fd, &c, 1) != 1)
		_exit(8);
}

static void let_go(int rank)
{
	ck_assert_int_eq(write(process[rank].go, "g", 1), 1);
}

static void spawn(int rank, void (*fn)(int rank))
{
	int go[2], said[2];

	ck_assert_int_eq(pipe2(go, O_CLOEXEC), 0);
	ck_assert_int_eq(pipe2(said, O_CLOEXEC), 0);
	fflush(NULL);
	process[rank].pid = fork();
	if (!process[rank].pid) {
		/* other processes' pipes would keep this one from seeing their ends */
		for (int i = 0; i < rank; i++) {
			close(process[i].go);
			close(process[i].said);
		}
		close(go[1]);
		close(said[0]);
		go_fd = go[0];
		said_fd = said[1];
		await_go();
		fn(rank);
		_exit(0);
	}
	close(go[0]);
	close(said[1]);
	process[rank].go = go[1];
	process[rank].said = said[0];
}

/* the next line that the process said; "" if it has ended */
static const char *heard(int rank)
{
	static char line[256];
	size_t n = 0;

	while (n + 1 < sizeof(line) && read(process[rank].said, line + n, 1) == 1 &&
	       line[n] != '\n')
		n++;
	line[n] = 0;
	return line;
}

static void expect(int rank, const char *want)
{
	const char *line = heard(rank);

	ck_assert_msg(strstr(line, want) != NULL, "rank %d said \"%s\", expected \"%s\"", rank,
		      line, want);
}

static void reap(int rank, int want)
{
	int status;

	ck_assert_int_eq(waitpid(process[rank].pid, &status, 0), process[rank].pid);
	ck_assert_int_eq(status, want);
	close(process[rank].go);
	close(process[rank].said);
}

static void kill_now(int rank)
{
	kill(process[rank].pid, SIGKILL);
	reap(rank, SIGKILL);
}

/* in a process: the result of a call */
static int result(const char *what, int r)
{
	char line[256];

	snprintf(line, sizeof(line), "%s: %d: %.200s", what, r, r < 0 ? te_error_detail() : "");
	if (r)
		say(line);
	return r;
}

static void setup(void)
{
	tt_fill_bytes(key, sizeof(key));
	info.nlocal = 3;
}

/* ---- all ranks exchange descriptors ---- */

static struct te__client *open_client(int rank)
{
	struct te__client *c = NULL;

	if (result("open", te__client_open(&info, rank, in_ms(20000), &c)))
		_exit(1);
	return c;
}

/* publishes a memfd of its own, then fetches all others and looks into them */
static void exchange(int rank)
{
	struct te__client *c = open_client(rank);
	struct te__control *control;
	const size_t n = 4096 * (size_t)(rank + 1);
	uint64_t nbytes;
	int fd = filled_fd(n, 0x40 + rank);

	if (result("control", te__client_control(c, in_ms(20000), &control)) ||
	    result("publish", te__client_publish(c, 70 + (uint32_t)rank, n, fd, in_ms(20000))))
		_exit(1);
	close(fd);
	for (int i = 0; i < info.nlocal; i++) {
		const int of = (rank + i) % info.nlocal;

		if (of == rank)
			continue;
		if (result("fetch", te__client_fetch(c, 70 + (uint32_t)of, of, &nbytes, &fd,
						     in_ms(20000))))
			_exit(1);
		if (nbytes != 4096 * ((uint64_t)of + 1) || fd_byte(fd, nbytes - 1) != 0x40 + of ||
		    fcntl(fd, F_GETFD) != FD_CLOEXEC)
			_exit(2);
		close(fd);
	}
	if (result("watch", te__client_watch(c)) || result("check", te__control_check(control, "")))
		_exit(1);
	say("ready");
	await_go();
	if (result("at the end", te__control_check(control, "end")))
		_exit(3);
	te__client_close(c, 0, NULL);
}

static void start_all(void (*fn)(int rank), struct te__broker **ret_broker)
{
	for (int i = 0; i < info.nlocal; i++)
		spawn(i, fn);
	DO(te__broker_start(&info, ret_broker));
	for (int i = 0; i < info.nlocal; i++)
		let_go(i);
}

START_TEST(descriptors_reach_all_ranks)
{
	const int before = nfds();
	struct te__broker *b;

	info.nlocal = _i;
	start_all(exchange, &b);
	for (int i = 0; i < info.nlocal; i++)
		expect(i, "ready");
	/* what all have fetched is closed: 5 of the broker, 2 of each connection and its pipes */
	if (info.nlocal > 1)
		ck_assert_int_le(nfds(), before + 5 + 4 * info.nlocal);
	for (int i = 0; i < info.nlocal; i++)
		let_go(i);
	for (int i = 0; i < info.nlocal; i++)
		reap(i, 0);
	te__broker_stop(b);
	ck_assert_int_eq(nfds(), before);
	ck_assert_ptr_null(te__broker_stop(NULL));
	ck_assert_ptr_null(te__client_close(NULL, 0, NULL));
}
END_TEST

/* ---- a process is killed ---- */

/* each step of the exchange, and then a wait for ever */
static int stop_at;

static void step(int at)
{
	if (at != stop_at)
		return;
	say("here");
	for (;;)
		pause();
}

static void stops(int rank)
{
	struct te__client *c;
	struct te__control *control;
	int fd = filled_fd(4096, rank);

	step(0); /* before it connects */
	c = open_client(rank);
	step(1); /* after HELLO */
	(void)te__client_control(c, in_ms(20000), &control);
	step(2);
	(void)te__client_publish(c, 70 + (uint32_t)rank, 4096, fd, in_ms(20000));
	step(3); /* its memory can still be fetched, but not for long */
	_exit(0);
}

/* a rank that is not at fault: what it is told, and when */
static void survives(int rank)
{
	struct te__client *c = open_client(rank);
	struct te__control *control;
	uint64_t nbytes;
	char line[256];
	int64_t begin;
	int fd = -1, r;

	r = te__client_control(c, in_ms(20000), &control);
	if (result("control", r))
		_exit(1);
	await_go();
	begin = now_ms();
	/* never published: waits for the deadline, or for the end of a rank */
	r = te__client_fetch(c, 99, 2, &nbytes, &fd, in_ms(stop_at ? 20000 : 300));
	snprintf(line, sizeof(line), "%s %d %.180s", now_ms() - begin < SOON_MS ? "soon" : "late",
		 r, te_error_detail());
	say(line);
	r = te__control_check(control, "te_comm_alloc");
	snprintf(line, sizeof(line), "%d %.200s", r, r ? te_error_detail() : "");
	say(line);
	te__client_close(c, 0, NULL);
	if (fd >= 0)
		_exit(4);
}

START_TEST(a_killed_rank_is_named)
{
	char want[128];
	struct te__broker *b;
	const int before = nfds();

	stop_at = _i;
	spawn(0, survives);
	spawn(1, survives);
	spawn(2, stops);
	DO(te__broker_start(&info, &b));
	for (int i = 0; i < 3; i++)
		let_go(i);
	expect(2, "here");
	let_go(0);
	let_go(1);
	/* one is waiting already, probably both */
	usleep(20000);
	kill_now(2);
	for (int i = 0; i < 2; i++) {
		if (!stop_at) /* the broker did not know it yet */
			snprintf(want, sizeof(want), "soon %d fetch memory of a rank: rank 2 has "
				 "not published its memory in time", -ETIMEDOUT);
		else
			snprintf(want, sizeof(want), "soon %d fetch memory of a rank: rank 2 has "
				 "ended", -TE_EPEER);
		expect(i, want);
		if (stop_at) {
			snprintf(want, sizeof(want), "%d te_comm_alloc: rank 2 has ended",
				 -TE_EPEER);
			expect(i, want);
		} else {
			expect(i, "0 ");
		}
		reap(i, 0);
	}
	te__broker_stop(b);
	ck_assert_int_eq(nfds(), before);
}
END_TEST

/* the watching threads of the others see the end of the rank that has the broker */

static struct te__broker *own;

static void has_broker(int rank)
{
	if (result("start", te__broker_start(&info, &own)))
		_exit(1);
	say("started");
	exchange(rank);
	te__broker_stop(own);
}

static void watches(int rank)
{
	struct te__client *c = open_client(rank);
	struct te__control *control;
	char line[256];
	int64_t begin;
	int r = 0;

	if (result("control", te__client_control(c, in_ms(20000), &control)) ||
	    result("watch", te__client_watch(c)))
		_exit(1);
	say("ready");
	await_go();
	begin = now_ms();
	while (!r && now_ms() - begin < SOON_MS) {
		r = te__control_check(control, "poll");
		usleep(1000);
	}
	snprintf(line, sizeof(line), "%d %.200s", r, r ? te_error_detail() : "");
	say(line);
	te__client_close(c, 0, NULL);
}

START_TEST(the_end_of_the_broker_aborts_all)
{
	char want[96];

	spawn(0, has_broker);
	spawn(1, watches);
	spawn(2, watches);
	let_go(0);
	expect(0, "started");
	let_go(1);
	let_go(2);
	expect(1, "ready");
	expect(2, "ready");
	kill_now(0);
	snprintf(want, sizeof(want), "%d poll: rank 0, which is the broker of the node, has ended",
		 -TE_EPEER);
	for (int i = 1; i < 3; i++) {
		let_go(i);
		expect(i, want);
		reap(i, 0);
	}
}
END_TEST

/* the same while a rank waits for an answer */
START_TEST(the_end_of_the_broker_ends_a_fetch)
{
	char want[96];

	stop_at = 1;
	spawn(0, has_broker);
	spawn(1, survives);
	let_go(0);
	expect(0, "started");
	let_go(1);
	let_go(1);
	usleep(50000);
	kill_now(0);
	snprintf(want, sizeof(want), "soon %d fetch memory of a rank: rank 0, which is the broker",
		 -TE_EPEER);
	expect(1, want);
	/* the control page: this client does not watch */
	expect(1, "0 ");
	reap(1, 0);
}
END_TEST

/* a broker that leaves in order is no failure; a rank that gives up is one, with its reason */
START_TEST(leaving_in_order_is_no_failure)
{
	struct te__broker *b;

	spawn(0, watches);
	spawn(1, watches);
	DO(te__broker_start(&info, &b));
	let_go(0);
	let_go(1);
	expect(0, "ready");
	expect(1, "ready");
	te__broker_stop(b);
	usleep(20000);
	for (int i = 0; i < 2; i++) {
		let_go(i);
		expect(i, "0 ");
		reap(i, 0);
	}
}
END_TEST

static void gives_up(int rank)
{
	te__client_close(open_client(rank), -ENOMEM, "no 4096 bytes of device memory");
	say("gone");
}

START_TEST(a_rank_that_gives_up_says_why)
{
	char want[128];
	struct te__broker *b;

	stop_at = 1;
	spawn(0, survives);
	spawn(1, gives_up);
	DO(te__broker_start(&info, &b));
	let_go(0);
	let_go(0);
	usleep(20000);
	let_go(1);
	expect(1, "gone");
	snprintf(want, sizeof(want), "soon %d fetch memory of a rank: rank 1 gives up: no 4096 "
		 "bytes of device memory", -TE_EABORT);
	expect(0, want);
	expect(0, "te_comm_alloc: rank 1 gives up: no 4096 bytes of device memory");
	reap(0, 0);
	reap(1, 0);
	te__broker_stop(b);
}
END_TEST

/* a process that a rank forked has its socket: the rank's end is seen all the same */
static void leaves_a_child(int rank)
{
	struct te__client *c = open_client(rank);
	pid_t child = fork();

	if (!child) {
		for (int i = 0; i < 100; i++)
			usleep(100000);
		_exit(0);
	}
	(void)c;
	(void)result("child", child > 0 ? (int)child : -1);
	step(stop_at);
}

START_TEST(a_forked_child_does_not_hide_the_end_of_a_rank)
{
	struct te__broker *b;
	int child = 0;
	char want[64];

	stop_at = 1;
	spawn(0, survives);
	spawn(2, leaves_a_child);
	DO(te__broker_start(&info, &b));
	let_go(2);
	ck_assert_int_eq(sscanf(heard(2), "child: %d", &child), 1);
	expect(2, "here");
	let_go(0);
	let_go(0);
	usleep(20000);
	kill(process[2].pid, SIGKILL);
	snprintf(want, sizeof(want), "soon %d fetch memory of a rank: rank 2 has ended", -TE_EPEER);
	expect(0, want);
	kill(child, SIGKILL);
	reap(2, SIGKILL);
	expect(0, "rank 2 has ended");
	reap(0, 0);
	te__broker_stop(b);
}
END_TEST

/* ---- messages that are wrong ---- */

static int dial(void)
{
	struct sockaddr_un sa;
	const socklen_t n = (socklen_t)te__wire_address(&info, &sa);
	const int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	ck_assert_int_eq(connect(s, (struct sockaddr *)&sa, n), 0);
	return s;
}

/* waits for a message; 0 at the end of the connection */
static int next(int s, struct te__wire *m)
{
	int r, fd = -1;

	while ((r = te__wire_recv(s, m, NULL, &fd)) == -EAGAIN)
		usleep(1000);
	if (fd >= 0)
		close(fd);
	return r;
}

static struct te__wire hello(int rank)
{
	struct te__wire m = { .magic = TE__WIRE_MAGIC, .kind = TE__WIRE_HELLO };

	m.rank = (uint32_t)rank;
	memcpy(m.key, key, sizeof(key));
	return m;
}

/* the broker answers with the code and a text */
static void check_answer(int s, const struct te__wire *m, size_t nbytes, int fd, int code,
			 const char *text)
{
	struct te__wire r;

	if (nbytes == sizeof(*m))
		ck_assert_int_eq(te__wire_send(s, m, NULL, 0, fd), 0);
	else
		ck_assert_int_eq(send(s, m, nbytes, 0), (int)nbytes);
	ck_assert_int_eq(next(s, &r), 1);
	ck_assert_int_eq(r.kind, TE__WIRE_REPLY);
	ck_assert_int_eq(r.code, code);
	ck_assert_msg(strstr(r.text, text) != NULL, "\"%s\" has no \"%s\"", r.text, text);
}

/* and ends the connection */
static void check_refused(int s, const struct te__wire *m, size_t nbytes, int fd, int code,
			  const char *text)
{
	struct te__wire r;

	check_answer(s, m, nbytes, fd, code, text);
	ck_assert_int_eq(next(s, &r), 0);
	close(s);
}

START_TEST(strangers_are_refused)
{
	struct te__wire m = hello(0), r;
	struct te__broker *b;
	const int before = nfds();
	int s;

	DO(te__broker_start(&info, &b));
	m.key[3] ^= 1;
	check_refused(dial(), &m, sizeof(m), -1, -TE_EMISMATCH, "key of another communicator");
	m = hello(3);
	check_refused(dial(), &m, sizeof(m), -1, -TE_EMISMATCH, "local rank 3, but there are 3");
	m = hello(0);
	m.magic++;
	check_refused(dial(), &m, sizeof(m), -1, -EPROTO, "no message of this version");
	m = hello(0);
	check_refused(dial(), &m, 100, -1, -EPROTO, "a packet of 100 bytes");
	m.kind = TE__WIRE_FETCH;
	check_refused(dial(), &m, sizeof(m), -1, -EPROTO, "before HELLO");
	/* the ranks are not affected: one is served */
	s = dial();
	m = hello(1);
	ck_assert_int_eq(te__wire_send(s, &m, NULL, 0, -1), 0);
	ck_assert_int_eq(next(s, &r), 1);
	ck_assert_int_eq(r.code, 0);
	/* but the same rank twice */
	check_refused(dial(), &m, sizeof(m), -1, -TE_EMISMATCH, "rank 1 says HELLO twice");
	m.kind = TE__WIRE_CONTROL;
	ck_assert_int_eq(te__wire_send(s, &m, NULL, 0, -1), 0);
	ck_assert_int_eq(next(s, &r), 1);
	ck_assert_int_eq(r.code, 0);
	close(s);
	te__broker_stop(b);
	ck_assert_int_eq(nfds(), before);
}
END_TEST

static int greet(int rank)
{
	struct te__wire m = hello(rank), r;
	const int s = dial();

	ck_assert_int_eq(te__wire_send(s, &m, NULL, 0, -1), 0);
	ck_assert_int_eq(next(s, &r), 1);
	ck_assert_int_eq(r.code, 0);
	return s;
}

START_TEST(requests_that_make_no_sense_end_the_rank)
{
	struct te__wire m = hello(1);
	struct te__broker *b;
	const int fd = filled_fd(4096, 1), before = nfds();
	char *text;
	int s;

	DO(te__broker_start(&info, &b));
	switch (_i) {
	case 0:
		m.kind = TE__WIRE_PUBLISH;
		check_refused(greet(1), &m, sizeof(m), -1, -EPROTO, "without a file descriptor");
		break;
	case 1:
		m.kind = 77;
		check_refused(greet(1), &m, sizeof(m), -1, -EPROTO, "message 77 is unknown");
		break;
	case 2:
		/* the text has no end */
		text = m.text;
		memset(text, 'x', sizeof(m.text));
		m.kind = TE__WIRE_BYE;
		check_refused(greet(1), &m, sizeof(m), -1, -EPROTO, "no message of this version");
		break;
	default:
		/* a descriptor that came with no request is closed */
		check_refused(greet(1), &m, sizeof(m), fd, -TE_EMISMATCH, "HELLO twice");
	}
	/* which the others are told */
	m = hello(2);
	s = dial();
	check_answer(s, &m, sizeof(m), -1, -TE_EPEER, "rank 1 broke the protocol of the broker");
	close(s);
	te__broker_stop(b);
	ck_assert_int_eq(nfds(), before);
	close(fd);
}
END_TEST

/* two descriptors in one message: the second does not fit, and MSG_CTRUNC says so */
START_TEST(a_second_descriptor_is_an_error)
{
	struct te__wire m = hello(1), r;
	const int fd = filled_fd(4096, 1), before = nfds();
	struct te__broker *b;
	int s;

	DO(te__broker_start(&info, &b));
	s = greet(1);
	m.kind = TE__WIRE_PUBLISH;
	ck_assert(tt_wire_send(s, &m, sizeof(m), 2, fd));
	ck_assert_int_eq(next(s, &r), 1);
	ck_assert_int_eq(r.code, -EMFILE);
	ck_assert_ptr_nonnull(strstr(r.text, "MSG_CTRUNC"));
	ck_assert_int_eq(next(s, &r), 0);
	close(s);
	te__broker_stop(b);
	ck_assert_int_eq(nfds(), before);
	close(fd);
}
END_TEST

/* ranks that send anything, do not read, or end: a broker that stops has nothing open */
START_TEST(copes_with_any_messages)
{
	enum { N = 4 };
	static uint8_t packet[TT_WIRE_MOST];
	const int64_t total = tt_wire_total();
	const int fd = filled_fd(4096, 1), before = nfds();
	struct te__broker *b;
	char drain[64];
	int s[N];

	for (int64_t k = 0; k < total;) {
		DO(te__broker_start(&info, &b));
		for (int i = 0; i < N; i++)
			s[i] = -1;
		for (int64_t n = tt_rand_int(1, 40); n > 0; n--) {
			const int i = (int)tt_rand_int(0, N - 1);
			struct te__wire m = hello((int)tt_rand_int(0, info.nlocal));

			if (s[i] < 0) {
				s[i] = dial();
				if (tt_rand_int(0, 7))
					(void)te__wire_send(s[i], &m, NULL, 0, -1);
			}
			if (tt_wire_send(s[i], packet, tt_wire_draw(key, packet),
					 tt_wire_draw_nfds(), fd))
				k++;
			else if (!close(s[i]))
				s[i] = -1;
			/* sometimes it does not read what comes */
			if (s[i] >= 0 && tt_rand_int(0, 3))
				while (recv(s[i], drain, sizeof(drain), MSG_DONTWAIT) > 0)
					;
		}
		for (int i = 0; i < N; i++)
			if (s[i] >= 0)
				close(s[i]);
		te__broker_stop(b);
		ck_assert_int_eq(nfds(), before);
	}
	close(fd);
}
END_TEST

/* ---- too many open files ---- */

/* no further descriptor can be opened; returns the highest that may be */
static void no_more_files(struct rlimit *old)
{
	struct rlimit l;
	int fd = dup(0);

	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, old), 0);
	close(fd);
	l = *old;
	l.rlim_cur = (rlim_t)fd;
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &l), 0);
}

/* a rank whose table is full: the descriptor does not arrive */
static void has_no_room(int rank)
{
	struct te__client *c = open_client(rank);
	struct rlimit old;
	uint64_t nbytes;
	char line[256];
	int fd = -1, r;

	say("open");
	await_go();
	no_more_files(&old);
	r = te__client_fetch(c, 5, 0, &nbytes, &fd, in_ms(20000));
	snprintf(line, sizeof(line), "%d %.200s", r, te_error_detail());
	say(line);
	te__client_close(c, r, te_error_detail());
}

START_TEST(a_full_file_table_is_named)
{
	struct te__client *c;
	struct te__broker *b;
	const int fd = filled_fd(4096, 1);
	struct te__control *control;
	char want[64];
	int code;

	spawn(1, has_no_room);
	DO(te__broker_start(&info, &b));
	DO(te__client_open(&info, 0, in_ms(20000), &c));
	let_go(1);
	expect(1, "open");
	DO(te__client_control(c, in_ms(20000), &control));
	DO(te__client_publish(c, 5, 4096, fd, in_ms(20000)));
	let_go(1);
	snprintf(want, sizeof(want), "%d a file descriptor did not arrive (MSG_CTRUNC)", -EMFILE);
	expect(1, want);
	reap(1, 0);
	/* which the broker reads in its own time */
	for (int i = 0; i < 20000 && !te__control_why(control, &code); i++)
		usleep(1000);
	fails(te__client_publish(c, 6, 4096, fd, in_ms(20000)), -TE_EABORT,
	      "rank 1 gives up: a file descriptor did not arrive");
	te__client_close(c, 0, NULL);
	te__broker_stop(b);
	close(fd);
}
END_TEST

/* the process of the broker has no descriptor left: who connects is told, and it goes on */
static void connects(int rank)
{
	struct te__client *c = NULL;
	char line[256];
	int r;

	for (int i = 0; i < 2; i++) {
		r = te__client_open(&info, rank, in_ms(20000), &c);
		snprintf(line, sizeof(line), "%d %.200s", r, r ? te_error_detail() : "");
		say(line);
		await_go();
	}
	te__client_close(c, 0, NULL);
}

START_TEST(a_broker_without_descriptors_refuses)
{
	struct te__broker *b;
	struct rlimit old;
	char want[96];

	spawn(1, connects);
	DO(te__broker_start(&info, &b));
	no_more_files(&old);
	let_go(1);
	snprintf(want, sizeof(want), "%d HELLO to the broker: too many files are open in the "
		 "process of the broker", -EMFILE);
	expect(1, want);
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &old), 0);
	let_go(1);
	expect(1, "0 ");
	let_go(1);
	reap(1, 0);
	te__broker_stop(b);
}
END_TEST

/* ---- the control page ---- */

START_TEST(a_wrong_control_page_is_refused)
{
	struct te__control *c = NULL;
	int fd;

	fd = filled_fd(TE__CONTROL_NBYTES, 0);
	fails(te__control_map(fd, 3, &c), -EINVAL, "is no memfd that is sealed");
	close(fd);
	fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	ck_assert_int_eq(ftruncate(fd, TE__CONTROL_NBYTES - 1), 0);
	ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
	fails(te__control_map(fd, 3, &c), -EINVAL, "has 65535 bytes, expected 65536");
	close(fd);
	DO(te__control_create(4, &fd));
	fails(te__control_map(fd, 3, &c), -TE_EMISMATCH, "not that of 3 ranks");
	ck_assert_ptr_null(c);
	DO(te__control_map(fd, 4, &c));
	close(fd);
	DO(te__control_check(c, "fn"));
	te__control_abort(c, -TE_EPEER, "rank 9 has ended");
	te__control_abort(c, -TE_EABORT, "something else");
	fails(te__control_check(c, "fn"), -TE_EPEER, "fn: rank 9 has ended");
	te__control_unmap(c);
	te__control_unmap(NULL);
}
END_TEST

static void *checks(void *control)
{
	static char text[300];

	snprintf(text, sizeof(text), "%d: ", te__control_check(control, "fn"));
	strncat(text, te_error_detail(), sizeof(text) - strlen(text) - 1);
	return text;
}

/* a rank that sees an abort before its reason is written */
START_TEST(the_reason_of_an_abort_is_waited_for)
{
	struct te__control *c;
	pthread_t thread;
	void *text;
	char want[80];
	int fd;

	DO(te__control_create(4, &fd));
	DO(te__control_map(fd, 4, &c));
	close(fd);
	atomic_store(&c->abort, 1);
	ck_assert_int_eq(pthread_create(&thread, NULL, checks, c), 0);
	usleep((useconds_t)tt_rand_int(0, 5000));
	c->code = -TE_EPEER;
	snprintf(c->reason, sizeof(c->reason), "rank 9 has ended");
	atomic_store(&c->told, 1);
	pthread_join(thread, &text);
	snprintf(want, sizeof(want), "%d: fn: rank 9 has ended", -TE_EPEER);
	ck_assert_str_eq(text, want);
	/* not for ever */
	atomic_store(&c->told, 0);
	fails(te__control_check(c, "fn"), -TE_EABORT, "fn: a rank has aborted the communicator");
	te__control_unmap(c);
}
END_TEST

/* ---- faults ---- */

static int once(void)
{
	struct te__broker *b = NULL;
	struct te__client *c = NULL;
	struct te__control *control;
	int fd = -1, r;

	info.nlocal = 1;
	r = te__broker_start(&info, &b);
	if (!r)
		r = te__client_open(&info, 0, in_ms(20000), &c);
	if (!r)
		r = te__client_control(c, in_ms(20000), &control);
	if (!r) {
		fd = filled_fd(4096, 7);
		info.nlocal = 2;
		r = te__client_publish(c, 5, 4096, fd, in_ms(20000));
	}
	if (!r)
		r = te__client_watch(c);
	tt_fault_end();
	te__client_close(c, 0, NULL);
	te__broker_stop(b);
	if (fd >= 0)
		close(fd);
	return r;
}

START_TEST(each_failing_call_leaves_nothing)
{
	const int before = nfds();

	DO(once());
	ck_assert_int_eq(nfds(), before);
	ck_assert_int_ge(tt_fault_each(once), 15);
	ck_assert_int_eq(nfds(), before);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("comm/broker");
	TCase *c = tt_case(s, "exchange", "host");

	tcase_add_checked_fixture(c, setup, NULL);
	tcase_add_loop_test(c, descriptors_reach_all_ranks, 1, MOST + 1);
	c = tt_case(s, "ends", "host");
	tcase_add_checked_fixture(c, setup, NULL);
	tcase_add_loop_test(c, a_killed_rank_is_named, 0, 4);
	tcase_add_test(c, the_end_of_the_broker_aborts_all);
	tcase_add_test(c, the_end_of_the_broker_ends_a_fetch);
	tcase_add_test(c, leaving_in_order_is_no_failure);
	tcase_add_test(c, a_rank_that_gives_up_says_why);
	tcase_add_test(c, a_forked_child_does_not_hide_the_end_of_a_rank);
	c = tt_case(s, "wrong", "host");
	tcase_add_checked_fixture(c, setup, NULL);
	tcase_add_test(c, strangers_are_refused);
	tcase_add_loop_test(c, requests_that_make_no_sense_end_the_rank, 0, 4);
	tcase_add_test(c, a_second_descriptor_is_an_error);
	tcase_add_test(c, a_full_file_table_is_named);
	tcase_add_test(c, a_broker_without_descriptors_refuses);
	tcase_add_test(c, a_wrong_control_page_is_refused);
	tcase_add_test(c, the_reason_of_an_abort_is_waited_for);
	tcase_add_test(c, each_failing_call_leaves_nothing);
	c = tt_case(s, "fuzz", "host");
	tcase_add_checked_fixture(c, setup, NULL);
	if (getenv("TT_WIRE_MESSAGES"))
		tcase_set_timeout(c, 3600);
	tcase_add_test(c, copes_with_any_messages);
	return s;
}

TT_MAIN("comm/broker", TT_NEED_NOTHING, suite)
