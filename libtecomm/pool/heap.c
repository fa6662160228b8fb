/* heap.c - the sub-allocator of a symmetric pool, see heap.h. */
#include "config.h"

#include <errno.h>
#include <string.h>

#include "libtecomm/pool/heap.h"
#include "libtecore/base/grow.h"
#include "libtecore/base/private.h"

void te__heap_init(struct te__heap *h, uint64_t end)
{
	*h = (struct te__heap){ .end = end };
}

void te__heap_fini(struct te__heap *h)
{
	te__free(h->block);
	te__heap_init(h, 0);
}

static uint64_t align_of(uint64_t nbytes)
{
	return nbytes >= TE__HEAP_ALIGN_LARGE ? TE__HEAP_ALIGN_LARGE : TE__HEAP_ALIGN;
}

/* 0 if that overflows */
static uint64_t round_up(uint64_t x, uint64_t align)
{
	return x > UINT64_MAX - align ? 0 : (x + align - 1) / align * align;
}

/* bytes that a block of that size occupies; 0 if that overflows */
static uint64_t rounded_up(uint64_t nbytes)
{
	return round_up(nbytes, TE__HEAP_ALIGN);
}

/* the end of block i - 1 */
static uint64_t gap_begin(const struct te__heap *h, size_t i)
{
	return i ? h->block[i - 1].offset + rounded_up(h->block[i - 1].nbytes) : 0;
}

static uint64_t gap_end(const struct te__heap *h, size_t i)
{
	return i < h->n ? h->block[i].offset : h->end;
}

/* the lowest gap that holds the block; h->n + 1 if none does */
static size_t find_gap(const struct te__heap *h, uint64_t nbytes, uint64_t *ret_offset)
{
	const uint64_t align = align_of(nbytes), want = rounded_up(nbytes);
	size_t i;

	for (i = 0; i <= h->n; i++) {
		uint64_t at = round_up(gap_begin(h, i), align);

		if (at <= gap_end(h, i) && gap_end(h, i) - at >= want) {
			*ret_offset = at;
			break;
		}
	}
	return i;
}

int te__heap_alloc(struct te__heap *h, uint64_t nbytes, struct te__block **ret_block)
{
	const uint64_t rounded = rounded_up(nbytes);
	uint64_t offset = 0;
	size_t i;

	if (!rounded)
		return 0;
	i = find_gap(h, nbytes, &offset);
	if (i > h->n)
		return 0;
	if (TE__GROW(h->block, h->cap, h->n))
		return -ENOMEM;
	memmove(h->block + i + 1, h->block + i, (h->n - i) * sizeof(*h->block));
	h->block[i] = (struct te__block){ .offset = offset, .nbytes = nbytes };
	h->n++;
	h->used_nbytes += rounded;
	if (h->peak_nbytes < h->used_nbytes)
		h->peak_nbytes = h->used_nbytes;
	*ret_block = &h->block[i];
	return 1;
}

struct te__block *te__heap_find(struct te__heap *h, uint64_t offset)
{
	size_t lo = 0, hi = h->n;
	struct te__block *b;

	/* the blocks before lo begin at the offset or before it, those from hi on after it */
	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (h->block[mid].offset <= offset)
			lo = mid + 1;
		else
			hi = mid;
	}
	if (!lo)
		return NULL;
	b = &h->block[lo - 1];
	return b->freed || offset - b->offset >= b->nbytes ? NULL : b;
}

void te__heap_free(struct te__heap *h, struct te__block *b)
{
	b->freed = 1;
	h->freed_nbytes += rounded_up(b->nbytes);
}

void te__heap_reclaim(struct te__heap *h, struct te__block *b)
{
	const size_t i = (size_t)(b - h->block);

	h->used_nbytes -= rounded_up(b->nbytes);
	h->freed_nbytes -= rounded_up(b->nbytes);
	memmove(b, b + 1, (h->n - i - 1) * sizeof(*b));
	h->n--;
}

uint64_t te__heap_largest(const struct te__heap *h)
{
	uint64_t most = 0;

	for (size_t i = 0; i <= h->n; i++) {
		const uint64_t begin = gap_begin(h, i);
		const uint64_t end = gap_end(h, i) / TE__HEAP_ALIGN * TE__HEAP_ALIGN;
		const uint64_t large = round_up(begin, TE__HEAP_ALIGN_LARGE);
		uint64_t n = end - begin;

		/* a large block must begin at a larger alignment */
		if (n >= TE__HEAP_ALIGN_LARGE)
			n = large <= end && end - large >= TE__HEAP_ALIGN_LARGE ?
				    end - large : TE__HEAP_ALIGN_LARGE - 1;
		if (most < n)
			most = n;
	}
	return most;
}
