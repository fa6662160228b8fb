/*
 * t/comm/verbs_comm.c - cases of t/comm/verbs: communicators whose nodes are connected by devices
 * of the test. They measure, and recover.
 */
#include "config.h"

#include <pthread.h>
#include <unistd.h>

#include <te/collective.h>

#include "libtecomm/collective/comm.h"
#include "libtecomm/collective/nodes/rail.h"
#include "libtecore/tensor/ctx.h"
#include "threads.h"
#include "verbs_lib.h"

/* ---- te_transport_measure ---- */

static int measure(struct thread_rank *r)
{
	double us[8];

	for (int depth = 0; depth < 8; depth += 7) {
		memset(us, 0xff, sizeof(us));
		STEP(te_transport_measure(r->comm, "verbs", 60001, depth, 7, us));
		for (int i = 0; i < 7; i++)
			HOLDS(r->rank < 2 ? us[i] > 0 : us[i] == 0);
		HOLDS(us[7] != us[7]); /* not written: a NaN */
	}
	STEP(te_transport_measure(r->comm, "verbs", 0, 64, 2, us));
	HOLDS(te_transport_measure(r->comm, "carrier", 1, 0, 1, us) == -EINVAL);
	HOLDS(te_transport_measure(r->comm, "verbs", 1, 65, 1, us) == -EINVAL);
	HOLDS(te_transport_measure(r->comm, "verbs", 1, -1, 1, us) == -EINVAL);
	HOLDS(te_transport_measure(r->comm, "verbs", 1, 0, 0, us) == -EINVAL);
	HOLDS(te_transport_measure(r->comm, "verbs", 1, 0, 1, NULL) == -EINVAL);
	return 0;
}

CASE(measure, "host");

TEST_EACH(measure, messages_of_a_communicator_are_timed, 4, .from = 2)
{
	te__verbs_replace(&verbs_fake_lib);
	threads_run(_i, measure, 0, NULL);
	ck_assert_int_eq(verbs_fake.nlive, 0);
	ck_assert_int_eq(verbs_fake.nmisuse, 0);
}

static int measure_without(struct thread_rank *r)
{
	double us = -1;
	const int code = te_transport_measure(r->comm, "verbs", 1000, 0, 1, &us);

	HOLDS(us == -1);
	return code;
}

TEST(measure, ranks_without_devices_are_told)
{
	verbs_fake.none = 1;
	te__verbs_replace(&verbs_fake_lib);
	threads_run(2, measure_without, -ENODEV, "there is no RDMA device");
}

/* ---- recovery of a communicator ---- */

#define SUM 3000 /* floats */

static int direct; /* links are, of all ranks */
static int cut_off; /* the last rank is, for a while; else it releases its communicator */
static pthread_barrier_t reduced;

static void begin_on_a_node(int rank)
{
	verbs_fake_rank = rank;
	te__boot_node_name = rank < 2 ? "a" : "b";
}

static float value(int who, int64_t i)
{
	return (float)((int64_t)(tt_seed() % 1000003 + (uint64_t)who * 7919) * (i + 1) % 8191) /
	       64;
}

static int sum(struct thread_rank *r, int who, const int32_t *was)
{
	struct te_stream *s = te_ctx_stream(r->ctx);
	float x[SUM], want;
	void *p;

	STEP(te_mem_alloc(s, sizeof(x), &p));
	for (int64_t i = 0; i < SUM; i++)
		x[i] = value(who, i);
	STEP(te_copy(s, p, x, sizeof(x)));
	STEP(te_stream_sync(s));
	STEP(te_comm_allreduce(r->comm, s, p, p, SUM, TE_DTYPE_FP32, TE_COMM_SUM, NULL));
	tt_poison(x, sizeof(x));
	STEP(te_copy(s, x, p, sizeof(x)));
	STEP(te_stream_sync(s));
	STEP(te_mem_free(s, p));
	STEP(te_comm_error(r->comm));
	for (int64_t i = 0; i < SUM; i++) {
		want = value(was[0], i);
		for (int k = 1; k < te_comm_nranks(r->comm); k++)
			want += value(was[k], i);
		HOLDS(x[i] == want);
	}
	return 0;
}

static int fail_and_recover(struct thread_rank *r)
{
	static const int32_t all[] = { 0, 1, 2, 3 };
	const int last = r->rank == 3, n = cut_off ? 4 : 3;
	struct te_comm_info info = TE_COMM_INFO_INIT;
	struct te_comm *next;
	int32_t was[4];
	int e;

	STEP(te_comm_info(r->comm, &info));
	HOLDS(!strcmp(info.transport, "verbs") && info.nnodes == 2);
	HOLDS(r->comm->coll.nodes->link->direct == direct);
	e = sum(r, r->rank, all);
	pthread_barrier_wait(&reduced);
	if (last && !cut_off) {
		r->comm = te_comm_unref(r->comm);
		return e;
	}
	if (last)
		verbs_fake.cut = 8;
	while (!e)
		e = sum(r, r->rank, all);
	HOLDS(e == -TE_EPEER || e == -TE_EABORT);
	verbs_fake.cut = 0;
	STEP(te_comm_recover(r->comm, NULL, was, &next));
	te_comm_unref(r->comm);
	r->comm = next;
	STEP(te_comm_info(next, &info));
	HOLDS(!strcmp(info.transport, "verbs") && info.nnodes == 2 && info.nranks == n);
	HOLDS(!memcmp(was, all, (size_t)n * sizeof(*was)));
	for (int k = 0; k < 3; k++)
		STEP(sum(r, r->rank, was));
	return 0;
}

/* copies of an operation that failed read memory that the other rank still writes */
CASE(recover, "host overlap");

/* _i & 1: a rank is cut off; _i / 2: sums by the host, by devices, by devices without GPUDirect */
TEST_EACH(recover, ranks_recover, 6)
{
	setenv("TE_COMM_ALGO", "chain", 1);
	setenv("TE_COMM_SUMS", _i < 2 ? "host" : "device", 1);
	setenv("TE_COMM_GPUDIRECT", _i < 4 ? "on" : "off", 1);
	direct = _i / 2 == 1;
	setenv("TE_COMM_IB_TIMEOUT", "11", 1);
	setenv("TE_COMM_STAGE", "256K", 1);
	te__verbs_replace(&verbs_fake_lib);
	threads_begin = begin_on_a_node;
	cut_off = _i & 1;
	pthread_barrier_init(&reduced, NULL, 4);
	threads_run(4, fail_and_recover, 0, NULL);
	ck_assert_int_eq(verbs_fake.nlive, 0);
	ck_assert_int_eq(verbs_fake.nmisuse, 0);
}

/* ---- memory and work of devices ---- */

static int alternate; /* the ranks of two nodes do */

static void begin_on_alternate_nodes(int rank)
{
	verbs_fake_rank = rank;
	te__boot_node_name = rank & 1 ? "b" : "a";
}

static int look_at_memory(struct thread_rank *r)
{
	const struct te__nodes *n = r->comm->coll.nodes;
	const uint64_t packets =
		(uint64_t)te_k_comm_region_nbytes(r->comm->coll.terms.buffer_nbytes);
	const uint64_t taken = te__pool_stride(n->pool) - threads_pool_nbytes - packets;
	const uint64_t device = te__nodes_device(n->boot, n->piece);

	HOLDS(alternate ? taken < 64 << 10 : taken >= device);
	return 0;
}

static void add_by_devices(void)
{
	setenv("TE_COMM_SUMS", "device", 1);
	setenv("TE_COMM_STAGE", "256K", 1);
	te__verbs_replace(&verbs_fake_lib);
	threads_begin = begin_on_a_node;
}

/* _i: nodes whose ranks alternate have no chains */
TEST_EACH(measure, memory_of_devices_is_taken_for_chains_only, 2)
{
	add_by_devices();
	alternate = _i;
	if (alternate)
		threads_begin = begin_on_alternate_nodes;
	threads_run(4, look_at_memory, 0, NULL);
}

static _Atomic int nflushes[4];

static int count_flush(void *stream)
{
	nflushes[verbs_fake_rank]++;
	return 0;
}

/* an array of one piece, of which each rail has a part */
static int add_once(struct thread_rank *r)
{
	static const int32_t all[] = { 0, 1, 2, 3 };
	const struct te__backend_ops *ops = r->ctx->ops;
	struct te__backend_ops counting = *ops;
	int e;

	HOLDS(r->comm->coll.nodes->link->direct);
	counting.adapter_flush = count_flush;
	r->ctx->ops = &counting;
	e = sum(r, r->rank, all);
	r->ctx->ops = ops;
	return e;
}

/* sums of the node before, and results of the next one; not what the device has written itself */
TEST(measure, what_adapters_have_written_is_flushed_once)
{
	setenv("TE_COMM_ALGO", "chain", 1);
	add_by_devices();
	threads_run(4, add_once, 0, NULL);
	for (int i = 0; i < 4; i++)
		ck_assert_int_eq(nflushes[i], 1);
}

#define PIECES 8

static const struct te__backend_ops *real;

static void await_abort(void *arg)
{
	struct thread_rank *r = *(struct thread_rank **)arg;

	for (int k = 0; k < 20000 && !te__pool_aborted(r->comm->pool); k++)
		usleep(1000);
}

static _Thread_local struct thread_rank *slow;

static int launch_late(void *stream, const struct te__launch *l)
{
	const int r = l->id == TE_K_COMM_FOLD && slow ?
			      real->host_call(stream, await_abort, &slow, sizeof(slow)) : 0;

	slow = NULL;
	return r ? r : real->launch(stream, l);
}

/* the device of rank 3 does nothing of the first piece */
static int add_late(struct thread_rank *r)
{
	const int64_t count = PIECES * te__device_each(r->comm->coll.nodes, 4);
	struct te_stream *s = te_ctx_stream(r->ctx);
	struct te__backend_ops late = *r->ctx->ops;
	int code;
	void *p;

	if (r->rank == 3) {
		real = r->ctx->ops;
		slow = r;
		late.launch = launch_late;
		r->ctx->ops = &late;
	}
	STEP(te_mem_alloc(s, (size_t)count * 4, &p));
	STEP(te_fill(s, p, 0, (size_t)count * 4));
	STEP(te_comm_allreduce(r->comm, s, p, p, count, TE_DTYPE_FP32, TE_COMM_SUM, NULL));
	STEP(te_stream_sync(s));
	STEP(te_mem_free(s, p));
	if (r->rank == 3)
		r->ctx->ops = real;
	code = te_comm_error(r->comm);
	/* rank 2 has put in the next pieces, and rank 1 waits for a result of rank 3 */
	HOLDS(!strstr(te_error_detail(), "has not taken part"));
	return code;
}

TEST(measure, a_rank_that_waits_for_another_node_is_not_named)
{
	setenv("TE_COMM_ALGO", "chain", 1);
	add_by_devices();
	threads_timeout_ms = (int)TT_SLOWER(800);
	threads_run(4, add_late, -ETIMEDOUT, "rank 3 (");
}
