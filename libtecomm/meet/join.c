/* join.c - see join.h. */
#include "config.h"

#define TE_LOG_CATEGORY "comm/boot"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "libtecomm/meet/join.h"

#define STRANGERS_MAX 64		/* accepted connections without a hello */
#define STRANGER_NS INT64_C(5000000000) /* time limit for their hello */
#define LOOK_NS INT64_C(20000000)	/* pause of a link between checks of the bootstrap */

struct stranger {
	struct te__conn c;
	int64_t since;
};

struct joining {
	struct te__join o;
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
#define P_PEER(j, r) (P_LISTEN + (size_t)(j)->o.listen->n + (size_t)(r))
#define P_STRANGER(j, i) (P_PEER(j, (j)->b->nranks) + (i))

/* ends the bootstrap, which tells the peers; only a link's ranks may be in an exchange */
static int fail(struct joining *j, int code, const char *fmt, ...) TE_PRINTF(3, 4);
static int fail(struct joining *j, int code, const char *fmt, ...)
{
	char text[TE__REFUSE_MOST];
	va_list ap;
	int r;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (j->o.link)
		pthread_mutex_lock(&j->b->lock);
	r = te__boot_fail(j->b, code, j->o.what, "%s", text);
	if (j->o.link)
		pthread_mutex_unlock(&j->b->lock);
	return r;
}

/* names of ranks are known when links are opened, and other threads read them */
static void know(const struct joining *j, const struct te__hello *h)
{
	if (!j->o.link)
		te__hello_text(h, j->b->text[h->rank]);
}

static void refuse(struct te__boot *b, struct te__conn *c, const char *text)
{
	uint8_t body[TE__REFUSE_MOST];

	te__log_warn("%s: refused: %s", b->name, text);
	te__conn_say(c, TE__FRAME_REFUSE, body, te__refuse_put(body, -TE_EMISMATCH, text));
}

/* handle a frame of a stranger, which becomes a peer or is refused; or the group fails */
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
		refuse(b, c, why);
		return fail(j, -TE_EMISMATCH, "%s", why);
	}
	if (h.rank <= b->rank || h.rank >= b->nranks || j->o.state[h.rank] != TE__AWAITED) {
		char other[TE__PEER_TEXT];

		te__hello_text(&h, other);
		snprintf(text, sizeof(text), "%s: there is another process with this rank: %s",
			 other,
			 h.rank == b->rank		   ? me :
			 h.rank >= 0 && h.rank < b->nranks ? b->text[h.rank] :
							     "none is expected");
		refuse(b, c, text);
		return 0;
	}
	know(j, &h);
	j->o.conn[h.rank] = *c;
	te__conn_next(&j->o.conn[h.rank]);
	*c = (struct te__conn)TE__CONN_INIT;
	j->o.state[h.rank] = TE__UP;
	te__conn_say(&j->o.conn[h.rank], TE__FRAME_WELCOME, j->hello_body, j->hello_nbytes);
	return 0;
}

static struct te__ends ends_of(const struct joining *j, int32_t peer)
{
	return (struct te__ends){
		.key = j->o.link ? te__boot_key(j->b) : j->b->key,
		.purpose = j->o.link ? TE__FOR_LINK : TE__FOR_MESH,
		.me = j->b->rank,
		.peer = peer,
	};
}

static void drop_stranger(struct joining *j, size_t i)
{
	te__conn_close(&j->s[i].c);
	memmove(&j->s[i], &j->s[i + 1], (--j->ns - i) * sizeof(*j->s));
}

static int accept_all(struct joining *j, int64_t now)
{
	struct te__boot *b = j->b;
	const struct te__ends ends = ends_of(j, -1);
	int fd, r = 0;

	/* then hellos are read, before the oldest strangers make room */
	for (int i = 0; i < TE__ACCEPT_MOST; i++) {
		r = te__conn_accept(j->o.listen, &fd);
		if (r < 1)
			break;
		if (j->ns == STRANGERS_MAX)
			drop_stranger(j, 0); /* the oldest */
		te__conn_open(&j->s[j->ns].c, fd, &ends, 0);
		j->s[j->ns++].since = now;
	}
	return r >= 0 ? 0 : fail(j, r, "%s cannot accept connections: %s", b->text[b->rank],
				 te_strerror(r));
}

/* revents of new ones are 0: the first read of a hello that is there happens in the next round */
static int step_strangers(struct joining *j, size_t npolled, int64_t now)
{
	for (size_t i = npolled; i-- > 0;) {
		struct stranger *s = &j->s[i];
		int r = 0;

		if (j->p[P_STRANGER(j, i)].revents)
			r = te__conn_read(&s->c, TE__FRAME_STRANGER);
		if (r == 1) {
			r = judge(j, &s->c);
			if (r < 0)
				return r;
			r = 1; /* a peer now, or refused */
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
		j->o.state[rank] = TE__GREETED;
		te__conn_say(&j->o.conn[rank], TE__FRAME_HELLO, j->hello_body, j->hello_nbytes);
		return 0;
	}
	/* a process listened at the address; a path may not exist yet, or be a leftover */
	if (r == -ECONNREFUSED && (j->dial[rank].tcp || j->dial[rank].reached)) {
		char at[TE__ADDR_TEXT] = "its socket";

		if (j->dial[rank].tcp)
			te__addr_text(j->dial[rank].tcp, at);
		return fail(j, -TE_EPEER, "%s has ended: nothing listens at %s", b->text[rank], at);
	}
	return 0;
}

/* wait for the reply of a lower rank to this rank's hello */
static int step_greeted(struct joining *j, int32_t rank, int64_t now)
{
	struct te__conn *c = &j->o.conn[rank];
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
			return fail(j, -TE_EMISMATCH, "%s", why);
		if ((c->in.type == TE__FRAME_REFUSE || c->in.type == TE__FRAME_ABORT) &&
		    !te__refuse_get(c->in_body, c->in.nbytes, &code, text))
			return fail(j, code, "%s", text);
		if (c->in.type == TE__FRAME_WELCOME &&
		    !te__hello_get(c->in_body, c->in.nbytes, &h) && h.rank == rank) {
			know(j, &h);
			te__conn_next(c);
			j->o.state[rank] = TE__UP;
			return 0;
		}
	}
	/* another program, or dropped, or the process ended: the next attempt will show */
	te__conn_close(c);
	j->o.state[rank] = TE__DIALING;
	te__dial_again(&j->dial[rank], now, r < 0 ? -r : EPROTO);
	return 0;
}

static int join_late(struct joining *j)
{
	struct te__boot *b = j->b;
	uint8_t missing[TE__RANKS_MAX];
	char ranks[160], time[24];
	int last = 0;

	for (int32_t r = 0; r < b->nranks; r++) {
		missing[r] = r != b->rank && j->o.state[r] != TE__UP;
		if (missing[r] && j->o.state[r] == TE__DIALING && j->dial[r].last && j->dial[r].tcp)
			last = j->dial[r].last;
	}
	te__ranks_text(missing, b->nranks, ranks);
	te__time_text(j->o.deadline - j->o.begin, time);
	if (last)
		return fail(j, -ETIMEDOUT, "%s could not be connected to within %s, the last error "
			    "was: %s", ranks, time, te_strerror(-last));
	return fail(j, -ETIMEDOUT, "%s did not arrive within %s", ranks, time);
}

/* 1: all are up and everything is sent */
static int joined(const struct joining *j)
{
	for (int32_t r = 0; r < j->b->nranks; r++)
		if (r != j->b->rank && (j->o.state[r] != TE__UP || te__conn_pending(&j->o.conn[r])))
			return 0;
	return 1;
}

static int join_round(struct joining *j)
{
	struct te__boot *b = j->b;
	int64_t now = te__boot_now(), wake = j->o.deadline;
	const size_t ns = j->ns;
	int r = 0;

	/* failures of ranks that have opened their link are messages of the bootstrap */
	if (j->o.link) {
		wake = wake < now + LOOK_NS ? wake : now + LOOK_NS;
		r = te__boot_watch(b, j->o.what, -1, 0);
	}
	if (r)
		return r;
	j->p[P_WAKE] = (struct pollfd){ .fd = b->wake_fd, .events = POLLIN };
	te__listen_poll(j->o.listen, &j->p[P_LISTEN]);
	for (int32_t i = 0; i < b->nranks; i++) {
		struct pollfd *p = &j->p[P_PEER(j, i)];

		*p = te__conn_poll(&j->o.conn[i]);
		/* the end of a stream that is up would be reported in every round */
		if (j->o.link && j->o.state[i] == TE__UP) {
			p->events &= POLLOUT;
			p->fd = p->events ? p->fd : -1;
		}
		if (i < b->rank && j->o.state[i] == TE__DIALING)
			te__dial_poll(&j->dial[i], p, &wake);
	}
	for (size_t i = 0; i < ns; i++) {
		j->p[P_STRANGER(j, i)] = (struct pollfd){ .fd = j->s[i].c.fd, .events = POLLIN };
		if (j->s[i].since + STRANGER_NS < wake)
			wake = j->s[i].since + STRANGER_NS;
	}
	r = te__poll(j->p, P_STRANGER(j, ns), wake);
	now = te__boot_now();
	if (r)
		return fail(j, -TE_EPEER, "%s: poll: %s", b->text[b->rank], te_strerror(r));
	r = te__boot_failed(b, j->o.what);
	for (int32_t i = 0; i < b->nranks && !r; i++) {
		const struct pollfd *p = &j->p[P_PEER(j, i)];

		if (j->o.state[i] == TE__DIALING)
			r = step_dial(j, i, p, now);
		if (!r && j->o.state[i] == TE__GREETED) {
			te__conn_write(&j->o.conn[i]); /* reading detects failures */
			r = p->revents ? step_greeted(j, i, now) : 0;
		} else if (!r && j->o.state[i] == TE__UP && p->revents) {
			if (j->o.link)
				te__conn_flush(&j->o.conn[i]);
			else
				r = te__mesh_step(b, i, p->revents, j->o.what);
		}
	}
	if (!r)
		r = step_strangers(j, ns, now);
	if (!r && te__listen_ready(j->o.listen, &j->p[P_LISTEN]))
		r = accept_all(j, now);
	if (!r && now >= j->o.deadline && !joined(j))
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
		const struct te__ends ends = ends_of(j, i);

		if (i == b->rank || j->o.state[i] == TE__UP) {
			j->o.state[i] = TE__UP;
			continue;
		}
		j->o.state[i] = i < b->rank ? TE__DIALING : TE__AWAITED;
		if (i > b->rank)
			continue;
		te__dial_init(&j->dial[i], &j->o.conn[i], j->o.addrs ? &j->o.addrs[i] : NULL,
			      &ends);
		if (!j->o.link && b->provider->dial)
			b->provider->dial(b, i, &j->dial[i]);
	}
	while (!r && !joined(j))
		r = join_round(j);
	return r;
}

int te__join(const struct te__join *o)
{
	const size_t n = (size_t)o->b->nranks;
	struct joining j = {
		.o = *o,
		.b = o->b,
		.dial = te__calloc(n, sizeof(*j.dial)),
		.s = te__calloc(STRANGERS_MAX, sizeof(*j.s)),
		.p = te__calloc(P_LISTEN + (size_t)o->listen->n + n + STRANGERS_MAX, sizeof(*j.p)),
	};
	int r = -ENOMEM;

	for (size_t i = 0; j.dial && i < n; i++)
		j.dial[i].fd = -1;
	if (j.dial && j.s && j.p)
		r = join(&j);
	else
		fail(&j, -ENOMEM, "%s: not enough memory", o->b->text[o->b->rank]);
	for (size_t i = 0; j.dial && i < n; i++)
		te__dial_close(&j.dial[i]);
	while (j.ns)
		drop_stranger(&j, j.ns - 1);
	te__free(j.dial);
	te__free(j.s);
	te__free(j.p);
	return r;
}

int te__mesh_open(struct te__boot *b)
{
	return te__join(&(struct te__join){
		.b = b,
		.what = "te_comm_create",
		.listen = &b->listen,
		.addrs = b->addrs,
		.conn = b->peer,
		.state = b->state,
		.begin = b->begin,
		.deadline = b->deadline,
	});
}
