/*
 * tcp.c - a link by stream sockets, one between each two ranks.
 *
 * A frame is a head of 40 bytes and, if it is data, that many bytes. Data is read into the buffer
 * of the receive that was queued for it; until there is one, nothing more is read of that peer.
 * Ranks authenticate when they connect, and heads have MACs (auth.h). Data has a checksum in
 * the head, because TCP's 16-bit checksum misses some changed bytes; a MAC, at 4 GB/s by
 * Poly1305, would halve the rate of links. A rank that has sent nothing for half a heartbeat
 * sends a head, so a silent peer has stopped or cannot be reached; the stream of a peer that has
 * ended is at its end. A rank whose link has failed sends its peers the reason when it closes it.
 */
#include "config.h"

#define TE_LOG_CATEGORY "comm/tcp"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "libtecomm/meet/agree.h"
#include "libtecomm/meet/join.h"
#include "libtecomm/reach/link/tcp.h"

#define HEAD TE__TCP_HEAD
#define HEAD_MAC TE__TCP_HEAD_MAC

struct transfer {
	char *buf;
	size_t nbytes;
};

struct peer {
	int fd;
	int out_broken; /* it receives no more; data that it has sent can still be read */
	int gone;	/* it has closed its link */
	int blocked;	/* its next frame is data, and there is no receive */
	struct te__session session;
	uint8_t out_head[HEAD], in_head[HEAD];
	int in_known; /* the MAC of in_head was right */
	uint8_t why[TE__REFUSE_MOST]; /* reason in its ABORT */
	size_t out_done, in_done;     /* bytes of the frame that is being sent, or received */
	enum te__tcp_type sending;    /* 0: nothing */
	int64_t wrote, heard;
	struct transfer out[TE__LINK_QUEUE], in[TE__LINK_QUEUE];
	uint64_t nout, nin; /* queued; the link counts a transfer later */
};

struct tcp {
	struct te__link l; /* first */
	int wake_fd;	   /* -1: none */
	int parting;	   /* it is being closed */
	struct peer *peer;
	struct pollfd *p;
	int64_t polled;
};

static struct tcp *tcp_of(struct te__link *l)
{
	return (struct tcp *)(void *)l;
}

static const char *name_of(const struct te__link *l, int32_t i)
{
	return te__boot_peer(l->o.boot, l->o.peers[i]);
}

static const char *own_name(const struct te__link *l)
{
	return te__boot_peer(l->o.boot, te__boot_rank(l->o.boot));
}

/* ---- frames ---- */

static void put64(uint8_t *p, uint64_t v)
{
	for (int k = 0; k < 8; k++)
		p[k] = (uint8_t)(v >> 8 * k);
}

static uint64_t get64(const uint8_t *p)
{
	uint64_t v = 0;

	for (int k = 8; k-- > 0;)
		v = v << 8 | p[k];
	return v;
}

typedef uint64_t pair __attribute__((vector_size(16)));

#define PAIRS 4

static inline void add_block(pair *a, pair *b, const pair *w)
{
#pragma GCC unroll 4
	for (int k = 0; k < PAIRS; k++) {
		a[k] += w[k];
		b[k] += a[k];
	}
}

/*
 * Fletcher's checksum of 64-bit words in eight lanes: their sum, and the sum of all sums so far.
 * Any change within 8 bytes is found. 30 GB/s, where a socket on loopback has 6.
 */
static uint64_t sum_of(const void *data, size_t nbytes)
{
	const uint8_t *p = data;
	pair a[PAIRS] = { 0 }, b[PAIRS] = { 0 }, w[PAIRS];
	uint64_t h = nbytes;

	for (; nbytes >= sizeof(w); nbytes -= sizeof(w), p += sizeof(w)) {
		memcpy(w, p, sizeof(w));
		add_block(a, b, w);
	}
	if (nbytes) {
		memset(w, 0, sizeof(w));
		memcpy(w, p, nbytes);
		add_block(a, b, w);
	}
	for (int k = 0; k < 2 * PAIRS; k++) {
		h = (h ^ h >> 29) * UINT64_C(0x9e3779b97f4a7c15) + a[k / 2][k % 2];
		h = (h ^ h >> 32) * UINT64_C(0xbf58476d1ce4e5b9) + b[k / 2][k % 2];
	}
	return h;
}

/* data that the MAC covers in addition to the head: the reason of an abort */
static size_t sealed(enum te__tcp_type type, uint64_t nbytes)
{
	return type == TE__TCP_ABORT ? (size_t)nbytes : 0;
}

void te__tcp_head(struct te__seal *s, uint8_t *h, enum te__tcp_type type, const void *data,
		  uint64_t nbytes)
{
	memcpy(h, "teLk", 4);
	for (int k = 0; k < 4; k++)
		h[4 + k] = (uint8_t)((unsigned)type >> 8 * k);
	put64(h + 8, nbytes);
	put64(h + 16, sum_of(data, nbytes));
	te__seal_mac(s, h, HEAD_MAC, data, sealed(type, nbytes), h + HEAD_MAC);
	s->n++;
}

static int get_head(const uint8_t *h, enum te__tcp_type *ret_type, uint64_t *ret_nbytes,
		    uint64_t *ret_sum)
{
	*ret_type = (enum te__tcp_type)h[4];
	*ret_nbytes = get64(h + 8);
	*ret_sum = get64(h + 16);
	return memcmp(h, "teLk", 4) || h[4] < TE__TCP_DATA || h[4] > TE__TCP_ABORT || h[5] ||
	       h[6] || h[7];
}

/* 1: the head is the next one that the peer has sent; body: of an abort */
static int is_next(struct peer *q, enum te__tcp_type type, const void *body, uint64_t nbytes)
{
	if (!q->in_known)
		q->in_known = te__seal_check(&q->session.in, q->in_head, HEAD_MAC, body,
					     sealed(type, nbytes), q->in_head + HEAD_MAC);
	return q->in_known;
}

static int ended(struct te__link *l, int32_t i)
{
	return te__link_fail(l, -TE_EPEER, "%s has %s", name_of(l, i),
			     tcp_of(l)->peer[i].gone ? "closed its communicator" : "ended");
}

static int io_failed(struct te__link *l, int32_t i, int e)
{
	if (e == EPIPE || e == ECONNRESET)
		return ended(l, i);
	return te__link_fail(l, -TE_EPEER, "connection to %s: %s", name_of(l, i), te_strerror(-e));
}

/* ---- sending ---- */

static void begin_frame(struct peer *q, enum te__tcp_type type, const void *data, uint64_t nbytes)
{
	te__tcp_head(&q->session.out, q->out_head, type, data, nbytes);
	q->sending = type;
	q->out_done = 0;
}

/* the next transfer; the link counts the transfers before it */
static const struct transfer *next_out(const struct te__link *l, int32_t i)
{
	const struct peer *q = &tcp_of((struct te__link *)(uintptr_t)l)->peer[i];
	const uint64_t n = l->sends[i].complete;

	return n < q->nout ? &q->out[n % TE__LINK_QUEUE] : NULL;
}

/* send without waiting; returns 0 also if the peer has ended, which reading detects */
static int flush(struct te__link *l, int32_t i, int64_t now)
{
	struct peer *q = &tcp_of(l)->peer[i];
	const struct transfer *t;

	while (q->fd >= 0 && !q->out_broken) {
		size_t left, at;
		struct iovec v[2];
		struct msghdr m = { .msg_iov = v, .msg_iovlen = 0 };
		ssize_t n;

		t = next_out(l, i);
		if (!q->sending && !t)
			return 0;
		if (!q->sending)
			begin_frame(q, TE__TCP_DATA, t->buf, t->nbytes);
		left = HEAD + (q->sending == TE__TCP_DATA ? t->nbytes : 0) - q->out_done;
		at = q->out_done > HEAD ? q->out_done - HEAD : 0;
		if (q->out_done < HEAD)
			v[m.msg_iovlen++] = (struct iovec){ q->out_head + q->out_done,
							    HEAD - q->out_done };
		if (q->sending == TE__TCP_DATA && t->nbytes)
			v[m.msg_iovlen++] = (struct iovec){ t->buf + at, t->nbytes - at };
		n = sendmsg(q->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return 0;
		if (n < 0 && errno != EPIPE && errno != ECONNRESET)
			return io_failed(l, i, errno);
		if (n < 0) {
			q->out_broken = 1;
			return 0;
		}
		q->wrote = now;
		q->out_done += (size_t)n;
		if ((size_t)n < left)
			continue;
		l->sends[i].complete += q->sending == TE__TCP_DATA;
		q->sending = 0;
	}
	return 0;
}

static int is_sending(const struct te__link *l, int32_t i)
{
	const struct peer *q = &tcp_of((struct te__link *)(uintptr_t)l)->peer[i];

	return q->fd >= 0 && !q->out_broken && (q->sending || next_out(l, i));
}

static int tcp_send(struct te__link *l, int32_t i, const void *buf, size_t nbytes)
{
	struct peer *q = &tcp_of(l)->peer[i];
	const int64_t now = te__boot_now();

	if (q->fd < 0)
		return ended(l, i);
	if (!is_sending(l, i))
		q->wrote = now; /* from now on the peer must accept data */
	q->out[q->nout++ % TE__LINK_QUEUE] = (struct transfer){ (char *)(uintptr_t)buf, nbytes };
	return flush(l, i, now);
}

/* ---- receiving ---- */

static const struct transfer *next_in(const struct te__link *l, int32_t i)
{
	const struct peer *q = &tcp_of((struct te__link *)(uintptr_t)l)->peer[i];
	const uint64_t n = l->receives[i].complete;

	return n < q->nin ? &q->in[n % TE__LINK_QUEUE] : NULL;
}

/* the stream has ended */
static int end_of(struct te__link *l, int32_t i)
{
	struct peer *q = &tcp_of(l)->peer[i];

	if (!tcp_of(l)->parting && (!q->gone || next_in(l, i) || is_sending(l, i)))
		return ended(l, i);
	close(q->fd);
	q->fd = -1;
	return 0;
}

/* receive up to want bytes of the frame; 1: complete, 0: not yet */
static int fill(struct te__link *l, int32_t i, void *p, size_t have, size_t want, int64_t now)
{
	struct peer *q = &tcp_of(l)->peer[i];

	while (have < want) {
		ssize_t n = recv(q->fd, (char *)p + have, want - have, MSG_DONTWAIT);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return 0;
		if (!n || (n < 0 && errno == ECONNRESET))
			return end_of(l, i);
		if (n < 0)
			return io_failed(l, i, errno);
		q->heard = now;
		q->in_done += (size_t)n;
		have += (size_t)n;
	}
	return 1;
}

static int is_changed(struct te__link *l, int32_t i)
{
	return te__link_fail(l, -TE_EPEER, "what %s sent was changed on its way to %s",
			     name_of(l, i), own_name(l));
}

static int is_none(struct te__link *l, int32_t i)
{
	return te__link_fail(l, -TE_EPEER, "%s sent bytes that are no message of libtecomm",
			     name_of(l, i));
}

static int take_abort(struct te__link *l, int32_t i, uint64_t nbytes, int64_t now)
{
	struct peer *q = &tcp_of(l)->peer[i];
	char text[TE__REFUSE_MOST];
	int code, r;

	if (nbytes > sizeof(q->why))
		return is_none(l, i);
	r = fill(l, i, q->why, q->in_done - HEAD, (size_t)nbytes, now);
	if (r != 1)
		return r;
	if (!is_next(q, TE__TCP_ABORT, q->why, nbytes) ||
	    te__refuse_get(q->why, (size_t)nbytes, &code, text))
		return is_none(l, i);
	return te__link_fail(l, code, "%s", text);
}

/* receive the frame whose head has been read; 1: it is complete */
static int take(struct te__link *l, int32_t i, int64_t now)
{
	struct peer *q = &tcp_of(l)->peer[i];
	const struct transfer *t = next_in(l, i);
	uint64_t nbytes, sum;
	enum te__tcp_type type;
	int r;

	if (get_head(q->in_head, &type, &nbytes, &sum))
		return is_none(l, i);
	if (type == TE__TCP_ABORT)
		return take_abort(l, i, nbytes, now);
	if (!is_next(q, type, NULL, 0))
		return is_none(l, i);
	if (type != TE__TCP_DATA) {
		q->gone |= type == TE__TCP_BYE;
		return 1;
	}
	q->blocked = !t;
	if (!t)
		return 0;
	if (nbytes != t->nbytes)
		return te__link_fail(l, -TE_EMISMATCH, "%s sends %llu bytes where %s expects %zu",
				     name_of(l, i), (unsigned long long)nbytes, own_name(l),
				     t->nbytes);
	r = fill(l, i, t->buf, q->in_done - HEAD, t->nbytes, now);
	if (r == 1 && sum_of(t->buf, t->nbytes) != sum)
		return is_changed(l, i);
	l->receives[i].complete += r == 1;
	return r;
}

static int receive(struct te__link *l, int32_t i, int64_t now)
{
	struct peer *q = &tcp_of(l)->peer[i];
	int r = 1;

	while (q->fd >= 0 && r == 1) {
		r = fill(l, i, q->in_head, q->in_done, HEAD, now);
		if (r == 1)
			r = take(l, i, now);
		if (r != 1)
			break;
		q->in_done = 0;
		q->in_known = 0;
		q->session.in.n++;
	}
	return r;
}

static int tcp_recv(struct te__link *l, int32_t i, void *buf, size_t nbytes)
{
	struct peer *q = &tcp_of(l)->peer[i];

	if (q->fd < 0)
		return ended(l, i);
	q->in[q->nin++ % TE__LINK_QUEUE] = (struct transfer){ buf, nbytes };
	if (!q->blocked)
		return 0;
	/* data that the peer has sent since then was not read */
	q->heard = te__boot_now();
	return receive(l, i, q->heard) < 0 ? l->code : 0;
}

/* ---- polling ---- */

static int64_t beat_ns(const struct te__link *l)
{
	return (int64_t)l->o.heartbeat_ms * 1000000;
}

/* when a beat is to be sent, or the peer is late */
static int64_t due(const struct te__link *l, int32_t i)
{
	const struct peer *q = &tcp_of((struct te__link *)(uintptr_t)l)->peer[i];
	int64_t late = q->heard + 2 * beat_ns(l), next = q->wrote + beat_ns(l) / 2;

	if (q->fd < 0 || q->gone)
		return INT64_MAX;
	if (is_sending(l, i))
		next = q->wrote + (int64_t)l->o.timeout_ms * 1000000;
	if (q->out_broken)
		next = INT64_MAX;
	return q->blocked || next < late ? next : late;
}

/* check the time-outs of a peer, after its data was read */
static int check_peer(struct te__link *l, int32_t i, int64_t now)
{
	struct peer *q = &tcp_of(l)->peer[i];
	char time[24];

	if (q->fd < 0 || q->gone)
		return 0;
	if (!q->blocked && now >= q->heard + 2 * beat_ns(l))
		return te__link_fail(l, -ETIMEDOUT, "%s has been silent for %s, longer than two "
				     "heartbeats (TE_COMM_HEARTBEAT_MS)", name_of(l, i),
				     te__time_text(now - q->heard, time));
	if (is_sending(l, i) && now >= q->wrote + (int64_t)l->o.timeout_ms * 1000000)
		return te__link_fail(l, -ETIMEDOUT, "%s has not taken what was sent by %s within "
				     "%s", name_of(l, i), own_name(l),
				     te__time_text((int64_t)l->o.timeout_ms * 1000000, time));
	if (is_sending(l, i) || q->out_broken || now < q->wrote + beat_ns(l) / 2)
		return 0;
	begin_frame(q, TE__TCP_BEAT, NULL, 0);
	return flush(l, i, now);
}

/* peers must not be charged for the time in which this rank did not poll */
static void catch_up(struct tcp *t, int64_t now)
{
	const int64_t gap = now - t->polled;

	for (int32_t i = 0; i < t->l.o.npeers && gap > beat_ns(&t->l); i++)
		t->peer[i].heard += gap;
	t->polled = now;
}

static int tcp_poll(struct te__link *l, int64_t deadline_ns)
{
	struct tcp *t = tcp_of(l);
	const int32_t n = l->o.npeers;
	int64_t now, wake;
	eventfd_t count;
	int r;

	catch_up(t, te__boot_now());
	/* a longer sleep would be a stop of this process to catch_up(), also while it sends */
	wake = t->polled + beat_ns(l) / 2;
	wake = deadline_ns < wake ? deadline_ns : wake;
	t->p[0] = (struct pollfd){ .fd = t->wake_fd, .events = POLLIN };
	for (int32_t i = 0; i < n; i++) {
		const struct peer *q = &t->peer[i];
		const int in = q->blocked ? 0 : POLLIN;
		const int out = is_sending(l, i) ? POLLOUT : 0;

		t->p[1 + i] = (struct pollfd){ .fd = in | out ? q->fd : -1,
					       .events = (short)(in | out) };
		if (due(l, i) < wake)
			wake = due(l, i);
	}
	r = te__poll(t->p, 1 + (size_t)n, wake);
	now = te__boot_now();
	catch_up(t, now);
	if (r)
		return te__link_fail(l, -EIO, "poll: %s", te_strerror(r));
	if (t->p[0].revents)
		(void)eventfd_read(t->wake_fd, &count);
	for (int32_t i = 0; i < n && !r; i++) {
		if (t->p[1 + i].revents & ~POLLOUT)
			r = receive(l, i, now);
		if (!r && t->p[1 + i].revents & POLLOUT)
			r = flush(l, i, now);
		if (!r)
			r = check_peer(l, i, now);
	}
	return r;
}

static void tcp_wake(struct te__link *l)
{
	(void)eventfd_write(tcp_of(l)->wake_fd, 1);
}

/* ---- joining ---- */

int te__tcp_prepare(struct te__link *l)
{
	const size_t n = (size_t)l->o.npeers;
	struct tcp *t = tcp_of(l);

	t->peer = te__calloc(n + 1, sizeof(*t->peer));
	for (size_t i = 0; i < n && t->peer; i++)
		t->peer[i].fd = -1;
	t->p = te__calloc(n + 1, sizeof(*t->p));
	t->wake_fd = te__fault_point() ? -1 : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (!t->peer || !t->p)
		return te__fail(-ENOMEM, "te_comm_create: tcp: no memory");
	if (t->wake_fd < 0)
		return te__fail(-EMFILE, "te_comm_create: tcp: eventfd: no descriptor");
	return 0;
}

void te__tcp_take(struct te__link *l, int32_t i, int fd, const struct te__session *session)
{
	struct tcp *t = tcp_of(l);

	t->polled = te__boot_now();
	t->peer[i].fd = fd;
	t->peer[i].session = *session;
	t->peer[i].wrote = t->polled;
	t->peer[i].heard = t->polled;
}

/* streams to the peers, which take messages from then on */
static int join(struct te__link *l, const struct te__listen *listen, const struct te__addrs *addrs)
{
	const size_t n = (size_t)te__boot_nranks(l->o.boot);
	struct te__conn *conn = te__calloc(n, sizeof(*conn));
	_Atomic uint8_t *state = te__calloc(n, sizeof(*state));
	const struct te__join j = {
		.b = l->o.boot,
		.what = "te_comm_create: tcp",
		.link = true,
		.listen = listen,
		.addrs = addrs,
		.conn = conn,
		.state = state,
		.begin = te__boot_now(),
		.deadline = te__boot_deadline(l->o.boot),
	};
	int r = conn && state ? 0 : te__fail(-ENOMEM, "te_comm_create: tcp: no memory");

	for (size_t i = 0; i < n && !r; i++) {
		conn[i].fd = -1;
		state[i] = TE__UP;
	}
	for (int32_t i = 0; i < l->o.npeers && !r; i++)
		state[l->o.peers[i]] = TE__DIALING;
	if (!r)
		r = te__join(&j);
	for (int32_t i = 0; i < l->o.npeers && !r; i++) {
		struct te__conn *c = &conn[l->o.peers[i]];

		te__tcp_take(l, i, c->fd, &c->session);
		c->fd = -1;
	}
	for (size_t i = 0; i < n && conn && state; i++)
		te__conn_close(&conn[i]);
	te__free(conn);
	te__free((void *)state);
	return r;
}

static int tcp_open(struct te__link *l)
{
	struct te__listen listen = { 0 };
	struct te__addrs own = { 0 }, *all = NULL;
	int r = te__tcp_prepare(l);

	if (!r)
		r = te__addr_listen("te_comm_create: tcp", &listen, &own);
	all = te__gather(l->o.boot, &r, &own, sizeof(own), "start of tcp", 0);
	for (int32_t i = 0; i < te__boot_nranks(l->o.boot) && !r; i++)
		if (!te__addrs_usable(&all[i]))
			r = te__fail(-TE_EPEER, "te_comm_create: tcp: %s has sent an address that "
				     "is none", te__boot_peer(l->o.boot, i));
	if (!r)
		r = join(l, &listen, all);
	if (r)
		te__boot_abort(l->o.boot, te_error_detail());
	te__listen_close(&listen);
	te__free(all);
	return r;
}

/* ---- closing ---- */

/* send the reason to peers, which read all data before it; takes two heartbeats at most */
static void part(struct tcp *t)
{
	struct te__link *l = &t->l;
	const int64_t deadline = te__boot_now() + 2 * beat_ns(l);
	int open = 1, r = 0;

	t->parting = 1;
	for (int32_t i = 0; i < l->o.npeers; i++) {
		struct peer *q = &t->peer[i];

		if (q->fd < 0 || is_sending(l, i))
			continue;
		begin_frame(q, TE__TCP_BYE, NULL, 0);
		(void)flush(l, i, te__boot_now());
		shutdown(q->fd, SHUT_WR);
	}
	while (open && !r && te__boot_now() < deadline) {
		open = 0;
		for (int32_t i = 0; i < l->o.npeers; i++) {
			struct peer *q = &t->peer[i];

			/* it has sent and received all */
			if (q->fd >= 0 && (q->gone || q->blocked)) {
				close(q->fd);
				q->fd = -1;
			}
			open |= q->fd >= 0;
		}
		if (open)
			r = tcp_poll(l, deadline);
	}
}

/* the peers fail for the same reason; a partly sent frame can only be truncated */
static void tell(struct tcp *t)
{
	uint8_t frame[HEAD + TE__REFUSE_MOST];
	const size_t n = te__refuse_put(frame + HEAD, t->l.code, t->l.why);

	for (int32_t i = 0; t->peer && i < t->l.o.npeers; i++) {
		struct peer *q = &t->peer[i];

		if (q->fd < 0 || q->sending)
			continue;
		te__tcp_head(&q->session.out, frame, TE__TCP_ABORT, frame + HEAD, n);
		(void)send(q->fd, frame, HEAD + n, MSG_NOSIGNAL | MSG_DONTWAIT);
	}
}

static void tcp_close(struct te__link *l)
{
	struct tcp *t = tcp_of(l);

	if (l->code)
		tell(t);
	else
		part(t);
	for (int32_t i = 0; t->peer && i < l->o.npeers; i++)
		if (t->peer[i].fd >= 0)
			close(t->peer[i].fd);
	if (t->wake_fd >= 0)
		close(t->wake_fd);
	te__free(t->peer);
	te__free(t->p);
}

static int tcp_probe(void)
{
	struct te__addrs a;
	struct te__listen listen = { 0 };
	int r = te__addr_listen("tcp", &listen, &a);

	te__listen_close(&listen);
	return r;
}

const struct te__link_ops te__link_tcp = {
	.name = "tcp",
	.probe = tcp_probe,
	.nbytes = sizeof(struct tcp),
	.open = tcp_open,
	.close = tcp_close,
	.send = tcp_send,
	.recv = tcp_recv,
	.poll = tcp_poll,
	.wake = tcp_wake,
};
