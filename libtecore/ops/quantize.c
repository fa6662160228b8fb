/*
 * quantize.c - casts x, its gradient, or both to FP8 and back. The plan casts, because infer() asks
 * for the FP8 form; the op casts back.
 *
 * The op's type is not named "quantize", which is the name of the step by which plans cast.
 */
#define TE_LOG_CATEGORY "core/op"
#include "libtecore/ops/common.h"

static int quantize_check(const struct te_op *op)
{
	const struct te_quantize_attrs *a = op->attrs;

	if (a->forward != 0 && a->forward != 1)
		return te__fail(-EINVAL, "fake_quantize %s: forward is %d, not 0 or 1", op->name,
				a->forward);
	if (a->backward != 0 && a->backward != 1)
		return te__fail(-EINVAL, "fake_quantize %s: backward is %d, not 0 or 1", op->name,
				a->backward);
	return 0;
}

static int quantize_infer(struct te_op_infer *inf)
{
	const struct te_quantize_attrs *a = inf->op->attrs;
	const int casts = te__recipe_casts(inf->recipe);
	int r = te__ops_same(inf, 1, 0);

	if (r < 0)
		return r;
	if (a->forward && casts)
		inf->fwd_x = TE_FORM_ROW;
	else
		inf->out_alias[0] = 0;
	if (a->backward && casts)
		inf->bwd_dy = TE_FORM_ROW;
	else
		inf->dx_alias = 0;
	return 0;
}

static int quantize_forward(const struct te_op_call *c)
{
	return te_dequantize(c->stream, c->x.q, c->y.hp);
}

static int quantize_backward(const struct te_op_call *c)
{
	return te_dequantize(c->stream, c->dy.q, c->dx.hp);
}

static int quantize_describe(const struct te_op *op, char *dst, size_t nbytes)
{
	const struct te_quantize_attrs *a = op->attrs;

	return snprintf(dst, nbytes, "%s%s%s", a->forward ? "forward" : "",
			a->forward && a->backward ? ", " : "",
			a->backward  ? "backward" :
			!a->forward ? "neither pass" : "");
}

static const struct te_op_ops quantize_ops = {
	.size = sizeof(struct te_op_ops),
	.name = "fake_quantize",
	.attrs_nbytes = sizeof(struct te_quantize_attrs),
	.check = quantize_check,
	.infer = quantize_infer,
	.forward = quantize_forward,
	.backward = quantize_backward,
	.describe = quantize_describe,
};

int te_op_quantize(const struct te_quantize_attrs *a, const char *name, struct te_op **ret_op)
{
	struct te_quantize_attrs attrs = TE_QUANTIZE_ATTRS_INIT;
	int r = te__sized_in("te_op_quantize", te_quantize_attrs, a, &attrs);

	return r ? r : te__op_create(&quantize_ops, &attrs, name, ret_op);
}
