/* link_lib.h - messages between two ranks over a link, for tests of transports. */
#ifndef TT_LINK_LIB_H
#define TT_LINK_LIB_H

#include "libtecomm/reach/link/link.h"

struct link_stream {
	struct te__link *link;
	int32_t i;	   /* position of the peer */
	int rank, peer;	   /* of the bootstrap */
	uint8_t *mem;	   /* 2 * depth * most bytes, registered */
	size_t most;	   /* bytes of a message */
	int depth;	   /* messages under way in each direction */
	uint64_t seed;	   /* equal on both */
};

/*
 * `count` messages of random sizes and contents in each direction, which are checked, also what is
 * around them. 0; -EBADMSG: wrong contents, with a message; codes of the link.
 */
int link_exchange(const struct link_stream *s, int count);

#endif
