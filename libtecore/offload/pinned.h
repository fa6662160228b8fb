/*
 * pinned.h - the pinned host memory of offload: one mapping of a fixed size, divided into slots.
 *
 * The mapping is anonymous, asks for huge pages, is bound to the NUMA node of the device, is not
 * inherited by forked children, and is registered once with the device. The file tier (spill.h)
 * registers it once with its ring. Nothing is mapped or registered afterwards.
 */
#ifndef TE__PINNED_H
#define TE__PINNED_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <te/ctx.h>

#define TE__PINNED_UNIT ((size_t)2 << 20) /* slots begin and end at multiples of it */
/* words by which streams and the I/O thread signal each other, each in its own cache line */
#define TE__PINNED_NWORDS ((TE__PINNED_UNIT - TE__PINNED_SCRATCH) / 64)
#define TE__PINNED_SCRATCH ((size_t)64 << 10) /* bytes for trial I/O of spills */

struct te__pinned;

/*
 * nbytes: size of all slots, rounded up to the unit. ctx: the arena keeps a reference; NULL: memory
 * that no device accesses. Several threads touch all pages, so that they exist for the device and
 * the ring. The words are 0.
 * Errors: -EINVAL (0 bytes), -ENOMEM (the message has the size), errors of page_register.
 */
int te__pinned_create(struct te_ctx *ctx, size_t nbytes, struct te__pinned **ret_arena);
/* takes NULL; the memory must not be in use: streams are idle and spills are destroyed */
struct te__pinned *te__pinned_destroy(struct te__pinned *arena);

void *te__pinned_base(const struct te__pinned *arena); /* slots; aligned to the unit */
size_t te__pinned_nbytes(const struct te__pinned *arena); /* size of all slots */
/* bytes mapped and registered: slots and words */
size_t te__pinned_held_nbytes(const struct te__pinned *arena);
/* the address by which the device reads and writes ptr, which is in a slot or a word */
void *te__pinned_device_ptr(const struct te__pinned *arena, const void *ptr);
_Atomic uint32_t *te__pinned_word(const struct te__pinned *arena, uint32_t i);

/*
 * Assign slots at run time; not for callers that assign offsets by te__place. take: the lowest free
 * address with room for nbytes, which is rounded up to the unit; -ENOMEM, with the sizes, if there
 * is none. No allocation. Any thread.
 */
int te__pinned_take(struct te__pinned *arena, size_t nbytes, void **ret_slot);
void te__pinned_give(struct te__pinned *arena, void *slot); /* NULL: no effect */

/* for spill.c: the scratch bytes, for one user at a time */
void *te__pinned_scratch_lock(struct te__pinned *arena);
void te__pinned_scratch_unlock(struct te__pinned *arena);
/* for spill.c: I/O that did not end may still write to slots, so destroy leaves the mapping */
void te__pinned_keep(struct te__pinned *arena);

#endif
