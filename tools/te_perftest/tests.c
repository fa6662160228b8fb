/* tests.c - the table of tests: a row here and a file that holds its test make one. */
#include "config.h"

#include <stddef.h>
#include <string.h>

#include "perftest.h"

extern const struct test test_copy, test_graph;

const struct test *const tests[] = {
	&test_graph,
	&test_copy,
	NULL,
};

const struct test *test_find(const char *name)
{
	for (size_t i = 0; tests[i]; i++) {
		if (!strcmp(tests[i]->name, name))
			return tests[i];
	}
	return NULL;
}
