/*
 * hosted.c - weights and gradients that are elsewhere: in host memory, TE_SEQ_HOST_MASTERS and
 * TE_SEQ_HOST_GRADS, or with each rank a part of them, te_seq_binding.nparts.
 *
 * A group that multiplies by a BF16 master, or adds to a gradient, has a buffer for it in the
 * arena. A copy from host memory fills the buffer before the group, and a gradient is copied back
 * after it.
 * Both are queued on the stream of the pass: in a graph with TE_CAPTURE_CONCURRENT they depend on
 * the memory that they access only, so that the link carries them while kernels of other groups
 * run. For that a buffer lives longer than its group: while groups before it, and of a gradient
 * after it, have copies of half as many bytes as the largest one.
 *
 * The first passes of a step add to zeros: te__plans_zero_grads() marks gradients, and a copy to
 * the buffer of a marked one is a fill of the buffer. So it is with parts, if plans add to all
 * gradients: the sums of the first pass replace what was in the part.
 *
 * Other readers of host memory use its device address: casts to FP8, embeddings and the norm of
 * all gradients.
 *
 * With parts of the gradients a buffer begins with this rank's part of the sums so far, and zeros;
 * after the last group of the pass that adds to it, each part is summed over the ranks for the one
 * that keeps it: where it is, or for a part in host memory in the buffer, from which it is copied.
 *
 * With parts of the masters every group that reads one has a buffer for it, to which each part is
 * copied from the memory of its rank, as early as a copy from host memory is. A master that is
 * wholly in this rank's part is read there, and its buffer is not used, unless the part is in host
 * memory, from where it is copied as it is for other ranks. Ops that read BF16
 * get the BF16 copy of FP32 masters. Where they read another type and there is no such copy, the
 * buffer begins with a cast of the master, which follows.
 */
#define TE_LOG_CATEGORY "core/plan"
#include <string.h>

#include "libtecore/base/private.h"

#include "libtecore/plan/build.h"
#include "libtecore/tensor/ctx.h"

static int is_early(const struct te__group *g)
{
	return g->fusion && (g->fusion->flags & TE__FUSION_EARLY) != 0;
}

/* does backward_dw() read weights? */
static int dw_reads(const struct te_op *op)
{
	return !op->is_library || !strcmp(op->ops.name, "attention");
}

int te__hosted_reads(const struct te_plan *p, const struct te__group *g, const struct te__step *s,
		     int k)
{
	const struct te_op *op = p->seq->op[s->node];
	const int early = is_early(g) && s->kind != TE__STEP_FWD;

	return te__weight_is_divided(p->seq, &p->seq->weight[p->seq->op_weight[s->node][k]]) &&
	       !early && (s->kind != TE__STEP_DW || dw_reads(op));
}

/* does the op read its k-th weight in the other type than the master's, BF16 or FP32? */
static int reads_cast(const struct te_plan *p, const struct te__step *s, int k)
{
	const uint32_t forms = p->node[s->node].inf.weight_forms[k];
	const int hp = p->recipe.compute != TE_DTYPE_FP32 && forms & TE_FORM_HP;

	if (!te__seq_is_split(p->seq))
		return hp;
	return !hp && !(forms & TE__FORM_CODES) &&
	       !(p->seq->op[s->node]->decl[k].flags & TE_WEIGHT_STORED);
}

/* does the step multiply by the master of its k-th weight? */
static int reads_master(const struct te_plan *p, const struct te__group *g,
			const struct te__step *s, int k)
{
	const struct te_op *op = p->seq->op[s->node];
	const int w = p->seq->op_weight[s->node][k];
	const int early = is_early(g) && s->kind != TE__STEP_FWD;

	return p->seq->binding.flags & TE_SEQ_HOST_MASTERS && p->need_of[w] >= 0 &&
	       p->recipe.compute != TE_DTYPE_FP32 && p->seq->weight[w].master &&
	       p->node[s->node].inf.weight_forms[k] & TE_FORM_HP && !early &&
	       (s->kind != TE__STEP_DW || dw_reads(op));
}

/* gradients are not where the optimizer reads them, before a pass is over */
static int moves_grads(const struct te_seq *seq)
{
	return seq->binding.flags & TE_SEQ_HOST_GRADS || te__seq_is_divided(seq);
}

/* does it add to the gradient? Early fusions do in forward */
static int adds_to_grad(const struct te_plan *p, const struct te__group *g,
			const struct te__step *s, int k)
{
	const enum te__step_kind kind = is_early(g) ? TE__STEP_FWD : TE__STEP_DW;

	return moves_grads(p->seq) && s->kind == kind &&
	       te__weight_trains(&p->seq->weight[p->seq->op_weight[s->node][k]]);
}

static int pass_begin(const struct te_plan *p, int t)
{
	const int dw = p->fwd_groups + p->bwd_groups;

	return t < p->fwd_groups ? 0 : t < dw ? p->fwd_groups : dw;
}

static int pass_last(const struct te_plan *p, int t)
{
	const int dw = p->fwd_groups + p->bwd_groups;

	return (t < p->fwd_groups ? p->fwd_groups : t < dw ? dw : p->ngroups) - 1;
}

/* the latest of a group not before `from` */
static struct te__hosted *find(const struct te_plan *p, int from, const struct te__hosted *like)
{
	for (int i = p->nhosted; i-- > 0 && p->hosted[i].group >= from;)
		if (p->hosted[i].weight == like->weight && p->hosted[i].grad == like->grad &&
		    p->hosted[i].cast == like->cast)
			return &p->hosted[i];
	return NULL;
}

static int64_t nelems_of(const struct te_plan *p, const struct te__hosted *h)
{
	const struct te_spec s = te__weight_spec(&p->seq->weight[h->weight].decl);

	return te__spec_nelems(&s);
}

static enum te_dtype dtype_of(const struct te_plan *p, const struct te__hosted *h)
{
	if (h->grad)
		return te__seq_grad_dtype(p->seq);
	return te__seq_is_split(p->seq) == h->cast ? TE_DTYPE_FP32 : TE_DTYPE_BF16;
}

/* bytes of the tensor */
static size_t nbytes_of(const struct te_plan *p, const struct te__hosted *h)
{
	return (size_t)nelems_of(p, h) * te_dtype_nbytes(dtype_of(p, h));
}

/* is the tensor made here from the master? */
static int is_cast(const struct te_plan *p, const struct te__hosted *h)
{
	return h->cast && !te__seq_copies_part(p->seq);
}

/* offset of the master in a buffer, whose tensor may be a cast of it */
static size_t master_at(const struct te_plan *p, const struct te__hosted *h)
{
	const size_t n = is_cast(p, h) ? nbytes_of(p, h) : 0;

	return (n + TE__PLAN_ALIGN - 1) / TE__PLAN_ALIGN * TE__PLAN_ALIGN;
}

static size_t buf_nbytes(const struct te_plan *p, const struct te__hosted *h)
{
	const size_t size = te__seq_is_split(p->seq) ? 2 : 4;

	return is_cast(p, h) ? master_at(p, h) + (size_t)nelems_of(p, h) * size : nbytes_of(p, h);
}

static int add(struct te_plan *p, int group, const struct te__hosted *like)
{
	/* ranks sum what all groups of a pass have added, as they do gradients in device memory */
	const int whole = like->grad && te__seq_is_divided(p->seq);
	struct te__hosted *h = find(p, whole ? pass_begin(p, group) : group, like);

	if (h) {
		h->last = group;
		return 0;
	}
	h = &p->hosted[p->nhosted];
	*h = *like;
	h->group = h->last = group;
	h->buf = te__plan_new_buf(p, buf_nbytes(p, h));
	p->nhosted += h->buf >= 0;
	return h->buf < 0 ? h->buf : 0;
}

static int add_weight(struct te_plan *p, int t, const struct te__step *s, int k)
{
	const struct te__group *g = &p->group[t];
	const int w = p->seq->op_weight[s->node][k], parts = te__hosted_reads(p, g, s, k);
	const int casts = parts && reads_cast(p, s, k);
	int r = 0;

	/* codes are made from the master */
	if ((parts && p->node[s->node].inf.weight_forms[k] & TE__FORM_CODES) ||
	    (!casts && (parts || reads_master(p, g, s, k))))
		r = add(p, t, &(struct te__hosted){ .weight = w });
	if (!r && casts)
		r = add(p, t, &(struct te__hosted){ .weight = w, .cast = 1 });
	if (!r && adds_to_grad(p, g, s, k))
		r = add(p, t, &(struct te__hosted){ .weight = w, .grad = 1 });
	return r;
}

static int list(struct te_plan *p)
{
	int r = 0;

	for (int t = 0; t < p->ngroups; t++) {
		const struct te__group *g = &p->group[t];

		for (int i = 0; i < g->n; i++) {
			const struct te__step *s = &p->step[g->first + i];

			if (s->kind > TE__STEP_DW)
				continue;
			for (int k = 0; k < p->seq->op[s->node]->nweights && !r; k++)
				r = add_weight(p, t, s, k);
		}
	}
	return r;
}

/* an earlier group's sum is copied back before it is read again */
static int is_same_grad(const struct te__hosted *a, const struct te__hosted *b)
{
	return a->grad && b->grad && a->weight == b->weight;
}

/* the groups in which a buffer lives: a copy is queued before the first */
static void set_lifetime(struct te_plan *p, int i, size_t room)
{
	const struct te__hosted *h = &p->hosted[i];
	struct te__buf *b = &p->buf[h->buf];
	const int begin = pass_begin(p, h->group), last = pass_last(p, h->group);
	size_t left = room;
	int k = i;

	b->first = b->last = h->group;
	while (k > 0 && p->hosted[k - 1].group >= begin && !is_same_grad(h, &p->hosted[k - 1]) &&
	       p->buf[p->hosted[k - 1].buf].nbytes <= left)
		left -= p->buf[p->hosted[--k].buf].nbytes;
	if (k > 0 && p->hosted[k - 1].group >= begin)
		b->first = p->hosted[k - 1].group + 1 < h->group ? p->hosted[k - 1].group + 1 :
								   h->group;
	else
		b->first = begin;
	if (h->grad && te__seq_is_divided(p->seq)) /* filled by the device */
		b->first = h->group;
	left = room;
	for (k = i + 1; k < p->nhosted && p->hosted[k].group < h->last;)
		k++;
	for (; h->grad && k < p->nhosted && p->hosted[k].group <= last &&
	       p->buf[p->hosted[k].buf].nbytes <= left; k++)
		left -= p->buf[p->hosted[k].buf].nbytes;
	if (h->grad)
		b->last = k < p->nhosted && p->hosted[k].group <= last ? p->hosted[k].group : last;
}

int te__hosted_find(struct te_plan *p)
{
	size_t most = 0, n = 0;
	int r;

	if (!(p->seq->binding.flags & TE_SEQ_HOST_MASTERS) && !moves_grads(p->seq))
		return 0;
	for (int k = 0; k < p->nsteps; k++)
		n += 2 * (size_t)p->seq->op[p->step[k].node]->nweights;
	p->hosted = te__calloc(n + 1, sizeof(*p->hosted));
	if (!p->hosted)
		return te__no_memory("plan");
	r = list(p);
	for (int i = 0; i < p->nhosted; i++)
		if (p->buf[p->hosted[i].buf].nbytes > most)
			most = p->buf[p->hosted[i].buf].nbytes;
	for (int i = 0; i < p->nhosted && !r; i++)
		set_lifetime(p, i, most / 2);
	return r;
}

/* ---- addresses ---- */

void te__hosted_unbind(struct te_plan *p)
{
	for (int i = 0; i < p->nhosted; i++)
		p->hosted[i].t = te_tensor_unref(p->hosted[i].t);
}

static void *buf_ptr(const struct te_plan *p, const struct te__hosted *h)
{
	const struct te__buf *b = &p->buf[h->buf];
	void *own = NULL;

	if (!p->bound)
		return TE__NOWHERE;
	if (te__seq_divides_masters(p->seq) && !h->grad && !is_cast(p, h))
		own = te__parts_own(p->seq, h->cast, p->seq->weight[h->weight].offset_nelems,
				    nelems_of(p, h));
	return own ? own : p->span[b->span] + b->offset;
}

int te__hosted_bind(struct te_plan *p)
{
	int r = 0;

	for (int i = 0; i < p->nhosted && !r; i++) {
		struct te__hosted *h = &p->hosted[i];
		const struct te_weight_decl *d = &p->seq->weight[h->weight].decl;

		r = te_tensor_wrap(p->ctx, dtype_of(p, h), d->ndim, d->shape, buf_ptr(p, h), NULL,
				   NULL, &h->t);
	}
	return r;
}

static struct te_tensor *tensor(const struct te_plan *p, const struct te__step *s, int weight,
				int grad, int cast)
{
	const int at = (int)(s - p->step);

	for (int i = 0; i < p->nhosted; i++) {
		const struct te__hosted *h = &p->hosted[i];
		const struct te__group *last = &p->group[h->last];

		if (h->weight == weight && h->grad == grad && h->cast == cast &&
		    at >= p->group[h->group].first && at < last->first + last->n)
			return h->t;
	}
	return NULL;
}

struct te_tensor *te__hosted_tensor(const struct te_plan *p, const struct te__step *s, int weight,
				    int grad)
{
	return tensor(p, s, weight, grad, 0);
}

struct te_tensor *te__hosted_cast(const struct te_plan *p, const struct te__step *s, int weight)
{
	return tensor(p, s, weight, 0, 1);
}

/* ---- passes ---- */

/* the sum over the ranks of n elements at x, to sum on the rank with part `to` or all ranks */
static int reduce(const struct te_seq *seq, struct te_stream *stream, void *x, void *sum,
		  int64_t n, int32_t to)
{
	const struct te_seq_binding *b = &seq->binding;
	const uint64_t nfails = te__nfails();
	const int r = b->reduce(b->reduce_arg, stream, x, sum, n, te__seq_grad_dtype(seq), to);

	return r < 0 ? te__callback_failed(nfails, r, "the sum of gradients over the ranks "
					   "returned %d", r) : 0;
}

/* sum n elements at x over the ranks for the rank with part `to`, or all ranks; dst: this rank's
 * memory for them, or NULL */
static int sum(const struct te_seq *seq, struct te_stream *stream, void *x, void *dst, int64_t n,
	       int32_t to)
{
	const size_t nbytes = (size_t)n * te_dtype_nbytes(te__seq_grad_dtype(seq));
	const int copies = dst && seq->host_grads;
	const int r = reduce(seq, stream, x, dst && !copies ? dst : x, n, to);

	return r < 0 || !copies ? r : te_copy(stream, dst, x, nbytes);
}

/* the sums so far of this rank's part, and zeros, to the buffer; back: sums over the ranks to the
 * parts. One rank alone begins with the elements that all have */
static int exchange(const struct te_plan *p, struct te_stream *stream, const struct te__hosted *h,
		    int back)
{
	const struct te_seq *seq = p->seq;
	struct te__weight *w = &p->seq->weight[h->weight];
	const int is_zero = w->grad_is_zero;
	const size_t size = te_dtype_nbytes(te__seq_grad_dtype(seq));
	const int64_t begin = w->offset_nelems, end = begin + nelems_of(p, h);
	const struct te__part own = te__seq_part(seq);
	const int32_t nparts = seq->binding.nparts, part = seq->binding.part;
	char *const buf = buf_ptr(p, h), *const grads = te_tensor_data(seq->grads);
	int r = back ? 0 : te_fill(stream, buf, 0, nbytes_of(p, h));

	w->grad_is_zero = 0;
	if (r || (!back && is_zero))
		return r;
	for (int32_t i = 0; i <= nparts && !r; i++) {
		const int is_tail = i == nparts;
		const int64_t at = i * own.nelems, n = is_tail ? own.ntail : own.nelems;
		const int64_t from = begin > at ? begin : at, to = end < at + n ? end : at + n;
		char *x = buf + (from - begin) * (int64_t)size;
		char *kept = grads + (from - at + (is_tail ? own.nelems : 0)) * (int64_t)size;

		if (from >= to)
			continue;
		if (back)
			r = sum(seq, stream, x, is_tail || i == part ? kept : NULL, to - from,
				is_tail ? -1 : i);
		else if (i == (is_tail && !part ? nparts : part))
			r = te_copy(stream, x, kept, (size_t)(to - from) * size);
	}
	return r;
}

/* the master, of which each rank has a part, to the buffer */
static int gather(const struct te_plan *p, struct te_stream *stream, const struct te__hosted *h)
{
	const int64_t n = nelems_of(p, h);
	char *const buf = buf_ptr(p, h), *const master = buf + master_at(p, h);
	const int split = te__seq_is_split(p->seq);
	const struct te_k_cast cast = {
		.x = master,
		.y = buf,
		.n = n,
		.xdtype = split ? TE_DTYPE_BF16 : TE_DTYPE_FP32,
		.ydtype = split ? TE_DTYPE_FP32 : TE_DTYPE_BF16,
	};
	const int r = te__parts_gather(p->seq, stream, h->cast && !is_cast(p, h),
				       p->seq->weight[h->weight].offset_nelems, n, master);

	return r || !is_cast(p, h) ? r : TE__LAUNCH(stream, CAST, &cast);
}

static int copy(const struct te_plan *p, struct te_stream *stream, const struct te__hosted *h,
		int back)
{
	struct te__weight *w = &p->seq->weight[h->weight];
	void *host, *buf = buf_ptr(p, h);

	if (h->grad && te__seq_is_divided(p->seq))
		return exchange(p, stream, h, back);
	if (!h->grad && te__seq_divides_masters(p->seq))
		return gather(p, stream, h);
	host = te_tensor_data(h->grad ? w->grad : w->master);
	if (h->grad && !back && w->grad_is_zero) {
		w->grad_is_zero = 0;
		return te_fill(stream, buf, 0, nbytes_of(p, h));
	}
	return te_copy(stream, back ? host : buf, back ? buf : host, nbytes_of(p, h));
}

int te__hosted_run(const struct te_plan *p, struct te_stream *stream, int t, int after)
{
	int r = 0;

	for (int i = 0; i < p->nhosted && !r; i++) {
		const struct te__hosted *h = &p->hosted[i];

		if (after ? h->grad && h->last == t : p->buf[h->buf].first == t)
			r = copy(p, stream, h, after);
	}
	return r;
}

void te__hosted_nbytes(const struct te_plan *p, uint64_t *ret_in, uint64_t *ret_out)
{
	*ret_in = *ret_out = 0;
	for (int i = 0; i < p->nhosted; i++) {
		const struct te__hosted *h = &p->hosted[i];
		const uint32_t host = h->grad ? TE_SEQ_HOST_GRADS : TE_SEQ_HOST_MASTERS;
		const int divides = h->grad ? te__seq_is_divided(p->seq) :
					      te__seq_divides_masters(p->seq);
		uint64_t n = p->seq->binding.flags & host ? nbytes_of(p, h) : 0;

		n /= divides ? (uint64_t)p->seq->binding.nparts : 1;
		*ret_in += n;
		*ret_out += h->grad ? n : 0;
	}
}

/* ---- the first pass of a step ---- */

static int adds(struct te_plan *const *plan, int n, int weight)
{
	for (int i = 0; i < n; i++)
		for (int k = 0; k < plan[i]->nhosted; k++)
			if (plan[i]->hosted[k].grad && plan[i]->hosted[k].weight == weight)
				return 1;
	return 0;
}

int te__plans_zero_grads(struct te_plan *const *plan, int n, struct te_stream *stream)
{
	struct te_seq *seq = plan[0]->seq;
	int all = moves_grads(seq), r = 0;

	for (int i = 0; i < seq->nweights; i++)
		all &= !te__weight_trains(&seq->weight[i]) || adds(plan, n, i);
	if (!all && (!seq->host_grads || te__seq_is_divided(seq)))
		return te_seq_zero_grads(seq, stream);
	for (int i = 0; i < seq->nweights && !r; i++) {
		struct te__weight *w = &seq->weight[i];

		w->grad_is_zero = te__weight_trains(w) && adds(plan, n, i);
		if (te__weight_trains(w) && !w->grad_is_zero)
			r = te__seq_zero_grad(seq, stream, w->grad);
	}
	return te__stream_queued(stream, r);
}
