/* vocab.c - tokens, merges and added tokens of a tokenizer, and the alphabet of bytes. */
#include "config.h"

#include <errno.h>

#include "token_internal.h"
#include "libtecore/base/grow.h"

int te__token_new(struct te_token **ret_token)
{
	struct te_token *t = te__calloc(1, sizeof(*t));

	if (!t)
		return te__no_memory("te_token");
	t->refs = 1;
	t->unk = t->bos = t->eos = -1;
	for (int i = 0; i < 256; i++)
		t->byte_id[i] = -1;
	*ret_token = t;
	return 0;
}

void te__token_free(struct te_token *t)
{
	if (!t)
		return;
	for (int i = 0; i < t->nnorm; i++) {
		te__free(t->norm[i].from);
		te__free(t->norm[i].to);
		pcre2_code_free(t->norm[i].code);
	}
	for (int i = 0; i < t->nsplit; i++) {
		pcre2_code_free(t->split[i].code);
		te__free(t->split[i].source);
	}
	te__free(t->pool);
	te__free(t->tok);
	te__free(t->map.slot);
	te__free(t->merge);
	te__free(t->added);
	te__free(t->special.slot);
	te__trie_free(&t->raw);
	te__trie_free(&t->normalized);
	te__trie_free(&t->user);
	te__trie_free(&t->unigram);
	te__free(t->score);
	te__free(t->piece_score);
	te__free(t->before);
	te__free(t->after);
	te__free(t);
}

static int pool_add(struct te_token *t, const void *p, size_t n, uint32_t *ret_off)
{
	if (!t->pool || t->pool_room - t->npool < n) {
		const size_t room = (t->npool + n) * 2 + 4096;
		char *q;

		if (room > UINT32_MAX)
			return te__fail(-EFBIG, "te_token: the vocabulary has more than 2 GiB");
		q = te__realloc(t->pool, room);
		if (!q)
			return te__no_memory("te_token");
		t->pool = q;
		t->pool_room = room;
	}
	*ret_off = (uint32_t)t->npool;
	if (n)
		memcpy(t->pool + t->npool, p, n);
	t->npool += n;
	return 0;
}

/* reserve tokens up to id, without text */
static int reserve(struct te_token *t, int64_t id)
{
	if (id < 0 || id >= TE__TOKEN_MAX_VOCAB)
		return te__fail(-EFBIG, "te_token: token %lld is outside of 0 to %d", (long long)id,
				TE__TOKEN_MAX_VOCAB - 1);
	if (id >= t->tok_room) {
		const int32_t room = (int32_t)id * 3 / 2 + 512;
		struct te__tok *tok = te__realloc(t->tok, (size_t)room * sizeof(*tok));

		if (!tok)
			return te__no_memory("te_token");
		t->tok = tok;
		t->tok_room = room;
	}
	while (t->ntok <= id)
		t->tok[t->ntok++] = (struct te__tok){ .flags = TE__TOK_FOREIGN };
	return 0;
}

int te__token_set(struct te_token *t, int64_t id, const void *key, size_t len, const void *out,
		  size_t nout, uint32_t flags)
{
	struct te__tok *tok;
	int r = reserve(t, id);

	if (r)
		return r;
	if (len > TE__TOKEN_MAX_LEN || nout > TE__TOKEN_MAX_LEN)
		return te__fail(-EFBIG, "te_token: token %lld has more than %d bytes",
				(long long)id, TE__TOKEN_MAX_LEN);
	tok = &t->tok[id];
	r = pool_add(t, key, len, &tok->off);
	tok->len = (uint32_t)len;
	tok->out = tok->off;
	tok->nout = tok->len;
	tok->flags = flags;
	if (!r && out) {
		r = pool_add(t, out, nout, &tok->out);
		tok->nout = (uint32_t)nout;
	}
	if (!r && !(flags & TE__TOK_FOREIGN))
		r = te__tmap_put(&t->map, t->pool, tok->off, tok->len, (int32_t)id);
	return r;
}

static void merge_put(struct te__merge *table, size_t room, struct te__merge m)
{
	size_t i = (m.pair * 0x9e3779b97f4a7c15u) >> 20;

	while (table[i & (room - 1)].pair != UINT64_MAX && table[i & (room - 1)].pair != m.pair)
		i++;
	table[i & (room - 1)] = m;
}

int te__token_merge_add(struct te_token *t, int32_t left, int32_t right, uint32_t rank, int32_t id)
{
	if (2 * (t->nmerges + 1) > t->merge_room) {
		const size_t room = t->merge_room ? 2 * t->merge_room : 1024;
		struct te__merge *m = te__malloc(room * sizeof(*m));

		if (!m)
			return te__no_memory("te_token");
		memset(m, 0xff, room * sizeof(*m));
		for (size_t i = 0; i < t->merge_room; i++)
			if (t->merge[i].pair != UINT64_MAX)
				merge_put(m, room, t->merge[i]);
		te__free(t->merge);
		t->merge = m;
		t->merge_room = room;
	}
	t->nmerges += !te__merge_find(t, left, right);
	merge_put(t->merge, t->merge_room,
		  (struct te__merge){ (uint64_t)(uint32_t)left << 32 | (uint32_t)right, rank, id });
	return 0;
}

int te__token_merges_by_rank(struct te_token *t, const uint32_t *rank)
{
	uint64_t work = 0;

	for (int32_t id = 0; id < t->ntok; id++) {
		const struct te__tok *tok = &t->tok[id];
		const char *key = t->pool + tok->off;

		if (tok->flags)
			continue;
		/* each part is looked up: a vocabulary of long tokens would take quadratic time */
		work += (uint64_t)tok->len * tok->len;
		if (work > (uint64_t)1 << 30)
			return te__fail(-EFBIG, "te_token: the tokens of the file are too long");
		for (uint32_t i = 1; i < tok->len; i++) {
			int32_t l, r;

			if (!t->byte_level && ((unsigned char)key[i] & 0xc0) == 0x80)
				continue;
			l = te__tmap_get(&t->map, t->pool, key, i);
			r = l < 0 ? -1 : te__tmap_get(&t->map, t->pool, key + i, tok->len - i);
			if (r < 0)
				continue;
			r = te__token_merge_add(t, l, r, rank ? rank[id] : (uint32_t)id, id);
			if (r)
				return r;
		}
	}
	return 0;
}

int te__token_add_special(struct te_token *t, const struct te__added *a, const void *text,
			  size_t len)
{
	struct te__added *added;
	int r;

	if (!len)
		return 0;
	if (len > TE__TOKEN_MAX_LEN)
		return te__fail(-EFBIG, "te_token: added token %d has more than %d bytes", a->id,
				TE__TOKEN_MAX_LEN);
	if (TE__GROW(t->added, t->added_room, t->nadded))
		return te__no_memory("te_token");
	r = reserve(t, a->id);
	if (r)
		return r;
	added = &t->added[t->nadded];
	*added = *a;
	r = pool_add(t, text, len, &added->off);
	if (r)
		return r;
	added->len = (uint32_t)len;
	t->nadded++;
	/* the text of an added token is what it decodes to */
	if (!a->piece) {
		t->tok[a->id].out = added->off;
		t->tok[a->id].nout = added->len;
	}
	if (a->special)
		t->tok[a->id].flags |= TE__TOK_SPECIAL;
	return te__tmap_put(&t->special, t->pool, added->off, added->len, a->id);
}

int te__token_template(int32_t id, int32_t **ret_list, int *ret_n)
{
	if (id < 0)
		return 0;
	*ret_list = te__malloc(sizeof(**ret_list));
	if (!*ret_list)
		return te__no_memory("te_token");
	**ret_list = id;
	*ret_n = 1;
	return 0;
}

int te__token_finish(struct te_token *t)
{
	struct te__tbuf b = { 0 }, spare = { 0 };
	int r = 0;

	for (int i = 0; i < 256; i++) {
		static const char hex[] = "0123456789ABCDEF";
		const char byte = (char)i;
		const char text[] = { '<', '0', 'x', hex[i >> 4], hex[i & 15], '>' };

		t->byte_id[i] = t->byte_level ? te__tmap_get(&t->map, t->pool, &byte, 1) :
						te__tmap_get(&t->map, t->pool, text, sizeof(text));
	}
	for (size_t i = 0; i < t->nadded && !r; i++) {
		const struct te__added *a = &t->added[i];
		const char *p = t->pool + a->off;
		size_t n = a->len;

		if (a->normalized)
			r = te__normalize(t, p, n, &b, &spare, &p, &n);
		if (!r)
			r = te__trie_add(a->normalized || a->piece ? &t->normalized : &t->raw, p, n,
					 (int32_t)i);
	}
	te__free(b.p);
	te__free(spare.p);
	return r;
}

/* the byte that a character of the byte-level alphabet stands for, or -1 */
static int byte_of_char(int c)
{
	if ((c >= '!' && c <= '~') || (c >= 0xa1 && c <= 0xac) || (c >= 0xae && c <= 0xff))
		return c;
	if (c < 256 || c > 323)
		return -1;
	c -= 256;
	return c <= 32 ? c : c <= 66 ? c - 33 + 127 : 0xad; /* 0-32, 127-160, 173 */
}

int te__char_of_byte(int byte)
{
	if (byte <= 32)
		return 256 + byte;
	if (byte >= 127 && byte <= 160)
		return 256 + 33 + byte - 127;
	return byte == 0xad ? 323 : byte;
}

int te__bytes_of_text(const char *p, size_t n, char *ret)
{
	int m = 0;

	for (size_t i = 0; i < n;) {
		int k, byte = byte_of_char(te__utf8_get(p + i, &k));

		if (byte < 0)
			return -1;
		ret[m++] = (char)byte;
		i += (size_t)k;
	}
	return m;
}
