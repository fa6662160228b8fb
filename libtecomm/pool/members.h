/*
 * members.h - which ranks of a failed communicator are in the one that follows it. They agree by
 * compare-and-swap on words of its control page, so that no rank has to answer for that.
 *
 * A recovery consists of attempts, numbered from 1. A rank that calls *arrives* in an attempt k:
 * its word becomes 2 k. A rank that has ended, or has not arrived before the deadline of one that
 * has, is *left out*: its word becomes odd, and stays so. Both change an even word below 2 k, so
 * that one of them happens. The attempt is closed when every rank has arrived or is left out.
 * Words only grow, so whoever looks later finds the same members: words of 2 k or more.
 *
 * The attempt succeeds or fails for all members alike. The first of them to know changes the
 * outcome, from 2 (k - 1) to 2 k - 1 after a success and to 2 k after a failure. The next attempt
 * follows a failure, none a success: a communicator has one successor at most, and ranks that are
 * not in it cannot make another one.
 */
#ifndef TE__MEMBERS_H
#define TE__MEMBERS_H

#include "libtecomm/reach/broker.h"

/*
 * A lock on the control page, which ends when *ret_fd is closed or the process has ended. The
 * functions below take it as `sign`, to look at those of others. A child that was forked keeps it
 * too: such a rank is left out at the deadline.
 */
int te__members_sign(const struct te__node_info *info, int control_fd, int rank, int *ret_fd);

/*
 * Arrives, and returns when the attempt is closed, at the deadline at the latest. Errors:
 * -TE_ESTATE (this rank was left out before, or there is a successor), -TE_EABORT (the attempt has
 * failed on another rank).
 */
int te__members_settle(struct te__control *control, const struct te__node_info *info, int sign,
		       int rank, int64_t deadline_ns, uint32_t *ret_attempt);
/* after that */
int te__members_has(const struct te__control *control, int rank, uint32_t attempt);
/* the outcome of the attempt: success, unless it has failed on another rank before; or failure */
int te__members_end(struct te__control *control, uint32_t attempt, int success);

/*
 * This rank queues nothing more, and its work has ended. Returns NULL when this holds for all, or
 * they have ended; at the deadline, the name of a rank for which it does not.
 */
const char *te__members_leave(struct te__control *control, const struct te__node_info *info,
			      int sign, int rank, int64_t deadline_ns);

#endif
