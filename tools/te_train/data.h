/* data.h - text and token files as one long row of tokens, and the batches drawn from it. */
#ifndef DATA_H
#define DATA_H

#include <stdint.h>

struct data; /* the files, opened */

/* a stretch of the tokens */
struct span {
	const struct data *data;
	int64_t first, n;
};

/*
 * .bin files hold 16-bit little-endian tokens (llm.c's 1024-byte header is skipped);
 * all others are text whose bytes are the tokens, through gzip where they say so.
 * Both kinds do not mix.
 */
int data_open(char *const *file, int nfiles, struct data **ret_data);
void data_close(struct data *d);
int64_t data_ntokens(const struct data *d);
int data_is_bytes(const struct data *d);

/* write a stretch as its files hold it */
int span_dump(const struct span *s, const char *path);

/*
 * Fill nrows windows of T tokens and their successors, at offsets that follow from
 * (seed, step, row) alone, so that a resumed run draws what the first would have.
 * Fails when a token is not below vocab.
 */
int batch_draw(const struct span *s, uint64_t seed, int64_t step, int64_t nrows, int64_t T,
	       int64_t vocab, int32_t *x, int32_t *y);

/*
 * The fixed windows of a validation: all of the span in steps of T, or max_batches
 * batches of them evenly spread (0: all). batch_eval gives the k-th batch; rows and
 * ends that are not there have ignored targets. *ret_count: targets that count.
 */
int64_t eval_nbatches(const struct span *s, int64_t nrows, int64_t T, int64_t max_batches);
int batch_eval(const struct span *s, int64_t k, int64_t max_batches, int64_t nrows, int64_t T,
	       int64_t vocab, int32_t *x, int32_t *y, int64_t *ret_count);

/* a well mixed 64-bit number of two others, for draws that depend on nothing else */
uint64_t mix64(uint64_t a, uint64_t b);

#endif
