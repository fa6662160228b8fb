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
	int r = te__ops_same(inf, 1, a->width);

	if (r < 0)
		return r;
	inf->save_x = TE_FORM_HP;
	inf->dw_x = TE_FORM_HP;
	inf->dw_dy = TE_FORM_HP;
	for (int i = 0; i < 1 + beta && r >= 0; i++)
		r = te_infer_save(inf, &(struct te_spec){ TE_DTYPE_FP32, 1, { rows } });
	inf->inplace_fwd = 1;
	inf->inplace_bwd = 1;
	inf->dw_ws_nbytes = (size_t)(1 + beta) * te__part_nbytes(rows, a->width);
	return r;
}

/* all that a pass has; forward, mean and rstd are outputs */
static struct te__norm norm_of(const struct te_op_call *c)
{
	const struct te_norm_attrs *a = c->op->attrs;
	const int beta = has_beta(c->op);

	return (struct te__norm){
		.x = c->x.hp,
		.gamma = c->master[0],
		.beta = beta ? c->master[1] : NULL,
		.mean = beta ? c->saved[1] : NULL,
		.rstd = c->saved[0],
		.eps = a->eps,
		.flags = a->flags,
	};
}

void te__ops_norm_fwd(const struct te_op_call *c, struct te_k_norm_fwd *ret)
{
	const struct te__norm n = norm_of(c);

	te__norm_fwd_args(&n, c->y.hp, ret);
}

int te__ops_norm_bwd(const struct te_op_call *c, const struct te_tensor *residual, void *dx,
		     const struct te__quantize *z)
{
	const struct te__norm n = norm_of(c);

	return te__norm_bwd(c->stream, &n, c->dy.hp, residual, dx, z);
}

size_t te__ops_norm_dw_ws(const struct te_op_call *c)
{
	const size_t n = 1 + (size_t)has_beta(c->op);

	return n * te__part_nbytes(te_tensor_rows(c->x.hp), te_tensor_cols(c->x.hp));
}

int te__ops_norm_dw(const struct te_op_call *c, void *ws)
{
	const struct te__norm n = norm_of(c);

	return te__norm_dw(c->stream, &n, c->dy.hp, c->grad[0],
			   has_beta(c->op) ? c->grad[1] : NULL, ws);
}

int te__ops_norm_grads(const struct te_op_call *bwd, const struct te_op_call *dw,
		       const struct te_op_call *dbias, const struct te_tensor *residual, void *dx,
		       const struct te__quantize *z, void *ws)
{
	const struct te__norm n = norm_of(bwd);

	return te__norm_grads(bwd->stream, &n, bwd->dy.hp, residual, dx, dw->grad[0],
			      has_beta(dw->op) ? dw->grad[1] : NULL,
			      dbias ? dbias->grad[0] : NULL, z, ws);
}

static int norm_forward(const struct te_op_call *c)
{
	struct te_k_norm_fwd k;

	te__ops_norm_fwd(c, &k);
	return TE__LAUNCH(c->stream, NORM_FWD, &k);
}

static int norm_backward(const struct te_op_call *c)
{
	return te__ops_norm_bwd(c, NULL, te_tensor_data(c->dx.hp), NULL);
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

#define NORM_OPS(name_)                                      \
	{                                                    \
		.size = sizeof(struct te_op_ops),            \
		.name = name_,                               \
		.attrs_nbytes = sizeof(struct te_norm_attrs), \
		.check = norm_check,                         \
		.weight = norm_weight,                       \
		.infer = norm_infer,                         \
		.forward = norm_forward,                     \
		.backward = norm_backward,                   \
		.backward_dw = norm_dw,                      \
		.describe = norm_describe,                   \
		.flags = TE_OP_REPEATS,                      \
	}
static const struct te_op_ops layernorm_ops = NORM_OPS("layernorm");
static const struct te_op_ops rmsnorm_ops = NORM_OPS("rmsnorm");

int te_op_layernorm(const struct te_norm_attrs *a, const char *name, struct te_op **ret_op)
{
	struct te_norm_attrs attrs = TE_NORM_ATTRS_INIT;
	int r = te__sized_in("te_op_layernorm", te_norm_attrs, a, &attrs);

	return r ? r : te__op_create(&layernorm_ops, &attrs, name, ret_op);
}

int te_op_rmsnorm(const struct te_norm_attrs *a, const char *name, struct te_op **ret_op)
{
	struct te_norm_attrs attrs = TE_NORM_ATTRS_INIT;
	int r = te__sized_in("te_op_rmsnorm", te_norm_attrs, a, &attrs);

	return r ? r : te__op_create(&rmsnorm_ops, &attrs, name, ret_op);
}
