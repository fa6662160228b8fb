/* chunks.h - text in a random order of its chunks, whose tokens are computed when they are used. */
#ifndef CHUNKS_H
#define CHUNKS_H

#include <stdint.h>

#include "data.h"

/* bytes of a chunk of much text; less text has at least CHUNKS_LEAST chunks */
#define CHUNKS_NBYTES ((int64_t)1 << 20)
#define CHUNKS_LEAST 64
/* chunks that have their documents shuffled together */
#define CHUNKS_GROUP 16
/* the most chunks that are held out */
#define CHUNKS_HELD_OUT 8

struct chunks;

/* a group of an epoch, and the number of its first window, counted over all epochs */
struct chunks_at {
	int64_t epoch, group, first;
};

/*
 * Divide data that was opened with opts->later. val_fraction of the chunks, the last ones, are held
 * out; 0: none. Windows have T tokens. The order depends on the text, val_fraction and the seed.
 * Data and opts, with what it points to, stay the caller's, and are used until chunks_close().
 */
int chunks_open(const struct data *d, const struct data_opts *opts, double val_fraction,
		uint64_t seed, int64_t T, struct chunks **ret_c);
void chunks_close(struct chunks *c);
/* bytes that are trained on, up to the end of a line, and the number of groups in an epoch */
int64_t chunks_nbytes(const struct chunks *c);
int64_t chunks_ngroups(const struct chunks *c);
/* tokens of the held-out text, in its order */
int chunks_held_out(struct chunks *c, struct data **ret_data);

/* Windows are read from this group on. Threads begin to compute its tokens. */
void chunks_seek(struct chunks *c, const struct chunks_at *at);
/* position of the group that has the latest window, for chunks_seek() */
struct chunks_at chunks_at(const struct chunks *c);
/*
 * Before windows are read from this number on: the latest window may have a larger number, but not
 * the first one after the previous call.
 */
void chunks_begin(struct chunks *c, int64_t number);
/*
 * Tokens of the group that has a window; the window begins at index *ret_at. They are valid up to
 * the next call. Numbers do not decrease after chunks_begin(). STATUS_BAD, with a message, if text
 * cannot be read, or an epoch has no window.
 */
int chunks_find(struct chunks *c, int64_t number, struct span *ret_s, int64_t *ret_at);
/* epochs before a window, as a fraction; the window is close to the latest one */
double chunks_epochs(const struct chunks *c, int64_t number);

#endif
