/* bias.c - y = x + bias. */
#define TE_LOG_CATEGORY "core/op"
#include "libtecore/ops/common.h"

static int bias_check(const struct te_op *op)
{
	const struct te_bias_attrs *a = op->attrs;

	if (a->width < 1)
		return te__fail(-EINVAL, "bias %s: width is %lld", op->name, (long long)a->width);
	return 0;
}

static int bias_weight(const struct te_op *op, int32_t index, struct te_weight_decl *ret)
{
	const struct te_bias_attrs *a = op->attrs;

	if (index)
		return 0;
	ret->name = "bias";
	ret->ndim = 1;
	ret->shape[0] = a->width;
	ret->init = TE_INIT_ZERO;
	ret->flags = TE_WEIGHT_COMPUTE;
	return 1;
}

static int bias_infer(struct te_op_infer *inf)
{
	const struct te_bias_attrs *a = inf->op->attrs;
	int r = te__ops_same(inf, 1, a->width);

	if (r < 0)
		return r;
	/* a copy in the compute dtype: a GEMM with this bias in its epilogue reads that */
	inf->weight_forms[0] = inf->recipe->compute == TE_DTYPE_FP32 ? 0 : TE_FORM_HP;
	inf->inplace_fwd = 1;
	inf->dx_alias = 0;
	inf->dw_dy = TE_FORM_HP;
	inf->dw_ws_nbytes = te__part_nbytes(te__ops_rows(&inf->in[0]), a->width);
	return 0;
}

static int bias_forward(const struct te_op_call *c)
{
	return te__bias_fwd(c->stream, c->x.hp, te__ops_weight(c), c->y.hp);
}

static int bias_dw(const struct te_op_call *c)
{
	return te__bias_dw(c->stream, c->dy.hp, c->grad[0], c->ws);
}

static int bias_describe(const struct te_op *op, char *dst, size_t nbytes)
{
	const struct te_bias_attrs *a = op->attrs;

	return snprintf(dst, nbytes, "width %lld", (long long)a->width);
}

static const struct te_op_ops bias_ops = {
	.size = sizeof(struct te_op_ops),
	.name = "bias",
	.attrs_nbytes = sizeof(struct te_bias_attrs),
	.check = bias_check,
	.weight = bias_weight,
	.infer = bias_infer,
	.forward = bias_forward,
	.backward_dw = bias_dw,
	.describe = bias_describe,
	.flags = TE_OP_REPEATS_COSTLY,
};

int te_op_bias(const struct te_bias_attrs *a, const char *name, struct te_op **ret_op)
{
	struct te_bias_attrs attrs = TE_BIAS_ATTRS_INIT;
	int r = te__sized_in("te_op_bias", te_bias_attrs, a, &attrs);

	return r ? r : te__op_create(&bias_ops, &attrs, name, ret_op);
}
