/* t/comm/heap.c - the sub-allocator of symmetric pools against a map of all its units. */
#include "config.h"

#include "libtecomm/pool/heap.h"
#include "libtecore/base/private.h"
#include "tt.h"

#define UNITS ((size_t)(12 << 20) / TE__HEAP_ALIGN)
#define LARGE (TE__HEAP_ALIGN_LARGE / TE__HEAP_ALIGN)
#define MOST 4096

/* the reference: one byte a unit, 1 where it is in use */
static unsigned char used[UNITS];
static struct live {
	uint64_t offset, nbytes;
	int freed;
} live[MOST];
static size_t nlive;

static size_t units(uint64_t nbytes)
{
	return (size_t)((nbytes + TE__HEAP_ALIGN - 1) / TE__HEAP_ALIGN);
}

/* the lowest aligned unit from which n are unused; UNITS if there is none */
static size_t lowest(size_t n)
{
	const size_t step = n >= LARGE ? LARGE : 1;

	for (size_t at = 0; at + n <= UNITS; at += step) {
		size_t k = 0;

		while (k < n && !used[at + k])
			k++;
		if (k == n)
			return at;
		if (step == 1)
			at += k;
	}
	return UNITS;
}

static void mark(const struct live *l, int value)
{
	memset(used + l->offset / TE__HEAP_ALIGN, value, units(l->nbytes));
}

static uint64_t random_size(void)
{
	switch (tt_rand_int(0, 19)) {
	case 0:
		return (uint64_t)tt_rand_int(TE__HEAP_ALIGN_LARGE - 3, 5 << 20);
	case 1:
	case 2:
		return (uint64_t)tt_rand_int(1, 1 << 20);
	default:
		return (uint64_t)tt_rand_int(1, 20000);
	}
}

static void alloc_one(struct te__heap *h)
{
	const uint64_t nbytes = random_size();
	/* the heap aligns by bytes: a block one byte short of large is not */
	const size_t n = units(nbytes);
	const size_t at = nbytes >= TE__HEAP_ALIGN_LARGE || n < LARGE ? lowest(n) : UNITS + 1;
	struct te__block *b = NULL;
	int r;

	if (at == UNITS + 1 || nlive == MOST)
		return;
	r = te__heap_alloc(h, nbytes, &b);
	ck_assert_int_eq(r, at < UNITS);
	if (!r)
		return;
	ck_assert_uint_eq(b->offset, at * TE__HEAP_ALIGN);
	ck_assert_uint_eq(b->nbytes, nbytes);
	live[nlive] = (struct live){ b->offset, nbytes, 0 };
	mark(&live[nlive++], 1);
}

static void free_one(struct te__heap *h)
{
	struct live *l = &live[tt_rand_int(0, (int64_t)nlive - 1)];
	struct te__block *b = te__heap_find(h, l->offset);

	if (l->freed) {
		ck_assert_ptr_null(b);
		return;
	}
	ck_assert_ptr_nonnull(b);
	/* any address of the block finds it, and none past it */
	ck_assert_ptr_eq(te__heap_find(h, l->offset + l->nbytes - 1), b);
	ck_assert_ptr_ne(te__heap_find(h, l->offset + l->nbytes), b);
	te__heap_free(h, b);
	l->freed = 1;
}

static void reclaim_all(struct te__heap *h)
{
	for (size_t i = h->n; i-- > 0;)
		if (h->block[i].freed)
			te__heap_reclaim(h, &h->block[i]);
	for (size_t i = nlive; i-- > 0;)
		if (live[i].freed) {
			mark(&live[i], 0);
			live[i] = live[--nlive];
		}
}

static void check_sums(const struct te__heap *h)
{
	size_t in_use = 0;

	for (size_t i = 0; i < UNITS; i++)
		in_use += used[i];
	ck_assert_uint_eq(h->used_nbytes, in_use * TE__HEAP_ALIGN);
	ck_assert_uint_eq(h->n, nlive);
}

CASE(heap, "host fast");

TEST(heap, places_blocks_as_the_reference)
{
	struct te__heap h;

	te__heap_init(&h, UNITS * TE__HEAP_ALIGN);
	for (uint64_t i = 1; i <= TT_FEWER(100000); i++) {
		const int64_t kind = tt_rand_int(0, 99);

		if (kind < 52 || !nlive)
			alloc_one(&h);
		else if (kind < 98)
			free_one(&h);
		else
			reclaim_all(&h);
		if (i % 1000 == 0)
			check_sums(&h);
	}
	for (size_t i = 0; i < nlive; i++)
		if (!live[i].freed)
			te__heap_free(&h, te__heap_find(&h, live[i].offset));
	ck_assert_uint_eq(h.freed_nbytes, h.used_nbytes);
	for (size_t i = 0; i < nlive; i++)
		live[i].freed = 1;
	reclaim_all(&h);
	ck_assert_uint_eq(h.used_nbytes, 0);
	ck_assert_uint_eq(h.freed_nbytes, 0);
	ck_assert_uint_eq(h.n, 0);
	te__heap_fini(&h);
}

/* the reported largest block fits, and nothing larger does */
TEST(heap, the_largest_block_fits)
{
	struct te__heap h;
	struct te__block *b;
	uint64_t most;

	for (int round = 0; round < 50; round++) {
		te__heap_init(&h, UNITS * TE__HEAP_ALIGN -
				     (uint64_t)tt_rand_int(0, TE__HEAP_ALIGN - 1));
		for (uint64_t i = 0; i < 40; i++)
			(void)te__heap_alloc(&h, random_size(), &b);
		for (size_t i = h.n; i-- > 0;)
			if (tt_rand_int(0, 1)) {
				te__heap_free(&h, &h.block[i]);
				te__heap_reclaim(&h, &h.block[i]);
			}
		most = te__heap_largest(&h);
		ck_assert_int_eq(te__heap_alloc(&h, most + 1, &b), 0);
		if (most)
			ck_assert_int_eq(te__heap_alloc(&h, most, &b), 1);
		te__heap_fini(&h);
	}
}

TEST(heap, sizes_that_overflow_do_not_fit)
{
	struct te__heap h;
	struct te__block *b = NULL;

	te__heap_init(&h, 4 << 20);
	ck_assert_int_eq(te__heap_alloc(&h, UINT64_MAX, &b), 0);
	ck_assert_int_eq(te__heap_alloc(&h, UINT64_MAX - 600, &b), 0);
	ck_assert_int_eq(te__heap_alloc(&h, 0, &b), 0);
	ck_assert_ptr_null(b);
	/* a large block is aligned, whatever precedes it */
	ck_assert_int_eq(te__heap_alloc(&h, 1, &b), 1);
	ck_assert_uint_eq(b->offset, 0);
	ck_assert_int_eq(te__heap_alloc(&h, 2 << 20, &b), 1);
	ck_assert_uint_eq(b->offset, 2 << 20);
	ck_assert_int_eq(te__heap_alloc(&h, 1, &b), 1);
	ck_assert_uint_eq(b->offset, 512);
	te__heap_fini(&h);
}

TEST(heap, no_host_memory_changes_nothing)
{
	struct te__heap h;
	struct te__block *b = NULL;

	te__heap_init(&h, 1 << 20);
	te__fault_set(1);
	ck_assert_int_eq(te__heap_alloc(&h, 100, &b), -ENOMEM);
	te__fault_set(0);
	ck_assert_uint_eq(h.n, 0);
	ck_assert_uint_eq(h.used_nbytes, 0);
	ck_assert_int_eq(te__heap_alloc(&h, 100, &b), 1);
	ck_assert_uint_eq(b->offset, 0);
	te__heap_fini(&h);
}

TT_MAIN("comm/heap", TT_NEED_NOTHING)
