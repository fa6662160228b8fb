/*
 * token.c - te_token_open(3) and its relatives: tokens of hand-written vocabularies, what is
 * refused, damaged files, threads, streams, faults.
 *
 * Expected tokens of tokenizer.json are the ones of the Python package tokenizers 0.23.3.
 */
#include "config.h"

#include "tt.h"

#include <math.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <te/errno.h>
#include <te/token.h>

/* JSON with ' for " */
static const char llama[] =
	"{'added_tokens': [{'id': 0, 'content': '<unk>', 'special': true}, {'id': "
	"1, 'content': '<s>', 'special': true}, {'id': 2, 'content': '</s>', "
	"'special': true}], 'normalizer': {'type': 'Sequence', 'normalizers': "
	"[{'type': 'Prepend', 'prepend': '▁'}, {'type': 'Replace', 'pattern': "
	"{'String': ' '}, 'content': '▁'}]}, 'pre_tokenizer': null, "
	"'post_processor': {'type': 'TemplateProcessing', 'single': "
	"[{'SpecialToken': {'id': '<s>', 'type_id': 0}}, {'Sequence': {'id': 'A', "
	"'type_id': 0}}], 'pair': [], 'special_tokens': {'<s>': {'id': '<s>', "
	"'ids': [1], 'tokens': ['<s>']}}}, 'decoder': {'type': 'Sequence', "
	"'decoders': [{'type': 'Replace', 'pattern': {'String': '▁'}, 'content': ' "
	"'}, {'type': 'ByteFallback'}, {'type': 'Fuse'}, {'type': 'Strip', "
	"'content': ' ', 'start': 1, 'stop': 0}]}, 'model': {'type': 'BPE', "
	"'unk_token': '<unk>', 'fuse_unk': true, 'byte_fallback': true, 'vocab': "
	"{'<unk>': 0, '<s>': 1, '</s>': 2, 'a': 3, 'b': 4, 'c': 5, '▁': 6, '▁a': "
	"7, 'ab': 8, '▁ab': 9, 'bc': 10, '<0xE4>': 11, '<0xB8>': 12, '<0xAD>': 13, "
	"'▁▁': 14}, 'merges': ['▁ a', '▁ ▁', 'a b', '▁ ab', 'b c']}}";

static const char meta[] =
	"{'added_tokens': [], 'normalizer': null, 'pre_tokenizer': {'type': "
	"'Metaspace', 'replacement': '▁', 'prepend_scheme': 'always', 'split': "
	"true}, 'post_processor': null, 'decoder': {'type': 'Metaspace', "
	"'replacement': '▁', 'prepend_scheme': 'always', 'split': true}, 'model': "
	"{'type': 'BPE', 'unk_token': null, 'vocab': {'<unk>': 0, '<s>': 1, "
	"'</s>': 2, 'a': 3, 'b': 4, 'c': 5, '▁': 6, '▁a': 7, 'ab': 8, '▁ab': 9, "
	"'bc': 10, '<0xE4>': 11, '<0xB8>': 12, '<0xAD>': 13, '▁▁': 14}, 'merges': "
	"['▁ a', '▁ ▁', 'a b', '▁ ab', 'b c']}}";

static const char bytes[] =
	"{'added_tokens': [{'id': 8, 'content': '<x>', 'special': true, "
	"'normalized': false, 'lstrip': true, 'rstrip': false, 'single_word': "
	"false}, {'id': 9, 'content': '<y>', 'special': false, 'normalized': "
	"false, 'lstrip': false, 'rstrip': true, 'single_word': false}, {'id': 10, "
	"'content': 'cab', 'special': false, 'normalized': true, 'lstrip': false, "
	"'rstrip': false, 'single_word': true}], 'normalizer': {'type': "
	"'Sequence', 'normalizers': [{'type': 'NFC'}, {'type': 'Lowercase'}, "
	"{'type': 'Strip', 'strip_left': true, 'strip_right': true}]}, "
	"'pre_tokenizer': {'type': 'ByteLevel', 'add_prefix_space': false, "
	"'trim_offsets': true, 'use_regex': true}, 'post_processor': {'type': "
	"'RobertaProcessing', 'sep': ['<x>', 8], 'cls': ['<y>', 9], "
	"'trim_offsets': true, 'add_prefix_space': true}, 'decoder': {'type': "
	"'ByteLevel'}, 'model': {'type': 'BPE', 'vocab': {'a': 0, 'b': 1, 'c': 2, "
	"'Ġ': 3, 'ab': 4, 'Ġa': 5, 'Ã': 6, '©': 7}, 'merges': [['a','b'], "
	"['Ġ','a']]}}";

static const char split[] =
	"{'added_tokens': [], 'normalizer': null, 'pre_tokenizer': {'type': "
	"'Sequence', 'pretokenizers': [{'type': 'Digits', 'individual_digits': "
	"true}, {'type': 'Split', 'pattern': {'String': '-'}, 'behavior': '%s', "
	"'invert': false}]}, 'post_processor': null, 'decoder': {'type': 'Fuse'}, "
	"'model': {'type': 'BPE', 'vocab': {'1': 0, '2': 1, '12': 2, '-': 3, 'a': "
	"4, '-a': 5, 'a-': 6, '--': 7}, 'merges': ['1 2', 'a -', '- a', '- -']}}";

static const char words[] = "{'added_tokens': [], 'normalizer': {'type': 'Replace', 'pattern': "
			    "{'Regex': '[xy]+'}, 'content': 'a'}, 'pre_tokenizer': {'type': '%s'}, "
			    "'post_processor': null, 'decoder': null, 'model': {'type': 'BPE', "
			    "'unk_token': '-', 'vocab': {'1': 0, '2': 1, '12': 2, '-': 3, 'a': 4, "
			    "'-a': 5, 'a-': 6, '--': 7}, 'merges': ['1 2', 'a -', '- a', '- -']}}";

static char *json_of(const char *text)
{
	char *p = strdup(text);

	for (char *q = p; *q; q++)
		*q = *q == '\'' ? '"' : *q;
	return p;
}

static struct te_token *load(const char *text)
{
	char *p = json_of(text);
	struct te_token *t = NULL;
	const int r = te_token_load(p, strlen(p), NULL, &t);

	ck_assert_msg(!r, "%s", te_error_detail());
	free(p);
	return t;
}

static void gives(const struct te_token *t, const char *text, uint32_t flags, const char *want,
		  const char *decoded)
{
	char got[512] = "", *back;
	size_t n, nbytes;
	int32_t *ids;

	ck_assert_int_eq(te_token_encode(t, text, strlen(text), flags, 1, &ids, &n), 0);
	for (size_t i = 0; i < n; i++)
		sprintf(got + strlen(got), i ? " %d" : "%d", ids[i]);
	ck_assert_msg(!strcmp(got, want), "%s: tokens %s, expected %s", text, got, want);
	ck_assert_int_eq(te_token_decode(t, ids, n, 0, &back, &nbytes), 0);
	ck_assert_uint_eq(nbytes, strlen(back));
	if (decoded)
		ck_assert_str_eq(back, decoded);
	free(back);
	free(ids);
}

START_TEST(sentencepiece_style_with_byte_fallback_and_template)
{
	struct te_token *t = load(llama);

	gives(t, "ab abc", TE_TOKEN_TEMPLATE, "1 7 4 7 10", "<s> ab abc");
	gives(t, "ab abc", 0, "7 4 7 10", "ab abc");
	gives(t, "a  b", TE_TOKEN_TEMPLATE, "1 7 14 4", "<s> a  b");
	gives(t, "\xe4\xb8\xad z zz b", TE_TOKEN_TEMPLATE, "1 6 11 12 13 6 0 6 0 6 4",
	      "<s> \xe4\xb8\xad <unk> <unk> b");
	gives(t, "<s>a</s> b", TE_TOKEN_TEMPLATE, "1 1 7 2 14 4", "<s><s> a</s>  b");
	gives(t, "", TE_TOKEN_TEMPLATE, "1", "<s>");
	gives(t, " a", 0, "6 7", " a");
	te_token_unref(t);
}
END_TEST

START_TEST(metaspace)
{
	struct te_token *t = load(meta);

	gives(t, "ab abc", 0, "7 4 7 10", "ab abc");
	gives(t, "a  b", 0, "7 6 6 4", "a  b");
	gives(t, " a", 0, "7", "a");
	gives(t, "zab", 0, "7 4", "ab");
	te_token_unref(t);
}
END_TEST

START_TEST(added_tokens_and_normalizers)
{
	struct te_token *t = load(bytes);

	gives(t, "ab a AB", TE_TOKEN_TEMPLATE, "9 4 5 3 4 8", "<y>ab a ab<x>");
	gives(t, "a <x> b <y>  c", TE_TOKEN_TEMPLATE, "9 0 8 1 9 2 8", "<y>a<x>b<y>c<x>");
	gives(t, "CAB xcab cab", TE_TOKEN_TEMPLATE, "9 10 3 2 4 3 10 8", "<y>cab cab cab<x>");
	gives(t,
	      "e\xcc\x81"
	      "a  \xc3\x89 ",
	      TE_TOKEN_TEMPLATE, "9 6 7 0 3 3 6 7 8",
	      "<y>\xc3\xa9"
	      "a  \xc3\xa9<x>");
	gives(t, " a ", TE_TOKEN_TEMPLATE, "9 0 8", "<y>a<x>");
	/* characters of the special token that the vocabulary has no token for are left out */
	gives(t, "a<x>b", TE_TOKEN_ORDINARY, "0 1", "ab");
	gives(t, "a<x>b", 0, "0 8 1", "a<x>b");
	te_token_unref(t);
}
END_TEST

static const struct {
	const char *behavior, *want, *decoded;
} behaviors[] = {
	{ "Isolated", "0 1 3 4 3 0 1 4 3 3 4 3", "12-a-12a--a-" },
	{ "Removed", "0 1 4 0 1 4 4", "12a12aa" },
	{ "MergedWithPrevious", "0 1 3 6 0 1 6 3 6", "12-a-12a--a-" },
	{ "MergedWithNext", "0 1 5 3 0 1 4 3 5 3", "12-a-12a--a-" },
	{ "Contiguous", "0 1 3 4 3 0 1 4 7 4 3", "12-a-12a--a-" },
};

/* a text with one %s */
static char *with(const char *text, const char *word)
{
	const char *at = strstr(text, "%s");
	char *p = malloc(strlen(text) + strlen(word) + 1);

	sprintf(p, "%.*s%s%s", (int)(at - text), text, word, at + 2);
	return p;
}

START_TEST(splits_by_behavior)
{
	char *text = with(split, behaviors[_i].behavior);
	struct te_token *t = load(text);

	gives(t, "12-a-12a--a-", 0, behaviors[_i].want, behaviors[_i].decoded);
	te_token_unref(t);
	free(text);
}
END_TEST

static const struct {
	const char *type, *want, *decoded;
} steps[] = {
	{ "Whitespace", "4 3 2 4 4 3 4 7 3", "a - 12 a a - a -- -" },
	{ "WhitespaceSplit", "6 2 4 6 4 7 3", "a- 12 a a- a -- -" },
	{ "Digits", "6 3 2 3 6 6 6 7 3", "a- - 12 - a- a- a- -- -" },
	{ "Punctuation', 'behavior': 'Isolated", "4 3 3 2 3 6 4 3 6 3 3 3",
	  "a - - 12 - a- a - a- - - -" },
};

START_TEST(pre_tokenizers)
{
	char *text = with(words, steps[_i].type);
	struct te_token *t = load(text);

	gives(t, "a- 12\xc2\xa0xyx a-a\xe3\x80\x80--z", 0, steps[_i].want, steps[_i].decoded);
	te_token_unref(t);
	free(text);
}
END_TEST

#define MODEL "'model': {'type': 'BPE', 'vocab': {'a': 0}, 'merges': []}"

static const struct {
	const char *text;
	int want;
	const char *word; /* in the message */
} refused[] = {
	{ "", -TE_EFORMAT, "no tokenizer" },
	{ "hello", -TE_EFORMAT, "no tokenizer" },
	{ "{", -TE_ECORRUPT, "line 1" },
	{ "{}", -TE_ECORRUPT, "no model" },
	{ "{'model': {'type': 'Unigram', 'vocab': []}}", -EOPNOTSUPP, "Unigram" },
	{ "{'model': {'type': 'WordPiece', 'vocab': {}}}", -EOPNOTSUPP, "WordPiece" },
	{ "{'model': {'type': 'BPE', 'vocab': [], 'merges': []}}", -TE_ECORRUPT, "vocab" },
	{ "{'model': {'type': 'BPE', 'vocab': {'a': -1}, 'merges': []}}", -TE_ECORRUPT, "range" },
	{ "{'model': {'type': 'BPE', 'vocab': {'a': 99999999}, 'merges': []}}", -TE_ECORRUPT,
	  "range" },
	{ "{'model': {'type': 'BPE', 'vocab': {'a': 0}, 'merges': ['a b']}}", -TE_ECORRUPT,
	  "merge 0" },
	{ "{'model': {'type': 'BPE', 'vocab': {'a': 0}, 'merges': [1]}}", -TE_ECORRUPT, "merge 0" },
	{ "{'model': {'type': 'BPE', 'vocab': {'a': 0}, 'merges': [], 'unk_token': 'u'}}",
	  -TE_ECORRUPT, "unk_token" },
	{ "{'model': {'type': 'BPE', 'vocab': {}, 'merges': [], 'dropout': 0.5}}", -EOPNOTSUPP,
	  "dropout" },
	{ "{'model': {'type': 'BPE', 'vocab': {}, 'merges': [], 'end_of_word_suffix': 'w'}}",
	  -EOPNOTSUPP, "end_of_word_suffix" },
	{ "{'model': {'type': 'BPE', 'vocab': {}, 'merges': [], 'continuing_subword_prefix': 'w'}}",
	  -EOPNOTSUPP, "continuing_subword_prefix" },
	{ "{'normalizer': {'type': 'Precompiled'}, " MODEL "}", -EOPNOTSUPP, "Precompiled" },
	{ "{'normalizer': {'type': 'BertNormalizer'}, " MODEL "}", -EOPNOTSUPP, "BertNormalizer" },
	{ "{'normalizer': {}, " MODEL "}", -TE_ECORRUPT, "normalizer" },
	{ "{'normalizer': {'type': 'Replace', 'pattern': {'Regex': '(?R)'}, 'content': ''}, " MODEL
	  "}",
	  -EOPNOTSUPP, "group" },
	{ "{'normalizer': {'type': 'Replace', 'pattern': {'String': ''}, 'content': ''}, " MODEL
	  "}",
	  -EOPNOTSUPP, "Replace of nothing" },
	{ "{'pre_tokenizer': {'type': 'UnicodeScripts'}, " MODEL "}", -EOPNOTSUPP,
	  "UnicodeScripts" },
	{ "{'pre_tokenizer': {'type': 'Sequence', 'pretokenizers': [{'type': 'ByteLevel'}, "
	  "{'type': 'Digits'}]}, " MODEL "}",
	  -EOPNOTSUPP, "after ByteLevel" },
	{ "{'pre_tokenizer': {'type': 'Split', 'behavior': 'Odd'}, " MODEL "}", -EOPNOTSUPP,
	  "Odd" },
	{ "{'pre_tokenizer': {'type': 'Split', 'behavior': 'Isolated', 'pattern': {'Regex': "
	  "'[a&&b]'}}, " MODEL "}",
	  -EOPNOTSUPP, "intersection" },
	{ "{'pre_tokenizer': {'type': 'Split', 'behavior': 'Isolated', 'pattern': {'Regex': "
	  "'a('}}, " MODEL "}",
	  -EOPNOTSUPP, "pattern" },
	{ "{'pre_tokenizer': {'type': 'Metaspace', 'replacement': '_', 'prepend_scheme': "
	  "'odd'}, " MODEL
	  "}",
	  -EOPNOTSUPP, "odd" },
	{ "{'decoder': {'type': 'CTC'}, " MODEL "}", -EOPNOTSUPP, "CTC" },
	{ "{'decoder': {'type': 'Strip', 'content': ' ', 'start': 1}, " MODEL "}", -EOPNOTSUPP,
	  "Strip" },
	{ "{'post_processor': {'type': 'Odd'}, " MODEL "}", -EOPNOTSUPP, "Odd" },
	{ "{'post_processor': {'type': 'TemplateProcessing', 'single': []}, " MODEL "}",
	  -EOPNOTSUPP, "template" },
	{ "{'post_processor': {'type': 'BertProcessing', 'cls': ['c', 7], 'sep': ['s', 0]}, " MODEL
	  "}",
	  -TE_ECORRUPT, "post_processor" },
	{ "{'config': {}}", -TE_ECORRUPT, "tekken" },
	{ "{'model': {'type': 'BPE', 'vocab': {'a': 0}, 'merges': [' a']}}", -TE_ECORRUPT,
	  "merge 0" },
	{ "YQ== 0\nYg== 1\n", -EOPNOTSUPP, "2 ranks" },
	{ "YQ== 0\nYg== x\n", -TE_ECORRUPT, "line 2" },
	{ "YQ=A 0\n", -TE_ECORRUPT, "base64" },
	{ "YQ== 99999999\n", -EFBIG, "99999999" },
};

START_TEST(refuses_by_name)
{
	char *p = json_of(refused[_i].text);
	struct te_token *t = NULL;
	const int r = te_token_load(p, strlen(p), NULL, &t);

	ck_assert_msg(r == refused[_i].want, "%s: %d: %s", p, r, te_error_detail());
	ck_assert_msg(strstr(te_error_detail(), refused[_i].word), "%s: %s", p, te_error_detail());
	ck_assert_ptr_null(t);
	free(p);
}
END_TEST

START_TEST(deep_nesting_is_refused)
{
	char text[4096];
	struct te_token *t;

	memset(text, '[', sizeof(text));
	memcpy(text, "{\"a\":", 5);
	ck_assert_int_eq(te_token_load(text, sizeof(text), NULL, &t), -TE_ECORRUPT);
	ck_assert_ptr_nonnull(strstr(te_error_detail(), "deeper"));
}
END_TEST

/* replacements that make each other's results longer do not use up the memory */
START_TEST(growing_text_is_refused)
{
	char text[4096] = "{'normalizer': {'type': 'Sequence', 'normalizers': [", *p;
	struct te_token *t = NULL;
	int32_t *ids;
	size_t n;

	for (int i = 0; i < 12; i++)
		sprintf(text + strlen(text),
			"%s{'type': 'Replace', 'pattern': {'String': 'a'}, "
			"'content': 'aaaaaaaaaaaaaaaa'}",
			i ? ", " : "");
	strcat(text, "]}, " MODEL "}");
	p = json_of(text);
	ck_assert_int_eq(te_token_load(p, strlen(p), NULL, &t), 0);
	ck_assert_int_eq(te_token_encode(t, "a", 1, 0, 1, &ids, &n), -EFBIG);
	te_token_unref(t);
	free(p);
}
END_TEST

START_TEST(ranks_of_tiktoken)
{
	/* bytes a, b, c, space; then "ab", "abc" and "bc" */
	static const char text[] = "YQ== 0\nYg== 1\nYw== 2\nIA== 3\nYWI= 4\nYWJj 5\nYmM= 6\n";
	struct te_token *t = NULL;

	ck_assert_int_eq(te_token_load(text, strlen(text), "gpt2", &t), 0);
	gives(t, "abc abcc bcab", 0, "5 3 5 2 3 6 4", "abc abcc bcab");
	ck_assert_int_eq(te_token_count(t), 7);
	te_token_unref(t);
	ck_assert_int_eq(te_token_load(text, strlen(text), "odd", &t), -EINVAL);
}
END_TEST

START_TEST(tekken)
{
	static const char text[] =
		"{'config': {'pattern': '[a-c]+| ', 'default_vocab_size': 8, "
		"'default_num_special_tokens': 3}, 'vocab': [{'rank': 0, 'token_bytes': 'YQ=='}, "
		"{'rank': 1, 'token_bytes': 'Yg=='}, {'rank': 2, 'token_bytes': 'Yw=='}, "
		"{'rank': 3, 'token_bytes': 'IA=='}, {'rank': 4, 'token_bytes': 'YWI='}, "
		"{'rank': 5, 'token_bytes': 'YWJj'}]}";
	struct te_token *t = load(text);

	gives(t, "ab abc", TE_TOKEN_TEMPLATE, "1 7 6 7 5", "<s>ab abc");
	ck_assert_int_eq(te_token_count(t), 8);
	ck_assert_int_eq(te_token_find(t, "</s>", 4), 2);
	ck_assert_int_eq(te_token_bos(t), 1);
	ck_assert_int_eq(te_token_eos(t), 2);
	ck_assert_int_eq(te_token_is_special(t, 2), 1);
	ck_assert_int_eq(te_token_is_special(t, 3), 0);
	te_token_unref(t);
}
END_TEST

START_TEST(vocabulary_is_readable)
{
	struct te_token *t = load(llama);
	const char *p;
	size_t n;

	ck_assert_int_eq(te_token_count(t), 15);
	ck_assert_int_eq(te_token_find(t, "ab", 2), 8);
	ck_assert_int_eq(te_token_find(t, "ba", 2), -ENOENT);
	ck_assert_int_eq(te_token_bos(t), -ENOENT);
	p = te_token_bytes(t, 9, &n);
	ck_assert(n == 3 && !memcmp(p, " ab", 3));
	p = te_token_bytes(t, 11, &n);
	ck_assert(n == 1 && !memcmp(p, "\xe4", 1));
	ck_assert_ptr_null(te_token_bytes(t, 15, &n));
	ck_assert_ptr_null(te_token_bytes(t, -1, &n));
	ck_assert_str_eq(te_token_version(), PACKAGE_VERSION);
	te_token_unref(te_token_ref(t));
	te_token_unref(t);
	te_token_unref(NULL);
}
END_TEST

START_TEST(arguments_are_checked)
{
	struct te_token *t = load(llama);
	struct te_token_stream *s;
	int32_t bad = 15, *ids;
	size_t n;
	char *p;

	ck_assert_int_eq(te_token_encode(t, "a", 1, 64, 1, &ids, &n), -EINVAL);
	ck_assert_int_eq(te_token_encode(t, "a", 1, 0, -1, &ids, &n), -EINVAL);
	ck_assert_int_eq(te_token_encode(t, NULL, 1, 0, 1, &ids, &n), -EINVAL);
	ck_assert_int_eq(te_token_encode(NULL, "a", 1, 0, 1, &ids, &n), -EINVAL);
	ck_assert_int_eq(te_token_decode(t, &bad, 1, 0, &p, &n), -EINVAL);
	ck_assert_ptr_nonnull(strstr(te_error_detail(), "token 15"));
	ck_assert_int_eq(te_token_decode(t, &bad, 1, 1, &p, &n), -EINVAL);
	ck_assert_int_eq(te_token_stream_create(t, 1, &s), -EINVAL);
	ck_assert_int_eq(te_token_stream_create(NULL, 0, &s), -EINVAL);
	ck_assert_int_eq(te_token_open(NULL, NULL, &t), -EINVAL);
	ck_assert_int_eq(te_token_open("/nowhere/at/all", NULL, &t), -ENOENT);
	ck_assert_int_eq(te_token_train("a", 1, 255, NULL, &p), -EINVAL);
	ck_assert_int_eq(te_token_train("a", 1, 256, "odd", &p), -EINVAL);
	ck_assert_int_eq(te_token_gguf(t, 14, (void **)&p, &n), -EINVAL);
	ck_assert_int_eq(te_token_gguf(t, -1, (void **)&p, &n), -EINVAL);
	ck_assert_int_eq(te_token_gguf(NULL, 0, (void **)&p, &n), -EINVAL);
	te_token_unref(t);
}
END_TEST

static char *sample(size_t nbytes)
{
	static const char *const word[] = {
		" the",
		" model",
		" of",
		" tokens",
		"12",
		"\n",
		"  ",
		" caf\xc3\xa9",
		" it's",
		", ",
		"\xe4\xb8\xad\xe6\x96\x87",
		"\xf0\x9f\x98\x80",
		" Ab",
		" ab",
		" bab",
		"(x)",
		"\t",
	};
	char *p = malloc(nbytes + 16);
	size_t n = 0;

	while (n < nbytes) {
		const char *w = word[tt_rand_int(0, TT_LEN(word) - 1)];

		memcpy(p + n, w, strlen(w));
		n += strlen(w);
	}
	p[n] = 0;
	return p;
}

static struct te_token *trained(int32_t nvocab, const char *pattern)
{
	char *text = sample(20000), *json;
	struct te_token *t = NULL;

	ck_assert_int_eq(te_token_train(text, strlen(text), nvocab, pattern, &json), 0);
	ck_assert_int_eq(te_token_load(json, strlen(json), NULL, &t), 0);
	free(json);
	free(text);
	return t;
}

START_TEST(training_merges_the_most_frequent_pair)
{
	static const char text[] = "ab ab ab abc";
	struct te_token *t = NULL;
	char *json;

	ck_assert_int_eq(te_token_train(text, strlen(text), 260, NULL, &json), 0);
	ck_assert_int_eq(te_token_load(json, strlen(json), NULL, &t), 0);
	/* (a,b) 4 times, then (space,ab) 3 times; the word " abc" is there once */
	ck_assert_int_eq(te_token_count(t), 258);
	ck_assert_int_eq(te_token_find(t, "ab", 2), 256);
	ck_assert_int_eq(te_token_find(t, " ab", 3), 257);
	gives(t, "ab abc", 0, "256 257 99", "ab abc");
	te_token_unref(t);
	free(json);
}
END_TEST

static const char *const patterns[] = { "gpt2", "cl100k", "o200k", "llama3", "qwen2" };

START_TEST(decoding_gives_the_text_back)
{
	struct te_token *t = trained(400, patterns[_i]);
	char *text = sample(20000), *back;
	const size_t nbytes = strlen(text);
	size_t n, nback;
	int32_t *ids;

	ck_assert_int_eq(te_token_encode(t, text, nbytes, 0, 1, &ids, &n), 0);
	ck_assert_uint_lt(n, nbytes / 2);
	ck_assert_int_eq(te_token_decode(t, ids, n, 0, &back, &nback), 0);
	ck_assert(nback == nbytes && !memcmp(back, text, nbytes));
	free(back);
	free(ids);
	free(text);
	te_token_unref(t);
}
END_TEST

/* the merges of a word by their definition: the pair of lowest rank, the first of several */
START_TEST(long_words_have_the_tokens_of_short_ones)
{
	struct te_token *t = trained(350, NULL);
	char text[2000];
	int32_t *ids, sym[sizeof(text)];
	size_t n, left, k;

	for (int round = 0; round < TT_FEWER(40); round++) {
		const size_t len = (size_t)tt_rand_int(1, sizeof(text));

		for (size_t i = 0; i < len; i++)
			text[i] = "themodlabc"[tt_rand_int(0, 9)];
		for (size_t i = 0; i < len; i++)
			sym[i] = te_token_find(t, text + i, 1);
		for (left = len;;) {
			int32_t best = INT32_MAX, id;
			size_t at = 0;

			for (size_t i = 0; i + 1 < left; i++) {
				char pair[256];
				size_t a, b;
				const void *p = te_token_bytes(t, sym[i], &a);
				const void *q = te_token_bytes(t, sym[i + 1], &b);

				ck_assert(a + b < sizeof(pair));
				memcpy(pair, p, a);
				memcpy(pair + a, q, b);
				/* trained: a token's number is the rank of its one merge */
				id = te_token_find(t, pair, a + b);
				if (id >= 0 && id < best) {
					best = id;
					at = i;
				}
			}
			if (best == INT32_MAX)
				break;
			sym[at] = best;
			memmove(sym + at + 1, sym + at + 2, (left - at - 2) * sizeof(*sym));
			left--;
		}
		ck_assert_int_eq(te_token_encode(t, text, len, 0, 1, &ids, &n), 0);
		for (k = 0; k < n && k < left && ids[k] == sym[k]; k++)
			;
		ck_assert_msg(n == left && k == n, "%zu bytes: token %zu", len, k);
		free(ids);
	}
	te_token_unref(t);
}
END_TEST

START_TEST(threads_do_not_change_tokens)
{
	struct te_token *t = _i < 5 ? trained(400, patterns[_i]) : load(_i == 5 ? llama : meta);
	char *text = sample(1 << 20);
	int32_t *one, *many;
	size_t n, m;

	/* a run of letters longer than a thread's part: its cuts are not ends of words */
	if (_i == 1)
		memset(text + 1000, 'a', 600000);
	ck_assert_int_eq(te_token_encode(t, text, strlen(text), 0, 1, &one, &n), 0);
	ck_assert_int_eq(te_token_encode(t, text, strlen(text), 0, 4, &many, &m), 0);
	ck_assert_uint_eq(n, m);
	ck_assert(!memcmp(one, many, n * sizeof(*one)));
	free(one);
	free(many);
	free(text);
	te_token_unref(t);
}
END_TEST

static struct te_token *shared;

static void *encode_in_thread(void *arg)
{
	int32_t *ids;
	size_t n;

	for (int i = 0; i < 20; i++) {
		if (te_token_encode(shared, arg, strlen(arg), 0, 1, &ids, &n))
			return "failed";
		free(ids);
	}
	return NULL;
}

START_TEST(several_threads_use_one_tokenizer)
{
	char *text = sample(5000);
	pthread_t thread[4];
	void *why;

	shared = trained(300, NULL);
	for (int i = 0; i < 4; i++)
		ck_assert_int_eq(pthread_create(&thread[i], NULL, encode_in_thread, text), 0);
	for (int i = 0; i < 4; i++) {
		pthread_join(thread[i], &why);
		ck_assert_ptr_null(why);
	}
	shared = te_token_unref(shared);
	free(text);
}
END_TEST

/* bytes and what Python's bytes.decode("utf-8", "replace") makes of them */
static const struct {
	const char *bytes, *want;
} damaged[] = {
	{ "a\xff"
	  "b",
	  "a\xef\xbf\xbd"
	  "b" },
	{ "\xe4\xb8", "\xef\xbf\xbd" },
	{ "\xe4\xb8"
	  "a",
	  "\xef\xbf\xbd"
	  "a" },
	{ "\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" },
	{ "\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd" },
	{ "\xf0\x9f\x98"
	  "\xf0\x9f\x98\x80",
	  "\xef\xbf\xbd\xf0\x9f\x98\x80" },
	{ "\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" },
};

START_TEST(replaces_what_is_not_utf8)
{
	struct te_token *t = trained(300, NULL);
	char *back;
	size_t n, nback;
	int32_t *ids;

	ck_assert_int_eq(te_token_encode(t, damaged[_i].bytes, strlen(damaged[_i].bytes), 0, 1,
					 &ids, &n),
			 0);
	ck_assert_int_eq(te_token_decode(t, ids, n, 0, &back, &nback), 0);
	ck_assert_str_eq(back, damaged[_i].want);
	free(back);
	free(ids);
	te_token_unref(t);
}
END_TEST

START_TEST(streams_give_whole_characters)
{
	/* no merges: each token is a byte */
	static const char text[] = "a\xe4\xb8\xad\xf0\x9f\x98\x80z\xc3\xa9";
	static const size_t want[] = { 1, 0, 0, 3, 0, 0, 0, 4, 1, 0, 2 };
	struct te_token *t = trained(256, NULL);
	struct te_token_stream *s;
	char *p, all[32] = "";
	size_t n;

	ck_assert_int_eq(te_token_stream_create(t, 0, &s), 0);
	ck_assert_ptr_eq(te_token_stream_ref(s), s);
	te_token_stream_unref(s);
	for (size_t i = 0; i < strlen(text); i++) {
		ck_assert_int_eq(te_token_stream_push(s, (unsigned char)text[i], &p, &n), 0);
		ck_assert_uint_eq(n, want[i]);
		strcat(all, p);
		free(p);
	}
	ck_assert_str_eq(all, text);
	/* a part of a character waits until the end, or until it can be no character */
	ck_assert_int_eq(te_token_stream_push(s, 0xe4, &p, &n), 0);
	ck_assert_uint_eq(n, 0);
	free(p);
	ck_assert_int_eq(te_token_stream_push(s, 'x', &p, &n), 0);
	ck_assert_str_eq(p, "\xe4x");
	free(p);
	ck_assert_int_eq(te_token_stream_push(s, 0xf0, &p, &n), 0);
	ck_assert_uint_eq(n, 0);
	free(p);
	ck_assert_int_eq(te_token_stream_end(s, &p, &n), 0);
	ck_assert_str_eq(p, "\xf0");
	free(p);
	ck_assert_int_eq(te_token_stream_push(s, 256, &p, &n), -EINVAL);
	te_token_stream_unref(s);
	te_token_unref(t);

	/* the first space of a text is not a part of it; special tokens can be left out */
	t = load(llama);
	ck_assert_int_eq(te_token_stream_create(t, TE_TOKEN_SKIP_SPECIAL, &s), 0);
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(te_token_stream_push(s, 1, &p, &n), 0);
		ck_assert_str_eq(p, "");
		free(p);
		ck_assert_int_eq(te_token_stream_push(s, 7, &p, &n), 0);
		ck_assert_str_eq(p, "a");
		free(p);
		ck_assert_int_eq(te_token_stream_push(s, 7, &p, &n), 0);
		ck_assert_str_eq(p, " a");
		free(p);
		ck_assert_int_eq(te_token_stream_end(s, &p, &n), 0);
		ck_assert_uint_eq(n, 0);
		free(p);
	}
	te_token_stream_unref(s);
	te_token_unref(t);
}
END_TEST

START_TEST(opens_files_and_folders)
{
	char dir[4096], path[4200], *text = json_of(llama);
	struct te_token *t = NULL;
	FILE *f;

	snprintf(dir, sizeof(dir), "%s/model", tt_tmpdir());
	ck_assert_int_eq(mkdir(dir, 0755), 0);
	ck_assert_int_eq(te_token_open(dir, NULL, &t), -ENOENT);
	ck_assert_ptr_nonnull(strstr(te_error_detail(), "the folder has no"));
	snprintf(path, sizeof(path), "%s/tokenizer.json", dir);
	f = fopen(path, "w");
	fputs("{", f);
	fclose(f);
	ck_assert_int_eq(te_token_open(dir, NULL, &t), -TE_ECORRUPT);
	ck_assert_ptr_nonnull(strstr(te_error_detail(), path));
	f = fopen(path, "w");
	fputs(text, f);
	fclose(f);
	ck_assert_int_eq(te_token_open(dir, NULL, &t), 0);
	te_token_unref(t);
	ck_assert_int_eq(te_token_open(path, NULL, &t), 0);
	gives(t, "ab abc", 0, "7 4 7 10", "ab abc");
	te_token_unref(t);
	free(text);
	tt_remove(dir);
}
END_TEST

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

enum { GGUF_INT32 = 5, GGUF_FLOAT32 = 6, GGUF_BOOL = 7, GGUF_TEXT = 8, GGUF_LIST = 9 };

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
	const int is_bytes = !strcmp(model, "gpt2");
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
		put_text(&g, bad == A_BYTE && i == 11 ? "<0xG4>" :
			     bad == A_TEXT && i == 3  ? "\xff" :
							v[i].text);
	put_list(&g, "tokenizer.ggml.token_type", GGUF_INT32, n - (bad == FEW_TYPES));
	for (uint64_t i = 0; i < n - (bad == FEW_TYPES); i++)
		put_number(&g, (uint64_t)v[i].type, 4);
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
	if (!is_bytes) {
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

START_TEST(gguf_of_bytes)
{
	struct te_token *t = load_gguf("gpt2", gguf_pres[_i].pre, 0);
	const int begins = gguf_pres[_i].pre && !strcmp(gguf_pres[_i].pre, "llama-bpe");
	size_t n;

	gives(t, "1111", 0, gguf_pres[_i].digits, "1111");
	gives(t, "abc", 0, gguf_pres[_i].word, "abc");
	gives(t, "ab ab<|x|>\xe4\xb8\xad", 0, "4 5 9 10", "ab ab<|x|>\xe4\xb8\xad");
	gives(t, "b", TE_TOKEN_TEMPLATE, begins ? "9 1" : "1", begins ? "<|x|>b" : "b");
	ck_assert_int_eq(te_token_count(t), TT_LEN(byte_pieces));
	ck_assert_int_eq(te_token_bos(t), 9);
	ck_assert_int_eq(te_token_eos(t), -ENOENT);
	ck_assert_int_eq(te_token_is_special(t, 9), 1);
	ck_assert_int_eq(te_token_is_special(t, 10), 0);
	ck_assert_int_eq(te_token_find(t, " ab", 3), 5);
	ck_assert(te_token_bytes(t, 5, &n) && n == 3);
	te_token_unref(t);
}
END_TEST

START_TEST(gguf_of_sentencepiece)
{
	struct te_token *t = load_gguf("llama", NULL, 1);

	/* a higher score merges first, the left one of equals */
	gives(t, "ab abc", TE_TOKEN_TEMPLATE, "1 9 7 10 2", "<s> ab abc</s>");
	gives(t, "ab abc", 0, "9 7 10", "ab abc");
	gives(t, "a  b", 0, "7 14 4", "a  b");
	gives(t, "\xe4\xb8\xad z zz b", 0, "6 11 12 13 6 0 6 0 6 4",
	      "\xe4\xb8\xad <unk> <unk> b");
	gives(t, "<s>a</s> b<u>", 0, "1 7 2 14 4 15", "<s> a</s>  b<u>");
	gives(t, "a<u>", TE_TOKEN_ORDINARY, "7 15", "a<u>");
	ck_assert_int_eq(te_token_bos(t), 1);
	ck_assert_int_eq(te_token_eos(t), 2);
	te_token_unref(t);

	t = load_gguf("llama", NULL, 0);
	gives(t, "abc b", 0, "8 5 6 4", "abc b");
	gives(t, " ab", 0, "9", " ab");
	te_token_unref(t);
}
END_TEST

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
};

START_TEST(gguf_is_refused_by_name)
{
	struct gguf g = gguf_of(gguf_refused[_i].model, gguf_refused[_i].pre, 1,
				gguf_refused[_i].bad);
	struct te_token *t = NULL;

	ck_assert_int_eq(te_token_load(g.p, g.n, NULL, &t), gguf_refused[_i].want);
	ck_assert_msg(strstr(te_error_detail(), gguf_refused[_i].word), "%s", te_error_detail());
	ck_assert_ptr_null(t);
}
END_TEST

START_TEST(damaged_gguf_is_refused)
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
END_TEST

START_TEST(opens_gguf_with_weights)
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
	gives(t, "ab ab", 0, "4 5", "ab ab");
	te_token_unref(t);
	ck_assert_int_eq(te_token_open(path, "odd", &t), -EINVAL);
	ck_assert_int_eq(truncate(path, (off_t)g.n - 1), 0);
	ck_assert_int_eq(te_token_open(path, NULL, &t), -TE_ECORRUPT);
	ck_assert_ptr_nonnull(strstr(te_error_detail(), path));
	unlink(path);
}
END_TEST

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
	return load(text);
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

START_TEST(gguf_has_what_was_loaded)
{
	struct te_token *t = small_of("", "{'type': 'NFC'}", _i ? digits : "", "false", "");
	struct te_token *g = by_gguf(t, _i ? 0 : 15);
	size_t n;

	for (int i = 0; i < 2; i++) {
		const struct te_token *x = i ? g : t;

		gives(x, "ab ab<x>中1111\xc3\xa9", TE_TOKEN_TEMPLATE,
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
	gives(t, "ab 11", TE_TOKEN_TEMPLATE, _i ? "7 3 2 4 4" : "7 3 2 5", NULL);
	te_token_unref(t);
	te_token_unref(g);
}
END_TEST

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

START_TEST(gguf_refuses_what_it_cannot_express)
{
	struct te_token *t =
		small_of(not_in_gguf[_i].strip, not_in_gguf[_i].norm, not_in_gguf[_i].first,
			 not_in_gguf[_i].prefix, not_in_gguf[_i].begin);
	void *data;
	size_t n;

	ck_assert_int_eq(te_token_gguf(t, 0, &data, &n), -EOPNOTSUPP);
	ck_assert_msg(strstr(te_error_detail(), not_in_gguf[_i].word), "%s", te_error_detail());
	te_token_unref(t);
	t = load(llama);
	ck_assert_int_eq(te_token_gguf(t, 0, &data, &n), -EOPNOTSUPP);
	ck_assert_ptr_nonnull(strstr(te_error_detail(), "SentencePiece"));
	te_token_unref(t);
}
END_TEST

START_TEST(gguf_of_trained_vocabularies)
{
	static const char *const names[] = { "gpt2", "llama3", "qwen2", "o200k" };
	char *text = sample(20000), *json = NULL;
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
END_TEST

static int use(const char *text)
{
	char *json = json_of(text), *back = NULL, *piece = NULL;
	struct te_token_stream *s = NULL;
	struct te_token *t = NULL;
	int32_t *ids = NULL;
	size_t n, nback;
	int r = te_token_load(json, strlen(json), NULL, &t);

	if (!r)
		r = te_token_encode(t,
				    "ab \xff"
				    "abcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabc",
				    53, TE_TOKEN_TEMPLATE, 1, &ids, &n);
	if (!r)
		r = te_token_decode(t, ids, n, 0, &back, &nback);
	if (!r)
		r = te_token_stream_create(t, 0, &s);
	if (!r)
		r = te_token_stream_push(s, 3, &piece, &nback);
	free(ids);
	free(back);
	free(piece);
	free(json);
	te_token_stream_unref(s);
	te_token_unref(t);
	return r;
}

static int use_llama(void)
{
	return use(llama);
}

static int use_bytes(void)
{
	return use(bytes);
}

static int use_meta(void)
{
	return use(meta);
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
	json = json_of(text);
	r = te_token_load(json, strlen(json), NULL, &t);
	if (!r)
		r = te_token_gguf(t, 100, &data, &n);
	free(data);
	free(json);
	te_token_unref(t);
	return r;
}

static int use_train(void)
{
	char *json = NULL;
	const int r = te_token_train("the cat, the hat", 16, 262, NULL, &json);

	free(json);
	return r;
}

START_TEST(faults)
{
	ck_assert_int_gt(tt_fault_each(use_llama), 10);
	ck_assert_int_gt(tt_fault_each(use_bytes), 10);
	ck_assert_int_gt(tt_fault_each(use_meta), 10);
	ck_assert_int_gt(tt_fault_each(use_gguf), 10);
	ck_assert_int_gt(tt_fault_each(use_train), 10);
	ck_assert_int_gt(tt_fault_each(save_gguf), 10);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("token/token");
	TCase *c = tt_case(s, "formats", "serial");

	tcase_add_test(c, sentencepiece_style_with_byte_fallback_and_template);
	tcase_add_test(c, metaspace);
	tcase_add_test(c, added_tokens_and_normalizers);
	tcase_add_loop_test(c, splits_by_behavior, 0, TT_LEN(behaviors));
	tcase_add_loop_test(c, pre_tokenizers, 0, TT_LEN(steps));
	tcase_add_loop_test(c, refuses_by_name, 0, TT_LEN(refused));
	tcase_add_test(c, deep_nesting_is_refused);
	tcase_add_test(c, growing_text_is_refused);
	tcase_add_test(c, ranks_of_tiktoken);
	tcase_add_test(c, tekken);
	tcase_add_test(c, opens_files_and_folders);
	tcase_add_loop_test(c, gguf_of_bytes, 0, TT_LEN(gguf_pres));
	tcase_add_test(c, gguf_of_sentencepiece);
	tcase_add_loop_test(c, gguf_is_refused_by_name, 0, TT_LEN(gguf_refused));
	tcase_add_loop_test(c, damaged_gguf_is_refused, 0, 2);
	tcase_add_test(c, opens_gguf_with_weights);
	tcase_add_loop_test(c, gguf_has_what_was_loaded, 0, 2);
	tcase_add_loop_test(c, gguf_refuses_what_it_cannot_express, 0, TT_LEN(not_in_gguf));
	tcase_add_loop_test(c, gguf_of_trained_vocabularies, 0, 4);

	c = tt_case(s, "text", "serial");
	tcase_add_test(c, vocabulary_is_readable);
	tcase_add_test(c, arguments_are_checked);
	tcase_add_test(c, training_merges_the_most_frequent_pair);
	tcase_add_loop_test(c, decoding_gives_the_text_back, 0, TT_LEN(patterns));
	tcase_add_test(c, long_words_have_the_tokens_of_short_ones);
	tcase_add_loop_test(c, replaces_what_is_not_utf8, 0, TT_LEN(damaged));
	tcase_add_test(c, streams_give_whole_characters);
	tcase_add_test(c, faults);

	c = tt_case(s, "threads", "threads");
	tcase_add_loop_test(c, threads_do_not_change_tokens, 0, 7);
	tcase_add_test(c, several_threads_use_one_tokenizer);
	return s;
}

TT_MAIN("token/token", TT_NEED_NOTHING, suite)
