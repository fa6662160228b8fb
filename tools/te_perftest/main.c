/*
 * te_perftest - measures parts of the library on a device, compared with their limits.
 *
 * Uses the API of an installed libtecore only.
 */
#include "config.h"

#include <stdio.h>

#include "bench.h"
#include "tools/te_train/say.h"

static void print_list(int json)
{
	json_t *list = json_array(), *obj;

	for (size_t i = 0; tests[i]; i++) {
		if (!json)
			printf("%-10s %s\n", tests[i]->name, tests[i]->text);
		json_array_append_new(list, json_pack("{s:s, s:s}", "name", tests[i]->name, "text",
						      tests[i]->text));
	}
	obj = json_pack("{s:o}", "tests", list);
	if (json) {
		json_dumpf(obj, stdout, JSON_INDENT(2));
		putchar('\n');
	}
	json_decref(obj);
}

static int run(const struct opts *o)
{
	struct bench b;
	int r = bench_open(&b, o);

	if (!r)
		r = o->test->run(&b);
	say_line_clear();
	if (!r && o->json)
		report_json(&b);
	else if (!r)
		report_print(&b);
	bench_close(&b);
	return r;
}

int main(int argc, char **argv)
{
	struct opts o;
	int done, r;

	say_as("te_perftest");
	r = opts_parse(&o, argc, argv, &done);
	if (!r && !done)
		r = say_params();
	if (!r && !done && o.list)
		print_list((int)o.json);
	else if (!r && !done)
		r = run(&o);
	if (!r && (fflush(stdout) || ferror(stdout)))
		r = say_failed("writing to standard output failed");
	return r;
}
