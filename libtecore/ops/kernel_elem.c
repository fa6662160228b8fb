/* kernel_elem.c - transpose, bias, residual and dropout: launches and calls. */
#define TE_LOG_CATEGORY "core/kernel"
#include "config.h"

#include <errno.h>

#include "libtecore/ops/common.h"

/* ---- transpose ---- */

static int check_transpose(const char *fn, const struct te_stream *stream,
			   const struct te_tensor *x, const struct te_tensor *y)
{
	const struct te_tensor *const t[2] = { x, y };

	if (!stream || !x || !y)
		return te__fail(-EINVAL, "%s: %s is NULL", fn, !stream ? "stream" : x ? "y" : "x");
	for (int i = 0; i < 2; i++) {
		if (te_tensor_scaling(t[i]) != TE_SCALING_TENSOR)
			return te__fail(-TE_EDTYPE, "%s: %s has scales of blocks, not one", fn,
					i ? "y" : "x");
		if (!te_tensor_data(t[i]))
			return te__fail(-EINVAL, "%s: %s has no row-wise copy", fn, i ? "y" : "x");
	}
	return te__args(fn, stream, (const struct te__arg[]){
		{ "x", x, te_tensor_dtype(x), te_tensor_rows(x), te_tensor_cols(x), 0, 0 },
		{ "y", y, te_tensor_dtype(x), te_tensor_cols(x), te_tensor_rows(x), TE__ARG_OUT,
		  0 },
	}, 2);
}

static int transpose(struct te_stream *stream, const struct te_tensor *x, struct te_tensor *y,
		     const struct te_kernel_transpose_opts *opts)
{
	static const char fn[] = "te_kernel_transpose";
	struct te_kernel_transpose_opts o = TE_KERNEL_TRANSPOSE_OPTS_INIT;
	int r = opts ? te__sized_in(fn, te_kernel_transpose_opts, opts, &o) : 0;
	struct te_k_transpose k;

	if (!r)
		r = check_transpose(fn, stream, x, y);
	if (r < 0)
		return r;
	k = (struct te_k_transpose){
		.x = te_tensor_data(x),
		.y = te_tensor_data(y),
		.noop = o.noop,
		.rows = te_tensor_rows(x),
		.cols = te_tensor_cols(x),
		.elem = (int32_t)te_dtype_nbytes(te_tensor_dtype(x)),
	};
	if (te_tensor_scale_inv(x) != te_tensor_scale_inv(y)) {
		k.scale_inv = te_tensor_scale_inv(x);
		k.y_scale_inv = te_tensor_scale_inv(y);
	}
	return TE__LAUNCH(stream, TRANSPOSE, &k);
}

int te_kernel_transpose(struct te_stream *stream, const struct te_tensor *x, struct te_tensor *y,
			const struct te_kernel_transpose_opts *opts)
{
	return te__stream_queued(stream, transpose(stream, x, y, opts));
}

/* ---- bias ---- */

int te__bias_fwd(struct te_stream *stream, const struct te_tensor *x, const struct te_tensor *bias,
		 struct te_tensor *y)
{
	const struct te_k_bias_fwd k = {
		.x = te_tensor_data(x),
		.bias = te_tensor_data(bias),
		.y = te_tensor_data(y),
		.rows = te_tensor_rows(x),
		.cols = te_tensor_cols(x),
		.dtype = te_tensor_dtype(x),
	};

	return TE__LAUNCH(stream, BIAS_FWD, &k);
}

int te__bias_dw(struct te_stream *stream, const struct te_tensor *dy, struct te_tensor *dbias,
		void *ws)
{
	return te__bias_dw_of(stream, te_tensor_data(dy), te_tensor_dtype(dy), te_tensor_rows(dy),
			      te_tensor_cols(dy), dbias, ws);
}

int te__bias_dw_of(struct te_stream *stream, const void *dy, int32_t dtype, int64_t rows,
		   int64_t cols, struct te_tensor *dbias, void *ws)
{
	const struct te_k_colsum k = {
		.x = dy,
		.part = ws,
		.rows = rows,
		.cols = cols,
		.dtype = dtype,
	};
	int r = TE__LAUNCH(stream, COLSUM, &k);

	return r < 0 ? r : te__part_sum(stream, k.part, dbias, k.rows, k.cols);
}

static int bias_forward(struct te_stream *stream, const struct te_tensor *x,
			const struct te_tensor *bias, struct te_tensor *y)
{
	static const char fn[] = "te_kernel_bias_forward";
	struct te__main m;
	int r = te__arg_main(fn, stream, "x", x, &m);

	if (r < 0)
		return r;
	r = te__args(fn, stream, (const struct te__arg[]){
		{ "x", x, m.dtype, m.rows, m.cols, 0, 0 },
		{ "bias", bias, m.dtype, 0, m.cols, 0, 0 },
		{ "y", y, m.dtype, m.rows, m.cols, TE__ARG_OUT, 1u << 0 },
	}, 3);
	return r < 0 ? r : te__bias_fwd(stream, x, bias, y);
}

int te_kernel_bias_forward(struct te_stream *stream, const struct te_tensor *x,
			   const struct te_tensor *bias, struct te_tensor *y)
{
	return te__stream_queued(stream, bias_forward(stream, x, bias, y));
}

size_t te_kernel_bias_ws_nbytes(int64_t rows, int64_t cols)
{
	return rows < 1 || cols < 1 ? 0 : te__part_nbytes(rows, cols);
}

static int bias_backward(struct te_stream *stream, const struct te_tensor *dy,
			 struct te_tensor *dbias, void *ws, size_t ws_nbytes)
{
	static const char fn[] = "te_kernel_bias_backward";
	struct te__main m;
	int r = te__arg_main(fn, stream, "dy", dy, &m);

	if (r < 0)
		return r;
	r = te__args(fn, stream, (const struct te__arg[]){
		{ "dy", dy, m.dtype, m.rows, m.cols, 0, 0 },
		{ "dbias", dbias, TE_DTYPE_FP32, 0, m.cols, TE__ARG_OUT | TE__ARG_GRAD, 0 },
	}, 2);
	if (!r)
		r = te__arg_ws(fn, ws, ws_nbytes, te__part_nbytes(m.rows, m.cols));
	return r < 0 ? r : te__bias_dw(stream, dy, dbias, ws);
}

int te_kernel_bias_backward(struct te_stream *stream, const struct te_tensor *dy,
			    struct te_tensor *dbias, void *ws, size_t ws_nbytes)
{
	return TE__KERNELS(stream, bias_backward(stream, dy, dbias, ws, ws_nbytes));
}

/* ---- add ---- */

int te__add(struct te_stream *stream, const struct te_tensor *a, const struct te_tensor *b,
	    struct te_tensor *y)
{
	const struct te_k_add k = {
		.a = te_tensor_data(a),
		.b = te_tensor_data(b),
		.y = te_tensor_data(y),
		.n = te_tensor_nelems(y),
		.dtype = te_tensor_dtype(y),
	};

	return TE__LAUNCH(stream, ADD, &k);
}

static int add(struct te_stream *stream, const struct te_tensor *a, const struct te_tensor *b,
	       struct te_tensor *y)
{
	static const char fn[] = "te_kernel_add";
	struct te__main m;
	int r = te__arg_main(fn, stream, "a", a, &m);

	if (r < 0)
		return r;
	r = te__args(fn, stream, (const struct te__arg[]){
		{ "a", a, m.dtype, m.rows, m.cols, 0, 0 },
		{ "b", b, m.dtype, m.rows, m.cols, 0, 0 },
		{ "y", y, m.dtype, m.rows, m.cols, TE__ARG_OUT, 1u << 0 | 1u << 1 },
	}, 3);
	return r < 0 ? r : te__add(stream, a, b, y);
}

int te_kernel_add(struct te_stream *stream, const struct te_tensor *a, const struct te_tensor *b,
		  struct te_tensor *y)
{
	return te__stream_queued(stream, add(stream, a, b, y));
}

/* ---- dropout ---- */

int te__dropout_check(const char *kind, const char *name, const char *field, float p)
{
	if (!(p >= 0.0f) || te__ops_threshold(p) > 65535)
		return te__fail(-EINVAL, "%s%s: %s is %g, not in [0,1)", kind, name, field,
				(double)p);
	return 0;
}

int te__dropout_check_tag(const char *kind, const char *name, int64_t tag)
{
	if (tag < 0 || tag > INT32_MAX)
		return te__fail(-EINVAL, "%s%s: tag is %lld, not 0 to %d", kind, name,
				(long long)tag, INT32_MAX);
	return 0;
}

int te__dropout(struct te_stream *stream, const struct te_tensor *x, struct te_tensor *y,
		const struct te__dropout *d)
{
	const struct te_k_dropout k = {
		.x = te_tensor_data(x),
		.y = te_tensor_data(y),
		.seed = d->rng.seed,
		.offset = d->rng.offset,
		.n = te_tensor_nelems(x),
		.threshold = te__ops_threshold(d->p),
		.tag = d->tag,
		.dtype = te_tensor_dtype(x),
		.run = d->run,
		.stride = d->stride,
		.first = d->first,
	};

	if (k.threshold)
		return TE__LAUNCH(stream, DROPOUT, &k);
	return k.x == k.y ? 0 : te_copy(stream, k.y, k.x, te_tensor_nbytes(x));
}

static int dropout(const char *fn, struct te_stream *stream, const char *const names[2],
		   const struct te_tensor *x, struct te_tensor *y,
		   const struct te_kernel_dropout_opts *opts)
{
	struct te_kernel_dropout_opts o = TE_KERNEL_DROPOUT_OPTS_INIT;
	int r = opts ? te__sized_in(fn, te_kernel_dropout_opts, opts, &o) : 0;
	struct te__main m;

	if (!r)
		r = te__dropout_check(fn, "", "p", o.p);
	if (!r)
		r = te__arg_rng(fn, "p", o.p, &o.rng);
	if (!r)
		r = te__arg_main(fn, stream, names[0], x, &m);
	if (r < 0)
		return r;
	r = te__args(fn, stream, (const struct te__arg[]){
		{ names[0], x, m.dtype, m.rows, m.cols, 0, 0 },
		{ names[1], y, m.dtype, m.rows, m.cols, TE__ARG_OUT, 1u << 0 },
	}, 2);
	return r < 0 ? r : te__dropout(stream, x, y, &(struct te__dropout){
		.p = o.p, .tag = o.tag, .rng = o.rng });
}

int te_kernel_dropout_forward(struct te_stream *stream, const struct te_tensor *x,
			      struct te_tensor *y, const struct te_kernel_dropout_opts *opts)
{
	static const char *const names[2] = { "x", "y" };

	return te__stream_queued(stream, dropout("te_kernel_dropout_forward", stream, names, x, y,
						 opts));
}

int te_kernel_dropout_backward(struct te_stream *stream, const struct te_tensor *dy,
			       struct te_tensor *dx, const struct te_kernel_dropout_opts *opts)
{
	static const char *const names[2] = { "dy", "dx" };

	return te__stream_queued(stream, dropout("te_kernel_dropout_backward", stream, names, dy,
						 dx, opts));
}
