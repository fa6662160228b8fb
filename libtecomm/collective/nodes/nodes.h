/*
 * nodes.h - collective operations of ranks on several nodes.
 *
 * An operation is divided into pieces. For each piece, a rank copies its input to staging memory
 * that the ranks of its node share, calls the host to announce it, calls it again to wait for the
 * result, and copies the result back. All of this is queued on the stream, so recordings have it
 * too.
 *
 * The ranks with local rank g on every node are rail g, for each g that all nodes have. A thread of
 * each rank, with a link to the others in its rail, does part g of a piece when the ranks of its
 * node have put in their inputs, by one of two algorithms:
 *
 *	exchange	nodes send all inputs to each other, and each node adds all inputs
 *	chain		sums in FP32 go from node to node, each adding its inputs, and results back
 *
 * Chain supports floating types, and nodes whose ranks are contiguous, so that both algorithms add
 * in the order of ranks with one rounding, and results have the bits of one node. With n nodes of l
 * ranks, an all-reduce of S bytes sends (n - 1) l S and (1 + 4 / element size) S from each node.
 *
 * Devices may do the additions of chains (TE_COMM_SUMS, device.c): inputs and results of such a
 * piece are in staging memory of the devices, which the ranks of a node access, and sums and
 * results go through staging memory of the host, unless the transport can access device memory.
 *
 * A slot of staging memory is free when all ranks of the node have put in the next piece that uses
 * it. Rails write nothing else there.
 */
#ifndef TE__NODES_H
#define TE__NODES_H

#include <te/collective.h>
#include <te/stream.h>

#include "kernels/te_k.h"
#include "libtecomm/meet/bootstrap.h"
#include "libtecomm/pool/pool.h"
#include "libtecomm/reach/reach.h"

struct te__nodes;
struct te__mail;

#define TE__NODES_LOCAL 63 /* maximum ranks of a node, whose messages are queued together */
/* maximum bytes of an array for exchange; chain is used above it, if possible */
#define TE__NODES_EXCHANGE_MOST ((int64_t)64 << 10)

/* from TE_COMM_STAGE: bytes of a piece, a multiple of 4096, and of staging memory */
size_t te__nodes_piece(const struct te__boot *boot);
size_t te__nodes_stage(const struct te__boot *boot, size_t piece);
/* 1: the ranks of each node are contiguous, as chain needs */
int te__nodes_contiguous(const struct te__boot *boot);
/* bytes of device staging memory, whose offset in the packets is a multiple of TE__NODES_ALIGN */
#define TE__NODES_ALIGN ((size_t)64 << 10)
size_t te__nodes_device(const struct te__boot *boot, size_t piece);

/*
 * Collective; all ranks return an error if one of them does. reach: what they can use. piece: equal
 * on all. device_at: bytes from te__pool_packets() to staging memory of the device, equal on all;
 * 0: there is none.
 */
int te__nodes_create(struct te__boot *boot, struct te__pool *pool,
		     const struct te__reach_choice *reach, size_t piece, size_t device_at,
		     struct te__nodes **ret_nodes);
/* messages between any two ranks; NULL: devices have none */
struct te__mail *te__nodes_mail(const struct te__nodes *n);
/* call it after the work of the context has ended; takes NULL, returns NULL */
struct te__nodes *te__nodes_destroy(struct te__nodes *n);
/* the name of the link's transport */
const char *te__nodes_transport(const struct te__nodes *n);

/* checked arguments; count is above 0 */
struct te__nodes_call {
	const void *in;
	void *out;
	int64_t count;
	enum te_dtype dtype;
	enum te_comm_op op;
	enum te_k_comm_collective what;
	int32_t root;
	enum te_comm_algorithm algorithm; /* EXCHANGE or CHAIN */
};

/* NULL, or why chain cannot be used */
const char *te__nodes_no_chain(const struct te__nodes *n, enum te_k_comm_collective what,
			       enum te_dtype dtype);
int te__nodes_queue(struct te__nodes *n, struct te_stream *stream, const struct te__nodes_call *c);
/* bytes that this rank sends to other nodes, and pieces */
void te__nodes_cost(const struct te__nodes *n, const struct te__nodes_call *c, uint64_t *ret_nsent,
		    int32_t *ret_npieces);

#endif
