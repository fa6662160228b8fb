/*
 * ranks_weights.c - gradients, moments and weights of ranks with equal weights: who has which part,
 * and what they exchange in a step.
 */
#include "config.h"

#include <stdlib.h>

#include "ranks.h"
#include "tools/lib/say.h"
#include "tools/lib/shard.h"

#define MEET_NBYTES 256 /* a word, after the weights of a rank */
#define REDUCE_BLOCKS 16 /* backward runs on the other multiprocessors meanwhile */

/* ranks with equal weights: their number, and this one's among them */
static int32_t nequal(const struct ranks *r)
{
	return r->context ? ranks_n(r) : ranks_ndata(r);
}

static int32_t equal_rank(const struct ranks *r)
{
	return r->context ? r->rank : r->data_rank;
}

/* add up gradients for the rank with a part of them, or for all */
static int reduce_grads(void *arg, struct te_stream *stream, void *x, void *sum, int64_t nelems,
			enum te_dtype dtype, int32_t to)
{
	struct te_comm_call_opts o = TE_COMM_CALL_OPTS_INIT;
	const struct ranks *r = arg;

	o.max_blocks = REDUCE_BLOCKS;
	if (to < 0)
		return te_comm_allreduce(r->data, stream, x, sum, nelems, dtype,
					 TE_COMM_SUM, &o);
	return te_comm_reduce(r->data, stream, x, sum, nelems, dtype, TE_COMM_SUM, to, &o);
}

/* bytes of gradients, then weights, which other ranks read, and a word of meet_ranks(); *ret_at:
 * offset of the weights */
static size_t taken_nbytes(size_t grads, size_t weights, size_t *ret_at)
{
	*ret_at = (grads + MEET_NBYTES - 1) / MEET_NBYTES * MEET_NBYTES;
	return weights ? *ret_at + weights + MEET_NBYTES : grads;
}

/* memory of the communicator of ranks with equal weights */
static int take(struct ranks *r, size_t grads, size_t weights)
{
	size_t at;
	const size_t nbytes = taken_nbytes(grads, weights, &at);
	const int te = nbytes ? te_comm_alloc(r->data, nbytes, &r->taken) : 0;

	if (te < 0 || !nbytes)
		return te;
	r->grads = grads ? r->taken : NULL;
	r->weights = weights ? (char *)r->taken + at : NULL;
	r->weights_nbytes = weights;
	r->mapped = weights > 0;
	for (int32_t i = 0; i < nequal(r) && r->mapped; i++)
		r->mapped = te_comm_peer_ptr(r->data, r->weights, i) != NULL;
	return 0;
}

static int alloc_weights(void *arg, size_t nbytes, void **ret_ptr)
{
	struct ranks *r = arg;
	const int te = take(r, 0, nbytes);

	*ret_ptr = r->weights;
	return te;
}

/*
 * A barrier of all ranks. A recording orders nodes by the memory that they access, and a barrier
 * accesses one word: the events order it with reads and writes of weights, too.
 */
static int meet_ranks(void *arg, struct te_stream *stream)
{
	const struct ranks *r = arg;
	char *word, *first, *last;
	struct te_access a;
	int te = 0;

	if (!r->mapped)
		return 0;
	word = (char *)r->weights + r->weights_nbytes;
	first = te_comm_peer_ptr(r->data, r->weights, 0);
	last = te_comm_peer_ptr(r->data, word, nequal(r) - 1);
	a = (struct te_access){ first, (size_t)(last - first) + MEET_NBYTES, TE_ACCESS_WRITE, -1 };
	for (int i = 0; i < 2 && te >= 0; i++) {
		if (i)
			te = te_comm_allreduce(r->data, stream, word, word, 1, TE_DTYPE_INT32,
					       TE_COMM_MAX, NULL);
		if (te >= 0)
			te = te_capture_access(stream, 1, &a);
		if (te >= 0)
			te = te_event_record_external(r->met, stream);
		if (te >= 0)
			te = te_capture_access_end(stream);
	}
	return te;
}

/* copy weights from the rank with a part of them; from memory that is not mapped by messages */
static int fetch_weights(void *arg, struct te_stream *stream, void *dst, const void *src,
			 size_t nbytes, int32_t from)
{
	struct te_comm_call_opts o = TE_COMM_CALL_OPTS_INIT;
	const struct ranks *r = arg;
	int te = 0;

	if (r->mapped && dst == src)
		return 0;
	if (r->mapped)
		return te_copy(stream, dst, te_comm_peer_ptr(r->data, src, from), nbytes);
	o.max_blocks = REDUCE_BLOCKS;
	if (from == equal_rank(r) && dst != src)
		te = te_copy(stream, dst, src, nbytes);
	return te < 0 ? te : te_comm_broadcast(r->data, stream, dst, (int64_t)nbytes,
					       TE_DTYPE_UINT8, from, &o);
}

/* most bytes of te_seq_binding.alloc */
static size_t part_nbytes(const struct ranks *r, const struct te_seq *seq, uint32_t flags,
			  int copies)
{
	const int64_t own = ranks_own_grads(r, seq, 3);
	const int64_t masters = te_seq_nelems(seq) - te_seq_grad_nelems(seq) + own;

	if (flags & TE_SEQ_BF16_MASTERS)
		return 2 * (size_t)masters + MEET_NBYTES;
	return 4 * (size_t)masters + (copies ? 2 * (size_t)own : 0) + MEET_NBYTES;
}

int ranks_bind(struct ranks *r, struct te_seq *seq, uint32_t flags, int trains, int64_t zero,
	       int copies)
{
	const size_t size = flags & TE_SEQ_BF16_GRADS ? 2 : 4;
	const size_t nbytes = zero > 1 ? 0 : (size_t)te_seq_grad_nelems(seq) * size;
	/* masters of which each rank updates a part, and reads the other parts */
	const int shares = zero && !(flags & TE_SEQ_BF16_MASTERS) &&
			   te_seq_nelems(seq) == te_seq_grad_nelems(seq);
	const int divides = zero > 2 && !(flags & TE_SEQ_HOST_MASTERS);
	const size_t weights = divides ? part_nbytes(r, seq, flags, copies) :
			       shares  ? (size_t)te_seq_nelems(seq) * sizeof(float) : 0;
	struct te_seq_binding b = TE_SEQ_BINDING_INIT;
	size_t at;
	int te = 0;

	b.flags = flags;
	if (nequal(r) > 1 && zero)
		te = te_event_create(te_seq_ctx(seq), &r->met);
	/* before free memory is compared with the memory of plans */
	if (te >= 0 && trains && nequal(r) > 1)
		te = ranks_share(r, taken_nbytes(nbytes, weights, &at));
	/* masters in host memory are not mapped, and sent; a part is taken by alloc_weights() */
	if (te >= 0 && r->data && !divides) {
		te = take(r, nbytes, weights);
		b.grads = r->grads;
		b.masters = r->weights;
	}
	if (zero > 1 && nequal(r) > 1) { /* --estimate counts the part, too */
		b.nparts = nequal(r);
		b.part = equal_rank(r);
		b.reduce = reduce_grads;
		b.reduce_arg = b.parts_arg = r;
	}
	if (b.nparts && zero > 2) {
		b.alloc = alloc_weights;
		b.barrier = meet_ranks;
		b.fetch = fetch_weights;
		b.flags |= copies && !(flags & TE_SEQ_BF16_MASTERS) ? TE_SEQ_BF16_COPIES : 0;
	}
	if (te >= 0)
		te = te_seq_bind(seq, &b);
	return te < 0 ? say_te(te, "gradients of all ranks") : STATUS_OK;
}

/* gather nbytes of each rank, in place */
static int gather_in(struct te_comm *comm, struct te_stream *stream, void *all, size_t nbytes)
{
	const size_t at = (size_t)te_comm_rank(comm) * nbytes;

	return te_comm_all_gather(comm, stream, (char *)all + at, all, (int64_t)nbytes,
				  TE_DTYPE_UINT8, NULL);
}

/* gather the optimizer's sums */
static int gather_sums(void *arg, struct te_stream *stream, void *parts, size_t nbytes)
{
	const struct ranks *r = arg;

	return gather_in(r->model, stream, parts, nbytes);
}

/* gather parts of weights or moments: of weights that other ranks map by copies, which take no
 * multiprocessors. Other ranks write them again after the next sums of all ranks */
static int gather_parts(void *arg, struct te_stream *stream, void *all, size_t nbytes)
{
	const struct ranks *r = arg;
	char *const parts = all;
	int te;

	if (!r->mapped || all != r->weights)
		return gather_in(r->data, stream, all, nbytes);
	te = meet_ranks(arg, stream);
	for (int32_t i = 0; i < nequal(r) && te >= 0; i++) {
		char *const part = parts + (size_t)i * nbytes;

		if (i != equal_rank(r))
			te = te_copy(stream, part, te_comm_peer_ptr(r->data, part, i), nbytes);
	}
	return te;
}

void ranks_optimizer(const struct ranks *r, int64_t zero, struct te_adamw_opts *ao)
{
	if (!zero || nequal(r) < 2)
		return;
	ao->flags &= ~TE_ADAMW_CAST; /* a rank has some of the new weights only */
	ao->nparts = nequal(r);
	ao->part = equal_rank(r);
	ao->gather = gather_parts;
	ao->gather_arg = (void *)(uintptr_t)r;
}

int64_t ranks_own_grads(const struct ranks *r, const struct te_seq *seq, int64_t zero)
{
	struct te_adamw_opts all = TE_ADAMW_OPTS_INIT, part = TE_ADAMW_OPTS_INIT;
	int64_t n = te_seq_grad_nelems(seq);

	ranks_optimizer(r, zero, &part);
	/* as many elements as have moments, which are two of 4 bytes */
	if (zero > 1)
		n -= (int64_t)((te_adamw_nbytes(seq, &all) - te_adamw_nbytes(seq, &part)) / 8);
	return n;
}

static int set_shards(struct ranks *r, const struct model *m, struct te_adamw *opt)
{
	struct te_adamw_shards s = TE_ADAMW_SHARDS_INIT;
	uint8_t *common = shard_common(m);
	int te;

	if (!common)
		return say_failed("out of memory");
	s.nshards = r->nparts;
	s.shard = r->rank % r->nparts;
	s.gather = gather_sums;
	s.arg = r;
	s.uncounted = m->shard ? common : NULL;
	te = te_adamw_set_shards(opt, &s);
	if (te >= 0 && m->by) {
		r->divided = common;
		r->seq = m->seq;
	} else {
		free(common);
	}
	return te < 0 ? say_te(te, "the optimizer") : STATUS_OK;
}

int ranks_reduce(struct ranks *r, const struct model *m, struct te_adamw *opt)
{
	int te = r->data ? te_comm_reducer_create(r->data, m->seq, NULL, &r->reducer) : 0;

	if (te >= 0 && ranks_shards(r))
		te = te_comm_reducer_create(ranks_shards(r), m->seq, NULL, &r->amaxes);
	if (te < 0)
		return say_te(te, "gradients of all ranks");
	return r->model && !r->context ? set_shards(r, m, opt) : STATUS_OK;
}

/*
 * Before ranks with the same shard add up a gradient, the ranks of a model do, if each has the
 * gradient of its tokens only. Before ranks with the same shard reduce amaxes, the ranks of a model
 * do, so that parts of a tensor have the scale of the whole tensor.
 */
static int reduce_shards(void *arg, struct te_plan *plan, const struct te_plan_event *e)
{
	const struct ranks *r = arg;
	struct te_weight_info w = TE_WEIGHT_INFO_INIT;
	int te = 0;

	if (e->kind == TE_PLAN_EVENT_SCALES)
		te = te_comm_reducer_hook(r->amaxes, plan, e);
	if (e->kind == TE_PLAN_EVENT_GRAD && r->divided && r->divided[e->weight]) {
		te = te_seq_weight(r->seq, e->weight, &w);
		if (te >= 0)
			te = te_comm_allreduce(ranks_shards(r), e->stream, te_tensor_data(w.grad),
					       te_tensor_data(w.grad), te_tensor_nelems(w.grad),
					       te_tensor_dtype(w.grad), TE_COMM_SUM, NULL);
	}
	return te < 0 || !r->reducer ? te : te_comm_reducer_hook(r->reducer, plan, e);
}

void ranks_step(const struct ranks *r, struct te_step_opts *so)
{
	so->first_micro_batch = r->data_rank * so->micro_batches;
	so->total_micro_batches = ranks_ndata(r) * so->micro_batches;
	if (r->amaxes) {
		so->hook = reduce_shards;
		so->hook_arg = (void *)(uintptr_t)r;
		so->hooks = 1u << TE_PLAN_EVENT_SCALES |
			    (r->divided ? 1u << TE_PLAN_EVENT_GRAD : 0) |
			    (r->reducer ? TE_COMM_REDUCER_HOOKS : 0);
	} else if (r->reducer) {
		so->hook = te_comm_reducer_hook;
		so->hook_arg = r->reducer;
		/* plans add up what ranks have parts of */
		so->hooks = r->grads ? TE_COMM_REDUCER_HOOKS : 1u << TE_PLAN_EVENT_SCALES;
	}
}
