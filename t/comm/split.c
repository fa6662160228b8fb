/* t/comm/split.c - te_comm_split(3): groups of ranks, which are threads, or processes that end. */
#include "config.h"

#include <signal.h>

#include <te/collective.h>
#include <te/errno.h>

#include "libtecomm/collective/comm.h"
#include "libtecomm/meet/bootstrap.h"
#include "libtecore/base/splitmix64.h"
#include "nodes_lib.h"
#include "threads.h"

#define POOL ((uint64_t)4 << 20)
#define NELEMS 37

/* what a rank gives, as all ranks know it; few values, so that there are groups and equal keys */
static int32_t color_of(int rank)
{
	uint64_t s = tt_seed() ^ (uint64_t)rank << 8;

	return (int32_t)(te__splitmix64(&s) % 3) * 1000;
}

static int32_t key_of(int rank)
{
	uint64_t s = tt_seed() ^ (uint64_t)rank << 16 ^ 1;

	return (int32_t)(te__splitmix64(&s) % 4) - 2;
}

/* the ranks of a color by their keys; returns how many */
static int group_of(int32_t color, int *ret_ranks)
{
	int n = 0;

	for (int32_t key = -2; key < 2; key++)
		for (int i = 0; i < threads_n; i++)
			if (color_of(i) == color && key_of(i) == key)
				ret_ranks[n++] = i;
	return n;
}

/* ranks send their numbers in the communicator that was split: the group gets these */
static int gathers(struct te_comm *comm, struct te_stream *on, int32_t mine, const int *want, int n)
{
	int32_t all[THREADS_MOST * NELEMS], own[NELEMS];
	void *in, *out;

	for (int i = 0; i < NELEMS; i++)
		own[i] = mine * 100 + i;
	tt_poison(all, sizeof(all));
	STEP(te_mem_alloc(on, sizeof(own), &in));
	STEP(te_mem_alloc(on, (size_t)n * sizeof(own), &out));
	STEP(te_copy(on, in, own, sizeof(own)));
	STEP(te_stream_sync(on)); /* own is gone if the next call fails */
	STEP(te_comm_all_gather(comm, on, in, out, NELEMS, TE_DTYPE_INT32, NULL));
	STEP(te_copy(on, all, out, (size_t)n * sizeof(own)));
	STEP(te_stream_sync(on));
	STEP(te_comm_error(comm));
	STEP(te_mem_free(on, in));
	STEP(te_mem_free(on, out));
	for (int k = 0; k < n; k++)
		for (int i = 0; i < NELEMS; i++)
			HOLDS(all[k * NELEMS + i] == want[k] * 100 + i);
	return 0;
}

static int groups(struct thread_rank *r)
{
	struct te_comm_opts o = TE_COMM_OPTS_INIT;
	struct te_comm_info info = TE_COMM_INFO_INIT;
	struct te_stream *on = te_ctx_stream(r->ctx);
	int want[THREADS_MOST], all[THREADS_MOST];
	const int n = group_of(color_of(r->rank), want);
	struct te_comm *group = NULL, *one = NULL;
	char name[64];

	for (int i = 0; i < threads_n; i++)
		all[i] = i;
	o.pool_nbytes = POOL;
	STEP(te_comm_split(r->comm, color_of(r->rank), key_of(r->rank), &o, &group));
	STEP(te_comm_info(group, &info));
	snprintf(name, sizeof(name), "comm.%d", (int)color_of(r->rank));
	HOLDS(info.nranks == n && want[info.rank] == r->rank && !strcmp(info.name, name));
	STEP(gathers(group, on, r->rank, want, n));
	STEP(gathers(r->comm, on, r->rank, all, threads_n));
	/* a rank of its own, in a group that is split */
	o.name = "alone";
	STEP(te_comm_split(group, info.rank, 0, &o, &one));
	HOLDS(te_comm_nranks(one) == 1 && te_comm_rank(one) == 0);
	STEP(gathers(one, on, r->rank, &r->rank, 1));
	/* the groups remain */
	STEP(te_comm_barrier(r->comm, on));
	STEP(te_stream_sync(on));
	r->comm = te_comm_unref(r->comm);
	STEP(gathers(group, on, r->rank, want, n));
	te_comm_unref(one);
	te_comm_unref(group);
	return 0;
}

START_TEST(groups_are_of_colors_in_the_order_of_keys)
{
	threads_run(_i, groups, 0, NULL);
}
END_TEST

static int negative(struct thread_rank *r)
{
	struct te_comm *group = NULL;
	int code = te_comm_split(r->comm, r->rank == 1 ? -7 : 0, 0, NULL, &group);

	HOLDS(!group);
	return code;
}

START_TEST(a_negative_color_fails_on_all_ranks)
{
	threads_run(3, negative, -EINVAL, ") gave the color -7");
}
END_TEST

/* errors of arguments come before the ranks exchange anything */
static int bad(struct thread_rank *r)
{
	struct te_comm_opts o = TE_COMM_OPTS_INIT;
	struct te_comm_bootstrap b = TE_COMM_BOOTSTRAP_INIT;
	struct te_comm *group = NULL;

	HOLDS(te_comm_split(NULL, 0, 0, NULL, &group) == -EINVAL);
	HOLDS(te_comm_split(r->comm, 0, 0, NULL, NULL) == -EINVAL);
	o.nranks = 1;
	HOLDS(te_comm_split(r->comm, 0, 0, &o, &group) == -EINVAL);
	HOLDS(strstr(te_error_detail(), "a rank or nranks"));
	o.nranks = 0;
	o.bootstrap = &b;
	HOLDS(te_comm_split(r->comm, 0, 0, &o, &group) == -EINVAL);
	HOLDS(strstr(te_error_detail(), "a way to meet"));
	o.bootstrap = NULL;
	o.flags = 2;
	HOLDS(te_comm_split(r->comm, 0, 0, &o, &group) == -EINVAL && !group);
	o.flags = 0;
	o.pool_nbytes = POOL;
	STEP(te_comm_split(r->comm, 0, 0, &o, &group));
	te_comm_unref(group);
	return 0;
}

START_TEST(arguments_are_checked)
{
	threads_run(2, bad, 0, NULL);
}
END_TEST

/* ranks 0 and 2, 1 and 3 */
static int one_fails(struct thread_rank *r)
{
	const int want[] = { r->rank % 2, r->rank % 2 + 2 }, all[] = { 0, 1, 2, 3 };
	struct te_comm_opts o = TE_COMM_OPTS_INIT;
	struct te_stream *on = te_ctx_stream(r->ctx);
	struct te_comm *group = NULL, *other = NULL;

	o.pool_nbytes = POOL;
	STEP(te_comm_split(r->comm, r->rank % 2, 0, &o, &group));
	if (!r->rank)
		te_comm_abort(group, "enough");
	if (r->rank % 2)
		STEP(gathers(group, on, r->rank, want, 2));
	else
		HOLDS(gathers(group, on, r->rank, want, 2) == -TE_EABORT);
	STEP(gathers(r->comm, on, r->rank, all, 4));
	/* a communicator that has failed cannot be split */
	if (!(r->rank % 2))
		HOLDS(te_comm_split(group, 0, 0, &o, &other) == -TE_EABORT && !other);
	te_comm_unref(group);
	return 0;
}

START_TEST(a_group_that_fails_leaves_the_others)
{
	threads_run(4, one_fails, 0, NULL);
}
END_TEST

/* ---- groups that end together ---- */

/* communicators of each rank: the parent, its group, and a group of the group */
enum { ALL, GROUP, PART, NCOMMS };

static struct shared {
	_Atomic int nwaiting, nended;
} *shared;

static int split_together(struct joined *j, int rank, struct te_comm **comm)
{
	struct te_comm_opts o = TE_COMM_OPTS_INIT;

	o.timeout_ms = 60000;
	o.pool_nbytes = POOL;
	o.flags = TE_COMM_TOGETHER;
	comm[ALL] = j->comm;
	STEP(te_comm_split(j->comm, rank % 2, 0, &o, &comm[GROUP]));
	return te_comm_split(comm[GROUP], 7, 0, &o, &comm[PART]);
}

static int wait_in(struct joined *j, struct te_comm *comm)
{
	shared->nwaiting++;
	STEP(te_comm_barrier(comm, j->s));
	return te_stream_sync(j->s);
}

/* all communicators of a rank have ended for one reason */
static int ended_by(struct te_comm **comm, int code, const char *why)
{
	for (int i = 0; i < NCOMMS; i++) {
		const int r = te_comm_error(comm[i]);

		if (r != code || !strstr(te_error_detail(), why))
			return te_fail(-EPROTO, "communicator %d: %d: %.300s", i, r,
				       te_error_detail());
	}
	return 0;
}

/* as ranks 1 and 3 wait in different communicators, they would wait until the time-out */
static int aborted(struct joined *j, int rank, struct te_comm **comm)
{
	const int where[4] = { GROUP, PART, GROUP, ALL };

	STEP(split_together(j, rank, comm));
	STEP(te_comm_barrier(comm[PART], j->s));
	STEP(te_stream_sync(j->s));
	if (rank) {
		(void)wait_in(j, comm[where[rank]]);
	} else {
		ranks_await(&shared->nwaiting, 3);
		te_comm_abort(comm[GROUP], "enough");
	}
	return ended_by(comm, -TE_EABORT, "enough");
}

/* rank 3 does not call; the time-out of rank 2 is the first, rank 1 waits for rank 0 */
static int stalled(struct joined *j, int rank, struct te_comm **comm)
{
	const int where[4] = { ALL, GROUP, PART, 0 };
	int r;

	STEP(split_together(j, rank / 2, comm));
	if (rank == 2)
		comm[PART]->coll.deadline_ns = 300000000;
	if (rank == 3)
		ranks_await(&shared->nended, 3);
	else
		(void)wait_in(j, comm[where[rank]]);
	r = ended_by(comm, -ETIMEDOUT, " has not taken part in operation 0 of rank 0 (");
	shared->nended++;
	return r;
}

static int killed(struct joined *j, int rank, struct te_comm **comm)
{
	const int where[4] = { GROUP, PART, ALL, 0 };

	STEP(split_together(j, rank, comm));
	if (rank == 3) {
		ranks_await(&shared->nwaiting, 3);
		raise(SIGKILL);
	}
	(void)wait_in(j, comm[where[rank]]);
	return ended_by(comm, -TE_EPEER, " has ended");
}

/* a group that is released is not looked at; the parent lives until its last group */
static int released(struct joined *j, int rank, struct te_comm **comm)
{
	STEP(split_together(j, rank, comm));
	comm[GROUP] = te_comm_unref(comm[GROUP]);
	STEP(wait_in(j, comm[ALL]));
	STEP(te_comm_error(comm[ALL]));
	j->comm = te_comm_unref(j->comm);
	STEP(wait_in(j, comm[PART]));
	return te_comm_error(comm[PART]);
}

static const struct {
	int (*fn)(struct joined *j, int rank, struct te_comm **comm);
	const char *nodes;
	int dies;
} together[] = {
	{ aborted, "aaaa", -1 }, { aborted, "aabb", -1 }, { aborted, "abab", -1 },
	{ stalled, "aaaa", -1 }, { killed, "aaaa", 3 },	  { killed, "aabb", 3 },
	{ released, "aaaa", -1 }, { released, "abab", -1 },
};

static int together_rank(int rank, void *arg)
{
	const int at = *(int *)arg;
	struct te_comm *comm[NCOMMS] = { NULL };
	struct joined j;
	char text[500];
	int r = nodes_join(&j, rank, together[at].nodes[rank], 60000, 5000, 0, 1);

	if (!r)
		r = together[at].fn(&j, rank, comm);
	snprintf(text, sizeof(text), "%s", te_error_detail());
	te_comm_unref(comm[PART]);
	te_comm_unref(comm[GROUP]);
	if (r)
		te_fail(r, "%s", text);
	return nodes_leave(&j, r);
}

START_TEST(groups_end_together)
{
	struct ranks_result res[4];

	shared = ranks_shared(sizeof(*shared));
	ranks_meet_run(MEET_ID, 4, together_rank, &_i, res);
	for (int i = 0; i < 4; i++)
		if (i != together[_i].dies)
			ranks_ok(1, &res[i]);
}
END_TEST

static int flags_differ(struct thread_rank *r)
{
	struct te_comm_opts o = TE_COMM_OPTS_INIT;
	struct te_comm *group = NULL;

	o.flags = r->rank == 1 ? TE_COMM_TOGETHER : 0;
	return te_comm_split(r->comm, 0, 0, &o, &group);
}

START_TEST(flags_are_equal_on_all_ranks)
{
	threads_run(3, flags_differ, -TE_EMISMATCH, ") gave the flags 0x1, rank 0 0x0");
}
END_TEST

/*
 * ranks 0 and 2, 1 and 3: one of the second group ends after all have agreed, and before it meets
 * the other one
 */
static const struct {
	const char *nodes;
	int who, code;
	const char *text;
} ends[] = {
	{ "aaaa", 3, -ETIMEDOUT, "rank 1 of 2 did not arrive within 100 ms" },
	{ "aaaa", 1, -TE_EPEER, " has ended" },
	{ "aabb", 3, -ETIMEDOUT, "rank 1 of 2 did not arrive within 100 ms" },
	{ "abab", 1, -TE_EPEER, " has ended" },
};

static int split_and_gather(struct joined *j, int at)
{
	const int rank = j->who, want[] = { rank % 2, rank % 2 + 2 };
	struct te_comm_opts o = TE_COMM_OPTS_INIT;
	struct te_comm *group = NULL;
	int r;

	if (rank == ends[at].who)
		nodes_die_at("with color", 300); /* the other group has met */
	else if (ends[at].code == -ETIMEDOUT && rank % 2)
		te__boot_agreed_ms = 100;
	o.timeout_ms = 60000;
	o.pool_nbytes = POOL;
	STEP(te_comm_split(j->comm, rank % 2, 0, &o, &group));
	r = gathers(group, j->s, rank, want, 2);
	te_comm_unref(group);
	return r;
}

static int ending_rank(int rank, void *arg)
{
	const int at = *(int *)arg;
	struct joined j;
	int r = nodes_join(&j, rank, ends[at].nodes[rank], 60000, 5000, 0, 1);

	return nodes_leave(&j, r ? r : split_and_gather(&j, at));
}

START_TEST(a_rank_that_ends_before_its_group_meets_is_not_waited_for)
{
	struct ranks_result res[4];

	ranks_meet_run(MEET_ID, 4, ending_rank, &_i, res);
	ck_assert_int_eq(res[ends[_i].who].signal, SIGKILL);
	ranks_failed(&res[4 - ends[_i].who], ends[_i].code, ends[_i].text, 20000);
	ranks_ok(1, &res[0]);
	ranks_ok(1, &res[2]);
}
END_TEST

TT_SUITE("comm/split", TT_NEED_NOTHING)
{
	TCase *c = tt_case(s, "split", "comm");

	backend = "host";
	threads_pool_nbytes = POOL;
	setenv("TE_COMM_PACKETS", "64k", 1);
	tcase_add_checked_fixture(c, tt_setup, tt_teardown);
	tcase_add_loop_test(c, groups_are_of_colors_in_the_order_of_keys, 1, THREADS_MOST + 1);
	tcase_add_test(c, a_negative_color_fails_on_all_ranks);
	tcase_add_test(c, arguments_are_checked);
	tcase_add_test(c, a_group_that_fails_leaves_the_others);
	tcase_add_test(c, flags_are_equal_on_all_ranks);
	c = tt_case(s, "processes", "comm"); /* forked without the threads of a context */
	tcase_add_loop_test(c, groups_end_together, 0, TT_LEN(together));
	tcase_add_loop_test(c, a_rank_that_ends_before_its_group_meets_is_not_waited_for, 0,
			    TT_LEN(ends));
}
