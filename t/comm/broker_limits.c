/*
 * t/comm/broker_limits.c - cases of t/comm/broker: no further descriptor can be opened, or a call
 * fails, in the process of the broker or of a client.
 */
#include "config.h"

#include <sys/resource.h>
#include <unistd.h>

#include "broker_lib.h"

/* ---- too many open files ---- */

/* no further descriptor can be opened */
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
	struct te__client *c = bk_open(rank);
	struct rlimit old;
	uint64_t nbytes;
	char line[256];
	int fd = -1, r;

	bk_say("open");
	bk_await_go();
	no_more_files(&old);
	r = te__client_fetch(c, 5, 0, &nbytes, &fd, bk_in_ms(20000));
	snprintf(line, sizeof(line), "%d %.200s", r, te_error_detail());
	bk_say(line);
	te__client_close(c, r, te_error_detail());
}

CASE(limits, "host", .setup = bk_setup);

TEST(limits, a_full_file_table_is_named)
{
	struct te__client *c;
	struct te__broker *b;
	const int fd = bk_fd(4096, 1);
	struct te__control *control;
	char want[64];
	int code;

	bk_spawn(1, has_no_room);
	DO(te__broker_start(&bk_info, &b));
	DO(te__client_open(&bk_info, 0, bk_in_ms(20000), &c, NULL));
	bk_let_go(1);
	bk_expect(1, "open");
	control = te__client_control(c);
	DO(te__client_publish(c, 5, 4096, fd, bk_in_ms(20000)));
	bk_let_go(1);
	snprintf(want, sizeof(want), "%d a file descriptor did not arrive (MSG_CTRUNC)", -EMFILE);
	bk_expect(1, want);
	bk_reap(1, 0);
	/* which the broker reads in its own time */
	for (int i = 0; i < 20000 && !te__control_why(control, &code); i++)
		usleep(1000);
	fails(te__client_publish(c, 6, 4096, fd, bk_in_ms(20000)), -TE_EABORT,
	      "rank 1 gives up: a file descriptor did not arrive");
	te__client_close(c, 0, NULL);
	te__broker_stop(b);
	close(fd);
}

/* the process of the broker has no descriptor left: who connects is told, and it goes on */
static void connects(int rank)
{
	struct te__client *c = NULL;
	char line[256];
	int r;

	for (int i = 0; i < 2; i++) {
		r = te__client_open(&bk_info, rank, bk_in_ms(20000), &c, NULL);
		snprintf(line, sizeof(line), "%d %.200s", r, r ? te_error_detail() : "");
		bk_say(line);
		bk_await_go();
	}
	te__client_close(c, 0, NULL);
}

TEST(limits, a_broker_without_descriptors_refuses)
{
	struct te__broker *b;
	struct rlimit old;
	char want[96];

	bk_spawn(1, connects);
	DO(te__broker_start(&bk_info, &b));
	no_more_files(&old);
	bk_let_go(1);
	snprintf(want, sizeof(want), "%d HELLO to the broker: too many files are open in the "
		 "process of the broker", -EMFILE);
	bk_expect(1, want);
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &old), 0);
	bk_let_go(1);
	bk_expect(1, "0 ");
	bk_let_go(1);
	bk_reap(1, 0);
	te__broker_stop(b);
}

/* ---- faults ---- */

static int once(void)
{
	struct te__broker *b = NULL;
	struct te__client *c = NULL;
	int fd = -1, r;

	bk_info.nlocal = 1;
	r = te__broker_start(&bk_info, &b);
	if (!r)
		r = te__client_open(&bk_info, 0, bk_in_ms(20000), &c, NULL);
	if (!r) {
		fd = bk_fd(4096, 7);
		bk_info.nlocal = 2;
		r = te__client_publish(c, 5, 4096, fd, bk_in_ms(20000));
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

TEST(limits, each_failing_call_leaves_nothing)
{
	const int before = bk_nfds();

	DO(once());
	ck_assert_int_eq(bk_nfds(), before);
	ck_assert_int_ge(tt_fault_each(once), 15);
	ck_assert_int_eq(bk_nfds(), before);
}
