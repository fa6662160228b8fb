/*
 * pass.h - file descriptors that the ranks of a node pass to each other.
 *
 * Each rank connects to the local socket that each other rank has had since it opened the bootstrap
 * (local.h), sends one message with its descriptors, and closes the connection. No rank waits for
 * another one to accept, so the order of ranks does not matter. A message has a proof that its
 * sender knows the key of the communicator and is in the same call; others are ignored, since
 * messages of a failed call may still be queued. Both ends check the user of the other one, since
 * the name of a rank that has ended is free for any process.
 */
#ifndef TE__PASS_H
#define TE__PASS_H

#include "libtecomm/meet/bootstrap.h"

#define TE__PASS_MOST 4 /* descriptors of a rank */

/* receives the descriptors of another rank, which stay the caller's; local: its local rank; pid:
 * its process id here, or 0 */
typedef int te__pass_fn(void *arg, int32_t local, int pid, const int *fd, int nfds);

/*
 * Collective among the ranks of a node, which have a deadline each. code: 0, or the error of this
 * rank, whose message the other ranks get without descriptors. Calls take() for each other rank.
 * Returns code or the first error, with a message: of take(); -TE_EPEER (a rank has an error, or
 * has ended); -ETIMEDOUT; errno values. An exchange with a verdict should follow (agree.h).
 */
int te__pass(struct te__boot *boot, int code, const int *fd, int nfds, te__pass_fn *take, void *arg,
	     int64_t deadline_ns);

#endif
