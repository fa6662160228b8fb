/* kernel.c - checks that all calls of te/kernel.h share, and sums over rows. */
#define TE_LOG_CATEGORY "core/kernel"
#include "config.h"

#include <errno.h>

#include "libtecore/ops/common.h"

size_t te__part_nbytes(int64_t rows, int64_t cols)
{
	return te__ops_round_up((size_t)(TE_K_NPARTS(rows) * cols) * sizeof(float));
}

int te__part_sum(struct te_stream *stream, const float *part, struct te_tensor *out, int64_t rows,
		 int64_t cols)
{
	const struct te_k_part_sum a = {
		.part = part,
		.out = te_tensor_data(out),
		.nparts = TE_K_NPARTS(rows),
		.cols = cols,
		.dtype = te_tensor_dtype(out),
	};

	return TE__LAUNCH(stream, PART_SUM, &a);
}

int te__part_sum_two(struct te_stream *stream, const float *part, struct te_tensor *out,
		     const float *part_b, struct te_tensor *out_b, int64_t rows, int64_t cols)
{
	struct te_k_part_sum a;
	int r;

	if (!out || !out_b || te_tensor_dtype(out) != te_tensor_dtype(out_b)) {
		r = out ? te__part_sum(stream, part, out, rows, cols) : 0;
		return r < 0 || !out_b ? r : te__part_sum(stream, part_b, out_b, rows, cols);
	}
	a = (struct te_k_part_sum){
		.part = part,
		.out = te_tensor_data(out),
		.nparts = TE_K_NPARTS(rows),
		.cols = cols,
		.dtype = te_tensor_dtype(out),
		.part_b = part_b,
		.out_b = te_tensor_data(out_b),
	};
	return TE__LAUNCH(stream, PART_SUM, &a);
}

/* below, a GPU's kernels of one pass have too few blocks (doc/perf-kernels.md) */
#define ONCE_NELEMS ((int64_t)10 << 20)

int te__gradients_once(const struct te_ctx *ctx, int64_t nelems)
{
	switch (te__param_enum(TE_PARAM_GRADIENTS)) {
	case TE__GRADIENTS_ONCE:
		return 1;
	case TE__GRADIENTS_APART:
		return 0;
	default:
		return !strcmp(te_ctx_backend(ctx), "host") || nelems >= ONCE_NELEMS;
	}
}

int te__arg_main(const char *fn, const struct te_stream *stream, const char *name,
		 const struct te_tensor *t, struct te__main *ret)
{
	const enum te_dtype dtype = t ? te_tensor_dtype(t) : TE_DTYPE_FP32;

	if (!stream || !t)
		return te__fail(-EINVAL, "%s: %s is NULL", fn, stream ? name : "stream");
	if (dtype != TE_DTYPE_FP32 && dtype != TE_DTYPE_BF16)
		return te__fail(-TE_EDTYPE, "%s: %s is %s, not fp32 or bf16", fn, name,
				te_dtype_name(dtype));
	*ret = (struct te__main){ te_tensor_rows(t), te_tensor_cols(t), (int32_t)dtype };
	return 0;
}

static int check_one(const char *fn, const struct te_stream *stream, const struct te__arg *a)
{
	const struct te_tensor *t = a->t;
	const int either = a->flags & TE__ARG_GRAD && t && te_tensor_dtype(t) == TE_DTYPE_BF16;

	if (!t)
		return a->flags & TE__ARG_NULL ?
			       0 : te__fail(-EINVAL, "%s: %s is NULL", fn, a->name);
	if (te_tensor_ctx(t) != te_stream_ctx(stream))
		return te__fail(-EINVAL, "%s: %s and the stream are of two contexts", fn, a->name);
	if ((int32_t)te_tensor_dtype(t) != a->dtype && !either)
		return te__fail(-TE_EDTYPE, "%s: %s is %s, not %s%s", fn, a->name,
				te_dtype_name(te_tensor_dtype(t)),
				te_dtype_name((enum te_dtype)a->dtype),
				a->flags & TE__ARG_GRAD ? " or bf16" : "");
	if (!a->rows && te_tensor_nelems(t) != a->cols)
		return te__fail(-TE_ESHAPE, "%s: %s has %lld elements, not %lld", fn, a->name,
				(long long)te_tensor_nelems(t), (long long)a->cols);
	if (a->rows && (te_tensor_rows(t) != a->rows || te_tensor_cols(t) != a->cols))
		return te__fail(-TE_ESHAPE, "%s: %s is [%lld, %lld], not [%lld, %lld]", fn, a->name,
				(long long)te_tensor_rows(t), (long long)te_tensor_cols(t),
				(long long)a->rows, (long long)a->cols);
	return 0;
}

/* end of a tensor's data; NULL if it has column-wise codes only */
static const char *data_end(const struct te_tensor *t)
{
	const char *p = te_tensor_data(t);

	return p ? p + te_tensor_nbytes(t) : NULL;
}

/* argument i is written: no other may overlap it */
static int check_overlap(const char *fn, const struct te__arg *args, int n, int i)
{
	const char *p = te_tensor_data(args[i].t), *pend = data_end(args[i].t);

	for (int j = 0; j < n; j++) {
		const char *q, *qend;

		if (j == i || !args[j].t)
			continue;
		q = te_tensor_data(args[j].t);
		qend = data_end(args[j].t);
		if (q >= pend || p >= qend)
			continue;
		if (q != p)
			return te__fail(-EINVAL, "%s: %s and %s overlap", fn, args[i].name,
					args[j].name);
		if (!(args[i].inplace >> j & 1u))
			return te__fail(-EINVAL, "%s: %s is the memory of %s", fn, args[i].name,
					args[j].name);
	}
	return 0;
}

int te__args(const char *fn, const struct te_stream *stream, const struct te__arg *args, int n)
{
	int r = 0;

	for (int i = 0; i < n && !r; i++)
		r = check_one(fn, stream, &args[i]);
	for (int i = 0; i < n && !r; i++)
		if (args[i].t && args[i].flags & TE__ARG_OUT)
			r = check_overlap(fn, args, n, i);
	return r;
}

int te__arg_seq(const char *fn, const char *name, const struct te_tensor *t)
{
	if (te_tensor_ndim(t) < 2)
		return te__fail(-TE_ESHAPE, "%s: %s has %d extents, it needs 2", fn, name,
				te_tensor_ndim(t));
	return 0;
}

int te__arg_aligned(const char *fn, const char *name, const struct te_tensor *t)
{
	if ((uintptr_t)te_tensor_data(t) % 16)
		return te__fail(-EINVAL, "%s: %s at %p is not aligned to 16 bytes", fn, name,
				te_tensor_data(t));
	return 0;
}

int te__arg_rng(const char *fn, const char *field, float p, const struct te_rng_words *rng)
{
	if (te__ops_threshold(p) && (!rng->seed || !rng->offset))
		return te__fail(-EINVAL, "%s: %s is %g, but rng.%s is NULL", fn, field, (double)p,
				rng->seed ? "offset" : "seed");
	return 0;
}

int te__arg_ws(const char *fn, const void *ws, size_t ws_nbytes, size_t need)
{
	if (!need)
		return 0;
	if (!ws)
		return te__fail(-EINVAL, "%s: ws is NULL, but %zu bytes are needed", fn, need);
	if (ws_nbytes < need)
		return te__fail(-EINVAL, "%s: ws_nbytes is %zu, but %zu bytes are needed", fn,
				ws_nbytes, need);
	if ((uintptr_t)ws % TE__OPS_ALIGN)
		return te__fail(-EINVAL, "%s: ws at %p is not aligned to %d bytes", fn, ws,
				TE__OPS_ALIGN);
	return 0;
}

int te__arg_q(const char *fn, const struct te__quantize *z, const char *name,
	      const struct te_tensor *y, int64_t rows, int64_t cols)
{
	int r;

	if (!z->quant != !z->y)
		return te__fail(-EINVAL, "%s: %s is NULL, but %s is given", fn,
				z->quant ? "q" : "quant", z->quant ? "quant" : "q");
	if (!z->quant)
		return y ? 0 : te__fail(-EINVAL, "%s: %s is NULL, and there is no q", fn, name);
	r = te__quantize_check(fn, "q", z);
	if (r < 0)
		return r;
	if (te_tensor_rows(z->y) != rows || te_tensor_cols(z->y) != cols)
		return te__fail(-TE_ESHAPE, "%s: q is [%lld, %lld], not [%lld, %lld]", fn,
				(long long)te_tensor_rows(z->y), (long long)te_tensor_cols(z->y),
				(long long)rows, (long long)cols);
	if (!y && te__quantize_keeps_x(z->quant))
		return te__fail(-EINVAL, "%s: %s is NULL, but recipe %s reads it", fn, name,
				te_recipe_name(te_quant_recipe(z->quant)));
	return 1;
}

int te__arg_q_tensor(const char *fn, const struct te__quantize *z, const char *name,
		     const struct te_tensor *y, int64_t rows, int64_t cols)
{
	int r = te__arg_q(fn, z, name, y, rows, cols);

	if (r > 0 && te_tensor_scaling(z->y) != TE_SCALING_TENSOR)
		return te__fail(-EOPNOTSUPP, "%s: q has block scaling, this call casts with one "
				"scale", fn);
	return r;
}
