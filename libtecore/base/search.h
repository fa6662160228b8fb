/* search.h - binary search in sorted arrays. */
#ifndef TE__SEARCH_H
#define TE__SEARCH_H

#include <stddef.h>
#include <stdint.h>

/* does element i come before x? True for a prefix of the sorted elements only */
typedef int te__before_fn(const void *sorted, size_t i, uint64_t x);

/* number of the n elements that come before x */
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
