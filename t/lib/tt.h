/*
 * tt.h - shared by the Check programs of t/: the main function, required hardware,
 * reproducible random inputs, and fault injection.
 */
#ifndef TT_H
#define TT_H

/* the headers that most tests use: no test includes these again */
#include <check.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* tests keep arrays on the stack; the limit of frames is for installed code */
#pragma GCC diagnostic ignored "-Wframe-larger-than="
/* and many functions are callbacks that do not need all of their parameters */
#pragma GCC diagnostic ignored "-Wunused-parameter"

/*
 * Check notes the line of each assertion that holds, with a system call, and reports a crash as
 * after that line. In loops over elements that takes most of the time: here each assertion of a
 * test is noted once.
 */
#undef ck_assert_msg
#define ck_assert_msg(expr, ...)                                                                   \
	do {                                                                                       \
		static _Atomic int tt_noted;                                                       \
		if (!(expr)) {                                                                     \
			_ck_assert_failed(__FILE__, __LINE__, "Assertion '" #expr "' failed",      \
					  ##__VA_ARGS__);                                          \
		} else if (!tt_noted) {                                                            \
			tt_noted = 1;                                                              \
			mark_point();                                                              \
		}                                                                                  \
	} while (0)

#define TT_LEN(array) (sizeof(array) / sizeof((array)[0]))

/* needs of a whole program, or-ed; TT_NEED_GPUS(n) takes 1 to 15 */
#define TT_NEED_NOTHING 0u
#define TT_NEED_GPUS(n) ((uint32_t)(n) & 15u)
#define TT_NEED_GPU TT_NEED_GPUS(1) /* a GPU of compute capability 9.0 */
#define TT_NEED_ROOT 16u
#define TT_NEED_NETNS 64u /* may create a network namespace */
#define TT_NEED_USERNS 128u /* may create a user namespace */
#define TT_NEED_FUSE 256u /* may mount a file system that it serves */
#define TT_NEED_COMMA 32u /* a locale with a decimal comma, which becomes the current one */
/*
 * The tests run in this process, one after the other, as all do that need a GPU: a child each takes
 * longer than most tests. CK_FORK=yes gives them children. Not for a program with tests that change
 * the environment, limits or signals, or that end a process. With ThreadSanitizer the tests have
 * children: a process that has had threads cannot fork one that starts some.
 */
#ifdef __SANITIZE_THREAD__
#define TT_ONE_PROCESS 0u
#else
#define TT_ONE_PROCESS 512u
#endif

/* a line of TAP; at TE_CUDA_ARCH=8.0 and 8.6 tests that failed for lack of FP8 GEMMs are skipped */
void tt_tap_put(const char *line, FILE *to);
extern int tt_one_process;

/*
 * Tests register themselves:
 *
 *	CASE(edges, "host numeric", .setup = setup);
 *
 *	TEST_EACH(edges, saturates_at_max_finite, TT_LEN(edge))
 *	{
 *		ck_assert_uint_eq(te_fp8_encode(TE_DTYPE_E4M3, edge[_i].x), edge[_i].want);
 *	}
 *
 *	TT_MAIN("quant/edges", TT_NEED_NOTHING)
 *
 * A program runs the cases of its files in the order of its sources and of their lines. The
 * arguments of CASE() and TEST_EACH() are evaluated before the first test, so they may call
 * functions.
 */

/*
 * A case: its name for CK_RUN_CASE, tags for CK_INCLUDE_TAGS, and members of struct tt_case_opts.
 * Cases of equal names and options, for example in a header of several files, are one.
 */
#define CASE(case_, tags_, ...)                                                            \
	static struct tt_case tt_case_##case_;                                             \
	static struct tt_case_opts tt_opts_##case_(void)                                   \
	{                                                                                  \
		return (struct tt_case_opts){ .tags = tags_, ##__VA_ARGS__ };              \
	}                                                                                  \
	__attribute__((constructor)) static void tt_add_case_##case_(void)                 \
	{                                                                                  \
		tt_add_case(&tt_case_##case_);                                             \
	}                                                                                  \
	static struct tt_case tt_case_##case_ = { .name = #case_,                          \
						  .file = __BASE_FILE__,                   \
						  .line = __LINE__,                        \
						  .opts = tt_opts_##case_ }
/* a test for each _i = 0 .. end_ - 1, or another range of struct tt_range */
#define TEST_EACH(case_, test_, end_, ...)               \
	static const TTest *test_;                       \
	TT_ADD(case_, test_, test_, end_, ##__VA_ARGS__) \
	START_TEST(test_)
#define TEST(case_, test_) TEST_EACH(case_, test_, 1)
#define TEST_IF(case_, test_, condition_) TEST_EACH(case_, test_, (condition_) ? 1 : 0)
/* a test of this file in another case, or in another range, too */
#define TEST_ALSO(case_, test_, end_, ...) \
	TT_ADD_AT(__LINE__, case_, test_, end_, ##__VA_ARGS__)

struct tt_case_opts {
	const char *tags;
	const char *name; /* if it is no identifier */
	void (*setup)(void), (*teardown)(void); /* before and after each test */
	int limit_s; /* time of a test, by default 120; TT_NO_LIMIT: its processes have limits */
};
#define TT_NO_LIMIT (-1)

struct tt_range {
	int end, from;
	int parts; /* builds with sanitizers run one of so many parts, drawn by the seed */
	int step; /* by default 1 */
};

struct tt_test {
	const TTest *const *test;
	int line;
	struct tt_range (*range)(void);
	struct tt_test *next;
};

struct tt_case {
	const char *name, *file;
	int line;
	struct tt_case_opts (*opts)(void);
	struct tt_test *tests;
	struct tt_case *next;
	TCase *tcase;
	struct tt_case_opts have;
};

void tt_add_case(struct tt_case *c);
void tt_add_test(struct tt_case *c, struct tt_test *t);
extern int tt_ntests; /* added, with tests whose range is empty; a program with 0 fails */
/* adds all registered cases to a suite */
void tt_add_all(Suite *s);

#define TT_ADD(case_, test_, id_, end_, ...)                                                    \
	static struct tt_range tt_range_##id_(void)                                             \
	{                                                                                       \
		return (struct tt_range){ .end = (int)(end_), ##__VA_ARGS__ };                  \
	}                                                                                       \
	__attribute__((constructor)) static void tt_add_##id_(void)                             \
	{                                                                                       \
		static struct tt_test t = { &test_, __LINE__, tt_range_##id_, NULL };           \
                                                                                                \
		tt_add_test(&tt_case_##case_, &t);                                              \
	}
#define TT_ADD_AT(line_, ...) TT_ADD_AT_LINE(line_, __VA_ARGS__)
#define TT_ADD_AT_LINE(line_, case_, test_, end_, ...) \
	TT_ADD(case_, test_, test_##_##line_, end_, ##__VA_ARGS__) struct tt_case

/*
 * The program of the registered tests. TT_SUITE() has a body, which runs before: it sets what the
 * tests need.
 */
#define TT_MAIN(name, needs)                       \
	int main(void)                             \
	{                                          \
		return tt_main(name, needs, NULL); \
	}
#define TT_SUITE(name, needs)                          \
	static void tt_cases(Suite *s);                \
	int main(void)                                 \
	{                                              \
		return tt_main(name, needs, tt_cases); \
	}                                              \
	static void tt_cases(Suite *s)
int tt_main(const char *name, uint32_t needs, void (*cases)(Suite *s));

/*
 * The same for a program with two names, X and X_gpu (TT_PAIRS of t/local.mk): by the first it runs
 * the tests on the host backend, by the second on "cuda". name is X, needs those on the host; on:
 * the backend.
 */
#define TT_PAIR(name, needs)                                \
	int main(int argc, char **argv)                     \
	{                                                   \
		(void)argc;                                 \
		return tt_pair(name, argv[0], needs, NULL); \
	}
#define TT_PAIR_SUITE(name) TT_PAIR_SUITE_OF(name, TT_ONE_PROCESS)
#define TT_PAIR_SUITE_OF(name, needs)                           \
	static void tt_cases(Suite *s, const char *on);         \
	int main(int argc, char **argv)                         \
	{                                                       \
		(void)argc;                                     \
		return tt_pair(name, argv[0], needs, tt_cases); \
	}                                                       \
	static void tt_cases(Suite *s, const char *on)
int tt_pair(const char *name, const char *program, uint32_t needs,
	    void (*cases)(Suite *s, const char *on));

/* a test case of the suite with tags, for CK_INCLUDE_TAGS; 120 s a test */
TCase *tt_case(Suite *s, const char *name, const char *tags);

/* n, or n / 8 in a build with sanitizers, for repetitions and sizes that these gain nothing from */
#ifdef SANITIZED
#define TT_FEWER(n) (((n) + 7) / 8)
#else
#define TT_FEWER(n) (n)
#endif

/* the part of 0 .. n - 1 that a build with sanitizers runs */
int tt_part(int n, int nparts);
int tt_part_end(int n, int nparts);

/*
 * ms on a machine that does nothing else, for limits within which correct processes do something,
 * and pauses in which they do. Other processes take the cores for seconds: 4 times as long, 8 times
 * in a build with sanitizers.
 */
#ifdef SANITIZED
#define TT_SLOWER(ms) (8 * (ms))
#else
#define TT_SLOWER(ms) (4 * (ms))
#endif
void tt_pause(int ms); /* sleeps TT_SLOWER(ms) */

/*
 * Random inputs. The seed differs from run to run and is printed if a test
 * fails; TT_SEED=seed repeats it. Each test restarts from the seed, so a test run
 * alone gets the same numbers as in the whole program. For one thread only.
 */
uint64_t tt_seed(void);
/* enters a user namespace whose map of users has the line, or "" for none; 0, or -1 */
int tt_enter_userns(const char *map);
uint64_t tt_rand_u64(void);
int64_t tt_rand_int(int64_t lo, int64_t hi);	/* lo <= x <= hi */
double tt_rand_unit(void);			/* 0 <= x < 1 */
float tt_rand_float(float lo, float hi);	/* uniform */
float tt_rand_normal(void);			/* mean 0, deviation 1 */
float tt_rand_bits_f32(void);			/* any bits: NaN, inf, subnormal */
void tt_fill_normal(float *x, size_t n, float scale);
void tt_fill_uniform(float *x, size_t n, float lo, float hi);
/* folder for files of tests: TMPDIR, by default /tmp. `make check` gives each test a new one, and
 * reports files left in it */
const char *tt_tmpdir(void);
/* a folder and its files, which may be folders of files */
void tt_remove(const char *dir);
void tt_fill_bytes(void *p, size_t nbytes);	/* any */
void tt_poison(void *p, size_t nbytes);		/* bytes that no result should have */
int tt_is_poison(const void *p, size_t nbytes);	/* 1: all bytes still are poison */

/* distance of a and b in representable floats; INT64_MAX if one is NaN */
int64_t tt_ulps_f32(float a, float b);

/*
 * Runs fn repeatedly; in run n the nth allocation or driver call fails, until a run has
 * no fault. fn creates, uses and destroys objects and returns 0 or the code of the first
 * failing call. After each run checks that a fault that happened was reported by an error
 * code with a message, and that every allocation was freed. Returns the number of
 * faults; with sanitizers, which try one in four after the first 20, up to 6 more.
 */
int tt_fault_each(int (*fn)(void));
int tt_fault_next(int n); /* number of the fault to try after the nth */
/* in fn, before calls that cannot report a failure: a fault that has not happened will not */
void tt_fault_end(void);

#endif
