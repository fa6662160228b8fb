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
 * An FP8 tensor holds up to two copies of one logical [rows, cols] matrix (rows
 * = product of all extents but the last): row-wise as is, column-wise
 * transposed to [cols, rows], because Hopper's FP8 tensor cores want both
 * operands of a product K-major. Both share one scale-inverse: a code times
 * *scale_inv is the value.
 */
#define TE_TENSOR_ROWWISE 1u /* the default when neither is given */
#define TE_TENSOR_COLWISE 2u /* FP8 only */

struct te_tensor_opts {
	size_t size;	/* set by the INIT macro; lets the struct grow */
	uint32_t align;	/* bytes, a power of two; 0 means 256 */
	uint32_t flags;	/* TE_TENSOR_* */
};
#define TE_TENSOR_OPTS_INIT { sizeof(struct te_tensor_opts), 0, 0 }

/**
 * te_tensor_create - allocate a row-major tensor on the context's device
 * @ctx:   owns the storage; the tensor keeps a reference to it
 * @dtype: element type
 * @ndim:  1 to TE_MAX_DIMS
 * @shape: ndim extents in elements, outermost first, each above 0
 * @opts:  NULL for the defaults
 * @ret_t: the tensor, with one reference
 *
 * Memory: undefined until written; an FP8 tensor's scale_inv is 1.
 * Stream: synchronous; -EBUSY while the context's stream is capturing.
 * Thread: any thread; one tensor by one thread at a time.
 * Errors: -EINVAL, -ENOMEM, -EBUSY, -TE_ECUDA.
 * Since:  0.1
 */
TE_EXPORT int te_tensor_create(struct te_ctx *ctx, enum te_dtype dtype, int ndim,
			       const int64_t *shape, const struct te_tensor_opts *opts,
			       struct te_tensor **ret_t);

/**
 * te_tensor_wrap - a tensor over memory the caller owns and keeps alive
 * @data:      row-wise device memory at any address that an element may have, or NULL when only
 *             the column copy exists
 * @coldata:   column-wise device memory, FP8 only, or NULL
 * @scale_inv: device FP32 word, FP8 only (required there), else NULL
 */
TE_EXPORT int te_tensor_wrap(struct te_ctx *ctx, enum te_dtype dtype, int ndim,
			     const int64_t *shape, void *data, void *coldata, float *scale_inv,
			     struct te_tensor **ret_t);

/**
 * te_tensor_view - contiguous part of a tensor under another shape
 * @offset_nelems: first element within the base
 *
 * The view keeps the base alive; te_tensor_base() returns it. A view of a
 * view has the outermost tensor as its base. FP8 tensors with a column copy
 * can only be viewed whole (-EINVAL else).
 */
TE_EXPORT int te_tensor_view(struct te_tensor *base, int64_t offset_nelems, int ndim,
			     const int64_t *shape, struct te_tensor **ret_t);
TE_EXPORT struct te_tensor *te_tensor_ref(struct te_tensor *t);
TE_EXPORT struct te_tensor *te_tensor_unref(struct te_tensor *t);

TE_EXPORT struct te_ctx *te_tensor_ctx(const struct te_tensor *t);
TE_EXPORT enum te_dtype te_tensor_dtype(const struct te_tensor *t);
TE_EXPORT int te_tensor_ndim(const struct te_tensor *t);
/* dim < 0 counts from the end */
TE_EXPORT int64_t te_tensor_extent(const struct te_tensor *t, int dim);
TE_EXPORT int64_t te_tensor_nelems(const struct te_tensor *t);
TE_EXPORT size_t te_tensor_nbytes(const struct te_tensor *t); /* of one copy */
TE_EXPORT int64_t te_tensor_cols(const struct te_tensor *t);  /* last extent */
TE_EXPORT int64_t te_tensor_rows(const struct te_tensor *t);  /* product of the others */
TE_EXPORT void *te_tensor_data(const struct te_tensor *t);
TE_EXPORT void *te_tensor_coldata(const struct te_tensor *t);
TE_EXPORT float *te_tensor_scale_inv(const struct te_tensor *t);
TE_EXPORT struct te_tensor *te_tensor_base(const struct te_tensor *t); /* NULL: not a view */

/* copy all of a tensor's row-wise data from or to host memory, synchronously on the
 * context's stream */
TE_EXPORT int te_tensor_write(struct te_tensor *t, const void *src, size_t nbytes);
TE_EXPORT int te_tensor_read(const struct te_tensor *t, void *dst, size_t nbytes);

/**
 * te_cast - convert between FP32, BF16 and FP16 (stream ordered)
 * Shapes: x and y of equal element count.
 */
TE_EXPORT int te_cast(struct te_stream *stream, const struct te_tensor *x, struct te_tensor *y);

TE_END_DECLS

#endif
