/* norm.c - LayerNorm and RMSNorm. Saved: rstd, and for LayerNorm the mean. */
#define TE_LOG_CATEGORY "core/op"
#include "libtecore/ops/common.h"

static int has_beta(const struct te_op *op)
{
	return !strcmp(op->ops.name, "layernorm");
}

static int norm_check(const struct te_op *op)
{
	const struct te_norm_attrs *a = op->attrs;

	if (a->width < 1)
		return te__fail(-EINVAL, "%s %s: width is %lld", op->ops.name, op->name,
				(long long)a->width);
	if (!(a->eps >= 0.0f) || !isfinite(a->eps))
		return te__fail(-EINVAL, "%s %s: eps is %g", op->ops.name, op->name,
				(double)a->eps);
	if (a->flags & ~TE_NORM_ZERO_CENTERED)
		return te__fail(-EINVAL, "%s %s: unknown flags 0x%x", op->ops.name, op->name,
				a->flags & ~TE_NORM_ZERO_CENTERED);
	return 0;
}

static int norm_weight(const struct te_op *op, int32_t index, struct te_weight_decl *ret)
{
	const struct te_norm_attrs *a = op->attrs;

	if (index > has_beta(op))
		return 0;
	ret->name = index ? "bias" : "weight";
	ret->ndim = 1;
	ret->shape[0] = a->width;
	ret->init = index || a->flags & TE_NORM_ZERO_CENTERED ? TE_INIT_ZERO : TE_INIT_ONE;
	return 1;
}

static int norm_infer(struct te_op_infer *inf)
{
	const struct te_norm_attrs *a = inf->op->attrs;
	const int64_t rows = te__ops_rows(&inf->in[0]);
	const int beta = has_beta(inf->op);
	int r = te__ops_check_x(inf, 1, a->width);

	if (r < 0)
		return r;
	te__ops_same(inf);
	inf->save_x = TE_FORM_HP;
	inf->dw_x = TE_FORM_HP;
	inf->dw_dy = TE_FORM_HP;
	for (int i = 0; i < 1 + beta && r >= 0; i++)
		r = te_infer_save(inf, &(struct te_spec){ TE_DTYPE_FP32, 1, { rows } });
	inf->inplace_fwd = 1;
	inf->inplace_bwd = 1;
	inf->dw_ws_nbytes = (size_t)(1 + beta) * te__ops_part_nbytes(rows, a->width);
	return r;
}

void te__ops_norm_fwd(const struct te_op_call *c, struct te_k_norm_fwd *ret)
{
	const struct te_norm_attrs *a = c->op->attrs;
	const int beta = has_beta(c->op);

	*ret = (struct te_k_norm_fwd){
		.x = te_tensor_data(c->x.hp),
		.gamma = te_tensor_data(c->master[0]),
		.beta = beta ? te_tensor_data(c->master[1]) : NULL,
		.y = te__ops_ptr(c->y.hp),
		.mean = beta ? te_tensor_data(c->saved[1]) : NULL,
		.rstd = te_tensor_data(c->saved[0]),
		.rows = te_tensor_rows(c->x.hp),
		.cols = te_tensor_cols(c->x.hp),
		.eps = a->eps,
		.zero_centered = !!(a->flags & TE_NORM_ZERO_CENTERED),
		.dtype = te_tensor_dtype(c->x.hp),
	};
}

void te__ops_norm_bwd(const struct te_op_call *c, struct te_k_norm_bwd *ret)
{
	const struct te_norm_attrs *a = c->op->attrs;

	*ret = (struct te_k_norm_bwd){
		.dy = te_tensor_data(c->dy.hp),
		.x = te_tensor_data(c->x.hp),
		.gamma = te_tensor_data(c->master[0]),
		.mean = has_beta(c->op) ? te_tensor_data(c->saved[1]) : NULL,
		.rstd = te_tensor_data(c->saved[0]),
		.dx = te__ops_ptr(c->dx.hp),
		.rows = te_tensor_rows(c->x.hp),
		.cols = te_tensor_cols(c->x.hp),
		.zero_centered = !!(a->flags & TE_NORM_ZERO_CENTERED),
		.dtype = te_tensor_dtype(c->x.hp),
	};
}

int te__ops_norm_dw(const struct te_op_call *c, void *ws)
{
	const int beta = has_beta(c->op);
	const int64_t rows = te_tensor_rows(c->x.hp), cols = te_tensor_cols(c->x.hp);
	float *part_beta = (float *)((char *)ws + te__ops_part_nbytes(rows, cols));
	const struct te_k_norm_dw k = {
		.dy = te_tensor_data(c->dy.hp),
		.x = te_tensor_data(c->x.hp),
		.mean = beta ? te_tensor_data(c->saved[1]) : NULL,
		.rstd = te_tensor_data(c->saved[0]),
		.part_gamma = ws,
		.part_beta = beta ? part_beta : NULL,
		.rows = rows,
		.cols = cols,
		.dtype = te_tensor_dtype(c->x.hp),
	};
	int r = TE__LAUNCH(c->stream, NORM_DW, &k);

	if (r >= 0)
		r = te__ops_part_sum(c, 0, k.part_gamma, rows, cols);
	if (r >= 0 && beta)
		r = te__ops_part_sum(c, 1, part_beta, rows, cols);
	return r;
}

static int norm_forward(const struct te_op_call *c)
{
	struct te_k_norm_fwd k;

	te__ops_norm_fwd(c, &k);
	return TE__LAUNCH(c->stream, NORM_FWD, &k);
}

static int norm_backward(const struct te_op_call *c)
{
	struct te_k_norm_bwd k;

	te__ops_norm_bwd(c, &k);
	return TE__LAUNCH(c->stream, NORM_BWD, &k);
}

static int norm_dw(const struct te_op_call *c)
{
	return te__ops_norm_dw(c, c->ws);
}

static int norm_describe(const struct te_op *op, char *dst, size_t nbytes)
{
	const struct te_norm_attrs *a = op->attrs;

	return snprintf(dst, nbytes, "width %lld, eps %g%s", (long long)a->width, (double)a->eps,
			a->flags & TE_NORM_ZERO_CENTERED ? ", zero-centered" : "");
}

static const struct te_op_ops layernorm_ops = {
	.size = sizeof(struct te_op_ops),
	.name = "layernorm",
	.attrs_nbytes = sizeof(struct te_norm_attrs),
	.check = norm_check,
	.weight = norm_weight,
	.infer = norm_infer,
	.forward = norm_forward,
	.backward = norm_backward,
	.backward_dw = norm_dw,
	.describe = norm_describe,
};

static const struct te_op_ops rmsnorm_ops = {
	.size = sizeof(struct te_op_ops),
	.name = "rmsnorm",
	.attrs_nbytes = sizeof(struct te_norm_attrs),
	.check = norm_check,
	.weight = norm_weight,
	.infer = norm_infer,
	.forward = norm_forward,
	.backward = norm_backward,
	.backward_dw = norm_dw,
	.describe = norm_describe,
};

int te_op_layernorm(const struct te_norm_attrs *a, const char *name, struct te_op **ret_op)
{
	struct te_norm_attrs attrs = TE_NORM_ATTRS_INIT;
	int r = te__sized_in("te_op_layernorm", te_norm_attrs, a, &attrs);

	return r ? r : te_op_create(&layernorm_ops, &attrs, name, ret_op);
}

int te_op_rmsnorm(const struct te_norm_attrs *a, const char *name, struct te_op **ret_op)
{
	struct te_norm_attrs attrs = TE_NORM_ATTRS_INIT;
	int r = te__sized_in("te_op_rmsnorm", te_norm_attrs, a, &attrs);

	return r ? r : te_op_create(&rmsnorm_ops, &attrs, name, ret_op);
}
