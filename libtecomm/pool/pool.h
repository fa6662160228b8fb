/*
 * pool.h - the symmetric pool of a communicator: each rank has a pool of the same size, and maps
 * the pools of all ranks of its node, or by fabric handles of all ranks, consecutively in one range
 * of addresses.
 *
 *	address at mapped rank i = address here + (i - own number) * size of a pool
 *
 * Allocation is collective: all ranks make the same calls in the same order, and so get the same
 * offsets, without messages. Freeing is not: a block is available again after all ranks have freed
 * it, have met in te__pool_reclaim(), and work that they had queued until then has run.
 */
#ifndef TE__POOL_H
#define TE__POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <te/comm.h>

#include "libtecomm/meet/bootstrap.h"
#include "libtecomm/pool/control.h"

struct te__pool;

/*
 * Collective. nbytes: size of each rank's pool, equal on all; 0: TE_COMM_POOL. packets: bytes
 * before the pool of each rank, equal on all, for packets. multicast: map multicast memory, too.
 * fabric: map the memory of all ranks, which are on several nodes. stage: bytes of host memory for
 * data to and from other nodes, equal on the ranks of a node, or 0.
 * All ranks return an error if one of them does. boot must outlive the pool.
 *
 * Multicast memory, for the algorithms nvls and nvls-oneshot, is off unless TE_COMM_NVLS=on on all
 * ranks, and declined if the environment of a rank refuses it (te__multicast_check()). Otherwise no
 * multicast function of the driver is called. Its creation has three steps, and no rank begins a
 * step before all ranks have completed the previous one: the lowest rank creates the multicast
 * object and all add their devices; all bind their memory; all map it. No rank unbinds its memory
 * before the kernels of all ranks have ended (te__pool_leave()).
 */
int te__pool_create(struct te__boot *boot, struct te_ctx *ctx, uint64_t nbytes, uint64_t packets,
		    bool multicast, bool fabric, size_t stage, struct te__pool **ret_pool);
/*
 * Call it before the pool is destroyed and after the work of the context has ended: other ranks of
 * the node see it by te__pool_has_left(). With multicast memory, waits until all ranks have called
 * it, because their kernels write to this rank's memory. If a rank does not call it before the
 * time-out, the communicator ends, and this rank's memory stays bound.
 */
void te__pool_leave(struct te__pool *pool);
/* waits for the work of the context; takes NULL, returns NULL */
struct te__pool *te__pool_destroy(struct te__pool *pool);

struct te_ctx *te__pool_ctx(const struct te__pool *pool);
/* 0, or the error that ended the communicator, naming fn; every function below checks it too */
int te__pool_check(const struct te__pool *pool, const char *fn);
/* set a function that each te__pool_check() calls first, to end the communicator if a kernel has
 * failed; NULL: none */
void te__pool_set_look(struct te__pool *pool, void (*look)(void *arg), void *arg);
/* 1: a rank whose memory is mapped has called te__pool_leave() without a failure */
bool te__pool_has_left(const struct te__pool *pool, int32_t rank);
bool te__pool_aborted(const struct te__pool *pool);
/* ends the communicator on all ranks */
void te__pool_abort(struct te__pool *pool, int code, const char *why);
/* te__watch_set_ended() for the thread that watches the other ranks */
void te__pool_set_ended(struct te__pool *pool, void (*ended)(void *arg), void *arg);

/*
 * Collective. Errors: -ENOMEM on all ranks alike, with the sizes; -EBUSY if freed memory would have
 * to be reclaimed while a rank is capturing.
 */
int te__pool_alloc(struct te__pool *pool, const char *fn, uint64_t nbytes, void **ret_ptr);
/* -EINVAL if no block begins there. Any thread, also in a capture */
int te__pool_free(struct te__pool *pool, const char *fn, void *ptr);
/* collective */
int te__pool_reclaim(struct te__pool *pool, const char *fn);

/*
 * Recovery: ends the communicator, if it has not ended, and waits until the deadline for ranks that
 * have not ended: by the control page on one node (members.h), by messages on several
 * (te__boot_settle()). Writes the ranks of the successor, in their old order, to ret_rank, which
 * has room for all, and returns their number.
 */
int32_t te__pool_survivors(struct te__pool *pool, int64_t deadline_ns, int32_t *ret_rank,
			   uint32_t *ret_attempt);
/* 1: all of them have the successor; 0: they have not, and it must be released */
int te__pool_succeeded(struct te__pool *pool, uint32_t attempt, int success);

/* the mapped address of a rank's memory at the offset of ptr; NULL: not mapped, or ptr is not in
 * this rank's pool */
void *te__pool_peer(const struct te__pool *pool, const void *ptr, int32_t rank);
/* offset of ptr in this rank's pool; UINT64_MAX: the nbytes at ptr are not all inside */
uint64_t te__pool_offset(const struct te__pool *pool, const void *ptr, uint64_t nbytes);
/* the packets of a rank whose memory is mapped, and the distance to the next rank's */
void *te__pool_packets(const struct te__pool *pool, int32_t rank);
uint64_t te__pool_stride(const struct te__pool *pool);
/* multicast address of the packets of all ranks; NULL: there is no multicast memory */
void *te__pool_multicast(const struct te__pool *pool);
/* staging memory, which the device copies to and from; NULL: there is none */
void *te__pool_stage(const struct te__pool *pool);
/* 0, or the code with which the communicator has ended, and the reason */
int te__pool_why(const struct te__pool *pool, char ret_reason[TE__CONTROL_REASON]);
/* device address of a word that is not 0 after an abort */
const uint32_t *te__pool_abort_word(const struct te__pool *pool);
void te__pool_info(struct te__pool *pool, struct te_comm_memory *ret);

#endif
