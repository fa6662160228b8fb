/* seq.c - sequences: the list of ops, their channels and their random state. */
#define TE_LOG_CATEGORY "core/seq"
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "libtecore/base/private.h"
#include <te/stream.h>

#include "kernels/te_k.h"
#include "libtecore/tensor/ctx.h"
#include "libtecore/ops/op.h"
#include "libtecore/quant/quant.h"
#include "libtecore/offload/pinned.h"
#include "libtecore/plan/seq.h"

int te__seq_grow(void **array, int *cap, int n, size_t nbytes)
{
	int want = *cap ? *cap * 2 : 16;
	void *p;

	if (n < *cap)
		return 0;
	p = te__realloc(*array, (size_t)want * nbytes);
	if (!p)
		return te__no_memory("sequence");
	*array = p;
	*cap = want;
	return 0;
}

int te_seq_create(struct te_ctx *ctx, struct te_seq **ret_seq)
{
	struct te_seq *seq;

	if (!ctx || !ret_seq)
		return te__fail(-EINVAL, "te_seq_create: no context or no place for the result");
	seq = te__calloc(1, sizeof(*seq));
	if (!seq)
		return te__no_memory("sequence");
	atomic_init(&seq->refs, 1);
	seq->ctx = te_ctx_ref(ctx);
	*ret_seq = seq;
	return 0;
}

struct te_seq *te_seq_ref(struct te_seq *seq)
{
	if (seq)
		atomic_fetch_add(&seq->refs, 1);
	return seq;
}

void te__seq_put_flat(struct te_seq *seq)
{
	struct te__pinned **const host[] = { &seq->host_rest, &seq->host_masters,
					     &seq->host_grads };

	if (!seq->host_rest)
		te__mem_put(seq->ctx, seq->rest);
	te__mem_put(seq->ctx, seq->zeros);
	for (size_t i = 0; i < sizeof(host) / sizeof(host[0]); i++) {
		if (*host[i] && te__ctx_drain(seq->ctx, "te_seq_unref"))
			te__pinned_keep(*host[i]); /* copies may be queued */
		*host[i] = te__pinned_destroy(*host[i]);
	}
	seq->rest = seq->zeros = NULL;
	seq->nrest = 0;
}

struct te_seq *te_seq_unref(struct te_seq *seq)
{
	if (!seq || atomic_fetch_sub(&seq->refs, 1) != 1)
		return NULL;
	te__copies_free(seq);
	for (int i = 0; i < seq->nweights; i++) {
		struct te__weight *w = &seq->weight[i];

		te_tensor_unref(w->grad);
		te_tensor_unref(w->master);
		te_tensor_unref(w->value);
		te__free(w->name);
	}
	te__free(seq->weight);
	te__free(seq->op_weight);
	te_quant_unref(seq->quant);
	te_tensor_unref(seq->grads);
	te_tensor_unref(seq->masters);
	te__seq_put_flat(seq);
	te__mem_put(seq->ctx, seq->rng);
	for (int i = 0; i < seq->nchannels; i++)
		te__free((char *)seq->channel[i].name);
	te__free(seq->channel);
	te__names_free(&seq->channel_names);
	te__names_free(&seq->op_names);
	for (int i = 0; i < seq->nfusions; i++)
		te__free((struct te_fusion *)(uintptr_t)seq->fusion[i].backward);
	te__free(seq->fusion);
	for (int i = 0; i < seq->nops; i++) {
		seq->op[i]->locked = 0;
		atomic_store(&seq->op[i]->seq, NULL);
		te_op_unref(seq->op[i]);
	}
	te__free(seq->op);
	te_ctx_unref(seq->ctx);
	te__free(seq);
	return NULL;
}

struct te_ctx *te_seq_ctx(const struct te_seq *seq)
{
	return seq ? seq->ctx : NULL;
}

int te_seq_nops(const struct te_seq *seq)
{
	return seq ? seq->nops : 0;
}

struct te_op *te_seq_op(const struct te_seq *seq, int index)
{
	return index >= 0 && index < te_seq_nops(seq) ? seq->op[index] : NULL;
}

int te__seq_building(const struct te_seq *seq, const char *what)
{
	if (!seq)
		return te__fail(-EINVAL, "%s: no sequence", what);
	if (seq->complete)
		return te__fail(-EBUSY, "%s: the sequence is %s, it cannot grow", what,
				seq->initialised ? "initialised" : "complete");
	return 0;
}

int te__seq_initialised(const struct te_seq *seq, const char *what)
{
	if (!seq || !seq->initialised)
		return te__fail(-TE_ESTATE, "%s: te_seq_init has not run", what);
	return 0;
}

int te_seq_append(struct te_seq *seq, struct te_op *op)
{
	const struct te_seq *none = NULL;
	int i, r = te__seq_building(seq, "te_seq_append");

	if (r < 0)
		return r;
	if (!op)
		return te__fail(-EINVAL, "te_seq_append: no op");
	i = te__names_get(&seq->op_names, op->name);
	if (i >= 0)
		return te__fail(-EEXIST, "sequence: op %d is named %s already", i, op->name);
	r = te__seq_grow((void **)&seq->op, &seq->cap_ops, seq->nops, sizeof(*seq->op));
	if (!r)
		r = te__names_add(&seq->op_names, op->name, seq->nops);
	if (r < 0)
		return r;
	if (!atomic_compare_exchange_strong(&op->seq, &none, seq)) {
		te__names_remove(&seq->op_names, op->name);
		return te__fail(-EBUSY,
				"te_seq_append: op %s: is in another sequence, it can be in one",
				op->name);
	}
	seq->op[seq->nops++] = te_op_ref(op);
	return 0;
}

int te_seq_fork(struct te_seq *seq, const char *name)
{
	struct te_op *op = NULL;
	int r = te__seq_building(seq, "te_seq_fork");

	if (!r)
		r = te_op_fork(name, &op);
	if (!r)
		r = te_op_give(op, 0, name);
	if (!r)
		r = te_seq_append(seq, op);
	te_op_unref(op);
	return r;
}

int te_seq_add(struct te_seq *seq, const char *name)
{
	const size_t n = name ? strlen(name) + sizeof(".add") : 0;
	struct te_op *op = NULL;
	char *add;
	int r = te__seq_building(seq, "te_seq_add");

	if (r)
		return r;
	if (!name)
		return te__fail(-EINVAL, "te_seq_add: name is NULL");
	add = te__malloc(n);
	if (!add)
		return te__no_memory("te_seq_add");
	snprintf(add, n, "%s.add", name);
	r = te_op_add(add, &op);
	if (!r)
		r = te_op_take(op, 0, name);
	if (!r)
		r = te_seq_append(seq, op);
	te_op_unref(op);
	te__free(add);
	return r;
}

struct te__channel *te__seq_channel(const struct te_seq *seq, const char *name)
{
	int i = te__names_get(&seq->channel_names, name);

	return i < 0 ? NULL : &seq->channel[i];
}

int te__seq_op(const struct te_seq *seq, const char *name)
{
	return te__names_get(&seq->op_names, name);
}

static int add_channel(struct te_seq *seq, const char *name, struct te__channel **ret)
{
	struct te__channel *c;
	int r = te__seq_grow((void **)&seq->channel, &seq->cap_channels, seq->nchannels,
		     sizeof(*seq->channel));

	if (r < 0)
		return r;
	c = &seq->channel[seq->nchannels];
	memset(c, 0, sizeof(*c));
	c->giver = -1;
	c->name = te__strdup(name);
	if (!c->name)
		return te__no_memory("sequence");
	r = te__names_add(&seq->channel_names, c->name, seq->nchannels);
	if (r < 0) {
		te__free((char *)c->name);
		return r;
	}
	seq->nchannels++;
	*ret = c;
	return 0;
}

/* the extents are at least `least`, and there are `fewest` to `most`; shape: their name */
static int add_input(struct te_seq *seq, const char *fn, const char *channel, enum te_dtype dtype,
		     const char *shape, int fewest, int most, int least, int ndim,
		     const int64_t *extent, struct te__channel **ret)
{
	int r = te__seq_building(seq, fn);

	if (r < 0)
		return r;
	if (!channel || !*channel || !strcmp(channel, "x"))
		return te__fail(-EINVAL, "%s: a channel needs a name other than \"x\"", fn);
	if (!te_dtype_nbytes(dtype))
		return te__fail(-EINVAL, "%s: %s: element type %d is unknown", fn, channel,
				(int)dtype);
	if (ndim < fewest || ndim > most || (ndim && !extent))
		return te__fail(-EINVAL, "%s: %s: ndim%s is %d, not %d to %d%s%s%s", fn, channel,
				*shape == 't' ? "_tail" : "", ndim, fewest, most,
				extent ? "" : ", and ", extent ? "" : shape,
				extent ? "" : " is NULL");
	for (int i = 0; i < ndim; i++)
		if (extent[i] < least)
			return te__fail(-EINVAL, "%s: %s: extent %d of its %s is %lld", fn,
					channel, i, shape, (long long)extent[i]);
	if (te__seq_channel(seq, channel))
		return te__fail(-TE_ECHANNEL, "channel %s: is an input already", channel);
	r = add_channel(seq, channel, ret);
	if (r < 0)
		return r;
	(*ret)->tail.dtype = dtype;
	(*ret)->tail.ndim = ndim;
	for (int i = 0; i < ndim; i++)
		(*ret)->tail.shape[i] = extent[i];
	return 0;
}

int te_seq_input(struct te_seq *seq, const char *channel, enum te_dtype dtype, int ndim_tail,
		 const int64_t *tail)
{
	struct te__channel *c;

	return add_input(seq, "te_seq_input", channel, dtype, "tail", 0, TE_MAX_DIMS - 2, 1,
			 ndim_tail, tail, &c);
}

int te_seq_input_shape(struct te_seq *seq, const char *channel, enum te_dtype dtype, int ndim,
		       const int64_t *shape)
{
	struct te__channel *c;
	int r = add_input(seq, "te_seq_input_shape", channel, dtype, "shape", 1, TE_MAX_DIMS, 0,
			  ndim, shape, &c);

	if (!r)
		c->is_whole = 1;
	return r;
}

/* check that each channel has one giver, before all its takers */
int te__seq_check_channels(struct te_seq *seq)
{
	struct te__channel *c;
	struct te_op *op;
	int r;

	for (int i = 0; i < seq->nops; i++) {
		op = seq->op[i];
		for (int k = 0; k < op->ops.nextra_out; k++) {
			if (!op->give[k])
				return te__fail(-TE_ECHANNEL,
						"op %s: extra output %d goes to no channel",
						op->name, k);
			c = te__seq_channel(seq, op->give[k]);
			if (c && c->giver < 0)
				return te__fail(-TE_ECHANNEL,
						"channel %s: op %s gives what the caller feeds",
						c->name, op->name);
			if (c)
				return te__fail(-TE_ECHANNEL, "channel %s: given by %s and by %s",
						c->name, seq->op[c->giver]->name, op->name);
			r = add_channel(seq, op->give[k], &c);
			if (r < 0)
				return r;
			c->giver = i;
		}
	}
	for (int i = 0; i < seq->nops; i++) {
		op = seq->op[i];
		for (int k = 0; k < op->ops.nextra_in; k++) {
			if (!op->take[k])
				return te__fail(-TE_ECHANNEL,
						"op %s: extra input %d comes from no channel",
						op->name, k);
			c = te__seq_channel(seq, op->take[k]);
			if (!c)
				return te__fail(-TE_ECHANNEL,
						"channel %s: taken by %s, given by no op",
						op->take[k], op->name);
			if (c->giver >= i)
				return te__fail(-TE_ECHANNEL,
						"channel %s: taken by %s before %s gives it",
						c->name, op->name, seq->op[c->giver]->name);
			c->ntakers++;
		}
	}
	for (int i = 0; i < seq->nchannels; i++)
		if (!seq->channel[i].ntakers && seq->channel[i].giver >= 0)
			return te__fail(-TE_ECHANNEL, "channel %s: given by %s, taken by no op",
					seq->channel[i].name,
					seq->op[seq->channel[i].giver]->name);
	return 0;
}

int te_seq_rng_get(struct te_seq *seq, uint64_t *ret_seed, uint64_t *ret_offset)
{
	uint64_t words[2];
	int r = te__seq_initialised(seq, "te_seq_rng_get");

	if (!r && (!ret_seed || !ret_offset))
		r = te__fail(-EINVAL, "te_seq_rng_get: %s is NULL",
			     ret_seed ? "ret_offset" : "ret_seed");
	if (!r)
		r = te__ctx_wait(seq->ctx, "te_seq_rng_get");
	if (!r)
		r = te__ctx_copy(seq->ctx, words, seq->rng, sizeof(words));
	if (r < 0)
		return r;
	*ret_seed = words[0];
	*ret_offset = words[1];
	return 0;
}

int te_seq_rng_set(struct te_seq *seq, uint64_t seed, uint64_t offset)
{
	uint64_t words[2] = { seed, offset };
	int r = te__seq_initialised(seq, "te_seq_rng_set");

	if (!r)
		r = te__ctx_wait(seq->ctx, "te_seq_rng_set");
	return r ? r : te__ctx_copy(seq->ctx, seq->rng, words, sizeof(words));
}

static int visit(te_region_fn fn, void *arg, const char *name, enum te_region_kind kind, void *ptr,
		 size_t nbytes)
{
	const struct te_region region = { name, kind, ptr, nbytes };

	return ptr ? fn(arg, &region) : 0;
}

int te__seq_renews(const struct te_seq *seq, const void *ptr)
{
	int r = seq->grads && ptr == te_tensor_data(seq->grads);

	for (const struct te__copies *c = seq->copies; c && !r; c = c->next)
		r = ptr == c->args.copies;
	return r;
}

int te_seq_regions(const struct te_seq *seq, te_region_fn fn, void *arg)
{
	int r = te__seq_initialised(seq, "te_seq_regions");

	if (r < 0)
		return r;
	if (seq->grads)
		r = visit(fn, arg, "gradients",
			  seq->host_grads ? TE_REGION_HOST : TE_REGION_DEVICE,
			  te_tensor_data(seq->grads), te_tensor_nbytes(seq->grads));
	if (!r)
		r = visit(fn, arg, "random state", TE_REGION_DEVICE, seq->rng,
			  2 * sizeof(*seq->rng));
	if (!r)
		r = visit(fn, arg, "version of the weights", TE_REGION_DEVICE, seq->version,
			  sizeof(*seq->version));
	if (!r && seq->quant)
		r = te__quant_regions(seq->quant, fn, arg);
	for (const struct te__copies *c = seq->copies; c && !r; c = c->next) {
		r = visit(fn, arg, "weight copies", TE_REGION_DEVICE, c->args.copies,
			  (size_t)c->args.copies_nbytes);
		if (!r)
			r = visit(fn, arg, "version of weight copies", TE_REGION_DEVICE,
				  c->args.done, sizeof(*c->args.done));
	}
	return r;
}
