/* t/plan/place.c - te__place(): the offsets, their time for 64,000 items, overflow, faults. */
#include "config.h"

#include <time.h>

#include <te/errno.h>

#include "libtecore/plan/place.h"
#include "tt_ctx.h"

static int apart(const struct te__place_item *a, const struct te__place_item *b)
{
	return a->last < b->first || b->last < a->first;
}

static uint64_t end_of(const struct te__place_item *it, uint64_t align)
{
	return it->offset + (it->nbytes + align - 1) / align * align;
}

/* the definition: after the fixed ones, largest first, each at the lowest offset that is free */
static void place_naively(struct te__place_item *it, int32_t n, uint64_t align)
{
	int *placed = calloc((size_t)n, sizeof(*placed)), nfixed = 0;

	for (int32_t i = 0; i < n; i++)
		nfixed += placed[i] = it[i].fixed;
	for (int32_t m = nfixed; m < n; m++) {
		int32_t next = -1, i = 0;

		for (int32_t k = 0; k < n; k++)
			if (!placed[k] && (next < 0 || it[k].nbytes > it[next].nbytes))
				next = k;
		it[next].offset = 0;
		while (i < n && it[next].nbytes) {
			if (placed[i] && it[i].nbytes && !apart(&it[i], &it[next]) &&
			    it[i].offset < end_of(&it[next], align) &&
			    it[next].offset < end_of(&it[i], align)) {
				it[next].offset = end_of(&it[i], align);
				i = 0;
			} else {
				i++;
			}
		}
		placed[next] = 1;
	}
	free(placed);
}

static void check_offsets(struct te__place_item *it, int32_t n, uint64_t align)
{
	struct te__place_item *want = malloc((size_t)n * sizeof(*want));
	uint64_t peak;

	memcpy(want, it, (size_t)n * sizeof(*want));
	place_naively(want, n, align);
	ck_assert_int_eq(te__place(it, n, align, &peak), 0);
	for (int32_t i = 0; i < n; i++) {
		if (it[i].offset != want[i].offset)
			ck_abort_msg("item %d of %d: offset %llu, expected %llu", i, n,
				     (unsigned long long)it[i].offset,
				     (unsigned long long)want[i].offset);
		if (it[i].nbytes && end_of(&it[i], align) > peak)
			ck_abort_msg("item %d of %d ends above the peak", i, n);
	}
	free(want);
}

CASE(place, "memory serial");

TEST(place, each_offset_is_the_lowest_free_one)
{
	for (int trial = 0; trial < 1000; trial++) {
		struct te__place_item it[80];
		int32_t n = (int32_t)tt_rand_int(1, 80), longest = (int32_t)tt_rand_int(0, 60);
		const int32_t nfixed = (int32_t)tt_rand_int(0, 3); /* none, or every so many */
		const uint64_t align = 1ull << tt_rand_int(0, 9);
		int64_t most = tt_rand_int(0, 1) ? 6 : 100000;
		int32_t base = (int32_t)(tt_rand_int(0, 2) ? 0 :
					 tt_rand_int(0, 1) ? INT32_MIN :
							     INT32_MAX - 200);

		for (int32_t i = 0; i < n; i++) {
			it[i].first = base + (int32_t)tt_rand_int(0, 100);
			it[i].last = it[i].first + (int32_t)tt_rand_int(0, longest);
			it[i].nbytes = (uint64_t)tt_rand_int(0, most);
			it[i].fixed = nfixed && !tt_rand_int(0, nfixed);
			it[i].offset = align * (uint64_t)tt_rand_int(0, most);
		}
		check_offsets(it, n, align);
	}
}

TEST(place, long_lifetimes_get_the_lowest_free_offset)
{
	static struct te__place_item it[1400];

	for (int32_t n = 200; n <= 1400; n += 300) {
		for (int32_t i = 0; i < n; i++) {
			it[i].first = (int32_t)tt_rand_int(0, n);
			it[i].last = (int32_t)tt_rand_int(it[i].first, n);
			it[i].nbytes = (uint64_t)tt_rand_int(1, 10000);
			it[i].fixed = 0;
		}
		check_offsets(it, n, 1);
	}
}

/* ---- many items ---- */

/* without optimization the scan is several times slower */
#ifdef __OPTIMIZE__
enum { MANY = TT_FEWER(64000) };
#else
enum { MANY = 8000 };
#endif
#define MOST_NBYTES 10000 /* largest random item */
#define LIMIT_S 10.0 /* for MANY items on one core */

enum { CHAIN, EQUAL_CHAIN, NESTED, GPIPE, ONE_F_ONE_B, MIXED, RANDOM, ALL, NKINDS };

/* item i of n, with lifetimes such as plans and graphs have; a layer has eight items */
static struct te__place_item many(int kind, int32_t i, int32_t n)
{
	static const uint64_t layer[] = { 4096, 4096, 12288, 16384, 16384, 4096, 512, 64 };
	const int32_t l = i / 8, depth = 64, round = l / depth, up = l % depth;
	struct te__place_item it = { .first = i, .last = i + 1 };

	it.nbytes = kind == GPIPE || kind == ONE_F_ONE_B ? layer[i % 8] :
		    kind == EQUAL_CHAIN			 ? 4096 :
							   (uint64_t)tt_rand_int(1, MOST_NBYTES);
	if (kind == NESTED) { /* saved by a forward, read by its backward */
		it.last = 2 * n - i;
	} else if (kind == GPIPE) {
		it.first = l;
		it.last = i % 3 ? n / 4 - l : l + 1;
	} else if (kind == ONE_F_ONE_B) { /* four micro-batches are in flight */
		it.first = 2 * round * depth + up;
		it.last = i % 3 ? 2 * (round + 4) * depth - up : it.first + 1;
	} else if (kind == MIXED) { /* one item in ten can live long */
		it.first = (int32_t)tt_rand_int(0, n);
		it.last = it.first + (int32_t)tt_rand_int(0, tt_rand_int(0, 9) ? 8 : n);
	} else if (kind == RANDOM) {
		it.first = (int32_t)tt_rand_int(0, n);
		it.last = (int32_t)tt_rand_int(it.first, n);
	} else if (kind == ALL) { /* every item is alive at time n */
		it.last = n + i;
	}
	return it;
}

static const struct te__place_item *sorted; /* for the two comparisons */

static int by_first(const void *a, const void *b)
{
	return sorted[*(const int32_t *)a].first - sorted[*(const int32_t *)b].first;
}

static int by_last(const void *a, const void *b)
{
	return sorted[*(const int32_t *)a].last - sorted[*(const int32_t *)b].last;
}

/* allocates and frees the items in order of time; returns the largest number of bytes alive at one
 * time */
static uint64_t simulate(const struct te__place_item *it, int32_t n, uint64_t align, uint64_t peak)
{
	int32_t *birth = malloc((size_t)n * sizeof(*birth));
	int32_t *death = malloc((size_t)n * sizeof(*death)), dead = 0;
	int32_t *owner = calloc(peak / align + 1, sizeof(*owner)); /* plus 1; 0: free */
	uint64_t live = 0, most = 0;

	for (int32_t i = 0; i < n; i++)
		birth[i] = death[i] = i;
	sorted = it;
	qsort(birth, (size_t)n, sizeof(*birth), by_first);
	qsort(death, (size_t)n, sizeof(*death), by_last);
	for (int32_t i = 0; i < n; i++) {
		const struct te__place_item *b = &it[birth[i]];

		for (; it[death[dead]].last < b->first; dead++) {
			const struct te__place_item *d = &it[death[dead]];

			live -= end_of(d, align) - d->offset;
			memset(owner + d->offset / align, 0,
			       (end_of(d, align) - d->offset) / align * sizeof(*owner));
		}
		live += end_of(b, align) - b->offset;
		most = live > most ? live : most;
		ck_assert_msg(end_of(b, align) <= peak, "item %d ends above the peak", birth[i]);
		for (uint64_t at = b->offset / align; at < end_of(b, align) / align; at++) {
			ck_assert_msg(!owner[at], "items %d and %d overlap", birth[i],
				      owner[at] - 1);
			owner[at] = birth[i] + 1;
		}
	}
	free(birth);
	free(death);
	free(owner);
	return most;
}

static double cpu_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

CASE(many, "memory serial");

TEST_EACH(many, many_are_quick_disjoint_and_dense, NKINDS)
{
	/* one of the kinds in each run, fewer of the others */
	const int32_t n = tt_seed() % NKINDS == (uint64_t)_i ? MANY : MANY / 8;
	struct te__place_item *it = malloc((size_t)n * sizeof(*it));
	uint64_t peak, most;
	double t;

	for (int32_t i = 0; i < n; i++)
		it[i] = many(_i, i, n);
	t = cpu_s();
	ck_assert_int_eq(te__place(it, n, 256, &peak), 0);
	t = cpu_s() - t;
	ck_assert_msg(t < LIMIT_S, "%g s for %d items", t, n);
	most = simulate(it, n, 256, peak);
	ck_assert_uint_ge(peak, most);
	/* a chain of random sizes is hard: two are alive at once, each overlaps two others */
	/* and 1000 items have some gaps of the size of an item */
	ck_assert_uint_le(peak, most + most / (_i == CHAIN ? 1 : 10) + 4 * MOST_NBYTES);
	free(it);
}

TEST(place, overlapping_lifetimes_share_no_memory)
{
	for (int trial = 0; trial < 300; trial++) {
		struct te__place_item it[80];
		int32_t n = (int32_t)tt_rand_int(0, 80);
		uint64_t align = 1ull << tt_rand_int(0, 9), peak = 77, most = 0;

		for (int32_t i = 0; i < n; i++) {
			it[i].first = (int32_t)tt_rand_int(-20, 20);
			it[i].last = it[i].first + (int32_t)tt_rand_int(0, 8);
			it[i].nbytes = (uint64_t)(tt_rand_int(0, 5) ? tt_rand_int(1, 5000) : 0);
			it[i].offset = 12345;
			it[i].fixed = 0;
		}
		ck_assert_int_eq(te__place(it, n, align, &peak), 0);
		for (int32_t i = 0; i < n; i++) {
			ck_assert_uint_eq(it[i].offset % align, 0);
			ck_assert_uint_le(it[i].offset + it[i].nbytes, peak);
			if (!it[i].nbytes)
				ck_assert_uint_eq(it[i].offset, 0);
			for (int32_t j = 0; j < i; j++)
				ck_assert_msg(it[i].last < it[j].first ||
						      it[j].last < it[i].first ||
						      it[i].offset >= it[j].offset + it[j].nbytes ||
						      it[j].offset >= it[i].offset + it[i].nbytes,
					      "items %d and %d overlap", i, j);
		}
		for (int32_t t = -20; t <= 28; t++) {
			uint64_t live = 0;

			for (int32_t i = 0; i < n; i++)
				if (it[i].first <= t && t <= it[i].last)
					live += it[i].nbytes;
			most = live > most ? live : most;
		}
		ck_assert_uint_ge(peak, most);
		/* far above what first fit needs: twice the bytes alive at one time */
		ck_assert_uint_le(peak, 2 * most + 80 * align);
	}
}

TEST(place, memory_is_reused)
{
	/* a chain as layers are: two are alive at a time */
	struct te__place_item it[10];
	uint64_t peak;

	for (int i = 0; i < 10; i++)
		it[i] = (struct te__place_item){ 1000, i, i + 1, 0, 0 };
	ck_assert_int_eq(te__place(it, 10, 256, &peak), 0);
	ck_assert_uint_eq(peak, 2048);
	for (int i = 0; i < 10; i++) /* all at once */
		it[i].first = 0, it[i].last = 5;
	ck_assert_int_eq(te__place(it, 10, 256, &peak), 0);
	ck_assert_uint_eq(peak, 10240);
	ck_assert_int_eq(te__place(NULL, 0, 256, &peak), 0);
	ck_assert_uint_eq(peak, 0);
}

TEST(place, bad_items_are_named)
{
	struct te__place_item it[] = { { 100, 0, 1, 7, 0 }, { 100, 2, 3, 7, 0 } };
	uint64_t peak = 5;

	fails(te__place(it, 2, 3, &peak), -EINVAL, "align 3");
	fails(te__place(it, 2, 0, &peak), -EINVAL, "align 0");
	fails(te__place(it, -1, 8, &peak), -EINVAL, "-1 items");
	fails(te__place(NULL, 2, 8, &peak), -EINVAL, "2 items at NULL");
	fails(te__place(it, 2, 8, NULL), -EINVAL, "ret_peak is NULL");
	it[1].first = 4;
	fails(te__place(it, 2, 8, &peak), -EINVAL, "item 1: lifetime from 4 to 3");
	it[1].first = 0;
	it[1].nbytes = UINT64_MAX - 3;
	fails(te__place(it, 2, 8, &peak), -EOVERFLOW, "item 1");
	it[1].nbytes = UINT64_MAX - 100;
	fails(te__place(it, 2, 1, &peak), 0, "");
	it[1].nbytes++;
	fails(te__place(it, 2, 1, &peak), -EOVERFLOW, "item 1");
	it[0].offset = it[1].offset = 7;
	fails(te__place(it, 2, 1, &peak), -EOVERFLOW, "item 1");
	ck_assert_uint_eq(it[0].offset, 7);
	it[1] = (struct te__place_item){ 100, 2, 3, 250, 1 };
	fails(te__place(it, 2, 8, &peak), -EINVAL, "item 1: offset 250 is no multiple of 8");
	/* the other would end at offset + 100 + 100 */
	it[1].offset = UINT64_MAX - 199;
	fails(te__place(it, 2, 1, &peak), -EOVERFLOW, "item 1");
	it[1].offset--;
	fails(te__place(it, 2, 1, &peak), 0, "");
	ck_assert_uint_eq(it[1].offset, UINT64_MAX - 200);
	ck_assert_uint_eq(peak, UINT64_MAX - 100);
}

TEST(place, fixed_items_stay_and_others_avoid_them)
{
	/* two fixed ones overlap; in their gap, and above them, there is room for others */
	struct te__place_item it[] = { { 500, 0, 9, 0, 0 },    { 512, 0, 4, 1024, 1 },
				       { 256, 2, 9, 1280, 1 }, { 1000, 0, 1, 0, 0 },
				       { 300, 0, 1, 0, 0 },    { 500, 5, 5, 0, 0 } };
	static const uint64_t want[] = { 1536, 1024, 1280, 0, 2048, 0 };
	uint64_t peak;

	ck_assert_int_eq(te__place(it, TT_LEN(it), 256, &peak), 0);
	for (int i = 0; i < (int)TT_LEN(it); i++)
		ck_assert_msg(it[i].offset == want[i], "item %d: offset %llu", i,
			      (unsigned long long)it[i].offset);
	ck_assert_uint_eq(peak, 2560);
}

static int place_some(void)
{
	struct te__place_item it[] = { { 100, 0, 1, 0, 0 }, { 100, 2, 3, 0, 0 } };
	uint64_t peak;

	return te__place(it, 2, 8, &peak);
}

TEST(place, survives_every_fault)
{
	ck_assert_int_eq(tt_fault_each(place_some), 1);
}

TT_MAIN("plan/place", TT_NEED_NOTHING)
