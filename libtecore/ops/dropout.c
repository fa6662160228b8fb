/* dropout.c - drops elements in training; nothing is stored, backward draws the same mask. */
#define TE_LOG_CATEGORY "core/op"
#include "libtecore/ops/common.h"

static int dropout_check(const struct te_op *op)
{
	const struct te_dropout_attrs *a = op->attrs;

	return te__dropout_check("dropout ", op->name, "p", a->p);
}

static int dropout_infer(struct te_op_infer *inf)
{
	const struct te_dropout_attrs *a = inf->op->attrs;
	int r = te__ops_check_x(inf, 1, 0);

	if (r < 0)
		return r;
	te__ops_same(inf);
	if (!te__ops_threshold(a->p) || !(inf->flags & TE_INFER_TRAIN)) {
		inf->out_alias[0] = 0;
		inf->dx_alias = 0;
		return 0;
	}
	inf->inplace_fwd = 1;
	inf->inplace_bwd = 1;
	inf->uses_rng = 1;
	return 0;
}

static int drop(const struct te_op_call *c, const struct te_tensor *x, struct te_tensor *y)
{
	const struct te_dropout_attrs *a = c->op->attrs;

	return te__dropout(c->stream, x, y, c->flags & TE_CALL_TRAIN ? a->p : 0.0f, c->tag,
			   &c->rng);
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
};

int te_op_dropout(const struct te_dropout_attrs *a, const char *name, struct te_op **ret_op)
{
	struct te_dropout_attrs attrs = TE_DROPOUT_ATTRS_INIT;
	int r = te__sized_in("te_op_dropout", te_dropout_attrs, a, &attrs);

	return r ? r : te_op_create(&dropout_ops, &attrs, name, ret_op);
}
