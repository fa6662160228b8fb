/* kernel_attend.c - te_kernel_attend_*(): attention on separate queries, keys and values. */
#define TE_LOG_CATEGORY "core/kernel"
#include "config.h"

#include <errno.h>

#include "libtecore/ops/common.h"

static int64_t larger(int64_t x, int64_t y)
{
	return x > y ? x : y;
}

static int check_mask(const char *fn, const struct te_kernel_attend_opts *o)
{
	int r = te__attention_check_scores(fn, "", o->window, o->softcap);

	if (!r)
		r = te__attention_check_full(fn, "", o->full, o->right);
	if (!r && (o->bottom < 0 || o->bottom > 1))
		r = te__fail(-EINVAL, "%s: bottom is %d, not 0 or 1", fn, o->bottom);
	if (!r && (o->layout < TE_ATTEND_BSHD || o->layout > TE_ATTEND_THD))
		r = te__fail(-EINVAL, "%s: layout is %d, not one of enum te_attend_layout", fn,
			     o->layout);
	if (!r && (o->layout == TE_ATTEND_THD) != (o->q_offsets != NULL))
		r = te__fail(-EINVAL, "%s: q_offsets is %s, but layout is %s", fn,
			     o->q_offsets ? "given" : "NULL", o->q_offsets ? "not thd" : "thd");
	if (!r && o->k_offsets && !o->q_offsets)
		r = te__fail(-EINVAL, "%s: k_offsets is given, but q_offsets is NULL", fn);
	if (!r && o->flags)
		r = te__fail(-EINVAL, "%s: flags are 0x%x, not 0", fn, o->flags);
	if (!r && o->dsinks && !o->sinks)
		r = te__fail(-EINVAL, "%s: dsinks is given, but sinks is NULL", fn);
	if (!r && o->dbias && !o->bias)
		r = te__fail(-EINVAL, "%s: dbias is given, but bias is NULL", fn);
	return r;
}

/* the extents of t: sequences, or 1, and tokens of each */
static int find_extents(const char *fn, const char *name, const struct te_tensor *t, int32_t layout,
			int64_t *ret_batch, int64_t *ret_ntokens)
{
	const int sbhd = layout == TE_ATTEND_SBHD;
	int r = layout == TE_ATTEND_THD ? 0 : te__arg_seq(fn, name, t);

	if (r < 0)
		return r;
	if (sbhd && te_tensor_ndim(t) != 3)
		return te__fail(-TE_ESHAPE, "%s: %s has %d extents, layout sbhd takes 3", fn, name,
				te_tensor_ndim(t));
	*ret_batch = 1;
	*ret_ntokens = te_tensor_rows(t);
	if (layout != TE_ATTEND_THD) {
		*ret_ntokens = te_tensor_extent(t, sbhd ? 0 : -2);
		*ret_batch = te_tensor_rows(t) / *ret_ntokens;
	}
	return 0;
}

static int check_heads(const char *fn, const char *name, const struct te_tensor *t, int64_t at,
		       int64_t nheads, int64_t head_dim)
{
	if (at < 0 || at > te_tensor_cols(t) - nheads * head_dim)
		return te__fail(-TE_ESHAPE, "%s: %s has %lld columns, too few for %lld heads of "
				"%lld from column %lld on", fn, name, (long long)te_tensor_cols(t),
				(long long)nheads, (long long)head_dim, (long long)at);
	return 0;
}

/* options and the extents of q, k and v */
static int begin(const char *fn, struct te_stream *stream,
		 const struct te_kernel_attend_opts *opts, struct te__attend *a)
{
	struct te_kernel_attend_opts *o = &a->o;
	int r = te__sized_in(fn, te_kernel_attend_opts, opts, o);
	int64_t vbatch = 0, vlen = 0, kbatch = 0;
	struct te__main m;

	if (!r)
		r = te__attention_check(fn, "", o->nheads, o->nkv, o->head_dim, o->scale,
					o->dropout);
	if (!r && (o->head_dim_v < 0 || o->head_dim_v > TE_K_ATTN_MAX_HEAD_DIM))
		r = te__fail(-EINVAL, "%s: head_dim_v is %d, not 0 to %d", fn, o->head_dim_v,
			     TE_K_ATTN_MAX_HEAD_DIM);
	if (!r)
		r = check_mask(fn, o);
	if (!r)
		r = te__arg_main(fn, stream, "q", a->q, &m);
	if (!r && (!a->k || !a->v))
		r = te__fail(-EINVAL, "%s: %s is NULL", fn, a->k ? "v" : "k");
	if (r < 0)
		return r;
	a->dtype = m.dtype;
	o->head_dim_v = o->head_dim_v ? o->head_dim_v : o->head_dim;
	r = find_extents(fn, "q", a->q, o->layout, &a->batch, &a->qlen);
	if (!r)
		r = find_extents(fn, "k", a->k, o->layout, &kbatch, &a->klen);
	if (!r)
		r = find_extents(fn, "v", a->v, o->layout, &vbatch, &vlen);
	if (!r && (kbatch != a->batch || vbatch != kbatch || vlen != a->klen))
		r = te__fail(-TE_ESHAPE, "%s: q, k and v have %lld, %lld and %lld sequences of "
			     "%lld, %lld and %lld tokens", fn, (long long)a->batch,
			     (long long)kbatch, (long long)vbatch, (long long)a->qlen,
			     (long long)a->klen, (long long)vlen);
	if (!r && o->q_offsets && !o->k_offsets && a->qlen != a->klen)
		r = te__fail(-TE_ESHAPE, "%s: k_offsets is NULL, but q has %lld tokens and k %lld",
			     fn, (long long)a->qlen, (long long)a->klen);
	if (!r)
		r = check_heads(fn, "q", a->q, o->q_at, o->nheads, o->head_dim);
	if (!r)
		r = check_heads(fn, "k", a->k, o->k_at, o->nkv, o->head_dim);
	if (!r)
		r = check_heads(fn, "v", a->v, o->v_at, o->nkv, o->head_dim_v);
	if (!r)
		r = te__arg_rng(fn, "dropout", o->dropout, &o->rng);
	if (!r && te__ops_threshold(o->dropout))
		r = te__attention_check_dropout(fn, "", larger(a->qlen, a->klen));
	return r;
}

/* do two gradients in one tensor have columns in common? */
static int check_apart(const char *fn, const char *x, const char *y, const struct te_tensor *tx,
		       const struct te_tensor *ty, int64_t xat, int64_t nx, int64_t yat, int64_t ny)
{
	if (!tx || !ty || te_tensor_data(tx) != te_tensor_data(ty))
		return 0;
	if (te_tensor_cols(tx) != te_tensor_cols(ty))
		return te__fail(-EINVAL, "%s: %s and %s are of one memory, but have %lld and %lld "
				"columns", fn, x, y, (long long)te_tensor_cols(tx),
				(long long)te_tensor_cols(ty));
	if (xat + nx <= yat || yat + ny <= xat)
		return 0;
	return te__fail(-EINVAL, "%s: %s and %s are columns of one tensor, and overlap", fn, x, y);
}

enum {
	LSE,
	Q,
	K,
	VAL,
	OUT,
	BIAS,
	SLOPES,
	SINKS,
	QOFF,
	KOFF,
	DOUT, /* and up: backward */
	DQ,
	DK,
	DV,
	DBIAS,
	DSINKS,
	NARGS
};

/* backward: the gradients, too */
static int check(const char *fn, const struct te_stream *stream, const struct te__attend *a,
		 const struct te_tensor *dout)
{
	const struct te_kernel_attend_opts *o = &a->o;
	const struct te_tensor *const *d = a->d;
	const int64_t qrows = a->batch * a->qlen, krows = a->batch * a->klen, h = o->nheads;
	const int64_t width = h * o->head_dim_v, nq = h * o->head_dim;
	const int64_t nk = (int64_t)o->nkv * o->head_dim, nv = (int64_t)o->nkv * o->head_dim_v;
	const int64_t one = a->qlen * a->klen, nseqs = o->q_offsets ?
		te_tensor_nelems(o->q_offsets) : 0;
	const int64_t nbias = o->bias && te_tensor_nelems(o->bias) != one ? h * one : one;
	const uint32_t out = d ? 0 : TE__ARG_OUT, both = 1u << DQ | 1u << DK | 1u << DV;
	const struct te__arg args[NARGS] = {
		[LSE] = { "lse", a->lse, TE_DTYPE_FP32, 0, qrows * h, out, 0 },
		[Q] = { "q", a->q, a->dtype, qrows, te_tensor_cols(a->q), 0, 0 },
		[K] = { "k", a->k, a->dtype, krows, te_tensor_cols(a->k), 0, 0 },
		[VAL] = { "v", a->v, a->dtype, krows, te_tensor_cols(a->v), 0, 0 },
		[OUT] = { "out", a->out, a->dtype, qrows, width, out, 0 },
		[BIAS] = { "bias", o->bias, TE_DTYPE_FP32, 0, nbias, TE__ARG_NULL, 0 },
		[SLOPES] = { "slopes", o->slopes, TE_DTYPE_FP32, 0, h, TE__ARG_NULL, 0 },
		[SINKS] = { "sinks", o->sinks, TE_DTYPE_FP32, 0, h, TE__ARG_NULL, 0 },
		[QOFF] = { "q_offsets", o->q_offsets, TE_DTYPE_INT32, 0, nseqs, TE__ARG_NULL, 0 },
		[KOFF] = { "k_offsets", o->k_offsets, TE_DTYPE_INT32, 0, nseqs, TE__ARG_NULL, 0 },
		[DOUT] = { "dout", dout, a->dtype, qrows, width, 0, 0 },
		[DQ] = { "dq", d ? d[0] : NULL, a->dtype, qrows, te_tensor_cols(a->q), TE__ARG_OUT,
			 both },
		[DK] = { "dk", d ? d[1] : NULL, a->dtype, krows, te_tensor_cols(a->k), TE__ARG_OUT,
			 both },
		[DV] = { "dv", d ? d[2] : NULL, a->dtype, krows, te_tensor_cols(a->v), TE__ARG_OUT,
			 both },
		[DBIAS] = { "dbias", o->dbias, TE_DTYPE_FP32, 0, nbias, TE__ARG_OUT | TE__ARG_NULL,
			    0 },
		[DSINKS] = { "dsinks", o->dsinks, TE_DTYPE_FP32, 0, h, TE__ARG_OUT | TE__ARG_NULL,
			     0 },
	};
	int r = te__args(fn, stream, args, d ? NARGS : DOUT);

	if (!r && nseqs == 1)
		r = te__fail(-TE_ESHAPE, "%s: q_offsets has 1 element, of no sequence", fn);
	if (!r && d)
		r = check_apart(fn, "dq", "dk", d[0], d[1], o->q_at, nq, o->k_at, nk);
	if (!r && d)
		r = check_apart(fn, "dq", "dv", d[0], d[2], o->q_at, nq, o->v_at, nv);
	if (!r && d)
		r = check_apart(fn, "dk", "dv", d[1], d[2], o->k_at, nk, o->v_at, nv);
	for (int i = Q; i < (d ? NARGS : DOUT) && !r; i++)
		if (args[i].t && (i <= OUT || (i >= DOUT && i <= DV)) &&
		    o->head_dim * te_dtype_nbytes((enum te_dtype)a->dtype) % 16 == 0)
			r = te__arg_aligned(fn, args[i].name, args[i].t);
	return r;
}

/* strides of a tensor of cols columns */
static struct te_k_strides strides_of(const struct te__attend *a, int64_t cols, int64_t ntokens,
				      int64_t head_dim)
{
	if (a->o.layout == TE_ATTEND_SBHD)
		return (struct te_k_strides){ cols, a->batch * cols, head_dim };
	return (struct te_k_strides){ ntokens * cols, cols, head_dim };
}

/* the element at column `at` of t, or NULL */
static void *column(const struct te__attend *a, const struct te_tensor *t, int64_t at)
{
	const int64_t nbytes = (int64_t)te_dtype_nbytes((enum te_dtype)a->dtype);

	return t ? (char *)te_tensor_data(t) + at * nbytes : NULL;
}

/* is all of it one tensor, as te_kernel_attention_forward() takes it? */
static int is_packed(const struct te__attend *a)
{
	const struct te_kernel_attend_opts *o = &a->o;
	const void *x = te_tensor_data(a->q);
	const int64_t nq = (int64_t)o->nheads * o->head_dim, nk = (int64_t)o->nkv * o->head_dim;

	return x == te_tensor_data(a->k) && x == te_tensor_data(a->v) &&
	       (!a->d || (a->d[0] == a->d[1] && a->d[1] == a->d[2])) &&
	       o->layout != TE_ATTEND_SBHD && o->head_dim_v == o->head_dim && !o->q_at &&
	       o->k_at == nq && o->v_at == nq + nk && te_tensor_cols(a->q) == nq + 2 * nk &&
	       te_tensor_cols(a->k) == te_tensor_cols(a->q) &&
	       te_tensor_cols(a->v) == te_tensor_cols(a->q) && a->klen == a->qlen;
}

static struct te_k_attn_more more_of(const struct te__attend *a)
{
	const struct te_kernel_attend_opts *o = &a->o;
	struct te_k_attn_more m = {
		.q_offsets = te__ops_ptr(o->q_offsets),
		.k_offsets = te__ops_ptr(o->k_offsets),
		.nseqs = o->q_offsets ? (int32_t)te_tensor_nelems(o->q_offsets) - 1 : 0,
		.bias = te__ops_ptr(o->bias),
		.slopes = te__ops_ptr(o->slopes),
		.sinks = te__ops_ptr(o->sinks),
		.right = o->right,
	};

	if (o->bias && te_tensor_nelems(o->bias) != a->qlen * a->klen)
		m.bias_head = a->qlen * a->klen;
	m.bottom = o->bottom && (a->qlen != a->klen || o->k_offsets);
	if (is_packed(a))
		return m;
	m.k = column(a, a->k, o->k_at);
	m.v = column(a, a->v, o->v_at);
	m.qs = strides_of(a, te_tensor_cols(a->q), a->qlen, o->head_dim);
	m.ks = strides_of(a, te_tensor_cols(a->k), a->klen, o->head_dim);
	m.vs = strides_of(a, te_tensor_cols(a->v), a->klen, o->head_dim_v);
	m.os = strides_of(a, (int64_t)o->nheads * o->head_dim_v, a->qlen, o->head_dim_v);
	m.klen = a->klen;
	m.head_dim_v = o->head_dim_v;
	return m;
}

/* arguments of both passes' kernels; a window of all tokens is none */
#define ATTEND_ARGS(a)                                                                        \
	.qkv = column(a, (a)->q, (a)->o.q_at), .out = te__ops_ptr((a)->out),                   \
	.lse = te_tensor_data((a)->lse), .seed = (a)->o.rng.seed,                              \
	.offset = (a)->o.rng.offset, .batch = (a)->batch, .seqlen = (a)->qlen,                 \
	.nheads = (a)->o.nheads, .nkv = (a)->o.nkv, .head_dim = (a)->o.head_dim,               \
	.scale = te__attention_scale((a)->o.scale, (a)->o.head_dim),                           \
	.threshold = te__ops_threshold((a)->o.dropout), .tag = (a)->o.tag,                     \
	.dtype = (a)->dtype, .softcap = (a)->o.softcap, .full = (a)->o.full,                   \
	.first = te__ops_ptr((a)->first), .first_head = (a)->first_head,                       \
	.other_heads = (a)->other_heads,                                                       \
	.window = (a)->o.window < larger((a)->qlen, (a)->klen) ? (a)->o.window : 0,            \
	.more = more_of(a)

void te__attend_fwd_args(const struct te__attend *a, struct te_k_attn_fwd *ret)
{
	*ret = (struct te_k_attn_fwd){ ATTEND_ARGS(a) };
}

void te__attend_bwd_args(const struct te__attend *a, const struct te_tensor *dout,
			 struct te_k_attn_bwd *ret)
{
	*ret = (struct te_k_attn_bwd){
		ATTEND_ARGS(a),
		.dout = te_tensor_data(dout),
		.dqkv = column(a, a->d[0], a->o.q_at),
		.dk = column(a, a->d[1], a->o.k_at),
		.dv = column(a, a->d[2], a->o.v_at),
		.dbias = te__ops_ptr(a->o.dbias),
	};
}

size_t te__attend_dbias_ws(int64_t nlse, int64_t nbias)
{
	return te__ops_round_up((size_t)nlse * sizeof(float)) + (size_t)nbias * sizeof(float);
}

int te__attend_dbias(struct te_stream *stream, struct te__attend *a, const struct te_tensor *dout,
		     struct te_tensor *dbias, void *ws)
{
	const struct te_tensor *const none[3] = { NULL };
	struct te_k_attn_bwd k;
	int r;

	a->d = none;
	te__attend_bwd_args(a, dout, &k);
	k.delta = ws;
	k.dbias = (float *)(void *)((char *)ws +
				    te__attend_dbias_ws(te_tensor_nelems(a->lse), 0));
	r = TE__LAUNCH(stream, ATTN_BWD_PRE, &k);
	if (r >= 0)
		r = TE__LAUNCH(stream, ATTN_BWD_BIAS, &k);
	return r < 0 ? r : te__part_sum(stream, k.dbias, dbias, 1, te_tensor_nelems(dbias));
}

static int forward(struct te_stream *stream, struct te__attend *a,
		   const struct te_kernel_attend_opts *opts)
{
	static const char fn[] = "te_kernel_attend_forward";
	int r = begin(fn, stream, opts, a);
	struct te_k_attn_fwd k;

	if (!r && (a->o.dbias || a->o.dsinks))
		r = te__fail(-EINVAL, "%s: %s is for the backward pass", fn,
			     a->o.dbias ? "dbias" : "dsinks");
	if (!r)
		r = check(fn, stream, a, NULL);
	if (r < 0)
		return r;
	te__attend_fwd_args(a, &k);
	return TE__LAUNCH(stream, ATTN_FWD, &k);
}

int te_kernel_attend_forward(struct te_stream *stream, const struct te_tensor *q,
			     const struct te_tensor *k, const struct te_tensor *v,
			     struct te_tensor *out, struct te_tensor *lse,
			     const struct te_kernel_attend_opts *opts)
{
	struct te__attend a = {
		.o = TE_KERNEL_ATTEND_OPTS_INIT, .q = q, .k = k, .v = v, .out = out, .lse = lse,
	};

	return TE__KERNELS(stream, forward(stream, &a, opts));
}

static int backward(struct te_stream *stream, struct te__attend *a, const struct te_tensor *dout,
		    void *ws, size_t ws_nbytes, const struct te_kernel_attend_opts *opts)
{
	static const char fn[] = "te_kernel_attend_backward";
	int r = begin(fn, stream, opts, a);
	struct te_k_attn_bwd k;

	if (!r)
		r = check(fn, stream, a, dout);
	if (!r)
		r = te__arg_ws(fn, ws, ws_nbytes,
			       te__attention_ws_nbytes(1, (enum te_dtype)a->dtype, a->batch,
						       a->qlen, a->o.nheads, a->o.head_dim));
	if (r < 0)
		return r;
	te__attend_bwd_args(a, dout, &k);
	return te__attention_bwd_launch(stream, &k, ws, a->o.dsinks);
}

int te_kernel_attend_backward(struct te_stream *stream, const struct te_tensor *dout,
			      const struct te_tensor *q, const struct te_tensor *k,
			      const struct te_tensor *v, const struct te_tensor *out,
			      const struct te_tensor *lse, struct te_tensor *dq,
			      struct te_tensor *dk, struct te_tensor *dv, void *ws,
			      size_t ws_nbytes, const struct te_kernel_attend_opts *opts)
{
	const struct te_tensor *const d[3] = { dq, dk, dv };
	struct te__attend a = {
		.o = TE_KERNEL_ATTEND_OPTS_INIT, .q = q, .k = k, .v = v, .out = out, .lse = lse,
		.d = d,
	};

	return TE__KERNELS(stream, backward(stream, &a, dout, ws, ws_nbytes, opts));
}
