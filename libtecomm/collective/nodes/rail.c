/*
 * rail.c - the thread of a rail, which processes the pieces: see nodes.h.
 *
 * Pieces are processed in order, several at a time. Messages to and from a rank have the order of
 * the pieces, because a piece enters a state after the previous one has left it, and a piece in the
 * other direction begins after all previous ones have ended.
 */
#define TE_LOG_CATEGORY "comm/nodes"
#include "config.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "kernels/comm/fold.h"
#include "libtecomm/collective/nodes/rail.h"

#define LOOK_NS INT64_C(20000000) /* time between checks of the clock and for an abort */
#define IDLE_NS INT64_C(500000000) /* IDLE without a piece */

enum state {
	LOCAL,	/* ranks of the node have not put in their inputs */
	WIRE,	/* data of other nodes is awaited */
	ADD,	/* chain: the node's sums are made */
	BACK,	/* chain: the result is awaited */
	SPREAD, /* chain: the result is copied to the ranks of the node */
	SENT,	/* all data has arrived, and not all is sent */
	DONE,
};

static struct te__piece *own_piece(const struct te__nodes *n, uint64_t number)
{
	return &te__nodes_member(n, n->local)->piece[number % TE__NODES_DEPTH];
}

static int64_t es_of(const struct te__piece *p)
{
	return (int64_t)te_dtype_nbytes((enum te_dtype)p->dtype);
}

static int is_chain(const struct te__piece *p)
{
	return p->algorithm == TE_COMM_CHAIN;
}

/* ---- wire memory: of a slot and this rail ---- */

/* the head of this node (as it is sent), or of another one */
static struct te__piece *head_of(const struct te__nodes *n, int32_t slot, int32_t node)
{
	char *p = te__nodes_result(n, slot) + 5 * n->piece;

	return (struct te__piece *)(void *)p + n->local * n->nnodes + node;
}

/* ---- messages ---- */

static int send_to(struct te__nodes *n, struct te__job *j, int32_t node, const void *p,
		   int64_t nbytes)
{
	const int32_t i = n->peer_of[node];
	const int r = te__link_send(n->link, i, p, (size_t)nbytes);

	j->sent[i] = n->link->sends[i].queued;
	return r;
}

static int recv_from(struct te__nodes *n, struct te__job *j, int32_t node, void *p, int64_t nbytes)
{
	const int32_t i = n->peer_of[node];
	const int r = te__link_recv(n->link, i, p, (size_t)nbytes);

	j->received[i] = n->link->receives[i].queued;
	return r;
}

static int send_head(struct te__nodes *n, struct te__job *j, const struct te__piece *p,
		     int32_t node)
{
	struct te__piece *h = head_of(n, p->slot, n->node);

	*h = *p;
	return send_to(n, j, node, h, sizeof(*h));
}

static int recv_head(struct te__nodes *n, struct te__job *j, const struct te__piece *p,
		     int32_t node)
{
	const int r = recv_from(n, j, node, head_of(n, p->slot, node), sizeof(*p));

	j->head[n->peer_of[node]] = n->link->receives[n->peer_of[node]].queued;
	return r;
}

static int all_sent(const struct te__nodes *n, const struct te__job *j)
{
	for (int32_t i = 0; i < n->npeers; i++)
		if (n->link->sends[i].complete < j->sent[i])
			return 0;
	return 1;
}

static int has_received(const struct te__nodes *n, const struct te__job *j, int32_t node)
{
	const int32_t i = n->peer_of[node];

	return n->link->receives[i].complete >= j->received[i];
}

/* the first node with missing data; -1: none */
static int32_t missing(const struct te__nodes *n, const struct te__job *j)
{
	for (int32_t m = 0; m < n->nnodes; m++)
		if (m != n->node && !has_received(n, j, m))
			return m;
	return -1;
}

/* do the messages of a piece fit into the queues of the link? */
static int has_room(const struct te__nodes *n)
{
	for (int32_t m = 0; m < n->nnodes; m++) {
		const int32_t i = n->peer_of[m];
		const struct te__link_counts *s, *r;

		if (m == n->node)
			continue;
		s = &n->link->sends[i];
		r = &n->link->receives[i];
		if (s->queued - s->complete + (uint64_t)n->nlocal + 1 > TE__LINK_QUEUE ||
		    r->queued - r->complete + (uint64_t)n->nlocals[m] + 1 > TE__LINK_QUEUE)
			return 0;
	}
	return 1;
}

/* ---- all ranks do the same ---- */

static void describe(const struct te__piece *p, char *ret, size_t nbytes)
{
	static const char *const op[] = { "a sum", "an average", "a minimum", "a maximum" };
	static const char *const name[8] = {
		[TE_K_COLL_REDUCE_SCATTER] = " by reduce-scatter",
		[TE_K_COLL_ALL_GATHER] = "an all-gather",
		[TE_K_COLL_BROADCAST] = "a broadcast",
		[TE_K_COLL_REDUCE] = " for one rank",
		[TE_K_COLL_GATHER] = "a gather",
		[TE_K_COLL_SCATTER] = "a scatter",
	};
	const int reduces = te__nodes_like(p->what) == TE_K_COLL_ALLREDUCE ||
			    p->what == TE_K_COLL_REDUCE_SCATTER;
	const char *by = te_comm_algorithm_name((enum te_comm_algorithm)p->algorithm);

	if (p->what == TE_K_COLL_ALLREDUCE && p->root == TE_K_COMM_BARRIER) {
		snprintf(ret, nbytes, "a barrier");
		return;
	}
	snprintf(ret, nbytes, "%s%s of %lld %s by %s", reduces ? op[p->op & 3] : "",
		 name[p->what & 7] ? name[p->what & 7] : "", (long long)p->count,
		 te_dtype_name((enum te_dtype)p->dtype), by ? by : "?");
}

static int differs(const struct te__nodes *n, const struct te__piece *own,
		   const struct te__piece *other, int32_t rank)
{
	char mine[96], theirs[96];

	describe(own, mine, sizeof(mine));
	describe(other, theirs, sizeof(theirs));
	if (strcmp(mine, theirs))
		return te__fail(-TE_EMISMATCH, "%s calls %s, %s %s", te__boot_peer(n->boot, rank),
				theirs, te__boot_peer(n->boot, n->rank), mine);
	return te__fail(-TE_EMISMATCH, "%s is at piece %llu (element %lld, root %d) of its "
			"operations, %s at %llu (element %lld, root %d)",
			te__boot_peer(n->boot, rank), (unsigned long long)other->number,
			(long long)other->lo, other->root, te__boot_peer(n->boot, n->rank),
			(unsigned long long)own->number, (long long)own->lo, own->root);
}

/* check heads that have arrived; the link may still write to the others */
static int check_heads(const struct te__nodes *n, const struct te__job *j,
		       const struct te__piece *p)
{
	for (int32_t m = 0; m < n->nnodes; m++) {
		const struct te__piece *h = head_of(n, p->slot, m);
		const int32_t i = n->peer_of[m];

		if (m != n->node && j->head[i] && n->link->receives[i].complete >= j->head[i] &&
		    memcmp(h, p, sizeof(*p)))
			return differs(n, p, h, n->link->o.peers[i]);
	}
	return 0;
}

/* 1: the ranks of the node have put in the piece; 0: *ret_local has not; -TE_EPEER: *ret_local has
 * not, and has closed its communicator */
static int is_put_in(const struct te__nodes *n, const struct te__piece *p, int32_t *ret_local)
{
	for (int32_t i = 0; i < n->nlocal; i++) {
		const struct te__member *m = te__nodes_member(n, i);
		const uint32_t closed = atomic_load_explicit(&m->closed, memory_order_acquire);

		*ret_local = i;
		if (atomic_load_explicit(&m->begun, memory_order_acquire) > p->number)
			continue;
		return closed ? te__nodes_closed(n, i) : 0;
	}
	for (int32_t i = 0; i < n->nlocal; i++) {
		const struct te__piece *q =
			&te__nodes_member(n, i)->piece[p->number % TE__NODES_DEPTH];

		if (memcmp(q, p, sizeof(*p)))
			return differs(n, p, q, te__boot_local(n->boot, i));
	}
	return 1;
}

/* ---- exchange ---- */

static int sends_inputs(const struct te__nodes *n, const struct te__piece *p, int32_t from,
			int32_t to, const struct te__job *j)
{
	if (te__nodes_like(p->what) == TE_K_COLL_BROADCAST)
		return te__boot_node(n->boot, p->root) == from;
	return te__nodes_like(p->what) == TE_K_COLL_ALL_GATHER ||
	       te__nodes_wants(n, to, p, p->lo + j->lo, j->n);
}

static int exchange_begin(struct te__nodes *n, struct te__job *j, const struct te__piece *p)
{
	const int64_t es = es_of(p), at = j->lo * es, nbytes = j->n * es;
	const int broadcast = te__nodes_like(p->what) == TE_K_COLL_BROADCAST;
	int r = 0;

	for (int32_t m = 0; m < n->nnodes && !r; m++) {
		if (m == n->node)
			continue;
		r = send_head(n, j, p, m);
		for (int32_t i = 0; i < n->nlocal && !r && sends_inputs(n, p, n->node, m, j); i++)
			if (!broadcast || te__boot_local(n->boot, i) == p->root)
				r = send_to(n, j, m, te__nodes_in(n, p->slot, i) + at, nbytes);
		if (!r)
			r = recv_head(n, j, p, m);
		if (r || !sends_inputs(n, p, m, n->node, j))
			continue;
		if (broadcast)
			r = recv_from(n, j, m, te__nodes_result(n, p->slot) + at, nbytes);
		for (int32_t k = n->first[m]; k < n->nranks && !r && !broadcast; k++)
			if (te__boot_node(n->boot, k) == m)
				r = recv_from(n, j, m, te__nodes_far(n, p->slot, k) + at, nbytes);
	}
	return r;
}

/* all inputs have arrived */
static void exchange_end(struct te__nodes *n, const struct te__job *j, const struct te__piece *p)
{
	const int64_t es = es_of(p), at = j->lo * es;
	const size_t nbytes = (size_t)(j->n * es);

	if (te__nodes_like(p->what) == TE_K_COLL_BROADCAST) {
		if (te__boot_node(n->boot, p->root) == n->node)
			memcpy(te__nodes_result(n, p->slot) + at,
			       te__nodes_in(n, p->slot, te__boot_local_rank(n->boot, p->root)) + at,
			       nbytes);
		return;
	}
	if (te__nodes_like(p->what) == TE_K_COLL_ALL_GATHER) {
		for (int32_t i = 0; i < n->nlocal; i++)
			memcpy(te__nodes_far(n, p->slot, te__boot_local(n->boot, i)) + at,
			       te__nodes_in(n, p->slot, i) + at, nbytes);
		return;
	}
	if (!te__nodes_wants(n, n->node, p, p->lo + j->lo, j->n))
		return;
	for (int32_t k = 0; k < n->nranks; k++)
		n->src[k] = te__boot_node(n->boot, k) == n->node ?
				    te__nodes_in(n, p->slot, te__boot_local_rank(n->boot, k)) + at :
				    te__nodes_far(n, p->slot, k) + at;
	te__comm_reduce(p->dtype, p->op, n->nranks, n->src, j->n,
			te__nodes_result(n, p->slot) + at);
}

/* ---- chain ---- */

/* buffers for sending and receiving the sums and the result of a part */
static float *wire_sums(const struct te__nodes *n, const struct te__job *j,
			const struct te__piece *p)
{
	return te__nodes_is_device(n, p->algorithm) ? te__device_wire_sums(n, p, j->lo) :
						      te__nodes_sums(n, p->slot) + j->lo;
}

static char *wire_result(const struct te__nodes *n, const struct te__job *j,
			 const struct te__piece *p)
{
	return te__nodes_is_device(n, p->algorithm) ?
		       te__device_wire_result(n, p, j->lo) :
		       te__nodes_result(n, p->slot) + j->lo * es_of(p);
}

static int chain_begin(struct te__nodes *n, struct te__job *j, const struct te__piece *p)
{
	int r = 0;

	if (n->node) {
		r = recv_head(n, j, p, n->node - 1);
		if (!r)
			r = recv_from(n, j, n->node - 1, wire_sums(n, j, p), j->n * 4);
	}
	if (!r && !te__nodes_is_last(n) && te__nodes_lowest(n, p, j->lo, j->n) <= n->node)
		r = recv_from(n, j, n->node + 1, wire_result(n, j, p),
			      j->n * es_of(p));
	return r;
}

static void give_turn(struct te__job *j)
{
	atomic_store_explicit(&j->devices, TE__GIVEN, memory_order_release);
}

/* the sums of lower nodes have arrived */
static void chain_add(const struct te__nodes *n, struct te__job *j, const struct te__piece *p)
{
	const int64_t at = j->lo * es_of(p);
	struct te_k_comm_fold fold;

	if (te__nodes_is_device(n, p->algorithm)) {
		give_turn(j);
		return;
	}
	fold = te__nodes_fold(n, p, j->n, te__nodes_in(n, p->slot, 0) + at, (int64_t)n->piece,
			      wire_sums(n, j, p), te__nodes_result(n, p->slot) + at);
	te__h_comm_fold(&fold);
}

/* send the result to the previous node, if it or a lower one needs it */
static int send_result(struct te__nodes *n, struct te__job *j, const struct te__piece *p)
{
	if (te__nodes_lowest(n, p, j->lo, j->n) >= n->node)
		return 0;
	return send_to(n, j, n->node - 1, wire_result(n, j, p), j->n * es_of(p));
}

/* the sums, or the last node's result, are made */
static int chain_send(struct te__nodes *n, struct te__job *j, const struct te__piece *p)
{
	int r;

	if (te__nodes_is_last(n))
		return send_result(n, j, p);
	r = send_head(n, j, p, n->node + 1);
	return r ? r : send_to(n, j, n->node + 1, wire_sums(n, j, p), j->n * 4);
}

/* the result has arrived */
static int chain_end(struct te__nodes *n, struct te__job *j, const struct te__piece *p)
{
	const int r = n->node ? send_result(n, j, p) : 0;

	if (!r && te__nodes_is_device(n, p->algorithm) &&
	    te__nodes_wants(n, n->node, p, p->lo + j->lo, j->n))
		give_turn(j);
	return r;
}

/* ---- pieces ---- */

static void start(struct te__nodes *n, struct te__job *j, const struct te__piece *p)
{
	j->state = LOCAL;
	j->since = te__boot_now();
	j->n = te__nodes_part(n, p, n->local, &j->lo);
	memset(j->sent, 0, (size_t)n->npeers * sizeof(*j->sent));
	memset(j->received, 0, (size_t)n->npeers * sizeof(*j->received));
	memset(j->head, 0, (size_t)n->npeers * sizeof(*j->head));
}

/* 1: the state has changed; 0: waits; alone: no earlier piece goes in the other direction */
static int step(struct te__nodes *n, struct te__job *j, const struct te__piece *p, int alone)
{
	int32_t local;
	int r = 0;

	switch (j->state) {
	case LOCAL:
		r = is_put_in(n, p, &local);
		if (r <= 0)
			return r;
		if (!alone || !has_room(n))
			return 0;
		j->state = j->n ? WIRE : DONE;
		j->since = te__boot_now();
		r = !j->n ? 0 : is_chain(p) ? chain_begin(n, j, p) : exchange_begin(n, j, p);
		break;
	case WIRE:
		if (is_chain(p) ? n->node && !has_received(n, j, n->node - 1) :
				  missing(n, j) >= 0)
			return check_heads(n, j, p);
		r = check_heads(n, j, p);
		if (r)
			return r;
		j->state = is_chain(p) ? ADD : SENT;
		if (is_chain(p))
			chain_add(n, j, p);
		else
			exchange_end(n, j, p);
		break;
	case ADD:
		if (te__job_is_devices(j))
			return 0;
		j->state = BACK;
		r = chain_send(n, j, p);
		break;
	case BACK:
		if (!te__nodes_is_last(n) && !has_received(n, j, n->node + 1))
			return 0;
		j->state = SPREAD;
		r = te__nodes_is_last(n) ? 0 : chain_end(n, j, p);
		break;
	case SPREAD:
		if (te__job_is_devices(j))
			return 0;
		j->state = SENT;
		break;
	default:
		if (!all_sent(n, j))
			return 0;
		j->state = DONE;
		break;
	}
	return r ? r : 1;
}

/*
 * A rank that has not put in a piece may be in a turn of the device that waits for other nodes.
 * Then the clock of its rail applies, whose present piece all ranks of the node have put in.
 */
static int waits_for_rail(const struct te__nodes *n, int32_t local)
{
	const struct te__member *m = te__nodes_member(n, local);

	return n->device_at && local < n->nrails &&
	       atomic_load_explicit(&m->ended, memory_order_acquire) <
		       atomic_load_explicit(&m->begun, memory_order_acquire);
}

/* has the device's turn timed out? It may have waited for earlier turns */
static int is_device_late(const struct te__nodes *n, const struct te__job *j)
{
	const int taken = atomic_load_explicit(&j->devices, memory_order_acquire) == TE__TAKEN;

	return te__boot_now() - (taken ? j->taken : j->since) >= n->timeout_ns * (taken ? 1 : 2);
}

/*
 * The ranks and devices of the node are late first, then other nodes, which may wait for their own.
 */
static int check_clock(const struct te__nodes *n, const struct te__job *j,
		       const struct te__piece *p)
{
	const int is_devices = te__job_is_devices(j);
	const int64_t late = te__boot_now() - j->since;
	const char *me = te__boot_peer(n->boot, n->rank);
	const long long ms = (long long)(n->timeout_ns / 1000000);
	char what[96];
	int32_t who;

	if (is_devices ? !is_device_late(n, j) :
	    late < n->timeout_ns || (j->state != LOCAL && late < n->timeout_ns / 8 * 9))
		return 0;
	describe(p, what, sizeof(what));
	if (j->state == LOCAL && !is_put_in(n, p, &who))
		return waits_for_rail(n, who) ? 0 :
		       te__fail(-ETIMEDOUT, "%s has not taken part in the %s of %s within %lld ms",
				te__boot_peer(n->boot, te__boot_local(n->boot, who)), what, me, ms);
	if (is_devices)
		return te__fail(-ETIMEDOUT, "the device of %s has not done its part of the %s "
				"within %lld ms", me, what, ms);
	who = missing(n, j);
	if (who < 0)
		return 0; /* the link is responsible for unsent data */
	return te__fail(-ETIMEDOUT, "%s has sent nothing for the %s of %s within %lld ms",
			te__boot_peer(n->boot, n->link->o.peers[n->peer_of[who]]), what, me, ms);
}

/* 1: there was progress. *ret_local: ranks of this node are waited for */
static int turn(struct te__nodes *n, int *ret_local)
{
	struct te__member *own = te__nodes_member(n, n->local);
	const uint64_t begun = atomic_load_explicit(&own->begun, memory_order_acquire);
	int progress = 0, r = 0, alone = 1;

	*ret_local = 0;
	for (uint64_t q = n->ended; q < begun && r >= 0; q++) {
		const struct te__piece *p = own_piece(n, q);
		struct te__job *j = te__nodes_job(n, q);
		const struct te__job *before = q > n->ended ? te__nodes_job(n, q - 1) : NULL;

		if (q == n->started) {
			start(n, j, p);
			n->started++;
		}
		alone &= !before || own_piece(n, q - 1)->algorithm == p->algorithm;
		while (j->state < DONE && (!before || before->state > j->state)) {
			r = step(n, j, p, alone);
			if (r <= 0)
				break;
			progress = 1;
		}
		if (!r)
			r = check_clock(n, j, p);
		*ret_local |= j->state == LOCAL;
		if (j->state == LOCAL)
			break;
	}
	while (r >= 0 && n->ended < n->started && te__nodes_job(n, n->ended)->state == DONE) {
		n->ended++;
		atomic_store_explicit(&own->ended, n->ended, memory_order_release);
		progress = 1;
	}
	return r < 0 ? r : progress;
}

/* explain a failure of the link: heads show whether the other side has called another operation */
static int explain(struct te__nodes *n, int r)
{
	char why[400];
	int better = 0;

	snprintf(why, sizeof(why), "%s", te_error_detail());
	for (uint64_t q = n->ended; q < n->started && r == -TE_EMISMATCH && !better; q++)
		better = check_heads(n, te__nodes_job(n, q), own_piece(n, q));
	return better ? better : te__fail(r, "%s", why);
}

static int poll_link(struct te__nodes *n, int attempts, int local)
{
	const int64_t now = te__boot_now(), pause = te__boot_pause_ns(attempts);
	int64_t until = now + (n->started > n->ended ? LOOK_NS : IDLE_NS);

	/* other processes of the node cannot wake this thread */
	if (local)
		until = now + pause;
	if (local && !pause)
		sched_yield();
	return te__link_poll(n->link, until);
}

void *te__rail_work(void *arg)
{
	struct te__nodes *n = arg;
	int attempts = 0, local, r = 0;

	while (r >= 0 && !atomic_load(&n->stop) && !te__pool_aborted(n->pool)) {
		r = turn(n, &local);
		attempts = r > 0 ? 0 : attempts + 1;
		if (!r)
			r = poll_link(n, attempts, local);
	}
	if (r < 0) {
		r = explain(n, r);
		te__nodes_fail(n, r, te_error_detail());
	}
	atomic_store_explicit(&n->left, 1, memory_order_release);
	return NULL;
}
