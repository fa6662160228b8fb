/* messages.c - messages between ranks: the protocol of messages.h, for threads or processes. */
#include "config.h"

#include "kernels/comm/fold.h"
#include "kernels/comm/ref.h"

/* a message that is being sent or received */
struct message {
	int peer;
	uint8_t *data;
	int64_t nbytes;
	int64_t done, nchunks;
	uint64_t first;	 /* number of its first chunk */
	uint64_t number; /* number of the message */
	uint64_t signature;
	int32_t next; /* position of the next one in the list of ends; -1: none */
};

struct run {
	struct te__hc_op o;
	const struct te_k_comm_messages *k;
	const struct te_k_comm_end *ends; /* messages of a list; or NULL */
	int64_t slot; /* bytes */
	const uint8_t *in; /* the message of this rank to itself, */
	uint8_t *out;	   /* or the sums of all ranks' messages */
	int nsends, nreceives;
	struct message send[TE_K_COMM_HOST_RANKS], receive[TE_K_COMM_HOST_RANKS];
};

static uint64_t *at(const struct run *x, int rank, int64_t offset)
{
	return (uint64_t *)(void *)(x->k->comm.slots + rank * x->k->comm.stride + offset);
}

static uint64_t *counter(const struct run *x, int peer, enum te_k_comm_counter c)
{
	return at(x, x->k->comm.rank, te_k_comm_counters(x->k, peer, 0)) + c;
}

/* the slot in a rank's region of a chunk from the peer */
static uint64_t *slot(const struct run *x, int rank, int peer, uint64_t chunk)
{
	return at(x, rank, te_k_comm_slot(x->k, peer, 0, chunk));
}

/* the last of r's chunks that p has taken */
static uint64_t *taken(const struct run *x, int r, int p)
{
	return at(x, r, te_k_comm_lane(x->k, p, 0));
}

static uint8_t *data_of(uint64_t *s)
{
	return (uint8_t *)s + 128;
}

static struct message message(const struct run *x, int peer, const void *array, int64_t begin,
			      int64_t count, enum te_k_comm_counter chunks)
{
	const int64_t nbytes = count * x->o.es;

	return (struct message){
		.peer = peer,
		.data = (uint8_t *)(uintptr_t)array + begin,
		.nbytes = nbytes,
		.nchunks = te_k_comm_nchunks(x->k, nbytes),
		.first = *counter(x, peer, chunks) + 1,
		.number = *counter(x, peer, chunks + 1) + 1,
		.signature = te_k_comm_message(x->k, count),
		.next = -1,
	};
}

static void begin(struct run *x, const struct te_k_comm_messages *k)
{
	*x = (struct run){ .o = { .a = &k->comm }, .k = k };
	x->o.es = (uint32_t)te_dtype_nbytes((enum te_dtype)k->comm.dtype);
	x->slot = te_k_comm_slot_nbytes(k->comm.buffer_nbytes);
}

static void begin_call(struct run *x)
{
	const struct te_k_comm_messages *k = x->k;

	/* a rank that only receives, or only sends, has no memory for the other */
	if (k->comm.in)
		x->in = (const uint8_t *)k->comm.in + k->in_at[k->comm.rank];
	if (k->comm.out)
		x->out = (uint8_t *)k->comm.out + k->out_at[k->comm.rank];
	/* the ranks after this one first: they do not all send to the same one */
	for (int i = 1; i < k->comm.nranks; i++) {
		const int r = (k->comm.rank + i) % k->comm.nranks;

		if (k->sends >> r & 1)
			x->send[x->nsends++] = message(x, r, k->comm.in, k->in_at[r],
						       k->in_count[r], TE_K_COMM_SENT);
	}
	for (int r = 0; r < k->comm.nranks; r++)
		if (r != k->comm.rank && k->receives >> r & 1)
			x->receive[x->nreceives++] = message(x, r, k->comm.out, k->out_at[r],
							     k->out_count[r], TE_K_COMM_RECEIVED);
}

/* the message of an end, which begins with this chunk and has this number */
static struct message listed(const struct run *x, const struct te_k_comm_end *e, uint64_t first,
			     uint64_t number)
{
	return (struct message){
		.peer = e->peer,
		.data = e->data,
		.nbytes = e->nbytes,
		.nchunks = te_k_comm_nchunks(x->k, e->nbytes),
		.first = first,
		.number = number,
		.signature = e->signature,
		.next = e->next,
	};
}

/* the first ends of each rank */
static void begin_list(struct run *x, const struct te_k_comm_end *ends, int32_t n)
{
	uint32_t seen[2] = { 0, 0 };

	x->ends = ends;
	x->in = x->k->comm.in;
	x->out = x->k->comm.out;
	for (int32_t i = 0; i < n; i++) {
		const struct te_k_comm_end *e = &ends[i];
		const enum te_k_comm_counter c = e->sends ? TE_K_COMM_SENT : TE_K_COMM_RECEIVED;
		struct message *m = e->sends ? &x->send[x->nsends] : &x->receive[x->nreceives];

		if (seen[e->sends] >> e->peer & 1)
			continue;
		seen[e->sends] |= 1u << e->peer;
		*m = listed(x, e, *counter(x, e->peer, c) + 1, *counter(x, e->peer, c + 1) + 1);
		*(e->sends ? &x->nsends : &x->nreceives) += 1;
	}
}

static size_t chunk_nbytes(const struct run *x, const struct message *m)
{
	const int64_t left = m->nbytes - m->done * x->slot;

	return (size_t)(left < x->slot ? left : x->slot);
}

/* data is NULL if a message has no elements */
static void copy(void *dst, const void *src, size_t nbytes)
{
	if (nbytes)
		memcpy(dst, src, nbytes);
}

/* 1: a chunk was sent */
static int send_one(const struct run *x, struct message *m)
{
	const int me = x->k->comm.rank;
	const uint64_t chunk = m->first + (uint64_t)m->done;
	uint64_t *s;

	/* modulo 2^64, as -1 is before 0 */
	if (chunk - __atomic_load_n(taken(x, me, m->peer), __ATOMIC_ACQUIRE) > TE_K_COMM_SLOTS)
		return 0;
	s = slot(x, m->peer, me, chunk);
	copy(data_of(s), m->data + m->done * x->slot, chunk_nbytes(x, m));
	s[1] = m->signature;
	__atomic_store_n(s, chunk, __ATOMIC_RELEASE);
	te__hc_ring_one(&x->o, m->peer);
	m->done++;
	return 1;
}

/* 1: the next chunk has arrived; 0: not yet; -1: it is of another message */
static int arrived(const struct run *x, const struct message *m)
{
	const uint64_t chunk = m->first + (uint64_t)m->done;
	const uint64_t *s = slot(x, x->k->comm.rank, m->peer, chunk);
	struct te__hc_op o = x->o;

	if (__atomic_load_n(s, __ATOMIC_ACQUIRE) != chunk)
		return 0;
	if (s[1] == m->signature)
		return 1;
	o.epoch = m->number;
	return te__hc_fail(&o, TE_K_COMM_MISMATCH, TE_K_COMM_RECEIVE, m->peer, 0, m->signature,
			   s[1]);
}

static void take(const struct run *x, struct message *m)
{
	const uint64_t chunk = m->first + (uint64_t)m->done++;

	__atomic_store_n(taken(x, m->peer, x->k->comm.rank), chunk, __ATOMIC_RELEASE);
	te__hc_ring_one(&x->o, m->peer);
}

static int receive_one(const struct run *x, struct message *m)
{
	const int r = arrived(x, m);

	if (r <= 0)
		return r;
	copy(m->data + m->done * x->slot,
	     data_of(slot(x, x->k->comm.rank, m->peer, m->first + (uint64_t)m->done)),
	     chunk_nbytes(x, m));
	take(x, m);
	return 1;
}

/* the next chunk of all ranks; out may be the input of this rank */
static void reduce_chunk(struct run *x)
{
	const struct te_k_comm_messages *k = x->k;
	const int me = k->comm.rank;
	const int64_t done = x->nreceives ? x->receive[0].done : 0;
	const int64_t nbytes = x->nreceives ? (int64_t)chunk_nbytes(x, &x->receive[0]) :
					      k->in_count[me] * x->o.es;
	const int64_t npackets = te_k_comm_packets(nbytes), begin = done * x->slot;
	const uint8_t *from[TE_K_COMM_HOST_RANKS], *src[TE_K_COMM_HOST_RANKS];
	uint8_t sums[TE__HC_BLOCK * TE_K_COMM_PACKET];

	from[me] = x->in + begin;
	for (int i = 0; i < x->nreceives; i++) {
		const struct message *m = &x->receive[i];

		from[m->peer] = data_of(slot(x, me, m->peer, m->first + (uint64_t)done));
	}
	TE__HC_BLOCKS(i, n, 0, npackets) {
		const int64_t b = i * TE_K_COMM_PACKET;
		const int64_t len = te__h_min(n * TE_K_COMM_PACKET, nbytes - b);

		for (int r = 0; r < k->comm.nranks; r++)
			src[r] = from[r] + b;
		te__hc_reduce(&x->o, src, len, sums);
		memcpy(x->out + begin + b, sums, (size_t)len);
	}
	for (int i = 0; i < x->nreceives; i++)
		take(x, &x->receive[i]);
}

/* as receive_one(): chunks of all ranks together */
static int reduce_one(struct run *x)
{
	for (int i = 0; i < x->nreceives; i++) {
		const int r = arrived(x, &x->receive[i]);

		if (r <= 0)
			return r;
	}
	reduce_chunk(x);
	return 1;
}

static int is_done(const struct message *m)
{
	return m->done == m->nchunks;
}

/* the next message after one that is done */
static void proceed(const struct run *x, struct message *m)
{
	if (is_done(m) && m->next >= 0)
		*m = listed(x, &x->ends[m->next], m->first + (uint64_t)m->nchunks, m->number + 1);
}

/* how many chunks were sent and received; -1 after a failure */
static int step(struct run *x)
{
	const int reduces = x->k->kind == TE_K_COMM_REDUCE && x->nreceives > 0;
	int n = 0, r;

	for (int i = 0; i < x->nsends; i++) {
		n += !is_done(&x->send[i]) && send_one(x, &x->send[i]);
		proceed(x, &x->send[i]);
	}
	if (reduces) {
		r = is_done(&x->receive[0]) ? 0 : reduce_one(x);
		return r < 0 ? -1 : n + r;
	}
	for (int i = 0; i < x->nreceives; i++) {
		r = is_done(&x->receive[i]) ? 0 : receive_one(x, &x->receive[i]);
		if (r < 0)
			return -1;
		proceed(x, &x->receive[i]);
		n += r;
	}
	return n;
}

/* the first message that waits, and the peers of all; NULL: none does */
static const struct message *first_of(const struct run *x, const struct message *m, int n,
				      int receives, uint32_t *ret_peers)
{
	const struct message *first = NULL;

	*ret_peers = 0;
	for (int i = n - 1; i >= 0; i--) {
		if (is_done(&m[i]) || (receives && arrived(x, &m[i])))
			continue;
		first = &m[i];
		*ret_peers |= 1u << m[i].peer;
	}
	return first;
}

/* 0, or -1 after a failure */
static int wait_more(struct run *x)
{
	enum te_k_comm_phase phase = TE_K_COMM_RECEIVE;
	uint32_t peers;
	const struct message *m = first_of(x, x->receive, x->nreceives, 1, &peers);

	if (!m) {
		phase = TE_K_COMM_SEND;
		m = first_of(x, x->send, x->nsends, 0, &peers);
	}
	if (!m)
		return 0;
	x->o.epoch = m->number;
	return te__hc_again(&x->o, phase, m->peer, peers, m->first + (uint64_t)m->done, 0);
}

static int all_done(const struct run *x)
{
	for (int i = 0; i < x->nsends; i++)
		if (!is_done(&x->send[i]))
			return 0;
	for (int i = 0; i < x->nreceives; i++)
		if (!is_done(&x->receive[i]))
			return 0;
	return 1;
}

static void end(const struct run *x, const struct message *m, int n, enum te_k_comm_counter chunks)
{
	for (int i = 0; i < n; i++) {
		*counter(x, m[i].peer, chunks) = m[i].first + (uint64_t)m[i].nchunks - 1;
		*counter(x, m[i].peer, chunks + 1) = m[i].number;
	}
}

static void exchange(struct run *x)
{
	while (!all_done(x)) {
		const int n = step(x);

		if (n > 0) {
			x->o.attempts = 0;
			x->o.since = 0;
		} else if (n < 0 || wait_more(x)) {
			return;
		}
	}
	end(x, x->send, x->nsends, TE_K_COMM_SENT);
	end(x, x->receive, x->nreceives, TE_K_COMM_RECEIVED);
}

/* the message of a rank to itself */
static void to_itself(struct run *x)
{
	const struct te_k_comm_messages *k = x->k;
	const int me = k->comm.rank;

	if (k->kind == TE_K_COMM_REDUCE && k->comm.nranks == 1)
		reduce_chunk(x);
	else if (k->kind != TE_K_COMM_REDUCE && x->in != x->out)
		copy(x->out, x->in, (size_t)(k->in_count[me] * x->o.es));
}

void te__h_comm_messages(const struct te_k_comm_messages *a)
{
	struct run x;

	if (a->comm.ctl->failed)
		return;
	begin(&x, a);
	begin_call(&x);
	if (a->sends & a->receives & 1u << a->comm.rank)
		to_itself(&x);
	exchange(&x);
}

void te__h_comm_list(const struct te_k_comm_messages *a, const struct te_k_comm_end *ends,
		     int32_t n)
{
	struct run x;

	if (a->comm.ctl->failed)
		return;
	begin(&x, a);
	begin_list(&x, ends, n);
	exchange(&x);
}

void te__h_comm_group(const struct te_k_comm_group *a)
{
	const struct te_k_comm_messages k = { .comm = a->comm, .nlanes = a->nlanes };

	te__h_comm_list(&k, a->ends, a->n);
}
