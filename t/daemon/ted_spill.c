/* t/daemon/ted_spill.c - spill space of ted(8): files, quotas, killed processes, offload. */
#include "config.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <te/errno.h>

#include "daemon/ted.h"
#include "libtecore/base/private.h"
#include "libtecore/offload/spill_io.h"
#include "ted_space.h"

/* until it succeeds: the end of a file is seen soon after it, at most after 2 s */
static int grant_soon(int sock, uint64_t nbytes, int *ret_fd)
{
	int r = 0;

	for (int ms = 0; ms < TT_SLOWER(2000); ms++) {
		r = grant(sock, nbytes, ret_fd);
		if (!r)
			break;
		usleep(1000);
	}
	return r;
}

CASE(files, "host serial");

TEST(files, a_granted_file_is_reserved_and_has_no_name)
{
	static _Alignas(4096) uint8_t block[4096], got[4096];
	static const uint64_t sizes[] = { 1, 4096, 1234567, 3 * MIB };
	struct stat st;
	int a, fd[TT_LEN(sizes)];

	space_begin("%s", "");
	a = join(&run, key);
	for (size_t i = 0; i < TT_LEN(sizes); i++) {
		ck_assert_int_eq(grant(a, sizes[i], &fd[i]), 0);
		ck_assert_int_ge(fd[i], 0);
		ck_assert_int_eq(fstat(fd[i], &st), 0);
		ck_assert_int_eq((int)st.st_nlink, 0);
		ck_assert_uint_eq((uint64_t)st.st_size, sizes[i]);
		ck_assert_uint_ge((uint64_t)st.st_blocks * 512, sizes[i]);
		ck_assert_int_eq((int)st.st_mode & 0777, 0600);
		/* and cannot get one */
		ck_assert_int_ne(linkat(fd[i], "", AT_FDCWD, run.log, AT_EMPTY_PATH), 0);
	}
	tt_fill_bytes(block, sizeof(block));
	ck_assert_int_eq((int)pwrite(fd[3], block, sizeof(block), 8192), (int)sizeof(block));
	ck_assert_int_eq((int)pread(fd[3], got, sizeof(got), 8192), (int)sizeof(got));
	ck_assert_mem_eq(got, block, sizeof(got));
	ck_assert_int_eq(grant(a, 0, NULL), -EINVAL);
	ck_assert_int_eq(grant(a, UINT64_MAX, NULL), -EINVAL);
	for (size_t i = 0; i < TT_LEN(sizes); i++)
		close(fd[i]);
	close(a);
	space_end();
}

TEST(files, quotas_are_kept_and_named)
{
	uint8_t other[TE__WIRE_KEY_NBYTES];
	char want[160];
	int a, b, fd, fd2;

	space_begin("spill_job = 5M\nspill_uid = 7M\nspill_files = 3\n");
	make_key(other);
	a = join(&run, key);
	b = join(&run, other);
	ck_assert_int_eq(grant(a, 4 * MIB, &fd), 0);
	ck_assert_int_eq(grant(a, 2 * MIB, NULL), -EDQUOT);
	ck_reply("GRANT: 2097152 bytes, but the job has 4194304 of its 5242880 (spill_job)");
	ck_assert_int_eq(grant(b, 4 * MIB, NULL), -EDQUOT);
	snprintf(want, sizeof(want), "but user %u has 4194304 of its 7340032 (spill_uid)",
		 (unsigned int)geteuid());
	ck_reply(want);
	/* a file counts as long as it exists, also for a client that comes again */
	close(a);
	a = join(&run, key);
	ck_assert_int_eq(grant(a, 2 * MIB, NULL), -EDQUOT);
	fd2 = dup(fd);
	close(fd);
	ck_assert_int_eq(grant(a, 2 * MIB, NULL), -EDQUOT);
	close(fd2);
	ck_assert_int_eq(grant_soon(a, 2 * MIB, &fd), 0);
	ck_assert_int_eq(grant(a, 1, &fd2), 0);
	close(fd2);
	close(fd);
	close(a);
	close(b);
	space_end();
}

TEST(files, files_are_limited)
{
	int a, fd[2];

	space_begin("spill_files = 2\n");
	a = join(&run, key);
	for (int i = 0; i < 2; i++)
		ck_assert_int_eq(grant(a, 1, &fd[i]), 0);
	ck_assert_int_eq(grant(a, 1, NULL), -ENOSPC);
	ck_reply("there are 2 files, the limit is 2 (spill_files)");
	close(fd[0]);
	ck_assert_int_eq(grant_soon(a, 1, &fd[0]), 0);
	close(fd[0]);
	close(fd[1]);
	close(a);
	space_end();
}

TEST_EACH(files, some_space_stays_free, 2)
{
	struct statvfs s;
	int a;

	if (_i) {
		space_begin("spill_keep = 100%%\n");
	} else {
		run_init(&run, "");
		space_create();
		ck_assert_int_eq(statvfs(space, &s), 0);
		ck_assert_int_eq(rmdir(space), 0);
		run_end(&run);
		/* more than there is, whatever other processes do meanwhile */
		space_begin("spill_keep = %llu\n",
			    (unsigned long long)s.f_blocks * s.f_frsize + 4 * MIB);
	}
	a = join(&run, key);
	ck_assert_int_eq(grant(a, MIB, NULL), -ENOSPC);
	ck_reply("GRANT: 1048576 bytes, but ");
	ck_reply("are kept free (spill_keep)");
	close(a);
	space_end();
}

/* processes take what they get, until there is nothing left */
TEST(files, concurrent_grants_do_not_exceed_the_quota)
{
	enum { N = 6, MOST = 40 };
	int pipes[2], ready[2], child[N], total = 0, status;
	uint8_t taken, byte = 0;

	space_begin("spill_uid = 5M\n");
	ck_assert_int_eq(pipe(pipes) | pipe(ready), 0);
	for (int i = 0; i < N; i++) {
		child[i] = fork();
		if (!child[i]) {
			uint8_t own[TE__WIRE_KEY_NBYTES] = { 1, (uint8_t)i };
			const int s = join(&run, own);
			int fd[MOST];

			for (taken = 0; taken < MOST && !grant(s, MIB / 8, &fd[taken]);)
				taken++;
			if (write(pipes[1], &taken, 1) != 1 || read(ready[0], &byte, 1) != 1)
				_exit(1);
			/* the files end with the process, killed or not */
			if (i & 1)
				kill(getpid(), SIGKILL);
			_exit(0);
		}
	}
	for (int i = 0; i < N; i++) {
		ck_assert_int_eq((int)read(pipes[0], &taken, 1), 1);
		total += taken;
	}
	ck_assert_int_eq(total, 40);
	ck_assert_int_eq((int)write(ready[1], "123456", N), N);
	for (int i = 0; i < N; i++)
		ck_assert_int_eq(waitpid(child[i], &status, 0), child[i]);
	/* all of it can be had again, within 2 s */
	status = join(&run, key);
	ck_assert_int_eq(grant_soon(status, 5 * MIB, &total), 0);
	close(total);
	close(status);
	for (int i = 0; i < 2; i++) {
		close(pipes[i]);
		close(ready[i]);
	}
	space_end();
}

/* ted goes on without it, and says why */
TEST_EACH(files, spill_space_may_be_unavailable, 2)
{
	char conf[128];
	int a;

	run_init(&run, "");
	snprintf(conf, sizeof(conf), "spill = %s/none\n", run.dir);
	run_end(&run);
	run_begin(_i ? "spill = /proc\n" : conf);
	a = join(&run, key);
	ck_assert_int_eq(grant(a, 1, NULL), -EOPNOTSUPP);
	ck_reply(_i ? "no spill space: /proc: " : "/none: No such file or directory");
	ck_assert_ptr_nonnull(strstr(run_log(&run), "spill space is unavailable"));
	ck_assert_int_eq(ping(a), 0);
	close(a);
	run_end(&run);
	run_begin("");
	a = join(&run, key);
	ck_assert_int_eq(grant(a, 1, NULL), -EOPNOTSUPP);
	ck_reply("none is configured (spill)");
	close(a);
	run_end(&run);
}

/* the service manager starts it again then */
TEST(files, a_full_file_table_is_no_wrong_configuration)
{
	static struct ted t;
	struct ted_conf conf;
	int status, child;

	ted_conf_init(&conf);
	conf.clients = 1;
	strcpy(conf.spill, "/dev/shm");
	child = fork();
	if (!child) {
		/* as many as it requires, none of which is free */
		setrlimit(RLIMIT_NOFILE, &(struct rlimit){ 33, 33 });
		while (dup(STDERR_FILENO) >= 0)
			;
		_exit(ted_init(&t, &conf));
	}
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert(WIFEXITED(status));
	ck_assert_int_eq(WEXITSTATUS(status), TED_FAILED);
}

/* what has been granted outlives ted, and counts in the free space after its restart */
TEST(files, files_survive_a_restart)
{
	static _Alignas(4096) uint8_t block[4096], got[4096];
	int a, fd;

	space_begin("%s", "");
	a = join(&run, key);
	ck_assert_int_eq(grant(a, MIB, &fd), 0);
	close(a);
	ck_assert_int_eq(run_stop(&run, SIGKILL), -SIGKILL);
	tt_fill_bytes(block, sizeof(block));
	ck_assert_int_eq((int)pwrite(fd, block, sizeof(block), 4096), (int)sizeof(block));
	run_start(&run);
	a = join(&run, key);
	ck_assert_int_eq((int)pread(fd, got, sizeof(got), 4096), (int)sizeof(got));
	ck_assert_mem_eq(got, block, sizeof(got));
	close(fd);
	close(a);
	space_end();
}

/* ---- restart ---- */

static int hold(int sock, int fd)
{
	struct te__wire m = message(TE__WIRE_HOLD);

	return call(sock, &m, fd, NULL, NULL);
}

CASE(restart, "host serial");

TEST(restart, a_file_from_before_a_restart_counts_again)
{
	char path[128];
	int a, b, fd, other, named;

	space_begin("spill_job = 3M\n");
	a = join(&run, key);
	ck_assert_int_eq(grant(a, 2 * MIB, &fd), 0);
	/* it is counted once */
	ck_assert_int_eq(hold(a, fd), 0);
	ck_assert_int_eq(grant(a, 2 * MIB, NULL), -EDQUOT);
	ck_reply("has 2097152 of its 3145728");
	ck_assert_int_eq(run_stop(&run, SIGKILL), -SIGKILL);
	close(a);
	run_start(&run);
	a = join(&run, key);
	ck_assert_int_eq(grant(a, 2 * MIB, &other), 0);
	ck_assert_int_eq(hold(a, fd), 0);
	/* what the client has is not taken away, and there is no more */
	ck_assert_int_eq(grant(a, 1, NULL), -EDQUOT);
	ck_reply("has 4194304 of its 3145728");
	close(other);
	ck_assert_int_eq(grant_soon(a, MIB, &other), 0);
	close(fd);
	ck_assert_int_eq(grant_soon(a, 2 * MIB, &fd), 0);
	/* other files are not counted */
	snprintf(path, sizeof(path), "%s/named", space);
	named = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	ck_assert_int_eq(hold(a, named), -EINVAL);
	ck_reply("is not of a file without a name in");
	ck_assert_int_eq(unlink(path), 0);
	b = memory("x");
	ck_assert_int_eq(hold(a, b), -EINVAL);
	ck_assert_int_eq(hold(a, a), -EINVAL);
	ck_assert_int_eq(hold(a, -1), -EINVAL);
	ck_reply("HOLD without a file descriptor");
	close(b);
	close(named);
	close(fd);
	close(other);
	close(a);
	space_end();
}

/* two sparse files whose sizes have a sum above INT64_MAX would end all limits */
TEST(restart, a_file_that_is_larger_than_the_file_system_is_not_counted)
{
	int a, fd[2];

	space_in_memory = 1;
	space_begin("spill_uid = 3M\n");
	a = join(&run, key);
	for (int i = 0; i < 2; i++) {
		fd[i] = open(space, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
		ck_assert_int_eq(ftruncate(fd[i], (off_t)6 << 60), 0);
		ck_assert_int_eq(hold(a, fd[i]), -EINVAL);
		ck_reply("HOLD: a file of 6917529027641081856 bytes, more than the file system");
		close(fd[i]);
	}
	ck_assert_int_eq(grant(a, 4 * MIB, NULL), -EDQUOT);
	ck_assert_int_eq(grant(a, 2 * MIB, &fd[0]), 0);
	close(fd[0]);
	close(a);
	space_end();
}

TEST(restart, sums_of_files_do_not_overflow)
{
	struct ted_job job = { .uid = 7 };
	struct ted_grant grants[] = { { 1, (int64_t)6 << 60, &job }, { 2, (int64_t)6 << 60, &job },
				      { 3, 1, &job } };
	const struct ted t = { .grants = grants, .ngrants = TT_LEN(grants) };

	ck_assert_int_eq(ted_spill_granted(&t, NULL, 0, 7), INT64_MAX);
	ck_assert_int_eq(ted_spill_granted(&t, &job, 0, 0), INT64_MAX);
	ck_assert_int_eq(ted_spill_granted(&t, NULL, 1, 0), INT64_MAX);
	ck_assert_int_eq(ted_spill_granted(&t, NULL, 0, 8), 0);
}

/* processes that write and read all the time, while ted is killed and started */
enum { NLOAD = 3 };
static struct load {
	atomic_int stop, bad, nloops[NLOAD];
} *load;

static void run_load(int i)
{
	struct te__spill_opts o = space_opts(MIB);
	struct te__pinned *arena;
	struct te__spill *spill;
	int r;

	setenv("TE_COMM_JOB", "load", 1);
	r = te__pinned_create(NULL, MIB, &arena) || te__spill_create(arena, &o, &spill);
	for (uint32_t g = 0; g < 2 && !r; g++)
		r = te__spill_reserve(spill, g, 300000);
	while (!r && !load->stop) {
		r = space_use(spill, arena, (uint32_t)load->nloops[i] & 1);
		load->nloops[i]++;
	}
	if (r)
		load->bad = 1;
	te__spill_destroy(spill);
	te__pinned_destroy(arena);
	_exit(r != 0);
}

/* each makes three more loops */
static void let_load_go_on(void)
{
	int before[NLOAD];

	for (int i = 0; i < NLOAD; i++)
		before[i] = load->nloops[i];
	for (int i = 0; i < NLOAD; i++)
		for (int ms = 0; load->nloops[i] < before[i] + 3; ms++) {
			ck_assert(!load->bad && ms < TT_SLOWER(20000));
			usleep(1000);
		}
}

/* the job has n bytes soon: it may have less first */
static void wait_for_bytes(int sock, uint64_t n)
{
	char want[64];
	int fd;

	snprintf(want, sizeof(want), "has %llu of its", (unsigned long long)n);
	for (int ms = 0; !grant(sock, 1, &fd) || !strstr(reply_text, want); ms++) {
		ck_assert_msg(ms < TT_SLOWER(20000), "%s", reply_text);
		if (fd >= 0)
			close(fd);
		usleep(1000);
	}
}

TEST(restart, a_restart_under_load_loses_nothing)
{
	int child[NLOAD], status, a, fd;

	space_begin("spill_job = %d\n", NLOAD << 20);
	load = mmap(NULL, sizeof(*load), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	for (int i = 0; i < NLOAD; i++) {
		child[i] = fork();
		if (!child[i])
			run_load(i);
	}
	let_load_go_on();
	te__wire_job_key("load", key);
	for (int round = 0; round < 2; round++) {
		ck_assert_int_eq(run_stop(&run, round ? SIGTERM : SIGKILL), round ? 0 : -SIGKILL);
		let_load_go_on();
		run_start(&run);
		a = join(&run, key);
		wait_for_bytes(a, NLOAD * MIB);
		let_load_go_on();
		if (!round)
			close(a);
	}
	/* the space of a process that is killed can be had again within 2 s */
	kill(child[0], SIGKILL);
	ck_assert_int_eq(grant_soon(a, MIB, &fd), 0);
	close(fd);
	load->stop = 1;
	for (int i = 0; i < NLOAD; i++) {
		ck_assert_int_eq(waitpid(child[i], &status, 0), child[i]);
		ck_assert_int_eq(status, i ? 0 : SIGKILL);
	}
	close(a);
	space_end();
}

/* for ted, and in the file system, whose kernel frees it a few ms later */
TEST(restart, space_is_back_within_2_s_of_a_kill)
{
	const uint64_t nbytes = TT_FEWER(64) * MIB;
	struct statvfs before, now;
	int a, fd, child, status, ready[2], ms = 0;
	char byte;

	/* few other processes change how much is free there */
	space_in_memory = 1;
	space_begin("spill_uid = %llu\n", (unsigned long long)nbytes);
	ck_assert_int_eq(statvfs(space, &before), 0);
	ck_assert_int_eq(pipe(ready), 0);
	child = fork();
	if (!child) {
		a = join(&run, key);
		if (grant(a, nbytes, &fd) || write(ready[1], "", 1) != 1)
			_exit(1);
		pause();
	}
	ck_assert_int_eq((int)read(ready[0], &byte, 1), 1);
	a = join(&run, key);
	ck_assert_int_eq(grant(a, 1, NULL), -EDQUOT);
	kill(child, SIGKILL);
	ck_assert_int_eq(grant_soon(a, MIB, &fd), 0);
	close(fd);
	do {
		ck_assert_int_eq(statvfs(space, &now), 0);
		ck_assert_int_lt(ms++, TT_SLOWER(2000));
		usleep(1000);
	} while (now.f_bavail + nbytes / 2 / now.f_frsize < before.f_bavail);
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	close(ready[0]);
	close(ready[1]);
	close(a);
	space_end();
}

/* ---- offload ---- */

CASE(offload, "host serial");

TEST(offload, offload_uses_a_granted_file)
{
	const size_t nbytes = 300001;
	struct te__spill_opts o = space_opts(MIB);
	struct te__spill_stats stats;
	struct te__pinned *arena;
	struct te__spill *spill;
	uint8_t *slot, *want = malloc(nbytes);
	int a;

	space_begin("spill_uid = 1M\n");
	ck_assert_int_eq(te__pinned_create(NULL, MIB, &arena), 0);
	ck_assert_msg(!te__spill_create(arena, &o, &spill), "%s", te_error_detail());
	te__spill_stats(spill, &stats);
	ck_assert_uint_eq(stats.file_nbytes, MIB);
	/* ted knows of it */
	a = join(&run, key);
	ck_assert_int_eq(grant(a, 1, NULL), -EDQUOT);
	ck_reply("has 1048576 of its 1048576 (spill_uid)");
	slot = te__pinned_base(arena);
	tt_fill_bytes(want, nbytes);
	memcpy(slot, want, nbytes);
	ck_assert_int_eq(te__spill_reserve(spill, 1, nbytes), 0);
	ck_assert_int_eq(te__spill_write(spill, 1, slot, nbytes, NULL, 0), 0);
	ck_assert_int_eq(te__spill_wait(spill, TE__SPILL_WRITE, 1, -1), 0);
	tt_poison(slot, nbytes);
	ck_assert_int_eq(te__spill_read(spill, 1, slot, nbytes, NULL, 0), 0);
	ck_assert_int_eq(te__spill_wait(spill, TE__SPILL_READ, 1, -1), 0);
	ck_assert_mem_eq(slot, want, nbytes);
	te__spill_destroy(spill);
	ck_assert_int_eq(grant_soon(a, MIB, NULL), 0);
	close(a);
	te__pinned_destroy(arena);
	free(want);
	space_end();
}

TEST(offload, a_refusal_reaches_the_caller)
{
	struct te__spill_opts o = space_opts(2 * MIB);
	struct te__pinned *arena;
	struct te__spill *spill = (void *)&o;

	space_begin("spill_uid = 1M\n");
	ck_assert_int_eq(te__pinned_create(NULL, MIB, &arena), 0);
	ck_assert_int_eq(te__spill_create(arena, &o, &spill), -EDQUOT);
	ck_assert_ptr_nonnull(strstr(te_error_detail(), "2097152 bytes, but user"));
	ck_assert_int_eq(run_stop(&run, SIGKILL), -SIGKILL);
	/* its socket is there still */
	ck_assert_int_eq(te__spill_create(arena, &o, &spill), -ECONNREFUSED);
	ck_assert_ptr_nonnull(strstr(te_error_detail(), "cannot connect to ted at"));
	ck_assert_ptr_eq(spill, (void *)&o);
	te__pinned_destroy(arena);
	run_start(&run);
	space_end();
}

static int ask(void)
{
	struct te__spill_ted *t = NULL;
	int fd = -1, r = te__spill_ted_open(run.sock, 4096, &fd, &t);

	ck_assert_int_eq(fd >= 0, !r);
	te__spill_ted_close(t);
	if (!r)
		close(fd);
	return r;
}

/* ---- another service at the socket ---- */

static const struct wrong_file {
	int size, flags;
	int is_named, is_pipe;
} wrong_files[] = {
	{ 4095, O_RDWR, 0, 0 },
	{ 4096, O_RDONLY, 0, 0 },
	{ 4096, O_RDWR, 1, 0 },
	{ 0, 0, 0, 1 },
};

static int file_of(const struct wrong_file *w)
{
	char path[200];
	int fd, ends[2];

	if (w->is_pipe) {
		ck_assert_int_eq(pipe(ends), 0);
		close(ends[0]);
		return ends[1];
	}
	snprintf(path, sizeof(path), "%s/file", run.dir);
	close(open(path, O_CREAT | O_WRONLY, 0600));
	ck_assert_int_eq(truncate(path, w->size), 0);
	fd = open(path, w->flags);
	if (!w->is_named)
		unlink(path);
	return fd;
}

/* answers HELLO, and GRANT by a descriptor */
static void *serve(void *arg)
{
	const int s = accept(run.pass[0], NULL, NULL);
	int fd = file_of(arg), none = -1;
	struct pollfd p = { .fd = s, .events = POLLIN };
	struct te__wire m;

	while (poll(&p, 1, 20000) > 0 && te__wire_recv(s, &m, NULL, &none) == 1) {
		const int grants = m.kind == TE__WIRE_GRANT;

		m = (struct te__wire){ .magic = TE__WIRE_MAGIC, .kind = TE__WIRE_REPLY };
		te__wire_send(s, &m, NULL, 0, grants ? fd : -1);
	}
	close(fd);
	close(s);
	return NULL;
}

TEST_EACH(offload, a_file_of_another_kind_is_refused, TT_LEN(wrong_files))
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	struct te__spill_file f = { .fd = -7 };
	struct wrong_file w = wrong_files[_i];
	pthread_t thread;

	run_init(&run, "");
	strcpy(sa.sun_path, run.sock);
	run.pass[0] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(bind(run.pass[0], (struct sockaddr *)&sa, sizeof(sa)), 0);
	ck_assert_int_eq(listen(run.pass[0], 5), 0);
	ck_assert_int_eq(pthread_create(&thread, NULL, serve, &w), 0);
	ck_assert_int_eq(te__spill_file_open(run.sock, 4096, &f), -EPROTO);
	ck_assert_ptr_nonnull(strstr(te_error_detail(), "not of a file without a name of 4096"));
	ck_assert_int_eq(f.fd, -7);
	pthread_join(thread, NULL);
	close(run.pass[0]);
	unlink(run.sock);
	if (w.is_named) {
		snprintf(sa.sun_path, sizeof(sa.sun_path), "%s/file", run.dir);
		unlink(sa.sun_path);
	}
	run_end(&run);
}

TEST(offload, faults_are_reported)
{
	space_begin("%s", "");
	ck_assert_int_ge(tt_fault_each(ask), 5);
	space_end();
}

TT_MAIN("daemon/ted_spill", TT_NEED_NOTHING)
