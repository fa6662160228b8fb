/* conn.c - see conn.h. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "libtecomm/bootstrap/conn.h"
#include "libtecore/base/private.h"

int te__conn_accept(int listen_fd, int *ret_fd)
{
	struct pollfd p = { .fd = listen_fd, .events = POLLIN };

	/* without a free descriptor accept4() fails also if no connection waits */
	if (poll(&p, 1, 0) < 1)
		return 0;
	*ret_fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (*ret_fd >= 0)
		return 1;
	/* others, such as ECONNABORTED, are about one connection */
	if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM)
		return 0;
	return -errno;
}

void te__conn_open(struct te__conn *c, int fd)
{
	int on = 1;

	memset(c, 0, sizeof(*c));
	c->fd = fd;
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
	/* TCP finds by probes that a host is gone; local sockets refuse both options */
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
}

void te__conn_close(struct te__conn *c)
{
	if (c->fd >= 0)
		close(c->fd);
	c->fd = -1;
	te__free(c->in_body);
	c->in_body = NULL;
}

/* 0 when c->in_got has reached want */
static int fill(struct te__conn *c, void *p, size_t done, size_t want)
{
	while (done < want) {
		ssize_t n = recv(c->fd, (char *)p + done, want - done, MSG_DONTWAIT);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (!n)
			return -EPIPE;
		done += (size_t)n;
		c->in_got += (size_t)n;
	}
	return 0;
}

int te__conn_read(struct te__conn *c, uint32_t most)
{
	int r;

	if (c->in_whole)
		return 1;
	if (c->in_got < TE__FRAME_HEAD) {
		r = fill(c, c->in_head, c->in_got, TE__FRAME_HEAD);
		/* what is no frame is found by its first bytes */
		if (r && c->in_got >= 4 && te__frame_get(c->in_head, UINT32_MAX, &c->in))
			return -EBADMSG;
		if (r)
			return r == -EAGAIN ? 0 : r;
		r = te__frame_get(c->in_head, most, &c->in);
		if (r)
			return r;
		te__free(c->in_body);
		c->in_body = te__malloc((size_t)c->in.nbytes + 1);
		if (!c->in_body)
			return -ENOMEM;
		c->in_body[c->in.nbytes] = 0;
	}
	r = fill(c, c->in_body, c->in_got - TE__FRAME_HEAD, c->in.nbytes);
	if (r)
		return r == -EAGAIN ? 0 : r;
	if (!te__frame_intact(c->in_head, c->in_body))
		return -EBADMSG;
	c->in_whole = 1;
	return 1;
}

void te__conn_next(struct te__conn *c)
{
	c->in_whole = 0;
	c->in_got = 0;
}

void te__conn_queue_head(struct te__conn *c, const uint8_t *head, const void *body, size_t nbytes)
{
	memcpy(c->out_head, head, TE__FRAME_HEAD);
	if (nbytes && nbytes <= sizeof(c->out_small)) {
		memcpy(c->out_small, body, nbytes);
		body = c->out_small;
	}
	c->out_body = body;
	c->out_nbytes = TE__FRAME_HEAD + nbytes;
	c->out_sent = 0;
}

void te__conn_queue(struct te__conn *c, const struct te__frame *f, const void *body, size_t nbytes)
{
	uint8_t head[TE__FRAME_HEAD];

	te__frame_put(head, f, body, nbytes);
	te__conn_queue_head(c, head, body, nbytes);
}

int te__conn_write(struct te__conn *c)
{
	while (te__conn_pending(c)) {
		const size_t head = c->out_sent < TE__FRAME_HEAD ? TE__FRAME_HEAD - c->out_sent : 0;
		const size_t at = head ? 0 : c->out_sent - TE__FRAME_HEAD;
		struct iovec v[2] = {
			{ c->out_head + TE__FRAME_HEAD - head, head },
			{ (char *)(uintptr_t)c->out_body, c->out_nbytes - TE__FRAME_HEAD - at },
		};
		struct msghdr m = { .msg_iov = v + !head, .msg_iovlen = head ? 2 : 1 };
		ssize_t n;

		if (at) /* the body may be NULL */
			v[1].iov_base = (char *)v[1].iov_base + at;
		n = sendmsg(c->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -errno;
		c->out_sent += (size_t)n;
	}
	return 1;
}
