/*
 * collective.h - how a communicator queues collective kernels (kernels/comm/comm.h).
 *
 * Their state is of the communicator: packet memory before the pools of all ranks, a ctl in device
 * memory, a status in pinned memory. A failure that a kernel has described there, or that a rank
 * has told the control page, ends the communicator at the next call.
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
#include "libtecomm/reach/nvls.h"

/* what the ranks settle when they create the communicator */
struct te__coll_terms {
	int64_t buffer_nbytes; /* of packet memory, of which a region has three */
	int32_t max_blocks;  /* of a kernel that waits for other ranks */
	int host;	     /* the backend is host: the table has rows of its own */
	int device_sums;   /* chains between nodes are added by the devices */
	bool fabric;	   /* memory of ranks on other nodes is mapped: they are as if on one */
	char nvls_why[TE__NVLS_WHY]; /* why there is no multicast memory; "": there is */
};

struct te__coll {
	struct te__boot *boot;
	struct te__pool *pool;
	const char *name;
	struct te__coll_terms terms;
	const struct te__table *table;
	struct te__nodes *nodes; /* NULL: all ranks have mapped each other's memory */
	/* of all operations; the word of te__coll_word() and a ctl of kernels alone follow */
	struct te_k_comm_ctl *ctl;
	struct te_k_comm_status *status;
	uint64_t deadline_ns;
	/* the streams of the last operation that was queued, and of the last one in a capture */
	struct te_stream *queued, *captured;
	struct te_event *order; /* of streams in a capture */
	int told; /* the failure in status */
};

/* of TE_COMM_PACKETS, as all ranks can use it */
int64_t te__coll_buffer_nbytes(const char *backend);

/* collective; c is zeroed but for its table, and te__coll_fini() may follow a failure */
int te__coll_init(struct te__coll *c, struct te__boot *boot, struct te__pool *pool,
		  const char *name, const struct te__coll_terms *terms);
/* after the work of the context has ended, before the pool is destroyed */
void te__coll_fini(struct te__coll *c);

/* before launches on the stream: they run after the last operation. Errors as te__pool_check() */
int te__coll_begin(struct te__coll *c, const char *fn, struct te_stream *stream);
/* of the device: an INT32 that barriers exchange */
void *te__coll_word(const struct te__coll *c);
/* the arguments that all operations have in common */
struct te_k_comm te__coll_args(const struct te__coll *c);

/* the same for a kernel of this rank alone, which no other rank takes part in */
struct te_k_comm te__coll_args_alone(const struct te__coll *c);

/* by TE_COMM_ALGO, or TE_COMM_ONE_SHOT or TE_COMM_TWO_SHOT, by size, where a latency counts */
enum te_comm_algorithm te__coll_latency(const struct te__coll *c, int64_t nbytes);

/* an all-reduce as it will be run */
struct te__coll_choice {
	enum te_comm_algorithm algorithm;
	int32_t kernel;	    /* enum te_k_comm_algorithm */
	int32_t max_blocks; /* of a launch */
	int64_t each;	    /* elements of a launch */
	int explain;	    /* set before: reason is wanted */
	char reason[160];
};
#define TE__COLL_SYMMETRIC 1u /* in and out are symmetric memory */
#define TE__COLL_NVLS 2u      /* operation, type and alignment are such that nvls takes them */
/* arrays: of the flags above. Errors are recorded, naming fn */
int te__coll_choose(const struct te__coll *c, const char *fn, enum te_k_comm_collective what,
		    int64_t count, enum te_dtype dtype, uint32_t arrays,
		    const struct te_comm_call_opts *opts, struct te__coll_choice *ret);
/* of enum te_k_comm_algorithm, as in TE_COMM_ALGO; NULL: there is no such one */
const char *te__coll_kernel_name(int32_t kernel);
/* blocks of a launch of count elements */
int te__coll_nblocks(const struct te__coll *c, const struct te__coll_choice *k, int64_t count,
		     enum te_dtype dtype);

#endif
