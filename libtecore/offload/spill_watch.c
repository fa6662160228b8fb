/*
 * spill_watch.c - the thread that watches the I/O thread.
 *
 * The I/O thread ends every request in time, unless it does not return from a system call: the
 * kernel may block a caller on a drive that has failed. Streams and callers must not wait for it
 * then: this thread marks the engine as failed, and ends requests in place of the I/O thread.
 */
#define TE_LOG_CATEGORY "core/offload"
#include "config.h"

#include <errno.h>

#include "libtecore/base/base.h"
#include "libtecore/offload/spill_impl.h"

#define CHECKS 4 /* consecutive checks without progress, two for each time limit of a request */

/* there is work for the I/O thread */
static int has_work(const struct te__spill *s)
{
	return s->armed || s->first[0] || s->first[1];
}

void *te__spill_watch(void *arg)
{
	struct te__spill *s = arg;
	uint64_t seen = 0;
	int nstale = 0;

	pthread_mutex_lock(&s->lock);
	while (!s->gone && !s->quit && !s->dead) {
		const struct timespec t = te__spill_in_ns((int64_t)s->timeout_ms * 500000);

		pthread_cond_timedwait(&s->ended, &s->lock, &t);
		/* checks are counted, not time, because a stopped process may continue */
		nstale = has_work(s) && s->nloops == seen ? nstale + 1 : 0;
		seen = s->nloops;
		if (nstale < CHECKS || s->gone || s->dead)
			continue;
		s->dead = -ETIMEDOUT;
		te__log_error("spill: %s: the I/O thread does not return from %s: no further I/O",
			      s->dir, s->ops->name);
		te__spill_serve_dead(s);
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}
