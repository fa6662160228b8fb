/*
 * t/comm/bootstrap_setup.c - what ranks report when they cannot meet: folders, keys, descriptors,
 * options and environments that will not do, arrivals that are not believed, and calls that fail.
 */
#include "config.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <te/ctx.h>
#include <te/errno.h>

#include "bootstrap_lib.h"
#include "libtecomm/meet/agree.h"
#include "libtecomm/meet/boot.h"
#include "libtecomm/meet/lineage.h"
#include "libtecomm/pool/pool.h"
#include "libtecomm/reach/link/link.h"
#include "ranks.h"

/* ---- the folder ---- */

static int folder(int rank, void *arg)
{
	struct te_comm_opts o = ranks_opts(rank);
	struct te__boot *b;

	setenv("TE_COMM_DIR", arg, 1);
	return te__boot_open(&o, &b);
}

static const mode_t too_open[] = { 0777, 0755, 0750, 0711, 0701, 0704 };

CASE(set_up, "host", .name = "set-up");

TEST(set_up, folders_that_will_not_do)
{
	struct ranks_result res[1];
	char missing[300];

	ranks_meet(MEET_DIR, 2);
	snprintf(missing, sizeof(missing), "%s/none", ranks_dir());
	ranks_run(1, folder, missing, res);
	ranks_failed(&res[0], -ENOENT, "/none: No such file", SOON);
	for (size_t i = 0; i < TT_LEN(too_open); i++) {
		ck_assert_int_eq(chmod(ranks_dir(), too_open[i]), 0);
		ranks_run(1, folder, (void *)(uintptr_t)ranks_dir(), res);
		ranks_failed(&res[0], -EPERM, ": chmod 700 it", SOON);
	}
	ck_assert_int_eq(chmod(ranks_dir(), 0700), 0);
	if (!geteuid()) {
		ck_assert_int_eq(chown(ranks_dir(), 65534, 65534), 0);
		ranks_run(1, folder, (void *)(uintptr_t)ranks_dir(), res);
		ranks_failed(&res[0], -EPERM, " is of user 65534, expected a folder of user 0",
			     SOON);
		ck_assert_int_eq(chown(ranks_dir(), 0, 0), 0);
	} else {
		printf("# not root: a folder of another user is not tried\n");
	}
	ranks_part();
}

/* objects in place of the key; none is a file of 16 bytes for its user */
static void plant(int kind, const char *path)
{
	char other[320];
	int fd;

	snprintf(other, sizeof(other), "%.*s/other", (int)(strrchr(path, '/') - path), path);
	fd = open(kind == 1 ? other : path, O_WRONLY | O_CREAT, 0600);
	ck_assert_int_eq(write(fd, "0123456789abcdefg", kind == 4 ? 17 : kind ? 16 : 15) > 0, 1);
	close(fd);
	if (kind == 1)
		ck_assert_int_eq(symlink(other, path), 0);
	if (kind == 2)
		ck_assert_int_eq(chmod(path, 0640), 0);
	if (kind == 3)
		ck_assert_int_eq(unlink(path) || mkfifo(path, 0600), 0);
	if (kind == 5)
		ck_assert_int_eq(chown(path, 65534, 65534), 0);
}

TEST_EACH(set_up, keys_that_will_not_do, 6)
{
	struct ranks_result res[1];
	char path[300];

	if (_i == 5 && geteuid()) {
		printf("# not root: a key of another user is not tried\n");
		return;
	}
	ranks_meet(MEET_DIR, 2);
	snprintf(path, sizeof(path), "%s/te-key", ranks_dir());
	plant(_i, path);
	ranks_run(1, folder, (void *)(uintptr_t)ranks_dir(), res);
	ranks_failed(&res[0], _i == 1 ? -ELOOP : -EPERM, "te-key", SOON);
	ranks_rmdir();
}

/* a rank that waits for another one, and its files in the folder */
static int lone_rank(int rank, void *arg)
{
	umask(*(const mode_t *)arg);
	return bf_open_only(rank, 20000);
}

TEST_EACH(set_up, files_are_for_their_user_whatever_the_umask, 4)
{
	static const mode_t mask[] = { 0, 022, 0277, 0777 };
	struct ranks_result res[1];
	char cmd[400], line[300];
	int nsockets = 0;
	FILE *f;

	ranks_meet(MEET_DIR, 2);
	ranks_start(1, lone_rank, (void *)(uintptr_t)&mask[_i]);
	snprintf(cmd, sizeof(cmd), "cd %s && stat -c '%%a %%s %%F %%n' te-key te-*-0 2>&1",
		 ranks_dir());
	for (int i = 0; i < 10000 && !nsockets; i++, usleep(1000)) {
		f = popen(cmd, "r");
		while (fgets(line, sizeof(line), f)) {
			if (strstr(line, " socket "))
				nsockets += !strncmp(line, "600 ", 4) ? 1 : 100;
			else if (strstr(line, " regular file "))
				ck_assert_msg(!strncmp(line, "600 16 ", 7), "%s", line);
		}
		pclose(f);
	}
	ck_assert_int_eq(nsockets, 1);
	kill(ranks_pid(0), SIGKILL);
	ranks_wait(res);
	ranks_rmdir();
}

/* names tell nothing of the key, and each communicator has a key of its own */
static int show_key(int rank, void *arg)
{
	struct te__boot *b;
	int r = bf_open(rank, 0, &b);

	if (r)
		return r;
	memcpy((uint8_t *)arg + rank * TE__KEY_NBYTES, te__boot_key(b), TE__KEY_NBYTES);
	te__boot_close(b);
	return 0;
}

TEST(set_up, each_communicator_of_a_folder_has_its_key)
{
	uint8_t (*key)[2][TE__KEY_NBYTES] = ranks_shared(2 * sizeof(*key));
	struct ranks_result res[2];

	ranks_meet(MEET_DIR, 2);
	for (int k = 0; k < 2; k++) {
		ranks_run(2, show_key, key[k], res);
		ranks_ok(2, res);
		ck_assert_int_eq(memcmp(key[k][0], key[k][1], TE__KEY_NBYTES), 0);
	}
	ck_assert_int_ne(memcmp(key[0][0], key[1][0], TE__KEY_NBYTES), 0);
	ranks_part();
}

/* rank 0 has room for its own sockets and two connections, of three */
static int few_files(int rank, void *arg)
{
	if (!rank)
		ranks_limit_files(5);
	return bf_open_only(rank, 20000);
}

/* room for the descriptors of a waiting rank, and for none more when it leaves */
static int alone_with_few_files(int rank, void *arg)
{
	ranks_limit_files(3);
	return bf_open_only(rank, TT_SLOWER(300));
}

TEST(set_up, the_key_is_removed_without_a_free_descriptor)
{
	struct ranks_result res;

	ranks_meet(MEET_DIR, 2);
	ranks_run(1, alone_with_few_files, NULL, &res);
	ranks_failed(&res, -ETIMEDOUT, bf_within("rank 1 of 2 did not arrive", 300), SOON);
	ranks_part();
}

TEST(set_up, too_few_descriptors_are_reported)
{
	struct ranks_result res[4];

	ranks_meet_run(MEET_DIR, 4, few_files, NULL, res);
	ranks_failed(&res[0], -EMFILE, "rank 0 (host ", SOON);
	for (int i = 1; i < 4; i++) {
		/* in a folder, a rank that arrives after the others have failed meets no one */
		if (res[i].r == -ETIMEDOUT)
			continue;
		ck_assert_msg(res[i].r == -TE_EABORT || res[i].r == -TE_EPEER, "%d: %s", res[i].r,
			      res[i].text);
		ck_assert_msg(res[i].ms < SOON, "after %.0f ms", res[i].ms);
	}
}

/* for the folder, and none to listen on */
static int no_file(int rank, void *arg)
{
	ranks_limit_files(2);
	return bf_open_only(rank, 20000);
}

TEST(set_up, no_descriptor_to_listen_on_is_reported)
{
	struct ranks_result res[1];

	ranks_meet(MEET_DIR, 2);
	ranks_run(1, no_file, NULL, res);
	ranks_part();
	ranks_failed(&res[0], -EMFILE, "te-key: Too many open files",
		     SOON);
}

/* rank 0 cannot accept a connection of the others, which go on without it */
static int settle_without_files(int rank, void *arg)
{
	static const char *const node[] = { "a", "b", "c" };
	int32_t ranks[3];
	struct te__boot *b;
	int r;

	setenv("TE_COMM_NODE", node[rank], 1);
	r = bf_open(rank, 0, &b);
	if (r)
		return r;
	if (!rank)
		ranks_limit_files(0);
	r = te__boot_settle(b, te__boot_now() + INT64_C(20000000000), ranks);
	te__boot_close(b);
	return r;
}

TEST(set_up, too_few_descriptors_to_recover_are_reported)
{
	struct ranks_result res[3];

	ranks_meet_run(MEET_ID, 3, settle_without_files, NULL, res);
	ranks_failed(&res[0], -EMFILE, "cannot accept connections: Too many open files", SOON);
	for (int i = 1; i < 3; i++)
		ck_assert_msg(res[i].r == 2 && res[i].ms < SOON, "rank %d: %d after %.0f ms: %s", i,
			      res[i].r, res[i].ms, res[i].text);
}

/* rank 2 ends its streams as a process that is killed does, and arrives all the same */
static int arrives_after_its_end(int rank, void *arg)
{
	static const char *const node[] = { "a", "b", "c" };
	const int ms = rank == 2 ? TT_SLOWER(500) : 20000;
	int32_t ranks[3];
	struct te__boot *b;
	int r;

	setenv("TE_COMM_NODE", node[rank], 1);
	r = bf_open(rank, 0, &b);
	for (int i = 0; i < 2 && !r && rank == 2; i++)
		te__conn_close(&b->peer[i]);
	if (!r && rank != 2 && bf_gather(b, "all", 0) != -TE_EPEER)
		r = te_fail(-EILSEQ, "rank 2 has not ended");
	if (!r)
		r = te__boot_settle(b, te__boot_now() + ms * INT64_C(1000000), ranks);
	te__boot_close(b);
	return r;
}

TEST(set_up, an_arrival_of_a_rank_that_has_ended_is_not_believed)
{
	struct ranks_result res[3];

	ranks_meet_run(MEET_ID, 3, arrives_after_its_end, NULL, res);
	for (int i = 0; i < 2; i++)
		ck_assert_msg(res[i].r == 2 && res[i].ms < SOON, "rank %d: %d after %.0f ms: %s", i,
			      res[i].r, res[i].ms, res[i].text);
	/* alone, if it finds that the others have gone */
	ck_assert_msg(res[2].r == -ETIMEDOUT || res[2].r == -TE_ESTATE || res[2].r == 1,
		      "%d: %s", res[2].r, res[2].text);
}

/* ---- an arrival that a stranger has heard ---- */

static struct {
	int on;
	uint8_t bytes[4096]; /* to the first rank that was called */
	int fd;
	size_t n;
} heard = { .fd = -1 };

/* replaces the C library's function, for the library too: messages of a rank are kept, not sent */
ssize_t sendmsg(int fd, const struct msghdr *m, int flags)
{
	size_t all = 0;

	if (!heard.on)
		return syscall(SYS_sendmsg, fd, m, flags);
	if (heard.fd < 0)
		heard.fd = fd;
	for (size_t i = 0; i < m->msg_iovlen; i++) {
		const struct iovec *v = &m->msg_iov[i];

		all += v->iov_len;
		if (fd != heard.fd || heard.n + v->iov_len > sizeof(heard.bytes))
			continue;
		memcpy(heard.bytes + heard.n, v->iov_base, v->iov_len);
		heard.n += v->iov_len;
	}
	return (ssize_t)all;
}

ssize_t send(int fd, const void *p, size_t n, int flags)
{
	struct iovec v = { (void *)(uintptr_t)p, n };
	const struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1 };

	return sendmsg(fd, &m, flags);
}

/* sends the recorded bytes to rank 0 again; returns the connection */
static int says_again(const struct te__boot *b)
{
	struct te__addrs a[3];
	struct te__listen l = { 0 };
	struct sockaddr_storage ss;
	int fd = -1, r = te__lineage_addrs(b->lineage, a, &l);

	if (!r) {
		const socklen_t n = te__addr_sockaddr(&a[0], 0, &ss);

		fd = socket(ss.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
		r = connect(fd, (const struct sockaddr *)&ss, n) ||
		    send(fd, heard.bytes, heard.n, 0) != (ssize_t)heard.n;
	}
	te__listen_close(&l);
	return r ? -1 : fd;
}

struct echo {
	int ended;	  /* the stream of rank 2 has ended; else its arrival comes twice */
	int begun, nleft; /* ranks that settle from now on, and that have not done so */
};

/* ranks 0 and 1 recover without rank 2, in whose name another one arrives */
static int hears_an_echo(int rank, void *arg)
{
	static const char *const node[] = { "a", "b", "c" };
	struct echo *e = arg;
	const int ms = rank == 2 ? TT_SLOWER(200) : e->ended ? 20000 : TT_SLOWER(500);
	int32_t ranks[3];
	struct te__boot *b;
	int r, fd;

	setenv("TE_COMM_NODE", node[rank], 1);
	r = bf_open(rank, 0, &b);
	heard.on = !r && rank == 2;
	for (int i = 0; i < 2 && heard.on && e->ended; i++)
		te__conn_close(&b->peer[i]);
	if (!r && rank != 2 && e->ended && bf_gather(b, "all", 0) != -TE_EPEER)
		r = te_fail(-EILSEQ, "rank 2 has not ended");
	while (!r && rank != 2 && __atomic_load_n(&e->begun, __ATOMIC_ACQUIRE) <= rank)
		usleep(1000);
	if (!r)
		r = te__boot_settle(b, te__boot_now() + ms * INT64_C(1000000), ranks);
	if (rank != 2) {
		__atomic_sub_fetch(&e->nleft, 1, __ATOMIC_ACQ_REL);
	} else {
		heard.on = 0;
		fd = says_again(b);
		if (!e->ended) {
			close(fd);
			fd = says_again(b);
		}
		r = fd < 0 || !heard.n ? te_fail(-EILSEQ, "nothing was said again") : 0;
		__atomic_store_n(&e->begun, 1, __ATOMIC_RELEASE);
		/* by then rank 0 would have decided, at the end of the time that was heard */
		tt_pause(e->ended ? 400 : 0);
		__atomic_store_n(&e->begun, 2, __ATOMIC_RELEASE);
		while (__atomic_load_n(&e->nleft, __ATOMIC_ACQUIRE))
			usleep(1000);
		close(fd);
	}
	te__boot_close(b);
	return r;
}

TEST_EACH(set_up, an_arrival_that_was_heard_is_not_believed_again, 2)
{
	struct echo *e = ranks_shared(sizeof(*e));
	struct ranks_result res[3];

	e->ended = _i;
	e->nleft = 2;
	ranks_meet_run(MEET_ID, 3, hears_an_echo, e, res);
	for (int i = 0; i < 3; i++)
		ck_assert_msg(res[i].r == (i == 2 ? 0 : 2) && res[i].ms < SOON,
			      "rank %d: %d after %.0f ms: %s", i, res[i].r, res[i].ms, res[i].text);
}

/* ---- strangers without end ---- */

static struct {
	int on, fd;
	int64_t until;
} crowd = { .fd = -1 };

static void connect_again(int listener)
{
	struct sockaddr_storage ss;
	socklen_t len = sizeof(ss);

	close(crowd.fd);
	getsockname(listener, (struct sockaddr *)&ss, &len);
	crowd.fd = socket(ss.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	connect(crowd.fd, (struct sockaddr *)&ss, len);
}

/* replaces the C library's function: after each connection there is another one */
int accept4(int fd, __SOCKADDR_ARG sa, socklen_t *len, int flags)
{
	const int r = (int)syscall(SYS_accept4, fd, sa.__sockaddr__, len, flags);

	if (crowd.on && te__boot_now() < crowd.until)
		connect_again(fd);
	return r;
}

/* rank 0 waits for rank 1 in a crowd */
static int recovers_in_a_crowd(int rank, void *arg)
{
	static const char *const node[] = { "a", "b" };
	_Atomic int *done = arg;
	struct te__listen l = { 0 };
	struct te__addrs a[2];
	struct te__boot *b;
	int32_t ranks[2];
	int r;

	setenv("TE_COMM_NODE", node[rank], 1);
	r = bf_open(rank, 0, &b);
	if (r)
		return r;
	if (rank) {
		ranks_await(done, 1);
	} else {
		r = te__lineage_addrs(b->lineage, a, &l);
		crowd.on = 1;
		crowd.until = te__boot_now() + 30000 * INT64_C(1000000);
		connect_again(l.fd[0]);
		te__listen_close(&l);
		r = te__boot_settle(b, te__boot_now() + TT_SLOWER(300) * INT64_C(1000000), ranks);
		crowd.on = 0;
		close(crowd.fd);
		*done = 1;
	}
	te__boot_close(b);
	return r;
}

TEST(set_up, strangers_without_end_stall_no_recovery)
{
	_Atomic int *done = ranks_shared(sizeof(*done));
	struct ranks_result res[2];

	ranks_meet_run(MEET_ID, 2, recovers_in_a_crowd, (void *)done, res);
	ck_assert_msg(res[0].r == 1 && res[0].ms < SOON, "%d after %.0f ms: %s", res[0].r,
		      res[0].ms, res[0].text);
}

/* ---- records that no rank has ---- */

static const struct {
	const char *text;
	int code;
	uint64_t unit;
} lies[] = {
	{ "te_comm_create: tcp: rank 1 (", -TE_EPEER, 0 },
	{ " sent an invalid address", -TE_EPEER, 0 },
	{ " allocates memory in units of 0 bytes", -TE_EMISMATCH, 0 },
	{ " allocates memory in units of 12288 bytes", -TE_EMISMATCH, 12288 },
	{ " allocates memory in units of 9223372036854775808 bytes", -TE_EMISMATCH, 1ull << 63 },
	/* which changes the terminal of a user of another host */
	{ "?[2J??", -ENOENT, 0 },
};

/* what rank 0 expects of rank 1 */
static int believe(struct te__boot *b, int which)
{
	const int32_t peer = 1;
	const struct te__link_opts o = { .boot = b, .peers = &peer, .npeers = 1,
					 .timeout_ms = 20000, .heartbeat_ms = 20000 };
	struct te_ctx_opts c = TE_CTX_OPTS_INIT;
	struct te__pool *pool = NULL;
	struct te__link *l = NULL;
	struct te_ctx *ctx;
	int r = 0;

	if (!which)
		r = te__link_open(&te__link_tcp, &o, &l);
	else if (which == 1)
		r = te__lineage_create(b);
	else if (which == TT_LEN(lies) - 1)
		r = te__agree(b, 0, "all");
	if (which < 2 || which == TT_LEN(lies) - 1)
		return r;
	c.backend = "host";
	r = te_ctx_create(&c, &ctx);
	if (!r)
		r = te__pool_create(b, ctx, 65536, 65536, false, false, 0, &pool);
	te__pool_destroy(pool);
	te_ctx_unref(ctx);
	return r;
}

static void lie(struct te__boot *b, int which)
{
	/* more addresses than a list has */
	struct contact {
		struct te__addrs addrs;
		uint8_t nonce[TE__NONCE_NBYTES];
	} own = { { .port = 1, .n = 255 }, { 0 } }, all[2];
	const uint64_t offer[] = { 65536, lies[which].unit };
	int code = 0;

	if (!which)
		te__free(te__gather(b, &code, &own.addrs, sizeof(own.addrs), "start of tcp", 0));
	else if (which == 1)
		(void)te__boot_allgather(b, &own, all, sizeof(own), "te_comm_create",
					 te__boot_deadline(b));
	else if (which == TT_LEN(lies) - 1)
		(void)te__agree(b, te_fail(-ENOENT, "\033[2J\a\177"), "all");
	else
		te__free(te__gather(b, &code, offer, sizeof(offer), "exchange of pool sizes", 0));
}

static int lying_rank(int rank, void *arg)
{
	struct te__boot *b = NULL;
	int r = bf_open(rank, 0, &b);

	if (r)
		return r;
	if (rank)
		lie(b, *(const int *)arg);
	else
		r = believe(b, *(const int *)arg);
	te__boot_close(b);
	return r;
}

TEST_EACH(set_up, records_that_no_rank_has_are_refused, TT_LEN(lies))
{
	struct ranks_result res[2];
	int i = _i;

	ranks_meet_run(MEET_ID, 2, lying_rank, &i, res);
	ranks_failed(&res[0], lies[_i].code, lies[_i].text, SOON);
	ck_assert_ptr_nonnull(strstr(res[0].text, "rank 1 ("));
}

/* rank 1 has another key than rank 0 by then */
static int with_another_key(int rank, void *arg)
{
	static const int32_t ranks[] = { 0, 1 };
	const int32_t peer = !rank;
	struct te__boot *b, *next = NULL;
	struct te__link *l = NULL;
	int r = bf_open(rank, TT_SLOWER(400), &b);

	if (r)
		return r;
	b->secret[3] ^= (uint8_t)rank;
	if (*(const int *)arg) {
		const struct te__link_opts o = { .boot = b, .peers = &peer, .npeers = 1,
						 .timeout_ms = TT_SLOWER(400),
						 .heartbeat_ms = 1000 };

		r = te__link_open(&te__link_tcp, &o, &l);
	} else {
		const struct te__boot_from from = { b, ranks, "test", { 0 } };
		struct te_comm_opts o = TE_COMM_OPTS_INIT;

		o.rank = rank;
		o.nranks = 2;
		o.timeout_ms = TT_SLOWER(400);
		r = te__boot_reopen(&from, &o, &next);
	}
	te__link_close(l);
	te__boot_close(next);
	te__boot_close(b);
	return r;
}

TEST_EACH(set_up, ranks_with_different_keys_do_not_meet, 2)
{
	struct ranks_result res[2];

	ranks_meet_run(MEET_ID, 2, with_another_key, &_i, res);
	ck_assert_msg(res[0].r == -ETIMEDOUT || res[1].r == -ETIMEDOUT, "%d, %d", res[0].r,
		      res[1].r);
	for (int i = 0; i < 2; i++)
		ck_assert_msg(res[i].r < 0 && res[i].ms < SOON, "rank %d: %d after %.0f ms: %s", i,
			      res[i].r, res[i].ms, res[i].text);
}

/* a process of another container has the pid of this one, and is about to link its socket */
static int equal_pids(int rank, void *arg)
{
	char path[300];
	struct te__boot *b;
	int r = 0, fd;

	for (int k = 0; k < 32; k++) {
		snprintf(path, sizeof(path), "%s/te-new-%d-%d", ranks_dir(), (int)getpid(), k);
		fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
		close(fd);
	}
	r = bf_open(rank, 0, &b);
	if (r)
		return r;
	te__boot_close(b);
	for (int k = 0; k < 32 && !r; k++) {
		snprintf(path, sizeof(path), "%s/te-new-%d-%d", ranks_dir(), (int)getpid(), k);
		r = access(path, F_OK) ? te_fail(-errno, "%s is gone", path) : 0;
	}
	return r;
}

TEST(set_up, sockets_of_others_are_not_removed)
{
	struct ranks_result res[2];

	ranks_meet(MEET_DIR, 2);
	ranks_run(2, equal_pids, NULL, res);
	ranks_rmdir();
	ranks_ok(2, res);
}

/* ---- options and environment ---- */

static int opts_only(int rank, void *arg)
{
	struct te__boot *b;

	return te__boot_open(arg, &b);
}

TEST(set_up, refuses_options)
{
	static struct te_comm_bootstrap none = TE_COMM_BOOTSTRAP_INIT;
	static struct te_comm_id id;
	const struct {
		struct te_comm_opts o;
		const char *text;
	} row[] = {
		{ { .nranks = 2, .rank = 2 }, "rank 2 of 2 ranks" },
		{ { .nranks = 2, .rank = -1 }, "rank -1 of 2 ranks" },
		{ { .nranks = 1000000 }, "rank 0 of 1000000 ranks: expected a rank from 0 of " },
		{ { .nranks = -1 }, "rank 0 of -1 ranks" },
		{ { .nranks = 2 }, "how do 2 ranks connect?" },
		{ { .nranks = 2, .flags = 4 }, "flags 0x4" },
		{ { .nranks = 2, .timeout_ms = -1 }, "timeout_ms is -1" },
		{ { .nranks = 2, .id = &id, .bootstrap = &none }, "both an id and a bootstrap" },
		{ { .id = &id }, "an id needs rank and nranks" },
		{ { .bootstrap = &none }, "a bootstrap needs rank and nranks" },
		{ { .nranks = 2, .id = &id }, "the id is not one of te_comm_id_create" },
		{ { .nranks = 2, .bootstrap = &none }, "the bootstrap has no allgather" },
	};
	struct ranks_result res[1];

	for (size_t i = 0; i < TT_LEN(row); i++) {
		ranks_run(1, opts_only, (void *)(uintptr_t)&row[i].o, res);
		ranks_failed(&res[0], -EINVAL, row[i].text, SOON);
	}
}

static int environment(int rank, void *arg)
{
	struct te_comm_opts o = TE_COMM_OPTS_INIT;
	const char *const *set = arg;
	struct te__boot *b;

	for (; *set; set += 2)
		setenv(set[0], set[1], 1);
	o.nranks = set[1] ? 2 : 0;
	return te__boot_open(&o, &b);
}

static const struct {
	const char *set[10];
	int code;
	const char *text;
} environments[] = {
	{ { "TE_COMM_DIR", "/" }, -EINVAL, "TE_COMM_RANK is -1 and TE_COMM_NRANKS is 0" },
	{ { "TE_COMM_DIR", "/", "TE_COMM_NRANKS", "2", "TE_COMM_RANK", "2" },
	  -EINVAL,
	  "TE_COMM_RANK is 2 and TE_COMM_NRANKS is 2" },
	{ { "TE_COMM_NRANKS", "2", "TE_COMM_RANK", "1" },
	  -EINVAL,
	  "TE_COMM_NRANKS is 2, and nothing says how the ranks connect" },
	{ { "TE_COMM_BOOTSTRAP", "dir" }, -EINVAL, "TE_COMM_DIR is not set" },
	{ { "TE_COMM_BOOTSTRAP", "id" }, -EINVAL, "TE_COMM_ID is not set" },
	{ { "TE_COMM_ID", "x", "TE_COMM_NRANKS", "2", "TE_COMM_RANK", "1" },
	  -EINVAL,
	  "\"x\" is not the text of an id" },
	{ { "TE_COMM_DIR", "/", "TE_COMM_NRANKS", "3", "TE_COMM_RANK", "1", NULL, "2" },
	  -TE_EMISMATCH,
	  "the options say rank 0 of 2, the environment (dir) rank 1 of 3" },
	{ { "TE_COMM_DIR", "/", "TE_COMM_NRANKS", "3", "TE_COMM_RANK", "1", "TE_COMM_RESTARTS",
	    "1" },
	  -TE_ESTATE,
	  "rank 1 was started again by te_run --respawn" },
	{ { "TE_COMM_ID", "te1:000102030405060708090a0b0c0d0e0f:1:127.0.0.1",
	    "TE_COMM_IFACE", "none0", "TE_COMM_NRANKS", "2" },
	  -EINVAL,
	  "TE_COMM_RANK is -1" },
};

TEST_EACH(set_up, refuses_environments, TT_LEN(environments))
{
	struct ranks_result res[1];

	ranks_run(1, environment, (void *)(uintptr_t)environments[_i].set, res);
	ranks_failed(&res[0], environments[_i].code, environments[_i].text, SOON);
}

static int no_interface(int rank, void *arg)
{
	struct te_comm_root *root;
	struct te_comm_id id;

	setenv("TE_COMM_IFACE", "none0,none1", 1);
	return te_comm_id_create(&id, &root);
}

TEST(set_up, interfaces_that_are_not_there)
{
	struct ranks_result res[1];

	ranks_run(1, no_interface, NULL, res);
	ranks_failed(&res[0], -ENODEV, "no interface of TE_COMM_IFACE (none0,none1)", SOON);
}

static int callback_fails(void *user, const void *send, void *recv, size_t nbytes)
{
	if (!user)
		return te_fail(-EIO, "MPI_Allgather: the switch is on fire");
	memset(recv, *(const char *)user, 2 * nbytes); /* other bytes than were sent */
	return *(const char *)user == 'f' ? -EIO : 0;
}

static int by_callback(int rank, void *arg)
{
	struct te_comm_bootstrap own = TE_COMM_BOOTSTRAP_INIT;
	struct te_comm_opts o = TE_COMM_OPTS_INIT;
	struct te__boot *b;

	own.user = arg;
	own.allgather = callback_fails;
	o.rank = rank;
	o.nranks = 2;
	o.bootstrap = &own;
	return te__boot_open(&o, &b);
}

static const struct {
	const char *user; /* the callback's; NULL: it gives a reason */
	int code;
	const char *text;
} callbacks[] = {
	{ NULL, -EIO, "the switch is on fire" },
	{ "fails", -EIO, "the allgather of the bootstrap returned -5 and gave no reason" },
	{ "", -EINVAL, "has not written the bytes of rank 0" },
	{ "other bytes", -EINVAL, "the id is not one of te_comm_id_create" },
};

TEST_EACH(set_up, a_callback_that_fails, TT_LEN(callbacks))
{
	struct ranks_result res[2];

	ranks_run(2, by_callback, (void *)(uintptr_t)callbacks[_i].user, res);
	for (int i = 0; i < 2; i++)
		ranks_failed(&res[i], callbacks[_i].code, callbacks[_i].text, SOON);
}

/* ---- faults of the system ---- */

static int root_only(void)
{
	struct te_comm_root *root;
	struct te_comm_id id;
	int r = te_comm_id_create(&id, &root);

	if (!r)
		te_comm_root_unref(root);
	return r;
}

static int alone(void)
{
	struct te_comm_opts o = TE_COMM_OPTS_INIT;
	struct te__boot *b;
	int r = te__boot_open(&o, &b);

	if (!r)
		te__boot_close(b);
	return r;
}

CASE(faults, "host");

TEST(faults, each_fault_of_one_process_is_reported)
{
	ck_assert_int_gt(tt_fault_each(root_only), 4);
	ck_assert_int_gt(tt_fault_each(alone), 4);
}

static struct faulty {
	int n;	/* the number of the fault of rank 1 */
	int ms; /* how long ranks wait for each other */
	_Atomic int fired;
} *faults;

static int faulty(int rank, void *arg)
{
	struct te__boot *b = NULL;
	int r;

	if (rank == 1)
		te__fault_set((uint64_t)faults->n);
	r = bf_open(rank, faults->ms, &b);
	if (!r)
		r = bf_gather(b, "all", faults->ms);
	te__boot_close(b);
	if (rank == 1)
		faults->fired = te__fault_fired();
	te__fault_set(0);
	return r;
}

TEST_EACH(faults, each_fault_of_a_rank_is_reported, 2)
{
	struct ranks_result res[2];
	int n = 0, done = 0, nagain = 0, nreported = 0;

	faults = ranks_shared(sizeof(*faults));
	while (!done) {
		faults->n = ++n;
		/* rank 0 waits for most faults; too short for some on a busy machine */
		faults->ms = TT_SLOWER(100);
		ranks_meet_run(_i ? MEET_DIR : MEET_ID, 2, faulty, NULL, res);
		if (!faults->fired) {
			faults->ms = TT_SLOWER(2000);
			ranks_meet_run(_i ? MEET_DIR : MEET_ID, 2, faulty, NULL, res);
		}
		done = !faults->fired;
		for (int i = 0; i < 2; i++) {
			ck_assert_msg(
				!res[i].signal && !res[i].nleft_fd && !res[i].nleft_alloc,
				"fault %d, rank %d: signal %d, %d descriptors, %d allocations", n,
				i, res[i].signal, res[i].nleft_fd, res[i].nleft_alloc);
			ck_assert_msg(res[i].r >= 0 || res[i].text[0], "fault %d: no message", n);
			ck_assert_msg(res[i].ms < SOON, "fault %d: %.0f ms", n, res[i].ms);
		}
		/* a connection that cannot ask for a proof is made again */
		nagain += !done && !res[0].r && !res[1].r;
		nreported += res[1].r < 0;
		ck_assert_msg(done || res[1].r < 0 || (!res[0].r && nagain < 12),
			      "fault %d was not reported: rank 0 %d, rank 1 %d, %d times; %s", n,
			      res[0].r, res[1].r, nagain, res[0].text);
		ck_assert_int_lt(n, 200);
	}
	ck_assert_msg(nreported > 8, "only %d of %d faults were reported", nreported, n - 1);
	ranks_ok(2, res);
}

TT_MAIN("comm/bootstrap_setup", TT_NEED_NOTHING)
