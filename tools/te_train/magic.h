/* magic.h - files that are neither text nor tokens, by their first bytes. */
#ifndef MAGIC_H
#define MAGIC_H

#include <stddef.h>
#include <stdint.h>

struct magic {
	const char *name;   /* "a PDF document" */
	const char *advice; /* advice to the user */
};

/*
 * The kind of a file with this beginning, or NULL: it may be text or tokens. Marks of less than
 * four bytes are found only if text is set, since tokens can begin with them.
 */
const struct magic *magic_find(const uint8_t *head, size_t n, int text);

#endif
