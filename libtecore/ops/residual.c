/* residual.c - fork: a value for two consumers; add: the sum of two values; swap: the other one. */
#define TE_LOG_CATEGORY "core/op"
#include "libtecore/ops/common.h"

static int fork_infer(struct te_op_infer *inf)
{
	int r = te__ops_check_x(inf, 1, 0);

	if (r < 0)
		return r;
	inf->out[0] = inf->out[1] = inf->in[0];
	inf->out_alias[0] = inf->out_alias[1] = 0;
	inf->inplace_bwd = 1;
	return 0;
}

static int fork_backward(const struct te_op_call *c)
{
	/* there is no second gradient if all takers are outside the planned ops */
	if (!c->dey[0].hp)
		return te_copy(c->stream, te_tensor_data(c->dx.hp), te_tensor_data(c->dy.hp),
			       te_tensor_nbytes(c->dx.hp));
	return te__add(c->stream, c->dy.hp, c->dey[0].hp, c->dx.hp);
}

static const struct te_op_ops fork_ops = {
	.size = sizeof(struct te_op_ops),
	.name = "fork",
	.nextra_out = 1,
	.infer = fork_infer,
	.backward = fork_backward,
};

int te_op_fork(const char *name, struct te_op **ret_op)
{
	return te__op_create(&fork_ops, NULL, name, ret_op);
}

static int add_infer(struct te_op_infer *inf)
{
	char x[128], ex[128];
	int r = te__ops_same(inf, 1, 0);

	if (r < 0)
		return r;
	if (!te__spec_equal(&inf->in[0], &inf->in[1])) {
		te__spec_str(&inf->in[0], x, sizeof(x));
		te__spec_str(&inf->in[1], ex, sizeof(ex));
		return te__fail(-TE_ESHAPE, "add %s: its input is %s, its extra input %s",
				inf->op->name, x, ex);
	}
	inf->dx_alias = 0;
	inf->dex_alias[0] = 0;
	inf->inplace_fwd = 1;
	return 0;
}

static int add_forward(const struct te_op_call *c)
{
	return te__add(c->stream, c->x.hp, c->ex[0].hp, c->y.hp);
}

static const struct te_op_ops add_ops = {
	.size = sizeof(struct te_op_ops),
	.name = "add",
	.nextra_in = 1,
	.infer = add_infer,
	.forward = add_forward,
	.flags = TE_OP_REPEATS_COSTLY,
};

int te_op_add(const char *name, struct te_op **ret_op)
{
	return te__op_create(&add_ops, NULL, name, ret_op);
}

static int swap_infer(struct te_op_infer *inf)
{
	int r = te__ops_check_x(inf, 1, 0);

	if (r < 0)
		return r;
	inf->out[0] = inf->in[1];
	inf->out[1] = inf->in[0];
	inf->out_alias[0] = 1;
	inf->out_alias[1] = 0;
	inf->dx_alias = 1;
	inf->dex_alias[0] = 0;
	return 0;
}

static const struct te_op_ops swap_ops = {
	.size = sizeof(struct te_op_ops),
	.name = "swap",
	.nextra_in = 1,
	.nextra_out = 1,
	.infer = swap_infer,
};

int te_op_swap(const char *name, struct te_op **ret_op)
{
	return te__op_create(&swap_ops, NULL, name, ret_op);
}
