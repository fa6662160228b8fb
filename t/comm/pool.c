/* t/comm/pool.c - symmetric memory of threads on either backend, and of processes. */
#include "config.h"

#include <signal.h>
#include <unistd.h>

#include <te/comm.h>

#include "libtecore/base/private.h"
#include "ranks.h"
#include "threads.h"
#include "tt_ctx.h"

#define POOL (1 << 20)

/* what the ranks of a test share, apart from the memory under test */
struct plan {
	int nranks;
	int timeout_ms;
	int fault_rank, fault; /* which rank fails, at which point */
	_Atomic int fired;
	uint64_t pool_nbytes[RANKS_MAX];
	_Atomic int ready;
};

static struct plan *plan;

/* a context and a communicator of a rank */
struct joined {
	struct te_ctx *ctx;
	struct te_comm *comm;
};

static int join(int rank, struct joined *j)
{
	struct te_comm_opts o = ranks_opts(rank);
	struct te_ctx_opts c = TE_CTX_OPTS_INIT;

	*j = (struct joined){ NULL, NULL };
	c.backend = "host";
	o.timeout_ms = plan->timeout_ms;
	o.pool_nbytes = plan->pool_nbytes[rank];
	STEP(te_ctx_create(&c, &j->ctx));
	return te_comm_create(j->ctx, &o, &j->comm);
}

/* passes r on; a mapping that is left is an error */
static int leave(struct joined *j, int r)
{
	char text[512];

	snprintf(text, sizeof(text), "%s", te_error_detail());
	te_comm_unref(j->comm);
	te_ctx_unref(j->ctx);
	te_error_clear();
	if (ranks_nmaps())
		return te_fail(-EPROTO, "%d mappings are left after: %s", ranks_nmaps(), text);
	return r ? te_fail(r, "%s", text) : 0;
}

static void setup(void)
{
	plan = ranks_shared(sizeof(*plan));
	plan->timeout_ms = 20000;
	for (int i = 0; i < RANKS_MAX; i++)
		plan->pool_nbytes[i] = POOL;
}

static void run_by(enum meet how, int n, ranks_fn *fn, struct ranks_result *res)
{
	plan->nranks = n;
	ranks_meet_run(how, n, fn, NULL, res);
}

static void run(int n, ranks_fn *fn, struct ranks_result *res)
{
	run_by(MEET_ID, n, fn, res);
}

/* ---- each rank writes, all read ---- */

static unsigned char byte_of(int rank, int block, size_t i)
{
	return (unsigned char)(rank * 37 + block * 101 + (int)(i * 7 % 251));
}

static int exchange(struct joined *j, int rank)
{
	static const size_t size[] = { 3, 4097, 70001 };
	unsigned char *p[3];
	void *v;

	for (int b = 0; b < 3; b++) {
		STEP(te_comm_alloc(j->comm, size[b], &v));
		p[b] = v;
		for (size_t i = 0; i < size[b]; i++)
			p[b][i] = byte_of(rank, b, i);
	}
	STEP(te_comm_reclaim(j->comm));
	for (int k = 0; k < plan->nranks; k++)
		for (int b = 0; b < 3; b++) {
			const unsigned char *q = te_comm_peer_ptr(j->comm, p[b], k);

			for (size_t i = 0; i < size[b]; i++)
				if (q[i] != byte_of(k, b, i))
					return te_fail(-EPROTO, "byte %zu of rank %d", i, k);
		}
	STEP(te_comm_reclaim(j->comm));
	for (int b = 0; b < 3; b++)
		STEP(te_comm_free(j->comm, p[b]));
	return te_comm_reclaim(j->comm);
}

static int whole(int rank, void *arg)
{
	struct joined j;
	int r = join(rank, &j);

	if (!r)
		r = exchange(&j, rank);
	return leave(&j, r);
}

CASE(processes, "host", .setup = setup);

TEST_EACH(processes, processes_read_each_others_memory, ON_HOST ? 9 : 0, .from = 1)
{
	struct ranks_result res[RANKS_MAX];

	run(_i, whole, res);
	ranks_ok(_i, res);
}

/* ---- sizes ---- */

TEST_IF(processes, pools_of_different_sizes_are_refused, ON_HOST)
{
	struct ranks_result res[RANKS_MAX];

	plan->pool_nbytes[2] = 2 * POOL;
	run(3, whole, res);
	for (int i = 0; i < 3; i++)
		ranks_failed(&res[i], -TE_EMISMATCH,
			     "wants a pool of 2097152 bytes, rank 0 one of 1048576", 15000);
}

static int by_env(int rank, void *arg)
{
	struct te_comm_memory m = TE_COMM_MEMORY_INIT;
	struct joined j;
	int r;

	setenv("TE_COMM_POOL", "3M", 1);
	setenv("TE_COMM_PACKETS", "1M", 1);
	setenv("TE_DEVICE_MEM_LIMIT", rank == 1 && plan->fault ? "2M" : "64M", 1);
	r = join(rank, &j);
	if (!r)
		r = te_comm_memory(j.comm, &m);
	if (!r && m.pool_nbytes != 3 << 20)
		r = te_fail(-EPROTO, "a pool of %llu bytes", (unsigned long long)m.pool_nbytes);
	return leave(&j, r);
}

TEST_IF(processes, the_environment_sets_the_size, ON_HOST)
{
	struct ranks_result res[RANKS_MAX];

	memset(plan->pool_nbytes, 0, sizeof(plan->pool_nbytes));
	run_by(MEET_CALLBACK, 2, by_env, res);
	ranks_ok(2, res);
	/* a rank has too little memory: all are told which one, at once */
	plan->fault = 1;
	run_by(MEET_CALLBACK, 3, by_env, res);
	for (int i = 0; i < 3; i++)
		/* the pool, the packets, and 36 KiB of channels */
		ranks_failed(&res[i], -ENOMEM, "no 4231168 bytes of device memory", 60000);
	ck_assert_ptr_nonnull(strstr(res[0].text, "rank 1"));
	ck_assert_ptr_nonnull(strstr(res[2].text, "rank 1"));
}

static int debug(int rank, void *arg)
{
	struct joined j;
	void *p;
	int r;

	setenv("TE_COMM_DEBUG", "on", 1);
	r = join(rank, &j);
	if (!r)
		r = te_comm_alloc(j.comm, 512, &p);
	if (!r)
		r = te_comm_alloc(j.comm, rank == 2 ? 600 : 512, &p);
	return leave(&j, r);
}

TEST_IF(processes, debug_mode_finds_the_call_that_differs, ON_HOST)
{
	struct ranks_result res[RANKS_MAX];

	run_by(MEET_CALLBACK, 3, debug, res);
	for (int i = 0; i < 3; i++) {
		ranks_failed(&res[i], -TE_EMISMATCH, "has 600 bytes at offset 512, allocation 2 of "
			     "rank 0 has 512 bytes at offset 512", 15000);
		ck_assert_ptr_nonnull(strstr(res[i].text, "te_comm_alloc: allocation 2 of rank 2"));
	}
}

/* ---- a rank is killed ---- */

/* calls until a call fails */
static int use_for_ever(int rank, void *arg)
{
	struct joined j;
	void *p;
	int r = join(rank, &j);

	plan->ready++;
	for (int i = 0; i < 100000 && !r; i++) {
		r = te_comm_alloc(j.comm, 100, &p);
		if (!r)
			r = te_comm_free(j.comm, p);
		if (!r && i % 4 == rank % 4)
			usleep(100);
		if (!r)
			r = te_comm_reclaim(j.comm);
	}
	return leave(&j, r);
}

/* waits until the page has it: no call exchanges anything */
static int only_watch(int rank, void *arg)
{
	struct joined j;
	void *p;
	int r = join(rank, &j);

	plan->ready++;
	for (int i = 0; i < 20000 && !r; i++) {
		usleep(1000);
		r = te_comm_alloc(j.comm, 1, &p);
	}
	return leave(&j, r);
}

static void kill_one(int n, int which, ranks_fn *fn, int after_us, struct ranks_result *res)
{
	plan->nranks = n;
	plan->ready = 0;
	ranks_meet(MEET_ID, n);
	ranks_start(n, fn, NULL);
	while (after_us < 0 && plan->ready < n)
		usleep(500);
	usleep((useconds_t)(after_us < 0 ? -after_us : after_us));
	kill(ranks_pid(which), SIGKILL);
	ranks_wait(res);
	ranks_part();
}

CASE(ends, "host", .setup = setup);

/* while they use it: any rank, the one that created the control page too */
TEST_EACH(ends, a_killed_rank_is_named_in_time, ON_HOST ? 3 : 0)
{
	static ranks_fn *const fn[] = { use_for_ever, only_watch };
	struct ranks_result res[RANKS_MAX];
	char name[16];

	for (int k = 0; k < 2; k++) {
		kill_one(3, _i, fn[k], -5000, res);
		snprintf(name, sizeof(name), "rank %d", _i);
		for (int i = 0; i < 3; i++) {
			if (i == _i) {
				ck_assert_int_eq(res[i].signal, SIGKILL);
				continue;
			}
			ranks_failed(&res[i], -TE_EPEER, name, 15000);
			ck_assert_ptr_nonnull(strstr(res[i].text, "ended"));
		}
	}
}

/* at any time while they meet and exchange memory */
TEST_IF(ends, a_rank_killed_at_any_time_hangs_no_other, ON_HOST)
{
	struct ranks_result res[RANKS_MAX];

	plan->timeout_ms = 3000;
	for (int k = 0; k < (int)TT_FEWER(12); k++) {
		const int which = (int)tt_rand_int(0, 2);

		kill_one(3, which, use_for_ever, (int)tt_rand_int(0, 25000), res);
		for (int i = 0; i < 3; i++) {
			if (i == which)
				continue;
			ck_assert_int_eq(res[i].signal, 0);
			ck_assert_msg(res[i].r == -TE_EPEER || res[i].r == -TE_EABORT ||
				      res[i].r == -ETIMEDOUT, "%d: %s", res[i].r, res[i].text);
			ck_assert_str_ne(res[i].text, "");
			ck_assert_int_eq(res[i].nleft_fd, 0);
			ck_assert_int_eq(res[i].nleft_alloc, 0);
		}
	}
}

/* ---- each call of each rank fails once ---- */

static int faulted(int rank, void *arg)
{
	struct te_ctx_opts c = TE_CTX_OPTS_INIT;
	struct te_comm_opts o = ranks_opts(rank);
	struct joined j = { NULL, NULL };
	void *p;
	int r;

	c.backend = "host";
	o.timeout_ms = plan->timeout_ms;
	o.pool_nbytes = POOL;
	STEP(te_ctx_create(&c, &j.ctx));
	if (rank == plan->fault_rank)
		te__fault_set((uint64_t)plan->fault);
	r = te_comm_create(j.ctx, &o, &j.comm);
	if (!r)
		r = te_comm_alloc(j.comm, 100, &p);
	if (!r)
		r = te_comm_free(j.comm, p);
	if (!r)
		r = te_comm_reclaim(j.comm);
	if (rank == plan->fault_rank) {
		plan->fired = te__fault_fired();
		te__fault_set(0);
	}
	return leave(&j, r);
}

TEST_EACH(ends, a_failing_call_of_one_rank_fails_on_all, ON_HOST ? 2 : 0)
{
	struct ranks_result res[RANKS_MAX];
	int n = 0;

	plan->fault_rank = _i;
	/* the others wait that long for a rank that fails before it meets them */
	plan->timeout_ms = TT_SLOWER(300);
	for (plan->fault = 1;; plan->fault += 1 + plan->fault / (int)TT_FEWER(10)) {
		run(3, faulted, res);
		if (!plan->fired)
			break;
		n++;
		for (int i = 0; i < 3; i++) {
			ck_assert_msg(!res[i].signal, "fault %d: rank %d: signal or exit status %d",
				      plan->fault, i, res[i].signal);
			/* the bootstrap tries some calls again */
			ck_assert_msg(res[_i].r < 0 || !res[i].r, "fault %d: rank %d: %s",
				      plan->fault, i, res[i].text);
			ck_assert_msg(res[i].r != -EPROTO, "fault %d: rank %d: %s", plan->fault, i,
				      res[i].text);
			ck_assert_msg(res[i].r == 0 || res[i].text[0], "no message");
			ck_assert_msg(!res[i].nleft_fd && !res[i].nleft_alloc,
				      "fault %d: rank %d left %d descriptors, %d allocations",
				      plan->fault, i, res[i].nleft_fd, res[i].nleft_alloc);
			ck_assert_msg(res[i].ms < 60000, "fault %d: %.0f ms", plan->fault,
				      res[i].ms);
		}
	}
	ck_assert_int_gt(n, 5);
	plan->fault = 0; /* a call may be later than in the run before */
	plan->timeout_ms = 20000;
	run(3, faulted, res);
	ranks_ok(3, res);
}

TT_PAIR_SUITE_OF("comm/pool", TT_NEED_NOTHING)
{
	threads_pool_nbytes = (uint64_t)8 << 20;
}
