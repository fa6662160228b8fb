/* client.c - connections of clients: accepted or refused, read, answered, dropped; see ted.h. */
#include "config.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <linux/sockios.h>

#include <te/errno.h>

#include "daemon/ted.h"

#define BURST 32	/* messages of one client, before others are read */

int64_t ted_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* as one line, whatever characters a client has sent */
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

static void set_deadline(struct ted *t, struct ted_client *c, uint32_t wait_ms)
{
	c->deadline_ns = ted_now_ns() + (int64_t)wait_ms * 1000000;
	if (c->deadline_ns < t->timer_ns)
		t->timer_ns = c->deadline_ns;
}

/* returns 1 if a descriptor that was sent to the client may still be in its socket */
static int has_not_read(const struct ted_client *c)
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
	if (fd >= 0 && has_not_read(c)) {
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

void ted_client_lose(struct ted *t, struct ted_client *c)
{
	if (c->lost)
		return;
	c->lost = 1;
	t->nlost++;
	/* it gets the sent replies, and the end, also if it stays an entry */
	(void)epoll_ctl(t->epoll, EPOLL_CTL_DEL, c->fd, NULL);
	(void)shutdown(c->fd, SHUT_RDWR);
}

void ted_client_reap(struct ted *t)
{
	for (int i = 0; i < t->end && t->nlost; i++) {
		struct ted_client *c = &t->client[i];

		if (c->fd < 0 || !c->lost)
			continue;
		if (c->job)
			ted_job_leave(t, c);
		if (has_not_read(c)) {
			/* time of the next check */
			set_deadline(t, c, 1000);
			continue;
		}
		t->nlost--;
		close(c->fd);
		c->fd = -1;
	}
	while (t->end && t->client[t->end - 1].fd < 0)
		t->end--;
}

void ted_client_read(struct ted *t, struct ted_client *c)
{
	struct te__wire m;

	for (int i = 0; i < BURST && c->fd >= 0 && !c->lost; i++) {
		int fd = -1, r;

		if (ted_close_refuses(t, c))
			continue;
		r = te__wire_recv(c->fd, &m, NULL, &fd);
		if (r == -EAGAIN)
			return;
		if (!r) {
			ted_client_lose(t, c);
		} else if (r < 0) {
			t->n.protocol_errors++;
			ted_say_client("process %d, user %u: %s", (int)c->pid,
				       (unsigned int)c->uid, te_error_detail());
			ted_error(t, c, r, "%s", te_error_detail());
			ted_client_lose(t, c);
		} else {
			ted_request(t, c, &m, fd);
		}
		if (fd >= 0)
			ted_close(t, c->uid, fd);
	}
}

void ted_client_late(struct ted *t, int64_t now_ns)
{
	t->timer_ns = INT64_MAX;
	for (int i = 0; i < t->end; i++) {
		struct ted_client *c = &t->client[i];

		if (c->fd < 0 || c->lost || !c->deadline_ns)
			continue;
		if (c->deadline_ns > now_ns) {
			if (c->deadline_ns < t->timer_ns)
				t->timer_ns = c->deadline_ns;
		} else {
			ted_error(t, c, -ETIMEDOUT, "no HELLO after %lld ms",
				  (long long)t->conf.hello_ms);
			ted_client_lose(t, c);
		}
	}
}

/* new connections */

static struct ted_client *refuse(struct ted *t, int fd, int code, const char *fmt, ...)
	TE_PRINTF(4, 5);

static struct ted_client *refuse(struct ted *t, int fd, int code, const char *fmt, ...)
{
	struct te__wire m = { .magic = TE__WIRE_MAGIC, .kind = TE__WIRE_REPLY, .code = code };
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(m.text, sizeof(m.text), fmt, ap);
	va_end(ap);
	t->n.refused++;
	ted_say_client("a connection is refused: %s", m.text);
	(void)te__wire_send(fd, &m, NULL, 0, -1);
	close(fd);
	return NULL;
}

struct ted_client *ted_client_add(struct ted *t, int fd)
{
	const int queue = (int)t->conf.queue;
	struct epoll_event ev = { .events = EPOLLIN };
	struct ucred cred;
	socklen_t len = sizeof(cred);
	int64_t nuid;
	char why[128];
	int at = 0;

	t->n.accepted++;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len))
		return refuse(t, fd, -errno, "SO_PEERCRED: %s", strerror(errno));
	/* this id stands for all users without an id in this user namespace */
	if (cred.uid == t->overflow_uid)
		return refuse(t, fd, -EACCES, "process %d is of a user who has no id in the user "
			      "namespace of ted", (int)cred.pid);
	if (!t->conf.any && !ted_is_admin(cred.uid))
		return refuse(t, fd, -EACCES, "process %d has user id %u, expected %u",
			      (int)cred.pid, (unsigned int)cred.uid, (unsigned int)geteuid());
	if (ted_over(t, cred.uid, TED_CLIENTS, 1, why, sizeof(why)))
		return refuse(t, fd, -EBUSY, "%s", why);
	nuid = ted_count(t, TED_CLIENTS, 0, cred.uid);
	if (nuid >= t->conf.clients_uid)
		return refuse(t, fd, -EBUSY, "user %u has %lld clients, the limit (clients_uid)",
			      (unsigned int)cred.uid, (long long)nuid);
	while (at < t->end && t->client[at].fd >= 0)
		at++;
	ev.data.u64 = (uint64_t)at;
	if (t->epoll >= 0 && epoll_ctl(t->epoll, EPOLL_CTL_ADD, fd, &ev))
		return refuse(t, fd, -errno, "epoll_ctl: %s", strerror(errno));
	/* the kernel doubles it, for its own structures */
	(void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &queue, sizeof(queue));
	if (at == t->end)
		t->end++;
	t->client[at] = (struct ted_client){
		.fd = fd, .uid = cred.uid, .pid = cred.pid,
	};
	set_deadline(t, &t->client[at], (uint32_t)t->conf.hello_ms);
	return &t->client[at];
}
