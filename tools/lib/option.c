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

/* columns of --help: the first of descriptions, and the number of all */
#define HELP_TEXT 28
#define HELP_COLUMNS 80
#define OPTION_CODE 1000 /* above any letter */

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

/* returns the factor of the unit at *at and skips it; 1: no unit */
static double take_unit(char **at)
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

static const struct option_field common[] = {
	{ "help", OPTION_FLAG, 0, NULL, 0, 0, 'h', NULL, "print this" },
	{ "version", OPTION_FLAG, 0, NULL, 0, 0, 'V', NULL, "print the version" },
	{ 0 },
};

static int has_letter(const struct option_field *f)
{
	return f->key >= 'a' && f->key <= 'z';
}

/* prints words in the columns from column to HELP_COLUMNS; at: columns of the line that are used */
static void print_words(const char *text, int at, int column)
{
	for (size_t len; *text; text += len + (text[len] == ' ')) {
		len = strcspn(text, " ");
		if (at > column && at + 1 + (int)len > HELP_COLUMNS) {
			putchar('\n');
			at = 0;
		}
		at += printf("%*s%.*s", at < column ? column - at : 1, "", (int)len, text);
	}
	putchar('\n');
}

static void print_fields(const struct option_field *table, int letters, int column)
{
	for (const struct option_field *f = table; f->name; f++) {
		const char *const form = f->kind == OPTION_MODE	 ? " [%s]" :
					 f->kind == OPTION_SIZE	 ? "[=%s]" :
					 f->kind == OPTION_WORDS ? " %s,..." :
					 f->arg			 ? " %s" :
								   "%s";
		const char letter[] = { '-', (char)f->key, ',', '\0' };
		const int shown = f->dflt && f->kind != OPTION_FLAG;
		char help[512];
		int n;

		if (f->kind == OPTION_HEADING)
			printf("\n%s\n", f->name);
		if (f->kind == OPTION_HEADING || !f->help)
			continue;
		n = letters ? printf("  %3s", has_letter(f) ? letter : "") : printf(" ");
		n += printf(" --%s", f->name);
		n += printf(form, f->arg ? f->arg : "");
		if (n > column - 2) {
			putchar('\n');
			n = 0;
		}
		snprintf(help, sizeof(help), "%s%s%s%s", f->help, shown ? " (" : "",
			 shown ? f->dflt : "", shown ? ")" : "");
		print_words(help, n, column);
	}
}

void option_print(const struct option_field *table)
{
	print_fields(table, 0, HELP_TEXT);
}

static void print_help(const struct option_table *t)
{
	int width = (int)strlen("version");

	if (t->help) {
		t->help();
		return;
	}
	fputs(t->usage, stdout);
	for (const struct option_field *f = t->fields[0]; f->name; f++) {
		const int n = (int)(strlen(f->name) + (f->arg ? 1 + strlen(f->arg) : 0));

		width = f->help && n > width ? n : width;
	}
	width = width + 10 > HELP_TEXT ? HELP_TEXT - 10 : width;
	print_fields(t->fields[0], 1, width + 10);
	print_fields(common, 1, width + 10);
}

/* options of getopt_long(3); ret_field[i]: the field of entry i, whose value is its letter or else
 * OPTION_CODE + i. -1: too many */
static int make_options(const struct option_table *t, struct option *ret, char *ret_letters,
			const struct option_field **ret_field)
{
	char *s = ret_letters;
	int n = 0;

	if (t->command)
		*s++ = '+';
	*s++ = ':';
	for (int k = 0; k == 0 || t->fields[k - 1]; k++)
		for (const struct option_field *f = t->fields[k] ? t->fields[k] : common; f->name;
		     f++) {
			int i = 0;

			while (i < n && strcmp(ret[i].name, f->name))
				i++;
			if (f->kind == OPTION_HEADING || i < n)
				continue;
			if (n == OPTION_ROWS_MAX)
				return -1;
			ret_field[n] = f;
			ret[n] = (struct option){ f->name,
						  f->kind == OPTION_MODE || f->kind == OPTION_SIZE ?
							  optional_argument :
						  f->arg ? required_argument :
							   no_argument,
						  NULL,
						  has_letter(f) ? (int)f->key : OPTION_CODE + n };
			n++;
			if (has_letter(f))
				*s++ = (char)f->key;
			if (has_letter(f) && f->arg)
				*s++ = ':';
		}
	*s = '\0';
	return n;
}

/* one option, for which getopt_long(3) with these letters has returned c */
static int take(const struct option_table *t, const struct option_field *f, int c, char **argv,
		const char *letters)
{
	if (f == &common[0])
		print_help(t);
	else if (f == &common[1])
		printf("%s %s\n", say_program(), TE_VERSION);
	else if (f)
		return STATUS_OK;
	if (f && (fflush(stdout) || ferror(stdout)))
		return say_bad("standard output: %s", strerror(errno)), OPTION_BAD;
	if (f)
		return OPTION_DONE;
	if (c == ':')
		say_bad("%s needs a value; see %s --help", argv[optind - 1], say_program());
	else if (optopt >= OPTION_CODE || (optopt && strchr(letters, optopt)))
		say_bad("%s: the option takes no value; see %s --help", argv[optind - 1],
			say_program());
	else if (optopt)
		say_bad("-%c: unknown option; see %s --help", optopt, say_program());
	else
		say_bad("%s: unknown or ambiguous option; see %s --help", argv[optind - 1],
			say_program());
	return OPTION_BAD;
}

int option_given(const struct option_table *t, int argc, char **argv,
		 struct option_given *ret_given, int room)
{
	struct option longopts[OPTION_ROWS_MAX + 1] = { 0 };
	const struct option_field *field[OPTION_ROWS_MAX];
	char letters[2 * 26 + 3];
	const int nfields = make_options(t, longopts, letters, field);
	int n = 0, c, r;

	if (nfields < 0)
		return say_failed("more than %d options", OPTION_ROWS_MAX), OPTION_BAD;
	opterr = 0;
	while ((c = getopt_long(argc, argv, letters, longopts, NULL)) >= 0) {
		const struct option_field *f = NULL;

		for (int i = 0; i < nfields && !f; i++)
			f = longopts[i].val == c ? field[i] : NULL;
		r = take(t, f, c, argv, letters);
		if (r)
			return r;
		if (n == room)
			return say_bad("too many options"), OPTION_BAD;
		/* the word of a mode may be the next argument: getopt treats that as a file */
		if (f->kind == OPTION_MODE && !optarg && optind < argc &&
		    option_choice(f->arg, argv[optind], strlen(argv[optind])) >= 0)
			optarg = argv[optind++];
		ret_given[n].field = f;
		ret_given[n++].text = optarg || f->kind == OPTION_SIZE ? optarg : "1";
	}
	return n;
}

int option_parse(const struct option_table *t, void *base, int argc, char **argv, int *ret_status)
{
	struct option_given given[OPTION_ROWS_MAX];
	const int n = option_given(t, argc, argv, given, OPTION_ROWS_MAX);
	char where[64];
	int r = STATUS_OK;

	*ret_status = n == OPTION_BAD ? STATUS_BAD : STATUS_OK;
	if (n < 0)
		return 1;
	for (int k = 0; t->fields[k] && !r; k++)
		r = option_defaults(t->fields[k], base);
	for (int i = 0; i < n && !r; i++) {
		snprintf(where, sizeof(where), "--%s", given[i].field->name);
		r = option_set(given[i].field, base, given[i].text, where);
	}
	for (int k = 0; t->fields[k] && r; k++)
		option_free(t->fields[k], base);
	*ret_status = r;
	return r != STATUS_OK;
}

const struct option_field *option_find(const struct option_field *table, const char *name)
{
	for (const struct option_field *f = table; f->name; f++)
		if (f->kind != OPTION_HEADING && !strcmp(f->name, name))
			return f;
	return NULL;
}

int option_is_text(const struct option_field *f)
{
	return f->kind == OPTION_TEXT || f->kind == OPTION_WORD || f->kind == OPTION_MODE;
}

int option_defaults(const struct option_field *table, void *base)
{
	int r = STATUS_OK;

	for (const struct option_field *f = table; f->name && !r; f++) {
		void *at = (char *)base + f->offset;

		if (option_is_text(f))
			*(char **)at = NULL;
		else if (f->kind == OPTION_REAL || f->kind == OPTION_TIME)
			*(double *)at = NAN;
		else if (f->kind == OPTION_WORDS)
			*(uint32_t *)at = 0;
		else if (f->kind == OPTION_LIST)
			((struct option_list *)at)->n = 0;
		else if (f->kind == OPTION_FLAG)
			*(int64_t *)at = 0;
		else if (f->kind != OPTION_HEADING)
			*(int64_t *)at = -1;
		if (f->dflt)
			r = option_set(f, base, f->dflt, f->name);
	}
	return r;
}

/* reads at most room whole numbers, separated by commas */
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
		x = (double)v[n] * (f->kind == OPTION_COUNT || room > 1 ? take_unit(&end) : 1);
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

	x *= take_unit(&end);
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
	double x;
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
	case OPTION_SECONDS:
		x = option_seconds(text);
		if (!(x >= f->lo && x <= f->hi) || x != (double)(int64_t)x)
			return say_bad(
				"%s: \"%s\" is not a whole number of seconds from %.0f to %.0f",
				where, text, f->lo, f->hi);
		*(int64_t *)at = (int64_t)x;
		return STATUS_OK;
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

void option_free(const struct option_field *table, void *base)
{
	for (const struct option_field *f = table; f->name; f++)
		if (option_is_text(f))
			free(*(char **)((char *)base + f->offset));
}
