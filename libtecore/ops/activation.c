/* activation.c - elementwise activations, plain and gated. */
#define TE_LOG_CATEGORY "core/op"
#include "libtecore/ops/common.h"

static const char *const act_names[TE_ACT_COUNT] = {
	[TE_ACT_GELU] = "gelu",	  [TE_ACT_QGELU] = "qgelu", [TE_ACT_RELU] = "relu",
	[TE_ACT_SRELU] = "srelu", [TE_ACT_SILU] = "silu",   [TE_ACT_SIGMOID] = "sigmoid",
	[TE_ACT_GELU_ERF] = "gelu_erf", [TE_ACT_TANH] = "tanh",
};

static int activation_check(const struct te_op *op)
{
	const struct te_act_attrs *a = op->attrs;

	if ((int)a->act < 0 || (int)a->act >= TE_ACT_COUNT)
		return te__fail(-EINVAL, "activation %s: act is %d, not 0 to %d", op->name,
				(int)a->act, TE_ACT_COUNT - 1);
	if (a->gated != 0 && a->gated != 1)
		return te__fail(-EINVAL, "activation %s: gated is %d, not 0 or 1", op->name,
				a->gated);
	return 0;
}

static int activation_infer(struct te_op_infer *inf)
{
	const struct te_act_attrs *a = inf->op->attrs;
	int r = te__ops_same(inf, 1, 0);

	if (r < 0)
		return r;
	if (a->gated) {
		if (te__ops_cols(&inf->in[0]) % 2)
			return te__fail(-TE_ESHAPE,
					"activation %s: gated, but its input is %lld wide, an odd "
					"number",
					inf->op->name, (long long)te__ops_cols(&inf->in[0]));
		inf->out[0].shape[inf->out[0].ndim - 1] /= 2;
	}
	inf->save_x = TE_FORM_HP;
	/* gated, x and y differ in shape */
	inf->inplace_fwd = inf->inplace_bwd = !a->gated;
	return 0;
}

void te__ops_act_fwd(const struct te_op_call *c, struct te_k_act_fwd *ret)
{
	const struct te_act_attrs *a = c->op->attrs;

	te__act_fwd_args(c->x.hp, c->y.hp, a->act, a->gated, ret);
}

void te__ops_act_bwd(const struct te_op_call *c, struct te_k_act_bwd *ret)
{
	const struct te_act_attrs *a = c->op->attrs;

	te__act_bwd_args(c->dy.hp, c->x.hp, c->dx.hp, a->act, a->gated, ret);
}

static int activation_forward(const struct te_op_call *c)
{
	struct te_k_act_fwd k;

	te__ops_act_fwd(c, &k);
	return TE__LAUNCH(c->stream, ACT_FWD, &k);
}

static int activation_backward(const struct te_op_call *c)
{
	struct te_k_act_bwd k;

	te__ops_act_bwd(c, &k);
	return te__act_bwd(c->stream, &k, NULL, NULL);
}

static int activation_describe(const struct te_op *op, char *dst, size_t nbytes)
{
	const struct te_act_attrs *a = op->attrs;

	return snprintf(dst, nbytes, "%s%s", a->gated ? "gated " : "", act_names[a->act]);
}

static const struct te_op_ops activation_ops = {
	.size = sizeof(struct te_op_ops),
	.name = "activation",
	.attrs_nbytes = sizeof(struct te_act_attrs),
	.check = activation_check,
	.infer = activation_infer,
	.forward = activation_forward,
	.backward = activation_backward,
	.describe = activation_describe,
	.flags = TE_OP_REPEATS,
};

int te_op_activation(const struct te_act_attrs *a, const char *name, struct te_op **ret_op)
{
	struct te_act_attrs attrs = TE_ACT_ATTRS_INIT;
	int r = te__sized_in("te_op_activation", te_act_attrs, a, &attrs);

	return r ? r : te__op_create(&activation_ops, &attrs, name, ret_op);
}
