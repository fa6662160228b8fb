/* reshape.c - the elements of x, in the same order, with other extents. */
#define TE_LOG_CATEGORY "core/op"
#include "libtecore/ops/common.h"

static int reshape_check(const struct te_op *op)
{
	const struct te_reshape_attrs *a = op->attrs;
	int ninferred = 0;

	if (a->ndim < 0 || a->ndim > TE_MAX_DIMS)
		return te__fail(-EINVAL, "reshape %s: ndim is %d, not 0 to %d", op->name, a->ndim,
				TE_MAX_DIMS);
	for (int i = 0; i < a->ndim; i++) {
		ninferred += a->shape[i] == -1;
		if (a->shape[i] < 1 && a->shape[i] != -1)
			return te__fail(-EINVAL, "reshape %s: extent %d is %lld", op->name, i,
					(long long)a->shape[i]);
	}
	if (ninferred > 1)
		return te__fail(-EINVAL, "reshape %s: %d extents are -1, at most one can be",
				op->name, ninferred);
	return 0;
}

static int does_not_fit(const struct te_op_infer *inf, const struct te_spec *y)
{
	char from[128], to[128];

	te__spec_str(&inf->in[0], from, sizeof(from));
	te__spec_str(y, to, sizeof(to));
	return te__fail(-TE_ESHAPE, "reshape %s: its input is %s, which is not the size of %s",
			inf->op->name, from, to);
}

static int reshape_infer(struct te_op_infer *inf)
{
	const struct te_reshape_attrs *a = inf->op->attrs;
	const int64_t nelems = te__spec_nelems(&inf->in[0]);
	struct te_spec y = { inf->in[0].dtype, a->ndim ? a->ndim : 1, { 0 } };
	int r = te__ops_check_x(inf, 1, 0), inferred = a->ndim ? -1 : 0;
	int64_t n = 1;

	if (r < 0)
		return r;
	for (int i = 0; i < a->ndim; i++) {
		y.shape[i] = a->shape[i];
		if (a->shape[i] == -1)
			inferred = i;
		else if (a->shape[i] > nelems / n)
			return does_not_fit(inf, &(struct te_spec){ y.dtype, i + 1, {
				y.shape[0], y.shape[1], y.shape[2], y.shape[3], y.shape[4],
				y.shape[5], y.shape[6], y.shape[7] } });
		else
			n *= a->shape[i];
	}
	if (inferred >= 0)
		y.shape[inferred] = nelems / n;
	if (inferred >= 0 ? nelems % n : nelems != n)
		return does_not_fit(inf, &y);
	inf->out[0] = y;
	inf->inplace_fwd = 1;
	inf->inplace_bwd = 1;
	return 0;
}

/* in place if the plan has given both the same memory */
static int move(const struct te_op_call *c, const struct te_tensor *x, struct te_tensor *y)
{
	if (te_tensor_data(x) == te_tensor_data(y))
		return 0;
	return te_copy(c->stream, te_tensor_data(y), te_tensor_data(x), te_tensor_nbytes(x));
}

static int reshape_forward(const struct te_op_call *c)
{
	return move(c, c->x.hp, c->y.hp);
}

static int reshape_backward(const struct te_op_call *c)
{
	return move(c, c->dy.hp, c->dx.hp);
}

static int reshape_describe(const struct te_op *op, char *dst, size_t nbytes)
{
	const struct te_reshape_attrs *a = op->attrs;
	char shape[TE_MAX_DIMS * 24];
	size_t n = 0;

	for (int i = 0; i < a->ndim; i++)
		n += (size_t)snprintf(shape + n, sizeof(shape) - n, "%s%lld", i ? "," : "",
				      (long long)a->shape[i]);
	return snprintf(dst, nbytes, "[%s]", shape);
}

static const struct te_op_ops reshape_ops = {
	.size = sizeof(struct te_op_ops),
	.name = "reshape",
	.attrs_nbytes = sizeof(struct te_reshape_attrs),
	.check = reshape_check,
	.infer = reshape_infer,
	.forward = reshape_forward,
	.backward = reshape_backward,
	.describe = reshape_describe,
	.flags = TE_OP_REPEATS_COSTLY,
};

int te_op_reshape(const struct te_reshape_attrs *a, const char *name, struct te_op **ret_op)
{
	struct te_reshape_attrs attrs = TE_RESHAPE_ATTRS_INIT;
	int r = te__sized_in("te_op_reshape", te_reshape_attrs, a, &attrs);

	return r ? r : te__op_create(&reshape_ops, &attrs, name, ret_op);
}
