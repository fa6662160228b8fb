/*
 * t/comm/bootstrap_faults.c - what ranks report when one of them does not come, ends, stops, comes
 * twice or differs. bootstrap_strangers.c has others that connect to them.
 */
#include "config.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <te/errno.h>

#include "bootstrap_lib.h"
#include "ranks.h"

/* ---- ranks that do not come ---- */

static int not_2_and_3(int rank, void *arg)
{
	return rank == 2 || rank == 3 ? 0 : bf_open_only(rank, TT_SLOWER(300));
}

CASE(missing, "host");

/* rank 0 of a folder names what is missing, and so does rank 4, which connects to them */
TEST_EACH(missing, missing_ranks_are_named, MEET_DIR + 1, .from = MEET_ID)
{
	struct ranks_result res[5];

	ranks_meet((enum meet)_i, 5);
	ranks_run(5, not_2_and_3, NULL, res);
	if (_i == MEET_DIR)
		ranks_rmdir();
	else
		ranks_part();
	for (int i = 0; i < 5; i++)
		if (i != 2 && i != 3) {
			ranks_failed(&res[i], -ETIMEDOUT,
				     bf_within("ranks 2, 3 of 5 did not arrive", 300), SOON);
			ck_assert_msg(res[i].ms > TT_SLOWER(250), "after %.0f ms", res[i].ms);
		}
}

static int killed_while_meeting(int rank, void *arg)
{
	if (rank == 3) /* so that the others still wait */
		pause();
	return bf_open_only(rank, 0);
}

/* by killing a rank that waits: the others are told within milliseconds */
TEST(missing, a_rank_killed_while_it_waits_ends_the_wait)
{
	struct ranks_result res[4];

	ranks_meet(MEET_ID, 4);
	ranks_start(4, killed_while_meeting, NULL);
	tt_pause(300);
	kill(ranks_pid(1), SIGKILL);
	tt_pause(300);
	kill(ranks_pid(3), SIGKILL);
	ranks_wait(res);
	ranks_part();
	ck_assert_int_eq(res[1].signal, SIGKILL);
	ranks_failed(&res[0], -TE_EPEER, "rank 1 (host ", SOON);
	ranks_failed(&res[2], -TE_EPEER, ") has ended", SOON);
}

/* ---- ranks that end or stop during exchanges ---- */

static int die_at_3(int rank, void *arg)
{
	const int *n = arg;
	struct te__boot *b;
	int r = bf_open(rank, 0, &b);

	for (int k = 0; k < 6 && !r; k++) {
		if (k == 3 && rank == *n - 2)
			raise(SIGKILL);
		r = bf_gather(b, "exchange of handles", 0);
	}
	if (b)
		te__boot_close(b);
	return r;
}

CASE(ended, "host");

TEST_EACH(ended, a_killed_rank_is_seen_at_once, 4)
{
	const int n = 2 + _i;
	struct ranks_result res[RANKS_MAX];

	ranks_meet_run(_i & 1 ? MEET_DIR : MEET_ID, n, die_at_3, (void *)(uintptr_t)&n, res);
	for (int i = 0; i < n; i++)
		if (i == n - 2)
			ck_assert_int_eq(res[i].signal, SIGKILL);
		else
			ranks_failed(&res[i], -TE_EPEER, "has ended", SOON);
}

/* half of a large part is sent, then the process is gone */
static int die_within(int rank, void *arg)
{
	const size_t nbytes = 8 << 20;
	char *mine = calloc(1, nbytes), *all = calloc(3, nbytes);
	struct te__boot *b;
	int r = bf_open(rank, 0, &b);

	if (!r && rank == 2) {
		te__boot_allgather(b, mine, all, nbytes, "large", 0);
	}
	if (!r && rank < 2) {
		tt_pause(1000);
		r = te__boot_allgather(b, mine, all, nbytes, "large", 0);
	}
	te__boot_close(b);
	free(mine);
	free(all);
	return r;
}

TEST(ended, a_rank_that_ends_within_a_large_exchange)
{
	struct ranks_result res[3];

	ranks_meet(MEET_ID, 3);
	ranks_start(3, die_within, NULL);
	tt_pause(500); /* its peers are late: its sockets are full by then */
	kill(ranks_pid(2), SIGKILL);
	ranks_wait(res);
	ranks_part();
	ck_assert_int_eq(res[2].signal, SIGKILL);
	/* or rank 1, which saw it first and was sending too */
	ranks_failed(&res[0], -TE_EPEER, "has ended", TT_SLOWER(1000) + SOON);
	ranks_failed(&res[1], -TE_EPEER, "has ended", TT_SLOWER(1000) + SOON);
}

static int stop_at_2(int rank, void *arg)
{
	struct te__boot *b;
	int r = bf_open(rank, 0, &b);

	for (int k = 0; k < 4 && !r; k++) {
		if (k == 2 && rank == 1)
			raise(SIGSTOP);
		r = bf_gather(b, "exchange of handles", TT_SLOWER(400));
		/* later calls fail as the first one did */
		if (r) {
			char first[600];
			const int code = r;

			snprintf(first, sizeof(first), "%s", te_error_detail());
			te_error_clear();
			r = bf_gather(b, "exchange of handles", 0);
			if (r != code || strcmp(first, te_error_detail()))
				r = te_fail(-EILSEQ, "first %d: %s, then %d", code, first, r);
		}
	}
	if (b)
		te__boot_close(b);
	return r;
}

TEST(ended, a_stopped_rank_is_named_at_the_deadline)
{
	struct ranks_result res[3];

	ranks_meet(MEET_ID, 3);
	ranks_start(3, stop_at_2, NULL);
	tt_pause(900);
	kill(ranks_pid(1), SIGCONT);
	ranks_wait(res);
	ranks_part();
	ranks_failed(&res[0], -ETIMEDOUT,
		     bf_within("exchange of handles: rank 1 of 3 did not take part", 400), SOON);
	ranks_failed(&res[2], -ETIMEDOUT, bf_within("rank 1 of 3 did not take part", 400), SOON);
	/* it hears of that when it goes on */
	ranks_failed(&res[1], -ETIMEDOUT, bf_within("rank 1 of 3 did not take part", 400), SOON);
}

static int close_early(int rank, void *arg)
{
	struct te__boot *b;
	int r = bf_open(rank, 0, &b);

	if (r)
		return r;
	r = bf_gather(b, "first", 0);
	if (!r && rank != 1)
		r = bf_gather(b, "second", 0);
	te__boot_close(b);
	return r;
}

TEST(ended, a_rank_that_closes_early_is_named)
{
	struct ranks_result res[3];

	ranks_meet_run(MEET_DIR, 3, close_early, NULL, res);
	ranks_ok(1, &res[1]);
	/* that it "has closed its communicator", or "has ended" if bytes that it had not read made
	 * the socket drop its last message */
	ranks_failed(&res[0], -TE_EPEER, "rank 1 (host ", SOON);
	ranks_failed(&res[2], -TE_EPEER, "rank 1 (host ", SOON);
}

/* many times: the last exchange is whole on all ranks, however early one of them closes */
static int close_at_once(int rank, void *arg)
{
	struct te__boot *b;
	int r = bf_open(rank, 0, &b);

	if (r)
		return r;
	r = bf_gather(b, "only", 0);
	if (rank == 1)
		_exit(r ? 1 : 0); /* not even closed */
	te__boot_close(b);
	return r;
}

TEST(ended, who_ends_after_its_last_exchange_disturbs_none)
{
	struct ranks_result res[4];

	for (int k = 0; k < TT_FEWER(24); k++) {
		ranks_meet_run(k & 1 ? MEET_DIR : MEET_ID, 4, close_at_once, NULL, res);
		ranks_ok(4, res);
	}
}

/* ---- ranks that differ ---- */

static int counts(int rank, void *arg)
{
	struct te_comm_opts o = ranks_opts(rank);
	struct te__boot *b;
	int r;

	if (rank == 1)
		o.nranks = 4;
	if (getenv("TE_COMM_DIR")) /* the others are connected by then */
		tt_pause(rank == 1 ? 400 : 0);
	else
		tt_pause(rank == 2 ? 200 : 0);
	if (rank == 1 && getenv("TE_COMM_NRANKS")) {
		setenv("TE_COMM_NRANKS", "4", 1);
		o.nranks = 0;
	}
	r = te__boot_open(&o, &b);
	if (!r)
		te__boot_close(b);
	return r;
}

CASE(differ, "host");

TEST_EACH(differ, ranks_that_count_otherwise_are_named, MEET_DIR + 1, .from = MEET_ID)
{
	struct ranks_result res[3];

	ranks_meet((enum meet)_i, 3);
	ranks_run(3, counts, NULL, res);
	if (_i == MEET_DIR)
		ranks_rmdir();
	else
		ranks_part();
	for (int i = 0; i < 3; i++) {
		ranks_failed(&res[i], -TE_EMISMATCH, "was told that there are ", SOON);
		ck_assert_ptr_nonnull(strstr(res[i].text, "rank "));
	}
}

/* process 3 says that it is rank 1 too, and comes last */
static int twice(int rank, void *arg)
{
	const int as = rank == 3 ? 1 : rank;
	struct te__boot *b;
	int r;

	if (rank == 3)
		tt_pause(200);
	if (rank == 2)
		tt_pause(500);
	r = bf_open(as, 0, &b);
	if (r)
		return r;
	r = bf_gather(b, "all", 0);
	te__boot_close(b);
	return r;
}

TEST_EACH(differ, a_rank_that_comes_twice_is_refused_and_the_others_go_on, MEET_DIR + 1,
	  .from = MEET_ID)
{
	struct ranks_result res[4];

	ranks_meet((enum meet)_i, 3);
	ranks_run(4, twice, NULL, res);
	ranks_part();
	ranks_ok(3, res);
	ranks_failed(&res[3], -TE_EMISMATCH,
		     _i == MEET_DIR ? "rank 1 of job \"\" is in TE_COMM_DIR already: pid " :
				      "there is another process with this rank: rank 1 (host ",
		     SOON);
}

/* a process more, after all have met */
static int late_comer(int rank, void *arg)
{
	const int as = rank == 3 ? 2 : rank;
	struct te__boot *b;
	int r;

	if (rank == 3)
		tt_pause(400);
	r = bf_open(as, 0, &b);
	if (r)
		return r;
	tt_pause(600);
	r = bf_gather(b, "all", 0);
	te__boot_close(b);
	return r;
}

TEST(differ, a_process_too_many_is_refused)
{
	struct ranks_result res[4];

	ranks_meet(MEET_ID, 3);
	ranks_run(4, late_comer, NULL, res);
	ranks_part();
	ranks_ok(3, res);
	ranks_failed(&res[3], -TE_EMISMATCH, "all 3 ranks have arrived", SOON);
}

static int differ(int rank, void *arg)
{
	const int kind = *(const int *)arg;
	uint8_t mine[64] = { 0 }, all[3 * 64];
	struct te__boot *b;
	int r = bf_open(rank, 0, &b);

	if (r)
		return r;
	r = bf_gather(b, "first", 0);
	if (!r && kind != 1) /* sizes: a part that is too long, or too short */
		r = te__boot_allgather(b, mine, all, rank != 2 ? 32 : kind ? 16 : 64, "second", 0);
	if (!r && kind == 1) /* names */
		r = te__boot_allgather(b, mine, all, 32, rank == 2 ? "third" : "second", 0);
	te__boot_close(b);
	return r;
}

TEST_EACH(differ, ranks_in_different_exchanges_are_named, 3)
{
	static const char *const text[] = { "second: rank ", "is at \"", "second: rank " };
	struct ranks_result res[3];

	ranks_meet_run(MEET_DIR, 3, differ, (void *)(uintptr_t)&_i, res);
	for (int i = 0; i < 3; i++) {
		ranks_failed(&res[i], -TE_EMISMATCH, text[_i], SOON);
		ck_assert_ptr_nonnull(strstr(res[i].text, "rank 2 (host "));
	}
}

/* ---- abort ---- */

static void *abort_later(void *arg)
{
	tt_pause(200);
	te__boot_abort(arg, "the disk is full");
	return NULL;
}

/* rank 1 aborts: from a thread while it waits, or while it does nothing */
static int aborts(int rank, void *arg)
{
	const int waiting = *(const int *)arg;
	struct te__boot *b;
	pthread_t t;
	int r = bf_open(rank, 0, &b);

	if (r)
		return r;
	if (rank == 1) {
		pthread_create(&t, NULL, abort_later, b);
		if (!waiting)
			pthread_join(t, NULL);
		r = bf_gather(b, "exchange of handles", 0);
		if (waiting)
			pthread_join(t, NULL);
		te__boot_abort(b, "again");
	} else if (rank == 0) {
		r = bf_gather(b, "exchange of handles", 0);
	} else { /* later, when it has happened */
		tt_pause(600);
		r = bf_gather(b, "exchange of handles", 0);
	}
	te__boot_close(b);
	return r;
}

CASE(abort, "host");

TEST_EACH(abort, an_abort_reaches_all_ranks, 2)
{
	struct ranks_result res[3];

	ranks_meet_run(MEET_DIR, 3, aborts, (void *)(uintptr_t)&_i, res);
	for (int i = 0; i < 3; i++)
		ranks_failed(&res[i], -TE_EABORT, ") has aborted: the disk is full", SOON);
}

TEST(ended, leftovers_of_killed_ranks_are_replaced)
{
	struct ranks_result res[3];

	/* three ranks of five leave their sockets */
	ranks_meet(MEET_DIR, 5);
	ranks_start(3, killed_while_meeting, NULL);
	tt_pause(300);
	for (int i = 0; i < 3; i++)
		kill(ranks_pid(i),
		     SIGSTOP); /* or they would clean up when the first one is killed */
	for (int i = 0; i < 3; i++)
		kill(ranks_pid(i), SIGKILL);
	ranks_wait(res);
	ck_assert_int_eq(res[0].signal, SIGKILL);
	ranks_count(3);
	ranks_run(3, bf_meet, NULL, res);
	ranks_part();
	ranks_ok(3, res);
}

TT_MAIN("comm/bootstrap_faults", TT_NEED_NOTHING)
