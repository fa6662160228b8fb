/* search.h - binary search in what is sorted by addresses or times. */
#ifndef TE__SEARCH_H
#define TE__SEARCH_H

#include <stddef.h>
#include <stdint.h>

/* whether number i of what is sorted comes before x: true of some first ones and of no others */
typedef int te__before_fn(const void *sorted, size_t i, uint64_t x);

/* how many of n come before x */
static inline size_t te__count_before(const void *sorted, size_t n, te__before_fn *before,
				      uint64_t x)
{
	size_t lo = 0, hi = n;

	while (lo < hi) {
		const size_t mid = lo + (hi - lo) / 2;

		if (before(sorted, mid, x))
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

#endif
