/* t/tools/perftest_stats.c - te_perftest's statistics: median, quantiles, deviation. */
#include "config.h"

#include <math.h>

#include "tools/te_perftest/stats.h"
#include "tt.h"

static void shuffle(double *x, size_t n)
{
	for (size_t i = n - 1; i > 0 && n; i--) {
		size_t k = (size_t)tt_rand_int(0, (int64_t)i);
		double t = x[i];

		x[i] = x[k];
		x[k] = t;
	}
}

CASE(stats, "host");

TEST(stats, counts_odd_and_even)
{
	double odd[] = { 9, -1, 4 }, even[] = { 9, -1, 4, 5 }, one[] = { 3 }, two[] = { 8, 2 };
	struct stats s;

	stats_of(odd, 3, &s);
	ck_assert_uint_eq(s.n, 3);
	ck_assert_double_eq(s.median, 4);
	ck_assert_double_eq(s.mad, 5);
	stats_of(even, 4, &s);
	ck_assert_double_eq(s.median, 4.5);
	/* deviations 0.5 0.5 4.5 5.5 */
	ck_assert_double_eq(s.mad, 2.5);
	ck_assert_double_eq(s.min, -1);
	ck_assert_double_eq(s.max, 9);
	stats_of(one, 1, &s);
	ck_assert_uint_eq(s.n, 1);
	ck_assert(s.median == 3 && s.p5 == 3 && s.p95 == 3 && s.min == 3 && s.max == 3);
	ck_assert_double_eq(s.p99, 3);
	ck_assert_double_eq(s.mad, 0);
	stats_of(two, 2, &s);
	ck_assert_double_eq(s.median, 5);
	ck_assert_double_eq_tol(s.p5, 2.3, 1e-12);
	ck_assert_double_eq_tol(s.p95, 7.7, 1e-12);
}

/* 0, 1, ... 100: the quantile p is 100 p */
TEST(stats, quantiles_of_a_line)
{
	double x[101];
	struct stats s;

	for (int i = 0; i < 101; i++)
		x[i] = i;
	for (int p = 0; p <= 100; p++)
		ck_assert_double_eq_tol(stats_quantile(x, 101, p / 100.0), p, 1e-9);
	shuffle(x, 101);
	stats_of(x, 101, &s);
	ck_assert_double_eq_tol(s.p5, 5, 1e-9);
	ck_assert_double_eq_tol(s.median, 50, 1e-9);
	ck_assert_double_eq_tol(s.p95, 95, 1e-9);
	ck_assert_double_eq_tol(s.p99, 99, 1e-9);
	ck_assert_double_eq_tol(s.mad, 25, 1e-9);
}

TEST_EACH(stats, is_of_no_order, 50)
{
	double x[64], y[64];
	size_t n = (size_t)tt_rand_int(1, 64);
	struct stats a, b;

	for (size_t i = 0; i < n; i++)
		x[i] = y[i] = tt_rand_float(-1e3f, 1e3f);
	shuffle(y, n);
	stats_of(x, n, &a);
	stats_of(y, n, &b);
	ck_assert_mem_eq(&a, &b, sizeof(a));
	ck_assert(a.min <= a.p5 && a.p5 <= a.median && a.median <= a.p95 && a.p95 <= a.max);
	ck_assert(a.p95 <= a.p99 && a.p99 <= a.max);
	ck_assert(a.mad >= 0 && a.mad <= a.max - a.min);
}

TEST(stats, leaves_out_what_is_not_finite)
{
	double x[] = { NAN, 2, INFINITY, 1, -INFINITY, 3, -NAN }, none[] = { NAN, INFINITY };
	const struct stats zero = { 0 };
	struct stats s;

	stats_of(x, 7, &s);
	ck_assert_uint_eq(s.n, 3);
	ck_assert_double_eq(s.median, 2);
	ck_assert_double_eq(s.mad, 1);
	stats_of(none, 2, &s);
	ck_assert_mem_eq(&s, &zero, sizeof(s));
	stats_of(none, 0, &s);
	ck_assert_mem_eq(&s, &zero, sizeof(s));
}

TT_MAIN("tools/perftest_stats", TT_NEED_NOTHING)
