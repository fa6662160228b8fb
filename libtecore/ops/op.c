/* op.c - op instances: creation, channels, reference counts. */
#define TE_LOG_CATEGORY "core/op"
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "libtecore/base/private.h"

#include "libtecore/ops/op.h"

int te_op_create(const struct te_op_ops *ops, const void *attrs, const char *name,
		 struct te_op **ret_op)
{
	struct te_op *op;
	int r;

	if (!ops || !ret_op)
		return te__fail(-EINVAL, "te_op_create: ops or ret_op is NULL");
	if (!name || !*name)
		return te__fail(-EINVAL, "te_op_create: a %s op needs a name",
				ops->name ? ops->name : "nameless");
	if (ops->size > sizeof(*ops))
		return te__fail(-EINVAL, "op %s: its table is %zu bytes, this library knows %zu",
				name, ops->size, sizeof(*ops));
	op = te__calloc(1, sizeof(*op));
	if (!op)
		return te__fail(-ENOMEM, "op %s: no memory", name);
	atomic_init(&op->refs, 1);
	atomic_init(&op->seq, NULL);
	memcpy(&op->ops, ops, ops->size);
	op->table = ops;
	if (!op->ops.name || !op->ops.infer) {
		r = te__fail(-EINVAL, "op %s: its table lacks a name or infer()", name);
		goto fail;
	}
	if (op->ops.nextra_in < 0 || op->ops.nextra_in > TE_OP_MAX_EXTRA ||
	    op->ops.nextra_out < 0 || op->ops.nextra_out > TE_OP_MAX_EXTRA) {
		r = te__fail(-EINVAL, "op %s: %d extra inputs and %d outputs, at most %d each",
			     name, op->ops.nextra_in, op->ops.nextra_out, TE_OP_MAX_EXTRA);
		goto fail;
	}
	if (op->ops.attrs_nbytes && !attrs) {
		r = te__fail(-EINVAL, "op %s: a %s needs attributes", name, op->ops.name);
		goto fail;
	}
	op->name = te__strdup(name);
	if (op->ops.attrs_nbytes)
		op->attrs = te__malloc(op->ops.attrs_nbytes);
	if (!op->name || (op->ops.attrs_nbytes && !op->attrs)) {
		r = te__fail(-ENOMEM, "op %s: no memory", name);
		goto fail;
	}
	if (op->attrs)
		memcpy(op->attrs, attrs, op->ops.attrs_nbytes);
	if (op->ops.check) {
		r = op->ops.check(op);
		if (r < 0)
			goto fail;
	}
	*ret_op = op;
	return 0;
fail:
	op->ops.destroy = NULL; /* check() did not succeed: there is nothing to destroy */
	te_op_unref(op);
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
	for (int i = 0; i < TE_OP_MAX_EXTRA; i++) {
		te__free(op->give[i]);
		te__free(op->take[i]);
	}
	te__free(op->attrs);
	te__free(op->name);
	te__free(op);
	return NULL;
}

const char *te_op_name(const struct te_op *op)
{
	return op->name;
}

const struct te_op_ops *te_op_table(const struct te_op *op)
{
	return op->table;
}

const void *te_op_attrs(const struct te_op *op)
{
	return op->attrs;
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
		return te__fail(-EINVAL, "op %s: extra %s %d, a %s has %d", op->name, what, index,
				op->ops.name, nslots);
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
