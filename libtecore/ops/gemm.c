/* gemm.c - te_gemm, te_gemm_grouped: check the operands and queue the GEMM kernel. */
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include <te/gemm.h>

#define TE_LOG_CATEGORY "core/gemm"
#include "libtecore/tensor/ctx.h"
#include "libtecore/base/base.h"

/* an operand: its extents [rows, k], and the copy to read */
struct operand {
	const char *name;
	const struct te_tensor *t;
	enum te_dtype dtype;
	int64_t rows, k;
	const void *p;
	const float *scale_inv;
	enum te_scaling scaling;
	int stored_t;
	int transformed; /* the column-wise copy of NVFP4 */
};

static int operand(const char *fn, const char *name, const struct te_tensor *t, int flag,
		   struct operand *ret)
{
	enum te_dtype dtype = te_tensor_dtype(t);
	int64_t rows = te_tensor_rows(t), cols = te_tensor_cols(t);

	*ret = (struct operand){
		.name = name,
		.t = t,
		.dtype = dtype,
		.rows = flag ? cols : rows,
		.k = flag ? rows : cols,
		.p = te_tensor_data(t),
		.stored_t = flag,
	};
	if (te__is_codes(dtype)) {
		/* tensor cores read k innermost: the column-wise copy is the transpose */
		ret->p = flag ? te_tensor_coldata(t) : te_tensor_data(t);
		ret->scale_inv = flag ? te_tensor_col_scale_inv(t) : te_tensor_scale_inv(t);
		ret->scaling = te_tensor_scaling(t);
		ret->stored_t = 0;
		ret->transformed = flag && ret->scaling == TE_SCALING_1X16;
		if (ret->p && (uintptr_t)ret->p % 16)
			return te__fail(-EINVAL, "%s: %s at %p is not aligned to 16 bytes, as "
					"FP8 needs", fn, name, ret->p);
		if (ret->scaling && (uintptr_t)ret->scale_inv % 16)
			return te__fail(-EINVAL, "%s: scales of %s at %p are not aligned to 16 "
					"bytes, as block scaling needs", fn, name,
					(const void *)ret->scale_inv);
	} else if (dtype != TE_DTYPE_BF16 && dtype != TE_DTYPE_FP32) {
		return te__fail(-TE_EDTYPE, "%s: %s is %s; FP8, e2m1, bf16 and fp32 are multiplied",
				fn, name, te_dtype_name(dtype));
	}
	if (!ret->p)
		return te__fail(-EINVAL, "%s: %s has no %s-wise copy", fn, name,
				flag ? "column" : "row");
	return te__is_codes(dtype) ? te_tensor_ctx(t)->ops->fp8_gemm(te_tensor_ctx(t)->dev,
								     ret->scaling) :
				     0;
}

static int check_types(const char *fn, const struct operand *a, const struct operand *b,
		       enum te_dtype d)
{
	int fp8 = te__is_fp8(a->dtype);

	if (a->dtype == TE_DTYPE_E2M1 && b->dtype == TE_DTYPE_E2M1 &&
	    a->transformed != b->transformed)
		return te__fail(-TE_EDTYPE, "%s: the column-wise copy of %s, scaled by 1x16, has "
				"transformed columns: it is multiplied with another such copy", fn,
				a->transformed ? a->name : b->name);
	if (fp8 ? !te__is_fp8(b->dtype) : a->dtype != b->dtype)
		return te__fail(-TE_EDTYPE, "%s: A is %s and B is %s: both FP8, both e2m1, both "
				"bf16 or both fp32 are multiplied", fn, te_dtype_name(a->dtype),
				te_dtype_name(b->dtype));
	if (a->dtype == TE_DTYPE_E5M2 && b->dtype == TE_DTYPE_E5M2)
		return te__fail(-TE_EDTYPE, "%s: A and B are both e5m2; one must be e4m3", fn);
	if (!a->scaling != !b->scaling)
		return te__fail(-TE_EDTYPE, "%s: %s has one scale and %s has block scaling: both "
				"or none must have it", fn, a->scaling ? b->name : a->name,
				a->scaling ? a->name : b->name);
	if ((a->scaling == TE_SCALING_1X32) != (b->scaling == TE_SCALING_1X32))
		return te__fail(-TE_EDTYPE, "%s: %s alone is scaled by 1x32 blocks: both or none "
				"must be", fn, a->scaling == TE_SCALING_1X32 ? a->name : b->name);
	if (a->scaling == TE_SCALING_128X128 && b->scaling == TE_SCALING_128X128)
		return te__fail(-TE_EDTYPE, "%s: A and B are both scaled by 128x128 blocks; one "
				"must be scaled by 1x128 blocks", fn);
	if (d != TE_DTYPE_FP32 && (d != TE_DTYPE_BF16 || a->dtype == TE_DTYPE_FP32))
		return te__fail(-TE_EDTYPE, "%s: D is %s; from %s operands it is %s", fn,
				te_dtype_name(d), te_dtype_name(a->dtype),
				a->dtype == TE_DTYPE_FP32 ? "fp32" : "bf16 or fp32");
	return 0;
}

/* do the operand's rows make d_extent rows or columns of D? FP8 may have padding after them */
static int covers(const struct operand *o, int64_t d_extent)
{
	return o->rows == d_extent ||
	       (te__is_codes(o->dtype) && o->rows == te__fp8_extent(d_extent));
}

static int check_shapes(const struct operand *a, const struct operand *b, const struct te_tensor *d)
{
	int64_t rows = te_tensor_rows(d), cols = te_tensor_cols(d);

	if (a->k != b->k)
		return te__fail(-TE_ESHAPE, "te_gemm: A is [%" PRId64 ", %" PRId64
				"] and B [%" PRId64 ", %" PRId64 "]: K differs", a->rows, a->k,
				b->rows, b->k);
	if (!covers(a, rows) || !covers(b, cols))
		return te__fail(-TE_ESHAPE, "te_gemm: D is [%" PRId64 ", %" PRId64
				"], but A B^T is [%" PRId64 ", %" PRId64 "]", rows, cols,
				a->rows, b->rows);
	if (te__is_codes(a->dtype) &&
	    ((a->scaling && a->rows % TE__FP8_EXTENT) || b->rows % TE__FP8_EXTENT ||
	     a->k % TE__FP8_EXTENT))
		return te__fail(-TE_ESHAPE, "te_gemm: A is [%" PRId64 ", %" PRId64 "], B [%" PRId64
				", %" PRId64 "]: FP8 needs rows of B%s and K in multiples of 16",
				a->rows, a->k, b->rows, b->k, a->scaling ? ", A" : "");
	/* a limit of BLAS and of cuBLASLt */
	if (a->rows > INT32_MAX || b->rows > INT32_MAX || a->k > INT32_MAX)
		return te__fail(-TE_ESHAPE, "te_gemm: M %" PRId64 ", N %" PRId64 ", K %" PRId64
				": extents end at 2^31 - 1", a->rows, b->rows, a->k);
	return 0;
}

static int check_c(const struct te_tensor *c, const struct te_tensor *d)
{
	if (te_tensor_dtype(c) != te_tensor_dtype(d))
		return te__fail(-TE_EDTYPE, "te_gemm: C is %s and D %s: they must agree",
				te_dtype_name(te_tensor_dtype(c)),
				te_dtype_name(te_tensor_dtype(d)));
	if (te_tensor_rows(c) != te_tensor_rows(d) || te_tensor_cols(c) != te_tensor_cols(d))
		return te__fail(-TE_ESHAPE, "te_gemm: C is [%" PRId64 ", %" PRId64
				"] and D [%" PRId64 ", %" PRId64 "]", te_tensor_rows(c),
				te_tensor_cols(c), te_tensor_rows(d), te_tensor_cols(d));
	return 0;
}

static int check_bias(const struct te_tensor *bias, const struct te_tensor *d)
{
	if (te_tensor_dtype(bias) != te_tensor_dtype(d))
		return te__fail(-TE_EDTYPE, "te_gemm: bias is %s and D %s: they must agree",
				te_dtype_name(te_tensor_dtype(bias)),
				te_dtype_name(te_tensor_dtype(d)));
	if (te_tensor_nelems(bias) != te_tensor_cols(d))
		return te__fail(-TE_ESHAPE, "te_gemm: bias has %" PRId64 " elements, D %" PRId64
				" columns", te_tensor_nelems(bias), te_tensor_cols(d));
	return 0;
}

static int check_opts(const struct te_gemm_opts *o)
{
	if (o->flags & ~(TE_GEMM_A_T | TE_GEMM_B_T))
		return te__fail(-EINVAL, "te_gemm: unknown flags 0x%x",
				(unsigned)(o->flags & ~(TE_GEMM_A_T | TE_GEMM_B_T)));
	return 0;
}

static int check_provider(const char *fn, const struct te_ctx *ctx)
{
#ifndef HAVE_CBLAS
	if (te__param_enum(TE_PARAM_GEMM_HOST) == TE__GEMM_HOST_BLAS &&
	    !strcmp(te_ctx_backend(ctx), "host"))
		return te__fail(-TE_EBLAS, "%s: TE_GEMM_HOST is blas, and this libtecore was "
				"built without a BLAS", fn);
#endif
	(void)fn;
	(void)ctx;
	return 0;
}

static int check_ctx(const char *fn, const struct te_stream *stream, const char *name,
		     const struct te_tensor *t)
{
	if (te_tensor_ctx(t) != te_stream_ctx(stream))
		return te__fail(-EINVAL, "%s: %s and the stream are of two contexts", fn, name);
	return 0;
}

static int gemm(struct te_stream *stream, const struct te_tensor *a, const struct te_tensor *b,
		struct te_tensor *d, const struct te_gemm_opts *opts, int fixed)
{
	struct te_gemm_opts o = TE_GEMM_OPTS_INIT;
	const struct te_tensor *c;
	struct operand x, y;
	struct te_k_gemm k;
	int r;

	if (!stream || !a || !b || !d)
		return te__fail(-EINVAL, "te_gemm: %s is NULL",
				!stream ? "stream" : !a ? "A" : !b ? "B" : "D");
	r = opts ? te__sized_in("te_gemm", te_gemm_opts, opts, &o) : 0;
	if (!r)
		r = check_opts(&o);
	if (r)
		return r;
	c = o.c ? o.c : d;
	r = operand("te_gemm", "A", a, !!(o.flags & TE_GEMM_A_T), &x);
	if (!r)
		r = operand("te_gemm", "B", b, !!(o.flags & TE_GEMM_B_T), &y);
	if (!r)
		r = check_types("te_gemm", &x, &y, te_tensor_dtype(d));
	if (!r)
		r = check_shapes(&x, &y, d);
	if (!r && o.beta != 0.0f)
		r = check_c(c, d);
	if (!r && o.bias)
		r = check_bias(o.bias, d);
	if (!r)
		r = check_ctx("te_gemm", stream, "A", a);
	if (!r)
		r = check_ctx("te_gemm", stream, "B", b);
	if (!r)
		r = check_ctx("te_gemm", stream, "D", d);
	if (!r && o.beta != 0.0f)
		r = check_ctx("te_gemm", stream, "C", c);
	if (!r && o.bias)
		r = check_ctx("te_gemm", stream, "bias", o.bias);
	if (!r)
		r = check_provider("te_gemm", te_stream_ctx(stream));
	if (r)
		return r;
	if (te_tensor_data(d) == x.p || te_tensor_data(d) == y.p)
		return te__fail(-EINVAL, "te_gemm: D is %s",
				te_tensor_data(d) == x.p ? "A" : "B");
	/* clears padding too: a launch is compared and recorded as bytes */
	memset(&k, 0, sizeof(k));
	k.a = x.p;
	k.b = y.p;
	k.c = o.beta != 0.0f ? te_tensor_data(c) : NULL;
	k.d = te_tensor_data(d);
	k.bias = o.bias ? te_tensor_data(o.bias) : NULL;
	k.sa = x.scale_inv;
	k.sb = y.scale_inv;
	k.asc = (int32_t)x.scaling;
	k.bsc = (int32_t)y.scaling;
	k.m = te_tensor_rows(d);
	k.n = te_tensor_cols(d);
	k.k = x.k;
	k.alpha = o.alpha;
	k.beta = o.beta;
	k.a_t = x.stored_t;
	k.b_t = y.stored_t;
	k.adtype = x.dtype;
	k.bdtype = y.dtype;
	k.cdtype = k.ddtype = te_tensor_dtype(d);
	k.a_rows = x.rows;
	k.b_rows = y.rows;
	k.fixed = fixed;
	return TE__LAUNCH(stream, GEMM, &k);
}

int te__gemm_fixed(struct te_stream *stream, const struct te_tensor *a, const struct te_tensor *b,
		   struct te_tensor *d, const struct te_gemm_opts *opts, int fixed)
{
	return te__stream_queued(stream, gemm(stream, a, b, d, opts, fixed));
}

int te_gemm(struct te_stream *stream, const struct te_tensor *a, const struct te_tensor *b,
	    struct te_tensor *d, const struct te_gemm_opts *opts)
{
	return te__gemm_fixed(stream, a, b, d, opts, 0);
}

/* ---- groups ---- */

static const char grouped_fn[] = "te_gemm_grouped";

/* a row of words in device memory */
static int check_words(const struct te_stream *stream, const char *name, const struct te_tensor *t,
		       enum te_dtype dtype, int64_t n)
{
	if (te_tensor_dtype(t) != dtype || te_tensor_nelems(t) != n)
		return te__fail(te_tensor_dtype(t) != dtype ? -TE_EDTYPE : -TE_ESHAPE,
				"%s: %s has %" PRId64 " elements of %s, expected %" PRId64 " of %s",
				grouped_fn, name, te_tensor_nelems(t),
				te_dtype_name(te_tensor_dtype(t)), n, te_dtype_name(dtype));
	return check_ctx(grouped_fn, stream, name, t);
}

static int check_scale(const struct te_stream *stream, const char *name,
		       const struct te_tensor *scale_inv, const struct operand *o, int64_t groups)
{
	if (!scale_inv)
		return 0;
	if (!te__is_fp8(o->dtype))
		return te__fail(-TE_EDTYPE, "%s: %s is given, but %s is %s, which has no scale",
				grouped_fn, name, o->name, te_dtype_name(o->dtype));
	return check_words(stream, name, scale_inv, TE_DTYPE_FP32, groups);
}

/* the extents of the launch, which the tensor with a matrix for each group and D determine */
static int grouped_shapes(const struct te_tensor *a, const struct te_tensor *b,
			  const struct te_tensor *d, struct te_k_gemm_grouped *k)
{
	const struct te_tensor *each = k->by_k ? d : b;
	int64_t bk, bn;

	if (te_tensor_ndim(each) != 3)
		return te__fail(-TE_ESHAPE, "%s: %s has %d dimensions; it has a matrix for each "
				"group, expected 3", grouped_fn, k->by_k ? "D" : "B",
				te_tensor_ndim(each));
	k->groups = te_tensor_extent(each, 0);
	k->n = te_tensor_cols(d);
	if (k->by_k) {
		k->m = te_tensor_extent(d, 1);
		k->k = te_tensor_rows(a);
		bk = te_tensor_rows(b);
		bn = te_tensor_cols(b);
	} else {
		k->m = te_tensor_rows(d);
		k->k = te_tensor_cols(a);
		bk = te_tensor_extent(b, k->b_t ? 1 : 2);
		bn = te_tensor_extent(b, k->b_t ? 2 : 1);
	}
	if ((k->by_k ? te_tensor_cols(a) : te_tensor_rows(a)) != k->m || bk != k->k || bn != k->n)
		return te__fail(-TE_ESHAPE, "%s: A is [%" PRId64 ", %" PRId64 "], B has K %" PRId64
				" and N %" PRId64 ", D M %" PRId64 " and N %" PRId64
				": they differ", grouped_fn, te_tensor_rows(a), te_tensor_cols(a),
				bk, bn, k->m, k->n);
	if (te__is_fp8((enum te_dtype)k->adtype) &&
	    (k->n % TE__FP8_EXTENT || k->k % TE__FP8_EXTENT))
		return te__fail(-TE_ESHAPE, "%s: N %" PRId64 ", K %" PRId64 ": FP8 needs multiples "
				"of %d", grouped_fn, k->n, k->k, TE__FP8_EXTENT);
	if (k->m > INT32_MAX || k->n > INT32_MAX || k->k > INT32_MAX || k->groups >= INT32_MAX)
		return te__fail(-TE_ESHAPE, "%s: M %" PRId64 ", N %" PRId64 ", K %" PRId64
				", %" PRId64 " groups: extents end at 2^31 - 1", grouped_fn, k->m,
				k->n, k->k, k->groups);
	return 0;
}

static int grouped(struct te_stream *stream, const struct te_tensor *a, const struct te_tensor *b,
		   const struct te_tensor *offsets, struct te_tensor *d, struct te_tensor *status,
		   const struct te_gemm_grouped_opts *opts)
{
	struct te_gemm_grouped_opts o = TE_GEMM_GROUPED_OPTS_INIT;
	struct te_k_gemm_grouped k;
	struct operand x, y;
	int r, by_k;

	if (!stream || !a || !b || !offsets || !d || !status)
		return te__fail(-EINVAL, "%s: %s is NULL", grouped_fn,
				!stream ? "stream" : !a ? "A" : !b ? "B" : !offsets ? "offsets" :
				!d	? "D" :
					  "status");
	r = opts ? te__sized_in(grouped_fn, te_gemm_grouped_opts, opts, &o) : 0;
	if (r)
		return r;
	if (o.flags & ~TE_GEMM_B_T && o.flags != TE_GEMM_BY_K)
		return te__fail(-EINVAL, "%s: flags are 0x%x, expected TE_GEMM_B_T or TE_GEMM_BY_K",
				grouped_fn, (unsigned)o.flags);
	memset(&k, 0, sizeof(k));
	by_k = o.flags == TE_GEMM_BY_K;
	r = operand(grouped_fn, "A", a, by_k, &x);
	if (!r)
		r = operand(grouped_fn, "B", b, o.flags != 0, &y);
	if (!r && (x.scaling || y.scaling))
		r = te__fail(-TE_EDTYPE, "%s: %s has block scaling; a group has one scale",
			     grouped_fn, x.scaling ? "A" : "B");
	if (!r)
		r = check_types(grouped_fn, &x, &y, te_tensor_dtype(d));
	if (r)
		return r;
	k.by_k = by_k;
	k.b_t = o.flags == TE_GEMM_B_T;
	k.adtype = x.dtype;
	k.bdtype = y.dtype;
	k.ddtype = te_tensor_dtype(d);
	r = grouped_shapes(a, b, d, &k);
	if (!r)
		r = check_scale(stream, "a_scale_inv", o.a_scale_inv, &x, k.groups);
	if (!r)
		r = check_scale(stream, "b_scale_inv", o.b_scale_inv, &y, k.groups);
	if (!r)
		r = check_words(stream, "offsets", offsets, TE_DTYPE_INT32, k.groups + 1);
	if (!r)
		r = check_words(stream, "status", status, TE_DTYPE_INT32, 1);
	if (!r)
		r = check_ctx(grouped_fn, stream, "A", a);
	if (!r)
		r = check_ctx(grouped_fn, stream, "B", b);
	if (!r)
		r = check_ctx(grouped_fn, stream, "D", d);
	if (!r)
		r = check_provider(grouped_fn, te_stream_ctx(stream));
	if (r)
		return r;
	if (te_tensor_data(d) == x.p || te_tensor_data(d) == y.p)
		return te__fail(-EINVAL, "%s: D is %s", grouped_fn,
				te_tensor_data(d) == x.p ? "A" : "B");
	k.a = x.p;
	k.b = y.p;
	k.d = te_tensor_data(d);
	k.a_each = o.a_scale_inv != NULL;
	k.b_each = o.b_scale_inv != NULL;
	k.sa = k.a_each ? te_tensor_data(o.a_scale_inv) : x.scale_inv;
	k.sb = k.b_each ? te_tensor_data(o.b_scale_inv) : y.scale_inv;
	k.offsets = te_tensor_data(offsets);
	k.status = te_tensor_data(status);
	k.alpha = o.alpha;
	k.beta = o.beta;
	return TE__LAUNCH(stream, GEMM_GROUPED, &k);
}

int te_gemm_grouped(struct te_stream *stream, const struct te_tensor *a, const struct te_tensor *b,
		    const struct te_tensor *offsets, struct te_tensor *d, struct te_tensor *status,
		    const struct te_gemm_grouped_opts *opts)
{
	return te__stream_queued(stream, grouped(stream, a, b, offsets, d, status, opts));
}
