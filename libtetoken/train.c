/*
 * train.c - te_token_train(3): byte-pair encoding of the words of a text.
 *
 * Pairs are counted over distinct words, times the words' counts. A heap has pairs by count; counts
 * that changed since are corrected when a pair comes to its top.
 */
#include "config.h"

#include <errno.h>
#include <jansson.h>

#include "token_internal.h"
#include "libtecore/base/grow.h"

#define FN "te_token_train"

struct word {
	uint32_t off, len; /* symbols */
	int64_t count;
};

struct pair {
	uint64_t pair; /* left << 32 | right; UINT64_MAX: free */
	int64_t count;
	struct te__tids words; /* indices of words that have or had the pair */
};

struct trainer {
	struct te__tids
		sym; /* symbols of all words; -1 after the end of a word that became shorter */
	struct word *word;
	size_t nwords, word_room;
	struct te__tmap map; /* bytes of a word -> index */
	const char *text;
	struct pair *table;
	size_t npairs, room; /* room: a power of two */
	struct top {
		int64_t count;
		uint64_t pair;
	} * heap;
	size_t heap_n, heap_room;
};

static struct pair *pair_slot(struct pair *table, size_t room, uint64_t pair)
{
	size_t i = (pair * 0x9e3779b97f4a7c15u) >> 20;

	while (table[i & (room - 1)].pair != UINT64_MAX && table[i & (room - 1)].pair != pair)
		i++;
	return &table[i & (room - 1)];
}

/* the pair, which is added if it is new; NULL: no memory */
static struct pair *pair_of(struct trainer *a, uint64_t pair)
{
	struct pair *p;

	if (2 * (a->npairs + 1) > a->room) {
		const size_t room = a->room ? 2 * a->room : 4096;
		struct pair *table = te__malloc(room * sizeof(*table));

		if (!table)
			return NULL;
		for (size_t i = 0; i < room; i++)
			table[i] = (struct pair){ .pair = UINT64_MAX };
		for (size_t i = 0; i < a->room; i++)
			if (a->table[i].pair != UINT64_MAX)
				*pair_slot(table, room, a->table[i].pair) = a->table[i];
		te__free(a->table);
		a->table = table;
		a->room = room;
	}
	p = pair_slot(a->table, a->room, pair);
	if (p->pair == UINT64_MAX) {
		p->pair = pair;
		a->npairs++;
	}
	return p;
}

/* 1: x comes before y: more frequent, or the lower tokens */
static int before(const struct top *x, const struct top *y)
{
	return x->count != y->count ? x->count > y->count : x->pair < y->pair;
}

static int heap_push(struct trainer *a, struct top x)
{
	size_t i = a->heap_n;

	if (TE__GROW(a->heap, a->heap_room, i))
		return te__no_memory(FN);
	a->heap_n++;
	for (; i && before(&x, &a->heap[(i - 1) / 2]); i = (i - 1) / 2)
		a->heap[i] = a->heap[(i - 1) / 2];
	a->heap[i] = x;
	return 0;
}

static struct top heap_pop(struct trainer *a)
{
	const struct top first = a->heap[0], x = a->heap[--a->heap_n];
	size_t i = 0, c;

	while ((c = 2 * i + 1) < a->heap_n) {
		c += c + 1 < a->heap_n && before(&a->heap[c + 1], &a->heap[c]);
		if (!before(&a->heap[c], &x))
			break;
		a->heap[i] = a->heap[c];
		i = c;
	}
	if (a->heap_n)
		a->heap[i] = x;
	return first;
}

static uint64_t key(int32_t l, int32_t r)
{
	return (uint64_t)(uint32_t)l << 32 | (uint32_t)r;
}

static int note(struct trainer *a, int32_t l, int32_t r, size_t word, int queue)
{
	struct pair *p = pair_of(a, key(l, r));

	if (!p)
		return te__no_memory(FN);
	p->count += a->word[word].count;
	if (!p->words.n || p->words.v[p->words.n - 1] != (int32_t)word) {
		if (te__tids_room(&p->words, 1))
			return -ENOMEM;
		p->words.v[p->words.n++] = (int32_t)word;
	}
	return queue ? heap_push(a, (struct top){ p->count, p->pair }) : 0;
}

static int add_word(struct trainer *a, const char *p, size_t n)
{
	const int32_t i = te__tmap_get(&a->map, a->text, p, n);
	int r;

	if (i >= 0) {
		a->word[i].count++;
		return 0;
	}
	if (TE__GROW(a->word, a->word_room, a->nwords))
		return te__no_memory(FN);
	r = te__tmap_put(&a->map, a->text, (uint32_t)(p - a->text), (uint32_t)n,
			 (int32_t)a->nwords);
	if (!r)
		r = te__tids_room(&a->sym, n);
	if (r)
		return r;
	a->word[a->nwords++] = (struct word){ (uint32_t)a->sym.n, (uint32_t)n, 1 };
	for (size_t k = 0; k < n; k++)
		a->sym.v[a->sym.n++] = (unsigned char)p[k];
	return 0;
}

static int words(struct trainer *a, size_t n, const char *pattern)
{
	const char *name = te__pattern_named(pattern ? pattern : "gpt2");
	pcre2_match_data *match = pcre2_match_data_create(1, NULL);
	pcre2_code *code = NULL;
	int r, jit;

	r = match ? te__pattern_compile(FN, name, strlen(name), &code, &jit) : te__no_memory(FN);
	for (size_t at = 0; at < n && !r;) {
		const size_t *v = pcre2_get_ovector_pointer(match);

		if (pcre2_match(code, (PCRE2_SPTR)a->text, n, at, PCRE2_NO_UTF_CHECK, match, NULL) <
		    0)
			break;
		r = add_word(a, a->text + v[0], v[1] - v[0]);
		at = v[1] > at ? v[1] : n;
	}
	pcre2_code_free(code);
	pcre2_match_data_free(match);
	return r;
}

/* replaces the pair in a word; counts of its other pairs change */
static int merge_in(struct trainer *a, size_t word, int32_t left, int32_t right, int32_t id)
{
	struct word *w = &a->word[word];
	int32_t *s = a->sym.v + w->off;
	int r = 0;

	for (uint32_t i = 0; i + 1 < w->len && !r; i++) {
		if (s[i] != left || s[i + 1] != right)
			continue;
		if (i)
			pair_slot(a->table, a->room, key(s[i - 1], left))->count -= w->count;
		if (i + 2 < w->len)
			pair_slot(a->table, a->room, key(right, s[i + 2]))->count -= w->count;
		s[i] = id;
		memmove(s + i + 1, s + i + 2, (w->len - i - 2) * sizeof(*s));
		w->len--;
		if (i)
			r = note(a, s[i - 1], id, word, 1);
		if (!r && i + 1 < w->len)
			r = note(a, id, s[i + 1], word, 1);
	}
	return r;
}

static int put_text(json_t **ret, struct te__tbuf *b, const char *p, size_t n)
{
	b->n = 0;
	for (size_t i = 0; i < n; i++) {
		const int c = te__char_of_byte((unsigned char)p[i]);
		const char text[2] = { (char)(0xc0 | c >> 6), (char)(0x80 | (c & 63)) };
		const char byte = (char)c;

		if (c < 128 ? te__tbuf_add(b, &byte, 1) : te__tbuf_add(b, text, 2))
			return -ENOMEM;
	}
	*ret = json_stringn(b->p, b->n);
	return *ret ? 0 : te__no_memory(FN);
}

/* merges until the vocabulary is full */
static int learn(struct trainer *a, int32_t nvocab, json_t *vocab, json_t *merges)
{
	struct {
		uint32_t off, len;
	} *tok = te__malloc((size_t)nvocab * sizeof(*tok));
	struct te__tbuf pool = { 0 }, b = { 0 };
	int32_t n = 0;
	int r = tok ? 0 : te__no_memory(FN);

	for (; n < nvocab && !r;) {
		json_t *l, *right, *both;
		struct top top = { 0, 0 };
		const uint32_t off = (uint32_t)pool.n;
		int32_t x = -1, y = -1;

		if (n < 256) {
			const char byte = (char)n;

			r = te__tbuf_add(&pool, &byte, 1);
		} else {
			const struct pair *p = NULL;

			while (a->heap_n && !r && !p) {
				top = heap_pop(a);
				if (top.count < 2)
					break;
				p = pair_slot(a->table, a->room, top.pair);
				if (p->count == top.count)
					break;
				/* a higher count is queued already, a lower one is now */
				if (p->count < top.count)
					r = heap_push(a, (struct top){ p->count, top.pair });
				p = NULL;
			}
			if (r || !p)
				break;
			x = (int32_t)(top.pair >> 32);
			y = (int32_t)(uint32_t)top.pair;
			b.n = 0;
			r = te__tbuf_add(&b, pool.p + tok[x].off, tok[x].len);
			if (!r)
				r = te__tbuf_add(&b, pool.p + tok[y].off, tok[y].len);
			if (!r)
				r = te__tbuf_add(&pool, b.p, b.n);
		}
		if (r)
			break;
		tok[n].off = off;
		tok[n].len = (uint32_t)pool.n - off;
		r = put_text(&both, &b, pool.p + off, pool.n - off);
		if (r)
			break;
		r = json_object_set_new(vocab, json_string_value(both), json_integer(n));
		json_decref(both);
		if (x >= 0 && !r) {
			struct pair *p = pair_slot(a->table, a->room, top.pair);
			const struct te__tids list = p->words;

			r = put_text(&l, &b, pool.p + tok[x].off, tok[x].len);
			if (!r) {
				r = put_text(&right, &b, pool.p + tok[y].off, tok[y].len);
				if (r)
					json_decref(l);
			}
			if (!r)
				r = json_array_append_new(merges, json_pack("[o,o]", l, right));
			/* the list is taken from the pair, which may come again in other words */
			p->words = (struct te__tids){ 0 };
			for (size_t i = 0; i < list.n && !r; i++)
				r = merge_in(a, (size_t)list.v[i], x, y, n);
			te__free(list.v);
			pair_slot(a->table, a->room, top.pair)->count = 0;
		}
		if (r == -1)
			r = te__no_memory(FN);
		n++;
	}
	te__free(tok);
	te__free(pool.p);
	te__free(b.p);
	return r;
}

static int count_pairs(struct trainer *a)
{
	int r = 0;

	for (size_t i = 0; i < a->nwords && !r; i++) {
		const struct word *w = &a->word[i];

		for (uint32_t k = 0; k + 1 < w->len && !r; k++)
			r = note(a, a->sym.v[w->off + k], a->sym.v[w->off + k + 1], i, 0);
	}
	for (size_t i = 0; i < a->room && !r; i++)
		if (a->table[i].pair != UINT64_MAX)
			r = heap_push(a, (struct top){ a->table[i].count, a->table[i].pair });
	return r;
}

static json_t *file_of(const char *pattern, json_t *vocab, json_t *merges)
{
	const char *regex = te__pattern_named(pattern ? pattern : "gpt2");

	return json_pack(
		"{s:s, s:n, s:n, s:[], s:n, s:{s:s, s:[{s:s, s:{s:s}, s:s, s:b}, "
		"{s:s, s:b, s:b, s:b}]}, s:n, s:{s:s, s:b, s:b, s:b}, "
		"s:{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:O, s:O}}",
		"version", "1.0", "truncation", "padding", "added_tokens", "normalizer",
		"pre_tokenizer", "type", "Sequence", "pretokenizers", "type", "Split", "pattern",
		"Regex", regex, "behavior", "Isolated", "invert", 0, "type", "ByteLevel",
		"add_prefix_space", 0, "trim_offsets", 1, "use_regex", 0, "post_processor",
		"decoder", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1,
		"use_regex", 1, "model", "type", "BPE", "dropout", "unk_token",
		"continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0, "byte_fallback",
		0, "ignore_merges", 0, "vocab", vocab, "merges", merges);
}

int te_token_train(const void *text, size_t nbytes, int32_t nvocab, const char *pattern,
		   char **ret_json)
{
	struct te__tbuf repaired = { 0 };
	struct trainer a = { 0 };
	json_t *vocab, *merges, *file = NULL;
	char *out = NULL, *copy;
	size_t n;
	int r;

	if ((!text && nbytes) || !ret_json)
		return te__fail(-EINVAL, FN ": an argument is NULL");
	if (nvocab < 256 || nvocab > TE__TOKEN_MAX_VOCAB)
		return te__fail(-EINVAL, FN ": nvocab: %d is outside of 256 to %d", nvocab,
				TE__TOKEN_MAX_VOCAB);
	if (pattern && !te__pattern_named(pattern))
		return te__fail(-EINVAL,
				FN ": pattern: %s: expected gpt2, cl100k, o200k, llama3 or "
				   "qwen2",
				pattern);
	if (nbytes > INT32_MAX)
		return te__fail(-EFBIG, FN ": text: it has %zu bytes, expected less than 2^31",
				nbytes);
	vocab = json_object();
	merges = json_array();
	r = vocab && merges ? 0 : te__no_memory(FN);
	if (!r)
		r = te__utf8_repair(text, nbytes, &repaired, &a.text, &n);
	if (!r)
		r = words(&a, n, pattern);
	if (!r)
		r = count_pairs(&a);
	if (!r)
		r = learn(&a, nvocab, vocab, merges);
	if (!r) {
		file = file_of(pattern, vocab, merges);
		out = file ? json_dumps(file, JSON_INDENT(1)) : NULL;
		copy = out ? te__strdup(out) : NULL;
		if (copy)
			*ret_json = te__give(copy);
		else
			r = te__no_memory(FN);
	}
	te__free_libc(out);
	json_decref(file);
	json_decref(vocab);
	json_decref(merges);
	for (size_t i = 0; i < a.room; i++)
		te__free(a.table[i].words.v);
	te__free(a.table);
	te__free(a.sym.v);
	te__free(a.word);
	te__free(a.map.slot);
	te__free(a.heap);
	te__free(repaired.p);
	return r;
}
