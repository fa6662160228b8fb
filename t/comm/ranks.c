/* ranks.c - see ranks.h. */
#include "config.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <te/errno.h>

#include "libtecore/base/private.h"
#include "ranks.h"

static struct ranks_result *result; /* shared */
static pid_t pid[RANKS_MAX];
static int nstarted;
static double began;

static double now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static int nfds(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

int ranks_nmaps(void)
{
	FILE *f = fopen("/proc/self/maps", "re");
	char line[512];
	int n = 0;

	while (fgets(line, sizeof(line), f))
		n += strstr(line, "memfd:te-") != NULL;
	fclose(f);
	return n;
}

void *ranks_shared(size_t nbytes)
{
	void *p = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	ck_assert_ptr_ne(p, MAP_FAILED);
	return p;
}

static void child(int rank, ranks_fn *fn, void *arg)
{
	struct ranks_result *res = &result[rank];
	const int64_t live = te__alloc_live();
	const int before = nfds();

	te_error_clear();
	res->r = fn(rank, arg);
	snprintf(res->text, sizeof(res->text), "%s", te_error_detail());
	res->nleft_fd = nfds() - before;
	res->nleft_alloc = (int)(te__alloc_live() - live);
	res->ms = now_ms() - began;
	_exit(0);
}

static void start(int rank, ranks_fn *fn, void *arg)
{
	fflush(NULL);
	pid[rank] = fork();
	ck_assert_int_ge(pid[rank], 0);
	if (!pid[rank])
		child(rank, fn, arg);
}

void ranks_start(int n, ranks_fn *fn, void *arg)
{
	ck_assert_int_le(n, RANKS_MAX);
	if (!result)
		result = ranks_shared(RANKS_MAX * sizeof(*result));
	memset(result, 0, RANKS_MAX * sizeof(*result));
	began = now_ms();
	for (nstarted = 0; nstarted < n; nstarted++)
		start(nstarted, fn, arg);
}

void ranks_again(int rank, int signal, ranks_fn *fn, void *arg)
{
	int status;

	ck_assert_int_eq(waitpid(pid[rank], &status, 0), pid[rank]);
	ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == signal, "process %d: %s", rank,
		      result[rank].text);
	start(rank, fn, arg);
}

pid_t ranks_pid(int rank)
{
	return pid[rank];
}

void ranks_wait(struct ranks_result *ret)
{
	for (int i = 0; i < nstarted; i++) {
		int status;

		ck_assert_int_eq(waitpid(pid[i], &status, 0), pid[i]);
		ret[i] = result[i];
		ret[i].signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
		if (WIFEXITED(status) && WEXITSTATUS(status))
			ret[i].signal = -WEXITSTATUS(status); /* of a sanitizer */
		if (ret[i].signal)
			ret[i].ms = now_ms() - began;
	}
}

void ranks_run(int n, ranks_fn *fn, void *arg, struct ranks_result *ret)
{
	ranks_start(n, fn, arg);
	ranks_wait(ret);
}

void ranks_await(const _Atomic int *count, int n)
{
	for (int ms = 0; *count < n && ms < 90000; ms++)
		usleep(1000);
}

void ranks_ok(int n, const struct ranks_result *res)
{
	for (int i = 0; i < n; i++) {
		ck_assert_msg(!res[i].signal, "process %d: signal or exit status %d", i,
			      res[i].signal);
		ck_assert_msg(!res[i].r, "process %d: %d: %s", i, res[i].r, res[i].text);
		ck_assert_msg(!res[i].nleft_fd && !res[i].nleft_alloc,
			      "process %d left %d descriptors and %d allocations", i,
			      res[i].nleft_fd, res[i].nleft_alloc);
	}
}

void ranks_ok_after(int fault, int n, const struct ranks_result *res, int may_fail)
{
	for (int i = 0; i < n; i++)
		ck_assert_msg(!res[i].signal && !res[i].nleft_fd && !res[i].nleft_alloc &&
				      (!res[i].r || (may_fail && res[i].text[0])),
			      "fault %d: rank %d: signal %d, %d: %s, left %d and %d", fault, i,
			      res[i].signal, res[i].r, res[i].text, res[i].nleft_fd,
			      res[i].nleft_alloc);
}

void ranks_failed(const struct ranks_result *res, int code, const char *text, double ms)
{
	ck_assert_msg(!res->signal, "signal or exit status %d", res->signal);
	ck_assert_msg(res->r == code, "%d, not %d: %s", res->r, code, res->text);
	ck_assert_msg(strstr(res->text, text) != NULL, "\"%s\" has no \"%s\"", res->text, text);
	ck_assert_msg(res->ms < ms, "after %.0f ms, not %.0f: %s", res->ms, ms, res->text);
	ck_assert_msg(!res->nleft_fd && !res->nleft_alloc,
		      "%d descriptors, %d allocations are left", res->nleft_fd, res->nleft_alloc);
}

void ranks_limit_files(int n)
{
	struct rlimit l = { .rlim_cur = 0 };

	for (; n >= 0; l.rlim_cur++)
		n -= fcntl((int)l.rlim_cur, F_GETFD) < 0;
	l.rlim_max = --l.rlim_cur;
	setrlimit(RLIMIT_NOFILE, &l);
}

/* ---- folders ---- */

static char dir[200];

const char *ranks_mkdir(void)
{
	const char *tmp = getenv("TMPDIR");

	snprintf(dir, sizeof(dir), "%s/te-test.XXXXXX", tmp ? tmp : "/tmp");
	ck_assert_ptr_nonnull(mkdtemp(dir));
	return dir;
}

const char *ranks_dir(void)
{
	return dir;
}

void ranks_rmdir(void)
{
	DIR *d = opendir(dir);
	struct dirent *e;

	while (d && (e = readdir(d)))
		unlinkat(dirfd(d), e->d_name, 0);
	if (d)
		closedir(d);
	rmdir(dir);
}

/* ---- meeting ---- */

static enum meet meet;
static int nranks;
static struct te_comm_id id;
static pid_t root_pid;

/* an allgather of the program's: processes with shared memory */
static struct exchange {
	atomic_int arrived, left;
	uint8_t bytes[RANKS_MAX][1024];
} * shared;
static int shared_rank;

static int shared_allgather(void *user, const void *send, void *recv, size_t nbytes)
{
	struct exchange *x = user;

	if (nbytes > sizeof(x->bytes[0]))
		return te_fail(-ENOSPC, "%zu bytes", nbytes);
	memcpy(x->bytes[shared_rank], send, nbytes);
	atomic_fetch_add(&x->arrived, 1);
	for (int ms = 0; atomic_load(&x->arrived) < nranks; ms++) {
		if (ms > 40000)
			return te_fail(-ETIMEDOUT, "the test's own allgather");
		usleep(1000);
	}
	for (int i = 0; i < nranks; i++)
		memcpy((uint8_t *)recv + (size_t)i * nbytes, x->bytes[i], nbytes);
	return 0;
}

/*
 * A root in a process that is no rank: it reads parameters, which the ranks are to set, and has a
 * thread, which ThreadSanitizer wants no process to have that forks.
 */
static void start_root(void)
{
	struct te_comm_id *made = ranks_shared(sizeof(*made));
	struct te_comm_root *root;
	int fd[2];
	char c;

	ck_assert_int_eq(pipe(fd), 0);
	root_pid = fork();
	if (!root_pid) {
		close(fd[0]);
		if (te_comm_id_create(made, &root) || write(fd[1], "", 1) != 1)
			_exit(1);
		pause();
	}
	close(fd[1]);
	ck_assert_int_eq(read(fd[0], &c, 1), 1);
	close(fd[0]);
	id = *made;
}

void ranks_meet(enum meet how, int n)
{
	meet = how;
	nranks = n;
	switch (how) {
	case MEET_ID:
	case MEET_ID_ENV:
		start_root();
		break;
	case MEET_DIR:
		ranks_mkdir();
		break;
	default:
		shared = ranks_shared(sizeof(*shared));
		break;
	}
}

void ranks_part(void)
{
	if (root_pid) {
		kill(root_pid, SIGKILL);
		waitpid(root_pid, NULL, 0);
		root_pid = 0;
	}
	if (meet == MEET_DIR) {
		DIR *d = opendir(dir);
		struct dirent *e;

		while ((e = readdir(d)))
			ck_assert_msg(e->d_name[0] == '.', "%s is left in the folder", e->d_name);
		closedir(d);
		ranks_rmdir();
	}
}

void ranks_meet_run(enum meet how, int n, ranks_fn *fn, void *arg, struct ranks_result *ret)
{
	ranks_meet(how, n);
	ranks_run(n, fn, arg, ret);
	ranks_part();
}

void ranks_count(int n)
{
	nranks = n;
}

const struct te_comm_id *ranks_id(void)
{
	return &id;
}

static void set_int(const char *name, int value)
{
	char text[16];

	snprintf(text, sizeof(text), "%d", value);
	setenv(name, text, 1);
}

struct te_comm_opts ranks_opts(int rank)
{
	static struct te_comm_bootstrap own = TE_COMM_BOOTSTRAP_INIT;
	struct te_comm_opts o = TE_COMM_OPTS_INIT;
	char text[TE_COMM_ID_TEXT];

	setenv("TE_COMM_PACKETS", "64K", 0); /* filling 16 MiB takes longer than most tests */
	if (meet == MEET_ID || meet == MEET_CALLBACK) {
		o.rank = rank;
		o.nranks = nranks;
	} else {
		set_int("TE_COMM_RANK", rank);
		set_int("TE_COMM_NRANKS", nranks);
	}
	switch (meet) {
	case MEET_ID:
		o.id = &id;
		break;
	case MEET_ID_ENV:
		te_comm_id_format(&id, text, sizeof(text));
		setenv("TE_COMM_ID", text, 1);
		break;
	case MEET_DIR:
		setenv("TE_COMM_DIR", dir, 1);
		break;
	case MEET_CALLBACK:
		own.user = shared;
		own.allgather = shared_allgather;
		shared_rank = rank;
		o.bootstrap = &own;
		break;
	default:
		break;
	}
	return o;
}
