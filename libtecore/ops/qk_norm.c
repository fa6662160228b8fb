/* qk_norm.c - RMSNorm of the queries and keys among packed heads. Saved: rstd of each norm. */
#define TE_LOG_CATEGORY "core/op"
#include "libtecore/ops/common.h"

/* the norms of a row */
struct norms {
	int32_t nq, nk;
	int64_t qcols, kcols;
};

static struct norms norms_of(const struct te_op *op)
{
	const struct te_qk_norm_attrs *a = op->attrs;

	if (a->whole)
		return (struct norms){ 1, 1, (int64_t)a->nheads * a->head_dim,
				       (int64_t)a->nkv * a->head_dim };
	return (struct norms){ a->nheads, a->nkv, a->head_dim, a->head_dim };
}

static int qk_norm_check(const struct te_op *op)
{
	const struct te_qk_norm_attrs *a = op->attrs;

	if (a->nheads < 1 || a->nkv < 1 || a->head_dim < 1)
		return te__fail(-EINVAL, "qk_norm %s: %s is %d", op->name,
				a->nheads < 1 ? "nheads" : a->nkv < 1 ? "nkv" : "head_dim",
				a->nheads < 1 ? a->nheads : a->nkv < 1 ? a->nkv : a->head_dim);
	if (a->whole < 0 || a->whole > 1)
		return te__fail(-EINVAL, "qk_norm %s: whole is %d, not 0 or 1", op->name, a->whole);
	if (!(a->eps >= 0.0f) || !isfinite(a->eps))
		return te__fail(-EINVAL, "qk_norm %s: eps is %g", op->name, (double)a->eps);
	if (a->flags & ~TE_NORM_ZERO_CENTERED)
		return te__fail(-EINVAL, "qk_norm %s: unknown flags 0x%x", op->name,
				a->flags & ~TE_NORM_ZERO_CENTERED);
	return 0;
}

static int qk_norm_weight(const struct te_op *op, int32_t index, struct te_weight_decl *ret)
{
	const struct te_qk_norm_attrs *a = op->attrs;
	const struct norms n = norms_of(op);

	if (index > 1)
		return 0;
	ret->name = index ? "k" : "q";
	ret->ndim = 1;
	ret->shape[0] = index ? n.kcols : n.qcols;
	ret->init = a->flags & TE_NORM_ZERO_CENTERED ? TE_INIT_ZERO : TE_INIT_ONE;
	return 1;
}

static int qk_norm_infer(struct te_op_infer *inf)
{
	const struct te_qk_norm_attrs *a = inf->op->attrs;
	const int64_t rows = te__ops_rows(&inf->in[0]);
	const struct norms n = norms_of(inf->op);
	int r = te__ops_same(inf, 1, ((int64_t)a->nheads + 2 * (int64_t)a->nkv) * a->head_dim);

	if (r < 0)
		return r;
	inf->save_x = TE_FORM_HP;
	inf->dw_x = TE_FORM_HP;
	inf->dw_dy = TE_FORM_HP;
	inf->inplace_fwd = 1;
	inf->inplace_bwd = 1;
	inf->dw_ws_nbytes = te__part_nbytes(rows, n.qcols) + te__part_nbytes(rows, n.kcols);
	return te_infer_save(inf, &(struct te_spec){ TE_DTYPE_FP32, 2, { rows, n.nq + n.nk } });
}

static int qk_norm_forward(const struct te_op_call *c)
{
	const struct te_qk_norm_attrs *a = c->op->attrs;
	const struct norms n = norms_of(c->op);
	const struct te_k_qk_norm_fwd k = {
		.x = te_tensor_data(c->x.hp),
		.gamma_q = te_tensor_data(c->master[0]),
		.gamma_k = te_tensor_data(c->master[1]),
		.y = te_tensor_data(c->y.hp),
		.rstd = te_tensor_data(c->saved[0]),
		.rows = te_tensor_rows(c->x.hp),
		.qcols = n.qcols,
		.kcols = n.kcols,
		.nq = n.nq,
		.nk = n.nk,
		.eps = a->eps,
		.zero_centered = !!(a->flags & TE_NORM_ZERO_CENTERED),
		.dtype = te_tensor_dtype(c->x.hp),
	};

	return TE__LAUNCH(c->stream, QK_NORM_FWD, &k);
}

static int qk_norm_backward(const struct te_op_call *c)
{
	const struct te_qk_norm_attrs *a = c->op->attrs;
	const struct norms n = norms_of(c->op);
	const struct te_k_qk_norm_bwd k = {
		.dy = te_tensor_data(c->dy.hp),
		.x = te_tensor_data(c->x.hp),
		.gamma_q = te_tensor_data(c->master[0]),
		.gamma_k = te_tensor_data(c->master[1]),
		.rstd = te_tensor_data(c->saved[0]),
		.dx = te_tensor_data(c->dx.hp),
		.rows = te_tensor_rows(c->x.hp),
		.qcols = n.qcols,
		.kcols = n.kcols,
		.nq = n.nq,
		.nk = n.nk,
		.zero_centered = !!(a->flags & TE_NORM_ZERO_CENTERED),
		.dtype = te_tensor_dtype(c->x.hp),
	};

	return TE__LAUNCH(c->stream, QK_NORM_BWD, &k);
}

static int qk_norm_dw(const struct te_op_call *c)
{
	const struct norms n = norms_of(c->op);
	const int64_t rows = te_tensor_rows(c->x.hp);
	const struct te_k_qk_norm_dw k = {
		.dy = te_tensor_data(c->dy.hp),
		.x = te_tensor_data(c->x.hp),
		.rstd = te_tensor_data(c->saved[0]),
		.part_q = c->ws,
		.part_k = (float *)((char *)c->ws + te__part_nbytes(rows, n.qcols)),
		.rows = rows,
		.qcols = n.qcols,
		.kcols = n.kcols,
		.nq = n.nq,
		.nk = n.nk,
		.dtype = te_tensor_dtype(c->x.hp),
	};
	int r = TE__LAUNCH(c->stream, QK_NORM_DW, &k);

	if (r >= 0 && c->grad[0])
		r = te__part_sum(c->stream, k.part_q, c->grad[0], rows, n.qcols);
	if (r >= 0 && c->grad[1])
		r = te__part_sum(c->stream, k.part_k, c->grad[1], rows, n.kcols);
	return r;
}

static int qk_norm_describe(const struct te_op *op, char *dst, size_t nbytes)
{
	const struct te_qk_norm_attrs *a = op->attrs;

	return snprintf(dst, nbytes, "heads %d, kv heads %d, head_dim %d, eps %g%s%s", a->nheads,
			a->nkv, a->head_dim, (double)a->eps, a->whole ? ", whole" : "",
			a->flags & TE_NORM_ZERO_CENTERED ? ", zero-centered" : "");
}

static const struct te_op_ops qk_norm_ops = {
	.size = sizeof(struct te_op_ops),
	.name = "qk_norm",
	.attrs_nbytes = sizeof(struct te_qk_norm_attrs),
	.check = qk_norm_check,
	.weight = qk_norm_weight,
	.infer = qk_norm_infer,
	.forward = qk_norm_forward,
	.backward = qk_norm_backward,
	.backward_dw = qk_norm_dw,
	.describe = qk_norm_describe,
	.flags = TE_OP_REPEATS,
};

int te_op_qk_norm(const struct te_qk_norm_attrs *a, const char *name, struct te_op **ret_op)
{
	struct te_qk_norm_attrs attrs = TE_QK_NORM_ATTRS_INIT;
	int r = te__sized_in("te_op_qk_norm", te_qk_norm_attrs, a, &attrs);

	return r ? r : te__op_create(&qk_norm_ops, &attrs, name, ret_op);
}
