/* scale.c - y = factor x, with a constant factor. */
#define TE_LOG_CATEGORY "core/op"
#include "libtecore/ops/common.h"

static int scale_check(const struct te_op *op)
{
	const struct te_scale_attrs *a = op->attrs;

	if (!isfinite(a->factor))
		return te__fail(-EINVAL, "scale %s: factor is %g", op->name, (double)a->factor);
	return 0;
}

static int scale_infer(struct te_op_infer *inf)
{
	int r = te__ops_same(inf, 1, 0);

	if (r < 0)
		return r;
	inf->inplace_fwd = 1;
	inf->inplace_bwd = 1;
	return 0;
}

static int scale(const struct te_op_call *c, const struct te_tensor *x, struct te_tensor *y)
{
	const struct te_k_scaled k = {
		.x = te_tensor_data(x),
		.y = te_tensor_data(y),
		.n = te_tensor_nelems(x),
		.factor = te__ops_factor(c),
		.dtype = te_tensor_dtype(x),
	};

	return TE__LAUNCH(c->stream, SCALED, &k);
}

float te__ops_factor(const struct te_op_call *c)
{
	const struct te_scale_attrs *a = c->op->attrs;

	return a->factor;
}

static int scale_forward(const struct te_op_call *c)
{
	return scale(c, c->x.hp, c->y.hp);
}

static int scale_backward(const struct te_op_call *c)
{
	return scale(c, c->dy.hp, c->dx.hp);
}

static int scale_describe(const struct te_op *op, char *dst, size_t nbytes)
{
	const struct te_scale_attrs *a = op->attrs;

	return snprintf(dst, nbytes, "factor %g", (double)a->factor);
}

static const struct te_op_ops scale_ops = {
	.size = sizeof(struct te_op_ops),
	.name = "scale",
	.attrs_nbytes = sizeof(struct te_scale_attrs),
	.check = scale_check,
	.infer = scale_infer,
	.forward = scale_forward,
	.backward = scale_backward,
	.describe = scale_describe,
	.flags = TE_OP_REPEATS_COSTLY,
};

int te_op_scale(const struct te_scale_attrs *a, const char *name, struct te_op **ret_op)
{
	struct te_scale_attrs attrs = TE_SCALE_ATTRS_INIT;
	int r = te__sized_in("te_op_scale", te_scale_attrs, a, &attrs);

	return r ? r : te__op_create(&scale_ops, &attrs, name, ret_op);
}
