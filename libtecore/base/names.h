/* names.h - a hash table from names to numbers. */
#ifndef TE__NAMES_H
#define TE__NAMES_H

#include <stddef.h>

struct te__name {
	const char *key; /* NULL: free; "": removed */
	int value;
};

struct te__names {
	struct te__name *slot;
	size_t cap, n; /* cap: 0 or a power of two; n: slots that are not free */
};

/* the number, 0 or more; or -1 */
int te__names_get(const struct te__names *t, const char *key);
/* key: not empty, not in the table, borrowed until it is removed. Errors: -ENOMEM */
int te__names_add(struct te__names *t, const char *key, int value);
void te__names_remove(struct te__names *t, const char *key);
void te__names_free(struct te__names *t);

#endif
