/* order.h - the training data with its documents permuted, as one sequence of tokens an epoch. */
#ifndef ORDER_H
#define ORDER_H

#include <stdint.h>

#include "data.h"

/* chunks of large token files, and how many of them have their documents permuted together */
#define ORDER_CHUNK ((int64_t)1 << 18)
#define ORDER_NCHUNKS 32

/* i-th of n elements in a pseudo-random order, a permutation of 0 to n - 1 for each key */
int64_t epoch_permute(uint64_t key, int64_t n, int64_t i);

/* a pseudo-random number from 0 to i, for the i-th exchange of a shuffle */
int64_t epoch_draw(uint64_t key, int64_t i);

struct order;

/*
 * The order depends on the span, seed, chunk and nchunks only. Token files with more than nchunks
 * times chunk tokens are not indexed as a whole: chunks are permuted, then the documents of each
 * nchunks of them, so that a document that goes on in another chunk is divided. Other data has its
 * whole documents permuted. STATUS_BAD, with a message, if the first tokens of the order have no
 * document's end. The data stays the caller's.
 */
int order_open(const struct span *s, uint64_t seed, int64_t chunk, int64_t nchunks,
	       struct order **ret_o);
void order_close(struct order *o);
/* tokens of an epoch */
int64_t order_ntokens(const struct order *o);

/*
 * n tokens from index at of an epoch, and the successor of each as its target, or IGNORED_TARGET.
 * documents: NULL, or as span_documents() has them, and targets too. The rest of a divided document
 * does not begin with a target.
 */
int order_read(struct order *o, int64_t epoch, int64_t at, int64_t n, int32_t *token,
	       int32_t *target, int32_t *documents);

#endif
