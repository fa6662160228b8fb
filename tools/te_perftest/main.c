/*
 * te_perftest - measures parts of the library on a device, compared with their limits.
 *
 * Uses the API of an installed libtecore only.
 */
#include "config.h"

#include <stdio.h>

#include "bench.h"
#include "tools/lib/record.h"
#include "tools/lib/say.h"

static int print_list(int json)
{
	struct record rec;

	for (size_t i = 0; tests[i] && !json; i++)
		printf("%-10s %s\n", tests[i]->name, tests[i]->text);
	if (!json)
		return STATUS_OK;
	record_begin(&rec);
	record_open_list(&rec, "tests");
	for (size_t i = 0; tests[i]; i++) {
		record_open(&rec, NULL);
		record_text(&rec, "name", tests[i]->name);
		record_text(&rec, "text", tests[i]->text);
		record_close(&rec);
	}
	return record_print(&rec, JSON_INDENT(2));
}

static int run(const struct opts *o)
{
	struct bench b;
	int r = bench_open(&b, o);

	if (!r)
		r = o->test->run(&b);
	say_line_clear();
	if (!r)
		r = bench_end(&b);
	if (!r && !b.silent && o->json)
		r = report_json(&b);
	else if (!r && !b.silent)
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
	if (!r && !done && o.test && o.test->begin)
		r = o.test->begin();
	if (!r && !done)
		r = say_params();
	if (!r && !done && o.list)
		r = print_list((int)o.json);
	else if (!r && !done)
		r = run(&o);
	if (!r && (fflush(stdout) || ferror(stdout)))
		r = say_failed("writing to standard output failed");
	opts_free(&o);
	return r;
}
