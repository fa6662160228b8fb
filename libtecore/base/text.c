/* text.c - texts that the caller of a library releases with free(3). */
#include "config.h"

#include <errno.h>
#include <stdio.h>

#include "libtecore/base/private.h"

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
