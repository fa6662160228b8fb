/* offload.h - how many bytes the plans of a te_offload move. libtegraph uses it for steps. */
#ifndef TE__OFFLOAD_H
#define TE__OFFLOAD_H

#include <stdint.h>

#include <te/offload.h>

/* Plans made from now on move up to nbytes in all, the first ones first. tight: 1: passes wait for
 * copies, so that memory is free as early as possible; 2: also for the file. */
TE_EXPORT void te__offload_allow(struct te_offload *offload, uint64_t nbytes, int tight);
/* what is left of it, and tight */
TE_EXPORT void te__offload_allowed(const struct te_offload *offload, uint64_t *ret_nbytes,
				   int *ret_tight);
/* 0, or the first failure of the file since the object was made */
TE_EXPORT int te__offload_check(struct te_offload *offload);
/* plans follow the options again */
TE_EXPORT void te__offload_release(struct te_offload *offload);
/* target_nbytes and move_nbytes of the options */
TE_EXPORT void te__offload_limits(const struct te_offload *offload, uint64_t *ret_target,
				  uint64_t *ret_move);

/*
 * Lays out what by peak() with different limits, until the fewest bytes move with which the peak is
 * at most target; tight only if nothing else suffices. The last call of peak() has the result.
 * Errors: -ENOMEM, with the least peak, if the target cannot be reached; those of peak().
 */
TE_EXPORT int te__offload_fit(struct te_offload *offload, uint64_t target, const char *what,
			      int (*peak)(void *arg, uint64_t *ret_nbytes), void *arg);

#endif
