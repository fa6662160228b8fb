/*
 * t/comm/nodes_random.c - random faults of ranks on several nodes, which TE_COMM_NODE simulates:
 * killed and stopped processes, sockets that are cut, bytes that are lost or changed, calls that
 * differ. Each rank gets right results or a named error in time, none hangs, and the ranks that are
 * left get one communicator by te_comm_recover(3).
 *
 * TE_TEST_FAULTS=1000 makes so many; each prints its seed if it fails, which TT_SEED repeats alone.
 */
#include "config.h"

#include <signal.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <te/collective.h>
#include <te/comm.h>

#include "libtecore/base/private.h"
#include "libtecore/base/splitmix64.h"
#include "nodes_lib.h"
#include "ranks.h"
#include "threads.h"
#include "tt_ctx.h"

#define NDEFAULT 6  /* faults */
#define TIMEOUT_MS TT_SLOWER(1500)
#define BEAT_MS TT_SLOWER(1000)
#define SLACK_MS TT_SLOWER(1000) /* after the time-out */
#define MORE 300 /* operations after a fault that need not be noticed */
#define NFEW 16 /* one operation of so many may be large */

enum fault {
	KILL,	   /* a process */
	KILL_NODE, /* all of a node */
	KILL_TWO,  /* and another one while the others recover */
	PAUSE,	   /* stopped for a moment */
	STOP,	   /* until the others have gone on */
	SKIP,	   /* a call */
	SIZE,	   /* of another number of elements */
	/* of the sockets between nodes, by the functions below */
	CUT,	/* shut down both ways */
	HOLE,	/* from now on nothing comes and nothing goes */
	LOSE,	/* some bytes that are received are left out */
	CORRUPT, /* a bit of what is received */
	HALVE,	/* a part of a message is sent, then the socket is shut down */
	DELAY,	/* what is received comes later */
	NFAULTS,
};

static const char *const name[] = { "kill", "kill of a node", "two kills", "pause", "stop", "skip",
				    "size", "cut", "hole", "lose", "corrupt", "halve", "delay" };

/* of a rank */
struct outcome {
	int created, code; /* of the failure; 0: none */
	double ms;	   /* from the fault to it */
	char text[300];
	int recovered; /* code of the last attempt; 1: there was none */
	int too_few;
	uint32_t members; /* of its communicator at the end */
	char why[300];
	_Atomic int op;
};

static struct plan {
	uint64_t seed;
	int n;
	char nodes[8];
	enum fault fault;
	int victim, second;
	_Atomic uint32_t dead;
	int early;		/* it may happen before the communicator is there */
	int countdown, fault_op; /* calls of a socket, or operations */
	_Atomic int nready, nrecovering, last_op;
	_Atomic uint32_t finished; /* ranks with a communicator, or that get none */
	_Atomic int64_t at_ns;
	struct outcome out[RANKS_MAX];
} *plan;

static int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void fired(void)
{
	int64_t none = 0;

	atomic_compare_exchange_strong(&plan->at_ns, &none, now_ns());
}

/* ---- sockets: these functions take the place of libc's ---- */

static _Atomic int armed; /* calls left; 0: no fault */

static int is_inet(int fd)
{
	socklen_t len = sizeof(int);
	int domain = 0;

	return !getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) &&
	       (domain == AF_INET || domain == AF_INET6);
}

/* 1: it happens in this call, or has begun; *ret_first: now */
static int strikes(int fd, int *ret_first)
{
	int left = atomic_load(&armed);

	*ret_first = 0;
	if (!left || !is_inet(fd))
		return 0;
	while (left > 1)
		if (atomic_compare_exchange_weak(&armed, &left, left - 1))
			return 0;
	*ret_first = !plan->at_ns;
	return left == 1;
}

static int does(int fd, enum fault what)
{
	int first;

	if (!atomic_load(&armed) || plan->fault != what || !strikes(fd, &first))
		return 0;
	/* some happen once, the others for as long as they are armed */
	if (what != HOLE && what != DELAY && what != LOSE)
		atomic_store(&armed, 0);
	fired();
	return 1;
}

ssize_t recv(int fd, void *p, size_t n, int flags)
{
	ssize_t r;

	if (does(fd, DELAY))
		usleep((useconds_t)(plan->seed % 3000));
	r = syscall(SYS_recvfrom, fd, p, n, flags, NULL, NULL);
	while (r > 0 && does(fd, HOLE)) {
		r = syscall(SYS_recvfrom, fd, p, n, flags, NULL, NULL);
		if (r <= 0)
			errno = EAGAIN, r = -1;
	}
	if (r > 1 && does(fd, CORRUPT))
		((uint8_t *)p)[plan->seed % (uint64_t)r] ^= (uint8_t)(1 << plan->seed % 8);
	if (r > 1 && does(fd, LOSE)) {
		atomic_store(&armed, 0);
		r -= 1 + (ssize_t)(plan->seed % (uint64_t)(r - 1));
	}
	if (r > 0 && does(fd, CUT))
		shutdown(fd, SHUT_RDWR);
	return r;
}

ssize_t sendmsg(int fd, const struct msghdr *m, int flags)
{
	struct msghdr part = *m;
	struct iovec v = m->msg_iov[0];
	size_t all = 0;
	ssize_t r;

	for (size_t i = 0; i < (size_t)m->msg_iovlen; i++)
		all += m->msg_iov[i].iov_len;
	if (all && does(fd, HOLE))
		return (ssize_t)all;
	if (!all || !does(fd, HALVE))
		return syscall(SYS_sendmsg, fd, m, flags);
	part.msg_iov = &v;
	part.msg_iovlen = 1;
	v.iov_len = (v.iov_len + 1) / 2;
	r = syscall(SYS_sendmsg, fd, &part, flags);
	shutdown(fd, SHUT_RDWR);
	return r;
}

/* ---- a rank ---- */

static int join(int rank, struct joined *j)
{
	const int r = nodes_join(j, rank, plan->nodes[rank], TIMEOUT_MS, BEAT_MS, plan->seed, NFEW);

	plan->out[rank].created = j->comm != NULL;
	return r ? r : te_comm_error(j->comm);
}

static int by_sockets(void)
{
	return plan->fault >= CUT;
}

static int operate(struct joined *j)
{
	struct outcome *out = &plan->out[j->who];
	const int here = j->who == plan->victim;
	int r = 0;

	plan->nready++;
	for (int ms = 0; !plan->early && plan->nready < plan->n && ms < 3000; ms++)
		usleep(1000);
	if (here && by_sockets() && !plan->early)
		atomic_store(&armed, plan->countdown);
	for (int k = 0; !r && (!plan->last_op || k < plan->last_op); k++) {
		out->op = k;
		if (here && k == plan->fault_op && (plan->fault == SKIP || plan->fault == SIZE))
			fired();
		while (here && k == plan->fault_op && plan->fault == SKIP && !r) {
			usleep(1000);
			r = te_comm_error(j->comm);
		}
		if (!r)
			r = nodes_reduce(j, here && k == plan->fault_op && plan->fault == SIZE);
		/* the others have begun the next operation at most */
		if (here && (plan->fault == DELAY || plan->early) && plan->at_ns && !plan->last_op)
			plan->last_op = k + MORE;
	}
	return r;
}

/* once; 0: a communicator that works, for some operations at least */
static int recover(struct joined *j)
{
	struct te_comm_recover_opts o = TE_COMM_RECOVER_OPTS_INIT;
	struct te_comm *next = NULL;
	int32_t ranks[RANKS_MAX];
	int r;

	/* those that are stopped do not come; those that are late may do so on a busy machine */
	o.timeout_ms = plan->fault == STOP || plan->fault == HOLE ? TIMEOUT_MS : 15000;
	STEP(te_comm_recover(j->comm, &o, ranks, &next));
	nodes_succeed(j, next, ranks);
	for (int k = 0; k < 3; k++) {
		r = nodes_reduce(j, 0);
		if (r)
			return r;
	}
	return 0;
}

/* those that live and are not stopped */
static uint32_t running(void)
{
	return ((1u << plan->n) - 1) & ~plan->dead &
	       ~(plan->fault == STOP ? 1u << plan->victim : 0);
}

static int all_finished(void)
{
	return !(running() & ~plan->finished);
}

/* 1: the rank tries again; 0: all have finished, and some may have gone */
static int withdraw(int rank)
{
	uint32_t old = plan->finished;

	do
		if (!(running() & ~old))
			return 0;
	while (!atomic_compare_exchange_weak(&plan->finished, &old, old & ~(1u << rank)));
	return 1;
}

/* until all ranks that run have a communicator, or know that they get none */
static void recover_all(struct joined *j)
{
	struct outcome *out = &plan->out[j->who];
	int r = -TE_EPEER;

	plan->nrecovering++;
	for (int tries = 0; r && tries < 10; tries++) {
		r = recover(j);
		snprintf(out->why, sizeof(out->why), "%s", r ? te_error_detail() : "");
		out->too_few = r && strstr(out->why, "may go on without ");
		if (r == -EPROTO || r == -TE_ESTATE || (r && out->too_few))
			break;
		if (r)
			continue;
		/* another rank may have failed in the last exchange of all */
		plan->finished |= 1u << j->who;
		for (int ms = 0; !all_finished() && ms < 8000 && !r; ms++) {
			usleep(1000);
			r = te_comm_error(j->comm);
		}
		if (r && !withdraw(j->who))
			r = 0;
	}
	plan->finished |= 1u << j->who;
	out->recovered = r;
	out->members = r ? 0 : nodes_members(j);
}

static int trial_rank(int rank, void *arg)
{
	struct outcome *out = &plan->out[rank];
	struct joined j;
	int r;

	(void)arg;
	out->recovered = 1;
	if (plan->early && rank == plan->victim && by_sockets())
		atomic_store(&armed, plan->countdown);
	r = join(rank, &j);
	if (!r)
		r = operate(&j);
	out->ms = (double)(now_ns() - plan->at_ns) * 1e-6;
	out->code = r;
	snprintf(out->text, sizeof(out->text), "%s", r ? te_error_detail() : "");
	if (plan->fault != HOLE)
		atomic_store(&armed, 0);
	if (r && out->created && r != -EPROTO)
		recover_all(&j);
	else
		plan->finished |= 1u << rank;
	te_comm_unref(j.comm);
	te_ctx_unref(j.ctx);
	te_error_clear();
	return 0;
}

/* ---- a trial ---- */

static void draw(uint64_t seed)
{
	static const char *const layout[] = { "ab",   "aab",  "abb",   "abc",	"aabb",
					      "abab", "aabc", "aabbc", "abcab", "aaabb" };
	uint64_t x = seed;

	memset(plan, 0, sizeof(*plan));
	plan->seed = seed;
	te__splitmix64(&x);
	snprintf(plan->nodes, sizeof(plan->nodes), "%s",
		 layout[te__splitmix64(&x) % TT_LEN(layout)]);
	plan->n = (int)strlen(plan->nodes);
	plan->fault = (enum fault)(te__splitmix64(&x) % NFAULTS);
	plan->victim = (int)(te__splitmix64(&x) % (uint64_t)plan->n);
	while (by_sockets() && !nodes_has_rail(plan->nodes, plan->victim))
		plan->victim = (plan->victim + 1) % plan->n;
	plan->second = (plan->victim + 1 + (int)(te__splitmix64(&x) % (uint64_t)(plan->n - 1))) %
		       plan->n;
	plan->early = te__splitmix64(&x) % 4 == 0 && plan->fault != SKIP && plan->fault != SIZE &&
		      plan->fault != KILL_TWO;
	plan->countdown = 2 + (int)(te__splitmix64(&x) % (plan->early ? 40 : 300));
	/* small arrays, of which there are NFEW times as many, are the first rail's alone */
	if (!plan->early && nodes_local(plan->nodes, plan->victim))
		plan->countdown = 2 + plan->countdown / NFEW;
	plan->fault_op = (int)(te__splitmix64(&x) % 30);
	plan->dead = plan->fault == KILL || plan->fault == KILL_TWO ? 1u << plan->victim : 0;
	for (int i = 0; i < plan->n && plan->fault == KILL_NODE; i++)
		plan->dead |= (uint32_t)(plan->nodes[i] == plan->nodes[plan->victim]) << i;
}

static void await(const _Atomic int *count, int n, int most_ms)
{
	for (int ms = 0; *count < n && ms < most_ms; ms++)
		usleep(1000);
}

static void happen(void)
{
	const useconds_t later = (useconds_t)(plan->seed >> 20 & 0x3fff); /* up to 16 ms */
	int op = 0;

	if (!plan->early)
		await(&plan->nready, plan->n, 5000);
	usleep(plan->early ? 3 * later : later);
	if (!by_sockets() && plan->fault != SKIP && plan->fault != SIZE)
		fired();
	for (int i = 0; i < plan->n; i++)
		if (plan->dead >> i & 1)
			kill(ranks_pid(i), SIGKILL);
	if (plan->fault == KILL_TWO) {
		await(&plan->nrecovering, 1, 5000);
		usleep(later);
		plan->dead |= 1u << plan->second;
		kill(ranks_pid(plan->second), SIGKILL);
	}
	if (plan->fault != PAUSE && plan->fault != STOP)
		return;
	kill(ranks_pid(plan->victim), SIGSTOP);
	if (plan->fault == STOP)
		for (int ms = 0; !all_finished() && ms < 30000; ms++)
			usleep(1000);
	else
		usleep(later * 6);
	for (int i = 0; i < plan->n; i++)
		op = op < plan->out[i].op ? plan->out[i].op : op;
	if (plan->fault == PAUSE)
		plan->last_op = op + MORE;
	kill(ranks_pid(plan->victim), SIGCONT);
}

static int is_named(int code)
{
	return code == -TE_EPEER || code == -ETIMEDOUT || code == -TE_EMISMATCH ||
	       code == -TE_EABORT;
}

#define EXPECT(expr, i)                                                                          \
	ck_assert_msg(expr, "%s of rank %d of %s%s, TT_SEED=%llu: rank %d: signal %d, created "    \
		      "%d, %d after %.0f ms: %s; recover %d, ranks 0x%x: %s",                     \
		      name[plan->fault], plan->victim, plan->nodes,                               \
		      plan->early ? ", early" : "", (unsigned long long)plan->seed, i,            \
		      res[i].signal, plan->out[i].created, plan->out[i].code, plan->out[i].ms,    \
		      plan->out[i].text, plan->out[i].recovered, plan->out[i].members,            \
		      plan->out[i].why)

/* who has to be in the communicator after it; 0: that depends */
static uint32_t expected(void)
{
	const uint32_t all = (1u << plan->n) - 1;

	/* the machine may be too busy for te_comm_create() */
	for (int i = 0; i < plan->n; i++)
		if (!plan->out[i].created)
			return 0;
	/* it may be killed after all have one */
	if (plan->early || plan->fault == PAUSE || plan->fault == DELAY || plan->fault == KILL_TWO)
		return 0;
	if (plan->fault != STOP && plan->fault != HOLE)
		return all & ~plan->dead;
	if (plan->n == 2) /* a half, with the lowest rank */
		return plan->fault == STOP && plan->victim ? 1 : 0;
	return all & ~(1u << plan->victim);
}

static void check(const struct ranks_result *res)
{
	const double most_ms = TIMEOUT_MS * 1.125 + 2 * BEAT_MS + SLACK_MS;
	uint32_t members = 0, want = expected();

	for (int i = 0; i < plan->n; i++) {
		const struct outcome *out = &plan->out[i];
		const int stopped = plan->fault == STOP && i == plan->victim;

		if (plan->dead >> i & 1) {
			EXPECT(res[i].signal == SIGKILL || i == plan->second, i);
			continue;
		}
		EXPECT(!res[i].signal && !res[i].nleft_fd && !res[i].nleft_alloc, i);
		EXPECT(!out->code || (is_named(out->code) && strstr(out->text, "rank")), i);
		EXPECT(!out->code || stopped || out->ms < most_ms || plan->early || !out->created,
		       i);
		EXPECT(out->code || plan->early || plan->fault == PAUSE || plan->fault == DELAY,
		       i);
		EXPECT(out->recovered >= 0 || is_named(out->recovered) ||
			       out->recovered == -TE_ESTATE, i);
		EXPECT(plan->fault != KILL_TWO || !out->recovered || !out->created, i);
		/* all that go on have one communicator */
		if (!out->members)
			continue;
		EXPECT(out->members >> i & 1, i);
		EXPECT(!members || members == out->members, i);
		members = out->members;
	}
	for (int i = 0; i < plan->n && want; i++)
		if (want >> i & 1)
			EXPECT(plan->out[i].members == want, i);
		else if (!(plan->dead >> i & 1))
			EXPECT(plan->out[i].recovered == -TE_ESTATE || plan->out[i].too_few, i);
}

static void trial(uint64_t seed)
{
	struct ranks_result res[RANKS_MAX];

	draw(seed);
	if (getenv("TE_TEST_FAULTS"))
		fprintf(stderr, "# %llu: %s of rank %d of %s%s\n", (unsigned long long)seed,
			name[plan->fault], plan->victim, plan->nodes, plan->early ? ", early" : "");
	ranks_meet(MEET_DIR, plan->n);
	ranks_start(plan->n, trial_rank, NULL);
	happen();
	ranks_wait(res);
	ranks_rmdir();
	check(res);
}

START_TEST(each_rank_gets_an_error_or_goes_on)
{
	const char *s = getenv("TE_TEST_FAULTS");
	const int n = s ? atoi(s) : TT_FEWER(NDEFAULT);
	const uint64_t first = tt_seed();
	uint64_t x = first;

	plan = ranks_shared(sizeof(*plan));
	for (int k = 0; k < n; k++)
		trial(k ? te__splitmix64(&x) : first);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("comm/nodes_random");
	TCase *c = tt_case(s, "faults", "host");

	tcase_set_timeout(c, 0); /* each process has its own limit */
	tcase_add_test(c, each_rank_gets_an_error_or_goes_on);
	return s;
}

TT_MAIN("comm/nodes_random", TT_NEED_NOTHING, suite)
