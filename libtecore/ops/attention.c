/*
 * attention.c - attention. Saved: the rows' log-sum-exp.
 *
 * Packed heads without a bias, slopes or offsets are struct te__attention, as in
 * te_kernel_attention_forward(3); everything else is struct te__attend, as in
 * te_kernel_attend_forward(3).
 */
#define TE_LOG_CATEGORY "core/op"
#include "libtecore/ops/common.h"

/* the extra inputs by what they are; -1: the op has none */
struct inputs {
	int k, v, first, bias, q_offsets, k_offsets, n;
};

static struct inputs inputs_of(const struct te_attention_attrs *a)
{
	struct inputs in = { -1, -1, -1, -1, -1, -1, 0 };

	if (a->operands)
		in.k = in.v = in.n++;
	if (a->operands == TE_ATTENTION_Q_K_V)
		in.v = in.n++;
	if (a->documents)
		in.first = in.n++;
	if (a->bias)
		in.bias = in.n++;
	if (a->offsets)
		in.q_offsets = in.k_offsets = in.n++;
	if (a->offsets && a->operands)
		in.k_offsets = in.n++;
	return in;
}
#define MOST_INPUTS 6

static int32_t head_dim_v(const struct te_attention_attrs *a)
{
	return a->head_dim_v ? a->head_dim_v : a->head_dim;
}

/* 1: struct te__attention can describe it. Packed heads have as many queries as keys, so that
 * bottom changes nothing */
static int is_packed(const struct te_attention_attrs *a)
{
	return !a->operands && head_dim_v(a) == a->head_dim && !a->bias && !a->alibi &&
	       !a->offsets && !a->bias_queries;
}

/* columns of the main input, and of the extra inputs of k and v */
static int64_t q_width(const struct te_attention_attrs *a)
{
	return (int64_t)a->nheads * a->head_dim;
}

static int64_t k_width(const struct te_attention_attrs *a)
{
	return (int64_t)a->nkv * a->head_dim;
}

static int64_t v_width(const struct te_attention_attrs *a)
{
	return (int64_t)a->nkv * head_dim_v(a);
}

static int check_operands(const struct te_op *op)
{
	const struct te_attention_attrs *a = op->attrs;
	int r = 0;

	if (a->operands < 0 || a->operands >= TE_ATTENTION_OPERANDS_COUNT)
		return te__fail(-EINVAL, "attention %s: operands is %d, not one of enum "
				"te_attention_operands", op->name, a->operands);
	if (a->head_dim_v < 0 || a->head_dim_v > TE_K_ATTN_MAX_HEAD_DIM)
		return te__fail(-EINVAL, "attention %s: head_dim_v is %d, not 0 to %d", op->name,
				a->head_dim_v, TE_K_ATTN_MAX_HEAD_DIM);
	r = te__ops_check_flag("attention ", op->name, "bottom", a->bottom);
	if (!r)
		r = te__ops_check_flag("attention ", op->name, "bias", a->bias);
	if (!r)
		r = te__ops_check_flag("attention ", op->name, "alibi", a->alibi);
	if (!r)
		r = te__ops_check_flag("attention ", op->name, "offsets", a->offsets);
	if (!r && (a->bias_queries < 0 || a->bias_keys < 0 || !a->bias_queries != !a->bias_keys))
		r = te__fail(-EINVAL, "attention %s: bias_queries and bias_keys are %lld and %lld, "
			     "not both 0 or both above it", op->name, (long long)a->bias_queries,
			     (long long)a->bias_keys);
	if (!r && a->bias && a->bias_queries)
		r = te__fail(-EINVAL, "attention %s: bias is 1, but bias_queries makes the bias a "
			     "weight", op->name);
	if (!r && a->documents && (a->operands || a->offsets))
		r = te__fail(-EINVAL, "attention %s: documents are of packed heads without "
			     "offsets; offsets divide other values", op->name);
	if (!r && a->slopes && !a->alibi)
		r = te__fail(-EINVAL, "attention %s: slopes are given, but alibi is 0", op->name);
	for (int h = 0; a->slopes && h < a->nheads && !r; h++)
		if (!isfinite(a->slopes[h]))
			r = te__fail(-EINVAL, "attention %s: slope %d is %g", op->name, h,
				     (double)a->slopes[h]);
	return r;
}

static int copy_slopes(const struct te_op *op)
{
	struct te_attention_attrs *a = op->attrs; /* the op's */
	const size_t nbytes = (size_t)a->nheads * sizeof(*a->slopes);
	float *copy;

	if (!a->slopes)
		return 0;
	copy = te__malloc(nbytes);
	if (!copy)
		return te__fail(-ENOMEM, "attention %s: no memory", op->name);
	memcpy(copy, a->slopes, nbytes);
	a->slopes = copy;
	return 0;
}

static void attention_destroy(struct te_op *op)
{
	const struct te_attention_attrs *a = op->attrs;

	te__free((void *)(uintptr_t)a->slopes);
}

/*
 * Slope of head h of n, Press et al., arXiv:2108.12409, section 3: 2^(-8 (h + 1) / n) if n is a
 * power of two. Otherwise the first p heads, the largest power of two below n, have the slopes of p
 * heads, and the others every second one of 2 p heads, as in the authors' code.
 */
static float slope_of(int64_t h, int64_t n)
{
	int64_t p = 1;

	while (2 * p <= n)
		p *= 2;
	return (float)(h < p ? exp2(-8.0 * (double)(h + 1) / (double)p) :
			       exp2(-4.0 * (double)(2 * (h - p) + 1) / (double)p));
}

int te__op_prepare(struct te_op *op, struct te_ctx *ctx)
{
	const struct te_attention_attrs *a = op->attrs;
	float *x;
	int r;

	if (!op->is_library || strcmp(op->ops.name, "attention") || !a->alibi)
		return 0;
	if (a->slopes)
		return te__op_constants(op, ctx, a->slopes, a->nheads);
	x = te__malloc((size_t)a->nheads * sizeof(*x));
	if (!x)
		return te__fail(-ENOMEM, "attention %s: no memory", op->name);
	for (int32_t h = 0; h < a->nheads; h++)
		x[h] = slope_of((int64_t)a->first_head + h,
				a->all_heads ? a->all_heads : a->nheads);
	r = te__op_constants(op, ctx, x, a->nheads);
	te__free(x);
	return r;
}

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
	if (!r)
		r = check_operands(op);
	if (!r)
		r = te__dropout_check_tag("attention ", op->name, a->tag);
	return r ? r : copy_slopes(op);
}

/* FP32 heads wider than that, and what a block of a GPU needs for their backward pass */
#define FP32_NARROW 64
#define FP32_WIDE_NBYTES (160 << 10)

int te__op_check_heads(const struct te_op *op, const struct te_ctx *ctx, enum te_dtype dtype)
{
	const int32_t most = dtype == TE_DTYPE_FP32 ? TE_K_ATTN_CUDA_HEAD_DIM_FP32 :
						      TE_K_ATTN_CUDA_HEAD_DIM;
	struct te_device_info dev = TE_DEVICE_INFO_INIT;
	const struct te_attention_attrs *a = op->attrs;
	const char *name = "head_dim";
	int32_t head_dim;
	int r, narrow;

	if (!op->is_library || strcmp(op->ops.name, "attention") ||
	    !strcmp(te_ctx_backend(ctx), "host"))
		return 0;
	head_dim = a->head_dim;
	if (a->head_dim_v > head_dim) {
		head_dim = a->head_dim_v;
		name = "head_dim_v";
	}
	narrow = dtype == TE_DTYPE_FP32 && head_dim > FP32_NARROW;
	if (head_dim <= most && !narrow)
		return 0;
	r = te_ctx_device_info(ctx, &dev);
	if (!r && head_dim <= most && dev.block_smem_nbytes >= FP32_WIDE_NBYTES)
		return 0;
	if (!r && head_dim <= most)
		return te__fail(-EOPNOTSUPP, "attention %s: %s is %d in FP32, which takes %d "
				"KiB of shared memory a block, and %s %d, %s, has %d; heads of at "
				"most %d run there, and the recipe bf16", op->name, name, head_dim,
				FP32_WIDE_NBYTES >> 10, dev.backend, dev.index, dev.name,
				(int)(dev.block_smem_nbytes >> 10), FP32_NARROW);
	return r ? r : te__fail(-EOPNOTSUPP, "attention %s: %s is %d, but kernels of %s %d, "
				"%s, take at most %d in %s; the backend host takes %d, and so does "
				"the recipe bf16", op->name, name, head_dim, dev.backend, dev.index,
				dev.name, most, te_dtype_name(dtype), TE_K_ATTN_MAX_HEAD_DIM);
}

int te__op_check_gradients(const struct te_op *op, const struct te_ctx *ctx, enum te_dtype dtype,
			   const int *dex)
{
	const struct te_attention_attrs *a = op->attrs;
	const char *backend = te_ctx_backend(ctx);
	struct inputs in;

	if (!op->is_library || strcmp(op->ops.name, "attention") || !strcmp(backend, "host"))
		return 0;
	in = inputs_of(a);
	if (in.v != in.k && (dex[in.k] < 0) != (dex[in.v] < 0))
		return te__fail(-EOPNOTSUPP, "attention %s: kernels of %s compute gradients of k "
				"and of v or none of them, but that of %s is not needed", op->name,
				backend, dex[in.k] < 0 ? "k" : "v");
	if (dtype == TE_DTYPE_BF16 && a->softcap != 0.0f &&
	    (a->bias || a->alibi || a->bias_queries))
		return te__fail(-EOPNOTSUPP, "attention %s: in BF16, kernels of %s compute "
				"gradients of scores with a softcap or with a %s, not with both",
				op->name, backend, a->alibi ? "slope" : "bias");
	return 0;
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

static const struct te_tensor *extra(const struct te_op_value *v, int k)
{
	return k < 0 ? NULL : v[k].hp;
}

/* all but the gradients; without operands in a call that has none */
static struct te__attend attend_of(const struct te_op_call *c)
{
	const struct te_attention_attrs *a = c->op->attrs;
	const struct inputs in = inputs_of(a);
	const struct te_tensor *q = c->x.hp, *k = in.k < 0 ? q : c->ex[in.k].hp;
	struct te__attend t = {
		.o = TE_KERNEL_ATTEND_OPTS_INIT,
		.q = q,
		.k = k,
		.v = in.v < 0 ? q : c->ex[in.v].hp,
		.out = c->y.hp,
		.lse = c->saved[0],
		.first = extra(c->ex, in.first),
		.batch = a->offsets ? 1 : te_tensor_rows(q) / te_tensor_extent(q, -2),
		.first_head = a->first_head,
		.other_heads = a->all_heads ? a->all_heads - a->nheads : 0,
		.dtype = te_tensor_dtype(q),
	};

	t.qlen = te_tensor_rows(q) / t.batch;
	t.klen = te_tensor_rows(k) / t.batch;
	t.o.nheads = a->nheads;
	t.o.nkv = a->nkv;
	t.o.head_dim = a->head_dim;
	t.o.head_dim_v = head_dim_v(a);
	t.o.scale = a->scale;
	t.o.dropout = c->flags & TE_CALL_TRAIN ? a->dropout : 0.0f;
	t.o.rng = c->rng;
	t.o.tag = a->tag ? (uint32_t)a->tag : c->tag;
	t.o.layout = a->offsets ? TE_ATTEND_THD : TE_ATTEND_BSHD;
	t.o.k_at = a->operands ? 0 : q_width(a);
	t.o.v_at = a->operands == TE_ATTENTION_Q_K_V ? 0 : t.o.k_at + k_width(a);
	t.o.q_offsets = extra(c->ex, in.q_offsets);
	t.o.k_offsets = extra(c->ex, in.k_offsets);
	t.o.window = a->window;
	t.o.full = a->full;
	t.o.right = a->right;
	t.o.bottom = a->bottom;
	t.o.softcap = a->softcap;
	t.o.bias = a->bias_queries ? c->master[a->sinks] : extra(c->ex, in.bias);
	t.o.slopes = atomic_load(&c->op->constants);
	t.o.sinks = a->sinks ? c->master[0] : NULL;
	return t;
}

/* keys of a query, on average */
static double keys_of(const struct te_attention_attrs *a, int64_t qlen, int64_t klen)
{
	const double q = (double)qlen, n = (double)klen, w = (double)a->window;
	double all = n / 2;

	if (a->full)
		return fmin(n / 2, a->window ? w : n) +
		       fmin(n / 2, a->right ? (double)a->right : n);
	if (qlen == klen)
		return !a->window || w >= n ? n / 2 : w - w * w / (2 * n);
	if (a->bottom)
		all = q < n ? n - q / 2 : n * n / (2 * q);
	else
		all = q < n ? q / 2 : n - n * n / (2 * q);
	return a->window ? fmin(all, w) : all;
}

static int attention_weight(const struct te_op *op, int32_t index, struct te_weight_decl *ret)
{
	const struct te_attention_attrs *a = op->attrs;

	ret->shape[0] = a->nheads;
	ret->init = TE_INIT_ZERO;
	if (a->sinks && !index) {
		ret->name = "sinks";
		ret->ndim = 1;
		return 1;
	}
	if (!a->bias_queries || index > a->sinks)
		return 0;
	ret->name = "bias";
	ret->ndim = 3;
	ret->shape[1] = a->bias_queries;
	ret->shape[2] = a->bias_keys;
	return 1;
}

/* what: of cols columns, as many sequences as the main input has, or any rows with offsets */
static int check_keys(const struct te_op_infer *inf, const char *what, const struct te_spec *s,
		      int64_t cols)
{
	const struct te_attention_attrs *a = inf->op->attrs;
	const struct te_spec *x = &inf->in[0];
	const char *name = inf->op->name;

	if (s->dtype != x->dtype)
		return te__fail(-TE_EDTYPE, "attention %s: %s is %s, and its input %s", name, what,
				te_dtype_name(s->dtype), te_dtype_name(x->dtype));
	if (s->ndim < 2 || te__ops_cols(s) != cols)
		return te__fail(-TE_ESHAPE, "attention %s: %s has %d extents and is %lld wide, it "
				"takes 2 or more and %lld", name, what, s->ndim,
				(long long)te__ops_cols(s), (long long)cols);
	if (!a->offsets && te__ops_rows(s) / s->shape[s->ndim - 2] !=
				   te__ops_rows(x) / x->shape[x->ndim - 2])
		return te__fail(-TE_ESHAPE, "attention %s: %s has %lld sequences, and its input "
				"%lld", name, what,
				(long long)(te__ops_rows(s) / s->shape[s->ndim - 2]),
				(long long)(te__ops_rows(x) / x->shape[x->ndim - 2]));
	return 0;
}

static int64_t len_of(const struct te_attention_attrs *a, const struct te_spec *s)
{
	return a->offsets ? te__ops_rows(s) : s->shape[s->ndim - 2];
}

/* extra inputs, which backward reads */
static int infer_extra(struct te_op_infer *inf, int64_t *ret_klen)
{
	const struct te_attention_attrs *a = inf->op->attrs;
	const struct te_spec *x = &inf->in[0], *ex = &inf->in[1], *b;
	const struct inputs in = inputs_of(a);
	const char *name = inf->op->name;
	const int64_t T = len_of(a, x);
	int64_t S = T;
	int r = 0;

	if (in.k >= 0)
		r = check_keys(inf, in.v == in.k ? "the value of k and v" : "k", &ex[in.k],
			       k_width(a) + (in.v == in.k ? v_width(a) : 0));
	if (!r && in.v != in.k)
		r = check_keys(inf, "v", &ex[in.v], v_width(a));
	if (!r && in.v != in.k && len_of(a, &ex[in.v]) != len_of(a, &ex[in.k]))
		r = te__fail(-TE_ESHAPE, "attention %s: v has %lld tokens, and k %lld", name,
			     (long long)len_of(a, &ex[in.v]), (long long)len_of(a, &ex[in.k]));
	if (!r && a->documents)
		r = te__ops_infer_tokens(inf, TE__OPS_DOCUMENTS);
	if (r < 0)
		return r;
	S = in.k < 0 ? T : len_of(a, &ex[in.k]);
	if (in.bias >= 0) {
		b = &ex[in.bias];
		if (b->dtype != TE_DTYPE_FP32)
			return te__fail(-TE_EDTYPE, "attention %s: its bias is %s, not fp32", name,
					te_dtype_name(b->dtype));
		if (b->ndim < 2 || te__ops_cols(b) != S || b->shape[b->ndim - 2] != T ||
		    (te__spec_nelems(b) != T * S && te__spec_nelems(b) != T * S * a->nheads))
			return te__fail(-TE_ESHAPE, "attention %s: its bias is not of 1 or %d "
					"heads, %lld queries and %lld keys", name, a->nheads,
					(long long)T, (long long)S);
	}
	if (a->bias_queries && (T != a->bias_queries || S != a->bias_keys))
		return te__fail(-TE_ESHAPE, "attention %s: its bias is of %lld queries and %lld "
				"keys, and its inputs have %lld and %lld", name,
				(long long)a->bias_queries, (long long)a->bias_keys, (long long)T,
				(long long)S);
	for (int k = in.q_offsets; k >= 0 && k <= in.k_offsets; k++) {
		if (ex[k].dtype != TE_DTYPE_INT32)
			return te__fail(-TE_EDTYPE, "attention %s: offsets are %s, not int32", name,
					te_dtype_name(ex[k].dtype));
		if (te__spec_nelems(&ex[k]) < 2 ||
		    te__spec_nelems(&ex[k]) != te__spec_nelems(&ex[in.q_offsets]))
			return te__fail(-TE_ESHAPE, "attention %s: %lld offsets of %s, expected %s",
					name, (long long)te__spec_nelems(&ex[k]),
					k == in.q_offsets ? "queries" : "keys",
					k == in.q_offsets ? "2 or more" : "as many as of queries");
	}
	for (int k = 0; k < in.n; k++)
		inf->save_ex[k] = a->bias_queries ? 3 : 1;
	*ret_klen = S;
	return 0;
}

static int attention_infer(struct te_op_infer *inf)
{
	const struct te_attention_attrs *a = inf->op->attrs;
	const struct te_spec *x = &inf->in[0];
	const int dropout = te__ops_threshold(a->dropout) && (inf->flags & TE_INFER_TRAIN);
	const int64_t nbias = a->nheads * a->bias_queries * a->bias_keys;
	int64_t rows, seqlen, batch, klen = 0;
	struct te_spec lse;
	int r = te__ops_same(inf, 2, q_width(a) + (a->operands ? 0 : k_width(a) + v_width(a)));

	if (r >= 0)
		r = infer_extra(inf, &klen);
	if (r < 0)
		return r;
	rows = te__ops_rows(x);
	seqlen = len_of(a, x);
	batch = rows / seqlen;
	if (dropout)
		r = te__attention_check_dropout("attention ", inf->op->name,
						klen > seqlen ? klen : seqlen);
	if (r < 0)
		return r;
	inf->out[0].shape[x->ndim - 1] = (int64_t)a->nheads * head_dim_v(a);
	inf->save_x = TE_FORM_HP;
	inf->save_y = TE_FORM_HP;
	lse = (struct te_spec){ TE_DTYPE_FP32, 3, { batch, a->nheads, seqlen } };
	/* two products of half a [seqlen, seqlen] matrix or of its band a head; backward: five */
	inf->fwd_flops = 2.0 * (double)rows * keys_of(a, seqlen, klen) * a->nheads *
			 (a->head_dim + head_dim_v(a));
	inf->bwd_flops = 2.5 * inf->fwd_flops;
	inf->bwd_ws_nbytes = te__attention_ws_nbytes(!dropout && a->softcap == 0.0f && !a->full &&
							     !a->sinks && is_packed(a),
						     x->dtype, batch, seqlen, a->nheads,
						     a->head_dim);
	inf->uses_rng = dropout;
	if (a->sinks || a->bias_queries) {
		inf->dw_y = TE_FORM_HP;
		inf->dw_dy = TE_FORM_HP;
		inf->dw_ws_nbytes = te__attend_dbias_ws(te__spec_nelems(&lse), nbias);
	}
	if (a->bias_queries) {
		inf->dw_x = TE_FORM_HP;
		inf->dw_flops = 1.5 * inf->fwd_flops;
	}
	return te_infer_save(inf, &lse);
}

void te__ops_attention_fwd(const struct te_op_call *c, struct te_k_attn_fwd *ret)
{
	struct te__attention a;
	struct te__attend t;

	if (!is_packed(c->op->attrs)) {
		t = attend_of(c);
		te__attend_fwd_args(&t, ret);
		return;
	}
	a = attention_of(c);
	te__attention_fwd_args(&a, ret);
}

static int attention_forward(const struct te_op_call *c)
{
	const struct te__decode *d = c->state;
	struct te__attention a;
	struct te_k_attn_fwd k;

	if (d) { /* packed */
		a = attention_of(c);
		return te__attention_cached(c->stream, &a, &d->cache,
					    d->one_each && *d->one_each ? d->rope : NULL);
	}
	te__ops_attention_fwd(c, &k);
	return TE__LAUNCH(c->stream, ATTN_FWD, &k);
}

static int attention_backward(const struct te_op_call *c)
{
	const struct te_attention_attrs *attrs = c->op->attrs;
	const struct inputs in = inputs_of(attrs);
	struct te__attention a;
	struct te__attend t;
	struct te_k_attn_bwd k;

	if (!is_packed(attrs)) {
		const struct te_tensor *const d[3] = {
			c->dx.hp,
			in.k < 0 ? c->dx.hp : c->dex[in.k].hp,
			in.v < 0 ? c->dx.hp : c->dex[in.v].hp,
		};

		t = attend_of(c);
		t.d = d;
		t.o.dbias = in.bias < 0 ? NULL : c->dex[in.bias].hp;
		te__attend_bwd_args(&t, c->dy.hp, &k);
		return te__attention_bwd_launch(c->stream, &k, c->ws, NULL);
	}
	a = attention_of(c);
	return te__attention_bwd(c->stream, &a, c->dy.hp, c->dx.hp, c->ws);
}

static int attention_backward_dw(const struct te_op_call *c)
{
	const struct te_attention_attrs *attrs = c->op->attrs;
	struct te__attention a = attention_of(c);
	struct te__attend t;
	int r = 0;

	/* heads, operands and documents are not read */
	a.x = a.y;
	a.first = NULL;
	a.head_dim = head_dim_v(attrs);
	if (attrs->sinks && c->grad[0])
		r = te__attention_dsinks(c->stream, &a, te_tensor_extent(a.lse, 0), c->dy.hp,
					 c->grad[0], c->ws);
	if (r < 0 || !attrs->bias_queries || !c->grad[attrs->sinks])
		return r;
	t = attend_of(c);
	return te__attend_dbias(c->stream, &t, c->dy.hp, c->grad[attrs->sinks], c->ws);
}

static int attention_describe(const struct te_op *op, char *dst, size_t nbytes)
{
	static const char *const operands[] = { "", ", kv apart", ", k and v apart" };
	const struct te_attention_attrs *a = op->attrs;

	char window[32] = "", softcap[32] = "", right[32] = "", values[32] = "";

	if (a->window)
		snprintf(window, sizeof(window), ", window %d", a->window);
	if (a->softcap > 0.0f)
		snprintf(softcap, sizeof(softcap), ", softcap %g", (double)a->softcap);
	if (a->right)
		snprintf(right, sizeof(right), ", right %d", a->right);
	if (a->head_dim_v)
		snprintf(values, sizeof(values), ", head_dim_v %d", a->head_dim_v);
	return snprintf(dst, nbytes,
			"heads %d, kv heads %d, head_dim %d, scale %g, dropout "
			"%g%s%s%s%s%s%s%s%s%s%s%s%s", a->nheads, a->nkv, a->head_dim,
			(double)te__attention_scale(a->scale, a->head_dim), (double)a->dropout,
			window, softcap, a->documents ? ", documents" : "",
			a->full ? ", full" : "", right, a->sinks ? ", sinks" : "",
			operands[a->operands], values, a->bottom ? ", bottom" : "",
			a->bias ? ", bias" : a->bias_queries ? ", bias weight" : "",
			a->slopes ? ", slopes given" : a->alibi ? ", alibi" : "",
			a->offsets ? ", offsets" : "");
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
		.destroy = attention_destroy,                    \
		.flags = TE_OP_REPEATS_COSTLY,                   \
	}
#define ATTENTION_ROW(dw)                                                                      \
	{                                                                                      \
		ATTENTION_OPS(0, dw), ATTENTION_OPS(1, dw), ATTENTION_OPS(2, dw),              \
			ATTENTION_OPS(3, dw), ATTENTION_OPS(4, dw), ATTENTION_OPS(5, dw),      \
			ATTENTION_OPS(6, dw)                                                   \
	}
/* by whether it has weights, and the number of extra inputs */
static const struct te_op_ops attention_ops[2][MOST_INPUTS + 1] = {
	ATTENTION_ROW(NULL), ATTENTION_ROW(attention_backward_dw)
};
#undef ATTENTION_ROW
#undef ATTENTION_OPS

int te_op_attention(const struct te_attention_attrs *a, const char *name, struct te_op **ret_op)
{
	struct te_attention_attrs attrs = TE_ATTENTION_ATTRS_INIT;
	int r = te__sized_in("te_op_attention", te_attention_attrs, a, &attrs);

	/* other values are refused by attention_check() */
	return r ? r : te__op_create(&attention_ops[attrs.sinks || attrs.bias_queries]
						  [inputs_of(&attrs).n], &attrs, name, ret_op);
}
