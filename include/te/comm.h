/* te/comm.h - communicators: the ranks of a parallel program, and how they find each other. */
#ifndef TE_COMM_H
#define TE_COMM_H

#include <stddef.h>
#include <stdint.h>

#include <te/dtype.h>
#include <te/export.h>

TE_BEGIN_DECLS

struct te_comm;	     /* opaque, reference counted */
struct te_comm_root; /* opaque: answers the ranks that look for an id */
struct te_ctx;	     /* te/ctx.h */
struct te_tensor;    /* te/tensor.h */

/* names a communicator that is to be, and where its ranks meet; may be copied between processes */
struct te_comm_id {
	uint8_t bytes[128];
};

/*
 * A function of the program by which ranks exchange bytes, for programs that have one already, as
 * MPI programs have MPI_Allgather. te_comm_create() calls it once, from its own thread, and
 * nothing calls it afterwards: ranks then have sockets to each other.
 */
struct te_comm_bootstrap {
	size_t size; /* set by the INIT macro; lets the struct grow */
	void *user;  /* the first argument of the function */
	/*
	 * Collective: recv, of nranks * nbytes, gets the send of every rank, in rank order.
	 * 0, or a negative code; te_fail(3) records its message.
	 */
	int (*allgather)(void *user, const void *send, void *recv, size_t nbytes);
};
#define TE_COMM_BOOTSTRAP_INIT { sizeof(struct te_comm_bootstrap), 0, 0 }

struct te_comm_opts {
	size_t size;	    /* set by the INIT macro; lets the struct grow */
	const char *name;   /* in messages; NULL: "comm" */
	int32_t rank;	    /* 0 to nranks - 1 */
	int32_t nranks;	    /* 0: rank and nranks are those of the environment */
	int32_t timeout_ms; /* of each exchange between ranks; 0: TE_COMM_TIMEOUT_MS */
	uint32_t flags;	    /* none yet: 0 */
	/* how the ranks meet: one of both, or the environment says it */
	const struct te_comm_id *id;
	const struct te_comm_bootstrap *bootstrap;
	uint64_t pool_nbytes; /* symmetric memory of each rank, equal on all; 0: TE_COMM_POOL */
};
#define TE_COMM_OPTS_INIT { sizeof(struct te_comm_opts), 0, 0, 0, 0, 0, 0, 0, 0 }

/**
 * te_comm_id_create - where the ranks of a communicator can meet, over TCP
 * @ret_id:   names the communicator; for one te_comm_create() on each rank
 * @ret_root: answers the ranks, on a thread, until it is released
 *
 * One process calls it, and gives the id to all ranks: it is bytes that can be copied, or a text.
 * That process need not be a rank. It keeps the root until all ranks have created the communicator,
 * so a rank releases it after its own te_comm_create().
 * Thread: any.  Errors: -ENOMEM, -ENODEV (no network interface), errno values of sockets.
 */
TE_EXPORT int te_comm_id_create(struct te_comm_id *ret_id, struct te_comm_root **ret_root);
/* NULL; ranks that have not met by then fail */
TE_EXPORT struct te_comm_root *te_comm_root_unref(struct te_comm_root *root);

#define TE_COMM_ID_TEXT 512
/* the id as a text such as "te1:6b1f..:40001:10.0.0.5,2001:db8::5"; and back.
 * -EINVAL: not an id, or nbytes is less than its length and a 0 */
TE_EXPORT int te_comm_id_format(const struct te_comm_id *id, char *ret_text, size_t nbytes);
TE_EXPORT int te_comm_id_parse(const char *text, struct te_comm_id *ret_id);

/**
 * te_comm_create - join the other ranks
 * @ctx:      the device of this rank; the communicator keeps a reference
 * @opts:     NULL: rank and nranks, and how the ranks meet, are those of the environment
 * @ret_comm: the communicator, with one reference
 *
 * Collective: returns after all ranks have called it. An id or a bootstrap is used if there is one.
 * Otherwise, and unless nranks is 1, the environment decides: TE_COMM_ID; TE_COMM_DIR, which
 * te_run(1) sets; PMIx, by which mpirun and srun start programs; if there is none of them, there is
 * one rank, and TE_COMM_NRANKS is at most 1.
 *
 * Thread: any; a communicator by one thread at a time, but for te_comm_abort().
 * Errors: -EINVAL, -ENOMEM, -ETIMEDOUT (the error message names the ranks that have not arrived),
 * -TE_EPEER (a rank has ended), -TE_EMISMATCH (ranks do not agree: on their number, on versions, on
 * backends, a rank twice), -TE_EABORT, and errno values of sockets and files.
 */
TE_EXPORT int te_comm_create(struct te_ctx *ctx, const struct te_comm_opts *opts,
			     struct te_comm **ret_comm);
TE_EXPORT struct te_comm *te_comm_ref(struct te_comm *comm);
/**
 * te_comm_split - divide the ranks into groups, each with a communicator of its own
 * @comm:     stays as it is, and may be released before the groups
 * @color:    0 or more: ranks that give the same are a group
 * @key:      ranks of a group are in the order of their keys, equal ones in that of comm
 * @opts:     name (NULL: that of comm and the color), timeout_ms and pool_nbytes; others are 0.
 *            NULL: defaults
 * @ret_comm: the communicator of this rank's group, with one reference
 *
 * Collective: all ranks of comm call it. The ranks of a group meet over TCP, within 10 seconds or
 * the time-out, whichever is less.
 * Errors: -EINVAL (on all ranks, if a color is negative), -ENODEV (no network interface), and those
 * of te_comm_create().
 */
TE_EXPORT int te_comm_split(struct te_comm *comm, int32_t color, int32_t key,
			    const struct te_comm_opts *opts, struct te_comm **ret_comm);
/**
 * te_comm_launch_device - a device for this process, before it has a context or a communicator
 * @backend: as in te_ctx_opts
 *
 * Its index is the local rank, which launchers put into the environment (te_run, and mpirun of
 * Open MPI, srun and mpiexec of MPICH), modulo the number of devices; 0 without a launcher.
 * Thread: any.
 */
TE_EXPORT int te_comm_launch_device(const char *backend);

/* 1: the environment names ranks, one or more: te_comm_create() without options would join them;
 * 0: it would find one rank */
TE_EXPORT int te_comm_launched(void);

/* peers that still want to communicate fail: -TE_EPEER */
TE_EXPORT struct te_comm *te_comm_unref(struct te_comm *comm);

TE_EXPORT int te_comm_rank(const struct te_comm *comm);
TE_EXPORT int te_comm_nranks(const struct te_comm *comm);

/* What ranks know of their group after te_comm_create(). */
struct te_comm_info {
	size_t size; /* set by the INIT macro; lets the struct grow */
	int32_t rank, nranks;
	/* a node: ranks that share memory; numbered in the order of their lowest ranks */
	int32_t node, nnodes;
	int32_t local_rank, nlocal; /* within the node */
	char name[64];
	char bootstrap[16]; /* how the ranks met: callback, id, dir, pmix, single */
	char transport[16]; /* between nodes: fabric, verbs, tcp; "": there is one node */
};
#define TE_COMM_INFO_INIT { sizeof(struct te_comm_info), 0, 0, 0, 0, 0, 0, { 0 }, { 0 }, { 0 } }
/* ret_info initialised by TE_COMM_INFO_INIT; -EINVAL else */
TE_EXPORT int te_comm_info(const struct te_comm *comm, struct te_comm_info *ret_info);

/**
 * te_comm_abort - give up, and tell all ranks
 * @why: for their messages, or NULL
 *
 * What other ranks and threads wait for in this communicator returns -TE_EABORT, and so does all
 * that they do with it later. Call it from any thread, before te_comm_unref().
 */
TE_EXPORT void te_comm_abort(struct te_comm *comm, const char *why);

struct te_comm_recover_opts {
	size_t size;	      /* set by the INIT macro; lets the struct grow */
	int32_t timeout_ms;   /* for ranks to arrive; 0: the time-out of the communicator */
	uint32_t flags;	      /* none yet: 0 */
	uint64_t pool_nbytes; /* of the new communicator, equal on all ranks; 0: as before */
};
#define TE_COMM_RECOVER_OPTS_INIT { sizeof(struct te_comm_recover_opts), 0, 0, 0 }

/**
 * te_comm_recover - after a failure, a new communicator of the ranks that are left
 * @comm:      if it has not failed, it does now, with -TE_EABORT on all ranks
 * @opts:      NULL: defaults
 * @ret_ranks: NULL, or room for te_comm_nranks(comm) numbers: which rank of comm each rank of the
 *             new communicator was, in ascending order
 * @ret_comm:  the new communicator, with one reference
 *
 * Collective, but for ranks that have ended or released comm: it returns when each other rank has
 * called it, or the time-out of one that has called it passes. A rank that has not called by then
 * is left out, and gets -TE_ESTATE when it calls. Ranks then meet again: nothing that
 * te_comm_create() was given is used. All ranks that succeed have the same ranks. On several nodes
 * they are more than half of those that have not ended, or half with the lowest.
 *
 * comm remains, failed, with its memory, until its references are released. After other failures
 * than -TE_ESTATE the ranks may call again.
 *
 * Thread: as te_comm_create().
 * Errors: -EINVAL, -TE_ESTATE (this rank was left out, or has recovered comm before), -TE_EABORT
 * (another rank could not create the new communicator), -ETIMEDOUT (too few ranks have called), and
 * those of te_comm_create().
 */
TE_EXPORT int te_comm_recover(struct te_comm *comm, const struct te_comm_recover_opts *opts,
			      int32_t *ret_ranks, struct te_comm **ret_comm);

/**
 * te_comm_alloc - symmetric memory: every rank of the node maps that of the others
 * @nbytes:  above 0, equal on all ranks
 * @ret_ptr: device memory, aligned to 512 bytes, from 2 MiB on to 2 MiB within the pool
 *
 * Collective: all ranks make the same calls of te_comm_alloc(), te_comm_tensor_create() and
 * te_comm_reclaim() in the same order. Blocks then have the same offset on all ranks, so
 * te_comm_peer_ptr() is an addition.
 * Memory: undefined until written.
 * Stream: synchronous; ranks wait for each other only if freed memory has to be reclaimed.
 * Errors: -EINVAL, -ENOMEM (on all ranks; the error message has the sizes), -EBUSY (memory has to
 * be reclaimed, and this thread is capturing), -TE_EPEER, -TE_EMISMATCH, -TE_EABORT, -ETIMEDOUT.
 */
TE_EXPORT int te_comm_alloc(struct te_comm *comm, size_t nbytes, void **ret_ptr);
/*
 * Frees it on this rank, not collectively: it is used again when all ranks have freed it and called
 * te_comm_reclaim(), which te_comm_alloc() does when memory is short. Work that was queued before
 * may use it. Any thread. NULL is ignored. -EINVAL: no block begins at ptr.
 */
TE_EXPORT int te_comm_free(struct te_comm *comm, void *ptr);

/**
 * te_comm_tensor_create - a tensor on symmetric memory
 * @dtype: any but FP8, which has scales
 *
 * Collective, as te_comm_alloc() is. The memory is freed with the last reference, which any thread
 * may drop, in any order; the tensor keeps the communicator.
 * Errors: those of te_comm_alloc, -TE_EDTYPE.
 */
TE_EXPORT int te_comm_tensor_create(struct te_comm *comm, enum te_dtype dtype, int ndim,
				    const int64_t *shape, struct te_tensor **ret_t);

/* where this rank sees a rank's memory of the same offset as ptr; NULL if that rank is on another
 * node, or ptr is not symmetric memory of this rank */
TE_EXPORT void *te_comm_peer_ptr(const struct te_comm *comm, const void *ptr, int rank);

/* collective: waits for the work of the context, and for all ranks; then blocks that all ranks have
 * freed are available */
TE_EXPORT int te_comm_reclaim(struct te_comm *comm);

/* The pool of this rank. */
struct te_comm_memory {
	size_t size;		 /* set by the INIT macro; lets the struct grow */
	uint64_t pool_nbytes;	 /* of each rank */
	uint64_t used_nbytes;	 /* of blocks, rounded up to 512 bytes, freed ones included */
	uint64_t peak_nbytes;	 /* the largest used_nbytes so far */
	uint64_t freed_nbytes;	 /* freed, and not reclaimed yet */
	uint64_t largest_nbytes; /* the largest block that fits without reclaiming */
	uint64_t nblocks;
	uint64_t nallocs;	 /* so far */
	uint64_t nreclaims;	 /* so far */
	void *base;		 /* of the pool; offsets count from here */
	int32_t npeers;		 /* other ranks of the node, whose pools are mapped */
};
#define TE_COMM_MEMORY_INIT { sizeof(struct te_comm_memory), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
/* ret_memory initialised by TE_COMM_MEMORY_INIT; -EINVAL else */
TE_EXPORT int te_comm_memory(const struct te_comm *comm, struct te_comm_memory *ret_memory);

/* A way by which ranks can share memory, or exchange messages between nodes. */
struct te_transport_info {
	size_t size; /* set by the INIT macro; lets the struct grow */
	char name[16];	  /* memory: fd, fabric, nvls; messages: verbs, tcp */
	int32_t available; /* 1, or 0 with the reason below */
	char reason[256];
};
#define TE_TRANSPORT_INFO_INIT { sizeof(struct te_transport_info), { 0 }, 0, { 0 } }

/**
 * te_transport_count, te_transport_info - how memory of a context's device can be shared, and how
 * nodes can be connected
 * @index:    below te_transport_count()
 * @ret_info: initialised by TE_TRANSPORT_INFO_INIT
 *
 * Each transport is tried: "fabric" creates 2 MiB of memory, and exports and imports it.
 * "gpudirect" tells whether RDMA devices can be given memory of a GPU.
 * Errors: -EINVAL.
 */
TE_EXPORT int te_transport_count(void);
TE_EXPORT int te_transport_info(struct te_ctx *ctx, int index, struct te_transport_info *ret_info);

/**
 * te_transport_measure - time messages between ranks 0 and 1 by a transport between nodes
 * @comm:      of two ranks or more; the two may be on one node
 * @transport: "verbs" or "tcp", equal on all ranks, as the other arguments are
 * @nbytes:    of a message
 * @depth:     0: round trips; else messages from rank 0 to rank 1 that are sent at once, at most 64
 * @niters:    how many samples, the first ones of which are slower
 * @ret_us:    niters samples of this rank: half a round trip, or depth messages and an empty answer
 *
 * Collective: all ranks of the communicator call it; those above 1 get zeros. Messages are in host
 * memory, and are compared with what was sent.
 * Errors: -EINVAL, -ENOMEM, -TE_ECORRUPT (a message is wrong), on all ranks -ENODEV and other codes
 * with which a transport cannot be opened, -TE_EPEER, -ETIMEDOUT, -TE_EABORT.
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
