/* t/core/place.c - te_place(3): nothing that lives at once overlaps, of many too, and errors. */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <te/errno.h>
#include <te/place.h>

#include "tt_ctx.h"

static int apart(const struct te_place_item *a, const struct te_place_item *b)
{
	return a->last < b->first || b->last < a->first;
}

static uint64_t end_of(const struct te_place_item *it, uint64_t align)
{
	return it->offset + (it->nbytes + align - 1) / align * align;
}

/* what te_place does, in as many words: largest first, each where it fits lowest */
static void place_slowly(struct te_place_item *it, int32_t n, uint64_t align)
{
	int *placed = calloc((size_t)n, sizeof(*placed));

	for (int32_t m = 0; m < n; m++) {
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

static void check_places(struct te_place_item *it, int32_t n, uint64_t align)
{
	struct te_place_item *slow = malloc((size_t)n * sizeof(*slow));
	uint64_t peak;

	memcpy(slow, it, (size_t)n * sizeof(*slow));
	place_slowly(slow, n, align);
	ck_assert_int_eq(te_place(it, n, align, &peak), 0);
	for (int32_t i = 0; i < n; i++) {
		if (it[i].offset != slow[i].offset)
			ck_abort_msg("item %d of %d lies at %llu, not at %llu", i, n,
				     (unsigned long long)it[i].offset,
				     (unsigned long long)slow[i].offset);
		if (it[i].nbytes && end_of(&it[i], align) > peak)
			ck_abort_msg("item %d of %d lies beyond the peak", i, n);
	}
	free(slow);
}

/* an offset that some item blocks is left for that item's end, so none that is free is passed by */
START_TEST(each_lies_where_it_fits_lowest)
{
	for (int trial = 0; trial < 1000; trial++) {
		struct te_place_item it[80];
		int32_t n = (int32_t)tt_rand_int(1, 80), longest = (int32_t)tt_rand_int(0, 60);
		int64_t most = tt_rand_int(0, 1) ? 6 : 100000;
		int32_t base = (int32_t)(tt_rand_int(0, 2) ? 0 :
					 tt_rand_int(0, 1) ? INT32_MIN :
							     INT32_MAX - 200);

		for (int32_t i = 0; i < n; i++) {
			it[i].first = base + (int32_t)tt_rand_int(0, 100);
			it[i].last = it[i].first + (int32_t)tt_rand_int(0, longest);
			it[i].nbytes = (uint64_t)tt_rand_int(0, most);
		}
		check_places(it, n, 1ull << tt_rand_int(0, 9));
	}
}
END_TEST

/* so many that all that is taken is looked at, in the list and in its late part */
START_TEST(long_lives_lie_where_they_fit_lowest)
{
	static struct te_place_item it[1400];

	for (int32_t n = 200; n <= 1400; n += 300) {
		for (int32_t i = 0; i < n; i++) {
			it[i].first = (int32_t)tt_rand_int(0, n);
			it[i].last = (int32_t)tt_rand_int(it[i].first, n);
			it[i].nbytes = (uint64_t)tt_rand_int(1, 10000);
		}
		check_places(it, n, 1);
	}
}
END_TEST

/* ---- many ---- */

enum { CHAIN, NESTED, GPIPE, ONE_F_ONE_B, MIXED, LONG, NKINDS };

/* item i of n, with lives such as plans and graphs have; layers have eight items each */
static struct te_place_item many(int kind, int32_t i, int32_t n)
{
	static const uint64_t layer[] = { 4096, 4096, 12288, 16384, 16384, 4096, 512, 64 };
	const int32_t l = i / 8, depth = 64, round = l / depth, up = l % depth;
	struct te_place_item it = { .first = i, .last = i + 1 };

	it.nbytes = kind == GPIPE || kind == ONE_F_ONE_B ? layer[i % 8] :
							   (uint64_t)tt_rand_int(1, 10000);
	if (kind == NESTED) { /* saved by a forward, read by its backward */
		it.last = 2 * n - i;
	} else if (kind == GPIPE) {
		it.first = l;
		it.last = i % 3 ? n / 4 - l : l + 1;
	} else if (kind == ONE_F_ONE_B) { /* four micro-batches are under way */
		it.first = 2 * round * depth + up;
		it.last = i % 3 ? 2 * (round + 4) * depth - up : it.first + 1;
	} else if (kind == MIXED) {
		it.first = (int32_t)tt_rand_int(0, n);
		it.last = it.first + (int32_t)tt_rand_int(0, tt_rand_int(0, 9) ? 8 : n);
	} else if (kind == LONG) {
		it.first = (int32_t)tt_rand_int(0, n);
		it.last = (int32_t)tt_rand_int(it.first, n);
	}
	return it;
}

static const struct te_place_item *sorted; /* for the two orders */

static int by_first(const void *a, const void *b)
{
	return sorted[*(const int32_t *)a].first - sorted[*(const int32_t *)b].first;
}

static int by_last(const void *a, const void *b)
{
	return sorted[*(const int32_t *)a].last - sorted[*(const int32_t *)b].last;
}

/* takes items in the order of their births, and lets go of those that have died; returns the most
 * bytes that were taken at a time */
static uint64_t live_through(const struct te_place_item *it, int32_t n, uint64_t align,
			     uint64_t peak)
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
		const struct te_place_item *b = &it[birth[i]];

		for (; it[death[dead]].last < b->first; dead++) {
			const struct te_place_item *d = &it[death[dead]];

			live -= end_of(d, align) - d->offset;
			memset(owner + d->offset / align, 0,
			       (end_of(d, align) - d->offset) / align * sizeof(*owner));
		}
		live += end_of(b, align) - b->offset;
		most = live > most ? live : most;
		/* Check writes down each assertion that holds, and here are millions */
		if (end_of(b, align) > peak)
			ck_abort_msg("item %d lies beyond the peak", birth[i]);
		for (uint64_t at = b->offset / align; at < end_of(b, align) / align; at++) {
			if (owner[at])
				ck_abort_msg("item %d lies where item %d lives", birth[i],
					     owner[at] - 1);
			owner[at] = birth[i] + 1;
		}
	}
	free(birth);
	free(death);
	free(owner);
	return most;
}

START_TEST(many_lie_apart_and_close_together)
{
	const int32_t n = _i == LONG ? 16000 : 64000;
	struct te_place_item *it = malloc((size_t)n * sizeof(*it));
	uint64_t peak, most;

	for (int32_t i = 0; i < n; i++)
		it[i] = many(_i, i, n);
	ck_assert_int_eq(te_place(it, n, 256, &peak), 0);
	most = live_through(it, n, 256, peak);
	ck_assert_uint_ge(peak, most);
	/* a chain of any sizes is hard: few live at once, and each holds two others apart */
	ck_assert_uint_le(peak, most + most / (_i == CHAIN ? 1 : 10));
	free(it);
}
END_TEST

static double cpu_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* the better of two */
static double placing_s(int kind, int32_t n)
{
	struct te_place_item *it = malloc((size_t)n * sizeof(*it));
	double best = 1e9, t;
	uint64_t peak;

	for (int32_t i = 0; i < n; i++)
		it[i] = many(kind, i, n);
	for (int k = 0; k < 2; k++) {
		t = cpu_s();
		ck_assert_int_eq(te_place(it, n, 256, &peak), 0);
		t = cpu_s() - t;
		best = t < best ? t : best;
	}
	free(it);
	return best;
}

/* 16 times the items: a search among all of them would take 256 times as long */
START_TEST(many_take_little_time)
{
	double few = placing_s(_i, 2000), lots = placing_s(_i, 32000);

	ck_assert_msg(lots < 80 * few, "%g s for 32,000, %g s for 2,000", lots, few);
}
END_TEST

/* from gap to gap through the sets of a tree it was 270 times as long */
START_TEST(long_lives_take_little_time)
{
	double few = placing_s(LONG, 1000), lots = placing_s(LONG, 16000);

	ck_assert_msg(lots < 150 * few, "%g s for 16,000, %g s for 1,000", lots, few);
}
END_TEST

START_TEST(lives_that_meet_lie_apart)
{
	for (int trial = 0; trial < 300; trial++) {
		struct te_place_item it[80];
		int32_t n = (int32_t)tt_rand_int(0, 80);
		uint64_t align = 1ull << tt_rand_int(0, 9), peak = 77, most = 0;

		for (int32_t i = 0; i < n; i++) {
			it[i].first = (int32_t)tt_rand_int(-20, 20);
			it[i].last = it[i].first + (int32_t)tt_rand_int(0, 8);
			it[i].nbytes = (uint64_t)(tt_rand_int(0, 5) ? tt_rand_int(1, 5000) : 0);
			it[i].offset = 12345;
		}
		ck_assert_int_eq(te_place(it, n, align, &peak), 0);
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
		/* first fit is far from arbitrary: twice the most that lives at once is much */
		ck_assert_uint_le(peak, 2 * most + 80 * align);
	}
}
END_TEST

START_TEST(places_are_reused)
{
	/* a chain, as layers are: two live at a time */
	struct te_place_item it[10];
	uint64_t peak;

	for (int i = 0; i < 10; i++)
		it[i] = (struct te_place_item){ 1000, i, i + 1, 0 };
	ck_assert_int_eq(te_place(it, 10, 256, &peak), 0);
	ck_assert_uint_eq(peak, 2048);
	for (int i = 0; i < 10; i++) /* all at once */
		it[i].first = 0, it[i].last = 5;
	ck_assert_int_eq(te_place(it, 10, 256, &peak), 0);
	ck_assert_uint_eq(peak, 10240);
	ck_assert_int_eq(te_place(NULL, 0, 256, &peak), 0);
	ck_assert_uint_eq(peak, 0);
}
END_TEST

START_TEST(bad_items_are_named)
{
	struct te_place_item it[] = { { 100, 0, 1, 7 }, { 100, 2, 3, 7 } };
	uint64_t peak = 5;

	fails(te_place(it, 2, 3, &peak), -EINVAL, "align 3");
	fails(te_place(it, 2, 0, &peak), -EINVAL, "align 0");
	fails(te_place(it, -1, 8, &peak), -EINVAL, "-1 items");
	fails(te_place(NULL, 2, 8, &peak), -EINVAL, "2 items at NULL");
	fails(te_place(it, 2, 8, NULL), -EINVAL, "ret_peak is NULL");
	it[1].first = 4;
	fails(te_place(it, 2, 8, &peak), -EINVAL, "item 1 lives from 4 to 3");
	it[1].first = 0;
	it[1].nbytes = UINT64_MAX - 3;
	fails(te_place(it, 2, 8, &peak), -EOVERFLOW, "item 1");
	it[1].nbytes = UINT64_MAX - 100;
	fails(te_place(it, 2, 1, &peak), 0, "");
	it[1].nbytes++;
	fails(te_place(it, 2, 1, &peak), -EOVERFLOW, "item 1");
	it[0].offset = it[1].offset = 7;
	fails(te_place(it, 2, 1, &peak), -EOVERFLOW, "item 1");
	ck_assert_uint_eq(it[0].offset, 7);
}
END_TEST

static int place_some(void)
{
	struct te_place_item it[] = { { 100, 0, 1, 0 }, { 100, 2, 3, 0 } };
	uint64_t peak;

	return te_place(it, 2, 8, &peak);
}

START_TEST(survives_every_fault)
{
	ck_assert_int_eq(tt_fault_each(place_some), 5);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("core/place");
	TCase *c = tt_case(s, "place", "memory");

	tcase_add_test(c, lives_that_meet_lie_apart);
	tcase_add_test(c, each_lies_where_it_fits_lowest);
	tcase_add_test(c, long_lives_lie_where_they_fit_lowest);
	tcase_add_test(c, places_are_reused);
	tcase_add_test(c, bad_items_are_named);
	tcase_add_test(c, survives_every_fault);
	c = tt_case(s, "many", "memory");
	tcase_add_loop_test(c, many_lie_apart_and_close_together, 0, NKINDS);
	tcase_add_loop_test(c, many_take_little_time, CHAIN, GPIPE);
	tcase_add_test(c, long_lives_take_little_time);
	return s;
}

TT_MAIN("core/place", TT_NEED_NOTHING, suite)
