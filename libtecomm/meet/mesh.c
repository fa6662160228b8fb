/*
 * mesh.c - a stream between each two ranks, and exchanges over them.
 *
 * A rank connects to the lower ranks and accepts the higher ones. The connecting rank sends HELLO
 * and gets WELCOME or REFUSE; a connection that does not know the key, or wants another rank, is
 * closed without an answer (conn.h). In an exchange each rank sends its part to each other rank, so
 * it knows without relays which ranks are missing, and the end of a process is the end of its
 * streams.
 */
#include "config.h"

#define TE_LOG_CATEGORY "comm/boot"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "libtecomm/meet/boot.h"

#define STRANGERS_MAX 64		/* accepted connections without a hello */
#define STRANGER_NS INT64_C(5000000000) /* and how long they may stay so */

/* state of a peer */
enum {
	DIALING, /* lower rank: connecting */
	GREETED, /* lower rank: has our hello */
	AWAITED, /* higher rank: has not connected */
	UP,
	GONE, /* up once; it has closed its stream */
	LOST, /* up once; its stream has ended in an exchange, after its part of that */
};

struct stranger {
	struct te__conn c;
	int64_t since;
};

struct joining {
	struct te__boot *b;
	struct te__dial *dial; /* connections to the lower ranks */
	struct stranger *s;
	size_t ns;
	struct te__hello hello;
	uint8_t hello_body[TE__HELLO_MOST];
	size_t hello_nbytes;
	struct pollfd *p;
};

/* the number in the set of descriptors */
#define P_WAKE 0
#define P_LISTEN 1
#define P_PEER(b, r) (P_LISTEN + (size_t)(b)->listen.n + (size_t)(r))
#define P_STRANGER(b, i) (P_PEER(b, (b)->nranks) + (i))

static void say(struct te__conn *c, enum te__frame_type type, const void *body, size_t nbytes)
{
	const struct te__frame f = { .version = TE__FRAME_VERSION, .type = (uint16_t)type };

	te__conn_queue(c, &f, body, nbytes);
	te__conn_write(c); /* poll() handles the rest */
}

/* the peers' exchanges fail with the same text; under b->lock, or before others know of b */
static void tell(struct te__boot *b)
{
	uint8_t body[TE__REFUSE_MOST];
	size_t n;

	if (b->told)
		return;
	b->told = 1;
	n = te__refuse_put(body, atomic_load(&b->fail_code), b->fail_text);
	for (int32_t r = 0; r < b->nranks; r++) {
		struct te__conn *c = &b->peer[r];

		if (c->fd < 0 || (b->state[r] != UP && b->state[r] != GREETED))
			continue;
		/* a frame of which a part is sent can only be cut */
		if (!te__conn_pending(c) || !c->out_sent)
			say(c, TE__FRAME_ABORT, body, n);
		shutdown(c->fd, SHUT_WR);
	}
}

int te__boot_fail(struct te__boot *b, int code, const char *what, const char *fmt, ...)
{
	char text[TE__REFUSE_MOST];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	te__boot_note(b, code, "%s", text);
	tell(b);
	return te__boot_failed(b, what);
}

/* handle frames outside exchanges, and the end of a peer's stream; r: result of te__conn_read() */
static int ended(struct te__boot *b, int32_t rank, int r, const char *what)
{
	struct te__conn *c = &b->peer[rank];
	char text[TE__REFUSE_MOST];
	int code;

	if (r == 1 && c->in.type == TE__FRAME_ABORT &&
	    !te__refuse_get(c->in_body, c->in.nbytes, &code, text))
		return te__boot_fail(b, code, what, "%s", text);
	if (r == 1 && c->in.type == TE__FRAME_BYE)
		return te__boot_fail(b, -TE_EPEER, what, "%s has closed its communicator before %s",
				     b->text[rank], what);
	if (r == -EPIPE || r == -ECONNRESET)
		return te__boot_fail(b, -TE_EPEER, what, "%s has ended", b->text[rank]);
	if (r == 1 || r == -EBADMSG)
		return te__boot_fail(b, -TE_EPEER, what,
				     "%s sent bytes that are no message of "
				     "libtecomm",
				     b->text[rank]);
	return te__boot_fail(b, -TE_EPEER, what, "connection to %s: %s", b->text[rank],
			     te_strerror(r));
}

/* ---- joining ---- */

static void know(struct te__boot *b, const struct te__hello *h)
{
	te__hello_text(h, b->text[h->rank]);
}

static void refuse(struct te__boot *b, struct te__conn *c, int code, const char *text)
{
	uint8_t body[TE__REFUSE_MOST];

	te__log_warn("%s: refused: %s", b->name, text);
	say(c, TE__FRAME_REFUSE, body, te__refuse_put(body, code, text));
}

/* a whole frame of a stranger, which becomes a peer or is turned away; or the group fails */
static int judge(struct joining *j, struct te__conn *c)
{
	struct te__boot *b = j->b;
	char text[TE__REFUSE_MOST], me[TE__PEER_TEXT];
	const char *why;
	struct te__hello h;

	te__hello_text(&j->hello, me);
	why = te__frame_differs(&c->in, me, text);
	if (!why && (c->in.type != TE__FRAME_HELLO ||
		     te__hello_get(c->in_body, c->in.nbytes, &h) || h.rank != c->ends.peer))
		return 0;
	if (!why)
		why = te__hello_differs(&h, b->nranks, me, text);
	if (why) {
		refuse(b, c, -TE_EMISMATCH, why);
		return te__boot_fail(b, -TE_EMISMATCH, "te_comm_create", "%s", why);
	}
	if (h.rank <= b->rank || h.rank >= b->nranks || b->state[h.rank] != AWAITED) {
		char other[TE__PEER_TEXT];

		te__hello_text(&h, other);
		snprintf(text, sizeof(text), "%s: there is another process with this rank: %s",
			 other,
			 h.rank == b->rank		   ? me :
			 h.rank >= 0 && h.rank < b->nranks ? b->text[h.rank] :
							     "none is expected");
		refuse(b, c, -TE_EMISMATCH, text);
		return 0;
	}
	know(b, &h);
	b->peer[h.rank] = *c;
	te__conn_next(&b->peer[h.rank]);
	*c = (struct te__conn)TE__CONN_INIT;
	b->state[h.rank] = UP;
	say(&b->peer[h.rank], TE__FRAME_WELCOME, j->hello_body, j->hello_nbytes);
	return 0;
}

static struct te__ends ends_of(const struct te__boot *b, int32_t peer)
{
	return (struct te__ends){ .key = b->key, .purpose = TE__FOR_MESH, .me = b->rank,
				  .peer = peer };
}

static void drop_stranger(struct joining *j, size_t i)
{
	te__conn_close(&j->s[i].c);
	memmove(&j->s[i], &j->s[i + 1], (--j->ns - i) * sizeof(*j->s));
}

static int accept_all(struct joining *j, int64_t now)
{
	struct te__boot *b = j->b;
	const struct te__ends ends = ends_of(b, -1);
	int fd, r;

	while ((r = te__conn_accept(&b->listen, &fd)) > 0) {
		if (j->ns == STRANGERS_MAX)
			drop_stranger(j, 0); /* the oldest */
		te__conn_open(&j->s[j->ns].c, fd, &ends, 0);
		j->s[j->ns++].since = now;
	}
	return !r ? 0 : te__boot_fail(b, r, "te_comm_create", "%s cannot accept connections: %s",
				      b->text[b->rank], te_strerror(r));
}

/* revents of new ones are 0: the first read of a hello that is there happens in the next round */
static int step_strangers(struct joining *j, size_t npolled, int64_t now)
{
	for (size_t i = npolled; i-- > 0;) {
		struct stranger *s = &j->s[i];
		int r = 0;

		if (j->p[P_STRANGER(j->b, i)].revents)
			r = te__conn_read(&s->c, TE__FRAME_STRANGER);
		if (r == 1) {
			r = judge(j, &s->c);
			if (r < 0)
				return r;
			r = 1; /* a peer now, or turned away */
		} else if (r == -EBADMSG) {
			te__log_debug("%s: a connection without a proof was closed", j->b->name);
		}
		if (r || now - s->since > STRANGER_NS)
			drop_stranger(j, i);
	}
	return 0;
}

static int step_dial(struct joining *j, int32_t rank, const struct pollfd *p, int64_t now)
{
	struct te__boot *b = j->b;
	int r = te__dial_step(&j->dial[rank], p, now);

	if (r == 1) {
		b->state[rank] = GREETED;
		say(&b->peer[rank], TE__FRAME_HELLO, j->hello_body, j->hello_nbytes);
		return 0;
	}
	/* a process listened at the address; a path may not be there yet, or be of a leftover */
	if (r == -ECONNREFUSED && (j->dial[rank].tcp || j->dial[rank].reached)) {
		char at[TE__ADDR_TEXT] = "its socket";

		if (j->dial[rank].tcp)
			te__addr_text(j->dial[rank].tcp, at);
		return te__boot_fail(b, -TE_EPEER, "te_comm_create",
				     "%s has ended: nothing listens at %s", b->text[rank], at);
	}
	return 0;
}

/* wait for the reply of a lower rank to this rank's hello */
static int step_greeted(struct joining *j, int32_t rank, int64_t now)
{
	struct te__boot *b = j->b;
	struct te__conn *c = &b->peer[rank];
	char text[TE__REFUSE_MOST], me[TE__PEER_TEXT];
	int code, r = te__conn_read(c, TE__FRAME_STRANGER);
	struct te__hello h;
	const char *why;

	if (!r)
		return 0;
	if (r == 1) {
		te__hello_text(&j->hello, me);
		why = te__frame_differs(&c->in, me, text);
		if (why)
			return te__boot_fail(b, -TE_EMISMATCH, "te_comm_create", "%s", why);
		if (c->in.type == TE__FRAME_REFUSE &&
		    !te__refuse_get(c->in_body, c->in.nbytes, &code, text))
			return te__boot_fail(b, code, "te_comm_create", "%s", text);
		if (c->in.type == TE__FRAME_WELCOME &&
		    !te__hello_get(c->in_body, c->in.nbytes, &h) && h.rank == rank) {
			know(b, &h);
			te__conn_next(c);
			b->state[rank] = UP;
			return 0;
		}
		if (c->in.type == TE__FRAME_ABORT)
			return ended(b, rank, 1, "te_comm_create");
	}
	/* another program, or it was dropped, or the process ended: the next attempt tells */
	te__conn_close(c);
	b->state[rank] = DIALING;
	te__dial_again(&j->dial[rank], now, r < 0 ? -r : EPROTO);
	return 0;
}

/* after a failure, read the peer's data first, because it may have the cause */
static void flush(struct te__conn *c)
{
	if (te__conn_pending(c) && te__conn_write(c) < 0)
		c->out_broken = 1;
}

/* input and output of a peer that is up; a frame of an exchange stays for that */
static int step_up(struct te__boot *b, int32_t rank, short revents, const char *what)
{
	struct te__conn *c = &b->peer[rank];
	int r;

	if (revents & ~POLLOUT && !c->in_whole) {
		r = te__conn_read(c, TE__BOOT_MOST);
		if (r < 0 || (r && c->in.type != TE__FRAME_DATA))
			return ended(b, rank, r, what);
	}
	flush(c);
	return 0;
}

/* one whose next frame is there is not polled: the end of its stream would be reported always */
static struct pollfd wants(const struct te__conn *c)
{
	const short in = c->in_whole ? 0 : POLLIN;
	const short out = te__conn_can_write(c) && !c->out_broken ? POLLOUT : 0;
	const short events = (short)(in | out);

	return (struct pollfd){ .fd = events ? c->fd : -1, .events = events };
}

static int join_late(struct joining *j)
{
	struct te__boot *b = j->b;
	uint8_t missing[TE__RANKS_MAX];
	char ranks[160], time[24];
	int last = 0;

	for (int32_t r = 0; r < b->nranks; r++) {
		missing[r] = r != b->rank && b->state[r] != UP;
		if (missing[r] && b->state[r] == DIALING && j->dial[r].last && j->dial[r].tcp)
			last = j->dial[r].last;
	}
	te__ranks_text(missing, 1, b->nranks, ranks);
	te__time_text(b->deadline - b->begin, time);
	if (last)
		return te__boot_fail(b, -ETIMEDOUT, "te_comm_create",
				     "%s could not be connected to within "
				     "%s, the last error was: %s",
				     ranks, time, te_strerror(-last));
	return te__boot_fail(b, -ETIMEDOUT, "te_comm_create", "%s did not arrive within %s", ranks,
			     time);
}

/* 1: all are up and everything is sent */
static int joined(const struct te__boot *b)
{
	for (int32_t r = 0; r < b->nranks; r++)
		if (r != b->rank && (b->state[r] != UP || te__conn_pending(&b->peer[r])))
			return 0;
	return 1;
}

static int join_round(struct joining *j)
{
	struct te__boot *b = j->b;
	int64_t wake = b->deadline, now;
	const size_t ns = j->ns;
	int r;

	j->p[P_WAKE] = (struct pollfd){ .fd = b->wake_fd, .events = POLLIN };
	te__listen_poll(&b->listen, &j->p[P_LISTEN]);
	for (int32_t i = 0; i < b->nranks; i++) {
		struct pollfd *p = &j->p[P_PEER(b, i)];

		*p = wants(&b->peer[i]);
		if (i < b->rank && b->state[i] == DIALING)
			te__dial_poll(&j->dial[i], p, &wake);
	}
	for (size_t i = 0; i < ns; i++) {
		j->p[P_STRANGER(b, i)] = (struct pollfd){ .fd = j->s[i].c.fd, .events = POLLIN };
		if (j->s[i].since + STRANGER_NS < wake)
			wake = j->s[i].since + STRANGER_NS;
	}
	r = te__poll(j->p, P_STRANGER(b, ns), wake);
	now = te__boot_now();
	if (r)
		return te__boot_fail(b, -TE_EPEER, "te_comm_create", "%s: poll: %s",
				     b->text[b->rank], te_strerror(r));
	r = te__boot_failed(b, "te_comm_create");
	for (int32_t i = 0; i < b->nranks && !r; i++) {
		const struct pollfd *p = &j->p[P_PEER(b, i)];

		if (b->state[i] == DIALING)
			r = step_dial(j, i, p, now);
		if (!r && b->state[i] == GREETED) {
			te__conn_write(&b->peer[i]); /* a failure shows when it is read */
			r = p->revents ? step_greeted(j, i, now) : 0;
		} else if (!r && b->state[i] == UP && p->revents) {
			r = step_up(b, i, p->revents, "te_comm_create");
		}
	}
	if (!r)
		r = step_strangers(j, ns, now);
	if (!r && te__listen_ready(&b->listen, &j->p[P_LISTEN]))
		r = accept_all(j, now);
	if (!r && now >= b->deadline && !joined(b))
		r = join_late(j);
	return r;
}

static int join(struct joining *j)
{
	struct te__boot *b = j->b;
	int r = 0;

	te__boot_hello(b, &j->hello);
	j->hello_nbytes = te__hello_put(j->hello_body, &j->hello);
	for (int32_t i = 0; i < b->nranks; i++) {
		const struct te__ends ends = ends_of(b, i);

		b->state[i] = i < b->rank ? DIALING : i > b->rank ? AWAITED : UP;
		if (i >= b->rank)
			continue;
		te__dial_init(&j->dial[i], &b->peer[i], b->addrs ? &b->addrs[i] : NULL,
			      &ends);
		if (b->provider->dial)
			b->provider->dial(b, i, &j->dial[i]);
	}
	while (!r && !joined(b))
		r = join_round(j);
	return r;
}

int te__mesh_open(struct te__boot *b)
{
	const size_t n = (size_t)b->nranks;
	struct joining j = {
		.b = b,
		.dial = te__calloc(n, sizeof(*j.dial)),
		.s = te__calloc(STRANGERS_MAX, sizeof(*j.s)),
		.p = te__calloc(P_STRANGER(b, STRANGERS_MAX), sizeof(*j.p)),
	};
	int r = -ENOMEM;

	for (size_t i = 0; j.dial && i < n; i++)
		j.dial[i].fd = -1;
	if (j.dial && j.s && j.p)
		r = join(&j);
	else
		te__boot_fail(b, -ENOMEM, "te_comm_create", "%s: not enough memory",
			      b->text[b->rank]);
	for (size_t i = 0; j.dial && i < n; i++)
		te__dial_close(&j.dial[i]);
	while (j.ns)
		drop_stranger(&j, j.ns - 1);
	te__free(j.dial);
	te__free(j.s);
	te__free(j.p);
	return r;
}

int te__mesh_has_ended(struct te__boot *b, int32_t rank)
{
	struct te__conn *c = &b->peer[rank];
	int r = 0;

	if (rank == b->rank)
		return 0;
	pthread_mutex_lock(&b->lock);
	/* after a failure, no exchange reads available data */
	while (c->fd >= 0 && (r = te__conn_read(c, TE__BOOT_MOST)) == 1 &&
	       c->in.type == TE__FRAME_DATA)
		te__conn_next(c);
	pthread_mutex_unlock(&b->lock);
	return b->state[rank] == LOST || r == -EPIPE || r == -ECONNRESET;
}

void te__mesh_close(struct te__boot *b)
{
	if (b->peer && atomic_load(&b->fail_code))
		tell(b);
	for (int32_t r = 0; b->peer && r < b->nranks; r++) {
		struct te__conn *c = &b->peer[r];

		if (c->fd >= 0 && !b->told && b->state[r] == UP && !te__conn_pending(c))
			say(c, TE__FRAME_BYE, NULL, 0);
		te__conn_close(c);
	}
}

/* ---- exchanges ---- */

struct exchange {
	struct te__boot *b;
	const char *what;
	char cut[TE__FRAME_WHAT]; /* as in frames */
	uint8_t *recv;
	size_t nbytes;
	uint8_t *missing; /* by rank; 1: its part has not been received */
	struct pollfd *p;
	int64_t begin, deadline;
};

/* a whole frame of exchange data; 0, also if it is of the next exchange */
static int take(struct exchange *x, int32_t rank)
{
	struct te__boot *b = x->b;
	struct te__conn *c = &b->peer[rank];

	if (c->in.seq == b->seq + 1 && !x->missing[rank])
		return 0;
	if (c->in.seq != b->seq || !x->missing[rank])
		return te__boot_fail(b, -TE_EMISMATCH, x->what,
				     "%s is in exchange %llu, %s in "
				     "exchange %llu",
				     b->text[rank], (unsigned long long)c->in.seq, b->text[b->rank],
				     (unsigned long long)b->seq);
	if (strcmp(c->in.what, x->cut))
		return te__boot_fail(b, -TE_EMISMATCH, x->what, "%s is at \"%s\", %s at \"%s\"",
				     b->text[rank], c->in.what, b->text[b->rank], x->cut);
	if (c->in.nbytes != x->nbytes)
		return te__boot_fail(b, -TE_EMISMATCH, x->what, "%s: %s has %u bytes, %s has %zu",
				     x->cut, b->text[rank], c->in.nbytes, b->text[b->rank],
				     x->nbytes);
	memcpy(x->recv + (size_t)rank * x->nbytes, c->in_body, x->nbytes);
	x->missing[rank] = 0;
	te__conn_next(c);
	return 0;
}

static int step_exchange(struct exchange *x, int32_t rank, short revents)
{
	struct te__boot *b = x->b;
	struct te__conn *c = &b->peer[rank];
	int r = 0;

	if (revents & ~POLLOUT && !c->in_whole) {
		r = te__conn_read(c, TE__BOOT_MOST);
		/* this rank has all of it: it may end after its last exchange */
		if (!x->missing[rank] && !te__conn_pending(c) &&
		    (r == -EPIPE || r == -ECONNRESET || (r == 1 && c->in.type == TE__FRAME_BYE))) {
			b->state[rank] = r == 1 ? GONE : LOST;
			te__conn_close(c);
			return 0;
		}
		if (r < 0 || (r && c->in.type != TE__FRAME_DATA))
			return ended(b, rank, r, x->what);
		r = r ? take(x, rank) : 0;
	}
	flush(c);
	return r;
}

static int exchange_late(struct exchange *x)
{
	struct te__boot *b = x->b;
	char ranks[160], time[24];

	/* or they have sent theirs and do not read */
	for (int32_t r = 0; r < b->nranks; r++)
		if (b->peer[r].fd >= 0 && te__conn_pending(&b->peer[r]))
			x->missing[r] = 1;
	return te__boot_fail(b, -ETIMEDOUT, x->what, "%s: %s did not take part within %s", x->cut,
			     te__ranks_text(x->missing, 1, b->nranks, ranks),
			     te__time_text(x->deadline - x->begin, time));
}

static int exchanged(const struct exchange *x)
{
	for (int32_t r = 0; r < x->b->nranks; r++)
		if (x->missing[r] || (x->b->peer[r].fd >= 0 && te__conn_pending(&x->b->peer[r])))
			return 0;
	return 1;
}

static int exchange_round(struct exchange *x)
{
	struct te__boot *b = x->b;
	int r;

	x->p[0] = (struct pollfd){ .fd = b->wake_fd, .events = POLLIN };
	for (int32_t i = 0; i < b->nranks; i++)
		x->p[1 + i] = wants(&b->peer[i]);
	r = te__poll(x->p, 1 + (size_t)b->nranks, x->deadline);
	if (r)
		return te__boot_fail(b, -TE_EPEER, x->what, "%s: poll: %s", b->text[b->rank],
				     te_strerror(r));
	if (atomic_load(&b->fail_code)) {
		tell(b);
		return te__boot_failed(b, x->what);
	}
	for (int32_t i = 0; i < b->nranks && !r; i++)
		if (x->p[1 + i].revents)
			r = step_exchange(x, i, x->p[1 + i].revents);
	if (!r && !exchanged(x) && te__boot_now() >= x->deadline)
		r = exchange_late(x);
	return r;
}

static int exchange(struct exchange *x, const void *part)
{
	struct te__boot *b = x->b;
	struct te__frame f = { .version = TE__FRAME_VERSION, .type = TE__FRAME_DATA };
	int r = 0;

	f.seq = ++b->seq;
	memcpy(f.what, x->cut, sizeof(f.what));
	memset(x->missing, 1, (size_t)b->nranks);
	x->missing[b->rank] = 0;
	for (int32_t i = 0; i < b->nranks && !r; i++) {
		struct te__conn *c = &b->peer[i];

		if (i == b->rank)
			continue;
		if (c->fd < 0)
			return te__boot_fail(b, -TE_EPEER, x->what, "%s has ended", b->text[i]);
		te__conn_queue(c, &f, part, x->nbytes);
		/* part of this one may have arrived during the one before */
		if (c->in_whole)
			r = take(x, i);
	}
	while (!r && !exchanged(x))
		r = exchange_round(x);
	return r;
}

int te__boot_allgather(struct te__boot *b, const void *send, void *recv, size_t nbytes,
		       const char *what, int64_t deadline_ns)
{
	const int64_t begin = te__boot_now();
	struct exchange x = {
		.b = b,
		.what = what,
		.recv = recv,
		.nbytes = nbytes,
		.begin = begin,
		.deadline = deadline_ns ? deadline_ns : begin + (int64_t)b->timeout_ms * 1000000,
	};
	uint8_t *mine = x.recv + (size_t)b->rank * nbytes;
	int r;

	if (nbytes > TE__BOOT_MOST)
		return te__fail(-EINVAL, "%s: %s: %zu bytes, at most %u can be exchanged", what,
				b->name, nbytes, TE__BOOT_MOST);
	snprintf(x.cut, sizeof(x.cut), "%s", what);
	if (nbytes)
		memmove(mine, send, nbytes);
	pthread_mutex_lock(&b->lock);
	r = te__boot_failed(b, what);
	if (!r && b->nranks > 1) {
		x.missing = te__malloc((size_t)b->nranks);
		x.p = te__calloc(1 + (size_t)b->nranks, sizeof(*x.p));
		if (x.missing && x.p)
			r = exchange(&x, mine);
		else
			r = te__boot_fail(b, -ENOMEM, what, "%s: not enough memory",
					  b->text[b->rank]);
		te__free(x.missing);
		te__free(x.p);
	}
	pthread_mutex_unlock(&b->lock);
	return r;
}

void te__boot_abort(struct te__boot *b, const char *why)
{
	te__boot_note(b, -TE_EABORT, "%s has aborted: %s", b->text[b->rank], why);
	pthread_mutex_lock(&b->lock);
	tell(b);
	pthread_mutex_unlock(&b->lock);
}

/* ---- watching ---- */

/* while another thread is in an exchange, which watches too, or has not taken what is there */
#define NAP_NS INT64_C(2000000)

/* with the lock */
static int see(struct te__boot *b, int32_t rank, const char *what)
{
	struct te__conn *c = &b->peer[rank];
	const int r = c->in_whole ? 0 : te__conn_read(c, TE__BOOT_MOST);

	/* closed as it should be, or a part of the next exchange */
	if (r == 1 && c->in.type == TE__FRAME_BYE) {
		b->state[rank] = GONE;
		te__conn_close(c);
		return 0;
	}
	return r < 0 || (r == 1 && c->in.type != TE__FRAME_DATA) ? ended(b, rank, r, what) : 0;
}

int te__boot_has_closed(const struct te__boot *b, int32_t rank)
{
	return b->state[rank] == GONE;
}

int te__boot_watch(struct te__boot *b, const char *what, int wake_fd, int64_t deadline_ns)
{
	const size_t n = 2 + (size_t)b->nranks;
	struct pollfd *p = te__calloc(n, sizeof(*p));
	int64_t wake;
	int busy = 0, held, r = p ? 0 : te__fail(-ENOMEM, "%s: no memory", what);

	do {
		if (!r)
			r = te__boot_failed(b, what);
		if (r)
			break;
		p[0] = (struct pollfd){ .fd = b->wake_fd, .events = POLLIN };
		p[1] = (struct pollfd){ .fd = wake_fd, .events = POLLIN };
		busy = pthread_mutex_trylock(&b->lock);
		held = busy;
		for (int32_t i = 0; i < b->nranks; i++) {
			const int in = !busy && !b->peer[i].in_whole;

			held |= !busy && b->peer[i].in_whole;
			if (!busy && b->state[i] == LOST && !r)
				r = ended(b, i, -EPIPE, what);
			p[2 + i] = (struct pollfd){ .fd = in ? b->peer[i].fd : -1,
						    .events = POLLIN };
		}
		if (!busy)
			pthread_mutex_unlock(&b->lock);
		wake = held ? te__boot_now() + NAP_NS : deadline_ns;
		if (!r)
			r = te__poll(p, n, wake < deadline_ns ? wake : deadline_ns);
		if (r || busy || pthread_mutex_trylock(&b->lock))
			continue;
		for (int32_t i = 0; i < b->nranks && !r; i++)
			if (p[2 + i].revents && p[2 + i].fd == b->peer[i].fd)
				r = see(b, i, what);
		pthread_mutex_unlock(&b->lock);
	} while (!r && !p[1].revents && te__boot_now() < deadline_ns);
	te__free(p);
	return r;
}
