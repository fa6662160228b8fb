/* opts.c - options of all tests, and the parser of a test's options. */
#include "config.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "opts.h"
#include "tools/lib/option.h"
#include "tools/lib/say.h"

#define TESTS_MAX 32
#define GIVEN_MAX 64
#define COMMON(field) offsetof(struct opts, field)

static const struct option_field common[] = {
	{ "backend", OPTION_WORD, COMMON(backend), NULL, 0, 0, 0, "auto|host|cuda",
	  "where to run (TE_BACKEND, else auto)" },
	{ "device", OPTION_COUNT, COMMON(device), "-1", -1, 1023, 0, "N",
	  "number of the device in the backend; -1: by the rank that a launcher has set" },
	{ "iters", OPTION_COUNT, COMMON(iters), "100", 1, 1 << 20, 0, "N",
	  "maximum samples of a figure" },
	{ "warmup", OPTION_COUNT, COMMON(warmup), "10", 0, 1 << 20, 0, "N",
	  "maximum samples discarded before" },
	{ "seconds", OPTION_TIME, COMMON(seconds), "20", 0.01, 3600, 0, "TIME",
	  "time limit of the test, shared by its figures" },
	{ "seed", OPTION_COUNT, COMMON(seed), "1", 0, 1e15, 0, "N", "seed of random data" },
	{ "verify", OPTION_FLAG, COMMON(verify), NULL, 0, 1, 0, NULL,
	  "compare results with a reference before measuring" },
	{ "json", OPTION_FLAG, COMMON(json), NULL, 0, 1, 0, NULL, "print one JSON object" },
	{ "list", OPTION_FLAG, COMMON(list), NULL, 0, 1, 0, NULL, "print the tests and exit" },
	{ 0 },
};

static void print_help(void)
{
	printf("usage: te_perftest TEST [options]\n"
	       "       te_perftest --list [--json]\n"
	       "Measures a part of the library on a device, compared with its limit.\n\n"
	       "Every test\n");
	option_print(common);
	for (size_t i = 0; tests[i]; i++) {
		printf("\n%s: %s\n", tests[i]->name, tests[i]->text);
		option_print(tests[i]->options);
	}
	printf("\nOther\n  --help                    print this\n"
	       "  --version                 print the version\n"
	       "Exit status: 0 success, 1 failure or --verify found a wrong result,\n"
	       "2 bad usage.\n");
}

static int find_test(struct opts *o, int n, char *const *word)
{
	if (n > 1)
		return say_bad("unexpected argument \"%s\"", word[1]);
	for (size_t i = 0; tests[i] && n; i++)
		if (!strcmp(tests[i]->name, word[0]))
			o->test = tests[i];
	return !n || o->test ? STATUS_OK :
			       say_bad("unknown test \"%s\"; --list prints the tests", word[0]);
}

/* options of several tests may have the same name */
static int set(struct opts *o, const struct option_given *g)
{
	const char *name = g->field->name;
	const struct option_field *f = option_find(common, name);
	void *base = o;
	char where[64];

	if (!f && !o->test)
		return say_bad("--%s: no test given", name);
	if (!f) {
		f = option_find(o->test->options, name);
		base = o->test->values;
	}
	if (!f)
		return say_bad("--%s: not an option of %s", name, o->test->name);
	snprintf(where, sizeof(where), "--%s", name);
	return option_set(f, base, g->text, where);
}

int opts_parse(struct opts *o, int argc, char **argv, int *ret_done)
{
	const struct option_field *tables[TESTS_MAX + 2] = { common };
	const struct option_table table = { .help = print_help, .fields = tables };
	struct option_given given[GIVEN_MAX];
	int n, r;

	*ret_done = 0;
	o->test = NULL;
	r = option_defaults(common, o);
	if (r)
		return r;
	for (int i = 0; tests[i] && i < TESTS_MAX; i++)
		tables[i + 1] = tests[i]->options;
	n = option_given(&table, argc, argv, given, GIVEN_MAX);
	*ret_done = n == OPTION_DONE;
	if (n < 0)
		return *ret_done ? STATUS_OK : STATUS_BAD;
	r = find_test(o, argc - optind, argv + optind);
	if (!r && o->test)
		r = option_defaults(o->test->options, o->test->values);
	for (int i = 0; i < n && !r; i++)
		r = set(o, &given[i]);
	if (!r && !o->test && !o->list)
		return say_bad("no test given; --list prints the tests, --help the options");
	return r;
}

void opts_free(struct opts *o)
{
	option_free(common, o);
	if (o->test)
		option_free(o->test->options, o->test->values);
}
