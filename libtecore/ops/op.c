/* op.c - op instances: creation, channels, reference counts. */
#define TE_LOG_CATEGORY "core/op"
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "libtecore/base/private.h"

#include "libtecore/ops/op.h"

/* Zeros follow the struct that a callback fills in; a matching callback does not change them. */
#define SLACK 256

static int overran(const struct te_op *op, const char *fn, const unsigned char *slack)
{
	for (int i = 0; i < SLACK; i++)
		if (slack[i])
			return te__fail(-EINVAL, "op %s: %s() of a %s sets what this library does "
					"not know: it is older than the program",
					op->name, fn, op->ops.name);
	return 0;
}

static int declare_weights(struct te_op *op)
{
	for (;;) {
		struct {
			struct te_weight_decl d;
			unsigned char slack[SLACK];
		} w = { TE_WEIGHT_DECL_INIT, { 0 } };
		const uint64_t nfails = te__nfails();
		struct te_weight_decl *decl;
		int r;

		r = op->ops.weight(op, op->nweights, &w.d);
		if (r < 0)
			return te__callback_failed(nfails, r, "op %s: weight()", op->name);
		if (!r)
			return 0;
		r = overran(op, "weight", w.slack);
		if (r)
			return r;
		decl = te__realloc(op->decl, ((size_t)op->nweights + 1) * sizeof(*decl));
		if (!decl)
			return te__fail(-ENOMEM, "op %s: no memory", op->name);
		op->decl = decl;
		op->decl[op->nweights++] = w.d;
	}
}

/* fill the op from its table and attributes */
static int fill(struct te_op *op, const void *attrs, const char *name)
{
	const struct te_op_ops *ops = &op->ops;
	const uint64_t nfails = te__nfails();
	int r = 0;

	if (!ops->name || !ops->infer)
		return te__fail(-EINVAL, "op %s: its table lacks a name or infer()", name);
	if (ops->nextra_in < 0 || ops->nextra_out < 0)
		return te__fail(-EINVAL, "op %s: %d extra inputs and %d outputs", name,
				ops->nextra_in, ops->nextra_out);
	if (ops->flags & ~(TE_OP_REPEATS | TE_OP_REPEATS_COSTLY))
		return te__fail(-EINVAL, "op %s: its table has unknown flags 0x%x", name,
				(unsigned)ops->flags & ~(TE_OP_REPEATS | TE_OP_REPEATS_COSTLY));
	if (ops->attrs_nbytes && !attrs)
		return te__fail(-EINVAL, "op %s: type %s needs attributes", name, ops->name);
	op->name = te__strdup(name);
	op->give = te__calloc((size_t)ops->nextra_out + 1, sizeof(*op->give));
	op->take = te__calloc((size_t)ops->nextra_in + 1, sizeof(*op->take));
	op->attrs = te__malloc(ops->attrs_nbytes + 1);
	if (!op->name || !op->give || !op->take || !op->attrs)
		return te__fail(-ENOMEM, "op %s: no memory", name);
	if (ops->attrs_nbytes)
		memcpy(op->attrs, attrs, ops->attrs_nbytes);
	if (ops->check)
		r = ops->check(op);
	return r < 0 ? te__callback_failed(nfails, r, "op %s: check()", name) : 0;
}

int te_op_create(const struct te_op_ops *ops, const void *attrs, const char *name,
		 struct te_op **ret_op)
{
	struct te_op_ops table = TE_OP_OPS_INIT;
	struct te_op *op;
	int r;

	if (!ret_op)
		return te__fail(-EINVAL, "te_op_create: ret_op is NULL");
	r = te__sized_in("te_op_create", te_op_ops, ops, &table);
	if (r)
		return r;
	if (!name || !*name)
		return te__fail(-EINVAL, "te_op_create: a %s op needs a name",
				table.name ? table.name : "nameless");
	op = te__calloc(1, sizeof(*op));
	if (!op)
		return te__fail(-ENOMEM, "op %s: no memory", name);
	atomic_init(&op->refs, 1);
	atomic_init(&op->seq, NULL);
	atomic_init(&op->constants, NULL);
	op->ops = table;
	op->ops.destroy = NULL; /* until check() succeeds there is nothing to destroy */
	op->table = ops;
	r = fill(op, attrs, name);
	if (!r) {
		op->ops.destroy = table.destroy;
		r = op->ops.weight ? declare_weights(op) : 0;
	}
	if (r < 0) {
		te_op_unref(op);
		return r;
	}
	*ret_op = op;
	return 0;
}

int te__op_create(const struct te_op_ops *ops, const void *attrs, const char *name,
		  struct te_op **ret_op)
{
	int r = te_op_create(ops, attrs, name, ret_op);

	if (!r)
		(*ret_op)->is_library = 1;
	return r;
}

struct te_op *te_op_ref(struct te_op *op)
{
	if (op)
		atomic_fetch_add(&op->refs, 1);
	return op;
}

struct te_op *te_op_unref(struct te_op *op)
{
	if (!op || atomic_fetch_sub(&op->refs, 1) != 1)
		return NULL;
	if (op->ops.destroy)
		op->ops.destroy(op);
	for (int i = 0; op->give && i < op->ops.nextra_out; i++)
		te__free(op->give[i]);
	for (int i = 0; op->take && i < op->ops.nextra_in; i++)
		te__free(op->take[i]);
	te_tensor_unref(atomic_load(&op->constants));
	te__free(op->give);
	te__free(op->take);
	te__free(op->decl);
	te__free(op->attrs);
	te__free(op->name);
	te__free(op);
	return NULL;
}

int te__op_constants(struct te_op *op, struct te_ctx *ctx, const float *x, int64_t n)
{
	struct te_tensor *was = atomic_load(&op->constants), *t;
	int r;

	if (was && te_tensor_ctx(was) == ctx)
		return 0;
	r = te_tensor_create(ctx, TE_DTYPE_FP32, 1, &n, NULL, &t);
	if (r)
		return r;
	r = te_tensor_write(t, x, (size_t)n * sizeof(*x));
	/* another plan may be created concurrently; its numbers are the same */
	if (!r && atomic_compare_exchange_strong(&op->constants, &was, t))
		t = was;
	te_tensor_unref(t);
	return r;
}

const char *te_op_name(const struct te_op *op)
{
	return op ? op->name : NULL;
}

int te_op_keep(struct te_op *op)
{
	if (!op)
		return te__fail(-EINVAL, "te_op_keep: op is NULL");
	op->policy = TE__POLICY_KEEP;
	return 0;
}

int te_op_recompute(struct te_op *op)
{
	if (!op)
		return te__fail(-EINVAL, "te_op_recompute: op is NULL");
	op->policy = TE__POLICY_RECOMPUTE;
	return 0;
}

const struct te_op_ops *te_op_table(const struct te_op *op)
{
	return op ? op->table : NULL;
}

const void *te_op_attrs(const struct te_op *op)
{
	return op ? op->attrs : NULL;
}

static int join(struct te_op *op, char **slots, int nslots, const char *what, int index,
		const char *channel)
{
	char *copy;

	if (!op)
		return te__fail(-EINVAL, "no op to join to a channel");
	if (!channel || !*channel)
		return te__fail(-EINVAL, "op %s: a channel needs a name", op->name);
	if (index < 0 || index >= nslots)
		return te__fail(-EINVAL, "op %s: there is no extra %s %d: type %s has %d", op->name,
				what, index, op->ops.name, nslots);
	if (op->locked)
		return te__fail(-EBUSY, "op %s: its sequence is initialised, channels are fixed",
				op->name);
	if (slots[index])
		return te__fail(-EINVAL, "op %s: extra %s %d is joined to channel %s already",
				op->name, what, index, slots[index]);
	copy = te__strdup(channel);
	if (!copy)
		return te__fail(-ENOMEM, "op %s: no memory", op->name);
	slots[index] = copy;
	return 0;
}

int te_op_give(struct te_op *op, int index, const char *channel)
{
	return join(op, op ? op->give : NULL, op ? op->ops.nextra_out : 0, "output", index,
		    channel);
}

int te_op_take(struct te_op *op, int index, const char *channel)
{
	return join(op, op ? op->take : NULL, op ? op->ops.nextra_in : 0, "input", index, channel);
}

int te__spec_valid(const struct te_spec *s)
{
	int64_t n = (int64_t)te_dtype_nbytes(s->dtype);

	if (!n || s->ndim < 1 || s->ndim > TE_MAX_DIMS)
		return 0;
	for (int i = 0; i < s->ndim; i++)
		if (s->shape[i] < 1 || __builtin_mul_overflow(n, s->shape[i], &n) ||
		    n > TE__SPEC_MAX_NBYTES)
			return 0;
	return 1;
}

int64_t te__spec_nelems(const struct te_spec *s)
{
	int64_t n = 1;

	for (int i = 0; i < s->ndim; i++)
		n *= s->shape[i];
	return n;
}

size_t te__spec_nbytes(const struct te_spec *s)
{
	return (size_t)te__spec_nelems(s) * te_dtype_nbytes(s->dtype);
}

int te__spec_equal(const struct te_spec *a, const struct te_spec *b)
{
	return a->dtype == b->dtype && a->ndim == b->ndim &&
	       !memcmp(a->shape, b->shape, sizeof(a->shape[0]) * (size_t)a->ndim);
}

struct te_spec te__spec_of(const struct te_tensor *t)
{
	struct te_spec s = { te_tensor_dtype(t), te_tensor_ndim(t), { 0 } };

	for (int d = 0; d < s.ndim; d++)
		s.shape[d] = te_tensor_extent(t, d);
	return s;
}

void te__spec_str(const struct te_spec *s, char *dst, size_t nbytes)
{
	size_t at = 0;
	int n;

	for (int i = 0; i < s->ndim; i++) {
		n = snprintf(dst + at, nbytes - at, "%c%lld", i ? ',' : '[',
			     (long long)s->shape[i]);
		if (n < 0 || (size_t)n >= nbytes - at)
			return;
		at += (size_t)n;
	}
	snprintf(dst + at, nbytes - at, "%s] %s", s->ndim ? "" : "[", te_dtype_name(s->dtype));
}

/* ---- infer() ---- */

int te__infer(struct te_op *op, const struct te_recipe *recipe, uint32_t flags,
	      const struct te_spec *in, struct te_op_infer *ret_inf)
{
	const size_t nin = 1 + (size_t)op->ops.nextra_in, nout = 1 + (size_t)op->ops.nextra_out;
	struct {
		struct te_op_infer inf;
		unsigned char slack[SLACK];
	} a;
	struct te_op_infer *inf = &a.inf;
	const uint64_t nfails = te__nfails();
	struct te_spec *specs;
	int r;

	memset(&a, 0, sizeof(a));
	memset(ret_inf, 0, sizeof(*ret_inf));
	specs = te__calloc(1, (nin + nout) * sizeof(*specs) +
				      (2 * nin + nout + (size_t)op->nweights) * sizeof(int32_t));
	if (!specs)
		return te__fail(-ENOMEM, "op %s: no memory", op->name);
	memcpy(specs, in, nin * sizeof(*in));
	inf->size = sizeof(*inf);
	inf->op = op;
	inf->recipe = recipe;
	inf->flags = flags;
	inf->in = specs;
	inf->out = specs + nin;
	inf->out_alias = (int32_t *)(void *)(inf->out + nout);
	inf->dex_alias = inf->out_alias + nout;
	inf->save_ex = inf->dex_alias + nin;
	inf->weight_forms = (uint32_t *)(inf->save_ex + nin);
	memset(inf->out_alias, 0xff, (nout + nin) * sizeof(int32_t)); /* and dex_alias: -1 */
	inf->dx_alias = -1;
	inf->fwd_x = inf->bwd_dy = TE_FORM_HP;
	r = op->ops.infer(inf);
	if (r < 0)
		r = te__callback_failed(nfails, r, "op %s: infer()", op->name);
	else
		r = overran(op, "infer", a.slack);
	*ret_inf = a.inf;
	return r < 0 ? r : 0;
}

void te__infer_free(struct te_op_infer *inf)
{
	te__free((void *)(uintptr_t)inf->in);
	te__free(inf->saved);
	inf->in = NULL;
	inf->saved = NULL;
}

int te_infer_save(struct te_op_infer *inf, const struct te_spec *spec)
{
	struct te_spec *saved;

	if (!inf || !spec)
		return te__fail(-EINVAL, "te_infer_save: %s is NULL", inf ? "spec" : "inf");
	saved = te__realloc(inf->saved, ((size_t)inf->nsaved + 1) * sizeof(*saved));
	if (!saved)
		return te__fail(-ENOMEM, "op %s: no memory", inf->op->name);
	inf->saved = saved;
	saved[inf->nsaved] = *spec;
	return inf->nsaved++;
}
