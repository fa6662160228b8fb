/* edges.h - dependency edges of a captured graph, computed from memory accesses. */
#ifndef TE__EDGES_H
#define TE__EDGES_H

#include "libtecore/backend/backend.h"

/* node i depends on dep[first[i]] to dep[first[i + 1] - 1], ascending */
struct te__edges {
	uint32_t *first; /* [n + 1] */
	uint32_t *dep;
};

/*
 * Edges for nodes that were captured serially, in that order: each node depends on the earlier
 * nodes that access the same memory, unless both only read it or are disjoint writes of one pass.
 * Edges that others imply are dropped. Opaque nodes, host calls and events are full barriers: they
 * depend on all earlier nodes, and all later nodes depend on them. If the nodes are not a single
 * chain, their edges are kept, because several streams were captured. 0 or -ENOMEM.
 */
int te__edges_from_accesses(uint32_t n, const struct te__gnode *node, struct te__edges *ret);
void te__edges_free(struct te__edges *e);

/* the memory that the node accesses; the order of ranges does not depend on its pointers */
void te__node_ranges(const struct te__gnode *n, struct te__ranges *ret);

#endif
