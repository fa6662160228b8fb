/* te/comm.h - communicators: the ranks of a parallel program, and how they find each other. */
#ifndef TE_COMM_H
#define TE_COMM_H

#include <stddef.h>
#include <stdint.h>

#include <te/export.h>

TE_BEGIN_DECLS

struct te_comm; /* opaque, reference counted */

/* names a communicator that is to be, and where its ranks meet; may be copied between processes */
struct te_comm_id {
	uint8_t bytes[128];
};

/*
 * A function of the program by which ranks exchange bytes, for programs that have one already, as
 * MPI programs have MPI_Allgather. te_comm_create() calls it from the calling thread, a fixed
 * number of times, and nothing calls it afterwards.
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
};
#define TE_COMM_OPTS_INIT { sizeof(struct te_comm_opts), 0, 0, 0, 0, 0, 0, 0 }

/**
 * te_comm_version - the version of the libtecomm that runs, as "0.1.0"
 *
 * Thread: any thread.
 * Since:  0.1
 */
TE_EXPORT const char *te_comm_version(void);

TE_END_DECLS

#endif
