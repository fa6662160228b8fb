/* blocks.h - the documents of JSON lines by several threads, in the order of the lines. */
#ifndef BLOCKS_H
#define BLOCKS_H

#include <stddef.h>
#include <stdint.h>

#include "jsonl.h"

#define BLOCKS_NBYTES (1u << 20) /* a thread for less is not worth its start */

struct blocks;

/*
 * The first members of j, up to docs, are set, and stay so until blocks_end(). Threads read blocks
 * of nbytes and the rest of a line; what they add to the documents does not depend on them.
 * STATUS_FAILED, with a message: no memory, or no thread could be started.
 */
int blocks_begin(struct jsonl *j, int nthreads, size_t nbytes, struct blocks **ret_b);
/* lines, in chunks of any size: a source_fn; at is not used */
void blocks_add(void *b, const uint8_t *p, size_t n, int64_t at);
/* as jsonl_end(), for the first line that fails; frees b */
int blocks_end(struct blocks *b);

#endif
