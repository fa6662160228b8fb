/*
 * t/comm/broker.c - the broker of a node with clients in other processes: descriptors arrive, and
 * the end of each process is named, in time.
 */
#include "config.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "broker_lib.h"

#define SOON_MS 6000 /* far below the deadline: what is seen at once, on a slow machine too */

/* ---- all ranks exchange descriptors ---- */

/* publishes a memfd of its own, then fetches all others and looks into them */
static void exchange(int rank)
{
	struct te__client *c = bk_open(rank);
	struct te__control *control = te__client_control(c);
	const size_t n = 4096 * (size_t)(rank + 1);
	uint64_t nbytes;
	int fd = bk_fd(n, 0x40 + rank);

	if (bk_result("publish", te__client_publish(c, 70 + (uint32_t)rank, n, fd,
						    bk_in_ms(20000))))
		_exit(1);
	close(fd);
	for (int i = 0; i < bk_info.nlocal; i++) {
		const int of = (rank + i) % bk_info.nlocal;

		if (of == rank)
			continue;
		if (bk_result("fetch", te__client_fetch(c, 70 + (uint32_t)of, of, &nbytes, &fd,
							bk_in_ms(20000))))
			_exit(1);
		if (nbytes != 4096 * ((uint64_t)of + 1) ||
		    bk_fd_byte(fd, nbytes - 1) != 0x40 + of ||
		    fcntl(fd, F_GETFD) != FD_CLOEXEC)
			_exit(2);
		close(fd);
	}
	if (bk_result("watch", te__client_watch(c)) ||
	    bk_result("check", te__control_check(control, "")))
		_exit(1);
	bk_say("ready");
	bk_await_go();
	if (bk_result("at the end", te__control_check(control, "end")))
		_exit(3);
	te__client_close(c, 0, NULL);
}

static void start_all(void (*fn)(int rank), struct te__broker **ret_broker)
{
	for (int i = 0; i < bk_info.nlocal; i++)
		bk_spawn(i, fn);
	DO(te__broker_start(&bk_info, ret_broker));
	for (int i = 0; i < bk_info.nlocal; i++)
		bk_let_go(i);
}

CASE(exchange, "host", .setup = bk_setup);

TEST_EACH(exchange, descriptors_reach_all_ranks, BK_MOST + 1, .from = 1)
{
	const int before = bk_nfds();
	struct te__broker *b;

	bk_info.nlocal = _i;
	start_all(exchange, &b);
	for (int i = 0; i < bk_info.nlocal; i++)
		bk_expect(i, "ready");
	/* what all have fetched is closed: 5 of the broker, 2 of each connection and its pipes */
	if (bk_info.nlocal > 1)
		ck_assert_int_le(bk_nfds(), before + 5 + 4 * bk_info.nlocal);
	for (int i = 0; i < bk_info.nlocal; i++)
		bk_let_go(i);
	for (int i = 0; i < bk_info.nlocal; i++)
		bk_reap(i, 0);
	te__broker_stop(b);
	ck_assert_int_eq(bk_nfds(), before);
	ck_assert_ptr_null(te__broker_stop(NULL));
	ck_assert_ptr_null(te__client_close(NULL, 0, NULL));
}

/* ---- a process is killed ---- */

/* each step of the exchange, and then a wait for ever */
static int stop_at;

static void step(int at)
{
	if (at != stop_at)
		return;
	bk_say("here");
	for (;;)
		pause();
}

static void stops(int rank)
{
	struct te__client *c;
	int fd = bk_fd(4096, rank);

	step(0); /* before it connects */
	c = bk_open(rank);
	step(1); /* after HELLO */
	(void)te__client_publish(c, 70 + (uint32_t)rank, 4096, fd, bk_in_ms(20000));
	step(2); /* its memory can still be fetched, but not for long */
	_exit(0);
}

/* a rank that is not at fault: what it is told, and when */
static void survives(int rank)
{
	struct te__client *c = bk_open(rank);
	struct te__control *control = te__client_control(c);
	uint64_t nbytes;
	char line[256];
	int64_t begin;
	int fd = -1, r;

	bk_say("open");
	bk_await_go();
	begin = bk_now_ms();
	/* never published: waits for the deadline, or for the end of a rank */
	r = te__client_fetch(c, 99, 2, &nbytes, &fd, bk_in_ms(stop_at ? 20000 : 300));
	snprintf(line, sizeof(line), "%s %d %.180s",
		 bk_now_ms() - begin < SOON_MS ? "soon" : "late", r, te_error_detail());
	bk_say(line);
	r = te__control_check(control, "te_comm_alloc");
	snprintf(line, sizeof(line), "%d %.200s", r, r ? te_error_detail() : "");
	bk_say(line);
	te__client_close(c, 0, NULL);
	if (fd >= 0)
		_exit(4);
}

CASE(ends, "host", .setup = bk_setup);

TEST_EACH(ends, a_killed_rank_is_named, 3)
{
	char want[128];
	struct te__broker *b;
	const int before = bk_nfds();

	stop_at = _i;
	bk_spawn(0, survives);
	bk_spawn(1, survives);
	bk_spawn(2, stops);
	DO(te__broker_start(&bk_info, &b));
	for (int i = 0; i < 3; i++)
		bk_let_go(i);
	bk_expect(2, "here");
	for (int i = 0; i < 2; i++) {
		bk_expect(i, "open");
		bk_let_go(i);
	}
	/* one is waiting already, probably both */
	usleep(20000);
	bk_kill(2);
	for (int i = 0; i < 2; i++) {
		if (!stop_at) /* the broker did not know it yet */
			snprintf(want, sizeof(want), "soon %d fetch memory of a rank: rank 2 has "
				 "not published its memory in time", -ETIMEDOUT);
		else
			snprintf(want, sizeof(want), "soon %d fetch memory of a rank: rank 2 has "
				 "ended", -TE_EPEER);
		bk_expect(i, want);
		if (stop_at) {
			snprintf(want, sizeof(want), "%d te_comm_alloc: rank 2 has ended",
				 -TE_EPEER);
			bk_expect(i, want);
		} else {
			bk_expect(i, "0 ");
		}
		bk_reap(i, 0);
	}
	te__broker_stop(b);
	ck_assert_int_eq(bk_nfds(), before);
}

/* the watching threads of the others see the end of the rank that has the broker */

static struct te__broker *own;

static void has_broker(int rank)
{
	if (bk_result("start", te__broker_start(&bk_info, &own)))
		_exit(1);
	bk_say("started");
	exchange(rank);
	te__broker_stop(own);
}

static void watches(int rank)
{
	struct te__client *c = bk_open(rank);
	struct te__control *control = te__client_control(c);
	char line[256];
	int64_t begin;
	int r = 0;

	if (bk_result("watch", te__client_watch(c)))
		_exit(1);
	bk_say("ready");
	bk_await_go();
	begin = bk_now_ms();
	while (!r && bk_now_ms() - begin < SOON_MS) {
		r = te__control_check(control, "poll");
		usleep(1000);
	}
	snprintf(line, sizeof(line), "%d %.200s", r, r ? te_error_detail() : "");
	bk_say(line);
	te__client_close(c, 0, NULL);
}

TEST(ends, the_end_of_the_broker_aborts_all)
{
	char want[96];

	bk_spawn(0, has_broker);
	bk_spawn(1, watches);
	bk_spawn(2, watches);
	bk_let_go(0);
	bk_expect(0, "started");
	bk_let_go(1);
	bk_let_go(2);
	bk_expect(1, "ready");
	bk_expect(2, "ready");
	bk_kill(0);
	snprintf(want, sizeof(want), "%d poll: rank 0, which is the broker of the node, has ended",
		 -TE_EPEER);
	for (int i = 1; i < 3; i++) {
		bk_let_go(i);
		bk_expect(i, want);
		bk_reap(i, 0);
	}
}

/* the same while a rank waits for an answer */
TEST(ends, the_end_of_the_broker_ends_a_fetch)
{
	char want[96];

	stop_at = 1;
	bk_spawn(0, has_broker);
	bk_spawn(1, survives);
	bk_let_go(0);
	bk_expect(0, "started");
	bk_let_go(1);
	bk_expect(1, "open");
	bk_let_go(1);
	usleep(50000);
	bk_kill(0);
	snprintf(want, sizeof(want), "soon %d fetch memory of a rank: rank 0, which is the broker",
		 -TE_EPEER);
	bk_expect(1, want);
	/* the control page: this client does not watch */
	bk_expect(1, "0 ");
	bk_reap(1, 0);
}

/* a broker that leaves in order is no failure; a rank that gives up is one, with its reason */
TEST(ends, leaving_in_order_is_no_failure)
{
	struct te__broker *b;

	bk_spawn(0, watches);
	bk_spawn(1, watches);
	DO(te__broker_start(&bk_info, &b));
	bk_let_go(0);
	bk_let_go(1);
	bk_expect(0, "ready");
	bk_expect(1, "ready");
	te__broker_stop(b);
	usleep(20000);
	for (int i = 0; i < 2; i++) {
		bk_let_go(i);
		bk_expect(i, "0 ");
		bk_reap(i, 0);
	}
}

static void gives_up(int rank)
{
	te__client_close(bk_open(rank), -ENOMEM, "no 4096 bytes of device memory");
	bk_say("gone");
}

TEST(ends, a_rank_that_gives_up_says_why)
{
	char want[128];
	struct te__broker *b;

	stop_at = 1;
	bk_spawn(0, survives);
	bk_spawn(1, gives_up);
	DO(te__broker_start(&bk_info, &b));
	bk_let_go(0);
	bk_expect(0, "open");
	bk_let_go(0);
	usleep(20000);
	bk_let_go(1);
	bk_expect(1, "gone");
	snprintf(want, sizeof(want), "soon %d fetch memory of a rank: rank 1 gives up: no 4096 "
		 "bytes of device memory", -TE_EABORT);
	bk_expect(0, want);
	bk_expect(0, "te_comm_alloc: rank 1 gives up: no 4096 bytes of device memory");
	bk_reap(0, 0);
	bk_reap(1, 0);
	te__broker_stop(b);
}

/* a process that a rank forked has its socket: the rank's end is seen all the same */
static void leaves_a_child(int rank)
{
	struct te__client *c = bk_open(rank);
	pid_t child = fork();

	if (!child) {
		for (int i = 0; i < 100; i++)
			usleep(100000);
		_exit(0);
	}
	(void)c;
	(void)bk_result("child", child > 0 ? (int)child : -1);
	step(stop_at);
}

TEST(ends, a_forked_child_does_not_hide_the_end_of_a_rank)
{
	struct te__broker *b;
	int child = 0;
	char want[64];

	stop_at = 1;
	bk_spawn(0, survives);
	bk_spawn(2, leaves_a_child);
	DO(te__broker_start(&bk_info, &b));
	bk_let_go(2);
	ck_assert_int_eq(sscanf(bk_heard(2), "child: %d", &child), 1);
	bk_expect(2, "here");
	bk_let_go(0);
	bk_expect(0, "open");
	bk_let_go(0);
	usleep(20000);
	kill(bk_pid(2), SIGKILL);
	snprintf(want, sizeof(want), "soon %d fetch memory of a rank: rank 2 has ended", -TE_EPEER);
	bk_expect(0, want);
	kill(child, SIGKILL);
	bk_reap(2, SIGKILL);
	bk_expect(0, "rank 2 has ended");
	bk_reap(0, 0);
	te__broker_stop(b);
}

TT_MAIN("comm/broker", TT_NEED_NOTHING)
