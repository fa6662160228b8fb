/*
 * bootstrap.h - the bootstrap, by which the ranks of a communicator find each other and exchange
 * small messages: addresses, handles, capabilities. Host only; it carries no payload of the
 * transports.
 *
 * A provider (a row of the table in boot.c: a callback of the program, an id, a folder, PMIx) gives
 * each rank the addresses of the others, once. After that every pair of ranks has a stream socket,
 * so an exchange has a deadline, names missing ranks, and detects within milliseconds that a rank
 * has ended.
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
 * te__boot_open() for ranks that are in a bootstrap together and have agreed to open another one:
 * waits te__boot_agreed_ms at most for a rank, because a missing one has ended or stopped. opts has
 * the new rank and nranks. Ranks meet by the id of opts, from te__id_split(); or as
 * te__boot_settle() has decided; or, all on one node, at the local sockets that each has had since
 * it opened `old`.
 */
struct te__boot_from {
	const struct te__boot *old;
	const int32_t *ranks; /* rank in old of each new rank; NULL if te__boot_settle() decided */
	const char *what;     /* the operation, for messages */
	/* equal on all ranks, never used before: the key is derived from it and the key of old */
	uint8_t salt[TE__KEY_NBYTES];
};
int te__boot_reopen(const struct te__boot_from *from, const struct te_comm_opts *opts,
		    struct te__boot **ret_boot);
/*
 * Creates an id for ranks of `of`, to be exchanged there. It does not contain the key, which they
 * derive, so it need not be secret.
 */
int te__id_split(const struct te__boot *of, struct te_comm_id *ret_id,
		 struct te_comm_root **ret_root);
extern _Thread_local int32_t te__boot_agreed_ms; /* 10 s; less in tests */
/* takes NULL, returns NULL; peers in an exchange fail with a message that names this rank */
struct te__boot *te__boot_close(struct te__boot *boot);

/*
 * te__boot_settle() decides by messages (lineage.h) which ranks are in the next bootstrap, if
 * te__boot_settles() returns 1. Writes the ranks in order to ret_rank, which has room for all, and
 * returns their number.
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
 * differs. deadline_ns: by te__boot_now(); 0: te__boot_deadline(boot).
 * Any thread, concurrent calls wait for each other. After a failure each later call fails
 * with the same code and message, because ranks may then be in different exchanges.
 * recv is undefined on failure.
 */
#define TE__BOOT_MOST (1u << 24)
int te__boot_allgather(struct te__boot *boot, const void *send, void *recv, size_t nbytes,
		       const char *what, int64_t deadline_ns);

/* CLOCK_MONOTONIC */
int64_t te__boot_now(void);
/*
 * For a wait for another process: the time to sleep after look k, from 0. It is 0 at first, when a
 * caller yields, then about an eighth of the time waited, from 50 us to 1.6 ms.
 */
int64_t te__boot_pause_ns(int k);
void te__boot_pause(int k); /* yields or sleeps for that time */
/* the time-out of the options, or TE_COMM_TIMEOUT_MS */
int32_t te__boot_timeout_ms(const struct te__boot *boot);
/* te__boot_now() plus the time-out */
int64_t te__boot_deadline(const struct te__boot *boot);

/*
 * Aborts: present and later exchanges of all peers and of this rank fail with -TE_EABORT and the
 * reason. Any thread, until te__boot_close(), also while another thread is in an exchange. The
 * first call counts.
 */
void te__boot_abort(struct te__boot *boot, const char *why);

/*
 * Waits for messages of peers outside exchanges, until the deadline, or until wake_fd, unless it is
 * -1, is readable. Returns 0, or the failure: a rank has aborted, or has ended without closing the
 * bootstrap. Other threads may be in exchanges.
 */
int te__boot_watch(struct te__boot *boot, const char *what, int wake_fd, int64_t deadline_ns);

/* 1: the rank closed the bootstrap without a failure, as te__boot_watch() has seen */
int te__boot_has_closed(const struct te__boot *boot, int32_t rank);

/*
 * Records the reason of this rank's failure, which peers get when it fails or closes. The first
 * call counts. Any thread.
 */
void te__boot_note(struct te__boot *boot, int code, const char *fmt, ...) TE_PRINTF(3, 4);
/* NULL, or the recorded failure, and its code */
const char *te__boot_why(const struct te__boot *boot, int *ret_code);
/* secret of TE__KEY_NBYTES, equal on all ranks of a communicator and known to them only */
const uint8_t *te__boot_key(const struct te__boot *boot);

/*
 * A node is a set of ranks with one kernel and one network namespace, which can pass descriptors
 * to each other. Nodes are numbered in the order of their lowest ranks.
 */
int32_t te__boot_nnodes(const struct te__boot *boot);
/* for tests whose ranks are threads: TE_COMM_NODE of this thread, unless it is NULL */
extern _Thread_local const char *te__boot_node_name;
int32_t te__boot_node(const struct te__boot *boot, int32_t rank);
int32_t te__boot_local_rank(const struct te__boot *boot, int32_t rank); /* within its node */
int32_t te__boot_nlocal(const struct te__boot *boot); /* ranks of this rank's node */
/* the rank with local rank i on this rank's node */
int32_t te__boot_local(const struct te__boot *boot, int32_t i);

/* "rank 3 (host nid17, pid 4711)", for messages; valid until te__boot_close() */
const char *te__boot_peer(const struct te__boot *boot, int32_t rank);

#endif
