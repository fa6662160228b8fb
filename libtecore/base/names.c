/* names.c - a hash table from names to numbers: open addressing, at most half full. */
#include "config.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "libtecore/base/names.h"
#include "libtecore/base/private.h"

#define FIRST_CAP 64

/* FNV-1a, 64 bits: Fowler, Noll, Vo (RFC 9923) */
static uint64_t hash(const char *key)
{
	uint64_t h = 0xcbf29ce484222325;

	for (; *key; key++)
		h = (h ^ (unsigned char)*key) * 0x100000001b3;
	return h;
}

/* the slot of the key, or the free slot where it would be added */
static struct te__name *find(const struct te__names *t, const char *key)
{
	size_t i = hash(key) & (t->cap - 1);

	while (t->slot[i].key && strcmp(t->slot[i].key, key))
		i = (i + 1) & (t->cap - 1);
	return &t->slot[i];
}

int te__names_get(const struct te__names *t, const char *key)
{
	const struct te__name *s = t->cap && *key ? find(t, key) : NULL;

	return s && s->key ? s->value : -1;
}

static int make_room(struct te__names *t)
{
	struct te__names more = { .cap = t->cap ? 2 * t->cap : FIRST_CAP };

	if (2 * (t->n + 1) <= t->cap)
		return 0;
	more.slot = te__calloc(more.cap, sizeof(*more.slot));
	if (!more.slot)
		return te__fail(-ENOMEM, "no memory for names");
	for (size_t i = 0; i < t->cap; i++) {
		if (t->slot[i].key && *t->slot[i].key) {
			*find(&more, t->slot[i].key) = t->slot[i];
			more.n++;
		}
	}
	te__free(t->slot);
	*t = more;
	return 0;
}

int te__names_add(struct te__names *t, const char *key, int value)
{
	int r = make_room(t);

	if (r < 0)
		return r;
	*find(t, key) = (struct te__name){ key, value };
	t->n++;
	return 0;
}

void te__names_remove(struct te__names *t, const char *key)
{
	struct te__name *s = t->cap ? find(t, key) : NULL;

	if (s && s->key)
		*s = (struct te__name){ "", -1 };
}

void te__names_free(struct te__names *t)
{
	te__free(t->slot);
	*t = (struct te__names){ NULL, 0, 0 };
}
