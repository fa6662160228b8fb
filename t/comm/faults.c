/*
 * t/comm/faults.c - what becomes of te_comm_allreduce(3) on the host backend if a process is
 * killed, stops, skips a call or makes another one, and which ranks then agree to go on.
 * nodes_faults.c has te_comm_recover(3).
 */
#include "config.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <te/collective.h>
#include <te/comm.h>

#include "libtecomm/meet/bootstrap.h"
#include "libtecomm/pool/members.h"
#include "libtecore/base/private.h"
#include "libtecore/base/splitmix64.h"
#include "nodes_lib.h"
#include "ranks.h"
#include "threads.h"
#include "tt_ctx.h"

#define COUNT 4099 /* elements, of several packets and a part of one */
#define SOON 30000.0 /* ms: far less than the time-out of 60 s */

enum fault { KILL, STOP, SKIP, SIZE };

/* memory that the processes of a test share */
static struct plan {
	int n;
	enum fault fault;
	uint32_t at; /* bit r: rank r has it */
	int timeout_ms;
	enum te_comm_algorithm algorithm;
	uint64_t seed;
	_Atomic int nready; /* ranks that have reduced some times */
	_Atomic int nleft;  /* ranks without the fault that have ended */
	_Atomic int64_t at_ns; /* when the fault happened */
} *plan;

static void setup(void)
{
	plan = ranks_shared(sizeof(*plan));
	plan->seed = tt_rand_u64();
	plan->n = 4;
	plan->timeout_ms = 60000;
}

/* ---- a rank ---- */

static int join(int rank, struct joined *j)
{
	struct te_comm_opts o = ranks_opts(rank);

	nodes_init(j, rank, plan->seed, 1);
	o.timeout_ms = plan->timeout_ms;
	o.pool_nbytes = 256 << 10;
	return nodes_create(j, "host", &o);
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

/* one sum of count elements, in symmetric memory or not; compared with that of a loop */
static int reduce(struct joined *j, enum te_comm_algorithm algorithm, int64_t count, void *memory)
{
	struct te_comm_call_opts o = TE_COMM_CALL_OPTS_INIT;
	struct te_stream *s = j->s;
	float x[COUNT + 1], y[COUNT + 1], want;
	void *p = memory;

	o.algorithm = algorithm;
	if (!p)
		STEP(te_mem_alloc(s, sizeof(x), &p));
	tt_poison(y, sizeof(y));
	for (int64_t i = 0; i < count; i++)
		x[i] = nodes_input(j, j->who, 0, i);
	STEP(te_copy(s, p, x, (size_t)count * sizeof(*x)));
	STEP(te_stream_sync(s)); /* x is gone if the next call fails */
	STEP(te_comm_allreduce(j->comm, s, p, p, count, TE_DTYPE_FP32, TE_COMM_SUM, &o));
	STEP(te_copy(s, y, p, (size_t)count * sizeof(*x)));
	STEP(te_stream_sync(s));
	if (!memory)
		STEP(te_mem_free(s, p));
	STEP(te_comm_error(j->comm));
	for (int64_t i = 0; i < count; i++) {
		want = nodes_input(j, j->was[0], 0, i);
		for (int k = 1; k < te_comm_nranks(j->comm); k++)
			want += nodes_input(j, j->was[k], 0, i);
		if (memcmp(&y[i], &want, sizeof(want)))
			return te_fail(-EPROTO, "element %lld is %g, expected %g", (long long)i,
				       (double)y[i], (double)want);
	}
	return 0;
}

/* reduces until that fails; a rank with a fault has it after some times */
static int reduce_until_it_fails(struct joined *j)
{
	void *p = NULL;
	int r = 0;

	if (plan->algorithm == TE_COMM_ZERO_COPY)
		STEP(te_comm_alloc(j->comm, COUNT * sizeof(float), &p));
	for (int k = 0; !r; k++) {
		int64_t count = COUNT;

		if (k == 3)
			plan->nready++;
		if (k == 5 && has_fault(j) && plan->fault == SIZE)
			count = 100;
		if (k == 5 && has_fault(j) && plan->fault >= SKIP)
			plan->at_ns = te__boot_now();
		/* the others wait for it until it has the error that they cause */
		while (k == 5 && has_fault(j) && plan->fault == SKIP && !r) {
			usleep(1000);
			r = te_comm_error(j->comm);
		}
		if (!r)
			r = reduce(j, plan->algorithm, count, p);
	}
	return r;
}

/* kills or stops the ranks with a fault while they reduce */
static void happen(int signal)
{
	ranks_await(&plan->nready, plan->n);
	usleep((useconds_t)tt_rand_int(0, 3000));
	plan->at_ns = te__boot_now();
	for (int i = 0; i < plan->n; i++)
		if (plan->at >> i & 1)
			kill(ranks_pid(i), signal);
}

static int nothers(void)
{
	return plan->n - __builtin_popcount(plan->at);
}

static void run(enum meet how, ranks_fn *fn, struct ranks_result *res)
{
	ranks_meet(how, plan->n);
	ranks_start(plan->n, fn, NULL);
	if (plan->fault == KILL || plan->fault == STOP)
		happen(plan->fault == KILL ? SIGKILL : SIGSTOP);
	if (plan->fault == STOP) {
		ranks_await(&plan->nleft, nothers());
		for (int i = 0; i < plan->n; i++)
			if (plan->at >> i & 1)
				kill(ranks_pid(i), SIGCONT);
	}
	ranks_wait(res);
	ranks_part();
}

/* ---- all ranks get a named error in time, and the process can go on ---- */

/* a communicator of the ranks without the fault, in a folder: nothing of the failed one */
static int another(struct joined *j)
{
	struct te_comm_opts o = TE_COMM_OPTS_INIT;

	j->comm = te_comm_unref(j->comm);
	o.name = "another";
	o.timeout_ms = 30000;
	o.pool_nbytes = 256 << 10;
	for (int i = 0; i < plan->n; i++) {
		if (plan->at >> i & 1)
			continue;
		if (i < j->who)
			o.rank++;
		j->was[o.nranks++] = i;
	}
	STEP(te_comm_create(j->ctx, &o, &j->comm));
	return reduce(j, TE_COMM_AUTO, COUNT, NULL);
}

static char another_dir[200];

static int fail_and_create(int rank, void *arg)
{
	struct joined j;
	char text[600];
	double ms;
	int r, second;

	setenv("TE_COMM_DIR", another_dir, 1);
	r = join(rank, &j);
	if (!r)
		r = reduce_until_it_fails(&j);
	ms = (double)(te__boot_now() - plan->at_ns) * 1e-6;
	snprintf(text, sizeof(text), "after %.0f ms: %s", ms, te_error_detail());
	/* again, without a wait: the same code */
	second = te_comm_allreduce(j.comm, j.s, text, text, 1, TE_DTYPE_UINT8, TE_COMM_SUM, NULL);
	if (second != r)
		return leave(&j, te_fail(-EPROTO, "first %d: %s, then %d", r, text, second));
	if (!has_fault(&j)) {
		second = another(&j);
		if (second)
			return leave(&j, second);
	}
	te_fail(r, "%s", text);
	return leave(&j, r);
}

static const struct {
	enum fault fault;
	uint32_t at;
	enum te_comm_algorithm algorithm;
	int timeout_ms; /* 0: a long one */
	int code;
	const char *text;
} faults[] = {
	{ KILL, 8, TE_COMM_LL, 0, -TE_EPEER, "rank 3 (host " },
	{ KILL, 4, TE_COMM_ONE_SHOT, 0, -TE_EPEER, ") has ended" },
	{ KILL, 4, TE_COMM_ZERO_COPY, 0, -TE_EPEER, ") has ended" },
	{ KILL, 1, TE_COMM_AUTO, 0, -TE_EPEER, ") has ended" },
	{ KILL, 10, TE_COMM_AUTO, 0, -TE_EPEER, ") has ended" },
	{ STOP, 4, TE_COMM_AUTO, 700, -ETIMEDOUT, "rank 2 (host " },
	{ SKIP, 8, TE_COMM_ZERO_COPY, 700, -ETIMEDOUT, ") has not taken part in operation 6 of " },
	{ SIZE, 8, TE_COMM_ONE_SHOT, 0, -TE_EMISMATCH, "a sum of 100 fp32 by oneshot" },
	{ SIZE, 2, TE_COMM_STAGED, 0, -TE_EMISMATCH, "operation 6 of rank " },
};

CASE(allreduce, "host", .setup = setup);

TEST_EACH(allreduce, every_rank_gets_a_named_error_in_time, TT_LEN(faults))
{
	struct ranks_result res[RANKS_MAX];
	const int ms = TT_SLOWER(faults[_i].timeout_ms);

	snprintf(another_dir, sizeof(another_dir), "%s", ranks_mkdir());
	plan->fault = faults[_i].fault;
	plan->at = faults[_i].at;
	plan->algorithm = faults[_i].algorithm;
	if (ms)
		plan->timeout_ms = ms;
	run(_i & 1 ? MEET_CALLBACK : MEET_ID, fail_and_create, res);
	for (int i = 0; i < plan->n; i++) {
		double after;

		if (plan->fault == KILL && plan->at >> i & 1) {
			ck_assert_int_eq(res[i].signal, SIGKILL);
			continue;
		}
		ranks_failed(&res[i], faults[_i].code, faults[_i].text, 100000);
		ck_assert_int_eq(sscanf(res[i].text, "after %lf ms", &after), 1);
		/* one that was stopped learns of it later, of course */
		if (plan->fault != STOP || !(plan->at >> i & 1))
			ck_assert_msg(after < SOON + 1.2 * ms && after >= 0.5 * ms, "%s",
				      res[i].text);
	}
	rmdir(another_dir);
}

/* ---- members ---- */

#define MEMBERS 5

static struct members {
	struct te__control *control;
	struct te__node_info info;
	int sign[MEMBERS];
	struct member {
		pthread_t thread;
		int rank;
		uint64_t seed;
		int succeeded;
		uint32_t attempt, set;
	} m[MEMBERS];
} members;

/* comes at some time, waits for some time, and fails sometimes, until it is in or out */
static void *member(void *arg)
{
	struct member *m = arg;
	uint64_t x = m->seed;

	for (;;) {
		uint32_t attempt = 0, set = 0;

		usleep((useconds_t)(te__splitmix64(&x) % 3000));
		if (te__members_settle(members.control, &members.info,
				       members.sign[m->rank], m->rank,
				       te__boot_now() + (int64_t)(te__splitmix64(&x) % 4000000),
				       &attempt) == -TE_ESTATE)
			return NULL;
		if (!attempt)
			continue;
		for (int i = 0; i < MEMBERS; i++)
			set |= (uint32_t)te__members_has(members.control, i, attempt) << i;
		usleep((useconds_t)(te__splitmix64(&x) % 3000)); /* creates it */
		m->succeeded = te__members_end(members.control, attempt,
					       te__splitmix64(&x) % 3 != 0);
		m->attempt = attempt;
		m->set = set;
		if (m->succeeded)
			return NULL;
	}
}

CASE(members, "host");

/* whenever ranks arrive, and whatever fails: there is one successor at most */
TEST(members, ranks_agree_on_one_set_of_members)
{
	static const char *const name[MEMBERS] = { "rank 0", "rank 1", "rank 2", "rank 3",
						   "rank 4" };
	int nfull = 0, nparts = 0;

	for (int k = 0; k < (int)TT_FEWER(32); k++) {
		uint32_t in = 0;
		int fd, first = -1;
		void *page;

		members.info = (struct te__node_info){ .nlocal = MEMBERS, .name = name };
		DO(te__sealed_create("the control page", TE__CONTROL_NBYTES, &fd));
		DO(te__sealed_map("the control page", fd, TE__CONTROL_NBYTES, &page));
		members.control = page;
		for (int i = 0; i < MEMBERS; i++)
			DO(te__members_sign(&members.info, fd, i, &members.sign[i]));
		close(fd);
		for (int i = 0; i < MEMBERS; i++) {
			members.m[i] = (struct member){ .rank = i, .seed = tt_rand_u64() };
			ck_assert_int_eq(pthread_create(&members.m[i].thread, NULL, member,
							&members.m[i]), 0);
		}
		for (int i = 0; i < MEMBERS; i++)
			pthread_join(members.m[i].thread, NULL);
		for (int i = 0; i < MEMBERS; i++) {
			const struct member *m = &members.m[i];

			close(members.sign[i]);
			if (!m->succeeded)
				continue;
			first = first < 0 ? i : first;
			in |= 1u << i;
			ck_assert_uint_eq(m->attempt, members.m[first].attempt);
			ck_assert_uint_eq(m->set, members.m[first].set);
		}
		/* who succeeds is in the set that all see */
		ck_assert_int_ge(first, 0);
		ck_assert_uint_eq(in & ~members.m[first].set, 0);
		nfull += members.m[first].set == (1u << MEMBERS) - 1;
		nparts += members.m[first].set != (1u << MEMBERS) - 1;
		munmap(page, TE__CONTROL_NBYTES);
	}
	ck_assert_int_gt(nfull + nparts, 0);
	ck_assert_int_gt(nparts, 0);
}

TT_SUITE("comm/faults", TT_NEED_NOTHING)
{
	setenv("TE_COMM_PACKETS", "64K", 1);
}
