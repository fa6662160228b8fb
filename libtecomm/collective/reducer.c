/* reducer.c - te_comm_reducer_create(3): gradients and amaxes are reduced as passes are queued. */
#define TE_LOG_CATEGORY "comm"
#include "config.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#include <te/collective.h>
#include <te/quant.h>
#include <te/reducer.h>
#include <te/tensor.h>

#include "libtecomm/collective/comm.h"

/* large enough for the bandwidth of a link, and a small part of the gradients of a model */
#define BUCKET_NBYTES ((uint64_t)16 << 20)
/* enough for nine tenths of that; the other multiprocessors run backward concurrently, except
 * during the last bucket */
#define BLOCKS 16
/* blocks for amaxes: with blocks on all multiprocessors, a GEMM and the exchange would wait for
 * each other */
#define AMAX_BLOCKS 16
/* in the flat buffer of gradients zeros pad each weight to a multiple of this */
#define PADDING_NELEMS 64

_Static_assert(TE_COMM_REDUCER_HOOKS == (1u << TE_PLAN_EVENT_GRAD | 1u << TE_PLAN_EVENT_SCALES),
	       "the events of the hook");

/* gradients that are complete, and not reduced yet */
struct range {
	char *p;
	size_t nbytes;
};

struct te_comm_reducer {
	_Atomic uint32_t refs;
	struct te_comm *comm;
	struct te_seq *seq;
	uint64_t bucket_nbytes;
	int32_t ngrads;	   /* weights with a gradient */
	int32_t ncomplete; /* complete gradients in this step */
	uint8_t *complete; /* [weights] */
	struct range *wait; /* [weights] */
	int32_t nwait;
	uint64_t wait_nbytes;
	uint64_t grads_nbytes; /* bytes of all gradients */
	uint64_t left_nbytes;  /* bytes of gradients that are not complete */
};

static const char create_fn[] = "te_comm_reducer_create";
static const char hook_fn[] = "te_comm_reducer_hook";

/* ---- gradients ---- */

static int by_address(const void *a, const void *b)
{
	const struct range *x = a, *y = b;

	return (x->p > y->p) - (x->p < y->p);
}

/*
 * While backward runs: zerocopy, where it can be used, since it has the fewest accesses of memory.
 * Else by size.
 */
static enum te_comm_algorithm algorithm_of(const struct te_comm_reducer *r, const char *p,
					   size_t nbytes)
{
	if (r->ncomplete == r->ngrads || r->comm->coll.nodes ||
	    te__param_enum(TE_PARAM_COMM_ALGO) ||
	    te__pool_offset(r->comm->pool, p, nbytes) == UINT64_MAX)
		return TE_COMM_AUTO;
	return TE_COMM_ZERO_COPY;
}

/* adjacent weights are reduced by one call, with the zeros between them */
static int reduce(struct te_comm_reducer *r, struct te_stream *stream)
{
	const enum te_dtype dtype = te_tensor_dtype(te_seq_grads(r->seq));
	const size_t size = te_dtype_nbytes(dtype);
	struct te_comm_call_opts o = TE_COMM_CALL_OPTS_INIT;
	int err = 0;

	o.max_blocks = r->ncomplete < r->ngrads ? BLOCKS : 0;
	qsort(r->wait, (size_t)r->nwait, sizeof(*r->wait), by_address);
	for (int32_t i = 0, k; i < r->nwait && !err; i = k) {
		char *const begin = r->wait[i].p, *end = begin + r->wait[i].nbytes;
		const ptrdiff_t padding = PADDING_NELEMS * (ptrdiff_t)size;

		for (k = i + 1; k < r->nwait && r->wait[k].p - end < padding; k++)
			end = r->wait[k].p + r->wait[k].nbytes;
		o.algorithm = algorithm_of(r, begin, (size_t)(end - begin));
		err = te_comm_allreduce(r->comm, stream, begin, begin,
					(int64_t)((size_t)(end - begin) / size), dtype, TE_COMM_SUM,
					&o);
	}
	r->nwait = 0;
	r->wait_nbytes = 0;
	return err;
}

static const char *name_of(const struct te_comm_reducer *r, int weight)
{
	struct te_weight_info w = TE_WEIGHT_INFO_INIT;

	return te_seq_weight(r->seq, weight, &w) ? "?" : w.name;
}

/* a step has ended early if a weight comes again */
static int comes_again(struct te_comm_reducer *r, int weight)
{
	int missing = 0;

	while (r->complete[missing])
		missing++;
	return te__fail(-TE_ESTATE, "%s: the gradient of %s is complete for the second time, and "
			"the gradient of %s is not: expected one event for each weight in a step",
			hook_fn, name_of(r, weight), name_of(r, missing));
}

static int take_grad(struct te_comm_reducer *r, const struct te_plan_event *e)
{
	struct te_weight_info w = TE_WEIGHT_INFO_INIT;
	int err = te_seq_weight(r->seq, e->weight, &w);

	if (err)
		return err;
	if (!w.grad)
		return te__fail(-TE_ESTATE, "%s: %s has no gradient here: ranks have parts of the "
				"gradients", hook_fn, w.name);
	if (r->complete[e->weight])
		return comes_again(r, e->weight);
	r->complete[e->weight] = 1;
	r->ncomplete++;
	r->wait[r->nwait++] = (struct range){ te_tensor_data(w.grad), te_tensor_nbytes(w.grad) };
	r->wait_nbytes += te_tensor_nbytes(w.grad);
	r->left_nbytes -= te_tensor_nbytes(w.grad);
	/* less than a bucket is reduced together with the bucket before it, by all blocks */
	if ((r->wait_nbytes >= r->bucket_nbytes && r->left_nbytes >= r->bucket_nbytes) ||
	    r->ncomplete == r->ngrads)
		err = reduce(r, e->stream);
	if (r->ncomplete < r->ngrads)
		return err;
	/* the next event is of the next step */
	r->ncomplete = 0;
	r->left_nbytes = r->grads_nbytes;
	for (int w0 = 0; w0 < te_seq_nweights(r->seq); w0++) {
		w.size = sizeof(w);
		r->complete[w0] = te_seq_weight(r->seq, w0, &w) || !w.grad;
	}
	return err;
}

/* ---- amaxes ---- */

/*
 * All that slots keep: older amaxes of delayed scaling are equal on all ranks already, and one call
 * for them, too, is faster than one for the newest of each slot. With current
 * scaling the amax of a tensor is of use only before its own scale is computed; scales of blocks
 * have no amaxes.
 */
static int reduce_amaxes(struct te_comm_reducer *r, const struct te_plan_event *e)
{
	const struct te_quant *q = te_seq_quant(r->seq);
	float *p = q ? te_quant_amax_ptr(q, e->slot) : NULL;
	struct te_comm_call_opts o = TE_COMM_CALL_OPTS_INIT;

	o.max_blocks = AMAX_BLOCKS;
	if (!p || !e->nslots || (e->kind == TE_PLAN_EVENT_SCALES && te__quantize_keeps_x(q)))
		return 0;
	return te_comm_allreduce(r->comm, e->stream, p, p,
				 e->nslots * (te_quant_amax_ptr(q, 1) - te_quant_amax_ptr(q, 0)),
				 TE_DTYPE_FP32, TE_COMM_MAX, &o);
}

int te_comm_reducer_hook(void *reducer, struct te_plan *plan, const struct te_plan_event *event)
{
	struct te_comm_reducer *r = reducer;

	if (!r || !plan || !event)
		return te__fail(-EINVAL, "%s: %s is NULL", hook_fn,
				!r ? "reducer" : plan ? "event" : "plan");
	if (te_comm_nranks(r->comm) == 1)
		return 0;
	if (event->kind == TE_PLAN_EVENT_GRAD)
		return take_grad(r, event);
	if (event->kind == TE_PLAN_EVENT_SCALES || event->kind == TE_PLAN_EVENT_AMAX)
		return reduce_amaxes(r, event);
	return 0;
}

/* ---- creating and releasing ---- */

static int init(struct te_comm_reducer *r)
{
	const size_t n = (size_t)te_seq_nweights(r->seq);
	struct te_weight_info w = TE_WEIGHT_INFO_INIT;

	r->complete = te__calloc(n, 1);
	r->wait = te__calloc(n, sizeof(*r->wait));
	if (!r->complete || !r->wait)
		return te__fail(-ENOMEM, "%s: not enough memory", create_fn);
	for (size_t i = 0; i < n; i++) {
		int err = te_seq_weight(r->seq, (int)i, &w);

		if (err)
			return err;
		r->complete[i] = !w.grad;
		r->ngrads += w.grad != NULL;
		r->grads_nbytes += w.grad ? te_tensor_nbytes(w.grad) : 0;
	}
	r->left_nbytes = r->grads_nbytes;
	return 0;
}

int te_comm_reducer_create(struct te_comm *comm, struct te_seq *seq,
			   const struct te_comm_reducer_opts *opts,
			   struct te_comm_reducer **ret_reducer)
{
	struct te_comm_reducer_opts o = TE_COMM_REDUCER_OPTS_INIT;
	struct te_comm_reducer *r;
	int err = opts ? te__sized_in(create_fn, te_comm_reducer_opts, opts, &o) : 0;

	if (err)
		return err;
	if (!comm || !seq || !ret_reducer)
		return te__fail(-EINVAL, "%s: %s is NULL", create_fn,
				!comm ? "comm" : seq ? "ret_reducer" : "seq");
	if (te_seq_ctx(seq) != comm->ctx)
		return te__fail(-EINVAL, "%s: the sequence belongs to another context than %s",
				create_fn, comm->name);
	if (!te_seq_grads(seq))
		return te__fail(-TE_ESTATE, "%s: the sequence has no gradients: te_seq_init has "
				"not run, or was told to have none", create_fn);
	r = te__calloc(1, sizeof(*r));
	if (!r)
		return te__fail(-ENOMEM, "%s: not enough memory", create_fn);
	atomic_init(&r->refs, 1);
	r->comm = te_comm_ref(comm);
	r->seq = te_seq_ref(seq);
	r->bucket_nbytes = o.bucket_nbytes ? o.bucket_nbytes : BUCKET_NBYTES;
	err = init(r);
	if (err) {
		te_comm_reducer_unref(r);
		return err;
	}
	*ret_reducer = r;
	return 0;
}

struct te_comm_reducer *te_comm_reducer_ref(struct te_comm_reducer *r)
{
	if (r)
		atomic_fetch_add(&r->refs, 1);
	return r;
}

struct te_comm_reducer *te_comm_reducer_unref(struct te_comm_reducer *r)
{
	if (!r || atomic_fetch_sub(&r->refs, 1) > 1)
		return NULL;
	te_seq_unref(r->seq);
	te_comm_unref(r->comm);
	te__free(r->complete);
	te__free(r->wait);
	te__free(r);
	return NULL;
}
