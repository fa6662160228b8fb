/*
 * t/comm/leaving.c - communicators that are released: in a forked child, while the thread is
 * capturing, before the others release theirs; and waits for a rank that is stopped.
 */
#include "config.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <te/capture.h>
#include <te/collective.h>
#include <te/comm.h>

#include "libtecomm/meet/bootstrap.h"
#include "libtecore/base/private.h"
#include "libtecore/tensor/ctx.h"
#include "nodes_lib.h"
#include "threads.h"

/* memory that the processes of a test share */
static struct plan {
	const char *nodes; /* a letter for each rank */
	int timeout_ms;
	_Atomic int nready, nleft;
	_Atomic int64_t at_ns;
	_Atomic double ms[RANKS_MAX]; /* measurement of each rank */
} *plan;

static const char *const nodes[] = { "aa", "ab" };

static void setup(void)
{
	plan = ranks_shared(sizeof(*plan));
	plan->nodes = nodes[0];
	plan->timeout_ms = 60000;
}

static int join(int rank, struct joined *j)
{
	return nodes_join(j, rank, plan->nodes[rank], plan->timeout_ms, 5000, 0, 1);
}

static int leave(struct joined *j, int r)
{
	plan->nleft++; /* who waits for it need not see the end */
	return nodes_leave(j, r);
}

static double ms_since(int64_t ns)
{
	return (double)(te__boot_now() - ns) * 1e-6;
}

static void run(int n, ranks_fn *fn, struct ranks_result *res)
{
	ranks_meet(MEET_DIR, n);
	ranks_start(n, fn, NULL);
	ranks_wait(res);
	ranks_part();
}

/* ---- forked children ---- */

/* 0: it ended in order */
static int child_ends(pid_t child)
{
	int status = -1;

	waitpid(child, &status, 0);
	HOLDS(WIFEXITED(status) && !WEXITSTATUS(status));
	return 0;
}

static int forking_rank(int rank, void *arg)
{
	struct joined j;
	pid_t child;
	int r = join(rank, &j);

	for (int k = 0; k < 2 && !r; k++)
		r = nodes_reduce(&j, 0);
	if (!r && !rank) {
		child = fork();
		if (!child) {
			alarm(100);
			te_comm_unref(j.comm);
			te_ctx_unref(j.ctx);
			_exit(0);
		}
		r = child_ends(child);
	}
	for (int k = 0; k < 3 && !r; k++)
		r = nodes_reduce(&j, 0);
	if (!r)
		r = te_comm_reclaim(j.comm); /* over the bootstrap */
	return leave(&j, r);
}

/* processes of several threads are forked, which ThreadSanitizer does not take */
CASE(fork, "host overlap", .setup = setup);

TEST_EACH(fork, a_forked_child_releases_nothing_of_its_parent, TT_LEN(nodes))
{
	struct ranks_result res[2];

	plan->nodes = nodes[_i];
	run(2, forking_rank, res);
	ranks_ok(2, res);
}

static int by_id(int rank, void *arg)
{
	struct te_comm_opts o = TE_COMM_OPTS_INIT;
	struct te__boot *b = NULL;
	int r;

	o.rank = rank;
	o.nranks = 2;
	o.id = arg;
	o.timeout_ms = 20000;
	r = te__boot_open(&o, &b);
	te__boot_close(b);
	return r;
}

TEST(fork, a_forked_child_does_not_end_the_root)
{
	struct te_comm_root *root;
	struct ranks_result res[2];
	struct te_comm_id id;
	pid_t child;

	ck_assert_int_eq(te_comm_id_create(&id, &root), 0);
	child = fork();
	if (!child) {
		alarm(100);
		te_comm_root_unref(root);
		_exit(0);
	}
	ck_assert_int_eq(child_ends(child), 0);
	ranks_run(2, by_id, &id, res);
	ck_assert_ptr_null(te_comm_root_unref(root));
	ranks_ok(2, res);
}

/* ---- while capturing ---- */

static void wait_a_while(void *arg)
{
	usleep(300000);
}

static int capturing_rank(int rank, void *arg)
{
	struct te_recording *rec;
	struct te_stream *s;
	struct joined j;
	int r = join(rank, &j);
	void *p;

	if (r)
		return leave(&j, r);
	STEP(te_stream_create(j.ctx, &s));
	STEP(te_comm_alloc(j.comm, 40000, &p));
	STEP(te_host_call(j.s, wait_a_while, NULL, 0));
	STEP(te_comm_allreduce(j.comm, j.s, p, p, 10000, TE_DTYPE_FP32, TE_COMM_SUM, NULL));
	STEP(te_capture_begin(s));
	j.comm = te_comm_unref(j.comm); /* waits for the operation */
	STEP(te_capture_end(s, &rec));
	te_recording_unref(rec);
	te_stream_unref(s);
	return leave(&j, te_ctx_sync(j.ctx));
}

CASE(leaving, "host", .setup = setup);

TEST_EACH(leaving, a_thread_that_captures_can_release_a_communicator, TT_LEN(nodes))
{
	struct ranks_result res[2];

	plan->nodes = nodes[_i];
	run(2, capturing_rank, res);
	ranks_ok(2, res);
}

static int is_capturing(void *stream)
{
	return 1;
}

/* the driver API has begun a capture: the library cannot wait for queued work */
static int captured_rank(int rank, void *arg)
{
	const struct te__backend_ops *host;
	struct te__backend_ops ops;
	struct joined j;
	float one = 1, sum = 0;
	int r = join(rank, &j);
	void *p;

	if (r)
		return leave(&j, r);
	host = j.ctx->ops;
	ops = *host;
	ops.capture_active = is_capturing;
	STEP(te_comm_alloc(j.comm, sizeof(one), &p));
	STEP(te_copy(j.s, p, &one, sizeof(one)));
	STEP(te_stream_sync(j.s));
	STEP(te_host_call(j.s, wait_a_while, NULL, 0));
	STEP(te_comm_allreduce(j.comm, j.s, p, p, 1, TE_DTYPE_FP32, TE_COMM_SUM, NULL));
	STEP(te_copy(j.s, &sum, p, sizeof(sum)));
	j.ctx->ops = &ops;
	j.comm = te_comm_unref(j.comm);
	j.ctx->ops = host;
	r = te_stream_sync(j.s);
	/* a process that ends without a release cuts its connections */
	plan->nleft++;
	ranks_await(&plan->nleft, 2);
	STEP(r);
	HOLDS(sum == 2);
	return 0; /* without the context, to which the communicator refers */
}

/* threads end with the process, in which ThreadSanitizer may see them unjoined */
CASE(kept, "host overlap", .setup = setup);

TEST_EACH(kept, memory_is_kept_where_a_capture_hides_what_uses_it, TT_LEN(nodes))
{
	struct ranks_result res[2];

	plan->nodes = nodes[_i];
	run(2, captured_rank, res);
	for (int i = 0; i < 2; i++)
		ck_assert_msg(!res[i].r && !res[i].signal, "rank %d: %d, signal %d: %s", i,
			      res[i].r, res[i].signal, res[i].text);
}

/* ---- multicast memory after a recovery from two nodes to one ---- */

static int recovering_rank(int rank, void *arg)
{
	struct te_comm *next;
	int32_t was[RANKS_MAX];
	struct joined j;
	int64_t begin;
	int r;

	setenv("TE_COMM_NVLS", "on", 1);
	r = join(rank, &j);
	if (!r && rank == 2)
		raise(SIGKILL);
	while (!r)
		r = nodes_reduce(&j, 0);
	r = te_comm_recover(j.comm, NULL, was, &next);
	if (r)
		return leave(&j, r);
	nodes_succeed(&j, next, was);
	r = nodes_reduce(&j, 0);
	if (rank)
		tt_pause(700);
	begin = te__boot_now();
	j.comm = te_comm_unref(j.comm);
	plan->ms[rank] = ms_since(begin);
	return leave(&j, r);
}

TEST(leaving, multicast_memory_is_released_by_all_after_a_recovery)
{
	struct ranks_result res[3];

	plan->nodes = "aab";
	run(3, recovering_rank, res);
	ranks_ok(2, res);
	ck_assert_msg(plan->ms[0] > 300, "rank 0 has waited for %.0f ms", plan->ms[0]);
}

/* ---- a rank that leaves before the others ---- */

static int staying_rank(int rank, void *arg)
{
	struct joined j;
	int r = join(rank, &j);

	if (!r)
		r = nodes_reduce(&j, 0);
	if (!r && rank == 1) {
		j.comm = te_comm_unref(j.comm);
		plan->nready = 1;
		ranks_await(&plan->nleft, 1); /* its end does not tell the other */
	}
	if (!r && !rank) {
		ranks_await(&plan->nready, 1);
		plan->at_ns = te__boot_now();
		while (!r)
			r = nodes_reduce(&j, 0);
		plan->ms[rank] = ms_since(plan->at_ns);
	}
	return leave(&j, r);
}

TEST_EACH(leaving, a_rank_that_has_left_is_not_waited_for, TT_LEN(nodes))
{
	struct ranks_result res[2];

	plan->nodes = nodes[_i];
	run(2, staying_rank, res);
	ranks_failed(&res[0], -TE_EPEER, "rank 1 (", 30000);
	ck_assert_msg(plan->ms[0] < 10000, "after %.0f ms", plan->ms[0]);
	ranks_ok(1, &res[1]);
}

/* an operation that was queued before the other rank left fails after the time-out */
static int too_many_rank(int rank, void *arg)
{
	struct joined j;
	int r = join(rank, &j);

	if (!r && !rank)
		r = te_comm_barrier(j.comm, j.s);
	plan->nready += !r;
	if (!r && rank) {
		ranks_await(&plan->nready, 2);
		j.comm = te_comm_unref(j.comm);
		ranks_await(&plan->nleft, 1);
	}
	if (!r && !rank)
		r = te_stream_sync(j.s);
	if (!r && !rank)
		r = te_comm_error(j.comm);
	return leave(&j, r);
}

TEST(leaving, an_operation_too_many_names_the_rank_that_has_left)
{
	struct ranks_result res[2];

	plan->timeout_ms = TT_SLOWER(500);
	run(2, too_many_rank, res);
	ranks_failed(&res[0], -TE_EPEER, "has released its communicator before operation", 60000);
	ranks_ok(1, &res[1]);
}

/* ---- a rank that is stopped is waited for once ---- */

static _Atomic int stops; /* before this rank passes its pool to another one */

ssize_t sendmsg(int fd, const struct msghdr *m, int flags)
{
	if (stops && m->msg_controllen) {
		stops = 0;
		raise(SIGSTOP);
	}
	return syscall(SYS_sendmsg, fd, m, flags);
}

static int once(int rank, struct joined *j)
{
	int r = 0;

	plan->nready++;
	ranks_await(&plan->nready, 2);
	if (rank)
		raise(SIGSTOP);
	usleep(100000);
	plan->at_ns = te__boot_now();
	if (!rank) {
		r = te_comm_barrier(j->comm, j->s);
		if (!r)
			r = te_comm_reclaim(j->comm);
		plan->ms[0] = ms_since(plan->at_ns);
	}
	return r;
}

static int reclaiming_rank(int rank, void *arg)
{
	struct joined j;
	int r = join(rank, &j);

	if (!r)
		r = once(rank, &j);
	return leave(&j, r);
}

/* arg: the rank that is stopped */
static int creating_rank(int rank, void *arg)
{
	const int64_t begin = te__boot_now();
	struct joined j;
	int r;

	stops = rank == *(int *)arg;
	r = join(rank, &j);
	plan->ms[rank] = ms_since(begin);
	return leave(&j, r);
}

/* after all others have ended */
static void wait_and_kill(int n, int who, struct ranks_result *res)
{
	ranks_await(&plan->nleft, n - 1);
	kill(ranks_pid(who), SIGKILL);
	ranks_wait(res);
	ranks_part();
}

CASE(stopped, "host", .setup = setup);

TEST(stopped, memory_is_reclaimed_with_one_time_out)
{
	struct ranks_result res[2];

	plan->timeout_ms = TT_SLOWER(1000);
	ranks_meet(MEET_DIR, 2);
	ranks_start(2, reclaiming_rank, NULL);
	wait_and_kill(2, 1, res);
	ranks_failed(&res[0], -ETIMEDOUT, "rank 1 (", 60000);
	ck_assert_msg(plan->ms[0] < 1.8 * plan->timeout_ms, "after %.0f ms", plan->ms[0]);
}

TEST_EACH(stopped, a_communicator_is_created_with_one_time_out, 3)
{
	struct ranks_result res[3];
	int who = _i;

	plan->nodes = "aaa";
	plan->timeout_ms = TT_SLOWER(1000);
	ranks_meet(MEET_DIR, 3);
	ranks_start(3, creating_rank, &who);
	wait_and_kill(3, who, res);
	for (int i = 0; i < 3; i++) {
		if (i == who)
			continue;
		ck_assert_int_lt(res[i].r, 0);
		ck_assert_msg(plan->ms[i] < 1.8 * plan->timeout_ms, "rank %d after %.0f ms: %s", i,
			      plan->ms[i], res[i].text);
	}
}

TT_MAIN("comm/leaving", TT_NEED_NOTHING)
