/* post.c - see vlink.h: writes to peers. */
#include "config.h"

#define TE_LOG_CATEGORY "comm/verbs"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

#include "libtecomm/reach/link/verbs/vlink.h"

#define SIGNAL_EVERY 16 /* send requests; unsignalled ones free their entry with the next one */

/* a write to a peer */
struct write {
	const void *from;
	uint32_t lkey, rkey;
	size_t nbytes;
	uint64_t to;
	int64_t imm; /* IMM() of a write with immediate data, or -1 */
	int signal;
	int device; /* from is in device memory, which the CPU does not read */
};

int te__vlink_fail_call(struct vlink *v, const struct vport *port, int err, const char *call)
{
	char text[160] = "";

	err = err > 0 ? err : EIO;
	return te__link_fail(&v->l, -err, "%s: %s: %s%s%s", te__vlink_self(v), call, strerror(err),
			     port ? "; " : "",
			     port ? te__verbs_port_text(&port->port, text, sizeof(text)) : "");
}

int te__vlink_room(const struct lane *q)
{
	return q->wr - q->wr_done < SEND_DEPTH - 2; /* two are for te__vlink_post_bye() */
}

/* post a request; there must be room */
static int post(struct vlink *v, int32_t i, int lane, const struct write *w)
{
	struct peer *p = &v->peer[i];
	struct lane *q = &p->lane[lane];
	struct ibv_sge sge = { (uintptr_t)w->from, (uint32_t)w->nbytes, w->lkey };
	struct ibv_send_wr wr = {
		.wr_id = (uint64_t)lane << ID_LANE_SHIFT | (uint64_t)i << ID_PEER_SHIFT |
			 ((q->wr + 1) & ID_MASK),
		.sg_list = &sge,
		.num_sge = w->nbytes > 0,
		.opcode = w->imm < 0 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_WRITE_WITH_IMM,
		.imm_data = htonl((uint32_t)w->imm),
		.wr.rdma = { w->to, w->rkey },
	};
	struct ibv_send_wr *bad;
	int r;

	if (w->signal || q->unsignalled + 1 >= SIGNAL_EVERY)
		wr.send_flags |= IBV_SEND_SIGNALED;
	if (w->nbytes && w->nbytes <= v->max_inline && !w->device)
		wr.send_flags |= IBV_SEND_INLINE;
	r = v->lib->post_send(q->qp, &wr, &bad);
	if (r)
		return te__vlink_fail_call(v, te__vlink_port(v, lane), r, "ibv_post_send");
	q->wr++;
	q->unsignalled = wr.send_flags & IBV_SEND_SIGNALED ? 0 : q->unsignalled + 1;
	if (w->imm >= 0)
		p->told_ns = v->now;
	return 0;
}

/* write from this rank's control block for the peer to the peer's block for this rank */
static int post_control(struct vlink *v, int32_t i, int lane, const void *from, size_t nbytes,
			size_t to, int64_t imm, int signal)
{
	const struct peer *p = &v->peer[i];

	return post(v, i, lane, &(struct write){
		.from = from,
		.lkey = te__vlink_port(v, lane)->c_mr->lkey,
		.rkey = p->lane[lane].c_rkey,
		.nbytes = nbytes,
		.to = p->remote_c + to,
		.imm = imm,
		.signal = signal,
	});
}

int te__vlink_post_recv(struct vlink *v, int32_t i, int lane)
{
	struct ibv_recv_wr wr = {
		.wr_id = ID_RECV | (uint64_t)lane << ID_LANE_SHIFT | (uint64_t)i << ID_PEER_SHIFT,
	}, *bad;
	const int r = v->lib->post_recv(v->peer[i].lane[lane].qp, &wr, &bad);

	return r ? te__vlink_fail_call(v, te__vlink_port(v, lane), r, "ibv_post_recv") : 0;
}

int te__vlink_post_beat(struct vlink *v, int32_t i, int lane, int signal)
{
	struct peer *p = &v->peer[i];

	/* the device may still read the previous value: then it sends the new one twice */
	__atomic_store_n(&p->c->beat_out, p->c->beat_out + 1, __ATOMIC_RELEASE);
	p->told_ns = v->now;
	return post_control(v, i, lane, &p->c->beat_out, sizeof(p->c->beat_out),
			    offsetof(struct control, beat_in), -1, signal);
}

static int post_announce(struct vlink *v, int32_t i)
{
	struct peer *p = &v->peer[i];
	const uint64_t seq = p->announced, at = seq % QUEUE;
	const struct receive *t = &p->recv[at];
	struct announce *a = &p->c->out[at];

	*a = (struct announce){ (uintptr_t)t->buf, t->nbytes, seq,
				(uint64_t)te__vlink_is_device(v, t->buf) };
	p->announced++;
	return post_control(v, i, 0, a, sizeof(*a),
			    offsetof(struct control, in) + at * sizeof(*a),
			    IMM(IMM_ANNOUNCE, seq), 0);
}

/* the lane of the next chunk; consecutive messages begin on different lanes */
static int next_lane(const struct vlink *v, const struct peer *p)
{
	return (int)((p->posted + p->at / CHUNK) % (uint64_t)v->nlanes);
}

/* the next chunk of the first send that is not completely posted, which the peer expects */
static int post_data(struct vlink *v, int32_t i)
{
	struct peer *p = &v->peer[i];
	struct send *t = &p->send[p->posted % QUEUE];
	const struct announce a = p->c->in[p->posted % QUEUE];
	const size_t left = t->nbytes - p->at, n = left < CHUNK ? left : CHUNK;
	/* no other chunk of the message is on the lane after this one */
	const int ends = left <= CHUNK * (size_t)v->nlanes;
	const int lane = next_lane(v, p);
	struct lane *q = &p->lane[lane];
	const struct vport *port = te__vlink_port(v, lane);
	const int device = te__vlink_is_device(v, t->buf);
	const struct ibv_mr *mr = device ? port->d_mr : port->mr;
	int r;

	if (a.seq != p->posted)
		return te__link_fail(&v->l, -TE_EMISMATCH, "%s announced receive %llu, expected "
				     "%llu", te__vlink_name(v, i), (unsigned long long)a.seq,
				     (unsigned long long)p->posted);
	if (a.nbytes != t->nbytes)
		return te__link_fail(&v->l, -TE_EMISMATCH, "%s receives %llu bytes, this rank "
				     "sends %zu", te__vlink_name(v, i),
				     (unsigned long long)a.nbytes, t->nbytes);
	r = post(v, i, lane, &(struct write){
		.from = (const char *)t->buf + p->at,
		.lkey = mr ? mr->lkey : 0,
		.rkey = a.device ? q->d_rkey : q->rkey,
		.nbytes = n,
		.to = a.addr + p->at,
		.imm = ends ? (int64_t)IMM(IMM_DATA, p->posted) : -1,
		.signal = 1,
		.device = device,
	});
	if (r)
		return r;
	p->at += n;
	if (t->nbytes > CHUNK)
		q->chunk[q->nchunks++ % WINDOW] = q->wr;
	if (ends)
		t->last[lane] = q->wr;
	if (p->at == t->nbytes) {
		p->posted++;
		p->at = 0;
	}
	return 0;
}

/* may a chunk be posted? */
static int window(const struct vlink *v, const struct peer *p)
{
	const struct lane *q = &p->lane[next_lane(v, p)];

	return te__vlink_room(q) && (p->send[p->posted % QUEUE].nbytes <= CHUNK ||
				     q->nchunks - q->nchunks_done < WINDOW);
}

int te__vlink_advance(struct vlink *v, int32_t i)
{
	struct peer *p = &v->peer[i];
	int r = 0;

	if (v->closing || p->parting || v->l.code)
		return 0;
	while (!r && p->announced < p->nrecv && te__vlink_room(&p->lane[0]))
		r = post_announce(v, i);
	while (!r && p->posted < p->nsend && p->posted < p->granted && window(v, p))
		r = post_data(v, i);
	return r;
}

int te__vlink_post_bye(struct vlink *v, int32_t i)
{
	struct peer *p = &v->peer[i];
	struct bye *bye = &p->c->bye_out;
	int lane = 0, r = 0;

	p->bye = -1;
	while (lane < v->nlanes && p->lane[lane].broken)
		lane++;
	if (lane == v->nlanes)
		return 0;
	*bye = (struct bye){ v->l.receives[i].complete, v->l.sends[i].complete, 0, 0 };
	if (v->l.code) {
		bye->why_nbytes = te__refuse_put(p->c->why_out, v->l.code, v->l.why);
		r = post_control(v, i, lane, p->c->why_out, bye->why_nbytes,
				 offsetof(struct control, why_in), -1, 0);
	}
	if (!r)
		r = post_control(v, i, lane, bye, sizeof(*bye), offsetof(struct control, bye_in),
				 IMM(IMM_BYE, 0), 1);
	if (!r)
		p->bye = lane;
	return r;
}
