/*
 * mesh.c - a stream between each two ranks, and exchanges over them.
 *
 * Each rank sends each other one its part of an exchange, so it knows without relays which ranks
 * are missing, and the end of a process is the end of its streams. join.c connects the ranks.
 */
#include "config.h"

#define TE_LOG_CATEGORY "comm/boot"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "libtecomm/meet/join.h"

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
		return te__boot_fail(b, -TE_EPEER, what, "%s sent bytes that are no message of "
				     "libtecomm", b->text[rank]);
	return te__boot_fail(b, -TE_EPEER, what, "connection to %s: %s", b->text[rank],
			     te_strerror(r));
}

int te__mesh_step(struct te__boot *b, int32_t rank, short revents, const char *what)
{
	struct te__conn *c = &b->peer[rank];
	int r;

	if (revents & ~POLLOUT && !c->in_whole) {
		r = te__conn_read(c, TE__BOOT_MOST);
		if (r < 0 || (r && c->in.type != TE__FRAME_DATA))
			return ended(b, rank, r, what);
	}
	te__conn_flush(c);
	return 0;
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
	return b->state[rank] == TE__LOST || r == -EPIPE || r == -ECONNRESET;
}

void te__mesh_close(struct te__boot *b)
{
	if (b->peer && atomic_load(&b->fail_code))
		te__boot_tell(b);
	for (int32_t r = 0; b->peer && r < b->nranks; r++) {
		struct te__conn *c = &b->peer[r];

		if (c->fd >= 0 && !b->told && b->state[r] == TE__UP && !te__conn_pending(c))
			te__conn_say(c, TE__FRAME_BYE, NULL, 0);
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
		return te__boot_fail(b, -TE_EMISMATCH, x->what, "%s is in exchange %llu, %s in "
				     "exchange %llu", b->text[rank], (unsigned long long)c->in.seq,
				     b->text[b->rank], (unsigned long long)b->seq);
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
			b->state[rank] = r == 1 ? TE__GONE : TE__LOST;
			te__conn_close(c);
			return 0;
		}
		if (r < 0 || (r && c->in.type != TE__FRAME_DATA))
			return ended(b, rank, r, x->what);
		r = r ? take(x, rank) : 0;
	}
	te__conn_flush(c);
	return r;
}

static int exchange_late(struct exchange *x)
{
	struct te__boot *b = x->b;
	char ranks[160], time[24];

	/* or they have sent their parts and do not read */
	for (int32_t r = 0; r < b->nranks; r++)
		if (b->peer[r].fd >= 0 && te__conn_pending(&b->peer[r]))
			x->missing[r] = 1;
	return te__boot_fail(b, -ETIMEDOUT, x->what, "%s: %s did not take part within %s", x->cut,
			     te__ranks_text(x->missing, b->nranks, ranks),
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
		x->p[1 + i] = te__conn_poll(&b->peer[i]);
	r = te__poll(x->p, 1 + (size_t)b->nranks, x->deadline);
	if (r)
		return te__boot_fail(b, -TE_EPEER, x->what, "%s: poll: %s", b->text[b->rank],
				     te_strerror(r));
	if (atomic_load(&b->fail_code)) {
		te__boot_tell(b);
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
	te__boot_tell(b);
	pthread_mutex_unlock(&b->lock);
}

/* ---- watching ---- */

/* pause while another thread is in an exchange, or has not taken available data */
#define NAP_NS INT64_C(2000000)

/* with the lock */
static int see(struct te__boot *b, int32_t rank, const char *what)
{
	struct te__conn *c = &b->peer[rank];
	const int r = c->in_whole ? 0 : te__conn_read(c, TE__BOOT_MOST);

	/* closed in order, or a part of the next exchange */
	if (r == 1 && c->in.type == TE__FRAME_BYE) {
		b->state[rank] = TE__GONE;
		te__conn_close(c);
		return 0;
	}
	return r < 0 || (r == 1 && c->in.type != TE__FRAME_DATA) ? ended(b, rank, r, what) : 0;
}

int te__boot_has_closed(const struct te__boot *b, int32_t rank)
{
	return b->state[rank] == TE__GONE;
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
			if (!busy && b->state[i] == TE__LOST && !r)
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
