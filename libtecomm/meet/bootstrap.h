/*
 * bootstrap.h - how the ranks of a communicator find each other and exchange small messages:
 * addresses, handles, capabilities. Host only; payload of the transports does not pass here.
 *
 * A provider (a row of the table in boot.c: callbacks of the program, an id, a folder, PMIx)
 * tells each rank the addresses of the others, once. After that every pair of ranks has a stream
 * socket, so an exchange has a deadline, names the ranks that are missing, and sees in
 * milliseconds that a rank has ended.
 */
#ifndef TE__BOOTSTRAP_H
#define TE__BOOTSTRAP_H

#include <stddef.h>
#include <stdint.h>

#include <te/comm.h>
#include "libtecomm/meet/auth.h"
#include "libtecore/base/private.h"

struct te__boot;

/*
 * Blocks until all ranks have opened, or the deadline of the options has passed.
 * Errors: -EINVAL, -ENOMEM, -ETIMEDOUT, -TE_EPEER (a rank has ended), -TE_EMISMATCH (ranks do not
 * agree: on their number, a rank twice, versions), -TE_EABORT, errno values.
 */
int te__boot_open(const struct te_comm_opts *opts, struct te__boot **ret_boot);
/*
 * The same for ranks that were in a bootstrap together and have just agreed to open another one:
 * one that is missing has ended since, or stopped, and is waited for during te__boot_agreed_ms at
 * most. opts has the new rank and nranks. They meet by the id of opts, of te__id_split(); or as
 * te__boot_settle() has decided; or, all on one node, at the local sockets that each has had since
 * it opened `old`.
 */
struct te__boot_from {
	const struct te__boot *old;
	const int32_t *ranks; /* in old, of each new rank; NULL if te__boot_settle() has decided */
	const char *what;     /* they are going to do */
	/* equal on all, and not used for that before: the key is derived from it and that of old */
	uint8_t salt[TE__KEY_NBYTES];
};
int te__boot_reopen(const struct te__boot_from *from, const struct te_comm_opts *opts,
		    struct te__boot **ret_boot);
/*
 * An id for ranks of `of`, to be exchanged there: it does not have the key, which they derive, so
 * that it need not be kept secret.
 */
int te__id_split(const struct te__boot *of, struct te_comm_id *ret_id,
		 struct te_comm_root **ret_root);
extern _Thread_local int32_t te__boot_agreed_ms; /* 10 s; tests have less */
/* takes NULL, returns NULL; peers in an exchange fail with a message that names this rank */
struct te__boot *te__boot_close(struct te__boot *boot);

/*
 * Which ranks are in the bootstrap that follows this one, where te__boot_settles() tells that this
 * is decided by messages (lineage.h). The ranks, in their order, are ret_rank[0] and so on, of
 * which there is room for all; returns their number.
 */
int te__boot_settles(const struct te__boot *boot);
int32_t te__boot_settle(struct te__boot *boot, int64_t deadline_ns, int32_t *ret_rank);

int32_t te__boot_rank(const struct te__boot *boot);
int32_t te__boot_nranks(const struct te__boot *boot);
const char *te__boot_provider(const struct te__boot *boot);

/*
 * Collective: recv, of nranks * nbytes, gets every rank's send, in rank order; send may be
 * recv + rank * nbytes. All ranks call with equal nbytes, at most TE__BOOT_MOST, and equal `what`,
 * a few words for messages such as "exchange of pool handles"; -TE_EMISMATCH names the rank that
 * differs. deadline_ns: of te__boot_now(); 0: te__boot_deadline(boot).
 * Any thread, concurrent calls wait for each other. After a failure each later call fails
 * with the same code and message: ranks can no longer know which exchange they are in.
 * recv is undefined on failure.
 */
#define TE__BOOT_MOST (1u << 24)
int te__boot_allgather(struct te__boot *boot, const void *send, void *recv, size_t nbytes,
		       const char *what, int64_t deadline_ns);

/* CLOCK_MONOTONIC */
int64_t te__boot_now(void);
/* of the options, or TE_COMM_TIMEOUT_MS */
int32_t te__boot_timeout_ms(const struct te__boot *boot);
/* now and this time-out */
int64_t te__boot_deadline(const struct te__boot *boot);

/*
 * Tells all peers that this rank gives up: their exchanges, now or later, fail with -TE_EABORT and
 * the reason, as this rank's do. Any thread, at any time until te__boot_close(), also while
 * another one is in an exchange. The first call counts.
 */
void te__boot_abort(struct te__boot *boot, const char *why);

/*
 * Waits until the deadline, or until wake_fd, unless it is -1, is readable, for what peers say
 * outside of exchanges. 0, or the failure: that a rank has aborted, or has ended without closing
 * the bootstrap. Other threads may be in exchanges.
 */
int te__boot_watch(struct te__boot *boot, const char *what, int wake_fd, int64_t deadline_ns);

/* that rank has closed the bootstrap, not after a failure, and te__boot_watch() has seen it */
int te__boot_has_closed(const struct te__boot *boot, int32_t rank);

/*
 * Records why this rank fails; the first call counts. Peers are told when it fails or closes. Any
 * thread.
 */
void te__boot_note(struct te__boot *boot, int code, const char *fmt, ...) TE_PRINTF(3, 4);

/* NULL, or the failure that is recorded, and its code */
const char *te__boot_why(const struct te__boot *boot, int *ret_code);

/* TE__KEY_NBYTES, equal on all ranks of a communicator, and no one else has them */
const uint8_t *te__boot_key(const struct te__boot *boot);

/*
 * A node is a set of ranks with one kernel and one network namespace, which can pass descriptors
 * to each other. Nodes are numbered in the order of their lowest ranks.
 */
int32_t te__boot_nnodes(const struct te__boot *boot);
/* for tests whose ranks are threads: TE_COMM_NODE of this one, unless it is NULL */
extern _Thread_local const char *te__boot_node_name;
int32_t te__boot_node(const struct te__boot *boot, int32_t rank);
int32_t te__boot_local_rank(const struct te__boot *boot, int32_t rank); /* within its node */
int32_t te__boot_nlocal(const struct te__boot *boot); /* ranks of this rank's node */
/* the rank that has local rank i there */
int32_t te__boot_local(const struct te__boot *boot, int32_t i);

/* "rank 3 (host nid17, pid 4711)", for messages; valid until te__boot_close() */
const char *te__boot_peer(const struct te__boot *boot, int32_t rank);

#endif
