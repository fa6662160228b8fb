/*
 * json.c - tokenizer.json of the Python package tokenizers.
 *
 * Source: huggingface/tokenizers, tokenizers/src/{models/bpe,normalizers,pre_tokenizers,processors,
 * decoders}. What is not implemented is refused by its name.
 */
#include "config.h"

#include <errno.h>
#include <jansson.h>

#include "json.h"

#define MAX_JSON (512u << 20) /* bytes */
#define MAX_DEPTH 48

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
	const char *type = te__json_text(o, "type");
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
		return te__json_corrupt("pattern: expected String or Regex");
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
		return te__json_corrupt("normalizer: Precompiled: precompiled_charsmap is damaged");
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
		return te__json_unsupported("normalizer", type);
	if (t->nnorm == TE__TOKEN_MAX_STEPS)
		return te__fail(-EFBIG, FN ": more than %d normalizers", TE__TOKEN_MAX_STEPS);
	*norm = (struct te__norm){ .kind = (enum te__norm_kind)kind };
	t->nnorm++;
	norm->left = te__json_truth(o, "strip_left", 1);
	norm->right = te__json_truth(o, "strip_right", 1);
	if (kind == TE__NORM_CHARSMAP)
		return charsmap(json_object_get(o, "precompiled_charsmap"), norm);
	if (kind != TE__NORM_REPLACE && kind != TE__NORM_PREPEND)
		return 0;
	to = json_object_get(o, kind == TE__NORM_PREPEND ? "prepend" : "content");
	if (!json_is_string(to))
		return te__json_corrupt("normalizer: Replace or Prepend without content");
	r = copy(to, &norm->to, &norm->nto);
	if (r || kind == TE__NORM_PREPEND)
		return r;
	pattern = json_object_get(o, "pattern");
	if (!json_is_string(json_object_get(pattern, "String")))
		return compile(pattern, &norm->code, &jit);
	r = copy(json_object_get(pattern, "String"), &norm->from, &norm->nfrom);
	return r || norm->nfrom ? r : te__json_unsupported("normalizer", "Replace of nothing");
}

static int split_room(struct te_token *t, struct te__split **ret)
{
	if (t->byte_level)
		return te__json_unsupported("pre_tokenizer", "a step after ByteLevel");
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
	const char *s = te__json_text(o, "behavior");
	const int i = s ? is_one_of(s, names) : -1;

	if (i < 0)
		return te__json_unsupported("pre_tokenizer: behavior", s);
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
			return te__json_unsupported("pre_tokenizer", "Split by nothing");
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
	const char *scheme = te__json_text(o, "prepend_scheme");
	const char *mark = te__json_text(o, "replacement");

	if (!mark || !*mark || strlen(mark) >= sizeof(s->mark))
		return te__json_corrupt("pre_tokenizer: Metaspace without a replacement");
	s->kind = TE__SPLIT_METASPACE;
	strcpy(s->mark, mark);
	s->prepend = scheme ? is_one_of(scheme, schemes) :
			      2 * te__json_truth(o, "add_prefix_space", 1);
	if (s->prepend < 0)
		return te__json_unsupported("pre_tokenizer: prepend_scheme", scheme);
	s->pieces = te__json_truth(o, "split", 1);
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
		if (te__json_truth(o, "add_prefix_space", 1)) {
			s->kind = TE__SPLIT_PREFIX;
			t->nsplit++;
		}
		if (te__json_truth(o, "use_regex", 1))
			r = te__split_add_pattern(t, te__pattern_named("gpt2"), TE__SPLIT_ISOLATED);
		t->byte_level = 1;
		return r;
	}
	if (!strcmp(type, "Split")) {
		r = behavior_of(o, &s->behavior);
		s->invert = te__json_truth(o, "invert", 0);
		return r ? r : split_by(t, json_object_get(o, "pattern"), s);
	}
	if (!strcmp(type, "Metaspace"))
		return metaspace(t, o, s);
	if (!strcmp(type, "Digits")) {
		pattern = te__json_truth(o, "individual_digits", 0) ? "\\p{N}" : "\\p{N}+";
	} else if (!strcmp(type, "Punctuation")) {
		pattern = "[\\p{P}$+<=>^`|~]";
		r = te__json_text(o, "behavior") ? behavior_of(o, &behavior) : 0;
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
		return te__json_unsupported("pre_tokenizer", type);
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

static int pair_of(struct te_token *t, const json_t *o, const char *key, int is_after)
{
	int32_t id;
	int r = te__json_id(json_array_get(json_object_get(o, key), 1), &id);

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
		const char *name = te__json_text(json_object_get(v, "SpecialToken"), "id");

		if (json_object_get(v, "Sequence") && !seen) {
			seen = 1;
			r = put_ids(t, ids, n, 0);
			n = 0;
		} else if (name) {
			list = json_object_get(
				json_object_get(json_object_get(o, "special_tokens"), name), "ids");
			if (!json_is_array(list) || json_array_size(list) > (size_t)(64 - n))
				return te__json_corrupt(
					"post_processor: a special token without ids");
			json_array_foreach(list, k, id)
			{
				if (!r)
					r = te__json_id(id, &ids[n++]);
			}
		} else {
			return te__json_unsupported("post_processor", "this template");
		}
		if (r)
			return r;
	}
	if (!seen)
		return te__json_unsupported("post_processor", "a template without A");
	return put_ids(t, ids, n, 1);
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
	return te__json_unsupported("post_processor", type);
}

static int replacement(struct te__json_decoder *decoder, const char *from, size_t nfrom,
		       const char *to, size_t nto)
{
	const int i = decoder->nreplace;

	if (i == TE__TOKEN_MAX_STEPS || !nfrom)
		return te__json_unsupported("decoder", "this Replace");
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
	struct te__json_decoder *decoder = t->load;
	const json_t *from, *to;
	const char *s, *scheme;

	if (!strcmp(type, "Fuse")) {
		decoder->fused = 1;
		return 0;
	}
	if (!strcmp(type, "Strip")) {
		s = te__json_text(o, "content");
		if (!decoder->fused || !s || !*s || strlen(s) >= sizeof(t->strip_char) ||
		    json_integer_value(json_object_get(o, "stop")))
			return te__json_unsupported("decoder", "this Strip");
		strcpy(t->strip_char, s);
		t->strip_left = (int)json_integer_value(json_object_get(o, "start"));
		if (t->strip_left < 0)
			return te__json_corrupt("decoder: Strip: start is negative");
		return 0;
	}
	if (decoder->fused)
		return te__json_unsupported("decoder: after Fuse", type);
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
			return te__json_unsupported("decoder", "Replace by a pattern");
		return replacement(decoder, json_string_value(from), json_string_length(from),
				   json_string_value(to), json_string_length(to));
	}
	if (!strcmp(type, "Metaspace")) {
		s = te__json_text(o, "replacement");
		if (!s || !*s)
			return te__json_corrupt("decoder: Metaspace without a replacement");
		strcpy(t->strip_char, " ");
		scheme = te__json_text(o, "prepend_scheme");
		if (scheme ? strcmp(scheme, "never") : te__json_truth(o, "add_prefix_space", 1))
			t->strip_left = -1; /* all in the first token */
		return replacement(decoder, s, strlen(s), " ", 1);
	}
	return te__json_unsupported("decoder", type);
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
			.lstrip = (uint8_t)te__json_truth(v, "lstrip", 0),
			.rstrip = (uint8_t)te__json_truth(v, "rstrip", 0),
			.single_word = (uint8_t)te__json_truth(v, "single_word", 0),
			.special = (uint8_t)te__json_truth(v, "special", 0),
		};

		a.normalized = (uint8_t)te__json_truth(v, "normalized", !a.special);
		if (!json_is_string(content))
			return te__json_corrupt("added_tokens: a token without content");
		r = te__json_id(json_object_get(v, "id"), &a.id);
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
	struct te__json_decoder d = { 0 };
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
		r = te__json_model(t, json_object_get(root, "model"));
	if (!r)
		r = added_tokens(t, json_object_get(root, "added_tokens"));
	if (!r)
		r = steps(t, "post_processor", json_object_get(root, "post_processor"),
			  "processors", post_processor);
	for (int i = 0; i < t->nbefore + t->nafter && !r; i++)
		if ((i < t->nbefore ? t->before[i] : t->after[i - t->nbefore]) >= t->ntok)
			r = te__json_corrupt("post_processor: a token is not in the vocabulary");
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
