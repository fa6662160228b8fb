/* ops.h - the ops of te/comm_op.h, for the fusions that replace them. */
#ifndef TE__COMM_OPS_H
#define TE__COMM_OPS_H

#include <te/comm_op.h>
#include <te/op.h>

struct te__comm_attrs {
	struct te_comm *comm;
	struct te_comm_op_opts o;
};

extern const struct te_op_ops te__op_allreduce, te__op_copy;

static inline const struct te__comm_attrs *te__comm_attrs(const struct te_op *op)
{
	return te_op_attrs(op);
}

#endif
