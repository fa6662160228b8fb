/* t/tools/chunks.c - te_train --order chunks: each token once an epoch, on any ranks. */
#include "config.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/lib/chat.h"
#include "tools/lib/model.h"
#include "tools/lib/say.h"
#include "tools/te_train/batch.h"
#include "tools/te_train/chunks.h"
#include "tools/te_train/jsonl.h"
#include "tt.h"

enum { NDOCS = 300, NFILES = 2, MOST_WINDOWS = 40000, MOST_T = 40 };

static char dir[64], path[NFILES][96], message[512];
static struct chat chat;
static int ndocs; /* documents in the files */

static void keep_message(const char *line)
{
	snprintf(message, sizeof(message), "%s", line);
}

static void setup(void)
{
	const char *const role[CHAT_NROLES] = { NULL };

	snprintf(dir, sizeof(dir), "%s/te-chunks.XXXXXX", tt_tmpdir());
	ck_assert_ptr_nonnull(mkdtemp(dir));
	ck_assert_int_eq(chat_create("chatml", NULL, role, NULL, &chat), 0);
	say_by(keep_message);
}

static void teardown(void)
{
	say_by(NULL);
	chat_free(&chat);
	tt_remove(dir);
}

/* Files of documents "NNNN xxx...\n", numbered from 0 on; most are short, and some very long. */
static void put_documents(void)
{
	ndocs = 0;
	for (int i = 0; i < NFILES; i++) {
		const int n = (int)tt_rand_int(2, NDOCS / NFILES);
		FILE *f;

		snprintf(path[i], sizeof(path[i]), "%s/%d.jsonl", dir, i);
		f = fopen(path[i], "w");
		for (int k = 0; k < n; k++, ndocs++) {
			const int64_t size = tt_rand_int(0, 9) ? tt_rand_int(0, 60) :
								 tt_rand_int(0, 2000);

			fprintf(f, "{\"text\": \"%04d", ndocs);
			for (int64_t j = 0; j < size; j++)
				fputc('x', f);
			fputs(k < n - 1 || tt_rand_int(0, 1) ? "\"}\n" : "\"}", f);
		}
		fclose(f);
	}
}

/* documents of the same size */
static void put_short(void)
{
	for (int i = 0; i < NFILES; i++) {
		FILE *f;

		snprintf(path[i], sizeof(path[i]), "%s/%d.jsonl", dir, i);
		f = fopen(path[i], "w");
		for (int k = i * NDOCS / NFILES; k < (i + 1) * NDOCS / NFILES; k++)
			fprintf(f, "{\"text\": \"%04d\"}\n", k);
		fclose(f);
	}
	ndocs = NDOCS;
}

/* text, divided with a validation fraction and a seed */
struct text {
	struct data *data;
	struct data_opts o;
	struct chunks *chunks;
};

static void open_text(double val_fraction, uint64_t seed, int64_t T, struct text *t)
{
	char *list[NFILES] = { path[0], path[1] };

	*t = (struct text){ .o = { .vocab = 256, .chat = &chat, .later = 1 } };
	ck_assert_int_eq(data_open(list, NFILES, &t->o, &t->data), 0);
	ck_assert_int_eq(chunks_open(t->data, &t->o, val_fraction, seed, T, &t->chunks), 0);
}

static void close_text(struct text *t)
{
	chunks_close(t->chunks);
	data_close(t->data);
}

/* windows by their number, as inputs, targets and documents */
struct windows {
	int64_t n, T;
	int32_t (*x)[3][MOST_T];
};

static void take(struct text *t, int64_t first, int64_t n, const struct windows *w)
{
	int32_t *x = malloc((size_t)(3 * n * w->T) * sizeof(*x));
	int32_t *y = x + n * w->T, *documents = y + n * w->T;
	const struct rows rows = { n, w->T, x, y, documents };

	ck_assert_int_eq(batch_take_chunks(t->chunks, first, &rows), 0);
	for (int64_t i = 0; i < n && first + i < MOST_WINDOWS; i++)
		for (int64_t k = 0; k < w->T; k++) {
			w->x[first + i][0][k] = x[i * w->T + k];
			w->x[first + i][1][k] = y[i * w->T + k];
			w->x[first + i][2][k] = documents[i * w->T + k];
		}
	free(x);
}

static struct windows make_windows(int64_t T)
{
	struct windows w = { .T = T };

	w.x = calloc(MOST_WINDOWS, sizeof(*w.x));
	return w;
}

/* all windows of two epochs, by one rank; returns the number of those in the first one */
static int64_t read_two(uint64_t seed, struct windows *w)
{
	int64_t first = 0;
	struct text t;

	open_text(0, seed, w->T, &t);
	for (w->n = 0; w->n < MOST_WINDOWS; w->n++) {
		take(&t, w->n, 1, w);
		if (chunks_at(t.chunks).epoch == 1 && !first)
			first = w->n;
		if (chunks_at(t.chunks).epoch == 2)
			break;
	}
	ck_assert_int_lt(w->n, MOST_WINDOWS);
	close_text(&t);
	return first;
}

/* Documents in n windows, each once and whole; the last token of a group is a target only. */
static void check_documents(const struct windows *w, int64_t first, int64_t n, int64_t ngroups)
{
	int32_t seen[NDOCS] = { 0 }, number = 0, last = 0, nshort = 0, nsame = 0;
	int at = 0; /* characters of the document before */

	for (int64_t i = first; i < first + n; i++) {
		for (int64_t k = 0; k < w->T; k++) {
			const int32_t c = w->x[i][0][k], y = w->x[i][1][k];

			/* padding, or the beginning of a group */
			if (!c) {
				ck_assert_int_eq(y, IGNORED_TARGET);
				continue;
			}
			if (c >= '0' && c <= '9') {
				/* without its end, the document before was the last of a group */
				nshort += at > 3;
				at = at > 3 ? 1 : at + 1;
				number = at == 1 ? c - '0' : number * 10 + c - '0';
				ck_assert_int_lt(number, ndocs);
				if (at == 4) {
					seen[number]++;
					nsame += number == last + 1;
					last = number;
				}
			} else {
				ck_assert_int_ge(at, 4);
				ck_assert(c == 'x' || c == '\n');
				at = c == '\n' ? 0 : at + 1;
			}
			if (c == '\n')
				ck_assert_int_eq(y, IGNORED_TARGET);
			else if (k + 1 < w->T && w->x[i][0][k + 1])
				ck_assert_int_eq(y, w->x[i][0][k + 1]);
			else
				ck_assert(y != IGNORED_TARGET);
			ck_assert_int_eq(w->x[i][2][k],
					 k && w->x[i][0][k - 1] != '\n' ? w->x[i][2][k - 1] : k);
		}
	}
	nshort += at > 0;
	ck_assert_int_le(nshort, ngroups);
	/* documents of a chunk do not follow each other */
	ck_assert_int_lt(nsame, ndocs / 4 + 9);
	for (int i = 0; i < ndocs; i++)
		ck_assert_int_eq(seen[i], 1);
}

CASE(chunks, "host", .setup = setup, .teardown = teardown);

TEST(chunks, an_epoch_has_each_document_once)
{
	struct windows w[2];
	int64_t n[2], least;

	put_documents();
	for (int k = 0; k < 2; k++) {
		w[k] = make_windows(tt_rand_int(5, MOST_T));
		n[k] = read_two(1, &w[k]);
		check_documents(&w[k], 0, n[k], 99);
		check_documents(&w[k], n[k], w[k].n - n[k], 99);
		/* the first window alone can be the same */
		least = n[k] < w[k].n - n[k] ? n[k] : w[k].n - n[k];
		ck_assert_mem_ne(w[k].x, w[k].x + n[k], (size_t)least * sizeof(*w[k].x));
		free(w[k].x);
	}
}

/*
 * nsteps of nranks that take `rows` windows a step, at different speeds, from window *number in
 * group *at on. Then all were killed; rank 0 has saved its position.
 */
static void run_ranks(int nranks, int64_t rows, int64_t nsteps, const struct windows *w,
		      int64_t *number, struct chunks_at *at)
{
	int64_t step[3] = { 0 }, slowest = 0;
	struct chunks_at saved = *at;
	struct text t[3];

	for (int i = 0; i < nranks; i++) {
		open_text(0, 1, w->T, &t[i]);
		chunks_seek(t[i].chunks, at);
	}
	while (slowest < nsteps) {
		const int i = (int)tt_rand_int(0, nranks - 1);
		const int64_t first = *number + (step[i] * nranks + i) * rows;

		/* up to four steps ahead, which are not saved */
		if (step[i] == slowest + 4)
			continue;
		take(&t[i], first, rows, w);
		/* the first scales of a recipe are from the same windows */
		if (!step[i])
			take(&t[i], first, rows, w);
		step[i]++;
		if (!i && step[i] == nsteps)
			saved = chunks_at(t[i].chunks);
		slowest = step[0];
		for (int k = 1; k < nranks; k++)
			slowest = step[k] < slowest ? step[k] : slowest;
	}
	*number += nsteps * nranks * rows;
	*at = saved;
	for (int i = 0; i < nranks; i++)
		close_text(&t[i]);
}

static void kill_ranks(void)
{
	const int64_t T = tt_rand_int(5, MOST_T);
	struct windows want = make_windows(T), have = make_windows(T);
	struct chunks_at at = { 0 };
	int64_t number = 0, most;

	put_documents();
	read_two(1, &want);
	most = want.n / 9 + 1;
	run_ranks(3, tt_rand_int(1, 3), tt_rand_int(1, most), &have, &number, &at);
	while (number < want.n)
		run_ranks(2, tt_rand_int(1, 3), tt_rand_int(1, most), &have, &number, &at);
	ck_assert_mem_eq(have.x, want.x, (size_t)want.n * sizeof(*want.x));
	free(want.x);
	free(have.x);
}

TEST(chunks, ranks_read_each_window_once_also_after_a_kill)
{
	for (int i = 0; i < TT_FEWER(5); i++)
		kill_ranks();
}

TEST(chunks, orders_differ_by_seed)
{
	struct windows w[3];

	put_documents();
	for (int k = 0; k < 3; k++) {
		w[k] = make_windows(20);
		read_two(k == 2, &w[k]);
	}
	ck_assert_int_eq(w[0].n, w[1].n);
	ck_assert_mem_eq(w[0].x, w[1].x, (size_t)w[0].n * sizeof(*w[0].x));
	ck_assert_mem_ne(w[0].x, w[2].x, 20 * sizeof(*w[0].x));
	for (int k = 0; k < 3; k++)
		free(w[k].x);
}

/* tokens of a span, and a 0 after them */
static char *text_of(const struct span *s)
{
	int32_t *token = malloc((size_t)s->n * sizeof(*token));
	char *text = calloc((size_t)s->n + 1, 1);

	ck_assert_int_eq(span_read(s, 0, s->n, token), 0);
	for (int64_t i = 0; i < s->n; i++)
		text[i] = (char)token[i];
	free(token);
	return text;
}

/* the document after the number that a text begins with, or NULL */
static char *next_document(char *text, int *number)
{
	if (!*text)
		return NULL;
	*number = atoi(text);
	return strchr(text, '\n') + 1;
}

TEST(chunks, the_last_chunks_are_held_out)
{
	int n = 0, number, first;
	struct data *val = NULL;
	struct text t;
	char *text, *p;

	put_short();
	open_text(0.1, 1, 1 << 20, &t);
	ck_assert_int_eq(chunks_held_out(t.chunks, &val), 0);
	ck_assert_uint_eq(strlen(data_digest(val)), 16);
	text = text_of(&(struct span){ val, 0, data_ntokens(val) });
	first = atoi(text);
	/* 6 of 64 chunks or a few more */
	ck_assert(first > ndocs * 17 / 20 && first < ndocs * 19 / 20);
	for (p = text; (p = next_document(p, &number)); n++)
		ck_assert_int_eq(number, first + n);
	ck_assert_int_eq(first + n, ndocs);
	free(text);
	data_close(val);
	/* groups, each of which is one window, have all others */
	n = 0;
	for (int64_t i = 0; n < first; i++) {
		struct span s;
		int64_t at;

		ck_assert_int_eq(chunks_find(t.chunks, i, &s, &at), 0);
		ck_assert_int_eq(chunks_at(t.chunks).epoch, 0);
		text = text_of(&s);
		for (p = text; (p = next_document(p, &number)); n++)
			ck_assert_int_lt(number, first);
		free(text);
	}
	close_text(&t);
}

static int read_all(struct text *t)
{
	struct span s;
	int64_t at;
	int r = 0;

	for (int64_t i = 0; !r && chunks_at(t->chunks).epoch == 0; i++)
		r = chunks_find(t->chunks, i, &s, &at);
	return r;
}

TEST(chunks, a_bad_line_is_told_by_its_number)
{
	const int bad = (int)tt_rand_int(1, 200);
	FILE *f;
	struct text t;

	put_documents();
	f = fopen(path[1], "w");
	for (int i = 1; i <= 200; i++)
		fprintf(f, i == bad ? "{\"text\": 5}\n" : "{\"text\": \"0000\"}\n");
	fclose(f);
	open_text(0, 1, 20, &t);
	ck_assert_int_eq(read_all(&t), STATUS_BAD);
	snprintf(path[0], sizeof(path[0]), "1.jsonl: line %d: ", bad);
	ck_assert_ptr_nonnull(strstr(message, path[0]));
	close_text(&t);
}

TEST(chunks, text_that_changes_is_told)
{
	struct text t;

	put_documents();
	open_text(0, 1, 20, &t);
	ck_assert_int_eq(truncate(path[0], 20), 0);
	ck_assert_int_eq(read_all(&t), STATUS_BAD);
	ck_assert_ptr_nonnull(strstr(message, "0.jsonl"));
	close_text(&t);
}

TEST(chunks, an_epoch_without_text_ends)
{
	struct text t;
	FILE *f;

	for (int i = 0; i < NFILES; i++) {
		snprintf(path[i], sizeof(path[i]), "%s/%d.jsonl", dir, i);
		f = fopen(path[i], "w");
		for (int k = 0; k < 200; k++)
			fputs("\n", f);
		fclose(f);
	}
	open_text(0, 1, 20, &t);
	ck_assert_int_eq(read_all(&t), STATUS_BAD);
	ck_assert_ptr_nonnull(strstr(message, "no text"));
	close_text(&t);
}

TT_MAIN("tools/chunks", TT_NEED_NOTHING)
