/* mail.c - see mail.h: messages between ranks of several nodes, and the thread that has them. */
#define TE_LOG_CATEGORY "comm/nodes"
#include "config.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "libtecomm/collective/collective.h"
#include "libtecomm/collective/nodes/mail.h"
#include "libtecomm/meet/agree.h"
#include "libtecomm/meet/thread.h"

#define CHUNK_MOST ((size_t)256 << 10)
#define SLOTS 2 /* chunks of a rank and direction */
#define LOOK_NS INT64_C(20000000) /* time between checks of the clock and for an abort */
#define IDLE_NS INT64_C(500000000) /* the same without an operation */

/* sent before the chunks of a message */
struct head {
	uint64_t number; /* number of the message, from this rank to that one */
	uint64_t signature;
};

#define SLOT_HEAD ((size_t)64) /* bytes of a slot before its chunk: a head */

/* messages of one direction between this rank and a peer */
struct line {
	int32_t end;	 /* position of the message in the operation; -1: none */
	int has_head;	 /* the head is queued at the link */
	int is_checked;	 /* the head has arrived, and is equal */
	uint64_t number; /* number of the message */
	uint64_t posted, done;	      /* chunks queued at the link; received and copied */
	int64_t posted_nbytes, nbytes; /* bytes of the message in them */
	uint64_t head;		      /* the link's counter after the head */
	uint64_t slot[SLOTS];	      /* the link's counters after the last use of slots */
};

struct te__mail {
	struct te__boot *boot;
	struct te__pool *pool;
	struct te__link *link;
	char *mem;
	size_t chunk;
	int32_t npeers;
	int32_t *peer_of; /* [ranks]: position in the link's peers; -1: this rank */
	struct line *sends, *receives; /* [peers] */
	int64_t timeout_ns;

	pthread_t thread;
	int running;
	_Atomic int stop;
	_Atomic int left; /* the thread has ended */

	/* the operation, which the host call has begun and the thread ends */
	const struct te_k_comm_end *ends;
	int32_t n;
	_Atomic uint64_t begun, ended;
	uint64_t started;
	int32_t nleft; /* ends that are not complete */
	int64_t since, looked; /* time of the latest progress, of the latest look at the clock */
};

/* ---- memory ---- */

static size_t slot_nbytes(const struct te__mail *m)
{
	return SLOT_HEAD + m->chunk;
}

static char *slot_of(const struct te__mail *m, int receives, int32_t i, uint64_t k)
{
	const size_t line = (size_t)(2 * i + receives) * SLOTS + (size_t)(k % SLOTS);

	return m->mem + line * slot_nbytes(m);
}

static char *chunk_of(const struct te__mail *m, int receives, int32_t i, uint64_t k)
{
	return slot_of(m, receives, i, k) + SLOT_HEAD;
}

/* ---- creation ---- */

static int alloc(struct te__mail *m)
{
	const size_t nranks = (size_t)te__boot_nranks(m->boot), n = nranks - 1;

	m->peer_of = te__calloc(nranks, sizeof(*m->peer_of));
	m->sends = te__calloc(2 * n, sizeof(*m->sends));
	m->mem = te__aligned_alloc(4096, 2 * n * SLOTS * slot_nbytes(m));
	if (!m->peer_of || !m->sends || !m->mem)
		return te__fail(-ENOMEM, "te_comm_create: no memory for messages of %zu ranks",
				nranks);
	m->receives = m->sends + n;
	for (size_t i = 0; i < 2 * n; i++)
		m->sends[i].end = -1;
	return 0;
}

static int open_link(struct te__mail *m, const struct te__link_ops *ops)
{
	const int32_t ms = te__boot_timeout_ms(m->boot);
	int32_t peers[4096];
	struct te__link_opts o = {
		.boot = m->boot,
		.peers = peers,
		.mem = m->mem,
		.mem_nbytes = 2 * (size_t)(te__boot_nranks(m->boot) - 1) * SLOTS * slot_nbytes(m),
		.device_fd = -1,
		/* later than check_clock(), which names the message */
		.timeout_ms = ms / 4 > (INT32_MAX - ms) ? INT32_MAX : ms + ms / 4,
		.heartbeat_ms = te__link_heartbeat_ms(),
	};

	for (int32_t k = 0; k < te__boot_nranks(m->boot); k++) {
		const int own = k == te__boot_rank(m->boot);

		m->peer_of[k] = own ? -1 : o.npeers;
		if (!own)
			peers[o.npeers++] = k;
	}
	m->npeers = o.npeers;
	return te__link_open(ops, &o, &m->link);
}

int te__mail_create(struct te__boot *boot, struct te__pool *pool, const struct te__link_ops *ops,
		    size_t piece, struct te__mail **ret_mail)
{
	struct te__mail *m = te__calloc(1, sizeof(*m));
	int r;

	if (m) {
		m->boot = boot;
		m->pool = pool;
		m->chunk = piece < CHUNK_MOST ? piece : CHUNK_MOST;
		m->timeout_ns = (int64_t)te__boot_timeout_ms(boot) * 1000000;
	}
	r = m ? alloc(m) : te__fail(-ENOMEM, "te_comm_create: no memory for messages");
	if (r)
		te__boot_abort(boot, "no memory for messages");
	else
		r = te__agree(boot, open_link(m, ops), "connection of all ranks");
	if (!r)
		*ret_mail = m;
	else
		te__mail_destroy(m);
	return r;
}

struct te__mail *te__mail_destroy(struct te__mail *m)
{
	char why[TE__CONTROL_REASON];
	int code;

	if (!m)
		return NULL;
	atomic_store(&m->stop, 1);
	if (m->running) {
		te__mail_wake(m);
		pthread_join(m->thread, NULL);
	}
	/* peers fail for the same reason, not because this rank closes */
	code = te__pool_why(m->pool, why);
	if (code && m->link)
		(void)te__link_fail(m->link, code, "%s", why);
	te__link_close(m->link);
	te__free(m->peer_of);
	te__free(m->sends);
	te__free(m->mem);
	te__free(m);
	return NULL;
}

/* ---- messages ---- */

static const struct te_k_comm_end *end_of(const struct te__mail *m, const struct line *l)
{
	return &m->ends[l->end];
}

static const char *name_of(const struct te__mail *m, int32_t rank)
{
	return te__boot_peer(m->boot, rank);
}

static size_t next_nbytes(const struct te__mail *m, const struct line *l)
{
	const int64_t left = end_of(m, l)->nbytes - l->posted_nbytes;

	return (size_t)left < m->chunk ? (size_t)left : m->chunk;
}

static void next_message(struct te__mail *m, struct line *l)
{
	l->end = end_of(m, l)->next;
	l->number++;
	l->has_head = 0;
	l->is_checked = 0;
	l->posted_nbytes = 0;
	l->nbytes = 0;
	m->nleft--;
}

/* 1: a part of a message is at the link; 0: memory of both slots is being sent, or none is left */
static int send_one(struct te__mail *m, int32_t i)
{
	struct line *l = &m->sends[i];
	uint64_t *slot = &l->slot[l->posted % SLOTS];
	char *chunk = chunk_of(m, 0, i, l->posted);
	struct head *h = (struct head *)(void *)slot_of(m, 0, i, l->posted);
	size_t n;
	int r = 0;

	if (l->end < 0 || m->link->sends[i].complete < *slot)
		return 0;
	if (!l->has_head) {
		*h = (struct head){ l->number, end_of(m, l)->signature };
		r = te__link_send(m->link, i, h, sizeof(*h));
		l->has_head = 1;
	}
	n = next_nbytes(m, l);
	if (!r && n) {
		memcpy(chunk, end_of(m, l)->data + l->posted_nbytes, n);
		r = te__link_send(m->link, i, chunk, n);
	}
	if (r)
		return r;
	*slot = m->link->sends[i].queued;
	l->posted++;
	l->posted_nbytes += (int64_t)n;
	if (l->posted_nbytes == end_of(m, l)->nbytes)
		next_message(m, l);
	return 1;
}

/* the head has arrived */
static int check_head(const struct te__mail *m, int32_t i)
{
	const struct line *l = &m->receives[i];
	const struct head *h = (const void *)slot_of(m, 1, i, l->posted);
	const char *peer = name_of(m, m->link->o.peers[i]);
	char mine[96], theirs[96];

	if (h->number != l->number)
		return te__fail(-TE_EMISMATCH, "message %llu of %s has arrived, expected %llu",
				(unsigned long long)h->number, peer,
				(unsigned long long)l->number);
	if (h->signature == end_of(m, l)->signature)
		return 0;
	te__message_text(end_of(m, l)->signature, mine, sizeof(mine));
	te__message_text(h->signature, theirs, sizeof(theirs));
	return te__fail(-TE_EMISMATCH, "message %llu of %s is %s, expected %s",
			(unsigned long long)l->number, peer, theirs, mine);
}

/* 1: progress; 0: more has to arrive, or no message is left */
static int receive_one(struct te__mail *m, int32_t i)
{
	struct line *l = &m->receives[i];
	const struct te__link_counts *c = &m->link->receives[i];
	size_t n;
	int r;

	if (l->end < 0)
		return 0;
	if (!l->has_head) {
		r = te__link_recv(m->link, i, slot_of(m, 1, i, l->posted), sizeof(struct head));
		l->head = c->queued;
		l->has_head = 1;
		return r ? r : 1;
	}
	if (!l->is_checked) {
		if (c->complete < l->head)
			return 0;
		r = check_head(m, i);
		l->is_checked = !r;
		return r ? r : 1;
	}
	n = next_nbytes(m, l);
	if (n && l->posted - l->done < SLOTS) {
		r = te__link_recv(m->link, i, chunk_of(m, 1, i, l->posted), n);
		l->slot[l->posted++ % SLOTS] = c->queued;
		l->posted_nbytes += (int64_t)n;
		return r ? r : 1;
	}
	if (l->done < l->posted) {
		if (c->complete < l->slot[l->done % SLOTS])
			return 0;
		n = (size_t)(end_of(m, l)->nbytes - l->nbytes);
		n = n < m->chunk ? n : m->chunk;
		memcpy(end_of(m, l)->data + l->nbytes, chunk_of(m, 1, i, l->done++), n);
		l->nbytes += (int64_t)n;
		return 1;
	}
	next_message(m, l);
	return 1;
}

/* ---- waits ---- */

/* error message of a time-out: the first message that waits, and the ranks of all others */
static int late(const struct te__mail *m, int receives)
{
	const struct line *l = receives ? m->receives : m->sends, *first = NULL;
	const char *between = ", and neither rank ";
	char who[200] = "";

	for (int32_t i = 0; i < m->npeers; i++) {
		const size_t at = strlen(who);

		if (l[i].end < 0)
			continue;
		if (!first)
			snprintf(who, sizeof(who), "%s", name_of(m, m->link->o.peers[i]));
		else
			snprintf(who + at, sizeof(who) - at, "%s%d", between, m->link->o.peers[i]);
		between = first ? ", " : between;
		first = first ? first : &l[i];
	}
	return !first ? 0 :
			te__fail(-ETIMEDOUT, "%s has not %s message %llu %s %s within %lld ms", who,
				 receives ? "sent" : "received",
				 (unsigned long long)first->number, receives ? "to" : "of",
				 name_of(m, te__boot_rank(m->boot)),
				 (long long)(m->timeout_ns / 1000000));
}

/* senders that are late are named before receivers, which may wait for others themselves */
static int check_clock(struct te__mail *m)
{
	const int64_t now = te__boot_now();
	int r = 0;

	if (now - m->looked > m->timeout_ns / 2) /* this process was stopped */
		m->since = now;
	m->looked = now;
	if (now - m->since >= m->timeout_ns)
		r = late(m, 1);
	if (!r && now - m->since >= m->timeout_ns / 8 * 9)
		r = late(m, 0);
	return r;
}

static void start(struct te__mail *m)
{
	m->started++;
	m->nleft = m->n;
	m->since = te__boot_now();
	m->looked = m->since;
	for (int32_t k = m->n; k-- > 0;) { /* the first one of a peer is the last to be set */
		const int32_t i = m->peer_of[m->ends[k].peer];

		(m->ends[k].sends ? m->sends : m->receives)[i].end = k;
	}
}

/* 1: there was progress */
static int turn(struct te__mail *m)
{
	int progress = 0, r = 0;

	if (m->started == atomic_load_explicit(&m->ended, memory_order_relaxed)) {
		if (atomic_load_explicit(&m->begun, memory_order_acquire) == m->started)
			return 0;
		start(m);
	}
	for (int32_t i = 0; i < m->npeers && r >= 0; i++) {
		while ((r = send_one(m, i)) > 0)
			progress = 1;
		while (r >= 0 && (r = receive_one(m, i)) > 0)
			progress = 1;
	}
	if (r < 0)
		return r;
	if (progress)
		m->since = te__boot_now();
	if (!m->nleft) {
		atomic_store_explicit(&m->ended, m->started, memory_order_release);
		return 1;
	}
	return progress ? 1 : check_clock(m);
}

static void *work(void *arg)
{
	struct te__mail *m = arg;
	char text[240];
	int r = 0;

	while (r >= 0 && !atomic_load(&m->stop) && !te__pool_aborted(m->pool)) {
		r = turn(m);
		if (!r)
			r = te__link_poll(m->link, te__boot_now() + (m->nleft ? LOOK_NS : IDLE_NS));
	}
	if (r < 0) {
		snprintf(text, sizeof(text), "%s", te_error_detail());
		te__boot_note(m->boot, r, "%s", text);
		te__pool_abort(m->pool, r, text);
	}
	atomic_store_explicit(&m->left, 1, memory_order_release);
	return NULL;
}

int te__mail_start(struct te__mail *m)
{
	const int r = te__thread_start(&m->thread, work, m, "messages of several nodes");

	m->running = !r;
	return r;
}

void te__mail_wake(struct te__mail *m)
{
	m->link->ops->wake(m->link);
}

void te__mail_transfer(struct te__mail *m, const struct te_k_comm_end *ends, int32_t n)
{
	uint64_t number;

	if (te__pool_aborted(m->pool))
		return;
	m->ends = ends;
	m->n = n;
	number = atomic_fetch_add_explicit(&m->begun, 1, memory_order_release) + 1;
	m->link->ops->wake(m->link);
	/* after a failure: until the thread does not write the arrays */
	for (int k = 0; atomic_load_explicit(&m->ended, memory_order_acquire) < number; k++) {
		if (atomic_load_explicit(&m->left, memory_order_acquire))
			break;
		te__boot_pause(k);
	}
}
