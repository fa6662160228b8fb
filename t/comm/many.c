/*
 * t/comm/many.c - more ranks on one host than GPUs map each other's memory: processes, most of
 * which wait for a processor, compare random operations with loops over all inputs.
 */
#include "config.h"

#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#include <te/collective.h>
#include <te/errno.h>

#include "kernels/comm/ref.h"
#include "libtecomm/collective/comm.h"
#include "libtecore/base/private.h"
#include "nodes_lib.h"
#include "threads.h"

#define MOST 600 /* elements of a rank */
#define POOL ((uint64_t)2 * RANKS_MAX * MOST * 4 + 4096)

static uint64_t seed;

/* ---- random operations ---- */

enum what { ALLREDUCE, SCATTERED, GATHERED, BROADCAST, RING, ALLTOALL, GROUP, TO_ROOT, FROM_ROOT,
	    REDUCED, BARRIER, NWHATS };

struct op {
	enum what what;
	enum te_comm_algorithm algorithm;
	enum te_comm_op op;
	int floats, symmetric, root, shift;
	int64_t count;
	uint64_t key;
};

/* a communicator's arrays, with room for MOST elements of each rank */
struct arrays {
	void *heap[2], *plain[2];
	uint32_t *in, *got, *want;
};

static struct op op_draw(uint64_t *s, int n, int what)
{
	static const enum te_comm_algorithm all[] = { TE_COMM_AUTO, TE_COMM_LL, TE_COMM_STAGED,
						      TE_COMM_ZERO_COPY, TE_COMM_ONE_SHOT,
						      TE_COMM_TWO_SHOT };
	struct op o = {
		.what = (enum what)what,
		.op = threads_draw(s, 2) ? TE_COMM_SUM : TE_COMM_MAX,
		.floats = (int)threads_draw(s, 2),
		.symmetric = (int)threads_draw(s, 2),
		.root = (int)threads_draw(s, (uint64_t)n),
		.shift = 1 + (int)threads_draw(s, (uint64_t)n - 1),
		.count = 1 + (int64_t)threads_draw(s, threads_draw(s, 2) ? 20 : MOST),
		.key = te__splitmix64(s),
	};

	o.algorithm = all[threads_draw(s, o.what == ALLREDUCE && o.floats ? 6 : 4)];
	if (o.what > BROADCAST || (o.algorithm == TE_COMM_ZERO_COPY && !o.symmetric))
		o.algorithm = TE_COMM_AUTO;
	return o;
}

/* element i of a rank's input: an integer, or a float in [-1, 1) with all its bits in use */
static uint32_t element(const struct op *o, int rank, int64_t i)
{
	uint64_t x = o->key + (uint64_t)rank * 0x10001 + (uint64_t)i * 0x9e3779b97f4a7c15u;
	const uint64_t v = te__splitmix64(&x);
	const float f = (float)(int32_t)v / 2147483648.0f;
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	return o->floats ? bits : (uint32_t)v;
}

static float as_float(uint32_t bits)
{
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}

static uint32_t fold(const struct op *o, uint32_t a, uint32_t b)
{
	const float sum = as_float(a) + as_float(b);
	uint32_t bits;

	if (o->op == TE_COMM_MAX)
		return (o->floats ? as_float(b) > as_float(a) : (int32_t)b > (int32_t)a) ? b : a;
	memcpy(&bits, &sum, sizeof(bits));
	return o->floats ? bits : a + b;
}

/* element i of the reduction over n ranks, in their order */
static uint32_t reduced(const struct op *o, int n, int64_t i)
{
	uint32_t v = element(o, 0, i);

	for (int r = 1; r < n; r++)
		v = fold(o, v, element(o, r, i));
	return v;
}

/* elements of an array of a rank: the larger ones have a part for each */
static int64_t length(const struct op *o, int n, int is_in)
{
	const int large = o->what == ALLTOALL || o->what == GROUP ||
			  (is_in ? o->what == SCATTERED || o->what == FROM_ROOT :
				   o->what == GATHERED || o->what == TO_ROOT);

	return o->count * (large ? n : 1);
}

/* 0: the rank has no output */
static int expect(const struct op *o, int n, int me, uint32_t *want)
{
	const int from = (me + n - o->shift) % n;

	for (int64_t i = 0; i < length(o, n, 0); i++) {
		const int r = (int)(i / o->count);
		const int64_t k = i % o->count;

		switch (o->what) {
		case ALLREDUCE:
		case REDUCED:
			want[i] = reduced(o, n, i);
			break;
		case SCATTERED:
			want[i] = reduced(o, n, me * o->count + i);
			break;
		case BROADCAST:
			want[i] = element(o, o->root, i);
			break;
		case RING:
			want[i] = element(o, from, i);
			break;
		case ALLTOALL:
		case GROUP:
			want[i] = element(o, r, me * o->count + k);
			break;
		case FROM_ROOT:
			want[i] = element(o, o->root, me * o->count + i);
			break;
		default:
			want[i] = element(o, r, k);
		}
	}
	return o->what != BARRIER && (me == o->root || (o->what != TO_ROOT && o->what != REDUCED));
}

/* an all-to-all of messages; each rank begins with another one */
static int grouped(struct joined *j, const struct op *o, const char *in, char *out)
{
	const int n = te_comm_nranks(j->comm), me = te_comm_rank(j->comm);

	STEP(te_comm_group_begin(j->comm));
	for (int i = 0; i < n; i++) {
		const int r = (me * 3 + i) % n;
		const size_t at = (size_t)(r * o->count) * 4;

		STEP(te_comm_send(j->comm, j->s, in + at, o->count, TE_DTYPE_INT32, r, NULL));
		STEP(te_comm_recv(j->comm, j->s, out + at, o->count, TE_DTYPE_INT32, r, NULL));
	}
	return te_comm_group_end(j->comm);
}

static int call(struct joined *j, const struct op *o, void *in, void *out)
{
	const int n = te_comm_nranks(j->comm), me = te_comm_rank(j->comm);
	const enum te_dtype t = o->floats ? TE_DTYPE_FP32 : TE_DTYPE_INT32;
	struct te_comm_call_opts how = TE_COMM_CALL_OPTS_INIT;

	how.algorithm = o->algorithm;
	switch (o->what) {
	case ALLREDUCE:
		return te_comm_allreduce(j->comm, j->s, in, out, o->count, t, o->op, &how);
	case SCATTERED:
		return te_comm_reduce_scatter(j->comm, j->s, in, out, o->count, t, o->op, &how);
	case GATHERED:
		return te_comm_all_gather(j->comm, j->s, in, out, o->count, t, &how);
	case BROADCAST:
		STEP(te_copy(j->s, out, in, (size_t)o->count * 4));
		return te_comm_broadcast(j->comm, j->s, out, o->count, t, o->root, &how);
	case RING:
		return te_comm_sendrecv(j->comm, j->s, in, o->count, (me + o->shift) % n, out,
					o->count, (me + n - o->shift) % n, t, NULL);
	case ALLTOALL:
		return te_comm_alltoall(j->comm, j->s, in, out, o->count, t, NULL);
	case GROUP:
		return grouped(j, o, in, out);
	case TO_ROOT:
		return te_comm_gather(j->comm, j->s, in, out, o->count, t, o->root, NULL);
	case FROM_ROOT:
		return te_comm_scatter(j->comm, j->s, in, out, o->count, t, o->root, NULL);
	case REDUCED:
		return te_comm_reduce(j->comm, j->s, in, out, o->count, t, o->op, o->root, NULL);
	default:
		return te_comm_barrier(j->comm, j->s);
	}
}

static int check(struct joined *j, const struct op *o, struct arrays *a)
{
	const int n = te_comm_nranks(j->comm), me = te_comm_rank(j->comm);
	void *const *const at = o->symmetric ? a->heap : a->plain;
	const int64_t nin = length(o, n, 1), nout = length(o, n, 0);

	for (int64_t i = 0; i < nin; i++)
		a->in[i] = element(o, me, i);
	STEP(te_copy(j->s, at[0], a->in, (size_t)nin * 4));
	STEP(call(j, o, at[0], at[1]));
	STEP(te_copy(j->s, a->got, at[1], (size_t)nout * 4));
	STEP(te_stream_sync(j->s));
	STEP(te_comm_error(j->comm));
	if (expect(o, n, me, a->want) && memcmp(a->got, a->want, (size_t)nout * 4))
		return te_fail(-EPROTO, "rank %d of %d: operation %d by algorithm %d, %lld "
			       "elements (TT_SEED=%llu)", me, n, (int)o->what, (int)o->algorithm,
			       (long long)o->count, (unsigned long long)tt_seed());
	return 0;
}

static int operations(struct joined *j, uint64_t s, int repeats)
{
	const int n = te_comm_nranks(j->comm);
	const size_t nbytes = (size_t)n * MOST * 4;
	struct arrays a = { .in = te__malloc(nbytes), .got = te__malloc(nbytes),
			    .want = te__malloc(nbytes) };
	int r = 0;

	for (int i = 0; i < 2 && !r; i++) {
		r = te_comm_alloc(j->comm, nbytes, &a.heap[i]);
		if (!r)
			r = te_mem_alloc(j->s, nbytes, &a.plain[i]);
	}
	for (int i = 0; i < repeats * NWHATS && !r && n > 1; i++) {
		const struct op o = op_draw(&s, n, i % NWHATS);

		r = check(j, &o, &a);
	}
	for (int i = 0; i < 2; i++) {
		if (a.heap[i])
			te_comm_free(j->comm, a.heap[i]);
		if (a.plain[i])
			te_mem_free(j->s, a.plain[i]);
	}
	te__free(a.in);
	te__free(a.got);
	te__free(a.want);
	return r;
}

static int join(int rank, struct joined *j)
{
	struct te_comm_opts o = ranks_opts(rank);

	signal(SIGALRM, SIG_DFL); /* Check has a handler that kills all processes */
	alarm(110);
	setenv("TE_COMM_PACKETS", "64k", 1);
	nodes_init(j, rank, 0, 1);
	o.timeout_ms = 60000;
	o.pool_nbytes = POOL;
	return nodes_create(j, "host", &o);
}

static int operating_rank(int rank, void *arg)
{
	struct joined j;
	int r = join(rank, &j);

	return nodes_leave(&j, r ? r : operations(&j, seed, TT_FEWER(4)));
}

static const int sizes[] = { 9, 16, 32 };

static void setup(void);
/* forked without the threads of a context */
CASE(many, "comm", .setup = setup);

TEST_EACH(many, all_operations_have_the_bits_of_a_loop, TT_LEN(sizes))
{
	struct ranks_result res[RANKS_MAX];

	ranks_meet_run(MEET_DIR, sizes[_i], operating_rank, NULL, res);
	ranks_ok(sizes[_i], res);
}

/* ---- groups ---- */

/* 11 ranks, and 5 that are in no order */
static int split_rank(int rank, void *arg)
{
	const int few = rank % 3 == 1;
	struct te_comm_opts o = TE_COMM_OPTS_INIT;
	struct te_comm *all, *group = NULL;
	struct joined j;
	int r = join(rank, &j);

	all = j.comm;
	o.pool_nbytes = POOL;
	if (!r)
		r = te_comm_split(all, few, few ? -rank : rank, &o, &group);
	if (!r) {
		j.comm = group;
		if (te_comm_nranks(group) != (few ? 5 : 11))
			r = te_fail(-EPROTO, "%d ranks", te_comm_nranks(group));
	}
	if (!r)
		r = operations(&j, seed + (uint64_t)few, 1);
	j.comm = all;
	if (!r)
		r = operations(&j, seed, 1);
	te_comm_unref(group);
	return nodes_leave(&j, r);
}

TEST(many, a_group_of_many_ranks_is_one_of_its_own)
{
	struct ranks_result res[RANKS_MAX];

	ranks_meet_run(MEET_DIR, 16, split_rank, NULL, res);
	ranks_ok(16, res);
}

/* ---- ranks that differ, wait or are lost ---- */

static struct {
	_Atomic int waited;
} *shared;

static int broadcast_from(struct joined *j, int root)
{
	void *p;
	int r = te_mem_alloc(j->s, 400, &p);

	if (!r)
		r = te_comm_broadcast(j->comm, j->s, p, 100, TE_DTYPE_FP32, root, NULL);
	if (!r)
		r = te_stream_sync(j->s);
	return r ? r : te_comm_error(j->comm);
}

/* roots whose low bits are equal */
static int differing_rank(int rank, void *arg)
{
	struct joined j;
	int r = join(rank, &j);

	return nodes_leave(&j, r ? r : broadcast_from(&j, rank == 5 ? 19 : 3));
}

TEST(many, roots_are_compared)
{
	struct ranks_result res[RANKS_MAX];

	ranks_meet_run(MEET_DIR, 20, differing_rank, NULL, res);
	for (int i = 0; i < 20; i++) {
		ranks_failed(&res[i], -TE_EMISMATCH, "a broadcast of 100 fp32 by ", 60000);
		ranks_failed(&res[i], -TE_EMISMATCH, " from rank 3", 60000);
		ranks_failed(&res[i], -TE_EMISMATCH, " from rank 19", 60000);
	}
}

static int missing_rank(int rank, void *arg)
{
	struct joined j;
	int r = join(rank, &j);

	if (!r && rank == 17) {
		ranks_await(&shared->waited, 19);
		r = te_comm_error(j.comm);
	} else if (!r) {
		j.comm->coll.deadline_ns = 500000000;
		r = broadcast_from(&j, 2);
		shared->waited++;
	}
	return nodes_leave(&j, r);
}

TEST(many, a_rank_that_does_not_call_is_named)
{
	struct ranks_result res[RANKS_MAX];

	ranks_meet_run(MEET_DIR, 20, missing_rank, NULL, res);
	for (int i = 0; i < 20; i++)
		ranks_failed(&res[i], -ETIMEDOUT,
			     strstr(res[i].text, ", 17") ? ", and neither rank " : "rank 17",
			     60000);
}

static int lost_rank(int rank, void *arg)
{
	struct joined j;
	int r = join(rank, &j);

	if (!r && rank == 14)
		raise(SIGKILL);
	for (int i = 0; i < 1000 && !r; i++)
		r = broadcast_from(&j, i % 16);
	return nodes_leave(&j, r);
}

TEST(many, a_rank_that_is_killed_ends_all_waits)
{
	struct ranks_result res[RANKS_MAX];

	ranks_meet_run(MEET_DIR, 16, lost_rank, NULL, res);
	ck_assert_int_eq(res[14].signal, SIGKILL);
	for (int i = 0; i < 16; i++)
		if (i != 14)
			ranks_failed(&res[i], -TE_EPEER, "rank 14 (", 60000);
}

static _Atomic uint32_t *bell_of(struct joined *j, int rank)
{
	char *region = te__pool_packets(j->comm->pool, rank);

	return (_Atomic uint32_t *)(void *)(region + TE_K_COMM_BELL_AT);
}

/* rank 0 comes after all others have asked to be woken, on a machine of fewer processors */
static int waiting_rank(int rank, void *arg)
{
	struct joined j;
	int r = join(rank, &j), ms = 0;

	for (int i = 1; i < 10 && !r && !rank; i++) {
		_Atomic uint32_t *bell = bell_of(&j, i);
		uint32_t x = *bell;

		if (x & 1)
			atomic_compare_exchange_strong(bell, &x, x + 1);
	}
	for (int i = 1; i < 10 && !r && !rank; i++)
		while (!(*bell_of(&j, i) & 1) && !r) {
			if (ms++ > 30000)
				r = te_fail(-ETIMEDOUT, "rank %d does not sleep", i);
			usleep(1000);
		}
	if (!r)
		r = te_comm_barrier(j.comm, j.s);
	if (!r)
		r = te_stream_sync(j.s);
	return nodes_leave(&j, r);
}

/* more ranks than processors, or as many */
TEST_EACH(many, ranks_that_wait_leave_the_processor_to_others, 2)
{
	struct ranks_result res[RANKS_MAX];

	te__hc_nprocessors = 9 + _i;
	ranks_meet_run(MEET_DIR, 10, waiting_rank, NULL, res);
	ranks_ok(10, res);
}

static int refused_rank(int rank, void *arg)
{
	struct joined j;

	/* join() has a barrier */
	return nodes_leave(&j, join(rank, &j));
}

TEST(many, more_ranks_than_supported_are_refused)
{
	struct ranks_result res[RANKS_MAX];

	ranks_meet_run(MEET_DIR, 33, refused_rank, NULL, res);
	for (int i = 0; i < 33; i++)
		ranks_failed(&res[i], -EOPNOTSUPP, "33 ranks of one node, at most 32 are supported "
			     "by backend host", 60000);
}

static void setup(void)
{
	shared = ranks_shared(sizeof(*shared));
	seed = tt_seed();
}

TT_MAIN("comm/many", TT_NEED_NOTHING)
