/* store.c - growing arrays, maps and tries, for tokens and their texts. */
#include "config.h"

#include <errno.h>

#include "token_internal.h"
#include "libtecore/base/grow.h"

int te__tbuf_add(struct te__tbuf *b, const void *p, size_t nbytes)
{
	if (b->most && b->n + nbytes > b->most)
		return te__fail(-EFBIG, "te_token: replacements make a text of more than %zu bytes",
				b->most);
	if (b->room - b->n < nbytes) {
		const size_t room = (b->n + nbytes) * 3 / 2 + 64;
		char *q = te__realloc(b->p, room);

		if (!q)
			return te__no_memory("te_token");
		b->p = q;
		b->room = room;
	}
	if (nbytes)
		memcpy(b->p + b->n, p, nbytes);
	b->n += nbytes;
	return 0;
}

int te__tids_room(struct te__tids *ids, size_t more)
{
	size_t room;
	int32_t *v;

	if (ids->room - ids->n >= more)
		return 0;
	room = (ids->n + more) * 3 / 2 + 64;
	v = te__realloc(ids->v, room * sizeof(*v));
	if (!v)
		return te__no_memory("te_token");
	ids->v = v;
	ids->room = room;
	return 0;
}

uint64_t te__token_hash(const void *p, size_t n)
{
	const unsigned char *s = p;
	uint64_t h = n * 0x9e3779b97f4a7c15u, x;

	for (; n >= 8; s += 8, n -= 8) {
		memcpy(&x, s, 8);
		h = (h ^ x) * 0xff51afd7ed558ccdu;
		h ^= h >> 32;
	}
	if (n) {
		x = 0;
		memcpy(&x, s, n);
		h = (h ^ x) * 0xff51afd7ed558ccdu;
		h ^= h >> 32;
	}
	h *= 0xc4ceb9fe1a85ec53u;
	return h ^ h >> 29;
}

static struct te__tmap_slot *find(const struct te__tmap *m, const char *pool, const void *key,
				  size_t len)
{
	size_t i = te__token_hash(key, len);

	for (;; i++) {
		struct te__tmap_slot *s = &m->slot[i & (m->nslots - 1)];

		if (s->value < 0 || (s->len == len && !memcmp(pool + s->off, key, len)))
			return s;
	}
}

int32_t te__tmap_get(const struct te__tmap *m, const char *pool, const void *key, size_t len)
{
	return m->nslots ? find(m, pool, key, len)->value : -1;
}

int te__tmap_put(struct te__tmap *m, const char *pool, uint32_t off, uint32_t len, int32_t value)
{
	struct te__tmap_slot *s;

	if (2 * (m->n + 1) > m->nslots) {
		struct te__tmap grown = { .nslots = m->nslots ? 2 * m->nslots : 256 };

		grown.slot = te__malloc(grown.nslots * sizeof(*grown.slot));
		if (!grown.slot)
			return te__no_memory("te_token");
		for (size_t i = 0; i < grown.nslots; i++)
			grown.slot[i].value = -1;
		for (size_t i = 0; i < m->nslots; i++)
			if (m->slot[i].value >= 0)
				*find(&grown, pool, pool + m->slot[i].off, m->slot[i].len) =
					m->slot[i];
		te__free(m->slot);
		m->slot = grown.slot;
		m->nslots = grown.nslots;
	}
	s = find(m, pool, pool + off, len);
	m->n += s->value < 0;
	*s = (struct te__tmap_slot){ off, len, value };
	return 0;
}

static struct te__trie_edge *edge_find(const struct te__trie *t, uint32_t node, uint8_t byte)
{
	size_t i = ((size_t)node * 256 + byte) * 0x9e3779b97f4a7c15u >> 20;

	for (;; i++) {
		struct te__trie_edge *e = &t->edge[i & (t->room - 1)];

		if (!e->to || (e->node == node && e->byte == byte))
			return e;
	}
}

static int edge_add(struct te__trie *t, uint32_t node, uint8_t byte, uint32_t to)
{
	if (2 * (t->nedges + 1) > t->room) {
		struct te__trie grown = { .room = t->room ? 2 * t->room : 256 };

		grown.edge = te__calloc(grown.room, sizeof(*grown.edge));
		if (!grown.edge)
			return te__no_memory("te_token");
		for (size_t i = 0; i < t->room; i++)
			if (t->edge[i].to)
				*edge_find(&grown, t->edge[i].node, t->edge[i].byte) = t->edge[i];
		te__free(t->edge);
		t->edge = grown.edge;
		t->room = grown.room;
	}
	*edge_find(t, node, byte) = (struct te__trie_edge){ node, to, byte };
	t->nedges++;
	return 0;
}

static int trie_node(struct te__trie *t)
{
	if (TE__GROW(t->end, t->node_room, t->nnodes))
		return te__no_memory("te_token");
	t->end[t->nnodes++] = -1;
	return 0;
}

int te__trie_add(struct te__trie *t, const void *key, size_t len, int32_t value)
{
	const unsigned char *p = key;
	uint32_t node = 0;
	int r = 0;

	if (!len)
		return 0;
	if (!t->nnodes)
		r = trie_node(t);
	for (size_t i = 0; i < len && !r; i++) {
		const struct te__trie_edge *e = t->room ? edge_find(t, node, p[i]) : NULL;

		if (e && e->to) {
			node = e->to;
			continue;
		}
		r = trie_node(t);
		if (!r)
			r = edge_add(t, node, p[i], (uint32_t)t->nnodes - 1);
		node = (uint32_t)t->nnodes - 1;
	}
	if (r)
		return r;
	t->first[p[0]] = 1;
	if (t->end[node] < 0)
		t->end[node] = value;
	return 0;
}

uint32_t te__trie_step(const struct te__trie *t, uint32_t node, char byte)
{
	return t->room ? edge_find(t, node, (uint8_t)byte)->to : 0;
}

size_t te__trie_match(const struct te__trie *t, const char *p, size_t n, int32_t *ret_value)
{
	uint32_t node = 0;
	size_t len = 0;

	for (size_t i = 0; i < n; i++) {
		node = edge_find(t, node, (uint8_t)p[i])->to;
		if (!node)
			break;
		if (t->end[node] >= 0) {
			*ret_value = t->end[node];
			len = i + 1;
		}
	}
	return len;
}

void te__trie_free(struct te__trie *t)
{
	te__free(t->edge);
	te__free(t->end);
}
