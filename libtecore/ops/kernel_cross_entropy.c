/* kernel_cross_entropy.c - launches of cross-entropy, and te_kernel_cross_entropy_*(). */
#define TE_LOG_CATEGORY "core/kernel"
#include "config.h"

#include <errno.h>

#include "libtecore/ops/common.h"

/* mean and number of row losses */
static int reduce(struct te_stream *stream, const struct te__cross_entropy *e,
		  const float *row_loss, struct te_tensor *loss)
{
	const struct te_k_ce_reduce k = {
		.row_loss = row_loss,
		.targets = te_tensor_data(e->targets),
		.loss = te_tensor_data(loss),
		.count = te_tensor_data(e->count),
		.noutside = &stream->ctx->device_outside->ntargets,
		.rows = te_tensor_nelems(e->targets),
		.nclasses = e->nclasses,
		.ignore_index = e->ignore_index,
	};

	return TE__LAUNCH(stream, CE_REDUCE, &k);
}

int te__cross_entropy_fwd(struct te_stream *stream, const struct te__cross_entropy *e,
			  struct te_tensor *loss, void *ws)
{
	const struct te_k_ce_fwd fwd = {
		.logits = te_tensor_data(e->x),
		.targets = te_tensor_data(e->targets),
		.max_sum = te_tensor_data(e->max_sum),
		.row_loss = ws,
		.rows = te_tensor_rows(e->x),
		.cols = te_tensor_cols(e->x),
		.nclasses = e->nclasses,
		.ignore_index = e->ignore_index,
		.dtype = te_tensor_dtype(e->x),
	};
	int r = TE__LAUNCH(stream, CE_FWD, &fwd);

	return r < 0 ? r : reduce(stream, e, fwd.row_loss, loss);
}

int te__cross_entropy_grad(struct te_stream *stream, const struct te__cross_entropy *e,
			   struct te_tensor *loss, void *dx, const struct te__ce_words *w)
{
	const struct te_k_ce_reduce reduce = {
		.row_loss = w->row_loss,
		.targets = te_tensor_data(e->targets),
		.loss = te_tensor_data(loss),
		.count = w->count,
		.noutside = &stream->ctx->device_outside->ntargets,
		.rows = te_tensor_nelems(e->targets),
		.nclasses = e->nclasses,
		.ignore_index = e->ignore_index,
	};
	const struct te_k_ce_grad grad = {
		.logits = te_tensor_data(e->x),
		.targets = reduce.targets,
		.count = w->count,
		.dlogits = dx,
		.max_sum = w->max_sum,
		.row_loss = w->row_loss,
		.rows = te_tensor_rows(e->x),
		.cols = te_tensor_cols(e->x),
		.nclasses = e->nclasses,
		.ignore_index = e->ignore_index,
		.grad_scale = e->grad_scale,
		.dtype = te_tensor_dtype(e->x),
	};
	int r = TE__LAUNCH(stream, CE_COUNT, &reduce);

	if (r >= 0)
		r = TE__LAUNCH(stream, CE_GRAD, &grad);
	return r < 0 ? r : TE__LAUNCH(stream, CE_REDUCE, &reduce);
}

int te__cross_entropy_bwd(struct te_stream *stream, const struct te__cross_entropy *e,
			  struct te_tensor *dx)
{
	const struct te_k_ce_bwd k = {
		.logits = te_tensor_data(e->x),
		.targets = te_tensor_data(e->targets),
		.max_sum = te_tensor_data(e->max_sum),
		.count = te_tensor_data(e->count),
		.dlogits = te_tensor_data(dx),
		.rows = te_tensor_rows(e->x),
		.cols = te_tensor_cols(e->x),
		.nclasses = e->nclasses,
		.ignore_index = e->ignore_index,
		.grad_scale = e->grad_scale,
		.dtype = te_tensor_dtype(e->x),
		.first = e->first,
	};

	return TE__LAUNCH(stream, CE_BWD, &k);
}

/* options that do not depend on x; nparts, part: the division of the columns */
static int options(const char *fn, const struct te_kernel_cross_entropy_opts *opts,
		   struct te_kernel_cross_entropy_opts *ret)
{
	int r = opts ? te__sized_in(fn, te_kernel_cross_entropy_opts, opts, ret) : 0;

	if (r < 0)
		return r;
	if (!ret->nparts)
		ret->nparts = 1;
	if (ret->nparts < 1 || ret->part < 0 || ret->part >= ret->nparts)
		return te__fail(-EINVAL, "%s: part %d of %d parts", fn, ret->part, ret->nparts);
	if (ret->nclasses < 0 || ret->nclasses > INT32_MAX)
		return te__fail(-EINVAL, "%s: nclasses is %lld, not 1 to %d", fn,
				(long long)ret->nclasses, INT32_MAX);
	if (!isfinite(ret->grad_scale))
		return te__fail(-EINVAL, "%s: grad_scale is %g", fn, (double)ret->grad_scale);
	return 0;
}

/* options and x; other tensors have the extents of x */
static int begin(const char *fn, const struct te_stream *stream,
		 const struct te_kernel_cross_entropy_opts *opts, struct te__cross_entropy *ret,
		 struct te__main *ret_x, struct te_kernel_cross_entropy_opts *ret_o)
{
	struct te_kernel_cross_entropy_opts o = TE_KERNEL_CROSS_ENTROPY_OPTS_INIT;
	int r = options(fn, opts, &o);

	if (!r)
		r = te__arg_main(fn, stream, "x", ret->x, ret_x);
	if (r < 0)
		return r;
	if (!o.nclasses)
		o.nclasses = ret_x->cols * o.nparts;
	if (o.nclasses > INT32_MAX)
		return te__fail(-EINVAL, "%s: nclasses is %lld, not 1 to %d", fn,
				(long long)o.nclasses, INT32_MAX);
	if ((o.nclasses + o.nparts - 1) / o.nparts > ret_x->cols)
		return te__fail(-TE_ESHAPE, "%s: x has %lld columns%s, but nclasses is %lld", fn,
				(long long)ret_x->cols, o.nparts > 1 ? " in each part" : "",
				(long long)o.nclasses);
	ret->nclasses = o.nclasses;
	ret->first = o.part * ret_x->cols;
	ret->ignore_index = o.ignore_index;
	ret->grad_scale = o.grad_scale;
	*ret_o = o;
	return 0;
}

/* the forward pass, or both passes */
static int forward(const char *fn, struct te_stream *stream, struct te__cross_entropy *e,
		   struct te_tensor *loss, int both, struct te_tensor *dx, void *ws,
		   size_t ws_nbytes, const struct te_kernel_cross_entropy_opts *opts)
{
	struct te_kernel_cross_entropy_opts o = TE_KERNEL_CROSS_ENTROPY_OPTS_INIT;
	struct te__main x;
	int r = begin(fn, stream, opts, e, &x, &o);

	if (r < 0)
		return r;
	if (o.nparts > 1)
		return te__fail(-EINVAL, "%s: x has one of %d parts, which are for "
				"te_kernel_cross_entropy_part", fn, o.nparts);
	r = te__args(fn, stream, (const struct te__arg[]){
		{ "x", e->x, x.dtype, x.rows, x.cols, 0, 0 },
		{ "targets", e->targets, TE_DTYPE_INT32, 0, x.rows, 0, 0 },
		{ "loss", loss, TE_DTYPE_FP32, 0, 1, TE__ARG_OUT, 0 },
		{ "max_sum", e->max_sum, TE_DTYPE_FP32, 0, 2 * x.rows, TE__ARG_OUT, 0 },
		{ "count", e->count, TE_DTYPE_FP32, 0, 1, TE__ARG_OUT, 0 },
		{ "dx", dx, x.dtype, x.rows, x.cols, TE__ARG_OUT, 1u << 0 },
	}, both ? 6 : 5);
	if (!r)
		r = te__arg_ws(fn, ws, ws_nbytes, te_kernel_cross_entropy_ws_nbytes(x.rows));
	if (r < 0)
		return r;
	if (!both)
		return te__cross_entropy_fwd(stream, e, loss, ws);
	return te__cross_entropy_grad(stream, e, loss, te_tensor_data(dx), &(struct te__ce_words){
		te_tensor_data(e->max_sum), te_tensor_data(e->count), ws,
	});
}

int te_kernel_cross_entropy_forward(struct te_stream *stream, const struct te_tensor *x,
				    const struct te_tensor *targets, struct te_tensor *loss,
				    struct te_tensor *max_sum, struct te_tensor *count, void *ws,
				    size_t ws_nbytes,
				    const struct te_kernel_cross_entropy_opts *opts)
{
	struct te__cross_entropy e = {
		.x = x, .targets = targets, .max_sum = max_sum, .count = count
	};

	return TE__KERNELS(stream, forward("te_kernel_cross_entropy_forward", stream, &e, loss, 0,
					   NULL, ws, ws_nbytes, opts));
}

int te_kernel_cross_entropy_both(struct te_stream *stream, const struct te_tensor *x,
				 const struct te_tensor *targets, struct te_tensor *loss,
				 struct te_tensor *max_sum, struct te_tensor *count,
				 struct te_tensor *dx, void *ws, size_t ws_nbytes,
				 const struct te_kernel_cross_entropy_opts *opts)
{
	struct te__cross_entropy e = {
		.x = x, .targets = targets, .max_sum = max_sum, .count = count
	};

	return TE__KERNELS(stream, forward("te_kernel_cross_entropy_both", stream, &e, loss, 1, dx,
					   ws, ws_nbytes, opts));
}

size_t te_kernel_cross_entropy_ws_nbytes(int64_t rows)
{
	return rows < 1 ? 0 : (size_t)rows * sizeof(float);
}

static int part(struct te_stream *stream, struct te__cross_entropy *e, struct te_tensor *parts,
		const struct te_kernel_cross_entropy_opts *opts)
{
	static const char fn[] = "te_kernel_cross_entropy_part";
	struct te_kernel_cross_entropy_opts o = TE_KERNEL_CROSS_ENTROPY_OPTS_INIT;
	struct te_k_ce_fwd k;
	struct te__main x;
	int r = begin(fn, stream, opts, e, &x, &o);

	if (r < 0)
		return r;
	r = te__args(fn, stream, (const struct te__arg[]){
		{ "x", e->x, x.dtype, x.rows, x.cols, 0, 0 },
		{ "targets", e->targets, TE_DTYPE_INT32, 0, x.rows, 0, 0 },
		{ "parts", parts, TE_DTYPE_FP32, 0, 3 * o.nparts * x.rows, TE__ARG_OUT, 0 },
	}, 3);
	if (r < 0)
		return r;
	k = (struct te_k_ce_fwd){
		.logits = te_tensor_data(e->x),
		.targets = te_tensor_data(e->targets),
		.max_sum = (float *)te_tensor_data(parts) + 3 * o.part * x.rows,
		.rows = x.rows,
		.cols = x.cols,
		.nclasses = e->nclasses,
		.ignore_index = e->ignore_index,
		.dtype = x.dtype,
		.first = e->first,
		.part = 1,
	};
	k.row_loss = k.max_sum + 2 * x.rows;
	return TE__LAUNCH(stream, CE_FWD, &k);
}

int te_kernel_cross_entropy_part(struct te_stream *stream, const struct te_tensor *x,
				 const struct te_tensor *targets, struct te_tensor *parts,
				 const struct te_kernel_cross_entropy_opts *opts)
{
	struct te__cross_entropy e = { .x = x, .targets = targets };

	return te__stream_queued(stream, part(stream, &e, parts, opts));
}

static int join(struct te_stream *stream, struct te__cross_entropy *e,
		const struct te_tensor *parts, struct te_tensor *loss, void *ws, size_t ws_nbytes,
		const struct te_kernel_cross_entropy_opts *opts)
{
	static const char fn[] = "te_kernel_cross_entropy_join";
	struct te_kernel_cross_entropy_opts o = TE_KERNEL_CROSS_ENTROPY_OPTS_INIT;
	int64_t rows = e->targets ? te_tensor_nelems(e->targets) : 0;
	int r = options(fn, opts, &o);

	if (!r && !o.nclasses)
		r = te__fail(-EINVAL, "%s: nclasses is 0, not 1 to %d", fn, INT32_MAX);
	if (!r)
		r = te__args(fn, stream, (const struct te__arg[]){
			{ "targets", e->targets, TE_DTYPE_INT32, 0, rows, 0, 0 },
			{ "parts", parts, TE_DTYPE_FP32, 0, 3 * o.nparts * rows, 0, 0 },
			{ "loss", loss, TE_DTYPE_FP32, 0, 1, TE__ARG_OUT, 0 },
			{ "max_sum", e->max_sum, TE_DTYPE_FP32, 0, 2 * rows, TE__ARG_OUT, 0 },
			{ "count", e->count, TE_DTYPE_FP32, 0, 1, TE__ARG_OUT, 0 },
		}, 5);
	if (!r)
		r = te__arg_ws(fn, ws, ws_nbytes, te_kernel_cross_entropy_ws_nbytes(rows));
	if (r < 0)
		return r;
	e->nclasses = o.nclasses;
	e->ignore_index = o.ignore_index;
	r = TE__LAUNCH(stream, CE_JOIN, (&(struct te_k_ce_join){
		.parts = te_tensor_data(parts),
		.targets = te_tensor_data(e->targets),
		.max_sum = te_tensor_data(e->max_sum),
		.row_loss = ws,
		.rows = rows,
		.nclasses = o.nclasses,
		.nparts = o.nparts,
		.ignore_index = o.ignore_index,
	}));
	return r < 0 ? r : reduce(stream, e, ws, loss);
}

int te_kernel_cross_entropy_join(struct te_stream *stream, const struct te_tensor *parts,
				 const struct te_tensor *targets, struct te_tensor *loss,
				 struct te_tensor *max_sum, struct te_tensor *count, void *ws,
				 size_t ws_nbytes, const struct te_kernel_cross_entropy_opts *opts)
{
	struct te__cross_entropy e = { .targets = targets, .max_sum = max_sum, .count = count };

	return TE__KERNELS(stream, join(stream, &e, parts, loss, ws, ws_nbytes, opts));
}

static int backward(struct te_stream *stream, struct te__cross_entropy *e, struct te_tensor *dx,
		    const struct te_kernel_cross_entropy_opts *opts)
{
	static const char fn[] = "te_kernel_cross_entropy_backward";
	struct te_kernel_cross_entropy_opts o = TE_KERNEL_CROSS_ENTROPY_OPTS_INIT;
	struct te__main x;
	int r = begin(fn, stream, opts, e, &x, &o);

	if (r < 0)
		return r;
	r = te__args(fn, stream, (const struct te__arg[]){
		{ "x", e->x, x.dtype, x.rows, x.cols, 0, 0 },
		{ "targets", e->targets, TE_DTYPE_INT32, 0, x.rows, 0, 0 },
		{ "max_sum", e->max_sum, TE_DTYPE_FP32, 0, 2 * x.rows, 0, 0 },
		{ "count", e->count, TE_DTYPE_FP32, 0, 1, 0, 0 },
		{ "dx", dx, x.dtype, x.rows, x.cols, TE__ARG_OUT, 1u << 0 },
	}, 5);
	return r < 0 ? r : te__cross_entropy_bwd(stream, e, dx);
}

int te_kernel_cross_entropy_backward(struct te_stream *stream, const struct te_tensor *x,
				     const struct te_tensor *targets,
				     const struct te_tensor *max_sum,
				     const struct te_tensor *count, struct te_tensor *dx,
				     const struct te_kernel_cross_entropy_opts *opts)
{
	struct te__cross_entropy e = {
		.x = x, .targets = targets, .max_sum = max_sum, .count = count
	};

	return te__stream_queued(stream, backward(stream, &e, dx, opts));
}
