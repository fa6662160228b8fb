/* limits.c - how many bytes plans may move, and the search for the fewest that meet a target. */
#define TE_LOG_CATEGORY "core/offload"
#include "config.h"

#include <errno.h>

#include "libtecore/base/private.h"
#include "libtecore/offload/offload.h"

void te__offload_allow(struct te_offload *offload, uint64_t nbytes, enum te__waits waits)
{
	offload->directed = 1;
	offload->left_nbytes = nbytes;
	offload->waits = waits;
}

void te__offload_allowed(const struct te_offload *offload, uint64_t *ret_nbytes,
			 enum te__waits *ret_waits)
{
	*ret_nbytes = offload->left_nbytes;
	*ret_waits = offload->waits;
}

void te__offload_release(struct te_offload *offload)
{
	offload->directed = 0;
}

void te__offload_limits(const struct te_offload *offload, uint64_t *ret_target, uint64_t *ret_move)
{
	*ret_target = offload->opts.target_nbytes;
	*ret_move = offload->opts.move_nbytes;
}

uint64_t te__offload_room(struct te_offload *o)
{
	uint64_t most = o->opts.pinned_nbytes ? o->opts.pinned_nbytes : UINT64_MAX, taken = 0;

	pthread_mutex_lock(&o->lock);
	if (o->spill) {
		most = o->opts.quota_nbytes;
		taken = o->measured_nbytes + o->filed_nbytes;
	} else {
		taken = o->pinned_nbytes;
	}
	pthread_mutex_unlock(&o->lock);
	return most > taken ? most - taken : 0;
}

/* invariant: hi bytes are enough, lo are not */
static int bisect(struct te_offload *o, uint64_t target, enum te__waits waits, uint64_t lo,
		  uint64_t hi, int (*peak)(void *arg, uint64_t *ret_nbytes), void *arg)
{
	const uint64_t close = hi / 128 + 65536;
	uint64_t have = UINT64_MAX;
	int r = 0;

	while (hi - lo > close && !r) {
		const uint64_t mid = lo + (hi - lo) / 2;

		te__offload_allow(o, mid, waits);
		r = peak(arg, &have);
		if (have <= target)
			hi = mid;
		else
			lo = mid;
	}
	te__offload_allow(o, hi, waits);
	return r ? r : peak(arg, &have);
}

int te__offload_fit(struct te_offload *offload, uint64_t target, const char *what,
		    int (*peak)(void *arg, uint64_t *ret_nbytes), void *arg)
{
	const enum te__waits last = offload->spill ? TE__WAITS_FILE : TE__WAITS_COPIES;
	const uint64_t most = offload->opts.move_nbytes;
	uint64_t have, least;
	int r;

	te__offload_allow(offload, 0, TE__WAITS_NONE);
	r = peak(arg, &have);
	least = have;
	for (enum te__waits w = TE__WAITS_NONE; w <= last && !r && least > target; w++) {
		te__offload_allow(offload, most, w);
		r = peak(arg, &have);
		least = !r && have < least ? have : least;
		if (!r && have <= target)
			r = bisect(offload, target, w, 0, most - offload->left_nbytes, peak, arg);
	}
	te__offload_release(offload);
	if (r || least <= target)
		return r;
	return te__fail(-ENOMEM, "te_offload: %s is %.2f MiB at least, expected %.2f MiB at most",
			what, (double)least / 1048576.0, (double)target / 1048576.0);
}
