/* cast.c - casts to FP8 by a recipe's row, by themselves or within another kernel, and back. */
#define TE_LOG_CATEGORY "core/quant"
#include "config.h"

#include <errno.h>
#include <string.h>

#include "libtecore/base/base.h"
#include "libtecore/quant/recipe.h"
#include "libtecore/tensor/ctx.h"

/* ---- by a producer ---- */

static int set_scale(const struct te__quantize *z)
{
	return z->quant->row->scale ? z->quant->row->scale(z) : 0;
}

int te__quantize_begin(const struct te__quantize *z, struct te_k_q *ret_q)
{
	return z->quant->row->begin(z, ret_q);
}

int te__quantize_keeps_x(const struct te_quant *q)
{
	if (q->row->keeps_x == TE__KEEPS_X_GPU)
		return strcmp(te_ctx_backend(q->ctx), "host") != 0;
	return q->row->keeps_x;
}

/* E2M1: the scale of a copy needs its amax first, see struct te_k_quantize */
static int launch(struct te_stream *stream, const struct te_k_quantize *k)
{
	int r = 0;

	if (k->q.dtype == TE_DTYPE_E2M1) {
		r = TE__LAUNCH(stream, NVFP4_BEGIN, k);
		if (r >= 0)
			r = TE__LAUNCH(stream, NVFP4_AMAX, k);
	}
	return r < 0 ? r : TE__LAUNCH(stream, QUANTIZE, k);
}

int te__quantize_end(const struct te__quantize *z, const void *x, enum te_dtype dtype)
{
	struct te_k_quantize k = {
		.x = x,
		.rows = te_tensor_rows(z->y),
		.cols = te_tensor_cols(z->y),
		.dtype = (int32_t)dtype,
		.stochastic = (z->flags & TE_QUANTIZE_STOCHASTIC) != 0,
	};
	int r;

	if (!te__quantize_keeps_x(z->quant))
		return 0;
	r = set_scale(z);
	if (r < 0)
		return r;
	te__quantize_by_slot(z, &k.q);
	return launch(z->stream, &k);
}

int te__launch_cast(struct te_stream *stream, int id, const void *args, size_t nbytes,
		    struct te_k_q *q, const struct te__quantize *z, const void *x, int32_t dtype)
{
	int r = z ? te__quantize_begin(z, q) : 0;

	if (r >= 0)
		r = te__launch_k(stream, id, args, nbytes);
	return r < 0 || !z ? r : te__quantize_end(z, x, (enum te_dtype)dtype);
}

/* ---- alone ---- */

/* is y [rows, cols] of x rounded up to the extents of FP8 GEMMs? */
static int is_padded(const struct te_tensor *x, const struct te_tensor *y)
{
	return te_tensor_rows(y) == te__fp8_extent(te_tensor_rows(x)) &&
	       te_tensor_cols(y) == te__fp8_extent(te_tensor_cols(x));
}

static int same_ctx(const char *fn, const struct te_stream *stream, const struct te_tensor *x,
		    const struct te_tensor *y)
{
	if (te_tensor_ctx(x) != te_stream_ctx(stream) || te_tensor_ctx(y) != te_stream_ctx(stream))
		return te__fail(-EINVAL, "%s: x, y and the stream are not of one context", fn);
	return 0;
}

static int same_nelems(const char *fn, const struct te_tensor *x, const struct te_tensor *y)
{
	if (te_tensor_nelems(x) != te_tensor_nelems(y))
		return te__fail(-TE_ESHAPE, "%s: x has %lld elements, but y has %lld", fn,
				(long long)te_tensor_nelems(x), (long long)te_tensor_nelems(y));
	return 0;
}

static int is_compute(enum te_dtype dtype)
{
	return dtype == TE_DTYPE_FP32 || dtype == TE_DTYPE_BF16;
}

static int makes_scaling(const struct te_quant *q, enum te_scaling scaling)
{
	for (int role = TE__ROLE_ACTIVATION; role <= TE__ROLE_GRADIENT; role++)
		if (te__recipe_operand(&q->recipe, role).scaling == scaling)
			return 1;
	return 0;
}

#define FLAGS (TE_QUANTIZE_NO_AMAX | TE_QUANTIZE_STOCHASTIC)

int te__quantize_check(const char *fn, const char *y, const struct te__quantize *z)
{
	const struct te_quant *q = z->quant;

	if (z->slot < 0 || z->slot >= q->nslots)
		return te__fail(-EINVAL, "%s: slot %d of %d", fn, z->slot, q->nslots);
	if (z->flags & ~FLAGS)
		return te__fail(-EINVAL, "%s: unknown flags 0x%x", fn,
				(unsigned int)(z->flags & ~FLAGS));
	if (q->ctx != te_stream_ctx(z->stream))
		return te__fail(-EINVAL, "%s: the quantizers belong to another context", fn);
	if (te_tensor_ctx(z->y) != q->ctx)
		return te__fail(-EINVAL, "%s: %s and the stream are of two contexts", fn, y);
	if (te_tensor_dtype(z->y) != q->dtype[z->slot])
		return te__fail(-TE_EDTYPE, "%s: %s is %s, but slot %d makes %s", fn, y,
				te_dtype_name(te_tensor_dtype(z->y)), z->slot,
				te_dtype_name(q->dtype[z->slot]));
	if (!makes_scaling(q, te_tensor_scaling(z->y)))
		return te__fail(-TE_EDTYPE, "%s: %s has %s%s scaling, which recipe %s does not "
				"make", fn, y, te__scaling_name[te_tensor_scaling(z->y)],
				te_tensor_scaling(z->y) ? " block" : "", q->row->name);
	if (z->flags & TE_QUANTIZE_STOCHASTIC && te_tensor_scaling(z->y) != TE_SCALING_1X16)
		return te__fail(-EINVAL, "%s: TE_QUANTIZE_STOCHASTIC is for 1x16 block scaling, of "
				"recipe nvfp4", fn);
	return 0;
}

static int check_quantize(const struct te__quantize *z, const struct te_tensor *x)
{
	int r = te__quantize_check("te_quantize", "y", z);

	if (r >= 0)
		r = same_ctx("te_quantize", z->stream, x, z->y);
	if (r >= 0 && !is_padded(x, z->y))
		r = same_nelems("te_quantize", x, z->y);
	if (r >= 0 && !is_compute(te_tensor_dtype(x)))
		r = te__fail(-TE_EDTYPE, "te_quantize: x is %s, not fp32 or bf16",
			     te_dtype_name(te_tensor_dtype(x)));
	return r;
}

/* turn the amax of a part into the amax of all parts */
static int join(const struct te__quantize *z, const struct te__quantize_part *part, float *amax)
{
	return part && amax ? part->join(part->arg, z->stream, amax) : 0;
}

/*
 * The kernel that casts is the producer; where its result is read again, x is that, and the
 * producer only folds the amax. part: k has a part of y's input; or NULL.
 */
static int cast(const struct te__quantize *z, struct te_k_quantize *k,
		const struct te__quantize_part *part)
{
	const int again = te__quantize_keeps_x(z->quant);
	int r = te__quantize_begin(z, &k->q);
	const struct te_k_amax amax = {
		.x = k->x,
		.n = (k->rows - k->pad_rows) * (k->cols - k->pad_cols),
		.amax = k->q.amax,
		.noop = z->noop,
		.dtype = k->dtype,
	};

	if (r >= 0 && again && amax.amax)
		r = TE__LAUNCH(z->stream, AMAX, &amax);
	if (r >= 0 && again)
		r = join(z, part, amax.amax);
	if (r >= 0 && again)
		r = set_scale(z);
	if (again)
		te__quantize_by_slot(z, &k->q);
	if (part) {
		k->q.row = part->codes;
		k->q.col = NULL;
	}
	if (r >= 0)
		r = launch(z->stream, k);
	return r < 0 || again ? r : join(z, part, amax.amax);
}

int te__quantize_alone(const struct te__quantize *z, const struct te_tensor *x)
{
	struct te_k_quantize k = {
		.x = te_tensor_data(x),
		.rows = te_tensor_rows(z->y),
		.cols = te_tensor_cols(z->y),
		.dtype = (int32_t)te_tensor_dtype(x),
		.stochastic = (z->flags & TE_QUANTIZE_STOCHASTIC) != 0,
	};
	int r = check_quantize(z, x);

	if (r < 0)
		return r;
	if (te_tensor_nelems(x) != te_tensor_nelems(z->y)) {
		k.pad_rows = (int16_t)(k.rows - te_tensor_rows(x));
		k.pad_cols = (int16_t)(k.cols - te_tensor_cols(x));
	}
	return cast(z, &k, NULL);
}

int te__quantize_part(const struct te__quantize *z, const struct te__quantize_part *part)
{
	struct te_k_quantize k = {
		.x = part->x,
		.rows = part->rows,
		.cols = part->cols,
		.dtype = (int32_t)part->dtype,
	};

	return cast(z, &k, part);
}

int te_quantize(struct te_stream *stream, struct te_quant *q, int slot, const struct te_tensor *x,
		struct te_tensor *y, const float *noop, uint32_t flags)
{
	const struct te__quantize z = { stream, q, slot, y, noop, flags, NULL, NULL };

	if (!stream || !q || !x || !y)
		return te__stream_queued(stream, te__fail(-EINVAL, "te_quantize: an argument is "
							  "NULL"));
	te__stream_hold(stream);
	return te__stream_held(stream, te__quantize_alone(&z, x));
}

static int dequantize(struct te_stream *stream, const struct te_tensor *x, struct te_tensor *y)
{
	struct te_k_dequantize k;
	int r;

	if (!stream || !x || !y)
		return te__fail(-EINVAL, "te_dequantize: an argument is NULL");
	r = same_ctx("te_dequantize", stream, x, y);
	if (r >= 0 && !is_padded(y, x))
		r = same_nelems("te_dequantize", x, y);
	if (r < 0)
		return r;
	if (!te__is_codes(te_tensor_dtype(x)))
		return te__fail(-TE_EDTYPE, "te_dequantize: x is %s, not e4m3, e5m2 or e2m1",
				te_dtype_name(te_tensor_dtype(x)));
	if (!is_compute(te_tensor_dtype(y)))
		return te__fail(-TE_EDTYPE, "te_dequantize: y is %s, not fp32 or bf16",
				te_dtype_name(te_tensor_dtype(y)));
	if (!te_tensor_data(x))
		return te__fail(-EINVAL, "te_dequantize: x has no row-wise copy");
	k = (struct te_k_dequantize){
		.x = te_tensor_data(x),
		.y = te_tensor_data(y),
		.scale_inv = te_tensor_scale_inv(x),
		.rows = te_tensor_rows(x),
		.cols = te_tensor_cols(x),
		.scaling = (int32_t)te_tensor_scaling(x),
		.xdtype = (int32_t)te_tensor_dtype(x),
		.ydtype = (int32_t)te_tensor_dtype(y),
	};
	if (te_tensor_nelems(x) != te_tensor_nelems(y)) {
		k.pad_rows = (int16_t)(k.rows - te_tensor_rows(y));
		k.pad_cols = (int16_t)(k.cols - te_tensor_cols(y));
	}
	return TE__LAUNCH(stream, DEQUANTIZE, &k);
}

int te_dequantize(struct te_stream *stream, const struct te_tensor *x, struct te_tensor *y)
{
	return te__stream_queued(stream, dequantize(stream, x, y));
}
