/*
 * t/comm/nccl.c - all-reduce and messages by NCCL, with a library of the test in place of it.
 * Contexts are of the host backend, and pretend that a program can make their device current, as it
 * can a GPU.
 */
#include "config.h"

#include <limits.h>
#include <time.h>

#include <te/collective.h>

#include "libtecomm/collective/comm.h"
#include "libtecomm/meet/boot.h"
#include "libtecore/tensor/ctx.h"
#include "nccl_fake.h"
#include "threads.h"

#define N 3
#define COUNT 1021

static struct te__backend_ops ops[N];
static enum te_dtype dtype;

static int enter(void *dev)
{
	return 0;
}

static void leave(void *dev)
{
}

static void *native(void *stream)
{
	return stream;
}

static void setup(void)
{
	setenv("NCCL_NVLS_ENABLE", "0", 1);
	dtype = TE_DTYPE_FP32;
	nccl_fake.version[0] = nccl_fake.version[1] = 22703;
}

static void pretend(struct thread_rank *r)
{
	ops[r->rank] = *r->ctx->ops;
	ops[r->rank].enter = enter;
	ops[r->rank].leave = leave;
	ops[r->rank].stream_native = native;
	r->ctx->ops = &ops[r->rank];
}

static int by_nccl(struct thread_rank *r, void *p, enum te_dtype dtype, enum te_comm_op op)
{
	struct te_comm_call_opts o = TE_COMM_CALL_OPTS_INIT;

	o.algorithm = TE_COMM_NCCL;
	return te_comm_allreduce(r->comm, te_ctx_stream(r->ctx), p, p, COUNT, dtype, op, &o);
}

static float value(int rank, int i)
{
	return (float)((i * 37 + rank * 101) % 1009 - 500);
}

/* NCCL's numbers of types and operations (nccl.h) */
static const struct {
	enum te_dtype dtype;
	enum te_comm_op op;
	int nccl_dtype, nccl_op;
} names[] = {
	{ TE_DTYPE_FP32, TE_COMM_SUM, 7, 0 },  { TE_DTYPE_BF16, TE_COMM_MAX, 9, 2 },
	{ TE_DTYPE_FP16, TE_COMM_MIN, 6, 3 },  { TE_DTYPE_E4M3, TE_COMM_AVG, 10, 4 },
	{ TE_DTYPE_E5M2, TE_COMM_SUM, 11, 0 }, { TE_DTYPE_INT32, TE_COMM_MAX, 2, 2 },
	{ TE_DTYPE_UINT8, TE_COMM_MIN, 1, 3 },
};

static int sums(struct thread_rank *r)
{
	struct te_stream *s = te_ctx_stream(r->ctx);
	float x[COUNT], y[COUNT], want;
	void *p;

	pretend(r);
	STEP(te_mem_alloc(s, sizeof(x), &p));
	for (size_t k = 0; k < TT_LEN(names); k++) {
		for (int i = 0; i < COUNT; i++)
			x[i] = value(r->rank, i);
		STEP(te_copy(s, p, x, sizeof(x)));
		STEP(te_stream_sync(s));
		STEP(by_nccl(r, p, names[k].dtype, names[k].op));
		HOLDS(nccl_fake.dtype == names[k].nccl_dtype && nccl_fake.op == names[k].nccl_op);
		HOLDS(nccl_fake.stream != NULL);
		tt_poison(y, sizeof(y));
		STEP(te_copy(s, y, p, sizeof(y)));
		STEP(te_stream_sync(s));
		for (int i = 0; i < COUNT && !k; i++) {
			want = 0;
			for (int j = 0; j < N; j++)
				want += value(j, i);
			HOLDS(y[i] == want);
		}
		STEP(te_comm_barrier(r->comm, s)); /* all have looked */
		STEP(te_stream_sync(s));
	}
	return te_mem_free(s, p);
}

CASE(nccl, "host", .setup = setup);

TEST(nccl, calls_are_those_of_nccl)
{
	threads_run(N, sums, 0, NULL);
	ck_assert_int_eq(nccl_fake.nversion, N);
	ck_assert_int_eq(nccl_fake.nid, 1);
	ck_assert_int_eq(nccl_fake.ninit, N);
	ck_assert_int_eq(nccl_fake.nreduce, N * (int)TT_LEN(names));
	ck_assert_int_eq(nccl_fake.nfinalize, N);
	ck_assert_int_eq(nccl_fake.ndestroy, N);
	ck_assert_int_eq(nccl_fake.nabort, 0);
}

static int which, timeout_ms; /* 0: that of threads_run() */
static _Atomic int nfailed;

static void nap(void)
{
	nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
}

static int one(struct thread_rank *r)
{
	struct te_stream *s = te_ctx_stream(r->ctx);
	void *p;
	int e;

	pretend(r);
	if (timeout_ms)
		r->comm->boot->timeout_ms = timeout_ms;
	STEP(te_mem_alloc(s, COUNT * sizeof(float), &p));
	e = by_nccl(r, p, dtype, TE_COMM_SUM);
	if (e && ++nfailed == N - 1)
		nccl_fake.held_polls = 0;
	STEP(te_mem_free(s, p));
	return e;
}

static const struct {
	const char *fail, *late, *stall;
	int version[2];
	enum te_dtype dtype;
	int code;
	const char *text;
} failures[] = {
	{ "ncclGetVersion", NULL, NULL, { 22703, 22703 }, TE_DTYPE_FP32, -TE_EPEER,
	  "NCCL: ncclGetVersion: invalid usage: of none" },
	{ "ncclGetUniqueId", NULL, NULL, { 22703, 22703 }, TE_DTYPE_FP32, -TE_EPEER,
	  "NCCL: ncclGetUniqueId: invalid usage: of none" },
	{ "ncclCommInitRankConfig", NULL, NULL, { 22703, 22703 }, TE_DTYPE_FP32, -TE_EPEER,
	  "NCCL: ncclCommInitRankConfig: invalid usage: of none" },
	{ NULL, "ncclCommInitRankConfig", NULL, { 22703, 22703 }, TE_DTYPE_FP32, -TE_EPEER,
	  "NCCL: ncclCommInitRankConfig: invalid usage: of a communicator" },
	{ "ncclCommGetAsyncError", NULL, NULL, { 22703, 22703 }, TE_DTYPE_FP32, -TE_EPEER,
	  "NCCL: ncclCommGetAsyncError: invalid usage: of a communicator" },
	{ NULL, NULL, "ncclCommInitRankConfig", { 22703, 22703 }, TE_DTYPE_FP32, -ETIMEDOUT,
	  "NCCL: ncclCommInitRankConfig: not done within 3000 ms" },
	{ NULL, NULL, NULL, { 21899, 21899 }, TE_DTYPE_FP32, -EOPNOTSUPP,
	  "NCCL: its version is 21899, expected 21900 or later" },
	{ NULL, NULL, NULL, { 22703, 22800 }, TE_DTYPE_FP32, -TE_EMISMATCH, "NCCL: rank " },
	{ NULL, NULL, NULL, { 22000, 22000 }, TE_DTYPE_E4M3, -EOPNOTSUPP,
	  "NCCL: version 22000 has no type e4m3" },
};

TEST_EACH(nccl, failures_of_nccl_are_named, TT_LEN(failures))
{
	nccl_fake.fail = failures[_i].fail;
	nccl_fake.late = failures[_i].late;
	nccl_fake.stall = failures[_i].stall;
	memcpy(nccl_fake.version, failures[_i].version, sizeof(nccl_fake.version));
	dtype = failures[_i].dtype;
	timeout_ms = failures[_i].stall ? 3000 : 0;
	threads_run(N, one, failures[_i].code, failures[_i].text);
	/* all created objects are released */
	ck_assert_int_eq(nccl_fake.ndestroy + nccl_fake.nabort, nccl_fake.ninit);
}

/* rank 1 comes when the others have given up */
static int one_absent(struct thread_rank *r)
{
	static const char want[] = "start of NCCL: rank 1 of 3 did not take part within ";
	int e;

	while (r->rank == 1 && nccl_fake.held_rank != 1 && nfailed < N - 1)
		nap();
	e = one(r);
	HOLDS(r->rank == 1 || strstr(te_error_detail(), want));
	return e;
}

/* or a process that has stopped while it was in NCCL */
TEST_EACH(nccl, a_rank_that_does_not_come_is_named, 2)
{
	timeout_ms = 3000;
	nccl_fake.held_rank = _i;
	nccl_fake.held_polls = _i ? INT_MAX : 0;
	threads_run(N, one_absent, -ETIMEDOUT, NULL);
	ck_assert_int_eq(nccl_fake.nabort, nccl_fake.ninit);
}

static const struct {
	const char *fail, *late, *stall;
	int code;
	const char *text;
} ends[] = {
	{ "ncclAllReduce", NULL, NULL, -TE_EPEER,
	  "NCCL: ncclAllReduce: invalid usage: of a communicator" },
	{ NULL, "ncclAllReduce", NULL, -TE_EPEER,
	  "NCCL: ncclAllReduce: invalid usage: of a communicator" },
	{ NULL, NULL, "ncclAllReduce", -ETIMEDOUT, "NCCL: ncclAllReduce: not done within 3000 ms" },
};

/* the operations of all ranks fail after the first */
static int one_and_none(struct thread_rank *r)
{
	int e;

	STEP(one(r));
	STEP(te_comm_barrier(r->comm, te_ctx_stream(r->ctx)));
	STEP(te_stream_sync(te_ctx_stream(r->ctx)));
	nccl_fake.fail = ends[which].fail;
	nccl_fake.late = ends[which].late;
	nccl_fake.stall = ends[which].stall;
	e = one(r);
	HOLDS(te_comm_error(r->comm) == e);
	return e;
}

TEST_EACH(nccl, a_failed_operation_ends_the_communicator, TT_LEN(ends))
{
	which = _i;
	timeout_ms = ends[_i].stall ? 3000 : 0;
	threads_run(N, one_and_none, ends[_i].code, ends[_i].text);
	ck_assert_int_eq(nccl_fake.nabort, N);
}

static int one_late(struct thread_rank *r)
{
	while (r->rank == 1 && nccl_fake.nversion < N - 1)
		nap();
	return one(r);
}

TEST(nccl, a_rank_may_come_late)
{
	nccl_fake.held_rank = 1;
	nccl_fake.held_polls = 100;
	threads_run(N, one_late, 0, NULL);
	ck_assert_int_eq(nccl_fake.ndestroy, N);
}

/* ranks that do not release their communicators, or do so much later */
TEST(nccl, finalizing_has_a_time_limit)
{
	nccl_fake.stall = "ncclCommFinalize";
	timeout_ms = 3000;
	threads_run(N, one, 0, NULL);
	ck_assert_int_eq(nccl_fake.nabort, N);
	ck_assert_int_eq(nccl_fake.ndestroy, 0);
}

static int gives_up(struct thread_rank *r)
{
	struct te_stream *s = te_ctx_stream(r->ctx);
	void *p;

	pretend(r);
	STEP(te_mem_alloc(s, COUNT * sizeof(float), &p));
	STEP(by_nccl(r, p, TE_DTYPE_FP32, TE_COMM_SUM));
	STEP(te_mem_free(s, p));
	te_comm_abort(r->comm, "no more");
	return te_comm_error(r->comm);
}

/* it does not wait for other ranks, which may have ended */
TEST(nccl, a_failed_communicator_aborts_nccl)
{
	threads_run(N, gives_up, -TE_EABORT, "no more");
	ck_assert_int_eq(nccl_fake.nabort, N);
	ck_assert_int_eq(nccl_fake.ndestroy, 0);
}

TEST(nccl, multicast_of_nccl_must_be_off)
{
	unsetenv("NCCL_NVLS_ENABLE");
	threads_run(N, one, -EOPNOTSUPP, "NCCL_NVLS_ENABLE is not 0 in the environment");
	ck_assert_int_eq(nccl_fake.nversion + nccl_fake.ninit, 0);
}

/* part d of x is from + 10 * to of each rank; the next rank gets the first one's parts */
static int messages(struct thread_rank *r)
{
	struct te_comm_call_opts o = TE_COMM_CALL_OPTS_INIT;
	struct te_stream *s = te_ctx_stream(r->ctx);
	const int next = (r->rank + 1) % N, before = (r->rank + N - 1) % N;
	uint16_t x[2 * N], y[2 * N];
	const int64_t n[N] = { 2, 2, 2 };
	void *in, *out;

	pretend(r);
	o.algorithm = TE_COMM_NCCL;
	STEP(te_mem_alloc(s, sizeof(x), &in));
	STEP(te_mem_alloc(s, sizeof(x), &out));
	for (int i = 0; i < 2 * N; i++)
		x[i] = (uint16_t)(r->rank + 10 * (i / 2) + 100 * (i % 2));
	STEP(te_copy(s, in, x, sizeof(x)));
	STEP(te_stream_sync(s));
	if (which)
		STEP(te_comm_alltoallv(r->comm, s, in, n, NULL, out, n, NULL, TE_DTYPE_BF16, &o));
	else
		STEP(te_comm_alltoall(r->comm, s, in, out, 2, TE_DTYPE_BF16, &o));
	STEP(te_comm_sendrecv(r->comm, s, out, 2 * N, next, in, 2 * N, before, TE_DTYPE_BF16, &o));
	HOLDS(nccl_fake.stream != NULL);
	STEP(te_copy(s, y, in, sizeof(y)));
	STEP(te_stream_sync(s));
	for (int i = 0; i < 2 * N; i++)
		HOLDS(y[i] == i / 2 + 10 * before + 100 * (i % 2));
	HOLDS(te_comm_gather(r->comm, s, in, out, 1, TE_DTYPE_BF16, 0, &o) == -EOPNOTSUPP);
	STEP(te_comm_group_begin(r->comm));
	HOLDS(te_comm_sendrecv(r->comm, s, in, 1, next, out, 1, before, TE_DTYPE_BF16, &o) ==
	      -EOPNOTSUPP);
	HOLDS(te_comm_group_end(r->comm) == -EOPNOTSUPP);
	STEP(te_mem_free(s, in));
	STEP(te_mem_free(s, out));
	STEP(te_comm_barrier(r->comm, s));
	return te_stream_sync(s);
}

TEST_EACH(nccl, messages_are_those_of_nccl, 2)
{
	which = _i;
	threads_run(N, messages, 0, NULL);
	ck_assert_int_eq(nccl_fake.ngroup, 2 * N);
}

static const char *const message_calls[] = {
	"ncclGroupStart", "ncclSend", "ncclRecv", "ncclGroupEnd",
};

static int failing_messages(struct thread_rank *r)
{
	STEP(one(r));
	STEP(te_comm_barrier(r->comm, te_ctx_stream(r->ctx)));
	STEP(te_stream_sync(te_ctx_stream(r->ctx)));
	nccl_fake.fail = message_calls[which];
	return messages(r);
}

TEST_EACH(nccl, a_failed_message_ends_the_communicator, TT_LEN(message_calls))
{
	which = _i;
	threads_run(N, failing_messages, -TE_EPEER, _i ? "invalid usage: of a communicator" :
						 "NCCL: ncclGroupStart: invalid usage");
	ck_assert_int_eq(nccl_fake.nabort, N);
}

TT_SUITE("comm/nccl", TT_NEED_NOTHING)
{
	threads_pool_nbytes = 1 << 20;
	setenv("TE_COMM_PACKETS", "64K", 1);
}
