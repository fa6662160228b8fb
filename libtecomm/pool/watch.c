/* watch.c - a thread that watches the bootstrap, see watch.h. */
#define TE_LOG_CATEGORY "comm/memory"
#include "config.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "libtecomm/meet/thread.h"
#include "libtecomm/pool/watch.h"

#define HOUR_NS INT64_C(3600000000000)

struct te__watch {
	struct te__boot *boot;
	struct te__pool *pool;
	void (*ended)(void *arg);
	void *arg;
	pthread_t thread;
	int stop_fd;
	atomic_bool stop;
};

static void *work(void *arg)
{
	struct te__watch *w = arg;
	char text[240];
	const char *why;
	int code, r = 0;

	while (!r && !atomic_load(&w->stop))
		r = te__boot_watch(w->boot, "te_comm", w->stop_fd, te__boot_now() + HOUR_NS);
	if (!r)
		return NULL;
	snprintf(text, sizeof(text), "%s", te_error_detail());
	why = te__boot_why(w->boot, &code);
	if (why)
		snprintf(text, sizeof(text), "%s", why);
	else
		te__boot_note(w->boot, r, "%s", text);
	te__pool_abort(w->pool, why ? code : r, text);
	if (w->ended)
		w->ended(w->arg);
	return NULL;
}

int te__watch_start(struct te__boot *boot, struct te__pool *pool, void (*ended)(void *arg),
		    void *arg, struct te__watch **ret_watch)
{
	struct te__watch *w = te__calloc(1, sizeof(*w));
	int r;

	if (!w)
		return te__fail(-ENOMEM, "te_comm_create: no memory to watch other nodes");
	w->boot = boot;
	w->pool = pool;
	w->ended = ended;
	w->arg = arg;
	w->stop_fd = te__fault_point() ? -1 : eventfd(0, EFD_CLOEXEC);
	r = w->stop_fd < 0 ? te__fail(-EMFILE, "te_comm_create: eventfd: no descriptor") :
			     te__thread_start(&w->thread, work, w, "watch other nodes");
	if (r) {
		if (w->stop_fd >= 0)
			close(w->stop_fd);
		te__free(w);
		return r;
	}
	*ret_watch = w;
	return 0;
}

struct te__watch *te__watch_stop(struct te__watch *w)
{
	if (!w)
		return NULL;
	atomic_store(&w->stop, 1);
	te__thread_stop(w->thread, w->stop_fd);
	close(w->stop_fd);
	te__free(w);
	return NULL;
}
