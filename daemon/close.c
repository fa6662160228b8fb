/*
 * close.c - checks and closes descriptors that clients have sent; see ted.h.
 *
 * A client may send a file of a file system that it serves itself (FUSE), and that does not answer.
 * There fstat() and close() may block forever, and no signal ends them. So ted's main thread closes
 * only descriptors that the kernel alone serves. A thread for each other descriptor closes it, at
 * most MOST for a user at a time: then descriptors of the user are not received.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "daemon/ted.h"

#define MOST 8
#define CLOSE_STACK ((size_t)256 << 10)

struct ted_closing {
	struct ted_closing *next;
	uid_t uid;
	int fd;
	int started;	 /* 1: it has a thread */
	atomic_int over; /* 1: the thread or ted is done with it; the other one frees it */
};

int ted_stat(int fd, struct statx *st)
{
	/* cached attributes: a network or user-space file system does not query its server */
	return statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_BASIC_STATS, st);
}

int ted_in_spill(const struct ted *t, const struct statx *st)
{
	return S_ISREG(st->stx_mode) &&
	       makedev(st->stx_dev_major, st->stx_dev_minor) == t->spill_dev;
}

/* memory, a device, a file of spill space; or an anonymous inode, which has no type */
static int closes_at_once(const struct ted *t, int fd)
{
	struct statx st;

	if (ted_stat(fd, &st))
		return 0;
	/* only memory has seals */
	return !(st.stx_mode & S_IFMT) || S_ISCHR(st.stx_mode) || ted_in_spill(t, &st) ||
	       fcntl(fd, F_GET_SEALS) >= 0;
}

static void *close_it(void *arg)
{
	struct ted_closing *c = arg;

	(void)close(c->fd);
	if (atomic_exchange(&c->over, 1))
		free(c);
	return NULL;
}

/* a thread that is detached; 0 without one: it is tried again */
static int start(struct ted_closing *c)
{
	pthread_attr_t attr;
	pthread_t thread;
	int r;

	if (pthread_attr_init(&attr))
		return 0;
	r = pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	if (!r) /* enough for close(2) and free(3), independent of ulimit -s */
		r = pthread_attr_setstacksize(&attr, CLOSE_STACK);
	if (!r)
		r = pthread_create(&thread, &attr, close_it, c);
	pthread_attr_destroy(&attr);
	return !r;
}

/* number of the user's descriptors that are still being closed */
static int count(struct ted *t, uid_t uid)
{
	struct ted_closing **at = &t->closing;
	int n = 0;

	while (*at) {
		struct ted_closing *c = *at;

		if (atomic_load(&c->over)) {
			*at = c->next;
			free(c);
			continue;
		}
		if (!c->started)
			c->started = start(c);
		n += c->uid == uid;
		at = &c->next;
	}
	return n;
}

void ted_close(struct ted *t, uid_t uid, int fd)
{
	struct ted_closing *c;

	if (closes_at_once(t, fd)) {
		(void)close(fd);
		return;
	}
	c = calloc(1, sizeof(*c));
	if (!c) {
		ted_say_client("no memory: a descriptor of user %u stays open", (unsigned int)uid);
		return;
	}
	c->uid = uid;
	c->fd = fd;
	c->next = t->closing;
	t->closing = c;
	(void)count(t, uid);
}

int ted_close_refuses(struct ted *t, struct ted_client *c)
{
	struct msghdr h = { 0 };
	const int n = t->closing ? count(t, c->uid) : 0;

	/* MSG_CTRUNC without a control buffer: the next message has a descriptor */
	if (n < MOST || recvmsg(c->fd, &h, MSG_PEEK | MSG_DONTWAIT) < 0 ||
	    !(h.msg_flags & MSG_CTRUNC))
		return 0;
	ted_say_client("process %d, user %u: a descriptor is refused: %d of that user are not "
		       "closed, as their file systems do not answer", (int)c->pid,
		       (unsigned int)c->uid, n);
	/* the kernel drops the descriptor */
	(void)recv(c->fd, NULL, 0, MSG_DONTWAIT);
	ted_error(t, c, -EBUSY, "%d descriptors of user %u are not closed, as their file systems "
		  "do not answer", n, (unsigned int)c->uid);
	return 1;
}

void ted_close_end(struct ted *t)
{
	struct ted_closing *next;

	for (struct ted_closing *c = t->closing; c; c = next) {
		next = c->next;
		if (!c->started || atomic_exchange(&c->over, 1))
			free(c);
	}
}
