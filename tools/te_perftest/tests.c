/* tests.c - the table of tests. */
#include "config.h"

#include <stddef.h>
#include <string.h>

#include "perftest.h"

extern const struct test test_act, test_attn, test_calls, test_cast, test_comm, test_copy,
	test_file, test_gemm, test_graph, test_norm, test_offload, test_quantize, test_step,
	test_verbs;

/* clang-format off */
const struct test *const tests[] = {
	&test_graph,
	&test_step,
	&test_copy,
	&test_cast,
	&test_quantize,
	&test_norm,
	&test_act,
	&test_gemm,
	&test_attn,
	&test_calls,
	&test_comm,
	&test_verbs,
	&test_file,
	&test_offload,
	NULL,
};
/* clang-format on */

const struct test *test_find(const char *name)
{
	for (size_t i = 0; tests[i]; i++) {
		if (!strcmp(tests[i]->name, name))
			return tests[i];
	}
	return NULL;
}
