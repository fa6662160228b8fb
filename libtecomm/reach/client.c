/* client.c - a rank's connection to the broker of its node, see broker.h. */
#define TE_LOG_CATEGORY "comm/broker"
#include "config.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "libtecomm/meet/bootstrap.h"
#include "libtecomm/meet/thread.h"
#include "libtecomm/reach/broker.h"
#include "libtecore/base/private.h"

struct te__client {
	struct te__node_info info;
	char who[200]; /* the broker, for messages */
	int rank;
	int sock, pidfd, stop;
	int watching;
	pthread_t thread;
	struct te__control *control;
};

/* one request and its reply; late: event that is missing at the deadline, for messages */
static int call(struct te__client *c, struct te__wire *m, int fd, int *ret_fd, const char *what,
		const char *late, int64_t deadline_ns)
{
	struct te__wire_call w = {
		.sock = c->sock, .who = c->who, .what = what, .late = late,
		.deadline_ns = deadline_ns, .fd = fd, .wants_fd = ret_fd != NULL,
	};
	int r;

	m->rank = (uint32_t)c->rank;
	r = te__wire_call(&w, m);
	if (!r && ret_fd)
		*ret_fd = w.ret_fd;
	return r;
}

static int dial(struct te__client *c, int64_t deadline_ns)
{
	struct sockaddr_un sa;
	const socklen_t len = te__local_address(c->info.at, &sa);
	int pid, r;

	c->sock = te__fault_point() ? (errno = EMFILE, -1) :
		  socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (c->sock < 0)
		return te__fail(-errno, "connect to the broker: socket: %s", strerror(errno));
	/* the broker listens already; EAGAIN: more clients connect at once than the queue holds */
	while (connect(c->sock, (struct sockaddr *)&sa, len)) {
		const struct timespec wait = { .tv_nsec = 1000000 };

		if (errno == EINTR)
			continue;
		if (errno == ECONNREFUSED)
			return te__fail(-TE_EPEER, "connect to the broker: %s has ended",
				       c->info.name[0]);
		if (errno != EAGAIN)
			return te__fail(-errno, "connect to the broker, %s: %s", c->info.name[0],
					strerror(errno));
		if (te__boot_now() > deadline_ns)
			return te__fail(-ETIMEDOUT, "connect to the broker, %s: its queue is full",
					c->info.name[0]);
		nanosleep(&wait, NULL);
	}
	r = te__peer_check(c->sock, &pid);
	if (!r)
		c->pidfd = te__pidfd(pid);
	return r;
}

int te__client_open(const struct te__node_info *info, int rank, int64_t deadline_ns,
		    struct te__client **ret_client, int *ret_fd)
{
	struct te__client *c = te__calloc(1, sizeof(*c));
	struct te__wire m = { .kind = TE__WIRE_HELLO };
	int fd = -1, r;

	if (!c)
		return te__fail(-ENOMEM, "no memory for a connection to the broker");
	c->info = *info;
	c->rank = rank;
	c->sock = c->pidfd = c->stop = -1;
	snprintf(c->who, sizeof(c->who), "%s, which is the broker of the node,", info->name[0]);
	te__broker_proof(info, (uint32_t)rank, m.key);
	r = dial(c, deadline_ns);
	if (!r)
		r = call(c, &m, -1, &fd, "HELLO to the broker", "it does not answer",
			 deadline_ns);
	if (!r)
		r = te__control_map(fd, info->nlocal, &c->control);
	if (fd >= 0 && (r || !ret_fd))
		close(fd);
	if (r) {
		te__client_close(c, r, te_error_detail());
		return r;
	}
	if (ret_fd)
		*ret_fd = fd;
	*ret_client = c;
	return 0;
}

struct te__control *te__client_control(const struct te__client *c)
{
	return c->control;
}

int te__client_publish(struct te__client *c, uint32_t item, uint64_t nbytes, int fd,
		       int64_t deadline_ns)
{
	struct te__wire m = { .kind = TE__WIRE_PUBLISH, .item = item, .nbytes = nbytes };

	return call(c, &m, fd, NULL, "publish memory", "the broker does not answer",
		    deadline_ns);
}

int te__client_fetch(struct te__client *c, uint32_t item, int of, uint64_t *ret_nbytes,
		     int *ret_fd, int64_t deadline_ns)
{
	struct te__wire m = { .kind = TE__WIRE_FETCH, .item = item };
	char late[200];
	int r;

	snprintf(late, sizeof(late), "%s has not published its memory in time", c->info.name[of]);
	r = call(c, &m, -1, ret_fd, "fetch memory of a rank", late, deadline_ns);
	if (!r)
		*ret_nbytes = m.nbytes;
	return r;
}

/* the thread that watches the connection */

static void lost(struct te__client *c)
{
	char text[sizeof(c->who) + 16];

	snprintf(text, sizeof(text), "%s has ended", c->who);
	te__control_abort(c->control, -TE_EPEER, text);
}

static void *work(void *arg)
{
	struct te__client *c = arg;
	struct te__wire m;
	int fd, r;

	for (;;) {
		struct pollfd p[] = {
			{ .fd = c->stop, .events = POLLIN },
			{ .fd = c->sock, .events = POLLIN },
			{ .fd = c->pidfd, .events = POLLIN },
		};

		if (poll(p, 3, -1) < 0)
			continue;
		if (p[0].revents)
			return NULL;
		fd = -1;
		r = te__wire_recv(c->sock, &m, NULL, &fd);
		if (fd >= 0)
			close(fd);
		if (r == 1 && m.kind == TE__WIRE_BYE)
			return NULL;
		if (r == -EAGAIN && !p[2].revents)
			continue;
		lost(c);
		return NULL;
	}
}

int te__client_watch(struct te__client *c)
{
	int r;

	c->stop = te__fault_point() ? (errno = EMFILE, -1) : eventfd(0, EFD_CLOEXEC);
	if (c->stop < 0)
		return te__fail(-errno, "watch the broker: eventfd: %s", strerror(errno));
	r = te__thread_start(&c->thread, work, c, "watch the broker");
	c->watching = !r;
	return r;
}

struct te__client *te__client_close(struct te__client *c, int code, const char *why)
{
	struct te__wire m = { .magic = TE__WIRE_MAGIC, .kind = TE__WIRE_BYE, .code = code };

	if (!c)
		return NULL;
	if (c->watching)
		te__thread_stop(c->thread, c->stop);
	if (code)
		snprintf(m.text, sizeof(m.text), "gives up: %s", why);
	if (c->sock >= 0) {
		m.rank = (uint32_t)c->rank;
		(void)te__wire_send(c->sock, &m, NULL, 0, -1);
		close(c->sock);
	}
	if (c->stop >= 0)
		close(c->stop);
	if (c->pidfd >= 0)
		close(c->pidfd);
	te__control_unmap(c->control);
	te__free(c);
	return NULL;
}
