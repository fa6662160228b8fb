/* copy.h - copies within the device, with which other tests are compared. */
#ifndef COPY_H
#define COPY_H

#include "bench.h"

/* nsets pairs of buffers; each call takes the next */
struct copy {
	struct bench *b; /* to be set, and nbytes; the rest 0 */
	size_t nbytes, stride;
	int nsets, at, batch;
	uint8_t *host;
	uint8_t *src, *dst; /* on the device, nsets of stride each */
};

/* an exit status; to be freed in any case */
int copy_alloc(struct copy *c);
void copy_free(struct copy *c);
/* queues one: a bench_work */
int copy_work(void *arg);

/* adds to the row: us[0] of a call that moves nbytes, compared with us[1] of such a copy */
void copy_compare(struct bench *b, double nbytes, const struct stats *us);
/* columns of those figures; a test puts the keys that identify its rows before them */
extern const struct column copy_columns[];

#endif
