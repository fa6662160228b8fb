/*
 * t/comm/nodes.c - collective operations of ranks on several nodes, which TE_COMM_NODE simulates:
 * the same bits as those of one node, recordings, and what becomes of them if a rank is at fault.
 * Ranks on a GPU share one, or have one each; their results are those of one node on the host.
 */
#include "config.h"

#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#include <te/capture.h>
#include <te/collective.h>
#include <te/comm.h>

#include "libtecomm/collective/comm.h"
#include "libtecomm/collective/nodes/nodes.h"
#include "libtecomm/meet/boot.h"
#include "libtecore/base/private.h"
#include "libtecore/base/splitmix64.h"
#include "nodes_lib.h"
#include "ranks.h"
#include "threads.h"
#include "tt_ctx.h"

#define OPS TT_FEWER(16)
#define COUNT_MOST 20000
#define SOON 15000.0

enum fault { KILLED, STOPPED, ABORTED, LATE, OTHER_COUNT, OTHER_OP };

/* what the processes of a test share */
static struct plan {
	int n;
	const char *nodes; /* a letter for each rank; NULL: one node */
	const char *algorithm, *stage, *sums, *sums_at, *heartbeat_ms, *transport;
	int timeout_ms;
	uint64_t seed;
	uint64_t hash[2][RANKS_MAX][64]; /* of results: on one node, on several */
	enum fault fault;
	int at; /* the rank that has it */
	int no_tcp; /* 1: no transport can be used */
	_Atomic int nready, nleft; /* ranks; nleft: without the fault */
	_Atomic int64_t at_ns;
	double ms[RANKS_MAX];
	uint64_t nexchanges[RANKS_MAX];
	pid_t pid[RANKS_MAX];
} *plan;

static int on_gpu(void)
{
	return !strcmp(backend, "cuda");
}

static void setup(void)
{
	plan = ranks_shared(sizeof(*plan));
	plan->seed = tt_rand_u64();
	plan->timeout_ms = 20000;
}

/* ---- a rank ---- */

static int join(int rank, struct joined *j)
{
	struct te_comm_opts o = ranks_opts(rank);
	char name[2] = { plan->nodes ? plan->nodes[rank] : 0, 0 };

	nodes_init(j, rank, plan->seed, 1);
	setenv("TE_COMM_NODE", name, 1);
	setenv("TE_COMM_STAGE", plan->stage ? plan->stage : "512K", 1);
	setenv("TE_COMM_SUMS", plan->sums ? plan->sums : "auto", 1);
	if (rank == plan->at && plan->sums_at)
		setenv("TE_COMM_SUMS", plan->sums_at, 1);
	if (plan->algorithm)
		setenv("TE_COMM_ALGO", plan->algorithm, 1);
	if (plan->heartbeat_ms)
		setenv("TE_COMM_HEARTBEAT_MS", plan->heartbeat_ms, 1);
	o.timeout_ms = plan->timeout_ms;
	o.pool_nbytes = 1 << 20;
	plan->pid[rank] = getpid();
	/* kernels of ranks that share a GPU would wait for each other on one node */
	return nodes_create(j, plan->nodes ? backend : "host", &o);
}

/* ---- results ---- */

static uint64_t hash_of(const uint8_t *p, size_t n, uint64_t h)
{
	for (size_t i = 0; i < n; i++)
		h = (h ^ p[i]) * 0x100000001b3u;
	return h;
}

enum {
	ALLREDUCE,
	REDUCE_SCATTER,
	ALL_GATHER,
	BROADCAST,
	REDUCE,
	GATHER,
	SCATTER,
	BARRIER,
};

struct op {
	int what;
	int in_place;
	enum te_dtype dtype;
	enum te_comm_op op;
	int64_t count;
	int root;
};

static struct op op_of(int k)
{
	uint64_t x = plan->seed + (uint64_t)k * 77;
	struct op o;

	o.what = (int)(te__splitmix64(&x) % 15) / 2;
	o.in_place = te__splitmix64(&x) & 1;
	o.dtype = (enum te_dtype)(te__splitmix64(&x) % TE_DTYPE_E2M1);
	o.op = (enum te_comm_op)(te__splitmix64(&x) % 4);
	/* of the others few results depend on the order of a sum */
	if (k % 4 == 0) {
		o.what = k / 4 % 2;
		o.dtype = TE_DTYPE_FP32;
		o.op = TE_COMM_SUM;
	}
	o.count = 1 + (int64_t)(te__splitmix64(&x) % (k % 3 ? 200 : COUNT_MOST));
	if (o.what != ALLREDUCE && o.what != BROADCAST && o.what != REDUCE)
		o.count = 1 + o.count / plan->n;
	o.root = (int)(te__splitmix64(&x) % (uint64_t)plan->n);
	return o;
}

/* any bits, and mostly numbers whose sums depend on their order */
static void fill(const struct op *o, int k, int rank, uint8_t *p, int64_t n)
{
	uint64_t x = plan->seed ^ (uint64_t)(k * 31 + rank) * 0x9e3779b97f4a7c15u;
	const size_t es = te_dtype_nbytes(o->dtype);

	for (size_t i = 0; i < (size_t)n * es; i++) {
		const uint64_t v = te__splitmix64(&x);

		p[i] = (uint8_t)v;
		/* exponents near each other */
		if (es > 1 && i % es == es - 1 && v >> 60)
			p[i] = (uint8_t)((v & 0x80) | (o->dtype == TE_DTYPE_FP16 ? 0x3c : 0x3f));
	}
}

static int call(struct joined *j, const struct op *o, void *in, void *out)
{
	const int is_root = j->who == o->root;

	switch (o->what) {
	case ALLREDUCE:
		return te_comm_allreduce(j->comm, j->s, in, out, o->count, o->dtype, o->op, NULL);
	case REDUCE_SCATTER:
		return te_comm_reduce_scatter(j->comm, j->s, in, out, o->count, o->dtype, o->op,
					      NULL);
	case ALL_GATHER:
		return te_comm_all_gather(j->comm, j->s, in, out, o->count, o->dtype, NULL);
	case BROADCAST:
		return te_comm_broadcast(j->comm, j->s, out, o->count, o->dtype, o->root, NULL);
	case REDUCE:
		return te_comm_reduce(j->comm, j->s, in, is_root ? out : NULL, o->count, o->dtype,
				      o->op, o->root, NULL);
	case GATHER:
		return te_comm_gather(j->comm, j->s, in, is_root ? out : NULL, o->count, o->dtype,
				      o->root, NULL);
	case SCATTER:
		return te_comm_scatter(j->comm, j->s, is_root ? in : NULL, out, o->count, o->dtype,
				       o->root, NULL);
	default:
		return te_comm_barrier(j->comm, j->s);
	}
}

static int one(struct joined *j, int k, uint64_t *ret_hash)
{
	const struct op o = op_of(k);
	const int64_t es = (int64_t)te_dtype_nbytes(o.dtype);
	const int cuts = o.what == REDUCE_SCATTER || o.what == SCATTER;
	const int joins = o.what == ALL_GATHER || o.what == GATHER;
	const int no_out = o.what == BARRIER ||
			   ((o.what == REDUCE || o.what == GATHER) && j->who != o.root);
	const int64_t nin = (cuts ? plan->n : 1) * o.count * es;
	const int64_t nout = (joins ? plan->n : 1) * o.count * es;
	const int64_t most = (nin > nout ? nin : nout) + 64;
	uint8_t *data = malloc((size_t)most);
	char *p, *q, *in, *out;
	int r = te_mem_alloc(j->s, (size_t)most, (void **)&p);

	if (!r)
		r = te_mem_alloc(j->s, (size_t)most, (void **)&q);
	if (r) {
		free(data);
		return r;
	}
	in = p;
	out = q;
	if (o.in_place || o.what == BROADCAST) {
		in = joins ? q + j->who * nin : q;
		out = cuts ? q + j->who * nout : q;
	}
	tt_poison(data, (size_t)most);
	r = te_copy(j->s, p, data, (size_t)most);
	if (!r)
		r = te_copy(j->s, q, data, (size_t)most);
	if (!r)
		r = te_stream_sync(j->s);
	fill(&o, k, j->who, data, nin / es);
	if (!r)
		r = te_copy(j->s, in, data, (size_t)nin);
	if (!r)
		r = te_stream_sync(j->s);
	if (!r)
		r = call(j, &o, in, out);
	if (!r)
		r = te_copy(j->s, data, out, (size_t)nout);
	if (!r)
		r = te_stream_sync(j->s);
	if (!r)
		r = te_comm_error(j->comm);
	*ret_hash = no_out ? 1 : hash_of(data, (size_t)nout, 14695981039346656037u);
	/* what follows out is as it was */
	if (!r && !o.in_place && o.what != BROADCAST) {
		r = te_copy(j->s, data, out + nout, 64);
		if (!r)
			r = te_stream_sync(j->s);
		if (!r && !tt_is_poison(data, 64))
			r = te_fail(-EILSEQ, "operation %d wrote more than its output", k);
	}
	free(data);
	(void)te_mem_free(j->s, p);
	(void)te_mem_free(j->s, q);
	return r;
}

static int results_rank(int rank, void *arg)
{
	const int several = plan->nodes != NULL;
	struct te_comm_info i = TE_COMM_INFO_INIT;
	struct joined j;
	int r = join(rank, &j);

	if (!r)
		r = te_comm_info(j.comm, &i);
	if (!r && several != (i.nnodes > 1))
		r = te_fail(-EILSEQ, "%d nodes", i.nnodes);
	for (int k = 0; k < OPS && !r; k++)
		r = one(&j, k, &plan->hash[several][rank][k]);
	if (!r) /* its last messages may not have been received yet */
		r = te_comm_barrier(j.comm, j.s);
	if (!r)
		r = te_stream_sync(j.s);
	return nodes_leave(&j, r);
}

static void run(const char *nodes, ranks_fn *fn, struct ranks_result *res)
{
	plan->nodes = nodes;
	ranks_meet_run(MEET_DIR, plan->n, fn, NULL, res);
	/* the driver keeps descriptors, and the library its functions */
	for (int i = 0; i < plan->n && on_gpu(); i++)
		res[i].nleft_fd = res[i].nleft_alloc = 0;
}

static const struct {
	const char *nodes, *algorithm, *stage;
} layout[] = {
	{ "ab", "auto", "64K" },	{ "aabb", "chain", "300K" },
	{ "abcab", "exchange", "4M" },	{ "abab", "auto", "500K" },
	{ "abbc", "chain", "200K" },	{ "aaab", "chain", "1M" },
	{ "aabbbc", "auto", "1M" },	{ "abcde", "chain", "2M" },
};

/* of TE_COMM_SUMS; _i of a test: a layout with each of them */
static const char *const sums[] = { "host", "device" };

CASE(results, backend, .setup = setup);

/* a process takes a second for its context on a GPU */
TEST_EACH(results, results_are_those_of_one_node, on_gpu() ? 6 : 2 * (int)TT_LEN(layout),
	  .parts = on_gpu() ? 0 : 8)
{
	struct ranks_result res[RANKS_MAX];

	plan->n = (int)strlen(layout[_i / 2].nodes);
	plan->stage = layout[_i / 2].stage;
	plan->sums = sums[_i % 2];
	run(NULL, results_rank, res);
	ranks_ok(plan->n, res);
	plan->algorithm = layout[_i / 2].algorithm;
	run(layout[_i / 2].nodes, results_rank, res);
	ranks_ok(plan->n, res);
	for (int r = 0; r < plan->n; r++)
		for (int k = 0; k < OPS; k++) {
			const struct op o = op_of(k);

			ck_assert_msg(plan->hash[0][r][k] == plan->hash[1][r][k], "rank %d, "
				      "operation %d: kind %d, %s, op %d, count %lld, root %d", r, k,
				      o.what, te_dtype_name(o.dtype), (int)o.op,
				      (long long)o.count, o.root);
		}
}

/* element i of a rank in a round */
static float input(int rank, int round, int64_t i)
{
	uint64_t x = plan->seed + (uint64_t)(rank * 7919 + round * 31) * 1000003 + (uint64_t)i;

	return (float)((int64_t)te__splitmix64(&x) >> 40) * 0x1p-20f;
}

static int check_sum(const float *y, int round, int64_t count)
{
	for (int64_t i = 0; i < count; i++) {
		float want = input(0, round, i);

		for (int r = 1; r < plan->n; r++)
			want += input(r, round, i);
		if (y[i] != want)
			return te_fail(-EILSEQ, "round %d, element %lld: %g, not %g", round,
				       (long long)i, (double)y[i], (double)want);
	}
	return 0;
}

/* ---- with a norm ---- */

#define ROWS 7
#define COLS 96

/* the same results, y, of the first rows where a rank has its own ones of the residual only */
static int norm_sharded(int rank, const struct joined *j, int64_t rows, void *in,
			struct te_comm_norm_opts *o, const float *y)
{
	const int64_t each = rows / plan->n, more = rows % plan->n;
	const int64_t first = rank * each + (rank < more ? rank : more);
	const size_t nbytes = (size_t)(rows * COLS) * sizeof(float);
	float got[ROWS * COLS];
	int r;

	tt_poison(got, sizeof(got));
	for (int64_t i = first * COLS; i < (first + each + (rank < more)) * COLS; i++)
		got[i] = input(0, 1, i);
	o->flags = TE_COMM_NORM_SHARDED;
	r = te_copy(j->s, (void *)(uintptr_t)o->residual, got, sizeof(got));
	if (!r)
		r = te_comm_allreduce_norm(j->comm, j->s, in, rows, COLS, TE_DTYPE_FP32, o);
	if (!r)
		r = te_copy(j->s, got, o->y, nbytes);
	if (!r)
		r = te_stream_sync(j->s);
	return r || !memcmp(got, y, nbytes) ? r : te_fail(-EILSEQ, "a sharded residual");
}

/* sum, residual and norm in one call, of which a kernel does the last two */
static int norm_rank(int rank, void *arg)
{
	const int several = plan->nodes != NULL;
	struct te_comm_norm_opts o = TE_COMM_NORM_OPTS_INIT;
	struct te_comm_choice ch = TE_COMM_CHOICE_INIT;
	float x[ROWS * COLS], gamma[COLS];
	void *p = NULL, *g = NULL;
	char *out, *ws;
	struct joined j;
	int r = join(rank, &j);

	o.ws_nbytes = te_comm_norm_ws_nbytes(ROWS, COLS, TE_DTYPE_FP32);
	if (!r)
		r = te_mem_alloc(j.s, 4 * sizeof(x) + o.ws_nbytes, &p);
	if (!r)
		r = te_mem_alloc(j.s, sizeof(gamma), &g);
	if (r)
		return nodes_leave(&j, r);
	out = (char *)p + 2 * sizeof(x);
	ws = (char *)p + 3 * sizeof(x);
	o.ws = (void *)(((uintptr_t)ws + 255) & ~(uintptr_t)255);
	o.gamma = g;
	o.residual = (char *)p + sizeof(x);
	o.y = out;
	for (int64_t i = 0; i < COLS; i++)
		gamma[i] = input(0, 99, i);
	r = te_copy(j.s, g, gamma, sizeof(gamma));
	for (int k = 0; k < 2 && !r; k++) {
		for (int64_t i = 0; i < ROWS * COLS; i++)
			x[i] = input(k ? 0 : rank, k, i);
		r = te_copy(j.s, (char *)p + (size_t)k * sizeof(x), x, sizeof(x));
		if (!r)
			r = te_stream_sync(j.s);
	}
	if (!r)
		r = EXPLAIN(j.comm, &ch, .function = TE_COMM_CALL_ALLREDUCE_NORM, .in = p,
			    .rows = ROWS, .cols = COLS, .dtype = TE_DTYPE_FP32, .opts = &o);
	if (!r && several && (ch.fused || !strstr(ch.reason, "several nodes")))
		r = te_fail(-EILSEQ, "fused: %d: %s", ch.fused, ch.reason);
	if (!r)
		r = te_comm_allreduce_norm(j.comm, j.s, p, ROWS, COLS, TE_DTYPE_FP32, &o);
	tt_poison(x, sizeof(x));
	if (!r)
		r = te_copy(j.s, x, out, sizeof(x));
	if (!r)
		r = te_stream_sync(j.s);
	plan->hash[several][rank][0] = hash_of((uint8_t *)x, sizeof(x), 14695981039346656037u);
	for (int64_t rows = ROWS; rows >= ROWS - 1 && !r; rows--)
		r = norm_sharded(rank, &j, rows, p, &o, x);
	(void)te_mem_free(j.s, p);
	(void)te_mem_free(j.s, g);
	return nodes_leave(&j, r);
}

TEST_IF(results, norms_are_those_of_one_node, !on_gpu())
{
	struct ranks_result res[RANKS_MAX];

	plan->n = 3;
	run(NULL, norm_rank, res);
	ranks_ok(plan->n, res);
	run("aab", norm_rank, res);
	ranks_ok(plan->n, res);
	for (int r = 0; r < plan->n; r++)
		ck_assert_uint_eq(plan->hash[0][r][0], plan->hash[1][r][0]);
}

/* more than one node has, and than there are rows */
TEST_IF(results, norms_of_many_ranks, !on_gpu())
{
	struct ranks_result res[RANKS_MAX];

	plan->n = 10;
	run("aaaaabbbbb", norm_rank, res);
	ranks_ok(plan->n, res);
	for (int r = 1; r < plan->n; r++)
		ck_assert_uint_eq(plan->hash[1][r][0], plan->hash[1][0][0]);
}

/* ---- recordings ---- */

#define RECORDED 30000 /* floats: several pieces */

/* replays, and calls between them */
static int recorded_rank(int rank, void *arg)
{
	struct te_recording *rec = NULL;
	float *x = malloc(RECORDED * sizeof(*x));
	struct joined j;
	void *p = NULL;
	int r = join(rank, &j);

	if (!r)
		r = te_mem_alloc(j.s, RECORDED * sizeof(*x), &p);
	if (!r)
		r = te_capture_begin(j.s);
	if (!r)
		r = te_comm_allreduce(j.comm, j.s, p, p, RECORDED, TE_DTYPE_FP32, TE_COMM_SUM,
				      NULL);
	if (!r)
		r = te_capture_end(j.s, &rec);
	for (int round = 0; round < 6 && !r; round++) {
		for (int64_t i = 0; i < RECORDED; i++)
			x[i] = input(rank, round, i);
		r = te_copy(j.s, p, x, RECORDED * sizeof(*x));
		if (!r)
			r = te_stream_sync(j.s);
		tt_poison(x, RECORDED * sizeof(*x));
		if (!r && round % 3 == 2)
			r = te_comm_allreduce(j.comm, j.s, p, p, RECORDED, TE_DTYPE_FP32,
					      TE_COMM_SUM, NULL);
		else if (!r)
			r = te_recording_launch(rec, j.s);
		if (!r)
			r = te_copy(j.s, x, p, RECORDED * sizeof(*x));
		if (!r)
			r = te_stream_sync(j.s);
		if (!r)
			r = te_comm_error(j.comm);
		if (!r)
			r = check_sum(x, round, RECORDED);
	}
	te_recording_unref(rec);
	if (p)
		(void)te_mem_free(j.s, p);
	free(x);
	return nodes_leave(&j, r);
}

TEST_EACH(results, replays_are_calls, 3)
{
	struct ranks_result res[4];

	plan->n = 4;
	plan->stage = "600K";
	plan->algorithm = _i ? "chain" : "exchange";
	plan->sums = sums[_i / 2];
	run("aabb", recorded_rank, res);
	ranks_ok(4, res);
}

/* ---- failures ---- */

/* for joining too, on a machine with other work */
static int late_ms(void)
{
	return on_gpu() ? 6000 : 4000;
}

static const struct {
	enum fault fault;
	const char *nodes, *algorithm;
	int at;
	int code; /* of the other ranks */
	const char *text;
	double ms; /* from the fault on; 0: the time-out, late_ms(), and half of it */
} faults[] = {
	{ KILLED, "aabb", "chain", 3, -TE_EPEER, "rank 3 (host ", 3000 },
	{ KILLED, "aab", "chain", 1, -TE_EPEER, "rank 1 (host ", 3000 }, /* in no rail */
	{ KILLED, "abc", "exchange", 1, -TE_EPEER, "rank 1 (host ", 3000 },
	{ STOPPED, "aabb", "chain", 2, -ETIMEDOUT, "rank 2 (host ", 3000 },
	{ ABORTED, "aabb", "exchange", 1, -TE_EABORT, "enough of it", 3000 },
	{ LATE, "aabb", "chain", 3, -ETIMEDOUT, "rank 3 (host ", 0 },
	{ LATE, "aab", "exchange", 1, -ETIMEDOUT, "rank 1 (host ", 0 },
	{ LATE, "abc", "exchange", 2, -ETIMEDOUT, "rank 2 (host ", 0 },
	{ OTHER_COUNT, "ab", "exchange", 1, -TE_EMISMATCH, "of 78 fp32 by exchange", 3000 },
	{ OTHER_COUNT, "ab", "chain", 0, -TE_EMISMATCH, "of 78 fp32 by chain", 3000 },
	{ OTHER_OP, "aab", "chain", 1, -TE_EMISMATCH, "calls a maximum", 3000 },
	{ OTHER_OP, "aabb", "exchange", 3, -TE_EMISMATCH, "maximum of 77", 3000 },
};

static int small_sum(struct joined *j, void *p, int other_count, int other_op)
{
	float x[80];
	int r;

	for (int64_t i = 0; i < 77; i++)
		x[i] = input(j->who, 0, i);
	r = te_copy(j->s, p, x, sizeof(x));
	if (!r)
		r = te_stream_sync(j->s);
	if (!r)
		r = te_comm_allreduce(j->comm, j->s, p, p, 77 + other_count, TE_DTYPE_FP32,
				      other_op ? TE_COMM_MAX : TE_COMM_SUM, NULL);
	if (!r)
		r = te_copy(j->s, x, p, sizeof(x));
	if (!r)
		r = te_stream_sync(j->s);
	if (!r)
		r = te_comm_error(j->comm);
	return r || other_count || other_op ? r : check_sum(x, 0, 77);
}

/* the rank at fault; others end it if it has stopped */
static int at_fault(struct joined *j, void *p)
{
	plan->at_ns = te__boot_now();
	switch (plan->fault) {
	case KILLED:
		raise(SIGKILL);
		break;
	case STOPPED:
		raise(SIGSTOP);
		break;
	case ABORTED:
		te_comm_abort(j->comm, "enough of it");
		break;
	case LATE:
		while (plan->nleft)
			usleep(1000);
		return 0;
	default:
		return small_sum(j, p, plan->fault == OTHER_COUNT, plan->fault == OTHER_OP);
	}
	return small_sum(j, p, 0, 0);
}

static int fault_rank(int rank, void *arg)
{
	struct joined j;
	void *p = NULL;
	int r = join(rank, &j);

	if (!r)
		r = te_mem_alloc(j.s, 4096, &p);
	for (int k = 0; k < 3 && !r; k++)
		r = small_sum(&j, p, 0, 0);
	if (r)
		return nodes_leave(&j, r);
	/* all have their results before one is at fault */
	plan->nready++;
	ranks_await(&plan->nready, plan->n);
	if (rank == plan->at) {
		r = at_fault(&j, p);
	} else {
		r = small_sum(&j, p, 0, 0);
		plan->ms[rank] = (double)(te__boot_now() - plan->at_ns) * 1e-6;
		if (r && te_comm_barrier(j.comm, j.s) != r)
			r = te_fail(-EILSEQ, "a call after the failure: %s", te_error_detail());
		if (!--plan->nleft && plan->fault == STOPPED)
			kill(plan->pid[plan->at], SIGKILL);
	}
	(void)te_mem_free(j.s, p);
	return nodes_leave(&j, r);
}

CASE(failures, backend, .setup = setup);

/* on a GPU one of each kind: killed, stopped, late, another count */
TEST_EACH(failures, a_rank_at_fault_is_named, TT_LEN(faults), .parts = on_gpu() ? 0 : 4,
	  .step = on_gpu() ? 3 : 1)
{
	struct ranks_result res[RANKS_MAX];

	plan->n = (int)strlen(faults[_i].nodes);
	plan->fault = faults[_i].fault;
	plan->algorithm = faults[_i].algorithm;
	plan->at = faults[_i].at;
	plan->sums = sums[tt_rand_int(0, 1)];
	plan->nleft = plan->n - 1;
	plan->timeout_ms = faults[_i].ms ? 20000 : late_ms();
	plan->heartbeat_ms = plan->fault == STOPPED ? "2000" : "5000";
	run(faults[_i].nodes, fault_rank, res);
	for (int i = 0; i < plan->n; i++) {
		if (i == plan->at)
			continue;
		ranks_failed(&res[i], faults[_i].code, faults[_i].text, 60000);
		ck_assert_msg(plan->ms[i] <
				      TT_SLOWER(faults[_i].ms ? faults[_i].ms : late_ms() * 1.5),
			      "rank %d after %g ms: %s", i, plan->ms[i], res[i].text);
	}
}

/* ---- what cannot be ---- */

static int refused_rank(int rank, void *arg)
{
	struct te_comm_call_opts o = TE_COMM_CALL_OPTS_INIT;
	struct te_comm_choice ch = TE_COMM_CHOICE_INIT;
	struct joined j;
	void *p = NULL;
	int r = join(rank, &j);

	if (r)
		return nodes_leave(&j, r);
	r = te_mem_alloc(j.s, 4 << 20, &p);
	o.algorithm = TE_COMM_TWO_SHOT;
	if (!r && (te_comm_allreduce(j.comm, j.s, p, p, 9, TE_DTYPE_FP32, TE_COMM_SUM, &o) !=
			   -EOPNOTSUPP ||
		   !strstr(te_error_detail(), "twoshot is for ranks of one node, and there are 2")))
		r = te_fail(-EILSEQ, "twoshot: %s", te_error_detail());
	o.algorithm = TE_COMM_CHAIN;
	if (!r && (te_comm_allreduce(j.comm, j.s, p, p, 9, TE_DTYPE_INT32, TE_COMM_SUM, &o) !=
			   -EOPNOTSUPP ||
		   !strstr(te_error_detail(), "floating types only")))
		r = te_fail(-EILSEQ, "chain: %s", te_error_detail());
	if (!r)
		r = EXPLAIN(j.comm, &ch, .in = p, .out = p, .count = 1000, .dtype = TE_DTYPE_BF16);
	if (!r && (ch.algorithm != TE_COMM_EXCHANGE || strcmp(ch.name, "exchange") ||
		   ch.nsent != 2 * 2000 * (rank % 2 == 0) ||
		   strcmp(ch.reason, "2 nodes by tcp, at most 65536 bytes")))
		r = te_fail(-EILSEQ, "%s, %llu bytes: %s", ch.name, (unsigned long long)ch.nsent,
			    ch.reason);
	if (!r)
		r = EXPLAIN(j.comm, &ch, .in = p, .out = p, .count = 1 << 20,
			    .dtype = TE_DTYPE_BF16);
	/* each of two ranks of a node has half, sent as FP32 or as results */
	if (!r && (ch.algorithm != TE_COMM_CHAIN || ch.nsent < (rank < 2 ? 1 << 21 : 1 << 20) ||
		   ch.nsent > (rank < 2 ? 1 << 21 : 1 << 20) * 1.01))
		r = te_fail(-EILSEQ, "%s, %llu bytes: %s", ch.name, (unsigned long long)ch.nsent,
			    ch.reason);
	if (p)
		(void)te_mem_free(j.s, p);
	return nodes_leave(&j, r);
}

TEST(failures, what_is_of_one_node_is_refused)
{
	struct ranks_result res[4];

	plan->n = 4;
	plan->stage = "16M";
	run("aabb", refused_rank, res);
	ranks_ok(4, res);
}

static int transport_rank(int rank, void *arg)
{
	struct joined j;
	int r;

	if (rank == plan->at)
		setenv("TE_COMM_TRANSPORT", "tcp", 1);
	r = join(rank, &j);
	return nodes_leave(&j, r);
}

TEST_EACH(failures, transports_are_asked_for_by_name, on_gpu() ? 0 : 2)
{
	struct ranks_result res[3];

	plan->n = 3;
	plan->at = _i;
	run("abb", transport_rank, res);
	for (int i = 0; i < 3; i++)
		ranks_failed(&res[i], -TE_EMISMATCH,
			     _i ? "TE_COMM_TRANSPORT is tcp for rank 1 (" :
				  "TE_COMM_TRANSPORT is auto for rank 1 (", SOON);
}

static int join_rank(int rank, void *arg)
{
	struct joined j;
	const int r = join(rank, &j);

	return nodes_leave(&j, r);
}

static int counting_rank(int rank, void *arg)
{
	struct joined j;
	int r;

	setenv("TE_COMM_TRANSPORT", plan->transport, 1);
	setenv("TE_HOST_FABRIC", "on", 1);
	r = join(rank, &j);
	if (!r)
		plan->nexchanges[rank] = j.comm->boot->seq;
	return nodes_leave(&j, r);
}

/* the table of doc/transports.md */
TEST_EACH(failures, creation_takes_so_many_exchanges, on_gpu() ? 0 : 3)
{
	static const struct {
		const char *nodes, *transport;
		uint64_t n;
	} row[] = { { "aaa", "auto", 5 }, { "aab", "fabric", 7 }, { "aab", "tcp", 11 } };
	struct ranks_result res[3];

	plan->n = 3;
	plan->at = -1;
	plan->transport = row[_i].transport;
	run(row[_i].nodes, counting_rank, res);
	ranks_ok(3, res);
	for (int i = 0; i < 3; i++)
		ck_assert_uint_eq(plan->nexchanges[i], row[_i].n);
}

TEST_IF(failures, a_rank_with_other_sums_is_named, !on_gpu())
{
	struct ranks_result res[3];

	plan->n = 3;
	plan->at = 2;
	plan->sums = "host";
	plan->sums_at = "device";
	run("abb", join_rank, res);
	for (int i = 0; i < 3; i++)
		ranks_failed(&res[i], -TE_EMISMATCH, "TE_COMM_SUMS is device for rank 2 (", SOON);
}

/*
 * Joining the nodes without memory, threads or descriptors on one rank: all fail soon. 1: the fault
 * did not matter.
 */
static int scarce_rank(int rank, void *arg)
{
	struct te_ctx_opts c = TE_CTX_OPTS_INIT;
	struct te_comm_opts o = ranks_opts(rank);
	struct te__reach_choice by_tcp = { .why[TE__REACH_VERBS] = "not tried" };
	struct te__nodes *nodes = NULL;
	struct te__pool *pool = NULL;
	struct te__boot *b = NULL;
	struct te_ctx *on = NULL;
	const char name[2] = { plan->nodes[rank], 0 };
	char why[512] = "";
	int r, fired;
	size_t piece;

	setenv("TE_COMM_NODE", name, 1);
	setenv("TE_COMM_STAGE", "256K", 1);
	if (plan->no_tcp)
		strcpy(by_tcp.why[TE__REACH_TCP], "rank 1: no interface");
	c.backend = "host";
	r = te_ctx_create(&c, &on);
	if (!r)
		r = te__boot_open(&o, &b);
	if (!r) {
		piece = te__nodes_piece(b);
		r = te__pool_create(b, on, 65536, TE__NODES_ALIGN + te__nodes_device(b, piece),
				    false, false, te__nodes_stage(b, piece), &pool);
	}
	if (!r && rank == plan->at)
		te__fault_set((uint64_t)*(int *)arg);
	if (!r)
		r = te__nodes_create(b, pool, &by_tcp, piece, TE__NODES_ALIGN, &nodes);
	if (r)
		snprintf(why, sizeof(why), "%s", te_error_detail());
	fired = te__fault_fired();
	te__fault_set(0);
	te__nodes_destroy(nodes);
	te__pool_destroy(pool);
	te__boot_close(b);
	te_ctx_unref(on);
	te_error_clear();
	return r ? te_fail(r, "%s", why) : fired;
}

TEST_IF(failures, joining_fails_on_all_ranks, !on_gpu())
{
	struct ranks_result res[3];
	int nth = 0, nfailed = 0, last;

	plan->n = 3;
	plan->nodes = "aab";
	plan->at = (int)tt_rand_int(0, 2);
	do {
		nth += 1 + nth / 5;
		ranks_meet_run(MEET_DIR, 3, scarce_rank, &nth, res);
		nfailed += res[plan->at].r < 0;
		/* the others may have joined when it fails to receive what they say last */
		last = !!strstr(res[plan->at].text, "threads of several nodes: ");
		for (int i = 0; i < 3 && res[plan->at].r < 0; i++) {
			if (last && !res[i].r)
				continue;
			ck_assert_msg(res[i].r < 0 && res[i].text[0] && res[i].ms < SOON,
				      "fault %d of rank %d: rank %d: %d after %g ms: %s", nth,
				      plan->at, i, res[i].r, res[i].ms, res[i].text);
			ck_assert_msg(!res[i].nleft_fd && !res[i].nleft_alloc, "fault %d of rank "
				      "%d: rank %d left %d and %d", nth, plan->at, i,
				      res[i].nleft_fd, res[i].nleft_alloc);
		}
	} while (res[plan->at].r);
	ck_assert_int_gt(nfailed, 5);
	ranks_ok(3, res);
}

/* fabric handles were chosen, and mapping has failed: no row of messages may be left */
TEST_IF(failures, nodes_that_nothing_connects_are_refused, !on_gpu())
{
	struct ranks_result res[2];
	int nth = 0;

	plan->n = 2;
	plan->nodes = "ab";
	plan->no_tcp = 1;
	ranks_meet_run(MEET_DIR, 2, scarce_rank, &nth, res);
	for (int i = 0; i < 2; i++)
		ranks_failed(&res[i], -EOPNOTSUPP, "no transport between 2 nodes: verbs: not "
			     "tried; tcp: rank 1: no interface", SOON);
}

TT_PAIR("comm/nodes", TT_ONE_PROCESS)
