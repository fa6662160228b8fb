/* option.c - the options of the tools, their values and errors. */
#include "config.h"

#include <ctype.h>
#include <errno.h>
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

/* ---- options that are fields of a struct ---- */

int option_given(void (*help)(void), const struct option_field *const *tables, int argc,
		 char **argv, struct option_given *ret_given, int room)
{
	struct option_row rows[OPTION_ROWS_MAX + 1] = { 0 };
	const struct option_field *field[OPTION_ROWS_MAX];
	const struct option_table options = { .help = help, .rows = rows };
	int nrows = 0, n = 0, c;

	for (; *tables; tables++)
		for (const struct option_field *f = *tables; f->name; f++) {
			int i = 0;

			while (i < nrows && strcmp(rows[i].name, f->name))
				i++;
			if (f->kind == OPTION_HEADING || i < nrows)
				continue;
			if (nrows == OPTION_ROWS_MAX - 2) /* two rows are common to all tools */
				return say_failed("more than %d options", nrows), OPTION_BAD;
			field[nrows] = f;
			rows[nrows].name = f->name;
			rows[nrows].key = 1000 + nrows;
			rows[nrows++].arg =
				f->kind == OPTION_MODE || f->kind == OPTION_SIZE ? "[" : f->arg;
		}
	while ((c = option_next(&options, argc, argv)) >= 0) {
		const struct option_field *f = field[c - 1000];

		if (n == room)
			return say_bad("too many options"), OPTION_BAD;
		/* the word of a mode may be the next argument: getopt treats that as a file */
		if (f->kind == OPTION_MODE && !optarg && optind < argc &&
		    option_choice(f->arg, argv[optind], strlen(argv[optind])) >= 0)
			optarg = argv[optind++];
		ret_given[n].field = f;
		ret_given[n++].text = optarg || f->kind == OPTION_SIZE ? optarg : "1";
	}
	return c == OPTION_END ? n : c;
}

const struct option_field *option_find(const struct option_field *table, const char *name)
{
	for (const struct option_field *f = table; f->name; f++)
		if (f->kind != OPTION_HEADING && !strcmp(f->name, name))
			return f;
	return NULL;
}

static int is_text(const struct option_field *f)
{
	return f->kind == OPTION_TEXT || f->kind == OPTION_WORD || f->kind == OPTION_MODE;
}

int option_defaults(const struct option_field *table, void *base)
{
	int r = STATUS_OK;

	for (const struct option_field *f = table; f->name && !r; f++) {
		void *at = (char *)base + f->offset;

		if (is_text(f))
			*(char **)at = NULL;
		else if (f->kind == OPTION_REAL || f->kind == OPTION_TIME)
			*(double *)at = NAN;
		else if (f->kind == OPTION_WORDS)
			*(uint32_t *)at = 0;
		else if (f->kind == OPTION_LIST)
			((struct option_list *)at)->n = 0;
		else if (f->kind != OPTION_HEADING)
			*(int64_t *)at = -1;
		if (f->dflt)
			r = option_set(f, base, f->dflt, f->name);
	}
	return r;
}

/* whole numbers, room of them at most, separated by commas */
static int set_numbers(const struct option_field *f, const char *text, const char *where,
		       int64_t *v, int room, int *ret_n)
{
	const char *p = text;
	int n = 0, wrong = 0;

	do {
		char *end;
		double x;

		if (n == room && room > 1)
			return say_bad("%s: \"%s\" has more than %d numbers", where, text, room);
		p += *p == ',';
		errno = 0;
		v[n] = strtoll(p, &end, 10);
		wrong = end == p || errno;
		x = (double)v[n] * (f->kind == OPTION_COUNT || room > 1 ? option_unit(&end) : 1);
		wrong |= !(x >= f->lo && x <= f->hi) || (*end && (*end != ',' || room == 1));
		if (!wrong && x != (double)v[n])
			v[n] = (int64_t)x;
		n++;
		p = end;
	} while (*p && !wrong);
	*ret_n = n;
	return !wrong ? STATUS_OK :
			say_bad("%s: \"%s\" is not %s from %.0f to %.0f", where, text,
				room > 1 ? "a list of whole numbers" : "a whole number", f->lo,
				f->hi);
}

static int set_words(const struct option_field *f, const char *text, const char *where,
		     uint32_t *ret)
{
	*ret = 0;
	for (const char *p = text; p; p = strchr(p, ',')) {
		int i;

		p += p != text;
		i = option_choice(f->arg, p, strcspn(p, ","));
		if (i < 0)
			return say_bad("%s: \"%s\": expected words of %s", where, text, f->arg);
		*ret |= 1u << i;
	}
	return STATUS_OK;
}

static int set_text(const struct option_field *f, const char *text, const char *where, char **field)
{
	size_t len = strlen(text);
	char *copy;

	/* "0" and "1" mean the first choice and the second, as for a flag */
	if (f->kind == OPTION_MODE && len == 1 && (*text == '0' || *text == '1')) {
		text = *text == '0' ? f->arg : strchr(f->arg, '|') + 1;
		len = strcspn(text, "|");
	}
	if (f->kind != OPTION_TEXT && option_choice(f->arg, text, len) < 0)
		return say_bad("%s: \"%s\": expected one of %s", where, text, f->arg);
	copy = strndup(text, len);
	if (!copy)
		return say_failed("out of memory");
	free(*field);
	*field = copy;
	return STATUS_OK;
}

int option_size(const struct option_field *f, const char *text, const char *where, int64_t *ret)
{
	char *end;
	double x = strtod(text, &end);
	const int none = end == text;

	x *= option_unit(&end);
	if (none || *end)
		return say_bad("%s: \"%s\" is not a size such as 80G", where, text);
	if (!(x >= f->lo && x <= f->hi))
		return say_bad("%s: \"%s\": expected a size from %.0f to %.0f bytes", where, text,
			       f->lo, f->hi);
	*ret = (int64_t)x;
	return STATUS_OK;
}

static int set_real(const struct option_field *f, const char *text, const char *where, double *ret)
{
	const int time = f->kind == OPTION_TIME;
	char *end = "";
	const double x = time ? option_seconds(text) : strtod(text, &end);

	if (end == text || *end || !(x >= f->lo && x <= f->hi))
		return say_bad("%s: \"%s\" is not a %s from %g to %g%s", where, text,
			       time ? "time" : "number", f->lo, f->hi,
			       time ? " seconds, such as 90, 10m or 1h30m" : "");
	*ret = x;
	return STATUS_OK;
}

int option_set(const struct option_field *f, void *base, const char *text, const char *where)
{
	void *at = (char *)base + f->offset;
	struct option_list *list = at;
	int n;

	switch (f->kind) {
	case OPTION_FLAG:
	case OPTION_INT:
	case OPTION_COUNT:
		return set_numbers(f, text, where, at, 1, &n);
	case OPTION_LIST:
		return set_numbers(f, text, where, list->v, OPTION_LIST_MAX, &list->n);
	case OPTION_SIZE:
		*(int64_t *)at = 0;
		return text ? option_size(f, text, where, at) : STATUS_OK;
	case OPTION_REAL:
	case OPTION_TIME:
		return set_real(f, text, where, at);
	case OPTION_WORDS:
		return set_words(f, text, where, at);
	case OPTION_TEXT:
	case OPTION_WORD:
	case OPTION_MODE:
		return set_text(f, text, where, at);
	case OPTION_HEADING:
		break;
	}
	return STATUS_OK;
}

void option_print(const struct option_field *table)
{
	for (const struct option_field *f = table; f->name; f++) {
		const char *const form = f->kind == OPTION_MODE	 ? "  --%s [%s]" :
					 f->kind == OPTION_SIZE	 ? "  --%s[=%s]" :
					 f->kind == OPTION_WORDS ? "  --%s %s,..." :
					 f->arg			 ? "  --%s %s" :
								   "  --%s%s";
		int n;

		if (f->kind == OPTION_HEADING) {
			printf("\n%s\n", f->name);
			continue;
		}
		n = printf(form, f->name, f->arg ? f->arg : "");
		printf("%s%*s%s", n > 26 ? "\n" : "", n > 26 ? 28 : 28 - n, "", f->help);
		if (f->dflt && f->kind != OPTION_FLAG)
			printf(" (%s)", f->dflt);
		putchar('\n');
	}
}

void option_free(const struct option_field *table, void *base)
{
	for (const struct option_field *f = table; f->name; f++)
		if (is_text(f))
			free(*(char **)((char *)base + f->offset));
}
