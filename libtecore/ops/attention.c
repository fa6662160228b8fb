/* attention.c - causal attention over packed heads. Saved: the rows' log-sum-exp. */
#define TE_LOG_CATEGORY "core/op"
#include "libtecore/ops/common.h"

/* te_philox_attn() numbers groups of 8 keys in 13 bits */
#define MAX_DROPOUT_SEQLEN (8 << 13)

static int attention_check(const struct te_op *op)
{
	const struct te_attention_attrs *a = op->attrs;

	if (a->nheads < 1)
		return te__fail(-EINVAL, "attention %s: nheads is %d", op->name, a->nheads);
	if (a->nkv < 1 || a->nheads % a->nkv)
		return te__fail(-EINVAL, "attention %s: nheads %d is no multiple of nkv %d",
				op->name, a->nheads, a->nkv);
	if (a->head_dim < 1 || a->head_dim > TE_K_ATTN_MAX_HEAD_DIM)
		return te__fail(-EINVAL, "attention %s: head_dim is %d, not 1 to %d", op->name,
				a->head_dim, TE_K_ATTN_MAX_HEAD_DIM);
	if (!(a->scale >= 0.0f) || !isfinite(a->scale))
		return te__fail(-EINVAL, "attention %s: scale is %g", op->name, (double)a->scale);
	if (!(a->dropout >= 0.0f) || te__ops_threshold(a->dropout) > 65535)
		return te__fail(-EINVAL, "attention %s: dropout is %g, not in [0,1)", op->name,
				(double)a->dropout);
	return 0;
}

static uint32_t threshold(const struct te_op_call *c)
{
	const struct te_attention_attrs *a = c->op->attrs;

	return c->flags & TE_CALL_TRAIN ? te__ops_threshold(a->dropout) : 0;
}

static float scale(const struct te_attention_attrs *a)
{
	return a->scale > 0.0f ? a->scale : (float)(1.0 / sqrt((double)a->head_dim));
}

static int attention_infer(struct te_op_infer *inf)
{
	const struct te_attention_attrs *a = inf->op->attrs;
	const struct te_spec *x = &inf->in[0];
	const int dropout = te__ops_threshold(a->dropout) && (inf->flags & TE_INFER_TRAIN);
	int64_t rows, seqlen;
	struct te_spec lse;
	int r = te__ops_check_x(inf, 2, ((int64_t)a->nheads + 2 * (int64_t)a->nkv) * a->head_dim);

	if (r < 0)
		return r;
	rows = te__ops_rows(x);
	seqlen = x->shape[x->ndim - 2];
	if (dropout && seqlen > MAX_DROPOUT_SEQLEN)
		return te__fail(-TE_ESHAPE,
				"attention %s: dropout over %lld positions, at most %d",
				inf->op->name, (long long)seqlen, MAX_DROPOUT_SEQLEN);
	te__ops_same(inf);
	inf->out[0].shape[x->ndim - 1] = (int64_t)a->nheads * a->head_dim;
	inf->save_x = TE_FORM_HP;
	inf->save_y = TE_FORM_HP;
	lse = (struct te_spec){ TE_DTYPE_FP32, 3, { rows / seqlen, a->nheads, seqlen } };
	inf->bwd_ws_nbytes = (size_t)(rows * a->nheads) * sizeof(float);
	inf->uses_rng = dropout;
	return te_infer_save(inf, &lse);
}

static int attention_forward(const struct te_op_call *c)
{
	const struct te_attention_attrs *a = c->op->attrs;
	const int64_t seqlen = te_tensor_extent(c->x.hp, -2);
	const struct te_k_attn_fwd k = {
		.qkv = te_tensor_data(c->x.hp),
		.out = te_tensor_data(c->y.hp),
		.lse = te_tensor_data(c->saved[0]),
		.seed = c->rng.seed,
		.offset = c->rng.offset,
		.batch = te_tensor_rows(c->x.hp) / seqlen,
		.seqlen = seqlen,
		.nheads = a->nheads,
		.nkv = a->nkv,
		.head_dim = a->head_dim,
		.scale = scale(a),
		.threshold = threshold(c),
		.tag = c->tag,
		.dtype = te_tensor_dtype(c->x.hp),
	};

	return TE__LAUNCH(c->stream, ATTN_FWD, &k);
}

static int attention_backward(const struct te_op_call *c)
{
	const struct te_attention_attrs *a = c->op->attrs;
	const int64_t seqlen = te_tensor_extent(c->x.hp, -2);
	const struct te_k_attn_bwd k = {
		.qkv = te_tensor_data(c->x.hp),
		.out = te_tensor_data(c->y.hp),
		.dout = te_tensor_data(c->dy.hp),
		.lse = te_tensor_data(c->saved[0]),
		.delta = c->ws,
		.dqkv = te_tensor_data(c->dx.hp),
		.seed = c->rng.seed,
		.offset = c->rng.offset,
		.batch = te_tensor_rows(c->x.hp) / seqlen,
		.seqlen = seqlen,
		.nheads = a->nheads,
		.nkv = a->nkv,
		.head_dim = a->head_dim,
		.scale = scale(a),
		.threshold = threshold(c),
		.tag = c->tag,
		.dtype = te_tensor_dtype(c->x.hp),
	};
	int r = TE__LAUNCH(c->stream, ATTN_BWD_PRE, &k);

	if (r >= 0)
		r = TE__LAUNCH(c->stream, ATTN_BWD_DKV, &k);
	return r < 0 ? r : TE__LAUNCH(c->stream, ATTN_BWD_DQ, &k);
}

static int attention_describe(const struct te_op *op, char *dst, size_t nbytes)
{
	const struct te_attention_attrs *a = op->attrs;

	return snprintf(dst, nbytes, "heads %d, kv heads %d, head_dim %d, scale %g, dropout %g",
			a->nheads, a->nkv, a->head_dim, (double)scale(a), (double)a->dropout);
}

static const struct te_op_ops attention_ops = {
	.size = sizeof(struct te_op_ops),
	.name = "attention",
	.attrs_nbytes = sizeof(struct te_attention_attrs),
	.check = attention_check,
	.infer = attention_infer,
	.forward = attention_forward,
	.backward = attention_backward,
	.describe = attention_describe,
};

int te_op_attention(const struct te_attention_attrs *a, const char *name, struct te_op **ret_op)
{
	struct te_attention_attrs attrs = TE_ATTENTION_ATTRS_INIT;
	int r = te__sized_in("te_op_attention", te_attention_attrs, a, &attrs);

	return r ? r : te_op_create(&attention_ops, &attrs, name, ret_op);
}
