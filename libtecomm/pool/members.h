/*
 * members.h - the decision which ranks of a failed communicator of one node are in its successor,
 * by compare-and-swap on words of its control page, so that no rank has to answer.
 *
 * A recovery consists of attempts, numbered from 1. A rank that calls *arrives* in an attempt k:
 * its word becomes 2 k. A rank that has ended, or has not arrived before the deadline of a rank
 * that has, is *left out*: its word becomes odd, and stays odd. Both change an even word below 2 k,
 * so only one of them happens. The attempt is closed when every rank has arrived or is left out.
 * Words only grow, so later readers find the same members: words of 2 k or more.
 *
 * The attempt succeeds or fails for all members alike. The first member that knows the outcome
 * changes it, from 2 (k - 1) to 2 k - 1 after a success and to 2 k after a failure. After a failure
 * there may be another attempt, after a success none: a communicator has one successor at most, and
 * ranks that are not in it cannot make another one.
 */
#ifndef TE__MEMBERS_H
#define TE__MEMBERS_H

#include "libtecomm/pool/control.h"

/* ranks of the node */
struct te__node_info {
	int nlocal;
	const char *const *name; /* [nlocal] names, for messages */
};

/*
 * Takes a lock on the control page, which shows that the rank lives: it ends when *ret_fd is closed
 * or the process ends. The functions below take it as `sign`, to test the locks of others. A forked
 * child keeps the lock too: such a rank is left out at the deadline.
 */
int te__members_sign(const struct te__node_info *info, int control_fd, int rank, int *ret_fd);

/*
 * Arrives, and returns when the attempt is closed, at the deadline at the latest. Errors:
 * -TE_ESTATE (this rank was left out before, or there is a successor), -TE_EABORT (the attempt has
 * failed on another rank).
 */
int te__members_settle(struct te__control *control, const struct te__node_info *info, int sign,
		       int rank, int64_t deadline_ns, uint32_t *ret_attempt);
/* 1: the rank is a member of the attempt; after te__members_settle() */
int te__members_has(const struct te__control *control, int rank, uint32_t attempt);
/* sets and returns the outcome of the attempt: success, unless it has failed on another rank */
int te__members_end(struct te__control *control, uint32_t attempt, int success);

/*
 * Declares that this rank's work has ended and it queues no more. Returns NULL when this holds for
 * all ranks that have not ended; at the deadline, the name of a rank for which it does not.
 */
const char *te__members_leave(struct te__control *control, const struct te__node_info *info,
			      int sign, int rank, int64_t deadline_ns);

#endif
