/* te/tensor.h - typed, shaped memory on a context's device. */
#ifndef TE_TENSOR_H
#define TE_TENSOR_H

#include <stddef.h>
#include <stdint.h>
#include <te/ctx.h>
#include <te/dtype.h>
#include <te/export.h>
#include <te/stream.h>

TE_BEGIN_DECLS

#define TE_MAX_DIMS 8

struct te_tensor; /* opaque, reference counted */

/*
 * An FP8 tensor has up to two copies of one [rows, cols] matrix, where rows is the product of all
 * extents but the last: a row-wise copy, and a column-wise copy, which is the transpose
 * [cols, rows]. Hopper's FP8 tensor cores need both operands of a GEMM K-major. A value is a code
 * times its scale-inverse.
 */
#define TE_TENSOR_ROWWISE 1u /* the default when neither is given */
#define TE_TENSOR_COLWISE 2u /* FP8 only */

/*
 * Sets of elements that share a scale-inverse. Block scaling gives each copy an array of
 * scale-inverses, in the layout of te_scaling_index(): te_tensor_scale_inv() for the row-wise copy,
 * te_tensor_col_scale_inv() for the column-wise copy. They are FP32 words; TE_SCALING_1X32: E8M0
 * bytes, 2^(byte - 127), and NaN for 255; TE_SCALING_1X16 and _16X16: E4M3 bytes, which are
 * multiplied by an FP32 word that begins the array.
 */
enum te_scaling {
	TE_SCALING_TENSOR,  /* all elements of both copies: one device word */
	TE_SCALING_1X128,   /* 128 consecutive elements of a row of the stored copy */
	TE_SCALING_128X128, /* a square of 128 rows and 128 columns */
	TE_SCALING_1X32,    /* 32 consecutive elements of a row; E8M0 */
	TE_SCALING_1X16,    /* E2M1: 16 consecutive elements of a row */
	TE_SCALING_16X16,   /* E2M1: a square of 16 rows and 16 columns */
};

struct te_tensor_opts {
	size_t size;	/* set by the INIT macro; lets the struct grow */
	uint32_t align;	/* bytes, a power of two; 0 means 256 */
	uint32_t flags;	/* TE_TENSOR_* */
	uint32_t scaling; /* enum te_scaling; other than TE_SCALING_TENSOR: FP8 only */
};
#define TE_TENSOR_OPTS_INIT { sizeof(struct te_tensor_opts), 0, 0, 0 }

/**
 * te_tensor_create - allocate a row-major tensor on the context's device
 * @ctx:   owns the storage; the tensor keeps a reference to it
 * @dtype: element type
 * @ndim:  1 to TE_MAX_DIMS
 * @shape: ndim extents in elements, outermost first, each above 0
 * @opts:  NULL for the defaults
 * @ret_t: the tensor, with one reference
 *
 * Memory: undefined until written; an FP8 tensor's scale-inverses are 1.
 * Stream: synchronous; -EBUSY if the calling thread is capturing the context's stream.
 * Thread: any thread; one tensor by one thread at a time.
 * Errors: -EINVAL, -ENOMEM, -EBUSY, -TE_ECUDA.
 * Since:  0.1
 */
TE_EXPORT int te_tensor_create(struct te_ctx *ctx, enum te_dtype dtype, int ndim,
			       const int64_t *shape, const struct te_tensor_opts *opts,
			       struct te_tensor **ret_t);

/**
 * te_tensor_wrap - create a tensor over memory that the caller owns and keeps
 * @ctx:       the device; the tensor keeps a reference
 * @dtype:     element type
 * @ndim:      1 to TE_MAX_DIMS
 * @shape:     ndim extents in elements, outermost first, each above 0
 * @data:      row-wise device memory, aligned to an element; NULL if only the column copy exists
 * @coldata:   column-wise device memory, FP8 only; or NULL
 * @scale_inv: device FP32 word, required for FP8; else NULL
 * @ret_t:     the tensor, with one reference
 *
 * Thread: any.  Since: 0.1
 */
TE_EXPORT int te_tensor_wrap(struct te_ctx *ctx, enum te_dtype dtype, int ndim,
			     const int64_t *shape, void *data, void *coldata, float *scale_inv,
			     struct te_tensor **ret_t);

/**
 * te_tensor_view - create a tensor over a contiguous part of another one, with another shape
 * @base:          the other tensor
 * @offset_nelems: first element within the base
 * @ndim:          1 to TE_MAX_DIMS
 * @shape:         ndim extents in elements, outermost first, each above 0
 * @ret_t:         the tensor, with one reference
 *
 * The view holds a reference to the base; te_tensor_base() returns it. A view of a view has the
 * outermost tensor as its base. FP8 tensors with a column copy or with block scaling can only be
 * viewed whole, with the same columns, or -EINVAL.
 * Thread: any.  Since: 0.1
 */
TE_EXPORT int te_tensor_view(struct te_tensor *base, int64_t offset_nelems, int ndim,
			     const int64_t *shape, struct te_tensor **ret_t);
TE_EXPORT struct te_tensor *te_tensor_ref(struct te_tensor *t);
/* releasing the last reference frees the memory in the order of te_ctx_stream: work on other
 * streams that uses it must have run, or te_ctx_stream must wait for it (te_event_wait) */
TE_EXPORT struct te_tensor *te_tensor_unref(struct te_tensor *t);

TE_EXPORT struct te_ctx *te_tensor_ctx(const struct te_tensor *t);
TE_EXPORT enum te_dtype te_tensor_dtype(const struct te_tensor *t);
TE_EXPORT int te_tensor_ndim(const struct te_tensor *t);
/* dim < 0 counts from the end */
TE_EXPORT int64_t te_tensor_extent(const struct te_tensor *t, int dim);
TE_EXPORT int64_t te_tensor_nelems(const struct te_tensor *t);
TE_EXPORT size_t te_tensor_nbytes(const struct te_tensor *t); /* bytes of one copy */
TE_EXPORT int64_t te_tensor_cols(const struct te_tensor *t);  /* last extent */
TE_EXPORT int64_t te_tensor_rows(const struct te_tensor *t);  /* product of the others */
TE_EXPORT void *te_tensor_data(const struct te_tensor *t);
TE_EXPORT void *te_tensor_coldata(const struct te_tensor *t);
TE_EXPORT enum te_scaling te_tensor_scaling(const struct te_tensor *t);
/* scale-inverses of the row-wise and the column-wise copy: the same word, or with block scaling an
 * array for each copy, NULL if the tensor lacks the copy */
TE_EXPORT float *te_tensor_scale_inv(const struct te_tensor *t);
TE_EXPORT float *te_tensor_col_scale_inv(const struct te_tensor *t);
TE_EXPORT struct te_tensor *te_tensor_base(const struct te_tensor *t); /* NULL: not a view */

/**
 * te_scaling_nfloats, te_scaling_index - layout of the scale-inverses of a copy
 * @scaling:     the scaling of the copy
 * @rows, @cols: extents of the stored copy; for a column-wise copy, extents of the transpose
 * @r, @c:       row and column of an element of the stored copy
 *
 * te_scaling_nfloats returns the number of words of 4 bytes in the array, padding included, and
 * te_scaling_index the index of the element's FP32 word or, from TE_SCALING_1X32 on, byte.
 * TE_SCALING_1X128: [ceil(cols / 128), rows], word (c / 128, r); TE_SCALING_128X128: [ceil(rows /
 * 128), ceil(cols / 128)], word (r / 128, c / 128). The last extent is padded to a multiple of 4,
 * as cuBLASLt needs it. TE_SCALING_1X32: [ceil(rows / 128), ceil(cols / 128)] squares of 512 bytes,
 * byte 16 (r % 32) + 4 (r % 128 / 32) + c % 128 / 32 of square (r / 128, c / 128). TE_SCALING_1X16,
 * _16X16: 16 bytes (the FP32 word of the copy, then 12 bytes of scratch for te_quantize), then the
 * layout of TE_SCALING_1X32 with 64 in place of 128 columns, and 16 in place of 32. Both return -1
 * if the scaling is unknown, an extent is below 1, the element is outside, or the scaling is by
 * blocks and the copy has 2^57 elements or more.
 * Thread: any.  Since: 0.1
 */
TE_EXPORT int64_t te_scaling_nfloats(enum te_scaling scaling, int64_t rows, int64_t cols);
TE_EXPORT int64_t te_scaling_index(enum te_scaling scaling, int64_t rows, int64_t cols, int64_t r,
				   int64_t c);

/* copy all row-wise data of a tensor from or to host memory, synchronously on the context's
 * stream */
TE_EXPORT int te_tensor_write(struct te_tensor *t, const void *src, size_t nbytes);
TE_EXPORT int te_tensor_read(const struct te_tensor *t, void *dst, size_t nbytes);

/**
 * te_cast - convert between FP32, BF16 and FP16
 * @stream: work is queued on it
 * @x, @y:  input and output
 *
 * Shapes: x and y have equally many elements.
 * Stream: asynchronous, captures.
 * Thread: one stream by one thread at a time.  Since: 0.1
 */
TE_EXPORT int te_cast(struct te_stream *stream, const struct te_tensor *x, struct te_tensor *y);

TE_END_DECLS

#endif
