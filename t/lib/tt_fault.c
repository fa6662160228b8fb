/* tt_fault.c - makes each allocation and driver call of a function fail in turn. */
#include "config.h"

#include "libtecore/base/private.h"

#include "tt.h"

#define FAULTS_MAX 100000 /* more are taken for an endless loop */

void tt_fault_end(void)
{
	if (!te__fault_fired())
		te__fault_set(0);
}

int tt_fault_next(int n)
{
	return TT_FEWER(8) == 8 || n < 20 ? n + 1 : n + (int)tt_rand_int(1, 7);
}

int tt_fault_each(int (*fn)(void))
{
	for (int n = 1; n <= FAULTS_MAX; n = tt_fault_next(n)) {
		int64_t live = te__alloc_live();
		int r, fired;

		te_error_clear();
		te__fault_set((uint64_t)n);
		r = fn();
		fired = te__fault_fired();
		te__fault_set(0);
		ck_assert_msg(te__alloc_live() == live,
			      "fault %d: %lld allocations are left", n,
			      (long long)(te__alloc_live() - live));
		if (!fired) {
			ck_assert_msg(r >= 0, "without a fault: %s: %s",
				      te_strerror(r), te_error_detail());
			return n - 1;
		}
		ck_assert_msg(r < 0, "fault %d was not reported", n);
		ck_assert_msg(te_error_detail()[0], "fault %d: %s, no detail", n,
			      te_strerror(r));
	}
	ck_abort_msg("more than %d faults", FAULTS_MAX);
	return -1;
}
