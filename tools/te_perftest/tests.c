/* tests.c - the table of tests. */
#include "config.h"

#include <stddef.h>
#include <string.h>

#include "perftest.h"

/* in the order of --list */
#define TESTS(TEST)                                                                       \
	TEST(graph) TEST(step) TEST(copy) TEST(cast) TEST(quantize) TEST(norm) TEST(act)  \
	TEST(gemm) TEST(attn) TEST(calls) TEST(comm) TEST(verbs) TEST(file) TEST(offload)

#define DECLARE(name) extern const struct test test_##name;
#define ROW(name) &test_##name,

/* clang-format off */
TESTS(DECLARE)
const struct test *const tests[] = { TESTS(ROW) NULL };
/* clang-format on */

const struct test *test_find(const char *name)
{
	for (size_t i = 0; tests[i]; i++) {
		if (!strcmp(tests[i]->name, name))
			return tests[i];
	}
	return NULL;
}
