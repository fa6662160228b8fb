/* place.c - te_place(3): greedy by size, first fit. */
#define TE_LOG_CATEGORY "core/place"
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include <te/place.h>
#include <te/private.h>

struct by_size {
	uint64_t nbytes;
	int32_t item;
};

static int by_size(const void *a, const void *b)
{
	const struct by_size *x = a, *y = b;

	if (x->nbytes != y->nbytes)
		return x->nbytes < y->nbytes ? 1 : -1;
	return x->item - y->item;
}

static uint64_t rounded(uint64_t nbytes, uint64_t align)
{
	return (nbytes + align - 1) & ~(align - 1);
}

/* the lowest offset where the item fits beside those placed that live at the same time; at[] holds
 * them sorted by offset */
static uint64_t lowest_fit(const struct te_place_item *items, const struct te_place_item *it,
			   const int32_t *at, int32_t n, uint64_t align)
{
	const uint64_t nbytes = rounded(it->nbytes, align);
	uint64_t off = 0;

	for (int32_t i = 0; i < n; i++) {
		const struct te_place_item *o = &items[at[i]];

		if (o->last < it->first || it->last < o->first)
			continue;
		if (off + nbytes <= o->offset)
			break;
		if (o->offset + rounded(o->nbytes, align) > off)
			off = o->offset + rounded(o->nbytes, align);
	}
	return off;
}

static int check(const struct te_place_item *items, int32_t n, uint64_t align)
{
	uint64_t sum = 0;

	if (n < 0 || (n && !items) || !align || (align & (align - 1)))
		return te__fail(-EINVAL, "te_place: %" PRId32 " items%s, align %" PRIu64, n,
				n > 0 && !items ? " at NULL" : "", align);
	for (int32_t i = 0; i < n; i++) {
		if (items[i].last < items[i].first)
			return te__fail(-EINVAL,
					"te_place: item %" PRId32 " lives from %" PRId32
					" to %" PRId32,
					i, items[i].first, items[i].last);
		if (items[i].nbytes > UINT64_MAX - (align - 1) ||
		    rounded(items[i].nbytes, align) > UINT64_MAX - sum)
			return te__fail(-EOVERFLOW,
					"te_place: item %" PRId32 " of %" PRIu64
					" bytes: the sum exceeds 64 bits",
					i, items[i].nbytes);
		sum += rounded(items[i].nbytes, align);
	}
	return 0;
}

int te_place(struct te_place_item *items, int32_t n, uint64_t align, uint64_t *ret_peak)
{
	uint64_t peak = 0;
	struct by_size *order;
	int32_t *at, m = 0;
	int r = check(items, n, align);

	if (r)
		return r;
	if (!ret_peak)
		return te__fail(-EINVAL, "te_place: ret_peak is NULL");
	order = te__malloc((size_t)n * sizeof(*order) + 1);
	at = te__malloc((size_t)n * sizeof(*at) + 1);
	if (!order || !at) {
		te__free(order);
		te__free(at);
		return te__fail(-ENOMEM, "te_place: no memory for %" PRId32 " items", n);
	}
	for (int32_t i = 0; i < n; i++) {
		items[i].offset = 0;
		if (items[i].nbytes)
			order[m++] = (struct by_size){ items[i].nbytes, i };
	}
	qsort(order, (size_t)m, sizeof(*order), by_size);
	for (int32_t i = 0; i < m; i++) {
		struct te_place_item *it = &items[order[i].item];
		int32_t k = i;

		it->offset = lowest_fit(items, it, at, k, align);
		for (; k > 0 && items[at[k - 1]].offset > it->offset; k--)
			at[k] = at[k - 1];
		at[k] = order[i].item;
		if (it->offset + rounded(it->nbytes, align) > peak)
			peak = it->offset + rounded(it->nbytes, align);
	}
	te__free(order);
	te__free(at);
	*ret_peak = peak;
	return 0;
}
