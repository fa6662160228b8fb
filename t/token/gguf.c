/* gguf.c - tokenizers of GGUF files, read and written: te_token_load(3), te_token_gguf(3). */
#include "config.h"

#include "tt.h"

#include <math.h>
#include <unistd.h>

#include <te/errno.h>
#include <te/token.h>

#include "token_lib.h"

/* a GGUF file under construction */
struct gguf {
	char p[8192];
	size_t n;
	uint64_t nitems;
};

static void put(struct gguf *g, const void *p, size_t n)
{
	ck_assert(g->n + n <= sizeof(g->p));
	memcpy(g->p + g->n, p, n);
	g->n += n;
}

static void put_number(struct gguf *g, uint64_t x, size_t nbytes)
{
	put(g, &x, nbytes);
}

static void put_text(struct gguf *g, const char *text)
{
	put_number(g, strlen(text), 8);
	put(g, text, strlen(text));
}

enum {
	GGUF_INT8 = 1,
	GGUF_INT32 = 5,
	GGUF_FLOAT32 = 6,
	GGUF_BOOL = 7,
	GGUF_TEXT = 8,
	GGUF_LIST = 9
};

static void put_key(struct gguf *g, const char *key, uint32_t type)
{
	put_text(g, key);
	put_number(g, type, 4);
	g->nitems++;
}

static void put_list(struct gguf *g, const char *key, uint32_t type, uint64_t n)
{
	put_key(g, key, GGUF_LIST);
	put_number(g, type, 4);
	put_number(g, n, 8);
}

enum defect {
	NONE,
	ODD_VERSION,
	MANY_ITEMS,
	MANY_TOKENS,
	NO_TOKENS,
	NO_SCORES,
	NO_MERGES,
	FEW_TYPES,
	A_SCORE,
	A_MERGE,
	A_BYTE,
	A_BOS,
	A_KEY,
	A_TEXT,
	A_MAP,
	A_UNK,
};

struct piece {
	const char *text;
	float score;
	int32_t type;
};

static const struct piece pieces[] = {
	{ "<unk>", 0, 2 },  { "<s>", 0, 3 },	{ "</s>", 0, 3 },   { "a", -8, 1 },
	{ "b", -8, 1 },	    { "c", -8, 1 },	{ "▁", -8, 1 },
	{ "▁a", 1, 1 },
	{ "ab", -3, 1 },    { "▁ab", -4, 1 },	{ "bc", -3, 1 },    { "<0xE4>", 0, 6 },
	{ "<0xB8>", 0, 6 }, { "<0xAD>", 0, 6 }, { "▁▁", 0.5f, 1 }, { "<u>", 0, 4 },
	{ "<v>", 0, 5 },
};

static const struct piece byte_pieces[] = {
	{ "a", 0, 1 },	 { "b", 0, 1 },	    { "c", 0, 1 },  { "Ġ", 0, 1 },
	{ "ab", 0, 1 },	 { "Ġab", 0, 1 },   { "1", 0, 1 },  { "11", 0, 1 },
	{ "abc", 0, 1 }, { "<|x|>", 0, 3 }, { "中", 0, 4 }, { "[PAD]", 0, 5 },
	{ "", 0, 5 },
};

static const char *const pairs[] = { "a b", "Ġ ab", "1 1" };

/* a file with the tokens of pieces, or of byte_pieces if the model is "gpt2" */
static struct gguf gguf_of(const char *model, const char *pre, int space, enum defect bad)
{
	const int is_bytes = !strcmp(model, "gpt2"), is_t5 = !strcmp(model, "t5");
	const struct piece *v = is_bytes ? byte_pieces : pieces;
	const uint64_t n = is_bytes ? TT_LEN(byte_pieces) : TT_LEN(pieces);
	struct gguf g = { .n = 0 };

	put(&g, "GGUF", 4);
	put_number(&g, bad == ODD_VERSION ? 1 : 3, 4);
	put_number(&g, 0, 8);
	put_number(&g, 0, 8);
	put_list(&g, "general.tags", GGUF_TEXT, 1);
	put_text(&g, "x");
	put_list(&g, "general.shape", 10, 2);
	put_number(&g, 1, 8);
	put_number(&g, 2, 8);
	put_key(&g, "tokenizer.ggml.model", GGUF_TEXT);
	put_text(&g, model);
	if (pre) {
		put_key(&g, "tokenizer.ggml.pre", GGUF_TEXT);
		put_text(&g, pre);
	}
	if (bad != NO_TOKENS)
		put_list(&g, "tokenizer.ggml.tokens", GGUF_TEXT,
			 bad == MANY_TOKENS ? (uint64_t)1 << 60 : n);
	for (uint64_t i = 0; i < n && bad != NO_TOKENS; i++)
		put_text(&g, bad == A_BYTE && i == 11 && !is_t5 ? "<0xG4>" :
			     bad == A_TEXT && i == 3  ? "\xff" :
							v[i].text);
	put_list(&g, "tokenizer.ggml.token_type", GGUF_INT32, n - (bad == FEW_TYPES));
	for (uint64_t i = 0; i < n - (bad == FEW_TYPES); i++)
		put_number(&g, is_t5 && v[i].type == 6 && bad != A_BYTE ? 5 : (uint64_t)v[i].type,
			   4);
	if (!is_bytes && bad != NO_SCORES) {
		put_list(&g, "tokenizer.ggml.scores", GGUF_FLOAT32, n);
		for (uint64_t i = 0; i < n; i++) {
			const float score = bad == A_SCORE ? NAN : v[i].score;

			put(&g, &score, 4);
		}
	}
	if (is_bytes && bad != NO_MERGES) {
		put_list(&g, "tokenizer.ggml.merges", GGUF_TEXT, TT_LEN(pairs));
		for (size_t i = 0; i < TT_LEN(pairs); i++)
			put_text(&g, bad == A_MERGE && i == 1 ? "a c" : pairs[i]);
	}
	if (is_bytes || bad == A_BOS) {
		put_key(&g, "tokenizer.ggml.bos_token_id", 4);
		put_number(&g, bad == A_BOS ? 99 : 9, 4);
	}
	put_key(&g, "tokenizer.ggml.add_space_prefix", bad == A_KEY ? GGUF_INT32 : GGUF_BOOL);
	put_number(&g, (uint64_t)space, bad == A_KEY ? 4 : 1);
	if (bad == A_MAP) {
		put_list(&g, "tokenizer.ggml.precompiled_charsmap", GGUF_INT8, 3);
		put(&g, "map", 3);
	}
	if (bad == A_UNK) {
		put_key(&g, "tokenizer.ggml.unknown_token_id", 4);
		put_number(&g, TT_LEN(pieces), 4);
	}
	if (!is_bytes && !is_t5) {
		put_key(&g, "tokenizer.ggml.add_eos_token", GGUF_BOOL);
		put_number(&g, 1, 1);
	}
	if (bad == MANY_ITEMS)
		g.nitems = 1 << 20;
	memcpy(g.p + 16, &g.nitems, 8);
	return g;
}

static struct te_token *load_gguf(const char *model, const char *pre, int space)
{
	struct gguf g = gguf_of(model, pre, space, NONE);
	struct te_token *t = NULL;
	const int r = te_token_load(g.p, g.n, NULL, &t);

	ck_assert_msg(!r, "%s", te_error_detail());
	return t;
}

static const struct {
	const char *pre, *digits, *word; /* tokens of "1111" and "abc" */
} gguf_pres[] = {
	{ NULL, "7 6 6", "4 2" },
	{ "default", "7 6 6", "4 2" },
	{ "gpt-2", "7 7", "4 2" },
	{ "smollm", "6 6 6 6", "4 2" },
	{ "llama-bpe", "7 6 6", "8" },
	{ "qwen2", "6 6 6 6", "4 2" },
	{ "gpt-4o", "7 6 6", "4 2" },
};

CASE(files, "serial");

TEST_EACH(files, gguf_of_bytes, TT_LEN(gguf_pres))
{
	struct te_token *t = load_gguf("gpt2", gguf_pres[_i].pre, 0);
	const int begins = gguf_pres[_i].pre && !strcmp(gguf_pres[_i].pre, "llama-bpe");
	size_t n;

	tl_gives(t, "1111", 0, gguf_pres[_i].digits, "1111");
	tl_gives(t, "abc", 0, gguf_pres[_i].word, "abc");
	tl_gives(t, "ab ab<|x|>\xe4\xb8\xad", 0, "4 5 9 10", "ab ab<|x|>\xe4\xb8\xad");
	tl_gives(t, "b", TE_TOKEN_TEMPLATE, begins ? "9 1" : "1", begins ? "<|x|>b" : "b");
	ck_assert_int_eq(te_token_count(t), TT_LEN(byte_pieces));
	ck_assert_int_eq(te_token_bos(t), 9);
	ck_assert_int_eq(te_token_eos(t), -ENOENT);
	ck_assert_int_eq(te_token_is_special(t, 9), 1);
	ck_assert_int_eq(te_token_is_special(t, 10), 0);
	ck_assert_int_eq(te_token_find(t, " ab", 3), 5);
	ck_assert(te_token_bytes(t, 5, &n) && n == 3);
	te_token_unref(t);
}

TEST(files, gguf_of_sentencepiece)
{
	struct te_token *t = load_gguf("llama", NULL, 1);

	/* a higher score merges first, the left one of equals */
	tl_gives(t, "ab abc", TE_TOKEN_TEMPLATE, "1 9 7 10 2", "<s> ab abc</s>");
	tl_gives(t, "ab abc", 0, "9 7 10", "ab abc");
	tl_gives(t, "a  b", 0, "7 14 4", "a  b");
	tl_gives(t, "\xe4\xb8\xad z zz b", 0, "6 11 12 13 6 0 6 0 6 4",
	      "\xe4\xb8\xad <unk> <unk> b");
	tl_gives(t, "<s>a</s> b<u>", 0, "1 7 2 14 4 15", "<s> a</s>  b<u>");
	tl_gives(t, "a<u>", TE_TOKEN_ORDINARY, "7 15", "a<u>");
	ck_assert_int_eq(te_token_bos(t), 1);
	ck_assert_int_eq(te_token_eos(t), 2);
	te_token_unref(t);

	t = load_gguf("llama", NULL, 0);
	tl_gives(t, "abc b", 0, "8 5 6 4", "abc b");
	tl_gives(t, " ab", 0, "9", " ab");
	te_token_unref(t);
}

TEST(files, gguf_of_a_unigram_model)
{
	struct te_token *t = load_gguf("t5", NULL, 1);

	/* the greatest sum: a piece of a merge, "_ab c" of -12, loses to "_a bc" of -2 */
	tl_gives(t, "ab abc", 0, "9 7 10", "ab abc");
	/* llama.cpp's default is to end with token 1, and to begin with none */
	tl_gives(t, "ab abc", TE_TOKEN_TEMPLATE, "9 7 10 1", "ab abc<s>");
	tl_gives(t, "a  b", 0, "7 14 4", "a  b");
	/* no bytes: neighbouring unknown characters are one token */
	tl_gives(t, "\xe4\xb8\xad z zz b", 0, "6 0 6 0 6 0 6 4", "<unk> <unk> <unk> b");
	tl_gives(t, "<s>a</s> b<u>", 0, "1 7 2 14 4 15", "<s> a</s>  b<u>");
	tl_gives(t, "a<u>", TE_TOKEN_ORDINARY, "7 15", "a<u>");
	/* it is in the text, unlike a special token, after which a text begins */
	tl_gives(t, "a<u>b", 0, "7 15 4", "a<u>b");
	tl_gives(t, "a<v>", 0, "7 0", "a<unk>");
	ck_assert_int_eq(te_token_bos(t), -ENOENT);
	ck_assert_int_eq(te_token_eos(t), 1);
	te_token_unref(t);

	t = load_gguf("t5", NULL, 0);
	tl_gives(t, "abc b", 0, "3 10 6 4", "abc b");
	te_token_unref(t);
}

static const struct {
	const char *model, *pre;
	enum defect bad;
	int want;
	const char *word;
} gguf_refused[] = {
	{ "bert", NULL, NONE, -EOPNOTSUPP, "\"bert\"" },
	{ "gpt2", "odd", NONE, -EOPNOTSUPP, "\"odd\"" },
	{ "gpt2", NULL, ODD_VERSION, -EOPNOTSUPP, "version 1" },
	{ "gpt2", NULL, NO_TOKENS, -TE_EFORMAT, "no tokenizer" },
	{ "gpt2", NULL, NO_MERGES, -TE_ECORRUPT, "merges" },
	{ "gpt2", NULL, A_MERGE, -TE_ECORRUPT, "merge 1" },
	{ "gpt2", NULL, A_BOS, -TE_ECORRUPT, "bos_token_id: token 99" },
	{ "gpt2", NULL, A_KEY, -TE_ECORRUPT, "add_space_prefix" },
	{ "gpt2", NULL, MANY_ITEMS, -TE_ECORRUPT, "65536" },
	{ "gpt2", NULL, MANY_TOKENS, -TE_ECORRUPT, "cut short" },
	{ "llama", NULL, NO_SCORES, -TE_ECORRUPT, "scores" },
	{ "llama", NULL, A_SCORE, -TE_ECORRUPT, "scores" },
	{ "llama", NULL, FEW_TYPES, -TE_ECORRUPT, "token_type" },
	{ "llama", NULL, A_BYTE, -TE_ECORRUPT, "token 11" },
	{ "llama", NULL, A_TEXT, -TE_ECORRUPT, "token 3" },
	{ "t5", NULL, NO_SCORES, -TE_ECORRUPT, "scores" },
	{ "t5", NULL, A_SCORE, -TE_ECORRUPT, "the score of piece 0" },
	{ "t5", NULL, FEW_TYPES, -TE_ECORRUPT, "token_type" },
	{ "t5", NULL, A_BYTE, -TE_ECORRUPT, "256 bytes" },
	{ "t5", NULL, A_TEXT, -TE_ECORRUPT, "token 3" },
	{ "t5", NULL, A_MAP, -TE_ECORRUPT, "precompiled_charsmap" },
	{ "t5", NULL, A_UNK, -TE_ECORRUPT, "unknown_token_id" },
	{ "t5", NULL, MANY_TOKENS, -TE_ECORRUPT, "cut short" },
};

TEST_EACH(files, gguf_is_refused_by_name, TT_LEN(gguf_refused))
{
	struct gguf g = gguf_of(gguf_refused[_i].model, gguf_refused[_i].pre, 1,
				gguf_refused[_i].bad);
	struct te_token *t = NULL;

	ck_assert_int_eq(te_token_load(g.p, g.n, NULL, &t), gguf_refused[_i].want);
	ck_assert_msg(strstr(te_error_detail(), gguf_refused[_i].word), "%s", te_error_detail());
	ck_assert_ptr_null(t);
}

TEST_EACH(files, damaged_gguf_is_refused, 2)
{
	const struct gguf good = gguf_of(_i ? "llama" : "gpt2", "smollm", 1, NONE);
	struct te_token *t = NULL;

	for (size_t n = 0; n < good.n; n++) {
		char *cut = malloc(n + 1);
		int r;

		memcpy(cut, good.p, n);
		r = te_token_load(cut, n, NULL, &t);
		ck_assert_msg(r == (n < 4 ? -TE_EFORMAT : -TE_ECORRUPT), "%zu bytes: %d: %s", n, r,
			      te_error_detail());
		free(cut);
	}
	for (int i = 0; i < TT_FEWER(3000); i++) {
		char *p = malloc(good.n);

		memcpy(p, good.p, good.n);
		p[tt_rand_int(0, (int)good.n - 1)] = (char)tt_rand_int(0, 255);
		if (te_token_load(p, good.n, NULL, &t) == 0)
			te_token_unref(t);
		free(p);
	}
}

TEST(files, opens_gguf_with_weights)
{
	struct gguf g = gguf_of("gpt2", "gpt-2", 0, NONE);
	char path[4200];
	struct te_token *t = NULL;
	FILE *f;

	snprintf(path, sizeof(path), "%s/model.gguf", tt_tmpdir());
	f = fopen(path, "w");
	fwrite(g.p, 1, g.n, f);
	/* weights beyond the limit of other files: a hole */
	ck_assert_int_eq(fseek(f, 5l << 28, SEEK_CUR), 0);
	fwrite("", 1, 1, f);
	fclose(f);
	ck_assert_int_eq(te_token_open(path, NULL, &t), 0);
	tl_gives(t, "ab ab", 0, "4 5", "ab ab");
	te_token_unref(t);
	ck_assert_int_eq(te_token_open(path, "odd", &t), -EINVAL);
	ck_assert_int_eq(truncate(path, (off_t)g.n - 1), 0);
	ck_assert_int_eq(te_token_open(path, NULL, &t), -TE_ECORRUPT);
	ck_assert_ptr_nonnull(strstr(te_error_detail(), path));
	unlink(path);
}

static const char small[] =
	"{'added_tokens': [{'id': 7, 'content': '<x>', 'special': true%s}, {'id': 8, "
	"'content': '中', 'special': false}], 'normalizer': %s, 'pre_tokenizer': {'type': "
	"'Sequence', 'pretokenizers': [%s{'type': 'ByteLevel', 'add_prefix_space': %s, "
	"'use_regex': true}]}, 'post_processor': {'type': 'TemplateProcessing', 'single': "
	"[%s{'SpecialToken': {'id': '<x>', 'type_id': 0}}, {'Sequence': {'id': 'A', "
	"'type_id': 0}}], 'special_tokens': {'<x>': {'id': '<x>', 'ids': [7], 'tokens': "
	"['<x>']}}}, 'decoder': {'type': 'ByteLevel'}, 'model': {'type': 'BPE', 'vocab': "
	"{'a': 0, 'b': 1, 'Ġ': 2, 'ab': 3, '1': 4, '11': 5, 'Ġab': 6, 'Ã': 9, '©': 11}, "
	"'merges': ['1 1', 'a b', 'Ġ ab']}}";
static const char digits[] = "{'type': 'Digits', 'individual_digits': true}, ";
static const char twice[] = "{'SpecialToken': {'id': '<x>', 'type_id': 0}}, ";

/* the tokenizer of small with parts of it */
static struct te_token *small_of(const char *strip, const char *norm, const char *first,
				 const char *prefix, const char *begin)
{
	char text[2048];

	snprintf(text, sizeof(text), small, strip, norm, first, prefix, begin);
	return tl_load(text);
}

/* the tokenizer of the metadata of t */
static struct te_token *by_gguf(const struct te_token *t, int32_t nvocab)
{
	struct te_token *back = NULL;
	void *data;
	size_t n;
	int r = te_token_gguf(t, nvocab, &data, &n);

	ck_assert_msg(!r, "%s", te_error_detail());
	r = te_token_load(data, n, NULL, &back);
	ck_assert_msg(!r, "%s", te_error_detail());
	free(data);
	return back;
}

TEST_EACH(files, gguf_has_what_was_loaded, 2)
{
	struct te_token *t = small_of("", "{'type': 'NFC'}", _i ? digits : "", "false", "");
	struct te_token *g = by_gguf(t, _i ? 0 : 15);
	size_t n;

	for (int i = 0; i < 2; i++) {
		const struct te_token *x = i ? g : t;

		tl_gives(x, "ab ab<x>中1111\xc3\xa9", TE_TOKEN_TEMPLATE,
		      _i ? "7 3 6 7 8 4 4 4 4 9 11" : "7 3 6 7 8 5 5 9 11", NULL);
		ck_assert_int_eq(te_token_is_special(x, 7), 1);
		ck_assert_int_eq(te_token_is_special(x, 8), 0);
	}
	ck_assert_int_eq(te_token_bos(g), 7);
	ck_assert_int_eq(te_token_eos(g), -ENOENT);
	ck_assert_int_eq(te_token_count(t), 12);
	ck_assert_int_eq(te_token_count(g), _i ? 12 : 15);
	ck_assert_int_eq(te_token_find(g, "[PAD10]", 7), -ENOENT);
	ck_assert(!te_token_bytes(g, 10, &n) || n == 7);
	te_token_unref(t);
	/* again, from what GGUF had */
	t = by_gguf(g, 0);
	tl_gives(t, "ab 11", TE_TOKEN_TEMPLATE, _i ? "7 3 2 4 4" : "7 3 2 5", NULL);
	te_token_unref(t);
	te_token_unref(g);
}

static const struct {
	const char *strip, *norm, *first, *prefix, *begin, *word;
} not_in_gguf[] = {
	{ ", 'lstrip': true", "null", "", "false", "", "lstrip" },
	{ ", 'rstrip': true", "null", "", "false", "", "rstrip" },
	{ "", "{'type': 'Lowercase'}", "", "false", "", "normalizer" },
	{ "", "null", "{'type': 'Punctuation'}, ", "false", "", "pre-tokenizer" },
	{ "", "null", "", "true", "", "pre-tokenizer" },
	{ "", "null", "", "false", twice, "template" },
};

TEST_EACH(files, gguf_refuses_what_it_cannot_express, TT_LEN(not_in_gguf))
{
	struct te_token *t =
		small_of(not_in_gguf[_i].strip, not_in_gguf[_i].norm, not_in_gguf[_i].first,
			 not_in_gguf[_i].prefix, not_in_gguf[_i].begin);
	void *data;
	size_t n;

	ck_assert_int_eq(te_token_gguf(t, 0, &data, &n), -EOPNOTSUPP);
	ck_assert_msg(strstr(te_error_detail(), not_in_gguf[_i].word), "%s", te_error_detail());
	te_token_unref(t);
	t = tl_load(tl_llama);
	ck_assert_int_eq(te_token_gguf(t, 0, &data, &n), -EOPNOTSUPP);
	ck_assert_ptr_nonnull(strstr(te_error_detail(), "a token for each byte"));
	te_token_unref(t);
}

TEST_EACH(files, gguf_of_trained_vocabularies, 4)
{
	static const char *const names[] = { "gpt2", "llama3", "qwen2", "o200k" };
	char *text = tl_sample(20000), *json = NULL;
	int32_t *ids, *same;
	size_t n, nsame;
	struct te_token *t = NULL, *g;

	ck_assert_int_eq(te_token_train(text, strlen(text), 400, names[_i], &json), 0);
	ck_assert_int_eq(te_token_load(json, strlen(json), NULL, &t), 0);
	g = by_gguf(t, 0);
	ck_assert_int_eq(te_token_encode(t, text, strlen(text), 0, 1, &ids, &n), 0);
	ck_assert_int_eq(te_token_encode(g, text, strlen(text), 0, 1, &same, &nsame), 0);
	ck_assert(n == nsame && !memcmp(ids, same, n * sizeof(*ids)));
	free(ids);
	free(same);
	free(json);
	free(text);
	te_token_unref(t);
	te_token_unref(g);
}

static int use_gguf(void)
{
	static const char *const models[] = { "gpt2", "llama" };
	struct te_token *t = NULL;
	int r = 0;

	for (int i = 0; i < 2 && !r; i++) {
		struct gguf g = gguf_of(models[i], NULL, 1, NONE);

		r = te_token_load(g.p, g.n, NULL, &t);
		if (!r)
			te_token_unref(t);
	}
	return r;
}

static int save_gguf(void)
{
	char text[2048], *json;
	struct te_token *t = NULL;
	void *data = NULL;
	size_t n;
	int r;

	snprintf(text, sizeof(text), small, "", "null", digits, "false", "");
	json = tl_json(text);
	r = te_token_load(json, strlen(json), NULL, &t);
	if (!r)
		r = te_token_gguf(t, 100, &data, &n);
	free(data);
	free(json);
	te_token_unref(t);
	return r;
}

TEST(files, faults)
{
	ck_assert_int_gt(tt_fault_each(use_gguf), 10);
	ck_assert_int_gt(tt_fault_each(save_gguf), 10);
}

TT_MAIN("token/gguf", TT_NEED_NOTHING)
