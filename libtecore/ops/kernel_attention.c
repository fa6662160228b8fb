/* kernel_attention.c - launches of causal attention, and te_kernel_attention_*(). */
#define TE_LOG_CATEGORY "core/kernel"
#include "config.h"

#include <errno.h>

#include "libtecore/ops/common.h"

/* te_philox_attn() numbers groups of 8 keys in 13 bits */
#define MAX_DROPOUT_SEQLEN (8 << 13)

int te__attention_check(const char *kind, const char *name, int32_t nheads, int32_t nkv,
			int32_t head_dim, float scale, float dropout)
{
	if (nheads < 1)
		return te__fail(-EINVAL, "%s%s: nheads is %d", kind, name, nheads);
	if (nkv < 1 || nheads % nkv)
		return te__fail(-EINVAL, "%s%s: nheads %d is no multiple of nkv %d", kind, name,
				nheads, nkv);
	if (head_dim < 1 || head_dim > TE_K_ATTN_MAX_HEAD_DIM)
		return te__fail(-EINVAL, "%s%s: head_dim is %d, not 1 to %d", kind, name, head_dim,
				TE_K_ATTN_MAX_HEAD_DIM);
	if (!(scale >= 0.0f) || !isfinite(scale))
		return te__fail(-EINVAL, "%s%s: scale is %g", kind, name, (double)scale);
	return te__dropout_check(kind, name, "dropout", dropout);
}

int te__attention_check_scores(const char *kind, const char *name, int32_t window, float softcap)
{
	if (window < 0)
		return te__fail(-EINVAL, "%s%s: window is %d, not 0 or more", kind, name, window);
	if (!(softcap >= 0.0f) || !isfinite(softcap))
		return te__fail(-EINVAL, "%s%s: softcap is %g, not a finite number of 0 or more",
				kind, name, (double)softcap);
	return 0;
}

int te__attention_check_dropout(const char *kind, const char *name, int64_t seqlen)
{
	if (seqlen > MAX_DROPOUT_SEQLEN)
		return te__fail(-TE_ESHAPE, "%s%s: dropout over %lld positions, at most %d", kind,
				name, (long long)seqlen, MAX_DROPOUT_SEQLEN);
	return 0;
}

float te__attention_scale(float scale, int32_t head_dim)
{
	return scale > 0.0f ? scale : (float)(1.0 / sqrt((double)head_dim));
}

static size_t delta_nbytes(const struct te_k_attn_bwd *a)
{
	return (size_t)(a->batch * a->nheads * a->seqlen) * sizeof(*a->delta);
}

/* where the sums begin, after delta */
static size_t sums_at(const struct te_k_attn_bwd *a)
{
	return (delta_nbytes(a) + 255) / 256 * 256;
}

/* may a device sum dq block by block? */
static int has_sums(enum te_dtype dtype, int32_t head_dim)
{
	return dtype == TE_DTYPE_BF16 && (head_dim == 64 || head_dim == 128);
}

size_t te__attention_ws_nbytes(int plain, enum te_dtype dtype, int64_t batch, int64_t seqlen,
			       int32_t nheads, int32_t head_dim)
{
	const struct te_k_attn_bwd a = {
		.batch = batch,
		.seqlen = seqlen,
		.nheads = nheads,
		.head_dim = head_dim,
	};

	if (!plain || !has_sums(dtype, head_dim))
		return delta_nbytes(&a);
	return sums_at(&a) + (size_t)te_k_attn_sums_nbytes(&a);
}

static int is_plain(const struct te__attention *a)
{
	return !a->threshold && a->softcap == 0.0f && !a->full && !a->sinks;
}

/* 0 if all tokens are in the window */
static int32_t window_of(const struct te__attention *a)
{
	return a->window < te_tensor_extent(a->x, -2) ? a->window : 0;
}

int te__attention_check_full(const char *kind, const char *name, int32_t full, int32_t right)
{
	if (full < 0 || full > 1)
		return te__fail(-EINVAL, "%s%s: full is %d, not 0 or 1", kind, name, full);
	if (right < 0 || (right && !full))
		return te__fail(-EINVAL, "%s%s: right is %d, not 0%s", kind, name, right,
				full ? " or more" : ", but full is 0");
	return 0;
}

/* arguments of both passes' kernels */
#define ATTN_ARGS(a)                                                              \
	.qkv = te_tensor_data((a)->x), .out = te__ops_ptr((a)->y),             \
	.lse = te_tensor_data((a)->lse), .seed = (a)->rng.seed,                   \
	.offset = (a)->rng.offset,                                                \
	.batch = te_tensor_rows((a)->x) / te_tensor_extent((a)->x, -2),           \
	.seqlen = te_tensor_extent((a)->x, -2), .nheads = (a)->nheads,            \
	.nkv = (a)->nkv, .head_dim = (a)->head_dim,                               \
	.scale = te__attention_scale((a)->scale, (a)->head_dim),                  \
	.threshold = (a)->threshold, .tag = (a)->tag, .dtype = te_tensor_dtype((a)->x), \
	.first_head = (a)->first_head, .other_heads = (a)->other_heads,           \
	.window = window_of(a), .softcap = (a)->softcap, .full = (a)->full,       \
	.first = te__ops_ptr((a)->first),                                         \
	.more = { .right = (a)->right, .sinks = te__ops_ptr((a)->sinks) }

void te__attention_fwd_args(const struct te__attention *a, struct te_k_attn_fwd *ret)
{
	*ret = (struct te_k_attn_fwd){ ATTN_ARGS(a) };
}

static int launch_sinks(struct te_stream *stream, const struct te_k_attn_bwd *k,
			const struct te_tensor *dsinks)
{
	const struct te_k_attn_sinks s = {
		k->lse,	  k->delta,  k->more.sinks, te_tensor_data(dsinks),
		k->batch, k->seqlen, k->nheads,	    te_tensor_dtype(dsinks),
	};

	return TE__LAUNCH(stream, ATTN_BWD_SINKS, &s);
}

int te__attention_bwd_launch(struct te_stream *stream, struct te_k_attn_bwd *k, void *ws,
			     const struct te_tensor *dsinks)
{
	int r;

	k->delta = ws;
	if (!k->threshold && k->softcap == 0.0f && !k->full &&
	    !TE_K_ATTN_HAS_NEW(k) && has_sums((enum te_dtype)k->dtype, k->head_dim))
		k->sums = (uint32_t *)((char *)ws + sums_at(k));
	r = TE__LAUNCH(stream, ATTN_BWD_PRE, k);
	if (r >= 0 && dsinks)
		r = launch_sinks(stream, k, dsinks);
	if (r >= 0 && k->dbias)
		r = TE__LAUNCH(stream, ATTN_BWD_BIAS, k);
	if (r >= 0 && (!k->more.k || k->dk || k->dv))
		r = TE__LAUNCH(stream, ATTN_BWD_DKV, k);
	return r < 0 ? r : TE__LAUNCH(stream, ATTN_BWD_DQ, k);
}

int te__attention_bwd(struct te_stream *stream, const struct te__attention *a,
		      const struct te_tensor *dy, struct te_tensor *dx, void *ws)
{
	struct te_k_attn_bwd k = {
		ATTN_ARGS(a),
		.dout = te_tensor_data(dy),
		.dqkv = te_tensor_data(dx),
	};

	return te__attention_bwd_launch(stream, &k, ws, NULL);
}

int te__attention_dsinks(struct te_stream *stream, const struct te__attention *a, int64_t batch,
			 const struct te_tensor *dy, const struct te_tensor *dsinks, void *ws)
{
	struct te_k_attn_bwd k = { ATTN_ARGS(a), .dout = te_tensor_data(dy), .delta = ws };
	int r;

	k.seqlen = k.batch * k.seqlen / batch;
	k.batch = batch;
	r = TE__LAUNCH(stream, ATTN_BWD_PRE, &k);
	return r < 0 ? r : launch_sinks(stream, &k, dsinks);
}

/* options and x; other tensors have the extents of x */
static int begin(const char *fn, struct te_stream *stream,
		 const struct te_kernel_attention_opts *opts, struct te__attention *ret,
		 struct te__quantize *ret_z)
{
	struct te_kernel_attention_opts o = TE_KERNEL_ATTENTION_OPTS_INIT;
	int r = te__sized_in(fn, te_kernel_attention_opts, opts, &o);
	struct te__main x;

	if (!r)
		r = te__attention_check(fn, "", o.nheads, o.nkv, o.head_dim, o.scale,
					o.dropout);
	if (!r)
		r = te__attention_check_scores(fn, "", o.window, o.softcap);
	if (!r)
		r = te__attention_check_full(fn, "", o.full, o.right);
	if (!r)
		r = te__arg_main(fn, stream, "x", ret->x, &x);
	if (!r)
		r = te__arg_seq(fn, "x", ret->x);
	if (r < 0)
		return r;
	ret->nheads = o.nheads;
	ret->nkv = o.nkv;
	ret->head_dim = o.head_dim;
	ret->scale = o.scale;
	ret->threshold = te__ops_threshold(o.dropout);
	ret->tag = o.tag;
	ret->rng = o.rng;
	ret->window = o.window;
	ret->softcap = o.softcap;
	ret->full = o.full;
	ret->right = o.right;
	ret->first = o.first;
	*ret_z = TE__QUANTIZE_OF(stream, &o);
	r = te__arg_rng(fn, "dropout", o.dropout, &o.rng);
	if (r < 0 || !ret->threshold)
		return r;
	return te__attention_check_dropout(fn, "", te_tensor_extent(ret->x, -2));
}

/* backward: dy and dx too */
static int check(const char *fn, const struct te_stream *stream, const struct te__attention *a,
		 int backward, const struct te_tensor *dy, const struct te_tensor *dx)
{
	const int64_t rows = te_tensor_rows(a->x), heads = a->nheads, width = heads * a->head_dim;
	const int64_t packed = (heads + 2 * (int64_t)a->nkv) * a->head_dim;
	const int32_t dtype = te_tensor_dtype(a->x);
	const uint32_t out = backward ? 0 : TE__ARG_OUT;
	const struct te__arg args[] = {
		{ "lse", a->lse, TE_DTYPE_FP32, 0, rows * heads, out, 0 },
		{ "x", a->x, dtype, rows, packed, 0, 0 },
		{ "first", a->first, TE_DTYPE_INT32, 0, rows, TE__ARG_NULL, 0 },
		{ "y", a->y, dtype, rows, width, backward ? 0 : out | TE__ARG_NULL, 0 },
		{ "dy", dy, dtype, rows, width, 0, 0 },
		{ "dx", dx, dtype, rows, packed, TE__ARG_OUT, 0 },
	};
	const int n = backward ? 6 : 4;
	int r = te__args(fn, stream, args, n);

	/* last, and of all that have heads */
	if (a->head_dim * te_dtype_nbytes((enum te_dtype)dtype) % 16)
		return r;
	for (int i = 1; i < n && !r; i++)
		if (args[i].t && args[i].t != a->first)
			r = te__arg_aligned(fn, args[i].name, args[i].t);
	return r;
}

static int forward(struct te_stream *stream, struct te__attention *a,
		   const struct te_kernel_attention_opts *opts)
{
	static const char fn[] = "te_kernel_attention_forward";
	struct te__quantize z;
	int r = begin(fn, stream, opts, a, &z);
	struct te_k_attn_fwd k;

	if (!r)
		r = check(fn, stream, a, 0, NULL, NULL);
	if (!r)
		r = te__arg_q_tensor(fn, &z, "y", a->y, te_tensor_rows(a->x),
				     (int64_t)a->nheads * a->head_dim);
	if (r > 0 && te_tensor_dtype(a->x) != TE_DTYPE_BF16)
		return te__fail(-EOPNOTSUPP, "%s: x is %s, this call casts from bf16 only", fn,
				te_dtype_name(te_tensor_dtype(a->x)));
	if (r < 0)
		return r;
	te__attention_fwd_args(a, &k);
	return TE__LAUNCH_CAST(stream, ATTN_FWD, &k, r ? &z : NULL, k.out);
}

int te_kernel_attention_forward(struct te_stream *stream, const struct te_tensor *x,
				struct te_tensor *y, struct te_tensor *lse,
				const struct te_kernel_attention_opts *opts)
{
	struct te__attention a = { .x = x, .y = y, .lse = lse };

	return TE__KERNELS(stream, forward(stream, &a, opts));
}

size_t te_kernel_attention_ws_nbytes(enum te_dtype dtype, int64_t batch, int64_t seqlen,
				     int32_t nheads, int32_t head_dim)
{
	if (batch < 1 || seqlen < 1 || nheads < 1 || head_dim < 1)
		return 0;
	return te__attention_ws_nbytes(1, dtype, batch, seqlen, nheads, head_dim);
}

static int backward(struct te_stream *stream, struct te__attention *a, const struct te_tensor *dy,
		    struct te_tensor *dx, void *ws, size_t ws_nbytes,
		    const struct te_kernel_attention_opts *opts)
{
	static const char fn[] = "te_kernel_attention_backward";
	struct te__quantize z;
	int r = begin(fn, stream, opts, a, &z);

	if (!r && (z.quant || z.y))
		r = te__fail(-EINVAL, "%s: %s is for the forward pass", fn,
			     z.quant ? "quant" : "q");
	if (!r)
		r = check(fn, stream, a, 1, dy, dx);
	if (!r)
		r = te__arg_ws(fn, ws, ws_nbytes,
			       te__attention_ws_nbytes(is_plain(a), te_tensor_dtype(a->x),
						       te_tensor_rows(a->x) /
							       te_tensor_extent(a->x, -2),
						       te_tensor_extent(a->x, -2), a->nheads,
						       a->head_dim));
	return r < 0 ? r : te__attention_bwd(stream, a, dy, dx, ws);
}

int te_kernel_attention_backward(struct te_stream *stream, const struct te_tensor *dy,
				 const struct te_tensor *x, const struct te_tensor *y,
				 const struct te_tensor *lse, struct te_tensor *dx, void *ws,
				 size_t ws_nbytes, const struct te_kernel_attention_opts *opts)
{
	struct te__attention a = { .x = x, .y = y, .lse = lse };

	return TE__KERNELS(stream, backward(stream, &a, dy, dx, ws, ws_nbytes, opts));
}

/* ---- attention to a cache ---- */

/* enough blocks for the multiprocessors of an H200, four times */
#define CACHED_BLOCKS 528

static int32_t nsplits_of(int64_t rows, int32_t nheads, int32_t nkv)
{
	const int64_t size = nheads / nkv;
	const int64_t nblocks = rows * nkv *
				((size + TE_K_ATTN_CACHED_HEADS - 1) / TE_K_ATTN_CACHED_HEADS);
	const int64_t n = CACHED_BLOCKS / nblocks;

	return n > TE_K_ATTN_CACHED_SPLITS ? TE_K_ATTN_CACHED_SPLITS : n > 1 ? (int32_t)n : 0;
}

/* two blocks for each multiprocessor of an H200 */
#define STEP_BLOCKS 264

/* blocks of te_k_attn_step that share the keys of a row: at most STEP_BLOCKS in all, if several */
static int32_t step_parts_of(int64_t rows, int32_t nheads, int32_t nkv)
{
	const int64_t size = nheads / nkv;
	const int64_t nblocks =
		rows * nkv * ((size + TE_K_ATTN_STEP_HEADS - 1) / TE_K_ATTN_STEP_HEADS);
	int32_t n = TE_K_ATTN_STEP_PARTS;

	while (n > 1 && n * nblocks > STEP_BLOCKS)
		n /= 2;
	return n;
}

size_t te__attention_parts_nbytes(const struct te_ctx *ctx, int64_t rows, int32_t nheads,
				  int32_t nkv, int32_t head_dim)
{
	if (!strcmp(te_ctx_backend(ctx), "host"))
		return 0;
	return (size_t)(rows * nheads * nsplits_of(rows, nheads, nkv) * (head_dim + 2)) *
	       sizeof(float);
}

int te__attention_cached(struct te_stream *stream, const struct te__attention *a,
			 const struct te__attention_cache *c, const struct te_k_rope *rope)
{
	struct te_k_attn_step step;
	const int32_t nsplits =
		c->parts ? nsplits_of(te_tensor_rows(a->x), a->nheads, a->nkv) : 0;
	const struct te_k_attn_cached k = {
		.qkv = te_tensor_data(a->x),
		.out = te_tensor_data(a->y),
		.k = te_tensor_data(c->k),
		.v = te_tensor_data(c->v),
		.sequence = te_tensor_data(c->sequence),
		.position = te_tensor_data(c->position),
		.pages = te__ops_ptr(c->pages),
		.noutside = c->noutside,
		.rows = te_tensor_rows(a->x),
		.nseqs = c->pages ? te_tensor_rows(c->pages) : te_tensor_extent(c->k, 0),
		.npages = te_tensor_extent(c->k, 0),
		.page = te_tensor_extent(c->k, 1),
		.max_pages = c->pages ? te_tensor_cols(c->pages) : 1,
		.nheads = a->nheads,
		.nkv = a->nkv,
		.head_dim = a->head_dim,
		.scale = te__attention_scale(a->scale, a->head_dim),
		.dtype = te_tensor_dtype(a->x),
		.cache_dtype = te_tensor_dtype(c->k),
		.window = a->window,
		.softcap = a->softcap,
		.k_scale = te__ops_ptr(c->k_scale),
		.v_scale = te__ops_ptr(c->v_scale),
		.slopes = te__ops_ptr(c->slopes),
		.sinks = te__ops_ptr(a->sinks),
		.parts = nsplits ? c->parts : NULL,
		.ready = nsplits ? c->ready : NULL,
		.nsplits = nsplits,
	};
	int r;

	if (rope) {
		memset(&step, 0, sizeof(step));
		step.c = k;
		step.c.qkv = rope->x;
		step.c.parts = NULL;
		step.c.ready = NULL;
		step.c.nsplits = step_parts_of(k.rows, a->nheads, a->nkv);
		memcpy(step.inv_freq, rope->inv_freq, sizeof(step.inv_freq));
		return TE__LAUNCH(stream, ATTN_STEP, &step);
	}
	r = TE__LAUNCH(stream, ATTN_APPEND, &k);
	return r < 0 ? r : TE__LAUNCH(stream, ATTN_CACHED, &k);
}

static int check_cached(const char *fn, const struct te_stream *stream,
			const struct te__attention *a, const struct te__attention_cache *c)
{
	const int64_t rows = te_tensor_rows(a->x), d = a->head_dim;
	const int32_t dtype = te_tensor_dtype(a->x);
	const int codes = c->k && te_tensor_dtype(c->k) == TE_DTYPE_E4M3;
	const uint32_t scales = codes ? TE__ARG_OUT : TE__ARG_NULL;
	struct te__main k;
	int64_t nblocks;
	int r = codes ? 0 : te__arg_main(fn, stream, "k", c->k, &k);

	if (codes)
		k = (struct te__main){ te_tensor_rows(c->k), te_tensor_cols(c->k), TE_DTYPE_E4M3 };
	if (!r && te_tensor_ndim(c->k) != 3)
		r = te__fail(-TE_ESHAPE, "%s: k has %d extents, expected pages, tokens of a page, "
			     "and heads", fn, te_tensor_ndim(c->k));
	if (!r && !codes && (c->k_scale || c->v_scale))
		r = te__fail(-EINVAL, "%s: %s is given, but k is %s, not e4m3", fn,
			     c->k_scale ? "k_scale" : "v_scale",
			     te_dtype_name((enum te_dtype)k.dtype));
	if (r < 0)
		return r;
	nblocks = k.rows * a->nkv;
	r = te__args(fn, stream, (const struct te__arg[]){
		{ "x", a->x, dtype, rows, (a->nheads + 2 * (int64_t)a->nkv) * d, 0, 0 },
		{ "sequence", c->sequence, TE_DTYPE_INT32, 0, rows, 0, 0 },
		{ "position", c->position, TE_DTYPE_INT32, 0, rows, 0, 0 },
		{ "k", c->k, k.dtype, k.rows, a->nkv * d, TE__ARG_OUT, 0 },
		{ "v", c->v, k.dtype, k.rows, a->nkv * d, TE__ARG_OUT, 0 },
		{ "pages", c->pages, TE_DTYPE_INT32, c->pages ? te_tensor_rows(c->pages) : 0,
		  c->pages ? te_tensor_cols(c->pages) : 0, TE__ARG_NULL, 0 },
		{ "y", a->y, dtype, rows, a->nheads * d, TE__ARG_OUT, 0 },
		{ "k_scale", c->k_scale, TE_DTYPE_UINT8, 0, nblocks, scales, 0 },
		{ "v_scale", c->v_scale, TE_DTYPE_UINT8, 0, nblocks, scales, 0 },
		{ "slopes", c->slopes, TE_DTYPE_FP32, 0, a->nheads, TE__ARG_NULL, 0 },
		{ "sinks", a->sinks, TE_DTYPE_FP32, 0, a->nheads, TE__ARG_NULL, 0 },
	}, 11);
	if (!r && codes && (!te_tensor_data(c->k) || !te_tensor_data(c->v)))
		r = te__fail(-EINVAL, "%s: %s has no row-wise codes", fn,
			     te_tensor_data(c->k) ? "v" : "k");
	if (!r && (te_tensor_ndim(c->v) != 3 ||
		   te_tensor_extent(c->v, 1) != te_tensor_extent(c->k, 1)))
		r = te__fail(-TE_ESHAPE, "%s: v has other extents than k", fn);
	return r;
}

static int cached(struct te_stream *stream, struct te__attention *a, struct te__attention_cache *c,
		  const struct te_kernel_attention_cached_opts *opts)
{
	static const char fn[] = "te_kernel_attention_cached";
	struct te_kernel_attention_cached_opts o = TE_KERNEL_ATTENTION_CACHED_OPTS_INIT;
	struct te__main x;
	int r = te__sized_in(fn, te_kernel_attention_cached_opts, opts, &o);

	if (!r)
		r = te__attention_check(fn, "", o.nheads, o.nkv, o.head_dim, o.scale, 0.0f);
	if (!r)
		r = te__attention_check_scores(fn, "", o.window, o.softcap);
	if (!r)
		r = te__arg_main(fn, stream, "x", a->x, &x);
	if (r < 0)
		return r;
	a->nheads = o.nheads;
	a->nkv = o.nkv;
	a->head_dim = o.head_dim;
	a->scale = o.scale;
	a->window = o.window;
	a->softcap = o.softcap;
	a->sinks = o.sinks;
	c->slopes = o.slopes;
	c->pages = o.pages;
	c->noutside = o.noutside;
	c->k_scale = o.k_scale;
	c->v_scale = o.v_scale;
	r = check_cached(fn, stream, a, c);
	return r < 0 ? r : te__attention_cached(stream, a, c, NULL);
}

int te_kernel_attention_cached(struct te_stream *stream, const struct te_tensor *x,
			       const struct te_tensor *sequence, const struct te_tensor *position,
			       struct te_tensor *k, struct te_tensor *v, struct te_tensor *y,
			       const struct te_kernel_attention_cached_opts *opts)
{
	struct te__attention a = { .x = x, .y = y };
	struct te__attention_cache c = {
		.sequence = sequence, .position = position, .k = k, .v = v
	};

	return TE__KERNELS(stream, cached(stream, &a, &c, opts));
}
