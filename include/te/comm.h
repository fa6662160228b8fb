/*
 * te/comm.h - communicators: the ranks of a parallel program, and how they find each other.
 *
 * Thread: any; a communicator by one thread at a time, except for te_comm_abort().
 */
#ifndef TE_COMM_H
#define TE_COMM_H

#include <stddef.h>
#include <stdint.h>

#include <te/dtype.h>
#include <te/export.h>

TE_BEGIN_DECLS

struct te_comm;	     /* opaque, reference counted */
struct te_comm_root; /* opaque: answers ranks that join by an id */
struct te_ctx;	     /* te/ctx.h */
struct te_tensor;    /* te/tensor.h */

/* identifies a communicator to create and the address to which its ranks connect; may be copied
 * between processes */
struct te_comm_id {
	uint8_t bytes[128];
};

/*
 * Program function by which ranks exchange bytes, such as MPI_Allgather in an MPI program.
 * te_comm_create() calls it once, on the calling thread. It is not called afterwards: ranks then
 * have sockets to each other.
 */
struct te_comm_bootstrap {
	size_t size; /* set by the INIT macro; lets the struct grow */
	void *user;  /* the first argument of the function */
	/*
	 * Collective: recv, of nranks * nbytes, gets the send of every rank, in rank order.
	 * Returns 0 or a negative code; te_fail(3) records its message.
	 */
	int (*allgather)(void *user, const void *send, void *recv, size_t nbytes);
};
#define TE_COMM_BOOTSTRAP_INIT { sizeof(struct te_comm_bootstrap), 0, 0 }

struct te_comm_opts {
	size_t size;	    /* set by the INIT macro; lets the struct grow */
	const char *name;   /* name in messages; NULL: "comm" */
	int32_t rank;	    /* 0 to nranks - 1 */
	int32_t nranks;	    /* 0: the environment gives rank and nranks */
	int32_t timeout_ms; /* limit of each exchange between ranks; 0: TE_COMM_TIMEOUT_MS */
	uint32_t flags;	    /* none yet: 0 */
	/* how the ranks find each other; at most one is not NULL. Both NULL: by the environment */
	const struct te_comm_id *id;
	const struct te_comm_bootstrap *bootstrap;
	uint64_t pool_nbytes; /* symmetric memory of each rank, equal on all; 0: TE_COMM_POOL */
};
#define TE_COMM_OPTS_INIT { sizeof(struct te_comm_opts), 0, 0, 0, 0, 0, 0, 0, 0 }

/**
 * te_comm_id_create - create an id by which the ranks of a communicator connect over TCP
 * @ret_id:   the id, for one te_comm_create() on each rank
 * @ret_root: answers the ranks, on a thread, until it is released
 *
 * One process, which need not be a rank, calls this and gives the id to all ranks, as bytes or as
 * text. It keeps the root until all ranks have created the communicator: a rank releases it after
 * te_comm_create().
 * Thread: any.  Since: 0.1
 * Errors: -ENOMEM, -ENODEV (no network interface), errno values of sockets.
 */
TE_EXPORT int te_comm_id_create(struct te_comm_id *ret_id, struct te_comm_root **ret_root);
/* returns NULL; ranks that have not connected yet fail */
TE_EXPORT struct te_comm_root *te_comm_root_unref(struct te_comm_root *root);

#define TE_COMM_ID_TEXT 512
/* convert an id to text such as "te1:6b1f..:40001:10.0.0.5,2001:db8::5", and back.
 * -EINVAL: not an id, or nbytes is too small for the text and a 0 */
TE_EXPORT int te_comm_id_format(const struct te_comm_id *id, char *ret_text, size_t nbytes);
TE_EXPORT int te_comm_id_parse(const char *text, struct te_comm_id *ret_id);

/**
 * te_comm_create - join the other ranks
 * @ctx:      the device of this rank; the communicator keeps a reference
 * @opts:     NULL: the environment gives rank and nranks, and how the ranks find each other
 * @ret_comm: the communicator, with one reference
 *
 * Collective: returns after all ranks have called it. An id or a bootstrap is used if given.
 * Otherwise, unless nranks is 1, the environment decides: TE_COMM_ID; TE_COMM_DIR, which te_run(1)
 * sets; PMIx, by which mpirun and srun start programs. Without any of these there is one rank, and
 * TE_COMM_NRANKS must be at most 1.
 *
 * Thread: any; a communicator by one thread at a time, except for te_comm_abort().  Since: 0.1
 * Errors: -EINVAL, -ENOMEM, -ETIMEDOUT (the error message names the ranks that have not arrived),
 * -TE_EPEER (a rank has ended), -TE_EMISMATCH (ranks have different numbers of ranks, versions or
 * backends, or the same rank), -TE_ESTATE (te_run --respawn has started this rank again, and opts
 * has neither id nor bootstrap), -TE_EABORT, and errno values of sockets and files.
 */
TE_EXPORT int te_comm_create(struct te_ctx *ctx, const struct te_comm_opts *opts,
			     struct te_comm **ret_comm);
TE_EXPORT struct te_comm *te_comm_ref(struct te_comm *comm);
/**
 * te_comm_split - divide the ranks into groups, and create a communicator for each
 * @comm:     stays as it is, and may be released before the groups
 * @color:    0 or more: ranks with equal colors form a group
 * @key:      order of the ranks in a group; ranks with equal keys have their order in comm
 * @opts:     name (NULL: the name of comm and the color), timeout_ms, pool_nbytes; other members
 *            must be 0. NULL: defaults
 * @ret_comm: the communicator of this rank's group, with one reference
 *
 * Collective: all ranks of comm call it. The ranks of a group connect over TCP, within 10 seconds
 * or the time-out, whichever is less.
 * Thread: one communicator by one thread at a time.  Since: 0.1
 * Errors: as te_comm_create(), -EINVAL (on all ranks, if a color is negative), -ENODEV (no network
 * interface).
 */
TE_EXPORT int te_comm_split(struct te_comm *comm, int32_t color, int32_t key,
			    const struct te_comm_opts *opts, struct te_comm **ret_comm);
/**
 * te_comm_launch_device - choose a device for this process, before it creates a context
 * @backend: as in te_ctx_opts
 *
 * Returns the local rank, which launchers put into the environment (te_run, mpirun of Open MPI,
 * srun, mpiexec of MPICH), modulo the number of devices; 0 without a launcher.
 * Thread: any.  Since: 0.1
 */
TE_EXPORT int te_comm_launch_device(const char *backend);

/* returns 1 if the environment names one or more ranks, which te_comm_create() without options
 * would join; 0 if it would create a single rank */
TE_EXPORT int te_comm_launched(void);

/* releases a reference; after the last one, operations of other ranks fail with -TE_EPEER */
TE_EXPORT struct te_comm *te_comm_unref(struct te_comm *comm);

TE_EXPORT int te_comm_rank(const struct te_comm *comm);
TE_EXPORT int te_comm_nranks(const struct te_comm *comm);

/* Description of a communicator and of this rank's part in it. */
struct te_comm_info {
	size_t size; /* set by the INIT macro; lets the struct grow */
	int32_t rank, nranks;
	/* nodes are ranks that share memory, numbered in the order of their lowest ranks */
	int32_t node, nnodes;
	int32_t local_rank, nlocal; /* number of this rank in its node; ranks of the node */
	char name[64];
	char bootstrap[16]; /* how the ranks connected: callback, id, dir, pmix, single */
	char transport[16]; /* between nodes: fabric, verbs, tcp; "": one node */
};
#define TE_COMM_INFO_INIT { sizeof(struct te_comm_info), 0, 0, 0, 0, 0, 0, { 0 }, { 0 }, { 0 } }
/* ret_info must be initialised by TE_COMM_INFO_INIT, or -EINVAL */
TE_EXPORT int te_comm_info(const struct te_comm *comm, struct te_comm_info *ret_info);

/**
 * te_comm_abort - make the communicator fail on all ranks
 * @comm: the communicator
 * @why:  reason for the error messages of all ranks; or NULL
 *
 * Calls in which other ranks and threads wait in this communicator return -TE_EABORT, and so do
 * their later calls. Call it before te_comm_unref().
 * Thread: any, also while another thread uses the communicator.  Since: 0.1
 */
TE_EXPORT void te_comm_abort(struct te_comm *comm, const char *why);

struct te_comm_recover_opts {
	size_t size;	      /* set by the INIT macro; lets the struct grow */
	int32_t timeout_ms;   /* limit for ranks to arrive; 0: the time-out of the communicator */
	uint32_t flags;	      /* none yet: 0 */
	uint64_t pool_nbytes; /* as in te_comm_opts, for the new communicator; 0: as before */
};
#define TE_COMM_RECOVER_OPTS_INIT { sizeof(struct te_comm_recover_opts), 0, 0, 0 }

/**
 * te_comm_recover - create a communicator of the ranks that are left after a failure
 * @comm:      the failed communicator; if it has not failed, it does now, with -TE_EABORT on all
 *             ranks
 * @opts:      NULL: defaults
 * @ret_ranks: NULL, or an array of te_comm_nranks(comm) numbers. Element i: rank in comm of rank i
 *             of the new communicator, ascending
 * @ret_comm:  the new communicator, with one reference
 *
 * Collective, except for ranks that have ended or released comm: returns when each other rank has
 * called it, or when the time-out of a calling rank passes. A rank that has not called by then is
 * left out, and gets -TE_ESTATE when it calls. The ranks connect again without the id or bootstrap
 * of te_comm_create(). All ranks that succeed get the same set of ranks. On several nodes this set
 * has more than half of the ranks that have not ended, or half including the lowest.
 *
 * comm keeps its failed state and its memory until its references are released. After failures
 * other than -TE_ESTATE the ranks may call again.
 *
 * Thread: as te_comm_create().  Since: 0.1
 * Errors: as te_comm_create(), -TE_ESTATE (this rank was left out, or has recovered comm before),
 * -TE_EABORT (another rank could not create the new communicator), -ETIMEDOUT (too few ranks have
 * called).
 */
TE_EXPORT int te_comm_recover(struct te_comm *comm, const struct te_comm_recover_opts *opts,
			      int32_t *ret_ranks, struct te_comm **ret_comm);

/**
 * te_comm_alloc - allocate symmetric memory, which every rank of the node maps from all others
 * @comm:    the communicator
 * @nbytes:  size, above 0, equal on all ranks
 * @ret_ptr: device memory, aligned to 512 bytes; 2 MiB or more: at an offset in the pool that is a
 *           multiple of 2 MiB
 *
 * Collective: all ranks make the same calls of te_comm_alloc(), te_comm_tensor_create() and
 * te_comm_reclaim() in the same order. Blocks then have the same offset on all ranks, so
 * te_comm_peer_ptr() is an addition.
 * Memory: undefined until written.
 * Stream: synchronous; ranks wait for each other only if freed memory has to be reclaimed.
 * Thread: one communicator by one thread at a time.  Since: 0.1
 * Errors: -EINVAL, -ENOMEM (on all ranks; the error message has the sizes), -EBUSY (memory has to
 * be reclaimed, and this thread is capturing), -TE_EPEER, -TE_EMISMATCH, -TE_EABORT, -ETIMEDOUT.
 */
TE_EXPORT int te_comm_alloc(struct te_comm *comm, size_t nbytes, void **ret_ptr);
/*
 * Frees memory of te_comm_alloc() on this rank; not collective. The memory is used again when all
 * ranks have freed it and called te_comm_reclaim(), which te_comm_alloc() does when memory is
 * short. Work queued before the call may still use it. Any thread. NULL is ignored. -EINVAL: no
 * block begins at ptr.
 */
TE_EXPORT int te_comm_free(struct te_comm *comm, void *ptr);

/**
 * te_comm_tensor_create - create a tensor in symmetric memory
 * @comm:         the communicator
 * @dtype:        any type except FP8, which has scales
 * @ndim, @shape: as in te_tensor_create(), equal on all ranks
 * @ret_t:        the tensor, with one reference
 *
 * Collective, like te_comm_alloc(). Releasing the last reference frees the memory, on any thread
 * and in any order; the tensor holds a reference to the communicator.
 * Thread: one communicator by one thread at a time.  Since: 0.1
 * Errors: as te_comm_alloc(), -TE_EDTYPE.
 */
TE_EXPORT int te_comm_tensor_create(struct te_comm *comm, enum te_dtype dtype, int ndim,
				    const int64_t *shape, struct te_tensor **ret_t);

/* address where this rank maps the memory of another rank at the offset of ptr; NULL if that
 * rank is on another node, or ptr is not symmetric memory of this rank */
TE_EXPORT void *te_comm_peer_ptr(const struct te_comm *comm, const void *ptr, int rank);

/* collective: wait for the work of the context and for all ranks; then make blocks that all ranks
 * have freed available */
TE_EXPORT int te_comm_reclaim(struct te_comm *comm);

/* The pool of this rank. */
struct te_comm_memory {
	size_t size;		 /* set by the INIT macro; lets the struct grow */
	uint64_t pool_nbytes;	 /* size of the pool of each rank */
	uint64_t used_nbytes;	 /* blocks, rounded up to 512 bytes, freed ones included */
	uint64_t peak_nbytes;	 /* the largest used_nbytes so far */
	uint64_t freed_nbytes;	 /* blocks freed and not reclaimed yet */
	uint64_t largest_nbytes; /* the largest block that fits without reclaiming */
	uint64_t nblocks;
	uint64_t nallocs;	 /* allocations so far */
	uint64_t nreclaims;	 /* reclaims so far */
	void *base;		 /* start of the pool; offsets count from here */
	int32_t npeers;		 /* other ranks of the node, whose pools are mapped */
};
#define TE_COMM_MEMORY_INIT { sizeof(struct te_comm_memory), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
/* ret_memory must be initialised by TE_COMM_MEMORY_INIT, or -EINVAL */
TE_EXPORT int te_comm_memory(const struct te_comm *comm, struct te_comm_memory *ret_memory);

/* A transport, by which ranks share memory or exchange messages between nodes. */
struct te_transport_info {
	size_t size; /* set by the INIT macro; lets the struct grow */
	char name[16];	  /* memory: fd, fabric, nvls; messages: verbs, tcp */
	int32_t available; /* 1, or 0 with the reason below */
	char reason[256];
};
#define TE_TRANSPORT_INFO_INIT { sizeof(struct te_transport_info), { 0 }, 0, { 0 } }

/**
 * te_transport_count, te_transport_info - test the transports of this machine
 * @ctx:      the device
 * @index:    number of the transport, below te_transport_count()
 * @ret_info: initialised by TE_TRANSPORT_INFO_INIT
 *
 * Each transport is tried: "fabric" creates 2 MiB of memory, and exports and imports it.
 * "gpudirect" reports whether RDMA devices can register GPU memory.
 * Thread: any.  Since: 0.1
 * Errors: -EINVAL.
 */
TE_EXPORT int te_transport_count(void);
TE_EXPORT int te_transport_info(struct te_ctx *ctx, int index, struct te_transport_info *ret_info);

/**
 * te_transport_measure - time messages between ranks 0 and 1 by a transport between nodes
 * @comm:      has two or more ranks; ranks 0 and 1 may be on one node
 * @transport: "verbs" or "tcp"; like the other arguments, equal on all ranks
 * @nbytes:    size of a message
 * @depth:     0: round trips; 1 to 64: messages from rank 0 to rank 1 that are in flight together
 * @niters:    number of samples; the first ones are slower
 * @ret_us:    [niters] samples of this rank, in microseconds: half a round trip, or depth messages
 *             and an empty answer
 *
 * Collective: all ranks of the communicator call it; ranks above 1 get zeros. Messages are in host
 * memory, and are compared with the bytes sent.
 * Thread: one communicator by one thread at a time.  Since: 0.1
 * Errors: -EINVAL, -ENOMEM, -TE_ECORRUPT (a message is wrong), -TE_EPEER, -ETIMEDOUT, -TE_EABORT;
 * on all ranks -ENODEV and other codes of opening the transport.
 */
TE_EXPORT int te_transport_measure(struct te_comm *comm, const char *transport, size_t nbytes,
				   int32_t depth, int32_t niters, double *ret_us);

/**
 * te_comm_version - the version of the libtecomm that runs, as "0.1.0"
 *
 * Thread: any thread.
 * Since:  0.1
 */
TE_EXPORT const char *te_comm_version(void);

TE_END_DECLS

#endif
