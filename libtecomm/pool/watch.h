/*
 * watch.h - a thread that watches the bootstrap of ranks on several nodes: a rank that fails, or
 * ends without closing the bootstrap, ends the communicator, also while this rank does not wait.
 */
#ifndef TE__WATCH_H
#define TE__WATCH_H

#include "libtecomm/meet/bootstrap.h"
#include "libtecomm/pool/pool.h"

struct te__watch;

/* ended, unless it is NULL: called by the thread after the communicator has been ended */
int te__watch_start(struct te__boot *boot, struct te__pool *pool, void (*ended)(void *arg),
		    void *arg, struct te__watch **ret_watch);
/* before the pool is destroyed; takes NULL, returns NULL */
struct te__watch *te__watch_stop(struct te__watch *watch);

#endif
