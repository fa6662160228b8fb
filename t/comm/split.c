/* t/comm/split.c - te_comm_split(3): groups of ranks, which are threads, or processes that end. */
#include "config.h"

#include <signal.h>

#include <te/collective.h>
#include <te/errno.h>

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

CTX_CASE(split, "comm");

TEST_EACH(split, groups_are_of_colors_in_the_order_of_keys, THREADS_MOST + 1, .from = 1)
{
	threads_run(_i, groups, 0, NULL);
}

static int negative(struct thread_rank *r)
{
	struct te_comm *group = NULL;
	int code = te_comm_split(r->comm, r->rank == 1 ? -7 : 0, 0, NULL, &group);

	HOLDS(!group);
	return code;
}

TEST(split, a_negative_color_fails_on_all_ranks)
{
	threads_run(3, negative, -EINVAL, ") gave the color -7");
}

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
	HOLDS(strstr(te_error_detail(), "an id or a bootstrap"));
	o.bootstrap = NULL;
	o.flags = 1;
	HOLDS(te_comm_split(r->comm, 0, 0, &o, &group) == -EINVAL && !group);
	o.flags = 0;
	o.pool_nbytes = POOL;
	STEP(te_comm_split(r->comm, 0, 0, &o, &group));
	te_comm_unref(group);
	return 0;
}

TEST(split, arguments_are_checked)
{
	threads_run(2, bad, 0, NULL);
}

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

TEST(split, a_group_that_fails_leaves_the_others)
{
	threads_run(4, one_fails, 0, NULL);
}

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

/* forked without the threads of a context */
CASE(processes, "comm");

TEST_EACH(processes, a_rank_that_ends_before_its_group_meets_is_not_waited_for, TT_LEN(ends))
{
	struct ranks_result res[4];

	ranks_meet_run(MEET_ID, 4, ending_rank, &_i, res);
	ck_assert_int_eq(res[ends[_i].who].signal, SIGKILL);
	ranks_failed(&res[4 - ends[_i].who], ends[_i].code, ends[_i].text, 20000);
	ranks_ok(1, &res[0]);
	ranks_ok(1, &res[2]);
}

TT_SUITE("comm/split", TT_NEED_NOTHING)
{
	threads_pool_nbytes = POOL;
	setenv("TE_COMM_PACKETS", "64k", 1);
}
