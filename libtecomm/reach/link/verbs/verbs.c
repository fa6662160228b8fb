/* verbs.c - see vlink.h: the row of functions of the transport over RDMA devices. */
#include "config.h"

#define TE_LOG_CATEGORY "comm/verbs"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "libtecomm/reach/link/verbs/vlink.h"

#define SPIN_NS 50000 /* before sleeping */

static int vl_poll(struct te__link *l, int64_t deadline_ns)
{
	struct vlink *v = te__vlink(l);
	int64_t idle_ns = te__boot_now();
	int r, woken = 0;

	for (;;) {
		r = te__vlink_progress(v);
		if (r)
			return r;
		if (v->advanced || woken || v->now >= deadline_ns) {
			v->advanced = 0;
			return 0;
		}
		if (!v->drained)
			idle_ns = v->now;
		else if (v->now - idle_ns >= SPIN_NS)
			r = te__vlink_rest(v, deadline_ns, &woken);
		if (r)
			return r;
	}
}

static void vl_wake(struct te__link *l)
{
	const uint64_t one = 1;

	/* fails if there are 2^64 wakes already */
	if (write(te__vlink(l)->wake_fd, &one, sizeof(one)) < 0)
		te__log_debug("wake: %s", strerror(errno));
}

static int vl_send(struct te__link *l, int32_t i, const void *buf, size_t nbytes)
{
	struct vlink *v = te__vlink(l);
	struct peer *p = &v->peer[i];

	if (p->gone)
		return te__vlink_fail_gone(v, i);
	p->send[p->nsend++ % QUEUE] = (struct send){ buf, nbytes, { 0 } };
	return te__vlink_advance(v, i);
}

static int vl_recv(struct te__link *l, int32_t i, void *buf, size_t nbytes)
{
	struct vlink *v = te__vlink(l);
	struct peer *p = &v->peer[i];

	if (p->gone)
		return te__vlink_fail_gone(v, i);
	p->recv[p->nrecv++ % QUEUE] = (struct receive){ buf, nbytes, 0 };
	return te__vlink_advance(v, i);
}

static int vl_probe(void)
{
	const struct te__verbs_near near = { .pci = "" };
	struct te__verbs_port p[TE__VERBS_PORTS_MOST];
	const int n = te__verbs_ports_open(&near, p);

	for (int k = 0; k < n; k++)
		te__verbs_port_close(&p[k]);
	return n < 0 ? n : 0;
}

const struct te__link_ops te__link_verbs = {
	.name = "verbs",
	.probe = vl_probe,
	.nbytes = sizeof(struct vlink),
	.open = te__vlink_open,
	.close = te__vlink_close,
	.send = vl_send,
	.recv = vl_recv,
	.poll = vl_poll,
	.wake = vl_wake,
};
