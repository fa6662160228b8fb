/* batch.h - batches of training, by epochs or drawn at random, and of validation, fixed. */
#ifndef BATCH_H
#define BATCH_H

#include <stdint.h>

#include "data.h"

struct chunks;
struct order;

/* Rows of T tokens, all [nrows, T]. */
struct rows {
	int64_t nrows, T;
	int32_t *x;
	int32_t *y;	    /* the successor of each token, or IGNORED_TARGET */
	int32_t *documents; /* NULL, or as span_documents() has them, and targets too */
};

/*
 * Fill rows with windows of T tokens and their successors, at offsets that depend on
 * (seed, step, row) only, so that a resumed run draws the same as an uninterrupted one. first: the
 * number of the first row in the step of all ranks.
 */
int batch_draw(const struct span *s, uint64_t seed, int64_t step, int64_t first,
	       const struct rows *rows);

/*
 * Windows of an epoch: window i begins at token i * T. The last one may be shorter; each token
 * except the first is a target of one window.
 */
int64_t epoch_nwindows(const struct span *s, int64_t T);
/*
 * Windows of T tokens in all epochs that have begun after `drawn` windows of `window` tokens. -1: a
 * checkpoint cannot have that number.
 */
int64_t epoch_next(const struct span *s, int64_t drawn, int64_t window, int64_t T);
/*
 * Fill rows, starting with window number `first` of all epochs together: each epoch has
 * all windows once, in an order that depends on seed and epoch. Targets after the end of a short
 * window are ignored.
 */
int batch_take(const struct span *s, uint64_t seed, int64_t first, const struct rows *rows);

/* windows of chunks, from number `first` of all epochs on, each group's in their order */
int batch_take_chunks(struct chunks *c, int64_t first, const struct rows *rows);

/* the same windows of the order's documents: window i of an epoch begins at its token i * T */
int batch_take_documents(struct order *o, int64_t first, const struct rows *rows);

/*
 * The fixed windows of a validation: all of the span in steps of T, or max_batches
 * batches of them evenly spread (0: all). batch_eval fills the k-th batch; targets of missing
 * rows and ends are ignored. *ret_count: targets that are not ignored.
 */
int64_t eval_nbatches(const struct span *s, int64_t nrows, int64_t T, int64_t max_batches);
int batch_eval(const struct span *s, int64_t k, int64_t max_batches, const struct rows *rows,
	       int64_t *ret_count);

#endif
