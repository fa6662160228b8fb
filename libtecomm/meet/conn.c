/* conn.c - see conn.h. */
#include "config.h"

#define TE_LOG_CATEGORY "comm/boot"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "libtecomm/meet/conn.h"
#include "libtecore/base/private.h"

/* 1: the other end is a process of another user on this host; 0 for TCP */
static int is_other_user(int fd)
{
	socklen_t len = sizeof(int);
	int domain = 0, pid;

	getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len);
	if (domain != AF_UNIX || !te__peer_check(fd, &pid))
		return 0;
	te__log_warn("a connection is refused: %s", te_error_detail());
	return 1;
}

int te__conn_accept(const struct te__listen *l, int *ret_fd)
{
	struct pollfd p[TE__ADDRS_MAX];
	int i;

	te__listen_poll(l, p);
	/*
	 * Without a free descriptor accept4() fails also if no connection waits. Other users could
	 * connect forever.
	 */
	for (int n = 0; n < TE__ACCEPT_MOST && poll(p, (nfds_t)l->n, 0) > 0; n++) {
		for (i = 0; !p[i].revents; i++)
			;
		*ret_fd = accept4(p[i].fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (*ret_fd >= 0 && !is_other_user(*ret_fd))
			return 1;
		/* others, such as ECONNABORTED, are about one connection */
		if (*ret_fd < 0)
			return errno == EMFILE || errno == ENFILE || errno == ENOBUFS ||
			       errno == ENOMEM ? -errno : 0;
		close(*ret_fd);
	}
	return 0;
}

/* send the few bytes of a challenge or an answer; a socket without room for them is broken */
static int send_all(struct te__conn *c, const void *p, size_t nbytes)
{
	return send(c->fd, p, nbytes, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)nbytes ? 0 : -EPIPE;
}

static void derive(struct te__conn *c, const uint8_t *nonce, int connects)
{
	te__session_derive(c->ends.key, c->challenge, sizeof(c->challenge), nonce, connects,
			   &c->session);
	c->step = TE__CONN_KEYED;
}

static int ask(struct te__conn *c)
{
	const struct te__frame f = { .version = TE__FRAME_VERSION, .type = TE__FRAME_CHALLENGE,
				     .seq = c->ends.serial };
	struct te__challenge ch = { .purpose = (uint8_t)c->ends.purpose, .from = c->ends.me,
				    .to = c->ends.peer };
	int r = te__random(ch.nonce, sizeof(ch.nonce));

	if (r)
		return r;
	te__frame_put(c->challenge, &f, TE__CHALLENGE_NBYTES);
	te__challenge_put(c->challenge + TE__FRAME_HEAD, &ch);
	if (c->ends.nonce)
		derive(c, c->ends.nonce, 1);
	return send_all(c, c->challenge, sizeof(c->challenge));
}

void te__conn_open(struct te__conn *c, int fd, const struct te__ends *ends, int connects)
{
	int on = 1;

	memset(c, 0, sizeof(*c));
	c->fd = fd;
	c->ends = *ends;
	c->step = connects ? TE__CONN_ASKS : TE__CONN_LISTENS;
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
	/* TCP detects a lost host by probes; local sockets refuse both options */
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	if (connects && ask(c))
		shutdown(fd, SHUT_RDWR); /* detected by reading */
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

/* 1: c->in and c->in_body are the bytes of a frame */
static int read_frame(struct te__conn *c, uint32_t most)
{
	int r;

	if (c->in_got < TE__FRAME_HEAD) {
		r = fill(c, c->in_head, c->in_got, TE__FRAME_HEAD);
		/* data that is not a frame is detected by its first bytes */
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
	return !r ? 1 : r == -EAGAIN ? 0 : r;
}

/* 0: the frame is the next one that the other end has sent */
static int check(struct te__conn *c)
{
	if (!te__seal_check(&c->session.in, c->in_head, TE__FRAME_MAC, c->in_body, c->in.nbytes,
			    c->in_head + TE__FRAME_MAC))
		return -EBADMSG;
	c->session.in.n++;
	c->step = TE__CONN_PROVEN;
	return 0;
}

/* answer a challenge; not if it is for another end, for which the answer would be a proof */
static int answer(struct te__conn *c)
{
	const struct te__frame f = { .version = TE__FRAME_VERSION, .type = TE__FRAME_CHALLENGE };
	uint8_t bytes[TE__FRAME_HEAD + TE__NONCE_NBYTES], *nonce = bytes + TE__FRAME_HEAD;
	struct te__challenge ch;
	int r;

	if (c->in.type != TE__FRAME_CHALLENGE ||
	    te__challenge_get(c->in_body, c->in.nbytes, &ch) || ch.purpose != c->ends.purpose ||
	    ch.to != c->ends.me)
		return -EBADMSG;
	c->ends.peer = ch.from;
	c->ends.serial = c->in.seq;
	memcpy(c->challenge, c->in_head, TE__FRAME_HEAD);
	memcpy(c->challenge + TE__FRAME_HEAD, c->in_body, TE__CHALLENGE_NBYTES);
	if (c->ends.nonce) {
		derive(c, c->ends.nonce, 0);
		return 0;
	}
	r = te__random(nonce, TE__NONCE_NBYTES);
	if (r)
		return r;
	derive(c, nonce, 0);
	te__frame_put(bytes, &f, TE__NONCE_NBYTES);
	te__seal_mac(&c->session.out, bytes, TE__FRAME_MAC, nonce, TE__NONCE_NBYTES,
		     bytes + TE__FRAME_MAC);
	c->session.out.n++;
	return send_all(c, bytes, sizeof(bytes));
}

/* the answer to this end's challenge; then frames that wait for it can be sent */
static int take_answer(struct te__conn *c)
{
	int r;

	if (c->in.type != TE__FRAME_CHALLENGE || c->in.nbytes != TE__NONCE_NBYTES)
		return -EBADMSG;
	derive(c, c->in_body, 1);
	if (check(c))
		return -EACCES;
	r = te__conn_write(c);
	/* detected by reading, after the cause */
	return r < 0 && r != -EPIPE && r != -ECONNRESET ? r : 0;
}

int te__conn_read(struct te__conn *c, uint32_t most)
{
	while (!c->in_whole) {
		const int keyed = c->step >= TE__CONN_KEYED;
		const uint32_t stranger = c->step == TE__CONN_PROVEN ? UINT32_MAX :
					  keyed ? TE__FRAME_STRANGER : TE__CHALLENGE_NBYTES;
		int r = read_frame(c, keyed && most < stranger ? most : stranger);

		if (r != 1)
			return r;
		r = keyed ? check(c) : c->step == TE__CONN_ASKS ? take_answer(c) : answer(c);
		if (r)
			return r;
		if (keyed)
			c->in_whole = 1;
		else
			te__conn_next(c);
	}
	return 1;
}

void te__conn_next(struct te__conn *c)
{
	c->in_whole = 0;
	c->in_got = 0;
}

void te__conn_queue(struct te__conn *c, const struct te__frame *f, const void *body, size_t nbytes)
{
	te__frame_put(c->out_head, f, nbytes);
	if (nbytes && nbytes <= sizeof(c->out_small)) {
		memcpy(c->out_small, body, nbytes);
		body = c->out_small;
	}
	c->out_body = body;
	c->out_nbytes = TE__FRAME_HEAD + nbytes;
	c->out_sent = 0;
	c->out_sealed = 0;
}

int te__conn_write(struct te__conn *c)
{
	if (te__conn_can_write(c) && !c->out_sealed) {
		te__seal_mac(&c->session.out, c->out_head, TE__FRAME_MAC, c->out_body,
			     c->out_nbytes - TE__FRAME_HEAD, c->out_head + TE__FRAME_MAC);
		c->out_sealed = 1;
	}
	while (te__conn_can_write(c)) {
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
		/* before that, another frame can take its place */
		c->session.out.n += !c->out_sent && n;
		c->out_sent += (size_t)n;
	}
	return !te__conn_pending(c);
}

void te__conn_flush(struct te__conn *c)
{
	if (te__conn_pending(c) && te__conn_write(c) < 0)
		c->out_broken = 1;
}

void te__conn_say(struct te__conn *c, enum te__frame_type type, const void *body, size_t nbytes)
{
	const struct te__frame f = { .version = TE__FRAME_VERSION, .type = (uint16_t)type };

	te__conn_queue(c, &f, body, nbytes);
	te__conn_write(c); /* poll() handles the rest */
}

struct pollfd te__conn_poll(const struct te__conn *c)
{
	const short in = c->in_whole ? 0 : POLLIN;
	const short out = te__conn_can_write(c) && !c->out_broken ? POLLOUT : 0;
	const short events = (short)(in | out);

	return (struct pollfd){ .fd = events ? c->fd : -1, .events = events };
}
