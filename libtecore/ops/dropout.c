/* dropout.c - drops elements in training; nothing is stored, backward draws the same mask. */
#define TE_LOG_CATEGORY "core/op"
#include "libtecore/ops/common.h"

static int dropout_check(const struct te_op *op)
{
	const struct te_dropout_attrs *a = op->attrs;

	int r = te__dropout_check("dropout ", op->name, "p", a->p);

	if (!r)
		r = te__dropout_check_tag("dropout ", op->name, a->tag);
	if (!r && (a->axis < 0 || a->axis >= TE_MAX_DIMS))
		r = te__fail(-EINVAL, "dropout %s: axis is %d, not 0 to %d", op->name, a->axis,
			     TE_MAX_DIMS - 1);
	if (!r && (a->nparts < 0 || a->part < 0 || a->part >= (a->nparts ? a->nparts : 1)))
		r = te__fail(-EINVAL, "dropout %s: part %d of %d", op->name, a->part,
			     a->nparts ? a->nparts : 1);
	return r;
}

static int is_part(const struct te_dropout_attrs *a)
{
	return a->nparts > 1;
}

static int check_part(const struct te_op *op, const struct te_spec *x)
{
	const struct te_dropout_attrs *a = op->attrs;
	int64_t run = 1;

	if (a->axis >= x->ndim)
		return te__fail(-TE_ESHAPE, "dropout %s: axis %d of an input with %d extents",
				op->name, a->axis, x->ndim);
	for (int d = a->axis; d < x->ndim; d++)
		run *= x->shape[d];
	return run % 8 ? te__fail(-TE_ESHAPE, "dropout %s: its input has %lld elements from extent "
				  "%d on, expected a multiple of 8", op->name, (long long)run,
				  a->axis) : 0;
}

static int dropout_infer(struct te_op_infer *inf)
{
	const struct te_dropout_attrs *a = inf->op->attrs;
	int r = te__ops_same(inf, 1, 0);

	if (r < 0)
		return r;
	if (!te__ops_threshold(a->p) || !(inf->flags & TE_INFER_TRAIN)) {
		inf->out_alias[0] = 0;
		inf->dx_alias = 0;
		return 0;
	}
	r = is_part(a) ? check_part(inf->op, &inf->in[0]) : 0;
	if (r)
		return r;
	inf->inplace_fwd = 1;
	inf->inplace_bwd = 1;
	inf->uses_rng = 1;
	return 0;
}

static int drop(const struct te_op_call *c, const struct te_tensor *x, struct te_tensor *y)
{
	const struct te_dropout_attrs *a = c->op->attrs;
	struct te__dropout d = {
		.p = c->flags & TE_CALL_TRAIN ? a->p : 0.0f,
		.tag = a->tag ? (uint32_t)a->tag : c->tag,
		.rng = c->rng,
	};

	if (is_part(a)) {
		d.run = 1;
		for (int k = a->axis; k < te_tensor_ndim(x); k++)
			d.run *= te_tensor_extent(x, k);
		d.stride = d.run * a->nparts;
		d.first = d.run * a->part;
	}
	return te__dropout(c->stream, x, y, &d);
}

static int dropout_forward(const struct te_op_call *c)
{
	return drop(c, c->x.hp, c->y.hp);
}

static int dropout_backward(const struct te_op_call *c)
{
	return drop(c, c->dy.hp, c->dx.hp);
}

static int dropout_describe(const struct te_op *op, char *dst, size_t nbytes)
{
	const struct te_dropout_attrs *a = op->attrs;

	return snprintf(dst, nbytes, "p %g", (double)a->p);
}

static const struct te_op_ops dropout_ops = {
	.size = sizeof(struct te_op_ops),
	.name = "dropout",
	.attrs_nbytes = sizeof(struct te_dropout_attrs),
	.check = dropout_check,
	.infer = dropout_infer,
	.forward = dropout_forward,
	.backward = dropout_backward,
	.describe = dropout_describe,
	.flags = TE_OP_REPEATS_COSTLY,
};

int te_op_dropout(const struct te_dropout_attrs *a, const char *name, struct te_op **ret_op)
{
	struct te_dropout_attrs attrs = TE_DROPOUT_ATTRS_INIT;
	int r = te__sized_in("te_op_dropout", te_dropout_attrs, a, &attrs);

	return r ? r : te__op_create(&dropout_ops, &attrs, name, ret_op);
}
