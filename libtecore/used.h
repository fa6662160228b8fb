/* used.h - the memory of a recording's nodes that no slot takes along. */
#ifndef TE__USED_H
#define TE__USED_H

#include "libtecore/backend/backend.h"

/* a range of a node; number: among its ranges */
struct te__used_range {
	uintptr_t begin, end;
	uint32_t node, number;
	size_t farthest; /* which of those up to here ends last */
};

/* by their beginnings */
struct te__used_list {
	size_t n;
	struct te__used_range *v;
};

struct te__used {
	struct te__used_list any, written;
	uint32_t *taken; /* of each node: bits of the ranges that slots take along */
	int dirty;	 /* some of those are still in the lists */
};

/* 0 or -ENOMEM */
int te__used_init(struct te__used *u, uint64_t n, const struct te__gnode *node);
void te__used_free(struct te__used *u);
/* the lists lose what slots take along */
void te__used_drop(struct te__used *u);
/* a node that uses some of [begin, end), or -1 */
int64_t te__used_at(const struct te__used_list *l, uintptr_t begin, uintptr_t end);

#endif
