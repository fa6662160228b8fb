/* self.c - the test of ted(8), by a client of its own, before it reports that it is ready. */
#include "config.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <te/errno.h>

#include "daemon/ted.h"

/* a request of the client that ted itself is; ret: data of the reply */
static int self_call(struct ted *t, struct ted_client *c, int sock, struct te__wire *m,
		     struct te__wire_data *ret)
{
	const uint32_t kind = m->kind;
	int fd = -1, r;

	m->magic = TE__WIRE_MAGIC;
	r = te__wire_send(sock, m, NULL, 0, -1);
	if (!r) {
		ted_client_read(t, c);
		r = te__wire_recv(sock, m, ret, &fd);
	}
	if (r == 1 && m->kind == TE__WIRE_REPLY && !m->code)
		return 0;
	ted_say("the test of message %u failed: %s", kind,
		r == 1 ? m->text : te_strerror(r < 0 ? r : -TE_EPEER));
	return -1;
}

static int self_requests(struct ted *t, struct ted_client *c, int sock)
{
	struct te__wire hello = { .kind = TE__WIRE_HELLO }, jobs = { .kind = TE__WIRE_JOBS };
	struct te__wire_job job = { .id = 0 };
	struct te__wire_data data = { &job, sizeof(job), 0 };

	if (getrandom(hello.key, sizeof(hello.key), 0) != (ssize_t)sizeof(hello.key))
		return -1;
	if (self_call(t, c, sock, &hello, &data) || self_call(t, c, sock, &jobs, &data))
		return -1;
	if (data.nbytes == sizeof(job) && job.id == c->job->id && job.nclients == 1)
		return 0;
	ted_say("the self-test got a wrong answer");
	return -1;
}

int ted_self_test(struct ted *t)
{
	const struct ted_counts before = t->n;
	struct ted_client *c;
	int s[2], r;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, s)) {
		ted_say("socketpair: %s", strerror(errno));
		return -1;
	}
	c = ted_client_add(t, s[0]);
	r = c ? self_requests(t, c, s[1]) : -1;
	close(s[1]);
	if (c)
		ted_client_lose(t, c);
	ted_client_reap(t);
	t->n = before;
	return r;
}
