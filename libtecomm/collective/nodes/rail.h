/* rail.h - shared by the files of nodes/: staging memory, pieces and the thread of a rail. */
#ifndef TE__RAIL_H
#define TE__RAIL_H

#include <pthread.h>
#include <stdatomic.h>

#include "libtecomm/collective/nodes/nodes.h"
#include "libtecomm/reach/link/link.h"

#define TE__NODES_DEPTH 4 /* pieces in flight, each in a slot */
#define TE__NODES_PART 4096 /* minimum bytes of a rail, so that small pieces are one message */

/* a piece; also sent, to check that all ranks do the same */
struct te__piece {
	uint64_t number;   /* number of the piece in the communicator */
	int64_t count, lo; /* elements of the operation; first element of the piece */
	int64_t n;	   /* elements */
	int32_t dtype, op, root, what, algorithm;
	int32_t slot;
};

/* state of a rank of the node, in staging memory */
struct te__member {
	_Alignas(128) _Atomic uint64_t begun; /* pieces that the rank has put in */
	_Atomic uint32_t closed;	      /* 1: it puts in no more */
	_Alignas(128) _Atomic uint64_t ended; /* pieces that its rail has completed */
	struct te__piece piece[TE__NODES_DEPTH];
};

/* a piece at this rank's rail */
struct te__job {
	int state;
	_Atomic int devices; /* state of the device's turn */
	int64_t taken; /* with TE__TAKEN: its time; the device may be busy with others before */
	int64_t since, lo, n; /* time of its latest progress; part, in elements of the piece */
	/* [peers]: the link's counters when all, or the head, has been transferred; 0: nothing */
	uint64_t *sent, *received, *head;
};

struct te__nodes {
	struct te__boot *boot;
	struct te__pool *pool;
	struct te__link *link;
	struct te__mail *mail; /* NULL: devices have none */
	size_t piece;
	int32_t rank, nranks, nnodes, node, nlocal, local;
	int32_t nrails, npeers;
	int contiguous;
	size_t common;	  /* te__nodes_common() */
	size_t device_at; /* as in te__nodes_create() */
	int64_t timeout_ns;
	int32_t *peer_of; /* [nodes]: position in the link's peers */
	int32_t *first, *nlocals; /* [nodes]: lowest rank; number of ranks */

	/* calls in stream order */
	uint64_t begun, waited;
	uint64_t first_piece; /* first piece of the last operation that has begun */

	pthread_t thread; /* thread of the rail */
	int running;
	_Atomic int left; /* the rail's thread has ended */
	_Atomic int stop;
	uint64_t started, ended; /* pieces */
	struct te__job job[TE__NODES_DEPTH];
	uint64_t *targets; /* targets of all jobs */
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

/* the collective with the same messages: results, or parts, are for one rank or from one */
static inline int te__nodes_like(int what)
{
	return what == TE_K_COLL_REDUCE	 ? TE_K_COLL_ALLREDUCE :
	       what == TE_K_COLL_GATHER	 ? TE_K_COLL_ALL_GATHER :
	       what == TE_K_COLL_SCATTER ? TE_K_COLL_BROADCAST :
					   what;
}

/* ranks of the node with the most */
int32_t te__nodes_most_local(const struct te__boot *boot);
/* number of rails: ranks of the node with the fewest */
int32_t te__nodes_nrails(const struct te__boot *boot);
/* minimum over the nodes of the bytes of a slot, without heads */
size_t te__nodes_common(const struct te__boot *boot, size_t piece);
struct te__member *te__nodes_member(const struct te__nodes *n, int32_t local);
/* memory of a slot, at element 0 of the piece: the input of a local rank; the input of any rank,
 * received from another node or to be gathered; the result */
char *te__nodes_in(const struct te__nodes *n, int32_t slot, int32_t local);
char *te__nodes_far(const struct te__nodes *n, int32_t slot, int32_t rank);
char *te__nodes_result(const struct te__nodes *n, int32_t slot);

/* FP32 sums of a chain in transfer, by element of the piece */
float *te__nodes_sums(const struct te__nodes *n, int32_t slot);

/* 1: the inputs and the result are in staging memory of the devices */
static inline int te__nodes_is_device(const struct te__nodes *n, int32_t algorithm)
{
	return n->device_at && algorithm == TE_COMM_CHAIN;
}

/* elements of such a piece, whose sums and result fit into a slot of staging memory */
int64_t te__device_each(const struct te__nodes *n, int64_t es);
/* device memory of a slot for a local rank, at element 0 of the piece */
char *te__device_in(const struct te__nodes *n, int32_t slot, int32_t local);
char *te__device_result(const struct te__nodes *n, int32_t slot, int32_t local);
/* buffers for sending and receiving the sums and the result of a part that begins at lo */
float *te__device_wire_sums(const struct te__nodes *n, const struct te__piece *p, int64_t lo);
char *te__device_wire_result(const struct te__nodes *n, const struct te__piece *p, int64_t lo);
/*
 * Queue the device's turns for this rank's part of piece k of an operation: add the inputs of the
 * node; copy the received result to the ranks of the node.
 */
int te__device_add(struct te__nodes *n, struct te_stream *stream, const struct te__piece *p,
		   int64_t k);
int te__device_spread(struct te__nodes *n, struct te_stream *stream, const struct te__piece *p,
		      int64_t k);

/* in a host call: waits until ready(n, number), or the communicator has failed */
void te__nodes_wait(struct te__nodes *n, int (*ready)(struct te__nodes *n, uint64_t number),
		    uint64_t number);
/* the lowest node that needs the result of a part: higher nodes forward it */
int32_t te__nodes_lowest(const struct te__nodes *n, const struct te__piece *p, int64_t lo,
			 int64_t nelems);
static inline int te__nodes_is_last(const struct te__nodes *n)
{
	return n->node == n->nnodes - 1;
}
/* the fold of this node's inputs in a chain; in: input of local rank 0, others at stride */
struct te_k_comm_fold te__nodes_fold(const struct te__nodes *n, const struct te__piece *p,
				     int64_t nelems, const void *in, int64_t stride, float *sums,
				     void *out);
/* 1: the ranks of the node need the result of one of these elements */
int te__nodes_wants(const struct te__nodes *n, int32_t node, const struct te__piece *p, int64_t lo,
		    int64_t nelems);
/* number of elements of a rail's part, which begins at *ret_lo */
int64_t te__nodes_part(const struct te__nodes *n, const struct te__piece *p, int32_t rail,
		       int64_t *ret_lo);

/* ends the communicator, on all ranks */
void te__nodes_fail(struct te__nodes *n, int code, const char *why);
/* -TE_EPEER, with the local rank that has closed its communicator */
int te__nodes_closed(const struct te__nodes *n, int32_t local);
/* the function of the thread */
void *te__rail_work(void *nodes);

#endif
