/* messages.c - te_comm_send(3), te_comm_alltoall(3): checks and launch of messages. */
#define TE_LOG_CATEGORY "comm"
#include "config.h"

#include <errno.h>
#include <string.h>

#include "libtecomm/collective/collective.h"
#include "libtecomm/collective/comm.h"

/* the messages of a call, of which each has elements of an array */
struct call {
	const char *fn;
	struct te_comm *comm;
	const void *in;
	void *out;
	enum te_dtype dtype;
	int32_t nranks, rank;
	struct te_k_comm_messages k;
};

static int begin(struct call *c, const char *fn, struct te_comm *comm, const void *in, void *out,
		 enum te_dtype dtype, enum te_k_comm_kind kind,
		 const struct te_comm_call_opts *opts)
{
	struct te_comm_call_opts o = TE_COMM_CALL_OPTS_INIT;
	int r = te__comm_check(fn, comm);

	if (!r && opts)
		r = te__sized_in(fn, te_comm_call_opts, opts, &o);
	if (r)
		return r;
	if (comm->coll.nodes && kind <= TE_K_COMM_ALLTOALL)
		return te__fail(-EOPNOTSUPP, "%s: %s: ranks of %d nodes whose memory is not "
				"mapped, only gather, scatter and reduce are for these", fn,
				comm->name, te__boot_nnodes(comm->boot));
	if (!comm->coll.nodes && !comm->coll.terms.host)
		return te__fail(-EOPNOTSUPP, "%s: %s: backend %s, messages are for backend host",
				fn, comm->name, te_ctx_backend(comm->ctx));
	if (o.algorithm != TE_COMM_AUTO)
		return te__fail(-EOPNOTSUPP, "%s: algorithm %d, expected TE_COMM_AUTO", fn,
				(int)o.algorithm);
	if (o.max_blocks < 0)
		return te__fail(-EINVAL, "%s: max_blocks is %d", fn, o.max_blocks);
	if (!te_dtype_nbytes(dtype))
		return te__fail(-TE_EDTYPE, "%s: element type %d is unknown", fn, (int)dtype);
	*c = (struct call){
		.fn = fn,
		.comm = comm,
		.in = in,
		.out = out,
		.dtype = dtype,
		.nranks = te__boot_nranks(comm->boot),
		.rank = te__boot_rank(comm->boot),
		.k = { .kind = kind, .nlanes = comm->coll.terms.nlanes },
	};
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

/* count elements to, or from, a rank, which are at element at of in, or out */
static int add(struct call *c, int sends, int32_t rank, int64_t at, int64_t count)
{
	const int64_t es = (int64_t)te_dtype_nbytes(c->dtype);
	int64_t *nbytes = sends ? &c->k.in_nbytes : &c->k.out_nbytes;
	int r = check_count(c, count, at);

	if (r)
		return r;
	(sends ? c->k.in_at : c->k.out_at)[rank] = at * es;
	(sends ? c->k.in_count : c->k.out_count)[rank] = count;
	*(sends ? &c->k.sends : &c->k.receives) |= 1u << rank;
	if (count && (at + count) * es > *nbytes)
		*nbytes = (at + count) * es;
	return 0;
}

static int check_array(const struct call *c, const char *name, const void *p, int64_t nbytes)
{
	const size_t es = te_dtype_nbytes(c->dtype);

	if (nbytes && !p)
		return te__fail(-EINVAL, "%s: %s is NULL", c->fn, name);
	if (nbytes && (uintptr_t)p % es)
		return te__fail(-EINVAL, "%s: %s is %p, not aligned to an element of %zu bytes",
				c->fn, name, p, es);
	return 0;
}

static int overlap(uintptr_t a, uint64_t na, uintptr_t b, uint64_t nb)
{
	return na && nb && a < b + nb && b < a + na;
}

/* messages of the rank to itself may stay where they are */
static int check_overlap(const struct call *c)
{
	const struct te_k_comm_messages *k = &c->k;
	const uint64_t es = te_dtype_nbytes(c->dtype);
	const int reduces = k->kind == TE_K_COMM_REDUCE;

	for (int r = 0; r < c->nranks; r++) {
		const uintptr_t out = (uintptr_t)c->out + (uintptr_t)k->out_at[r];
		const uint64_t n = (uint64_t)k->out_count[r] * es;

		for (int s = 0; s < c->nranks; s++) {
			const uintptr_t in = (uintptr_t)c->in + (uintptr_t)k->in_at[s];
			const int own = (s == r || reduces) && s == c->rank && in == out;

			if (!own && overlap(in, (uint64_t)k->in_count[s] * es, out, n))
				return te__fail(-EINVAL, "%s: out for rank %d overlaps in for "
						"rank %d", c->fn, r, s);
			if (s < r && !reduces &&
			    overlap((uintptr_t)c->out + (uintptr_t)k->out_at[s],
				    (uint64_t)k->out_count[s] * es, out, n))
				return te__fail(-EINVAL, "%s: out for rank %d overlaps out for "
						"rank %d", c->fn, r, s);
		}
	}
	return 0;
}

static int check_itself(const struct call *c)
{
	const struct te_k_comm_messages *k = &c->k;
	const uint32_t own = 1u << c->rank;

	if ((k->sends & own) != (k->receives & own))
		return te__fail(-EINVAL, "%s: rank %d has only one end of a message to itself",
				c->fn, c->rank);
	if ((k->sends & own) && k->in_count[c->rank] != k->out_count[c->rank])
		return te__fail(-EINVAL, "%s: rank %d sends %lld elements to itself and receives "
				"%lld", c->fn, c->rank, (long long)k->in_count[c->rank],
				(long long)k->out_count[c->rank]);
	return 0;
}

static int queue(struct call *c, struct te_stream *stream)
{
	const int32_t op = c->k.comm.op;
	int r = check_array(c, "in", c->in, c->k.in_nbytes);

	if (!r)
		r = check_array(c, "out", c->out, c->k.out_nbytes);
	if (!r)
		r = check_itself(c);
	if (!r)
		r = check_overlap(c);
	if (!r)
		r = te__stream_check(c->fn, stream, c->comm->ctx);
	if (!r)
		r = te__coll_begin(&c->comm->coll, c->fn, stream);
	if (r)
		return r;
	c->k.comm = te__coll_args(&c->comm->coll);
	c->k.comm.in = c->in;
	c->k.comm.out = c->out;
	c->k.comm.dtype = (int32_t)c->dtype;
	c->k.comm.op = op;
	return TE__LAUNCH(stream, COMM_MESSAGES, &c->k);
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
	return r || !(c.k.sends | c.k.receives) ? r : queue(&c, stream);
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
	return r || !count ? r : queue(&c, stream);
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
	return r ? r : queue(&c, stream);
}

/* as by_root(), among ranks that exchange messages between nodes */
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
