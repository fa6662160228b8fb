/* place.h - offsets in one arena for buffers whose lifetimes are known. */
#ifndef TE__PLACE_H
#define TE__PLACE_H

#include <stdint.h>

#include <te/export.h>

struct te__place_item {
	uint64_t nbytes;
	int32_t first, last; /* lifetime in any unit of time, both ends included */
	uint64_t offset;     /* output, in bytes; input if fixed */
	int32_t fixed;	     /* 1: the item is at the given offset, a multiple of align */
};

/*
 * Assigns each item an offset, such that items whose lifetimes overlap do not share memory.
 * Items are taken largest first (among equal sizes: lowest index first). Each gets the lowest
 * offset that is free during its whole lifetime. Items of 0 bytes get offset 0. Fixed items come
 * first, at their given offsets, and may overlap each other.
 *
 * @align:    a power of two: offsets are multiples of it, and sizes are rounded up to it
 * @ret_peak: size of the arena in bytes, which can exceed the largest sum of sizes of items that
 *            are alive at one time
 *
 * Offsets and @ret_peak are written on success only. Makes one allocation. Time: at most n^2 / 2
 * comparisons of lifetimes, 2 to 3.5 s for 64,000 items, regardless of their lifetimes.
 * Source: Pisarchyk and Lee, "Efficient memory management for deep neural net inference",
 * arXiv:2001.03288, greedy by size; t/plan/place.c compares offsets with a naive version.
 * Thread: any.  Errors: -EINVAL or -EOVERFLOW (the message names the item), -ENOMEM.
 */
TE_EXPORT int te__place(struct te__place_item *items, int32_t n, uint64_t align,
			uint64_t *ret_peak);

#endif
