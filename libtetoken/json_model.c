/* json_model.c - the model of tokenizer.json: the vocabulary with merges or with scores. */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>

#include "json.h"

static int hex_of(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* bytes that the token's text decodes to, in *b */
static int decoded(const struct te__json_decoder *decoder, const char *p, size_t n,
		   struct te__tbuf *b, struct te__tbuf *spare)
{
	int r;

	b->n = 0;
	if (decoder->byte_fallback && n == 6 && !memcmp(p, "<0x", 3) && hex_of(p[3]) >= 0 &&
	    hex_of(p[4]) >= 0 && p[5] == '>') {
		const char byte = (char)(hex_of(p[3]) << 4 | hex_of(p[4]));

		return te__tbuf_add(b, &byte, 1);
	}
	r = te__tbuf_add(b, p, n);
	for (int i = 0; i < decoder->nreplace && !r; i++) {
		const char *q, *from = decoder->replace[i].from;
		const size_t nfrom = decoder->replace[i].nfrom;
		struct te__tbuf was = *b;
		size_t at = 0;

		*b = *spare;
		*spare = was;
		b->n = 0;
		while (!r && (q = memmem(spare->p + at, spare->n - at, from, nfrom))) {
			r = te__tbuf_add(b, spare->p + at, (size_t)(q - spare->p) - at);
			if (!r)
				r = te__tbuf_add(b, decoder->replace[i].to,
						 decoder->replace[i].nto);
			at = (size_t)(q - spare->p) + nfrom;
		}
		if (!r)
			r = te__tbuf_add(b, spare->p + at, spare->n - at);
	}
	if (!r && decoder->byte_level) {
		const int m = te__bytes_of_text(b->p, b->n, b->p); /* never longer */

		b->n = m < 0 ? b->n : (size_t)m;
		if (m < 0) { /* the bytes before the character were overwritten */
			b->n = 0;
			r = te__tbuf_add(b, p, n);
		}
	}
	return r;
}

#if JANSSON_VERSION_HEX >= 0x020e00
#define KEY_LENGTH(iter, key) json_object_iter_key_len(iter)
#else
#define KEY_LENGTH(iter, key) strlen(key)
#endif

static int vocabulary(struct te_token *t, json_t *vocab)
{
	struct te__tbuf b = { .most = 1 << 20 }, spare = { .most = 1 << 20 }, key = { 0 };
	int r = 0;

	if (!json_is_object(vocab))
		return te__json_corrupt("model: vocab is no object");
	for (void *i = json_object_iter(vocab); i && !r; i = json_object_iter_next(vocab, i)) {
		const char *p = json_object_iter_key(i);
		size_t n = KEY_LENGTH(i, p);
		uint32_t flags = 0;
		int32_t id = 0;
		int m;

		r = te__json_id(json_object_iter_value(i), &id);
		if (!r)
			r = decoded(t->load, p, n, &b, &spare);
		key.n = 0;
		if (!r)
			r = te__tbuf_add(&key, p, n);
		if (r)
			break;
		if (t->byte_level) {
			m = te__bytes_of_text(p, n, key.p);
			if (m >= 0) {
				p = key.p;
				n = (size_t)m;
			} else {
				flags = TE__TOK_FOREIGN;
			}
		}
		r = te__token_set(t, id, p, n, b.p ? b.p : "", b.n, flags);
	}
	te__free(b.p);
	te__free(spare.p);
	te__free(key.p);
	return r;
}

/* the token of a text of merges; in key: left and right joined */
static int32_t side(const struct te_token *t, const char *p, size_t n, struct te__tbuf *key)
{
	const size_t at = key->n;
	int m = (int)n;

	if (!n)
		return -1;
	if (te__tbuf_add(key, p, n))
		return -ENOMEM;
	if (t->byte_level) {
		m = te__bytes_of_text(p, n, key->p + at);
		if (m < 0)
			return -1;
		key->n = at + (size_t)m;
	}
	return te__tmap_get(&t->map, t->pool, key->p + at, (size_t)m);
}

static int merges(struct te_token *t, const json_t *list)
{
	struct te__tbuf key = { 0 };
	const json_t *v;
	size_t i;
	int r = 0;

	if (!json_is_array(list))
		return te__json_corrupt("model: merges is no array");
	json_array_foreach(list, i, v)
	{
		const json_t *a = json_array_get(v, 0), *b = json_array_get(v, 1);
		const char *p = json_is_array(v) ? json_string_value(a) : json_string_value(v);
		const char *q = json_is_array(v) ? json_string_value(b) : p ? strchr(p, ' ') : NULL;
		int32_t left, right, id;

		if (!p || !q) {
			r = te__fail(-TE_ECORRUPT, FN ": model: merge %zu is no pair", i);
			break;
		}
		key.n = 0;
		left = side(t, p, json_is_array(v) ? json_string_length(a) : (size_t)(q - p), &key);
		right = left < 0	 ? left :
			json_is_array(v) ? side(t, q, json_string_length(b), &key) :
					   side(t, q + 1, strlen(q + 1), &key);
		id = right < 0 ? right : te__tmap_get(&t->map, t->pool, key.p, key.n);
		if (id == -ENOMEM)
			r = -ENOMEM;
		else if (id < 0)
			r = te__fail(-TE_ECORRUPT,
				     FN ": model: merge %zu: its tokens are not in "
					"the vocabulary",
				     i);
		else
			r = te__token_merge_add(t, left, right, (uint32_t)i, id);
		if (r)
			break;
	}
	te__free(key.p);
	return r;
}

/* piece i of a unigram model: [text, score] */
static int unigram_piece(struct te_token *t, int32_t id, const json_t *v, size_t *nbytes,
			 struct te__tbuf *b, struct te__tbuf *spare)
{
	const json_t *key = json_array_get(v, 0), *score = json_array_get(v, 1);
	const char *p = json_string_value(key);
	const size_t n = json_string_length(key);
	int r;

	if (!p || !n || !json_is_number(score))
		return te__fail(-TE_ECORRUPT, FN ": model: piece %d is no text with a score", id);
	r = decoded(t->load, p, n, b, spare);
	if (!r)
		r = te__token_set(t, id, p, n, b->p ? b->p : "", b->n, 0);
	if (!r)
		r = te__unigram_add(t, id, p, n, json_number_value(score), nbytes);
	t->score_low = json_number_value(score) < t->score_low ? json_number_value(score) :
								 t->score_low;
	return r;
}

static int has_all_bytes(const struct te_token *t)
{
	char text[8];

	for (int i = 0; i < 256; i++) {
		snprintf(text, sizeof(text), "<0x%02X>", (unsigned)i);
		if (te__tmap_get(&t->map, t->pool, text, 6) < 0)
			return 0;
	}
	return 1;
}

static int unigram(struct te_token *t, const json_t *o)
{
	struct te__tbuf b = { .most = 1 << 20 }, spare = { .most = 1 << 20 };
	const json_t *vocab = json_object_get(o, "vocab"), *unk = json_object_get(o, "unk_id"), *v;
	const size_t n = json_array_size(vocab);
	size_t nbytes = 0, i;
	int r = 0;

	if (!n || n > TE__TOKEN_MAX_VOCAB)
		return te__json_corrupt("model: vocab is no list of pieces");
	if (t->byte_level)
		return te__json_unsupported("model", "Unigram after ByteLevel");
	if (!json_is_integer(unk))
		return te__json_unsupported("model", "Unigram without unk_id");
	if (json_integer_value(unk) < 0 || json_integer_value(unk) >= (json_int_t)n)
		return te__json_corrupt("model: unk_id is not in the vocabulary");
	t->score = te__calloc(n, sizeof(*t->score));
	if (!t->score)
		return te__no_memory("te_token");
	t->unk = (int32_t)json_integer_value(unk);
	t->exact = 1;
	t->score_low = INFINITY;
	json_array_foreach(vocab, i, v)
	{
		if (!r)
			r = unigram_piece(t, (int32_t)i, v, &nbytes, &b, &spare);
	}
	te__free(b.p);
	te__free(spare.p);
	t->byte_fallback = te__json_truth(o, "byte_fallback", 0);
	if (!r && t->byte_fallback && !has_all_bytes(t))
		r = te__json_unsupported("model", "byte_fallback without a token for each byte");
	return r;
}

int te__json_model(struct te_token *t, const json_t *o)
{
	static const char *const affixes[] = { "continuing_subword_prefix", "end_of_word_suffix" };
	const char *type = te__json_text(o, "type"), *s;
	const json_t *dropout = json_object_get(o, "dropout");
	int r;

	if (!json_is_object(o))
		return te__json_corrupt("it has no model");
	if (type ? !strcmp(type, "Unigram") : json_is_array(json_object_get(o, "vocab")))
		return unigram(t, o);
	if (type ? strcmp(type, "BPE") : !json_object_get(o, "merges"))
		return te__json_unsupported("model: type", type ? type : "a model without merges");
	for (int i = 0; i < 2; i++)
		if ((s = te__json_text(o, affixes[i])) && *s)
			return te__json_unsupported("model", affixes[i]);
	if (dropout && !json_is_null(dropout) && json_number_value(dropout) != 0)
		return te__json_unsupported("model", "dropout");
	t->byte_fallback = te__json_truth(o, "byte_fallback", 0);
	t->fuse_unk = te__json_truth(o, "fuse_unk", 0);
	t->ignore_merges = te__json_truth(o, "ignore_merges", 0);
	r = vocabulary(t, json_object_get(o, "vocab"));
	if (!r)
		r = merges(t, json_object_get(o, "merges"));
	s = te__json_text(o, "unk_token");
	if (!r && s) {
		t->unk = te__tmap_get(&t->map, t->pool, s, strlen(s));
		if (t->unk < 0)
			return te__json_corrupt("model: unk_token is not in the vocabulary");
	}
	return r;
}
