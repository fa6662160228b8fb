/* measure.c - te_transport_measure(3): messages between two ranks, timed. */
#include "config.h"

#define TE_LOG_CATEGORY "comm/link"

#include <errno.h>
#include <string.h>

#include "libtecomm/collective/comm.h"
#include "libtecomm/reach/reach.h"

static const char fn[] = "te_transport_measure";

struct measure {
	struct te__link *l;
	int first; /* this is rank 0 */
	uint8_t *out, *in;
	size_t nbytes, mem_nbytes; /* bytes of a message, and of both buffers */
	int32_t depth, n;
	double *us;
};

static double us_since(int64_t ns)
{
	return (double)(te__boot_now() - ns) * 1e-3;
}

static int round_trips(struct measure *m)
{
	int r = te__link_recv(m->l, 0, m->in, m->nbytes);

	for (int32_t k = 0; k < m->n && !r; k++) {
		const int64_t begin = te__boot_now();

		if (m->first)
			r = te__link_send(m->l, 0, m->out, m->nbytes);
		if (!r)
			r = te__link_wait_receives(m->l, 0, (uint64_t)k + 1);
		if (!r && k + 1 < m->n)
			r = te__link_recv(m->l, 0, m->in, m->nbytes);
		if (!r && !m->first)
			r = te__link_send(m->l, 0, m->out, m->nbytes);
		m->us[k] = us_since(begin) / 2;
	}
	return r ? r : te__link_wait_sends(m->l, 0, (uint64_t)m->n);
}

/* one rank queues a batch, the other one answers with an empty message */
static int queue(struct measure *m)
{
	int r = 0;

	for (int32_t i = 0; i < m->depth && !r; i++)
		r = m->first ? te__link_send(m->l, 0, m->out, m->nbytes)
			     : te__link_recv(m->l, 0, m->in, m->nbytes);
	return r;
}

static int batches(struct measure *m)
{
	const uint64_t depth = (uint64_t)m->depth;
	int r = m->first ? 0 : queue(m);

	for (int32_t k = 0; k < m->n && !r; k++) {
		const int64_t begin = te__boot_now();

		if (m->first)
			r = te__link_recv(m->l, 0, m->in, 0);
		if (!r && m->first)
			r = queue(m);
		if (!r && m->first)
			r = te__link_wait_sends(m->l, 0, ((uint64_t)k + 1) * depth);
		if (!r)
			r = te__link_wait_receives(m->l, 0, ((uint64_t)k + 1) *
							    (m->first ? 1 : depth));
		if (!r && !m->first && k + 1 < m->n)
			r = queue(m);
		if (!r && !m->first)
			r = te__link_send(m->l, 0, m->out, 0);
		m->us[k] = us_since(begin);
	}
	if (!r && !m->first)
		r = te__link_wait_sends(m->l, 0, (uint64_t)m->n);
	return r;
}

static uint8_t pattern(size_t i)
{
	return (uint8_t)(i * 31 + i / 251);
}

static int run(struct measure *m, const char *name)
{
	int r;

	for (size_t i = 0; i < m->nbytes; i++) {
		m->out[i] = pattern(i);
		m->in[i] = (uint8_t)~pattern(i);
	}
	r = m->depth ? batches(m) : round_trips(m);
	for (size_t i = 0; i < m->nbytes && !r && !(m->depth && m->first); i++)
		if (m->in[i] != pattern(i))
			r = te__link_fail(m->l, -TE_ECORRUPT, "%s: byte %zu of a message of %zu by "
					  "%s is wrong", fn, i, m->nbytes, name);
	return r;
}

static int measure(struct te_comm *c, const struct te__link_ops *ops, struct measure *m)
{
	const int32_t rank = te__boot_rank(c->boot), peer = !rank;
	struct te_device_info device = TE_DEVICE_INFO_INIT;
	struct te__link_opts o = {
		.boot = c->boot,
		.peers = &peer,
		.npeers = rank < 2,
		.mem_nbytes = m->mem_nbytes,
		.pci = device.pci_address,
		.timeout_ms = te__boot_timeout_ms(c->boot),
		.heartbeat_ms = te__link_heartbeat_ms(),
	};
	int r;

	(void)te_ctx_device_info(c->ctx, &device);
	o.mem = te__aligned_alloc(4096, o.mem_nbytes);
	if (!o.mem) {
		te__boot_abort(c->boot, "not enough memory");
		return te__fail(-ENOMEM, "%s: %s: no memory for %zu bytes", fn, c->name,
				o.mem_nbytes);
	}
	m->out = o.mem;
	m->in = m->out + m->nbytes;
	m->first = !rank;
	r = te__link_open(ops, &o, &m->l);
	if (!r && rank < 2)
		r = run(m, ops->name);
	m->l = te__link_close(m->l);
	te__free(o.mem);
	return r;
}

int te_transport_measure(struct te_comm *comm, const char *transport, size_t nbytes, int32_t depth,
			 int32_t niters, double *ret_us)
{
	struct measure m = { .nbytes = nbytes, .depth = depth, .n = niters };
	const struct te__link_ops *ops;
	int r;

	if (!comm || !transport || !ret_us)
		return te__fail(-EINVAL, "%s: %s is NULL", fn,
				!comm ? "comm" : !transport ? "transport" : "ret_us");
	ops = te__reach_link_of(transport);
	if (!ops)
		return te__fail(-EINVAL, "%s: there is no transport %s between nodes", fn,
				transport);
	if (depth < 0 || depth > TE__LINK_QUEUE || niters < 1)
		return te__fail(-EINVAL, "%s: depth is %d, expected 0 to %d, and niters is %d, "
				"expected 1 or more", fn, depth, TE__LINK_QUEUE, niters);
	if (__builtin_mul_overflow(nbytes ? nbytes : 1, 2, &m.mem_nbytes))
		return te__fail(-EINVAL, "%s: nbytes: two buffers of %zu bytes exceed the address "
				"space", fn, nbytes);
	if (te__boot_nranks(comm->boot) < 2)
		return te__fail(-EINVAL, "%s: %s has one rank, expected 2 or more", fn, comm->name);
	r = te__pool_check(comm->pool, fn);
	if (r)
		return r;
	m.us = te__calloc((size_t)niters, sizeof(*m.us));
	if (!m.us) {
		te__boot_abort(comm->boot, "not enough memory");
		return te__fail(-ENOMEM, "%s: no memory for %d samples", fn, niters);
	}
	r = measure(comm, ops, &m);
	if (!r)
		memcpy(ret_us, m.us, (size_t)niters * sizeof(*m.us));
	te__free(m.us);
	return r;
}
