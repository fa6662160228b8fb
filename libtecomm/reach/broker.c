/* broker.c - the broker of a node, see broker.h: one thread that polls all connections. */
#define TE_LOG_CATEGORY "comm/broker"
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "libtecomm/meet/thread.h"
#include "libtecomm/reach/broker.h"
#include "libtecore/base/private.h"

#define STRANGERS 8 /* connections that have not sent HELLO, in addition to the ranks */

struct conn {
	int fd;	   /* -1: unused */
	int pidfd; /* pidfd of the process; -1 if the kernel does not support it */
	int rank;  /* -1 before HELLO */
	int waits; /* 1: for item */
	uint32_t item;
	nfds_t poll; /* index of its two entries */
};

struct item {
	uint32_t item;
	uint64_t nbytes;
	int fd; /* -1: fetched by all */
	int nfetched;
};

struct te__broker {
	struct te__node_info info;
	int listen, stop, spare, control_fd;
	struct te__control *control;
	pthread_t thread;
	struct conn *conn;
	struct pollfd *poll;
	int nconn;
	struct item *item;
	int nitems, max_items;
};

static struct conn *conn_of(struct te__broker *b, int rank)
{
	for (int i = 0; i < b->nconn; i++)
		if (b->conn[i].fd >= 0 && b->conn[i].rank == rank)
			return &b->conn[i];
	return NULL;
}

static void conn_close(struct conn *c)
{
	close(c->fd);
	if (c->pidfd >= 0)
		close(c->pidfd);
	*c = (struct conn){ .fd = -1, .pidfd = -1, .rank = -1 };
}

static struct te__wire message(enum te__wire_kind kind)
{
	return (struct te__wire){ .magic = TE__WIRE_MAGIC, .kind = kind };
}

static void fail_waiters(struct te__broker *b);

/* a rank that leaves without BYE, or because of an error, aborts the others */
static void drop(struct te__broker *b, struct conn *c, int code, const char *how)
{
	const int rank = c->rank;
	char text[sizeof(b->control->reason)];

	conn_close(c);
	if (rank < 0)
		return;
	snprintf(text, sizeof(text), "%s %s", b->info.name[rank], how);
	te__control_abort(b->control, code, text);
	fail_waiters(b);
}

static void ended(struct te__broker *b, struct conn *c)
{
	drop(b, c, -TE_EPEER, "has ended");
}

static void reply(struct te__broker *b, struct conn *c, int code, const char *text,
		  uint64_t nbytes, int fd)
{
	struct te__wire m = message(TE__WIRE_REPLY);

	m.code = code;
	m.nbytes = nbytes;
	snprintf(m.text, sizeof(m.text), "%s", text);
	c->waits = 0;
	/* a client has one request at a time: its socket has room unless it is broken */
	if (te__wire_send(c->fd, &m, NULL, 0, fd))
		ended(b, c);
}

/* 1, after the reply: the ranks have failed already */
static int refuse_aborted(struct te__broker *b, struct conn *c)
{
	int code;
	const char *why = te__control_why(b->control, &code);

	if (why)
		reply(b, c, code, why, 0, -1);
	return why != NULL;
}

static void fail_waiters(struct te__broker *b)
{
	for (int i = 0; i < b->nconn; i++)
		if (b->conn[i].fd >= 0 && b->conn[i].waits)
			(void)refuse_aborted(b, &b->conn[i]);
}

/* requests */

_Static_assert(TE__WIRE_KEY_NBYTES == TE__KEY_NBYTES, "a proof has room");

void te__broker_proof(const struct te__node_info *info, uint32_t rank,
		      uint8_t ret_proof[TE__WIRE_KEY_NBYTES])
{
	te__key_derive(info->key, "broker", &rank, sizeof(rank), ret_proof);
}

static int hello(struct te__broker *b, struct conn *c, const struct te__wire *m)
{
	uint8_t proof[TE__WIRE_KEY_NBYTES];

	te__broker_proof(&b->info, m->rank, proof);
	if (memcmp(m->key, proof, sizeof(proof)))
		return te__fail(-TE_EMISMATCH, "HELLO has the key of another communicator");
	if (m->rank >= (uint32_t)b->info.nlocal)
		return te__fail(-TE_EMISMATCH, "HELLO of local rank %u, but there are %d",
				(unsigned int)m->rank, b->info.nlocal);
	if (c->rank >= 0 || conn_of(b, (int)m->rank))
		return te__fail(-TE_EMISMATCH, "%s says HELLO twice", b->info.name[m->rank]);
	c->rank = (int)m->rank;
	reply(b, c, 0, "", TE__CONTROL_NBYTES, b->control_fd);
	return 0;
}

static struct item *item_of(struct te__broker *b, uint32_t item)
{
	for (int i = 0; i < b->nitems; i++)
		if (b->item[i].item == item)
			return &b->item[i];
	return NULL;
}

static void give(struct te__broker *b, struct conn *c, struct item *it)
{
	reply(b, c, 0, "", it->nbytes, it->fd);
	if (++it->nfetched < b->info.nlocal - 1)
		return;
	close(it->fd);
	it->fd = -1;
}

/* the broker owns fd if this returns 0 */
static int publish(struct te__broker *b, struct conn *c, const struct te__wire *m, int fd)
{
	struct item *it;

	if (fd < 0)
		return te__fail(-EPROTO, "PUBLISH of item %u without a file descriptor",
				(unsigned int)m->item);
	if (item_of(b, m->item) || b->nitems == b->max_items)
		return te__fail(-EPROTO, "PUBLISH of item %u: %s", (unsigned int)m->item,
				item_of(b, m->item) ? "it is published already" :
						      "there are too many");
	it = &b->item[b->nitems++];
	*it = (struct item){ .item = m->item, .nbytes = m->nbytes, .fd = fd };
	reply(b, c, 0, "", 0, -1);
	for (int i = 0; i < b->nconn && it->fd >= 0; i++)
		if (b->conn[i].fd >= 0 && b->conn[i].waits && b->conn[i].item == it->item)
			give(b, &b->conn[i], it);
	return 0;
}

static int fetch(struct te__broker *b, struct conn *c, const struct te__wire *m)
{
	struct item *it = item_of(b, m->item);

	if (it && it->fd < 0)
		return te__fail(-EPROTO, "FETCH of item %u, which all ranks have fetched",
				(unsigned int)m->item);
	c->waits = 1;
	c->item = m->item;
	if (it)
		give(b, c, it);
	return 0;
}

/* 0, or the code of a client that breaks the protocol, with a message; *fd is -1 if it was kept */
static int serve(struct te__broker *b, struct conn *c, const struct te__wire *m, int *fd)
{
	int r;

	if (c->rank < 0 && m->kind != TE__WIRE_HELLO)
		return te__fail(-EPROTO, "message %u before HELLO", (unsigned int)m->kind);
	if (m->kind != TE__WIRE_BYE && refuse_aborted(b, c))
		return 0;
	switch (m->kind) {
	case TE__WIRE_HELLO:
		return hello(b, c, m);
	case TE__WIRE_PUBLISH:
		r = publish(b, c, m, *fd);
		if (!r)
			*fd = -1;
		return r;
	case TE__WIRE_FETCH:
		return fetch(b, c, m);
	case TE__WIRE_BYE:
		if (m->code)
			drop(b, c, -TE_EABORT, m->text);
		else
			conn_close(c);
		return 0;
	default:
		return te__fail(-EPROTO, "message %u is unknown", (unsigned int)m->kind);
	}
}

/* read until there is no more data */
static void read_conn(struct te__broker *b, struct conn *c)
{
	struct te__wire m;
	char how[224];
	int r, fd;

	while (c->fd >= 0) {
		fd = -1;
		r = te__wire_recv(c->fd, &m, NULL, &fd);
		if (r == -EAGAIN)
			return;
		if (!r) {
			ended(b, c);
			return;
		}
		if (r > 0)
			r = serve(b, c, &m, &fd);
		if (fd >= 0)
			close(fd);
		if (r >= 0)
			continue;
		snprintf(how, sizeof(how), "broke the protocol of the broker: %s",
			 te_error_detail());
		te__log_warn("a client is refused: %s", te_error_detail());
		reply(b, c, r, te_error_detail(), 0, -1);
		if (c->fd >= 0)
			drop(b, c, -TE_EPEER, how);
	}
}

/* connections */

static void refuse(int fd, int code, const char *why)
{
	struct te__wire m = message(TE__WIRE_REPLY);

	te__log_warn("a connection is refused: %s", why);
	if (fd < 0)
		return;
	m.code = code;
	snprintf(m.text, sizeof(m.text), "%s", why);
	(void)te__wire_send(fd, &m, NULL, 0, -1);
	close(fd);
}

/* without a free descriptor the connection would stay, and poll() would always return */
static int accept_spare(struct te__broker *b)
{
	close(b->spare);
	refuse(accept4(b->listen, NULL, NULL, SOCK_CLOEXEC), -EMFILE,
	       "too many files are open in the process of the broker");
	b->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
	return -1;
}

static int accept_fd(struct te__broker *b, int *ret_pid)
{
	int fd = accept4(b->listen, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	int r;

	if (fd < 0)
		return errno == EMFILE || errno == ENFILE ? accept_spare(b) : -1;
	r = te__peer_check(fd, ret_pid);
	if (!r)
		return fd;
	refuse(fd, r, te_error_detail());
	return -1;
}

static void accept_one(struct te__broker *b)
{
	int pid = 0, fd = accept_fd(b, &pid);

	if (fd < 0)
		return;
	for (int i = 0; i < b->nconn; i++) {
		struct conn *c = &b->conn[i];

		if (c->fd >= 0)
			continue;
		*c = (struct conn){ .fd = fd, .rank = -1 };
		/*
		 * A child of the process may have a copy of the socket, so that the connection
		 * does not end with the process.
		 */
		c->pidfd = te__pidfd(pid);
		return;
	}
	refuse(fd, -EBUSY, "the broker has too many connections");
}

static void *work(void *arg)
{
	struct te__broker *b = arg;
	const struct te__wire bye = message(TE__WIRE_BYE);
	struct pollfd *p = b->poll;

	for (;;) {
		nfds_t n = 2;

		p[0] = (struct pollfd){ .fd = b->stop, .events = POLLIN };
		p[1] = (struct pollfd){ .fd = b->listen, .events = POLLIN };
		/* connections only: poll() takes no more entries than a process may have files */
		for (int i = 0; i < b->nconn; i++) {
			b->conn[i].poll = n;
			if (b->conn[i].fd < 0)
				continue;
			p[n++] = (struct pollfd){ .fd = b->conn[i].fd, .events = POLLIN };
			p[n++] = (struct pollfd){ .fd = b->conn[i].pidfd, .events = POLLIN };
		}
		if (poll(p, n, -1) < 0) {
			/* do not retry without a pause if the limit of files is reached */
			if (errno != EINTR)
				nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
			continue;
		}
		if (p[0].revents)
			break;
		for (int i = 0; i < b->nconn; i++) {
			struct conn *c = &b->conn[i];
			const struct pollfd *at = &p[c->poll];
			const int ends = c->fd >= 0 && c->pidfd >= 0 && at[1].revents;

			if (c->fd >= 0 && (at[0].revents || ends))
				read_conn(b, c);
			/* messages sent before it ended have been read */
			if (c->fd >= 0 && ends)
				ended(b, c);
		}
		if (p[1].revents)
			accept_one(b);
	}
	for (int i = 0; i < b->nconn; i++)
		if (b->conn[i].fd >= 0)
			(void)te__wire_send(b->conn[i].fd, &bye, NULL, 0, -1);
	return NULL;
}

/* start and stop */

static void close_fd(int fd)
{
	if (fd >= 0)
		close(fd);
}

static void destroy(struct te__broker *b)
{
	for (int i = 0; b->conn && i < b->nconn; i++)
		if (b->conn[i].fd >= 0)
			conn_close(&b->conn[i]);
	for (int i = 0; i < b->nitems; i++)
		close_fd(b->item[i].fd);
	close_fd(b->listen);
	close_fd(b->stop);
	close_fd(b->spare);
	close_fd(b->control_fd);
	te__control_unmap(b->control);
	te__free(b->item);
	te__free(b->poll);
	te__free(b->conn);
	te__free(b);
}

static int listen_on(struct te__broker *b)
{
	int r = te__local_listen(SOCK_SEQPACKET, b->info.nlocal + STRANGERS, &b->listen,
				 b->info.at);

	return r ? te__fail(r, "the broker of the node: a local socket: %s", strerror(-r)) : 0;
}

static int prepare(struct te__broker *b)
{
	const size_t n = (size_t)b->nconn;

	b->conn = te__malloc(n * sizeof(*b->conn));
	b->poll = te__malloc((2 + 2 * n) * sizeof(*b->poll));
	b->item = te__malloc((size_t)b->max_items * sizeof(*b->item));
	for (size_t i = 0; i < n && b->conn; i++)
		b->conn[i] = (struct conn){ .fd = -1, .pidfd = -1, .rank = -1 };
	if (!b->conn || !b->poll || !b->item)
		return te__fail(-ENOMEM, "no memory for a broker of %d ranks", b->info.nlocal);
	b->stop = te__fault_point() ? (errno = EMFILE, -1) : eventfd(0, EFD_CLOEXEC);
	if (b->stop < 0)
		return te__fail(-errno, "the broker of the node: eventfd: %s", strerror(errno));
	b->spare = te__fault_point() ? (errno = EMFILE, -1) :
				       open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (b->spare < 0)
		return te__fail(-errno, "the broker of the node: /dev/null: %s", strerror(errno));
	return 0;
}

int te__broker_start(const struct te__node_info *info, struct te__broker **ret_broker)
{
	struct te__broker *b = te__calloc(1, sizeof(*b));
	int r;

	if (!b)
		return te__fail(-ENOMEM, "no memory for a broker");
	b->info = *info;
	b->listen = b->stop = b->spare = b->control_fd = -1;
	b->nconn = info->nlocal + STRANGERS;
	b->max_items = 4 * info->nlocal;
	r = prepare(b);
	if (!r)
		r = te__control_create(info->nlocal, &b->control_fd);
	if (!r)
		r = te__control_map(b->control_fd, info->nlocal, &b->control);
	if (!r)
		r = listen_on(b);
	if (!r)
		r = te__thread_start(&b->thread, work, b, "the broker of the node");
	if (r) {
		destroy(b);
		return r;
	}
	*ret_broker = b;
	return 0;
}

struct te__broker *te__broker_stop(struct te__broker *b)
{
	if (!b)
		return NULL;
	te__thread_stop(b->thread, b->stop);
	destroy(b);
	return NULL;
}
