/*
 * token.c - te_token_open(3) and its relatives: tokens of hand-written vocabularies, what is
 * refused, damaged files, threads, streams, faults. gguf.c has GGUF files.
 *
 * Expected tokens of tokenizer.json are the ones of the Python package tokenizers 0.23.3.
 */
#include "config.h"

#include "tt.h"

#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <te/errno.h>
#include <te/token.h>

#include "token_lib.h"

/* JSON with ' for " */
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

/* precompiled_charsmap of t/data/sp_unigram.model */
#define CHARSMAP \
	"AAQAAAAMAAAAAACAAQ0AAIEVAAATAACAFQAAgBoAAICgPQAAAQAAgAMAAIALAACAgIQCAKYFAAAHAACAgHgC" \
	"AKgZAACAYQAAFwAAgIENAAChHQAAEQAAgBcAAAAUAAAAFQAAABoAAAAbAAAAvUEAABkAAAAeAAAAHwAAABwA" \
	"AAAdAAAArMwCACMAAAAgAAAAIQAAACYAAAAnAAAAJAAAACUAAAAqAAAAKwAAACgAAAApAAAALgAAAC8AAAAs" \
	"AAAALQAAALwIAgAzAAAAMAAAADEAAAA2AAAANwAAADQAAAA1AAAAOgAAADsAAAA4AAAAOQAAAD4AAAA/AAAA" \
	"PAAAAD0AAABCAAAAQhUBAEAAAABBAAAARgAAAEcAAABEAAAARQAAAEoAAABLAAAASAAAAEkAAABOAAAATwAA" \
	"AEwAAABNAAAAUgAAAFMAAABQAAAAUQAAAFYAAABXAAAAVAAAAFUAAABaAAAAWwAAAFgAAABZAAAAXgAAAF8A" \
	"AABcAAAAXQAAAGIAAABjAAAAYAAAAGEAAABmAAAAZwAAAGWNAQBlAAAAagAAAGsAAABoAAAAaQAAAG4AAABv" \
	"AAAAbAAAAG0AAAByAAAAcwAAAHAAAABxAAAAdgAAAHcAAAB0AAAAdQAAAHoAAAB7AAAAeAAAAHkAAAB+AAAA" \
	"fwAAAHwAAAB9AAAAggAAAIMAAACAAAAAgQAAAIYAAACHAAAAhAAAAIUAAACKAAAAiwAAAIgAAACJAAAAjgAA" \
	"AI8AAACMAAAAjQAAAJIAAACTAAAAkAAAAJEAAACWAAAAlwAAAJQAAACVAAAAmgAAAJsAAACYAAAAmQAAAJ4A" \
	"AACfAAAAnAAAAJ0AAACiAAAAowAAAKAAAAChAAAApgAAAKcAAACkAAAApQAAAKoAAACrAAAAqAAAAKkAAACu" \
	"AAAArwAAAKwAAACtAAAAsgAAALMAAACwAAAAsQAAALYAAAC3AAAAtAAAALUAAAC6AAAAuwAAALgAAAC5AAAA" \
	"vgAAAL8AAAC8AAAAvQAAAMIAAADCmAEAwAAAAMEAAADGAAAAxwAAAMQAAADFAAAAygAAAMwsAQDIAAAAyQAA" \
	"AM4AAADPAAAAzAAAAM0AAADSAAAA0wAAANAAAADRAAAA1gAAANcAAADUAAAA1QAAANoAAADbAAAA2AAAANkA" \
	"AADeAAAA3wAAANwAAADdAAAA47gBAOKoAQDgAAAA4QAAAOYAAADnAAAA5AAAAOUAAADqAAAA6wAAAOgAAADp" \
	"AAAA74ABAO8AAADsAAAA7QAAAPIAAADzAAAA8AAAAPEAAAD2AAAA9wAAAPQAAAD1AAAA+gAAAPsAAAD4AAAA" \
	"+QAAAP4AAAD/AAAA/AAAAP0AAAAAIAAgzIgALi4uADHigYQyAEEAYgBlAGZpAMOpAA=="

/* normalizer, more pieces, byte_fallback */
#define UNIGRAM(norm, more, fallback)                                                         \
	"{'added_tokens': [{'id': 1, 'content': '</s>', 'special': true, 'normalized': "      \
	"false}], 'normalizer': " norm ", 'pre_tokenizer': {'type': 'Metaspace', "            \
	"'replacement': '▁', 'prepend_scheme': 'always', 'split': true}, 'post_processor': "  \
	"{'type': 'TemplateProcessing', 'single': [{'Sequence': {'id': 'A', 'type_id': 0}}, " \
	"{'SpecialToken': {'id': '</s>', 'type_id': 0}}], 'special_tokens': {'</s>': {'id': " \
	"'</s>', 'ids': [1], 'tokens': ['</s>']}}}, 'decoder': {'type': 'Metaspace', "        \
	"'replacement': '▁', 'prepend_scheme': 'always', 'split': true}, 'model': {'type': "  \
	"'Unigram', 'unk_id': 0, 'byte_fallback': " fallback ", 'vocab': [['<unk>', 0.0], "   \
	"['</s>', 0.0], ['▁', -2.5], ['a', -3.0], ['b', -3.25], ['ab', -4.0], ['▁a', -4.5], " \
	"['▁ab', -7.0], ['abc', -9.0], ['c', -3.5], ['ba', -6.25], ['ab', -4.25], "           \
	"['é', -3]" more "]}}"
static const char unigram[] = UNIGRAM("null", "", "false");
static const char unigram_rules[] =
	UNIGRAM("{'type': 'Precompiled', 'precompiled_charsmap': '" CHARSMAP "'}",
		", ['1', -5.0], ['⁄', -5.0], ['2', -5.0], ['.', -5.0], ['...', -6.0]", "false");

CASE(formats, "serial");

TEST(formats, sentencepiece_style_with_byte_fallback_and_template)
{
	struct te_token *t = tl_load(tl_llama);

	tl_gives(t, "ab abc", TE_TOKEN_TEMPLATE, "1 7 4 7 10", "<s> ab abc");
	tl_gives(t, "ab abc", 0, "7 4 7 10", "ab abc");
	tl_gives(t, "a  b", TE_TOKEN_TEMPLATE, "1 7 14 4", "<s> a  b");
	tl_gives(t, "\xe4\xb8\xad z zz b", TE_TOKEN_TEMPLATE, "1 6 11 12 13 6 0 6 0 6 4",
	      "<s> \xe4\xb8\xad <unk> <unk> b");
	tl_gives(t, "<s>a</s> b", TE_TOKEN_TEMPLATE, "1 1 7 2 14 4", "<s><s> a</s>  b");
	tl_gives(t, "", TE_TOKEN_TEMPLATE, "1", "<s>");
	tl_gives(t, " a", 0, "6 7", " a");
	te_token_unref(t);
}

/* the last of two tokens with one text counts; unknown neighbours are one token */
TEST(formats, unigram_of_json)
{
	struct te_token *t = tl_load(unigram);

	tl_gives(t, "ab abc", TE_TOKEN_TEMPLATE, "2 11 2 11 9 1", "ab abc</s>");
	tl_gives(t, "a  b", 0, "6 2 2 4", "a  b");
	tl_gives(t, "xyz ab zz", 0, "2 0 2 11 2 0", "<unk> ab <unk>");
	tl_gives(t, "ba</s>ab", 0, "2 10 1 2 11", "ba</s> ab");
	tl_gives(t, "abab ba", 0, "2 11 11 2 10", "abab ba");
	tl_gives(t, "", TE_TOKEN_TEMPLATE, "1", "</s>");
	tl_gives(t, "<unk>x", 0, "2 0", "<unk>");
	tl_gives(t, "\xc3\xa9 ab", 0, "2 12 2 11", "\xc3\xa9 ab");
	te_token_unref(t);
}

/* a character with its marks is replaced as a whole, if it is short */
TEST(formats, precompiled_rules_of_json)
{
	struct te_token *t = tl_load(unigram_rules);

	tl_gives(t, "aB\xcc\x81" "b", 0, "2 11 4", "abb");
	tl_gives(t, "\xc2\xbd a\xe2\x80\xa6", 0, "2 13 14 15 6 17", "1\xe2\x81\x84" "2 a...");
	tl_gives(t, "a\xc2\xa0" "ab", 0, "6 2 11", "a ab");
	tl_gives(t, "\x01" "B", 0, "2 4", "b");
	tl_gives(t, "B\xe2\x80\x8d\xcc\x81\xcc\x81" "B", 0, "2 4 0 4", "b<unk>b");
	tl_gives(t, "\xc2\xa8" "a", 0, "2 0 3", "<unk>a");
	te_token_unref(t);
}

TEST(formats, bytes_of_unigram)
{
	char more[256 * 24] = "", *text = NULL;
	struct te_token *t;

	for (int i = 0; i < 256; i++)
		snprintf(more + strlen(more), 24, ", ['<0x%02X>', -9]", (unsigned)i);
	ck_assert_int_gt(asprintf(&text, UNIGRAM("null", "%s", "true"), more), 0);
	t = tl_load(text);
	tl_gives(t, "ab \xc3\xbc", 0, "2 11 2 208 201", NULL);
	tl_gives(t, "<0x41>x", 0, "2 78 133", NULL);
	tl_gives(t, "x<unk>", 0, "2 133 73 130 123 120 75", NULL);
	tl_gives(t, "<unk>", 0, "2 0", NULL);
	te_token_unref(t);
	free(text);
}

TEST(formats, metaspace)
{
	struct te_token *t = tl_load(meta);

	tl_gives(t, "ab abc", 0, "7 4 7 10", "ab abc");
	tl_gives(t, "a  b", 0, "7 6 6 4", "a  b");
	tl_gives(t, " a", 0, "7", "a");
	tl_gives(t, "zab", 0, "7 4", "ab");
	te_token_unref(t);
}

TEST(formats, added_tokens_and_normalizers)
{
	struct te_token *t = tl_load(bytes);

	tl_gives(t, "ab a AB", TE_TOKEN_TEMPLATE, "9 4 5 3 4 8", "<y>ab a ab<x>");
	tl_gives(t, "a <x> b <y>  c", TE_TOKEN_TEMPLATE, "9 0 8 1 9 2 8", "<y>a<x>b<y>c<x>");
	tl_gives(t, "CAB xcab cab", TE_TOKEN_TEMPLATE, "9 10 3 2 4 3 10 8", "<y>cab cab cab<x>");
	tl_gives(t,
	      "e\xcc\x81"
	      "a  \xc3\x89 ",
	      TE_TOKEN_TEMPLATE, "9 6 7 0 3 3 6 7 8",
	      "<y>\xc3\xa9"
	      "a  \xc3\xa9<x>");
	tl_gives(t, " a ", TE_TOKEN_TEMPLATE, "9 0 8", "<y>a<x>");
	/* characters of the special token that the vocabulary has no token for are left out */
	tl_gives(t, "a<x>b", TE_TOKEN_ORDINARY, "0 1", "ab");
	tl_gives(t, "a<x>b", 0, "0 8 1", "a<x>b");
	te_token_unref(t);
}

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

TEST_EACH(formats, splits_by_behavior, TT_LEN(behaviors))
{
	char *text = with(split, behaviors[_i].behavior);
	struct te_token *t = tl_load(text);

	tl_gives(t, "12-a-12a--a-", 0, behaviors[_i].want, behaviors[_i].decoded);
	te_token_unref(t);
	free(text);
}

static const struct {
	const char *type, *want, *decoded;
} steps[] = {
	{ "Whitespace", "4 3 2 4 4 3 4 7 3", "a - 12 a a - a -- -" },
	{ "WhitespaceSplit", "6 2 4 6 4 7 3", "a- 12 a a- a -- -" },
	{ "Digits", "6 3 2 3 6 6 6 7 3", "a- - 12 - a- a- a- -- -" },
	{ "Punctuation', 'behavior': 'Isolated", "4 3 3 2 3 6 4 3 6 3 3 3",
	  "a - - 12 - a- a - a- - - -" },
};

TEST_EACH(formats, pre_tokenizers, TT_LEN(steps))
{
	char *text = with(words, steps[_i].type);
	struct te_token *t = tl_load(text);

	tl_gives(t, "a- 12\xc2\xa0xyx a-a\xe3\x80\x80--z", 0, steps[_i].want, steps[_i].decoded);
	te_token_unref(t);
	free(text);
}

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
#define PIECES "{'model': {'type': 'Unigram', "
	{ PIECES "'unk_id': 0, 'vocab': []}}", -TE_ECORRUPT, "vocab" },
	{ PIECES "'vocab': [['a', 0]]}}", -EOPNOTSUPP, "without unk_id" },
	{ PIECES "'unk_id': 1, 'vocab': [['a', 0]]}}", -TE_ECORRUPT, "unk_id" },
	{ PIECES "'unk_id': 0, 'vocab': [['a', 0], ['b']]}}", -TE_ECORRUPT, "piece 1" },
	{ PIECES "'unk_id': 0, 'vocab': [['', 0]]}}", -TE_ECORRUPT, "piece 0" },
	{ PIECES "'unk_id': 0, 'vocab': [['a', 0]], 'byte_fallback': true}}", -EOPNOTSUPP,
	  "byte_fallback" },
	{ "{'pre_tokenizer': {'type': 'ByteLevel'}, 'model': {'type': 'Unigram', 'unk_id': 0, "
	  "'vocab': [['a', 0]]}}",
	  -EOPNOTSUPP, "after ByteLevel" },
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
	{ "{'normalizer': {'type': 'Precompiled'}, " MODEL "}", -TE_ECORRUPT, "Precompiled" },
	{ "{'normalizer': {'type': 'Precompiled', 'precompiled_charsmap': 'AAAA'}, " MODEL "}",
	  -TE_ECORRUPT, "Precompiled" },
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

TEST_EACH(formats, refuses_by_name, TT_LEN(refused))
{
	char *p = tl_json(refused[_i].text);
	struct te_token *t = NULL;
	const int r = te_token_load(p, strlen(p), NULL, &t);

	ck_assert_msg(r == refused[_i].want, "%s: %d: %s", p, r, te_error_detail());
	ck_assert_msg(strstr(te_error_detail(), refused[_i].word), "%s: %s", p, te_error_detail());
	ck_assert_ptr_null(t);
	free(p);
}

TEST(formats, deep_nesting_is_refused)
{
	char text[4096];
	struct te_token *t;

	memset(text, '[', sizeof(text));
	memcpy(text, "{\"a\":", 5);
	ck_assert_int_eq(te_token_load(text, sizeof(text), NULL, &t), -TE_ECORRUPT);
	ck_assert_ptr_nonnull(strstr(te_error_detail(), "deeper"));
}

/* replacements that make each other's results longer do not use up the memory */
TEST(formats, growing_text_is_refused)
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
	p = tl_json(text);
	ck_assert_int_eq(te_token_load(p, strlen(p), NULL, &t), 0);
	ck_assert_int_eq(te_token_encode(t, "a", 1, 0, 1, &ids, &n), -EFBIG);
	te_token_unref(t);
	free(p);
}

TEST(formats, ranks_of_tiktoken)
{
	/* bytes a, b, c, space; then "ab", "abc" and "bc" */
	static const char text[] = "YQ== 0\nYg== 1\nYw== 2\nIA== 3\nYWI= 4\nYWJj 5\nYmM= 6\n";
	struct te_token *t = NULL;

	ck_assert_int_eq(te_token_load(text, strlen(text), "gpt2", &t), 0);
	tl_gives(t, "abc abcc bcab", 0, "5 3 5 2 3 6 4", "abc abcc bcab");
	ck_assert_int_eq(te_token_count(t), 7);
	te_token_unref(t);
	ck_assert_int_eq(te_token_load(text, strlen(text), "odd", &t), -EINVAL);
}

TEST(formats, tekken)
{
	static const char text[] =
		"{'config': {'pattern': '[a-c]+| ', 'default_vocab_size': 8, "
		"'default_num_special_tokens': 3}, 'vocab': [{'rank': 0, 'token_bytes': 'YQ=='}, "
		"{'rank': 1, 'token_bytes': 'Yg=='}, {'rank': 2, 'token_bytes': 'Yw=='}, "
		"{'rank': 3, 'token_bytes': 'IA=='}, {'rank': 4, 'token_bytes': 'YWI='}, "
		"{'rank': 5, 'token_bytes': 'YWJj'}]}";
	struct te_token *t = tl_load(text);

	tl_gives(t, "ab abc", TE_TOKEN_TEMPLATE, "1 7 6 7 5", "<s>ab abc");
	ck_assert_int_eq(te_token_count(t), 8);
	ck_assert_int_eq(te_token_find(t, "</s>", 4), 2);
	ck_assert_int_eq(te_token_bos(t), 1);
	ck_assert_int_eq(te_token_eos(t), 2);
	ck_assert_int_eq(te_token_is_special(t, 2), 1);
	ck_assert_int_eq(te_token_is_special(t, 3), 0);
	te_token_unref(t);
}

CASE(text, "serial");

TEST(text, vocabulary_is_readable)
{
	struct te_token *t = tl_load(tl_llama);
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

TEST(text, arguments_are_checked)
{
	struct te_token *t = tl_load(tl_llama);
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

static struct te_token *trained(int32_t nvocab, const char *pattern)
{
	char *text = tl_sample(20000), *json;
	struct te_token *t = NULL;

	ck_assert_int_eq(te_token_train(text, strlen(text), nvocab, pattern, &json), 0);
	ck_assert_int_eq(te_token_load(json, strlen(json), NULL, &t), 0);
	free(json);
	free(text);
	return t;
}

TEST(text, training_merges_the_most_frequent_pair)
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
	tl_gives(t, "ab abc", 0, "256 257 99", "ab abc");
	te_token_unref(t);
	free(json);
}

static const char *const patterns[] = { "gpt2", "cl100k", "o200k", "llama3", "qwen2" };

TEST_EACH(text, decoding_gives_the_text_back, TT_LEN(patterns))
{
	struct te_token *t = trained(400, patterns[_i]);
	char *text = tl_sample(20000), *back;
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

/* the merges of a word by their definition: the pair of lowest rank, the first of several */
TEST(text, long_words_have_the_tokens_of_short_ones)
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

CASE(threads, "threads");

TEST_EACH(threads, threads_do_not_change_tokens, 7)
{
	struct te_token *t = _i < 5 ? trained(400, patterns[_i]) :
				      tl_load(_i == 5 ? tl_llama : meta);
	char *text = tl_sample(1 << 20);
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

TEST(threads, several_threads_use_one_tokenizer)
{
	char *text = tl_sample(5000);
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

TEST_EACH(text, replaces_what_is_not_utf8, TT_LEN(damaged))
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

TEST(text, streams_give_whole_characters)
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
	t = tl_load(tl_llama);
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

TEST(formats, opens_files_and_folders)
{
	char dir[4096], path[4200], *text = tl_json(tl_llama);
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
	tl_gives(t, "ab abc", 0, "7 4 7 10", "ab abc");
	te_token_unref(t);
	free(text);
	tt_remove(dir);
}

static int use(const char *text)
{
	char *json = tl_json(text), *back = NULL, *piece = NULL;
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
	return use(tl_llama);
}

static int use_bytes(void)
{
	return use(bytes);
}

static int use_meta(void)
{
	return use(meta);
}

static int use_unigram(void)
{
	return use(unigram_rules);
}

static int use_train(void)
{
	char *json = NULL;
	const int r = te_token_train("the cat, the hat", 16, 262, NULL, &json);

	free(json);
	return r;
}

TEST(text, faults)
{
	ck_assert_int_gt(tt_fault_each(use_llama), 10);
	ck_assert_int_gt(tt_fault_each(use_bytes), 10);
	ck_assert_int_gt(tt_fault_each(use_meta), 10);
	ck_assert_int_gt(tt_fault_each(use_unigram), 10);
	ck_assert_int_gt(tt_fault_each(use_train), 10);
}

TT_MAIN("token/token", TT_NEED_NOTHING)
