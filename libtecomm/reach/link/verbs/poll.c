/* poll.c - see vlink.h: completions, heartbeats, events, and waiting for them. */
#include "config.h"

#define TE_LOG_CATEGORY "comm/verbs"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include "libtecomm/reach/link/verbs/vlink.h"

#define BATCH 32 /* completions of one poll */

/* ---- failures ---- */

int te__vlink_fail_gone(struct vlink *v, int32_t i)
{
	return te__link_fail(&v->l, -TE_EPEER, "%s has closed its communicator",
			     te__vlink_name(v, i));
}

static int fail_wc(struct vlink *v, int32_t i, int lane, const struct ibv_wc *wc)
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
	te__link_fail(&v->l, code, "%s: %s (status %d, vendor error 0x%x); %s",
		      te__vlink_name(v, i), v->lib->wc_status_str(wc->status), wc->status,
		      wc->vendor_err,
		      te__verbs_port_text(&te__vlink_port(v, lane)->port, port, sizeof(port)));
	return te__fail_verbs(v->l.code, wc->status, "%s", v->l.why);
}

/* ---- completions ---- */

static int is_sent(const struct vlink *v, const struct peer *p, const struct send *t)
{
	for (int k = 0; k < v->nlanes; k++)
		if (t->last[k] > p->lane[k].wr_done)
			return 0;
	return 1;
}

static void sent(struct vlink *v, int32_t i, int lane, uint64_t id)
{
	struct peer *p = &v->peer[i];
	struct lane *q = &p->lane[lane];
	struct te__link_counts *c = &v->l.sends[i];

	q->wr_done += (id - q->wr_done) & ID_MASK;
	while (q->nchunks_done < q->nchunks && q->chunk[q->nchunks_done % WINDOW] <= q->wr_done)
		q->nchunks_done++;
	while (c->complete < p->posted && is_sent(v, p, &p->send[c->complete % QUEUE])) {
		c->complete++;
		v->advanced = 1;
	}
}

/* the last chunk on a lane of the message whose number has these low bits */
static int arrived(struct vlink *v, int32_t i, uint32_t imm)
{
	struct peer *p = &v->peer[i];
	struct te__link_counts *c = &v->l.receives[i];
	const uint64_t n = c->complete + ((imm - (uint32_t)c->complete) & IMM_SEQ);
	struct receive *t = &p->recv[n % QUEUE];

	if (n >= p->announced || t->arrived == te__vlink_used(v, t->nbytes))
		return -EPROTO;
	t->arrived++;
	while (c->complete < p->announced) {
		t = &p->recv[c->complete % QUEUE];
		if (t->arrived < te__vlink_used(v, t->nbytes))
			break;
		c->complete++;
		v->advanced = 1;
	}
	return 0;
}

static int received(struct vlink *v, int32_t i, int lane, const struct ibv_wc *wc)
{
	struct peer *p = &v->peer[i];
	const uint32_t imm = ntohl(wc->imm_data);
	const uint32_t kind = imm >> 30;
	int r;

	p->heard_ns = v->now;
	if (kind == IMM_BYE) {
		v->nparting += !p->parting;
		p->parting = 1;
		return 0;
	}
	/* before messages that let the peer send more */
	r = v->closing ? 0 : te__vlink_post_recv(v, i, lane);
	if (r)
		return r;
	if (kind == IMM_ANNOUNCE && imm == IMM(kind, p->granted)) {
		p->granted++;
		return 0;
	}
	if (kind == IMM_DATA && !arrived(v, i, imm & IMM_SEQ))
		return 0;
	return te__link_fail(&v->l, -TE_EMISMATCH, "%s sent the immediate data 0x%x, which is not "
			     "expected", te__vlink_name(v, i), imm);
}

static int complete(struct vlink *v, const struct ibv_wc *wc)
{
	const int32_t i = (int32_t)(wc->wr_id >> ID_PEER_SHIFT & (PEERS_MOST - 1));
	const int lane = (int)((wc->wr_id & ~ID_RECV) >> ID_LANE_SHIFT);
	struct peer *p = &v->peer[i];
	int r = 0;

	if (wc->status != IBV_WC_SUCCESS) {
		const int ends = !p->parting && !p->lane[lane].broken && !v->closing;

		p->lane[lane].broken = 1;
		return ends ? fail_wc(v, i, lane, wc) : 0;
	}
	if (wc->wr_id & ID_RECV)
		r = received(v, i, lane, wc);
	else
		sent(v, i, lane, wc->wr_id & ID_MASK);
	return r ? r : te__vlink_advance(v, i);
}

/*
 * A peer closes its link. Its data may be in flight on other lanes, except data whose arrival was
 * acknowledged.
 */
static int part(struct vlink *v, int32_t i)
{
	struct peer *p = &v->peer[i];
	const struct bye *bye = &p->c->bye_in;
	struct te__link_counts *sends = &v->l.sends[i], *receives = &v->l.receives[i];
	char text[TE__REFUSE_MOST];
	int code;

	if (!v->closing && !te__refuse_get(p->c->why_in, bye->why_nbytes, &code, text)) {
		p->gone = 1;
		return te__link_fail(&v->l, code, "%s", text);
	}
	if (!v->closing && receives->complete < bye->sends)
		return 0;
	p->gone = 1;
	v->nparting--;
	/* acknowledgements of data that it has received may not arrive */
	if (bye->receives > sends->complete && bye->receives <= p->posted) {
		sends->complete = bye->receives;
		v->advanced = 1;
	}
	if (v->closing || (p->nsend == sends->complete && p->nrecv == receives->complete))
		return 0;
	return te__vlink_fail_gone(v, i);
}

/* ---- heartbeats and events ---- */

static int64_t ns(int32_t ms)
{
	return (int64_t)ms * 1000000;
}

/* on the lanes in turn: one that is idle fails too if its port does */
static int beat(struct vlink *v, int32_t i)
{
	struct peer *p = &v->peer[i];
	const int lane = (int)(p->nbeats++ % (uint64_t)v->nlanes);

	return te__vlink_room(&p->lane[lane]) ? te__vlink_post_beat(v, i, lane, 0) : 0;
}

/*
 * Runs four times a heartbeat, if the caller polls as often. A beat is sent after half a heartbeat,
 * so that even a peer that polls once a heartbeat sends one within 1.5; 7/4 and this interval are
 * 2.
 */
static int beats(struct vlink *v)
{
	const int64_t beat_ns = ns(v->l.o.heartbeat_ms);
	int64_t late;
	int r = 0;

	if (v->now < v->beat_due)
		return 0;
	/* peers must not be charged for the time in which this rank did not poll */
	late = v->now - v->beat_due > beat_ns ? v->now - v->beat_due : 0;
	v->beat_due = v->now + beat_ns / 4;
	for (int32_t i = 0; i < v->l.o.npeers && !r; i++) {
		struct peer *p = &v->peer[i];
		const uint64_t word = __atomic_load_n(&p->c->beat_in, __ATOMIC_ACQUIRE);

		p->heard_ns = p->heard_ns + late < v->now ? p->heard_ns + late : v->now;
		if (word != p->beat) {
			p->beat = word;
			p->heard_ns = v->now;
		}
		if (v->closing || p->gone)
			continue;
		if (v->now - p->heard_ns >= beat_ns / 4 * 7) {
			char time[24], port[160];

			r = te__link_fail(&v->l, -ETIMEDOUT, "%s has been silent for %s "
					  "(TE_COMM_HEARTBEAT_MS); %s", te__vlink_name(v, i),
					  te__time_text(v->now - p->heard_ns, time),
					  te__verbs_port_text(&v->port[0].port, port,
							      sizeof(port)));
		} else if (v->now - p->told_ns >= beat_ns / 2 && !p->parting) {
			r = beat(v, i);
		}
	}
	return r;
}

static int async_events(struct vlink *v, struct vport *port)
{
	struct ibv_async_event e;
	int r = 0;

	while (!r && !v->lib->get_async_event(port->port.ctx, &e)) {
		const char *text = v->lib->event_type_str(e.event_type);
		const enum ibv_event_type type = e.event_type;
		char at[160];

		v->lib->ack_async_event(&e);
		switch (type) {
		case IBV_EVENT_CQ_ERR:
		case IBV_EVENT_QP_FATAL:
		case IBV_EVENT_QP_REQ_ERR:
		case IBV_EVENT_QP_ACCESS_ERR:
		case IBV_EVENT_DEVICE_FATAL:
			if (!v->closing)
				r = te__link_fail(&v->l, -EIO, "%s: %s; %s", te__vlink_self(v),
						  text, te__verbs_port_text(&port->port, at,
									    sizeof(at)));
			break;
		default:
			/* a port may come back before requests time out */
			te__log_info("device %s port %d: %s", port->port.name, port->port.port,
				     text);
		}
	}
	return r;
}

/* completions of a port; returns how many were found, or a code */
static int take(struct vlink *v, struct vport *port)
{
	struct ibv_wc wc[BATCH];
	const int n = v->lib->poll_cq(port->cq, BATCH, wc);
	int r = 0;

	if (n < 0)
		return te__vlink_fail_call(v, port, EIO, "ibv_poll_cq");
	for (int j = 0; j < n && !r; j++)
		r = complete(v, &wc[j]);
	return r ? r : n;
}

int te__vlink_progress(struct vlink *v)
{
	int n = 1;

	v->now = te__boot_now();
	for (int k = 0; k < 16 && n > 0; k++) {
		n = 0;
		for (int j = 0; j < v->nports; j++) {
			const int r = take(v, &v->port[j]);

			if (r < 0)
				return r;
			n += r;
		}
	}
	v->drained = !n;
	for (int32_t i = 0; i < v->l.o.npeers && v->nparting; i++) {
		const int r = v->peer[i].parting && !v->peer[i].gone ? part(v, i) : 0;

		if (r)
			return r;
	}
	return beats(v);
}

/* ---- sleeping ---- */

/* 1: events of all ports were armed before */
static int arm(struct vlink *v)
{
	int were = 1;

	for (int j = 0; j < v->nports; j++) {
		struct vport *port = &v->port[j];
		const int r = port->armed ? 0 : v->lib->req_notify_cq(port->cq, 0);

		if (r)
			return te__vlink_fail_call(v, port, r, "ibv_req_notify_cq");
		were &= port->armed;
		port->armed = 1;
	}
	return were;
}

static int ended_sleep(struct vlink *v, struct vport *port)
{
	struct ibv_cq *cq;
	void *user;

	if (v->lib->get_cq_event(port->channel, &cq, &user))
		return errno == EAGAIN ? 0 : te__vlink_fail_call(v, port, errno,
								 "ibv_get_cq_event");
	v->lib->ack_cq_events(cq, 1);
	port->armed = 0;
	return 0;
}

int te__vlink_rest(struct vlink *v, int64_t until_ns, int *ret_woken)
{
	struct pollfd p[1 + 2 * TE__VERBS_PORTS_MOST] = {
		{ .fd = v->wake_fd, .events = POLLIN },
	};
	int64_t left;
	uint64_t count;
	int r = arm(v);

	if (r < 1)
		return r; /* the caller polls again: a completion may have come before */
	for (int j = 0; j < v->nports; j++) {
		p[1 + 2 * j] = (struct pollfd){ .fd = v->port[j].channel->fd, .events = POLLIN };
		p[2 + 2 * j] = (struct pollfd){ .fd = v->port[j].port.ctx->async_fd,
						.events = POLLIN };
	}
	if (until_ns > v->beat_due)
		until_ns = v->beat_due;
	left = until_ns - te__boot_now();
	left = left < 0 ? 0 : left;
	if (ppoll(p, 1 + 2 * (nfds_t)v->nports,
		  &(struct timespec){ left / 1000000000, left % 1000000000 }, NULL) < 0)
		return errno == EINTR ? 0 : te__vlink_fail_call(v, NULL, errno, "poll");
	if (p[0].revents && read(v->wake_fd, &count, sizeof(count)) == sizeof(count))
		*ret_woken = 1;
	r = 0;
	for (int j = 0; j < v->nports && !r; j++) {
		if (p[1 + 2 * j].revents)
			r = ended_sleep(v, &v->port[j]);
		if (!r && p[2 + 2 * j].revents)
			r = async_events(v, &v->port[j]);
	}
	return r;
}
