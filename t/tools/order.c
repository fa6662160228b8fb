/* t/tools/order.c - te_train --order documents: each token once an epoch, on any ranks. */
#include "config.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/lib/model.h"
#include "tools/lib/say.h"
#include "tools/te_train/batch.h"
#include "tools/te_train/data.h"
#include "tools/te_train/jsonl.h"
#include "tools/te_train/order.h"
#include "tt.h"

enum { MARK = 50000, MOST = 3000 };

static char dir[64], path[3][96];
static struct chat chat;
static enum data_mark mark;
static uint8_t begins[MOST + 1]; /* for each token of put_documents(): is it a document's first */

static void setup(void)
{
	const char *const role[CHAT_NROLES] = { NULL };

	snprintf(dir, sizeof(dir), "%s/te-order.XXXXXX", tt_tmpdir());
	ck_assert_ptr_nonnull(mkdtemp(dir));
	ck_assert_int_eq(chat_create("chatml", NULL, role, NULL, &chat), 0);
	mark = DATA_MARK_ENDS;
	say_hush(1);
}

static void teardown(void)
{
	say_hush(0);
	chat_free(&chat);
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

static struct data *open_files(int n, int64_t vocab)
{
	char *list[3] = { path[0], path[1], path[2] };
	const struct data_opts opts = { .vocab = vocab, .most_nbytes = DATA_CHECKED_NBYTES,
					.chat = &chat, .mark = mark, .mark_token = MARK };
	struct data *d = NULL;

	ck_assert_int_eq(data_open(list, n, &opts, &d), 0);
	return d;
}

/*
 * n tokens in two files. Each one is its index + 1, or the mark that ends a document, as the last
 * one is. Returns the number of marks.
 */
static int put_documents(int64_t n)
{
	const int64_t half = tt_rand_int(n / 4, 3 * n / 4);
	uint16_t token[MOST];
	int nmarks = 0;

	for (int64_t i = 0; i < n; i++) {
		const int is = i == n / 2 || i == n - 1 || (i && tt_rand_int(0, 7) == 0);

		begins[i + 1] = !i || token[i - 1] == MARK;
		token[i] = is ? MARK : (uint16_t)(i + 1);
		nmarks += is;
	}
	put(0, ".u16", token, (size_t)half * 2);
	put(1, ".u16", token + half, (size_t)(n - half) * 2);
	return nmarks;
}

/* tokens that were read as inputs, by their number; and the marks among them */
struct count {
	int32_t seen[MOST + 1], nmarks;
	int64_t n;
};

static void count_row(struct count *c, const int32_t *x, int64_t n)
{
	for (int64_t i = 0; i < n; i++) {
		ck_assert(x[i] == MARK || (x[i] >= 1 && x[i] <= MOST));
		if (x[i] == MARK)
			c->nmarks++;
		else
			ck_assert_int_eq(c->seen[x[i]]++, 0);
	}
	c->n += n;
}

static struct order *open_order(const struct span *s, uint64_t seed, int64_t chunk, int64_t nchunks)
{
	struct order *o = NULL;

	ck_assert_int_eq(order_open(s, seed, chunk, nchunks, &o), 0);
	return o;
}

/* number of tokens that window w of an epoch of n tokens reads */
static int64_t window_size(int64_t n, int64_t T, int64_t w)
{
	return n - 1 - w * T < T ? n - 1 - w * T : T;
}

/*
 * nsteps of nranks that take `rows` windows a step, at different speeds, from window *at on; tokens
 * of the first epoch are counted. Then all were killed: *at is their position.
 */
static void run_ranks(const struct span *s, int64_t T, int nranks, int64_t rows, int64_t nsteps,
		      struct count *c, int64_t *at)
{
	const int64_t nwindows = epoch_nwindows(s, T);
	int32_t *x = malloc((size_t)(2 * rows * T) * sizeof(*x)), *y = x + rows * T;
	const struct rows to = { rows, T, x, y, NULL };
	int64_t step[3] = { 0 };
	struct order *o[3];

	for (int i = 0; i < nranks; i++)
		o[i] = open_order(s, 5, 64, 4);
	for (int64_t slowest = 0; slowest < nsteps;) {
		const int i = (int)tt_rand_int(0, nranks - 1);
		const int64_t first = *at + (step[i] * nranks + i) * rows;

		/* up to four steps ahead, which are not saved */
		if (step[i] == slowest + 4)
			continue;
		ck_assert_int_eq(batch_take_documents(o[i], first, &to), 0);
		for (int64_t k = 0; k < rows && step[i] < nsteps; k++)
			if (first + k < nwindows)
				count_row(c, x + k * T, window_size(s->n, T, first + k));
		step[i]++;
		slowest = step[0];
		for (int k = 1; k < nranks; k++)
			slowest = step[k] < slowest ? step[k] : slowest;
	}
	*at += nsteps * nranks * rows;
	for (int i = 0; i < nranks; i++)
		order_close(o[i]);
	free(x);
}

static void kill_ranks(void)
{
	const int64_t n = tt_rand_int(1000, MOST), T = tt_rand_int(1, 40);
	const int nmarks = put_documents(n);
	struct data *d = open_files(2, MARK + 1);
	const struct span s = { d, 0, n };
	struct count c = { 0 };
	int64_t at = 0;

	run_ranks(&s, T, 3, tt_rand_int(1, 3), tt_rand_int(1, 9), &c, &at);
	while (at < epoch_nwindows(&s, T))
		run_ranks(&s, T, 2, tt_rand_int(1, 3), tt_rand_int(1, 20), &c, &at);
	/* the last token is a target only */
	ck_assert_int_eq(c.n, n - 1);
	ck_assert(c.nmarks == nmarks || c.nmarks == nmarks - 1);
	data_close(d);
}

CASE(order, "host", .setup = setup, .teardown = teardown);

TEST(order, ranks_read_each_token_once_also_after_a_kill)
{
	for (int i = 0; i < TT_FEWER(10); i++)
		kill_ranks();
}

/*
 * The whole sequence of an epoch. Each target is the next token, which follows in the data or
 * begins a document. ret_cut: tokens that are no targets because they begin the rest of a divided
 * document. Returns how many there are.
 */
static int check_epoch(struct order *o, int64_t epoch, int32_t *x, int with_documents,
		       int32_t *ret_cut)
{
	const int64_t n = order_ntokens(o);
	int32_t y[MOST], first[MOST], latest = 0;
	struct count c = { 0 };
	int ncuts = 0;

	ck_assert_int_eq(order_read(o, epoch, 0, n - 1, x, y, with_documents ? first : NULL), 0);
	for (int64_t i = 0; i < n - 1; i++) {
		const int ends = x[i] == MARK, ignored = y[i] == IGNORED_TARGET;

		if (with_documents)
			ck_assert_int_eq(first[i], latest);
		latest = ignored ? (int32_t)(i + 1) : latest;
		if (ignored && i < n - 2 && x[i + 1] != MARK && !begins[x[i + 1]])
			ret_cut[ncuts++] = x[i + 1];
		if (ignored)
			continue;
		ck_assert(!(with_documents && ends));
		if (i < n - 2)
			ck_assert_int_eq(y[i], x[i + 1]);
		if (y[i] != MARK)
			ck_assert((!ends && y[i] == x[i] + 1) ||
				  (!with_documents && begins[y[i]]));
	}
	count_row(&c, x, n - 1);
	return ncuts;
}

static void permute_documents(void)
{
	const int64_t n = tt_rand_int(200, MOST);
	int32_t x[3][MOST], cut[MOST];
	struct data *d;
	struct order *o;

	put_documents(n);
	d = open_files(2, MARK + 1);
	o = open_order(&(struct span){ d, 0, n }, 1, n, 1);
	for (int k = 0; k < 3; k++)
		ck_assert_int_eq(check_epoch(o, k % 2, x[k], k > 0, cut), 0);
	ck_assert_mem_eq(x[0], x[2], (size_t)(n - 1) * sizeof(int32_t));
	ck_assert_mem_ne(x[0], x[1], (size_t)(n - 1) * sizeof(int32_t));
	order_close(o);
	data_close(d);
}

TEST(order, whole_documents_are_permuted)
{
	for (int i = 0; i < TT_FEWER(10); i++)
		permute_documents();
}

/* how many tenths of 10 chunks or more have tokens of a group of 3 chunks */
static int count_places(const int32_t *x, int64_t chunk)
{
	uint8_t place[MOST / 40 + 1] = { 0 };
	int nplaces = 0;

	for (int64_t i = 0; i < 3 * chunk; i++)
		if (x[i] != MARK)
			nplaces += !place[x[i] / chunk]++;
	return nplaces;
}

static void permute_chunks(void)
{
	const int64_t n = tt_rand_int(1000, MOST), chunk = tt_rand_int(40, 100);
	int32_t x[12][MOST], cut[MOST];
	uint8_t divided[MOST + 1] = { 0 };
	struct data *d;
	struct order *o[2];
	int most = 0, nsame = 0, nall = 0;

	put_documents(n);
	d = open_files(2, MARK + 1);
	for (int k = 0; k < 2; k++)
		o[k] = open_order(&(struct span){ d, 0, n }, 1 + (uint64_t)k, chunk, 3);
	for (int k = 0; k < 12; k++) {
		const int ncuts = check_epoch(o[k == 11], k % 11, x[k], k % 2, cut);

		ck_assert_int_le(ncuts, n / chunk + 2);
		most = count_places(x[k], chunk) > most ? count_places(x[k], chunk) : most;
		for (int i = 0; i < ncuts; i++) {
			nsame += divided[cut[i]];
			divided[cut[i]] |= k == 0;
		}
		nall += k > 0 ? ncuts : 0;
	}
	ck_assert_mem_ne(x[0], x[1], (size_t)(n - 1) * sizeof(int32_t));
	ck_assert_mem_ne(x[0], x[11], (size_t)(n - 1) * sizeof(int32_t));
	/* each epoch divides other documents; one in 40 begins its chunks with the same tokens */
	ck_assert_int_lt(nsame, nall * 3 / 4);
	/* 3 consecutive ones have tokens of 4 at most */
	ck_assert_int_ge(most, 5);
	order_close(o[0]);
	order_close(o[1]);
	data_close(d);
}

TEST(order, chunks_divide_a_document_each_at_most)
{
	for (int i = 0; i < TT_FEWER(10); i++)
		permute_chunks();
}

/* windows of a run that began anywhere are those of one that began with the first */
static void begin_anywhere(void)
{
	const int64_t n = tt_rand_int(1000, MOST), T = tt_rand_int(1, 40);
	int32_t x[2][40], y[2][40], first[2][40];
	struct data *d;
	struct span s;
	struct order *whole;
	int64_t nwindows;

	put_documents(n);
	d = open_files(2, MARK + 1);
	s = (struct span){ d, 0, n };
	nwindows = epoch_nwindows(&s, T);
	whole = open_order(&s, 9, 50, 3);
	for (int i = 0; i < 20; i++) {
		/* positions that no run reaches, too */
		const int64_t w = i ? tt_rand_int(0, 3 * nwindows) : 1000000000000000;
		struct order *o = open_order(&s, 9, 50, 3);

		for (int k = 0; k < 2; k++)
			ck_assert_int_eq(batch_take_documents(k ? whole : o, w,
				&(struct rows){ 1, T, x[k], y[k], first[k] }), 0);
		ck_assert_mem_eq(x[0], x[1], (size_t)T * sizeof(int32_t));
		ck_assert_mem_eq(y[0], y[1], (size_t)T * sizeof(int32_t));
		ck_assert_mem_eq(first[0], first[1], (size_t)T * sizeof(int32_t));
		order_close(o);
	}
	order_close(whole);
	data_close(d);
}

TEST(order, a_position_tells_all)
{
	for (int i = 0; i < TT_FEWER(10); i++)
		begin_anywhere();
}

TEST(order, a_mark_that_begins_documents_is_a_target)
{
	const int64_t n = 400;
	int32_t x[400], y[400], first[400];
	struct data *d;
	struct order *o;

	mark = DATA_MARK_BEGINS;
	put_documents(n);
	d = open_files(2, MARK + 1);
	o = open_order(&(struct span){ d, 0, n }, 3, n, 1);
	ck_assert_int_eq(order_read(o, 0, 0, n - 1, x, y, first), 0);
	for (int64_t i = 0; i < n - 2; i++) {
		const int first_of_all = x[i + 1] == 1;

		ck_assert_int_eq(y[i], first_of_all ? IGNORED_TARGET : x[i + 1]);
		if (x[i + 1] == MARK || first_of_all)
			ck_assert_int_eq(first[i + 1], i + 1);
		else
			ck_assert_int_eq(first[i + 1], first[i]);
	}
	order_close(o);
	data_close(d);
}

/* prompts have small letters, completions capital ones, and files of text figures */
TEST_EACH(order, masks_are_with_their_tokens, 2)
{
	char lines[4096] = "";
	size_t at = 0;
	int32_t x[40], y[40], first[40];
	int64_t ntargets = 40 * 4, nwindows, n;
	int moved = 0;
	struct data *d;
	struct order *o;

	for (int i = 0; i < 40; i++)
		at += (size_t)sprintf(lines + at,
				      "{\"prompt\": \"ab\", \"completion\": \"%c%c%c\"}\n",
				      'A' + i % 26, 'A' + i % 26, 'A' + i % 26);
	put(0, ".jsonl", lines, at);
	put(1, ".txt", "01234", 5);
	put(2, ".txt", "56789", 5);
	d = open_files(3, 256);
	n = data_ntokens(d);
	ck_assert_int_eq(n, 40 * 6 + 10);
	/* small: not divided all the same, as it is in memory or has no marks */
	o = open_order(&(struct span){ d, 0, n }, 3, 10, 2);
	nwindows = epoch_nwindows(&(struct span){ d, 0, n }, 40);
	for (int64_t w = 0; w < nwindows; w++) {
		ck_assert_int_eq(batch_take_documents(o, w, &(struct rows){ 1, 40, x, y,
					_i ? first : NULL }), 0);
		for (int k = 0; k < 40; k++) {
			if (y[k] == IGNORED_TARGET || (y[k] >= '0' && y[k] <= '9'))
				continue;
			ck_assert(y[k] == '\n' || (y[k] >= 'A' && y[k] <= 'Z'));
			ck_assert(y[k] == '\n' || x[k] == y[k] || x[k] == 'b');
			ntargets--;
			moved |= w == 0 && y[k] > 'G';
		}
		for (int k = 1; k < 40 && _i; k++)
			if (x[k] == 'a' || x[k] == '0' || x[k] == '5')
				ck_assert_int_eq(first[k], k);
	}
	ck_assert_int_eq(ntargets, 0);
	ck_assert(moved);
	order_close(o);
	data_close(d);
}

static void refuse_order(int nfiles, int64_t vocab, int64_t chunk)
{
	struct data *d = open_files(nfiles, vocab);
	struct order *o = NULL;

	ck_assert_int_eq(order_open(&(struct span){ d, 0, data_ntokens(d) }, 1, chunk, 2, &o),
			 STATUS_BAD);
	ck_assert_ptr_null(o);
	data_close(d);
}

TEST(order, refuses_one_document)
{
	uint16_t token[600];

	for (int i = 0; i < 600; i++)
		token[i] = (uint16_t)(i + 1);
	put(0, ".u16", token, sizeof(token));
	refuse_order(1, MARK + 1, 1000);
	refuse_order(1, MARK + 1, 100);
	put(0, ".txt", "one document", 12);
	refuse_order(1, 256, 100);
}

TEST(order, reports_data_that_changes)
{
	int32_t x[2][99], y[99];
	uint16_t token[600];
	struct data *d;
	struct order *o;

	for (int i = 0; i < 600; i++)
		token[i] = i % 9 == 8 ? MARK : (uint16_t)(i + 1);
	put(0, ".u16", token, sizeof(token));
	d = open_files(1, MARK + 1);
	o = open_order(&(struct span){ d, 0, 600 }, 1, 100, 2);
	ck_assert_int_eq(order_read(o, 0, 300, 99, x[0], y, NULL), 0);
	ck_assert_int_eq(order_read(o, 0, 0, 99, x[1], y, NULL), 0);
	ck_assert_int_eq(truncate(path[0], 2), 0);
	for (int i = 0; i < 2; i++)
		ck_assert_int_eq(order_read(o, 0, 300, 99, x[1], y, NULL), STATUS_BAD);
	/* written again, it is the same file */
	put(0, ".u16", token, sizeof(token));
	ck_assert_int_eq(order_read(o, 0, 300, 99, x[1], y, NULL), 0);
	ck_assert_mem_eq(x[0], x[1], sizeof(x[0]));
	order_close(o);
	data_close(d);
}

TT_MAIN("tools/order", TT_NEED_NOTHING)
