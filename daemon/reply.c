/* reply.c - lines on stderr, replies to clients, and the loss of a client; see ted.h. */
#include "config.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>

#include <linux/sockios.h>

#include "daemon/ted.h"

int64_t ted_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* as one line, also if a client has sent newlines */
static void say(const char *fmt, va_list ap)
{
	char text[1024];

	vsnprintf(text, sizeof(text), fmt, ap);
	for (char *p = text; *p; p++)
		if ((unsigned char)*p < ' ' || *p == 127)
			*p = '?';
	fprintf(stderr, "ted: %s\n", text);
}

void ted_say(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	say(fmt, ap);
	va_end(ap);
}

void ted_say_client(const char *fmt, ...)
{
	static int64_t second;
	static int n;
	const int64_t now = ted_now_ns() / 1000000000;
	va_list ap;

	if (now != second) {
		if (n > 10)
			ted_say("%d more messages like these were left out", n - 10);
		second = now;
		n = 0;
	}
	if (++n > 10)
		return;
	va_start(ap, fmt);
	say(fmt, ap);
	va_end(ap);
}

void ted_client_lose(struct ted *t, struct ted_client *c)
{
	if (c->lost)
		return;
	c->lost = 1;
	t->nlost++;
	/* the client reads the sent replies, then the end, even while its entry remains */
	(void)epoll_ctl(t->epoll, EPOLL_CTL_DEL, c->fd, NULL);
	(void)shutdown(c->fd, SHUT_RDWR);
}

int ted_client_unread(const struct ted_client *c)
{
	int nbytes = 0;

	return c->sent_fd && !ioctl(c->fd, SIOCOUTQ, &nbytes) && nbytes;
}

void ted_reply(struct ted *t, struct ted_client *c, int code, const char *text, uint64_t nbytes,
	       const void *data, size_t ndata, int fd)
{
	struct te__wire m = { .magic = TE__WIRE_MAGIC, .kind = TE__WIRE_REPLY, .code = code,
			      .nbytes = nbytes };
	int r;

	if (c->lost)
		return;
	/*
	 * The kernel charges descriptors that are in flight to the user of ted, and refuses to send
	 * more than RLIMIT_NOFILE: with one for each client, there is always one for the others.
	 */
	if (fd >= 0 && ted_client_unread(c)) {
		t->n.dropped_slow++;
		ted_client_lose(t, c);
		return;
	}
	snprintf(m.text, sizeof(m.text), "%s", text);
	r = te__wire_send(c->fd, &m, data, ndata, fd);
	if (r == -ETOOMANYREFS) {
		ted_error(t, c, r, "too many file descriptors are in flight between processes");
		return;
	}
	if (!r && fd >= 0) {
		t->n.fd_transfers++;
		c->sent_fd = 1;
	}
	/* unread replies are in the socket's buffer, which is the limit */
	if (r == -EAGAIN || r == -ENOBUFS) {
		t->n.dropped_slow++;
		ted_client_lose(t, c);
	} else if (r) {
		ted_client_lose(t, c);
	}
}

void ted_error(struct ted *t, struct ted_client *c, int code, const char *fmt, ...)
{
	char text[sizeof(((struct te__wire *)0)->text)];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	ted_reply(t, c, code, text, 0, NULL, 0, -1);
}
