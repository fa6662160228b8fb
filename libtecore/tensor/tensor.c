/* tensor.c - shapes and storage of tensors, views, transfers, casts. */
#include "config.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include <te/tensor.h>

#include "libtecore/tensor/ctx.h"
#include "libtecore/base/dtype_inline.h"

#define ALIGN_MIN 256u

struct te_tensor {
	_Atomic uint32_t refs;
	struct te_ctx *ctx;
	struct te_tensor *base; /* keeps the storage; NULL: not a view */
	void *storage;		/* to free, or NULL */
	void (*release)(void *arg); /* function that frees its memory, or NULL */
	void *release_arg;
	enum te_dtype dtype;
	int ndim;
	int64_t shape[TE_MAX_DIMS];
	int64_t nelems;
	void *data, *coldata;
	float *scale_inv, *col_scale_inv;
	enum te_scaling scaling;
};

_Static_assert((int)TE_SCALING_TENSOR == (int)TE_K_SCALING_TENSOR &&
		       (int)TE_SCALING_1X128 == (int)TE_K_SCALING_1X128 &&
		       (int)TE_SCALING_128X128 == (int)TE_K_SCALING_128X128 &&
		       (int)TE_SCALING_1X32 == (int)TE_K_SCALING_1X32 &&
		       (int)TE_SCALING_1X16 == (int)TE_K_SCALING_1X16 &&
		       (int)TE_SCALING_16X16 == (int)TE_K_SCALING_16X16,
	       "kernels receive the values of enum te_scaling");

const char *const te__scaling_name[] = {
	[TE_SCALING_TENSOR] = "per-tensor", [TE_SCALING_1X128] = "1x128",
	[TE_SCALING_128X128] = "128x128",   [TE_SCALING_1X32] = "1x32",
	[TE_SCALING_1X16] = "1x16",	    [TE_SCALING_16X16] = "16x16",
};

static int check_shape(const char *fn, enum te_dtype dtype, int ndim, const int64_t *shape,
		       int64_t *ret_nelems)
{
	int64_t n = 1, nbytes;

	if (!te_dtype_max(dtype) && !te_dtype_nbytes(dtype))
		return te__fail(-EINVAL, "%s: element type %d is unknown", fn, (int)dtype);
	if (ndim < 1 || ndim > TE_MAX_DIMS || !shape)
		return te__fail(-EINVAL, "%s: %d extents, not 1 to %d", fn, shape ? ndim : 0,
				TE_MAX_DIMS);
	for (int i = 0; i < ndim; i++) {
		if (shape[i] < 1)
			return te__fail(-EINVAL, "%s: extent %d is %lld", fn, i,
					(long long)shape[i]);
		if (__builtin_mul_overflow(n, shape[i], &n))
			return te__fail(-EINVAL, "%s: the shape has more than 2^63 elements", fn);
	}
	if (dtype == TE_DTYPE_E2M1 && shape[ndim - 1] % TE_K_BLOCK_NV)
		return te__fail(-EINVAL, "%s: the last extent of e2m1 is %lld, not a multiple of "
				"16", fn, (long long)shape[ndim - 1]);
	if (__builtin_mul_overflow(n, (int64_t)te_dtype_nbytes(dtype), &nbytes))
		return te__fail(-EINVAL, "%s: the shape has more than 2^63 bytes", fn);
	*ret_nelems = n;
	return 0;
}

/* a tensor without storage */
static int tensor_new(const char *fn, struct te_ctx *ctx, enum te_dtype dtype, int ndim,
		      const int64_t *shape, struct te_tensor **ret_t)
{
	struct te_tensor *t;
	int64_t nelems = 0;
	int r;

	if (!ctx || !ret_t)
		return te__fail(-EINVAL, "%s: %s is NULL", fn, ctx ? "ret_t" : "ctx");
	r = check_shape(fn, dtype, ndim, shape, &nelems);
	if (r)
		return r;
	t = te__calloc(1, sizeof(*t));
	if (!t)
		return te__fail(-ENOMEM, "%s: no memory for a tensor", fn);
	t->refs = 1;
	t->ctx = te_ctx_ref(ctx);
	t->dtype = dtype;
	t->ndim = ndim;
	t->nelems = nelems;
	memcpy(t->shape, shape, (size_t)ndim * sizeof(*shape));
	*ret_t = t;
	return 0;
}

/* E2M1 has the scalings of NVFP4, and only E2M1 has them */
static int check_fp4(const char *fn, enum te_dtype dtype, enum te_scaling scaling)
{
	if ((dtype == TE_DTYPE_E2M1) == (scaling >= TE_SCALING_1X16))
		return 0;
	return te__fail(-EINVAL, "%s: %s has %s scaling: e2m1, and no other type, has 1x16 or "
			"16x16", fn, te_dtype_name(dtype), te__scaling_name[scaling]);
}

/* columns are rows of the column-wise copy */
static int check_fp4_rows(const char *fn, const struct te_tensor *t, int col)
{
	if (t->dtype != TE_DTYPE_E2M1 || !col || te_tensor_rows(t) % TE_K_BLOCK_NV == 0)
		return 0;
	return te__fail(-EINVAL, "%s: e2m1 with a column-wise copy has %lld rows, not a multiple "
			"of 16", fn, (long long)te_tensor_rows(t));
}

static int check_opts(enum te_dtype dtype, const struct te_tensor_opts *o)
{
	if (o->align & (o->align - 1))
		return te__fail(-EINVAL, "te_tensor_create: an alignment of %u is no power of two",
				(unsigned int)o->align);
	if (o->flags & ~(TE_TENSOR_ROWWISE | TE_TENSOR_COLWISE))
		return te__fail(-EINVAL, "te_tensor_create: flags 0x%x are unknown",
				(unsigned int)o->flags);
	if ((o->flags & TE_TENSOR_COLWISE) && !te__is_codes(dtype))
		return te__fail(-EINVAL, "te_tensor_create: %s has no column-wise copy, FP8 has",
				te_dtype_name(dtype));
	if (o->scaling > TE_SCALING_16X16)
		return te__fail(-EINVAL, "te_tensor_create: scaling %u is unknown",
				(unsigned int)o->scaling);
	if (o->scaling && !te__is_codes(dtype))
		return te__fail(-EINVAL, "te_tensor_create: %s has no block scaling, FP8 has",
				te_dtype_name(dtype));
	return check_fp4("te_tensor_create", dtype, (enum te_scaling)o->scaling);
}

/* limit for block-scaled copies, below which sizes of scale-inverses do not overflow */
#define SCALED_NELEMS_MAX (INT64_MAX / 64)

/* words of the scale-inverses of each copy; of block scaling a multiple of 4, so that the column
 * copy's are aligned to 16 bytes as well */
static int scale_sizes(const struct te_tensor *t, int row, int col, size_t *ret_row,
		       size_t *ret_col)
{
	const int64_t rows = te_tensor_rows(t), cols = te_tensor_cols(t);

	*ret_row = *ret_col = 0;
	if (!te__is_codes(t->dtype))
		return 0;
	if (t->scaling && t->nelems > SCALED_NELEMS_MAX)
		return te__fail(-ENOMEM, "te_tensor_create: the size overflows");
	if (!t->scaling || row)
		*ret_row = (size_t)te_k_scale_nfloats(t->scaling, rows, cols);
	if (t->scaling && col)
		*ret_col = (size_t)te_k_scale_nfloats(t->scaling, cols, rows);
	return 0;
}

/* scale-inverses of 1, in FP32, as E8M0, or as E4M3 after a word of FP32 */
static int fill_scales(struct te_tensor *t, size_t row_scales, size_t col_scales)
{
	const uint32_t one = t->scaling == TE_SCALING_1X32  ? 0x7f7f7f7f :
			     t->scaling >= TE_SCALING_1X16 ? 0x38383838 :
							     te__f32_bits(1.0f);
	float *words = row_scales ? t->scale_inv : t->col_scale_inv;
	int r = te__ctx_fill_u32(t->ctx, words, one, (row_scales + col_scales) * sizeof(*words));

	if (!r && row_scales && t->scaling >= TE_SCALING_1X16)
		r = te__ctx_fill_u32(t->ctx, t->scale_inv, te__f32_bits(1.0f), sizeof(*words));
	if (!r && col_scales && t->scaling >= TE_SCALING_1X16)
		r = te__ctx_fill_u32(t->ctx, t->col_scale_inv, te__f32_bits(1.0f), sizeof(*words));
	return r;
}

/* one allocation: row-wise copy, column-wise copy, both aligned, and their scale-inverses */
static int get_storage(struct te_tensor *t, size_t align, uint32_t flags)
{
	int row = !(flags & TE_TENSOR_COLWISE) || (flags & TE_TENSOR_ROWWISE);
	int col = (flags & TE_TENSOR_COLWISE) != 0;
	size_t copy = te_tensor_nbytes(t), row_scales, col_scales, total;
	char *p;
	int r;

	r = scale_sizes(t, row, col, &row_scales, &col_scales);
	if (r)
		return r;

	/* memory is aligned to 256 bytes; a larger alignment needs padding in front */
	if (__builtin_add_overflow(copy, align - 1, &copy) ||
	    (copy &= ~(align - 1), __builtin_mul_overflow(copy, (size_t)(row + col), &total)) ||
	    __builtin_add_overflow(total, align - ALIGN_MIN +
				   (row_scales + col_scales) * sizeof(float), &total))
		return te__fail(-ENOMEM, "te_tensor_create: the size overflows");
	r = te__mem_get(t->ctx, total, &t->storage);
	if (r)
		return r;
	p = (char *)(((uintptr_t)t->storage + align - 1) & ~(uintptr_t)(align - 1));
	if (row) {
		t->data = p;
		p += copy;
	}
	if (col) {
		t->coldata = p;
		p += copy;
	}
	if (!te__is_codes(t->dtype))
		return 0;
	t->scale_inv = row_scales ? (float *)(void *)p : NULL;
	t->col_scale_inv = col_scales ? (float *)(void *)p + row_scales : NULL;
	if (!t->scaling)
		t->col_scale_inv = t->scale_inv;
	return fill_scales(t, row_scales, col_scales);
}

int te_tensor_create(struct te_ctx *ctx, enum te_dtype dtype, int ndim, const int64_t *shape,
		     const struct te_tensor_opts *opts, struct te_tensor **ret_t)
{
	struct te_tensor_opts o = TE_TENSOR_OPTS_INIT;
	struct te_tensor *t;
	int r;

	r = opts ? te__sized_in("te_tensor_create", te_tensor_opts, opts, &o) : 0;
	if (!r)
		r = check_opts(dtype, &o);
	if (r)
		return r;
	r = tensor_new("te_tensor_create", ctx, dtype, ndim, shape, ret_t ? &t : NULL);
	if (r)
		return r;
	t->scaling = (enum te_scaling)o.scaling;
	r = check_fp4_rows("te_tensor_create", t, (o.flags & TE_TENSOR_COLWISE) != 0);
	if (!r)
		r = get_storage(t, o.align > ALIGN_MIN ? o.align : ALIGN_MIN, o.flags);
	if (r) {
		te_tensor_unref(t);
		return r;
	}
	*ret_t = t;
	return 0;
}

int te_tensor_wrap(struct te_ctx *ctx, enum te_dtype dtype, int ndim, const int64_t *shape,
		   void *data, void *coldata, float *scale_inv, struct te_tensor **ret_t)
{
	return te__tensor_wrap_scaled(ctx, dtype, ndim, shape, data, coldata, scale_inv, scale_inv,
				      TE_SCALING_TENSOR, ret_t);
}

int te__tensor_wrap_scaled(struct te_ctx *ctx, enum te_dtype dtype, int ndim, const int64_t *shape,
			   void *data, void *coldata, float *scale_inv, float *col_scale_inv,
			   enum te_scaling scaling, struct te_tensor **ret_t)
{
	const int row = !scaling || data != NULL, col = scaling && coldata;
	struct te_tensor *t;
	int r;

	if (!data && !coldata)
		return te__fail(-EINVAL, "te_tensor_wrap: data and coldata are NULL");
	r = check_fp4("te_tensor_wrap", dtype, scaling);
	if (r)
		return r;
	if (te__is_codes(dtype) && ((row && !scale_inv) || (col && !col_scale_inv)))
		return te__fail(-EINVAL, "te_tensor_wrap: an FP8 tensor needs a %s",
				row && !scale_inv ? "scale_inv" : "col_scale_inv");
	if (!te__is_codes(dtype) && (coldata || scale_inv))
		return te__fail(-EINVAL, "te_tensor_wrap: %s has no %s, FP8 has",
				te_dtype_name(dtype), coldata ? "column-wise copy" : "scale_inv");
	if (((uintptr_t)scale_inv | (uintptr_t)col_scale_inv) % sizeof(float))
		return te__fail(-EINVAL, "te_tensor_wrap: scale_inv at %p is not aligned to %zu "
				"bytes", (uintptr_t)scale_inv % sizeof(float) ?
				(void *)scale_inv : (void *)col_scale_inv, sizeof(float));
	r = tensor_new("te_tensor_wrap", ctx, dtype, ndim, shape, ret_t ? &t : NULL);
	if (r)
		return r;
	if (te_dtype_nbytes(dtype) && (uintptr_t)data % te_dtype_nbytes(dtype)) {
		te_tensor_unref(t);
		return te__fail(-EINVAL,
				"te_tensor_wrap: data at %p is not aligned to the %zu bytes of %s",
				data, te_dtype_nbytes(dtype), te_dtype_name(dtype));
	}
	r = check_fp4_rows("te_tensor_wrap", t, col);
	if (r) {
		te_tensor_unref(t);
		return r;
	}
	t->data = data;
	t->coldata = coldata;
	t->scaling = scaling;
	t->scale_inv = scale_inv;
	t->col_scale_inv = col_scale_inv;
	*ret_t = t;
	return 0;
}

int te__tensor_wrap_owned(struct te_ctx *ctx, enum te_dtype dtype, int ndim, const int64_t *shape,
			  void *data, void (*release)(void *arg), void *arg,
			  struct te_tensor **ret_t)
{
	int r = te_tensor_wrap(ctx, dtype, ndim, shape, data, NULL, NULL, ret_t);

	if (!r) {
		(*ret_t)->release = release;
		(*ret_t)->release_arg = arg;
	}
	return r;
}

int te_tensor_view(struct te_tensor *base, int64_t offset_nelems, int ndim, const int64_t *shape,
		   struct te_tensor **ret_t)
{
	struct te_tensor *t;
	int r;

	if (!base)
		return te__fail(-EINVAL, "te_tensor_view: base is NULL");
	r = tensor_new("te_tensor_view", base->ctx, base->dtype, ndim, shape, ret_t ? &t : NULL);
	if (r)
		return r;
	if (offset_nelems < 0 || offset_nelems > base->nelems ||
	    t->nelems > base->nelems - offset_nelems)
		r = te__fail(-EINVAL, "te_tensor_view: %lld elements from %lld on, of %lld",
			     (long long)t->nelems, (long long)offset_nelems,
			     (long long)base->nelems);
	else if ((base->coldata || base->scaling) &&
		 (t->nelems != base->nelems || te_tensor_cols(t) != te_tensor_cols(base)))
		/* with other columns the transpose and the blocks would differ */
		r = te__fail(-EINVAL, "te_tensor_view: a tensor with %s is viewed whole, with its "
			     "%lld columns", base->coldata ? "a column-wise copy" : "block scaling",
			     (long long)te_tensor_cols(base));
	if (r) {
		te_tensor_unref(t);
		return r;
	}
	if (base->data)
		t->data = (char *)base->data + te__nbytes_of(base->dtype, offset_nelems);
	t->coldata = base->coldata;
	t->scale_inv = base->scale_inv;
	t->col_scale_inv = base->col_scale_inv;
	t->scaling = base->scaling;
	t->base = te_tensor_ref(base->base ? base->base : base);
	*ret_t = t;
	return 0;
}

struct te_tensor *te_tensor_ref(struct te_tensor *t)
{
	if (t)
		atomic_fetch_add(&t->refs, 1);
	return t;
}

struct te_tensor *te_tensor_unref(struct te_tensor *t)
{
	struct te_ctx *ctx = t ? t->ctx : NULL;

	if (!t || atomic_fetch_sub(&t->refs, 1) != 1)
		return NULL;
	te__mem_put(ctx, t->storage);
	if (t->release)
		t->release(t->release_arg);
	te_tensor_unref(t->base);
	te__free(t);
	te_ctx_unref(ctx);
	return NULL;
}

struct te_ctx *te_tensor_ctx(const struct te_tensor *t)
{
	return t ? t->ctx : NULL;
}

enum te_dtype te_tensor_dtype(const struct te_tensor *t)
{
	return t ? t->dtype : TE_DTYPE_COUNT;
}

int te_tensor_ndim(const struct te_tensor *t)
{
	return t ? t->ndim : 0;
}

int64_t te_tensor_extent(const struct te_tensor *t, int dim)
{
	const int ndim = te_tensor_ndim(t);
	const int i = dim < 0 ? dim + ndim : dim;

	if (i < 0 || i >= ndim)
		return te__fail(-EINVAL, "te_tensor_extent: dimension %d of %d", dim, ndim);
	return t->shape[i];
}

int64_t te_tensor_nelems(const struct te_tensor *t)
{
	return t ? t->nelems : 0;
}

size_t te_tensor_nbytes(const struct te_tensor *t)
{
	return t ? (size_t)te__nbytes_of(t->dtype, t->nelems) : 0;
}

int64_t te_tensor_cols(const struct te_tensor *t)
{
	return t ? t->shape[t->ndim - 1] : 0;
}

int64_t te_tensor_rows(const struct te_tensor *t)
{
	return t ? t->nelems / t->shape[t->ndim - 1] : 0;
}

void *te_tensor_data(const struct te_tensor *t)
{
	return t ? t->data : NULL;
}

void *te_tensor_coldata(const struct te_tensor *t)
{
	return t ? t->coldata : NULL;
}

enum te_scaling te_tensor_scaling(const struct te_tensor *t)
{
	return t ? t->scaling : TE_SCALING_TENSOR;
}

float *te_tensor_scale_inv(const struct te_tensor *t)
{
	return t ? t->scale_inv : NULL;
}

float *te_tensor_col_scale_inv(const struct te_tensor *t)
{
	return t ? t->col_scale_inv : NULL;
}

static int has_scales(enum te_scaling scaling, int64_t rows, int64_t cols)
{
	int64_t nelems;

	if ((unsigned int)scaling > TE_SCALING_16X16 || rows < 1 || cols < 1)
		return 0;
	return scaling == TE_SCALING_TENSOR ||
	       (!__builtin_mul_overflow(rows, cols, &nelems) && nelems <= SCALED_NELEMS_MAX);
}

int64_t te_scaling_nfloats(enum te_scaling scaling, int64_t rows, int64_t cols)
{
	return has_scales(scaling, rows, cols) ? te_k_scale_nfloats(scaling, rows, cols) : -1;
}

int64_t te_scaling_index(enum te_scaling scaling, int64_t rows, int64_t cols, int64_t r, int64_t c)
{
	if (!has_scales(scaling, rows, cols) || r < 0 || r >= rows || c < 0 || c >= cols)
		return -1;
	return te_k_scale_index(scaling, rows, cols, r, c);
}

struct te_tensor *te_tensor_base(const struct te_tensor *t)
{
	return t ? t->base : NULL;
}

/* checked before anything is queued: the end of a captured copy cannot be waited for */
static int check_transfer(const char *fn, const struct te_tensor *t, const void *host,
			  size_t nbytes)
{
	if (!t || !host)
		return te__fail(-EINVAL, "%s: %s is NULL", fn, t ? "host memory" : "t");
	if (nbytes != te_tensor_nbytes(t))
		return te__fail(-EINVAL, "%s: %zu bytes, but the tensor has %zu", fn, nbytes,
				te_tensor_nbytes(t));
	if (!t->data)
		return te__fail(-EINVAL, "%s: the tensor has no row-wise copy", fn);
	return te__stream_not_capturing(t->ctx->stream, fn);
}

int te_tensor_write(struct te_tensor *t, const void *src, size_t nbytes)
{
	int r = check_transfer("te_tensor_write", t, src, nbytes);

	if (!r)
		r = te_copy(t->ctx->stream, t->data, src, nbytes);
	return r ? r : te_stream_sync(t->ctx->stream);
}

int te_tensor_read(const struct te_tensor *t, void *dst, size_t nbytes)
{
	int r = check_transfer("te_tensor_read", t, dst, nbytes);

	if (!r)
		r = te_copy(t->ctx->stream, dst, t->data, nbytes);
	return r ? r : te_stream_sync(t->ctx->stream);
}

static int is_wide_float(enum te_dtype dtype)
{
	return dtype == TE_DTYPE_FP32 || dtype == TE_DTYPE_BF16 || dtype == TE_DTYPE_FP16;
}

static int check_cast(const struct te_stream *stream, const struct te_tensor *x,
		      const struct te_tensor *y)
{
	if (!x || !y)
		return te__fail(-EINVAL, "te_cast: %s is NULL", x ? "y" : "x");
	if (x->ctx != stream->ctx || y->ctx != stream->ctx)
		return te__fail(-EINVAL, "te_cast: %s belongs to another context than the stream",
				x->ctx == stream->ctx ? "y" : "x");
	if (!is_wide_float(x->dtype) || !is_wide_float(y->dtype))
		return te__fail(-TE_EDTYPE, "te_cast: from %s to %s, not among fp32, bf16, fp16",
				te_dtype_name(x->dtype), te_dtype_name(y->dtype));
	if (x->nelems != y->nelems)
		return te__fail(-TE_ESHAPE, "te_cast: x has %lld elements, y has %lld",
				(long long)x->nelems, (long long)y->nelems);
	return 0;
}

int te_cast(struct te_stream *stream, const struct te_tensor *x, struct te_tensor *y)
{
	struct te_k_cast a;
	int r;

	if (!stream)
		return te__fail(-EINVAL, "te_cast: stream is NULL");
	r = check_cast(stream, x, y);
	if (r)
		return te__stream_queued(stream, r);
	a = (struct te_k_cast){
		.x = x->data,
		.y = y->data,
		.n = x->nelems,
		.xdtype = x->dtype,
		.ydtype = y->dtype,
	};
	return TE__LAUNCH(stream, CAST, &a);
}
