/* t/core/place.c - te_place(3): nothing that lives at once overlaps, and errors. */
#include "config.h"

#include <errno.h>
#include <string.h>

#include <te/errno.h>
#include <te/place.h>

#include "tt.h"

static void fails(int r, int code, const char *text)
{
	ck_assert_msg(r == code, "%s: %d, not %d: %s", text, r, code, te_error_detail());
	ck_assert_msg(strstr(te_error_detail(), text) != NULL, "\"%s\" lacks \"%s\"",
		      te_error_detail(), text);
}

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
	ck_assert_int_eq(tt_fault_each(place_some), 2);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("core/place");
	TCase *c = tt_case(s, "place", "memory");

	tcase_add_test(c, lives_that_meet_lie_apart);
	tcase_add_test(c, places_are_reused);
	tcase_add_test(c, bad_items_are_named);
	tcase_add_test(c, survives_every_fault);
	return s;
}

TT_MAIN("core/place", TT_NEED_NOTHING, suite)
