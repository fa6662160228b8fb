/* open.c - see vlink.h: making queue pairs, connecting them, and closing the link. */
#include "config.h"

#define TE_LOG_CATEGORY "comm/verbs"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "libtecomm/meet/agree.h"
#include "libtecomm/reach/link/verbs/hello.h"

#define INLINE_WANTED 256
#define BYE_NS 200000000LL /* time limit for peers to acknowledge that this rank closes */
#define RETRIES 6	   /* soft-RoCE interprets 7 as unlimited */
#define RNR_RETRIES 3

static int nonblocking(int fd)
{
	const int flags = fcntl(fd, F_GETFL);

	return flags < 0 ? flags : fcntl(fd, F_SETFL, flags | O_NONBLOCK);
}

/* ---- local part ---- */

static int create_qp(struct vlink *v, int32_t i, int lane)
{
	struct vport *port = te__vlink_port(v, lane);
	struct ibv_qp_init_attr a = {
		.send_cq = port->cq,
		.recv_cq = port->cq,
		.cap = { SEND_DEPTH, RECV_DEPTH, 1, 1, INLINE_WANTED },
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_qp_attr init = {
		.qp_state = IBV_QPS_INIT,
		.port_num = port->port.port,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
	};
	struct lane *q = &v->peer[i].lane[lane];
	int r;

	q->qp = v->lib->create_qp(port->pd, &a);
	if (!q->qp && errno == EINVAL) { /* inline data may be the reason */
		a.cap.max_inline_data = 0;
		q->qp = v->lib->create_qp(port->pd, &a);
	}
	if (!q->qp)
		return te__vlink_fail_call(v, port, errno, "ibv_create_qp");
	if ((!i && !lane) || a.cap.max_inline_data < v->max_inline)
		v->max_inline = a.cap.max_inline_data;
	r = v->lib->modify_qp(q->qp, &init,
			      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	if (r)
		return te__vlink_fail_call(v, port, r, "ibv_modify_qp (INIT)");
	for (int k = 0; k < RECV_DEPTH && !r; k++)
		r = te__vlink_post_recv(v, i, lane);
	return r;
}

#define ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)

static int create_mr(struct vlink *v, struct vport *port, void *mem, size_t nbytes,
		     struct ibv_mr **ret)
{
	char text[160];
	int err;

	*ret = v->lib->reg_mr(port->pd, mem, nbytes, ACCESS);
	if (*ret)
		return 0;
	err = errno > 0 ? errno : EIO;
	return te__link_fail(&v->l, -err, "verbs: ibv_reg_mr of %zu bytes: %s%s; %s", nbytes,
			     strerror(err), err == ENOMEM ? " (ulimit -l may be too low)" : "",
			     te__verbs_port_text(&port->port, text, sizeof(text)));
}

static void release_device(struct vlink *v)
{
	for (int k = 0; k < v->nports; k++) {
		if (v->port[k].d_mr)
			v->lib->dereg_mr(v->port[k].d_mr);
		v->port[k].d_mr = NULL;
	}
	v->l.direct = 0;
}

/*
 * Register device memory with all ports or none: by its dma-buf or, if there is none or the kernel
 * does not accept it, by its address, which for a GPU needs the module nvidia-peermem.
 */
static void register_device(struct vlink *v)
{
	const struct te__link_opts *o = &v->l.o;
	char text[160];

	v->l.direct = o->device != NULL;
	for (int k = 0; k < v->nports && v->l.direct; k++) {
		struct vport *port = &v->port[k];
		int err = 0;

		if (o->device_fd >= 0)
			port->d_mr = v->lib->reg_dmabuf_mr(port->pd, 0, o->device_nbytes,
							   (uintptr_t)o->device, o->device_fd,
							   ACCESS);
		if (!port->d_mr)
			err = o->device_fd >= 0 ? errno : 0;
		if (!port->d_mr)
			port->d_mr = v->lib->reg_mr(port->pd, o->device, o->device_nbytes, ACCESS);
		if (port->d_mr)
			continue;
		err = err ? err : errno;
		te__log_info("messages pass through memory of the host: %s of %zu bytes of the "
			     "device: %s; %s",
			     o->device_fd >= 0 ? "ibv_reg_dmabuf_mr" : "ibv_reg_mr",
			     o->device_nbytes, strerror(err),
			     te__verbs_port_text(&port->port, text, sizeof(text)));
		release_device(v);
	}
}

static size_t control_nbytes(const struct vlink *v)
{
	return ((size_t)v->l.o.npeers + !v->l.o.npeers) * sizeof(struct control);
}

/* number of a port's lanes */
static int lanes_of(const struct vlink *v, int port)
{
	return (v->nlanes - port + v->nports - 1) / v->nports;
}

static int prepare_port(struct vlink *v, int k)
{
	const int depth = lanes_of(v, k) * (SEND_DEPTH + RECV_DEPTH);
	const struct te__link_opts *o = &v->l.o;
	struct vport *port = &v->port[k];
	struct ibv_context *ctx = port->port.ctx;
	int r;

	port->pd = v->lib->alloc_pd(ctx);
	if (!port->pd)
		return te__vlink_fail_call(v, port, errno, "ibv_alloc_pd");
	port->channel = v->lib->create_comp_channel(ctx);
	if (!port->channel)
		return te__vlink_fail_call(v, port, errno, "ibv_create_comp_channel");
	if (nonblocking(port->channel->fd) || nonblocking(ctx->async_fd))
		return te__vlink_fail_call(v, port, errno, "fcntl");
	port->cq = v->lib->create_cq(ctx, (o->npeers + 1) * depth, NULL, port->channel, 0);
	if (!port->cq)
		return te__vlink_fail_call(v, port, errno, "ibv_create_cq");
	r = create_mr(v, port, v->control, control_nbytes(v), &port->c_mr);
	if (!r && o->mem_nbytes)
		r = create_mr(v, port, o->mem, o->mem_nbytes, &port->mr);
	return r;
}

static int param(struct vlink *v, enum te__param which, const char *name, int lo, int hi,
		 int *ret)
{
	const int64_t n = te__param_int(which);

	*ret = (int)n;
	return n >= lo && n <= hi ? 0 : te__link_fail(&v->l, -EINVAL, "%s is %lld, expected %d to "
						      "%d", name, (long long)n, lo, hi);
}

static int open_ports(struct vlink *v)
{
	const struct te__link_opts *o = &v->l.o;
	const struct te__verbs_near near = {
		.pci = o->pci ? o->pci : "",
		.turn = te__boot_local_rank(o->boot, te__boot_rank(o->boot)),
	};
	struct te__verbs_port port[TE__VERBS_PORTS_MOST];
	const int n = te__verbs_ports_open(&near, port);

	if (n < 0)
		return n;
	for (int k = 0; k < n; k++)
		v->port[k].port = port[k];
	v->nports = n;
	v->lib = port[0].lib;
	return 0;
}

static int prepare(struct vlink *v)
{
	const struct te__link_opts *o = &v->l.o;
	int r, checked;

	if (o->npeers > PEERS_MOST)
		return te__link_fail(&v->l, -EINVAL, "verbs: %d peers, at most %d", o->npeers,
				     PEERS_MOST);
	r = param(v, TE_PARAM_COMM_IB_TIMEOUT, "TE_COMM_IB_TIMEOUT", 1, 31, &checked);
	if (!r)
		r = param(v, TE_PARAM_COMM_IB_TC, "TE_COMM_IB_TC", 0, 255, &checked);
	if (!r)
		r = param(v, TE_PARAM_COMM_IB_QPS, "TE_COMM_IB_QPS", 0, LANES_MOST, &v->nlanes);
	if (r)
		return r;
	v->peer = te__calloc((size_t)o->npeers + 1, sizeof(*v->peer));
	v->control = te__aligned_alloc(4096, control_nbytes(v));
	if (!v->peer || !v->control)
		return te__link_fail(&v->l, -ENOMEM, "verbs: no memory for %d peers", o->npeers);
	memset(v->control, 0, control_nbytes(v));
	v->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (v->wake_fd < 0)
		return te__link_fail(&v->l, -errno, "verbs: eventfd: %s", strerror(errno));
	r = open_ports(v);
	if (r)
		return r;
	if (!v->nlanes)
		v->nlanes = v->nports;
	for (int k = 0; k < v->nports && !r; k++)
		r = prepare_port(v, k);
	if (!r)
		register_device(v);
	for (int32_t i = 0; i < o->npeers && !r; i++) {
		v->peer[i].c = &v->control[i];
		for (int k = 0; k < v->nlanes && !r; k++)
			r = create_qp(v, i, k);
	}
	return r;
}

/* ---- connecting ---- */

static void fill(const struct vlink *v, struct te__verbs_hello *own)
{
	const struct te__link_opts *o = &v->l.o;

	own->nports = v->nports;
	own->nlanes = v->nlanes;
	own->psn = (uint32_t)te__boot_now() & 0xffffff;
	for (int k = 0; k < v->nports; k++) {
		const struct vport *p = &v->port[k];

		memcpy(own->port[k].gid, p->port.gid.gid.raw, sizeof(own->port[k].gid));
		own->port[k].lid = p->port.attr.lid;
		own->port[k].mtu = (uint8_t)p->port.attr.active_mtu;
		own->port[k].link_layer = p->port.attr.link_layer;
		own->port[k].rkey = p->mr ? p->mr->rkey : 0;
		own->port[k].d_rkey = p->d_mr ? p->d_mr->rkey : 0;
		own->port[k].c_rkey = p->c_mr->rkey;
	}
	for (int32_t i = 0; i < o->npeers; i++) {
		own->to[o->peers[i]].control = (uintptr_t)&v->control[i];
		for (int k = 0; k < v->nlanes; k++)
			own->to[o->peers[i]].qpn[k] = v->peer[i].lane[k].qp->qp_num;
	}
}

static const struct te__verbs_hello *hello_of(const struct te__verbs_hello *all, size_t nbytes,
					      int32_t rank)
{
	return (const void *)((const char *)all + (size_t)rank * nbytes);
}

/* Collective: all hellos, which the caller frees; r: this rank's code. NULL: *ret is the error */
static struct te__verbs_hello *exchange(struct vlink *v, int r, const struct te__verbs_hello *own,
					size_t nbytes, int *ret)
{
	struct te__boot *boot = v->l.o.boot;
	struct te__verbs_hello *all;
	char text[120];

	all = te__gather(boot, &r, own, nbytes, "exchange of verbs addresses", 0);
	for (int32_t i = 0; i < te__boot_nranks(boot) && !r; i++) {
		r = te__verbs_hello_check(hello_of(all, nbytes, i), text, sizeof(text));
		if (r)
			te__fail(r, "verbs: %s: %s", te__boot_peer(boot, i), text);
	}
	*ret = r ? te__link_fail(&v->l, r, "%s", te_error_detail()) : 0;
	return all;
}

static int connect_lane(struct vlink *v, int32_t i, int lane, uint32_t own_psn,
			const struct te__verbs_hello *h)
{
	const struct vport *port = te__vlink_port(v, lane);
	const struct ibv_port_attr *attr = &port->port.attr;
	const int32_t rank = te__boot_rank(v->l.o.boot);
	const int there = lane % h->nports;
	struct lane *q = &v->peer[i].lane[lane];
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = h->port[there].mtu < attr->active_mtu ? h->port[there].mtu
								  : attr->active_mtu,
		.dest_qp_num = h->to[rank].qpn[lane],
		.rq_psn = h->psn,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = { .dlid = h->port[there].lid, .port_num = port->port.port },
	};
	struct ibv_qp_attr rts = {
		.qp_state = IBV_QPS_RTS,
		.timeout = (uint8_t)te__param_int(TE_PARAM_COMM_IB_TIMEOUT),
		.retry_cnt = RETRIES,
		.rnr_retry = RNR_RETRIES,
		.sq_psn = own_psn,
		.max_rd_atomic = 1,
	};
	int r;

	if (h->port[there].link_layer != attr->link_layer)
		return te__link_fail(&v->l, -TE_EMISMATCH, "verbs: the link layer of %s is %s, "
				     "the link layer of this rank is not", te__vlink_name(v, i),
				     h->port[there].link_layer == IBV_LINK_LAYER_ETHERNET
					     ? "Ethernet" : "InfiniBand");
	if (port->port.gid_chosen) {
		rtr.ah_attr.is_global = 1;
		rtr.ah_attr.grh.hop_limit = 64;
		rtr.ah_attr.grh.sgid_index = (uint8_t)port->port.gid.gid_index;
		rtr.ah_attr.grh.traffic_class = (uint8_t)te__param_int(TE_PARAM_COMM_IB_TC);
		memcpy(rtr.ah_attr.grh.dgid.raw, h->port[there].gid, sizeof(h->port[there].gid));
	}
	q->rkey = h->port[there].rkey;
	q->d_rkey = h->port[there].d_rkey;
	q->c_rkey = h->port[there].c_rkey;
	v->peer[i].remote_c = h->to[rank].control;
	r = v->lib->modify_qp(q->qp, &rtr,
			      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
			      IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	if (r)
		return te__vlink_fail_call(v, port, r, "ibv_modify_qp (RTR)");
	r = v->lib->modify_qp(q->qp, &rts,
			      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			      IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
	return r ? te__vlink_fail_call(v, port, r, "ibv_modify_qp (RTS)") : 0;
}

static int connect_all(struct vlink *v, const struct te__verbs_hello *own,
		       const struct te__verbs_hello *all, size_t nbytes)
{
	int r = 0;

	/* as many lanes as all ranks have */
	for (int32_t i = 0; i < te__boot_nranks(v->l.o.boot); i++)
		if (hello_of(all, nbytes, i)->nlanes < v->nlanes)
			v->nlanes = hello_of(all, nbytes, i)->nlanes;
	for (int32_t i = 0; i < v->l.o.npeers; i++)
		for (int k = 0; k < v->nlanes && !r; k++)
			r = connect_lane(v, i, k, own->psn,
					 hello_of(all, nbytes, v->l.o.peers[i]));
	return r;
}

static int is_shaken(const struct vlink *v, int32_t i)
{
	const struct peer *p = &v->peer[i];

	for (int k = 0; k < v->nlanes; k++)
		if (!p->lane[k].wr_done)
			return 0;
	return __atomic_load_n(&p->c->beat_in, __ATOMIC_ACQUIRE) != 0;
}

/* Send each peer a heartbeat on each lane; its acknowledgement shows that data passes both ways. */
static int handshake(struct vlink *v)
{
	const int64_t deadline = te__boot_deadline(v->l.o.boot);
	const int32_t n = v->l.o.npeers;
	int r = 0;

	v->now = te__boot_now();
	v->beat_due = v->now + (int64_t)v->l.o.heartbeat_ms * 250000;
	for (int32_t i = 0; i < n && !r; i++) {
		v->peer[i].heard_ns = v->now;
		for (int k = 0; k < v->nlanes && !r; k++)
			r = te__vlink_post_beat(v, i, k, 1);
	}
	for (int32_t i = 0; i < n && !r;) {
		int woken = 0;

		if (is_shaken(v, i)) {
			i++;
			continue;
		}
		r = te__vlink_progress(v);
		if (!r && v->now >= deadline)
			r = te__link_fail(&v->l, -ETIMEDOUT, "verbs: nothing arrives from %s",
					  te__vlink_name(v, i));
		if (!r)
			r = te__vlink_rest(v, v->now + 1000000, &woken);
	}
	return r;
}

int te__vlink_open(struct te__link *l)
{
	struct vlink *v = te__vlink(l);
	struct te__boot *boot = l->o.boot;
	const size_t nbytes = te__verbs_hello_nbytes(te__boot_nranks(boot));
	struct te__verbs_hello *own = te__calloc(1, nbytes), *all;
	int r;

	v->wake_fd = -1;
	v->opened = 1;
	if (!own) {
		te__boot_abort(boot, "no memory for a link");
		return te__link_fail(l, -ENOMEM, "verbs: no memory for a link");
	}
	r = prepare(v);
	if (!r)
		fill(v, own);
	all = exchange(v, r, own, nbytes, &r);
	if (!r) {
		r = te__agree(boot, connect_all(v, own, all, nbytes), "connection of queue pairs");
		if (r)
			r = te__link_fail(l, r, "%s", te_error_detail());
	}
	te__free(own);
	te__free(all);
	if (r)
		return r;
	v->connected = 1;
	r = handshake(v);
	for (int k = 0; k < v->nports && !r; k++)
		te__log_info("%d peers, %d of %d queue pairs each on device %s port %d",
			     l->o.npeers, lanes_of(v, k), v->nlanes, v->port[k].port.name,
			     v->port[k].port.port);
	return r;
}

/* ---- closing ---- */

/* Tell the peers that this rank closes: waiting ones fail, others see that it is not a failure. */
static void say_bye(struct vlink *v)
{
	const int64_t deadline = te__boot_now() + BYE_NS;
	int left = 1, woken, r = 0;

	v->closing = 1;
	v->now = te__boot_now();
	for (int32_t i = 0; i < v->l.o.npeers; i++) {
		struct peer *p = &v->peer[i];

		if (p->parting || te__vlink_post_bye(v, i))
			p->bye = -1;
	}
	while (left && !r && te__boot_now() < deadline) {
		r = te__vlink_progress(v);
		left = 0;
		for (int32_t i = 0; i < v->l.o.npeers; i++) {
			const struct peer *p = &v->peer[i];
			const struct lane *q = &p->lane[p->bye < 0 ? 0 : p->bye];

			left += p->bye >= 0 && !p->gone && !q->broken && q->wr_done < q->wr;
		}
		if (left && !r)
			r = te__vlink_rest(v, deadline, &woken);
	}
}

static void close_port(struct vlink *v, struct vport *port)
{
	if (port->cq)
		v->lib->destroy_cq(port->cq);
	if (port->mr)
		v->lib->dereg_mr(port->mr);
	if (port->c_mr)
		v->lib->dereg_mr(port->c_mr);
	if (port->channel)
		v->lib->destroy_comp_channel(port->channel);
	if (port->pd)
		v->lib->dealloc_pd(port->pd);
	te__verbs_port_close(&port->port);
}

void te__vlink_close(struct te__link *l)
{
	struct vlink *v = te__vlink(l);

	if (!v->opened)
		return;
	if (v->connected)
		say_bye(v);
	for (int32_t i = 0; v->peer && i < l->o.npeers; i++)
		for (int k = 0; k < LANES_MOST; k++)
			if (v->peer[i].lane[k].qp)
				v->lib->destroy_qp(v->peer[i].lane[k].qp);
	release_device(v);
	for (int k = 0; k < v->nports; k++)
		close_port(v, &v->port[k]);
	if (v->wake_fd >= 0)
		close(v->wake_fd);
	te__free(v->control);
	te__free(v->peer);
}
