/* te/place.h - places for buffers that do not all live at once. */
#ifndef TE_PLACE_H
#define TE_PLACE_H

#include <stddef.h>
#include <stdint.h>
#include <te/export.h>

TE_BEGIN_DECLS

struct te_place_item {
	uint64_t nbytes;
	int32_t first, last; /* the times it lives, both included */
	uint64_t offset;     /* written: where it lies */
};

/**
 * te_place - give each item a place in one arena
 * @align:    of every offset, a power of two; sizes are rounded up to it
 * @ret_peak: bytes of the arena
 *
 * Items that live at the same time do not overlap. Largest first, each at the lowest offset that is
 * free for its whole life. Items without bytes get offset 0.
 * Time: about n log(n)^2 for lives as layers have, that are short or lie within each other; else
 * within n^2 of a few instructions.
 * Source: Pisarchyk and Lee, "Efficient memory management for deep neural net inference",
 * arXiv:2001.03288, greedy by size; t/core/place.c pins it.
 * Thread: any.  Errors: -EINVAL (names the item), -EOVERFLOW, -ENOMEM.
 */
TE_EXPORT int te_place(struct te_place_item *items, int32_t n, uint64_t align, uint64_t *ret_peak);

TE_END_DECLS

#endif
