/* option.c - the values and errors of options, for the tools. */
#include "config.h"

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

int option_wrong(int c, const char *word)
{
	return c == ':' ? say_bad("%s needs a value; see %s --help", word, say_program()) :
			  say_bad("%s: unknown option, or one too many; see %s --help", word,
				  say_program());
}
