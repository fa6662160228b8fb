/* client.c - connections of clients: accepted or refused, read, dropped; see ted.h. */
#include "config.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <te/errno.h>

#include "daemon/ted.h"

#define BURST 32	/* messages of one client, before others are read */

static void set_deadline(struct ted *t, struct ted_client *c, uint32_t wait_ms)
{
	c->deadline_ns = ted_now_ns() + (int64_t)wait_ms * 1000000;
	if (c->deadline_ns < t->timer_ns)
		t->timer_ns = c->deadline_ns;
}

void ted_client_reap(struct ted *t)
{
	for (int i = 0; i < t->end && t->nlost; i++) {
		struct ted_client *c = &t->client[i];

		if (c->fd < 0 || !c->lost)
			continue;
		if (c->job)
			ted_job_leave(t, c);
		if (ted_client_unread(c)) {
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
	if (ted_over(t, cred.uid, TED_CLIENTS, why, sizeof(why)))
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
