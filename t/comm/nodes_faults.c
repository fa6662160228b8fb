/*
 * t/comm/nodes_faults.c - te_comm_recover(3) of ranks on one node and on several: what ends a rank,
 * stops it or makes it call otherwise, when the others learn of it, and which ranks go on.
 */
#include "config.h"

#include <signal.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include <te/collective.h>
#include <te/comm.h>

#include "libtecomm/meet/bootstrap.h"
#include "libtecore/base/private.h"
#include "libtecore/base/splitmix64.h"
#include "nodes_lib.h"
#include "ranks.h"
#include "threads.h"
#include "tt_ctx.h"

#define COUNT 20000 /* bytes of an array */

enum fault { KILL, STOP, SKIP, SIZE };

/* what the processes of a test share */
static struct plan {
	int n;
	const char *nodes; /* a letter for each rank */
	enum fault fault;
	uint32_t at; /* bit r: rank r has it */
	int timeout_ms, heartbeat_ms;
	uint64_t seed;
	_Atomic int nready, nleft; /* ranks that have reduced some times; that have ended */
	_Atomic int nround[RANKS_MAX];
	_Atomic int refused; /* ranks that were too few to go on */
	int fault_at;	     /* te__fault_set() */
	_Atomic int64_t at_ns; /* when the fault happened */
	double ms[RANKS_MAX];  /* from then on */
	_Atomic int fired;
} *plan;

static void setup(void)
{
	plan = ranks_shared(sizeof(*plan));
	plan->seed = tt_rand_u64();
	plan->timeout_ms = 20000;
	plan->heartbeat_ms = 5000;
}

/* ---- a rank ---- */

static int join(int rank, struct joined *j)
{
	return nodes_join(j, rank, plan->nodes[rank], plan->timeout_ms, plan->heartbeat_ms,
			  plan->seed, 4);
}

static int has_fault(const struct joined *j)
{
	return plan->at >> j->who & 1;
}

static int leave(struct joined *j, int r)
{
	r = nodes_leave(j, r);
	plan->nleft += !has_fault(j);
	return r;
}

static int reduce_until_it_fails(struct joined *j)
{
	int r = 0;

	for (int k = 0; !r; k++) {
		const int here = k == 5 && has_fault(j);

		if (k == 3)
			plan->nready++;
		while (here && plan->fault == SKIP && !r) {
			usleep(1000);
			r = te_comm_error(j->comm);
		}
		if (!r)
			r = nodes_reduce(j, here && plan->fault == SIZE);
	}
	return r;
}

/* 0 if the new communicator is of the ranks in `left`, as they were at first */
static int recover(struct joined *j, uint32_t left, int ms)
{
	struct te_comm_recover_opts o = TE_COMM_RECOVER_OPTS_INIT;
	struct te_comm_info info = TE_COMM_INFO_INIT;
	const int n = __builtin_popcount(left), before = te_comm_nranks(j->comm);
	struct te_comm *next = NULL;
	int32_t ranks[RANKS_MAX];
	uint32_t letters = 0, in;

	memset(ranks, 0x5a, sizeof(ranks));
	o.timeout_ms = ms;
	STEP(te_comm_recover(j->comm, &o, ranks, &next));
	HOLDS(te_comm_error(j->comm) < 0);
	nodes_succeed(j, next, ranks);
	in = nodes_members(j);
	if (in != left)
		return te_fail(-EPROTO, "ranks 0x%x are left, expected 0x%x", in, left);
	for (int i = 0; i < n; i++) {
		HOLDS(ranks[i] >= i && ranks[i] < before && (!i || ranks[i] > ranks[i - 1]));
		letters |= 1u << (plan->nodes[j->was[i]] - 'a');
	}
	HOLDS(ranks[n] == 0x5a5a5a5a);
	HOLDS(j->was[te_comm_rank(next)] == j->who);
	STEP(te_comm_info(next, &info));
	HOLDS(!strcmp(info.name, "comm") && !strcmp(info.bootstrap, "recover"));
	HOLDS(info.nnodes == __builtin_popcount(letters));
	HOLDS(info.nnodes > 1 || (info.nlocal == n && info.local_rank == info.rank));
	HOLDS(!strcmp(info.transport, info.nnodes > 1 ? "tcp" : ""));
	return 0;
}

static uint32_t everyone(void)
{
	return (1u << plan->n) - 1;
}

static uint32_t others(void)
{
	return everyone() & ~plan->at;
}

/* kills or stops the ranks with a fault while they reduce */
static void happen(int signal)
{
	ranks_await(&plan->nready, plan->n);
	usleep((useconds_t)tt_rand_int(0, 3000));
	if (!plan->at_ns)
		plan->at_ns = te__boot_now();
	for (int i = 0; i < plan->n; i++)
		if (plan->at >> i & 1)
			kill(ranks_pid(i), signal);
}

static void run(enum meet how, ranks_fn *fn, struct ranks_result *res)
{
	plan->n = (int)strlen(plan->nodes);
	ranks_meet(how, plan->n);
	ranks_start(plan->n, fn, NULL);
	if (plan->fault == KILL || plan->fault == STOP)
		happen(plan->fault == KILL ? SIGKILL : SIGSTOP);
	if (plan->fault == STOP) {
		ranks_await(&plan->nleft, __builtin_popcount(others()));
		happen(SIGCONT);
	}
	ranks_wait(res);
	ranks_part();
}

/* ---- without operations ---- */

static int idle_rank(int rank, void *arg)
{
	struct joined j;
	int r = join(rank, &j);

	plan->nready += !r;
	while (!r) {
		usleep(1000);
		r = te_comm_error(j.comm);
	}
	plan->ms[rank] = (double)(te__boot_now() - plan->at_ns) * 1e-6;
	return leave(&j, r);
}

static const struct {
	enum fault fault;
	const char *nodes;
	uint32_t at;
} idle[] = {
	{ STOP, "aaabb", 8 }, { KILL, "aaabb", 4 }, { KILL, "abc", 4 }
};

CASE(idle, "host", .setup = setup);

/* those, too, that exchange no messages with the rank at fault, or with no rank of another node */
TEST_EACH(idle, idle_ranks_learn_of_a_fault_within_two_heartbeats, TT_LEN(idle), .parts = 2)
{
	const double most = idle[_i].fault == STOP ? 2 * TT_SLOWER(300) : 0;
	struct ranks_result res[RANKS_MAX];

	plan->fault = idle[_i].fault;
	plan->nodes = idle[_i].nodes;
	plan->at = idle[_i].at;
	plan->heartbeat_ms = TT_SLOWER(300);
	run(MEET_DIR, idle_rank, res);
	for (int i = 0; i < plan->n; i++) {
		if (plan->at >> i & 1)
			continue;
		ranks_failed(&res[i], idle[_i].fault == STOP ? -ETIMEDOUT : -TE_EPEER, "rank ",
			     60000);
		ck_assert_msg(plan->ms[i] < most + TT_SLOWER(1000), "rank %d after %.0f ms: %s",
			      i, plan->ms[i], res[i].text);
	}
}

/* ---- stopped for longer than two time-outs ---- */

static int resting_rank(int rank, void *arg)
{
	struct joined j;
	int r = join(rank, &j);

	if (!r)
		r = reduce_until_it_fails(&j);
	if (!has_fault(&j)) /* which goes on when the others have left */
		usleep((useconds_t)plan->timeout_ms * 3000);
	return leave(&j, r);
}

TEST(idle, a_rank_that_was_stopped_says_whom_it_waited_for)
{
	struct ranks_result res[RANKS_MAX];

	plan->fault = STOP;
	plan->nodes = "aab";
	plan->at = 4;
	plan->timeout_ms = TT_SLOWER(500); /* of creation, too, on a machine that is busy */
	run(MEET_DIR, resting_rank, res);
	for (int i = 0; i < plan->n; i++)
		ck_assert_msg(res[i].r < 0 && strstr(res[i].text, "rank "), "rank %d: %d: %s", i,
			      res[i].r, res[i].text);
}

/* ---- leaving ---- */

static int leaving_rank(int rank, void *arg)
{
	struct joined j;
	int r;

	setenv("TE_COMM_STAGE", arg, 1);
	r = join(rank, &j);
	for (int k = 0; k < 3 && !r; k++)
		r = nodes_reduce(&j, 0);
	if (!r && has_fault(&j)) {
		j.comm = te_comm_unref(j.comm);
		ranks_await(&plan->nleft, plan->n - 1);
	}
	while (!r && !has_fault(&j))
		r = nodes_reduce(&j, 0);
	return leave(&j, r);
}

static const struct {
	const char *nodes;
	uint32_t at;
} leaving[] = {
	{ "ab", 1 }, { "ab", 2 }, { "aabb", 1 }, { "aabb", 2 }, { "aabb", 8 },
	{ "abb", 1 }, { "abb", 2 }, { "abb", 4 }, { "abc", 1 }, { "abc", 2 }, { "abc", 4 },
};

CASE(leaving, "host", .setup = setup);

/* the process goes on: its end does not tell the others */
TEST_EACH(leaving, a_rank_that_releases_its_communicator_is_named, 2 * (int)TT_LEN(leaving),
	  .parts = 4)
{
	char few[] = "256K", many[] = "16M", who[40], *stage[] = { few, many };
	struct ranks_result res[RANKS_MAX];

	plan->fault = SKIP;
	plan->nodes = leaving[_i / 2].nodes;
	plan->at = leaving[_i / 2].at;
	plan->n = (int)strlen(plan->nodes);
	ranks_meet_run(MEET_ID, plan->n, leaving_rank, stage[_i % 2], res);
	snprintf(who, sizeof(who), "rank %d (host ", __builtin_ctz(plan->at));
	for (int i = 0; i < plan->n; i++)
		if (plan->at >> i & 1)
			ranks_ok(1, &res[i]);
		else
			ranks_failed(&res[i], -TE_EPEER, who, 60000);
}

/* rank 0 of the only rail leaves, rank 2 of the other node calls nothing, and rank 1 reduces */
static int left_rank(int rank, void *arg)
{
	struct joined j;
	int r = join(rank, &j);

	for (int k = 0; k < 3 && !r; k++)
		r = nodes_reduce(&j, 0);
	if (r)
		return leave(&j, r);
	if (!rank)
		j.comm = te_comm_unref(j.comm);
	while (rank == 1 && !r)
		r = nodes_reduce(&j, 0);
	if (rank != 1)
		ranks_await(&plan->nleft, 1);
	while (rank == 2 && !r) {
		usleep(1000);
		r = te_comm_error(j.comm);
	}
	return leave(&j, r);
}

TEST_EACH(leaving, a_rail_that_has_left_is_named_where_no_rail_works, 2)
{
	struct ranks_result res[RANKS_MAX];

	plan->fault = SKIP;
	plan->nodes = "aab";
	plan->at = 1 | 4;
	plan->seed = plan->seed / 2 * 2 + (uint64_t)_i; /* sums by the host, by devices */
	plan->timeout_ms = 4000;
	run(MEET_ID, left_rank, res);
	ranks_ok(1, &res[0]);
	for (int i = 1; i < 3; i++)
		ranks_failed(&res[i], -TE_EPEER, "rank 0 (host ", 60000);
}

/* ---- recovery ---- */

/* the same sums by a communicator that is created for these ranks */
static char fresh_dir[200];

static int compare_with_fresh(struct joined *j)
{
	static const enum te_dtype dtypes[] = { TE_DTYPE_BF16, TE_DTYPE_FP32, TE_DTYPE_FP16 };
	static uint8_t data[3][COUNT];
	struct te_comm_call_opts call = TE_COMM_CALL_OPTS_INIT;
	struct te_comm_info info = TE_COMM_INFO_INIT;
	struct te_comm_opts o = TE_COMM_OPTS_INIT;
	struct te_comm *comms[2] = { j->comm };
	void *p[2];

	o.name = "fresh";
	o.rank = te_comm_rank(j->comm);
	o.nranks = te_comm_nranks(j->comm);
	o.timeout_ms = plan->timeout_ms;
	o.pool_nbytes = 64 << 10;
	STEP(te_comm_create(j->ctx, &o, &comms[1]));
	STEP(te_comm_info(j->comm, &info));
	for (int c = 0; c < 2; c++)
		STEP(te_comm_alloc(comms[c], COUNT, &p[c]));
	for (int k = 0; k < (info.nnodes > 1 ? 3 : 3 + TE_COMM_STAGED); k++) {
		const enum te_dtype dtype = dtypes[k % 3];
		const int64_t n = COUNT / (int64_t)te_dtype_nbytes(dtype);

		/* ranks of one node: by every algorithm */
		call.algorithm = k < 3 ? TE_COMM_AUTO : (enum te_comm_algorithm)(k - 2);
		for (int i = 0; i < COUNT; i++)
			data[0][i] = (uint8_t)((i & 1 ? 0x3f : 0) ^
					       (int)(nodes_input(j, j->who, k, i) * 40) % 128);
		for (int c = 0; c < 2; c++) {
			tt_poison(data[1 + c], COUNT);
			STEP(te_copy(j->s, p[c], data[0], COUNT));
			STEP(te_comm_allreduce(comms[c], j->s, p[c], p[c], n, dtype, TE_COMM_SUM,
					       &call));
			STEP(te_copy(j->s, data[1 + c], p[c], COUNT));
			STEP(te_stream_sync(j->s));
			STEP(te_comm_error(comms[c]));
		}
		HOLDS(!memcmp(data[1], data[2], COUNT) && memcmp(data[0], data[1], COUNT));
	}
	for (int c = 0; c < 2; c++)
		STEP(te_comm_free(comms[c], p[c]));
	te_comm_unref(comms[1]);
	return 0;
}

static int fail_and_recover(int rank, void *arg)
{
	const uint32_t left = plan->fault < SKIP ? others() : everyone();
	struct joined j;
	int r;

	setenv("TE_COMM_DIR", fresh_dir, 1);
	r = join(rank, &j);
	if (!r)
		r = reduce_until_it_fails(&j);
	if (r != -TE_EPEER && r != -ETIMEDOUT && r != -TE_EMISMATCH && r != -TE_EABORT)
		return leave(&j, te_fail(-EPROTO, "%d: %s", r, te_error_detail()));
	if (has_fault(&j)) /* late, but in time */
		usleep(30000);
	r = recover(&j, left, 20000);
	for (int k = 0; k < 4 && !r; k++)
		r = nodes_reduce(&j, 0);
	if (!r && !(left & (left - 1)))
		return leave(&j, 0);
	if (!r)
		r = compare_with_fresh(&j);
	return leave(&j, r);
}

static const struct {
	const char *nodes;
	uint32_t at;
} killed[] = {
	{ "aabb", 8 }, { "aabb", 12 }, { "aabb", 3 },
	{ "abc", 1 },  { "ab", 1 },    { "abcab", 5 },
	{ "aaaa", 8 }, { "aaaa", 1 },  { "aaaa", 10 }, { "aaaa", 7 },
};

CASE(recover, "host", .setup = setup);

TEST_EACH(recover, who_is_left_after_a_kill_goes_on, TT_LEN(killed), .parts = 4)
{
	struct ranks_result res[RANKS_MAX];

	snprintf(fresh_dir, sizeof(fresh_dir), "%s", ranks_mkdir());
	plan->fault = KILL;
	plan->nodes = killed[_i].nodes;
	plan->at = killed[_i].at;
	run(_i & 1 ? MEET_CALLBACK : MEET_ID, fail_and_recover, res);
	for (int i = 0; i < plan->n; i++)
		if (plan->at >> i & 1)
			ck_assert_int_eq(res[i].signal, SIGKILL);
		else
			ranks_ok(1, &res[i]);
	rmdir(fresh_dir);
}

static const char *const two_nodes_or_one[] = { "aabb", "aaaa" };

TEST_EACH(recover, all_ranks_go_on_after_a_mismatch, TT_LEN(two_nodes_or_one))
{
	struct ranks_result res[RANKS_MAX];

	snprintf(fresh_dir, sizeof(fresh_dir), "%s", ranks_mkdir());
	plan->fault = SIZE;
	plan->nodes = two_nodes_or_one[_i];
	plan->at = 4;
	run(MEET_ID, fail_and_recover, res);
	ranks_ok(plan->n, res);
	rmdir(fresh_dir);
}

static int stopped_rank(int rank, void *arg)
{
	struct joined j;
	int r = join(rank, &j);

	if (!r)
		r = reduce_until_it_fails(&j);
	if (r != -TE_EPEER && r != -ETIMEDOUT && r != -TE_EABORT)
		return leave(&j, r);
	r = recover(&j, others(), TT_SLOWER(500));
	for (int k = 0; k < 3 && !r; k++)
		r = nodes_reduce(&j, 0);
	return leave(&j, r);
}

static const struct {
	const char *nodes;
	uint32_t at;
	int timeout_ms; /* ranks of one node find out by this; the others, by heartbeats */
} stopped[] = {
	{ "aabb", 8, 20000 }, { "aabb", 12, 20000 }, { "abc", 1, 20000 },
	{ "aaaa", 1, 500 },   { "aaaa", 2, 500 },
};

TEST_EACH(recover, who_was_stopped_is_left_out_and_told, TT_LEN(stopped), .parts = 2)
{
	struct ranks_result res[RANKS_MAX];

	plan->fault = STOP;
	plan->nodes = stopped[_i].nodes;
	plan->at = stopped[_i].at;
	plan->timeout_ms = TT_SLOWER(stopped[_i].timeout_ms);
	plan->heartbeat_ms = TT_SLOWER(400);
	run(MEET_DIR, stopped_rank, res);
	for (int i = 0; i < plan->n; i++)
		if (plan->at >> i & 1)
			ranks_failed(&res[i], -TE_ESTATE, "the other ranks have recovered without",
				     60000);
		else
			ranks_ok(1, &res[i]);
}

/* half of the ranks, without the lowest: the others may go on. When these do run, all go on */
static int half_rank(int rank, void *arg)
{
	struct joined j;
	int r = join(rank, &j);

	if (!r)
		r = reduce_until_it_fails(&j);
	if (r != -TE_EPEER && r != -ETIMEDOUT && r != -TE_EABORT)
		return leave(&j, r);
	if (!has_fault(&j)) {
		r = recover(&j, others(), TT_SLOWER(500));
		if (r != -ETIMEDOUT || !strstr(te_error_detail(), "may continue without rank "))
			return leave(&j, te_fail(-EPROTO, "%d: %s", r, te_error_detail()));
		plan->nleft++;
	}
	do /* again, while another rank still waits from its first call */
		r = recover(&j, everyone(), 20000);
	while (r == -ETIMEDOUT);
	for (int k = 0; k < 3 && !r; k++)
		r = nodes_reduce(&j, 0);
	return leave(&j, r);
}

TEST(recover, a_half_without_the_lowest_rank_waits_for_the_other)
{
	struct ranks_result res[RANKS_MAX];

	plan->fault = STOP;
	plan->nodes = "aabb";
	plan->at = 3;
	plan->heartbeat_ms = TT_SLOWER(400);
	run(MEET_DIR, half_rank, res);
	ranks_ok(plan->n, res);
}

/* each kills itself in turn, with its communicator as it is */
static int one_after_the_other(int rank, void *arg)
{
	struct joined j;
	int r = join(rank, &j);

	for (int last = plan->n - 1; last >= 0 && !r; last--) {
		for (int k = 0; k < 3 && !r; k++)
			r = nodes_reduce(&j, 0);
		plan->nround[last] += rank != last;
		if (rank == last && last) {
			ranks_await(&plan->nround[last], last);
			raise(SIGKILL);
		}
		for (int e = 0; !e && last && !r;) {
			e = nodes_reduce(&j, 0);
			if (e && e != -TE_EPEER)
				r = e;
		}
		if (last && !r)
			r = recover(&j, (1u << last) - 1, 20000);
	}
	return leave(&j, r);
}

CASE(successors, "host", .setup = setup);

TEST_EACH(successors, a_successor_can_be_recovered, 2)
{
	struct ranks_result res[RANKS_MAX];

	plan->fault = SKIP;
	plan->nodes = _i ? "aaaa" : "abba";
	run(MEET_ID, one_after_the_other, res);
	ranks_ok(1, res);
	for (int i = 1; i < plan->n; i++)
		ck_assert_int_eq(res[i].signal, SIGKILL);
}

static int again_and_again(int rank, void *arg)
{
	struct joined j;
	int r = join(rank, &j);

	for (int k = 0; k < 50 && !r; k++) {
		r = nodes_reduce(&j, 0); /* all ranks have the communicator */
		if (!r && rank == k % plan->n)
			te_comm_abort(j.comm, "again");
		while (!r)
			r = nodes_reduce(&j, 0);
		r = r == -TE_EABORT ? recover(&j, everyone(), 20000) : r;
	}
	return leave(&j, r ? r : nodes_reduce(&j, 0));
}

TEST_EACH(successors, a_hundred_in_turn_leave_nothing, 2)
{
	struct ranks_result res[RANKS_MAX];

	plan->fault = SKIP;
	plan->nodes = _i ? "aaa" : "aab";
	run(MEET_ID, again_and_again, res);
	ranks_ok(plan->n, res);
}

/* ---- growth ---- */

#define ROUNDS TT_FEWER(50)
#define STATE 100

static struct growth {
	struct te_comm_id id;
	_Atomic int nids; /* communicators that had one */
} *growth;

/* communicator k of all ranks, by an id of rank k modulo n */
static int meet(struct joined *j, int k)
{
	struct te_comm_opts o = TE_COMM_OPTS_INIT;
	struct te_comm_root *root = NULL;
	struct te_ctx *ctx = j->ctx;
	int r = 0;

	te_comm_unref(j->comm);
	nodes_init(j, j->who, plan->seed + (uint64_t)k, 4);
	j->ctx = ctx;
	j->s = te_ctx_stream(ctx);
	if (j->who == k % plan->n) {
		r = te_comm_id_create(&growth->id, &root);
		growth->nids = k + 1;
	} else {
		ranks_await(&growth->nids, k + 1);
	}
	o.rank = j->who;
	o.nranks = plan->n;
	o.id = &growth->id;
	o.timeout_ms = plan->timeout_ms;
	o.pool_nbytes = 64 << 10;
	if (!r)
		r = te_comm_create(j->ctx, &o, &j->comm);
	te_comm_root_unref(root);
	return r;
}

/*
 * The state of the ranks is what they have added up in k communicators. A new rank gets it from one
 * that was in the last communicator.
 */
static int share_state(struct joined *j, void *state, int k)
{
	float x[STATE];

	STEP(te_comm_broadcast(j->comm, j->s, state, STATE, TE_DTYPE_FP32, k % plan->n, NULL));
	STEP(te_copy(j->s, x, state, sizeof(x)));
	STEP(te_stream_sync(j->s));
	STEP(te_comm_error(j->comm));
	for (int i = 0; i < STATE; i++)
		HOLDS(x[i] == (float)(k * i));
	for (int i = 0; i < STATE; i++)
		x[i] = (float)((k + 1) * i);
	STEP(te_copy(j->s, state, x, sizeof(x)));
	return te_stream_sync(j->s);
}

/* rank k modulo n of communicator k is killed; the others go on, and with a new process */
static int grow(struct joined *j, void *state, int k)
{
	STEP(meet(j, k));
	STEP(share_state(j, state, k));
	while (k < ROUNDS) {
		const int victim = k % plan->n;
		int r = nodes_reduce(j, 0);

		if (!r && j->who == victim)
			raise(SIGKILL);
		while (!r)
			r = nodes_reduce(j, 0);
		if (r != -TE_EPEER)
			return r;
		STEP(recover(j, everyone() & ~(1u << victim), 20000));
		STEP(nodes_reduce(j, 0));
		STEP(meet(j, ++k));
		STEP(share_state(j, state, k));
	}
	return nodes_reduce(j, 0);
}

static int growing_rank(int rank, void *arg)
{
	struct te_ctx_opts c = TE_CTX_OPTS_INIT;
	struct joined j = { .who = rank };
	void *state;
	int r;

	nodes_begin(plan->nodes[rank], plan->heartbeat_ms, plan->seed);
	setenv("TE_COMM_PACKETS", "64K", 1);
	c.backend = "host";
	STEP(te_ctx_create(&c, &j.ctx));
	r = te_mem_alloc(te_ctx_stream(j.ctx), STATE * sizeof(float), &state);
	if (!r)
		memset(state, 0, STATE * sizeof(float));
	/* a process that is started again is in the next communicator */
	if (!r)
		r = grow(&j, state, *(const int *)arg);
	(void)te_mem_free(te_ctx_stream(j.ctx), state);
	return leave(&j, r);
}

TEST_EACH(successors, a_rank_that_is_killed_is_replaced_a_hundred_times, 2)
{
	struct ranks_result res[RANKS_MAX];
	int k = 0;

	growth = ranks_shared(sizeof(*growth));
	plan->nodes = _i ? "aaa" : "aab";
	plan->n = 3;
	ranks_start(plan->n, growing_rank, &k);
	for (k = 1; k <= ROUNDS; k++)
		ranks_again((k - 1) % plan->n, SIGKILL, growing_rank, &k);
	ranks_wait(res);
	ranks_ok(plan->n, res);
}

/* all of them get it in the end, wherever a call of one has failed */
static int try_again(int rank, void *arg)
{
	struct joined j;
	int r = join(rank, &j);

	if (r)
		return leave(&j, r);
	r = -TE_EPEER;
	for (int tries = 0; r && r != -TE_ESTATE && tries < 6; tries++) {
		if (!tries && rank == 1)
			te__fault_set((uint64_t)plan->fault_at);
		r = recover(&j, 7, 20000);
		if (!tries && rank == 1) {
			plan->fired = te__fault_fired();
			te__fault_set(0);
		}
		/* one of those that succeeded learns of the failure of another by its next call */
		if (!r)
			r = nodes_reduce(&j, 0);
	}
	return leave(&j, r);
}

TEST_EACH(successors, after_a_failing_call_of_one_rank_all_go_on, 2)
{
	struct ranks_result res[RANKS_MAX];
	int n = 0;

	plan->fault = SKIP;
	plan->nodes = _i ? "aaa" : "aab";
	plan->timeout_ms = TT_SLOWER(500);
	for (plan->fault_at = 1;; plan->fault_at += 9 + plan->fault_at / 2) {
		run(MEET_ID, try_again, res);
		if (!plan->fired)
			break;
		n++;
		ranks_ok_after(plan->fault_at, 3, res, 0);
	}
	ck_assert_int_gt(n, 3);
}

/* rank 3 is killed while all reduce, rank 2 after the others and it have agreed to go on */
static int leave_after_agreeing(int rank, void *arg)
{
	struct joined j;
	int first, r = join(rank, &j);

	if (!r)
		r = reduce_until_it_fails(&j);
	if (rank == 2)
		nodes_die_at("3 of 4 ranks are left", 0);
	te__boot_agreed_ms = TT_SLOWER(300);
	first = recover(&j, 3, 20000);
	te__boot_agreed_ms = 10000;
	r = first;
	for (int tries = 0; r && r != -TE_ESTATE && tries < 5; tries++)
		r = recover(&j, 3, 20000);
	for (int k = 0; k < 3 && !r; k++)
		r = nodes_reduce(&j, 0);
	return leave(&j, first ? r : te_fail(-EPROTO, "recovered without a second call"));
}

TEST_EACH(successors, a_rank_that_ends_after_agreeing_is_waited_for_briefly,
	  TT_LEN(two_nodes_or_one))
{
	struct ranks_result res[RANKS_MAX];

	plan->fault = KILL;
	plan->nodes = two_nodes_or_one[_i];
	plan->at = 8;
	plan->timeout_ms = 110000; /* a process has as long until SIGALRM */
	run(MEET_ID, leave_after_agreeing, res);
	ranks_ok(2, res);
	ck_assert_int_eq(res[2].signal, SIGKILL);
}

/* ---- arguments ---- */

static int bad(int rank, void *arg)
{
	struct te_comm_recover_opts o = TE_COMM_RECOVER_OPTS_INIT;
	struct te_comm_memory m = TE_COMM_MEMORY_INIT;
	struct te_comm *next = NULL, *none = NULL;
	struct joined j;
	int32_t ranks[RANKS_MAX];
	int r = join(rank, &j);

	if (r)
		return leave(&j, r);
	HOLDS(te_comm_recover(NULL, NULL, NULL, &none) == -EINVAL);
	HOLDS(te_comm_recover(j.comm, NULL, NULL, NULL) == -EINVAL);
	o.flags = 1;
	HOLDS(te_comm_recover(j.comm, &o, NULL, &none) == -EINVAL);
	o.flags = 0;
	o.timeout_ms = -1;
	HOLDS(te_comm_recover(j.comm, &o, NULL, &none) == -EINVAL);
	/* none of these has ended it */
	STEP(nodes_reduce(&j, 0));
	plan->nround[0]++;
	ranks_await(&plan->nround[0], plan->n);
	/* two of three ranks ask for it: the third one learns of that */
	o.timeout_ms = 0;
	o.pool_nbytes = 3 << 20;
	if (rank == 1)
		while (!(r = te_comm_error(j.comm)))
			usleep(1000);
	HOLDS(rank != 1 || (r == -TE_EABORT && strstr(te_error_detail(), "te_comm_recover")));
	STEP(te_comm_recover(j.comm, &o, ranks, &next));
	HOLDS(te_comm_recover(j.comm, NULL, NULL, &none) == -TE_ESTATE && !none);
	HOLDS(strstr(te_error_detail(), "it has been recovered before"));
	nodes_succeed(&j, next, ranks);
	STEP(te_comm_memory(next, &m));
	HOLDS(m.pool_nbytes == 3 << 20);
	return leave(&j, nodes_reduce(&j, 0));
}

TEST(successors, arguments_of_recover_are_checked)
{
	struct ranks_result res[RANKS_MAX];

	plan->fault = SKIP;
	plan->nodes = "aaa";
	run(MEET_ID, bad, res);
	ranks_ok(3, res);
	plan->nodes = "a"; /* alone */
	run(MEET_CALLBACK, one_after_the_other, res);
	ranks_ok(1, res);
}

/* creation, with a call of one rank that fails: all fail soon, and leave nothing */
static int scarce_rank(int rank, void *arg)
{
	struct joined j;
	int r;

	if (rank == 1)
		te__fault_set((uint64_t)plan->fault_at);
	r = join(rank, &j);
	if (rank == 1) {
		plan->fired = te__fault_fired();
		te__fault_set(0);
	}
	return leave(&j, r);
}

TEST(successors, creation_fails_on_all_ranks)
{
	struct ranks_result res[RANKS_MAX];
	int nfailed = 0;

	plan->fault = SKIP;
	plan->nodes = "aab";
	for (plan->fault_at = 1;; plan->fault_at += 4 + plan->fault_at / 3) {
		/* others wait for most faults; too short for some on a busy machine */
		plan->timeout_ms = TT_SLOWER(150);
		run(MEET_ID, scarce_rank, res);
		if (!plan->fired) {
			plan->timeout_ms = TT_SLOWER(2000);
			run(MEET_ID, scarce_rank, res);
		}
		if (!plan->fired)
			break;
		ranks_ok_after(plan->fault_at, 3, res, 1);
		for (int i = 0; i < 3; i++)
			nfailed += res[i].r < 0;
	}
	ck_assert_int_gt(nfailed, 10);
	ranks_ok(3, res);
}

TT_MAIN("comm/nodes_faults", TT_NEED_NOTHING)
