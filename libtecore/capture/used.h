/*
 * used.h - memory that the nodes of a recording access, without ranges that move with a binding.
 *
 * A range that a node accesses through a pointer of a binding moves with that binding; all others
 * stay at their captured addresses. New memory of a binding is compared with the ranges that stay.
 */
#ifndef TE__USED_H
#define TE__USED_H

#include "libtecore/backend/backend.h"

struct te__used_range {
	uintptr_t begin, end;
	uint32_t node;
	uint32_t number;  /* index in te__node_ranges() of the node */
	size_t last_end; /* index of the range with the largest end, among those up to this one */
};

/* sorted by begin */
struct te__used_list {
	size_t n;
	struct te__used_range *v;
};

struct te__used {
	struct te__used_list any, written;
	uint32_t *bound; /* for each node: bit k is set if range k moves with a binding */
	int stale;	 /* 1: ranges with such a bit are still in the lists */
};

/* lists the ranges of the n nodes of a graph; 0 or -ENOMEM */
int te__used_init(struct te__used *u, const struct te__backend_ops *ops, void *graph, uint64_t n);
void te__used_free(struct te__used *u);
/* removes the ranges marked in bound from the lists */
void te__used_drop_bound(struct te__used *u);
/* a node that uses bytes of [begin, end), or -1 */
int64_t te__used_at(const struct te__used_list *l, uintptr_t begin, uintptr_t end);

#endif
