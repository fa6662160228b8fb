/* offload.h - how many bytes the plans of a te_offload move. libtegraph uses it for steps. */
#ifndef TE__OFFLOAD_H
#define TE__OFFLOAD_H

#include <stdint.h>

#include <te/offload.h>

/* What passes wait for. Each takes less memory than the one before. */
enum te__waits {
	TE__WAITS_NONE,	  /* what they would wait for does not move */
	TE__WAITS_ENDS,	  /* those of parts: for copies at the end of forward, and in backward */
	TE__WAITS_COPIES, /* for copies, where memory runs out */
	TE__WAITS_FILE,	  /* for each copy and for the file, so that few slots are in use */
};
/* plans made from now on move up to nbytes in all, the first ones first */
TE_EXPORT void te__offload_allow(struct te_offload *offload, uint64_t nbytes,
				 enum te__waits waits);
/* what is left of it, and waits */
TE_EXPORT void te__offload_allowed(const struct te_offload *offload, uint64_t *ret_nbytes,
				   enum te__waits *ret_waits);
/* 0, or the first failure of the file since the object was made */
TE_EXPORT int te__offload_check(struct te_offload *offload);
/* plans follow the options again */
TE_EXPORT void te__offload_release(struct te_offload *offload);
/* target_nbytes and move_nbytes of the options */
TE_EXPORT void te__offload_limits(const struct te_offload *offload, uint64_t *ret_target,
				  uint64_t *ret_move);

/*
 * Lays out what by peak() with different limits, until the fewest bytes move with which the peak is
 * at most target, waiting only if nothing else suffices. The last call of peak() has the result.
 * Errors: -ENOMEM, with the least peak, if the target cannot be reached; those of peak().
 */
TE_EXPORT int te__offload_fit(struct te_offload *offload, uint64_t target, const char *what,
			      int (*peak)(void *arg, uint64_t *ret_nbytes), void *arg);

#endif
