/* kernel_cross_entropy.c - launches of cross-entropy, and te_kernel_cross_entropy_*(). */
#define TE_LOG_CATEGORY "core/kernel"
#include "config.h"

#include <errno.h>

#include "libtecore/ops/common.h"

int te__cross_entropy_fwd(struct te_stream *stream, const struct te__cross_entropy *e,
			  struct te_tensor *loss, void *ws)
{
	const struct te_k_ce_fwd fwd = {
		.logits = te_tensor_data(e->x),
		.targets = te_tensor_data(e->targets),
		.lse = te_tensor_data(e->lse),
		.row_loss = ws,
		.rows = te_tensor_rows(e->x),
		.cols = te_tensor_cols(e->x),
		.nclasses = e->nclasses,
		.ignore_index = e->ignore_index,
		.dtype = te_tensor_dtype(e->x),
	};
	const struct te_k_ce_reduce reduce = {
		.row_loss = fwd.row_loss,
		.targets = fwd.targets,
		.loss = te_tensor_data(loss),
		.count = te_tensor_data(e->count),
		.rows = fwd.rows,
		.nclasses = e->nclasses,
		.ignore_index = e->ignore_index,
	};
	int r = TE__LAUNCH(stream, CE_FWD, &fwd);

	return r < 0 ? r : TE__LAUNCH(stream, CE_REDUCE, &reduce);
}

int te__cross_entropy_bwd(struct te_stream *stream, const struct te__cross_entropy *e,
			  struct te_tensor *dx)
{
	const struct te_k_ce_bwd k = {
		.logits = te_tensor_data(e->x),
		.targets = te_tensor_data(e->targets),
		.lse = te_tensor_data(e->lse),
		.count = te_tensor_data(e->count),
		.dlogits = te_tensor_data(dx),
		.rows = te_tensor_rows(e->x),
		.cols = te_tensor_cols(e->x),
		.nclasses = e->nclasses,
		.ignore_index = e->ignore_index,
		.grad_scale = e->grad_scale,
		.dtype = te_tensor_dtype(e->x),
	};

	return TE__LAUNCH(stream, CE_BWD, &k);
}

/* options and x; the extents of the others are those of x */
static int begin(const char *fn, const struct te_stream *stream,
		 const struct te_kernel_cross_entropy_opts *opts, struct te__cross_entropy *ret,
		 struct te__main *ret_x)
{
	struct te_kernel_cross_entropy_opts o = TE_KERNEL_CROSS_ENTROPY_OPTS_INIT;
	int r = opts ? te__sized_in(fn, te_kernel_cross_entropy_opts, opts, &o) : 0;

	if (!r)
		r = te__arg_main(fn, stream, "x", ret->x, ret_x);
	if (r < 0)
		return r;
	if (!o.nclasses)
		o.nclasses = ret_x->cols;
	if (o.nclasses < 1 || o.nclasses > INT32_MAX)
		return te__fail(-EINVAL, "%s: nclasses is %lld, not 1 to %d", fn,
				(long long)o.nclasses, INT32_MAX);
	if (o.nclasses > ret_x->cols)
		return te__fail(-TE_ESHAPE, "%s: x has %lld columns, but nclasses is %lld", fn,
				(long long)ret_x->cols, (long long)o.nclasses);
	if (!isfinite(o.grad_scale))
		return te__fail(-EINVAL, "%s: grad_scale is %g", fn, (double)o.grad_scale);
	ret->nclasses = o.nclasses;
	ret->ignore_index = o.ignore_index;
	ret->grad_scale = o.grad_scale;
	return 0;
}

static int forward(struct te_stream *stream, struct te__cross_entropy *e, struct te_tensor *loss,
		   void *ws, size_t ws_nbytes, const struct te_kernel_cross_entropy_opts *opts)
{
	static const char fn[] = "te_kernel_cross_entropy_forward";
	struct te__main x;
	int r = begin(fn, stream, opts, e, &x);

	if (r < 0)
		return r;
	r = te__args(fn, stream, (const struct te__arg[]){
		{ "x", e->x, x.dtype, x.rows, x.cols, 0, 0 },
		{ "targets", e->targets, TE_DTYPE_INT32, 0, x.rows, 0, 0 },
		{ "loss", loss, TE_DTYPE_FP32, 0, 1, TE__ARG_OUT, 0 },
		{ "lse", e->lse, TE_DTYPE_FP32, 0, x.rows, TE__ARG_OUT, 0 },
		{ "count", e->count, TE_DTYPE_FP32, 0, 1, TE__ARG_OUT, 0 },
	}, 5);
	if (!r)
		r = te__arg_ws(fn, ws, ws_nbytes, te_kernel_cross_entropy_ws_nbytes(x.rows));
	return r < 0 ? r : te__cross_entropy_fwd(stream, e, loss, ws);
}

int te_kernel_cross_entropy_forward(struct te_stream *stream, const struct te_tensor *x,
				    const struct te_tensor *targets, struct te_tensor *loss,
				    struct te_tensor *lse, struct te_tensor *count, void *ws,
				    size_t ws_nbytes,
				    const struct te_kernel_cross_entropy_opts *opts)
{
	struct te__cross_entropy e = { .x = x, .targets = targets, .lse = lse, .count = count };

	return te__kernel_queued(stream, forward(stream, &e, loss, ws, ws_nbytes, opts));
}

size_t te_kernel_cross_entropy_ws_nbytes(int64_t rows)
{
	return rows < 1 ? 0 : (size_t)rows * sizeof(float);
}

static int backward(struct te_stream *stream, struct te__cross_entropy *e, struct te_tensor *dx,
		    const struct te_kernel_cross_entropy_opts *opts)
{
	static const char fn[] = "te_kernel_cross_entropy_backward";
	struct te__main x;
	int r = begin(fn, stream, opts, e, &x);

	if (r < 0)
		return r;
	r = te__args(fn, stream, (const struct te__arg[]){
		{ "x", e->x, x.dtype, x.rows, x.cols, 0, 0 },
		{ "targets", e->targets, TE_DTYPE_INT32, 0, x.rows, 0, 0 },
		{ "lse", e->lse, TE_DTYPE_FP32, 0, x.rows, 0, 0 },
		{ "count", e->count, TE_DTYPE_FP32, 0, 1, 0, 0 },
		{ "dx", dx, x.dtype, x.rows, x.cols, TE__ARG_OUT, 1u << 0 },
	}, 5);
	return r < 0 ? r : te__cross_entropy_bwd(stream, e, dx);
}

int te_kernel_cross_entropy_backward(struct te_stream *stream, const struct te_tensor *x,
				     const struct te_tensor *targets, const struct te_tensor *lse,
				     const struct te_tensor *count, struct te_tensor *dx,
				     const struct te_kernel_cross_entropy_opts *opts)
{
	struct te__cross_entropy e = { .x = x, .targets = targets, .lse = lse, .count = count };

	return te__kernel_queued(stream, backward(stream, &e, dx, opts));
}
