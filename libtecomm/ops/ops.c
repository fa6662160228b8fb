/* ops.c - te_comm_op_allreduce(3) and its relatives: ops whose passes are collective. */
#define TE_LOG_CATEGORY "comm"
#include "config.h"

#include <errno.h>
#include <stdio.h>

#include <te/tensor.h>

#include "libtecomm/collective/comm.h"
#include "libtecomm/ops/ops.h"

static int nranks_of(const struct te_op *op)
{
	return te_comm_nranks(te__comm_attrs(op)->comm);
}

static int is_gather(const struct te_op *op)
{
	return te_op_table(op) == &te__op_all_gather;
}

/* ---- calls ---- */

static struct te_comm_call_opts call_opts(const struct te__comm_attrs *a)
{
	struct te_comm_call_opts o = TE_COMM_CALL_OPTS_INIT;

	o.algorithm = a->o.algorithm;
	o.max_blocks = a->o.max_blocks;
	return o;
}

static int sum(const struct te_op_call *c, const struct te_tensor *in, struct te_tensor *out)
{
	const struct te__comm_attrs *a = te__comm_attrs(c->op);
	const struct te_comm_call_opts o = call_opts(a);

	return te_comm_allreduce(a->comm, c->stream, te_tensor_data(in), te_tensor_data(out),
				 te_tensor_nelems(in), te_tensor_dtype(in), TE_COMM_SUM, &o);
}

int64_t te__comm_part_nelems(const struct te__comm_attrs *a, const struct te_tensor *small)
{
	int64_t n = 1;

	for (int d = a->o.axis; d < te_tensor_ndim(small); d++)
		n *= te_tensor_extent(small, d);
	return n;
}

int te__comm_parts(const struct te__comm_attrs *a, struct te_stream *stream, const void *in,
		   void *out, int64_t nelems, int64_t part, enum te_dtype dtype, int gather)
{
	const struct te_comm_call_opts o = call_opts(a);
	const size_t nbytes = (size_t)part * te_dtype_nbytes(dtype);
	const size_t n = (size_t)te_comm_nranks(a->comm);
	const char *from = in;
	char *to = out;
	int r = 0;

	for (int64_t i = 0; i < nelems / part && !r; i++) {
		if (gather)
			r = te_comm_all_gather(a->comm, stream, from, to, part, dtype, &o);
		else
			r = te_comm_reduce_scatter(a->comm, stream, from, to, part, dtype,
						   TE_COMM_SUM, &o);
		from += gather ? nbytes : n * nbytes;
		to += gather ? n * nbytes : nbytes;
	}
	return r;
}

static int scatter_or_gather(const struct te_op_call *c, const struct te_tensor *in,
			     struct te_tensor *out, int gather)
{
	const struct te__comm_attrs *a = te__comm_attrs(c->op);
	const struct te_tensor *small = gather ? in : out;

	return te__comm_parts(a, c->stream, te_tensor_data(in), te_tensor_data(out),
			      te_tensor_nelems(small), te__comm_part_nelems(a, small),
			      te_tensor_dtype(in), gather);
}

/* ---- common to all ops ---- */

/* the op holds the communicator once it has succeeded */
static int comm_check(const struct te_op *op)
{
	te_comm_ref(te__comm_attrs(op)->comm);
	return 0;
}

static void comm_destroy(struct te_op *op)
{
	te_comm_unref(te__comm_attrs(op)->comm);
}

static int comm_describe(const struct te_op *op, char *dst, size_t nbytes)
{
	const struct te__comm_attrs *a = te__comm_attrs(op);

	return snprintf(dst, nbytes, "%d ranks of %s", te_comm_nranks(a->comm), a->comm->name);
}

static int parts_describe(const struct te_op *op, char *dst, size_t nbytes)
{
	const struct te__comm_attrs *a = te__comm_attrs(op);

	return snprintf(dst, nbytes, "%d ranks of %s, axis %d", te_comm_nranks(a->comm),
			a->comm->name, a->o.axis);
}

/* a table with a name, and what is not common to all */
#define COMM_OPS(name_, ...)                                   \
	{                                                      \
		.size = sizeof(struct te_op_ops),              \
		.name = name_,                                 \
		.attrs_nbytes = sizeof(struct te__comm_attrs), \
		.check = comm_check,                           \
		.destroy = comm_destroy,                       \
		__VA_ARGS__                                    \
	}

/* y is as x; with one rank it is x, and dx is dy */
static int infer_same(struct te_op_infer *inf)
{
	const char *kind = te_op_table(inf->op)->name, *name = te_op_name(inf->op);
	const struct te_spec *x = &inf->in[0];

	if (x->dtype != inf->recipe->compute)
		return te__fail(-TE_EDTYPE, "%s %s: its input is %s, the recipe computes in %s",
				kind, name, te_dtype_name(x->dtype),
				te_dtype_name(inf->recipe->compute));
	inf->out[0] = *x;
	if (nranks_of(inf->op) == 1) {
		inf->out_alias[0] = 0;
		inf->dx_alias = 0;
	}
	return 0;
}

/* ---- allreduce, copy ---- */

static int allreduce_infer(struct te_op_infer *inf)
{
	inf->dx_alias = 0;
	inf->inplace_fwd = 1;
	return infer_same(inf);
}

static int allreduce_forward(const struct te_op_call *c)
{
	return sum(c, c->x.hp, c->y.hp);
}

const struct te_op_ops te__op_allreduce =
	COMM_OPS("allreduce", .infer = allreduce_infer, .forward = allreduce_forward,
		 .describe = comm_describe);

static int copy_infer(struct te_op_infer *inf)
{
	inf->out_alias[0] = 0;
	inf->inplace_bwd = 1;
	return infer_same(inf);
}

static int copy_backward(const struct te_op_call *c)
{
	return sum(c, c->dy.hp, c->dx.hp);
}

const struct te_op_ops te__op_copy =
	COMM_OPS("copy", .infer = copy_infer, .backward = copy_backward, .describe = comm_describe);

/* ---- reduce_scatter, all_gather ---- */

/* the shape of y: the extent at the axis becomes n times larger or smaller */
static int parts_infer(struct te_op_infer *inf)
{
	const char *kind = te_op_table(inf->op)->name, *name = te_op_name(inf->op);
	const int axis = te__comm_attrs(inf->op)->o.axis, n = nranks_of(inf->op);
	const int gather = is_gather(inf->op);
	const struct te_spec *x = &inf->in[0];
	int64_t *extent = &inf->out[0].shape[axis];
	int r = infer_same(inf);

	if (r)
		return r;
	if (axis >= x->ndim)
		return te__fail(-TE_ESHAPE, "%s %s: axis %d of an input with %d extents", kind,
				name, axis, x->ndim);
	if (!gather && *extent % n)
		return te__fail(-TE_ESHAPE, "%s %s: extent %d of its input is %lld, not divisible "
				"by %d ranks", kind, name, axis, (long long)*extent, n);
	if (gather && __builtin_mul_overflow(*extent, (int64_t)n, extent))
		return te__fail(-TE_ESHAPE, "%s %s: extent %d of its input is %lld, too large for "
				"%d ranks", kind, name, axis, (long long)x->shape[axis], n);
	if (!gather)
		*extent /= n;
	return 0;
}

static int parts_forward(const struct te_op_call *c)
{
	return scatter_or_gather(c, c->x.hp, c->y.hp, is_gather(c->op));
}

static int parts_backward(const struct te_op_call *c)
{
	return scatter_or_gather(c, c->dy.hp, c->dx.hp, !is_gather(c->op));
}

#define PARTS                                                  \
	.infer = parts_infer, .forward = parts_forward,        \
	.backward = parts_backward, .describe = parts_describe

const struct te_op_ops te__op_reduce_scatter = COMM_OPS("reduce_scatter", PARTS);
const struct te_op_ops te__op_all_gather = COMM_OPS("all_gather", PARTS);

/* ---- constructors ---- */

static int create(const char *fn, const struct te_op_ops *ops, struct te_comm *comm,
		  const struct te_comm_op_opts *opts, const char *name, struct te_op **ret_op)
{
	struct te__comm_attrs a = { comm, TE_COMM_OP_OPTS_INIT };
	int r = opts ? te__sized_in(fn, te_comm_op_opts, opts, &a.o) : 0;

	if (r)
		return r;
	if (!comm)
		return te__fail(-EINVAL, "%s: comm is NULL", fn);
	if (!te_comm_algorithm_name(a.o.algorithm))
		return te__fail(-EINVAL, "%s: algorithm %d is unknown", fn, (int)a.o.algorithm);
	if (a.o.max_blocks < 0)
		return te__fail(-EINVAL, "%s: max_blocks is %d", fn, a.o.max_blocks);
	if (a.o.axis < 0 || a.o.axis >= TE_MAX_DIMS)
		return te__fail(-EINVAL, "%s: axis is %d, not 0 to %d", fn, a.o.axis,
				TE_MAX_DIMS - 1);
	return te__op_create(ops, &a, name, ret_op);
}

int te_comm_op_allreduce(struct te_comm *comm, const struct te_comm_op_opts *opts,
			 const char *name, struct te_op **ret_op)
{
	return create("te_comm_op_allreduce", &te__op_allreduce, comm, opts, name, ret_op);
}

int te_comm_op_copy(struct te_comm *comm, const struct te_comm_op_opts *opts, const char *name,
		    struct te_op **ret_op)
{
	return create("te_comm_op_copy", &te__op_copy, comm, opts, name, ret_op);
}

int te_comm_op_reduce_scatter(struct te_comm *comm, const struct te_comm_op_opts *opts,
			      const char *name, struct te_op **ret_op)
{
	return create("te_comm_op_reduce_scatter", &te__op_reduce_scatter, comm, opts, name,
		      ret_op);
}

int te_comm_op_all_gather(struct te_comm *comm, const struct te_comm_op_opts *opts,
			  const char *name, struct te_op **ret_op)
{
	return create("te_comm_op_all_gather", &te__op_all_gather, comm, opts, name, ret_op);
}
