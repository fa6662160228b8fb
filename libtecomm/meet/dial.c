/* dial.c - see dial.h. */
#include "config.h"

#define TE_LOG_CATEGORY "comm/boot"

#include <errno.h>
#include <unistd.h>

#include "libtecomm/meet/dial.h"
#include "libtecore/base/private.h"

#define PAUSE_FIRST INT64_C(500000) /* ns; doubled up to */
#define PAUSE_MOST INT64_C(50000000)
/* an address that does not answer may be of a network that the peer is not in */
#define TRY_NS INT64_C(1000000000)

void te__dial_init(struct te__dial *d, struct te__conn *conn, const struct te__addrs *tcp,
		   const struct te__ends *ends)
{
	*d = (struct te__dial){ .tcp = tcp, .conn = conn, .ends = *ends, .fd = -1,
				.path_nbytes = sizeof(d->path),
				.pause = PAUSE_FIRST };
}

void te__dial_close(struct te__dial *d)
{
	if (d->fd >= 0)
		close(d->fd);
	d->fd = -1;
}

/* addresses to try, one of which fails if there is none */
static int naddrs(const struct te__dial *d)
{
	return d->tcp && d->tcp->n ? d->tcp->n : 1;
}

void te__dial_again(struct te__dial *d, int64_t now, int last)
{
	te__dial_close(d);
	d->last = last;
	d->nrefused = last == ECONNREFUSED || last == ENOENT ? d->nrefused + 1 : 0;
	d->at = (d->at + 1) % naddrs(d);
	/* once round all addresses, then a pause */
	d->next = now;
	if (!d->at) {
		d->next += d->pause;
		d->pause = d->pause * 2 < PAUSE_MOST ? d->pause * 2 : PAUSE_MOST;
	}
}

void te__dial_poll(const struct te__dial *d, struct pollfd *p, int64_t *wake_ns)
{
	const int64_t due = d->fd >= 0 ? d->until : d->next;

	*p = (struct pollfd){ .fd = d->fd, .events = POLLOUT };
	if (due < *wake_ns)
		*wake_ns = due;
}

static int connected(struct te__dial *d, int64_t now)
{
	int pid;

	if (!d->tcp && te__peer_check(d->fd, &pid)) {
		te__log_warn("a local socket is not used: %s", te_error_detail());
		te__dial_again(d, now, EACCES);
		return 0;
	}
	te__conn_open(d->conn, d->fd, &d->ends, 1);
	d->fd = -1;
	d->reached = 1;
	return 1;
}

static int start(struct te__dial *d, int64_t now)
{
	struct sockaddr_storage ss;
	const struct sockaddr *sa = (const struct sockaddr *)(const void *)&d->path;
	socklen_t len = d->path_nbytes;

	if (d->tcp && !d->tcp->n)
		return EADDRNOTAVAIL;
	if (d->tcp) {
		len = te__addr_sockaddr(d->tcp, d->at, &ss);
		sa = (const struct sockaddr *)(const void *)&ss;
	}
	d->fd = socket(sa->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (d->fd < 0)
		return errno;
	d->until = now + TRY_NS;
	return connect(d->fd, sa, len) ? errno : 0;
}

int te__dial_step(struct te__dial *d, const struct pollfd *p, int64_t now)
{
	socklen_t len = sizeof(int);
	int e = 0;

	if (d->fd >= 0) {
		if (!p->revents && now < d->until)
			return 0;
		if (!p->revents)
			e = ETIMEDOUT;
		else if (getsockopt(d->fd, SOL_SOCKET, SO_ERROR, &e, &len))
			e = errno;
	} else {
		if (now < d->next)
			return 0;
		e = start(d, now);
		if (e == EINPROGRESS)
			return 0;
	}
	if (!e)
		return connected(d, now);
	te__dial_again(d, now, e);
	return d->nrefused >= naddrs(d) ? -ECONNREFUSED : 0;
}
