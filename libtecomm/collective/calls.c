/* calls.c - te_comm_allreduce(3), te_comm_reduce_scatter(3): checks, choice and launches. */
#define TE_LOG_CATEGORY "comm"
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "libtecomm/collective/collective.h"
#include "libtecomm/collective/comm.h"
#include "libtecore/base/splitmix64.h"

/* bytes of in or, if not, of out: the larger array has a part for each rank */
static uint64_t nbytes_of(const struct te__call *a, int in)
{
	const enum te_k_comm_collective larger =
		in ? TE_K_COLL_REDUCE_SCATTER : TE_K_COLL_ALL_GATHER;

	return (uint64_t)a->count * te_dtype_nbytes(a->dtype) *
	       (uint64_t)(a->what == larger ? te__boot_nranks(a->comm->boot) : 1);
}

static int check_array(const struct te__call *a, const char *name, const void *ptr)
{
	if (!ptr)
		return te__fail(-EINVAL, "%s: %s is NULL", a->fn, name);
	if ((uintptr_t)ptr % te_dtype_nbytes(a->dtype))
		return te__fail(-EINVAL, "%s: %s is %p, not aligned to an element of %zu bytes",
				a->fn, name, ptr, te_dtype_nbytes(a->dtype));
	return 0;
}

static int check_arrays(const struct te__call *a)
{
	const uintptr_t in = (uintptr_t)a->in, out = (uintptr_t)a->out;
	const uint64_t nin = nbytes_of(a, 1), nout = nbytes_of(a, 0);
	const uint64_t part = (uint64_t)te__boot_rank(a->comm->boot) * (nin < nout ? nin : nout);
	const int same = nin == nout ? in == out : nin > nout ? in + part == out : out + part == in;
	int r = check_array(a, "in", a->in);

	if (!r)
		r = check_array(a, "out", a->out);
	if (!r && !same && in < out + nout && out < in + nin)
		r = te__fail(-EINVAL, "%s: out overlaps in, and is not %s", a->fn,
			     nin == nout ? "the same" : "in place: the part of this rank");
	return r;
}

int te__comm_check(const char *fn, struct te_comm *comm)
{
	int32_t most;

	if (!comm)
		return te__fail(-EINVAL, "%s: comm is NULL", fn);
	most = te__coll_most(te_ctx_backend(comm->ctx));
	if (!comm->coll.nodes && te__boot_nranks(comm->boot) > most)
		return te__fail(-EOPNOTSUPP, "%s: %s: %d ranks of one node, at most %d are "
				"supported by backend %s", fn, comm->name,
				te__boot_nranks(comm->boot), most, te_ctx_backend(comm->ctx));
	return 0;
}

static int check(const struct te__call *a)
{
	int r = te__comm_check(a->fn, a->comm);

	if (r)
		return r;
	if (!te_dtype_nbytes(a->dtype))
		return te__fail(-TE_EDTYPE, "%s: element type %d is unknown", a->fn, (int)a->dtype);
	if ((unsigned)a->op > TE_COMM_MAX)
		return te__fail(-EINVAL, "%s: operation %d is unknown", a->fn, (int)a->op);
	if (a->count < 0 || a->count >> (a->what == TE_K_COLL_ALLREDUCE ? 40 : 37))
		return te__fail(-EINVAL, "%s: %lld elements, not 0 to 2^%d - 1", a->fn,
				(long long)a->count, a->what == TE_K_COLL_ALLREDUCE ? 40 : 37);
	if (a->what == TE_K_COLL_BROADCAST &&
	    (a->root < 0 || a->root >= te__boot_nranks(a->comm->boot)))
		return te__fail(-EINVAL, "%s: root %d of %d ranks", a->fn, a->root,
				te__boot_nranks(a->comm->boot));
	return a->count ? check_arrays(a) : 0;
}

static uint32_t arrays_of(const struct te__call *a)
{
	const struct te__pool *pool = a->comm->pool;
	const int symmetric = te__pool_offset(pool, a->in, nbytes_of(a, 1)) != UINT64_MAX &&
			      te__pool_offset(pool, a->out, nbytes_of(a, 0)) != UINT64_MAX;
	const int nvls = a->op <= TE_COMM_AVG && a->dtype <= TE_DTYPE_FP16 &&
			 ((uintptr_t)a->in | (uintptr_t)a->out) % TE_K_COMM_PACKET == 0;

	return (symmetric ? TE__COLL_SYMMETRIC : 0) | (nvls ? TE__COLL_NVLS : 0);
}

/* checks all arguments; count is above 0 */
static int choose(const struct te__call *a, const struct te_comm_call_opts *opts,
		  struct te__coll_choice *ret)
{
	struct te_comm_call_opts o = TE_COMM_CALL_OPTS_INIT;
	int r = opts ? te__sized_in(a->fn, te_comm_call_opts, opts, &o) : 0;

	if (r)
		return r;
	if (o.max_blocks < 0)
		return te__fail(-EINVAL, "%s: max_blocks is %d", a->fn, o.max_blocks);
	return te__coll_choose(&a->comm->coll, a->fn, a->what, a->count, a->dtype, arrays_of(a),
			       &o, ret);
}

static int launch_one(const struct te__call *a, const struct te_k_comm *k,
		      struct te_stream *stream)
{
	switch (a->what) {
	case TE_K_COLL_REDUCE_SCATTER:
		return TE__LAUNCH(stream, COMM_REDUCE_SCATTER, k);
	case TE_K_COLL_ALL_GATHER:
		return TE__LAUNCH(stream, COMM_ALL_GATHER, k);
	case TE_K_COLL_BROADCAST:
		return TE__LAUNCH(stream, COMM_BROADCAST, k);
	default:
		return TE__LAUNCH(stream, COMM_ALLREDUCE, k);
	}
}

/* hash of the offsets of arrays that other ranks access, below 2^23; ranks compare it */
static uint32_t hash_of(const struct te__call *a)
{
	const struct te__pool *pool = a->comm->pool;
	uint64_t x = 0;

	if (a->what != TE_K_COLL_ALL_GATHER)
		x = te__pool_offset(pool, a->in, nbytes_of(a, 1));
	x = te__splitmix64(&x);
	if (a->what != TE_K_COLL_REDUCE_SCATTER)
		x += te__pool_offset(pool, a->out, nbytes_of(a, 0));
	return (uint32_t)(te__splitmix64(&x) >> 41);
}

static int by_kernels(const struct te__call *a, const struct te__coll_choice *how,
		      struct te_stream *stream)
{
	const int64_t es = (int64_t)te_dtype_nbytes(a->dtype);
	struct te_k_comm k = te__coll_args(&a->comm->coll);
	int r = 0;

	k.dtype = a->dtype;
	k.op = (int32_t)a->op;
	k.root = a->root;
	k.algorithm = how->kernel;
	k.max_blocks = how->max_blocks;
	if (how->kernel == TE_K_COMM_ZERO_COPY || how->kernel == TE_K_COMM_NVLS)
		k.arrays = hash_of(a);
	for (int64_t i = 0; i < a->count && !r; i += how->each) {
		k.in = (const char *)a->in + i * es;
		k.out = (char *)a->out + i * es;
		k.count = a->count - i < how->each ? a->count - i : how->each;
		r = launch_one(a, &k, stream);
	}
	return r;
}

int te__comm_open_nccl(struct te_comm *c, const char *fn, struct te_stream *stream)
{
	int r = c->nccl ? 0 : te__stream_not_capturing(stream, fn);

	return r || c->nccl ? r : te__nccl_create(c->boot, c->pool, &c->nccl);
}

static int by_nccl(const struct te__call *a, const struct te__coll_choice *how,
		   struct te_stream *stream)
{
	struct te_comm *c = a->comm;
	int r = te__comm_open_nccl(c, a->fn, stream);

	(void)how;
	return r ? r : te__nccl_allreduce(c->nccl, stream, a->in, a->out, a->count, a->dtype,
					  a->op);
}

static struct te__nodes_call nodes_call(const struct te__call *a,
					 const struct te__coll_choice *how)
{
	return (struct te__nodes_call){ a->in, a->out, a->count, a->dtype, a->op, a->what, a->root,
					how->algorithm };
}

static int by_nodes(const struct te__call *a, const struct te__coll_choice *how,
		    struct te_stream *stream)
{
	const struct te__nodes_call c = nodes_call(a, how);

	return te__nodes_queue(a->comm->coll.nodes, stream, &c);
}

/* bytes that a rank sends to others, without headers */
static uint64_t sent(const struct te__call *a, const struct te__coll_choice *how)
{
	const int64_t nbytes = a->count * (int64_t)te_dtype_nbytes(a->dtype);
	const int32_t nranks = te__boot_nranks(a->comm->boot);
	const uint64_t packets = (uint64_t)te_k_comm_packets(nbytes), n = (uint64_t)nranks - 1;

	if (a->what == TE_K_COLL_BROADCAST && a->root != te__boot_rank(a->comm->boot))
		return 0;
	if (a->what != TE_K_COLL_ALLREDUCE)
		return (how->algorithm == TE_COMM_LL ? 2 : 1) * n * packets * TE_K_COMM_PACKET;
	switch (how->algorithm) {
	case TE_COMM_LL:
		return 2 * n * packets * TE_K_COMM_PACKET;
	case TE_COMM_ONE_SHOT:
		return n * packets * TE_K_COMM_PACKET;
	case TE_COMM_NVLS_ONE_SHOT:
		return packets * TE_K_COMM_PACKET;
	case TE_COMM_NVLS:
		return (packets + (uint64_t)te_k_comm_chunk((int64_t)packets, nranks)) *
		       TE_K_COMM_PACKET;
	default:
		return 2 * n * (uint64_t)te_k_comm_chunk((int64_t)packets, nranks) *
		       TE_K_COMM_PACKET;
	}
}

static void cost_of_kernels(const struct te__call *a, const struct te__coll_choice *how,
			    struct te_comm_choice *ret)
{
	ret->nblocks = te__coll_nblocks(&a->comm->coll, how, how->each, a->dtype);
	ret->nlaunches = (int32_t)((a->count + how->each - 1) / how->each);
	ret->nsent = sent(a, how);
}

static void cost_of_nodes(const struct te__call *a, const struct te__coll_choice *how,
			  struct te_comm_choice *ret)
{
	const struct te__nodes_call c = nodes_call(a, how);

	te__nodes_cost(a->comm->coll.nodes, &c, &ret->nsent, &ret->nlaunches);
}

static const struct {
	int (*queue)(const struct te__call *a, const struct te__coll_choice *how,
		     struct te_stream *stream);
	void (*cost)(const struct te__call *a, const struct te__coll_choice *how,
		     struct te_comm_choice *ret);
} carriers[] = {
	[TE__BY_KERNELS] = { by_kernels, cost_of_kernels },
	[TE__BY_NODES] = { by_nodes, cost_of_nodes },
	[TE__BY_NCCL] = { by_nccl, cost_of_kernels },
};

int te__comm_queue(const struct te__call *a, const struct te_comm_call_opts *opts,
		   struct te_stream *stream)
{
	struct te__coll_choice how = { .explain = 0 };
	int r = check(a);

	if (r || !a->count)
		return r;
	r = te__stream_check(a->fn, stream, a->comm->ctx);
	if (!r)
		r = choose(a, opts, &how);
	if (!r)
		r = te__coll_begin(&a->comm->coll, a->fn, stream);
	return r ? r : carriers[how.carrier].queue(a, &how, stream);
}

int te_comm_allreduce(struct te_comm *comm, struct te_stream *stream, const void *in, void *out,
		      int64_t count, enum te_dtype dtype, enum te_comm_op op,
		      const struct te_comm_call_opts *opts)
{
	const struct te__call a = { "te_comm_allreduce", comm, in, out, count, dtype, op,
				    TE_K_COLL_ALLREDUCE, 0 };

	return te__comm_queue(&a, opts, stream);
}

int te_comm_reduce_scatter(struct te_comm *comm, struct te_stream *stream, const void *in,
			   void *out, int64_t count, enum te_dtype dtype, enum te_comm_op op,
			   const struct te_comm_call_opts *opts)
{
	const struct te__call a = { "te_comm_reduce_scatter", comm, in, out, count, dtype, op,
				    TE_K_COLL_REDUCE_SCATTER, 0 };

	return te__comm_queue(&a, opts, stream);
}

int te_comm_all_gather(struct te_comm *comm, struct te_stream *stream, const void *in, void *out,
		       int64_t count, enum te_dtype dtype, const struct te_comm_call_opts *opts)
{
	const struct te__call a = { "te_comm_all_gather", comm, in, out, count, dtype,
				    TE_COMM_SUM, TE_K_COLL_ALL_GATHER, 0 };

	return te__comm_queue(&a, opts, stream);
}

int te_comm_broadcast(struct te_comm *comm, struct te_stream *stream, void *data, int64_t count,
		      enum te_dtype dtype, int32_t root, const struct te_comm_call_opts *opts)
{
	const struct te__call a = { "te_comm_broadcast", comm, data, data, count, dtype,
				    TE_COMM_SUM, TE_K_COLL_BROADCAST, root };

	return te__comm_queue(&a, opts, stream);
}

int te_comm_barrier(struct te_comm *comm, struct te_stream *stream)
{
	struct te_comm_call_opts o = TE_COMM_CALL_OPTS_INIT;
	struct te__call a = { "te_comm_barrier", comm, NULL, NULL, 1, TE_DTYPE_INT32,
			      TE_COMM_MAX, TE_K_COLL_ALLREDUCE, TE_K_COMM_BARRIER };

	if (comm)
		a.in = a.out = te__coll_word(&comm->coll);
	o.algorithm = comm && comm->coll.nodes ? TE_COMM_EXCHANGE : TE_COMM_LL;
	return te__comm_queue(&a, &o, stream);
}

int te_comm_error(struct te_comm *comm)
{
	if (!comm)
		return te__fail(-EINVAL, "te_comm_error: comm is NULL");
	return te__pool_check(comm->pool, "te_comm_error");
}

int te__comm_explain(const struct te__call *a, const struct te_comm_call_opts *opts,
		     struct te_comm_choice *ret)
{
	struct te_comm_choice c = TE_COMM_CHOICE_INIT;
	struct te__coll_choice how = { .explain = 1 };
	int r = check(a);

	if (!r && a->count)
		r = choose(a, opts, &how);
	if (r)
		return r;
	if (a->count) {
		c.algorithm = how.algorithm;
		carriers[how.carrier].cost(a, &how, &c);
		memcpy(c.reason, how.reason, sizeof(c.reason));
	} else {
		snprintf(c.reason, sizeof(c.reason), "no elements: nothing is done");
	}
	snprintf(c.name, sizeof(c.name), "%s", te_comm_algorithm_name(c.algorithm));
	*ret = c;
	return 0;
}
