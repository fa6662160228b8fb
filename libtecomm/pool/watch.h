/*
 * watch.h - a thread that watches the other ranks: a rank that fails, or ends without closing the
 * bootstrap, ends the communicator, also while this rank does not wait.
 */
#ifndef TE__WATCH_H
#define TE__WATCH_H

#include "libtecomm/meet/bootstrap.h"
#include "libtecomm/pool/pool.h"

struct te__watch;

int te__watch_create(struct te__boot *boot, struct te__pool *pool, struct te__watch **ret_watch);
/*
 * Watches the process of a rank of this node too, because a child of it may have copies of its
 * sockets, which then do not end with it. pid: 0 or this process: nothing is done.
 */
void te__watch_process(struct te__watch *watch, int32_t local, int pid);
int te__watch_start(struct te__watch *watch);
/* set a function that the thread calls after the communicator has been ended, or NULL; if it has
 * been ended already, this thread calls it */
void te__watch_set_ended(struct te__watch *watch, void (*ended)(void *arg), void *arg);
/* before the pool is destroyed; takes NULL, returns NULL */
struct te__watch *te__watch_stop(struct te__watch *watch);

#endif
