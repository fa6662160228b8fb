/* embedding.c - token rows, plus position rows if max_pos > 0. */
#define TE_LOG_CATEGORY "core/op"
#include "libtecore/ops/common.h"

static int embedding_check(const struct te_op *op)
{
	const struct te_embedding_attrs *a = op->attrs;

	if (a->vocab < 1 || a->vocab > INT32_MAX)
		return te__fail(-EINVAL, "embedding %s: vocab is %lld, not 1 to %d", op->name,
				(long long)a->vocab, INT32_MAX);
	if (a->first < 0 || a->first > INT32_MAX - a->vocab)
		return te__fail(-EINVAL, "embedding %s: first is %lld, not 0 to %lld", op->name,
				(long long)a->first, (long long)(INT32_MAX - a->vocab));
	if (a->ntokens && a->ntokens < a->first + a->vocab)
		return te__fail(-EINVAL, "embedding %s: ntokens is %lld, but the table has the "
				"tokens %lld to %lld", op->name, (long long)a->ntokens,
				(long long)a->first, (long long)(a->first + a->vocab - 1));
	if (a->width < 1)
		return te__fail(-EINVAL, "embedding %s: width is %lld", op->name,
				(long long)a->width);
	if (a->max_pos < 0)
		return te__fail(-EINVAL, "embedding %s: max_pos is %lld", op->name,
				(long long)a->max_pos);
	if (!(a->init_std >= 0.0f) || !isfinite(a->init_std))
		return te__fail(-EINVAL, "embedding %s: init_std is %g", op->name,
				(double)a->init_std);
	return 0;
}

static int embedding_weight(const struct te_op *op, int32_t index, struct te_weight_decl *ret)
{
	const struct te_embedding_attrs *a = op->attrs;

	if (index > (a->max_pos > 0))
		return 0;
	ret->name = index ? "position" : "weight";
	ret->ndim = 2;
	ret->shape[0] = index ? a->max_pos : a->vocab;
	ret->shape[1] = a->width;
	ret->init = TE_INIT_NORMAL;
	ret->init_std = a->init_std;
	ret->flags = TE_WEIGHT_DECAY | TE_WEIGHT_STORED;
	return 1;
}

static int embedding_infer(struct te_op_infer *inf)
{
	const struct te_embedding_attrs *a = inf->op->attrs;
	const struct te_spec *x = &inf->in[0];
	struct te_spec *y = &inf->out[0];

	if (x->dtype != TE_DTYPE_INT32)
		return te__fail(-TE_EDTYPE, "embedding %s: tokens are %s, not int32", inf->op->name,
				te_dtype_name(x->dtype));
	if (x->ndim >= TE_MAX_DIMS)
		return te__fail(-TE_ESHAPE, "embedding %s: tokens have %d extents, at most %d",
				inf->op->name, x->ndim, TE_MAX_DIMS - 1);
	if (a->max_pos && te__ops_cols(x) > a->max_pos)
		return te__fail(-TE_ESHAPE, "embedding %s: %lld tokens in a row, max_pos is %lld",
				inf->op->name, (long long)te__ops_cols(x), (long long)a->max_pos);
	*y = *x;
	y->dtype = inf->recipe->compute;
	y->shape[y->ndim++] = a->width;
	inf->no_dx = 1;
	inf->dw_x = TE_FORM_HP;
	inf->dw_dy = TE_FORM_HP;
	return 0;
}

static int embedding_forward(const struct te_op_call *c)
{
	const struct te_embedding_attrs *a = c->op->attrs;
	const struct te__decode *d = c->state;

	return te__embedding_fwd(c->stream, d ? d->token : c->x.hp, c->master[0],
				 a->max_pos ? c->master[1] : NULL, c->remainder,
				 d ? d->cache.position : NULL, a->first,
				 a->ntokens ? a->ntokens : a->first + a->vocab, c->y.hp);
}

static int embedding_dw(const struct te_op_call *c)
{
	const struct te_embedding_attrs *a = c->op->attrs;

	return te__embedding_dw(c->stream, c->dy.hp, c->x.hp, c->grad[0],
				a->max_pos ? c->grad[1] : NULL, a->first);
}

static int embedding_describe(const struct te_op *op, char *dst, size_t nbytes)
{
	const struct te_embedding_attrs *a = op->attrs;

	if (a->first)
		return snprintf(dst, nbytes, "vocab %lld from %lld, width %lld, positions %lld",
				(long long)a->vocab, (long long)a->first, (long long)a->width,
				(long long)a->max_pos);
	return snprintf(dst, nbytes, "vocab %lld, width %lld, positions %lld", (long long)a->vocab,
			(long long)a->width, (long long)a->max_pos);
}

static const struct te_op_ops embedding_ops = {
	.size = sizeof(struct te_op_ops),
	.name = "embedding",
	.attrs_nbytes = sizeof(struct te_embedding_attrs),
	.check = embedding_check,
	.weight = embedding_weight,
	.infer = embedding_infer,
	.forward = embedding_forward,
	.backward_dw = embedding_dw,
	.describe = embedding_describe,
};

int te_op_embedding(const struct te_embedding_attrs *a, const char *name, struct te_op **ret_op)
{
	struct te_embedding_attrs attrs = TE_EMBEDDING_ATTRS_INIT;
	int r = te__sized_in("te_op_embedding", te_embedding_attrs, a, &attrs);

	return r ? r : te__op_create(&embedding_ops, &attrs, name, ret_op);
}
