/* seq_weights.c - the weights of a sequence: layout, memory, gradients and initial values. */
#define TE_LOG_CATEGORY "core/seq"
#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "libtecore/base/private.h"
#include <te/stream.h>

#include "kernels/optim/round.h"
#include "kernels/te_k.h"
#include "libtecore/tensor/ctx.h"
#include "libtecore/ops/op.h"
#include "libtecore/quant/quant.h"
#include "libtecore/offload/pinned.h"
#include "libtecore/plan/seq.h"

static int find_op(const struct te_seq *seq, const struct te_op *op)
{
	for (int i = 0; i < seq->nops; i++)
		if (seq->op[i] == op)
			return i;
	return -1;
}

static int decl_spec_equal(const struct te_weight_decl *a, const struct te_weight_decl *b)
{
	return a->ndim == b->ndim &&
	       !memcmp(a->shape, b->shape, sizeof(a->shape[0]) * (size_t)a->ndim);
}

struct te_spec te__weight_spec(const struct te_weight_decl *decl)
{
	struct te_spec s = { TE_DTYPE_FP32, decl->ndim, { 0 } };

	memcpy(s.shape, decl->shape, sizeof(s.shape[0]) * (size_t)decl->ndim);
	return s;
}

/* elements of a weight in a flat buffer, padding included */
static int64_t padded_nelems(const struct te_spec *s)
{
	return (te__spec_nelems(s) + TE_K_ALIGN_WEIGHT - 1) / TE_K_ALIGN_WEIGHT * TE_K_ALIGN_WEIGHT;
}

/* check the size of a weight, add it to the others */
static int place_weight(struct te_seq *seq, const struct te_op *op, struct te__weight *w,
			const struct te_weight_decl *decl)
{
	struct te_spec s = { TE_DTYPE_FP32, decl->ndim, { 0 } };
	int64_t nelems;
	char shape[256] = "of no shape";

	if (decl->ndim >= 1 && decl->ndim <= TE_MAX_DIMS) {
		s = te__weight_spec(decl);
		te__spec_str(&s, shape, sizeof(shape));
	}
	if (!te__spec_valid(&s))
		return te__fail(-TE_ESHAPE,
				"op %s: %s %s: extents must be above 0, of 2^48 bytes at most",
				op->name, decl->name, shape);
	nelems = padded_nelems(&s);
	if (seq->nelems + nelems > TE__SPEC_MAX_NBYTES / (int64_t)sizeof(float))
		return te__fail(-TE_ESHAPE,
				"op %s: with %s %s the weights take more than 2^48 bytes", op->name,
				decl->name, shape);
	w->order_nelems = seq->nelems;
	seq->nelems += nelems;
	return 0;
}

/* lay out weights that are trained or not, and have a master or not, from *end on */
static void lay_out_some(struct te_seq *seq, int trained, int has_master, int64_t *end)
{
	for (int i = 0; i < seq->nweights; i++) {
		struct te__weight *w = &seq->weight[i];
		const struct te_spec s = te__weight_spec(&w->decl);

		if (te__weight_trains(w) != trained || (w->value == NULL) != has_master)
			continue;
		w->offset_nelems = trained || has_master ? *end : -1;
		*end += padded_nelems(&s);
	}
}

/*
 * Trained weights come first: their gradients and moments are at the same offsets of other buffers.
 * Frozen masters follow; in the buffer of gradients, gradients of weights without a master follow.
 */
void te__seq_lay_out(struct te_seq *seq)
{
	int64_t none = 0;

	seq->nelems = 0;
	lay_out_some(seq, 1, 1, &seq->nelems);
	seq->ngrads = seq->nelems;
	lay_out_some(seq, 0, 1, &seq->nelems);
	lay_out_some(seq, 1, 0, &seq->ngrads);
	lay_out_some(seq, 0, 0, &none);
}

/* the weight that op i's k-th is tied to */
static int tied_weight(const struct te_seq *seq, int i, const struct te_weight_decl *decl)
{
	const int j = find_op(seq, decl->tied_op), t = decl->tied_index;
	const struct te_op *op = seq->op[i];
	int w;

	if (j < 0 || j >= i || t < 0 || t >= seq->op[j]->nweights)
		return te__fail(-EINVAL, "op %s: tied to %s, which must come earlier", op->name,
				decl->tied_op->name);
	w = seq->op_weight[j][t];
	if (!decl_spec_equal(&seq->weight[w].decl, decl))
		return te__fail(-TE_ESHAPE, "op %s: its %s and the tied %s differ in shape",
				op->name, decl->name, seq->weight[w].name);
	return w;
}

static int new_weight(struct te_seq *seq, int i, int k)
{
	struct te__weight *w = &seq->weight[seq->nweights];
	struct te_op *op = seq->op[i];
	const struct te_weight_decl *decl = &op->decl[k];
	const size_t len = strlen(op->name) + strlen(decl->name) + 2;
	int r = place_weight(seq, op, w, decl);

	if (r < 0)
		return r;
	w->name = te__malloc(len);
	if (!w->name)
		return te__no_memory("sequence");
	snprintf(w->name, len, "%s.%s", op->name, decl->name);
	w->decl = *decl;
	w->op = op;
	w->op_index = i;
	w->index = k;
	return seq->nweights++;
}

/* list the weights and give each its offset in the flat buffers */
static int collect_weights(struct te_seq *seq)
{
	size_t n = 0;
	int *index;

	for (int i = 0; i < seq->nops; i++)
		n += (size_t)seq->op[i]->nweights;
	/* the pointers, then what they point to */
	seq->op_weight = te__calloc(1, (size_t)seq->nops * sizeof(*seq->op_weight) +
					       n * sizeof(*index) + 1);
	seq->weight = te__calloc(n + 1, sizeof(*seq->weight));
	if (!seq->op_weight || !seq->weight)
		return te__no_memory("sequence");
	index = (int *)(void *)(seq->op_weight + seq->nops);
	for (int i = 0; i < seq->nops; i++) {
		const struct te_op *op = seq->op[i];

		seq->op_weight[i] = index;
		index += op->nweights;
		for (int k = 0; k < op->nweights; k++) {
			const int w = op->decl[k].tied_op ? tied_weight(seq, i, &op->decl[k]) :
							    new_weight(seq, i, k);

			if (w < 0)
				return w;
			seq->op_weight[i][k] = w;
		}
	}
	return 0;
}

/* elements of the gradients that this rank has */
static int64_t own_grads(const struct te_seq *seq)
{
	const struct te__part p = te__seq_part(seq);

	return p.nelems + p.ntail;
}

/* elements of masters, from the first on, that have remainders */
static int64_t count_rest(const struct te_seq *seq)
{
	int64_t n = 0;

	if (!(seq->binding.flags & TE_SEQ_REMAINDERS))
		return 0;
	if (!(seq->binding.flags & TE_SEQ_ROUND_FROZEN))
		return te__flat_nelems(seq->nelems);
	for (int i = 0; i < seq->nweights; i++) {
		const struct te__weight *w = &seq->weight[i];
		const struct te_spec s = te__weight_spec(&w->decl);

		if (te__weight_has_rest(seq, w) && !w->value)
			n += padded_nelems(&s);
	}
	return n;
}

/* a tensor over the master, or without memory if ranks divide it */
static int view_master(const struct te_seq *seq, struct te__weight *w)
{
	if (te__weight_is_divided(seq, w))
		return te_tensor_wrap(seq->ctx, te_tensor_dtype(seq->masters), w->decl.ndim,
				      w->decl.shape, TE__NOWHERE, NULL, NULL, &w->master);
	return te_tensor_view(seq->masters, te__weight_own_offset(seq, w), w->decl.ndim,
			      w->decl.shape, &w->master);
}

/* a tensor of each weight over the flat buffers */
static int view_weights(struct te_seq *seq)
{
	int r = 0;

	for (int i = 0; i < seq->nweights && !r; i++) {
		struct te__weight *w = &seq->weight[i];

		if (!w->value)
			r = view_master(seq, w);
		w->rest = w->master && w->offset_nelems < seq->nrest ?
				  (uint16_t *)seq->rest + w->offset_nelems :
				  NULL;
		if (!r && seq->grads && te__weight_trains(w) && !te__seq_is_divided(seq))
			r = te_tensor_view(seq->grads, w->offset_nelems, w->decl.ndim,
					   w->decl.shape, &w->grad);
	}
	return r;
}

/* pinned memory, which is zero; ret: its address for the device */
static int get_host(const struct te_seq *seq, size_t nbytes, struct te__pinned **ret_pinned,
		    void **ret)
{
	int r = te__pinned_create(seq->ctx, nbytes, ret_pinned);

	if (!r)
		*ret = te__pinned_device_ptr(*ret_pinned, te__pinned_base(*ret_pinned));
	return r;
}

static int get_rest(struct te_seq *seq)
{
	const size_t nbytes = 2 * (size_t)seq->nrest;

	return seq->binding.flags & TE_SEQ_HOST_REMAINDERS ?
		       get_host(seq, nbytes, &seq->host_rest, &seq->rest) :
		       te__mem_get(seq->ctx, nbytes, &seq->rest);
}

static void drop_weights(struct te_seq *seq)
{
	for (int i = 0; i < seq->nweights; i++) {
		seq->weight[i].master = te_tensor_unref(seq->weight[i].master);
		seq->weight[i].grad = te_tensor_unref(seq->weight[i].grad);
		seq->weight[i].rest = NULL;
	}
	seq->masters = te_tensor_unref(seq->masters);
	seq->grads = te_tensor_unref(seq->grads);
	te__seq_put_flat(seq);
}

/* memory for n elements, unless some is given */
static int flat_buffer(const struct te_seq *seq, enum te_dtype dtype, int64_t n, void *given,
		       struct te_tensor **ret)
{
	n = te__flat_nelems(n);
	if (given)
		return te_tensor_wrap(seq->ctx, dtype, 1, &n, given, NULL, NULL, ret);
	return te_tensor_create(seq->ctx, dtype, 1, &n, NULL, ret);
}

/* buffers without memory, for plans that allocate nothing */
static int wrap_weights(struct te_seq *seq)
{
	int r = flat_buffer(seq, TE_DTYPE_FP32, seq->nelems, TE__NOWHERE, &seq->masters);

	if (!r)
		r = flat_buffer(seq, TE_DTYPE_FP32, seq->ngrads, TE__NOWHERE, &seq->grads);
	return r ? r : view_weights(seq);
}

/* bytes of seq->zeros for so many bytes of gradients */
static size_t zeros_nbytes(uint64_t grads)
{
	return grads < TE__SEQ_ZEROS ? (size_t)grads : TE__SEQ_ZEROS;
}

uint64_t te__seq_weights_nbytes(const struct te_seq *seq)
{
	const struct te_seq_binding *b = &seq->binding;
	const uint64_t size = te__seq_is_split(seq) ? 2 : 4;
	const uint64_t masters = b->masters || b->flags & TE_SEQ_HOST_MASTERS ? 0 :
				 te__seq_divides_masters(seq) ? te__parts_nbytes(seq) :
				 (uint64_t)te__seq_own_masters(seq) * size;
	const uint64_t grads = b->grads || b->flags & TE_SEQ_NO_GRADS ?
				       0 : (uint64_t)own_grads(seq) *
						   te_dtype_nbytes(te__seq_grad_dtype(seq));
	const uint64_t rest =
		b->flags & TE_SEQ_HOST_REMAINDERS ? 0 : 2 * (uint64_t)count_rest(seq);

	return masters + rest + (b->flags & TE_SEQ_HOST_GRADS ? zeros_nbytes(grads) : grads);
}

/* ---- values of masters ---- */

static struct te__values weight_values(const struct te__weight *w)
{
	return (struct te__values){ te_tensor_ctx(w->master),
				    te_tensor_dtype(w->master) == TE_DTYPE_BF16,
				    te_tensor_data(w->master), w->rest,
				    w->rest ? te_tensor_nelems(w->master) : 0,
				    te_tensor_nelems(w->master) };
}

int te__weight_read(const struct te__weight *w, float *dst)
{
	const struct te__values v = weight_values(w);

	return te__values_read(&v, dst);
}

int te__weight_write(const struct te__weight *w, const float *src)
{
	const struct te__values v = weight_values(w);

	return te__values_write(&v, src);
}

static struct te__values values_at(const struct te_seq *seq, int64_t first, int64_t nelems)
{
	const struct te__values all = { seq->ctx, te__seq_is_split(seq),
					te_tensor_data(seq->masters), seq->rest, seq->nrest,
					te_seq_nelems(seq) };

	return te__values_from(&all, first, nelems);
}

/* elements that are drawn at a time: a buffer of 128 MiB, whose pages are used again */
#define DRAW_NELEMS ((int64_t)1 << 25)

/* draw a run of n elements into buf, and write it; all threads convert what they draw */
static int draw_run(const struct te_seq *seq, const struct te__weight *w, uint64_t seed,
		    int64_t first, int64_t n, float *buf)
{
	const struct te__values all = weight_values(w), v = te__values_from(&all, first, n);
	const int64_t at = w->offset_nelems + first;
	uint16_t *half = (uint16_t *)(void *)buf;

	if (te__seq_divides_masters(seq)) {
		if (!te__parts_has(seq, at, n))
			return 0;
		te__draw_weight(w, seed, first, n, buf);
		return te__parts_set(seq, at, n, buf);
	}
	if (!v.split) {
		te__draw_weight(w, seed, first, n, buf);
		return te__values_write(&v, buf);
	}
	te__draw_split(w, seed, first, n, half, half + n);
	return te__values_write_split(&v, half, half + n);
}

static int draw_weight(const struct te_seq *seq, const struct te__weight *w, uint64_t seed)
{
	const int64_t nelems = te_tensor_nelems(w->codes ? w->value : w->master);
	/* codes are cast from all values */
	const int64_t most = nelems < DRAW_NELEMS || w->codes ? nelems : DRAW_NELEMS;
	float *buf = te__malloc((size_t)most * sizeof(*buf));
	int r = buf ? 0 : te__fail(-ENOMEM, "weight %s: no memory for %lld initial values", w->name,
				   (long long)most);

	for (int64_t at = 0, n; at < nelems && !r; at += n) {
		n = nelems - at < most ? nelems - at : most;
		if (!w->codes) {
			r = draw_run(seq, w, seed, at, n, buf);
			continue;
		}
		te__draw_weight(w, seed, at, n, buf);
		r = te__weight_write_codes(w, buf);
	}
	te__free(buf);
	return r;
}

/* flat buffers in the caller's memory, in pinned host memory or in device memory */
static int make_flat(struct te_seq *seq)
{
	const enum te_dtype dtype = te__seq_is_split(seq) ? TE_DTYPE_BF16 : TE_DTYPE_FP32;
	const enum te_dtype grad = te__seq_grad_dtype(seq);
	const uint32_t flags = seq->binding.flags;
	const size_t nbytes = (size_t)te__flat_nelems(own_grads(seq)) * te_dtype_nbytes(grad);
	void *masters = seq->binding.masters, *grads = seq->binding.grads;
	int r = 0;

	if (flags & TE_SEQ_HOST_MASTERS)
		r = get_host(seq, (size_t)te__seq_own_masters(seq) * te_dtype_nbytes(dtype),
			     &seq->host_masters, &masters);
	else if (te__seq_divides_masters(seq))
		r = te__parts_alloc(seq, &masters);
	if (!r)
		r = flat_buffer(seq, dtype, te__seq_own_masters(seq), masters, &seq->masters);
	if (!r && flags & TE_SEQ_HOST_GRADS) {
		r = get_host(seq, nbytes, &seq->host_grads, &grads);
		if (!r)
			r = te__mem_get(seq->ctx, zeros_nbytes(nbytes), &seq->zeros);
		if (!r)
			r = te__ctx_fill_u32(seq->ctx, seq->zeros, 0, zeros_nbytes(nbytes));
	}
	if (!r && !(flags & TE_SEQ_NO_GRADS))
		r = flat_buffer(seq, grad, own_grads(seq), grads, &seq->grads);
	return r;
}

/* parts are ranges of masters and of their gradients */
static int check_parts(const struct te_seq *seq)
{
	for (int i = 0; i < seq->nweights && te__seq_divides_masters(seq); i++) {
		const struct te__weight *w = &seq->weight[i];

		if (w->value && te__weight_trains(w))
			return te__fail(-EOPNOTSUPP, "te_seq_init: weight %s is bound and trained, "
					"and masters are in %d parts", w->name,
					seq->binding.nparts);
	}
	return 0;
}

static int make_weights(struct te_seq *seq, uint64_t seed)
{
	const int keeps = (seq->binding.flags & TE_SEQ_KEEP_MASTERS) != 0;
	const int draws = !keeps && !(seq->binding.flags & TE_SEQ_NO_DRAW);
	uint64_t words[3] = { seed, 0, 1 }; /* version 0: there are no copies */
	void *p;
	int r = check_parts(seq);

	if (!r)
		r = make_flat(seq);
	seq->nrest = count_rest(seq);
	if (!r && seq->nrest)
		r = get_rest(seq);
	if (r < 0)
		return r;
	r = te__mem_get(seq->ctx, sizeof(words), &p);
	if (r < 0)
		return r;
	seq->rng = p;
	seq->version = seq->rng + 2;
	if (!keeps && !seq->host_masters)
		r = te__ctx_fill_u32(seq->ctx, te_tensor_data(seq->masters), 0,
				     te_tensor_nbytes(seq->masters));
	if (!r && seq->rest)
		r = te__ctx_fill_u32(seq->ctx, seq->rest, 0, 2 * (size_t)seq->nrest);
	if (!r && seq->grads && !seq->host_grads)
		r = te__ctx_fill_u32(seq->ctx, te_tensor_data(seq->grads), 0,
				     te_tensor_nbytes(seq->grads));
	if (!r)
		r = te__ctx_copy(seq->ctx, seq->rng, words, sizeof(words));
	if (!r)
		r = view_weights(seq);
	for (int i = 0; i < seq->nweights && !r; i++)
		if (seq->weight[i].codes)
			r = te__weight_alloc_codes(seq, &seq->weight[i]);
	for (int i = 0; i < seq->nweights && !r && draws; i++)
		if (seq->weight[i].master || seq->weight[i].codes)
			r = draw_weight(seq, &seq->weight[i], seed);
	return r;
}

/* restore the state before te_seq_complete */
static void undo_complete(struct te_seq *seq)
{
	for (int i = 0; i < seq->nops; i++)
		seq->op[i]->locked = 0;
	seq->complete = 0;
	drop_weights(seq);
	for (int i = 0; i < seq->nweights; i++) {
		te_tensor_unref(seq->weight[i].value);
		te__free(seq->weight[i].name);
	}
	te__free(seq->weight);
	te__free(seq->op_weight);
	seq->weight = NULL;
	seq->op_weight = NULL;
	seq->nweights = 0;
	seq->nelems = 0;
	seq->binding = (struct te_seq_binding)TE_SEQ_BINDING_INIT;
	while (seq->nchannels && seq->channel[seq->nchannels - 1].giver >= 0) {
		const char *name = seq->channel[--seq->nchannels].name;

		te__names_remove(&seq->channel_names, name);
		te__free((char *)name);
	}
	for (int i = 0; i < seq->nchannels; i++)
		seq->channel[i].ntakers = 0;
}

static int lay_out_ops(struct te_seq *seq)
{
	int r = collect_weights(seq);

	if (!r) {
		te__seq_lay_out(seq);
		r = wrap_weights(seq);
	}
	if (r < 0)
		undo_complete(seq);
	return r;
}

int te_seq_complete(struct te_seq *seq)
{
	int r = te__seq_building(seq, "te_seq_complete");

	if (r < 0)
		return r;
	if (!seq->nops)
		return te__fail(-EINVAL, "te_seq_complete: the sequence has no ops");
	r = te__seq_check_channels(seq);
	if (!r)
		r = lay_out_ops(seq);
	if (r < 0)
		return r;
	for (int i = 0; i < seq->nops; i++)
		seq->op[i]->locked = 1;
	seq->complete = 1;
	return 0;
}

int64_t te_seq_nelems(const struct te_seq *seq)
{
	return seq && seq->complete ? te__flat_nelems(seq->nelems) : 0;
}

int64_t te_seq_grad_nelems(const struct te_seq *seq)
{
	return seq && seq->complete && !(seq->binding.flags & TE_SEQ_NO_GRADS) ?
		       te__flat_nelems(seq->ngrads) :
		       0;
}

int te__seq_op_trains(const struct te_seq *seq, int i)
{
	for (int k = 0; k < seq->op[i]->nweights; k++)
		if (te__weight_trains(&seq->weight[seq->op_weight[i][k]]))
			return 1;
	return 0;
}

/* between te_seq_complete and te_seq_init */
int te__seq_laid_out(const struct te_seq *seq, const char *what)
{
	if (!seq)
		return te__fail(-EINVAL, "%s: seq is NULL", what);
	if (!seq->complete)
		return te__fail(-TE_ESTATE, "%s: te_seq_complete has not run", what);
	if (seq->initialised)
		return te__fail(-EBUSY, "%s: the sequence has been initialised", what);
	return 0;
}

int te_seq_freeze(struct te_seq *seq, const char *pattern, int frozen)
{
	int n = 0, r = te__seq_laid_out(seq, "te_seq_freeze");

	if (r)
		return r;
	if (!pattern || (frozen != 0 && frozen != 1))
		return te__fail(-EINVAL, "te_seq_freeze: %s",
				pattern ? "frozen is neither 0 nor 1" : "pattern is NULL");
	for (int i = 0; i < seq->nweights; i++) {
		struct te__weight *w = &seq->weight[i];

		if (fnmatch(pattern, w->name, 0) && fnmatch(pattern, w->op->name, 0))
			continue;
		w->decl.flags &= ~TE_WEIGHT_FROZEN;
		w->decl.flags |= frozen ? TE_WEIGHT_FROZEN : 0;
		n++;
	}
	if (!n)
		return te__fail(-ENOENT, "te_seq_freeze: no weight is named %s, and no op that "
				"owns weights", pattern);
	te__seq_lay_out(seq); /* te_seq_init makes the tensors again */
	return n;
}

int te_seq_init(struct te_seq *seq, uint64_t seed)
{
	int r;

	if (!seq || seq->initialised)
		return te__seq_building(seq, "te_seq_init");
	r = seq->complete ? 0 : te_seq_complete(seq);
	if (r < 0)
		return r;
	drop_weights(seq);
	r = make_weights(seq, seed);
	if (!r) {
		seq->initialised = 1;
		return 0;
	}
	te__mem_put(seq->ctx, seq->rng);
	seq->rng = seq->version = NULL;
	undo_complete(seq);
	return r;
}

int te_seq_nweights(const struct te_seq *seq)
{
	return seq ? seq->nweights : 0;
}

int te_seq_weight(const struct te_seq *seq, int index, struct te_weight_info *ret_info)
{
	const struct te__weight *w;

	struct te_weight_info info;
	int r = te__sized_check("te_seq_weight", te_weight_info, ret_info);

	if (r)
		return r;
	if (!seq || index < 0 || index >= seq->nweights)
		return te__fail(-EINVAL, "te_seq_weight: index %d of %d", index,
				seq ? seq->nweights : 0);
	w = &seq->weight[index];
	info = (struct te_weight_info){
		.size = sizeof(info),
		.name = w->name,
		.op = w->op,
		.master = w->value ? NULL : w->master,
		.grad = te__weight_trains(w) ? w->grad : NULL,
		.flags = w->decl.flags,
		.offset_nelems = w->offset_nelems,
		.value = w->value,
	};
	te__sized_out(te_weight_info, &info, ret_info);
	return 0;
}

struct te_tensor *te_seq_masters(const struct te_seq *seq)
{
	return seq && seq->initialised ? seq->masters : NULL;
}

static int find_values(const char *fn, const struct te_seq *seq, int64_t first, int64_t nelems,
		       const void *p, struct te__values *ret)
{
	const int64_t n = te_seq_nelems(seq);
	int r = te__seq_initialised(seq, fn);

	if (r)
		return r;
	if (first < 0 || nelems < 0 || first > n || nelems > n - first)
		return te__fail(-EINVAL, "%s: %lld elements from %lld on, there are %lld", fn,
				(long long)nelems, (long long)first, (long long)n);
	if (nelems && !p)
		return te__fail(-EINVAL, "%s: the host memory is NULL", fn);
	*ret = values_at(seq, first, nelems);
	return te__ctx_wait(seq->ctx, fn);
}

int te_seq_masters_get(const struct te_seq *seq, int64_t first, int64_t nelems, float *dst)
{
	const int divided = seq && te__seq_divides_masters(seq);
	struct te__values v;
	int r = find_values("te_seq_masters_get", seq, first, nelems, divided ? seq : (void *)dst,
			    &v);

	if (r)
		return r;
	return divided ? te__parts_get(seq, first, nelems, dst) : te__values_read(&v, dst);
}

int te_seq_masters_set(struct te_seq *seq, int64_t first, int64_t nelems, const float *src)
{
	struct te__values v;
	int r = find_values("te_seq_masters_set", seq, first, nelems, src, &v);

	if (!r)
		r = te__seq_divides_masters(seq) ? te__parts_set(seq, first, nelems, src) :
						   te__values_write(&v, src);
	return r ? r : te_seq_weights_changed(seq, te_ctx_stream(seq->ctx));
}

struct te_tensor *te_seq_grads(const struct te_seq *seq)
{
	return seq && seq->initialised ? seq->grads : NULL;
}

struct te_quant *te_seq_quant(const struct te_seq *seq)
{
	return seq ? seq->quant : NULL;
}

/* host memory by copies, which a graph's link carries while kernels run */
int te__seq_zero_grad(const struct te_seq *seq, struct te_stream *stream, struct te_tensor *grad)
{
	const size_t nbytes = te_tensor_nbytes(grad), most = zeros_nbytes(nbytes);
	char *at = te_tensor_data(grad);
	int r = 0;

	if (!seq->host_grads)
		return te_fill(stream, at, 0, nbytes);
	for (size_t done = 0; done < nbytes && !r; done += most)
		r = te_copy(stream, at + done, seq->zeros,
			    nbytes - done < most ? nbytes - done : most);
	return r;
}

int te_seq_zero_grads(struct te_seq *seq, struct te_stream *stream)
{
	static const char fn[] = "te_seq_zero_grads";
	int r = te__seq_initialised(seq, fn);

	if (!r && !seq->grads)
		r = te__fail(-TE_ESTATE, "%s: the sequence has no gradients", fn);
	if (!r)
		r = te__stream_check(fn, stream, seq->ctx);
	for (int i = 0; i < seq->nweights && !r; i++)
		seq->weight[i].grad_is_zero = 0;
	if (!r)
		r = te__seq_zero_grad(seq, stream, seq->grads);
	return te__stream_queued(stream, r);
}

int te_seq_weights_changed(struct te_seq *seq, struct te_stream *stream)
{
	static const char fn[] = "te_seq_weights_changed";
	int r = te__seq_initialised(seq, fn);

	if (!r)
		r = te__stream_check(fn, stream, seq->ctx);
	if (!r)
		r = TE__LAUNCH(stream, WEIGHTS_CHANGED,
			       (&(struct te_k_weights_changed){ .version = seq->version }));
	return te__stream_queued(stream, r);
}
