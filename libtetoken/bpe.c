/* bpe.c - tokens of one word by byte-pair encoding, and a table of words that were seen before. */
#include "config.h"

#include <errno.h>

#include "token_internal.h"
#include "libtecore/base/grow.h"

#define SHORT_WORD 40	 /* symbols: below, the best pair is searched; above, a heap has it */
#define CACHED_WORD 64	 /* bytes: longer words rarely come again */
#define ARENA (4u << 20) /* bytes of cached words and their tokens; then all are forgotten */

/* a word that was seen: its bytes and tokens are at off of the arena */
struct te__word_slot {
	uint32_t hash, off;
	uint8_t len, ntokens; /* len 0: free */
};

int te__words_init(struct te__words *w, const struct te_token *t, struct te__tids *out,
		   size_t nbytes)
{
	*w = (struct te__words){ .t = t, .out = out, .nslots = 64 };
	while (w->nslots < nbytes / 8 && w->nslots < 1 << 16)
		w->nslots *= 2;
	w->slot = te__calloc(w->nslots, sizeof(*w->slot));
	return w->slot ? 0 : te__no_memory("te_token_encode");
}

void te__words_free(struct te__words *w)
{
	te__free(w->slot);
	te__free(w->arena.p);
	te__free(w->sym);
	te__free(w->prev);
	te__free(w->next);
	te__free(w->rank);
	te__free(w->heap);
}

static int symbols_room(struct te__words *w, size_t n)
{
	const size_t room = n + 64;
	void *p;

	if (n <= w->room)
		return 0;
	p = te__realloc(w->sym, room * sizeof(*w->sym));
	if (p)
		w->sym = p;
	if (p && (p = te__realloc(w->prev, room * sizeof(*w->prev))))
		w->prev = p;
	if (p && (p = te__realloc(w->next, room * sizeof(*w->next))))
		w->next = p;
	if (p && (p = te__realloc(w->rank, room * sizeof(*w->rank))))
		w->rank = p;
	if (!p)
		return te__no_memory("te_token_encode");
	w->room = room;
	return 0;
}

/* the word's symbols before any merge; returns their number */
static size_t symbols(const struct te__words *w, const char *word, size_t len)
{
	const struct te_token *t = w->t;
	size_t n = 0;
	int was_unk = 0;

	if (t->byte_level) {
		for (size_t i = 0; i < len; i++) {
			const int32_t id = t->byte_id[(unsigned char)word[i]];

			if (id >= 0)
				w->sym[n++] = id;
			else if (t->unk >= 0 && !(t->fuse_unk && was_unk))
				w->sym[n++] = t->unk;
			was_unk = id < 0;
		}
		return n;
	}
	for (size_t i = 0; i < len;) {
		int k, all = t->byte_fallback;
		int32_t id;

		te__utf8_get(word + i, &k);
		id = te__tmap_get(&t->map, t->pool, word + i, (size_t)k);
		for (int j = 0; j < k && all && id < 0; j++)
			all = t->byte_id[(unsigned char)word[i + (size_t)j]] >= 0;
		if (id >= 0) {
			w->sym[n++] = id;
		} else if (all) {
			for (int j = 0; j < k; j++)
				w->sym[n++] = t->byte_id[(unsigned char)word[i + (size_t)j]];
		} else if (t->unk >= 0 && !(t->fuse_unk && was_unk)) {
			w->sym[n++] = t->unk;
		}
		was_unk = id < 0 && !all;
		i += (size_t)k;
	}
	return n;
}

/* merges in a short word, in place; returns the number of symbols that are left */
static size_t merge_short(const struct te__words *w, size_t n)
{
	const struct te_token *t = w->t;
	int32_t *sym = w->sym, *id = w->next;
	uint32_t *rank = w->rank;

	for (size_t i = 0; i + 1 < n; i++) {
		const struct te__merge *m = te__merge_find(t, sym[i], sym[i + 1]);

		rank[i] = m ? m->rank : UINT32_MAX;
		id[i] = m ? m->id : -1;
	}
	while (n > 1) {
		size_t best = 0;

		for (size_t i = 1; i + 1 < n; i++)
			if (rank[i] < rank[best])
				best = i;
		if (rank[best] == UINT32_MAX)
			break;
		sym[best] = id[best];
		n--;
		for (size_t i = best + 1; i < n; i++) {
			sym[i] = sym[i + 1];
			rank[i] = rank[i + 1];
			id[i] = id[i + 1];
		}
		for (size_t i = best ? best - 1 : 0; i <= best && i + 1 < n; i++) {
			const struct te__merge *m = te__merge_find(t, sym[i], sym[i + 1]);

			rank[i] = m ? m->rank : UINT32_MAX;
			id[i] = m ? m->id : -1;
		}
	}
	return n;
}

/* the heap has rank << 32 | position, lowest first */
static int heap_push(struct te__words *w, uint64_t x)
{
	size_t i = w->heap_n;

	if (TE__GROW(w->heap, w->heap_room, i))
		return te__no_memory("te_token_encode");
	w->heap_n++;
	for (; i && w->heap[(i - 1) / 2] > x; i = (i - 1) / 2)
		w->heap[i] = w->heap[(i - 1) / 2];
	w->heap[i] = x;
	return 0;
}

static uint64_t heap_pop(struct te__words *w)
{
	const uint64_t top = w->heap[0], x = w->heap[--w->heap_n];
	size_t i = 0, c;

	while ((c = 2 * i + 1) < w->heap_n) {
		c += c + 1 < w->heap_n && w->heap[c + 1] < w->heap[c];
		if (w->heap[c] >= x)
			break;
		w->heap[i] = w->heap[c];
		i = c;
	}
	if (w->heap_n)
		w->heap[i] = x;
	return top;
}

/* rank of the pair at i, which becomes the current one there; queued if it is a merge */
static int pair_push(struct te__words *w, int32_t i)
{
	const int32_t j = i < 0 ? -1 : w->next[i];
	const struct te__merge *m;

	if (i < 0)
		return 0;
	m = j < 0 ? NULL : te__merge_find(w->t, w->sym[i], w->sym[j]);
	w->rank[i] = m ? m->rank : UINT32_MAX;
	return m ? heap_push(w, (uint64_t)m->rank << 32 | (uint32_t)i) : 0;
}

static int merge_long(struct te__words *w, size_t n, size_t *ret_n)
{
	size_t k = 0;
	int r = 0;

	w->heap_n = 0;
	for (size_t i = 0; i < n; i++) {
		w->prev[i] = (int32_t)i - 1;
		w->next[i] = i + 1 < n ? (int32_t)i + 1 : -1;
	}
	for (size_t i = 0; i < n && !r; i++)
		r = pair_push(w, (int32_t)i);
	while (w->heap_n && !r) {
		const uint64_t top = heap_pop(w);
		const int32_t i = (int32_t)(uint32_t)top, j = w->next[i];

		if (w->sym[i] < 0 || j < 0 || w->rank[i] != top >> 32)
			continue; /* one of the pair is part of another token by now */
		w->sym[i] = te__merge_find(w->t, w->sym[i], w->sym[j])->id;
		w->sym[j] = -1;
		w->next[i] = w->next[j];
		if (w->next[i] >= 0)
			w->prev[w->next[i]] = i;
		r = pair_push(w, i);
		if (!r)
			r = pair_push(w, w->prev[i]);
	}
	for (size_t i = 0; i < n; i++)
		if (w->sym[i] >= 0)
			w->sym[k++] = w->sym[i];
	*ret_n = k;
	return r;
}

static int remember(struct te__words *w, struct te__word_slot *s, uint32_t hash, const char *word,
		    size_t len, size_t ntokens)
{
	static const char zero[4];
	int r;

	if (w->arena.n > ARENA) {
		w->arena.n = 0;
		memset(w->slot, 0, w->nslots * sizeof(*w->slot));
	}
	*s = (struct te__word_slot){ hash, (uint32_t)w->arena.n, 0, (uint8_t)ntokens };
	r = te__tbuf_add(&w->arena, w->sym, ntokens * sizeof(*w->sym));
	if (!r)
		r = te__tbuf_add(&w->arena, word, len);
	if (!r)
		r = te__tbuf_add(&w->arena, zero, -w->arena.n & 3); /* tokens are aligned */
	if (!r)
		s->len = (uint8_t)len;
	return r;
}

int te__words_put(struct te__words *w, const char *word, size_t len)
{
	const struct te_token *t = w->t;
	struct te__word_slot *s = NULL;
	uint32_t hash = 0;
	size_t n;
	int r;

	if (!len)
		return 0;
	if (t->score)
		return te__unigram_put(t, word, len, w->out);
	if (len <= CACHED_WORD) {
		const uint64_t h = te__token_hash(word, len);

		hash = (uint32_t)(h >> 32);
		s = &w->slot[h & (w->nslots - 1)];
		if (s->len == len && s->hash == hash) {
			const char *p = w->arena.p + s->off;

			if (!memcmp(p + 4 * s->ntokens, word, len)) {
				r = te__tids_room(w->out, s->ntokens);
				if (!r)
					memcpy(w->out->v + w->out->n, p, 4 * (size_t)s->ntokens);
				w->out->n += r ? 0 : s->ntokens;
				return r;
			}
		}
	}
	if (len > INT32_MAX)
		return te__fail(-EFBIG, "te_token_encode: a word has 2 GiB or more");
	r = symbols_room(w, len);
	if (r)
		return r;
	w->sym[0] = t->ignore_merges ? te__tmap_get(&t->map, t->pool, word, len) : -1;
	n = 1;
	if (w->sym[0] < 0) {
		n = symbols(w, word, len);
		if (n <= SHORT_WORD)
			n = merge_short(w, n);
		else
			r = merge_long(w, n, &n);
	}
	if (!r)
		r = te__tids_room(w->out, n);
	if (r)
		return r;
	if (n)
		memcpy(w->out->v + w->out->n, w->sym, n * sizeof(*w->sym));
	w->out->n += n;
	return s ? remember(w, s, hash, word, len, n) : 0;
}
