/*
 * verbs.c - messages over reliable connections of an RDMA device.
 *
 * Each pair of ranks has one queue pair. A rank announces each receive to the peer, with its
 * address, by a write with immediate data into a ring of the peer; the peer writes the message
 * there, the last chunk with immediate data. So data arrives where it is wanted, every message and
 * every announcement is one completion, in order, and there is no flow control but the counters of
 * transfers: of TE__LINK_QUEUE announced receives at most so many messages are under way, and
 * receive requests for all of them are posted at all times. A sender never meets a receiver that is
 * not ready.
 *
 * A word of each rank in the memory of each peer counts heartbeats. Its write is no completion, so
 * it does not end a sleep: it is looked at when it is due. A rank that closes its link writes a
 * last value, with BYE, which the peer is told of, and before that why its link has failed, if it
 * has.
 */
#include "config.h"

#define TE_LOG_CATEGORY "comm/verbs"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "libtecomm/bootstrap/boot.h"
#include "libtecomm/transport/verbs/verbs.h"

#define QUEUE TE__LINK_QUEUE
#define CHUNK (512u << 10) /* bytes of a write; heartbeats pass between chunks */
#define WINDOW 8	   /* chunks under way to a peer, besides single-chunk messages */
#define SEND_DEPTH 192
#define RECV_DEPTH (2 * QUEUE + 16)
#define SIGNAL_EVERY 16 /* send requests, of which an unsignalled one keeps its place */
#define INLINE_WANTED 256
#define BATCH 32	    /* completions that are polled at once */
#define SPIN_NS 50000	    /* before sleeping */
#define BYE_NS 200000000LL /* for peers to acknowledge that this rank closes */
#define RETRIES 6	    /* soft-RoCE takes 7 for endless */
#define RNR_RETRIES 3

/* a last heartbeat: how many receives are complete, and the bytes of why the link has failed */
#define BYE (UINT64_C(1) << 63)
#define BYE_SHIFT 48
#define BYE_RECEIVES ((UINT64_C(1) << BYE_SHIFT) - 1)

/* immediate data: a kind, and the low bits of a sequence number */
enum { IMM_ANNOUNCE, IMM_DATA, IMM_BYE };
#define IMM(kind, seq) ((uint32_t)(kind) << 30 | ((uint32_t)(seq) & 0x3fffffff))

/* of requests: a receive or not, the peer, the number of the send request */
#define ID_RECV (UINT64_C(1) << 63)
#define ID_SHIFT 44
#define ID_MASK ((UINT64_C(1) << ID_SHIFT) - 1)
#define PEERS_MOST (1 << 18)

struct announce {
	uint64_t addr, nbytes, seq, unused;
};

/* for each peer, in registered memory; the peer writes in[], beat_in and why_in */
struct control {
	struct announce in[QUEUE], out[QUEUE];
	uint64_t beat_in, beat_out;
	uint8_t why_in[TE__REFUSE_MOST], why_out[TE__REFUSE_MOST];
};

struct transfer {
	const void *buf;
	size_t nbytes;
	uint64_t last; /* number of the last request of a send, once posted */
};

struct peer {
	struct ibv_qp *qp;
	struct control *c;
	uint64_t remote_c; /* its address in the peer's memory */
	uint32_t rkey, c_rkey;
	struct transfer send[QUEUE], recv[QUEUE];
	uint64_t nsend, nrecv; /* queued */
	uint64_t posted;       /* sends, completely */
	size_t at;	       /* bytes of the next one that are posted */
	uint64_t granted;      /* receives that the peer has announced */
	uint64_t announced;    /* receives that this rank has announced */
	/* send requests: posted, complete, and posted since the last signalled one */
	uint64_t wr, wr_done;
	int unsignalled;
	uint64_t chunk[WINDOW], nchunks, nchunks_done;
	uint64_t beat;	   /* the last one seen */
	int64_t heard_ns, told_ns;
	int gone, broken;
};

struct vlink {
	struct te__link l;
	const struct te__verbs_lib *lib;
	struct te__verbs_port port;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_mr *mr, *c_mr;
	struct control *control;
	struct peer *peer;
	uint32_t max_inline;
	int wake_fd;
	int opened, connected, closing;
	int armed;    /* an event follows the next completion */
	int drained;  /* the last poll found none */
	int advanced; /* transfers are complete since the last te__link_poll() */
	int64_t now, beat_due;
};

static struct vlink *of(struct te__link *l)
{
	return (struct vlink *)(void *)l;
}

static const char *name(const struct vlink *v, int32_t i)
{
	return te__boot_peer(v->l.o.boot, v->l.o.peers[i]);
}

/* ---- failures ---- */

static int fail_call(struct vlink *v, int err, const char *call)
{
	char port[160];

	err = err > 0 ? err : EIO;
	return te__link_fail(&v->l, -err, "verbs: %s: %s; %s", call, strerror(err),
			     te__verbs_port_text(&v->port, port, sizeof(port)));
}

static int fail_gone(struct vlink *v, int32_t i)
{
	return te__link_fail(&v->l, -TE_EPEER, "%s has closed its communicator", name(v, i));
}

static int fail_wc(struct vlink *v, int32_t i, const struct ibv_wc *wc)
{
	char port[160];
	int code = -TE_EPEER;

	switch (wc->status) {
	case IBV_WC_LOC_LEN_ERR:
	case IBV_WC_LOC_PROT_ERR:
	case IBV_WC_REM_ACCESS_ERR:
	case IBV_WC_REM_INV_REQ_ERR:
		code = -EIO;
		break;
	default:
		break;
	}
	te__link_fail(&v->l, code, "%s: %s (status %d, vendor error 0x%x); %s", name(v, i),
		      v->lib->wc_status_str(wc->status), wc->status, wc->vendor_err,
		      te__verbs_port_text(&v->port, port, sizeof(port)));
	return te__fail_verbs(v->l.code, wc->status, "%s", v->l.why);
}

/* ---- requests ---- */

static int room(const struct peer *p)
{
	return p->wr - p->wr_done < SEND_DEPTH - 2; /* which are for post_bye() */
}

/* kind: IMM() of a write with immediate data, or -1. There must be room. */
static int post(struct vlink *v, int32_t i, const void *from, uint32_t lkey, size_t nbytes,
		uint64_t to, uint32_t rkey, int64_t imm, int signal)
{
	struct peer *p = &v->peer[i];
	struct ibv_sge sge = { (uintptr_t)from, (uint32_t)nbytes, lkey };
	struct ibv_send_wr wr = {
		.wr_id = (uint64_t)i << ID_SHIFT | ((p->wr + 1) & ID_MASK),
		.sg_list = &sge,
		.num_sge = nbytes > 0,
		.opcode = imm < 0 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_WRITE_WITH_IMM,
		.imm_data = htonl((uint32_t)imm),
		.wr.rdma = { to, rkey },
	};
	struct ibv_send_wr *bad;
	int r;

	if (signal || p->unsignalled + 1 >= SIGNAL_EVERY)
		wr.send_flags |= IBV_SEND_SIGNALED;
	if (nbytes && nbytes <= v->max_inline)
		wr.send_flags |= IBV_SEND_INLINE;
	r = v->lib->post_send(p->qp, &wr, &bad);
	if (r)
		return fail_call(v, r, "ibv_post_send");
	p->wr++;
	p->unsignalled = wr.send_flags & IBV_SEND_SIGNALED ? 0 : p->unsignalled + 1;
	if (imm >= 0)
		p->told_ns = v->now;
	return 0;
}

static int post_recv(struct vlink *v, int32_t i)
{
	struct ibv_recv_wr wr = { .wr_id = ID_RECV | (uint64_t)i << ID_SHIFT }, *bad;
	const int r = v->lib->post_recv(v->peer[i].qp, &wr, &bad);

	return r ? fail_call(v, r, "ibv_post_recv") : 0;
}

static int post_beat(struct vlink *v, int32_t i)
{
	struct peer *p = &v->peer[i];
	int r;

	/* the device may still read the value before: it then sends the new one twice */
	__atomic_store_n(&p->c->beat_out, p->c->beat_out + 1, __ATOMIC_RELEASE);
	r = post(v, i, &p->c->beat_out, v->c_mr->lkey, sizeof(p->c->beat_out),
		 p->remote_c + offsetof(struct control, beat_in), p->c_rkey, -1, 0);
	p->told_ns = v->now;
	return r;
}

static int post_announce(struct vlink *v, int32_t i)
{
	struct peer *p = &v->peer[i];
	const uint64_t seq = p->announced, at = seq % QUEUE;
	const struct transfer *t = &p->recv[at];
	struct announce *a = &p->c->out[at];

	*a = (struct announce){ (uintptr_t)t->buf, t->nbytes, seq, 0 };
	p->announced++;
	return post(v, i, a, v->c_mr->lkey, sizeof(*a),
		    p->remote_c + offsetof(struct control, in) + at * sizeof(*a), p->c_rkey,
		    IMM(IMM_ANNOUNCE, seq), 0);
}

/* the next chunk of the first send that is not completely posted, which the peer expects */
static int post_data(struct vlink *v, int32_t i)
{
	struct peer *p = &v->peer[i];
	const uint64_t at = p->posted % QUEUE;
	struct transfer *t = &p->send[at];
	const struct announce a = p->c->in[at];
	const size_t left = t->nbytes - p->at, n = left < CHUNK ? left : CHUNK;
	int r;

	if (a.seq != p->posted)
		return te__link_fail(&v->l, -TE_EMISMATCH, "%s announced receive %llu, expected "
				     "%llu", name(v, i), (unsigned long long)a.seq,
				     (unsigned long long)p->posted);
	if (a.nbytes != t->nbytes)
		return te__link_fail(&v->l, -TE_EMISMATCH, "%s receives %llu bytes, this rank "
				     "sends %zu", name(v, i), (unsigned long long)a.nbytes,
				     t->nbytes);
	r = post(v, i, (const char *)t->buf + p->at, v->mr ? v->mr->lkey : 0, n, a.addr + p->at,
		 p->rkey, n == left ? (int64_t)IMM(IMM_DATA, p->posted) : -1, 1);
	if (r)
		return r;
	p->at += n;
	if (t->nbytes > CHUNK)
		p->chunk[p->nchunks++ % WINDOW] = p->wr;
	if (p->at == t->nbytes) {
		t->last = p->wr;
		p->posted++;
		p->at = 0;
	}
	return 0;
}

/* whether a chunk may be posted */
static int window(const struct peer *p)
{
	return p->send[p->posted % QUEUE].nbytes <= CHUNK || p->nchunks - p->nchunks_done < WINDOW;
}

/* posts what can be */
static int advance(struct vlink *v, int32_t i)
{
	struct peer *p = &v->peer[i];
	int r = 0;

	if (v->closing || p->gone || p->broken)
		return 0;
	while (!r && p->announced < p->nrecv && room(p))
		r = post_announce(v, i);
	while (!r && p->posted < p->nsend && p->posted < p->granted && room(p) && window(p))
		r = post_data(v, i);
	return r;
}

/* ---- completions ---- */

static void sent(struct vlink *v, int32_t i, uint64_t id)
{
	struct peer *p = &v->peer[i];
	struct te__link_counts *c = &v->l.sends[i];

	p->wr_done += (id - p->wr_done) & ID_MASK;
	while (p->nchunks_done < p->nchunks && p->chunk[p->nchunks_done % WINDOW] <= p->wr_done)
		p->nchunks_done++;
	while (c->complete < p->posted && p->send[c->complete % QUEUE].last <= p->wr_done) {
		c->complete++;
		v->advanced = 1;
	}
}

/* whether transfers with the peer are queued and not complete */
static int pending(const struct vlink *v, int32_t i)
{
	const struct peer *p = &v->peer[i];

	return p->nsend != v->l.sends[i].complete || p->nrecv != v->l.receives[i].complete;
}

static int said_bye(struct vlink *v, int32_t i)
{
	struct peer *p = &v->peer[i];
	const uint64_t word = p->c->beat_in, received = word & BYE_RECEIVES;
	char text[TE__REFUSE_MOST];
	int code;

	p->gone = 1;
	/* acknowledgements of what it has received may not arrive any more */
	if (received > v->l.sends[i].complete && received <= p->posted) {
		v->l.sends[i].complete = received;
		v->advanced = 1;
	}
	if (v->closing)
		return 0;
	if (!te__refuse_get(p->c->why_in, (size_t)((word & ~BYE) >> BYE_SHIFT), &code, text))
		return te__link_fail(&v->l, code, "%s", text);
	return pending(v, i) ? fail_gone(v, i) : 0;
}

static int received(struct vlink *v, int32_t i, const struct ibv_wc *wc)
{
	struct peer *p = &v->peer[i];
	struct te__link_counts *c = &v->l.receives[i];
	const uint32_t imm = ntohl(wc->imm_data);
	const uint32_t kind = imm >> 30;
	int r;

	p->heard_ns = v->now;
	if (kind == IMM_BYE)
		return said_bye(v, i);
	/* before anything is sent to the peer that lets it send more */
	r = v->closing ? 0 : post_recv(v, i);
	if (r)
		return r;
	if (kind == IMM_ANNOUNCE && imm == IMM(kind, p->granted)) {
		p->granted++;
		return 0;
	}
	if (kind == IMM_DATA && c->complete < p->announced && imm == IMM(kind, c->complete)) {
		c->complete++;
		v->advanced = 1;
		return 0;
	}
	return te__link_fail(&v->l, -TE_EMISMATCH, "%s sent the immediate data 0x%x, which is not "
			     "expected", name(v, i), imm);
}

static int complete(struct vlink *v, const struct ibv_wc *wc)
{
	const int32_t i = (int32_t)((wc->wr_id & ~ID_RECV) >> ID_SHIFT);
	struct peer *p = &v->peer[i];
	int r = 0;

	if (wc->status != IBV_WC_SUCCESS) {
		const int ends = !p->gone && !p->broken && !v->closing;

		p->broken = 1;
		return ends ? fail_wc(v, i, wc) : 0;
	}
	if (wc->wr_id & ID_RECV)
		r = received(v, i, wc);
	else
		sent(v, i, wc->wr_id & ID_MASK);
	return r ? r : advance(v, i);
}

/* ---- heartbeats and events ---- */

static int64_t ns(int32_t ms)
{
	return (int64_t)ms * 1000000;
}

/*
 * Four times a heartbeat, if the caller polls as often. A beat is sent after half of one, so also a
 * peer that polls once a heartbeat is heard within one and a half; 7/4 and this interval are two.
 */
static int beats(struct vlink *v)
{
	const int64_t beat = ns(v->l.o.heartbeat_ms);
	int64_t late;
	int r = 0;

	if (v->now < v->beat_due)
		return 0;
	/* the time in which this rank did not poll is not that of its peers */
	late = v->now - v->beat_due > beat ? v->now - v->beat_due : 0;
	v->beat_due = v->now + beat / 4;
	for (int32_t i = 0; i < v->l.o.npeers && !r; i++) {
		struct peer *p = &v->peer[i];
		const uint64_t word = __atomic_load_n(&p->c->beat_in, __ATOMIC_ACQUIRE);

		p->heard_ns = p->heard_ns + late < v->now ? p->heard_ns + late : v->now;
		if (word != p->beat) {
			p->beat = word;
			p->heard_ns = v->now;
		}
		if (v->closing || p->gone || p->broken)
			continue;
		if (v->now - p->heard_ns >= beat / 4 * 7) {
			char time[24], port[160];

			r = te__link_fail(&v->l, -ETIMEDOUT, "%s has been silent for %s "
					  "(TE_COMM_HEARTBEAT_MS); %s", name(v, i),
					  te__time_text(v->now - p->heard_ns, time),
					  te__verbs_port_text(&v->port, port, sizeof(port)));
		} else if (v->now - p->told_ns >= beat / 2 && room(p)) {
			r = post_beat(v, i);
		}
	}
	return r;
}

static int async_events(struct vlink *v)
{
	struct ibv_async_event e;
	int r = 0;

	while (!r && !v->lib->get_async_event(v->port.ctx, &e)) {
		const char *text = v->lib->event_type_str(e.event_type);
		const enum ibv_event_type type = e.event_type;

		v->lib->ack_async_event(&e);
		switch (type) {
		case IBV_EVENT_CQ_ERR:
		case IBV_EVENT_QP_FATAL:
		case IBV_EVENT_QP_REQ_ERR:
		case IBV_EVENT_QP_ACCESS_ERR:
		case IBV_EVENT_DEVICE_FATAL: {
			char port[160];

			if (v->closing)
				break;
			r = te__link_fail(&v->l, -EIO, "verbs: %s; %s", text,
					  te__verbs_port_text(&v->port, port, sizeof(port)));
			break;
		}
		default:
			/* a port may come back before requests time out */
			te__log_info("device %s port %d: %s", v->port.name, v->port.port, text);
		}
	}
	return r;
}

static int progress(struct vlink *v)
{
	struct ibv_wc wc[BATCH];
	int r = 0, n = 1;

	v->now = te__boot_now();
	for (int k = 0; k < 16 && n > 0 && !r; k++) {
		n = v->lib->poll_cq(v->cq, BATCH, wc);
		if (n < 0)
			return fail_call(v, EIO, "ibv_poll_cq");
		for (int j = 0; j < n && !r; j++)
			r = complete(v, &wc[j]);
	}
	v->drained = !n;
	return r ? r : beats(v);
}

static int ended_sleep(struct vlink *v)
{
	struct ibv_cq *cq;
	void *user;

	if (v->lib->get_cq_event(v->channel, &cq, &user))
		return errno == EAGAIN ? 0 : fail_call(v, errno, "ibv_get_cq_event");
	v->lib->ack_cq_events(cq, 1);
	v->armed = 0;
	return 0;
}

/* Until a completion, te__link_wake() (*ret_woken), or a time. Completions may be there already. */
static int rest(struct vlink *v, int64_t until_ns, int *ret_woken)
{
	struct pollfd p[] = {
		{ .fd = v->wake_fd, .events = POLLIN },
		{ .fd = v->channel->fd, .events = POLLIN },
		{ .fd = v->port.ctx->async_fd, .events = POLLIN },
	};
	int64_t left;
	uint64_t count;
	int r = 0;

	if (!v->armed) {
		r = v->lib->req_notify_cq(v->cq, 0);
		if (r)
			return fail_call(v, r, "ibv_req_notify_cq");
		v->armed = 1;
		return 0; /* the caller polls again: one may have come before */
	}
	if (until_ns > v->beat_due)
		until_ns = v->beat_due;
	left = until_ns - te__boot_now();
	left = left < 0 ? 0 : left;
	if (ppoll(p, 3, &(struct timespec){ left / 1000000000, left % 1000000000 }, NULL) < 0)
		return errno == EINTR ? 0 : fail_call(v, errno, "poll");
	if (p[0].revents && read(v->wake_fd, &count, sizeof(count)) == sizeof(count))
		*ret_woken = 1;
	if (p[1].revents)
		r = ended_sleep(v);
	if (!r && p[2].revents)
		r = async_events(v);
	return r;
}

static int vl_poll(struct te__link *l, int64_t deadline_ns)
{
	struct vlink *v = of(l);
	int64_t idle_ns = te__boot_now();
	int r, woken = 0;

	for (;;) {
		r = progress(v);
		if (r)
			return r;
		if (v->advanced || woken || v->now >= deadline_ns) {
			v->advanced = 0;
			return 0;
		}
		if (!v->drained)
			idle_ns = v->now;
		else if (v->now - idle_ns >= SPIN_NS)
			r = rest(v, deadline_ns, &woken);
		if (r)
			return r;
	}
}

static void vl_wake(struct te__link *l)
{
	const uint64_t one = 1;

	/* fails if there are 2^64 wakes already */
	if (write(of(l)->wake_fd, &one, sizeof(one)) < 0)
		te__log_debug("wake: %s", strerror(errno));
}

/* ---- transfers ---- */

static int vl_send(struct te__link *l, int32_t i, const void *buf, size_t nbytes)
{
	struct vlink *v = of(l);
	struct peer *p = &v->peer[i];

	if (p->gone)
		return fail_gone(v, i);
	p->send[p->nsend++ % QUEUE] = (struct transfer){ buf, nbytes, 0 };
	return advance(v, i);
}

static int vl_recv(struct te__link *l, int32_t i, void *buf, size_t nbytes)
{
	struct vlink *v = of(l);
	struct peer *p = &v->peer[i];

	if (p->gone)
		return fail_gone(v, i);
	p->recv[p->nrecv++ % QUEUE] = (struct transfer){ buf, nbytes, 0 };
	return advance(v, i);
}

/* ---- opening ---- */

/* what ranks exchange; code is not 0 if the rank has failed, for the reason in text */
struct hello {
	int32_t code;
	char text[200];
	uint8_t gid[16];
	uint16_t lid;
	uint8_t mtu, link_layer;
	uint32_t rkey, c_rkey;
	uint32_t psn;
	struct {
		uint32_t qpn, pad;
		uint64_t control;
	} to[]; /* by rank */
};

static int nonblocking(int fd)
{
	const int flags = fcntl(fd, F_GETFL);

	return flags < 0 ? flags : fcntl(fd, F_SETFL, flags | O_NONBLOCK);
}

static int create_qp(struct vlink *v, int32_t i)
{
	struct ibv_qp_init_attr a = {
		.send_cq = v->cq,
		.recv_cq = v->cq,
		.cap = { SEND_DEPTH, RECV_DEPTH, 1, 1, INLINE_WANTED },
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_qp_attr init = {
		.qp_state = IBV_QPS_INIT,
		.port_num = v->port.port,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
	};
	struct peer *p = &v->peer[i];
	int r;

	p->qp = v->lib->create_qp(v->pd, &a);
	if (!p->qp && errno == EINVAL) { /* inline data may be the reason */
		a.cap.max_inline_data = 0;
		p->qp = v->lib->create_qp(v->pd, &a);
	}
	if (!p->qp)
		return fail_call(v, errno, "ibv_create_qp");
	if (!i || a.cap.max_inline_data < v->max_inline)
		v->max_inline = a.cap.max_inline_data;
	r = v->lib->modify_qp(p->qp, &init,
			      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	if (r)
		return fail_call(v, r, "ibv_modify_qp (INIT)");
	for (int k = 0; k < RECV_DEPTH && !r; k++)
		r = post_recv(v, i);
	return r;
}

static int fail_register(struct vlink *v, size_t nbytes)
{
	const int err = errno > 0 ? errno : EIO;
	char port[160];

	return te__link_fail(&v->l, -err, "verbs: ibv_reg_mr of %zu bytes: %s%s; %s", nbytes,
			     strerror(err),
			     err == ENOMEM ? " (ulimit -l may be too low)" : "",
			     te__verbs_port_text(&v->port, port, sizeof(port)));
}

/* all that needs no other rank */
static int prepare(struct vlink *v)
{
	const struct te__link_opts *o = &v->l.o;
	const size_t n = (size_t)o->npeers, nbytes = (n ? n : 1) * sizeof(*v->control);
	const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	const int64_t timeout = te__param_int(TE_PARAM_COMM_IB_TIMEOUT);
	int r;

	if (o->npeers > PEERS_MOST)
		return te__link_fail(&v->l, -EINVAL, "verbs: %d peers, at most %d", o->npeers,
				     PEERS_MOST);
	if (timeout < 1 || timeout > 31)
		return te__link_fail(&v->l, -EINVAL, "TE_COMM_IB_TIMEOUT is %lld, expected 1 to 31",
				     (long long)timeout);
	v->peer = te__calloc(n + 1, sizeof(*v->peer));
	v->control = te__aligned_alloc(4096, nbytes);
	if (!v->peer || !v->control)
		return te__link_fail(&v->l, -ENOMEM, "verbs: no memory for %zu peers", n);
	memset(v->control, 0, nbytes);
	v->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (v->wake_fd < 0)
		return te__link_fail(&v->l, -errno, "verbs: eventfd: %s", strerror(errno));
	r = te__verbs_port_open(&v->port);
	if (r)
		return r;
	v->lib = v->port.lib;
	v->pd = v->lib->alloc_pd(v->port.ctx);
	if (!v->pd)
		return fail_call(v, errno, "ibv_alloc_pd");
	v->channel = v->lib->create_comp_channel(v->port.ctx);
	if (!v->channel)
		return fail_call(v, errno, "ibv_create_comp_channel");
	if (nonblocking(v->channel->fd) || nonblocking(v->port.ctx->async_fd))
		return fail_call(v, errno, "fcntl");
	v->cq = v->lib->create_cq(v->port.ctx, (int)(n + 1) * (SEND_DEPTH + RECV_DEPTH), NULL,
				  v->channel, 0);
	if (!v->cq)
		return fail_call(v, errno, "ibv_create_cq");
	v->c_mr = v->lib->reg_mr(v->pd, v->control, nbytes, access);
	if (!v->c_mr)
		return fail_register(v, nbytes);
	if (o->mem_nbytes) {
		v->mr = v->lib->reg_mr(v->pd, o->mem, o->mem_nbytes, access);
		if (!v->mr)
			return fail_register(v, o->mem_nbytes);
	}
	for (int32_t i = 0; i < o->npeers && !r; i++) {
		v->peer[i].c = &v->control[i];
		r = create_qp(v, i);
	}
	return r;
}

/* Collective: r is this rank's code. Fails on all ranks if one has failed, with its message. */
static int agree(struct vlink *v, int r, struct hello *own, struct hello *all, size_t nbytes,
		 const char *what)
{
	struct te__boot *boot = v->l.o.boot;

	own->code = r;
	snprintf(own->text, sizeof(own->text), "%s", r ? te_error_detail() : "");
	r = te__boot_allgather(boot, own, all, nbytes, what, te__boot_deadline(boot));
	if (r)
		return te__link_fail(&v->l, r, "%s", te_error_detail());
	if (own->code)
		return te__link_fail(&v->l, own->code, "%s", own->text);
	for (int32_t i = 0; i < te__boot_nranks(boot); i++) {
		const struct hello *h = (const void *)((const char *)all + (size_t)i * nbytes);

		if (h->code)
			return te__link_fail(&v->l, h->code, "%s: %.*s", te__boot_peer(boot, i),
					     (int)sizeof(h->text) - 1, h->text);
	}
	return 0;
}

static int connect_peer(struct vlink *v, int32_t i, uint32_t own_psn, const struct hello *h)
{
	const struct te__verbs_port *port = &v->port;
	const int32_t rank = te__boot_rank(v->l.o.boot);
	struct peer *p = &v->peer[i];
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = h->mtu < port->attr.active_mtu ? h->mtu : port->attr.active_mtu,
		.dest_qp_num = h->to[rank].qpn,
		.rq_psn = h->psn,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = { .dlid = h->lid, .port_num = port->port },
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

	if (h->link_layer != port->attr.link_layer)
		return te__link_fail(&v->l, -TE_EMISMATCH, "verbs: the link layer of %s is %s, "
				     "that of this rank is not", name(v, i),
				     h->link_layer == IBV_LINK_LAYER_ETHERNET ? "Ethernet"
									     : "InfiniBand");
	if (port->gid_chosen) {
		rtr.ah_attr.is_global = 1;
		rtr.ah_attr.grh.hop_limit = 64;
		rtr.ah_attr.grh.sgid_index = (uint8_t)port->gid.gid_index;
		rtr.ah_attr.grh.traffic_class = (uint8_t)te__param_int(TE_PARAM_COMM_IB_TC);
		memcpy(rtr.ah_attr.grh.dgid.raw, h->gid, sizeof(h->gid));
	}
	p->rkey = h->rkey;
	p->c_rkey = h->c_rkey;
	p->remote_c = h->to[rank].control;
	r = v->lib->modify_qp(p->qp, &rtr,
			      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
			      IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	if (r)
		return fail_call(v, r, "ibv_modify_qp (RTR)");
	r = v->lib->modify_qp(p->qp, &rts,
			      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			      IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
	return r ? fail_call(v, r, "ibv_modify_qp (RTS)") : 0;
}

/* A heartbeat to and from each peer: data passes, both ways. */
static int handshake(struct vlink *v)
{
	const int64_t deadline = te__boot_deadline(v->l.o.boot);
	const int32_t n = v->l.o.npeers;
	int r = 0;

	v->now = v->beat_due = te__boot_now();
	for (int32_t i = 0; i < n && !r; i++) {
		v->peer[i].heard_ns = v->now;
		r = post_beat(v, i);
	}
	for (int32_t i = 0; i < n && !r;) {
		int woken = 0;

		if (__atomic_load_n(&v->peer[i].c->beat_in, __ATOMIC_ACQUIRE)) {
			i++;
			continue;
		}
		r = progress(v);
		if (!r && v->now >= deadline)
			r = te__link_fail(&v->l, -ETIMEDOUT, "verbs: nothing arrives from %s",
					  name(v, i));
		if (!r)
			r = rest(v, v->now + 1000000, &woken);
	}
	return r;
}

static int vl_open(struct te__link *l)
{
	struct vlink *v = of(l);
	struct te__boot *boot = l->o.boot;
	const size_t nranks = (size_t)te__boot_nranks(boot);
	const size_t nbytes = sizeof(struct hello) + nranks * sizeof(((struct hello *)0)->to[0]);
	struct hello *own = te__calloc(1, nbytes), *all = te__calloc(nranks, nbytes);
	uint32_t psn;
	int r;

	v->wake_fd = -1;
	v->opened = 1;
	if (!own || !all) {
		te__free(own);
		te__free(all);
		te__boot_abort(boot, "no memory for a link");
		return te__link_fail(l, -ENOMEM, "verbs: no memory for %zu ranks", nranks);
	}
	r = prepare(v);
	psn = (uint32_t)te__boot_now() & 0xffffff;
	if (!r) {
		memcpy(own->gid, v->port.gid.gid.raw, sizeof(own->gid));
		own->lid = v->port.attr.lid;
		own->mtu = (uint8_t)v->port.attr.active_mtu;
		own->link_layer = v->port.attr.link_layer;
		own->rkey = v->mr ? v->mr->rkey : 0;
		own->c_rkey = v->c_mr->rkey;
		own->psn = psn;
		for (int32_t i = 0; i < l->o.npeers; i++) {
			own->to[l->o.peers[i]].qpn = v->peer[i].qp->qp_num;
			own->to[l->o.peers[i]].control = (uintptr_t)&v->control[i];
		}
	}
	r = agree(v, r, own, all, nbytes, "exchange of verbs addresses");
	if (!r) {
		for (int32_t i = 0; i < l->o.npeers && !r; i++)
			r = connect_peer(v, i, psn,
					 (const void *)((const char *)all +
							(size_t)l->o.peers[i] * nbytes));
		r = agree(v, r, own, all, nbytes, "connection of queue pairs");
	}
	te__free(own);
	te__free(all);
	if (r)
		return r;
	v->connected = 1;
	r = handshake(v);
	if (!r)
		te__log_info("%d peers on device %s port %d", l->o.npeers, v->port.name,
			     v->port.port);
	return r;
}

/* ---- closing ---- */

static int post_bye(struct vlink *v, int32_t i)
{
	struct peer *p = &v->peer[i];

	uint64_t n = 0;
	int r = 0;

	if (v->l.code) {
		n = te__refuse_put(p->c->why_out, v->l.code, v->l.why);
		r = post(v, i, p->c->why_out, v->c_mr->lkey, n,
			 p->remote_c + offsetof(struct control, why_in), p->c_rkey, -1, 0);
	}
	if (r)
		return r;
	__atomic_store_n(&p->c->beat_out, BYE | n << BYE_SHIFT | v->l.receives[i].complete,
			 __ATOMIC_RELEASE);
	return post(v, i, &p->c->beat_out, v->c_mr->lkey, sizeof(p->c->beat_out),
		    p->remote_c + offsetof(struct control, beat_in), p->c_rkey, IMM(IMM_BYE, 0), 1);
}

/* Peers that wait for this rank are told, and those that do not know that it is no failure. */
static void say_bye(struct vlink *v)
{
	const int64_t deadline = te__boot_now() + BYE_NS;
	int left = 1, woken, r = 0;

	v->closing = 1;
	v->now = te__boot_now();
	for (int32_t i = 0; i < v->l.o.npeers; i++) {
		struct peer *p = &v->peer[i];

		if (!p->gone && !p->broken && post_bye(v, i))
			p->broken = 1;
	}
	while (left && !r && te__boot_now() < deadline) {
		r = progress(v);
		left = 0;
		for (int32_t i = 0; i < v->l.o.npeers; i++) {
			const struct peer *p = &v->peer[i];

			left += !p->gone && !p->broken && p->wr_done < p->wr;
		}
		if (left && !r)
			r = rest(v, deadline, &woken);
	}
}

static void vl_close(struct te__link *l)
{
	struct vlink *v = of(l);

	if (!v->opened)
		return;
	if (v->connected)
		say_bye(v);
	for (int32_t i = 0; v->peer && i < l->o.npeers; i++)
		if (v->peer[i].qp)
			v->lib->destroy_qp(v->peer[i].qp);
	if (v->cq)
		v->lib->destroy_cq(v->cq);
	if (v->mr)
		v->lib->dereg_mr(v->mr);
	if (v->c_mr)
		v->lib->dereg_mr(v->c_mr);
	if (v->channel)
		v->lib->destroy_comp_channel(v->channel);
	if (v->pd)
		v->lib->dealloc_pd(v->pd);
	te__verbs_port_close(&v->port);
	if (v->wake_fd >= 0)
		close(v->wake_fd);
	te__free(v->control);
	te__free(v->peer);
}

static int vl_probe(char *ret_why, size_t nbytes)
{
	struct te__verbs_port p = { .lib = NULL };
	const int r = te__verbs_port_open(&p);

	if (r)
		snprintf(ret_why, nbytes, "%s", te_error_detail());
	te__verbs_port_close(&p);
	return r;
}

const struct te__link_ops te__link_verbs = {
	.name = "verbs",
	.probe = vl_probe,
	.nbytes = sizeof(struct vlink),
	.open = vl_open,
	.close = vl_close,
	.send = vl_send,
	.recv = vl_recv,
	.poll = vl_poll,
	.wake = vl_wake,
};
