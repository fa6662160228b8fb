/*
 * t/comm/pmix.c - ranks that meet by PMIx, with a library of the test in place of libpmix:
 * functions that fail, and functions that do not return.
 */
#include "config.h"

#include <time.h>

#include <te/errno.h>

#include "libtecomm/meet/bootstrap.h"
#include "libtecore/base/private.h"
#include "pmix_fake.h"
#include "ranks.h"

#define TIMEOUT_MS 2000

static int timeout_ms; /* 0: a long one */

static void setup(void)
{
	setenv("PMIX_NAMESPACE", "a job", 1);
	pmix_fake = ranks_shared(sizeof(*pmix_fake));
	pmix_fake->nranks = 1;
	timeout_ms = 0;
}

static int numbers(struct te__boot *b)
{
	const int32_t n = te__boot_nranks(b), rank = te__boot_rank(b);
	int32_t all[RANKS_MAX];
	int r;

	if (rank != (int32_t)pmix_fake_rank || n != (int32_t)pmix_fake->nranks)
		return te_fail(-EILSEQ, "rank %d of %d", rank, n);
	tt_poison(all, sizeof(all));
	r = te__boot_allgather(b, &rank, all, sizeof(rank), "ranks", 0);
	for (int32_t i = 0; i < n && !r; i++)
		if (all[i] != i)
			r = te_fail(-EILSEQ, "rank %d says that it is %d", i, all[i]);
	return r;
}

static int opens(void)
{
	struct te_comm_opts o = TE_COMM_OPTS_INIT;
	struct te__boot *b;
	int r;

	o.timeout_ms = timeout_ms;
	r = te__boot_open(&o, &b);
	if (r)
		return r;
	r = numbers(b);
	tt_fault_end(); /* closing reports none */
	te__boot_close(b);
	return r;
}

/* first: of the first process */
static int one(int rank, void *first)
{
	const int64_t live = te__alloc_live();
	int r;

	pmix_fake_rank = (uint32_t)(rank + *(int *)first);
	r = opens();
	/* what did not return, does now: it leaves nothing */
	pmix_fake->stall = NULL;
	while (te__alloc_live() != live || pmix_fake_ninit)
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	return r;
}

CASE(pmix, "host", .setup = setup);

TEST_EACH(pmix, ranks_meet_by_pmix, 4, .from = 1)
{
	struct ranks_result res[RANKS_MAX];
	int first = 0;

	pmix_fake->nranks = (uint32_t)_i;
	ranks_run(_i, one, &first, res);
	ranks_ok(_i, res);
}

/* it asks again while the server gives up before rank 0 has come */
static int rank_0_late(int rank, void *arg)
{
	while (!rank && pmix_fake->nget_nb < 5)
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	return one(rank, arg);
}

TEST(pmix, rank_0_may_come_late)
{
	struct ranks_result res[2];
	int first = 0;

	pmix_fake->nranks = 2;
	ranks_run(2, rank_0_late, &first, res);
	ranks_ok(2, res);
}

static const struct {
	const char *stall, *fail;
	int rank, nranks, code;
	const char *text;
} faults[] = {
	{ "PMIx_Init", NULL, 0, 1, -ETIMEDOUT, "comm: PMIx_Init did not return within 2 s: the "
	  "PMIx server of the launcher does not answer" },
	{ "PMIx_Get", NULL, 0, 1, -ETIMEDOUT,
	  "comm: PMIx_Get of the job's size did not return within 2 s" },
	{ "PMIx_Put", NULL, 0, 2, -ETIMEDOUT, "comm: PMIx_Put did not return within 2 s" },
	{ "PMIx_Commit", NULL, 0, 2, -ETIMEDOUT, "comm: PMIx_Commit did not return within 2 s" },
	{ "PMIx_Get_nb", NULL, 1, 2, -ETIMEDOUT, "comm: rank 0 of 2 did not arrive within 2 s" },
	{ "nothing", NULL, 1, 2, -ETIMEDOUT, "comm: rank 0 of 2 did not arrive within 2 s" },
	{ "PMIx_Finalize", NULL, 0, 1, 0, "" },
	{ NULL, "PMIx_Init", 0, 1, -TE_EPEER, "comm: PMIx_Init: ERROR" },
	{ NULL, "PMIx_Get", 0, 1, -TE_EPEER, "comm: PMIx_Get of the job's size: ERROR" },
	{ NULL, "PMIx_Put", 0, 2, -TE_EPEER, "comm: PMIx_Put: ERROR" },
	{ NULL, "PMIx_Commit", 0, 2, -TE_EPEER, "comm: PMIx_Commit: ERROR" },
	{ NULL, "the call of PMIx_Get_nb", 1, 2, -TE_EPEER, "comm: PMIx_Get_nb: ERROR" },
	{ NULL, "PMIx_Get_nb", 1, 2, -TE_EPEER, "comm: PMIx_Get of the id of rank 0: ERROR" },
	{ NULL, "PMIx_Finalize", 0, 1, 0, "" },
};

TEST_EACH(pmix, faults_are_named, TT_LEN(faults))
{
	struct ranks_result res;
	int first = faults[_i].rank;

	pmix_fake->nranks = (uint32_t)faults[_i].nranks;
	pmix_fake->stall = faults[_i].stall;
	pmix_fake->fail = faults[_i].fail;
	timeout_ms = faults[_i].stall ? TIMEOUT_MS : 0;
	ranks_run(1, one, &first, &res);
	ranks_failed(&res, faults[_i].code, faults[_i].text, 20000);
	ck_assert_msg(!faults[_i].stall || res.ms >= TIMEOUT_MS, "after %.0f ms", res.ms);
}

TEST(pmix, faults_of_memory_and_threads)
{
	ck_assert_int_gt(tt_fault_each(opens), 4);
	ck_assert_int_eq(pmix_fake_ninit, 0);
}

TT_MAIN("comm/pmix", TT_NEED_NOTHING)
