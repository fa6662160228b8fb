/* token_lib.c - see token_lib.h. */
#include "config.h"

#include "tt.h"

#include <te/errno.h>

#include "token_lib.h"

const char tl_llama[] =
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

char *tl_json(const char *text)
{
	char *p = strdup(text);

	for (char *q = p; *q; q++)
		*q = *q == '\'' ? '"' : *q;
	return p;
}

struct te_token *tl_load(const char *text)
{
	char *p = tl_json(text);
	struct te_token *t = NULL;
	const int r = te_token_load(p, strlen(p), NULL, &t);

	ck_assert_msg(!r, "%s", te_error_detail());
	free(p);
	return t;
}

void tl_gives(const struct te_token *t, const char *text, uint32_t flags, const char *want,
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

char *tl_sample(size_t nbytes)
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
