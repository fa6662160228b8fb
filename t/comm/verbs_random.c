/*
 * t/comm/verbs_random.c - random faults of ranks whose nodes are connected by the devices of
 * verbs_fake.h: what nodes_random.c does with sockets and processes, for RDMA. Each rank, a thread,
 * gets right results or a named error in time, none hangs, nothing of libibverbs is left, and the
 * ranks get one communicator by te_comm_recover(3).
 *
 * TE_TEST_FAULTS=1000 makes so many; each prints its seed if it fails, which TT_SEED repeats alone.
 */
#include "config.h"

#include <stdatomic.h>
#include <unistd.h>

#include <te/collective.h>
#include <te/comm.h>

#include "libtecomm/meet/boot.h"
#include "libtecore/base/splitmix64.h"
#include "nodes_lib.h"
#include "threads.h"
#include "verbs_fake.h"

#define NDEFAULT 6  /* faults */
#define MOST 5	    /* ranks */
#define TIMEOUT_MS TT_SLOWER(1500)
#define BEAT_MS TT_SLOWER(1000)
#define SLACK_MS TT_SLOWER(1000) /* after the time-out */
#define FEW 30 /* operations after a fault that need not be noticed */
#define MANY 20000 /* and after another one */
#define NFEW 4 /* one operation of so many may be large */
#define TRIES 10

enum fault {
	SLOW,	 /* messages take up to some ms, all the time */
	PAUSE,	 /* the rank calls nothing for a moment */
	HIDE,	 /* for a moment nothing is received or acknowledged */
	DEAFEN,	 /* for a moment acknowledgements get lost */
	CUT,	 /* as HIDE, until the others have noticed */
	MUTE,	 /* as DEAFEN, until then */
	DOWN,	 /* ports */
	LOST,	 /* the device */
	CALL,	 /* of libibverbs, fails */
	SKIP,	 /* an operation */
	SIZE,	 /* of another number of elements */
	LEAVE,	 /* the rank releases its communicator */
	NFAULTS,
};

static const char *const name[] = { "slow", "pause", "hide", "deafen", "cut",  "mute",
				    "down", "lost",  "call", "skip",   "size", "leave" };
static const char *const calls[] = { "alloc_pd",  "reg_mr",    "create_cq", "create_qp",
				     "modify_qp", "post_send", "post_recv", "poll_cq",
				     "req_notify_cq" };

struct rank {
	int rank;
	pthread_t thread;
	struct joined j;
	int created, code; /* of the failure; 0: none */
	double ms;	   /* from the fault to it */
	int recovered;	   /* code of the last attempt; 1: there was none */
	uint32_t members;  /* of its communicator at the end */
	char text[400], why[400];
};

static struct plan {
	uint64_t seed;
	int n;
	const char *nodes;
	enum fault fault;
	int victim, fault_op;
	useconds_t moment;
	_Atomic int64_t at_ns;
	_Atomic int nfinished;
	struct rank rank[MOST];
} plan;

static struct te_comm_id id;

static int need_not_fail(void)
{
	return plan.fault <= DEAFEN || plan.fault == CALL;
}

/* ---- the fault ---- */

static int is_victim(const struct rank *r, int op)
{
	return r->rank == plan.victim && op == plan.fault_op;
}

static void end_fault(void)
{
	verbs_fake.cut = verbs_fake.unheard = verbs_fake.down = 0;
}

/* before an operation of the victim */
static void happen(struct rank *r)
{
	const int bit = 1 << r->rank;

	atomic_store(&plan.at_ns, te__boot_now());
	if (plan.fault == HIDE || plan.fault == CUT)
		verbs_fake.cut = bit;
	if (plan.fault == DEAFEN || plan.fault == MUTE)
		verbs_fake.unheard = bit;
	if (plan.fault == DOWN) {
		verbs_fake.down = bit;
		verbs_fake_event(r->rank, IBV_EVENT_PORT_ERR);
	}
	if (plan.fault == LOST)
		verbs_fake_event(r->rank, IBV_EVENT_DEVICE_FATAL);
	if (plan.fault == PAUSE || plan.fault == HIDE || plan.fault == DEAFEN)
		usleep(plan.moment);
	if (need_not_fail())
		end_fault();
}

/* ---- a rank ---- */

static int operate(struct rank *r)
{
	const int n = plan.fault_op + (need_not_fail() ? FEW : MANY);
	int code = 0;

	for (int k = 0; !code && k < n; k++) {
		if (is_victim(r, k))
			happen(r);
		if (is_victim(r, k) && plan.fault == LEAVE)
			return 0;
		while (is_victim(r, k) && plan.fault == SKIP && !code) {
			usleep(1000);
			code = te_comm_error(r->j.comm);
		}
		if (!code)
			code = nodes_reduce(&r->j, is_victim(r, k) && plan.fault == SIZE);
	}
	return code;
}

static int recover(struct rank *r)
{
	struct te_comm_recover_opts o = TE_COMM_RECOVER_OPTS_INIT;
	struct te_comm *next = NULL;
	int32_t ranks[RANKS_MAX];
	int code = 0;

	o.timeout_ms = 15000;
	STEP(te_comm_recover(r->j.comm, &o, ranks, &next));
	nodes_succeed(&r->j, next, ranks);
	for (int k = 0; k < 3 && !code; k++)
		code = nodes_reduce(&r->j, 0);
	return code;
}

/* until all have a communicator that works, since another one may fail in the last operation */
static void recover_all(struct rank *r)
{
	int code = 1;

	for (int k = 0; code && k < TRIES; k++) {
		code = recover(r);
		snprintf(r->why, sizeof(r->why), "%s", code ? te_error_detail() : "");
		if (code == -EPROTO || code == -TE_ESTATE || strstr(r->why, "may go on without "))
			break;
		plan.nfinished += !code;
		for (int ms = 0; !code && plan.nfinished < plan.n && ms < 5000; ms++) {
			usleep(1000);
			code = te_comm_error(r->j.comm);
			plan.nfinished -= code != 0;
		}
	}
	plan.nfinished += code != 0;
	r->recovered = code;
	r->members = code ? 0 : nodes_members(&r->j);
}

static void *work(void *arg)
{
	struct rank *r = arg;
	const char node[2] = { plan.nodes[r->rank], 0 };
	struct te_comm_opts o = TE_COMM_OPTS_INIT;

	te_error_clear();
	verbs_fake_rank = r->rank;
	te__boot_node_name = node;
	o.rank = r->rank;
	o.nranks = plan.n;
	o.id = &id;
	o.pool_nbytes = 64 << 10;
	o.timeout_ms = TIMEOUT_MS;
	nodes_init(&r->j, r->rank, plan.seed, NFEW);
	r->recovered = 1;
	r->code = nodes_create(&r->j, &o);
	r->created = r->j.comm != NULL;
	if (!r->code)
		r->code = operate(r);
	r->ms = (double)(te__boot_now() - plan.at_ns) * 1e-6;
	snprintf(r->text, sizeof(r->text), "%s", r->code ? te_error_detail() : "");
	if (!need_not_fail() && r->code)
		end_fault();
	if (r->code && r->created && r->code != -EPROTO)
		recover_all(r);
	else
		plan.nfinished++;
	te_comm_unref(r->j.comm);
	te_ctx_unref(r->j.ctx);
	te_error_clear();
	return NULL;
}

/* ---- a trial ---- */

static void draw(uint64_t seed)
{
	static const char *const layout[] = { "ab", "aab", "abb", "abc", "aabb", "abab", "aabc",
					      "aabbc" };
	static char beat[16], qps[2];
	uint64_t x = seed;

	memset(&plan, 0, sizeof(plan));
	plan.seed = seed;
	te__splitmix64(&x);
	plan.nodes = layout[te__splitmix64(&x) % TT_LEN(layout)];
	plan.n = (int)strlen(plan.nodes);
	plan.fault = (enum fault)(te__splitmix64(&x) % NFAULTS);
	plan.victim = (int)(te__splitmix64(&x) % (uint64_t)plan.n);
	while (plan.fault < SKIP && !nodes_has_rail(plan.nodes, plan.victim))
		plan.victim = (plan.victim + 1) % plan.n;
	plan.fault_op = (int)(te__splitmix64(&x) % 30);
	plan.moment = (useconds_t)(te__splitmix64(&x) % 60000);
	verbs_fake.fail = plan.fault == CALL ? calls[te__splitmix64(&x) % TT_LEN(calls)] : NULL;
	verbs_fake.fail_nth = 1 + (int)(te__splitmix64(&x) % 60);
	verbs_fake.delay_us = plan.fault == SLOW ? 3000 : (int)(te__splitmix64(&x) % 3) * 20;
	verbs_fake.short_poll = te__splitmix64(&x) % 3 == 0;
	snprintf(beat, sizeof(beat), "%d", BEAT_MS);
	snprintf(qps, sizeof(qps), "%d", 1 + (int)(te__splitmix64(&x) % 4));
	setenv("TE_COMM_HEARTBEAT_MS", beat, 1);
	setenv("TE_COMM_IB_QPS", qps, 1);
	setenv("TE_COMM_IB_DEVICE", te__splitmix64(&x) % 2 ? "fake1" : "fake0,fake1", 1);
	setenv("TE_COMM_IB_TIMEOUT", need_not_fail() ? "14" : "11", 1); /* 7 times 67 or 8.4 ms */
	setenv("TE_COMM_SUMS", seed & 1 ? "device" : "host", 1);
	setenv("TE_COMM_GPUDIRECT", te__splitmix64(&x) % 2 ? "on" : "off", 1);
}

#define EXPECT(expr, r)                                                                           \
	ck_assert_msg(expr, "%s of rank %d of %s, operation %d, TT_SEED=%llu: rank %d: created "   \
		      "%d, %d after %.0f ms: %s; recover %d, ranks 0x%x: %s", name[plan.fault],    \
		      plan.victim, plan.nodes, plan.fault_op, (unsigned long long)plan.seed,       \
		      (r)->rank, (r)->created, (r)->code, (r)->ms, (r)->text, (r)->recovered,      \
		      (r)->members, (r)->why)

/* who has to be in the communicator after it; 0: that depends */
static uint32_t expected(void)
{
	const uint32_t all = (1u << plan.n) - 1;

	if (plan.fault == CALL)
		return 0;
	if (plan.fault != LEAVE)
		return all;
	return plan.n == 2 ? 0 : all & ~(1u << plan.victim);
}

static void check(void)
{
	const double most_ms = TIMEOUT_MS * 1.125 + 2 * BEAT_MS + SLACK_MS;
	uint32_t members = 0;

	for (int i = 0; i < plan.n; i++) {
		const struct rank *r = &plan.rank[i];

		EXPECT(r->created || plan.fault == CALL, r);
		EXPECT(!r->code || strstr(r->text, "rank") || strstr(r->text, "ibv_"), r);
		EXPECT(r->code != -EPROTO && r->recovered != -EPROTO, r);
		EXPECT(!r->code || plan.fault == CALL || r->ms < most_ms, r);
		EXPECT(r->code || need_not_fail() || (plan.fault == LEAVE && i == plan.victim), r);
		/* all that go on have one communicator */
		if (!r->members)
			continue;
		EXPECT(!members || members == r->members, r);
		members = r->members;
	}
	for (int i = 0; i < plan.n; i++)
		if (plan.rank[i].code && expected() >> i & 1)
			EXPECT(plan.rank[i].members == expected(), &plan.rank[i]);
}

static void trial(uint64_t seed)
{
	const int64_t live = te__alloc_live();
	struct te_comm_root *root = NULL;

	draw(seed);
	if (getenv("TE_TEST_FAULTS"))
		fprintf(stderr, "# %llu: %s of rank %d of %s\n", (unsigned long long)seed,
			name[plan.fault], plan.victim, plan.nodes);
	DO(te_comm_id_create(&id, &root));
	for (int i = 0; i < plan.n; i++) {
		plan.rank[i].rank = i;
		ck_assert_int_eq(pthread_create(&plan.rank[i].thread, NULL, work, &plan.rank[i]),
				 0);
	}
	for (int i = 0; i < plan.n; i++)
		pthread_join(plan.rank[i].thread, NULL);
	te_comm_root_unref(root);
	end_fault();
	check();
	ck_assert_msg(!verbs_fake.nlive && !verbs_fake.nmisuse && !verbs_fake.nrnr,
		      "TT_SEED=%llu: %d objects, %d misuses, %d without a receive",
		      (unsigned long long)seed, verbs_fake.nlive, verbs_fake.nmisuse,
		      verbs_fake.nrnr);
	ck_assert_int_eq(te__alloc_live(), live);
}

START_TEST(each_rank_gets_an_error_or_goes_on)
{
	const char *s = getenv("TE_TEST_FAULTS");
	const int n = s ? atoi(s) : TT_FEWER(NDEFAULT);
	const uint64_t first = tt_seed();
	uint64_t x = first;

	backend = "host";
	setenv("TE_COMM_PACKETS", "64k", 1);
	setenv("TE_COMM_STAGE", "256K", 1);
	te__verbs_replace(&verbs_fake_lib);
	for (int k = 0; k < n; k++)
		trial(k ? te__splitmix64(&x) : first);
}
END_TEST

static Suite *suite(void)
{
	const char *s = getenv("TE_TEST_FAULTS");
	Suite *u = suite_create("comm/verbs_random");
	/* a device may still write to where a rank copies what a failed operation has left */
	TCase *c = tt_case(u, "faults", "host overlap");

	tcase_set_timeout(c, 60 + 5 * (s ? atoi(s) : 0)); /* a hang */
	tcase_add_test(c, each_rank_gets_an_error_or_goes_on);
	return u;
}

TT_MAIN("comm/verbs_random", TT_NEED_NOTHING, suite)
