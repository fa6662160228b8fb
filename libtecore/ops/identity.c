/* identity.c - y is x: a name in a sequence, at which plans can start and stop. */
#define TE_LOG_CATEGORY "core/op"
#include "libtecore/ops/common.h"

static int identity_infer(struct te_op_infer *inf)
{
	int r = te__ops_same(inf, 1, 0);

	if (r < 0)
		return r;
	inf->out_alias[0] = 0;
	inf->dx_alias = 0;
	return 0;
}

static const struct te_op_ops identity_ops = {
	.size = sizeof(struct te_op_ops),
	.name = "identity",
	.infer = identity_infer,
};

int te_op_identity(const char *name, struct te_op **ret_op)
{
	return te__op_create(&identity_ops, NULL, name, ret_op);
}
