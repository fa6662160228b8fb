/*
 * t/comm/pass.c - descriptors that ranks of a node pass to each other: all arrive, whoever else
 * connects, and a rank that has an error, ends or does not come is named, in time.
 */
#include "config.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <te/comm.h>
#include <te/errno.h>

#include "bootstrap_lib.h"
#include "libtecomm/meet/agree.h"
#include "libtecomm/meet/boot.h"
#include "libtecomm/meet/pass.h"
#include "ranks.h"
#include "threads.h"

enum event { NOTHING, STRANGERS, ERROR, AGAIN, KILLED, ABSENT, FULL };

/* what the ranks of a test do: rank 1, or with FULL rank 0, has the event */
static enum event event;
static _Atomic int *nlate; /* ranks that have waited for rank 1, or NULL */

static int64_t in_ms(int ms)
{
	return te__boot_now() + ms * INT64_C(1000000);
}

/* a memfd with one byte */
static int memory(char value)
{
	const int fd = memfd_create("test", MFD_CLOEXEC);

	return fd >= 0 && write(fd, &value, 1) == 1 ? fd : -1;
}

/* rank r passes r % (TE__PASS_MOST + 1) descriptors */
static int count(int32_t rank)
{
	return rank % (TE__PASS_MOST + 1);
}

struct seen {
	int from[RANKS_MAX];
};

static int take(void *arg, int32_t local, int pid, const int *fd, int nfds)
{
	struct seen *s = arg;
	char got = 0;

	HOLDS(nfds == count(local) && pid > 0 && pid != getpid());
	for (int k = 0; k < nfds; k++)
		HOLDS(pread(fd[k], &got, 1, 0) == 1 && got == (char)(8 * local + k) &&
		      fcntl(fd[k], F_GETFD) == FD_CLOEXEC);
	s->from[local]++;
	return 0;
}

/* ---- strangers ---- */

struct message {
	uint8_t proof[TE__KEY_NBYTES];
	int32_t from, code;
};

static int connected_to(const struct te__boot *b, int32_t to)
{
	struct sockaddr_un sa;
	const socklen_t len = te__local_address(b->again[to], &sa);
	const int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	(void)!connect(s, (struct sockaddr *)&sa, len);
	return s;
}

static void connect_to(const struct te__boot *b, int32_t to, const void *p, size_t nbytes, int fd)
{
	const int s = connected_to(b, to);
	struct iovec io = { (void *)(uintptr_t)p, nbytes };
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(9 * sizeof(int))];
	} a = { .bytes = { 0 } };
	/* more than a message may have */
	const int fds[] = { fd, fd, fd, fd, fd, fd, fd, fd, fd };
	struct msghdr h = { .msg_iov = &io, .msg_iovlen = 1 };

	if (fd >= 0) {
		h.msg_control = a.bytes;
		h.msg_controllen = sizeof(a.bytes);
		*CMSG_FIRSTHDR(&h) = (struct cmsghdr){ .cmsg_len = CMSG_LEN(sizeof(fds)),
						       .cmsg_level = SOL_SOCKET,
						       .cmsg_type = SCM_RIGHTS };
		memcpy(CMSG_DATA(CMSG_FIRSTHDR(&h)), fds, sizeof(fds));
	}
	if (nbytes)
		(void)!sendmsg(s, &h, MSG_NOSIGNAL);
	close(s);
}

static struct message proven(const struct te__boot *b, int32_t from, int32_t to)
{
	const int32_t ends[] = { from, to, b->npasses + 1 };
	struct message m = { .from = from };

	te__key_derive(te__boot_key(b), "descriptors", ends, sizeof(ends), m.proof);
	return m;
}

/* rank 1, before its message to rank 0 */
static void be_strangers(const struct te__boot *b, int fd)
{
	struct message m = proven(b, 1, 2);
	uint8_t bytes[64];

	connect_to(b, 0, NULL, 0, -1); /* nothing */
	connect_to(b, 0, &m, sizeof(m), fd); /* a proof for another rank */
	m = proven(b, 1, 0);
	m.from = 2;
	connect_to(b, 0, &m, sizeof(m), fd); /* of another rank */
	m.from = -1;
	connect_to(b, 0, &m, sizeof(m), -1);
	m.from = 1000;
	connect_to(b, 0, &m, sizeof(m), -1);
	m.from = 1;
	connect_to(b, 0, &m, sizeof(m) - 1, fd); /* half a message */
	for (int k = 0; k < (int)TT_FEWER(200); k++) {
		tt_fill_bytes(bytes, sizeof(bytes));
		connect_to(b, 0, bytes, (size_t)tt_rand_int(0, sizeof(bytes)), k % 3 ? -1 : fd);
	}
}

/* ---- the ranks ---- */

static int happen(const struct te__boot *b, int fd)
{
	const int32_t rank = te__boot_rank(b);

	if (event == FULL && !rank)
		ranks_limit_files(2); /* one for a local socket */
	if (rank != 1)
		return 0;
	if (event == STRANGERS)
		be_strangers(b, fd);
	for (int k = 0; event == ABSENT && k < 5; k++)
		connected_to(b, 0); /* open and silent, while the process lives */
	if (event == KILLED) {
		tt_pause(100); /* the others wait */
		raise(SIGKILL);
	}
	return event == ERROR || event == AGAIN ?
		       te_fail(-ENOMEM, "te_comm_create: no memory of the device") : 0;
}

static int passing_rank(int rank, void *arg)
{
	const int ms = *(int *)arg;
	/* a rank with an error has no memory to pass */
	int fd[TE__PASS_MOST], n = event == ERROR && rank == 1 ? 0 : count(rank), r;
	struct seen seen = { { 0 } };
	struct te__boot *b = NULL;

	for (int k = 0; k < n; k++)
		fd[k] = memory((char)(8 * rank + k));
	r = bf_open(rank, 0, &b);
	if (!r)
		r = happen(b, n ? fd[0] : -1);
	if (event == ABSENT && rank == 1)
		ranks_await(nlate, 2); /* its bootstrap is open */
	else if (b)
		r = te__pass(b, r, fd, event == AGAIN ? 0 : n, take, &seen, in_ms(ms));
	if (b && event == AGAIN) {
		HOLDS(r && te__agree(b, r, "first"));
		seen = (struct seen){ { 0 } };
		r = te__pass(b, 0, fd, n, take, &seen, in_ms(ms));
	}
	for (int32_t i = 0; b && i < te__boot_nranks(b) && !r && event < ABSENT; i++)
		HOLDS(seen.from[i] == (i != rank));
	if (event == ABSENT)
		++*nlate;
	/* no rank closes before all have finished, as when a communicator is created */
	if (b && event <= AGAIN)
		r = te__agree(b, r, "end");
	for (int k = 0; k < n; k++)
		close(fd[k]);
	te__boot_close(b);
	return r;
}

static void run(enum event e, int n, int ms, struct ranks_result *res)
{
	event = e;
	ranks_meet_run(MEET_ID, n, passing_rank, &ms, res);
}

CASE(pass, "host");

TEST_EACH(pass, descriptors_reach_all_ranks, 9, .from = 1)
{
	struct ranks_result res[RANKS_MAX];
	const int n = _i < 8 ? _i : 24;

	run(NOTHING, n, 20000, res);
	ranks_ok(n, res);
}

TEST(pass, strangers_are_ignored)
{
	struct ranks_result res[3];

	run(STRANGERS, 3, 20000, res);
	ranks_ok(3, res);
}

TEST(pass, an_error_of_one_rank_is_told)
{
	struct ranks_result res[3];

	run(ERROR, 3, 20000, res);
	for (int i = 0; i < 3; i++) {
		ranks_failed(&res[i], -ENOMEM, "te_comm_create: rank 1 (host ", SOON);
		ck_assert_ptr_nonnull(strstr(res[i].text, "): no memory of the device"));
	}
}

/* the second call ignores messages of the failed first call, which have no descriptors */
TEST(pass, a_call_after_one_that_failed)
{
	struct ranks_result res[4];

	run(AGAIN, 4, 20000, res);
	ranks_ok(4, res);
}

TEST(pass, a_killed_rank_is_named)
{
	struct ranks_result res[3];

	run(KILLED, 3, 60000, res);
	ck_assert_int_eq(res[1].signal, SIGKILL);
	for (int i = 0; i < 3; i += 2) {
		ranks_failed(&res[i], -TE_EPEER, "rank 1 (host ", SOON);
		ck_assert_ptr_nonnull(strstr(res[i].text, "has ended"));
	}
}

TEST(pass, a_rank_that_does_not_come_is_named)
{
	struct ranks_result res[3];

	nlate = ranks_shared(sizeof(*nlate));
	run(ABSENT, 3, TT_SLOWER(300), res);
	for (int i = 0; i < 3; i += 2) {
		ranks_failed(&res[i], -ETIMEDOUT, "rank 1 (host ", SOON);
		ck_assert_ptr_nonnull(strstr(res[i].text, "has not passed its memory in time"));
	}
}

/* rank 4 passes four descriptors, and there is room for one */
TEST(pass, a_full_file_table_is_named)
{
	struct ranks_result res[5];

	run(FULL, 5, 20000, res);
	ranks_failed(&res[0], -EMFILE, "comm: ", SOON);
	ck_assert_msg(strstr(res[0].text, "did not arrive (MSG_CTRUNC)") ||
		      strstr(res[0].text, "Too many open files"), "%s", res[0].text);
}

/* ---- the end of a rank whose sockets a child of it has ---- */

struct shared {
	_Atomic int nready, child;
};

static int watching_rank(int rank, void *arg)
{
	struct te_ctx_opts c = TE_CTX_OPTS_INIT;
	struct te_comm_opts o = ranks_opts(rank);
	struct shared *s = arg;
	struct te_comm *comm = NULL;
	struct te_ctx *ctx = NULL;
	int r;

	c.backend = "host";
	o.pool_nbytes = 1 << 20;
	STEP(te_ctx_create(&c, &ctx));
	r = te_comm_create(ctx, &o, &comm);
	if (!r && rank) {
		const pid_t child = fork();

		if (!child) {
			alarm(100);
			pause();
			_exit(0);
		}
		s->child = child;
		s->nready++;
		ranks_await(&s->nready, 2);
		raise(SIGKILL);
	}
	s->nready++;
	for (int i = 0; i < 20000 && !r; i++) {
		usleep(1000);
		r = te_comm_error(comm);
	}
	te_comm_unref(comm);
	te_ctx_unref(ctx);
	return r;
}

/* a process of several threads is forked, which ThreadSanitizer does not take */
CASE(fork, "host overlap");

TEST(fork, a_child_does_not_hide_the_end_of_a_rank)
{
	struct shared *s = ranks_shared(sizeof(*s));
	struct ranks_result res[2];

	ranks_meet(MEET_ID, 2);
	ranks_start(2, watching_rank, s);
	ranks_wait(res);
	ranks_part();
	kill(s->child, SIGKILL);
	ck_assert_int_eq(res[1].signal, SIGKILL);
	ck_assert_int_eq(res[0].r, -TE_EPEER);
	ck_assert_ptr_nonnull(strstr(res[0].text, "rank 1 (host "));
	ck_assert_ptr_nonnull(strstr(res[0].text, ") has ended"));
	ck_assert_msg(res[0].ms < SOON, "after %.0f ms", res[0].ms);
}

TT_MAIN("comm/pass", TT_NEED_NOTHING)
