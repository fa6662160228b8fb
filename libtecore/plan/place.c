/*
 * place.c - te__place(): greedy by size, first fit.
 *
 * One array holds a row for each item. Rows with an offset, initially fixed items, come first,
 * sorted by offset; the others follow, sorted by size. The next item scans the first
 * part for the lowest gap, ignores rows whose lifetime does not overlap its own, and is inserted
 * into the first part.
 *
 * All scans together are quadratic, at about 1 ns per row. Plans have some thousand buffers.
 */
#define TE_LOG_CATEGORY "core/place"
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "libtecore/base/private.h"

#include "libtecore/plan/place.h"

struct row {
	uint64_t offset, end; /* before it has an offset: 0 and its size, not rounded */
	int32_t first, last, item;
};

static int by_size(const void *a, const void *b)
{
	const struct row *x = a, *y = b;

	if (x->end != y->end)
		return x->end < y->end ? 1 : -1;
	return x->item - y->item;
}

static int by_offset(const void *a, const void *b)
{
	const struct row *x = a, *y = b;

	return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static uint64_t larger(uint64_t x, uint64_t y)
{
	return x > y ? x : y;
}

static uint64_t rounded(uint64_t nbytes, uint64_t align)
{
	return (nbytes + align - 1) & ~(align - 1);
}

static int check(const struct te__place_item *items, int32_t n, uint64_t align)
{
	uint64_t sum = 0, top = 0;

	if (n < 0 || (n && !items) || !align || (align & (align - 1)))
		return te__fail(-EINVAL, "te__place: %" PRId32 " items%s, align %" PRIu64, n,
				n > 0 && !items ? " at NULL" : "", align);
	for (int32_t i = 0; i < n; i++) {
		const struct te__place_item *it = &items[i];

		if (it->last < it->first)
			return te__fail(-EINVAL,
					"te__place: item %" PRId32 ": lifetime from %" PRId32
					" to %" PRId32,
					i, it->first, it->last);
		if (it->fixed && it->offset % align)
			return te__fail(-EINVAL,
					"te__place: item %" PRId32 ": offset %" PRIu64
					" is no multiple of %" PRIu64,
					i, it->offset, align);
		top = larger(top, it->fixed ? it->offset : 0);
		/* no item ends after the last fixed offset plus the sum of all sizes, so that no
		 * end overflows later */
		if (it->nbytes > UINT64_MAX - (align - 1) ||
		    rounded(it->nbytes, align) > UINT64_MAX - sum ||
		    sum + rounded(it->nbytes, align) > UINT64_MAX - top)
			return te__fail(-EOVERFLOW,
					"te__place: item %" PRId32 ": %" PRIu64
					" bytes: the sum of sizes exceeds 64 bits",
					i, it->nbytes);
		sum += rounded(it->nbytes, align);
	}
	return 0;
}

/* row->end if the lifetimes overlap, else 0. A branch would often be mispredicted. */
static uint64_t end_if_overlap(const struct row *row, const struct row *x)
{
	const int overlap = (row->first <= x->last) & (x->first <= row->last);

	return row->end & -(uint64_t)overlap;
}

/*
 * The lowest offset at which nbytes are free during the lifetime of x. Of the n rows, the first
 * *ret_scanned have an offset below the end of x.
 */
static uint64_t first_fit(const struct row *v, size_t n, const struct row *x, uint64_t nbytes,
			  size_t *ret_scanned)
{
	uint64_t off = 0, most;
	size_t i = 0;

	/* eight rows in one comparison, while there is no gap before any of them */
	for (; i + 8 <= n && v[i + 7].offset < off + nbytes; i += 8) {
		most = off;
		for (int k = 0; k < 8; k++)
			most = larger(most, end_if_overlap(&v[i + k], x));
		off = most;
	}
	for (; i < n && v[i].offset < off + nbytes; i++)
		off = larger(off, end_if_overlap(&v[i], x));
	*ret_scanned = i;
	return off;
}

int te__place(struct te__place_item *items, int32_t n, uint64_t align, uint64_t *ret_peak)
{
	size_t nrows = 0, nfixed;
	uint64_t peak = 0;
	struct row *v;
	int r = check(items, n, align);

	if (r)
		return r;
	if (!ret_peak)
		return te__fail(-EINVAL, "te__place: ret_peak is NULL");
	v = te__malloc((size_t)n * sizeof(*v) + 1);
	if (!v)
		return te__fail(-ENOMEM, "te__place: no memory for %" PRId32 " items", n);
	for (int32_t i = 0; i < n; i++) {
		const struct te__place_item *it = &items[i];

		if (!it->fixed || !it->nbytes)
			continue;
		v[nrows] = (struct row){ it->offset, it->offset + rounded(it->nbytes, align),
					 it->first, it->last, i };
		peak = larger(peak, v[nrows++].end);
	}
	nfixed = nrows;
	for (int32_t i = 0; i < n; i++) {
		const struct te__place_item *it = &items[i];

		if (it->fixed)
			continue;
		items[i].offset = 0;
		if (it->nbytes)
			v[nrows++] = (struct row){ 0, it->nbytes, it->first, it->last, i };
	}
	qsort(v, nfixed, sizeof(*v), by_offset);
	qsort(v + nfixed, nrows - nfixed, sizeof(*v), by_size);
	for (size_t j = nfixed; j < nrows; j++) {
		const uint64_t nbytes = rounded(v[j].end, align);
		struct row x = v[j];
		size_t at;

		x.offset = first_fit(v, j, &x, nbytes, &at);
		x.end = x.offset + nbytes;
		while (at && v[at - 1].offset > x.offset)
			at--;
		memmove(&v[at + 1], &v[at], (j - at) * sizeof(*v));
		v[at] = x;
		items[x.item].offset = x.offset;
		peak = larger(peak, x.end);
	}
	te__free(v);
	*ret_peak = peak;
	return 0;
}
