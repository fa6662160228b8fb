/*
 * t/comm/fabric.c - ranks on several nodes that map each other's memory by fabric handles, as GPUs
 * of one NVLink domain do. TE_COMM_NODE simulates the nodes, TE_HOST_FABRIC the handles.
 */
#include "config.h"

#include <signal.h>
#include <unistd.h>

#include <te/collective.h>
#include <te/comm.h>

#include "libtecore/base/private.h"
#include "libtecore/tensor/ctx.h"
#include "nodes_lib.h"
#include "threads.h"
#include "tt_ctx.h"

#define COUNT 3001
#define SOON 10000.0

/* the deviation of a rank from the others */
enum odd { NOTHING, SWITCHED_OFF, OTHER_DOMAIN, NOT_EXPORTED, NOT_IMPORTED, OTHER_NAME };

/* memory that the processes of a test share */
static struct plan {
	const char *nodes;     /* a letter for each rank */
	const char *transport; /* TE_COMM_TRANSPORT */
	enum odd odd;
	int at; /* the rank that is odd */
	int fault, fired;
	int timeout_ms;
	char took[RANKS_MAX][16]; /* the transport of each rank */
	_Atomic int nready, nleft;
} *plan;

static const char *const layout[] = { "ab", "aab", "abab", "abcabcaa" };

static void setup(void)
{
	plan = ranks_shared(sizeof(*plan));
	plan->nodes = layout[1];
	plan->transport = "auto";
	plan->at = -1;
	plan->timeout_ms = 30000;
}

/* ---- a rank ---- */

static int other_domain(void *dev, struct te__fabric_domain *ret)
{
	memset(ret, 0x5a, sizeof(*ret));
	return 0;
}

static int no_export(void *share, struct te__fabric_handle *ret)
{
	return te__fail(-EIO, "the handle cannot be exported");
}

static int no_import(void *dev, const struct te__fabric_handle *handle, size_t nbytes, void **ret)
{
	return te__fail(-EIO, "the handle cannot be imported");
}

/* the context keeps them */
static void be_odd(struct te_ctx *on, struct te__backend_ops *ops)
{
	*ops = *on->ops;
	if (plan->odd == OTHER_DOMAIN)
		ops->fabric_probe = other_domain;
	if (plan->odd == NOT_EXPORTED)
		ops->fabric_export = no_export;
	if (plan->odd == NOT_IMPORTED)
		ops->fabric_import = no_import;
	on->ops = ops;
}

static int join(int rank, struct joined *j)
{
	static struct te__backend_ops ops;
	const int is_odd = rank == plan->at;
	struct te_comm_info info = TE_COMM_INFO_INIT;
	struct te_comm_opts o = ranks_opts(rank);
	struct te_ctx_opts c = TE_CTX_OPTS_INIT;
	const char letter[2] = { plan->nodes[rank], 0 };

	nodes_init(j, rank, 7, 3);
	setenv("TE_COMM_NODE", letter, 1);
	setenv("TE_HOST_FABRIC", is_odd && plan->odd == SWITCHED_OFF ? "off" : "on", 1);
	setenv("TE_COMM_TRANSPORT", is_odd && plan->odd == OTHER_NAME ? "tcp" : plan->transport, 1);
	setenv("TE_COMM_STAGE", "256K", 1);
	o.timeout_ms = plan->timeout_ms;
	o.pool_nbytes = 1 << 20;
	c.backend = "host";
	STEP(te_ctx_create(&c, &j->ctx));
	j->s = te_ctx_stream(j->ctx);
	if (is_odd)
		be_odd(j->ctx, &ops);
	if (is_odd && plan->fault)
		te__fault_set((uint64_t)plan->fault);
	STEP(te_comm_create(j->ctx, &o, &j->comm));
	STEP(te_comm_info(j->comm, &info));
	memcpy(plan->took[rank], info.transport, sizeof(info.transport));
	return 0;
}

static int leave(struct joined *j, int r)
{
	plan->nleft++;
	return nodes_leave(j, r);
}

static void run(int n, ranks_fn *fn, struct ranks_result *res)
{
	ranks_meet_run(MEET_DIR, n, fn, NULL, res);
}

static void check_took(int n, const char *transport)
{
	for (int i = 0; i < n; i++)
		ck_assert_msg(!strcmp(plan->took[i], transport), "rank %d: \"%s\", expected \"%s\"",
			      i, plan->took[i], transport);
}

/* ---- memory and sums ---- */

/* each rank writes its number to a word of each other rank */
static int write_to_all(const struct joined *j)
{
	struct te_comm_memory m = TE_COMM_MEMORY_INIT;
	const int n = te_comm_nranks(j->comm), me = te_comm_rank(j->comm);
	int32_t *own;
	void *p;

	STEP(te_comm_memory(j->comm, &m));
	HOLDS(m.npeers == n - 1);
	STEP(te_comm_alloc(j->comm, (size_t)n * sizeof(*own), &p));
	own = p;
	memset(own, 0xff, (size_t)n * sizeof(*own));
	STEP(te_comm_barrier(j->comm, j->s));
	STEP(te_stream_sync(j->s));
	for (int k = 0; k < n; k++) {
		int32_t *at = te_comm_peer_ptr(j->comm, p, k);

		HOLDS(at && (k != me || at == own));
		at[me] = me;
	}
	STEP(te_comm_barrier(j->comm, j->s));
	STEP(te_stream_sync(j->s));
	for (int k = 0; k < n; k++)
		HOLDS(own[k] == k);
	HOLDS(!te_comm_peer_ptr(j->comm, p, n) && !te_comm_peer_ptr(j->comm, p, -1));
	return te_comm_free(j->comm, p);
}

/* by each algorithm of one node, in symmetric memory */
static int sum_by(const struct joined *j, enum te_comm_algorithm algorithm)
{
	struct te_comm_call_opts o = TE_COMM_CALL_OPTS_INIT;
	const int n = te_comm_nranks(j->comm), me = te_comm_rank(j->comm);
	float x[COUNT], y[COUNT];
	void *p;

	o.algorithm = algorithm;
	for (int i = 0; i < COUNT; i++)
		x[i] = nodes_input(j, me, (int)algorithm, i);
	tt_poison(y, sizeof(y));
	STEP(te_comm_alloc(j->comm, sizeof(x), &p));
	STEP(te_copy(j->s, p, x, sizeof(x)));
	STEP(te_comm_allreduce(j->comm, j->s, p, p, COUNT, TE_DTYPE_FP32, TE_COMM_SUM, &o));
	STEP(te_copy(j->s, y, p, sizeof(y)));
	STEP(te_stream_sync(j->s));
	for (int i = 0; i < COUNT; i++) {
		float want = nodes_input(j, 0, (int)algorithm, i);

		for (int k = 1; k < n; k++)
			want += nodes_input(j, k, (int)algorithm, i);
		HOLDS(!memcmp(&y[i], &want, sizeof(want)));
	}
	return te_comm_free(j->comm, p);
}

static int reducing_rank(int rank, void *arg)
{
	static const enum te_comm_algorithm by[] = { TE_COMM_LL, TE_COMM_ONE_SHOT,
						     TE_COMM_TWO_SHOT, TE_COMM_ZERO_COPY,
						     TE_COMM_STAGED };
	struct te_comm_call_opts o = TE_COMM_CALL_OPTS_INIT;
	struct joined j;
	int r = join(rank, &j);
	char x;

	if (!r)
		r = write_to_all(&j);
	for (size_t k = 0; k < TT_LEN(by) && !r; k++)
		r = sum_by(&j, by[k]);
	for (int k = 0; k < 5 && !r; k++)
		r = nodes_reduce(&j, 0);
	o.algorithm = TE_COMM_EXCHANGE;
	if (!r && te_comm_allreduce(j.comm, j.s, &x, &x, 1, TE_DTYPE_UINT8, TE_COMM_SUM, &o) !=
			  -EOPNOTSUPP)
		r = te_fail(-EPROTO, "exchange is not refused");
	return leave(&j, r);
}

CASE(fabric, "host", .setup = setup);

TEST_EACH(fabric, memory_of_all_nodes_is_mapped, TT_LEN(layout))
{
	struct ranks_result res[RANKS_MAX];
	const int n = (int)strlen(layout[_i]);

	plan->nodes = layout[_i];
	plan->transport = _i & 1 ? "fabric" : "auto";
	run(n, reducing_rank, res);
	ranks_ok(n, res);
	check_took(n, "fabric");
}

/* colors: by node, and across nodes */
static int splitting_rank(int rank, void *arg)
{
	struct te_comm_info info = TE_COMM_INFO_INIT;
	struct te_comm *part = NULL;
	struct joined j;
	int r = join(rank, &j);

	for (int across = 0; across < 2 && !r; across++) {
		struct joined of_part = j;

		r = te_comm_split(j.comm, across ? rank / 2 : rank % 2, 0, NULL, &part);
		if (r)
			break;
		of_part.comm = part;
		r = te_comm_info(part, &info);
		if (!r && strcmp(info.transport, across ? "fabric" : ""))
			r = te_fail(-EPROTO, "the transport of a group is \"%s\"", info.transport);
		if (!r)
			r = write_to_all(&of_part);
		te_comm_unref(part);
	}
	return leave(&j, r);
}

TEST(fabric, groups_of_ranks_map_theirs)
{
	struct ranks_result res[4];

	plan->nodes = "abab";
	run(4, splitting_rank, res);
	ranks_ok(4, res);
}

/* ---- what does without ---- */

static const struct {
	enum odd odd;
	const char *said;
} odd[] = {
	{ SWITCHED_OFF, "TE_HOST_FABRIC is off" },
	{ OTHER_DOMAIN, "is in another NVLink domain than rank 0" },
	{ NOT_EXPORTED, "the handle cannot be exported" },
	{ NOT_IMPORTED, "memory of rank 2 (" },
};

static int plain_rank(int rank, void *arg)
{
	struct joined j;
	int r = join(rank, &j);

	if (rank == plan->at) {
		plan->fired = te__fault_fired();
		te__fault_set(0);
	}
	for (int k = 0; k < 3 && !r; k++)
		r = nodes_reduce(&j, 0);
	return leave(&j, r);
}

TEST_EACH(fabric, the_next_transport_takes_the_place, TT_LEN(odd))
{
	struct ranks_result res[3];

	plan->odd = odd[_i].odd;
	plan->at = 1;
	setenv("TE_COMM_IB_DEVICE", "none", 1); /* the machine may have one */
	run(3, plain_rank, res);
	ranks_ok(3, res);
	check_took(3, "tcp");
}

TEST_EACH(fabric, a_transport_that_is_asked_for_is_not_replaced, TT_LEN(odd))
{
	struct ranks_result res[3];

	plan->odd = odd[_i].odd;
	plan->at = 1;
	plan->transport = "fabric";
	run(3, plain_rank, res);
	for (int i = 0; i < 3; i++)
		ranks_failed(&res[i], odd[_i].odd < NOT_EXPORTED ? -EOPNOTSUPP : -EIO,
			     odd[_i].said, SOON);
}

TEST(fabric, ranks_that_ask_for_different_ones_are_named)
{
	struct ranks_result res[3];

	plan->odd = OTHER_NAME;
	plan->at = 2;
	plan->transport = "fabric";
	run(3, plain_rank, res);
	for (int i = 0; i < 3; i++)
		ranks_failed(&res[i], -TE_EMISMATCH, "TE_COMM_TRANSPORT is tcp for rank 2 (", SOON);
}

TEST(fabric, more_ranks_than_kernels_take_exchange_messages)
{
	struct ranks_result res[9];

	plan->nodes = "aaaaabbbb";
	setenv("TE_COMM_IB_DEVICE", "none", 1);
	run(9, plain_rank, res);
	ranks_ok(9, res);
	check_took(9, "tcp");
}

/* wherever a call of one rank fails, all of them have a communicator in the end, or none has */
TEST(fabric, joining_succeeds_or_fails_on_all_ranks)
{
	struct ranks_result res[3];
	int nfailed = 0;

	plan->at = (int)tt_rand_int(0, 2);
	plan->timeout_ms = TT_SLOWER(1000);
	plan->fired = 1;
	plan->fault = (int)tt_rand_int(12, 30); /* before these ranks do not meet */
	for (; plan->fired; plan->fault += 3 + plan->fault / 7) {
		run(3, plain_rank, res);
		for (int i = 0; i < 3; i++)
			ck_assert_msg(!res[i].signal && !res[i].nleft_fd && !res[i].nleft_alloc &&
					      (!res[i].r || res[i].text[0]),
				      "fault %d of rank %d: rank %d: signal %d, %d: %s, left %d "
				      "and %d", plan->fault, plan->at, i, res[i].signal, res[i].r,
				      res[i].text, res[i].nleft_fd, res[i].nleft_alloc);
		nfailed += res[plan->at].r != 0;
	}
	ck_assert_int_gt(nfailed, 1);
	ranks_ok(3, res);
}

/* ---- ranks that end ---- */

static int ending_rank(int rank, void *arg)
{
	struct te_comm_info info = TE_COMM_INFO_INIT;
	struct te_comm *next;
	int32_t was[RANKS_MAX];
	struct joined j;
	int r = join(rank, &j);

	if (!r)
		r = nodes_reduce(&j, 0);
	if (!r && rank == plan->at)
		raise(SIGKILL);
	while (!r)
		r = nodes_reduce(&j, 0);
	if (r != -TE_EPEER || !strstr(te_error_detail(), "rank 2 ("))
		return leave(&j, r);
	r = te_comm_recover(j.comm, NULL, was, &next);
	if (r)
		return leave(&j, r);
	nodes_succeed(&j, next, was);
	for (int k = 0; k < 5 && !r; k++)
		r = nodes_reduce(&j, 0);
	if (!r)
		r = te_comm_info(next, &info);
	memcpy(plan->took[rank], info.transport, sizeof(info.transport));
	return leave(&j, r);
}

TEST(fabric, the_others_go_on_without_a_rank_that_is_killed)
{
	struct ranks_result res[4];

	plan->nodes = "aabb";
	plan->at = 2;
	run(4, ending_rank, res);
	ranks_ok(2, res);
	ranks_ok(1, &res[3]);
	check_took(2, "fabric");
	ck_assert_str_eq(plan->took[3], "fabric");
	for (int i = 0; i < 4; i++)
		ck_assert_msg(i == 2 || res[i].ms < SOON, "rank %d after %.0f ms", i, res[i].ms);
}

/* its process goes on, so that only the bootstrap tells */
static int staying_rank(int rank, void *arg)
{
	struct joined j;
	int r = join(rank, &j);

	if (!r)
		r = nodes_reduce(&j, 0);
	if (!r && rank) {
		j.comm = te_comm_unref(j.comm);
		plan->nready = 1;
		ranks_await(&plan->nleft, 1);
	}
	if (!r && !rank) {
		ranks_await(&plan->nready, 1);
		while (!r)
			r = nodes_reduce(&j, 0);
	}
	return leave(&j, r);
}

TEST(fabric, a_rank_of_another_node_that_has_left_is_not_waited_for)
{
	struct ranks_result res[2];

	plan->nodes = "ab";
	plan->timeout_ms = TT_SLOWER(1000); /* for the operation before that is seen */
	run(2, staying_rank, res);
	ranks_failed(&res[0], -TE_EPEER, "rank 1 (", SOON + 2 * plan->timeout_ms);
	ck_assert_ptr_nonnull(strstr(res[0].text, "has released its communicator"));
	ranks_ok(1, &res[1]);
}

static int aborting_rank(int rank, void *arg)
{
	struct joined j;
	int r = join(rank, &j);

	if (!r)
		r = nodes_reduce(&j, 0);
	if (!r && rank == 1)
		te_comm_abort(j.comm, "it is too warm");
	while (!r)
		r = nodes_reduce(&j, 0);
	return leave(&j, r);
}

TEST(fabric, an_abort_reaches_other_nodes)
{
	struct ranks_result res[3];

	plan->nodes = "abb";
	run(3, aborting_rank, res);
	for (int i = 0; i < 3; i++)
		ranks_failed(&res[i], -TE_EABORT, "it is too warm", SOON);
}

/* ---- handles of the host backend ---- */

TEST(fabric, a_handle_that_is_none_or_has_no_memory_is_refused)
{
	struct te_ctx_opts o = TE_CTX_OPTS_INIT;
	struct te__fabric_handle good, bad;
	struct te__window *w;
	struct te_ctx *on;
	size_t unit;

	o.backend = "host";
	DO(te_ctx_create(&o, &on));
	DO(te__window_unit(on, &unit));
	DO(te__window_fabric_create(on, 2, 0, unit, &w));
	DO(te__window_fabric_export(w, &good));
	memset(&bad, 0x5a, sizeof(bad));
	fails(te__window_fabric_import(w, 1, &bad), -EINVAL, "is of another backend");
	bad = good;
	bad.bytes[16] ^= 1; /* a byte of the inode */
	fails(te__window_fabric_import(w, 1, &bad), -EINVAL, "no longer exists");
	bad = good;
	bad.bytes[11] = 0x7f; /* a byte of the descriptor */
	fails(te__window_fabric_import(w, 1, &bad), -ENOENT, "the memory of a fabric handle");
	DO(te__window_fabric_import(w, 1, &good));
	*(int32_t *)te__window_slot(w, 1) = 4711;
	ck_assert_int_eq(*(int32_t *)te__window_slot(w, 0), 4711);
	te__window_destroy(w);
	te_ctx_unref(on);
}

TT_MAIN("comm/fabric", TT_NEED_NOTHING)
