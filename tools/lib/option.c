/* option.c - the values and errors of options, for the tools. */
#include "config.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

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

int option_wrong(int c, const char *word)
{
	return c == ':' ? say_bad("%s needs a value; see %s --help", word, say_program()) :
			  say_bad("%s: unknown option, or one too many; see %s --help", word,
				  say_program());
}
