/* t/comm/bootstrap_ted.c - ranks meet at ted(8): missing, killed and late ones, ted killed. */
#include "config.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <te/collective.h>
#include <te/comm.h>
#include <te/ctx.h>
#include <te/errno.h>
#include <te/stream.h>

#include "libtecomm/bootstrap/bootstrap.h"
#include "libtecore/base/private.h"
#include "ranks.h"
#include "threads.h"
#include "tt_ted.h"

#define NRANKS_MAX 8
#define SOON 10000.0 /* ms: less than the time-out of 30 s */

static char job[32];
/* what ranks tell the test and each other */
static struct {
	atomic_int n, told, pid;
} *shared;

/* open files of ted without clients: it closes what it needed for its start */
static int before_ranks(void)
{
	const int s = join(&run, key, TE__WIRE_NO_RANK, 0), n = nfds_of(run.pid) - 1;

	close(s);
	ck_nfds(&run, n);
	return n;
}

static void begin(void)
{
	run_begin("");
	snprintf(job, sizeof(job), "job %d", (int)tt_rand_int(0, 1 << 30));
	shared = ranks_shared(sizeof(*shared));
}

/* how ranks reach the ted of the test */
static void set_environment(int rank, int n)
{
	char text[16];

	setenv("TE_COMM_DIR", run.sock, 1);
	setenv("TE_COMM_JOB", job, 1);
	snprintf(text, sizeof(text), "%d", n);
	setenv("TE_COMM_NRANKS", text, 1);
	snprintf(text, sizeof(text), "%d", rank);
	setenv("TE_COMM_RANK", text, 1);
}

static int open_boot(int rank, int n, int timeout_ms, struct te__boot **ret_b)
{
	struct te_comm_opts o = TE_COMM_OPTS_INIT;

	set_environment(rank, n);
	o.timeout_ms = timeout_ms;
	return te__boot_open(&o, ret_b);
}

/* each rank gets what each has sent */
static int gather(struct te__boot *b)
{
	uint64_t mine = tt_seed() * (uint64_t)(te__boot_rank(b) + 3), all[RANKS_MAX];
	int r;

	tt_poison(all, sizeof(all));
	r = te__boot_allgather(b, &mine, all, sizeof(mine), "exchange", 0);
	for (int i = 0; i < te__boot_nranks(b) && !r; i++)
		if (all[i] != tt_seed() * (uint64_t)(i + 3))
			r = te_fail(-EILSEQ, "wrong part of rank %d", i);
	return r;
}

/* ted has no connection of ranks any more: they need it only to meet */
static void ck_left(int before)
{
	ck_nfds(&run, before);
}

/* ---- meeting ---- */

/* several at a time and one after the other, of one name and of two */
static int communicators(int rank, void *arg)
{
	struct te_comm_opts o = TE_COMM_OPTS_INIT;
	const int n = *(const int *)arg;
	struct te__boot *b[4] = { 0 };
	int r = 0;

	set_environment(rank, n);
	for (int k = 0; k < 4 && !r; k++) {
		usleep((useconds_t)(tt_seed() >> (3 * rank + k)) % 3000); /* in any order */
		o.name = k % 3 ? "even" : NULL;
		r = te__boot_open(&o, &b[k]);
		if (!r && (te__boot_rank(b[k]) != rank || te__boot_nranks(b[k]) != n))
			r = te_fail(-EILSEQ, "rank %d of %d", te__boot_rank(b[k]),
				    te__boot_nranks(b[k]));
		if (!r && k & 1) {
			r = gather(b[k]);
			b[k] = te__boot_close(b[k]);
		}
	}
	for (int k = 0; k < 4; k++) {
		if (!r && b[k])
			r = gather(b[k]);
		te__boot_close(b[k]);
	}
	return r;
}

START_TEST(ranks_meet_at_ted)
{
	const int n = 1 + _i;
	struct ranks_result res[RANKS_MAX];
	int before;

	begin();
	before = before_ranks();
	ranks_run(n, communicators, (void *)&n, res);
	ranks_ok(n, res);
	ck_left(before);
	run_end(&run);
}
END_TEST

static int only_rank_0(int rank, void *arg)
{
	struct te__boot *b;
	int r;

	(void)arg;
	r = open_boot(rank, 2, 0, &b);
	if (!r)
		te__boot_close(b);
	return r;
}

/* rank 1 is the test: while it has not got the key, rank 0 can put no other one */
START_TEST(no_rank_leaves_before_all_have_the_key)
{
	uint8_t k[TE__WIRE_KEY_NBYTES], got[2][64];
	struct ranks_result res[1];
	size_t n;
	int s;

	begin();
	te__wire_job_key("te_comm_create", job, "comm", k);
	ranks_start(1, only_rank_0, NULL);
	s = join(&run, k, 1, 2);
	ck_assert_int_eq(fence(s, 20000), 0);
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(get(s, "key", 0, got[i], sizeof(got[i]), &n), 0);
		ck_assert_uint_eq(n, TE__BOOT_KEY_NBYTES);
	}
	ck_assert_mem_eq(got[0], got[1], TE__BOOT_KEY_NBYTES);
	ck_assert_int_eq(fence(s, 1000), 0);
	ck_assert_int_eq(bye(s, 0, ""), 0);
	close(s);
	/* it waits for a rank 1 that connects to it */
	ck_assert_int_eq(kill(ranks_pid(0), SIGKILL), 0);
	ranks_wait(res);
	ck_assert_int_eq(res[0].signal, SIGKILL);
	run_end(&run);
}
END_TEST

/* ---- communicators, which hold each other's memory, without ted ---- */

/* what a rank adds: an integer, so that sums are exact */
static float input(int32_t who, int i)
{
	return (float)((who + 3) * (int)((tt_seed() + (uint64_t)i) % 1009));
}

/* the sum over all ranks; was: what they were at first */
static int reduce(struct te_comm *c, struct te_stream *s, const int32_t *was)
{
	enum { COUNT = 1003 };
	float x[COUNT], y[COUNT], want;
	const int n = te_comm_nranks(c);
	void *p;

	tt_poison(y, sizeof(y));
	for (int i = 0; i < COUNT; i++)
		x[i] = input(was[te_comm_rank(c)], i);
	STEP(te_mem_alloc(s, sizeof(x), &p));
	STEP(te_copy(s, p, x, sizeof(x)));
	STEP(te_stream_sync(s));
	STEP(te_comm_allreduce(c, s, p, p, COUNT, TE_DTYPE_FP32, TE_COMM_SUM, NULL));
	STEP(te_copy(s, y, p, sizeof(y)));
	STEP(te_stream_sync(s));
	STEP(te_mem_free(s, p));
	STEP(te_comm_error(c));
	for (int i = 0; i < COUNT; i++) {
		want = 0;
		for (int k = 0; k < n; k++)
			want += input(was[k], i);
		HOLDS(y[i] == want);
	}
	return 0;
}

/* rank 1 is killed after ted was: the others recover */
static int live_without_ted(int rank, struct te_ctx *ctx, struct te_comm **c)
{
	struct te_comm_recover_opts o = TE_COMM_RECOVER_OPTS_INIT;
	struct te_comm_info info = TE_COMM_INFO_INIT;
	static const int32_t all[] = { 0, 1, 2 };
	struct te_stream *s = te_ctx_stream(ctx);
	struct te_comm *next;
	int32_t left[3];

	STEP(te_comm_create(ctx, NULL, c));
	STEP(te_comm_info(*c, &info));
	HOLDS(te_comm_launched() && !strcmp(info.bootstrap, "ted") && info.nlocal == 3 &&
	      info.local_rank == rank);
	STEP(reduce(*c, s, all));
	shared->n++;
	for (int ms = 0; shared->n < 100 && ms < 20000; ms++)
		usleep(1000);
	STEP(reduce(*c, s, all));
	shared->n++;
	if (rank == 1)
		pause();
	HOLDS(reduce(*c, s, all) == -TE_EPEER);
	o.timeout_ms = 20000;
	STEP(te_comm_recover(*c, &o, left, &next));
	te_comm_unref(*c);
	*c = next;
	HOLDS(te_comm_nranks(next) == 2 && left[0] == 0 && left[1] == 2);
	return reduce(next, s, left);
}

static int comm_rank(int rank, void *arg)
{
	struct te_ctx_opts o = TE_CTX_OPTS_INIT;
	struct te_comm *c = NULL;
	struct te_ctx *ctx;
	char text[400];
	int r;

	(void)arg;
	set_environment(rank, 3);
	setenv("TE_COMM_POOL", "256k", 1);
	o.backend = "host";
	STEP(te_ctx_create(&o, &ctx));
	r = live_without_ted(rank, ctx, &c);
	snprintf(text, sizeof(text), "%s", te_error_detail());
	te_comm_unref(c);
	te_ctx_unref(ctx);
	return r ? te_fail(r, "%s", text) : 0;
}

START_TEST(a_communicator_goes_on_without_ted)
{
	struct ranks_result res[3];

	begin();
	ranks_start(3, comm_rank, NULL);
	for (int ms = 0; shared->n < 3 && ms < 20000; ms++)
		usleep(1000);
	ck_assert_int_eq(run_stop(&run, SIGKILL), -SIGKILL);
	shared->n = 100;
	for (int ms = 0; shared->n < 103 && ms < 20000; ms++)
		usleep(1000);
	kill(ranks_pid(1), SIGKILL);
	ranks_wait(res);
	ck_assert_int_eq(res[1].signal, SIGKILL);
	res[1] = res[0];
	ranks_ok(3, res);
	run_start(&run);
	run_end(&run);
}
END_TEST

/* ---- what goes wrong ---- */

static int not_2_and_3(int rank, void *arg)
{
	struct te__boot *b;
	int r;

	(void)arg;
	if (rank == 2 || rank == 3)
		return 0;
	/* the first time-out counts */
	r = open_boot(rank, 5, rank ? 0 : 300, &b);
	if (!r)
		te__boot_close(b);
	return r;
}

START_TEST(missing_ranks_are_named)
{
	struct ranks_result res[5];
	int before;

	begin();
	before = before_ranks();
	ranks_run(5, not_2_and_3, NULL, res);
	for (int i = 0; i < 5; i++)
		if (i != 2 && i != 3)
			ranks_failed(&res[i], -ETIMEDOUT, "2 of 5 ranks are missing: 2 (has not "
				     "connected), 3 (has not connected)", SOON);
	ck_left(before);
	run_end(&run);
}
END_TEST

/* rank 2 comes last and is killed; or the others wait for it when ted is */
static int wait_for_2(int rank, void *arg)
{
	struct te__boot *b;
	int r;

	(void)arg;
	if (rank == 2) {
		pause();
		return 0;
	}
	r = open_boot(rank, 3, 0, &b);
	if (!r)
		te__boot_close(b);
	return r;
}

/* until ted has n clients, which wait */
static void wait_for_clients(int before, int n)
{
	ck_nfds(&run, before + n);
	usleep(20000); /* their next message follows at once */
}

START_TEST(a_killed_rank_ends_the_wait)
{
	struct ranks_result res[3];
	int before;

	begin();
	before = before_ranks();
	ranks_start(3, wait_for_2, NULL);
	wait_for_clients(before, 2);
	ck_assert_int_eq(kill(ranks_pid(1), SIGKILL), 0);
	ck_nfds(&run, before);
	ck_assert_int_eq(kill(ranks_pid(2), SIGKILL), 0);
	ranks_wait(res);
	ranks_failed(&res[0], -TE_EPEER, "rank 1 has ended", SOON);
	run_end(&run);
}
END_TEST

START_TEST(ted_killed_while_ranks_wait_is_named)
{
	struct ranks_result res[3];
	int before;

	begin();
	before = before_ranks();
	ranks_start(3, wait_for_2, NULL);
	wait_for_clients(before, 2);
	ck_assert_int_eq(run_stop(&run, SIGKILL), -SIGKILL);
	ck_assert_int_eq(kill(ranks_pid(2), SIGKILL), 0);
	ranks_wait(res);
	for (int i = 0; i < 2; i++)
		ranks_failed(&res[i], -TE_EPEER, "/sock has ended", SOON);
	run_start(&run);
	run_end(&run);
}
END_TEST

static int go_on_without_ted(int rank, void *arg)
{
	struct te__boot *b, *next_b;
	int r = open_boot(rank, 3, 0, &b);

	(void)arg;
	if (r)
		return r;
	r = gather(b);
	shared->n++;
	for (int ms = 0; shared->n < 100 && ms < 20000; ms++)
		usleep(1000);
	if (!r)
		r = gather(b);
	/* the next one cannot meet */
	if (!r && te__boot_open(&(struct te_comm_opts)TE_COMM_OPTS_INIT, &next_b) != -ECONNREFUSED)
		r = te_fail(-EILSEQ, "%s", te_error_detail());
	if (!r && !strstr(te_error_detail(), "cannot connect to ted at "))
		r = te_fail(-EILSEQ, "%s", te_error_detail());
	te__boot_close(b);
	return r;
}

START_TEST(ranks_that_have_met_do_not_need_ted)
{
	struct ranks_result res[3];

	begin();
	ranks_start(3, go_on_without_ted, NULL);
	for (int ms = 0; shared->n < 3 && ms < 20000; ms++)
		usleep(1000);
	ck_assert_int_eq(run_stop(&run, SIGKILL), -SIGKILL);
	shared->n = 100;
	ranks_wait(res);
	ranks_ok(3, res);
	run_start(&run);
	run_end(&run);
}
END_TEST

static int differ(int rank, void *arg)
{
	struct te__boot *b;
	int r;

	(void)arg;
	/* the others come when rank 0 is there */
	while (rank && !shared->n)
		usleep(1000);
	r = open_boot(rank == 2 ? 0 : rank, rank == 1 ? 4 : 3, rank ? 0 : 300, &b);
	if (!r)
		te__boot_close(b);
	return r;
}

START_TEST(ranks_that_differ_are_refused)
{
	struct ranks_result res[3];
	int before;

	begin();
	before = before_ranks();
	ranks_start(3, differ, NULL);
	wait_for_clients(before, 1);
	shared->n = 1;
	ranks_wait(res);
	ranks_failed(&res[1], -TE_EMISMATCH, "rank 1 of 4, but the job has 3 ranks", SOON);
	ranks_failed(&res[2], -TE_EMISMATCH, "rank 0 is connected already", SOON);
	ranks_failed(&res[0], -ETIMEDOUT, "2 of 3 ranks are missing: 1 (has not", SOON);
	run_end(&run);
}
END_TEST

static int without_job(int rank, void *arg)
{
	struct te_comm_opts o = TE_COMM_OPTS_INIT;
	struct te__boot *b;

	(void)arg;
	set_environment(rank, 2);
	unsetenv("TE_COMM_JOB");
	return te__boot_open(&o, &b);
}

START_TEST(a_job_needs_a_name)
{
	struct ranks_result res[1];

	begin();
	ranks_run(1, without_job, NULL, res);
	ranks_failed(&res[0], -EINVAL, "TE_COMM_JOB is not set", SOON);
	run_end(&run);
}
END_TEST

/* ---- faults ---- */

struct faulty {
	int rank;
	uint64_t fault;
};

/* a rank that fails before it comes: the other one is told, whenever it comes itself */
static void say_so(int rank)
{
	uint8_t k[TE__WIRE_KEY_NBYTES];

	te__wire_job_key("te_comm_create", job, "comm", k);
	for (int ms = 0; !shared->told && ms < 500; ms++) {
		const int s = dial(&run);

		(void)hello(s, k, (uint32_t)rank, 2);
		close(s);
		usleep(1000);
	}
	/* both have left ted */
	if (!shared->told && shared->pid)
		kill(shared->pid, SIGKILL);
}

static int one_faulty(int rank, void *arg)
{
	const struct faulty *f = arg;
	struct te__boot *b = NULL;
	char text[400];
	int r;

	if (rank != f->rank)
		shared->pid = getpid();
	te__fault_set(rank == f->rank ? f->fault : 0);
	r = open_boot(rank, 2, 0, &b);
	snprintf(text, sizeof(text), "%s", te_error_detail());
	te__fault_set(0);
	te__boot_close(b);
	if (rank != f->rank)
		shared->told = 1;
	else if (r)
		say_so(rank);
	return r ? te_fail(r, "%s", text) : 0;
}

/* each call of one rank fails: it reports that, and the other one does not wait for it at ted */
START_TEST(faults_end_the_wait)
{
	struct faulty f = { .rank = _i };
	struct ranks_result res[2];
	int n = 0;

	begin();
	for (f.fault = 1;; f.fault++) {
		shared->told = shared->pid = 0;
		ranks_run(2, one_faulty, &f, res);
		ck_assert_msg(res[_i].r && *res[_i].text, "fault %d", (int)f.fault);
		ck_assert_msg(!res[_i].nleft_fd && !res[_i].nleft_alloc, "fault %d: %s",
			      (int)f.fault, res[_i].text);
		if (res[!_i].signal)
			break;
		ck_assert_msg(res[!_i].r == -TE_EPEER || res[!_i].r == -TE_EABORT, "fault %d: %s",
			      (int)f.fault, res[!_i].text);
		n++;
	}
	/* the next fault would be one after the ranks have met, as with other ways to meet */
	ck_assert_int_ge(n, 8);
	f.fault = 0;
	ranks_run(2, one_faulty, &f, res);
	ranks_ok(2, res);
	run_end(&run);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("comm/bootstrap_ted");
	TCase *c = tt_case(s, "meet", "host serial");

	tcase_add_loop_test(c, ranks_meet_at_ted, 0, NRANKS_MAX);
	tcase_add_test(c, no_rank_leaves_before_all_have_the_key);
	tcase_add_test(c, a_communicator_goes_on_without_ted);
	c = tt_case(s, "faults", "host serial");
	tcase_add_test(c, missing_ranks_are_named);
	tcase_add_test(c, a_killed_rank_ends_the_wait);
	tcase_add_test(c, ted_killed_while_ranks_wait_is_named);
	tcase_add_test(c, ranks_that_have_met_do_not_need_ted);
	tcase_add_test(c, ranks_that_differ_are_refused);
	tcase_add_test(c, a_job_needs_a_name);
	tcase_add_loop_test(c, faults_end_the_wait, 0, 2);
	return s;
}

TT_MAIN("comm/bootstrap_ted", TT_NEED_NOTHING, suite)
