/*
 * ranks.c - files of tiktoken (a line for each token: base64, its rank) and tekken.json.
 *
 * A rank file has neither the pattern nor special tokens: both are known for published files, by
 * their number of ranks. Sources: tiktoken_ext/openai_public.py, llama-models'
 * llama3/tokenizer.py and llama4/tokenizer.py, Qwen's tokenization_qwen.py, mistral-common's
 * tekken.py.
 */
#include "config.h"

#include <errno.h>
#include <stdio.h>

#include "token_internal.h"
#include "json.h"

static int digit64(char c)
{
	return c >= 'A' && c <= 'Z' ? c - 'A' :
	       c >= 'a' && c <= 'z' ? c - 'a' + 26 :
	       c >= '0' && c <= '9' ? c - '0' + 52 :
	       c == '+'		    ? 62 :
	       c == '/'		    ? 63 :
				      -1;
}

int te__base64(const char *p, size_t n, char *ret)
{
	uint32_t bits = 0;
	int have = 0, m = 0;

	if (n % 4)
		return -1;
	while (n && p[n - 1] == '=' && m++ < 2)
		n--;
	m = 0;
	for (size_t i = 0; i < n; i++) {
		const int d = digit64(p[i]);

		if (d < 0)
			return -1;
		bits = bits << 6 | (uint32_t)d;
		have += 6;
		if (have >= 8) {
			have -= 8;
			ret[m++] = (char)(bits >> have);
		}
	}
	return m;
}

/* special tokens of published files, the last without text. With n: n texts "<|text0|>" and so on,
 * numbered from first, whose tokens begin at id */
struct special {
	const char *text;
	int32_t id, n, first;
};

static const struct special r50k[] = { { "<|endoftext|>", 50256, 0, 0 }, { NULL, 0, 0, 0 } };
static const struct special cl100k[] = {
	{ "<|endoftext|>", 100257, 0, 0 },   { "<|fim_prefix|>", 100258, 0, 0 },
	{ "<|fim_middle|>", 100259, 0, 0 },  { "<|fim_suffix|>", 100260, 0, 0 },
	{ "<|endofprompt|>", 100276, 0, 0 }, { NULL, 0, 0, 0 },
};
static const struct special o200k[] = {
	{ "<|endoftext|>", 199999, 0, 0 },
	{ "<|endofprompt|>", 200018, 0, 0 },
	{ NULL, 0, 0, 0 },
};
static const struct special qwen[] = {
	{ "<|endoftext|>", 151643, 0, 0 },
	{ "<|im_start|>", 151644, 0, 0 },
	{ "<|im_end|>", 151645, 0, 0 },
	{ "extra_", 151646, 205, 0 },
	{ NULL, 0, 0, 0 },
};
static const struct special llama3[] = {
	{ "<|begin_of_text|>", 128000, 0, 0 },
	{ "<|end_of_text|>", 128001, 0, 0 },
	{ "reserved_special_token_", 128002, 2, 0 },
	{ "<|finetune_right_pad_id|>", 128004, 0, 0 },
	{ "<|step_id|>", 128005, 0, 0 },
	{ "<|start_header_id|>", 128006, 0, 0 },
	{ "<|end_header_id|>", 128007, 0, 0 },
	{ "<|eom_id|>", 128008, 0, 0 },
	{ "<|eot_id|>", 128009, 0, 0 },
	{ "<|python_tag|>", 128010, 0, 0 },
	{ "<|image|>", 128011, 0, 0 },
	{ "reserved_special_token_", 128012, 244, 2 },
	{ NULL, 0, 0, 0 },
};
static const struct special llama4[] = {
	{ "<|begin_of_text|>", 200000, 0, 0 },
	{ "<|end_of_text|>", 200001, 0, 0 },
	{ "<|fim_prefix|>", 200002, 0, 0 },
	{ "<|fim_middle|>", 200003, 0, 0 },
	{ "<|fim_suffix|>", 200004, 0, 0 },
	{ "<|header_start|>", 200005, 0, 0 },
	{ "<|header_end|>", 200006, 0, 0 },
	{ "<|eom|>", 200007, 0, 0 },
	{ "<|eot|>", 200008, 0, 0 },
	{ "<|step|>", 200009, 0, 0 },
	{ "text_post_train_reserved_special_token_", 200010, 6, 0 },
	{ "<|python_start|>", 200016, 0, 0 },
	{ "<|python_end|>", 200017, 0, 0 },
	{ "<|finetune_right_pad|>", 200018, 0, 0 },
	{ "text_post_train_reserved_special_token_", 200019, 61, 8 },
	{ "<|image_start|>", 200080, 0, 0 },
	{ "<|image_end|>", 200081, 0, 0 },
	{ "vision_reserved_special_token_", 200082, 2, 0 },
	{ "<|tile_x_separator|>", 200084, 0, 0 },
	{ "<|tile_y_separator|>", 200085, 0, 0 },
	{ "vision_reserved_special_token_", 200086, 4, 2 },
	{ "<|image|>", 200090, 0, 0 },
	{ "<|vision_reserved_special_token_6|>", 200091, 0, 0 },
	{ "<|patch|>", 200092, 0, 0 },
	{ "vision_reserved_special_token_", 200093, 1041, 7 },
	{ "reasoning_reserved_special_token_", 201134, 8, 0 },
	{ "<|reasoning_thinking_start|>", 201142, 0, 0 },
	{ "<|reasoning_thinking_end|>", 201143, 0, 0 },
	{ "reserved_special_token_", 201144, 904, 0 },
	{ NULL, 0, 0, 0 },
};

static const struct known {
	const char *pattern;
	int32_t nranks;
	const struct special *special;
	int32_t bos, eos;
} known[] = {
	{ "gpt2", 50256, r50k, -1, 50256 },	     { "gpt2", 50280, r50k, -1, 50256 },
	{ "cl100k", 100256, cl100k, -1, 100257 },    { "o200k", 199998, o200k, -1, 199999 },
	{ "qwen2", 151643, qwen, -1, 151643 },	     { "llama3", 128000, llama3, 128000, 128001 },
	{ "o200k", 200000, llama4, 200000, 200001 },
};

static int begin_with(struct te_token *t, int32_t bos)
{
	t->bos = bos;
	return te__token_template(bos, &t->before, &t->nbefore);
}

static int add_known(struct te_token *t, const struct known *k)
{
	char text[64];
	int r = 0;

	for (const struct special *s = k->special; s->text; s++)
		for (int32_t i = 0; i < (s->n ? s->n : 1) && !r; i++) {
			const struct te__added a = { .id = s->id + i, .special = 1 };

			if (s->n)
				snprintf(text, sizeof(text), "<|%s%d|>", s->text, s->first + i);
			else
				snprintf(text, sizeof(text), "%s", s->text);
			r = te__token_add_special(t, &a, text, strlen(text));
		}
	t->eos = k->eos;
	return r ? r : begin_with(t, k->bos);
}

static int is_line(const char *p, size_t n, size_t *ret_text, int32_t *ret_rank)
{
	size_t i = 0, digits = 0;
	int32_t rank = 0;

	while (i < n && (digit64(p[i]) >= 0 || p[i] == '='))
		i++;
	*ret_text = i;
	if (!i || i == n || p[i] != ' ')
		return 0;
	for (i++; i < n && p[i] >= '0' && p[i] <= '9' && digits < 9; i++, digits++)
		rank = rank * 10 + (p[i] - '0');
	*ret_rank = rank;
	return digits && digits < 9 && (i == n || (p[i] == '\r' && i + 1 == n));
}

int te__token_load_ranks(struct te_token *t, const char *p, size_t n, const char *pattern)
{
	const char *end = p + n;
	struct te__tbuf b = { 0 };
	const struct known *k = NULL;
	int32_t nranks = 0;
	int r = 0, line = 1;

	for (const char *q; p < end && !r; p = q + 1, line++) {
		size_t ntext, len;
		int32_t rank;
		int m;

		q = memchr(p, '\n', (size_t)(end - p));
		if (!q)
			q = end;
		len = (size_t)(q - p);
		if (!len)
			continue;
		if (!is_line(p, len, &ntext, &rank)) {
			r = nranks ? te__fail(-TE_ECORRUPT,
					      "te_token: line %d: expected base64 and a "
					      "rank",
					      line) :
				     -TE_EFORMAT;
			break;
		}
		b.n = 0;
		r = te__tbuf_add(&b, p, ntext);
		if (r)
			break;
		m = te__base64(p, ntext, b.p);
		if (m <= 0)
			r = te__fail(-TE_ECORRUPT, "te_token: line %d: this is no base64", line);
		else
			r = te__token_set(t, rank, b.p, (size_t)m, NULL, 0, 0);
		nranks++;
	}
	te__free(b.p);
	if (r)
		return r;
	if (!nranks)
		return -TE_EFORMAT;
	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (known[i].nranks == nranks && (!pattern || !strcmp(pattern, known[i].pattern)))
			k = &known[i];
	if (!k && !pattern)
		return te__fail(-EOPNOTSUPP,
				"te_token: the pattern of a file with %d ranks is not "
				"known: give its name",
				nranks);
	t->byte_level = 1;
	t->ignore_merges = 1;
	r = te__split_add_pattern(t, te__pattern_named(k ? k->pattern : pattern),
				  TE__SPLIT_ISOLATED);
	if (!r)
		r = te__token_merges_by_rank(t, NULL);
	return r || !k ? r : add_known(t, k);
}

/* special tokens of files of versions that do not list them */
static const char *const tekken_special[] = {
	"<unk>",
	"<s>",
	"</s>",
	"[INST]",
	"[/INST]",
	"[AVAILABLE_TOOLS]",
	"[/AVAILABLE_TOOLS]",
	"[TOOL_RESULTS]",
	"[/TOOL_RESULTS]",
	"[TOOL_CALLS]",
	"[IMG]",
	"<pad>",
	"[IMG_BREAK]",
	"[IMG_END]",
	"[PREFIX]",
	"[MIDDLE]",
	"[SUFFIX]",
	"[SYSTEM_PROMPT]",
	"[/SYSTEM_PROMPT]",
	"[TOOL_CONTENT]",
};

/* mistral-common finds no special tokens in texts: they are for decoding and te_token_find() */
static int tekken_add(struct te_token *t, int64_t id, const char *text)
{
	int r = te__token_set(t, id, text, strlen(text), NULL, 0,
			      TE__TOK_SPECIAL | TE__TOK_FOREIGN);

	return r ? r :
		   te__tmap_put(&t->special, t->pool, t->tok[id].off, t->tok[id].len, (int32_t)id);
}

static int tekken_specials(struct te_token *t, const json_t *list, json_int_t nspecial)
{
	char text[32];
	const json_t *v;
	size_t i;
	int r = 0;

	for (json_int_t k = 0; k < nspecial && !r; k++) {
		snprintf(text, sizeof(text), "<SPECIAL_%d>", (int)k);
		r = tekken_add(t, k, !json_is_array(list) && k < 20 ? tekken_special[k] : text);
	}
	json_array_foreach(list, i, v)
	{
		const json_t *rank = json_object_get(v, "rank");
		const char *s = json_string_value(json_object_get(v, "token_str"));

		if (r)
			return r;
		if (!s || !json_is_integer(rank) || json_integer_value(rank) < 0 ||
		    json_integer_value(rank) >= nspecial)
			return te__fail(-TE_ECORRUPT,
					"te_token: tekken.json: special token %zu: "
					"expected a token_str, and a rank below %d",
					i, (int)nspecial);
		r = tekken_add(t, json_integer_value(rank), s);
	}
	return r;
}

int te__token_load_tekken(struct te_token *t, const json_t *root)
{
	const json_t *config = json_object_get(root, "config"), *v;
	const json_t *vocab = json_object_get(root, "vocab");
	const char *pattern = json_string_value(json_object_get(config, "pattern"));
	const json_int_t all = json_integer_value(json_object_get(config, "default_vocab_size"));
	const json_int_t nspecial =
		json_integer_value(json_object_get(config, "default_num_special_tokens"));
	struct te__tbuf b = { 0 };
	size_t i;
	int r;

	if (!pattern || !json_is_array(vocab) || nspecial < 0 || all <= nspecial ||
	    all > TE__TOKEN_MAX_VOCAB || json_array_size(vocab) < (size_t)(all - nspecial))
		return te__fail(-TE_ECORRUPT,
				"te_token: tekken.json: expected a pattern, a vocab and "
				"its sizes in config");
	r = tekken_specials(t, json_object_get(root, "special_tokens"), nspecial);
	json_array_foreach(vocab, i, v)
	{
		const char *s = json_string_value(json_object_get(v, "token_bytes"));
		const json_int_t rank = json_integer_value(json_object_get(v, "rank"));
		int m = -1;

		if (r || (json_int_t)i == all - nspecial)
			break;
		b.n = 0;
		r = s ? te__tbuf_add(&b, s, strlen(s)) : 0;
		if (s && !r)
			m = te__base64(s, strlen(s), b.p);
		if (!r && (m <= 0 || rank != (json_int_t)i))
			r = te__fail(-TE_ECORRUPT,
				     "te_token: tekken.json: vocab %zu: expected its "
				     "rank and token_bytes in base64",
				     i);
		if (!r)
			r = te__token_set(t, rank + nspecial, b.p, (size_t)m, NULL, 0, 0);
	}
	te__free(b.p);
	if (r)
		return r;
	t->byte_level = 1;
	t->ignore_merges = 1;
	t->eos = te__tmap_get(&t->special, t->pool, "</s>", 4);
	r = begin_with(t, te__tmap_get(&t->special, t->pool, "<s>", 3));
	if (!r)
		r = te__split_add_pattern(t, pattern, TE__SPLIT_ISOLATED);
	return r ? r : te__token_merges_by_rank(t, NULL);
}
