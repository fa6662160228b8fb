/*
 * heap.h - the sub-allocator of a symmetric pool's offsets. It accesses neither the pool's memory
 * nor other ranks.
 *
 * Offsets depend only on the order of calls: a block gets the lowest offset at which it fits. So
 * ranks that make the same calls get the same offsets. A freed block keeps its
 * offset until te__heap_reclaim(), which all ranks call for the same blocks.
 */
#ifndef TE__HEAP_H
#define TE__HEAP_H

#include <stddef.h>
#include <stdint.h>

#define TE__HEAP_ALIGN 512u
#define TE__HEAP_ALIGN_LARGE (2u << 20) /* alignment of blocks that are at least as large */

struct te__block {
	uint64_t offset, nbytes; /* nbytes as requested */
	uint32_t freed;		 /* 1: waits to be reclaimed */
};

struct te__heap {
	uint64_t end; /* offsets are below this */
	uint64_t used_nbytes, peak_nbytes; /* bytes of blocks, rounded up; freed ones included */
	uint64_t freed_nbytes;
	struct te__block *block; /* sorted by offset */
	size_t n, cap;
};

void te__heap_init(struct te__heap *heap, uint64_t end);
void te__heap_fini(struct te__heap *heap);

/*
 * Returns 1 and the block, which is valid until the next call; 0 if it does not fit; -ENOMEM,
 * without message, if there is no host memory.
 */
int te__heap_alloc(struct te__heap *heap, uint64_t nbytes, struct te__block **ret_block);
/* the block that holds the offset and is not freed, or NULL */
struct te__block *te__heap_find(struct te__heap *heap, uint64_t offset);
void te__heap_free(struct te__heap *heap, struct te__block *block);
/* the offsets of a freed block become available; the block pointer is then invalid */
void te__heap_reclaim(struct te__heap *heap, struct te__block *block);
/* the largest block that would fit */
uint64_t te__heap_largest(const struct te__heap *heap);

#endif
