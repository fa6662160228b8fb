/* wire.c - packets with a descriptor, and requests with replies; see wire.h. */
#define TE_LOG_CATEGORY "core/wire"
#include "config.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "libtecore/base/private.h"
#include "libtecore/base/wire.h"

_Static_assert(sizeof(struct te__wire) == 256, "the same on all machines");

/* room for one descriptor */
union ancillary {
	struct cmsghdr align;
	char bytes[CMSG_SPACE(sizeof(int))];
};

int te__wire_send(int sock, const struct te__wire *m, const void *data, size_t nbytes, int fd)
{
	union ancillary a = { .bytes = { 0 } };
	struct iovec io[] = { { (void *)(uintptr_t)m, sizeof(*m) },
			      { (void *)(uintptr_t)data, nbytes } };
	struct msghdr h = { .msg_iov = io, .msg_iovlen = nbytes ? 2 : 1 };
	struct cmsghdr *c;
	ssize_t n;

	if (fd >= 0) {
		h.msg_control = a.bytes;
		h.msg_controllen = sizeof(a.bytes);
		c = CMSG_FIRSTHDR(&h);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	}
	n = te__fault_point() ? (errno = ENOBUFS, -1) :
				sendmsg(sock, &h, MSG_NOSIGNAL | MSG_DONTWAIT);
	return n < 0 ? -errno : 0;
}

/* the descriptor of a message, or -1 */
static int take_fd(struct msghdr *h)
{
	int fd = -1;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(h); c; c = CMSG_NXTHDR(h, c))
		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
		    c->cmsg_len >= CMSG_LEN(sizeof(int)))
			memcpy(&fd, CMSG_DATA(c), sizeof(fd));
	return fd;
}

int te__wire_recv(int sock, struct te__wire *m, struct te__wire_data *data, int *ret_fd)
{
	union ancillary a;
	struct iovec io[] = { { m, sizeof(*m) },
			      { data ? data->buf : NULL, data ? data->cap : 0 } };
	struct msghdr h = { .msg_iov = io, .msg_iovlen = data ? 2 : 1, .msg_control = a.bytes,
			    /* without padding, in which a second one would fit */
			    .msg_controllen = CMSG_LEN(sizeof(int)) };
	ssize_t n;
	int fd;

	do
		n = recvmsg(sock, &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	/* returned once, before data that the other end sent before it closed the socket */
	while (n < 0 && errno == ECONNRESET);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return -EAGAIN;
	if (n < 0)
		return te__fail(-errno, "recvmsg: %s", strerror(errno));
	fd = take_fd(&h);
	if (fd >= 0)
		*ret_fd = fd;
	if (h.msg_flags & MSG_CTRUNC)
		return te__fail(-EMFILE, "a file descriptor did not arrive (MSG_CTRUNC): too many "
				"files are open, or more than one was sent");
	if (te__fault_point())
		return te__fail(-ENOBUFS, "recvmsg: injected fault");
	if (!n && fd < 0)
		return 0;
	if (n < (ssize_t)sizeof(*m) || (h.msg_flags & MSG_TRUNC) || m->magic != TE__WIRE_MAGIC ||
	    m->text[sizeof(m->text) - 1])
		return te__fail(-EPROTO, "a packet of %zd bytes is no message of this version", n);
	if (data)
		data->nbytes = (size_t)n - sizeof(*m);
	return 1;
}

int te__wire_dial(const char *path, int64_t deadline_ns, int *ret_sock)
{
	const struct timespec pause = { .tv_nsec = 1000000 };
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	int s, code = 0;

	if (strlen(path) >= sizeof(sa.sun_path))
		return te__fail(-ENAMETOOLONG, "connect to ted: %s is too long for a socket",
				path);
	strcpy(sa.sun_path, path);
	s = te__fault_point() ? (errno = EMFILE, -1) :
				socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (s < 0)
		code = -errno;
	/* EAGAIN: more connect concurrently than its queue holds */
	while (!code && connect(s, (struct sockaddr *)&sa, sizeof(sa)))
		if (errno != EAGAIN || (int64_t)te__now_ns() >= deadline_ns)
			code = -errno;
		else
			nanosleep(&pause, NULL);
	if (code) {
		if (s >= 0)
			close(s);
		return te__fail(code, "cannot connect to ted at %s: %s", path, strerror(-code));
	}
	*ret_sock = s;
	return 0;
}

/* FNV-1a, continued */
static uint64_t hash(uint64_t h, const char *s)
{
	do {
		h = (h ^ (uint8_t)*s) * UINT64_C(0x100000001b3);
	} while (*s++);
	return h;
}

void te__wire_job_key(const char *job, uint8_t ret_key[TE__WIRE_KEY_NBYTES])
{
	const uint64_t h = hash(hash(UINT64_C(0xcbf29ce484222325), "te_offload"), job);
	const uint64_t more = hash(h, "key");

	memcpy(ret_key, &h, sizeof(h));
	memcpy(ret_key + sizeof(h), &more, sizeof(more));
}

/* 1 if the socket is ready, 0 at the deadline */
static int ready(const struct te__wire_call *c, short events)
{
	struct pollfd p = { .fd = c->sock, .events = events };
	int64_t left;
	int n;

	do {
		left = c->deadline_ns - (int64_t)te__now_ns();
		/* rounded up: not a busy loop in the last millisecond */
		n = poll(&p, 1, left > 0 ? (int)((left + 999999) / 1000000) : 0);
	} while (n < 0 || (!n && left > 0));
	return n;
}

static int exchange(struct te__wire_call *c, struct te__wire *m)
{
	int r;

	m->magic = TE__WIRE_MAGIC;
	while ((r = te__wire_send(c->sock, m, NULL, 0, c->fd)) == -EAGAIN)
		if (!ready(c, POLLOUT))
			return te__fail(-ETIMEDOUT, "%s: %s", c->what, c->late);
	/* a service that refuses a connection sends the reason before it closes it */
	if (r && r != -EPIPE && r != -ECONNRESET)
		return te__fail(r, "%s: sendmsg: %s", c->what, strerror(-r));
	do {
		if (!ready(c, POLLIN))
			return te__fail(-ETIMEDOUT, "%s: %s", c->what, c->late);
		r = te__wire_recv(c->sock, m, c->ret_data, &c->ret_fd);
	} while (r == -EAGAIN);
	if (r < 0)
		return r;
	if (!r)
		return te__fail(-TE_EPEER, "%s: %s has ended", c->what, c->who);
	if (m->kind != TE__WIRE_REPLY)
		return te__fail(-EPROTO, "%s: %s answers with message %u", c->what, c->who,
				(unsigned int)m->kind);
	if (m->code < 0)
		return te__fail(m->code, "%s: %s", c->what, m->text);
	if ((c->ret_fd >= 0) != c->wants_fd)
		return te__fail(-EPROTO, "%s: %s answers with %s file descriptor", c->what,
				c->who, c->wants_fd ? "no" : "a");
	return 0;
}

int te__wire_call(struct te__wire_call *c, struct te__wire *m)
{
	int r;

	c->ret_fd = -1;
	r = exchange(c, m);
	if (r && c->ret_fd >= 0) {
		close(c->ret_fd);
		c->ret_fd = -1;
	}
	return r;
}
