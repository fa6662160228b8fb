/* gemm.c - te_gemm: checks the operands and queues the GEMM kernel. */
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
};

static int operand(const char *name, const struct te_tensor *t, int flag, struct operand *ret)
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
	if (te__is_fp8(dtype)) {
		/* tensor cores read FP8 with k innermost: the column-wise copy is the transpose */
		ret->p = flag ? te_tensor_coldata(t) : te_tensor_data(t);
		ret->scale_inv = flag ? te_tensor_col_scale_inv(t) : te_tensor_scale_inv(t);
		ret->scaling = te_tensor_scaling(t);
		ret->stored_t = 0;
		if (ret->p && (uintptr_t)ret->p % 16)
			return te__fail(-EINVAL, "te_gemm: %s at %p is not aligned to 16 bytes, "
					"as FP8 needs", name, ret->p);
		if (ret->scaling && (uintptr_t)ret->scale_inv % 16)
			return te__fail(-EINVAL, "te_gemm: scales of %s at %p are not aligned to "
					"16 bytes, as block scaling needs", name,
					(const void *)ret->scale_inv);
	} else if (dtype != TE_DTYPE_BF16 && dtype != TE_DTYPE_FP32) {
		return te__fail(-TE_EDTYPE, "te_gemm: %s is %s; FP8, bf16 and fp32 are multiplied",
				name, te_dtype_name(dtype));
	}
	if (!ret->p)
		return te__fail(-EINVAL, "te_gemm: %s has no %s-wise copy", name,
				flag ? "column" : "row");
	return 0;
}

static int check_types(const struct operand *a, const struct operand *b, enum te_dtype d)
{
	int fp8 = te__is_fp8(a->dtype);

	if (fp8 ? !te__is_fp8(b->dtype) : a->dtype != b->dtype)
		return te__fail(-TE_EDTYPE, "te_gemm: A is %s and B is %s: both FP8, both bf16 or "
				"both fp32 are multiplied", te_dtype_name(a->dtype),
				te_dtype_name(b->dtype));
	if (a->dtype == TE_DTYPE_E5M2 && b->dtype == TE_DTYPE_E5M2)
		return te__fail(-TE_EDTYPE, "te_gemm: A and B are both e5m2; one must be e4m3");
	if (!a->scaling != !b->scaling)
		return te__fail(-TE_EDTYPE, "te_gemm: %s has one scale and %s has block scaling: "
				"both or none must have it", a->scaling ? b->name : a->name,
				a->scaling ? a->name : b->name);
	if ((a->scaling == TE_SCALING_1X32) != (b->scaling == TE_SCALING_1X32))
		return te__fail(-TE_EDTYPE, "te_gemm: %s alone is scaled by 1x32 blocks: both or "
				"none must be", a->scaling == TE_SCALING_1X32 ? a->name : b->name);
	if (a->scaling == TE_SCALING_128X128 && b->scaling == TE_SCALING_128X128)
		return te__fail(-TE_EDTYPE, "te_gemm: A and B are both scaled by 128x128 blocks; "
				"one must be scaled by 1x128 blocks");
	if (d != TE_DTYPE_FP32 && (d != TE_DTYPE_BF16 || a->dtype == TE_DTYPE_FP32))
		return te__fail(-TE_EDTYPE, "te_gemm: D is %s; from %s operands it is %s",
				te_dtype_name(d), te_dtype_name(a->dtype),
				a->dtype == TE_DTYPE_FP32 ? "fp32" : "bf16 or fp32");
	return 0;
}

/* do the operand's rows make d_extent rows or columns of D? FP8 may have padding after them */
static int covers(const struct operand *o, int64_t d_extent)
{
	return o->rows == d_extent ||
	       (te__is_fp8(o->dtype) && o->rows == te__fp8_extent(d_extent));
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
	if (te__is_fp8(a->dtype) &&
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

static int check_provider(const struct te_ctx *ctx)
{
#ifndef HAVE_CBLAS
	if (te__param_enum(TE_PARAM_GEMM_HOST) == TE__GEMM_HOST_BLAS &&
	    !strcmp(te_ctx_backend(ctx), "host"))
		return te__fail(-TE_EBLAS, "te_gemm: TE_GEMM_HOST is blas, and this libtecore "
				"was built without a BLAS");
#endif
	(void)ctx;
	return 0;
}

static int check_ctx(const struct te_stream *stream, const char *name, const struct te_tensor *t)
{
	if (te_tensor_ctx(t) != te_stream_ctx(stream))
		return te__fail(-EINVAL, "te_gemm: %s and the stream are of two contexts", name);
	return 0;
}

static int gemm(struct te_stream *stream, const struct te_tensor *a, const struct te_tensor *b,
		struct te_tensor *d, const struct te_gemm_opts *opts)
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
	r = operand("A", a, !!(o.flags & TE_GEMM_A_T), &x);
	if (!r)
		r = operand("B", b, !!(o.flags & TE_GEMM_B_T), &y);
	if (!r)
		r = check_types(&x, &y, te_tensor_dtype(d));
	if (!r)
		r = check_shapes(&x, &y, d);
	if (!r && o.beta != 0.0f)
		r = check_c(c, d);
	if (!r && o.bias)
		r = check_bias(o.bias, d);
	if (!r)
		r = check_ctx(stream, "A", a);
	if (!r)
		r = check_ctx(stream, "B", b);
	if (!r)
		r = check_ctx(stream, "D", d);
	if (!r && o.beta != 0.0f)
		r = check_ctx(stream, "C", c);
	if (!r && o.bias)
		r = check_ctx(stream, "bias", o.bias);
	if (!r)
		r = check_provider(te_stream_ctx(stream));
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
	return TE__LAUNCH(stream, GEMM, &k);
}

int te_gemm(struct te_stream *stream, const struct te_tensor *a, const struct te_tensor *b,
	    struct te_tensor *d, const struct te_gemm_opts *opts)
{
	return te__stream_queued(stream, gemm(stream, a, b, d, opts));
}
