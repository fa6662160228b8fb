/*
 * t/comm/nodes_random.c - random faults (random_lib.h) of ranks on several nodes, which
 * TE_COMM_NODE simulates: killed and stopped processes, sockets that are cut, bytes that are lost
 * or changed, calls that differ. No rank hangs.
 */
#include "config.h"

#include <signal.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <te/collective.h>
#include <te/comm.h>

#include "libtecomm/meet/boot.h"
#include "libtecore/base/splitmix64.h"
#include "random_lib.h"

#define NDEFAULT 6  /* faults */
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

static struct plan {
	struct random_trial t;
	enum fault fault;
	int second;
	_Atomic uint32_t dead;
	int countdown; /* calls of a socket */
	_Atomic int nready, last_op, op[RANKS_MAX];
} *plan;

static void fired(void)
{
	int64_t none = 0;

	atomic_compare_exchange_strong(&plan->t.at_ns, &none, te__boot_now());
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
	*ret_first = !plan->t.at_ns;
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
		usleep((useconds_t)(plan->t.seed % 3000));
	r = syscall(SYS_recvfrom, fd, p, n, flags, NULL, NULL);
	while (r > 0 && does(fd, HOLE)) {
		r = syscall(SYS_recvfrom, fd, p, n, flags, NULL, NULL);
		if (r <= 0)
			errno = EAGAIN, r = -1;
	}
	if (r > 1 && does(fd, CORRUPT))
		((uint8_t *)p)[plan->t.seed % (uint64_t)r] ^= (uint8_t)(1 << plan->t.seed % 8);
	if (r > 1 && does(fd, LOSE)) {
		atomic_store(&armed, 0);
		r -= 1 + (ssize_t)(plan->t.seed % (uint64_t)(r - 1));
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
	const int r = nodes_join(j, rank, plan->t.nodes[rank], RANDOM_TIMEOUT_MS, RANDOM_BEAT_MS,
				 plan->t.seed, NFEW);

	plan->t.out[rank].created = j->comm != NULL;
	return r ? r : te_comm_error(j->comm);
}

static int by_sockets(void)
{
	return plan->fault >= CUT;
}

static int operate(struct joined *j)
{
	const int here = j->who == plan->t.victim;
	int r = 0;

	plan->nready++;
	for (int ms = 0; !plan->t.early && plan->nready < plan->t.n && ms < 3000; ms++)
		usleep(1000);
	if (here && by_sockets() && !plan->t.early)
		atomic_store(&armed, plan->countdown);
	for (int k = 0; !r && (!plan->last_op || k < plan->last_op); k++) {
		plan->op[j->who] = k;
		if (here && k == plan->t.fault_op && (plan->fault == SKIP || plan->fault == SIZE))
			fired();
		while (here && k == plan->t.fault_op && plan->fault == SKIP && !r) {
			usleep(1000);
			r = te_comm_error(j->comm);
		}
		if (!r)
			r = nodes_reduce(j, here && k == plan->t.fault_op && plan->fault == SIZE);
		/* the others have begun the next operation at most */
		if (here && (plan->fault == DELAY || plan->t.early) && plan->t.at_ns &&
		    !plan->last_op)
			plan->last_op = k + MORE;
	}
	return r;
}

static int trial_rank(int rank, void *arg)
{
	struct joined j;
	int r;

	if (plan->t.early && rank == plan->t.victim && by_sockets())
		atomic_store(&armed, plan->countdown);
	r = join(rank, &j);
	if (!r)
		r = operate(&j);
	random_ended(&plan->t, &j, r);
	if (plan->fault != HOLE)
		atomic_store(&armed, 0);
	/* those that are stopped do not come; those that are late may do so on a busy machine */
	random_finish(&plan->t, &j,
		      plan->fault == STOP || plan->fault == HOLE ? RANDOM_TIMEOUT_MS : 15000);
	return 0;
}

/* ---- a trial ---- */

static void draw(uint64_t seed)
{
	uint64_t x;

	memset(plan, 0, sizeof(*plan));
	random_draw(&plan->t, seed, &x);
	plan->fault = (enum fault)(te__splitmix64(&x) % NFAULTS);
	plan->t.fault = name[plan->fault];
	plan->t.victim = (int)(te__splitmix64(&x) % (uint64_t)plan->t.n);
	while (by_sockets() && !nodes_has_rail(plan->t.nodes, plan->t.victim))
		plan->t.victim = (plan->t.victim + 1) % plan->t.n;
	plan->second = plan->t.victim + 1 + (int)(te__splitmix64(&x) % (uint64_t)(plan->t.n - 1));
	plan->second %= plan->t.n;
	plan->t.early = te__splitmix64(&x) % 4 == 0 && plan->fault != SKIP && plan->fault != SIZE &&
		      plan->fault != KILL_TWO;
	plan->countdown = 2 + (int)(te__splitmix64(&x) % (plan->t.early ? 40 : 300));
	/* small arrays, of which there are NFEW times as many, are the first rail's alone */
	if (!plan->t.early && nodes_local(plan->t.nodes, plan->t.victim))
		plan->countdown = 2 + plan->countdown / NFEW;
	plan->t.fault_op = (int)(te__splitmix64(&x) % 30);
	plan->dead = plan->fault == KILL || plan->fault == KILL_TWO ? 1u << plan->t.victim : 0;
	for (int i = 0; i < plan->t.n && plan->fault == KILL_NODE; i++)
		plan->dead |= (uint32_t)(plan->t.nodes[i] == plan->t.nodes[plan->t.victim]) << i;
	plan->t.absent = plan->fault == STOP ? 1u << plan->t.victim : plan->dead;
}

static void await(const _Atomic int *count, int n, int most_ms)
{
	for (int ms = 0; *count < n && ms < most_ms; ms++)
		usleep(1000);
}

static void happen(void)
{
	const useconds_t later = (useconds_t)(plan->t.seed >> 20 & 0x3fff); /* up to 16 ms */
	int op = 0;

	if (!plan->t.early)
		await(&plan->nready, plan->t.n, 5000);
	usleep(plan->t.early ? 3 * later : later);
	if (!by_sockets() && plan->fault != SKIP && plan->fault != SIZE)
		fired();
	for (int i = 0; i < plan->t.n; i++)
		if (plan->dead >> i & 1)
			kill(ranks_pid(i), SIGKILL);
	if (plan->fault == KILL_TWO) {
		await(&plan->t.nrecovering, 1, 5000);
		usleep(later);
		plan->dead |= 1u << plan->second;
		plan->t.absent = plan->dead;
		kill(ranks_pid(plan->second), SIGKILL);
	}
	if (plan->fault != PAUSE && plan->fault != STOP)
		return;
	kill(ranks_pid(plan->t.victim), SIGSTOP);
	if (plan->fault == STOP)
		for (int ms = 0; !random_all_finished(&plan->t) && ms < 30000; ms++)
			usleep(1000);
	else
		usleep(later * 6);
	for (int i = 0; i < plan->t.n; i++)
		op = op < plan->op[i] ? plan->op[i] : op;
	if (plan->fault == PAUSE)
		plan->last_op = op + MORE;
	kill(ranks_pid(plan->t.victim), SIGCONT);
}

static int is_named(int code)
{
	return code == -TE_EPEER || code == -ETIMEDOUT || code == -TE_EMISMATCH ||
	       code == -TE_EABORT;
}

#define EXPECT(expr, i) RANDOM_EXPECT(expr, &plan->t, i)

/* who has to be in the communicator after it; 0: that depends */
static uint32_t expected(void)
{
	const uint32_t all = (1u << plan->t.n) - 1;

	/* the machine may be too busy for te_comm_create() */
	for (int i = 0; i < plan->t.n; i++)
		if (!plan->t.out[i].created)
			return 0;
	/* it may be killed after all have one */
	if (plan->t.early || plan->fault == PAUSE || plan->fault == DELAY ||
	    plan->fault == KILL_TWO)
		return 0;
	if (plan->fault != STOP && plan->fault != HOLE)
		return all & ~plan->dead;
	if (plan->t.n == 2) /* a half, with the lowest rank */
		return plan->fault == STOP && plan->t.victim ? 1 : 0;
	return all & ~(1u << plan->t.victim);
}

static void check(const struct ranks_result *res)
{
	const uint32_t want = expected();

	for (int i = 0; i < plan->t.n; i++) {
		struct random_outcome *out = &plan->t.out[i];
		const int stopped = plan->fault == STOP && i == plan->t.victim;

		out->signal = res[i].signal;
		if (plan->dead >> i & 1) {
			EXPECT(res[i].signal == SIGKILL || i == plan->second, i);
			continue;
		}
		EXPECT(!res[i].signal && !res[i].nleft_fd && !res[i].nleft_alloc, i);
		EXPECT(!out->code || (is_named(out->code) && strstr(out->text, "rank")), i);
		EXPECT(stopped || plan->t.early || !out->created || !random_is_late(out), i);
		EXPECT(out->code || plan->t.early || plan->fault == PAUSE || plan->fault == DELAY,
		       i);
		EXPECT(out->recovered >= 0 || is_named(out->recovered) ||
			       out->recovered == -TE_ESTATE, i);
		EXPECT(plan->fault != KILL_TWO || !out->recovered || !out->created, i);
	}
	random_check_members(&plan->t);
	for (int i = 0; i < plan->t.n && want; i++)
		if (want >> i & 1)
			EXPECT(plan->t.out[i].members == want, i);
		else if (!(plan->dead >> i & 1))
			EXPECT(plan->t.out[i].recovered == -TE_ESTATE || plan->t.out[i].too_few, i);
}

static void trial(uint64_t seed)
{
	struct ranks_result res[RANKS_MAX];

	draw(seed);
	random_print(&plan->t);
	ranks_meet(MEET_DIR, plan->t.n);
	ranks_start(plan->t.n, trial_rank, NULL);
	happen();
	ranks_wait(res);
	ranks_rmdir();
	check(res);
}

/* each process has its own limit */
CASE(faults, "host", .limit_s = TT_NO_LIMIT);

TEST(faults, each_rank_gets_an_error_or_goes_on)
{
	plan = ranks_shared(sizeof(*plan));
	random_trials(trial, NDEFAULT);
}

TT_MAIN("comm/nodes_random", TT_NEED_NOTHING)
