/*
 * t/plan/choose.c - a token from BF16 logits, and from the top_k most likely ones, against plain
 * loops.
 */
#include "config.h"

#include <stdlib.h>

#include <te/dtype.h>
#include <te/errno.h>

#include "libtecore/plan/choose.h"
#include "tt.h"
#include "tt_num.h"

#define MOST 100

static int32_t first_most(const uint16_t *raw, int64_t n)
{
	int32_t best = 0;

	for (int32_t i = 1; i < n; i++)
		if (te_bf16_decode(raw[i]) > te_bf16_decode(raw[best]))
			best = i;
	return best;
}

/* few values, so that most maxima are there several times */
static void draw(uint16_t *raw, int64_t n)
{
	static const float values[] = { -3, -1, -1e-40f, -0.0f, 0, 1e-40f, 2, 1e30f, -1e30f };
	const int first = (int)tt_rand_int(0, TT_LEN(values) - 1);
	const int last = (int)tt_rand_int(first, TT_LEN(values) - 1);

	for (int64_t i = 0; i < n; i++)
		raw[i] = te_bf16_encode(values[tt_rand_int(first, last)]);
}

CASE(choose, "host numeric");

TEST(choose, most_likely_bf16_is_the_first_maximum)
{
	uint16_t raw[MOST];
	float logit[MOST];
	int32_t token;

	for (int k = 0; k < 5000; k++) {
		const int64_t n = tt_rand_int(1, MOST);

		draw(raw, n);
		ck_assert_int_eq(te__most_likely("f", raw, n, &token), 0);
		ck_assert_int_eq(token, first_most(raw, n));
		te__decode_logits(raw, n, logit);
		for (int64_t i = 0; i < n; i++)
			ck_assert(te_bf16_encode(logit[i]) == raw[i]);
	}
}

TEST(choose, bf16_that_is_not_finite_is_told)
{
	static const uint16_t odd[] = { 0x7f80, 0xff80, 0x7fc0, 0xffff };
	uint16_t raw[MOST];
	int32_t token = -7;

	for (int k = 0; k < 1000; k++) {
		const int64_t n = tt_rand_int(1, MOST), at = tt_rand_int(0, n - 1);
		char want[32];

		draw(raw, n);
		raw[at] = odd[k % 4];
		raw[tt_rand_int(at, n - 1)] = odd[k / 4 % 4];
		snprintf(want, sizeof(want), "f: the logit of token %d is", (int)at);
		ck_assert_int_eq(te__most_likely("f", raw, n, &token), -TE_ENUMERIC);
		ck_assert_msg(!strncmp(te_error_detail(), want, strlen(want)), "%s, not %s",
			      te_error_detail(), want);
		ck_assert_int_eq(token, -7);
	}
}

/* the others get probability 0 and are tried last */
TEST(choose, top_k_leaves_the_first_candidates)
{
	float logit[MOST], kept[MOST];
	struct te__candidate room[MOST];
	uint8_t marks[MOST] = { 0 };
	struct te_sampling how = TE_SAMPLING_INIT;
	int32_t got, want;

	for (how.seed = 0; how.seed < 3000; how.seed++) {
		const int64_t n = tt_rand_int(1, MOST);

		how.top_k = (int32_t)tt_rand_int(1, n + 1);
		for (int64_t i = 0; i < n; i++)
			logit[i] = (float)tt_rand_int(-9, 9) / 2;
		for (int64_t i = 0; i < n; i++) {
			int64_t before = 0;

			for (int64_t j = 0; j < n; j++)
				before += logit[j] > logit[i] || (logit[j] == logit[i] && j < i);
			kept[i] = before < how.top_k ? logit[i] : -1e30f;
		}
		ck_assert_int_eq(te__choose("f", &how, logit, n, NULL, 0, room, marks, &got), 0);
		how.top_k = 0;
		ck_assert_int_eq(te__choose("f", &how, kept, n, NULL, 0, room, marks, &want), 0);
		ck_assert_int_eq(got, want);
	}
}

TT_MAIN("plan/choose", TT_NEED_NOTHING)
