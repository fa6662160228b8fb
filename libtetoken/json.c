/*
 * json.c - tokenizer.json of the Python package tokenizers.
 *
 * Source: huggingface/tokenizers, tokenizers/src/{models/bpe,normalizers,pre_tokenizers,processors,
 * decoders}. What is not implemented is refused by its name.
 */
#include "config.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>

#include "token_internal.h"
#include "json.h"

#define FN "te_token: tokenizer.json"
#define MAX_JSON (512u << 20) /* bytes */
#define MAX_DEPTH 48

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

/* -TE_EFORMAT without a message if the bytes do not begin as an object does */
static int parse(const char *p, size_t n, json_t **ret_root)
{
	json_error_t err;
	int depth = 0, quoted = 0;
	size_t i = 0;

	while (i < n && strchr(" \t\r\n", p[i]) && p[i])
		i++;
	if (i == n || p[i] != '{')
		return -TE_EFORMAT;
	if (n > MAX_JSON)
		return te__fail(-EFBIG, "te_token: the JSON file has more than %u MiB",
				MAX_JSON >> 20);
	/* jansson nests as deep as the file does, also on the small stacks of threads */
	for (; i < n; i++) {
		if (quoted)
			i += p[i] == '\\', quoted = i < n && p[i] != '"';
		else if (p[i] == '"')
			quoted = 1;
		else if ((p[i] == '{' || p[i] == '[') && ++depth > MAX_DEPTH)
			return te__fail(-TE_ECORRUPT,
					"te_token: the JSON file nests deeper than %d", MAX_DEPTH);
		else if (p[i] == '}' || p[i] == ']')
			depth--;
	}
	*ret_root = json_loadb(p, n, JSON_ALLOW_NUL, &err);
	if (*ret_root)
		return 0;
	if (json_error_code(&err) == json_error_out_of_memory)
		return te__no_memory("te_token");
	return te__fail(-TE_ECORRUPT, "te_token: line %d: %s", err.line, err.text);
}

static int corrupt(const char *what)
{
	return te__fail(-TE_ECORRUPT, FN ": %s", what);
}

static int unsupported(const char *where, const char *what)
{
	return te__fail(-EOPNOTSUPP, FN ": %s: %.60s is not implemented", where,
			what ? what : "this");
}

static const char *text(const json_t *o, const char *key)
{
	return json_string_value(json_object_get(o, key));
}

static int truth(const json_t *o, const char *key, int dflt)
{
	const json_t *v = json_object_get(o, key);

	return json_is_boolean(v) ? json_is_true(v) : dflt;
}

static int is_one_of(const char *s, const char *const *list)
{
	for (int i = 0; list[i]; i++)
		if (!strcmp(s, list[i]))
			return i;
	return -1;
}

static int copy(const json_t *v, char **ret, size_t *ret_n)
{
	const size_t n = json_string_length(v);

	*ret = te__malloc(n + 1);
	if (!*ret)
		return te__no_memory("te_token");
	memcpy(*ret, json_string_value(v), n + 1);
	*ret_n = n;
	return 0;
}

/* steps of a Sequence, or the one step; list: the key of the sequence's array */
typedef int step_fn(struct te_token *t, const json_t *o, const char *type);

static int steps(struct te_token *t, const char *where, const json_t *o, const char *list,
		 step_fn *step)
{
	const char *type = text(o, "type");
	const json_t *v;
	size_t i;
	int r = 0;

	if (!o || json_is_null(o))
		return 0;
	if (!type)
		return te__fail(-TE_ECORRUPT, FN ": %s: it has no type", where);
	if (strcmp(type, "Sequence"))
		return step(t, o, type);
	json_array_foreach(json_object_get(o, list), i, v)
	{
		if (!r)
			r = steps(t, where, v, list, step);
	}
	return r;
}

static int compile(const json_t *pattern, pcre2_code **ret_code, int *ret_jit)
{
	const json_t *v = json_object_get(pattern, "Regex");

	if (!json_is_string(v))
		return corrupt("pattern: expected String or Regex");
	return te__pattern_compile(FN, json_string_value(v), json_string_length(v), ret_code,
				   ret_jit);
}

static int charsmap(const json_t *v, struct te__norm *norm)
{
	int n = -1, r = json_is_string(v) ? copy(v, &norm->from, &norm->nfrom) : 0;

	if (r)
		return r;
	if (norm->from)
		n = te__base64(norm->from, norm->nfrom, norm->from);
	if (n < 0 || !te__is_charsmap(norm->from, (size_t)n))
		return corrupt("normalizer: Precompiled: precompiled_charsmap is damaged");
	norm->nfrom = (size_t)n;
	return 0;
}

static int normalizer(struct te_token *t, const json_t *o, const char *type)
{
	static const char *const kinds[] = { "NFC",	    "NFD",   "NFKC",	"NFKD",
					     "Lowercase",   "Strip", "Replace", "Prepend",
					     "Precompiled", NULL };
	const int kind = is_one_of(type, kinds);
	struct te__norm *norm = &t->norm[t->nnorm];
	const json_t *pattern, *to;
	int jit, r = 0;

	if (kind < 0)
		return unsupported("normalizer", type);
	if (t->nnorm == TE__TOKEN_MAX_STEPS)
		return te__fail(-EFBIG, FN ": more than %d normalizers", TE__TOKEN_MAX_STEPS);
	*norm = (struct te__norm){ .kind = (enum te__norm_kind)kind };
	t->nnorm++;
	norm->left = truth(o, "strip_left", 1);
	norm->right = truth(o, "strip_right", 1);
	if (kind == TE__NORM_CHARSMAP)
		return charsmap(json_object_get(o, "precompiled_charsmap"), norm);
	if (kind != TE__NORM_REPLACE && kind != TE__NORM_PREPEND)
		return 0;
	to = json_object_get(o, kind == TE__NORM_PREPEND ? "prepend" : "content");
	if (!json_is_string(to))
		return corrupt("normalizer: Replace or Prepend without content");
	r = copy(to, &norm->to, &norm->nto);
	if (r || kind == TE__NORM_PREPEND)
		return r;
	pattern = json_object_get(o, "pattern");
	if (!json_is_string(json_object_get(pattern, "String")))
		return compile(pattern, &norm->code, &jit);
	r = copy(json_object_get(pattern, "String"), &norm->from, &norm->nfrom);
	return r || norm->nfrom ? r : unsupported("normalizer", "Replace of nothing");
}

static int split_room(struct te_token *t, struct te__split **ret)
{
	if (t->byte_level)
		return unsupported("pre_tokenizer", "a step after ByteLevel");
	if (t->nsplit > TE__TOKEN_MAX_STEPS - 3)
		return te__fail(-EFBIG, FN ": more than %d pre-tokenizers",
				TE__TOKEN_MAX_STEPS - 3);
	*ret = &t->split[t->nsplit];
	**ret = (struct te__split){ .kind = TE__SPLIT_PATTERN };
	return 0;
}

static int behavior_of(const json_t *o, enum te__behavior *ret)
{
	static const char *const names[] = { "Isolated",       "Removed",    "MergedWithPrevious",
					     "MergedWithNext", "Contiguous", NULL };
	const char *s = text(o, "behavior");
	const int i = s ? is_one_of(s, names) : -1;

	if (i < 0)
		return unsupported("pre_tokenizer: behavior", s);
	*ret = (enum te__behavior)i;
	return 0;
}

/* a pattern that matches the text of a string */
static int quoted(const char *p, size_t n, struct te__tbuf *b)
{
	int r = 0;

	for (size_t i = 0; i < n && !r; i++) {
		if (!(p[i] & 0x80) && (unsigned char)p[i] > 32 && !strchr("_", p[i]) &&
		    !(p[i] >= '0' && p[i] <= '9') && !((p[i] | 32) >= 'a' && (p[i] | 32) <= 'z'))
			r = te__tbuf_add(b, "\\", 1);
		if (!r)
			r = te__tbuf_add(b, p + i, 1);
	}
	return r;
}

static int split_by(struct te_token *t, const json_t *pattern, struct te__split *s)
{
	const json_t *v = json_object_get(pattern, "String");
	struct te__tbuf b = { 0 };
	int r;

	if (json_is_string(v)) {
		if (!json_string_length(v))
			return unsupported("pre_tokenizer", "Split by nothing");
		r = quoted(json_string_value(v), json_string_length(v), &b);
		if (!r)
			r = te__pattern_compile(FN, b.p, b.n, &s->code, &s->jit);
		if (!r)
			r = te__tbuf_add(&b, "", 1);
		if (!r && !memchr(b.p, 0, b.n - 1))
			s->source = te__strdup(b.p);
		te__free(b.p);
	} else {
		r = compile(pattern, &s->code, &s->jit);
		v = json_object_get(pattern, "Regex");
	}
	t->nsplit += !r;
	if (!r && json_is_string(v) && !json_object_get(pattern, "String")) {
		s->source = te__strdup(json_string_value(v));
		r = s->source ? 0 : te__no_memory("te_token");
	}
	return r;
}

static int metaspace(struct te_token *t, const json_t *o, struct te__split *s)
{
	static const char *const schemes[] = { "never", "first", "always", NULL };
	const char *scheme = text(o, "prepend_scheme"), *mark = text(o, "replacement");

	if (!mark || !*mark || strlen(mark) >= sizeof(s->mark))
		return corrupt("pre_tokenizer: Metaspace without a replacement");
	s->kind = TE__SPLIT_METASPACE;
	strcpy(s->mark, mark);
	s->prepend = scheme ? is_one_of(scheme, schemes) : truth(o, "add_prefix_space", 1) ? 2 : 0;
	if (s->prepend < 0)
		return unsupported("pre_tokenizer: prepend_scheme", scheme);
	s->pieces = truth(o, "split", 1);
	t->nsplit++;
	return 0;
}

static int pre_tokenizer(struct te_token *t, const json_t *o, const char *type)
{
	struct te__split *s = NULL;
	const char *pattern = NULL;
	enum te__behavior behavior = TE__SPLIT_ISOLATED;
	int r = split_room(t, &s);

	if (r)
		return r;
	if (!strcmp(type, "ByteLevel")) {
		if (truth(o, "add_prefix_space", 1)) {
			s->kind = TE__SPLIT_PREFIX;
			t->nsplit++;
		}
		if (truth(o, "use_regex", 1))
			r = te__split_add_pattern(t, te__pattern_named("gpt2"), TE__SPLIT_ISOLATED);
		t->byte_level = 1;
		return r;
	}
	if (!strcmp(type, "Split")) {
		r = behavior_of(o, &s->behavior);
		s->invert = truth(o, "invert", 0);
		return r ? r : split_by(t, json_object_get(o, "pattern"), s);
	}
	if (!strcmp(type, "Metaspace"))
		return metaspace(t, o, s);
	if (!strcmp(type, "Digits")) {
		pattern = truth(o, "individual_digits", 0) ? "\\p{N}" : "\\p{N}+";
	} else if (!strcmp(type, "Punctuation")) {
		pattern = "[\\p{P}$+<=>^`|~]";
		r = text(o, "behavior") ? behavior_of(o, &behavior) : 0;
	} else if (!strcmp(type, "Whitespace")) {
		pattern = "\\w+|[^\\w\\s]+";
		r = te__split_add_pattern(t, pattern, TE__SPLIT_REMOVED);
		if (!r)
			s->invert = 1;
		return r;
	} else if (!strcmp(type, "WhitespaceSplit")) {
		pattern = "\\s";
		behavior = TE__SPLIT_REMOVED;
	} else {
		return unsupported("pre_tokenizer", type);
	}
	return r ? r : te__split_add_pattern(t, pattern, behavior);
}

/* tokens of a template, in front of what earlier ones put there, or after it */
static int put_ids(struct te_token *t, const int32_t *v, int n, int is_after)
{
	int32_t **list = is_after ? &t->after : &t->before;
	int *count = is_after ? &t->nafter : &t->nbefore;
	int32_t *p;

	if (n + *count > 64)
		return te__fail(-EFBIG, FN ": post_processor: more than 64 tokens");
	p = te__realloc(*list, (size_t)(n + *count + 1) * sizeof(*p));
	if (!p)
		return te__no_memory("te_token");
	*list = p;
	if (!is_after)
		memmove(p + n, p, (size_t)*count * sizeof(*p));
	memcpy(is_after ? p + *count : p, v, (size_t)n * sizeof(*p));
	*count += n;
	return 0;
}

static int id_of(const json_t *v, int32_t *ret)
{
	const json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;

	if (id < 0 || id >= TE__TOKEN_MAX_VOCAB)
		return corrupt("a token's number is out of range");
	*ret = (int32_t)id;
	return 0;
}

static int pair_of(struct te_token *t, const json_t *o, const char *key, int is_after)
{
	int32_t id;
	int r = id_of(json_array_get(json_object_get(o, key), 1), &id);

	return r ? r : put_ids(t, &id, 1, is_after);
}

static int template_of(struct te_token *t, const json_t *o)
{
	int32_t ids[64];
	int n = 0, seen = 0, r = 0;
	const json_t *v, *id, *list;
	size_t i, k;

	json_array_foreach(json_object_get(o, "single"), i, v)
	{
		const char *name = text(json_object_get(v, "SpecialToken"), "id");

		if (json_object_get(v, "Sequence") && !seen) {
			seen = 1;
			r = put_ids(t, ids, n, 0);
			n = 0;
		} else if (name) {
			list = json_object_get(
				json_object_get(json_object_get(o, "special_tokens"), name), "ids");
			if (!json_is_array(list) || json_array_size(list) > (size_t)(64 - n))
				return corrupt("post_processor: a special token without ids");
			json_array_foreach(list, k, id)
			{
				if (!r)
					r = id_of(id, &ids[n++]);
			}
		} else {
			return unsupported("post_processor", "this template");
		}
		if (r)
			return r;
	}
	return seen ? put_ids(t, ids, n, 1) : unsupported("post_processor", "a template without A");
}

static int post_processor(struct te_token *t, const json_t *o, const char *type)
{
	int r;

	if (!strcmp(type, "ByteLevel"))
		return 0; /* offsets only */
	if (!strcmp(type, "TemplateProcessing"))
		return template_of(t, o);
	if (!strcmp(type, "RobertaProcessing") || !strcmp(type, "BertProcessing")) {
		r = pair_of(t, o, "cls", 0);
		return r ? r : pair_of(t, o, "sep", 1);
	}
	return unsupported("post_processor", type);
}

/* steps by which a token's text becomes its bytes */
struct decoder {
	int byte_level, byte_fallback, fused;
	struct {
		char *from, *to;
		size_t nfrom, nto;
	} replace[TE__TOKEN_MAX_STEPS];
	int nreplace;
};

static int replacement(struct decoder *decoder, const char *from, size_t nfrom, const char *to,
		       size_t nto)
{
	const int i = decoder->nreplace;

	if (i == TE__TOKEN_MAX_STEPS || !nfrom)
		return unsupported("decoder", "this Replace");
	decoder->nreplace++;
	decoder->replace[i].from = te__malloc(nfrom);
	decoder->replace[i].to = te__malloc(nto + 1);
	if (!decoder->replace[i].from || !decoder->replace[i].to)
		return te__no_memory("te_token");
	memcpy(decoder->replace[i].from, from, nfrom);
	memcpy(decoder->replace[i].to, to, nto);
	decoder->replace[i].nfrom = nfrom;
	decoder->replace[i].nto = nto;
	return 0;
}

static int decoder_step(struct te_token *t, const json_t *o, const char *type)
{
	struct decoder *decoder = t->load;
	const json_t *from, *to;
	const char *s;

	if (!strcmp(type, "Fuse")) {
		decoder->fused = 1;
		return 0;
	}
	if (!strcmp(type, "Strip")) {
		s = text(o, "content");
		if (!decoder->fused || !s || !*s || strlen(s) >= sizeof(t->strip_char) ||
		    json_integer_value(json_object_get(o, "stop")))
			return unsupported("decoder", "this Strip");
		strcpy(t->strip_char, s);
		t->strip_left = (int)json_integer_value(json_object_get(o, "start"));
		return t->strip_left < 0 ? corrupt("decoder: Strip: start is negative") : 0;
	}
	if (decoder->fused)
		return unsupported("decoder: after Fuse", type);
	if (!strcmp(type, "ByteLevel")) {
		decoder->byte_level = 1;
		return 0;
	}
	if (!strcmp(type, "ByteFallback")) {
		decoder->byte_fallback = 1;
		return 0;
	}
	if (!strcmp(type, "Replace")) {
		from = json_object_get(json_object_get(o, "pattern"), "String");
		to = json_object_get(o, "content");
		if (!json_is_string(from) || !json_is_string(to))
			return unsupported("decoder", "Replace by a pattern");
		return replacement(decoder, json_string_value(from), json_string_length(from),
				   json_string_value(to), json_string_length(to));
	}
	if (!strcmp(type, "Metaspace")) {
		s = text(o, "replacement");
		if (!s || !*s)
			return corrupt("decoder: Metaspace without a replacement");
		strcpy(t->strip_char, " ");
		if (text(o, "prepend_scheme") ? strcmp(text(o, "prepend_scheme"), "never") :
						truth(o, "add_prefix_space", 1))
			t->strip_left = -1; /* all in the first token */
		return replacement(decoder, s, strlen(s), " ", 1);
	}
	return unsupported("decoder", type);
}

static int hex_of(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* bytes that the token's text decodes to, in *b */
static int decoded(const struct decoder *decoder, const char *p, size_t n, struct te__tbuf *b,
		   struct te__tbuf *spare)
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
		return corrupt("model: vocab is no object");
	for (void *i = json_object_iter(vocab); i && !r; i = json_object_iter_next(vocab, i)) {
		const char *p = json_object_iter_key(i);
		size_t n = KEY_LENGTH(i, p);
		uint32_t flags = 0;
		int32_t id = 0;
		int m;

		r = id_of(json_object_iter_value(i), &id);
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
		return corrupt("model: merges is no array");
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
		return corrupt("model: vocab is no list of pieces");
	if (t->byte_level)
		return unsupported("model", "Unigram after ByteLevel");
	if (!json_is_integer(unk))
		return unsupported("model", "Unigram without unk_id");
	if (json_integer_value(unk) < 0 || json_integer_value(unk) >= (json_int_t)n)
		return corrupt("model: unk_id is not in the vocabulary");
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
	t->byte_fallback = truth(o, "byte_fallback", 0);
	if (!r && t->byte_fallback && !has_all_bytes(t))
		r = unsupported("model", "byte_fallback without a token for each byte");
	return r;
}

static int model(struct te_token *t, const json_t *o)
{
	static const char *const affixes[] = { "continuing_subword_prefix", "end_of_word_suffix" };
	const char *type = text(o, "type"), *s;
	const json_t *dropout = json_object_get(o, "dropout");
	int r;

	if (!json_is_object(o))
		return corrupt("it has no model");
	if (type ? !strcmp(type, "Unigram") : json_is_array(json_object_get(o, "vocab")))
		return unigram(t, o);
	if (type ? strcmp(type, "BPE") : !json_object_get(o, "merges"))
		return unsupported("model: type", type ? type : "a model without merges");
	for (int i = 0; i < 2; i++)
		if ((s = text(o, affixes[i])) && *s)
			return unsupported("model", affixes[i]);
	if (dropout && !json_is_null(dropout) && json_number_value(dropout) != 0)
		return unsupported("model", "dropout");
	t->byte_fallback = truth(o, "byte_fallback", 0);
	t->fuse_unk = truth(o, "fuse_unk", 0);
	t->ignore_merges = truth(o, "ignore_merges", 0);
	r = vocabulary(t, json_object_get(o, "vocab"));
	if (!r)
		r = merges(t, json_object_get(o, "merges"));
	s = text(o, "unk_token");
	if (!r && s) {
		t->unk = te__tmap_get(&t->map, t->pool, s, strlen(s));
		if (t->unk < 0)
			return corrupt("model: unk_token is not in the vocabulary");
	}
	return r;
}

static int added_tokens(struct te_token *t, const json_t *list)
{
	const json_t *v;
	size_t i;
	int r = 0;

	json_array_foreach(list, i, v)
	{
		const json_t *content = json_object_get(v, "content");
		struct te__added a = {
			.lstrip = (uint8_t)truth(v, "lstrip", 0),
			.rstrip = (uint8_t)truth(v, "rstrip", 0),
			.single_word = (uint8_t)truth(v, "single_word", 0),
			.special = (uint8_t)truth(v, "special", 0),
		};

		a.normalized = (uint8_t)truth(v, "normalized", !a.special);
		if (!json_is_string(content))
			return corrupt("added_tokens: a token without content");
		r = id_of(json_object_get(v, "id"), &a.id);
		if (!r)
			r = te__token_add_special(t, &a, json_string_value(content),
						  json_string_length(content));
		if (r)
			return r;
	}
	return 0;
}

int te__token_load_json(struct te_token *t, const char *p, size_t n)
{
	struct decoder d = { 0 };
	const json_t *o;
	json_t *root;
	int r = parse(p, n, &root);

	if (r)
		return r;
	if (json_is_object(json_object_get(root, "config")) && !json_object_get(root, "model")) {
		r = te__token_load_tekken(t, root);
		json_decref(root);
		return r;
	}
	t->load = &d;
	o = json_object_get(root, "decoder");
	r = steps(t, "decoder", o, "decoders", decoder_step);
	t->join_space = !o || json_is_null(o);
	if (!r)
		r = steps(t, "normalizer", json_object_get(root, "normalizer"), "normalizers",
			  normalizer);
	if (!r)
		r = steps(t, "pre_tokenizer", json_object_get(root, "pre_tokenizer"),
			  "pretokenizers", pre_tokenizer);
	if (!r)
		r = model(t, json_object_get(root, "model"));
	if (!r)
		r = added_tokens(t, json_object_get(root, "added_tokens"));
	if (!r)
		r = steps(t, "post_processor", json_object_get(root, "post_processor"),
			  "processors", post_processor);
	for (int i = 0; i < t->nbefore + t->nafter && !r; i++)
		if ((i < t->nbefore ? t->before[i] : t->after[i - t->nbefore]) >= t->ntok)
			r = corrupt("post_processor: a token is not in the vocabulary");
	if (!r && !t->score &&
	    !(t->nsplit && t->split[t->nsplit - 1].kind == TE__SPLIT_METASPACE &&
	      t->split[t->nsplit - 1].pieces))
		r = te__split_at_marks(t);
	for (int i = 0; i < d.nreplace; i++) {
		te__free(d.replace[i].from);
		te__free(d.replace[i].to);
	}
	t->load = NULL;
	json_decref(root);
	return r;
}
