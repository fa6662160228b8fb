/* text.c - texts that the caller of a library releases with free(3), and JSON in them. */
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "libtecore/base/private.h"

void te__json_string(FILE *f, const char *s)
{
	fputc('"', f);
	for (; *s; s++) {
		if (*s == '"' || *s == '\\')
			fprintf(f, "\\%c", *s);
		else if ((unsigned char)*s < 0x20)
			fprintf(f, "\\u%04x", (unsigned)*s);
		else
			fputc(*s, f);
	}
	fputc('"', f);
}

/* a decimal point in every locale */
void te__json_us(FILE *f, const char *key, double us)
{
	const uint64_t ns = (uint64_t)(us * 1e3 + 0.5);

	fprintf(f, ", \"%s\": %" PRIu64 ".%03" PRIu64, key, ns / 1000, ns % 1000);
}

int te__text(const char *fn, te__print_fn *print, const void *arg, char **ret_text)
{
	char *text = NULL, *copy;
	size_t n = 0;
	FILE *f = open_memstream(&text, &n);
	int r = f ? print(f, arg) : -ENOMEM, bad = !f;

	if (f) {
		bad = ferror(f);
		bad |= fclose(f);
	}
	/* copied by te__strdup() so that tests can make it fail */
	copy = r < 0 || bad ? NULL : te__strdup(text);
	te__free_libc(text);
	if (f && r < 0)
		return r;
	if (!copy)
		return te__fail(-ENOMEM, "%s: no memory for the text", fn);
	*ret_text = te__give(copy);
	return 0;
}
