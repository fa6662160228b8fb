/*
 * t/comm/verbs_random.c - random faults (random_lib.h) of ranks whose nodes are connected by the
 * devices of verbs_fake.h. Each rank is a thread; none hangs, and nothing of libibverbs is left.
 */
#include "config.h"

#include <stdatomic.h>
#include <unistd.h>

#include <te/collective.h>
#include <te/comm.h>

#include "libtecomm/meet/boot.h"
#include "libtecore/base/splitmix64.h"
#include "random_lib.h"
#include "threads.h"
#include "verbs_fake.h"

#define NDEFAULT 6  /* faults */
#define FEW 30 /* operations after a fault that need not be noticed */
#define MANY 20000 /* and after another one */
#define NFEW 4 /* one operation of so many may be large */

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

static struct plan {
	struct random_trial t;
	enum fault fault;
	useconds_t moment;
} plan;

static struct te_comm_id id;

static int need_not_fail(void)
{
	return plan.fault <= DEAFEN || plan.fault == CALL;
}

/* ---- the fault ---- */

static int is_victim(int rank, int op)
{
	return rank == plan.t.victim && op == plan.t.fault_op;
}

static void end_fault(void)
{
	verbs_fake.cut = verbs_fake.unheard = verbs_fake.down = 0;
}

/* before an operation of the victim */
static void happen(int rank)
{
	const int bit = 1 << rank;

	atomic_store(&plan.t.at_ns, te__boot_now());
	if (plan.fault == HIDE || plan.fault == CUT)
		verbs_fake.cut = bit;
	if (plan.fault == DEAFEN || plan.fault == MUTE)
		verbs_fake.unheard = bit;
	if (plan.fault == DOWN) {
		verbs_fake.down = bit;
		verbs_fake_event(rank, IBV_EVENT_PORT_ERR);
	}
	if (plan.fault == LOST)
		verbs_fake_event(rank, IBV_EVENT_DEVICE_FATAL);
	if (plan.fault == PAUSE || plan.fault == HIDE || plan.fault == DEAFEN)
		usleep(plan.moment);
	if (need_not_fail())
		end_fault();
}

/* ---- a rank ---- */

static int operate(struct joined *j)
{
	const int n = plan.t.fault_op + (need_not_fail() ? FEW : MANY);
	int code = 0;

	for (int k = 0; !code && k < n; k++) {
		if (is_victim(j->who, k))
			happen(j->who);
		if (is_victim(j->who, k) && plan.fault == LEAVE)
			return 0;
		while (is_victim(j->who, k) && plan.fault == SKIP && !code) {
			usleep(1000);
			code = te_comm_error(j->comm);
		}
		if (!code)
			code = nodes_reduce(j, is_victim(j->who, k) && plan.fault == SIZE);
	}
	return code;
}

static void *work(void *arg)
{
	const int rank = (int)((struct random_outcome *)arg - plan.t.out);
	const char node[2] = { plan.t.nodes[rank], 0 };
	struct te_comm_opts o = TE_COMM_OPTS_INIT;
	struct joined j;
	int r;

	te_error_clear();
	verbs_fake_rank = rank;
	te__boot_node_name = node;
	o.rank = rank;
	o.nranks = plan.t.n;
	o.id = &id;
	o.pool_nbytes = 64 << 10;
	o.timeout_ms = RANDOM_TIMEOUT_MS;
	nodes_init(&j, rank, plan.t.seed, NFEW);
	r = nodes_create(&j, "host", &o);
	plan.t.out[rank].created = j.comm != NULL;
	if (!r)
		r = operate(&j);
	random_ended(&plan.t, &j, r);
	if (!need_not_fail() && r)
		end_fault();
	random_finish(&plan.t, &j, 15000);
	return NULL;
}

/* ---- a trial ---- */

static void draw(uint64_t seed)
{
	static char beat[16], qps[2];
	uint64_t x;

	memset(&plan, 0, sizeof(plan));
	random_draw(&plan.t, seed, &x);
	plan.fault = (enum fault)(te__splitmix64(&x) % NFAULTS);
	plan.t.fault = name[plan.fault];
	plan.t.victim = (int)(te__splitmix64(&x) % (uint64_t)plan.t.n);
	while (plan.fault < SKIP && !nodes_has_rail(plan.t.nodes, plan.t.victim))
		plan.t.victim = (plan.t.victim + 1) % plan.t.n;
	plan.t.fault_op = (int)(te__splitmix64(&x) % 30);
	plan.moment = (useconds_t)(te__splitmix64(&x) % 60000);
	verbs_fake.fail = plan.fault == CALL ? calls[te__splitmix64(&x) % TT_LEN(calls)] : NULL;
	verbs_fake.fail_nth = 1 + (int)(te__splitmix64(&x) % 60);
	verbs_fake.delay_us = plan.fault == SLOW ? 3000 : (int)(te__splitmix64(&x) % 3) * 20;
	verbs_fake.short_poll = te__splitmix64(&x) % 3 == 0;
	snprintf(beat, sizeof(beat), "%d", RANDOM_BEAT_MS);
	snprintf(qps, sizeof(qps), "%d", 1 + (int)(te__splitmix64(&x) % 4));
	setenv("TE_COMM_HEARTBEAT_MS", beat, 1);
	setenv("TE_COMM_IB_QPS", qps, 1);
	setenv("TE_COMM_IB_DEVICE", te__splitmix64(&x) % 2 ? "fake1" : "fake0,fake1", 1);
	setenv("TE_COMM_IB_TIMEOUT", need_not_fail() ? "14" : "11", 1); /* 7 times 67 or 8.4 ms */
	setenv("TE_COMM_SUMS", seed & 1 ? "device" : "host", 1);
	setenv("TE_COMM_GPUDIRECT", te__splitmix64(&x) % 2 ? "on" : "off", 1);
}

#define EXPECT(expr, i) RANDOM_EXPECT(expr, &plan.t, i)

/* who has to be in the communicator after it; 0: that depends */
static uint32_t expected(void)
{
	const uint32_t all = (1u << plan.t.n) - 1;

	if (plan.fault == CALL)
		return 0;
	if (plan.fault != LEAVE)
		return all;
	return plan.t.n == 2 ? 0 : all & ~(1u << plan.t.victim);
}

static void check(void)
{
	for (int i = 0; i < plan.t.n; i++) {
		const struct random_outcome *out = &plan.t.out[i];

		EXPECT(out->created || plan.fault == CALL, i);
		EXPECT(!out->code || strstr(out->text, "rank") || strstr(out->text, "ibv_"), i);
		EXPECT(out->code != -EPROTO && out->recovered != -EPROTO, i);
		EXPECT(plan.fault == CALL || !random_is_late(out), i);
		EXPECT(out->code || need_not_fail() || (plan.fault == LEAVE && i == plan.t.victim),
		       i);
		if (out->code && expected() >> i & 1)
			EXPECT(out->members == expected(), i);
	}
	random_check_members(&plan.t);
}

static void trial(uint64_t seed)
{
	const int64_t live = te__alloc_live();
	struct te_comm_root *root = NULL;
	pthread_t thread[RANKS_MAX];

	draw(seed);
	random_print(&plan.t);
	DO(te_comm_id_create(&id, &root));
	for (int i = 0; i < plan.t.n; i++)
		ck_assert_int_eq(pthread_create(&thread[i], NULL, work, &plan.t.out[i]), 0);
	for (int i = 0; i < plan.t.n; i++)
		pthread_join(thread[i], NULL);
	te_comm_root_unref(root);
	end_fault();
	check();
	ck_assert_msg(!verbs_fake.nlive && !verbs_fake.nmisuse && !verbs_fake.nrnr,
		      "TT_SEED=%llu: %d objects, %d misuses, %d without a receive",
		      (unsigned long long)seed, verbs_fake.nlive, verbs_fake.nmisuse,
		      verbs_fake.nrnr);
	ck_assert_int_eq(te__alloc_live(), live);
}

/* a device may still write to where a rank copies what a failed operation has left */
/* the limit is for a hang */
CASE(faults, "host overlap", .limit_s = 60 + 5 * random_count(NDEFAULT));

TEST(faults, each_rank_gets_an_error_or_goes_on)
{
	backend = "host";
	setenv("TE_COMM_PACKETS", "64k", 1);
	setenv("TE_COMM_STAGE", "256K", 1);
	te__verbs_replace(&verbs_fake_lib);
	random_trials(trial, NDEFAULT);
}

TT_MAIN("comm/verbs_random", TT_NEED_NOTHING)
