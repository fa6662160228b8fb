/* limits.h - limits of the bytes that plans of a te_offload move. libtegraph uses it for steps. */
#ifndef TE__OFFLOAD_LIMITS_H
#define TE__OFFLOAD_LIMITS_H

#include <stdint.h>

#include <te/offload.h>

/* Waits of passes for copies. Each takes less memory than the previous one. */
enum te__waits {
	TE__WAITS_NONE,	  /* no waits: values that passes would wait for do not move */
	TE__WAITS_ENDS,	  /* plans of parts: wait at the end of forward, and in backward */
	TE__WAITS_COPIES, /* wait for copies if memory runs out */
	TE__WAITS_FILE,	  /* wait for each copy and for the file, so that few slots are in use */
};
/* plans created later move up to nbytes in all; earlier plans have precedence */
TE_EXPORT void te__offload_allow(struct te_offload *offload, uint64_t nbytes,
				 enum te__waits waits);
/* the bytes that are left, and the waits */
TE_EXPORT void te__offload_allowed(const struct te_offload *offload, uint64_t *ret_nbytes,
				   enum te__waits *ret_waits);
/* returns 0, or the first failure of the file since the te_offload was created */
TE_EXPORT int te__offload_check(struct te_offload *offload);
/* end te__offload_allow(): plans follow the options again */
TE_EXPORT void te__offload_release(struct te_offload *offload);
/* get target_nbytes and move_nbytes of the options */
TE_EXPORT void te__offload_limits(const struct te_offload *offload, uint64_t *ret_target,
				  uint64_t *ret_move);

/*
 * Calls peak() with different limits to find the fewest bytes to move such that the peak is at most
 * target, with waits only if nothing else suffices. The last call of peak() has the result. what:
 * the object, for messages.
 * Errors: -ENOMEM, with the least peak, if the target cannot be reached; codes of peak().
 */
TE_EXPORT int te__offload_fit(struct te_offload *offload, uint64_t target, const char *what,
			      int (*peak)(void *arg, uint64_t *ret_nbytes), void *arg);

#endif
