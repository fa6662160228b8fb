/* t/tools/data.c - te_train's data: what files are, one sequence of tokens, batches of it. */
#include "config.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/lib/model.h"
#include "tools/lib/say.h"
#include "tools/te_train/batch.h"
#include "tools/te_train/data.h"
#include "tools/te_train/dump.h"
#include "tools/te_train/jsonl.h"
#include "tools/te_train/order.h"
#include "tt.h"

static char dir[64];
static char path[3][96];
static int64_t most = DATA_CHECKED_NBYTES;
static struct chat chat;
static enum data_mark mark;
static int32_t mark_token;

static void setup(void)
{
	snprintf(dir, sizeof(dir), "%s/te-data.XXXXXX", tt_tmpdir());
	ck_assert_ptr_nonnull(mkdtemp(dir));
	for (int i = 0; i < 3; i++)
		snprintf(path[i], sizeof(path[i]), "%s/%d", dir, i);
	mark = DATA_NO_MARK;
	say_hush(1);
}

static void teardown(void)
{
	say_hush(0);
	tt_remove(dir);
}

static void put(int i, const char *suffix, const void *p, size_t n)
{
	FILE *f;

	snprintf(path[i], sizeof(path[i]), "%s/%d%s", dir, i, suffix);
	f = fopen(path[i], "wb");
	ck_assert_uint_eq(fwrite(p, 1, n, f), n);
	fclose(f);
}

static struct data *open_as(int n, enum data_type type, int64_t vocab)
{
	char *list[3] = { path[0], path[1], path[2] };
	const struct data_opts opts = { .type = type, .vocab = vocab, .most_nbytes = most,
					.chat = &chat, .mark = mark, .mark_token = mark_token };
	struct data *d = NULL;

	ck_assert_int_eq(data_open(list, n, &opts, &d), 0);
	return d;
}

static struct data *open_files(int n)
{
	return open_as(n, DATA_AUTO, 256);
}

static void refuse_as(int n, enum data_type type, int64_t vocab)
{
	char *list[3] = { path[0], path[1], path[2] };
	const struct data_opts opts = { .type = type, .vocab = vocab, .most_nbytes = most,
					.chat = &chat, .mark = mark, .mark_token = mark_token };
	struct data *d = NULL;

	ck_assert_int_eq(data_open(list, n, &opts, &d), STATUS_BAD);
	ck_assert_ptr_null(d);
}

static void refuse(int n)
{
	refuse_as(n, DATA_AUTO, 256);
}

/* three files that count 0, 1, 2, ... across files */
static struct data *counting(int64_t n[3])
{
	uint8_t buf[256];
	int at = 0;

	for (int i = 0; i < 3; i++) {
		for (int k = 0; k < n[i]; k++)
			buf[k] = (uint8_t)at++;
		put(i, ".txt", buf, (size_t)n[i]);
	}
	return open_as(3, DATA_TEXT, 256); /* it has a byte 0 */
}

CASE(data, "host", .setup = setup, .teardown = teardown);

TEST(data, batches_span_files)
{
	int64_t n[3] = { tt_rand_int(1, 80), tt_rand_int(1, 80), tt_rand_int(1, 80) };
	int64_t all = n[0] + n[1] + n[2], T = tt_rand_int(1, all - 2), count, total = 0;
	struct data *d = counting(n);
	struct span s = { d, 1, all - 1 };
	int32_t *x = malloc((size_t)(7 * T) * 4), *y = malloc((size_t)(7 * T) * 4);
	int64_t nb = eval_nbatches(&s, 7, T, 0);

	ck_assert_int_eq(data_ntokens(d), all);
	for (int step = 0; step < 50; step++) {
		ck_assert_int_eq(batch_draw(&s, 5, step, 0, &(struct rows){ 7, T, x, y, NULL }), 0);
		for (int64_t i = 0; i < 7 * T; i++) {
			ck_assert_int_ge(x[i], 1);
			ck_assert_int_lt(x[i], all - 1);
			ck_assert_int_eq(y[i], x[i] + 1);
			if (i % T)
				ck_assert_int_eq(x[i], x[i - 1] + 1);
		}
	}
	/* all of it, each token predicted once and in order */
	for (int64_t k = 0; k < nb; k++) {
		ck_assert_int_eq(batch_eval(&s, k, 0,
					    &(struct rows){ 7, T, x, y, NULL }, &count), 0);
		for (int64_t i = 0; i < 7 * T; i++) {
			if (y[i] == IGNORED_TARGET)
				continue;
			ck_assert_int_eq(y[i], 2 + total);
			ck_assert_int_eq(x[i], y[i] - 1);
			total++;
			count--;
		}
		ck_assert_int_eq(count, 0);
	}
	ck_assert_int_eq(total, all - 2);
	free(x);
	free(y);
	data_close(d);
}

TEST(data, draws_depend_on_seed_step_and_row_alone)
{
	int64_t n[3] = { 80, 80, 80 };
	struct data *d = counting(n);
	struct span s = { d, 0, 240 };
	int32_t x[3][64], y[64], seen[236] = { 0 };
	int nseen = 0;

	ck_assert_int_eq(batch_draw(&s, 1, 9, 0, &(struct rows){ 16, 4, x[0], y, NULL }), 0);
	ck_assert_int_eq(batch_draw(&s, 1, 10, 0, &(struct rows){ 16, 4, x[1], y, NULL }), 0);
	ck_assert_int_eq(batch_draw(&s, 1, 9, 0, &(struct rows){ 16, 4, x[2], y, NULL }), 0);
	ck_assert_mem_eq(x[0], x[2], sizeof(x[0]));
	ck_assert_mem_ne(x[0], x[1], sizeof(x[0]));
	ck_assert_int_eq(batch_draw(&s, 2, 9, 0, &(struct rows){ 16, 4, x[2], y, NULL }), 0);
	ck_assert_mem_ne(x[0], x[2], sizeof(x[0]));
	/* 16000 draws of 236 starts miss one with probability 236 exp(-67) */
	for (int step = 0; step < 1000; step++) {
		ck_assert_int_eq(batch_draw(&s, 3, step, 0,
					    &(struct rows){ 16, 4, x[0], y, NULL }), 0);
		for (int i = 0; i < 64; i += 4)
			seen[x[0][i]] = 1;
	}
	for (int i = 0; i < 236; i++)
		nseen += seen[i];
	ck_assert_int_eq(nseen, 236);
	data_close(d);
}

TEST_EACH(data, an_epoch_has_each_element_once, 20)
{
	const int64_t n = _i < 6 ? _i + 1 : tt_rand_int(7, 3000);
	int32_t *seen = calloc((size_t)n, sizeof(*seen));
	int moved = 0;

	for (int64_t i = 0; i < n; i++) {
		const int64_t a = epoch_permute(5, n, i);

		ck_assert(a >= 0 && a < n);
		seen[a]++;
		moved |= epoch_permute(6, n, i) != a;
	}
	for (int64_t i = 0; i < n; i++)
		ck_assert_int_eq(seen[i], 1);
	/* two of 7! orders are equal with probability 2e-4, of others with less */
	ck_assert(n < 20 || moved);
	free(seen);
}

/* three ranks that take rows at different speeds, some after a restart with another number */
TEST(data, ranks_take_each_token_once_an_epoch)
{
	int64_t n[3] = { tt_rand_int(1, 80), tt_rand_int(1, 80), tt_rand_int(1, 80) };
	int64_t all = n[0] + n[1] + n[2], T = tt_rand_int(1, all - 2);
	int32_t *x = malloc((size_t)(4 * T) * 4), *y = malloc((size_t)(4 * T) * 4);
	int32_t seen[240] = { 0 };
	struct data *d = counting(n);
	struct span s = { d, 1, all - 1 };
	const int64_t nwindows = epoch_nwindows(&s, T), epoch = tt_rand_int(0, 9);

	for (int64_t i = 0; i < nwindows;) {
		int64_t k = tt_rand_int(1, 4);

		k = k < nwindows - i ? k : nwindows - i;
		ck_assert_int_eq(batch_take(&s, 7, epoch * nwindows + i,
					    &(struct rows){ k, T, x, y, NULL }), 0);
		for (int64_t j = 0; j < k * T; j++) {
			if (y[j] == IGNORED_TARGET)
				continue;
			ck_assert_int_eq(y[j], x[j] + 1);
			seen[y[j]]++;
		}
		i += k;
	}
	for (int64_t i = 0; i < 240; i++)
		ck_assert_int_eq(seen[i], i >= 2 && i < all);
	free(x);
	free(y);
	data_close(d);
}

TEST(data, orders_depend_on_seed_and_epoch)
{
	int64_t n[3] = { 80, 80, 80 };
	struct data *d = counting(n);
	struct span s = { d, 0, 240 };
	int32_t x[4][60], y[240];

	/* 60 windows */
	ck_assert_int_eq(batch_take(&s, 1, 60, &(struct rows){ 15, 4, x[0], y, NULL }), 0);
	ck_assert_int_eq(batch_take(&s, 1, 120, &(struct rows){ 15, 4, x[1], y, NULL }), 0);
	ck_assert_int_eq(batch_take(&s, 2, 60, &(struct rows){ 15, 4, x[2], y, NULL }), 0);
	ck_assert_int_eq(batch_take(&s, 1, 60, &(struct rows){ 7, 4, x[3], y, NULL }), 0);
	ck_assert_int_eq(batch_take(&s, 1, 67, &(struct rows){ 8, 4, x[3] + 28, y, NULL }), 0);
	ck_assert_mem_eq(x[0], x[3], sizeof(x[0]));
	ck_assert_mem_ne(x[0], x[1], sizeof(x[0]));
	ck_assert_mem_ne(x[0], x[2], sizeof(x[0]));
	data_close(d);
}

/* tokens are their own index; _i: the epoch */
TEST_EACH(data, windows_begin_elsewhere_in_later_epochs, 4)
{
	int64_t n[3] = { 80, 80, 80 };
	struct data *d = counting(n);
	struct span s = { d, 0, 240 };
	int32_t x[23][11], y[23][11], first[23][11];
	int moved = 0, divided = 0;
	const int64_t nwindows = epoch_nwindows(&s, 11); /* 22 */

	ck_assert_int_eq(batch_take(&s, 3, _i * nwindows,
				    &(struct rows){ nwindows, 11, x[0], y[0], first[0] }), 0);
	for (int64_t i = 0; i < nwindows; i++) {
		moved += x[i][0] % 11 != 0;
		for (int k = 1; k < 11 && y[i][k] != IGNORED_TARGET; k++)
			if (x[i][k] != x[i][k - 1] + 1) {
				ck_assert_int_eq(x[i][k], 0);
				ck_assert_int_eq(x[i][k - 1], 238);
				ck_assert_int_eq(y[i][k - 1], 239);
				ck_assert_int_eq(first[i][k], k);
				divided++;
			}
	}
	ck_assert(_i ? moved >= 21 && divided == 1 : !moved && !divided);
	data_close(d);
}

TEST(data, another_length_of_windows_begins_an_epoch)
{
	int64_t n[3] = { 80, 80, 80 };
	struct data *d = counting(n);
	struct span s = { d, 0, 240 };

	/* 60 windows of 4, 30 of 8 */
	ck_assert_int_eq(epoch_next(&s, 0, 4, 8), 0);
	ck_assert_int_eq(epoch_next(&s, 1, 4, 8), 30);
	ck_assert_int_eq(epoch_next(&s, 60, 4, 8), 30);
	ck_assert_int_eq(epoch_next(&s, 61, 4, 8), 60);
	/* one window of any length above 240, and more epochs than numbers of windows */
	ck_assert_int_eq(epoch_next(&s, 9, 1000000000000000, 4), 540);
	ck_assert_int_eq(epoch_next(&s, 1000000000000000, 1000000000000000, 4), -1);
	data_close(d);
}

TEST(data, spreads_a_limited_validation)
{
	int64_t n[3] = { 80, 80, 80 }, count;
	struct data *d = counting(n);
	struct span s = { d, 0, 240 };
	int32_t x[8], y[8];

	/* 60 windows of 4; 3 batches of 2 take every tenth */
	ck_assert_int_eq(eval_nbatches(&s, 2, 4, 3), 3);
	for (int k = 0; k < 3; k++) {
		ck_assert_int_eq(batch_eval(&s, k, 3,
					    &(struct rows){ 2, 4, x, y, NULL }, &count), 0);
		ck_assert_int_eq(x[0], (2 * k) * 40);
		ck_assert_int_eq(x[4], (2 * k + 1) * 40);
		ck_assert_int_eq(count, 8);
	}
	ck_assert_int_eq(eval_nbatches(&s, 2, 4, 1000), 30);
	data_close(d);
}

/* a file of n tokens of width bytes, with a header of llm.c if magic is not 0; its size */
static size_t put_tokens(int i, const char *suffix, const uint32_t *token, int n, size_t width,
			 uint32_t magic, uint32_t version)
{
	uint32_t head[256] = { magic, version, (uint32_t)n };
	uint8_t buf[4096], *p = buf;

	if (magic) {
		memcpy(p, head, sizeof(head));
		p += sizeof(head);
	}
	for (int k = 0; k < n; k++, p += width) {
		uint64_t wide = token[k];

		memcpy(p, &wide, width);
	}
	put(i, suffix, buf, (size_t)(p - buf));
	return (size_t)(p - buf);
}

static const uint32_t gpt2[10] = { 464, 1, 50256, 290, 7, 11, 0, 262, 13, 198 };

/* d has the tokens from index first */
static void check_tokens(const struct data *d, int64_t first, const uint32_t *want, int n)
{
	struct span s = { d, first, n };
	int32_t got[10];

	ck_assert_int_eq(span_read(&s, 0, n, got), 0);
	for (int i = 0; i < n; i++)
		ck_assert_uint_eq((uint32_t)got[i], want[i]);
}

TEST(data, reads_token_files)
{
	char digest[17];
	struct data *d;

	put_tokens(0, ".bin", gpt2, 10, 2, 0, 0);
	put_tokens(1, ".bin", gpt2, 10, 2, 20240520, 1);
	put_tokens(2, ".tok", gpt2, 10, 4, 20240801, 7);
	d = open_as(3, DATA_AUTO, 50257);
	ck_assert_int_eq(data_ntokens(d), 30);
	ck_assert(!data_is_bytes(d));
	ck_assert_str_eq(data_kind(d), "u32");
	ck_assert_int_eq(data_largest(d), 50256);
	for (int i = 0; i < 3; i++)
		check_tokens(d, 10 * i, gpt2, 10);
	check_tokens(d, 8, (uint32_t[]){ 13, 198, 464, 1 }, 4);
	data_close(d);

	/* the digest is of the tokens */
	d = open_as(1, DATA_AUTO, 50257);
	ck_assert_str_eq(data_kind(d), "u16");
	strcpy(digest, data_digest(d));
	data_close(d);
	put_tokens(0, ".bin", gpt2, 10, 2, 20240520, 1);
	d = open_as(1, DATA_AUTO, 50257);
	ck_assert_str_eq(data_digest(d), digest);
	data_close(d);
	put_tokens(0, ".bin", gpt2 + 1, 9, 2, 0, 0);
	d = open_as(1, DATA_AUTO, 50257);
	ck_assert_str_ne(data_digest(d), digest);
	data_close(d);

	put(1, ".txt", "abc", 3);
	put_tokens(0, ".bin", (uint32_t[]){ 1, 200, 3 }, 3, 2, 20240520, 1);
	refuse(2); /* text and tokens */
}

TEST(data, refuses_bad_headers)
{
	size_t n = put_tokens(0, ".bin", gpt2, 10, 2, 20240520, 1);

	ck_assert_int_eq(truncate(path[0], (off_t)n - 2), 0);
	refuse_as(1, DATA_AUTO, 50257); /* fewer than its header promises */
	put_tokens(0, ".bin", gpt2, 10, 4, 20240520, 1);
	refuse_as(1, DATA_AUTO, 50257); /* more */
	put_tokens(0, ".bin", gpt2, 10, 2, 20240520, 2);
	refuse_as(1, DATA_AUTO, 50257); /* another version */
	put_tokens(0, ".bin", gpt2, 10, 4, 20240801, 1);
	refuse_as(1, DATA_AUTO, 50257);
	put_tokens(0, ".bin", gpt2, 10, 2, 20240522, 1);
	refuse_as(1, DATA_AUTO, 65536); /* another format of llm.c */
	put_tokens(0, ".bin", gpt2, 10, 2, 20240520, 1);
	refuse_as(1, DATA_U32, 65536);	/* not what was asked for */
	refuse_as(1, DATA_AUTO, 50256); /* beyond the vocabulary */
}

/* width, vocab -> type or -1, of headerless files by DATA_AUTO */
static const struct {
	size_t width;
	int64_t vocab;
	const char *suffix, *want;
} headerless[] = {
	{ 2, 50257, ".bin", "u16" },  { 4, 50257, ".bin", "u32" },
	{ 4, 128256, ".bin", "u32" }, { 2, 65536, ".bin", "u16" },
	{ 2, 128256, ".bin", NULL }, /* nearly any file has 16-bit numbers below that */
	{ 8, 50257, ".bin", NULL },   { 8, 128256, ".bin", NULL },
	{ 2, 50256, ".bin", NULL }, /* beyond the vocabulary */
	/* the name has the type, and the tokens are checked all the same */
	{ 2, 50257, ".u16", "u16" },  { 4, 50257, ".u32", "u32" },
	{ 2, 128256, ".u16", "u16" }, { 4, 128256, ".tokens.u32", "u32" },
	{ 4, 50257, ".u16", NULL },   { 2, 50257, ".u32", NULL },
	{ 2, 50256, ".u16", NULL },   { 3, 50257, ".u16", NULL },
	{ 2, 50257, ".u8", NULL },
	{ 2, 50257, ".dat", NULL }, /* text has no byte 0 */
	{ 1, 50257, ".bin", NULL },   { 3, 50257, ".bin", NULL },
};

TEST_EACH(data, decides_only_what_is_certain, TT_LEN(headerless))
{
	const char *want = headerless[_i].want;
	struct data *d;

	put_tokens(0, headerless[_i].suffix, gpt2, 10, headerless[_i].width, 0, 0);
	if (!want) {
		refuse_as(1, DATA_AUTO, headerless[_i].vocab);
		return;
	}
	d = open_as(1, DATA_AUTO, headerless[_i].vocab);
	ck_assert_str_eq(data_kind(d), want);
	ck_assert_int_eq(data_ntokens(d), 10);
	check_tokens(d, 0, gpt2, 10);
	data_close(d);
}

TEST(data, refuses_a_width_that_cannot_be)
{
	static const char text[] = "All the world's a stage, and all the men ";
	uint8_t few[8] = { 1, 0, 0, 0, 2, 0, 0, 0 };
	struct data *d;

	put_tokens(0, ".bin", gpt2, 10, 4, 0, 0);
	refuse_as(1, DATA_U16, 50257);
	put_tokens(0, ".bin", gpt2, 10, 8, 0, 0);
	refuse_as(1, DATA_U32, 50257);
	refuse_as(1, DATA_U16, 50257);
	put(0, ".bin", text, sizeof(text) - 2);
	refuse_as(1, DATA_U16, 50257);
	refuse_as(1, DATA_AUTO, 50257);
	put(0, ".bin", "abc", 3);
	refuse_as(1, DATA_U16, 50257); /* half a token */

	/* too few to tell: the type decides */
	put(0, ".bin", few, sizeof(few));
	refuse_as(1, DATA_AUTO, 50257);
	d = open_as(1, DATA_U32, 50257);
	check_tokens(d, 0, (uint32_t[]){ 1, 2 }, 2);
	data_close(d);
	d = open_as(1, DATA_U16, 50257);
	check_tokens(d, 0, (uint32_t[]){ 1, 0, 2, 0 }, 4);
	data_close(d);
}

TEST(data, text_is_for_models_of_bytes)
{
	uint8_t all[256];
	struct data *d;

	put(0, ".txt", "abc", 3);
	refuse_as(1, DATA_AUTO, 257);
	refuse_as(1, DATA_TEXT, 50257);
	refuse_as(1, DATA_AUTO, 'c');
	d = open_as(1, DATA_AUTO, 'c' + 1);
	ck_assert_int_eq(data_largest(d), 'c');
	data_close(d);
	for (int i = 0; i < 256; i++)
		all[i] = (uint8_t)i;
	put(0, ".bin", all, 256);
	refuse_as(1, DATA_AUTO, 256);
	d = open_as(1, DATA_TEXT, 256);
	ck_assert(data_is_bytes(d));
	ck_assert_int_eq(data_ntokens(d), 256);
	data_close(d);
}

static const struct {
	const char *bytes;
	size_t n, at;
} magics[] = {
	{ "\x93NUMPY\1\0", 8, 0 },
	{ "PK\3\4", 4, 0 },
	{ "%PDF-1.7", 8, 0 },
	{ "\x7f"
	  "ELF",
	  4, 0 },
	{ "\x40\0\0\0\0\0\0\0{\"", 10, 0 },
	{ "PAR1", 4, 0 },
	{ "BZh9", 4, 0 },
	{ "ustar", 5, 257 },
	{ "\xff\xfe", 2, 0 },
};

TEST_EACH(data, refuses_other_files_by_their_first_bytes, TT_LEN(magics))
{
	char buf[512];

	memset(buf, 'a', sizeof(buf));
	memcpy(buf + magics[_i].at, magics[_i].bytes, magics[_i].n);
	put(0, ".txt", buf, sizeof(buf));
	refuse_as(1, DATA_AUTO, 256);
	put(0, ".bin", buf, sizeof(buf));
	refuse_as(1, DATA_AUTO, 65536);
	if (magics[_i].n >= 4)
		refuse_as(1, DATA_U16, 65536);
}

/* opened files are the same, or an error, whatever happens to them */
TEST(data, notices_files_that_change)
{
	static const char other[] = "bbbbbbbbbb";
	struct data *d;
	struct span s;
	int32_t x[10];
	FILE *f;

	/* the time stamps differ, the contents do not */
	put(0, ".txt", "aaaaaaaaaa", 10);
	d = open_files(1);
	s = (struct span){ d, 0, 10 };
	put(0, ".txt", "aaaaaaaaaa", 10);
	ck_assert_int_eq(span_read(&s, 0, 10, x), 0);
	/* nor do they differ in a file that is not there any more */
	unlink(path[0]);
	ck_assert_int_eq(span_read(&s, 0, 10, x), 0);
	data_close(d);

	put(0, ".txt", "aaaaaaaaaa", 10);
	d = open_files(1);
	s = (struct span){ d, 0, 10 };
	f = fopen(path[0], "r+b");
	fwrite(other, 1, 10, f);
	fclose(f);
	ck_assert_int_eq(span_read(&s, 0, 2, x), STATUS_BAD);
	ck_assert_int_eq(span_read(&s, 2, 2, x), STATUS_BAD);
	data_close(d);

	put(0, ".txt", "aaaaaaaaaa", 10);
	d = open_files(1);
	s = (struct span){ d, 0, 10 };
	ck_assert_int_eq(truncate(path[0], 5), 0);
	ck_assert_int_eq(span_read(&s, 0, 2, x), STATUS_BAD);
	ck_assert_int_eq(span_read(&s, 0, 10, x), STATUS_BAD);
	data_close(d);
}

/* a file of which only pieces are read first */
TEST(data, samples_large_files)
{
	enum { N = 60000, AT = 41501 };
	uint16_t *token = calloc(N + 1, sizeof(*token));
	int32_t x[N / 100];
	char digest[17];
	struct data *d;
	struct span s;

	most = 2 * N - 1;
	for (int i = 0; i < N; i++)
		token[i] = (uint16_t)tt_rand_int(300, 50256);
	put(0, ".bin", token, 2 * N);
	d = open_as(1, DATA_AUTO, 50257);
	ck_assert_str_eq(data_kind(d), "u16");
	ck_assert_int_eq(data_ntokens(d), N);
	strcpy(digest, data_digest(d));
	s = (struct span){ d, 0, N };
	for (int i = 0; i < N; i += N / 100) {
		ck_assert_int_eq(span_read(&s, i, N / 100, x), 0);
		for (int k = 0; k < N / 100; k++)
			ck_assert_int_eq(x[k], token[i + k]);
	}
	unlink(path[0]);
	ck_assert_int_eq(span_read(&s, 0, 1, x), 0); /* it is still there */
	data_close(d);

	/* its beginning and its end count, and its size */
	for (int i = 0; i < 3; i++) {
		const int at = i ? 0 : N - 1;

		token[at] ^= 1;
		put(0, ".bin", token, i < 2 ? 2 * N : 2 * N + 2);
		token[at] ^= 1;
		d = open_as(1, DATA_AUTO, 50258);
		ck_assert_str_ne(data_digest(d), digest);
		data_close(d);
	}

	/* a token beyond the vocabulary between two pieces */
	token[AT] = 50257;
	put(0, ".bin", token, 2 * N);
	d = open_as(1, DATA_AUTO, 50257);
	s = (struct span){ d, 0, N };
	ck_assert_int_eq(span_read(&s, AT - 10, 10, x), 0);
	ck_assert_int_eq(span_read(&s, AT - 1, 2, x), STATUS_BAD);
	ck_assert_int_eq(span_read(&s, AT + 1, 10, x), 0);
	/* a write between two pieces, which the digest does not have */
	ck_assert_int_eq(utimensat(AT_FDCWD, path[0], NULL, 0), 0);
	ck_assert_int_eq(span_read(&s, 0, 1, x), STATUS_BAD);
	data_close(d);
	most = 2 * N;
	refuse_as(1, DATA_AUTO, 50257);
	most = DATA_CHECKED_NBYTES;
	free(token);
}

TEST(data, reads_folders)
{
	char sub[128];
	struct data *d;

	put(2, ".bin", gpt2 + 2, 8);
	put(1, ".u32", gpt2, 8);
	put(0, ".u32", gpt2 + 2, 8);
	unlink(path[2]);
	snprintf(sub, sizeof(sub), "%s/.hidden", dir);
	ck_assert_int_eq(symlink("nothing", sub), 0);
	snprintf(sub, sizeof(sub), "%s/sub", dir);
	ck_assert_int_eq(mkdir(sub, 0700), 0);
	strcpy(path[0], dir);
	d = open_as(1, DATA_AUTO, 50257);
	ck_assert_int_eq(data_ntokens(d), 4);
	check_tokens(d, 0, (uint32_t[]){ gpt2[2], gpt2[3], gpt2[0], gpt2[1] }, 4);
	data_close(d);
	strcpy(path[0], sub);
	refuse(1); /* empty */
	snprintf(path[1], sizeof(path[1]), "%s/other.txt", dir);
	ck_assert_int_eq(symlink("nothing", path[1]), 0);
	strcpy(path[0], dir);
	refuse_as(1, DATA_AUTO, 50257); /* a link to nothing */
}

TEST(data, reads_pipes)
{
	enum { N = 100000 };
	char *list[] = { path[0] };
	struct data *d = NULL;
	int32_t x[2];
	FILE *f;
	int r;

	snprintf(path[0], sizeof(path[0]), "%s/fifo", dir);
	ck_assert_int_eq(mkfifo(path[0], 0600), 0);
	if (!fork()) {
		f = fopen(path[0], "wb");
		for (int i = 0; i < N; i++)
			fputc('a' + i % 26, f);
		_exit(fclose(f) ? 1 : 0);
	}
	r = data_open(list, 1, &(struct data_opts){ .vocab = 256, .chat = &chat }, &d);
	ck_assert_int_eq(wait(&(int){ 0 }) > 0, 1);
	ck_assert_int_eq(r, 0);
	ck_assert_int_eq(data_ntokens(d), N);
	ck_assert_int_eq(span_read(&(struct span){ d, 0, N }, N - 2, 2, x), 0);
	ck_assert_int_eq(x[1], 'a' + (N - 1) % 26);
	data_close(d);
}

TEST(data, draws_random_tokens)
{
	int seen[11] = { 0 };
	struct data *d = NULL;
	int32_t x[1000], y[4];
	struct span s;

	ck_assert_int_eq(data_random(11, &d), 0);
	s = (struct span){ d, 100, 2000 };
	ck_assert_int_eq(span_read(&s, 0, 1000, x), 0);
	ck_assert_int_eq(span_read(&s, 7, 4, y), 0);
	ck_assert_mem_eq(y, x + 7, sizeof(y));
	for (int i = 0; i < 1000; i++) {
		ck_assert(x[i] >= 0 && x[i] < 11);
		seen[x[i]]++;
	}
	/* 91 are expected of each, with a standard deviation of 9 */
	for (int i = 0; i < 11; i++)
		ck_assert(seen[i] > 40 && seen[i] < 140);
	ck_assert(!data_is_bytes(d));
	data_close(d);
}

TEST(data, refuses_what_cannot_be_read)
{
	refuse(1); /* not there */
	put(0, ".txt", "", 0);
	refuse(1);
}

/* compress src by a program to its standard output, appended to path[i] */
static void squeeze(const char *program, int i, const char *src)
{
	char line[256];

	snprintf(line, sizeof(line), "%s -1c <%s >>%s", program, src, path[i]);
	ck_assert_int_eq(system(line), 0);
}

static const struct {
	const char *program, *suffix;
	int there;
} squeezed[] = {
#ifdef HAVE_ZLIB
	{ "gzip", ".gz", 1 },
#else
	{ "gzip", ".gz", 0 },
#endif
#ifdef HAVE_LZMA
	{ "xz", ".xz", 1 },
#else
	{ "xz", ".xz", 0 },
#endif
#ifdef HAVE_ZSTD
	{ "zstd", ".zst", 1 },
#else
	{ "zstd", ".zst", 0 },
#endif
};

static void read_back(const struct data *d, const char *want, int64_t n)
{
	char *got = malloc((size_t)n + 1);
	FILE *f;

	snprintf(path[2], sizeof(path[2]), "%s/dump", dir);
	ck_assert_int_eq(span_dump(&(struct span){ d, 0, n }, path[2]), 0);
	f = fopen(path[2], "rb");
	ck_assert_int_eq((int64_t)fread(got, 1, (size_t)n + 1, f), n);
	fclose(f);
	ck_assert_mem_eq(got, want, (size_t)n);
	free(got);
}

TEST_EACH(data, reads_compressed_files, TT_LEN(squeezed))
{
	enum { N = 5 << 18 };
	const char *program = squeezed[_i].program;
	char line[256], *text = malloc(N);
	struct data *d;
	long n;
	FILE *f;

	snprintf(line, sizeof(line), "command -v %s >%s/which", program, dir);
	if (system(line)) {
		fprintf(stderr, "%s is not found\n", program);
		free(text);
		return;
	}
	snprintf(path[2], sizeof(path[2]), "%s/which", dir);
	unlink(path[2]);
	for (size_t i = 0; i < N; i++)
		text[i] = (char)('a' + tt_rand_int(0, 3));
	put(1, ".txt", text, N - 5);
	put(0, squeezed[_i].suffix, "", 0);
	squeeze(program, 0, path[1]);
	if (!squeezed[_i].there) {
		refuse(1);
		free(text);
		return;
	}
	/* two members */
	put(1, ".txt", text + N - 5, 5);
	squeeze(program, 0, path[1]);
	d = open_files(1);
	ck_assert_int_eq(data_ntokens(d), N);
	read_back(d, text, N);
	data_close(d);

	f = fopen(path[0], "r+b");
	fseek(f, 0, SEEK_END);
	n = ftell(f);
	ck_assert_int_eq(ftruncate(fileno(f), n - 1), 0);
	fclose(f);
	refuse(1); /* cut short */
	f = fopen(path[0], "r+b");
	fseek(f, n / 2, SEEK_SET);
	fputc('x', f);
	fputc('y', f);
	fclose(f);
	refuse(1); /* damaged */
	unlink(path[0]);
	/* what is inside counts: tokens, whose name ends in .bin before the suffix */
	put_tokens(1, ".bin", gpt2, 10, 2, 0, 0);
	snprintf(path[0], sizeof(path[0]), "%s/0.bin%s", dir, squeezed[_i].suffix);
	squeeze(program, 0, path[1]);
	d = open_as(1, DATA_AUTO, 50257);
	check_tokens(d, 0, gpt2, 10);
	data_close(d);
	free(text);
}

static const char *const no_role[CHAT_NROLES];

static const char *const bad_lines[] = {
	"",
	"5",
	"[]",
	"{}",
	"{",
	"{\"text\": 5}",
	"{\"text\": \"a\"} x",
	"{\"prompt\": \"a\"}",
	"{\"text\": \"a\", \"text\": \"b\"}",
	"{\"text\": \"\xff\"}",
	"{\"messages\": {}}",
	"{\"messages\": [5]}",
	"{\"messages\": [{\"role\": \"user\"}]}",
	"{\"messages\": [{\"role\": \"tool\", \"content\": \"a\"}]}",
	"{\"messages\": [{\"role\": \"system\", \"content\": \"a\"}]}",
	("{\"messages\": [{\"role\": \"system\", \"content\": \"a\"},"
	 " {\"role\": \"assistant\", \"content\": \"a\"}]}"),
	"{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image\"}]}]}",
};

TEST_EACH(data, refuses_other_lines, TT_LEN(bad_lines))
{
	ck_assert_int_eq(chat_create("mistral", NULL, no_role, NULL, &chat), 0);
	put(0, ".jsonl", bad_lines[_i], strlen(bad_lines[_i]));
	refuse(1);
	chat_free(&chat);
}

TEST(data, packs_documents_with_text)
{
	static const char line[] = "{\"prompt\": \"ab\", \"completion\": \"c\"}\n";
	/* ab c \n twice, then the text */
	static const int32_t want[10] = { IGNORED_TARGET, 'c', '\n', IGNORED_TARGET,
					  IGNORED_TARGET, 'c', '\n', 'x', 'y' };
	int32_t x[12], y[12];
	char twice[128], digest[17];
	int64_t count;
	struct data *d;
	struct span s;

	ck_assert_int_eq(chat_create("chatml", NULL, no_role, NULL, &chat), 0);
	snprintf(twice, sizeof(twice), "%s%s", line, line);
	put(0, ".jsonl", twice, strlen(twice));
	put(1, ".txt", "xy", 2);
	d = open_files(2);
	ck_assert(data_is_bytes(d));
	ck_assert_int_eq(data_ntokens(d), 10);
	s = (struct span){ d, 0, 10 };
	ck_assert_int_eq(batch_eval(&s, 0, 0, &(struct rows){ 1, 12, x, y, NULL }, &count), 0);
	ck_assert_mem_eq(y, want, 9 * sizeof(*y));
	ck_assert_int_eq(count, 6);
	for (int64_t c = 0; c < 3; c++) {
		ck_assert_int_eq(batch_take(&s, 1, c, &(struct rows){ 1, 3, x, y, NULL }), 0);
		for (int i = 0; i < 3; i++)
			ck_assert(y[i] == IGNORED_TARGET || y[i] == 'c' || y[i] == '\n' ||
				  y[i] == 'x' || y[i] == 'y');
	}
	strcpy(digest, data_digest(d));
	data_close(d);
	refuse_as(2, DATA_AUTO, 257);
	refuse_as(2, DATA_AUTO, 'c');
	d = open_as(1, DATA_TEXT, 256);
	ck_assert_int_eq(data_ntokens(d), (int64_t)strlen(twice));
	data_close(d);
	chat_free(&chat);

	/* another end: other tokens */
	ck_assert_int_eq(chat_create("chatml", NULL, no_role, "\\t\\\\", &chat), 0);
	d = open_files(2);
	ck_assert_int_eq(data_ntokens(d), 12);
	ck_assert_str_ne(data_digest(d), digest);
	data_close(d);
	chat_free(&chat);
}

/* documents of n tokens begin where starts[] is not 0; 2: the mark is there, a target */
static void check_documents(const struct data *d, const uint8_t *starts, int64_t n)
{
	const int64_t from = tt_rand_int(0, 1), T = tt_rand_int(1, n + 3);
	const struct span s = { d, from, n - from };
	int32_t x[64], y[64], first[64], plain[64];
	const struct rows rows = { 1, T, x, y, first }, without = { 1, T, x, plain, NULL };
	int64_t count, i = 0;

	for (int64_t w = 0; w < epoch_nwindows(&s, T); w++) {
		int32_t latest = 0;

		ck_assert_int_eq(batch_eval(&s, w, 0, &without, &count), 0);
		ck_assert_int_eq(batch_eval(&s, w, 0, &rows, &count), 0);
		for (i = 0; i < T; i++) {
			const int64_t at = from + w * T + i;
			const int ends = at + 1 < n ? starts[at + 1] == 1 : 1;

			latest = at >= n - 1 || (i && starts[at]) ? (int32_t)i : latest;
			ck_assert_int_eq(first[i], latest);
			ck_assert_int_eq(y[i], ends ? IGNORED_TARGET : plain[i]);
			count -= y[i] != IGNORED_TARGET;
		}
		ck_assert_int_eq(count, 0);
	}
}

TEST(data, documents_are_lines_and_files)
{
	static const char line[] = "{\"prompt\": \"ab\", \"completion\": \"c\"}\n"
				   "{\"text\": \"xyz\"}";
	static const uint8_t starts[14] = { [0] = 1, [4] = 1, [8] = 1, [11] = 1 };
	struct data *d;

	ck_assert_int_eq(chat_create("chatml", NULL, no_role, NULL, &chat), 0);
	put(0, ".jsonl", line, strlen(line));
	put(1, ".txt", "uvw", 3);
	put(2, ".txt", "rst", 3);
	d = open_files(3);
	ck_assert_int_eq(data_ntokens(d), 14);
	for (int i = 0; i < 50; i++)
		check_documents(d, starts, 14);
	data_close(d);
	chat_free(&chat);
}

/* a document goes on in the next file. _i: enum data_mark */
TEST_EACH(data, a_token_ends_or_begins_documents, 3)
{
	static const uint32_t token[9] = { 7, 300, 9, 7, 7, 300, 11, 12, 7 };
	static const uint8_t starts[3][9] = {
		{ 0 },
		{ [1] = 1, [4] = 1, [5] = 1 },
		{ [0] = 2, [3] = 2, [4] = 2, [8] = 2 },
	};
	struct data *d;

	mark = (enum data_mark)_i;
	mark_token = 7;
	put_tokens(0, ".u16", token, 6, 2, 0, 0);
	put_tokens(1, ".u16", token + 6, 3, 2, 0, 0);
	d = open_as(2, DATA_AUTO, 512);
	for (int i = 0; i < 50; i++)
		check_documents(d, starts[_i], 9);
	data_close(d);
	mark_token = -1;
	if (_i)
		refuse_as(1, DATA_AUTO, 512);
	put(0, ".txt", "text needs none", 15);
	d = open_files(1);
	data_close(d);
}

TT_MAIN("tools/data", TT_NEED_NOTHING)
