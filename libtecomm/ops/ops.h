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
extern const struct te_op_ops te__op_reduce_scatter, te__op_all_gather;

static inline const struct te__comm_attrs *te__comm_attrs(const struct te_op *op)
{
	return te_op_attrs(op);
}

/* elements of the smaller value for each index of the extents before the axis */
int64_t te__comm_part_nelems(const struct te__comm_attrs *a, const struct te_tensor *small);
/* the calls of a value with nelems in the part of a rank, of which a call has part */
int te__comm_parts(const struct te__comm_attrs *a, struct te_stream *stream, const void *in,
		   void *out, int64_t nelems, int64_t part, enum te_dtype dtype, int gather);

#endif
