/*
 * collective.h - queueing of a communicator's collective kernels (kernels/comm/comm.h).
 *
 * A communicator has packet memory before the pools of all ranks, a ctl in device memory, and a
 * status in pinned memory. A failure that a kernel describes there, or that a rank records in the
 * control page, ends the communicator at the next call.
 */
#ifndef TE__COLLECTIVE_H
#define TE__COLLECTIVE_H

#include <te/collective.h>
#include <te/stream.h>

#include "kernels/te_k.h"
#include "libtecomm/collective/nodes/nodes.h"
#include "libtecomm/collective/table.h"
#include "libtecomm/meet/bootstrap.h"
#include "libtecomm/pool/pool.h"
#include "libtecomm/reach/reach.h"

/* terms that the ranks agree on when they create the communicator */
struct te__coll_terms {
	int64_t buffer_nbytes; /* size of a packet buffer, of which a region has three */
	int32_t max_blocks;  /* limit of blocks of a kernel that waits for other ranks */
	/* shared memory of a block on the device that has least; 0: hosts */
	uint64_t block_smem_nbytes;
	int32_t nlanes;	     /* lanes of a channel of messages; 0: there are no channels */
	int host;	     /* 1: host backend, which has separate rows of the table */
	int device_sums;   /* 1: devices add in chains between nodes */
	bool fabric;	   /* memory of ranks on other nodes is mapped, as on one node */
	bool shared;	   /* two ranks have the same GPU */
	struct te__reach_choice reach;
};

struct te__message_list;

struct te__coll {
	struct te__boot *boot;
	struct te__pool *pool;
	const char *name;
	struct te__coll_terms terms;
	const struct te__table *table;
	struct te__nodes *nodes; /* NULL: all ranks have mapped each other's memory */
	/* ctl of all operations; then the word of te__coll_word() and a ctl of kernels alone */
	struct te_k_comm_ctl *ctl;
	struct te_k_comm_status *status;
	uint64_t deadline_ns;
	/* streams of the last queued operation, and of the last one in a capture */
	struct te_stream *queued, *captured;
	struct te_event *order; /* orders streams in a capture */
	int told; /* 1: the failure in status was reported */
	/* messages of the present call (messages.c); NULL until the first one */
	struct te__message_list *list;
	int32_t list_cap;
	int32_t *heads; /* [ranks][2] */
	struct te__group {
		int open;		  /* calls are added to the list */
		int32_t n;		  /* ends of calls that were successful */
		struct te_stream *stream; /* stream of the first call */
		int code;		  /* code of the first call that failed; why: its message */
		char why[240];
	} group;
};

/*
 * Collective: the terms, and the table of TE_COMM_TABLE. All ranks return an error if one of them
 * does, or if environment variables differ that must not.
 */
int te__coll_agree(struct te_ctx *ctx, struct te__boot *boot, const char *name,
		   struct te__table *ret_table, struct te__coll_terms *ret_terms);
/* te__coll_terms.buffer_nbytes from TE_COMM_PACKETS */
int64_t te__coll_buffer_nbytes(const char *backend, int32_t nranks);
/* maximum number of ranks that map each other's memory */
int32_t te__coll_most(const char *backend);

/* bytes of packets and of channels of a rank */
size_t te__coll_packets(const struct te__coll_terms *terms, const struct te__boot *boot);

/* collective; c must be zero except its table; te__coll_fini() may follow a failure */
int te__coll_init(struct te__coll *c, struct te__boot *boot, struct te__pool *pool,
		  const char *name, const struct te__coll_terms *terms);
/* call it after the work of the context has ended and before the pool is destroyed */
void te__coll_fini(struct te__coll *c);

/* call it before launches on the stream, which then run after the last operation. Errors as
 * te__pool_check() */
int te__coll_begin(struct te__coll *c, const char *fn, struct te_stream *stream);
/* -EBUSY: fn cannot be a part of the group that is open */
int te__coll_group_open(const struct te__coll *c, const char *fn);
/* text of te_k_comm_message() */
void te__message_text(uint64_t signature, char *ret, size_t nbytes);
/* device address of an INT32 that barriers exchange */
void *te__coll_word(const struct te__coll *c);
/* the arguments that all operations have in common */
struct te_k_comm te__coll_args(const struct te__coll *c);

/* te__coll_args() for a kernel without other ranks */
struct te_k_comm te__coll_args_alone(const struct te__coll *c);

/* the algorithm where latency matters: by TE_COMM_ALGO, or ONE_SHOT or TWO_SHOT by size */
enum te_comm_algorithm te__coll_latency(const struct te__coll *c, int64_t nbytes);

/* the carrier of an algorithm: a row of calls.c */
enum te__carrier { TE__BY_KERNELS, TE__BY_NODES, TE__BY_NCCL };

/* a row of algorithms.c for each enum te_comm_algorithm */
struct te__algorithm {
	const char *name; /* as in TE_COMM_ALGO */
	enum te__carrier carrier;
	int32_t kernel; /* enum te_k_comm_algorithm; -1: none */
	int floats;	/* 1: floating types only */
};
#define TE__ALGORITHMS (TE_COMM_CHAIN + 1)
extern const struct te__algorithm te__algorithms[TE__ALGORITHMS];

/* an all-reduce as it will be run */
struct te__coll_choice {
	enum te_comm_algorithm algorithm;
	enum te__carrier carrier;
	int32_t kernel;	    /* enum te_k_comm_algorithm */
	int32_t max_blocks; /* limit of blocks of a launch */
	int64_t each;	    /* elements of a launch */
	int explain;	    /* input; 1: set reason */
	char reason[160];
};
#define TE__COLL_SYMMETRIC 1u /* in and out are symmetric memory */
#define TE__COLL_NVLS 2u      /* nvls supports operation, type and alignment */
/* arrays: flags above. Errors are recorded, naming fn */
int te__coll_choose(const struct te__coll *c, const char *fn, enum te_k_comm_collective what,
		    int64_t count, enum te_dtype dtype, uint32_t arrays,
		    const struct te_comm_call_opts *opts, struct te__coll_choice *ret);
/* algorithms.c: the name of an enum te_k_comm_algorithm; NULL: no such algorithm */
const char *te__coll_kernel_name(int32_t kernel);
/* number of blocks of a launch of count elements */
int te__coll_nblocks(const struct te__coll *c, const struct te__coll_choice *k, int64_t count,
		     enum te_dtype dtype);

#endif
