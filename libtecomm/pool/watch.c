/* watch.c - a thread that watches the other ranks, see watch.h. */
#define TE_LOG_CATEGORY "comm/memory"
#include "config.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "libtecomm/meet/thread.h"
#include "libtecomm/pool/watch.h"

#define HOUR_NS INT64_C(3600000000000)

struct te__watch {
	struct te__boot *boot;
	struct te__pool *pool;
	pthread_mutex_t lock; /* the next three */
	void (*ended)(void *arg);
	void *arg;
	bool has_ended;
	pthread_t thread;
	bool running;
	int stop_fd, epoll_fd; /* the latter: stop_fd and the processes of the node's ranks */
	atomic_bool stop;
	int32_t nlocal;
	int pidfd[]; /* [nlocal]; -1: none */
};

/* 0, or an error: a process of this node has ended, and its rank has not left before */
static int look(struct te__watch *w)
{
	struct epoll_event e;
	int32_t rank;

	if (atomic_load(&w->stop) || epoll_wait(w->epoll_fd, &e, 1, 0) < 1)
		return 0;
	if (e.data.fd < 0)
		return 0;
	epoll_ctl(w->epoll_fd, EPOLL_CTL_DEL, w->pidfd[e.data.fd], NULL);
	rank = te__boot_local(w->boot, e.data.fd);
	return te__pool_has_left(w->pool, rank) ? 0 : te__fail(-TE_EPEER, "%s has ended",
							       te__boot_peer(w->boot, rank));
}

static void *work(void *arg)
{
	struct te__watch *w = arg;
	char text[240];
	const char *why;
	int code, r = 0;

	while (!r && !atomic_load(&w->stop)) {
		r = te__boot_watch(w->boot, "te_comm", w->epoll_fd, te__boot_now() + HOUR_NS);
		if (!r)
			r = look(w);
	}
	if (!r)
		return NULL;
	snprintf(text, sizeof(text), "%s", te_error_detail());
	why = te__boot_why(w->boot, &code);
	if (why)
		snprintf(text, sizeof(text), "%s", why);
	else
		te__boot_note(w->boot, r, "%s", text);
	te__pool_abort(w->pool, why ? code : r, text);
	pthread_mutex_lock(&w->lock);
	w->has_ended = true;
	if (w->ended)
		w->ended(w->arg);
	pthread_mutex_unlock(&w->lock);
	return NULL;
}

static int add(struct te__watch *w, int fd, int32_t local)
{
	struct epoll_event e = { .events = EPOLLIN, .data.fd = local };

	return te__fault_point() ? (errno = ENOMEM, -1) :
				   epoll_ctl(w->epoll_fd, EPOLL_CTL_ADD, fd, &e);
}

int te__watch_create(struct te__boot *boot, struct te__pool *pool, struct te__watch **ret_watch)
{
	const int32_t n = te__boot_nlocal(boot);
	struct te__watch *w = te__calloc(1, sizeof(*w) + (size_t)n * sizeof(*w->pidfd));
	int r;

	if (!w)
		return te__fail(-ENOMEM, "te_comm_create: no memory to watch other ranks");
	w->boot = boot;
	w->pool = pool;
	w->nlocal = n;
	for (int32_t i = 0; i < n; i++)
		w->pidfd[i] = -1;
	pthread_mutex_init(&w->lock, NULL);
	w->stop_fd = te__fault_point() ? (errno = EMFILE, -1) : eventfd(0, EFD_CLOEXEC);
	w->epoll_fd = te__fault_point() ? (errno = EMFILE, -1) : epoll_create1(EPOLL_CLOEXEC);
	if (w->stop_fd < 0 || w->epoll_fd < 0 || add(w, w->stop_fd, -1)) {
		r = te__fail(-errno, "te_comm_create: watch other ranks: %s", strerror(errno));
		te__watch_stop(w);
		return r;
	}
	*ret_watch = w;
	return 0;
}

void te__watch_process(struct te__watch *w, int32_t local, int pid)
{
	if (pid == (int)getpid())
		return;
	w->pidfd[local] = te__pidfd(pid);
	if (w->pidfd[local] >= 0)
		(void)add(w, w->pidfd[local], local); /* its sockets are watched in any case */
}

int te__watch_start(struct te__watch *w)
{
	const int r = te__thread_start(&w->thread, work, w, "watch other ranks");

	w->running = !r;
	return r;
}

void te__watch_set_ended(struct te__watch *w, void (*ended)(void *arg), void *arg)
{
	pthread_mutex_lock(&w->lock);
	w->ended = ended;
	w->arg = arg;
	if (w->has_ended && ended)
		ended(arg);
	pthread_mutex_unlock(&w->lock);
}

struct te__watch *te__watch_stop(struct te__watch *w)
{
	if (!w)
		return NULL;
	atomic_store(&w->stop, 1);
	if (w->running)
		te__thread_stop(w->thread, w->stop_fd);
	for (int32_t i = 0; i < w->nlocal; i++)
		if (w->pidfd[i] >= 0)
			close(w->pidfd[i]);
	if (w->stop_fd >= 0)
		close(w->stop_fd);
	if (w->epoll_fd >= 0)
		close(w->epoll_fd);
	pthread_mutex_destroy(&w->lock);
	te__free(w);
	return NULL;
}
