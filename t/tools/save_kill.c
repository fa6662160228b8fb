/*
 * t/tools/save_kill.c - a run that is killed while another thread writes its checkpoint, at any
 * call that changes the folder, resumes with at most that checkpoint lost, and its bits at the end
 * are the same as without a kill. Ranks train on while rank 0 writes. A copy in device memory is
 * saved, and is not needed.
 *
 * The program has its own write, fsync, openat, renameat, linkat and unlinkat. They count the calls
 * of threads other than the one that trains, and kill the process at one of them.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/lib/say.h"
#include "tools/te_train/loop.h"
#include "tt.h"

static char dir[64];
static struct trainer trainer;
static pid_t counting; /* the thread that trains, in a process that is to be killed */

/* memory that is refused */
enum lack {
	LACKS_NOTHING,
	LACKS_COPY, /* the third buffer of each copy in the device */
	LACKS_PINNED, /* the second buffer that is fetched, once */
};

/* memory of both processes */
static struct shared {
	_Atomic int ncalls; /* so far */
	int kill_at;
	int killed; /* the latest call at which one was */
	int step; /* the step whose checkpoint was being written */
	int start; /* step from which the latest run continued */
	int rename_kills; /* its process is killed: 1: after it renames the state; -1: before */
	int hold; /* the first call waits until two more steps have begun */
	_Atomic int nsteps; /* that rank 0 has begun */
	int overlapped; /* they have */
	int device; /* pretend; afterwards, buffers fetched */
	int lacks; /* enum lack: memory that the pretended device or its link lacks */
	float weights[4096]; /* at its end */
} *shared;

int __real_te_adamw_set_lr(struct te_adamw *opt, struct te_stream *stream, float lr);
int __wrap_te_adamw_set_lr(struct te_adamw *opt, struct te_stream *stream, float lr);

int __wrap_te_adamw_set_lr(struct te_adamw *opt, struct te_stream *stream, float lr)
{
	shared->nsteps += !trainer.ranks.rank;
	return __real_te_adamw_set_lr(opt, stream, lr);
}

const char *__real_te_ctx_backend(const struct te_ctx *ctx);
const char *__wrap_te_ctx_backend(const struct te_ctx *ctx);

/* the thread that trains copies what it saves as on a GPU */
static int pretend;
static _Atomic int nfetched; /* buffers copied from the "device" */

const char *__wrap_te_ctx_backend(const struct te_ctx *ctx)
{
	return pretend ? "cuda" : __real_te_ctx_backend(ctx);
}

int __real_te_pinned_alloc(struct te_ctx *ctx, size_t nbytes, void **ret_ptr);
int __wrap_te_pinned_alloc(struct te_ctx *ctx, size_t nbytes, void **ret_ptr);

int __wrap_te_pinned_alloc(struct te_ctx *ctx, size_t nbytes, void **ret_ptr)
{
	if (nbytes == 8 << 20 && ++nfetched == 2 && shared->lacks == LACKS_PINNED)
		return -ENOMEM;
	return __real_te_pinned_alloc(ctx, nbytes, ret_ptr);
}

int __real_te_mem_alloc(struct te_stream *stream, size_t nbytes, void **ret_ptr);
int __wrap_te_mem_alloc(struct te_stream *stream, size_t nbytes, void **ret_ptr);

int __wrap_te_mem_alloc(struct te_stream *stream, size_t nbytes, void **ret_ptr)
{
	static int n;

	if (pretend && ++n % 3 == 0 && shared->lacks == LACKS_COPY)
		return -ENOMEM;
	return __real_te_mem_alloc(stream, nbytes, ret_ptr);
}

static void hold(void)
{
	const int until = (int)trainer.now.saver.step + 2;

	shared->hold = 0;
	for (int i = 0; i < 2000 && shared->nsteps < until; i++)
		usleep(10000);
	shared->overlapped = shared->nsteps >= until;
}

/* before a call of the thread that saves */
static void count(void)
{
	if (!counting || (pid_t)syscall(SYS_gettid) == counting)
		return;
	if (shared->hold)
		hold();
	if (shared->ncalls++ != shared->kill_at)
		return;
	shared->killed = shared->kill_at;
	shared->step = (int)trainer.now.saver.step;
	kill(getpid(), SIGKILL);
}

ssize_t write(int fd, const void *src, size_t nbytes)
{
	count();
	return syscall(SYS_write, fd, src, nbytes);
}

int openat(int in, const char *file, int flags, ...)
{
	mode_t mode;
	va_list ap;

	va_start(ap, flags);
	mode = (mode_t)va_arg(ap, int);
	va_end(ap);
	count();
	return (int)syscall(SYS_openat, in, file, flags, mode);
}

int fsync(int fd)
{
	count();
	return (int)syscall(SYS_fsync, fd);
}

int renameat(int in, const char *from, int to_in, const char *to)
{
	const int kills = strcmp(to, "state.safetensors") ? 0 : shared->rename_kills;
	int r;

	count();
	if (kills)
		shared->rename_kills = 0;
	if (kills < 0)
		kill(getpid(), SIGKILL);
	r = (int)syscall(SYS_renameat2, in, from, to_in, to, 0);
	if (kills > 0)
		kill(getpid(), SIGKILL);
	return r;
}

int linkat(int in, const char *from, int to_in, const char *to, int flags)
{
	count();
	return (int)syscall(SYS_linkat, in, from, to_in, to, flags);
}

int unlinkat(int in, const char *file, int flags)
{
	count();
	return (int)syscall(SYS_unlinkat, in, file, flags);
}

/* ---- runs, each in a process ---- */

static void put(const char *name, const char *text)
{
	char path[128];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	f = fopen(path, "w");
	ck_assert_ptr_nonnull(f);
	fputs(text, f);
	ck_assert_int_eq(fclose(f), 0);
}

static void setup(void)
{
	char text[4096];

	snprintf(dir, sizeof(dir), "%s/te-kill.XXXXXX", tt_tmpdir());
	ck_assert_ptr_nonnull(mkdtemp(dir));
	put("config.json",
	    "{\"model_type\":\"llama\",\"vocab_size\":64,\"hidden_size\":16,"
	    "\"num_hidden_layers\":1,\"num_attention_heads\":1,\"intermediate_size\":16,"
	    "\"max_position_embeddings\":16,\"tie_word_embeddings\":true}");
	for (size_t i = 0; i < sizeof(text); i++)
		text[i] = (char)(' ' + i * i % 29);
	text[sizeof(text) - 1] = 0;
	put("text", text);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	ck_assert_ptr_ne(shared, MAP_FAILED);
}

static void teardown(void)
{
	munmap(shared, sizeof(*shared));
	tt_remove(dir);
}

static int train(int argc, char **argv, int kill_at)
{
	struct opts o = { 0 };
	struct te_tensor *w;
	int done, r;

	if (!freopen("/dev/null", "w", stderr) || !freopen("/dev/null", "w", stdout))
		return STATUS_FAILED;
	r = opts_parse(&o, argc, argv, &done);
	if (!r)
		r = trainer_create(&o, &trainer);
	counting = (pid_t)syscall(SYS_gettid);
	do {
		if (!r)
			r = trainer_open(&trainer);
		shared->ncalls = 0;
		shared->kill_at = kill_at;
		shared->start = (int)trainer.now.done.step;
		pretend = shared->device;
		if (!r)
			r = trainer_run(&trainer);
		pretend = 0;
	} while (r && trainer_recover(&trainer, &r));
	shared->device = nfetched;
	if (r)
		return r;
	w = te_seq_masters(trainer.now.model.seq);
	ck_assert_uint_le(te_tensor_nbytes(w), sizeof(shared->weights));
	ck_assert_int_eq(te_tensor_read(w, shared->weights, te_tensor_nbytes(w)), 0);
	trainer_free(&trainer);
	opts_free(&o);
	return r;
}

/*
 * The first step, or the others. 1: killed at that call of the thread that saves; 0: there were
 * fewer, and the run has ended.
 */
static int run(int kill_at, int resume)
{
	char out[128], config[128], text[128];
	char *argv[] = { "te_train", "--model", config, "--backend", "host", "--recipe", "fp32",
			 "--batch", "1", "--seq-len", "16", "--steps", "4", "--save-every", "1",
			 "--keep", "2", "--eval-every", "0", "--eval-batches", "1", "--out", out,
			 text, "--stop-after", "1", NULL };
	char *again[] = { "te_train", "--resume", out, NULL };
	int status;
	pid_t pid;

	snprintf(out, sizeof(out), "%s/out", dir);
	snprintf(config, sizeof(config), "%s/config.json", dir);
	snprintf(text, sizeof(text), "%s/text", dir);
	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (!pid)
		_exit(resume ? train(3, again, kill_at) :
			       train((int)TT_LEN(argv) - 1, argv, kill_at));
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	if (WIFSIGNALED(status)) {
		ck_assert_int_eq(WTERMSIG(status), SIGKILL);
		ck_assert_int_ge(kill_at, 0);
		return 1;
	}
	ck_assert_msg(!WEXITSTATUS(status), "exit status %d after a kill at call %d",
		      WEXITSTATUS(status), shared->killed);
	return 0;
}

static void begin(void)
{
	char out[128];

	snprintf(out, sizeof(out), "%s/out", dir);
	tt_remove(out);
	ck_assert_int_eq(run(-1, 0), 0);
}

CASE(kill, "host serial", .setup = setup, .teardown = teardown);

TEST(kill, a_kill_while_a_checkpoint_is_written_loses_at_most_that_one)
{
	static float want[4096];
	int n;

	begin();
	ck_assert_int_eq(run(-1, 1), 0);
	ck_assert_int_eq(shared->start, 1);
	n = shared->ncalls;
	/* two saves of two files by the thread: created, written, synced, renamed */
	ck_assert_int_gt(n, 2 * 2 * 4);
	memcpy(want, shared->weights, sizeof(want));
	/* the calls of the second one, which also removes the oldest checkpoint */
	for (int k = n / 2; k < n; k += TT_FEWER(8) == 8 ? 1 : 5) {
		begin();
		ck_assert_msg(run(k, 1) == 1, "call %d of %d was not made", k, n);
		memset(shared->weights, 0, sizeof(want));
		ck_assert_int_eq(run(-1, 1), 0);
		ck_assert_msg(shared->start == shared->step || shared->start == shared->step - 1,
			      "killed at call %d, in the save of step %d: continued from %d", k,
			      shared->step, shared->start);
		ck_assert_mem_eq(shared->weights, want, sizeof(want));
	}
}

static void read_state(char *dst, size_t most, size_t *ret_n)
{
	char path[128];
	FILE *f;

	snprintf(path, sizeof(path), "%s/out/state.safetensors", dir);
	f = fopen(path, "r");
	ck_assert_ptr_nonnull(f);
	*ret_n = fread(dst, 1, most, f);
	ck_assert_int_eq(fclose(f), 0);
	ck_assert_uint_lt(*ret_n, most);
}

TEST_EACH(kill, a_copy_in_device_memory_has_the_same_bytes, LACKS_PINNED + 1)
{
	/* weights and two moments, of each of three steps, of which one may end at the second */
	static const int fetched[] = { [LACKS_NOTHING] = 9, [LACKS_COPY] = 0, [LACKS_PINNED] = 8 };
	static char want[1 << 16], got[1 << 16];
	size_t nwant, ngot;

	begin();
	ck_assert_int_eq(run(-1, 1), 0);
	read_state(want, sizeof(want), &nwant);
	begin();
	shared->device = 1;
	shared->lacks = _i;
	ck_assert_int_eq(run(-1, 1), 0);
	ck_assert_int_eq(shared->device, fetched[_i]);
	read_state(got, sizeof(got), &ngot);
	ck_assert_uint_eq(ngot, nwant);
	ck_assert_mem_eq(got, want, nwant);
}

/* ---- two ranks, with a checkpoint of step 3 ---- */

/* recover: they may lose one, and replace another run's checkpoint */
static void start_ranks(pid_t rank[2], int recover)
{
	char out[128], config[128], text[128], meet[128];
	char *argv[] = { "te_train", "--model", config, "--backend", "host", "--recipe", "fp32",
			 "--batch", "1", "--seq-len", "16", "--save-every", "3", "--eval-every",
			 "0", "--eval-batches", "1", "--out", out, text, "--accum", "1",
			 "--steps", "8", "--overwrite", "--recover", "1", NULL };

	snprintf(out, sizeof(out), "%s/out", dir);
	snprintf(config, sizeof(config), "%s/config.json", dir);
	snprintf(text, sizeof(text), "%s/text", dir);
	snprintf(meet, sizeof(meet), "%s/meet", dir);
	ck_assert_int_eq(mkdir(meet, 0700), 0);
	for (int i = 0; i < 2; i++) {
		rank[i] = fork();
		ck_assert_int_ge(rank[i], 0);
		if (rank[i])
			continue;
		setenv("TE_COMM_RANK", i ? "1" : "0", 1);
		setenv("TE_COMM_NRANKS", "2", 1);
		setenv("TE_COMM_BOOTSTRAP", "dir", 1);
		setenv("TE_COMM_DIR", meet, 1);
		_exit(train((int)TT_LEN(argv) - (recover ? 1 : 4), argv, -1));
	}
}

/* signal 0: it ends with success */
static void rank_ends(pid_t rank, int signal)
{
	int status;

	ck_assert_int_eq(waitpid(rank, &status, 0), rank);
	ck_assert_msg(status == signal, "wait status %x, expected %x", (unsigned)status,
		      (unsigned)signal);
}

/* rank 0 writes until step 5 has begun */
TEST(kill, ranks_train_while_rank_0_writes)
{
	char out[128];
	char *again[] = { "te_train", "--resume", out, "--stop-after", "0", NULL };
	pid_t rank[2];

	shared->hold = 1;
	start_ranks(rank, 0);
	rank_ends(rank[0], 0);
	rank_ends(rank[1], 0);
	ck_assert(shared->overlapped);
	snprintf(out, sizeof(out), "%s/out", dir);
	rank[0] = fork();
	ck_assert_int_ge(rank[0], 0);
	if (!rank[0])
		_exit(train((int)TT_LEN(again) - 1, again, -1));
	rank_ends(rank[0], 0);
	ck_assert_int_eq(shared->start, 8);
}

/*
 * Rank 0 is lost before the other is told that there is a checkpoint. _i & 1: before there is one;
 * _i & 2: another run's is in the folder.
 */
TEST_EACH(kill, a_checkpoint_that_lost_rank_0_had_completed_is_used, 4)
{
	pid_t rank[2];

	if (_i & 2)
		begin();
	shared->rename_kills = _i & 1 ? -1 : 1;
	start_ranks(rank, 1);
	rank_ends(rank[0], SIGKILL);
	rank_ends(rank[1], 0);
	ck_assert_int_eq(shared->start, _i & 1 ? 0 : 3);
}

TT_MAIN("tools/save_kill", TT_NEED_NOTHING)
