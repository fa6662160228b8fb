/*
 * sized.c - structs whose first member is their size, from programs that were compiled with
 * another version of the header.
 */
#include "config.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>

#include "libtecore/base/private.h"

/* larger ones are taken for memory that was not initialised */
#define SIZED_MAX 65536

static size_t size_of(const void *sized)
{
	size_t nbytes;

	memcpy(&nbytes, sized, sizeof(nbytes));
	return nbytes;
}

static int bad_size(const char *fn, const char *type, const void *sized)
{
	char init[64];
	size_t n = 0;

	for (; type[n] && n < sizeof(init) - 1; n++)
		init[n] = (char)toupper((unsigned char)type[n]);
	init[n] = 0;
	if (!sized)
		return te__fail(-EINVAL, "%s: no struct %s", fn, type);
	return te__fail(-EINVAL, "%s: struct %s says that it has %zu bytes: initialise it by "
			"%s_INIT", fn, type, size_of(sized), init);
}

int te__sized_check_at(const char *fn, const char *type, const void *sized)
{
	if (!sized || size_of(sized) < sizeof(size_t) || size_of(sized) > SIZED_MAX)
		return bad_size(fn, type, sized);
	return 0;
}

int te__sized_in_at(const char *fn, const char *type, const void *src, void *dst)
{
	const unsigned char *byte = src;
	const size_t known = size_of(dst);
	int r = te__sized_check_at(fn, type, src);
	size_t given;

	if (r)
		return r;
	given = size_of(src);
	for (size_t i = known; i < given; i++)
		if (byte[i])
			return te__fail(-EINVAL, "%s: byte %zu of struct %s is set, and this "
					"library knows %zu bytes: it is older than the program",
					fn, i, type, known);
	memcpy((char *)dst + sizeof(size_t), byte + sizeof(size_t),
	       (given < known ? given : known) - sizeof(size_t));
	return 0;
}

void te__sized_out_at(const void *src, void *dst)
{
	const size_t known = size_of(src), wanted = size_of(dst);
	const size_t n = wanted < known ? wanted : known;

	memcpy((char *)dst + sizeof(size_t), (const char *)src + sizeof(size_t),
	       n - sizeof(size_t));
	memset((char *)dst + n, 0, wanted - n);
}
