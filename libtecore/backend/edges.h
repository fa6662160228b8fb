/* edges.h - the edges of a recorded graph that the memory of its nodes asks for. */
#ifndef TE__EDGES_H
#define TE__EDGES_H

#include "libtecore/backend/backend.h"

/* node i depends on dep[first[i]] up to that of i + 1, ascending */
struct te__edges {
	uint32_t *first; /* [n + 1] */
	uint32_t *dep;
};

/*
 * Nodes that were queued one behind the other, in that order: their edges become those that keep
 * every node behind the ones it shares memory with, unless both only read it, or write parts of it
 * in one pass. No edge is there that others imply; some are there to bound how many run side by
 * side. A node whose memory is not known, a host call and an event stay behind all that came
 * before, and before all that comes behind. Where nodes are no straight line, somebody chose their
 * order: it stays. 0 or -ENOMEM.
 */
int te__edges_by_data(uint32_t n, const struct te__gnode *node, struct te__edges *ret);
void te__edges_free(struct te__edges *e);

/* the memory that the node uses; in the same order however its pointers change */
void te__node_ranges(const struct te__gnode *n, struct te__ranges *ret);

#endif
