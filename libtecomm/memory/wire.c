/* wire.c - messages between the broker of a node and its clients: packets with a descriptor. */
#define TE_LOG_CATEGORY "comm/broker"
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "libtecomm/memory/broker.h"
#include "libtecore/base/private.h"

_Static_assert(sizeof(struct te__wire) == 256, "the same on all machines");

size_t te__wire_address(const struct te__node_info *info, struct sockaddr_un *ret)
{
	char *at = ret->sun_path + 1; /* the name begins with a zero byte: it is abstract */
	int n;

	memset(ret, 0, sizeof(*ret));
	ret->sun_family = AF_UNIX;
	n = sprintf(at, "te-comm-%d-", info->node);
	for (int i = 0; i < TE__BROKER_KEY_NBYTES; i++)
		n += sprintf(at + n, "%02x", info->key[i]);
	return offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n;
}

/* room for one descriptor */
union ancillary {
	struct cmsghdr align;
	char bytes[CMSG_SPACE(sizeof(int))];
};

int te__wire_send(int sock, const struct te__wire *m, int fd)
{
	union ancillary a = { .bytes = { 0 } };
	struct iovec io = { (void *)(uintptr_t)m, sizeof(*m) };
	struct msghdr h = { .msg_iov = &io, .msg_iovlen = 1 };
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

/* the descriptors of a message: *ret_fd gets the only one */
static int take_fd(struct msghdr *h, int *ret_fd)
{
	int truncated = (h->msg_flags & MSG_CTRUNC) != 0, fd = -1;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(h); c; c = CMSG_NXTHDR(h, c))
		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
		    c->cmsg_len >= CMSG_LEN(sizeof(int)))
			memcpy(&fd, CMSG_DATA(c), sizeof(fd));
	if (truncated) {
		if (fd >= 0)
			close(fd);
		return te__fail(-EMFILE, "a file descriptor did not arrive (MSG_CTRUNC): too many "
				"files are open, or more than one was sent");
	}
	*ret_fd = fd;
	return 0;
}

int te__wire_recv(int sock, struct te__wire *m, int *ret_fd)
{
	union ancillary a;
	struct iovec io = { m, sizeof(*m) };
	struct msghdr h = { .msg_iov = &io, .msg_iovlen = 1, .msg_control = a.bytes,
			    /* without padding, in which a second one would fit */
			    .msg_controllen = CMSG_LEN(sizeof(int)) };
	ssize_t n;
	int r, fd = -1;

	do
		n = recvmsg(sock, &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	/* comes once, before what the other end sent before it closed the socket */
	while (n < 0 && errno == ECONNRESET);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return -EAGAIN;
	if (n < 0)
		return te__fail(-errno, "recvmsg: %s", strerror(errno));
	r = take_fd(&h, &fd);
	if (r)
		return r;
	if (te__fault_point()) {
		if (fd >= 0)
			close(fd);
		return te__fail(-ENOBUFS, "recvmsg: injected fault");
	}
	if (!n) {
		if (fd >= 0)
			close(fd);
		return 0;
	}
	if (n != (ssize_t)sizeof(*m) || (h.msg_flags & MSG_TRUNC) || m->magic != TE__WIRE_MAGIC ||
	    m->text[sizeof(m->text) - 1]) {
		if (fd >= 0)
			close(fd);
		return te__fail(-EPROTO, "a packet of %zd bytes is no message of this version", n);
	}
	*ret_fd = fd;
	return 1;
}

int te__wire_check_peer(int sock, int *ret_pid)
{
	struct ucred cred;
	socklen_t len = sizeof(cred);

	if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &cred, &len))
		return te__fail(-errno, "SO_PEERCRED: %s", strerror(errno));
	if (cred.uid != geteuid())
		return te__fail(-EACCES, "process %d has user id %u, expected %u", (int)cred.pid,
				(unsigned int)cred.uid, (unsigned int)geteuid());
	*ret_pid = (int)cred.pid;
	return 0;
}
