/* decode.c - te_token_decode(3) and te_token_stream_create(3). */
#include "config.h"

#include <errno.h>

#include "token_internal.h"

struct te_token_stream {
	_Atomic int refs;
	struct te_token *token;
	uint32_t flags;
	int begun;	     /* a token had text */
	int left;	     /* characters that remain to be removed */
	struct te__tbuf buf; /* bytes that wait */
};

static void begin(struct te_token_stream *s)
{
	s->begun = 0;
	s->left = s->token->strip_left;
	s->buf.n = 0;
}

static int push(const char *fn, struct te_token_stream *s, int32_t id)
{
	const struct te_token *t = s->token;
	const size_t k = strlen(t->strip_char);
	const struct te__tok *tok;
	const char *p;
	size_t n;
	int r = 0;

	if (id < 0 || id >= t->ntok)
		return te__fail(-EINVAL, "%s: token %d is outside of 0 to %d", fn, id, t->ntok - 1);
	tok = &t->tok[id];
	if (s->flags & TE_TOKEN_SKIP_SPECIAL && tok->flags & TE__TOK_SPECIAL)
		return 0;
	p = t->pool + tok->out;
	n = tok->nout;
	if (id == t->unk && n)
		s->left = 0;
	while (s->left && n) {
		if (n >= k && !memcmp(p, t->strip_char, k)) {
			p += k;
			n -= k;
			s->left = t->strip_one && n ? 0 : s->left - 1;
			if (t->strip_one)
				break;
		} else {
			s->left = 0;
		}
	}
	if (t->join_space && s->begun)
		r = te__tbuf_add(&s->buf, " ", 1);
	s->begun = 1;
	return r ? r : te__tbuf_add(&s->buf, p, n);
}

/* the first n bytes that wait, and a 0 byte */
static int take(struct te_token_stream *s, const char *fn, size_t n, char **ret_text,
		size_t *ret_nbytes)
{
	char *text = te__malloc(n + 1);

	if (!text)
		return te__no_memory(fn);
	if (n)
		memcpy(text, s->buf.p, n);
	text[n] = 0;
	s->buf.n -= n;
	if (s->buf.n)
		memmove(s->buf.p, s->buf.p + n, s->buf.n);
	*ret_text = te__give(text);
	*ret_nbytes = n;
	return 0;
}

int te_token_decode(const struct te_token *token, const int32_t *ids, size_t n, uint32_t flags,
		    char **ret_text, size_t *ret_nbytes)
{
	struct te_token_stream s = { .token = (struct te_token *)token, .flags = flags };
	int r = 0;

	if (!token || (!ids && n) || !ret_text || !ret_nbytes)
		return te__fail(-EINVAL, "te_token_decode: an argument is NULL");
	if (flags & ~TE_TOKEN_SKIP_SPECIAL)
		return te__fail(-EINVAL, "te_token_decode: flags: 0x%x has unknown bits", flags);
	begin(&s);
	for (size_t i = 0; i < n && !r; i++)
		r = push("te_token_decode", &s, ids[i]);
	if (!r)
		r = take(&s, "te_token_decode", s.buf.n, ret_text, ret_nbytes);
	te__free(s.buf.p);
	return r;
}

int te_token_stream_create(struct te_token *token, uint32_t flags,
			   struct te_token_stream **ret_stream)
{
	struct te_token_stream *s;

	if (!token || !ret_stream)
		return te__fail(-EINVAL, "te_token_stream_create: an argument is NULL");
	if (flags & ~TE_TOKEN_SKIP_SPECIAL)
		return te__fail(-EINVAL, "te_token_stream_create: flags: 0x%x has unknown bits",
				flags);
	s = te__calloc(1, sizeof(*s));
	if (!s)
		return te__no_memory("te_token_stream_create");
	s->refs = 1;
	s->token = te_token_ref(token);
	s->flags = flags;
	begin(s);
	*ret_stream = s;
	return 0;
}

int te_token_stream_push(struct te_token_stream *stream, int32_t id, char **ret_text,
			 size_t *ret_nbytes)
{
	size_t n, back = 0;
	int r, skip, is_short = 0;

	if (!stream || !ret_text || !ret_nbytes)
		return te__fail(-EINVAL, "te_token_stream_push: an argument is NULL");
	r = push("te_token_stream_push", stream, id);
	if (r)
		return r;
	/* up to 3 bytes at the end may begin a character */
	n = stream->buf.n;
	while (back < 3 && back < n && !is_short) {
		const char *p = stream->buf.p + n - ++back;

		if ((*p & 0xc0) == 0xc0) {
			te__utf8_len(p, back, &skip, &is_short);
			break;
		}
		if (!(*p & 0x80))
			break;
	}
	return take(stream, "te_token_stream_push", is_short ? n - back : n, ret_text, ret_nbytes);
}

int te_token_stream_end(struct te_token_stream *stream, char **ret_text, size_t *ret_nbytes)
{
	int r;

	if (!stream || !ret_text || !ret_nbytes)
		return te__fail(-EINVAL, "te_token_stream_end: an argument is NULL");
	r = take(stream, "te_token_stream_end", stream->buf.n, ret_text, ret_nbytes);
	if (!r)
		begin(stream);
	return r;
}

struct te_token_stream *te_token_stream_ref(struct te_token_stream *stream)
{
	if (stream)
		atomic_fetch_add(&stream->refs, 1);
	return stream;
}

struct te_token_stream *te_token_stream_unref(struct te_token_stream *stream)
{
	if (stream && atomic_fetch_sub(&stream->refs, 1) == 1) {
		te_token_unref(stream->token);
		te__free(stream->buf.p);
		te__free(stream);
	}
	return NULL;
}
