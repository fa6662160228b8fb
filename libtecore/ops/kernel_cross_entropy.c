/* kernel_cross_entropy.c - launches of cross-entropy, and te_kernel_cross_entropy_*(). */
#define TE_LOG_CATEGORY "core/kernel"
#include "config.h"

#include <errno.h>

#include "libtecore/ops/common.h"

int te__ce_fwd(struct te_stream *stream, const struct te__ce *e)
{
	return TE__LAUNCH(stream, CE_FWD, (&(struct te_k_ce_fwd){
		.logits = e->logits,
		.targets = e->targets,
		.max_sum = e->max_sum,
		.row_loss = e->row_loss,
		.rows = e->rows,
		.cols = e->cols,
		.nclasses = e->nclasses,
		.ignore_index = e->ignore_index,
		.dtype = e->dtype,
		.first = e->first,
		.part = e->part,
	}));
}

int te__ce_bwd(struct te_stream *stream, const struct te__ce *e, void *dlogits)
{
	return TE__LAUNCH(stream, CE_BWD, (&(struct te_k_ce_bwd){
		.logits = e->logits,
		.targets = e->targets,
		.max_sum = e->max_sum,
		.count = e->count,
		.dlogits = dlogits,
		.rows = e->rows,
		.cols = e->cols,
		.nclasses = e->nclasses,
		.ignore_index = e->ignore_index,
		.grad_scale = e->grad_scale,
		.dtype = e->dtype,
		.first = e->first,
	}));
}

int te__ce_grad(struct te_stream *stream, const struct te__ce *e, void *dlogits)
{
	return TE__LAUNCH(stream, CE_GRAD, (&(struct te_k_ce_grad){
		.logits = e->logits,
		.targets = e->targets,
		.count = e->count,
		.dlogits = dlogits,
		.max_sum = e->max_sum,
		.row_loss = e->row_loss,
		.rows = e->rows,
		.cols = e->cols,
		.nclasses = e->nclasses,
		.ignore_index = e->ignore_index,
		.grad_scale = e->grad_scale,
		.dtype = e->dtype,
	}));
}

static struct te_k_ce_reduce reduce_args(const struct te_stream *stream, const struct te__ce *e)
{
	return (struct te_k_ce_reduce){
		.row_loss = e->row_loss,
		.targets = e->targets,
		.loss = e->loss,
		.count = e->count,
		.noutside = &stream->ctx->device_outside->ntargets,
		.rows = e->rows,
		.nclasses = e->nclasses,
		.ignore_index = e->ignore_index,
	};
}

int te__ce_count(struct te_stream *stream, const struct te__ce *e)
{
	const struct te_k_ce_reduce k = reduce_args(stream, e);

	return TE__LAUNCH(stream, CE_COUNT, &k);
}

int te__ce_reduce(struct te_stream *stream, const struct te__ce *e)
{
	const struct te_k_ce_reduce k = reduce_args(stream, e);

	return TE__LAUNCH(stream, CE_REDUCE, &k);
}

int te__ce_whole(struct te_stream *stream, const struct te__ce *e, void *dlogits)
{
	int r = te__ce_count(stream, e);

	if (r >= 0)
		r = te__ce_grad(stream, e, dlogits);
	return r < 0 ? r : te__ce_reduce(stream, e);
}

/* tensors of a call, NULL where it has none */
struct tensors {
	const struct te_tensor *x, *targets, *max_sum, *count;
	struct te_tensor *loss, *dx;
};

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
		 const struct te_kernel_cross_entropy_opts *opts, const struct tensors *t,
		 struct te__ce *ret, struct te_kernel_cross_entropy_opts *ret_o)
{
	struct te_kernel_cross_entropy_opts o = TE_KERNEL_CROSS_ENTROPY_OPTS_INIT;
	struct te__main x;
	int r = options(fn, opts, &o);

	if (!r)
		r = te__arg_main(fn, stream, "x", t->x, &x);
	if (r < 0)
		return r;
	if (!o.nclasses)
		o.nclasses = x.cols * o.nparts;
	if (o.nclasses > INT32_MAX)
		return te__fail(-EINVAL, "%s: nclasses is %lld, not 1 to %d", fn,
				(long long)o.nclasses, INT32_MAX);
	if ((o.nclasses + o.nparts - 1) / o.nparts > x.cols)
		return te__fail(-TE_ESHAPE, "%s: x has %lld columns%s, but nclasses is %lld", fn,
				(long long)x.cols, o.nparts > 1 ? " in each part" : "",
				(long long)o.nclasses);
	*ret = (struct te__ce){
		.logits = te_tensor_data(t->x),
		.targets = te__ops_ptr(t->targets),
		.max_sum = te__ops_ptr(t->max_sum),
		.count = te__ops_ptr(t->count),
		.loss = te__ops_ptr(t->loss),
		.rows = x.rows,
		.cols = x.cols,
		.nclasses = o.nclasses,
		.first = o.part * x.cols,
		.ignore_index = o.ignore_index,
		.dtype = x.dtype,
		.grad_scale = o.grad_scale,
	};
	*ret_o = o;
	return 0;
}

/* the forward pass, or both passes */
static int forward(const char *fn, struct te_stream *stream, const struct tensors *t, int both,
		   void *ws, size_t ws_nbytes, const struct te_kernel_cross_entropy_opts *opts)
{
	struct te_kernel_cross_entropy_opts o;
	struct te__ce e;
	int r = begin(fn, stream, opts, t, &e, &o);

	if (r < 0)
		return r;
	if (o.nparts > 1)
		return te__fail(-EINVAL, "%s: x has one of %d parts, which are for "
				"te_kernel_cross_entropy_part", fn, o.nparts);
	r = te__args(fn, stream, (const struct te__arg[]){
		{ "x", t->x, e.dtype, e.rows, e.cols, 0, 0 },
		{ "targets", t->targets, TE_DTYPE_INT32, 0, e.rows, 0, 0 },
		{ "loss", t->loss, TE_DTYPE_FP32, 0, 1, TE__ARG_OUT, 0 },
		{ "max_sum", t->max_sum, TE_DTYPE_FP32, 0, 2 * e.rows, TE__ARG_OUT, 0 },
		{ "count", t->count, TE_DTYPE_FP32, 0, 1, TE__ARG_OUT, 0 },
		{ "dx", t->dx, e.dtype, e.rows, e.cols, TE__ARG_OUT, 1u << 0 },
	}, both ? 6 : 5);
	if (!r)
		r = te__arg_ws(fn, ws, ws_nbytes, te_kernel_cross_entropy_ws_nbytes(e.rows));
	if (r < 0)
		return r;
	e.row_loss = ws;
	if (both)
		return te__ce_whole(stream, &e, te_tensor_data(t->dx));
	r = te__ce_fwd(stream, &e);
	return r < 0 ? r : te__ce_reduce(stream, &e);
}

int te_kernel_cross_entropy_forward(struct te_stream *stream, const struct te_tensor *x,
				    const struct te_tensor *targets, struct te_tensor *loss,
				    struct te_tensor *max_sum, struct te_tensor *count, void *ws,
				    size_t ws_nbytes,
				    const struct te_kernel_cross_entropy_opts *opts)
{
	const struct tensors t = { x, targets, max_sum, count, loss, NULL };

	return TE__KERNELS(stream, forward("te_kernel_cross_entropy_forward", stream, &t, 0, ws,
					   ws_nbytes, opts));
}

int te_kernel_cross_entropy_both(struct te_stream *stream, const struct te_tensor *x,
				 const struct te_tensor *targets, struct te_tensor *loss,
				 struct te_tensor *max_sum, struct te_tensor *count,
				 struct te_tensor *dx, void *ws, size_t ws_nbytes,
				 const struct te_kernel_cross_entropy_opts *opts)
{
	const struct tensors t = { x, targets, max_sum, count, loss, dx };

	return TE__KERNELS(stream, forward("te_kernel_cross_entropy_both", stream, &t, 1, ws,
					   ws_nbytes, opts));
}

size_t te_kernel_cross_entropy_ws_nbytes(int64_t rows)
{
	return rows < 1 ? 0 : (size_t)rows * sizeof(float);
}

static int part(struct te_stream *stream, const struct tensors *t, struct te_tensor *parts,
		const struct te_kernel_cross_entropy_opts *opts)
{
	static const char fn[] = "te_kernel_cross_entropy_part";
	struct te_kernel_cross_entropy_opts o;
	struct te__ce e;
	int r = begin(fn, stream, opts, t, &e, &o);

	if (r < 0)
		return r;
	r = te__args(fn, stream, (const struct te__arg[]){
		{ "x", t->x, e.dtype, e.rows, e.cols, 0, 0 },
		{ "targets", t->targets, TE_DTYPE_INT32, 0, e.rows, 0, 0 },
		{ "parts", parts, TE_DTYPE_FP32, 0, 3 * o.nparts * e.rows, TE__ARG_OUT, 0 },
	}, 3);
	if (r < 0)
		return r;
	e.max_sum = (float *)te_tensor_data(parts) + 3 * o.part * e.rows;
	e.row_loss = e.max_sum + 2 * e.rows;
	e.part = 1;
	return te__ce_fwd(stream, &e);
}

int te_kernel_cross_entropy_part(struct te_stream *stream, const struct te_tensor *x,
				 const struct te_tensor *targets, struct te_tensor *parts,
				 const struct te_kernel_cross_entropy_opts *opts)
{
	const struct tensors t = { .x = x, .targets = targets };

	return te__stream_queued(stream, part(stream, &t, parts, opts));
}

static int join(struct te_stream *stream, const struct te_tensor *parts,
		const struct te_tensor *targets, struct te_tensor *loss, struct te_tensor *max_sum,
		struct te_tensor *count, void *ws, size_t ws_nbytes,
		const struct te_kernel_cross_entropy_opts *opts)
{
	static const char fn[] = "te_kernel_cross_entropy_join";
	struct te_kernel_cross_entropy_opts o = TE_KERNEL_CROSS_ENTROPY_OPTS_INIT;
	const int64_t rows = targets ? te_tensor_nelems(targets) : 0;
	int r = options(fn, opts, &o);

	if (!r && !o.nclasses)
		r = te__fail(-EINVAL, "%s: nclasses is 0, not 1 to %d", fn, INT32_MAX);
	if (!r)
		r = te__args(fn, stream, (const struct te__arg[]){
			{ "targets", targets, TE_DTYPE_INT32, 0, rows, 0, 0 },
			{ "parts", parts, TE_DTYPE_FP32, 0, 3 * o.nparts * rows, 0, 0 },
			{ "loss", loss, TE_DTYPE_FP32, 0, 1, TE__ARG_OUT, 0 },
			{ "max_sum", max_sum, TE_DTYPE_FP32, 0, 2 * rows, TE__ARG_OUT, 0 },
			{ "count", count, TE_DTYPE_FP32, 0, 1, TE__ARG_OUT, 0 },
		}, 5);
	if (!r)
		r = te__arg_ws(fn, ws, ws_nbytes, te_kernel_cross_entropy_ws_nbytes(rows));
	if (r < 0)
		return r;
	r = TE__LAUNCH(stream, CE_JOIN, (&(struct te_k_ce_join){
		.parts = te_tensor_data(parts),
		.targets = te_tensor_data(targets),
		.max_sum = te_tensor_data(max_sum),
		.row_loss = ws,
		.rows = rows,
		.nclasses = o.nclasses,
		.nparts = o.nparts,
		.ignore_index = o.ignore_index,
	}));
	return r < 0 ? r : te__ce_reduce(stream, &(const struct te__ce){
		.targets = te_tensor_data(targets),
		.row_loss = ws,
		.count = te_tensor_data(count),
		.loss = te_tensor_data(loss),
		.rows = rows,
		.nclasses = o.nclasses,
		.ignore_index = o.ignore_index,
	});
}

int te_kernel_cross_entropy_join(struct te_stream *stream, const struct te_tensor *parts,
				 const struct te_tensor *targets, struct te_tensor *loss,
				 struct te_tensor *max_sum, struct te_tensor *count, void *ws,
				 size_t ws_nbytes, const struct te_kernel_cross_entropy_opts *opts)
{
	return TE__KERNELS(stream, join(stream, parts, targets, loss, max_sum, count, ws,
					ws_nbytes, opts));
}

static int backward(struct te_stream *stream, const struct tensors *t,
		    const struct te_kernel_cross_entropy_opts *opts)
{
	static const char fn[] = "te_kernel_cross_entropy_backward";
	struct te_kernel_cross_entropy_opts o;
	struct te__ce e;
	int r = begin(fn, stream, opts, t, &e, &o);

	if (r < 0)
		return r;
	r = te__args(fn, stream, (const struct te__arg[]){
		{ "x", t->x, e.dtype, e.rows, e.cols, 0, 0 },
		{ "targets", t->targets, TE_DTYPE_INT32, 0, e.rows, 0, 0 },
		{ "max_sum", t->max_sum, TE_DTYPE_FP32, 0, 2 * e.rows, 0, 0 },
		{ "count", t->count, TE_DTYPE_FP32, 0, 1, 0, 0 },
		{ "dx", t->dx, e.dtype, e.rows, e.cols, TE__ARG_OUT, 1u << 0 },
	}, 5);
	return r < 0 ? r : te__ce_bwd(stream, &e, te_tensor_data(t->dx));
}

int te_kernel_cross_entropy_backward(struct te_stream *stream, const struct te_tensor *x,
				     const struct te_tensor *targets,
				     const struct te_tensor *max_sum,
				     const struct te_tensor *count, struct te_tensor *dx,
				     const struct te_kernel_cross_entropy_opts *opts)
{
	const struct tensors t = { x, targets, max_sum, count, NULL, dx };

	return te__stream_queued(stream, backward(stream, &t, opts));
}
