/*
 * arena.h - the pinned host memory of offload: one mapping of a fixed size, divided into slots.
 *
 * The mapping is anonymous, asks for huge pages, is bound to the NUMA node of the device, is not
 * inherited by forked children, and is registered once with the device. The file tier (spill.h)
 * registers it once with its ring. Nothing is mapped or registered afterwards.
 */
#ifndef TE__ARENA_H
#define TE__ARENA_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <te/ctx.h>

#define TE__ARENA_UNIT ((size_t)2 << 20) /* slots begin and end at multiples of it */
/* words by which streams and the I/O thread signal each other, each in its own cache line */
#define TE__ARENA_NWORDS (TE__ARENA_UNIT / 64)

struct te__arena;

/*
 * nbytes: of all slots, rounded up to the unit. ctx: the arena keeps a reference; NULL: memory that
 * no device accesses. All pages are touched, by several threads, so that the device and the ring
 * find them. The words are 0.
 * Errors: -EINVAL (0 bytes), -ENOMEM (the message has the size), errors of page_register.
 */
int te__arena_create(struct te_ctx *ctx, size_t nbytes, struct te__arena **ret_arena);
/* takes NULL; nothing uses the memory any more: streams are idle and spills are destroyed */
struct te__arena *te__arena_destroy(struct te__arena *arena);

void *te__arena_base(const struct te__arena *arena); /* of the slots; aligned to the unit */
size_t te__arena_nbytes(const struct te__arena *arena); /* of the slots */
int te__arena_node(const struct te__arena *arena); /* the NUMA node it is bound to; -1: none */
/* the bytes mapped and registered: slots and words */
size_t te__arena_held_nbytes(const struct te__arena *arena);
/* the address by which the device reads and writes ptr, which is in a slot or a word */
void *te__arena_device_ptr(const struct te__arena *arena, const void *ptr);
_Atomic uint32_t *te__arena_word(const struct te__arena *arena, uint32_t i);

/*
 * Slots that are assigned at run time; a caller that assigns offsets itself (te__place) does not
 * call these. take: the lowest free address with room for nbytes, which is rounded up to the unit;
 * -ENOMEM, with the sizes, if there is none. No allocation. Any thread.
 */
int te__arena_take(struct te__arena *arena, size_t nbytes, void **ret_slot);
void te__arena_give(struct te__arena *arena, void *slot); /* NULL: no effect */

/* the NUMA node of the context's device; -1: unknown, or the machine has one node */
int te__device_node(struct te_ctx *ctx);

#endif
