/* gguf_pieces.c - vocabularies of SentencePiece as GGUF files: te_token_gguf(3). */
#include "config.h"

#include "tt.h"

#include <te/errno.h>
#include <te/token.h>

#include "token_lib.h"

static const char *const texts[] = {
	"",
	"ab",
	"abab a bc",
	" a",
	"  two  spaces \n\n\tand tabs",
	"Gr\xc3\xb6\xc3\x9fgr \xe4\xb8\xad\xe6\x96\x87 \xf0\x9f\x98\x80",
	"The quick brown fox says: <s> is not </s>.",
	"aabbccabcabcbcbabcaab   abcc",
	"the <sep>tokens keepread \xef\xac\x81 caf\xc3\xa9keep  <sep> ",
};

static struct te_token *open_data(const char *name)
{
	struct te_token *t = NULL;
	char path[4200];
	int r;

	snprintf(path, sizeof(path), "%s/t/data/%s", getenv("abs_top_srcdir"), name);
	r = te_token_open(path, NULL, &t);
	ck_assert_msg(!r, "%s: %s", path, te_error_detail());
	return t;
}

static void check_same(const struct te_token *a, const struct te_token *b, const char *text,
		       size_t n)
{
	const uint32_t flags = TE_TOKEN_TEMPLATE | TE_TOKEN_ORDINARY;
	int32_t *x, *y;
	size_t nx, ny;

	ck_assert_int_eq(te_token_encode(a, text, n, flags, 1, &x, &nx), 0);
	ck_assert_int_eq(te_token_encode(b, text, n, flags, 1, &y, &ny), 0);
	ck_assert_msg(nx == ny && !memcmp(x, y, nx * sizeof(*x)), "%.*s", (int)n, text);
	free(x);
	free(y);
}

/* the tokenizer of the metadata of t, which gives the same tokens, and the same metadata unless it
 * has defaults of the format for the tokens that begin and end texts */
static struct te_token *by_gguf(const struct te_token *t, int32_t nvocab)
{
	struct te_token *back = NULL;
	void *data, *again;
	char random[64];
	size_t n, nagain;
	int r = te_token_gguf(t, nvocab, &data, &n);

	ck_assert_msg(!r, "%s", te_error_detail());
	r = te_token_load(data, n, NULL, &back);
	ck_assert_msg(!r, "%s", te_error_detail());
	for (size_t i = 0; i < TT_LEN(texts); i++)
		check_same(t, back, texts[i], strlen(texts[i]));
	for (int i = 0; i < 1000; i++) {
		for (size_t k = 0; k < sizeof(random); k++)
			random[k] = "aaabbcc "[tt_rand_int(0, 7)];
		check_same(t, back, random, (size_t)tt_rand_int(1, sizeof(random)));
	}
	ck_assert_int_eq(te_token_gguf(back, 0, &again, &nagain), 0);
	if (te_token_bos(t) >= 0) {
		ck_assert_uint_eq(n, nagain);
		ck_assert_mem_eq(data, again, n);
	}
	free(data);
	free(again);
	return back;
}

/* token 0 is the unknown one, and tokens of byte fallback are bytes */
static void check_types(const struct te_token *t)
{
	size_t n;
	const char *p = te_token_bytes(t, te_token_find(t, "<0x41>", 6), &n);

	ck_assert_int_eq(te_token_is_special(t, 0), 1);
	ck_assert(p && n == 1 && *p == 'A');
}

CASE(files, "serial");

TEST(files, of_a_model)
{
	struct te_token *t = open_data("sp_bpe.model"), *g = by_gguf(t, 0);

	ck_assert_int_eq(te_token_count(g), te_token_count(t));
	ck_assert_int_eq(te_token_bos(g), te_token_bos(t));
	ck_assert_int_eq(te_token_eos(g), te_token_eos(t));
	ck_assert_int_eq(te_token_is_special(g, te_token_bos(g)), 1);
	check_types(g);
	te_token_unref(g);
	g = by_gguf(t, 400);
	ck_assert_int_eq(te_token_count(g), 400);
	te_token_unref(g);
	te_token_unref(t);
}

TEST_EACH(files, of_a_unigram_model, 2)
{
	static const char *const names[] = { "sp_unigram.model", "sp_unigram_bare.model" };
	struct te_token *t = open_data(names[_i]), *g = by_gguf(t, 0);

	ck_assert_int_eq(te_token_count(g), te_token_count(t));
	ck_assert_int_eq(te_token_bos(g), te_token_bos(t));
	ck_assert_int_eq(te_token_eos(g), te_token_eos(t));
	te_token_unref(g);
	g = by_gguf(t, 2000);
	ck_assert_int_eq(te_token_count(g), 2000);
	te_token_unref(g);
	te_token_unref(t);
}

#define PREPEND "{'type': 'Prepend', 'prepend': '\xe2\x96\x81'}"
#define REPLACE "{'type': 'Replace', 'pattern': {'String': ' '}, 'content': '\xe2\x96\x81'}"
#define BOTH "{'type': 'Sequence', 'normalizers': [" PREPEND ", " REPLACE "]}"
#define METASPACE(scheme, split) \
	"{'type': 'Metaspace', 'replacement': '\xe2\x96\x81', 'prepend_scheme': '" scheme "', " \
	"'split': " split "}"
#define SPLIT \
	"{'type': 'Split', 'pattern': {'String': ' '}, 'behavior': 'MergedWithPrevious', " \
	"'invert': false}"
#define MERGES "'_ a', 'a b', '_a b', '_ ab', 'b c', '_ _'"
#define ADDED \
	"{'id': 0, 'content': '<unk>', 'special': true}, " \
	"{'id': 1, 'content': '<s>', 'special': true}, " \
	"{'id': 2, 'content': '</s>', 'special': true}"
#define FALLBACK "'byte_fallback': true"

/* a tokenizer.json with a token for each byte; '_' in merges is U+2581 */
static struct te_token *json_of(const char *norm, const char *pre, const char *merges,
				const char *added, const char *more)
{
	static const char *const words[] = { "a", "b", "c", "_", "_a", "ab", "_ab", "bc", "__" };
	char text[16384], *p = text, *end = text + sizeof(text);

	p += snprintf(p, (size_t)(end - p),
		      "{'added_tokens': [%s], 'normalizer': %s, 'pre_tokenizer': %s, 'decoder': "
		      "null, 'model': {'type': 'BPE', 'unk_token': '<unk>', 'fuse_unk': true, %s, "
		      "'vocab': {'<unk>': 0, '<s>': 1, '</s>': 2",
		      added, norm, pre, more);
	for (int i = 0; i < 256; i++)
		p += snprintf(p, (size_t)(end - p), ", '<0x%02X>': %d", (unsigned)i, 3 + i);
	for (int i = 0; i < (int)TT_LEN(words); i++) {
		p += snprintf(p, (size_t)(end - p), ", '");
		for (const char *q = words[i]; *q; q++)
			p += snprintf(p, (size_t)(end - p), "%s%.*s",
				      *q == '_' ? "\xe2\x96\x81" : "", *q != '_', q);
		p += snprintf(p, (size_t)(end - p), "': %d", 259 + i);
	}
	p += snprintf(p, (size_t)(end - p), "}, 'merges': [");
	for (const char *q = merges; *q; q++)
		p += snprintf(p, (size_t)(end - p), "%s%.*s", *q == '_' ? "\xe2\x96\x81" : "",
			      *q != '_', q);
	snprintf(p, (size_t)(end - p), "]}}");
	return tl_load(text);
}

static const struct {
	const char *norm, *pre;
} kinds[] = {
	{ BOTH, "null" },
	{ REPLACE, "null" },
	{ REPLACE, SPLIT },
	{ "null", METASPACE("never", "false") },
	{ "null", METASPACE("first", "false") },
	{ "null", METASPACE("always", "false") },
};
#define NEVER 3 /* the first one that puts no second space before a text that begins with one */

TEST_EACH(files, of_a_tokenizer_json, TT_LEN(kinds))
{
	struct te_token *t = json_of(kinds[_i].norm, kinds[_i].pre, MERGES, ADDED, FALLBACK), *g;

	tl_gives(t, "ab  bc", 0,
		 _i == 0 || _i > NEVER ? "265 267 266" : "264 267 266", NULL);
	if (_i <= NEVER) {
		g = by_gguf(t, 0);
	} else {
		void *data;
		size_t n;

		ck_assert_int_eq(te_token_gguf(t, 0, &data, &n), 0);
		ck_assert_int_eq(te_token_load(data, n, NULL, &g), 0);
		free(data);
		check_same(t, g, "ab  bc \xc3\xa9", 9);
		/* as SentencePiece and llama.cpp do */
		tl_gives(g, " a", 0, "262 263", NULL);
	}
	tl_gives(g, "a<s>", 0, _i == 0 || _i > NEVER ? "263 1" : "259 1", NULL);
	ck_assert_int_eq(te_token_is_special(g, 1), 1);
	check_types(g);
	te_token_unref(t);
	te_token_unref(g);
}

TEST(files, has_symbols_of_users)
{
	struct te_token *t = json_of(REPLACE, "null", MERGES,
				     ADDED ", {'id': 266, 'content': 'bc', 'special': false}",
				     FALLBACK);
	struct te_token *g = by_gguf(t, 0);

	tl_gives(g, "abcb", 0, "259 266 260", NULL);
	ck_assert_int_eq(te_token_is_special(g, 266), 0);
	te_token_unref(t);
	te_token_unref(g);
}

static const struct {
	const char *norm, *pre, *merges, *added, *more, *word;
} refused[] = {
	{ BOTH, "null", "'_ a', 'a b', '_ ab', 'b c', '_ _'", ADDED, FALLBACK,
	  "some of the pairs" },
	{ BOTH, "null", "'_ a', 'a b', '_a b', 'b c', '_ ab', '_ _'", ADDED, FALLBACK,
	  "another's between" },
	{ BOTH, "null", MERGES, ADDED, "'byte_fallback': false", "each byte" },
	{ BOTH, "null", MERGES, ADDED, FALLBACK ", 'ignore_merges': true", "ignore_merges" },
	{ "{'type': 'Lowercase'}", "null", MERGES, ADDED, FALLBACK, "normalizer" },
	{ PREPEND, "null", MERGES, ADDED, FALLBACK, "U+2581 for spaces" },
	{ "null", "null", MERGES, ADDED, FALLBACK, "U+2581 for spaces" },
	{ BOTH, "{'type': 'Punctuation'}", MERGES, ADDED, FALLBACK, "pre-tokenizer" },
	{ "null", SPLIT, MERGES, ADDED, FALLBACK, "pre-tokenizer" },
	{ "null", METASPACE("never", "true"), MERGES, ADDED, FALLBACK, "pre-tokenizer" },
	{ BOTH, "null", MERGES, ADDED ", {'id': 267, 'content': '\xe2\x96\x81\xe2\x96\x81'}",
	  FALLBACK, "added token" },
	{ BOTH, "null", MERGES, ADDED ", {'id': 266, 'content': 'bc', 'rstrip': true}", FALLBACK,
	  "rstrip" },
};

TEST_EACH(files, refuses_what_it_cannot_express, TT_LEN(refused))
{
	struct te_token *t = json_of(refused[_i].norm, refused[_i].pre, refused[_i].merges,
				     refused[_i].added, refused[_i].more);
	void *data;
	size_t n;

	ck_assert_int_eq(te_token_gguf(t, 0, &data, &n), -EOPNOTSUPP);
	ck_assert_msg(strstr(te_error_detail(), refused[_i].word), "%s", te_error_detail());
	te_token_unref(t);
}

#define UNIGRAM(norm, pre, more) \
	"{'normalizer': " norm ", 'pre_tokenizer': " pre ", 'model': {'type': 'Unigram', " \
	"'unk_id': 0, 'vocab': [['<unk>', 0.0], ['a', -1.0], ['\xe2\x96\x81', -2.0]" more "]}}"

TEST(files, refuses_other_models)
{
	static const struct {
		const char *name, *word;
	} models[] = { { UNIGRAM("null", METASPACE("always", "true"), ""), "Unigram" },
		       { UNIGRAM("{'type': 'NFC'}", "null", ""), "U+2581 for a space" },
		       { UNIGRAM("null", "null", ""), "U+2581 for spaces" },
		       { UNIGRAM(BOTH, "null", ", ['a', -3.0]"), "another one has its text" },
		       { "sp_bpe_rules.model", "each byte" } };

	for (size_t i = 0; i < TT_LEN(models); i++) {
		struct te_token *t = *models[i].name == '{' ? tl_load(models[i].name) :
							      open_data(models[i].name);
		void *data;
		size_t n;

		ck_assert_int_eq(te_token_gguf(t, 0, &data, &n), i == 3 ? -TE_ECORRUPT :
									  -EOPNOTSUPP);
		ck_assert_msg(strstr(te_error_detail(), models[i].word), "%s", te_error_detail());
		te_token_unref(t);
	}
}

TEST(files, of_a_unigram_tokenizer_json)
{
	struct te_token *t = tl_load(UNIGRAM(BOTH, "null", ", ['ab', -2.5]"));
	struct te_token *g = by_gguf(t, 0);

	tl_gives(g, "aab c", 0, "2 1 3 2 0", NULL);
	te_token_unref(t);
	te_token_unref(g);
}

static struct te_token *whole;

static int save(void)
{
	void *data = NULL;
	size_t n;
	const int r = te_token_gguf(whole, 0, &data, &n);

	free(data);
	return r;
}

TEST(files, faults)
{
	whole = json_of(BOTH, "null", MERGES, ADDED, FALLBACK);
	ck_assert_int_gt(tt_fault_each(save), 10);
	te_token_unref(whole);
}

TT_MAIN("token/gguf_pieces", TT_NEED_NOTHING)
