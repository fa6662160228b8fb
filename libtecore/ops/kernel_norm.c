/* kernel_norm.c - launches of LayerNorm and RMSNorm, and te_kernel_norm_*(). */
#define TE_LOG_CATEGORY "core/kernel"
#include "config.h"

#include <errno.h>
#include <string.h>

#include "libtecore/ops/common.h"

void te__norm_fwd_args(const struct te__norm *n, struct te_tensor *y, struct te_k_norm_fwd *ret)
{
	*ret = (struct te_k_norm_fwd){
		.x = te_tensor_data(n->x),
		.gamma = te_tensor_data(n->gamma),
		.beta = te__ops_ptr(n->beta),
		.y = te__ops_ptr(y),
		.mean = te__ops_ptr(n->mean),
		.rstd = te_tensor_data(n->rstd),
		.rows = te_tensor_rows(n->x),
		.cols = te_tensor_cols(n->x),
		.eps = n->eps,
		.zero_centered = !!(n->flags & TE_NORM_ZERO_CENTERED),
		.dtype = te_tensor_dtype(n->x),
	};
}

int te__norm_bwd(struct te_stream *stream, const struct te__norm *n, const struct te_tensor *dy,
		 const struct te_tensor *residual, void *dx, const struct te__quantize *z)
{
	struct te_k_norm_bwd k = {
		.dy = te_tensor_data(dy),
		.x = te_tensor_data(n->x),
		.gamma = te_tensor_data(n->gamma),
		.mean = te__ops_ptr(n->mean),
		.rstd = te_tensor_data(n->rstd),
		.dres = te__ops_ptr(residual),
		.dx = dx,
		.rows = te_tensor_rows(n->x),
		.cols = te_tensor_cols(n->x),
		.zero_centered = !!(n->flags & TE_NORM_ZERO_CENTERED),
		.dtype = te_tensor_dtype(n->x),
	};

	return TE__LAUNCH_CAST(stream, NORM_BWD, &k, z, dx);
}

int te__norm_dw(struct te_stream *stream, const struct te__norm *n, const struct te_tensor *dy,
		struct te_tensor *dgamma, struct te_tensor *dbeta, void *ws)
{
	const int64_t rows = te_tensor_rows(n->x), cols = te_tensor_cols(n->x);
	const struct te_k_norm_dw k = {
		.dy = te_tensor_data(dy),
		.x = te_tensor_data(n->x),
		.mean = te__ops_ptr(n->mean),
		.rstd = te_tensor_data(n->rstd),
		.part_gamma = ws,
		.part_beta = dbeta ? (float *)((char *)ws + te__part_nbytes(rows, cols)) : NULL,
		.rows = rows,
		.cols = cols,
		.dtype = te_tensor_dtype(n->x),
	};
	int r = TE__LAUNCH(stream, NORM_DW, &k);

	return r < 0 ? r : te__part_sum_two(stream, k.part_gamma, dgamma, k.part_beta, dbeta, rows,
					    cols);
}

/* does NORM_BOTH compute this on the device of ctx? z: the cast, or NULL */
static int has_both(const struct te_ctx *ctx, const struct te_k_norm_both *k,
		    const struct te__quantize *z)
{
	uintptr_t at = (uintptr_t)k->dy | (uintptr_t)k->x | (uintptr_t)k->dres | (uintptr_t)k->dx |
		       (uintptr_t)k->gamma;

	if (z)
		at |= (uintptr_t)te_tensor_data(z->y) | (uintptr_t)te_tensor_coldata(z->y);
	if (!te__gradients_once(ctx, k->rows * k->cols) || k->cols > TE_K_NORM_BOTH_COLS(k->dtype))
		return 0;
	if ((!z && !k->part_dx) || !strcmp(te_ctx_backend(ctx), "host"))
		return 1;
	return TE_K_NORM_BOTH_CASTS(k->dtype, k->rows, k->cols) && at % 16 == 0 &&
	       te__ctx_block_smem(ctx) >= TE_K_NORM_BOTH_CAST_NBYTES;
}

int te__norm_grads(struct te_stream *stream, const struct te__norm *n, const struct te_tensor *dy,
		   const struct te_tensor *residual, void *dx, struct te_tensor *dgamma,
		   struct te_tensor *dbeta, struct te_tensor *dbias, const struct te__quantize *z,
		   void *ws)
{
	const int64_t rows = te_tensor_rows(n->x), cols = te_tensor_cols(n->x);
	const size_t nbytes = te__part_nbytes(rows, cols);
	struct te_k_norm_both k = {
		.dy = te_tensor_data(dy),
		.x = te_tensor_data(n->x),
		.gamma = te_tensor_data(n->gamma),
		.mean = te__ops_ptr(n->mean),
		.rstd = te_tensor_data(n->rstd),
		.dres = te__ops_ptr(residual),
		.dx = dx,
		.part_gamma = ws,
		.part_beta = dbeta ? (float *)((char *)ws + nbytes) : NULL,
		.rows = rows,
		.cols = cols,
		.zero_centered = !!(n->flags & TE_NORM_ZERO_CENTERED),
		.dtype = te_tensor_dtype(n->x),
		.part_dx = dbias ? (float *)((char *)ws + nbytes * (dbeta ? 2 : 1)) : NULL,
	};
	int r;

	if (has_both(te_tensor_ctx(n->x), &k, z)) {
		r = z ? te__quantize_begin(z, &k.q) : 0;
		if (r >= 0)
			r = TE__LAUNCH(stream, NORM_BOTH, &k);
		if (r >= 0)
			r = te__part_sum_two(stream, k.part_gamma, dgamma, k.part_beta, dbeta,
					     rows, cols);
		if (r >= 0 && z)
			r = te__quantize_end(z, dx, k.dtype);
		return r < 0 || !dbias ? r :
					 te__part_sum(stream, k.part_dx, dbias, rows, cols);
	}
	/* first, because dx may be dy */
	r = te__norm_dw(stream, n, dy, dgamma, dbeta, ws);
	if (r >= 0)
		r = te__norm_bwd(stream, n, dy, residual, dx, z);
	return r < 0 || !dbias ? r : te__bias_dw_of(stream, dx, k.dtype, rows, cols, dbias, ws);
}

static int read_opts(const char *fn, const struct te_kernel_norm_opts *opts,
		     struct te_kernel_norm_opts *ret)
{
	int r = opts ? te__sized_in(fn, te_kernel_norm_opts, opts, ret) : 0;

	if (r)
		return r;
	if (ret->flags & ~TE_NORM_ZERO_CENTERED)
		return te__fail(-EINVAL, "%s: unknown flags 0x%x", fn,
				ret->flags & ~TE_NORM_ZERO_CENTERED);
	if (!(ret->eps >= 0.0f) || !isfinite(ret->eps))
		return te__fail(-EINVAL, "%s: eps is %g", fn, (double)ret->eps);
	return 0;
}

static int forward(struct te_stream *stream, const struct te__norm *n, struct te_tensor *y,
		   const struct te_kernel_norm_opts *o)
{
	static const char fn[] = "te_kernel_norm_forward";
	const struct te__quantize z = TE__QUANTIZE_OF(stream, o);
	struct te_k_norm_fwd k;
	struct te__main m;
	int r = te__arg_main(fn, stream, "x", n->x, &m);

	if (r < 0)
		return r;
	r = te__args(fn, stream, (const struct te__arg[]){
		{ "x", n->x, m.dtype, m.rows, m.cols, 0, 0 },
		{ "gamma", n->gamma, TE_DTYPE_FP32, 0, m.cols, 0, 0 },
		{ "beta", n->beta, TE_DTYPE_FP32, 0, m.cols, TE__ARG_NULL, 0 },
		{ "y", y, m.dtype, m.rows, m.cols, TE__ARG_OUT | TE__ARG_NULL, 1u << 0 },
		{ "mean", n->mean, TE_DTYPE_FP32, 0, m.rows, TE__ARG_OUT | TE__ARG_NULL, 0 },
		{ "rstd", n->rstd, TE_DTYPE_FP32, 0, m.rows, TE__ARG_OUT, 0 },
	}, 6);
	if (r < 0)
		return r;
	if (!n->beta != !n->mean)
		return te__fail(-EINVAL, "%s: %s is NULL, but %s is not: LayerNorm has both, "
				"RMSNorm none", fn, n->beta ? "mean" : "beta",
				n->beta ? "beta" : "mean");
	if (o->residual)
		return te__fail(-EINVAL, "%s: residual is for the backward pass", fn);
	r = te__arg_q(fn, &z, "y", y, m.rows, m.cols);
	if (r < 0)
		return r;
	te__norm_fwd_args(n, y, &k);
	return TE__LAUNCH_CAST(stream, NORM_FWD, &k, r ? &z : NULL, k.y);
}

int te_kernel_norm_forward(struct te_stream *stream, const struct te_tensor *x,
			   const struct te_tensor *gamma, const struct te_tensor *beta,
			   struct te_tensor *y, struct te_tensor *mean, struct te_tensor *rstd,
			   const struct te_kernel_norm_opts *opts)
{
	struct te_kernel_norm_opts o = TE_KERNEL_NORM_OPTS_INIT;
	int r = read_opts("te_kernel_norm_forward", opts, &o);
	const struct te__norm n = { x, gamma, beta, mean, rstd, o.eps, o.flags };

	return TE__KERNELS(stream, r ? r : forward(stream, &n, y, &o));
}

size_t te_kernel_norm_ws_nbytes(int64_t rows, int64_t cols, int ngrads)
{
	if (rows < 1 || cols < 1 || ngrads < 1 || ngrads > 2)
		return 0;
	return (size_t)ngrads * te__part_nbytes(rows, cols);
}

static int check_grads(const char *fn, const struct te__norm *n, const struct te_tensor *dx,
		       const struct te_tensor *dgamma, const struct te_tensor *dbeta,
		       const struct te_kernel_norm_opts *o)
{
	if (!dx && !dgamma)
		return te__fail(-EINVAL, "%s: dx and dgamma are NULL", fn);
	if (!n->mean && dbeta)
		return te__fail(-EINVAL, "%s: dbeta is given, but mean is NULL: RMSNorm has no "
				"beta", fn);
	if (n->mean && !dgamma != !dbeta)
		return te__fail(-EINVAL, "%s: %s is NULL, but %s is not", fn,
				dgamma ? "dbeta" : "dgamma", dgamma ? "dgamma" : "dbeta");
	if ((o->residual || o->quant || o->q) && !dx)
		return te__fail(-EINVAL, "%s: %s is given, but dx is NULL", fn,
				o->residual ? "residual" : o->quant ? "quant" : "q");
	return 0;
}

static int backward(struct te_stream *stream, const struct te__norm *n, const struct te_tensor *dy,
		    struct te_tensor *dx, struct te_tensor *dgamma, struct te_tensor *dbeta,
		    void *ws, size_t ws_nbytes, const struct te_kernel_norm_opts *o)
{
	static const char fn[] = "te_kernel_norm_backward";
	const struct te__quantize z = TE__QUANTIZE_OF(stream, o);
	const uint32_t out = TE__ARG_OUT | TE__ARG_NULL;
	struct te__main m;
	int r = te__arg_main(fn, stream, "x", n->x, &m), casts = 0;

	if (r < 0)
		return r;
	r = te__args(fn, stream, (const struct te__arg[]){
		{ "dy", dy, m.dtype, m.rows, m.cols, 0, 0 },
		{ "residual", o->residual, m.dtype, m.rows, m.cols, TE__ARG_NULL, 0 },
		{ "x", n->x, m.dtype, m.rows, m.cols, 0, 0 },
		{ "gamma", n->gamma, TE_DTYPE_FP32, 0, m.cols, 0, 0 },
		{ "mean", n->mean, TE_DTYPE_FP32, 0, m.rows, TE__ARG_NULL, 0 },
		{ "rstd", n->rstd, TE_DTYPE_FP32, 0, m.rows, 0, 0 },
		{ "dx", dx, m.dtype, m.rows, m.cols, out, o->q ? 0 : 1u << 0 | 1u << 1 },
		{ "dgamma", dgamma, TE_DTYPE_FP32, 0, m.cols, out | TE__ARG_GRAD, 0 },
		{ "dbeta", dbeta, TE_DTYPE_FP32, 0, m.cols, out | TE__ARG_GRAD, 0 },
	}, 9);
	if (!r)
		r = check_grads(fn, n, dx, dgamma, dbeta, o);
	if (!r && dgamma)
		r = te__arg_ws(fn, ws, ws_nbytes,
			       te_kernel_norm_ws_nbytes(m.rows, m.cols, dbeta ? 2 : 1));
	if (!r && dx)
		casts = r = te__arg_q_tensor(fn, &z, "dx", dx, m.rows, m.cols);
	if (r < 0)
		return r;
	if (dgamma && dx)
		return te__norm_grads(stream, n, dy, o->residual, te_tensor_data(dx), dgamma,
				      dbeta, NULL, casts ? &z : NULL, ws);
	if (dgamma)
		return te__norm_dw(stream, n, dy, dgamma, dbeta, ws);
	return te__norm_bwd(stream, n, dy, o->residual, te_tensor_data(dx), casts ? &z : NULL);
}

int te_kernel_norm_backward(struct te_stream *stream, const struct te_tensor *dy,
			    const struct te_tensor *x, const struct te_tensor *gamma,
			    const struct te_tensor *mean, const struct te_tensor *rstd,
			    struct te_tensor *dx, struct te_tensor *dgamma, struct te_tensor *dbeta,
			    void *ws, size_t ws_nbytes, const struct te_kernel_norm_opts *opts)
{
	struct te_kernel_norm_opts o = TE_KERNEL_NORM_OPTS_INIT;
	int r = read_opts("te_kernel_norm_backward", opts, &o);
	const struct te__norm n = { x, gamma, NULL, mean, rstd, o.eps, o.flags };

	return TE__KERNELS(stream, r ? r : backward(stream, &n, dy, dx, dgamma, dbeta, ws,
						    ws_nbytes, &o));
}
