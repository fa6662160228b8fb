/* t/tools/data.c - te_train's data: files as one sequence of tokens, random and fixed batches. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef HAVE_ZLIB
#include <zlib.h>
#endif

#include "tools/te_train/data.h"
#include "tools/te_train/model.h"
#include "tools/te_train/say.h"
#include "tt.h"

static char dir[64];
static char path[3][96];

static void setup(void)
{
	strcpy(dir, "/tmp/te-data.XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(dir));
	for (int i = 0; i < 3; i++)
		snprintf(path[i], sizeof(path[i]), "%s/%d", dir, i);
	say_hush(1);
}

static void teardown(void)
{
	say_hush(0);
	for (int i = 0; i < 3; i++)
		unlink(path[i]);
	rmdir(dir);
}

static void put(int i, const char *suffix, const void *p, size_t n)
{
	FILE *f;

	snprintf(path[i], sizeof(path[i]), "%s/%d%s", dir, i, suffix);
	f = fopen(path[i], "wb");
	ck_assert_uint_eq(fwrite(p, 1, n, f), n);
	fclose(f);
}

static struct data *open_files(int n)
{
	char *list[3] = { path[0], path[1], path[2] };
	struct data *d = NULL;

	ck_assert_int_eq(data_open(list, n, &d), 0);
	return d;
}

static void refuse(int n)
{
	char *list[3] = { path[0], path[1], path[2] };
	struct data *d = NULL;

	ck_assert_int_eq(data_open(list, n, &d), STATUS_BAD);
	ck_assert_ptr_null(d);
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
	return open_files(3);
}

START_TEST(batches_span_files)
{
	int64_t n[3] = { tt_rand_int(1, 80), tt_rand_int(1, 80), tt_rand_int(1, 80) };
	int64_t all = n[0] + n[1] + n[2], T = tt_rand_int(1, all - 2), count, total = 0;
	struct data *d = counting(n);
	struct span s = { d, 1, all - 1 };
	int32_t *x = malloc((size_t)(7 * T) * 4), *y = malloc((size_t)(7 * T) * 4);
	int64_t nb = eval_nbatches(&s, 7, T, 0);

	ck_assert_int_eq(data_ntokens(d), all);
	for (int step = 0; step < 50; step++) {
		ck_assert_int_eq(batch_draw(&s, 5, step, 7, T, 256, x, y), 0);
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
		ck_assert_int_eq(batch_eval(&s, k, 0, 7, T, 256, x, y, &count), 0);
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
END_TEST

START_TEST(draws_depend_on_seed_step_and_row_alone)
{
	int64_t n[3] = { 80, 80, 80 };
	struct data *d = counting(n);
	struct span s = { d, 0, 240 };
	int32_t x[3][64], y[64], seen[236] = { 0 };
	int nseen = 0;

	ck_assert_int_eq(batch_draw(&s, 1, 9, 16, 4, 256, x[0], y), 0);
	ck_assert_int_eq(batch_draw(&s, 1, 10, 16, 4, 256, x[1], y), 0);
	ck_assert_int_eq(batch_draw(&s, 1, 9, 16, 4, 256, x[2], y), 0);
	ck_assert_mem_eq(x[0], x[2], sizeof(x[0]));
	ck_assert_mem_ne(x[0], x[1], sizeof(x[0]));
	ck_assert_int_eq(batch_draw(&s, 2, 9, 16, 4, 256, x[2], y), 0);
	ck_assert_mem_ne(x[0], x[2], sizeof(x[0]));
	/* 16000 draws of 236 starts miss one with probability 236 exp(-67) */
	for (int step = 0; step < 1000; step++) {
		ck_assert_int_eq(batch_draw(&s, 3, step, 16, 4, 256, x[0], y), 0);
		for (int i = 0; i < 64; i += 4)
			seen[x[0][i]] = 1;
	}
	for (int i = 0; i < 236; i++)
		nseen += seen[i];
	ck_assert_int_eq(nseen, 236);
	data_close(d);
}
END_TEST

START_TEST(spreads_a_limited_validation)
{
	int64_t n[3] = { 80, 80, 80 }, count;
	struct data *d = counting(n);
	struct span s = { d, 0, 240 };
	int32_t x[8], y[8];

	/* 60 windows of 4; 3 batches of 2 take every tenth */
	ck_assert_int_eq(eval_nbatches(&s, 2, 4, 3), 3);
	for (int k = 0; k < 3; k++) {
		ck_assert_int_eq(batch_eval(&s, k, 3, 2, 4, 256, x, y, &count), 0);
		ck_assert_int_eq(x[0], (2 * k) * 40);
		ck_assert_int_eq(x[4], (2 * k + 1) * 40);
		ck_assert_int_eq(count, 8);
	}
	ck_assert_int_eq(eval_nbatches(&s, 2, 4, 1000), 30);
	data_close(d);
}
END_TEST

START_TEST(reads_token_files)
{
	uint16_t raw[5] = { 0, 1, 50256, 65535, 7 };
	uint32_t head[256] = { 20240520, 1, 5 };
	uint8_t llmc[1024 + sizeof(raw)];
	int32_t x[4], y[4];
	struct data *d;
	struct span s;

	memcpy(llmc, head, 1024);
	memcpy(llmc + 1024, raw, sizeof(raw));
	put(0, ".bin", raw, sizeof(raw));
	put(1, ".bin", llmc, sizeof(llmc));
	d = open_files(2);
	ck_assert_int_eq(data_ntokens(d), 10);
	ck_assert(!data_is_bytes(d));
	s = (struct span){ d, 5, 5 };
	ck_assert_int_eq(batch_draw(&s, 0, 0, 1, 4, 65536, x, y), 0);
	for (int i = 0; i < 4; i++) {
		ck_assert_int_eq(x[i], raw[i]);
		ck_assert_int_eq(y[i], raw[i + 1]);
	}
	ck_assert_int_eq(batch_draw(&s, 0, 0, 1, 4, 65535, x, y), STATUS_BAD);
	data_close(d);

	put(0, ".bin", raw, 9);
	refuse(1); /* half a token */
	put(0, ".bin", llmc, sizeof(llmc) - 2);
	refuse(1); /* fewer than its header says */
	head[1] = 2;
	memcpy(llmc, head, 1024);
	put(0, ".bin", llmc, sizeof(llmc));
	refuse(1);
	put(0, ".txt", "abc", 3);
	refuse(2); /* text and tokens */
}
END_TEST

START_TEST(refuses_what_cannot_be_read)
{
	refuse(1); /* not there */
	put(0, ".txt", "", 0);
	refuse(1);
	strcpy(path[1], path[0]);
	strcpy(path[0], dir);
	refuse(1);
	unlink(path[1]);
}
END_TEST

#ifdef HAVE_ZLIB
static size_t deflate_text(const char *text, size_t n, uint8_t *dst, size_t room)
{
	z_stream z = { 0 };

	ck_assert_int_eq(deflateInit2(&z, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
	z.next_in = (Bytef *)text;
	z.avail_in = (uInt)n;
	z.next_out = dst;
	z.avail_out = (uInt)room;
	ck_assert_int_eq(deflate(&z, Z_FINISH), Z_STREAM_END);
	room -= z.avail_out;
	deflateEnd(&z);
	return room;
}

START_TEST(reads_gzip_members)
{
	enum { N = 3 << 20 };
	char *text = malloc(N), *back;
	uint8_t *gz = malloc(N);
	size_t n;
	struct data *d;
	FILE *f;

	for (size_t i = 0; i < N; i++)
		text[i] = (char)('a' + tt_rand_int(0, 3));
	n = deflate_text(text, N - 5, gz, N);
	n += deflate_text(text + N - 5, 5, gz + n, N - n);
	put(0, ".gz", gz, n);
	d = open_files(1);
	ck_assert_int_eq(data_ntokens(d), N);
	ck_assert_int_eq(span_dump(&(struct span){ d, 0, N }, path[1]), 0);
	data_close(d);
	back = malloc(N);
	f = fopen(path[1], "rb");
	ck_assert_uint_eq(fread(back, 1, N, f), N);
	ck_assert_int_eq(fgetc(f), EOF);
	fclose(f);
	ck_assert_mem_eq(back, text, N);

	put(0, ".gz", gz, n - 1);
	refuse(1);
	gz[n / 2] ^= 0x55;
	put(0, ".gz", gz, n);
	refuse(1);
	free(back);
	free(gz);
	free(text);
}
END_TEST
#endif

static Suite *suite(void)
{
	Suite *s = suite_create("tools/data");
	TCase *c = tt_case(s, "data", "host");

	tcase_add_checked_fixture(c, setup, teardown);
	tcase_add_test(c, batches_span_files);
	tcase_add_test(c, draws_depend_on_seed_step_and_row_alone);
	tcase_add_test(c, spreads_a_limited_validation);
	tcase_add_test(c, reads_token_files);
	tcase_add_test(c, refuses_what_cannot_be_read);
#ifdef HAVE_ZLIB
	tcase_add_test(c, reads_gzip_members);
#endif
	return s;
}

TT_MAIN("tools/data", TT_NEED_NOTHING, suite)
