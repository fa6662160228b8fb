/* batch.c - batches of training, drawn at random, and of validation, fixed. */
#include "config.h"

#include <string.h>

#include "batch.h"
#include "tools/lib/model.h"
#include "tools/lib/say.h"

/* fill one window: n tokens, and the successor of each */
static int window(const struct span *s, int64_t at, int64_t n, int32_t *x, int32_t *y)
{
	int r = span_read(s, at, n, x);

	if (r)
		return r;
	memcpy(y, x + 1, (size_t)(n - 1) * sizeof(*y));
	return span_read(s, at + n, 1, y + n - 1);
}

int batch_draw(const struct span *s, uint64_t seed, int64_t step, int64_t first, int64_t nrows,
	       int64_t T, int32_t *x, int32_t *y)
{
	uint64_t choices = (uint64_t)(s->n - T); /* starts for which each token has a successor */
	int r = STATUS_OK;

	for (int64_t i = 0; i < nrows && !r; i++) {
		uint64_t u = mix64(mix64(seed, (uint64_t)step), (uint64_t)(first + i));
		int64_t at = (int64_t)((unsigned __int128)u * choices >> 64);

		r = window(s, at, T, x + i * T, y + i * T);
	}
	return r;
}

static int64_t eval_nwindows(const struct span *s, int64_t nrows, int64_t T, int64_t max_batches)
{
	int64_t all = (s->n - 1 + T - 1) / T;

	return max_batches && max_batches * nrows < all ? max_batches * nrows : all;
}

int64_t eval_nbatches(const struct span *s, int64_t nrows, int64_t T, int64_t max_batches)
{
	return (eval_nwindows(s, nrows, T, max_batches) + nrows - 1) / nrows;
}

int batch_eval(const struct span *s, int64_t k, int64_t max_batches, int64_t nrows, int64_t T,
	       int32_t *x, int32_t *y, int64_t *ret_count)
{
	int64_t all = (s->n - 1 + T - 1) / T;
	int64_t taken = eval_nwindows(s, nrows, T, max_batches);
	int64_t count = 0;
	int r = STATUS_OK;

	memset(x, 0, (size_t)(nrows * T) * sizeof(*x));
	for (int64_t i = 0; i < nrows * T; i++)
		y[i] = IGNORED_TARGET;
	for (int64_t i = 0; i < nrows && k * nrows + i < taken && !r; i++) {
		int64_t at = (k * nrows + i) * all / taken * T;
		int64_t n = s->n - 1 - at < T ? s->n - 1 - at : T;

		r = window(s, at, n, x + i * T, y + i * T);
		count += n;
	}
	*ret_count = count;
	return r;
}
