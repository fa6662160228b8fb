/* attention.c - attention over packed heads. Saved: the rows' log-sum-exp. */
#define TE_LOG_CATEGORY "core/op"
#include "libtecore/ops/common.h"

static int attention_check(const struct te_op *op)
{
	const struct te_attention_attrs *a = op->attrs;

	int r = te__attention_check("attention ", op->name, a->nheads, a->nkv, a->head_dim,
				    a->scale, a->dropout);

	if (!r && (a->first_head < 0 || a->all_heads < 0 ||
		   (a->all_heads ? a->first_head > a->all_heads - a->nheads : a->first_head > 0)))
		r = te__fail(-EINVAL, "attention %s: %d heads from number %d on, of %d", op->name,
			     a->nheads, a->first_head, a->all_heads ? a->all_heads : a->nheads);
	if (!r)
		r = te__attention_check_scores("attention ", op->name, a->window, a->softcap);
	if (!r)
		r = te__ops_check_flag("attention ", op->name, "documents", a->documents);
	if (!r)
		r = te__attention_check_full("attention ", op->name, a->full, a->right);
	if (!r && (a->sinks < 0 || a->sinks > 1))
		r = te__fail(-EINVAL, "attention %s: sinks is %d, not 0 or 1", op->name, a->sinks);
	return r ? r : te__dropout_check_tag("attention ", op->name, a->tag);
}

/* FP32 heads wider than that, and what a block of a GPU needs for their backward pass */
#define FP32_NARROW 64
#define FP32_WIDE_NBYTES (160 << 10)

int te__op_check_heads(const struct te_op *op, const struct te_ctx *ctx, enum te_dtype dtype)
{
	const int32_t most = dtype == TE_DTYPE_FP32 ? TE_K_ATTN_CUDA_HEAD_DIM_FP32 :
						      TE_K_ATTN_CUDA_HEAD_DIM;
	struct te_device_info dev = TE_DEVICE_INFO_INIT;
	int32_t head_dim;
	int r, narrow;

	if (!op->is_library || strcmp(op->ops.name, "attention") ||
	    !strcmp(te_ctx_backend(ctx), "host"))
		return 0;
	head_dim = ((const struct te_attention_attrs *)op->attrs)->head_dim;
	narrow = dtype == TE_DTYPE_FP32 && head_dim > FP32_NARROW;
	if (head_dim <= most && !narrow)
		return 0;
	r = te_ctx_device_info(ctx, &dev);
	if (!r && head_dim <= most && dev.block_smem_nbytes >= FP32_WIDE_NBYTES)
		return 0;
	if (!r && head_dim <= most)
		return te__fail(-EOPNOTSUPP, "attention %s: head_dim is %d in FP32, which takes %d "
				"KiB of shared memory a block, and %s %d, %s, has %d; heads of at "
				"most %d run there, and the recipe bf16", op->name, head_dim,
				FP32_WIDE_NBYTES >> 10, dev.backend, dev.index, dev.name,
				(int)(dev.block_smem_nbytes >> 10), FP32_NARROW);
	return r ? r : te__fail(-EOPNOTSUPP, "attention %s: head_dim is %d, but kernels of %s %d, "
				"%s, take at most %d in %s; the backend host takes %d, and so does "
				"the recipe bf16", op->name, head_dim, dev.backend, dev.index,
				dev.name, most, te_dtype_name(dtype), TE_K_ATTN_MAX_HEAD_DIM);
}

static struct te__attention attention_of(const struct te_op_call *c)
{
	const struct te_attention_attrs *a = c->op->attrs;

	return (struct te__attention){
		.x = c->x.hp,
		.y = c->y.hp,
		.lse = c->saved[0],
		.nheads = a->nheads,
		.nkv = a->nkv,
		.head_dim = a->head_dim,
		.scale = a->scale,
		.threshold = c->flags & TE_CALL_TRAIN ? te__ops_threshold(a->dropout) : 0,
		.tag = a->tag ? (uint32_t)a->tag : c->tag,
		.first_head = a->first_head,
		.other_heads = a->all_heads ? a->all_heads - a->nheads : 0,
		.rng = c->rng,
		.window = a->window,
		.softcap = a->softcap,
		.full = a->full,
		.right = a->right,
		.first = te__ops_tokens(c, a->documents),
		.sinks = a->sinks ? c->master[0] : NULL,
	};
}

/* keys of a query, on average */
static double keys_of(const struct te_attention_attrs *a, int64_t seqlen)
{
	const double n = (double)seqlen, w = (double)a->window;

	if (a->full)
		return fmin(n / 2, a->window ? w : n) +
		       fmin(n / 2, a->right ? (double)a->right : n);
	return !a->window || w >= n ? n / 2 : w - w * w / (2 * n);
}

static int attention_weight(const struct te_op *op, int32_t index, struct te_weight_decl *ret)
{
	const struct te_attention_attrs *a = op->attrs;

	if (index || !a->sinks)
		return 0;
	ret->name = "sinks";
	ret->ndim = 1;
	ret->shape[0] = a->nheads;
	ret->init = TE_INIT_ZERO;
	return 1;
}

static int attention_infer(struct te_op_infer *inf)
{
	const struct te_attention_attrs *a = inf->op->attrs;
	const struct te_spec *x = &inf->in[0];
	const int dropout = te__ops_threshold(a->dropout) && (inf->flags & TE_INFER_TRAIN);
	int64_t rows, seqlen;
	struct te_spec lse;
	int r = te__ops_same(inf, 2, ((int64_t)a->nheads + 2 * (int64_t)a->nkv) * a->head_dim);

	if (r >= 0)
		r = a->documents ? te__ops_infer_tokens(inf, TE__OPS_DOCUMENTS) : 0;
	if (r < 0)
		return r;
	rows = te__ops_rows(x);
	seqlen = x->shape[x->ndim - 2];
	r = dropout ? te__attention_check_dropout("attention ", inf->op->name, seqlen) : 0;
	if (r < 0)
		return r;
	inf->out[0].shape[x->ndim - 1] = (int64_t)a->nheads * a->head_dim;
	inf->save_x = TE_FORM_HP;
	inf->save_y = TE_FORM_HP;
	lse = (struct te_spec){ TE_DTYPE_FP32, 3, { rows / seqlen, a->nheads, seqlen } };
	/* two products of half a [seqlen, seqlen] matrix or of its band a head; backward: five */
	inf->fwd_flops = 4.0 * (double)rows * keys_of(a, seqlen) * a->nheads * a->head_dim;
	inf->bwd_flops = 2.5 * inf->fwd_flops;
	inf->bwd_ws_nbytes = te__attention_ws_nbytes(!dropout && a->softcap == 0.0f &&
							     !a->documents && !a->full &&
							     !a->sinks,
						     x->dtype, rows / seqlen, seqlen, a->nheads,
						     a->head_dim);
	inf->uses_rng = dropout;
	if (a->sinks) {
		inf->dw_y = TE_FORM_HP;
		inf->dw_dy = TE_FORM_HP;
		inf->dw_ws_nbytes = (size_t)te__spec_nelems(&lse) * sizeof(float);
	}
	return te_infer_save(inf, &lse);
}

void te__ops_attention_fwd(const struct te_op_call *c, struct te_k_attn_fwd *ret)
{
	const struct te__attention a = attention_of(c);

	te__attention_fwd_args(&a, ret);
}

static int attention_forward(const struct te_op_call *c)
{
	const struct te__attention a = attention_of(c);
	const struct te__decode *d = c->state;
	struct te_k_attn_fwd k;

	if (d)
		return te__attention_cached(c->stream, &a, &d->cache,
					    d->one_each && *d->one_each ? d->rope : NULL);
	te__ops_attention_fwd(c, &k);
	return te__attention_fwd(c->stream, &k, NULL);
}

static int attention_backward(const struct te_op_call *c)
{
	const struct te__attention a = attention_of(c);

	return te__attention_bwd(c->stream, &a, c->dy.hp, c->dx.hp, c->ws);
}

static int attention_backward_dw(const struct te_op_call *c)
{
	struct te__attention a = attention_of(c);

	a.x = a.y; /* the same extents; heads are not read */
	return te__attention_dsinks(c->stream, &a, c->dy.hp, c->grad[0], c->ws);
}

static int attention_describe(const struct te_op *op, char *dst, size_t nbytes)
{
	const struct te_attention_attrs *a = op->attrs;

	char window[32] = "", softcap[32] = "", right[32] = "";

	if (a->window)
		snprintf(window, sizeof(window), ", window %d", a->window);
	if (a->softcap > 0.0f)
		snprintf(softcap, sizeof(softcap), ", softcap %g", (double)a->softcap);
	if (a->right)
		snprintf(right, sizeof(right), ", right %d", a->right);
	return snprintf(dst, nbytes,
			"heads %d, kv heads %d, head_dim %d, scale %g, dropout %g%s%s%s%s%s%s",
			a->nheads, a->nkv, a->head_dim,
			(double)te__attention_scale(a->scale, a->head_dim), (double)a->dropout,
			window, softcap, a->documents ? ", documents" : "",
			a->full ? ", full" : "", right, a->sinks ? ", sinks" : "");
}

#define ATTENTION_OPS(extra, dw)                                 \
	{                                                        \
		.size = sizeof(struct te_op_ops),                \
		.name = "attention",                             \
		.attrs_nbytes = sizeof(struct te_attention_attrs), \
		.nextra_in = extra,                              \
		.check = attention_check,                        \
		.weight = attention_weight,                      \
		.infer = attention_infer,                        \
		.forward = attention_forward,                    \
		.backward = attention_backward,                  \
		.backward_dw = dw,                               \
		.describe = attention_describe,                  \
		.flags = TE_OP_REPEATS_COSTLY,                   \
	}
/* by sinks and documents */
static const struct te_op_ops attention_ops[2][2] = {
	{ ATTENTION_OPS(0, NULL), ATTENTION_OPS(1, NULL) },
	{ ATTENTION_OPS(0, attention_backward_dw), ATTENTION_OPS(1, attention_backward_dw) },
};
#undef ATTENTION_OPS

int te_op_attention(const struct te_attention_attrs *a, const char *name, struct te_op **ret_op)
{
	struct te_attention_attrs attrs = TE_ATTENTION_ATTRS_INIT;
	int r = te__sized_in("te_op_attention", te_attention_attrs, a, &attrs);

	/* other values are refused by attention_check() */
	return r ? r : te__op_create(&attention_ops[attrs.sinks != 0][attrs.documents != 0],
				     &attrs, name, ret_op);
}
