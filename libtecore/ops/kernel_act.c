/* kernel_act.c - launches of activations, plain and gated, and te_kernel_act_*(). */
#define TE_LOG_CATEGORY "core/kernel"
#include "config.h"

#include <errno.h>

#include "libtecore/ops/common.h"

void te__act_fwd_args(const struct te_tensor *x, struct te_tensor *y, enum te_act act,
		      int32_t gated, struct te_k_act_fwd *ret)
{
	*ret = (struct te_k_act_fwd){
		.x = te_tensor_data(x),
		.y = te__ops_ptr(y),
		.rows = te_tensor_rows(x),
		.cols = te_tensor_cols(x) / (1 + gated),
		.act = (int32_t)act,
		.gated = gated,
		.dtype = te_tensor_dtype(x),
	};
}

void te__act_bwd_args(const struct te_tensor *dy, const struct te_tensor *x, struct te_tensor *dx,
		      enum te_act act, int32_t gated, struct te_k_act_bwd *ret)
{
	*ret = (struct te_k_act_bwd){
		.dy = te_tensor_data(dy),
		.x = te_tensor_data(x),
		.dx = te__ops_ptr(dx),
		.rows = te_tensor_rows(x),
		.cols = te_tensor_cols(x) / (1 + gated),
		.act = (int32_t)act,
		.gated = gated,
		.dtype = te_tensor_dtype(x),
	};
}

int te__act_bwd(struct te_stream *stream, struct te_k_act_bwd *args, struct te_tensor *dbias,
		const struct te__quantize *z)
{
	int r = z ? te__quantize_begin(z, &args->q) : 0;

	if (r >= 0)
		r = TE__LAUNCH(stream, ACT_BWD, args);
	if (r >= 0 && dbias)
		r = te__part_sum(stream, args->part, dbias, args->rows,
				 args->cols * (1 + args->gated));
	return r < 0 || !z ? r : te__quantize_end(z, args->dx, args->dtype);
}

/* checked arguments of both calls: options, and the main input x */
struct call {
	struct te_kernel_act_opts o;
	struct te__quantize z;
	struct te__main x;
	int64_t cols; /* columns of y */
};

static int begin(const char *fn, struct te_stream *stream, const struct te_tensor *x,
		 const struct te_kernel_act_opts *opts, struct call *ret)
{
	struct te_kernel_act_opts o = TE_KERNEL_ACT_OPTS_INIT;
	int r = opts ? te__sized_in(fn, te_kernel_act_opts, opts, &o) : 0;

	if (r)
		return r;
	if ((int)o.act < 0 || (int)o.act >= TE_ACT_COUNT)
		return te__fail(-EINVAL, "%s: act is %d, not 0 to %d", fn, (int)o.act,
				TE_ACT_COUNT - 1);
	if (o.gated != 0 && o.gated != 1)
		return te__fail(-EINVAL, "%s: gated is %d, not 0 or 1", fn, o.gated);
	r = te__arg_main(fn, stream, "x", x, &ret->x);
	if (r < 0)
		return r;
	if (o.gated && ret->x.cols % 2)
		return te__fail(-TE_ESHAPE, "%s: gated, but x has %lld columns, an odd number", fn,
				(long long)ret->x.cols);
	ret->o = o;
	ret->z = TE__QUANTIZE_OF(stream, &o);
	ret->cols = ret->x.cols / (1 + o.gated);
	return 0;
}

static int forward(struct te_stream *stream, const struct te_tensor *x, struct te_tensor *y,
		   const struct te_kernel_act_opts *opts)
{
	static const char fn[] = "te_kernel_act_forward";
	struct te_k_act_fwd k;
	struct call c;
	int r = begin(fn, stream, x, opts, &c);

	if (r < 0)
		return r;
	r = te__args(fn, stream, (const struct te__arg[]){
		{ "x", x, c.x.dtype, c.x.rows, c.x.cols, 0, 0 },
		{ "y", y, c.x.dtype, c.x.rows, c.cols, TE__ARG_OUT | TE__ARG_NULL,
		  c.o.gated ? 0 : 1u << 0 },
	}, 2);
	if (!r)
		r = te__arg_q(fn, &c.z, "y", y, c.x.rows, c.cols);
	if (r < 0)
		return r;
	te__act_fwd_args(x, y, c.o.act, c.o.gated, &k);
	return TE__LAUNCH_CAST(stream, ACT_FWD, &k, r ? &c.z : NULL, k.y);
}

int te_kernel_act_forward(struct te_stream *stream, const struct te_tensor *x, struct te_tensor *y,
			  const struct te_kernel_act_opts *opts)
{
	return TE__KERNELS(stream, forward(stream, x, y, opts));
}

size_t te_kernel_act_ws_nbytes(int64_t rows, int64_t cols)
{
	return rows < 1 || cols < 1 ? 0 : te__part_nbytes(rows, cols);
}

static int backward(struct te_stream *stream, const struct te_tensor *dy, const struct te_tensor *x,
		    struct te_tensor *dx, struct te_tensor *dbias, void *ws, size_t ws_nbytes,
		    const struct te_kernel_act_opts *opts)
{
	static const char fn[] = "te_kernel_act_backward";
	const uint32_t out = TE__ARG_OUT | TE__ARG_NULL;
	struct te_k_act_bwd k;
	struct call c;
	int r = begin(fn, stream, x, opts, &c);

	if (r < 0)
		return r;
	r = te__args(fn, stream, (const struct te__arg[]){
		{ "dy", dy, c.x.dtype, c.x.rows, c.cols, 0, 0 },
		{ "x", x, c.x.dtype, c.x.rows, c.x.cols, 0, 0 },
		{ "dx", dx, c.x.dtype, c.x.rows, c.x.cols, out,
		  c.o.gated ? 0 : 1u << 0 | 1u << 1 },
		{ "dbias", dbias, TE_DTYPE_FP32, 0, c.x.cols, out | TE__ARG_GRAD, 0 },
	}, 4);
	if (!r && dbias)
		r = te__arg_ws(fn, ws, ws_nbytes, te__part_nbytes(c.x.rows, c.x.cols));
	if (!r)
		r = te__arg_q(fn, &c.z, "dx", dx, c.x.rows, c.x.cols);
	if (r < 0)
		return r;
	te__act_bwd_args(dy, x, dx, c.o.act, c.o.gated, &k);
	k.part = dbias ? ws : NULL;
	return te__act_bwd(stream, &k, dbias, r ? &c.z : NULL);
}

int te_kernel_act_backward(struct te_stream *stream, const struct te_tensor *dy,
			   const struct te_tensor *x, struct te_tensor *dx, struct te_tensor *dbias,
			   void *ws, size_t ws_nbytes, const struct te_kernel_act_opts *opts)
{
	return TE__KERNELS(stream, backward(stream, dy, x, dx, dbias, ws, ws_nbytes, opts));
}
