/* split.c - a segment of a text becomes words, by patterns and U+2581. */
#include "config.h"

#include <errno.h>

#include "token_internal.h"

/* White_Space of Unicode and word characters of Oniguruma, for brackets: PCRE2 has others */
#define SPACES "\\p{Z}\\t-\\r\\x{85}"
#define WORDS "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}"

/* patterns by name. Source: tiktoken, tiktoken_ext/openai_public.py (gpt2, cl100k, o200k);
 * llama-models, llama3/tokenizer.py; Qwen's tokenization_qwen.py */
static const struct {
	const char *name, *pattern;
} named[] = {
	{ "gpt2",
	  "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+" },
	{ "cl100k", "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++|\\p{N}{1,3}+|"
		    " ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*+|\\s++\\z|\\s*[\\r\\n]|\\s+(?!\\S)|\\s" },
	{ "o200k", "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*"
		   "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
		   "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+"
		   "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
		   "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+" },
	{ "llama3", "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
		    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+" },
	{ "qwen2", "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
		   " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+" },
};

const char *te__pattern_named(const char *name)
{
	for (size_t i = 0; i < sizeof(named) / sizeof(named[0]); i++)
		if (!strcmp(name, named[i].name))
			return named[i].pattern;
	return NULL;
}

/* the pattern in PCRE2's syntax; what has another meaning there is refused */
static int translate(const char *fn, const char *p, size_t n, struct te__tbuf *b)
{
	int in_class = 0, r = 0;

	for (size_t i = 0; i < n && !r; i++) {
		const char *put = p + i, *bad = NULL;
		size_t len = 1;

		if (p[i] == '\\' && i + 1 < n) {
			const char c = p[++i];

			len = 2;
			if (c == 's')
				put = in_class ? SPACES : "[" SPACES "]";
			else if (c == 'S' && !in_class)
				put = "[^" SPACES "]";
			else if (c == 'w')
				put = in_class ? WORDS : "[" WORDS "]";
			else if (c == 'W' && !in_class)
				put = "[^" WORDS "]";
			else if (strchr("SWhHbBGKCXRyYZ", c) && (c != 'b' || !in_class))
				bad = "this escape";
			if (put != p + i - 1 && put != p + i)
				len = strlen(put);
			else
				put = p + i - 1;
		} else if (in_class) {
			if (p[i] == '[' && (i + 1 == n || p[i + 1] != ':'))
				bad = "a class in a class";
			else if (p[i] == '&' && i + 1 < n && p[i + 1] == '&')
				bad = "an intersection of classes";
			else if (p[i] == '[') { /* [:alpha:] */
				const char *end = memmem(p + i, n - i, ":]", 2);

				len = end ? (size_t)(end - put) + 2 : 1;
				i += len - 1;
			} else if (p[i] == ']') {
				in_class = 0;
			}
		} else if (p[i] == '[') {
			in_class = 1;
			while (i + 1 < n && (p[i + 1] == '^' || p[i + 1] == ']') && len < 3) {
				const int first = p[i + 1] == ']';

				i++;
				len++;
				if (first)
					break;
			}
		} else if (p[i] == '(' && i + 2 < n && p[i + 1] == '?' &&
			   strchr("mxC&RP|", p[i + 2])) {
			bad = "this group";
		} else if (p[i] == '(' && i + 1 < n && p[i + 1] == '*') {
			bad = "a verb";
		}
		if (bad)
			return te__fail(-EOPNOTSUPP, "%s: pattern: %s is not implemented: %.*s", fn,
					bad, (int)(n - i < 20 ? n - i : 20), p + i);
		r = te__tbuf_add(b, put, len);
	}
	return r;
}

int te__pattern_compile(const char *fn, const char *pattern, size_t n, pcre2_code **ret_code,
			int *ret_jit)
{
	pcre2_compile_context *context;
	struct te__tbuf b = { 0 };
	pcre2_code *code = NULL;
	PCRE2_SIZE at;
	char why[128];
	int err, r;

	if (n > 16384)
		return te__fail(-EFBIG, "%s: pattern: it has %zu bytes, expected at most 16384", fn,
				n);
	r = translate(fn, pattern, n, &b);
	if (r)
		goto out;
	context = pcre2_compile_context_create(NULL);
	if (!context) {
		r = te__no_memory(fn);
		goto out;
	}
	pcre2_set_newline(context, PCRE2_NEWLINE_LF);
	pcre2_set_parens_nest_limit(context, 50);
	code = pcre2_compile((PCRE2_SPTR)(b.p ? b.p : ""), b.n,
			     PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
			     &err, &at, context);
	pcre2_compile_context_free(context);
	if (!code) {
		if (pcre2_get_error_message(err, (PCRE2_UCHAR *)why, sizeof(why)) < 0)
			why[0] = 0;
		r = te__fail(-EOPNOTSUPP, "%s: pattern: %s: %.*s", fn, why,
			     (int)(n < 100 ? n : 100), pattern);
		goto out;
	}
	*ret_jit = !pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
	*ret_code = code;
out:
	te__free(b.p);
	return r;
}

int te__split_add_pattern(struct te_token *t, const char *pattern, enum te__behavior behavior)
{
	struct te__split *s = &t->split[t->nsplit];
	int r;

	if (t->nsplit == TE__TOKEN_MAX_STEPS)
		return te__fail(-EFBIG, "te_token: more than %d pre-tokenizers",
				TE__TOKEN_MAX_STEPS);
	*s = (struct te__split){ .kind = TE__SPLIT_PATTERN, .behavior = behavior };
	r = te__pattern_compile("te_token", pattern, strlen(pattern), &s->code, &s->jit);
	if (r)
		return r;
	t->nsplit++;
	s->source = te__strdup(pattern);
	return s->source ? 0 : te__no_memory("te_token");
}

/* Without a pre-tokenizer a segment is one word. If U+2581 begins tokens or follows only itself,
 * no merge joins it to what is before, and words may end there. */
int te__split_at_marks(struct te_token *t)
{
	if (t->byte_level || t->nsplit == TE__TOKEN_MAX_STEPS || t->ignore_merges ||
	    te__tmap_get(&t->map, t->pool, TE__TOKEN_MARK, 3) < 0)
		return 0;
	for (size_t i = 0; i < t->merge_room; i++) {
		const struct te__tok *tok = &t->tok[t->merge[i].id >= 0 ? t->merge[i].id : 0];
		const char *p = t->pool + tok->off;

		if (t->merge[i].pair == UINT64_MAX)
			continue;
		for (size_t k = 1; k + 3 <= tok->len; k++)
			if (!memcmp(p + k, TE__TOKEN_MARK, 3) &&
			    (k < 3 || memcmp(p + k - 3, TE__TOKEN_MARK, 3)))
				return 0;
	}
	t->split[t->nsplit++] = (struct te__split){ .kind = TE__SPLIT_MARKS };
	return 0;
}

int te__pieces_init(struct te__pieces *p, const struct te_token *t, struct te__words *w)
{
	*p = (struct te__pieces){ .t = t, .words = w };
	p->context = pcre2_match_context_create(NULL);
	p->stack = pcre2_jit_stack_create(32 << 10, 1 << 20, NULL);
	if (!p->context)
		return te__no_memory("te_token_encode");
	pcre2_set_match_limit(p->context, 10000000);
	pcre2_set_heap_limit(p->context, 65536);
	if (p->stack)
		pcre2_jit_stack_assign(p->context, NULL, p->stack);
	for (int i = 0; i < t->nsplit; i++) {
		if (t->split[i].code && !(p->match[i] = pcre2_match_data_create(1, NULL)))
			return te__no_memory("te_token_encode");
	}
	return 0;
}

void te__pieces_free(struct te__pieces *p)
{
	for (int i = 0; i < TE__TOKEN_MAX_STEPS; i++) {
		pcre2_match_data_free(p->match[i]);
		te__free(p->prefixed[i].p);
	}
	pcre2_match_context_free(p->context);
	pcre2_jit_stack_free(p->stack);
}

static int run(struct te__pieces *p, int level, const char *seg, size_t n, size_t begin,
	       size_t end);

static inline int next(struct te__pieces *p, int level, const char *piece, size_t n)
{
	if (!n)
		return 0;
	return level == p->t->nsplit ? te__words_put(p->words, piece, n) :
				       run(p, level, piece, n, 0, n);
}

/* an element of a segment joins the pending piece or replaces it */
struct pending {
	size_t from, to;
	int match; /* -1: none is pending */
};

static int element(struct te__pieces *p, int level, const char *seg, struct pending *q, size_t from,
		   size_t to, int match)
{
	const enum te__behavior behavior = p->t->split[level].behavior;
	int r = 0, joins = 0;

	match ^= p->t->split[level].invert;
	if (from == to)
		return 0;
	if (behavior == TE__SPLIT_ISOLATED)
		return next(p, level + 1, seg + from, to - from);
	if (q->match >= 0 && behavior == TE__SPLIT_CONTIGUOUS)
		joins = q->match == match;
	else if (q->match >= 0 && behavior == TE__SPLIT_PREVIOUS)
		joins = match && !q->match;
	else if (q->match >= 0 && behavior == TE__SPLIT_NEXT)
		joins = !match && q->match;
	if (joins) {
		q->to = to;
		q->match = match;
		return 0;
	}
	if (q->match >= 0 && !(behavior == TE__SPLIT_REMOVED && q->match))
		r = next(p, level + 1, seg + q->from, q->to - q->from);
	*q = (struct pending){ from, to, match };
	return r;
}

static int by_pattern(struct te__pieces *p, int level, const char *seg, size_t n, size_t begin,
		      size_t end)
{
	const struct te__split *s = &p->t->split[level];
	pcre2_match_data *match = p->match[level];
	const size_t *v = pcre2_get_ovector_pointer(match);
	struct pending q = { 0, 0, -1 };
	size_t done = begin, at = begin;
	int r = 0;

	while (done < end && !r) {
		int found, k;

		/* no flags, no checks: the text is UTF-8 */
		found = s->jit ? pcre2_jit_match(s->code, (PCRE2_SPTR)seg, n, at, 0, match,
						 p->context) :
				 pcre2_match(s->code, (PCRE2_SPTR)seg, n, at, PCRE2_NO_UTF_CHECK,
					     match, p->context);
		if (found == PCRE2_ERROR_NOMATCH) {
			r = element(p, level, seg, &q, done, n, 0);
			done = n;
			break;
		}
		if (found < 0)
			return te__fail(-EFBIG,
					"te_token_encode: a match exceeds the limits of PCRE2");
		r = element(p, level, seg, &q, done, v[0], 0);
		if (!r && v[0] < v[1])
			r = element(p, level, seg, &q, v[0], v[1], 1);
		done = at = v[1];
		if (v[0] == v[1]) {
			if (at == n)
				break;
			te__utf8_get(seg + at, &k);
			at += (size_t)k;
		}
	}
	if (!r && q.match >= 0 && !(s->behavior == TE__SPLIT_REMOVED && q.match))
		r = next(p, level + 1, seg + q.from, q.to - q.from);
	return r ? r : done > end;
}

/* pieces that begin with each mark; runs: a run of marks stays in one */
static int at_marks(struct te__pieces *p, int level, const char *seg, size_t n, const char *mark,
		    int runs)
{
	const size_t k = strlen(mark);
	size_t from = 0;
	int r = 0;

	for (size_t i = 0; i + k <= n && !r;) {
		const char *m = te__find(seg + i, n - i, mark, k);
		size_t at;

		if (!m)
			break;
		at = (size_t)(m - seg);
		if (at > from && !(runs && at == i)) {
			r = next(p, level + 1, seg + from, at - from);
			from = at;
		}
		i = at + k;
	}
	return r ? r : next(p, level + 1, seg + from, n - from);
}

static int metaspace(struct te__pieces *p, int level, const char *seg, size_t n)
{
	const struct te__split *s = &p->t->split[level];
	struct te__tbuf *b = &p->prefixed[level];
	const size_t k = strlen(s->mark);
	const int first = p->first;
	int r = 0;

	b->n = 0;
	if ((s->prepend == 2 || (s->prepend == 1 && first)) && *seg != ' ' &&
	    (n < k || memcmp(seg, s->mark, k)))
		r = te__tbuf_add(b, s->mark, k);
	for (size_t i = 0; i < n && !r;) {
		const char *q = memchr(seg + i, ' ', n - i);
		const size_t len = q ? (size_t)(q - seg) - i : n - i;

		r = te__tbuf_add(b, seg + i, len);
		if (!r && q)
			r = te__tbuf_add(b, s->mark, k);
		i += len + 1;
	}
	p->first = 0;
	if (r)
		return r;
	return s->pieces ? at_marks(p, level, b->p, b->n, s->mark, 0) :
			   next(p, level + 1, b->p, b->n);
}

static int run(struct te__pieces *p, int level, const char *seg, size_t n, size_t begin, size_t end)
{
	struct te__tbuf *b = &p->prefixed[level];
	int r;

	switch (p->t->split[level].kind) {
	case TE__SPLIT_PATTERN:
		return by_pattern(p, level, seg, n, begin, end);
	case TE__SPLIT_METASPACE:
		return metaspace(p, level, seg, n);
	case TE__SPLIT_MARKS:
		return at_marks(p, level, seg + begin, end - begin, TE__TOKEN_MARK, 1);
	case TE__SPLIT_PREFIX:
		break;
	}
	if (*seg == ' ')
		return next(p, level + 1, seg, n);
	b->n = 0;
	r = te__tbuf_add(b, " ", 1);
	if (!r)
		r = te__tbuf_add(b, seg, n);
	return r ? r : next(p, level + 1, b->p, b->n);
}

int te__pieces_run(struct te__pieces *p, const char *seg, size_t n, size_t begin, size_t end)
{
	if (begin == end)
		return 0;
	return p->t->nsplit ? run(p, 0, seg, n, begin, end) :
			      te__words_put(p->words, seg + begin, end - begin);
}
