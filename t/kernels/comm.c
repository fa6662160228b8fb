/*
 * t/kernels/comm.c - the collective kernels: ranks are streams, whose kernels run concurrently, or
 * processes on the host.
 */
#include "config.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <te/dtype.h>

#include "kernels/kernels.h"
#include "tt_ctx.h"

/* ---- ranks that map a memfd ---- */

#define NEVER (-1)
#define COUNT 3000
#define HALF te_k_comm_buffer_nbytes(TE_K_COMM_LL, TE_K_COMM_RANKS, COUNT * 4)
#define ARRAYS 32768 /* of a rank: input and output */
#define STRIDE (te_k_comm_region_nbytes(HALF) + ARRAYS)

/* elements of an operation, at most; the processes inherit it */
static uint32_t most = COUNT;

struct rank {
	uint8_t *mem;
	struct te_k_comm_ctl ctl;
	struct te_k_comm_status status;
	uint32_t abort;
	uint32_t deadline_s;
};

/* a number that all ranks compute: of a rank in an operation */
static uint32_t mix(uint64_t seed, int64_t i)
{
	const uint64_t x = (seed + (uint64_t)i * 0x632be59bd9b4e019u) * 0x9e3779b97f4a7c15u;

	return (uint32_t)(x >> 32) ^ (uint32_t)(x >> 11);
}

static float input(int op, int rank, int64_t i)
{
	return (float)(int32_t)mix(tt_seed() + (uint64_t)(op * 8 + rank), i) * 0x1p-20f;
}

/* one operation of this rank: 0, 1 for a wrong result, or 2 after a failure */
static int operate(struct rank *me, int n, int rank, int op)
{
	float *in = (float *)(void *)(me->mem + rank * STRIDE + te_k_comm_region_nbytes(HALF));
	const struct te_k_comm k = {
		.in = in,
		.out = in + ARRAYS / 8,
		.slots = me->mem,
		.ctl = &me->ctl,
		.abort = &me->abort,
		.status = &me->status,
		.count = mix(tt_seed(), op) % most + 1,
		.stride = STRIDE,
		.buffer_nbytes = HALF,
		.deadline_ns = (uint64_t)me->deadline_s * 1000000000u,
		.nranks = n,
		.rank = rank,
		.dtype = TE_DTYPE_FP32,
		.algorithm = (int32_t)(mix(tt_seed(), op + 1000000) % TE_K_COMM_NVLS),
		.max_blocks = 1,
	};
	const float *out = k.out;

	for (int64_t i = 0; i < k.count; i++)
		in[i] = input(op, rank, i);
	te__h_comm_allreduce(&k);
	if (me->ctl.failed)
		return 2;
	for (int64_t i = 0; i < k.count; i++) {
		float s = input(op, 0, i);

		for (int r = 1; r < n; r++)
			s += input(op, r, i);
		if (memcmp(&s, &out[i], sizeof(s)))
			return 1;
	}
	return 0;
}

/* a rank: a mapping of its own, at another address */
static int be_rank(int fd, int n, int rank, int nops, int who, int dies_at)
{
	struct rank me = { .deadline_s = dies_at == NEVER ? 30 : 4 };

	if (rank % 2)
		mmap(NULL, (size_t)(rank * STRIDE), PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	me.mem = mmap(NULL, (size_t)(n * STRIDE), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (me.mem == MAP_FAILED)
		return 99;
	for (int op = 0; op < nops; op++) {
		int r;

		if (rank == who && op == dies_at)
			raise(SIGKILL);
		r = operate(&me, n, rank, op);
		if (r == 2) /* which rank did not answer */
			return 10 + me.status.peer;
		if (r)
			return 1;
	}
	return 0;
}

/* exit codes of n ranks, or -1 of the one that kills itself before an operation */
static void run_ranks(int n, int nops, int who, int dies_at, int *ret_code)
{
	const int fd = memfd_create("comm", MFD_CLOEXEC);
	pid_t pid[TE_K_COMM_RANKS];
	void *mem;

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(ftruncate(fd, n * STRIDE), 0);
	mem = mmap(NULL, (size_t)(n * STRIDE), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	ck_assert_ptr_ne(mem, MAP_FAILED);
	memset(mem, 0xff, (size_t)(n * STRIDE));
	munmap(mem, (size_t)(n * STRIDE));
	for (int r = 0; r < n; r++) {
		pid[r] = fork();
		ck_assert_int_ge(pid[r], 0);
		if (!pid[r])
			_exit(be_rank(fd, n, r, nops, who, dies_at));
	}
	for (int r = 0; r < n; r++) {
		int status;

		ck_assert_int_eq(waitpid(pid[r], &status, 0), pid[r]);
		ret_code[r] = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
	}
	close(fd);
}

CASE(processes, "protocol");

TEST_IF(processes, ranks_are_processes, ON_HOST)
{
	const int n = (int)tt_rand_int(2, 8);
	int code[TE_K_COMM_RANKS];

	run_ranks(n, TT_FEWER(100), 0, NEVER, code);
	for (int r = 0; r < n; r++)
		ck_assert_msg(code[r] == 0, "rank %d of %d: exit code %d", r, n, code[r]);
}

CASE(litmus, "protocol");

/*
 * Litmus: operations of one to three packets, of every algorithm, as fast as two processes can. A
 * half packet that is torn or of an earlier operation, and data that is read before its flag
 * allows, are wrong bits in a result, because every operation has other inputs. TT_ROUNDS=100000000
 * CK_TIMEOUT_MULTIPLIER=100 CK_RUN_CASE=litmus runs it for long.
 */
TEST_IF(litmus, no_packet_is_torn_or_stale, ON_HOST)
{
	const char *rounds = getenv("TT_ROUNDS");
	const int n = rounds ? atoi(rounds) : TT_FEWER(20000);
	int code[TE_K_COMM_RANKS];

	most = 12;
	run_ranks(2, n, 0, NEVER, code);
	for (int r = 0; r < 2; r++)
		ck_assert_msg(code[r] == 0, "rank %d: exit code %d", r, code[r]);
}

TEST_IF(processes, a_killed_process_is_named, ON_HOST)
{
	const int n = (int)tt_rand_int(2, 4), who = (int)tt_rand_int(0, n - 1);
	int code[TE_K_COMM_RANKS];

	run_ranks(n, 20, who, (int)tt_rand_int(0, 19), code);
	for (int r = 0; r < n; r++)
		ck_assert_msg(code[r] == (r == who ? -1 : 10 + who),
			      "rank %d of %d: exit code %d, rank %d was killed", r, n, code[r],
			      who);
}

TT_PAIR("kernels/comm", TT_ONE_PROCESS)
