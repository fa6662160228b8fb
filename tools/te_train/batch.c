/* batch.c - batches of training, by epochs or drawn at random, and of validation, fixed. */
#include "config.h"

#include <string.h>

#include "batch.h"
#include "chunks.h"
#include "ckpt.h"
#include "order.h"
#include "tools/lib/model.h"
#include "tools/lib/say.h"

/* tokens of a row from index `from` on are padding: documents of one token, without targets */
static void pad(const struct rows *rows, int64_t row, int64_t from)
{
	const int64_t at = row * rows->T;

	for (int64_t i = from; i < rows->T; i++) {
		rows->x[at + i] = 0;
		rows->y[at + i] = IGNORED_TARGET;
		if (rows->documents)
			rows->documents[at + i] = (int32_t)i;
	}
}

/* fill n tokens of a row from index `from` on, and the successor of each, unless it is no target */
static int fill(const struct span *s, int64_t at, int64_t n, const struct rows *rows, int64_t row,
		int64_t from)
{
	const int64_t begin = row * rows->T + from;
	int32_t *x = rows->x + begin, *y = rows->y + begin;
	int r = span_read(s, at, n, x);

	if (r)
		return r;
	memcpy(y, x + 1, (size_t)(n - 1) * sizeof(*y));
	r = span_read(s, at + n, 1, y + n - 1);
	if (rows->documents)
		span_documents(s, at, n, x, y, rows->documents + begin);
	for (int64_t i = 0; rows->documents && i < n; i++)
		rows->documents[begin + i] += (int32_t)from;
	span_mask(s, at + 1, n, y);
	return r;
}

/* fill a row: n tokens; then padding */
static int window(const struct span *s, int64_t at, int64_t n, const struct rows *rows, int64_t row)
{
	int r = fill(s, at, n, rows, row, 0);

	pad(rows, row, n);
	return r;
}

/*
 * Fill a row with window w of an epoch. Windows begin with the first token in the first epoch, and
 * up to T tokens later in each other one, where one window has the end and beginning of the data.
 */
static int epoch_window(const struct span *s, uint64_t seed, int64_t epoch, int64_t w,
			const struct rows *rows, int64_t row)
{
	const int64_t T = rows->T, all = s->n - 1;
	const int64_t n = all - w * T < T ? all - w * T : T;
	const uint64_t shift = epoch ? mix64(~seed, (uint64_t)epoch) % (uint64_t)T : 0;
	const int64_t at = (int64_t)(((uint64_t)(w * T) + shift) % (uint64_t)all);
	const int64_t most = all - at < n ? all - at : n;
	int r = fill(s, at, most, rows, row, 0);

	if (!r && most < n)
		r = fill(s, 0, n - most, rows, row, most);
	pad(rows, row, n);
	return r;
}

int batch_draw(const struct span *s, uint64_t seed, int64_t step, int64_t first,
	       const struct rows *rows)
{
	/* starts for which each token has a successor */
	const uint64_t choices = (uint64_t)(s->n - rows->T);
	int r = STATUS_OK;

	for (int64_t i = 0; i < rows->nrows && !r; i++) {
		uint64_t u = mix64(mix64(seed, (uint64_t)step), (uint64_t)(first + i));
		int64_t at = (int64_t)((unsigned __int128)u * choices >> 64);

		r = window(s, at, rows->T, rows, i);
	}
	return r;
}

int64_t epoch_nwindows(const struct span *s, int64_t T)
{
	return (s->n - 1 + T - 1) / T;
}

int64_t epoch_next(const struct span *s, int64_t drawn, int64_t window, int64_t T)
{
	const int64_t before = epoch_nwindows(s, window), n = epoch_nwindows(s, T);
	const int64_t epochs = drawn / before + (drawn % before != 0);

	return epochs > CKPT_MOST / n ? -1 : epochs * n;
}

int batch_take(const struct span *s, uint64_t seed, int64_t first, const struct rows *rows)
{
	const int64_t nwindows = epoch_nwindows(s, rows->T);
	int r = STATUS_OK;

	for (int64_t i = 0; i < rows->nrows && !r; i++) {
		const int64_t c = first + i, epoch = c / nwindows;
		const uint64_t key = mix64(seed, (uint64_t)epoch);

		r = epoch_window(s, seed, epoch, epoch_permute(key, nwindows, c % nwindows), rows,
				 i);
	}
	return r;
}

int batch_take_documents(struct order *o, int64_t first, const struct rows *rows)
{
	const int64_t T = rows->T, n = order_ntokens(o) - 1, nwindows = (n + T - 1) / T;
	int r = STATUS_OK;

	for (int64_t i = 0; i < rows->nrows && !r; i++) {
		const int64_t c = first + i, at = c % nwindows * T, m = n - at < T ? n - at : T;
		int32_t *documents = rows->documents ? rows->documents + i * T : NULL;

		r = order_read(o, c / nwindows, at, m, rows->x + i * T, rows->y + i * T,
			       documents);
		pad(rows, i, m);
	}
	return r;
}

int batch_take_chunks(struct chunks *c, int64_t first, const struct rows *rows)
{
	int r = STATUS_OK;

	chunks_begin(c, first);
	for (int64_t i = 0; i < rows->nrows && !r; i++) {
		struct span s;
		int64_t at, left;

		r = chunks_find(c, first + i, &s, &at);
		if (r)
			break;
		left = s.n - 1 - at;
		r = window(&s, at, left < rows->T ? left : rows->T, rows, i);
	}
	return r;
}

static int64_t eval_nwindows(const struct span *s, int64_t nrows, int64_t T, int64_t max_batches)
{
	int64_t all = epoch_nwindows(s, T);

	return max_batches && max_batches * nrows < all ? max_batches * nrows : all;
}

int64_t eval_nbatches(const struct span *s, int64_t nrows, int64_t T, int64_t max_batches)
{
	return (eval_nwindows(s, nrows, T, max_batches) + nrows - 1) / nrows;
}

int batch_eval(const struct span *s, int64_t k, int64_t max_batches, const struct rows *rows,
	       int64_t *ret_count)
{
	const int64_t T = rows->T, all = epoch_nwindows(s, T);
	const int64_t taken = eval_nwindows(s, rows->nrows, T, max_batches);
	int64_t count = 0;
	int r = STATUS_OK;

	for (int64_t i = 0; i < rows->nrows && !r; i++) {
		const int64_t w = k * rows->nrows + i, at = w * all / taken * T;
		const int64_t n = s->n - 1 - at < T ? s->n - 1 - at : T;

		if (w < taken)
			r = window(s, at, n, rows, i);
		else
			pad(rows, i, 0);
		for (int64_t j = i * T; j < (i + 1) * T && !r; j++)
			count += rows->y[j] != IGNORED_TARGET;
	}
	*ret_count = count;
	return r;
}
