/* normalize.c - UTF-8, and the normalizers that a text passes before it is split into words. */
#include "config.h"

#include <errno.h>
#include <utf8proc.h>

#include "token_internal.h"

#define MOST_RULE 256 /* bytes that a rule of a charsmap replaces */

int te__utf8_len(const char *p, size_t n, int *ret_skip, int *ret_short)
{
	const unsigned char *s = (const unsigned char *)p;
	int lo = 0x80, hi = 0xbf, want, i;

	*ret_skip = 1;
	*ret_short = 0;
	if (s[0] < 0x80)
		return 1;
	if (s[0] >= 0xc2 && s[0] <= 0xdf) {
		want = 2;
	} else if (s[0] >= 0xe0 && s[0] <= 0xef) {
		want = 3;
		lo = s[0] == 0xe0 ? 0xa0 : lo; /* longer than needed */
		hi = s[0] == 0xed ? 0x9f : hi; /* surrogates */
	} else if (s[0] >= 0xf0 && s[0] <= 0xf4) {
		want = 4;
		lo = s[0] == 0xf0 ? 0x90 : lo;
		hi = s[0] == 0xf4 ? 0x8f : hi; /* above U+10FFFF */
	} else {
		return 0;
	}
	for (i = 1; i < want && (size_t)i < n; i++, lo = 0x80, hi = 0xbf)
		if (s[i] < lo || s[i] > hi)
			break;
	*ret_skip = i;
	*ret_short = i < want && (size_t)i == n;
	return i == want ? want : 0;
}

int te__utf8_get(const char *p, int *ret_len)
{
	const unsigned char *s = (const unsigned char *)p;

	if (s[0] < 0x80) {
		*ret_len = 1;
		return s[0];
	}
	if (s[0] < 0xe0) {
		*ret_len = 2;
		return (s[0] & 31) << 6 | (s[1] & 63);
	}
	if (s[0] < 0xf0) {
		*ret_len = 3;
		return (s[0] & 15) << 12 | (s[1] & 63) << 6 | (s[2] & 63);
	}
	*ret_len = 4;
	return (s[0] & 7) << 18 | (s[1] & 63) << 12 | (s[2] & 63) << 6 | (s[3] & 63);
}

int te__is_utf8(const char *p, size_t n)
{
	int skip, is_short;

	for (size_t k = 0; k < n; k += (size_t)skip)
		if (!te__utf8_len(p + k, n - k, &skip, &is_short))
			return 0;
	return 1;
}

const char *te__find(const char *p, size_t n, const char *key, size_t k)
{
	while (n >= k) {
		const char *q = memchr(p, key[0], n - k + 1);

		if (!q || !memcmp(q, key, k))
			return q;
		n -= (size_t)(q + 1 - p);
		p = q + 1;
	}
	return NULL;
}

/* bytes of ASCII at p */
static size_t ascii(const char *p, size_t n)
{
	size_t i = 0;

	for (uint64_t x; i + 8 <= n; i += 8) {
		memcpy(&x, p + i, 8);
		if (x & 0x8080808080808080u)
			break;
	}
	while (i < n && !(p[i] & 0x80))
		i++;
	return i;
}

int te__utf8_repair(const char *p, size_t n, struct te__tbuf *b, const char **ret_p, size_t *ret_n)
{
	size_t done = 0; /* bytes that are in b */
	int r = 0;

	b->n = 0;
	for (size_t i = ascii(p, n); i < n && !r; i += ascii(p + i, n - i)) {
		int skip, is_short;

		if (te__utf8_len(p + i, n - i, &skip, &is_short)) {
			i += (size_t)skip;
			continue;
		}
		r = te__tbuf_add(b, p + done, i - done);
		if (!r)
			r = te__tbuf_add(b, "\xef\xbf\xbd", 3);
		i += (size_t)skip;
		done = i;
	}
	if (!r && done)
		r = te__tbuf_add(b, p + done, n - done);
	*ret_p = done ? b->p : p;
	*ret_n = done ? b->n : n;
	return r;
}

/* White_Space of Unicode */
int te__is_space(int c)
{
	return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xa0 || c == 0x1680 ||
	       (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
	       c == 0x205f || c == 0x3000;
}

/* \w of patterns */
int te__is_word(int c)
{
	switch (utf8proc_category(c)) {
	case UTF8PROC_CATEGORY_LU:
	case UTF8PROC_CATEGORY_LL:
	case UTF8PROC_CATEGORY_LT:
	case UTF8PROC_CATEGORY_LM:
	case UTF8PROC_CATEGORY_LO:
	case UTF8PROC_CATEGORY_MN:
	case UTF8PROC_CATEGORY_MC:
	case UTF8PROC_CATEGORY_ME:
	case UTF8PROC_CATEGORY_ND:
	case UTF8PROC_CATEGORY_NL:
	case UTF8PROC_CATEGORY_PC:
		return 1;
	default:
		return 0;
	}
}

/* characters that no form changes unless a combining one follows: ASCII, CJK ideographs */
static int is_base(const char *p)
{
	int k, c;

	if (!(*p & 0x80))
		return 1;
	c = te__utf8_get(p, &k);
	return (c >= 0x3400 && c <= 0x4dbf) || (c >= 0x4e00 && c <= 0x9fff);
}

static int form(enum te__norm_kind kind, const char *p, size_t n, struct te__tbuf *b)
{
	static const utf8proc_option_t options[] = {
		[TE__NORM_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
		[TE__NORM_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
		[TE__NORM_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
		[TE__NORM_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
	};
	int r = 0;

	for (size_t i = 0; i < n && !r;) {
		const size_t k = ascii(p + i, n - i);
		size_t from = i + k, to;
		utf8proc_uint8_t *text;
		utf8proc_ssize_t len;

		/* the last base before a combining character is a part of the region */
		for (to = from; to < n;) {
			const size_t at = to;

			if (!is_base(p + to))
				break;
			to += ascii(p + to, n - to);
			while (to < n && is_base(p + to)) {
				int c;

				te__utf8_get(p + to, &c);
				to += (size_t)c;
			}
			if (to == at)
				break;
		}
		from = to;
		if (from < n && from > i) { /* steps back over one character */
			from--;
			while (from > i && (p[from] & 0xc0) == 0x80)
				from--;
		}
		r = te__tbuf_add(b, p + i, from - i);
		if (r || from == n)
			break;
		while (to < n && !is_base(p + to)) {
			int c;

			te__utf8_get(p + to, &c);
			to += (size_t)c;
		}
		len = utf8proc_map((const utf8proc_uint8_t *)p + from,
				   (utf8proc_ssize_t)(to - from), &text, options[kind]);
		if (len < 0)
			return len == UTF8PROC_ERROR_NOMEM ?
				       te__no_memory("te_token_encode") :
				       te__fail(-EINVAL, "te_token_encode: utf8proc: %s",
						utf8proc_errmsg(len));
		r = te__tbuf_add(b, text, (size_t)len);
		te__free_libc(text);
		i = to;
	}
	return r;
}

static int lower(const char *p, size_t n, struct te__tbuf *b)
{
	int r = 0;

	for (size_t i = 0; i < n && !r;) {
		utf8proc_uint8_t to[4];
		int k, c = te__utf8_get(p + i, &k);

		i += (size_t)k;
		if (c == 0x130) { /* the one character whose lower case has two */
			r = te__tbuf_add(b, "i\xcc\x87", 3);
			continue;
		}
		c = c < 0x80 ? (c >= 'A' && c <= 'Z' ? c + 32 : c) : utf8proc_tolower(c);
		r = te__tbuf_add(b, to, (size_t)utf8proc_encode_char(c, to));
	}
	return r;
}

static void strip(const struct te__norm *norm, const char **p, size_t *n)
{
	int k;

	while (norm->left && *n && te__is_space(te__utf8_get(*p, &k))) {
		*p += k;
		*n -= (size_t)k;
	}
	while (norm->right && *n) {
		const char *q = *p + *n - 1;

		while (q > *p && (*q & 0xc0) == 0x80)
			q--;
		if (!te__is_space(te__utf8_get(q, &k)))
			break;
		*n = (size_t)(q - *p);
	}
}

static int replace_pattern(const struct te__norm *norm, const char *p, size_t n, struct te__tbuf *b)
{
	pcre2_match_data *match = pcre2_match_data_create(1, NULL);
	size_t done = 0, at = 0;
	int r = match ? 0 : te__no_memory("te_token_encode");

	while (!r && at <= n) {
		const int found = pcre2_match(norm->code, (PCRE2_SPTR)p, n, at, PCRE2_NO_UTF_CHECK,
					      match, NULL);
		const size_t *v = match ? pcre2_get_ovector_pointer(match) : NULL;
		int k;

		if (found == PCRE2_ERROR_NOMATCH)
			break;
		if (found < 0) {
			r = te__fail(-EFBIG,
				     "te_token_encode: a pattern exceeds the limits of PCRE2");
			break;
		}
		r = te__tbuf_add(b, p + done, v[0] - done);
		if (!r)
			r = te__tbuf_add(b, norm->to, norm->nto);
		done = at = v[1];
		if (v[0] == v[1]) {
			if (at == n)
				break;
			te__utf8_get(p + at, &k);
			at += (size_t)k;
		}
	}
	pcre2_match_data_free(match);
	return r ? r : te__tbuf_add(b, p + done, n - done);
}

static int replace(const struct te__norm *norm, const char *p, size_t n, struct te__tbuf *b)
{
	const char *end = p + n, *q;
	int r = 0;

	if (norm->code)
		return replace_pattern(norm, p, n, b);
	while (!r && (q = te__find(p, (size_t)(end - p), norm->from, norm->nfrom))) {
		r = te__tbuf_add(b, p, (size_t)(q - p));
		if (!r)
			r = te__tbuf_add(b, norm->to, norm->nto);
		p = q + norm->nfrom;
	}
	return r ? r : te__tbuf_add(b, p, (size_t)(end - p));
}

int te__is_charsmap(const char *p, size_t n)
{
	uint32_t nbytes = 0;

	/* bytes of a double array, the array, and texts that end with a 0 byte */
	if (n >= 4)
		memcpy(&nbytes, p, 4);
	return n >= 9 && nbytes >= 4 && nbytes % 4 == 0 && nbytes <= n - 5 && !p[n - 1] &&
	       te__is_utf8(p + 4 + nbytes, n - 4 - nbytes);
}

/* The text that a charsmap has for the longest start of p, or NULL. The map is a double
 * array of 32-bit units, which give an offset, a label and a mark of a leaf; the value of a leaf is
 * a position in the texts after the array. Source: https://github.com/s-yata/darts-clone. */
static const char *charsmap(const struct te__norm *norm, const char *p, size_t n, size_t *ret_used)
{
	const char *array = norm->from + 4, *text, *best = NULL;
	uint32_t nbytes, unit, at = 0;

	if (!norm->nfrom)
		return NULL;
	memcpy(&nbytes, norm->from, 4);
	memcpy(&unit, array, 4);
	for (size_t i = 0; i <= n && i < MOST_RULE;) {
		at ^= (unit >> 10) << ((unit & 512) >> 6);
		if (unit >> 8 & 1 && i && at < nbytes / 4) { /* the end of a rule */
			uint32_t value;

			memcpy(&value, array + 4 * (size_t)at, 4);
			value &= 0x7fffffff;
			text = array + nbytes + value;
			if (value < norm->nfrom - 4 - nbytes && (*text & 0xc0) != 0x80 &&
			    (i == n || (p[i] & 0xc0) != 0x80)) {
				best = text;
				*ret_used = i;
			}
		}
		if (i == n)
			break;
		at ^= (unsigned char)p[i];
		if (at >= nbytes / 4)
			break;
		memcpy(&unit, array + 4 * (size_t)at, 4);
		if ((unit & 0x800000ff) != (unsigned char)p[i++])
			break;
	}
	return best;
}

/* the text that a charsmap has for the shortest start of p, or NULL */
static const char *shortest_rule(const struct te__norm *norm, const char *p, size_t n)
{
	const char *array = norm->from + 4;
	uint32_t nbytes, unit, value, at;

	memcpy(&nbytes, norm->from, 4);
	memcpy(&unit, array, 4);
	at = (unit >> 10) << ((unit & 512) >> 6);
	for (size_t i = 0; i < n && p[i]; i++) {
		at ^= (unsigned char)p[i];
		if (at >= nbytes / 4)
			return NULL;
		memcpy(&unit, array + 4 * (size_t)at, 4);
		if ((unit & 0x800000ff) != (unsigned char)p[i])
			return NULL;
		at ^= (unit >> 10) << ((unit & 512) >> 6);
		if (!(unit >> 8 & 1))
			continue;
		if (at >= nbytes / 4)
			return NULL;
		memcpy(&value, array + 4 * (size_t)at, 4);
		value &= 0x7fffffff;
		return value < norm->nfrom - 4 - nbytes &&
				       (array[nbytes + value] & 0xc0) != 0x80 ?
			       array + nbytes + value :
			       NULL;
	}
	return NULL;
}

/*
 * Each user-perceived character of at most SHORT bytes becomes the text of the shortest rule at its
 * start, and other ones character by character. Source: tokenizers' crate spm_precompiled,
 * src/lib.rs, normalize_string().
 */
#define SHORT 5
static int apply_charsmap(const struct te__norm *norm, const char *p, size_t n, struct te__tbuf *b)
{
	int r = 0;

	for (size_t i = 0, end; i < n && !r; i = end) {
		const char *text;
		utf8proc_int32_t state = 0;
		int k, c = te__utf8_get(p + i, &k);

		end = i + (size_t)k;
		for (int next; end < n; c = next, end += (size_t)k) {
			next = te__utf8_get(p + end, &k);
			if (utf8proc_grapheme_break_stateful(c, next, &state))
				break;
		}
		text = end - i <= SHORT ? shortest_rule(norm, p + i, end - i) : NULL;
		if (text) {
			r = te__tbuf_add(b, text, strlen(text));
			continue;
		}
		for (size_t j = i; j < end && !r; j += (size_t)k) {
			te__utf8_get(p + j, &k);
			text = shortest_rule(norm, p + j, (size_t)k);
			r = te__tbuf_add(b, text ? text : p + j, text ? strlen(text) : (size_t)k);
		}
	}
	return r;
}

/* replacement of the start of p: a symbol of the user and a character without a rule stay */
static const char *piece_of(const struct te_token *t, const struct te__norm *norm, const char *p,
			    size_t n, size_t *ret_len, size_t *ret_used)
{
	const char *text;
	int32_t id;
	int k;

	*ret_used = t->user.first[(unsigned char)*p] ? te__trie_match(&t->user, p, n, &id) : 0;
	if (!*ret_used) {
		text = charsmap(norm, p, n, ret_used);
		if (text) {
			*ret_len = strlen(text);
			return text;
		}
		te__utf8_get(p, &k);
		*ret_used = (size_t)k;
	}
	*ret_len = *ret_used;
	return p;
}

/* Source: SentencePiece, src/normalizer.cc, Normalizer::Normalize() */
static int pieces(const struct te_token *t, const struct te__norm *norm, const char *p, size_t n,
		  struct te__tbuf *b)
{
	const char *text;
	size_t i = 0, len, used;
	int was_space = norm->right, r = 0;

	while (norm->right && i < n) { /* spaces at the start */
		text = piece_of(t, norm, p + i, n - i, &len, &used);
		if (len != 1 || *text != ' ')
			break;
		i += used;
	}
	if (i < n && norm->left)
		r = te__tbuf_add(b, TE__TOKEN_MARK, 3);
	for (; i < n && !r; i += used) {
		text = piece_of(t, norm, p + i, n - i, &len, &used);
		for (; was_space && len && *text == ' '; len--)
			text++;
		if (len)
			was_space = norm->right && text[len - 1] == ' ';
		for (const char *q; len && !r && (q = memchr(text, ' ', len));) {
			r = te__tbuf_add(b, text, (size_t)(q - text));
			if (!r)
				r = te__tbuf_add(b, TE__TOKEN_MARK, 3);
			len -= (size_t)(q + 1 - text);
			text = q + 1;
		}
		if (!r && len)
			r = te__tbuf_add(b, text, len);
	}
	while (norm->right && b->n >= 3 && !memcmp(b->p + b->n - 3, TE__TOKEN_MARK, 3))
		b->n -= 3;
	return r;
}

int te__normalize(const struct te_token *t, const char *p, size_t n, struct te__tbuf *b,
		  struct te__tbuf *spare, const char **ret_p, size_t *ret_n)
{
	int r = 0;

	b->most = spare->most = 16 * n + 65536;
	for (int i = 0; i < t->nnorm && !r && n; i++) {
		const struct te__norm *norm = &t->norm[i];
		struct te__tbuf used;

		if (norm->kind == TE__NORM_STRIP) {
			strip(norm, &p, &n);
			continue;
		}
		if (norm->kind <= TE__NORM_NFKD && ascii(p, n) == n)
			continue;
		b->n = 0;
		if (norm->kind <= TE__NORM_NFKD)
			r = form(norm->kind, p, n, b);
		else if (norm->kind == TE__NORM_LOWER)
			r = lower(p, n, b);
		else if (norm->kind == TE__NORM_REPLACE)
			r = replace(norm, p, n, b);
		else if (norm->kind == TE__NORM_CHARSMAP)
			r = apply_charsmap(norm, p, n, b);
		else if (norm->kind == TE__NORM_PIECES)
			r = pieces(t, norm, p, n, b);
		else if (!(r = te__tbuf_add(b, norm->to, norm->nto)))
			r = te__tbuf_add(b, p, n);
		p = b->p;
		n = b->n;
		used = *b;
		*b = *spare;
		*spare = used;
	}
	*ret_p = p;
	*ret_n = n;
	return r;
}
