/* grow.h - arrays whose capacity doubles. Not installed. */
#ifndef TE__GROW_H
#define TE__GROW_H

#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "libtecore/base/private.h"

static inline int te__grow(void *array, size_t *cap, size_t n, size_t nbytes)
{
	const size_t more = *cap ? 2 * *cap : 64;
	void *p;

	if (n < *cap)
		return 0;
	memcpy(&p, array, sizeof(p));
	p = te__realloc(p, more * nbytes);
	if (!p)
		return -ENOMEM;
	memcpy(array, &p, sizeof(p));
	*cap = more;
	return 0;
}

/*
 * Room for element n of an array, a pointer from te__realloc() or NULL, whose capacity is cap, a
 * size_t. Returns -ENOMEM without a message.
 */
#define TE__GROW(array, cap, n) te__grow(&(array), &(cap), (n), sizeof(*(array)))

#endif
