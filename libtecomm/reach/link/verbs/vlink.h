/*
 * vlink.h - a link over RDMA devices: post.c posts requests, poll.c takes completions and events
 * and keeps time, open.c makes and closes it, verbs.c is its row of functions. Each calls those
 * before it only (t/meta/t0007-layers.t).
 *
 * Each pair of ranks has queue pairs, its lanes, which are distributed over the ports of each rank.
 * A rank announces each receive to the peer, with its address, by a write with immediate data into
 * a ring of the peer. The peer writes the message to that address, chunk by chunk over the lanes,
 * the last chunk on each lane with immediate data. So data arrives in its final buffer, and the
 * counters of transfers are the only flow control: there are at most TE__LINK_QUEUE announced
 * receives and messages, and receive requests for all of them are posted at all times on all lanes.
 * So a sender never meets a receiver that is not ready.
 *
 * Only requests of one lane are ordered. A message is complete when the last chunks of all lanes
 * that it uses have arrived, and messages complete in order. Announcements all use the first lane,
 * so they arrive in order.
 *
 * A word of each rank in the memory of each peer counts heartbeats, which use all lanes in turn.
 * Its write causes no completion, so it does not end a sleep: it is read when it is due. A rank
 * that closes its link sends its peers its counters of receives and sends, and the reason if its
 * link has failed.
 */
#ifndef TE__VLINK_H
#define TE__VLINK_H

#include "libtecomm/meet/boot.h"
#include "libtecomm/reach/link/verbs/verbs.h"

#define QUEUE TE__LINK_QUEUE
#define LANES_MOST 8
#define CHUNK (512u << 10) /* bytes of a write; heartbeats pass between chunks */
#define WINDOW 8	   /* chunks in flight on a lane, in addition to single-chunk messages */
#define SEND_DEPTH 192
#define RECV_DEPTH (2 * QUEUE + 16)

/* immediate data: a kind, and the low bits of a sequence number */
enum { IMM_ANNOUNCE, IMM_DATA, IMM_BYE };
#define IMM_SEQ 0x3fffffffu
#define IMM(kind, seq) ((uint32_t)(kind) << 30 | ((uint32_t)(seq) & IMM_SEQ))

/* ids of requests: receive or send, the lane, the peer, the number of the send request */
#define ID_RECV (UINT64_C(1) << 63)
#define ID_LANE_SHIFT 60
#define ID_PEER_SHIFT 42
#define ID_MASK ((UINT64_C(1) << ID_PEER_SHIFT) - 1)
#define PEERS_MOST (1 << (ID_LANE_SHIFT - ID_PEER_SHIFT))

_Static_assert(LANES_MOST <= 1 << (63 - ID_LANE_SHIFT), "a request has room for its lane");

struct announce {
	uint64_t addr, nbytes, seq, device; /* device 1: addr is in device memory */
};
/* counters of a rank that closes its link, and the length of the reason if it has failed */
struct bye {
	uint64_t receives, sends, why_nbytes, unused;
};

/* for each peer, in registered memory; the peer writes in[], beat_in, bye_in and why_in */
struct control {
	struct announce in[QUEUE], out[QUEUE];
	uint64_t beat_in, beat_out;
	struct bye bye_in, bye_out;
	uint8_t why_in[TE__REFUSE_MOST], why_out[TE__REFUSE_MOST];
};

struct send {
	const void *buf;
	size_t nbytes;
	uint64_t last[LANES_MOST]; /* by lane: number of the last request; 0: none */
};

struct receive {
	void *buf;
	size_t nbytes;
	int arrived; /* number of lanes whose last chunk has arrived */
};

/* a queue pair */
struct lane {
	struct ibv_qp *qp;
	uint32_t rkey, d_rkey, c_rkey; /* keys of the peer's memory, through its port */
	/* send requests: posted, complete, and posted since the last signalled one */
	uint64_t wr, wr_done;
	int unsignalled;
	uint64_t chunk[WINDOW], nchunks, nchunks_done;
	int broken;
};

struct peer {
	struct lane lane[LANES_MOST];
	struct control *c;
	uint64_t remote_c; /* address of the control struct in the peer's memory */
	struct send send[QUEUE];
	struct receive recv[QUEUE];
	uint64_t nsend, nrecv; /* transfers queued */
	uint64_t posted;       /* sends posted completely */
	size_t at;	       /* posted bytes of the next send */
	uint64_t granted;      /* receives that the peer has announced */
	uint64_t announced;    /* receives that this rank has announced */
	uint64_t beat;	       /* the last heartbeat seen */
	uint64_t nbeats;
	int64_t heard_ns, told_ns;
	int parting; /* the peer has announced that it closes its link */
	int gone;    /* and all that it sent has arrived */
	int bye;     /* the lane on which this rank announces it; -1: none */
};
/* a port, and the objects of its device */
struct vport {
	struct te__verbs_port port;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_mr *mr, *d_mr, *c_mr; /* d_mr: device memory, NULL unless the link is direct */
	int armed; /* an event follows the next completion */
};

struct vlink {
	struct te__link l;
	const struct te__verbs_lib *lib;
	struct vport port[TE__VERBS_PORTS_MOST];
	int nports, nlanes;
	struct control *control;
	struct peer *peer;
	uint32_t max_inline;
	int wake_fd;
	int opened, connected, closing;
	int drained;  /* the last poll found no completion */
	int advanced; /* transfers are complete since the last te__link_poll() */
	int nparting;
	int64_t now, beat_due;
};

static inline struct vlink *te__vlink(struct te__link *l)
{
	return (struct vlink *)(void *)l;
}

static inline const char *te__vlink_name(const struct vlink *v, int32_t i)
{
	return te__boot_peer(v->l.o.boot, v->l.o.peers[i]);
}

/* name of this rank for messages; while ranks connect, receivers of a message add the name */
static inline const char *te__vlink_self(const struct vlink *v)
{
	const struct te__boot *boot = v->l.o.boot;

	return v->connected ? te__boot_peer(boot, te__boot_rank(boot)) : "verbs";
}

/* the port of a lane of this rank */
static inline struct vport *te__vlink_port(struct vlink *v, int lane)
{
	return &v->port[lane % v->nports];
}

/* is p in device memory? */
static inline int te__vlink_is_device(const struct vlink *v, const void *p)
{
	return v->l.direct && (uintptr_t)p - (uintptr_t)v->l.o.device < v->l.o.device_nbytes;
}

/* number of lanes that a message of nbytes uses */
static inline int te__vlink_used(const struct vlink *v, size_t nbytes)
{
	const size_t chunks = nbytes ? (nbytes + CHUNK - 1) / CHUNK : 1;

	return chunks < (size_t)v->nlanes ? (int)chunks : v->nlanes;
}

/* post.c: records the failure of a call of libibverbs; port: or NULL */
int te__vlink_fail_call(struct vlink *v, const struct vport *port, int err, const char *call);
int te__vlink_room(const struct lane *q);
int te__vlink_post_recv(struct vlink *v, int32_t i, int lane);
int te__vlink_post_beat(struct vlink *v, int32_t i, int lane, int signal);
/* post the BYE on the first working lane, if there is one */
int te__vlink_post_bye(struct vlink *v, int32_t i);
/* post as many announcements and chunks as possible */
int te__vlink_advance(struct vlink *v, int32_t i);

/* poll.c */
int te__vlink_fail_gone(struct vlink *v, int32_t i);
int te__vlink_progress(struct vlink *v);
/* Waits for a completion, wake() (*ret_woken), or until a time. Completions may exist already. */
int te__vlink_rest(struct vlink *v, int64_t until_ns, int *ret_woken);

/* open.c */
int te__vlink_open(struct te__link *l);
void te__vlink_close(struct te__link *l);

#endif
