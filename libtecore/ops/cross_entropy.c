/* cross_entropy.c - mean softmax cross-entropy. Saved: max and sum of rows, and their count. */
#define TE_LOG_CATEGORY "core/op"
#include "libtecore/ops/common.h"

static int ce_check(const struct te_op *op)
{
	const struct te_cross_entropy_attrs *a = op->attrs;

	if (a->nclasses < 1 || a->nclasses > INT32_MAX)
		return te__fail(-EINVAL, "cross_entropy %s: nclasses is %lld, not 1 to %d",
				op->name, (long long)a->nclasses, INT32_MAX);
	if (a->chunk < 0 || a->chunk % 16)
		return te__fail(-EINVAL, "cross_entropy %s: chunk is %lld, not 0 or a multiple of "
				"16 rows", op->name, (long long)a->chunk);
	if (!isfinite(a->grad_scale) || !a->grad_scale)
		return te__fail(-EINVAL, "cross_entropy %s: grad_scale is %g, not finite and "
				"other than 0", op->name, (double)a->grad_scale);
	return 0;
}

static int ce_infer(struct te_op_infer *inf)
{
	const struct te_cross_entropy_attrs *a = inf->op->attrs;
	const struct te_spec *x = &inf->in[0], *t = &inf->in[1];
	const char *name = inf->op->name;
	int64_t rows;
	int r = te__ops_check_x(inf, 1, 0);

	if (r < 0)
		return r;
	rows = te__ops_rows(x);
	if (te__ops_cols(x) < a->nclasses)
		return te__fail(-TE_ESHAPE,
				"cross_entropy %s: logits are %lld wide, nclasses is %lld", name,
				(long long)te__ops_cols(x), (long long)a->nclasses);
	if (t->dtype != TE_DTYPE_INT32)
		return te__fail(-TE_EDTYPE, "cross_entropy %s: targets are %s, not int32", name,
				te_dtype_name(t->dtype));
	if (te__spec_nelems(t) != rows)
		return te__fail(-TE_ESHAPE,
				"cross_entropy %s: %lld targets for %lld rows of logits", name,
				(long long)te__spec_nelems(t), (long long)rows);
	inf->out[0] = (struct te_spec){ TE_DTYPE_FP32, 1, { 1 } };
	inf->save_x = TE_FORM_HP;
	inf->save_ex[0] = 1;
	inf->bwd_dy = 0; /* the loss is the last op: its gradient is grad_scale */
	inf->inplace_bwd = 1;
	inf->fwd_ws_nbytes = (size_t)rows * sizeof(float);
	r = te_infer_save(inf, &(struct te_spec){ TE_DTYPE_FP32, 2, { 2, rows } });
	return r < 0 ? r : te_infer_save(inf, &inf->out[0]);
}

struct te__ce te__ops_cross_entropy(const struct te_op_call *c)
{
	const struct te_cross_entropy_attrs *a = c->op->attrs;
	const struct te_tensor *x = c->x.hp;

	return (struct te__ce){
		.logits = te__ops_ptr(x),
		.targets = te__ops_ptr(c->ex[0].hp),
		.max_sum = te__ops_ptr(c->saved[0]),
		.row_loss = c->ws,
		.count = te__ops_ptr(c->saved[1]),
		.loss = te__ops_ptr(c->y.hp),
		.rows = te_tensor_nelems(c->ex[0].hp),
		.cols = x ? te_tensor_cols(x) : 0,
		.nclasses = a->nclasses,
		.ignore_index = a->ignore_index,
		.dtype = x ? te_tensor_dtype(x) : 0,
		.grad_scale = a->grad_scale * c->grad_scale,
	};
}

static int ce_forward(const struct te_op_call *c)
{
	const struct te__ce e = te__ops_cross_entropy(c);
	int r = te__ce_fwd(c->stream, &e);

	return r < 0 ? r : te__ce_reduce(c->stream, &e);
}

static int ce_backward(const struct te_op_call *c)
{
	const struct te__ce e = te__ops_cross_entropy(c);

	return te__ce_bwd(c->stream, &e, te_tensor_data(c->dx.hp));
}

int te__ops_loss_both(const struct te_op_call *c, void *dx, float *ws)
{
	struct te__ce e = te__ops_cross_entropy(c);

	e.max_sum = ws;
	e.row_loss = ws + 2 * e.rows;
	e.count = ws + 3 * e.rows;
	return te__ce_whole(c->stream, &e, dx);
}

static int ce_describe(const struct te_op *op, char *dst, size_t nbytes)
{
	const struct te_cross_entropy_attrs *a = op->attrs;

	const int n = snprintf(dst, nbytes, "classes %lld, ignore %d, gradient scale %g",
			       (long long)a->nclasses, a->ignore_index, (double)a->grad_scale);

	return a->chunk && n >= 0 && (size_t)n < nbytes ?
		       n + snprintf(dst + n, nbytes - (size_t)n, ", chunks of %lld rows",
				    (long long)a->chunk) : n;
}

static const struct te_op_ops cross_entropy_ops = {
	.size = sizeof(struct te_op_ops),
	.name = "cross_entropy",
	.attrs_nbytes = sizeof(struct te_cross_entropy_attrs),
	.nextra_in = 1,
	.check = ce_check,
	.infer = ce_infer,
	.forward = ce_forward,
	.backward = ce_backward,
	.describe = ce_describe,
};

int te_op_cross_entropy(const struct te_cross_entropy_attrs *a, const char *name,
			struct te_op **ret_op)
{
	struct te_cross_entropy_attrs attrs = TE_CROSS_ENTROPY_ATTRS_INIT;
	int r = te__sized_in("te_op_cross_entropy", te_cross_entropy_attrs, a, &attrs);

	return r ? r : te__op_create(&cross_entropy_ops, &attrs, name, ret_op);
}
