/* rail.h - what nodes.c and rail.c share: staging memory, pieces and the thread of a rail. */
#ifndef TE__RAIL_H
#define TE__RAIL_H

#include <pthread.h>
#include <stdatomic.h>

#include "libtecomm/nodes/nodes.h"
#include "libtecomm/transport/link.h"

#define TE__NODES_DEPTH 4 /* pieces under way, each in a slot */

/* as it is also sent, to see that all ranks do the same */
struct te__piece {
	uint64_t number;   /* of the communicator's pieces */
	int64_t count, lo; /* of the operation; the first element of the piece */
	int64_t n;	   /* elements */
	int32_t dtype, op, root, what, algorithm;
	int32_t slot;
};

/* of each rank of a node, in staging memory */
struct te__member {
	_Alignas(128) _Atomic uint64_t begun; /* pieces that it has put in */
	_Atomic uint32_t closed;	      /* it puts in no more */
	_Alignas(128) _Atomic uint64_t ended; /* pieces that its rail has done */
	struct te__piece piece[TE__NODES_DEPTH];
};

/* a piece at this rank's rail */
struct te__job {
	int state;
	int64_t since, lo, n; /* of its part, elements from the begin of the piece */
	/* [peers]: the link's counters when all has been, or the head has; 0: nothing is */
	uint64_t *sent, *received, *head;
};

struct te__nodes {
	struct te__boot *boot;
	struct te__pool *pool;
	struct te__link *link;
	size_t piece;
	int32_t rank, nranks, nnodes, node, nlocal, local;
	int32_t nrails, npeers;
	int contiguous;
	int64_t timeout_ns;
	int32_t *peer_of; /* [nodes]: position in the link's peers */
	int32_t *first, *nlocals; /* [nodes]: its lowest rank, and how many it has */

	/* calls in stream order */
	uint64_t begun, waited;

	/* the thread of the rail, and the one that watches the bootstrap */
	pthread_t thread, watch;
	int running, watching;
	int stop_fd;
	_Atomic int left; /* the rail's thread has ended */
	_Atomic int stop;
	uint64_t started, ended; /* pieces */
	struct te__job job[TE__NODES_DEPTH];
	uint64_t *targets; /* of all jobs */
	const void **src;  /* [ranks] */
};

struct te__member *te__nodes_member(const struct te__nodes *n, int32_t local);
/* of a slot, at element 0 of the piece: the input of a local rank, that of any rank as it came from
 * another node or is to be gathered, the result */
char *te__nodes_in(const struct te__nodes *n, int32_t slot, int32_t local);
char *te__nodes_far(const struct te__nodes *n, int32_t slot, int32_t rank);
char *te__nodes_result(const struct te__nodes *n, int32_t slot);

/* 1: the ranks of the node want the result of an element of these */
int te__nodes_wants(const struct te__nodes *n, int32_t node, const struct te__piece *p, int64_t lo,
		    int64_t nelems);
/* elements of the part of a rail, from *ret_lo on */
int64_t te__nodes_part(const struct te__nodes *n, const struct te__piece *p, int32_t rail,
		       int64_t *ret_lo);

/* ends the communicator, on all ranks */
void te__nodes_fail(struct te__nodes *n, int code, const char *why);
/* the function of the thread */
void *te__rail_work(void *nodes);

#endif
