/* data.h - text and token files, concatenated to one sequence of tokens, and batches of it. */
#ifndef DATA_H
#define DATA_H

#include <stdint.h>

struct data; /* the files, opened */

/* a range of the tokens */
struct span {
	const struct data *data;
	int64_t first, n;
};

/*
 * .bin files contain 16-bit little-endian tokens (llm.c's 1024-byte header is skipped).
 * All others are text, plain or gzip, whose bytes are the tokens. The two kinds cannot be mixed.
 */
int data_open(char *const *file, int nfiles, struct data **ret_data);
void data_close(struct data *d);
int64_t data_ntokens(const struct data *d);
int data_is_bytes(const struct data *d);

/* write a range in the format of its files */
int span_dump(const struct span *s, const char *path);

/*
 * Fill nrows windows of T tokens and their successors, at offsets that depend on
 * (seed, step, row) only, so that a resumed run draws the same as an uninterrupted one.
 * Fails if a token is not below vocab.
 */
int batch_draw(const struct span *s, uint64_t seed, int64_t step, int64_t nrows, int64_t T,
	       int64_t vocab, int32_t *x, int32_t *y);

/*
 * The fixed windows of a validation: all of the span in steps of T, or max_batches
 * batches of them evenly spread (0: all). batch_eval fills the k-th batch; targets of missing
 * rows and ends are ignored. *ret_count: targets that are not ignored.
 */
int64_t eval_nbatches(const struct span *s, int64_t nrows, int64_t T, int64_t max_batches);
int batch_eval(const struct span *s, int64_t k, int64_t max_batches, int64_t nrows, int64_t T,
	       int64_t vocab, int32_t *x, int32_t *y, int64_t *ret_count);

/* a 64-bit hash of two numbers, for random draws that depend on nothing else */
uint64_t mix64(uint64_t a, uint64_t b);

#endif
