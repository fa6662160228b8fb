/* gguf_save.c - te_token_gguf(3): the metadata of GGUF files for a tokenizer. */
#include "config.h"

#include <errno.h>
#include <stdio.h>

#include "token_internal.h"

#define FN "te_token_gguf"

/* types of values and of tokens, as in gguf.c */
enum { UINT32 = 4, INT32 = 5, BOOL = 7, TEXT = 8, LIST = 9 };
enum { NORMAL = 1, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5 };

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

static void put_token(struct out *o, const struct te_token *t, int32_t id, int32_t added,
		      struct te__tbuf *b)
{
	char pad[32];

	b->n = 0;
	if (added >= 0) {
		put_text(o, t->pool + t->added[added].off, t->added[added].len);
	} else if (id < t->ntok && t->tok[id].len && t->tok[id].flags & TE__TOK_FOREIGN) {
		put_text(o, t->pool + t->tok[id].off, t->tok[id].len);
	} else if (id < t->ntok && t->tok[id].len) {
		if (!o->r)
			o->r = spell(t, id, b);
		put_text(o, b->p ? b->p : "", b->n);
	} else {
		put_text(o, pad, (size_t)snprintf(pad, sizeof(pad), "[PAD%d]", (int)id));
	}
}

static uint32_t type_of(const struct te_token *t, int32_t id, int32_t added)
{
	if (added >= 0)
		return t->added[added].special ? CONTROL : USER_DEFINED;
	return id < t->ntok && t->tok[id].len && !(t->tok[id].flags & TE__TOK_FOREIGN) ? NORMAL :
											  UNUSED;
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

static int by_rank(const void *a, const void *b)
{
	const struct te__merge *x = a, *y = b;

	if (x->rank != y->rank)
		return x->rank < y->rank ? -1 : 1;
	return (x->pair > y->pair) - (x->pair < y->pair);
}

static void put_merges(struct out *o, const struct te_token *t)
{
	struct te__merge *m = te__malloc(t->nmerges * sizeof(*m) + 1);
	struct te__tbuf b = { 0 };
	size_t n = 0;

	if (!m) {
		o->r = te__no_memory(FN);
		return;
	}
	for (size_t i = 0; i < t->merge_room; i++)
		if (t->merge[i].pair != UINT64_MAX)
			m[n++] = t->merge[i];
	qsort(m, n, sizeof(*m), by_rank);
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

/* the token that begins or ends texts: known, or one that the template puts there; or -1 */
static int32_t ends(int32_t known, const int32_t *list, int n)
{
	return known < 0 && n ? *list : known;
}

static int refuse(const char *what)
{
	return te__fail(-EOPNOTSUPP, FN ": GGUF files have no name for %s", what);
}

/* refuses tokenizers that the format cannot express; *ret_pre: its name of the pattern of words */
static int check(const struct te_token *t, int32_t bos, int32_t eos, const char **ret_pre)
{
	if (!t->byte_level)
		return te__fail(-EOPNOTSUPP, FN ": the vocabulary is not of bytes: SentencePiece "
						"is not implemented");
	/* llama.cpp leaves NFC to the caller */
	for (int i = 0; i < t->nnorm; i++)
		if (t->norm[i].kind != TE__NORM_NFC)
			return refuse("a normalizer other than NFC");
	for (size_t i = 0; i < t->nadded; i++)
		if (t->added[i].lstrip || t->added[i].rstrip || t->added[i].single_word)
			return refuse("an added token with lstrip, rstrip or single_word");
	if (t->nbefore > 1 || t->nafter > 1 || (t->nbefore && *t->before != bos) ||
	    (t->nafter && *t->after != eos))
		return refuse("a template that puts more than BOS and EOS around a text");
	*ret_pre = te__gguf_pre(t);
	return *ret_pre ? 0 : refuse("the pre-tokenizer, the patterns that split text into words");
}

int te_token_gguf(const struct te_token *token, int32_t nvocab, void **ret_data, size_t *ret_nbytes)
{
	struct out o = { .r = 0 };
	const char *pre = NULL;
	int32_t bos, eos;
	int r;

	if (!token || !ret_data || !ret_nbytes)
		return te__fail(-EINVAL, FN ": an argument is NULL");
	if (nvocab < 0 || nvocab > TE__TOKEN_MAX_VOCAB || (nvocab && nvocab < token->ntok))
		return te__fail(-EINVAL, FN ": nvocab: %d, expected 0, or %d tokens or more",
				(int)nvocab, (int)token->ntok);
	bos = ends(token->bos, token->before, token->nbefore);
	eos = ends(token->eos, token->after, token->nafter);
	r = check(token, bos, eos, &pre);
	if (r)
		return r;
	put(&o, "GGUF", 4);
	put_number(&o, 3, 4);
	put_number(&o, 0, 8);
	put_number(&o, 0, 8);
	put_key(&o, "model", TEXT);
	put_text(&o, "gpt2", 4);
	put_key(&o, "pre", TEXT);
	put_text(&o, pre, strlen(pre));
	put_tokens(&o, token, nvocab ? nvocab : token->ntok);
	put_merges(&o, token);
	if (bos >= 0) {
		put_key(&o, "bos_token_id", UINT32);
		put_number(&o, (uint64_t)bos, 4);
	}
	if (eos >= 0) {
		put_key(&o, "eos_token_id", UINT32);
		put_number(&o, (uint64_t)eos, 4);
	}
	put_key(&o, "add_bos_token", BOOL);
	put_number(&o, token->nbefore > 0, 1);
	put_key(&o, "add_eos_token", BOOL);
	put_number(&o, token->nafter > 0, 1);
	if (o.r) {
		te__free(o.b.p);
		return o.r;
	}
	for (int i = 0; i < 8; i++)
		o.b.p[16 + i] = (char)(o.nitems >> 8 * i);
	*ret_data = te__give(o.b.p);
	*ret_nbytes = o.b.n;
	return 0;
}
