/*
 * t/offload/spill_systems.c - the file tier on systems that refuse io_uring, some of its flags,
 * locked memory, direct I/O or reservation; full disks; forks; processes that are killed.
 */
#include "config.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#ifdef HAVE_LIBURING
#include <liburing.h>
#endif

#include "libtecore/base/private.h"
#include "spill_lib.h"

/* functions of the system that tests replace; the program's come before those of libraries */

static struct {
	int active;
	uint32_t mask, mem_align, offset_align; /* that statx() reports */
} dio;

int statx(int fd, const char *restrict path, int flags, unsigned int mask,
	  struct statx *restrict ret)
{
	const int r = (int)syscall(SYS_statx, fd, path, flags, mask, ret);

#ifdef STATX_DIOALIGN
	if (!r && dio.active) {
		ret->stx_mask = (ret->stx_mask & ~STATX_DIOALIGN) | dio.mask;
		ret->stx_dio_mem_align = dio.mem_align;
		ret->stx_dio_offset_align = dio.offset_align;
	}
#endif
	return r;
}

#ifdef HAVE_LIBURING
static unsigned refused_flags, flags_used;
static int ninits;

int io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags)
{
	struct io_uring_params p = { .flags = flags };

	ninits++;
	if (flags & refused_flags)
		return -EINVAL;
	flags_used = flags;
	return io_uring_queue_init_params(entries, ring, &p);
}
#endif

/* systems that refuse */

/* calls of nr, with the bits in argument arg, return the error; 0 where filters are not possible */
static int refuse(int nr, uint32_t arg, uint32_t bits, int error)
{
	const uint32_t at = (uint32_t)offsetof(struct seccomp_data, args) + 8 * arg;
	struct sock_filter f[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)nr, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at),
		BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, bits, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)error),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	const struct sock_fprog prog = { TT_LEN(f), f };

	if (!bits) /* every call */
		f[3] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K,
						    SECCOMP_RET_ERRNO | (uint32_t)error);
	return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) &&
	       !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog);
}

/* by default with one message; what was asked for by name is an error */
static void falls_back(const char *why)
{
	struct te__spill *none;

	spill_opts.engine = TE__SPILL_URING;
	fails(te__spill_create(arena, &spill_opts, &none), -EOPNOTSUPP, "io_uring is refused: ");
	tt_said(why);
	nlogged = 0;
	spill_opts.engine = TE__SPILL_AUTO;
	spill_new();
	ck_assert_int_eq(nlogged, 1);
	ck_assert_msg(strstr(logged, why) && strstr(logged, "threads are used instead"), "%s",
		      logged);
	ck_assert_str_eq(stats().engine, "threads");
	DO(te__spill_reserve(spill, 0, NBYTES));
	works();
}

CASE(systems, "host", .setup = fault_setup, .teardown = fault_teardown);

#ifdef HAVE_LIBURING
static const struct {
	int error;
	const char *text;
} uring_errors[] = {
	{ ENOSYS, "Function not implemented" },
	{ EPERM, "Operation not permitted" },
	{ ENOMEM, "Cannot allocate memory" },
	{ EINVAL, "Invalid argument" },
};

TEST_EACH(systems, io_uring_that_is_refused_is_replaced, TT_LEN(uring_errors))
{
	if (!refuse(SYS_io_uring_setup, 0, 0, uring_errors[_i].error))
		return;
	falls_back(uring_errors[_i].text);
}

/* set up, and then refused by io_uring_enter, as the trial finds */
TEST(systems, io_uring_that_does_not_work_is_replaced)
{
	if (lacks_uring(&engines[0]))
		return;
	if (!refuse(SYS_io_uring_enter, 0, 0, ENXIO))
		return;
	nlogged = 0;
	spill_opts.engine = TE__SPILL_AUTO;
	spill_new();
	ck_assert_int_eq(nlogged, 1);
	ck_assert_msg(strstr(logged, "a trial of io_uring failed"), "%s", logged);
	ck_assert_str_eq(stats().engine, "threads");
	DO(te__spill_reserve(spill, 0, NBYTES));
	works();
}

/* kernels before 6.1, 5.19 and 5.18 */
static const struct {
	unsigned refused, used;
} kernels[] = {
	{ 0, 1u << 7 | 1u << 12 | 1u << 13 }, /* SUBMIT_ALL, SINGLE_ISSUER, DEFER_TASKRUN */
	{ 1u << 13, 1u << 7 | 1u << 8 },      /* COOP_TASKRUN */
	{ 1u << 13 | 1u << 8, 1u << 7 },
	{ 1u << 13 | 1u << 8 | 1u << 7, 0 },
};

TEST_EACH(systems, flags_that_a_kernel_does_not_know_are_left_out, TT_LEN(kernels))
{
	if (lacks_uring(&engines[0]))
		return;
	use_engine(&engines[0], 0);
	refused_flags = kernels[_i].refused;
	ninits = nlogged = 0;
	spill_new();
	ck_assert_int_eq(ninits, _i + 1);
	ck_assert_uint_eq(flags_used, kernels[_i].used);
	ck_assert_int_eq(nlogged, 0);
	ck_assert_str_eq(stats().engine, "io_uring");
	DO(te__spill_reserve(spill, 0, NBYTES));
	works();
}

static void drop_caps(void)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[2] = { { 0, 0, 0 } };

	ck_assert_int_eq((int)syscall(SYS_capset, &head, data), 0);
}

TEST(systems, limit_of_locked_memory_makes_buffers_plain)
{
	const struct rlimit low = { 64 * KIB, 64 * KIB };

	if (lacks_uring(&engines[0]))
		return;
	use_engine(&engines[0], 0);
	ck_assert_int_eq(setrlimit(RLIMIT_MEMLOCK, &low), 0);
	drop_caps();
	nlogged = 0;
	spill_new();
	ck_assert_int_eq(nlogged, 1);
	ck_assert_msg(strstr(logged, "are not registered with io_uring"), "%s", logged);
	ck_assert_str_eq(stats().engine, "io_uring");
	ck_assert_int_eq(stats().fixed, 0);
	DO(te__spill_reserve(spill, 0, NBYTES));
	works();
}

TEST(systems, memory_is_registered_where_it_may_be)
{
	struct rlimit l;

	getrlimit(RLIMIT_MEMLOCK, &l);
	if (lacks_uring(&engines[0]) || (geteuid() && l.rlim_cur < 64 * MIB))
		return;
	use_engine(&engines[0], 0);
	spill_new();
	ck_assert_int_eq(stats().fixed, 1);
}
#else
TEST(systems, build_without_liburing_uses_threads)
{
	falls_back("built without liburing");
}
#endif

#ifdef STATX_DIOALIGN
/* what a file system says of direct I/O, and what follows */
static const struct {
	uint32_t mask, mem_align, offset_align;
	int direct;
	uint32_t align;
} alignments[] = {
	{ 0, 0, 0, 1, 4096 },			  /* nothing: an older kernel */
	{ STATX_DIOALIGN, 0, 0, 0, 1 },		  /* there is none */
	{ STATX_DIOALIGN, 512, 512, 1, 512 },
	{ STATX_DIOALIGN, 4, 4096, 1, 4096 },
	{ STATX_DIOALIGN, 4096, 4096, 1, 4096 },
	{ STATX_DIOALIGN, 4096, 65536, 0, 1 },	  /* more than blocks have */
	{ STATX_DIOALIGN, 65536, 4096, 0, 1 },
};

TEST_EACH(systems, alignment_of_direct_io_is_asked_for, TT_LEN(alignments))
{
	struct te__spill_stats st;

	use_engine(&engines[2], 0);
	spill_new();
	if (!stats().direct)
		return; /* of this file system there is none */
	spill = te__spill_destroy(spill);
	dio.active = 1;
	dio.mask = alignments[_i].mask;
	dio.mem_align = alignments[_i].mem_align;
	dio.offset_align = alignments[_i].offset_align;
	spill_new();
	st = stats();
	ck_assert_int_eq(st.direct, alignments[_i].direct);
	ck_assert_uint_eq(st.align, alignments[_i].align);
	DO(te__spill_reserve(spill, 0, NBYTES));
	works();
}
#endif

/* AUTO and THREADS */
TEST_EACH(systems, file_system_without_direct_io_is_used, 1)
{
	if (!refuse(SYS_openat, 2, O_DIRECT, EINVAL))
		return;
	spill_opts.engine = (enum te__spill_engine)_i;
	spill_new();
	ck_assert_int_eq(stats().direct, 0);
	DO(te__spill_reserve(spill, 0, NBYTES));
	works();
}

TEST_ALSO(systems, file_system_without_direct_io_is_used, 3, .from = 2);

TEST_EACH(systems, file_system_without_unnamed_files_is_used, 3, .from = 2)
{
	if (!refuse(SYS_openat, 2, O_TMPFILE & ~O_DIRECTORY, EOPNOTSUPP))
		return;
	spill_opts.engine = (enum te__spill_engine)_i;
	spill_new();
	DO(te__spill_reserve(spill, 0, NBYTES));
	works();
}

TEST_EACH(systems, file_system_without_reservation_is_used, 3, .from = 2)
{
	if (!refuse(SYS_fallocate, 0, 0, EOPNOTSUPP))
		return;
	spill_opts.engine = (enum te__spill_engine)_i;
	spill_opts.quota_nbytes = MIB + 4096;
	spill_new();
	ck_assert_uint_eq(stats().file_nbytes, MIB + 4096);
	DO(te__spill_reserve(spill, 0, NBYTES));
	works();
}

static const struct {
	int error;
	const char *text;
} full_rows[] = { { ENOSPC, "No space left" }, { EDQUOT, "quota" } };

TEST_EACH(systems, full_disk_is_found_at_the_start, TT_LEN(full_rows))
{
	if (!refuse(SYS_fallocate, 0, 0, full_rows[_i].error))
		return;
	fails(te__spill_create(arena, &spill_opts, &spill), -full_rows[_i].error,
	      "cannot reserve 8388608 bytes");
	tt_said(full_rows[_i].text);
	tt_said("are available");
	tt_said(spill_dir);
	ck_assert_ptr_null(spill);
}

/* the signal's default action would end the process */
TEST_EACH(systems, limit_of_file_size_is_an_error_and_no_signal, NENGINES - 1)
{
	const struct rlimit low = { 64 * KIB, RLIM_INFINITY };
	const struct rlimit none = { RLIM_INFINITY, RLIM_INFINITY };
	const struct engine *e = &engines[_i];

	if (lacks_uring(e))
		return;
	use_engine(e, 0);
	signal(SIGXFSZ, SIG_DFL);
	ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &low), 0);
	fails(te__spill_create(arena, &spill_opts, &spill), -EFBIG, "cannot reserve 8388608");
	ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &none), 0);
	spill_new();
	DO(te__spill_reserve(spill, 0, NBYTES));
	works();
	/* block 0 is below the limit, block 1 is not */
	ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &low), 0);
	ck_assert_int_eq(put(0, slot_at(0), NBYTES), -EFBIG);
	tt_said("write of group 0");
	ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &none), 0);
	works();
}

TEST(systems, folder_that_cannot_be_used_is_named)
{
	struct te__spill *none = NULL;

	spill_opts.dir = "/nowhere/at/all";
	fails(te__spill_create(arena, &spill_opts, &none), -ENOENT, "/nowhere/at/all");
	spill_opts.dir = NULL;
	fails(te__spill_create(arena, &spill_opts, &none), -EINVAL, "no folder");
	spill_opts.dir = spill_dir;
	spill_opts.block_nbytes = 4097;
	fails(te__spill_create(arena, &spill_opts, &none), -EINVAL, "blocks of 4097 bytes");
	spill_opts.block_nbytes = 0;
	spill_opts.depth = 257;
	fails(te__spill_create(arena, &spill_opts, &none), -EINVAL, "a depth of 257");
	spill_opts.depth = 0;
	spill_opts.ngroups = 0;
	fails(te__spill_create(arena, &spill_opts, &none), -EINVAL, "0 groups");
	ck_assert_ptr_null(none);
}

/* constructors: each allocation, each open and each thread fails once */

static int create_and_destroy(void)
{
	struct te__spill *s = NULL;
	int r = te__spill_create(arena, &spill_opts, &s);

	ck_assert_int_eq(!s, !!r);
	if (!r)
		r = te__spill_reserve(s, 0, NBYTES);
	tt_fault_end();
	te__spill_destroy(s);
	return r;
}

TEST_EACH(systems, each_failure_of_creation_is_reported, NENGINES)
{
	if (lacks_uring(&engines[_i]))
		return;
	use_engine(&engines[_i], 0);
	spill_opts.quota_nbytes = MIB;
	ck_assert_int_ge(tt_fault_each(create_and_destroy), 8);
}

/* processes */

CASE(processes, "host", .setup = fault_setup, .teardown = fault_teardown);

TEST_EACH(processes, forked_child_is_refused_and_the_parent_goes_on, NENGINES)
{
	const struct engine *e = &engines[_i];
	uint8_t *want = fresh();
	int status;
	pid_t child;

	if (!spill_begin(e, 1, 1, NBYTES))
		return;
	/* I/O is in flight: its completions are held */
	atomic_store(&shim.gate, 1);
	DO(te__spill_write(spill, 0, slot_at(0), NBYTES, NULL, 0));
	child = fork();
	if (!child) {
		int bad = te__spill_wait(spill, TE__SPILL_WRITE, 0, -1) != -TE_ESTATE;

		bad |= te__spill_write(spill, 0, slot_at(0), NBYTES, NULL, 0) != -TE_ESTATE;
		bad |= te__spill_error(spill, NULL) != -TE_ESTATE;
		te__spill_arm(spill, 1);
		te__spill_kick(spill);
		te__spill_clear(spill);
		te__spill_destroy(spill);
		te__pinned_destroy(arena);
		_exit(bad);
	}
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert_int_eq(status, 0);
	atomic_store(&shim.gate, 0);
	te__spill_kick(spill);
	DO(te__spill_wait(spill, TE__SPILL_WRITE, 0, -1));
	DO(get(0, slot_at(MIB), NBYTES));
	ck_assert(!memcmp(slot_at(MIB), want, NBYTES));
}

static int count_files(const char *dir)
{
	DIR *d = opendir(dir);
	int n = -2; /* . and .. */

	while (d && readdir(d))
		n++;
	if (d)
		closedir(d);
	return n;
}

static uint64_t space(const char *dir)
{
	struct statvfs s;

	ck_assert_int_eq(statvfs(dir, &s), 0);
	return (uint64_t)s.f_bfree * s.f_frsize;
}

/* requests in both directions until it is killed; one byte on the pipe when they have begun */
static void run_until_killed(int fd)
{
	struct te__pinned *a;
	struct te__spill *s;

	if (te__pinned_create(NULL, 2 * MIB, &a) || te__spill_create(a, &spill_opts, &s) ||
	    te__spill_reserve(s, 0, MIB) || te__spill_reserve(s, 1, MIB))
		_exit(1);
	for (int first = 1;; first = 0) {
		if (te__spill_write(s, 0, te__pinned_base(a), MIB, NULL, 0) ||
		    te__spill_write(s, 1, te__pinned_base(a), MIB, NULL, 0))
			_exit(2);
		if (first && write(fd, "x", 1) != 1)
			_exit(3);
		if (te__spill_wait(s, TE__SPILL_WRITE, 0, -1) ||
		    te__spill_wait(s, TE__SPILL_WRITE, 1, -1) ||
		    te__spill_read(s, 0, te__pinned_base(a), MIB, NULL, 0) ||
		    te__spill_wait(s, TE__SPILL_READ, 0, -1))
			_exit(4);
	}
}

TEST_EACH(processes, killed_process_leaves_nothing, 2)
{
	enum { WAIT_MS = 2000 };
	const char *times = getenv("TT_KILLS"); /* by hand: 200 */
	const int n = times ? atoi(times) : TT_FEWER(12);
	const struct engine *e = &engines[2 * _i];
	/* tmpfs: the space that files of other programs take there changes little */
	char dir[] = "/dev/shm/te-spill-XXXXXX";
	uint64_t before;

	if (lacks_uring(e) || !mkdtemp(dir))
		return;
	spill_opts.dir = dir;
	spill_opts.quota_nbytes = 16 * MIB;
	use_engine(e, 0);
	before = space(dir);
	for (int i = 0; i < n; i++) {
		const struct timespec pause = { 0, tt_rand_int(0, 2000000) }, ms = { 0, 1000000 };
		int fd[2], status, waited = 0;
		char c;
		pid_t child;

		ck_assert_int_eq(pipe(fd), 0);
		child = fork();
		if (!child)
			run_until_killed(fd[1]);
		close(fd[1]);
		ck_assert_int_eq((int)read(fd[0], &c, 1), 1);
		close(fd[0]);
		nanosleep(&pause, NULL);
		kill(child, SIGKILL);
		ck_assert_int_eq(waitpid(child, &status, 0), child);
		ck_assert(WIFSIGNALED(status));
		ck_assert_int_eq(count_files(dir), 0);
		while (space(dir) + spill_opts.quota_nbytes / 2 < before && waited++ < WAIT_MS)
			nanosleep(&ms, NULL);
		ck_assert_int_lt(waited, WAIT_MS);
	}
	rmdir(dir);
}

TT_MAIN("offload/spill_systems", TT_NEED_NOTHING)
