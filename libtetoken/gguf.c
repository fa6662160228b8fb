/*
 * gguf.c - the tokenizer in the metadata of a GGUF file.
 *
 * gguf.h walks through the file. Names of pre-tokenizers, their patterns and defaults of keys:
 * llama.cpp, src/llama-vocab.cpp.
 */
#include "config.h"

#include <errno.h>

#include "libtecore/base/gguf.h"
#include "token_internal.h"

enum {
	MODEL,
	PRE,
	TOKENS,
	TYPES,
	SCORES,
	MERGES,
	BOS,
	EOS,
	UNK,
	ADD_BOS,
	ADD_EOS,
	ADD_SPACE,
	REMOVE_SPACES,
	CHARSMAP,
	NKEYS
};

/* after "tokenizer.ggml."; of: type of a list's elements, or 0 */
static const struct {
	const char *name;
	uint32_t type, of;
} keys[NKEYS] = {
	[MODEL] = { "model", TE__GGUF_TEXT, 0 },
	[PRE] = { "pre", TE__GGUF_TEXT, 0 },
	[TOKENS] = { "tokens", TE__GGUF_LIST, TE__GGUF_TEXT },
	[TYPES] = { "token_type", TE__GGUF_LIST, TE__GGUF_INT32 },
	[SCORES] = { "scores", TE__GGUF_LIST, TE__GGUF_FLOAT32 },
	[MERGES] = { "merges", TE__GGUF_LIST, TE__GGUF_TEXT },
	[BOS] = { "bos_token_id", TE__GGUF_UINT32, 0 },
	[EOS] = { "eos_token_id", TE__GGUF_UINT32, 0 },
	[UNK] = { "unknown_token_id", TE__GGUF_UINT32, 0 },
	[ADD_BOS] = { "add_bos_token", TE__GGUF_BOOL, 0 },
	[ADD_EOS] = { "add_eos_token", TE__GGUF_BOOL, 0 },
	[ADD_SPACE] = { "add_space_prefix", TE__GGUF_BOOL, 0 },
	[REMOVE_SPACES] = { "remove_extra_whitespaces", TE__GGUF_BOOL, 0 },
	[CHARSMAP] = { "precompiled_charsmap", TE__GGUF_LIST, TE__GGUF_UINT8 },
};

#define NO_DIGITS "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?![^\\s\\p{N}])|\\s+"

/* pattern: its name, or itself. Each further step splits what the one before it left */
static const struct pre {
	const char *name, *step[4];
	int ignore_merges, add_bos;
} pres[] = {
	{ "default", { "[\\p{P}$+<=>^~|]+", "gpt2", "\\p{N}+", "[0-9][0-9][0-9]" }, 0, 0 },
	{ "gpt-2", { "gpt2", NULL, NULL, NULL }, 0, 0 },
	{ "phi-2", { "gpt2", NULL, NULL, NULL }, 0, 0 },
	{ "mpt", { "gpt2", NULL, NULL, NULL }, 0, 0 },
	{ "olmo", { "gpt2", NULL, NULL, NULL }, 0, 0 },
	/* digits one by one, then gpt2: in one pattern */
	{ "smollm", { "\\p{N}|" NO_DIGITS, NULL, NULL, NULL }, 0, 0 },
	{ "starcoder", { "\\p{N}|" NO_DIGITS, NULL, NULL, NULL }, 0, 0 },
	{ "refact", { "\\p{N}|" NO_DIGITS, NULL, NULL, NULL }, 0, 0 },
	{ "command-r", { "\\p{N}|" NO_DIGITS, NULL, NULL, NULL }, 0, 0 },
	{ "llama-bpe", { "llama3", NULL, NULL, NULL }, 1, 1 },
	{ "llama-v3", { "llama3", NULL, NULL, NULL }, 1, 1 },
	{ "llama3", { "llama3", NULL, NULL, NULL }, 1, 1 },
	{ "dbrx", { "llama3", NULL, NULL, NULL }, 0, 0 },
	{ "smaug-bpe", { "llama3", NULL, NULL, NULL }, 0, 0 },
	{ "qwen2", { "qwen2", NULL, NULL, NULL }, 0, 0 },
	{ "deepseek-r1-qwen", { "qwen2", NULL, NULL, NULL }, 0, 0 },
	{ "stablelm2", { "qwen2", NULL, NULL, NULL }, 0, 0 },
	{ "gpt-4o", { "o200k", NULL, NULL, NULL }, 0, 0 },
	/* as tokenizer.json has it; found by te__gguf_pre() only after the one above */
	{ "smollm", { "\\p{N}", "gpt2", NULL, NULL }, 0, 0 },
};

static int corrupt(const char *why)
{
	return te__fail(-TE_ECORRUPT, "te_token: GGUF: %s", why);
}

/* ---- metadata ---- */

static int is_text(const struct te__gguf *b, const char *text)
{
	return b->n == strlen(text) && !memcmp(b->p, text, b->n);
}

static int read_keys(struct te__gguf *b, struct te__gguf_value value[NKEYS])
{
	static const char prefix[] = "tokenizer.ggml.";
	uint64_t version, ntensors, nitems;

	if (!te__gguf_head(b, &version, &ntensors, &nitems))
		return corrupt("cut short within its header");
	if (version != 2 && version != 3)
		return te__fail(-EOPNOTSUPP,
				"te_token: GGUF: version %u is not implemented, expected 2 or 3",
				(unsigned)version);
	if (nitems > TE__GGUF_MOST_ITEMS)
		return corrupt("more than 65536 items of metadata");
	while (nitems--) {
		struct te__gguf key;
		struct te__gguf_value v;

		if (!te__gguf_text(b, &key) || !te__gguf_value(b, &v))
			return corrupt("damaged or cut short within its metadata");
		if (key.n < strlen(prefix) || memcmp(key.p, prefix, strlen(prefix)))
			continue;
		key.p += strlen(prefix);
		key.n -= strlen(prefix);
		for (int i = 0; i < NKEYS; i++) {
			if (!is_text(&key, keys[i].name))
				continue;
			/* writers differ in the sign of bytes */
			if (i == CHARSMAP && v.of == TE__GGUF_INT8)
				v.of = TE__GGUF_UINT8;
			if (v.type != keys[i].type || v.of != keys[i].of)
				return te__fail(-TE_ECORRUPT,
						"te_token: GGUF: tokenizer.ggml.%s: its type is "
						"%u, expected %u",
						keys[i].name,
						v.type == TE__GGUF_LIST ? v.of : v.type,
						keys[i].of ? keys[i].of : keys[i].type);
			value[i] = v;
		}
	}
	return 0;
}

/* element i of a list of numbers; lists are not aligned */
static uint32_t number_at(const struct te__gguf_value *v, uint64_t i)
{
	uint32_t x;

	memcpy(&x, v->at.p + 4 * i, 4);
	return x;
}

static int truth(const struct te__gguf_value *v, int without)
{
	return v->type ? *v->at.p != 0 : without;
}

/* a token that the file names, or -1 */
static int id_of(const struct te_token *t, const struct te__gguf_value *value, int key,
		 int32_t without, int32_t *ret)
{
	const uint32_t id = value[key].type ? number_at(&value[key], 0) : (uint32_t)without;

	*ret = -1;
	if (!value[key].type && (without < 0 || without >= t->ntok))
		return 0;
	if (id >= (uint32_t)t->ntok)
		return te__fail(-TE_ECORRUPT,
				"te_token: GGUF: tokenizer.ggml.%s: token %u is outside of 0 to %d",
				keys[key].name, id, t->ntok - 1);
	*ret = (int32_t)id;
	return 0;
}

/* ---- vocabulary ---- */

/* token id of a vocabulary of bytes; special tokens are text as it is */
static int byte_piece(struct te_token *t, int64_t id, const struct te__gguf *text, uint32_t type,
		      struct te__tbuf *b)
{
	int m, r;

	b->n = 0;
	r = te__tbuf_add(b, text->p, text->n);
	if (r)
		return r;
	m = type == TE__PIECE_UNUSED ? -1 : te__bytes_of_text(text->p, text->n, b->p);
	return m < 0 ? te__token_set(t, id, text->p, text->n, NULL, 0, TE__TOK_FOREIGN) :
		       te__token_set(t, id, b->p, (size_t)m, NULL, 0, 0);
}

static int check_counts(const struct te__gguf_value value[NKEYS])
{
	if (!value[TOKENS].n || value[TOKENS].n > TE__TOKEN_MAX_VOCAB)
		return te__fail(value[TOKENS].n ? -EFBIG : -TE_ECORRUPT,
				"te_token: GGUF: %llu tokens, expected 1 to %d",
				(unsigned long long)value[TOKENS].n, TE__TOKEN_MAX_VOCAB);
	if (value[TYPES].type && value[TYPES].n != value[TOKENS].n)
		return corrupt("tokenizer.ggml.token_type: expected one for each token");
	return 0;
}

static int not_utf8(uint64_t id)
{
	return te__fail(-TE_ECORRUPT, "te_token: GGUF: token %llu is not UTF-8",
			(unsigned long long)id);
}

static int tokens(struct te_token *t, const struct te__gguf_value value[NKEYS])
{
	struct te__gguf b = value[TOKENS].at, text;
	struct te__tbuf scratch = { 0 };
	int r = check_counts(value);

	for (uint64_t i = 0; i < value[TOKENS].n && !r; i++) {
		const uint32_t type = value[TYPES].type ? number_at(&value[TYPES], i) : 1;

		te__gguf_text(&b, &text);
		if (!te__is_utf8(text.p, text.n))
			r = not_utf8(i);
		else
			r = t->byte_level ?
				    byte_piece(t, (int64_t)i, &text, type, &scratch) :
				    te__piece_set(t, (int64_t)i, text.p, text.n, type, &scratch);
	}
	te__free(scratch.p);
	return r;
}

/* special tokens, which are found in texts; after te__token_merges_by_rank() */
static int specials(struct te_token *t, const struct te__gguf_value value[NKEYS])
{
	struct te__gguf b = value[TOKENS].at, text;
	int r = 0;

	for (uint64_t i = 0; value[TYPES].type && i < value[TOKENS].n && !r; i++) {
		const uint32_t type = number_at(&value[TYPES], i);
		const struct te__added a = { .id = (int32_t)i,
					     .special = type != TE__PIECE_USER_DEFINED };

		te__gguf_text(&b, &text);
		/* a unigram model finds symbols of users itself */
		if (type == TE__PIECE_UNKNOWN || type == TE__PIECE_CONTROL ||
		    (type == TE__PIECE_USER_DEFINED && !t->score))
			r = te__token_add_special(t, &a, text.p, text.n);
	}
	return r;
}

/* ---- models ---- */

static int merges(struct te_token *t, const struct te__gguf_value *v)
{
	struct te__gguf b = v->at, text;
	struct te__tbuf key = { 0 };
	int r = 0;

	for (uint64_t i = 0; i < v->n && !r; i++) {
		const char *space;
		int32_t left = -1, right = -1, id = -1;
		int m = -1, k = -1;

		te__gguf_text(&b, &text);
		space = text.n > 1 && te__is_utf8(text.p, text.n) ?
				memchr(text.p + 1, ' ', text.n - 1) :
				NULL;
		key.n = 0;
		r = te__tbuf_add(&key, text.p, text.n);
		if (r)
			break;
		if (space) {
			const size_t n = (size_t)(space - text.p);

			m = te__bytes_of_text(text.p, n, key.p);
			k = m < 0 ? -1 : te__bytes_of_text(space + 1, text.n - n - 1, key.p + m);
		}
		if (k > 0) {
			left = te__tmap_get(&t->map, t->pool, key.p, (size_t)m);
			right = te__tmap_get(&t->map, t->pool, key.p + m, (size_t)k);
			id = te__tmap_get(&t->map, t->pool, key.p, (size_t)(m + k));
		}
		r = left < 0 || right < 0 || id < 0 ?
			    te__fail(-TE_ECORRUPT,
				     "te_token: GGUF: merge %llu: expected two tokens that give a "
				     "third",
				     (unsigned long long)i) :
			    te__token_merge_add(t, left, right, (uint32_t)i, id);
	}
	te__free(key.p);
	return r;
}

/* 1: the splits of t are the steps, one by one */
static int has_steps(const struct te_token *t, const struct pre *pre)
{
	int n = 0;

	while (n < 4 && pre->step[n])
		n++;
	for (int i = 0; i < t->nsplit && n == t->nsplit; i++) {
		const struct te__split *s = &t->split[i];
		const char *named = te__pattern_named(pre->step[i]);

		if (s->kind != TE__SPLIT_PATTERN || s->behavior != TE__SPLIT_ISOLATED ||
		    s->invert || !s->source || strcmp(s->source, named ? named : pre->step[i]))
			return 0;
	}
	return n == t->nsplit;
}

const char *te__gguf_pre(const struct te_token *t)
{
	for (size_t i = 0; i < sizeof(pres) / sizeof(pres[0]); i++)
		if (pres[i].ignore_merges == t->ignore_merges && has_steps(t, &pres[i]))
			return pres[i].name;
	return NULL;
}

static const struct pre *pre_of(const struct te__gguf_value value[NKEYS])
{
	const struct pre *pre = NULL;

	for (size_t i = 0; i < sizeof(pres) / sizeof(pres[0]); i++)
		if (!pre && (!value[PRE].type || is_text(&value[PRE].at, pres[i].name)))
			pre = &pres[i];
	return pre;
}

static int byte_model(struct te_token *t, const struct te__gguf_value value[NKEYS])
{
	const struct pre *pre = pre_of(value);
	int r = 0;

	if (!pre)
		return te__fail(-EOPNOTSUPP,
				"te_token: GGUF: tokenizer.ggml.pre: \"%.*s\" is not implemented",
				value[PRE].at.n < 64 ? (int)value[PRE].at.n : 64, value[PRE].at.p);
	if (!value[MERGES].type)
		return corrupt("there is no tokenizer.ggml.merges");
	t->byte_level = 1;
	t->ignore_merges = pre->ignore_merges;
	for (int i = 0; i < 4 && pre->step[i] && !r; i++) {
		const char *pattern = te__pattern_named(pre->step[i]);

		r = te__split_add_pattern(t, pattern ? pattern : pre->step[i], TE__SPLIT_ISOLATED);
	}
	if (!r)
		r = tokens(t, value);
	return r ? r : merges(t, &value[MERGES]);
}

static int piece_model(struct te_token *t, const struct te__gguf_value value[NKEYS])
{
	int r;

	if (!value[SCORES].type || value[SCORES].n != value[TOKENS].n)
		return corrupt("tokenizer.ggml.scores: expected one for each token");
	t->byte_fallback = t->fuse_unk = 1;
	r = te__pieces_spaces(t, truth(&value[ADD_SPACE], 1));
	if (!r)
		r = tokens(t, value);
	if (!r)
		r = te__pieces_merge(t, value[SCORES].at.p);
	return r ? r : id_of(t, value, UNK, 0, &t->unk);
}

/* the model of T5 */
static int unigram_model(struct te_token *t, const struct te__gguf_value value[NKEYS])
{
	struct te__unigram u = { .npieces = (size_t)value[TOKENS].n,
				 .charsmap = value[CHARSMAP].at.p,
				 .ncharsmap = (size_t)value[CHARSMAP].n,
				 .prefix = truth(&value[ADD_SPACE], 0),
				 .remove_spaces = truth(&value[REMOVE_SPACES], 0) };
	struct te__gguf b = value[TOKENS].at, text;
	int r = check_counts(value);

	if (!r && (!value[SCORES].type || value[SCORES].n != value[TOKENS].n))
		r = corrupt("tokenizer.ggml.scores: expected one for each token");
	t->exact = 1;
	if (!r)
		r = te__unigram_begin(t, &u);
	for (uint64_t i = 0; i < value[TOKENS].n && !r; i++) {
		te__gguf_text(&b, &text);
		r = !te__is_utf8(text.p, text.n) ?
			    not_utf8(i) :
			    te__unigram_piece(t, (int32_t)i, text.p, text.n,
					      value[TYPES].type ? number_at(&value[TYPES], i) : 1,
					      value[SCORES].at.p + 4 * i, &u);
	}
	te__free(u.scratch.p);
	t->byte_fallback = u.nbytes > 0;
	if (!r && u.nbytes && u.nbytes != 256)
		r = corrupt("tokenizer.ggml.token_type: expected 256 bytes, or none");
	if (!r && (value[UNK].type || t->unk < 0))
		r = id_of(t, value, UNK, 2, &t->unk);
	return r || t->unk >= 0 ? r : corrupt("there is no unknown token");
}

/* models, and what llama.cpp takes where a key is missing */
static const struct model {
	const char *name;
	int (*load)(struct te_token *t, const struct te__gguf_value value[NKEYS]);
	int32_t bos, eos;
	int add_bos, add_eos; /* add_bos -1: as of the pre-tokenizer */
} models[] = {
	{ "llama", piece_model, 1, 2, 1, 0 },
	{ "gpt2", byte_model, -1, -1, -1, 0 },
	{ "t5", unigram_model, -1, 1, 0, 1 },
};

int te__token_load_gguf(struct te_token *t, const char *p, size_t n)
{
	struct te__gguf_value value[NKEYS] = { { 0 } };
	struct te__gguf b = { p, n };
	const struct te__gguf *name = &value[MODEL].at;
	const struct model *model = NULL;
	int r;

	if (n < 4 || memcmp(p, "GGUF", 4))
		return -TE_EFORMAT;
	r = read_keys(&b, value);
	if (r)
		return r;
	if (!value[MODEL].type || !value[TOKENS].type)
		return te__fail(-TE_EFORMAT, "te_token: the GGUF file has no tokenizer");
	for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++)
		if (is_text(name, models[i].name))
			model = &models[i];
	if (!model)
		return te__fail(-EOPNOTSUPP,
				"te_token: GGUF: tokenizer.ggml.model: \"%.*s\" is not implemented",
				name->n < 64 ? (int)name->n : 64, name->p);
	r = model->load(t, value);
	if (!r)
		r = specials(t, value);
	if (!r)
		r = id_of(t, value, BOS, model->bos, &t->bos);
	if (!r)
		r = id_of(t, value, EOS, model->eos, &t->eos);
	if (!r && truth(&value[ADD_BOS],
			model->add_bos < 0 ? pre_of(value)->add_bos : model->add_bos))
		r = te__token_template(t->bos, &t->before, &t->nbefore);
	if (!r && truth(&value[ADD_EOS], model->add_eos))
		r = te__token_template(t->eos, &t->after, &t->nafter);
	return r;
}
