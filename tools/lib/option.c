/* option.c - the options of the tools, their values and errors. */
#include "config.h"

#include <ctype.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <te/version.h>

#include "option.h"
#include "say.h"

int option_choice(const char *choices, const char *word, size_t len)
{
	int i = 0;

	for (const char *p = choices; *p; p += *p == '|', i++) {
		size_t n = strcspn(p, "|");

		if (n == len && !memcmp(p, word, n))
			return i;
		p += n;
	}
	return -1;
}

double option_unit(char **at)
{
	switch (**at) {
	case 'k':
	case 'K':
		++*at;
		return 0x1p10;
	case 'M':
		++*at;
		return 0x1p20;
	case 'G':
		++*at;
		return 0x1p30;
	case 'T':
		++*at;
		return 0x1p40;
	default:
		return 1;
	}
}

double option_seconds(const char *text)
{
	static const struct {
		char name;
		double seconds;
	} units[] = { { 'd', 86400 }, { 'h', 3600 }, { 'm', 60 }, { 's', 1 } };
	double sum = 0, x;
	size_t unit = 0;
	char *end;

	/* from the largest unit to the smallest, each once */
	for (const char *p = text;; p = end + 1, unit++) {
		if (!isdigit((unsigned char)*p) && *p != '.')
			return -1;
		x = strtod(p, &end);
		if (end == p || !isfinite(x) || strpbrk(p, "xX"))
			return -1;
		if (!*end)
			return p == text ? x : -1;
		while (unit < 4 && units[unit].name != *end)
			unit++;
		if (unit == 4)
			return -1;
		sum += x * units[unit].seconds;
		if (!end[1])
			return sum;
	}
}

static const struct option_row common[] = {
	{ "help", 'h', NULL, "print this" },
	{ "version", 'V', NULL, "print the version" },
};

/* row i of the table, then of the common ones; NULL after the last */
static const struct option_row *row_at(const struct option_table *t, int i)
{
	int n = 0;

	while (t->rows[n].name)
		n++;
	return i < n ? &t->rows[i] : i < n + 2 ? &common[i - n] : NULL;
}

static int has_letter(const struct option_row *row)
{
	return row->key >= 'a' && row->key <= 'z';
}

static void print_help(const struct option_table *t)
{
	const struct option_row *row;
	int width = 0;

	if (t->help) {
		t->help();
		return;
	}
	fputs(t->usage, stdout);
	for (int i = 0; (row = row_at(t, i)); i++) {
		const int n = (int)(strlen(row->name) + (row->arg ? 1 + strlen(row->arg) : 0));

		width = row->help && n > width ? n : width;
	}
	for (int i = 0; (row = row_at(t, i)); i++) {
		const char letter[] = { '-', (char)row->key, ',', '\0' };
		const char *p = row->help;
		int n;

		if (!p)
			continue;
		n = printf("  %3s --%s%s%s", has_letter(row) ? letter : "", row->name,
			   row->arg ? " " : "", row->arg ? row->arg : "");
		for (; *p; p += strcspn(p, "\n"), n = 0) {
			p += *p == '\n';
			printf("%*s%.*s\n", width + 10 - n, "", (int)strcspn(p, "\n"), p);
		}
	}
}

int option_next(const struct option_table *t, int argc, char **argv)
{
	struct option longopts[OPTION_ROWS_MAX + 1] = { 0 };
	char shortopts[2 * 26 + 3], *s = shortopts;
	const struct option_row *row;
	int c;

	if (t->command)
		*s++ = '+';
	*s++ = ':';
	for (int i = 0; i < OPTION_ROWS_MAX && (row = row_at(t, i)); i++) {
		longopts[i] = (struct option){ row->name,
					       !row->arg	  ? no_argument :
					       *row->arg == '[' ? optional_argument :
								    required_argument,
					       NULL, row->key };
		if (!has_letter(row))
			continue;
		*s++ = (char)row->key;
		if (row->arg)
			*s++ = ':';
	}
	*s = '\0';
	opterr = 0;
	c = getopt_long(argc, argv, shortopts, longopts, NULL);
	if (c == 'h')
		print_help(t);
	else if (c == 'V')
		printf("%s %s\n", say_program(), TE_VERSION);
	else if (c == ':')
		say_bad("%s needs a value; see %s --help", argv[optind - 1], say_program());
	else if (c == '?')
		say_bad("%s: unknown option, or one too many; see %s --help", argv[optind - 1],
			say_program());
	return c == 'h' || c == 'V' ? OPTION_DONE : c == ':' || c == '?' ? OPTION_BAD : c;
}
