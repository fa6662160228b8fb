/*
 * gguf_save.c - te_token_gguf(3): the metadata of GGUF files for a tokenizer.
 *
 * Vocabularies of SentencePiece have the model "llama", whose merges follow from scores of tokens,
 * or "t5" if they are of type Unigram.
 * Keys, types and padding: llama.cpp, convert_hf_to_gguf.py, _create_vocab_sentencepiece().
 */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>

#include "token_internal.h"

#define FN "te_token_gguf"

/* types of values and of tokens, as in gguf.c */
enum { UINT8 = 0, UINT32 = 4, INT32 = 5, FLOAT32 = 6, BOOL = 7, TEXT = 8, LIST = 9 };

#define PAD_SCORE (-10000.0f) /* score of an unused token */

/* the file so far; nothing is appended after an error */
struct out {
	struct te__tbuf b;
	uint64_t nitems;
	int r;
};

static void put(struct out *o, const void *p, size_t n)
{
	if (!o->r)
		o->r = te__tbuf_add(&o->b, p, n);
}

/* little-endian */
static void put_number(struct out *o, uint64_t x, size_t nbytes)
{
	uint8_t bytes[8];

	for (size_t i = 0; i < nbytes; i++)
		bytes[i] = (uint8_t)(x >> 8 * i);
	put(o, bytes, nbytes);
}

static void put_text(struct out *o, const char *text, size_t n)
{
	put_number(o, n, 8);
	put(o, text, n);
}

static void put_key(struct out *o, const char *name, uint32_t type)
{
	static const char prefix[] = "tokenizer.ggml.";

	put_number(o, sizeof(prefix) - 1 + strlen(name), 8);
	put(o, prefix, sizeof(prefix) - 1);
	put(o, name, strlen(name));
	put_number(o, type, 4);
	o->nitems++;
}

static void put_list(struct out *o, const char *name, uint32_t of, size_t n)
{
	put_key(o, name, LIST);
	put_number(o, of, 4);
	put_number(o, n, 8);
}

/* append the key of a token in the byte-level alphabet */
static int spell(const struct te_token *t, int32_t id, struct te__tbuf *b)
{
	const char *p = t->pool + t->tok[id].off;
	int r = 0;

	for (uint32_t i = 0; i < t->tok[id].len && !r; i++) {
		const int c = te__char_of_byte((unsigned char)p[i]);
		const char wide[2] = { (char)(0xc0 | c >> 6), (char)(0x80 | (c & 63)) };
		const char byte = (char)c;

		r = c < 128 ? te__tbuf_add(b, &byte, 1) : te__tbuf_add(b, wide, 2);
	}
	return r;
}

/* token -> index of its added token, or -1; NULL: no memory */
static int32_t *added_tokens(const struct te_token *t)
{
	int32_t *of = te__malloc((size_t)t->ntok * sizeof(*of) + 1);

	for (int32_t i = 0; of && i < t->ntok; i++)
		of[i] = -1;
	for (size_t i = 0; of && i < t->nadded; i++)
		of[t->added[i].id] = (int32_t)i;
	return of;
}

/* the text of an added token, where U+2581 of a vocabulary of pieces is a space */
static void put_added(struct out *o, const struct te_token *t, const struct te__added *a,
		      struct te__tbuf *b)
{
	const char *p = t->pool + a->off, *end = p + a->len, *q;

	b->n = 0;
	while (a->piece && !o->r && (q = te__find(p, (size_t)(end - p), TE__TOKEN_MARK, 3))) {
		o->r = te__tbuf_add(b, p, (size_t)(q - p));
		if (!o->r)
			o->r = te__tbuf_add(b, " ", 1);
		p = q + 3;
	}
	if (!o->r)
		o->r = te__tbuf_add(b, p, (size_t)(end - p));
	put_text(o, b->p ? b->p : "", b->n);
}

static void put_token(struct out *o, const struct te_token *t, int32_t id, int32_t added,
		      struct te__tbuf *b)
{
	const struct te__tok *tok = id < t->ntok && t->tok[id].len ? &t->tok[id] : NULL;
	char pad[32];

	b->n = 0;
	if (added >= 0) {
		put_added(o, t, &t->added[added], b);
	} else if (tok && (!t->byte_level || tok->flags & TE__TOK_FOREIGN)) {
		put_text(o, t->pool + tok->off, tok->len);
	} else if (tok) {
		if (!o->r)
			o->r = spell(t, id, b);
		put_text(o, b->p ? b->p : "", b->n);
	} else {
		put_text(o, pad, (size_t)snprintf(pad, sizeof(pad), "[PAD%d]", (int)id));
	}
}

/* 1: "<0xXX>" of byte fallback */
static int is_byte(const struct te_token *t, int32_t id)
{
	for (int i = 0; i < 256 && !t->byte_level && t->tok[id].len == 6; i++)
		if (t->byte_id[i] == id)
			return 1;
	return 0;
}

static uint32_t type_of(const struct te_token *t, int32_t id, int32_t added)
{
	if (!t->byte_level && id == t->unk)
		return TE__PIECE_UNKNOWN;
	if (id < t->ntok && t->tok[id].flags & TE__TOK_USER)
		return TE__PIECE_USER_DEFINED;
	if (added >= 0)
		return t->added[added].special ? TE__PIECE_CONTROL : TE__PIECE_USER_DEFINED;
	if (id >= t->ntok || !t->tok[id].len)
		return TE__PIECE_UNUSED;
	if (t->tok[id].flags & TE__TOK_FOREIGN)
		return t->tok[id].flags & TE__TOK_SPECIAL ? TE__PIECE_CONTROL : TE__PIECE_UNUSED;
	return is_byte(t, id) ? TE__PIECE_BYTE : TE__PIECE_NORMAL;
}

static void put_tokens(struct out *o, const struct te_token *t, int32_t n)
{
	int32_t *added = added_tokens(t);
	struct te__tbuf b = { 0 };

	if (!added) {
		o->r = te__no_memory(FN);
		return;
	}
	put_list(o, "tokens", TEXT, (size_t)n);
	for (int32_t i = 0; i < n; i++)
		put_token(o, t, i, i < t->ntok ? added[i] : -1, &b);
	put_list(o, "token_type", INT32, (size_t)n);
	for (int32_t i = 0; i < n; i++)
		put_number(o, type_of(t, i, i < t->ntok ? added[i] : -1), 4);
	te__free(b.p);
	te__free(added);
}

/* ---- merges ---- */

static int by_rank(const void *a, const void *b)
{
	const struct te__merge *x = a, *y = b;

	if (x->rank != y->rank)
		return x->rank < y->rank ? -1 : 1;
	return (x->pair > y->pair) - (x->pair < y->pair);
}

/* all merges, the first one first; NULL: no memory */
static struct te__merge *merges_of(const struct te_token *t, size_t *ret_n)
{
	struct te__merge *m = te__malloc(t->nmerges * sizeof(*m) + 1);
	size_t n = 0;

	if (!m) {
		te__no_memory(FN);
		return NULL;
	}
	for (size_t i = 0; i < t->merge_room; i++)
		if (t->merge[i].pair != UINT64_MAX)
			m[n++] = t->merge[i];
	qsort(m, n, sizeof(*m), by_rank);
	*ret_n = n;
	return m;
}

static void put_merges(struct out *o, const struct te_token *t)
{
	struct te__tbuf b = { 0 };
	size_t n = 0;
	struct te__merge *m = o->r ? NULL : merges_of(t, &n);

	if (!m && !o->r)
		o->r = -ENOMEM;
	put_list(o, "merges", TEXT, n);
	for (size_t i = 0; i < n && !o->r; i++) {
		b.n = 0;
		o->r = spell(t, (int32_t)(m[i].pair >> 32), &b);
		if (!o->r)
			o->r = te__tbuf_add(&b, " ", 1);
		if (!o->r)
			o->r = spell(t, (int32_t)(uint32_t)m[i].pair, &b);
		put_text(o, b.p, b.n);
	}
	te__free(b.p);
	te__free(m);
}

static int refuse(const char *what)
{
	return te__fail(-EOPNOTSUPP, FN ": GGUF files have no name for %s", what);
}

/* scores that give the order of merges; all merges to one token are adjacent */
static int scores_of_merges(const struct te_token *t, float *score)
{
	size_t n;
	struct te__merge *m = merges_of(t, &n);
	int32_t last = -1, order = 0;
	int r = 0;

	if (!m)
		return -ENOMEM;
	for (int32_t i = 0; i < t->ntok; i++)
		score[i] = NAN;
	for (size_t i = 0; i < n && !r; last = m[i++].id) {
		if (m[i].id == last)
			continue;
		if (!isnan(score[m[i].id]))
			r = refuse("merges of one token with another's between them");
		score[m[i].id] = (float)-order++;
	}
	for (int32_t i = 0; i < t->ntok; i++)
		if (isnan(score[i]))
			score[i] = (float)-order;
	te__free(m);
	return r;
}

static void put_scores(struct out *o, const struct te_token *t, int32_t n)
{
	float *score = t->piece_score ? NULL : te__malloc((size_t)t->ntok * sizeof(*score) + 1);

	if (!t->piece_score && !o->r)
		o->r = score ? scores_of_merges(t, score) : te__no_memory(FN);
	put_list(o, "scores", FLOAT32, (size_t)n);
	for (int32_t i = 0; i < n && !o->r; i++) {
		const float x = i >= t->ntok ? PAD_SCORE : score ? score[i] : t->piece_score[i];
		uint32_t bits;

		memcpy(&bits, &x, 4);
		put_number(o, bits, 4);
	}
	te__free(score);
}

/* ---- what the format can express ---- */

/* the token that begins or ends texts: known, or one that the template puts there; or -1 */
static int32_t ends(int32_t known, const int32_t *list, int n)
{
	return known < 0 && n ? *list : known;
}

/* added tokens and the template */
static int check_added(const struct te_token *t, int32_t bos, int32_t eos)
{
	for (size_t i = 0; i < t->nadded; i++)
		if (t->added[i].lstrip || t->added[i].rstrip || t->added[i].single_word)
			return refuse("an added token with lstrip, rstrip or single_word");
	if (t->nbefore > 1 || t->nafter > 1 || (t->nbefore && *t->before != bos) ||
	    (t->nafter && *t->after != eos))
		return refuse("a template that puts more than BOS and EOS around a text");
	return 0;
}

/* *ret_pre: the name of the pattern of words */
static int check_bytes(const struct te_token *t, const char **ret_pre)
{
	/* llama.cpp leaves NFC to the caller */
	for (int i = 0; i < t->nnorm; i++)
		if (t->norm[i].kind != TE__NORM_NFC)
			return refuse("a normalizer other than NFC");
	*ret_pre = te__gguf_pre(t);
	return *ret_pre ? 0 : refuse("the pre-tokenizer, the patterns that split text into words");
}

static int is_mark(const char *text)
{
	return !strcmp(text, TE__TOKEN_MARK);
}

/* 1: a token that is merged has U+2581 after another character, or twice */
static int has_marks_within(const struct te_token *t)
{
	for (size_t i = 0; i < t->merge_room; i++) {
		const struct te__tok *tok = &t->tok[t->merge[i].id >= 0 ? t->merge[i].id : 0];

		if (t->merge[i].pair != UINT64_MAX && tok->len > 3 &&
		    te__find(t->pool + tok->off + 1, tok->len - 1, TE__TOKEN_MARK, 3))
			return 1;
	}
	return 0;
}

/* the steps put U+2581 for each space and, with *ret_prefix, before a text */
static int check_spaces(const struct te_token *t, int *ret_prefix)
{
	int marks = 0, prefix = 0;

	for (int i = 0; i < t->nnorm; i++) {
		const struct te__norm *n = &t->norm[i];

		if (n->kind == TE__NORM_PREPEND && is_mark(n->to) && !i)
			prefix = 1;
		else if (n->kind == TE__NORM_REPLACE && !n->code && n->nfrom == 1 &&
			 *n->from == ' ' && is_mark(n->to))
			marks = 1;
		else
			return refuse("a normalizer other than U+2581 for a space");
	}
	for (int i = 0; i < t->nsplit; i++) {
		const struct te__split *s = &t->split[i];

		if (s->kind == TE__SPLIT_METASPACE && !t->nnorm && !i && is_mark(s->mark) &&
		    !(s->pieces && has_marks_within(t))) {
			marks = 1;
			prefix = s->prepend > 0;
		} else if (s->kind != TE__SPLIT_MARKS &&
			   /* no space is left that it could find */
			   !(marks && s->kind == TE__SPLIT_PATTERN && s->source &&
			     !strcmp(s->source, " "))) {
			return refuse("the pre-tokenizer of a vocabulary of SentencePiece");
		}
	}
	*ret_prefix = prefix;
	return marks ? 0 : refuse("a vocabulary of characters without U+2581 for spaces");
}

/* the normalizer of SentencePiece in one step, or the two steps of identity, and nothing else */
static int check_unigram(const struct te_token *t, int *ret_prefix)
{
	if (t->nsplit)
		return refuse("the pre-tokenizer of a Unigram model");
	if (t->nnorm != 1 || t->norm[0].kind != TE__NORM_PIECES)
		return check_spaces(t, ret_prefix);
	*ret_prefix = t->norm[0].left != 0;
	return 0;
}

/* can the file be read? A tokenizer.json may have one text twice */
static int check_back(const void *data, size_t nbytes)
{
	struct te_token *back = NULL;
	const int r = te_token_load(data, nbytes, NULL, &back);

	te_token_unref(back);
	return r;
}

static int check_pieces(const struct te_token *t, int *ret_prefix)
{
	if (t->score)
		return check_unigram(t, ret_prefix);
	for (int i = 0; i < 256; i++)
		if (!t->byte_fallback || t->byte_id[i] < 0)
			return refuse("a vocabulary of characters without a token for each byte");
	if (t->ignore_merges)
		return refuse("ignore_merges with a vocabulary of SentencePiece");
	/* files have added tokens as they are before U+2581 replaces spaces */
	for (size_t i = 0; i < t->nadded; i++)
		if (!t->added[i].piece && te__find(t->pool + t->added[i].off, t->added[i].len,
						   TE__TOKEN_MARK, 3))
			return refuse("an added token with U+2581");
	return check_spaces(t, ret_prefix);
}

/*
 * Readers merge all pairs that give a token: a tokenizer.json has the same pairs. Those with added
 * tokens do not matter, which are found before.
 */
static int check_merges(const struct te_token *t, const void *data, size_t nbytes)
{
	struct te_token *back = NULL;
	size_t n = 0, found = 0;
	int r = te_token_load(data, nbytes, NULL, &back);

	for (size_t i = 0; i < t->merge_room && !r; i++) {
		const struct te__merge *m = &t->merge[i], *same;
		const int32_t left = (int32_t)(m->pair >> 32), right = (int32_t)(uint32_t)m->pair;

		if (m->pair == UINT64_MAX || back->tok[left].flags || back->tok[right].flags ||
		    back->tok[m->id].flags)
			continue;
		same = te__merge_find(back, left, right);
		n++;
		found += same && same->id == m->id;
	}
	if (!r && (n != found || n != back->nmerges))
		r = refuse("merges without some of the pairs that give a token");
	te_token_unref(back);
	return r;
}

/* ---- the file ---- */

static void put_ends(struct out *o, const struct te_token *t, int32_t bos, int32_t eos)
{
	if (bos >= 0) {
		put_key(o, "bos_token_id", UINT32);
		put_number(o, (uint64_t)bos, 4);
	}
	if (eos >= 0) {
		put_key(o, "eos_token_id", UINT32);
		put_number(o, (uint64_t)eos, 4);
	}
	put_key(o, "add_bos_token", BOOL);
	put_number(o, t->nbefore > 0, 1);
	put_key(o, "add_eos_token", BOOL);
	put_number(o, t->nafter > 0, 1);
}

static void put_pieces(struct out *o, const struct te_token *t, int32_t nvocab, int prefix)
{
	put_tokens(o, t, nvocab);
	put_scores(o, t, nvocab);
	if (t->unk >= 0) {
		put_key(o, "unknown_token_id", UINT32);
		put_number(o, (uint64_t)t->unk, 4);
	}
	put_key(o, "add_space_prefix", BOOL);
	put_number(o, prefix != 0, 1);
}

static void put_unigram(struct out *o, const struct te_token *t, int32_t nvocab, int prefix)
{
	const struct te__norm *norm = &t->norm[0];
	const int whole = norm->kind == TE__NORM_PIECES;

	put_tokens(o, t, nvocab);
	put_list(o, "scores", FLOAT32, (size_t)nvocab);
	for (int32_t i = 0; i < nvocab; i++) {
		/* llama.cpp finds unused tokens, too */
		const float score = type_of(t, i, -1) == TE__PIECE_UNUSED ? PAD_SCORE :
									    (float)t->score[i];

		put(o, &score, 4);
	}
	put_key(o, "unknown_token_id", UINT32);
	put_number(o, (uint64_t)t->unk, 4);
	put_key(o, "add_space_prefix", BOOL);
	put_number(o, prefix != 0, 1);
	put_key(o, "remove_extra_whitespaces", BOOL);
	put_number(o, whole && norm->right, 1);
	if (whole && norm->nfrom) {
		put_list(o, "precompiled_charsmap", UINT8, norm->nfrom);
		put(o, norm->from, norm->nfrom);
	}
}

int te_token_gguf(const struct te_token *token, int32_t nvocab, void **ret_data, size_t *ret_nbytes)
{
	struct out o = { .r = 0 };
	const char *pre = "default", *model;
	int32_t bos, eos, n;
	int r, prefix = 0;

	if (!token || !ret_data || !ret_nbytes)
		return te__fail(-EINVAL, FN ": an argument is NULL");
	if (nvocab < 0 || nvocab > TE__TOKEN_MAX_VOCAB || (nvocab && nvocab < token->ntok))
		return te__fail(-EINVAL, FN ": nvocab: %d, expected 0, or %d tokens or more",
				(int)nvocab, (int)token->ntok);
	bos = ends(token->bos, token->before, token->nbefore);
	eos = ends(token->eos, token->after, token->nafter);
	r = check_added(token, bos, eos);
	if (!r)
		r = token->byte_level ? check_bytes(token, &pre) : check_pieces(token, &prefix);
	if (r)
		return r;
	n = nvocab ? nvocab : token->ntok;
	model = token->byte_level ? "gpt2" : token->score ? "t5" : "llama";
	put(&o, "GGUF", 4);
	put_number(&o, 3, 4);
	put_number(&o, 0, 8);
	put_number(&o, 0, 8);
	put_key(&o, "model", TEXT);
	put_text(&o, model, strlen(model));
	put_key(&o, "pre", TEXT);
	put_text(&o, pre, strlen(pre));
	if (token->byte_level) {
		put_tokens(&o, token, n);
		put_merges(&o, token);
	} else if (token->score) {
		put_unigram(&o, token, n, prefix);
	} else {
		put_pieces(&o, token, n, prefix);
	}
	put_ends(&o, token, bos, eos);
	for (int i = 0; i < 8 && !o.r; i++)
		o.b.p[16 + i] = (char)(o.nitems >> 8 * i);
	if (!o.r && token->score)
		o.r = check_back(o.b.p, o.b.n);
	else if (!o.r && !token->byte_level && !token->piece_score)
		o.r = check_merges(token, o.b.p, o.b.n);
	if (o.r) {
		te__free(o.b.p);
		return o.r;
	}
	*ret_data = te__give(o.b.p);
	*ret_nbytes = o.b.n;
	return 0;
}
