/* messages.c - te_comm_send(3), te_comm_alltoall(3): checks and launch of messages. */
#define TE_LOG_CATEGORY "comm"
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "kernels/comm/fold.h"
#include "libtecomm/collective/collective.h"
#include "libtecomm/collective/comm.h"
#include "libtecomm/collective/nodes/mail.h"

/* a list of ends of messages, which a host call gets a copy of */
struct te__message_list {
	struct te_k_comm_messages k; /* arguments without messages */
	struct te__mail *mail;
	int32_t n;
	struct te_k_comm_end ends[];
};

/* the messages of a call, of which each has elements of an array */
struct call {
	const char *fn;
	struct te_comm *comm;
	const void *in;
	void *out;
	enum te_dtype dtype;
	int64_t es; /* bytes of an element */
	int32_t nranks, rank;
	int32_t first; /* position of its first end in the list */
	int nccl;      /* 1: by NCCL */
	struct te_k_comm_messages k; /* kind, type and op */
};

static int begin(struct call *c, const char *fn, struct te_comm *comm, const void *in, void *out,
		 enum te_dtype dtype, enum te_k_comm_kind kind,
		 const struct te_comm_call_opts *opts)
{
	struct te_comm_call_opts o = TE_COMM_CALL_OPTS_INIT;
	int r = te__comm_check(fn, comm);
	int32_t most;

	if (!r && opts)
		r = te__sized_in(fn, te_comm_call_opts, opts, &o);
	if (r)
		return r;
	if (!comm->coll.terms.host && comm->coll.nodes && kind <= TE_K_COMM_ALLTOALL)
		return te__fail(-EOPNOTSUPP, "%s: %s: backend %s, messages between nodes are for "
				"backend host", fn, comm->name, te_ctx_backend(comm->ctx));
	if (comm->coll.group.open && kind > TE_K_COMM_ALLTOALL)
		return te__coll_group_open(&comm->coll, fn);
	if (o.algorithm != TE_COMM_AUTO &&
	    (o.algorithm != TE_COMM_NCCL || kind > TE_K_COMM_ALLTOALL || comm->coll.group.open))
		return te__fail(-EOPNOTSUPP, "%s: algorithm %d, expected TE_COMM_AUTO", fn,
				(int)o.algorithm);
	if (o.max_blocks < 0)
		return te__fail(-EINVAL, "%s: max_blocks is %d", fn, o.max_blocks);
	if (!te_dtype_nbytes(dtype))
		return te__fail(-TE_EDTYPE, "%s: element type %d is unknown", fn, (int)dtype);
	most = comm->coll.terms.max_blocks;
	most = o.max_blocks && o.max_blocks < most ? o.max_blocks : most;
	*c = (struct call){
		.fn = fn,
		.comm = comm,
		.in = in,
		.out = out,
		.dtype = dtype,
		.es = (int64_t)te_dtype_nbytes(dtype),
		.nranks = te__boot_nranks(comm->boot),
		.rank = te__boot_rank(comm->boot),
		.k = { .comm = { .dtype = (int32_t)dtype, .max_blocks = most },
		       .kind = kind,
		       .nlanes = comm->coll.terms.nlanes },
		.nccl = o.algorithm == TE_COMM_NCCL,
	};
	if (comm->coll.list && !comm->coll.group.open)
		comm->coll.list->n = 0;
	c->first = comm->coll.list ? comm->coll.list->n : 0;
	return 0;
}

static int check_rank(const struct call *c, const char *name, int32_t rank)
{
	if (rank < 0 || rank >= c->nranks)
		return te__fail(-EINVAL, "%s: %s is %d, not one of %d ranks", c->fn, name, rank,
				c->nranks);
	return 0;
}

static int check_count(const struct call *c, int64_t count, int64_t at)
{
	if (count < 0 || count >> 37)
		return te__fail(-EINVAL, "%s: %lld elements, not 0 to 2^37 - 1", c->fn,
				(long long)count);
	if (at < 0 || at >> 40)
		return te__fail(-EINVAL, "%s: offset of %lld elements, not 0 to 2^40 - 1", c->fn,
				(long long)at);
	return 0;
}

/* room for one more end */
static int grow(const struct call *c)
{
	struct te__coll *coll = &c->comm->coll;
	const int32_t cap = coll->list_cap ? 2 * coll->list_cap : 32;
	struct te__message_list *l;

	if (coll->list && coll->list->n < coll->list_cap)
		return 0;
	l = te__realloc(coll->list, sizeof(*l) + (size_t)cap * sizeof(*l->ends));
	if (!l)
		return te__fail(-ENOMEM, "%s: no memory for %d messages", c->fn, cap);
	l->n = coll->list ? l->n : 0;
	coll->list = l;
	coll->list_cap = cap;
	return 0;
}

/* count elements to, or from, a rank, which are at element at of in, or out */
static int add(struct call *c, int sends, int32_t rank, int64_t at, int64_t count)
{
	const uintptr_t base = (uintptr_t)(sends ? c->in : c->out);
	struct te__message_list *l;
	int r = check_count(c, count, at);

	if (!r)
		r = grow(c);
	if (r)
		return r;
	l = c->comm->coll.list;
	l->ends[l->n++] = (struct te_k_comm_end){
		.data = (uint8_t *)(base + (uintptr_t)(at * c->es)),
		.nbytes = count * c->es,
		.signature = te_k_comm_message(&c->k, count),
		.peer = (int16_t)rank,
		.sends = (int16_t)sends,
	};
	return 0;
}

static int check_array(const struct call *c, const char *name, const void *p, int64_t nbytes)
{
	if (nbytes && !p)
		return te__fail(-EINVAL, "%s: %s is NULL", c->fn, name);
	if (nbytes && (uintptr_t)p % (uintptr_t)c->es)
		return te__fail(-EINVAL, "%s: %s is %p, not aligned to an element of %lld bytes",
				c->fn, name, p, (long long)c->es);
	return 0;
}

static int check_arrays(const struct call *c)
{
	const struct te__message_list *l = c->comm->coll.list;
	int64_t nbytes[2] = { 0, 0 };
	int r;

	for (int32_t i = c->first; i < l->n; i++)
		nbytes[l->ends[i].sends] |= l->ends[i].nbytes;
	r = check_array(c, "in", c->in, nbytes[1]);
	return r ? r : check_array(c, "out", c->out, nbytes[0]);
}

static int overlap(uintptr_t a, uint64_t na, uintptr_t b, uint64_t nb)
{
	return na && nb && a < b + nb && b < a + na;
}

/* 1: the result of a reduction is written once, to where it is received from this rank */
static int is_read(const struct call *c, const struct te_k_comm_end *e)
{
	return e->sends || (c->k.kind == TE_K_COMM_REDUCE && e->peer != c->rank);
}

/* 1: the ends that receive ascend in memory, and those that send are all before or after them */
static int is_ascending(const struct call *c)
{
	const struct te__message_list *l = c->comm->coll.list;
	uintptr_t lo[2] = { UINTPTR_MAX, UINTPTR_MAX }, hi[2] = { 0, 0 };

	for (int32_t i = c->first; i < l->n; i++) {
		const struct te_k_comm_end *e = &l->ends[i];
		const uintptr_t p = (uintptr_t)e->data, end = p + (uintptr_t)e->nbytes;

		if (!e->nbytes)
			continue;
		if (!e->sends && p < hi[0])
			return 0;
		lo[e->sends] = p < lo[e->sends] ? p : lo[e->sends];
		hi[e->sends] = end > hi[e->sends] ? end : hi[e->sends];
	}
	return hi[0] <= lo[1] || hi[1] <= lo[0];
}

/* messages of the rank to itself may stay where they are */
static int check_overlap(const struct call *c)
{
	const struct te__message_list *l = c->comm->coll.list;

	if (is_ascending(c))
		return 0;
	for (int32_t i = c->first; i < l->n; i++) {
		const struct te_k_comm_end *out = &l->ends[i];

		for (int32_t k = c->first; k < l->n && !is_read(c, out); k++) {
			const struct te_k_comm_end *e = &l->ends[k];
			const int own = e->sends && e->peer == c->rank && out->peer == c->rank &&
					e->data == out->data;

			if (own || (!e->sends && (k >= i || is_read(c, e))))
				continue;
			if (overlap((uintptr_t)e->data, (uint64_t)e->nbytes, (uintptr_t)out->data,
				    (uint64_t)out->nbytes))
				return te__fail(-EINVAL, "%s: out for rank %d overlaps %s for "
						"rank %d", c->fn, out->peer,
						e->sends ? "in" : "out", e->peer);
		}
	}
	return 0;
}

/* the next end from position i on of a message to, or from, this rank itself; NULL: none */
static const struct te_k_comm_end *own_end(const struct call *c, int sends, int32_t *i)
{
	const struct te__message_list *l = c->comm->coll.list;

	while (*i < l->n) {
		const struct te_k_comm_end *e = &l->ends[(*i)++];

		if (e->peer == c->rank && e->sends == sends)
			return e;
	}
	return NULL;
}

static long long count_of(const struct te_k_comm_end *e)
{
	return (long long)(e->signature & (((uint64_t)1 << 40) - 1));
}

static const char *type_of(const struct te_k_comm_end *e)
{
	return te_dtype_name((enum te_dtype)(e->signature >> 40 & 15));
}

static int check_itself(const struct call *c)
{
	const struct te_k_comm_end *in, *out;
	int32_t i = 0, k = 0;

	do {
		in = own_end(c, 1, &i);
		out = own_end(c, 0, &k);
		if (!in != !out)
			return te__fail(-EINVAL, "%s: rank %d has only one end of a message to "
					"itself", c->fn, c->rank);
		if (in && in->signature != out->signature)
			return te__fail(-EINVAL, "%s: rank %d sends %lld %s to itself and receives "
					"%lld %s", c->fn, c->rank, count_of(in), type_of(in),
					count_of(out), type_of(out));
	} while (in);
	return 0;
}

/* ---- queueing ---- */

/* by the kernel, which has one end at most of each direction and rank */
static int launch(struct call *c, struct te_stream *stream)
{
	const struct te__message_list *l = c->comm->coll.list;
	struct te_k_comm_messages *k = &c->k;

	for (int32_t i = 0; i < l->n; i++) {
		const struct te_k_comm_end *e = &l->ends[i];
		const int64_t at = (int64_t)((uintptr_t)e->data -
					     (uintptr_t)(e->sends ? c->in : c->out));
		int64_t *nbytes = e->sends ? &k->in_nbytes : &k->out_nbytes;

		(e->sends ? k->in_at : k->out_at)[e->peer] = at;
		(e->sends ? k->in_count : k->out_count)[e->peer] = e->nbytes / c->es;
		*(e->sends ? &k->sends : &k->receives) |= 1u << e->peer;
		if (e->nbytes && at + e->nbytes > *nbytes)
			*nbytes = at + e->nbytes;
	}
	k->comm.in = c->in;
	k->comm.out = c->out;
	return TE__LAUNCH(stream, COMM_MESSAGES, k);
}

static int copy_own(const struct call *c, struct te_stream *stream)
{
	const struct te_k_comm_end *in, *out;
	int32_t i = 0, k = 0;
	int r = 0;

	while (!r && (in = own_end(c, 1, &i)) && (out = own_end(c, 0, &k)))
		if (in->nbytes && in->data != out->data)
			r = te_copy(stream, out->data, in->data, (size_t)in->nbytes);
	return r;
}

/* leave out messages of the rank to itself; each end has the position of the next one after it */
static int connect(const struct call *c)
{
	struct te__coll *coll = &c->comm->coll;
	struct te__message_list *l = coll->list;
	int32_t n = 0;

	if (!coll->heads)
		coll->heads = te__calloc(2 * (size_t)c->nranks, sizeof(*coll->heads));
	if (!coll->heads)
		return te__fail(-ENOMEM, "%s: no memory for messages of %d ranks", c->fn,
				c->nranks);
	for (int32_t i = 0; i < l->n; i++)
		if (l->ends[i].peer != c->rank)
			l->ends[n++] = l->ends[i];
	l->n = n;
	memset(coll->heads, -1, 2 * (size_t)c->nranks * sizeof(*coll->heads));
	for (int32_t i = n; i-- > 0;) {
		int32_t *head = &coll->heads[2 * l->ends[i].peer + l->ends[i].sends];

		l->ends[i].next = *head;
		*head = i;
	}
	return 0;
}

/* in stream order */
static void transfer(void *arg)
{
	const struct te__message_list *l = arg;

	if (l->mail)
		te__mail_transfer(l->mail, l->ends, l->n);
	else
		te__h_comm_list(&l->k, l->ends, l->n);
}

/* arrays of the root */
static void set_reduced(const struct call *c, struct te__message_list *l)
{
	const struct te_k_comm_end *in, *out;
	int32_t i = 0, k = 0;

	if (!(in = own_end(c, 1, &i)) || !(out = own_end(c, 0, &k)))
		return;
	l->k.comm.in = in->data;
	l->k.comm.out = out->data;
}

/* a host call is given the list, whose arguments are set */
static int queue_list(const struct call *c, struct te_stream *stream)
{
	struct te__message_list *l = c->comm->coll.list;

	l->mail = c->comm->coll.nodes ? te__nodes_mail(c->comm->coll.nodes) : NULL;
	return te_host_call(stream, transfer, l,
			    sizeof(*l) + (size_t)l->n * sizeof(*l->ends));
}

/* by a host call, after the messages of the rank to itself */
static int call_host(const struct call *c, struct te_stream *stream)
{
	struct te__message_list *l = c->comm->coll.list;
	int r = 0;

	l->k = c->k;
	if (c->k.kind == TE_K_COMM_REDUCE)
		set_reduced(c, l);
	else
		r = copy_own(c, stream);
	if (!r)
		r = connect(c);
	return r || !l->n ? r : queue_list(c, stream);
}

/* by the kernel of groups, or if there are more messages than it takes, by a host call */
static int launch_group(const struct call *c, struct te_stream *stream)
{
	const struct te__coll *coll = &c->comm->coll;
	struct te_k_comm_group k = { .comm = c->k.comm, .nlanes = c->k.nlanes };
	int r;

	if (coll->nodes || c->nranks > TE_K_COMM_RANKS)
		return call_host(c, stream);
	r = copy_own(c, stream);
	if (!r)
		r = connect(c);
	if (r || !coll->list->n)
		return r;
	coll->list->k = c->k;
	if (coll->list->n > TE_K_COMM_ENDS && coll->terms.host)
		return queue_list(c, stream);
	if (coll->list->n > TE_K_COMM_ENDS)
		return te__fail(-EOPNOTSUPP, "%s: %d sends and receives in a group, at most %d on "
				"GPUs", c->fn, coll->list->n, TE_K_COMM_ENDS);
	k.n = coll->list->n;
	memcpy(k.ends, coll->list->ends, (size_t)k.n * sizeof(k.ends[0]));
	return TE__LAUNCH(stream, COMM_GROUP, &k);
}

static int by_nccl(const struct call *c, struct te_stream *stream)
{
	const struct te__message_list *l = c->comm->coll.list;
	int r = te__comm_open_nccl(c->comm, c->fn, stream);

	return r ? r : te__nccl_messages(c->comm->nccl, c->fn, stream, l->ends, l->n);
}

/* the call becomes a part of the group */
static int join(const struct call *c, struct te_stream *stream)
{
	struct te__group *g = &c->comm->coll.group;

	if (g->stream && g->stream != stream)
		return te__fail(-EINVAL, "%s: stream differs from the stream of the group's first "
				"call", c->fn);
	if (!g->stream)
		g->stream = te_stream_ref(stream);
	return 0;
}

static int queue(struct call *c, struct te_stream *stream)
{
	const struct te_k_comm own = c->k.comm;
	const int grouped = c->comm->coll.group.open;
	int r = check_arrays(c);

	if (!r && !grouped) /* a group may have both ends in two calls */
		r = check_itself(c);
	if (!r)
		r = check_overlap(c);
	if (!r)
		r = te__stream_check(c->fn, stream, c->comm->ctx);
	if (!r && grouped)
		return join(c, stream);
	if (!r)
		r = te__coll_begin(&c->comm->coll, c->fn, stream);
	if (r || c->nccl)
		return r ? r : by_nccl(c, stream);
	c->k.comm = te__coll_args(&c->comm->coll);
	c->k.comm.dtype = own.dtype;
	c->k.comm.op = own.op;
	c->k.comm.max_blocks = own.max_blocks;
	return c->comm->coll.nodes || c->nranks > TE_K_COMM_RANKS ? call_host(c, stream) :
								    launch(c, stream);
}

/* r: result of a call. In a group: its ends are in the list, or the group has failed */
static int settle(struct te_comm *comm, int r)
{
	struct te__group *g = comm ? &comm->coll.group : NULL;
	struct te__message_list *l = comm ? comm->coll.list : NULL;

	if (!g || !g->open)
		return r;
	if (r && !g->code) {
		g->code = r;
		snprintf(g->why, sizeof(g->why), "%s", te_error_detail());
	}
	if (r && l)
		l->n = g->n;
	else if (l)
		g->n = l->n;
	return r;
}

static int sendrecv(const char *fn, struct te_comm *comm, struct te_stream *stream, const void *in,
		    int64_t nin, int32_t to, void *out, int64_t nout, int32_t from,
		    enum te_dtype dtype, const struct te_comm_call_opts *opts)
{
	struct call c;
	int r = begin(&c, fn, comm, in, out, dtype, TE_K_COMM_POINT, opts);

	if (!r && to != TE_COMM_NO_RANK)
		r = check_rank(&c, "to", to);
	if (!r && to != TE_COMM_NO_RANK)
		r = add(&c, 1, to, 0, nin);
	if (!r && from != TE_COMM_NO_RANK)
		r = check_rank(&c, "from", from);
	if (!r && from != TE_COMM_NO_RANK)
		r = add(&c, 0, from, 0, nout);
	if (!r && (to != TE_COMM_NO_RANK || from != TE_COMM_NO_RANK))
		r = queue(&c, stream);
	return settle(comm, r);
}

int te_comm_send(struct te_comm *comm, struct te_stream *stream, const void *in, int64_t count,
		 enum te_dtype dtype, int32_t to, const struct te_comm_call_opts *opts)
{
	return sendrecv("te_comm_send", comm, stream, in, count, to, NULL, 0, TE_COMM_NO_RANK,
			dtype, opts);
}

int te_comm_recv(struct te_comm *comm, struct te_stream *stream, void *out, int64_t count,
		 enum te_dtype dtype, int32_t from, const struct te_comm_call_opts *opts)
{
	return sendrecv("te_comm_recv", comm, stream, NULL, 0, TE_COMM_NO_RANK, out, count, from,
			dtype, opts);
}

int te_comm_sendrecv(struct te_comm *comm, struct te_stream *stream, const void *in,
		     int64_t in_count, int32_t to, void *out, int64_t out_count, int32_t from,
		     enum te_dtype dtype, const struct te_comm_call_opts *opts)
{
	return sendrecv("te_comm_sendrecv", comm, stream, in, in_count, to, out, out_count, from,
			dtype, opts);
}

/* ---- messages of all ranks ---- */

/* part r of in to rank r, and part r of out from it */
int te_comm_alltoall(struct te_comm *comm, struct te_stream *stream, const void *in, void *out,
		     int64_t count, enum te_dtype dtype, const struct te_comm_call_opts *opts)
{
	struct call c;
	int r = begin(&c, "te_comm_alltoall", comm, in, out, dtype, TE_K_COMM_ALLTOALL, opts);

	if (!r)
		r = check_count(&c, count, 0);
	for (int i = 0; !r && i < c.nranks; i++) {
		r = add(&c, 1, i, i * count, count);
		if (!r)
			r = add(&c, 0, i, i * count, count);
	}
	if (!r && count)
		r = queue(&c, stream);
	else if (!r)
		c.comm->coll.list->n = c.first;
	return settle(comm, r);
}

/* offsets NULL: in rank order without gaps */
static int add_all(struct call *c, int sends, const int64_t *counts, const int64_t *offsets)
{
	int64_t at = 0;
	int r = 0;

	if (!counts)
		return te__fail(-EINVAL, "%s: %s is NULL", c->fn,
				sends ? "in_counts" : "out_counts");
	for (int i = 0; !r && i < c->nranks; i++) {
		r = add(c, sends, i, offsets ? offsets[i] : at, counts[i]);
		if (!r)
			at += counts[i];
	}
	return r;
}

int te_comm_alltoallv(struct te_comm *comm, struct te_stream *stream, const void *in,
		      const int64_t *in_counts, const int64_t *in_offsets, void *out,
		      const int64_t *out_counts, const int64_t *out_offsets, enum te_dtype dtype,
		      const struct te_comm_call_opts *opts)
{
	struct call c;
	int r = begin(&c, "te_comm_alltoallv", comm, in, out, dtype, TE_K_COMM_ALLTOALL, opts);

	if (!r)
		r = add_all(&c, 1, in_counts, in_offsets);
	if (!r)
		r = add_all(&c, 0, out_counts, out_offsets);
	return settle(comm, r ? r : queue(&c, stream));
}

/* ---- groups ---- */

int te_comm_group_begin(struct te_comm *comm)
{
	int r = te__comm_check("te_comm_group_begin", comm);

	if (r)
		return r;
	if (comm->coll.group.open)
		return te__coll_group_open(&comm->coll, "te_comm_group_begin");
	comm->coll.group = (struct te__group){ .open = 1 };
	if (comm->coll.list)
		comm->coll.list->n = 0;
	return 0;
}

/* queue the messages of a group that was successful */
static int queue_group(struct te_comm *comm, const struct te__group *g)
{
	struct call c = {
		.fn = "te_comm_group_end",
		.comm = comm,
		.nranks = te__boot_nranks(comm->boot),
		.rank = te__boot_rank(comm->boot),
	};
	int r = te__comm_check(c.fn, comm);

	if (!r && g->code)
		r = te__fail(g->code, "te_comm_group_end: %s", g->why);
	if (r || !g->n)
		return r;
	r = check_itself(&c);
	if (!r)
		r = check_overlap(&c);
	if (!r)
		r = te__coll_begin(&comm->coll, c.fn, g->stream);
	c.k.comm = te__coll_args(&comm->coll);
	c.k.nlanes = comm->coll.terms.nlanes;
	return r ? r : launch_group(&c, g->stream);
}

int te_comm_group_end(struct te_comm *comm)
{
	struct te__group g;
	int r;

	if (!comm)
		return te__fail(-EINVAL, "te_comm_group_end: comm is NULL");
	g = comm->coll.group;
	if (!g.open)
		return te__fail(-EINVAL, "te_comm_group_end: %s: there is no group, "
				"te_comm_group_begin() opens one", comm->name);
	comm->coll.group = (struct te__group){ .open = 0 };
	r = queue_group(comm, &g);
	te_stream_unref(g.stream);
	return r;
}

/* as by_root(), among ranks whose collectives are between nodes */
static int by_nodes(const struct call *c, struct te_stream *stream, int64_t count, int32_t root)
{
	static const enum te_k_comm_collective whats[TE_K_COMM_KINDS] = {
		[TE_K_COMM_GATHER] = TE_K_COLL_GATHER,
		[TE_K_COMM_SCATTER] = TE_K_COLL_SCATTER,
		[TE_K_COMM_REDUCE] = TE_K_COLL_REDUCE,
	};
	const int scatters = c->k.kind == TE_K_COMM_SCATTER, is_root = c->rank == root;
	const uint64_t part = (uint64_t)count * te_dtype_nbytes(c->dtype);
	const uint64_t whole = part * (uint64_t)(c->k.kind == TE_K_COMM_REDUCE ? 1 : c->nranks);
	const uint64_t nin = !scatters ? part : is_root ? whole : 0;
	const uint64_t nout = scatters ? part : is_root ? whole : 0;
	const uintptr_t in = (uintptr_t)c->in, out = (uintptr_t)c->out;
	const uintptr_t own = c->k.kind == TE_K_COMM_REDUCE ? 0 : part * (uint64_t)root;
	struct te_comm_call_opts o = TE_COMM_CALL_OPTS_INIT;
	struct te__coll_choice how = { .explain = 0 };
	struct te__nodes_call k = { c->in, c->out, count, c->dtype, (enum te_comm_op)c->k.comm.op,
				    whats[c->k.kind], root, TE_COMM_AUTO };
	int r = check_array(c, "in", c->in, (int64_t)nin);

	if (!r)
		r = check_array(c, "out", c->out, (int64_t)nout);
	if (!r && is_root && (scatters ? in + own != out : out + own != in) &&
	    overlap(in, nin, out, nout))
		r = te__fail(-EINVAL, "%s: out overlaps in, and is not in place", c->fn);
	if (!r)
		r = te__stream_check(c->fn, stream, c->comm->ctx);
	if (!r)
		r = te__coll_choose(&c->comm->coll, c->fn, k.what, count, c->dtype, 0, &o, &how);
	if (!r)
		r = te__coll_begin(&c->comm->coll, c->fn, stream);
	k.algorithm = how.algorithm;
	return r ? r : te__nodes_queue(c->comm->coll.nodes, stream, &k);
}

/* count elements of each rank to the root, or back; step: elements from a rank's to the next's */
static int by_root(const char *fn, struct te_comm *comm, struct te_stream *stream, const void *in,
		   void *out, int64_t count, int64_t step, enum te_dtype dtype, enum te_comm_op op,
		   enum te_k_comm_kind kind, int32_t root, const struct te_comm_call_opts *opts)
{
	const int gathers = kind != TE_K_COMM_SCATTER;
	struct call c;
	int r = begin(&c, fn, comm, in, out, dtype, kind, opts);

	if (!r)
		r = check_rank(&c, "root", root);
	if (!r && (unsigned)op > TE_COMM_MAX)
		r = te__fail(-EINVAL, "%s: operation %d is unknown", fn, (int)op);
	if (!r)
		r = check_count(&c, count, 0);
	if (r)
		return r;
	c.k.comm.op = (int32_t)op;
	if (comm->coll.nodes)
		return count ? by_nodes(&c, stream, count, root) : 0;
	r = add(&c, gathers, root, 0, count);
	for (int i = 0; !r && c.rank == root && i < c.nranks; i++)
		r = add(&c, !gathers, i, i * step, count);
	return r || !count ? r : queue(&c, stream);
}

int te_comm_gather(struct te_comm *comm, struct te_stream *stream, const void *in, void *out,
		   int64_t count, enum te_dtype dtype, int32_t root,
		   const struct te_comm_call_opts *opts)
{
	return by_root("te_comm_gather", comm, stream, in, out, count, count, dtype, TE_COMM_SUM,
		       TE_K_COMM_GATHER, root, opts);
}

int te_comm_scatter(struct te_comm *comm, struct te_stream *stream, const void *in, void *out,
		    int64_t count, enum te_dtype dtype, int32_t root,
		    const struct te_comm_call_opts *opts)
{
	return by_root("te_comm_scatter", comm, stream, in, out, count, count, dtype, TE_COMM_SUM,
		       TE_K_COMM_SCATTER, root, opts);
}

int te_comm_reduce(struct te_comm *comm, struct te_stream *stream, const void *in, void *out,
		   int64_t count, enum te_dtype dtype, enum te_comm_op op, int32_t root,
		   const struct te_comm_call_opts *opts)
{
	return by_root("te_comm_reduce", comm, stream, in, out, count, 0, dtype, op,
		       TE_K_COMM_REDUCE, root, opts);
}
