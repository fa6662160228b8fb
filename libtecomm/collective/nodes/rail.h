/* rail.h - what the files of nodes/ share: staging memory, pieces and the thread of a rail. */
#ifndef TE__RAIL_H
#define TE__RAIL_H

#include <pthread.h>
#include <stdatomic.h>

#include "libtecomm/collective/nodes/nodes.h"
#include "libtecomm/reach/link/link.h"

#define TE__NODES_DEPTH 4 /* pieces under way, each in a slot */
#define TE__NODES_PART 4096 /* bytes of a rail at least, so that small pieces are one message */

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
	_Atomic int devices; /* it is the device's turn, */
	int64_t taken; /* and since then, if it is TE__TAKEN: turns before it may last */
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
	size_t common;	  /* te__nodes_common() */
	size_t device_at; /* of te__nodes_create() */
	int64_t timeout_ns;
	int32_t *peer_of; /* [nodes]: position in the link's peers */
	int32_t *first, *nlocals; /* [nodes]: its lowest rank, and how many it has */

	/* calls in stream order */
	uint64_t begun, waited;
	uint64_t first_piece; /* of the last operation that has begun */

	struct te__watch *watch; /* of the bootstrap */
	pthread_t thread;	 /* of the rail */
	int running;
	_Atomic int left; /* the rail's thread has ended */
	_Atomic int stop;
	uint64_t started, ended; /* pieces */
	struct te__job job[TE__NODES_DEPTH];
	uint64_t *targets; /* of all jobs */
	const void **src;  /* [ranks] */
};

static inline struct te__job *te__nodes_job(struct te__nodes *n, uint64_t number)
{
	return &n->job[number % TE__NODES_DEPTH];
}

enum { TE__GIVEN = 1, TE__TAKEN };

static inline int te__job_is_devices(const struct te__job *j)
{
	return atomic_load_explicit(&j->devices, memory_order_acquire);
}

/* as many as the node with the fewest has ranks */
int32_t te__nodes_nrails(const struct te__boot *boot);
/* bytes of a slot that each node has, without heads */
size_t te__nodes_common(const struct te__boot *boot, size_t piece);
struct te__member *te__nodes_member(const struct te__nodes *n, int32_t local);
/* of a slot, at element 0 of the piece: the input of a local rank, that of any rank as it came from
 * another node or is to be gathered, the result */
char *te__nodes_in(const struct te__nodes *n, int32_t slot, int32_t local);
char *te__nodes_far(const struct te__nodes *n, int32_t slot, int32_t rank);
char *te__nodes_result(const struct te__nodes *n, int32_t slot);

/* FP32 sums of a chain on their way, by element of the piece */
float *te__nodes_sums(const struct te__nodes *n, int32_t slot);

/* 1: the inputs and the result are in staging memory of the devices */
static inline int te__nodes_is_device(const struct te__nodes *n, int32_t algorithm)
{
	return n->device_at && algorithm == TE_COMM_CHAIN;
}

/* elements of such a piece: those whose sums and result fit into a slot of staging memory */
int64_t te__device_each(const struct te__nodes *n, int64_t es);
/* of a slot, at element 0 of the piece, of a local rank */
char *te__device_in(const struct te__nodes *n, int32_t slot, int32_t local);
char *te__device_result(const struct te__nodes *n, int32_t slot, int32_t local);
/* of this rank, at element 0 of its part */
float *te__device_sums(const struct te__nodes *n, int32_t slot);
/* where the sums and the result of a part that begins at lo are sent from, and received */
float *te__device_wire_sums(const struct te__nodes *n, const struct te__piece *p, int64_t lo);
char *te__device_wire_result(const struct te__nodes *n, const struct te__piece *p, int64_t lo);
/*
 * Queue the device's turns with this rank's part of piece k of an operation: it adds the inputs of
 * the node; it takes the result, which has been received, to the ranks of the node.
 */
int te__device_add(struct te__nodes *n, struct te_stream *stream, const struct te__piece *p,
		   int64_t k);
int te__device_spread(struct te__nodes *n, struct te_stream *stream, const struct te__piece *p,
		      int64_t k);

/* in a host call: until it is ready with this number, or the communicator has failed */
void te__nodes_wait(struct te__nodes *n, int (*ready)(struct te__nodes *n, uint64_t number),
		    uint64_t number);
/* the lowest node that wants the result of a part: nodes above pass it on */
int32_t te__nodes_lowest(const struct te__nodes *n, const struct te__piece *p, int64_t lo,
			 int64_t nelems);
static inline int te__nodes_is_last(const struct te__nodes *n)
{
	return n->node == n->nnodes - 1;
}
/* the part of this node in the sums of a chain; in: of local rank 0, the next ones at stride */
struct te_k_comm_fold te__nodes_fold(const struct te__nodes *n, const struct te__piece *p,
				     int64_t nelems, const void *in, int64_t stride, float *sums,
				     void *out);
/* 1: the ranks of the node want the result of an element of these */
int te__nodes_wants(const struct te__nodes *n, int32_t node, const struct te__piece *p, int64_t lo,
		    int64_t nelems);
/* elements of the part of a rail, from *ret_lo on */
int64_t te__nodes_part(const struct te__nodes *n, const struct te__piece *p, int32_t rail,
		       int64_t *ret_lo);

/* ends the communicator, on all ranks */
void te__nodes_fail(struct te__nodes *n, int code, const char *why);
/* -TE_EPEER, with the local rank that has closed its communicator */
int te__nodes_closed(const struct te__nodes *n, int32_t local);
/* the function of the thread */
void *te__rail_work(void *nodes);

#endif
