/*
 * sentencepiece.c - models of SentencePiece: tokens and texts of the Python package, refusals by
 * name, damaged files, faults.
 *
 * t/data/gen_sentencepiece.py made the models and what is expected of them.
 */
#include "config.h"

#include "tt.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include <te/errno.h>
#include <te/token.h>

static const struct {
	const char *model, *text, *ids, *decoded;
} golden[] = {
#include "t/data/sentencepiece.inc"
};

static const char *const models[] = { "sp_bpe", "sp_bpe_rules", "sp_unigram", "sp_unigram_bare" };

static char *read_model(const char *name, size_t *ret_n)
{
	char path[4200], *p = malloc(16384);
	FILE *f;

	snprintf(path, sizeof(path), "%s/t/data/%s.model", getenv("abs_top_srcdir"), name);
	f = fopen(path, "rb");
	ck_assert_msg(f != NULL, "%s", path);
	*ret_n = fread(p, 1, 16384, f);
	fclose(f);
	ck_assert_uint_lt(*ret_n, 16384);
	return p;
}

static struct te_token *load_model(const char *name)
{
	struct te_token *t = NULL;
	size_t n;
	char *p = read_model(name, &n);
	const int r = te_token_load(p, n, NULL, &t);

	ck_assert_msg(!r, "%s: %s", name, te_error_detail());
	free(p);
	return t;
}

CASE(formats, "serial");

TEST_EACH(formats, tokens_of_python, TT_LEN(models))
{
	struct te_token *t = load_model(models[_i]);
	int found = 0;

	for (size_t i = 0; i < TT_LEN(golden); i++) {
		const char *text = golden[i].text;
		char got[2048] = "", *back;
		int32_t *ids;
		size_t n, nback;

		if (strcmp(golden[i].model, models[_i]))
			continue;
		found++;
		ck_assert_int_eq(te_token_encode(t, text, strlen(text), 0, 1, &ids, &n), 0);
		for (size_t k = 0; k < n; k++)
			sprintf(got + strlen(got), k ? " %d" : "%d", ids[k]);
		ck_assert_msg(!strcmp(got, golden[i].ids), "\"%s\": %s, expected %s", text, got,
			      golden[i].ids);
		ck_assert_int_eq(te_token_decode(t, ids, n, 0, &back, &nback), 0);
		ck_assert_msg(!strcmp(back, golden[i].decoded), "\"%s\": \"%s\", expected \"%s\"",
			      text, back, golden[i].decoded);
		free(back);
		free(ids);
	}
	ck_assert_int_gt(found, 20);
	te_token_unref(t);
}

TEST(formats, vocabulary)
{
	struct te_token *t = load_model("sp_bpe");
	size_t n;
	int32_t *ids;

	ck_assert_int_eq(te_token_count(t), 340);
	ck_assert_int_eq(te_token_bos(t), 1);
	ck_assert_int_eq(te_token_eos(t), 2);
	ck_assert_int_eq(te_token_find(t, "[INST]", 6), 3);
	ck_assert(te_token_is_special(t, 0) && te_token_is_special(t, 3));
	ck_assert_int_eq(te_token_is_special(t, 4), 0);
	ck_assert(te_token_bytes(t, 4 + 65, &n) && n == 1 &&
		  *(char *)te_token_bytes(t, 69, &n) == 65);
	ck_assert_int_eq(te_token_encode(t, "the", 3, TE_TOKEN_TEMPLATE, 1, &ids, &n), 0);
	ck_assert(n == 2 && ids[0] == 1);
	free(ids);
	te_token_unref(t);
	t = load_model("sp_unigram");
	ck_assert_int_eq(te_token_eos(t), te_token_find(t, "<end>", 5));
	ck_assert_int_eq(te_token_is_special(t, te_token_find(t, "keep", 4)), 0);
	te_token_unref(t);
	t = load_model("sp_unigram_bare");
	ck_assert_int_eq(te_token_bos(t), -ENOENT);
	ck_assert_int_eq(te_token_encode(t, "", 0, TE_TOKEN_TEMPLATE, 1, &ids, &n), 0);
	ck_assert_uint_eq(n, 0);
	free(ids);
	te_token_unref(t);
}

/* a file under construction */
struct proto {
	char p[16384];
	size_t n;
};

static void put_varint(struct proto *b, uint64_t x)
{
	do {
		ck_assert_uint_lt(b->n, sizeof(b->p));
		b->p[b->n++] = (char)((x & 127) | (x > 127 ? 128 : 0));
		x >>= 7;
	} while (x);
}

static void put_number(struct proto *b, uint32_t field, uint64_t x)
{
	put_varint(b, field << 3);
	put_varint(b, x);
}

static void put_bytes(struct proto *b, uint32_t field, const void *p, size_t n)
{
	put_varint(b, field << 3 | 2);
	put_varint(b, n);
	ck_assert_uint_le(b->n + n, sizeof(b->p));
	memcpy(b->p + b->n, p, n);
	b->n += n;
}

static void put_piece(struct proto *b, const char *text, float score, uint64_t type)
{
	struct proto piece = { .n = 0 };

	put_bytes(&piece, 1, text, strlen(text));
	put_varint(&piece, 2 << 3 | 5);
	memcpy(piece.p + piece.n, &score, 4);
	piece.n += 4;
	if (type != 1)
		put_number(&piece, 3, type);
	put_bytes(b, 1, piece.p, piece.n);
}

/* one piece more, and one field of trainer_spec, normalizer_spec (with a number or bytes) */
static const struct defect {
	const char *piece;
	float score;
	uint64_t type;
	uint32_t message, field;
	uint64_t number;
	const char *bytes;
	size_t nbytes;
	uint64_t model; /* 0: 2, of BPE */
	int want;
	const char *word;
} defects[] = {
	{ "b", -1, 1, 0, 0, 0, NULL, 0, 0, 0, NULL },
	{ "b", -1, 1, 0, 0, 0, NULL, 0, 1, 0, NULL },
	{ "b", -1, 1, 0, 0, 0, NULL, 0, 3, -EOPNOTSUPP, "WORD" },
	{ "b", -1, 1, 0, 0, 0, NULL, 0, 4, -EOPNOTSUPP, "CHAR" },
	{ "b", -1, 1, 0, 0, 0, NULL, 0, 9, -EOPNOTSUPP, "model_type" },
	{ "b", -1, 1, 2, 24, 1, NULL, 0, 0, -EOPNOTSUPP, "treat_whitespace_as_suffix" },
	{ "b", -1, 1, 2, 35, 1, NULL, 0, 0, -TE_ECORRUPT, "256 pieces" },
	{ "b", -1, 1, 2, 46, 1, NULL, 0, 0, -TE_ECORRUPT, "trainer_spec" },
	{ "b", -1, 1, 3, 5, 0, NULL, 0, 0, -EOPNOTSUPP, "escape_whitespaces" },
	{ "b", -1, 1, 3, 3, 0, "x", 1, 0, -TE_ECORRUPT, "normalizer_spec" },
	{ "b", -1, 1, 3, 2, 0, "x", 1, 0, -TE_ECORRUPT, "precompiled_charsmap" },
	{ "b", -1, 1, 3, 2, 0, "\4\0\0\0\0\0\0\0\0", 9, 0, 0, NULL },
	{ "b", -1, 1, 3, 2, 0, "\4\0\0\0\0\0\0\0a", 9, 0, -TE_ECORRUPT, "precompiled_charsmap" },
	{ "b", -1, 1, 3, 2, 0, "\4\0\0\0\0\0\0\0\xff", 10, 0, -TE_ECORRUPT,
	  "precompiled_charsmap" },
	{ "b", -1, 1, 3, 2, 0, "\x8\0\0\0\0\0\0\0\0", 9, 0, -TE_ECORRUPT, "precompiled_charsmap" },
	{ "b", -1, 1, 5, 2, 0, "\4\0\0\0\0\0\0\0\0", 9, 0, -EOPNOTSUPP, "denormalizer_spec" },
	{ "", -1, 1, 0, 0, 0, NULL, 0, 0, -TE_ECORRUPT, "piece 2: it has no text" },
	{ "a", -1, 1, 0, 0, 0, NULL, 0, 0, -TE_ECORRUPT, "piece 2: another" },
	{ "<unk>", -1, 1, 0, 0, 0, NULL, 0, 0, -TE_ECORRUPT, "piece 2: another" },
	{ "\xff", -1, 1, 0, 0, 0, NULL, 0, 0, -TE_ECORRUPT, "piece 2 is damaged" },
	{ "b", NAN, 1, 0, 0, 0, NULL, 0, 0, -TE_ECORRUPT, "not finite" },
	{ "b", INFINITY, 1, 0, 0, 0, NULL, 0, 1, -TE_ECORRUPT, "piece 2 is not finite" },
	{ "b", -1, 2, 0, 0, 0, NULL, 0, 0, -TE_ECORRUPT, "UNKNOWN" },
	{ "b", -1, 5, 0, 0, 0, NULL, 0, 0, -EOPNOTSUPP, "UNUSED" },
	{ "b", -1, 5, 0, 0, 0, NULL, 0, 1, 0, NULL },
	{ "b", -1, 6, 0, 0, 0, NULL, 0, 0, -TE_ECORRUPT, "<0xXX>" },
	{ "<0x41>", -1, 6, 0, 0, 0, NULL, 0, 0, -TE_ECORRUPT, "256 pieces" },
	{ "b", -1, 7, 0, 0, 0, NULL, 0, 0, -TE_ECORRUPT, "type 7" },
};

static void build(struct proto *b, const struct defect *d)
{
	struct proto spec = { .n = 0 };

	put_piece(b, "<unk>", 0, 2);
	put_piece(b, "a", -2, 1);
	put_piece(b, d->piece, d->score, d->type);
	put_number(&spec, 3, d->model ? d->model : 2);
	if (d->message == 2)
		put_number(&spec, d->field, d->number);
	put_bytes(b, 2, spec.p, spec.n);
	spec.n = 0;
	if (d->nbytes)
		put_bytes(&spec, d->field, d->bytes, d->nbytes);
	else if (d->message > 2)
		put_number(&spec, d->field, d->number);
	if (d->message > 2)
		put_bytes(b, d->message, spec.p, spec.n);
}

TEST_EACH(formats, refuses_by_name, TT_LEN(defects))
{
	struct proto b = { .n = 0 };
	struct te_token *t = NULL;
	int r;

	build(&b, &defects[_i]);
	r = te_token_load(b.p, b.n, NULL, &t);
	ck_assert_msg(r == defects[_i].want, "%d: %s", r, te_error_detail());
	if (r)
		ck_assert_msg(strstr(te_error_detail(), defects[_i].word), "%s", te_error_detail());
	te_token_unref(t);
}

TEST(formats, limits)
{
	struct proto b = { .n = 0 };
	struct te_token *t = NULL;
	char text[2000];

	memset(text, 'a', sizeof(text));
	text[1100] = 0;
	put_piece(&b, "<unk>", 0, 2);
	put_piece(&b, text, -1, 1);
	/* unigram is the type of a file that does not tell */
	ck_assert_int_eq(te_token_load(b.p, b.n, NULL, &t), -EFBIG);
	ck_assert_ptr_nonnull(strstr(te_error_detail(), "1024"));
	b.n = 0;
	put_piece(&b, "a", 0, 1);
	ck_assert_int_eq(te_token_load(b.p, b.n, NULL, &t), -TE_ECORRUPT);
	ck_assert_ptr_nonnull(strstr(te_error_detail(), "UNKNOWN"));
	/* a number of more than 64 bits */
	put_varint(&b, 9 << 3);
	memset(b.p + b.n, 0xff, 12);
	b.n += 12;
	ck_assert_int_eq(te_token_load(b.p, b.n, NULL, &t), -TE_ECORRUPT);
	ck_assert_ptr_nonnull(strstr(te_error_detail(), "cut short"));
}

static void try(const char *p, size_t n)
{
	struct te_token *t = NULL;
	char *copy = malloc(n + 1), *back; /* the end of it is the end of the file */
	int32_t *ids;
	size_t count;

	memcpy(copy, p, n);
	if (te_token_load(copy, n, NULL, &t) == 0) {
		if (!te_token_encode(t, "the \xef\xac\x81 cat <sep>", 14, 0, 1, &ids, &count)) {
			if (!te_token_decode(t, ids, count, 0, &back, &count))
				free(back);
			free(ids);
		}
		te_token_unref(t);
	}
	free(copy);
}

TEST_EACH(formats, damaged_files_are_harmless, TT_LEN(models))
{
	size_t n;
	char *p = read_model(models[_i], &n);

	for (size_t k = 0; k < n; k += k < 40 ? 1 : 37)
		try(p, k);
	for (int i = 0; i < TT_FEWER(1500); i++) {
		const int at = tt_rand_int(0, (int)n - 1);
		const char was = p[at];

		p[at] = (char)tt_rand_int(0, 255);
		try(p, n);
		p[at] = was;
	}
	free(p);
}

CASE(threads, "threads");

TEST_EACH(threads, threads_do_not_change_tokens, TT_LEN(models))
{
	struct te_token *t = load_model(models[_i]);
	const size_t nbytes = 1 << 20;
	char *text = malloc(nbytes);
	int32_t *one, *many;
	size_t n, m;

	for (size_t i = 0; i < nbytes; i++)
		text[i] = "the cat reading  "[tt_rand_int(0, 16)];
	ck_assert_int_eq(te_token_encode(t, text, nbytes, 0, 1, &one, &n), 0);
	ck_assert_int_eq(te_token_encode(t, text, nbytes, 0, 4, &many, &m), 0);
	ck_assert_uint_eq(n, m);
	ck_assert(!memcmp(one, many, n * sizeof(*one)));
	free(one);
	free(many);
	free(text);
	te_token_unref(t);
}

TEST(formats, opens_a_folder)
{
	char dir[4096], path[4200], *p;
	struct te_token *t = NULL;
	size_t n;
	FILE *f;

	p = read_model("sp_unigram", &n);
	snprintf(dir, sizeof(dir), "%s/sp", tt_tmpdir());
	ck_assert_int_eq(mkdir(dir, 0755), 0);
	snprintf(path, sizeof(path), "%s/tokenizer.model", dir);
	f = fopen(path, "wb");
	fwrite(p, 1, n, f);
	fclose(f);
	ck_assert_int_eq(te_token_open(dir, NULL, &t), 0);
	te_token_unref(t);
	ck_assert_int_eq(truncate(path, (off_t)n - 1), 0);
	ck_assert_int_eq(te_token_open(dir, NULL, &t), -TE_ECORRUPT);
	ck_assert_ptr_nonnull(strstr(te_error_detail(), path));
	free(p);
	tt_remove(dir);
}

static const char *used;

static int use(void)
{
	size_t n, nback;
	char *p = read_model(used, &n), *back = NULL;
	struct te_token *t = NULL;
	int32_t *ids = NULL;
	int r = te_token_load(p, n, NULL, &t);

	if (!r)
		r = te_token_encode(t, "the \xef\xac\x81 <sep>", 13, 0, 1, &ids, &n);
	if (!r)
		r = te_token_decode(t, ids, n, 0, &back, &nback);
	free(back);
	free(ids);
	free(p);
	te_token_unref(t);
	return r;
}

TEST_EACH(formats, faults, TT_LEN(models))
{
	used = models[_i];
	ck_assert_int_gt(tt_fault_each(use), 10);
}

TT_MAIN("token/sentencepiece", TT_NEED_NOTHING)
