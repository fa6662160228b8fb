/* link.c - see link.h: common code of the transports between nodes. */
#include "config.h"

#define TE_LOG_CATEGORY "comm/link"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "libtecomm/meet/boot.h"
#include "libtecomm/reach/link/link.h"

int te__link_fail(struct te__link *l, int code, const char *fmt, ...)
{
	va_list ap;

	if (!l->code) {
		va_start(ap, fmt);
		vsnprintf(l->why, sizeof(l->why), fmt, ap);
		va_end(ap);
		l->code = code;
	}
	return te__fail(l->code, "%s", l->why);
}

int32_t te__link_heartbeat_ms(void)
{
	const int64_t ms = te__param_int(TE_PARAM_COMM_HEARTBEAT_MS);

	return ms < 1 ? 1 : ms > INT32_MAX ? INT32_MAX : (int32_t)ms;
}

/* 0, or the failure that ended the link */
static int check(struct te__link *l)
{
	return l->code ? te__fail(l->code, "%s", l->why) : 0;
}

int te__link_open(const struct te__link_ops *ops, const struct te__link_opts *o,
		  struct te__link **ret_link)
{
	const size_t n = (size_t)o->npeers;
	struct te__link *l = te__calloc(1, ops->nbytes);
	struct te__link_counts *counts = te__calloc(2 * n + 1, sizeof(*counts));
	int32_t *peers = te__calloc(n + 1, sizeof(*peers));
	int r;

	if (!l || !counts || !peers) {
		te__free(l);
		te__free(counts);
		te__free(peers);
		te__boot_abort(o->boot, "no memory for a link");
		return te__fail(-ENOMEM, "te_comm_create: no memory for a link");
	}
	if (n)
		memcpy(peers, o->peers, n * sizeof(*peers));
	l->ops = ops;
	l->o = *o;
	l->o.peers = peers;
	l->sends = counts;
	l->receives = counts + n;
	r = ops->open(l);
	if (r) {
		char why[TE__REFUSE_MOST];

		snprintf(why, sizeof(why), "%s", te_error_detail());
		l->code = r; /* no peer is waited for */
		te__link_close(l);
		return te__fail(r, "%s", why); /* closing may have recorded other messages */
	}
	*ret_link = l;
	return 0;
}

struct te__link *te__link_close(struct te__link *l)
{
	if (!l)
		return NULL;
	l->ops->close(l);
	te__free(l->sends);
	te__free((int32_t *)(uintptr_t)l->o.peers);
	te__free(l);
	return NULL;
}

static int begin(struct te__link *l, const struct te__link_counts *c)
{
	const int r = check(l);

	return r ? r : c->queued - c->complete >= TE__LINK_QUEUE ? -EAGAIN : 0;
}

int te__link_send(struct te__link *l, int32_t i, const void *buf, size_t nbytes)
{
	int r = begin(l, &l->sends[i]);

	if (r)
		return r;
	r = l->ops->send(l, i, buf, nbytes);
	l->sends[i].queued += !r;
	return r;
}

int te__link_recv(struct te__link *l, int32_t i, void *buf, size_t nbytes)
{
	int r = begin(l, &l->receives[i]);

	if (r)
		return r;
	r = l->ops->recv(l, i, buf, nbytes);
	l->receives[i].queued += !r;
	return r;
}

int te__link_poll(struct te__link *l, int64_t deadline_ns)
{
	int r = check(l);

	if (!r)
		r = l->ops->poll(l, deadline_ns);
	return r ? r : check(l);
}

static int wait_for(struct te__link *l, int32_t i, const struct te__link_counts *c, uint64_t n,
		    const char *what)
{
	const int64_t deadline = te__boot_now() + (int64_t)l->o.timeout_ms * 1000000;
	char time[24];
	int r = check(l);

	while (!r && c->complete < n) {
		if (te__boot_now() >= deadline)
			return te__link_fail(l, -ETIMEDOUT, "%s has not %s %s within %s",
					     te__boot_peer(l->o.boot, l->o.peers[i]), what,
					     te__boot_peer(l->o.boot, te__boot_rank(l->o.boot)),
					     te__time_text((int64_t)l->o.timeout_ms * 1000000,
							   time));
		r = te__link_poll(l, deadline);
	}
	return r;
}

int te__link_wait_sends(struct te__link *l, int32_t i, uint64_t n)
{
	return wait_for(l, i, &l->sends[i], n, "taken what was sent by");
}

int te__link_wait_receives(struct te__link *l, int32_t i, uint64_t n)
{
	return wait_for(l, i, &l->receives[i], n, "sent what is expected by");
}
