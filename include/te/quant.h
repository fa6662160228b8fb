/* te/quant.h - FP8 recipes, their device state, and casting by them. */
#ifndef TE_QUANT_H
#define TE_QUANT_H

#include <stddef.h>
#include <stdint.h>
#include <te/ctx.h>
#include <te/dtype.h>
#include <te/export.h>
#include <te/tensor.h>

TE_BEGIN_DECLS

enum te_recipe_kind {
	TE_RECIPE_NONE = 0,	/* operands stay in the compute dtype */
	TE_RECIPE_DELAYED = 1,	/* scale from the history of past amaxes */
	TE_RECIPE_CURRENT = 2,	/* scale from the tensor's present amax */
	TE_RECIPE_BLOCK = 3,	/* scale from the amax of each block: 1x128, weights 128x128 */
	TE_RECIPE_MXFP8 = 4,	/* E8M0 scale from the amax of each block, 1x32 */
	TE_RECIPE_NVFP4 = 5	/* E2M1, scales by tensor and by block, 1x16 */
};

/* names for te_recipe_from_name(), separated by bars, and rows of the library's table */
#define TE_RECIPE_NAMES "fp32|bf16|fp8-delayed|fp8-current|fp8-block|mxfp8|nvfp4"
#define TE__RECIPE_ROWS(X) X(fp32) X(bf16) X(delayed) X(current) X(block) X(mxfp8) X(nvfp4)

enum te_amax_algo {
	TE_AMAX_MAX = 0,	/* largest of the window */
	TE_AMAX_MOST_RECENT = 1
};

#define TE_RECIPE_POW2 1u	/* current: clear the scale's mantissa bits (rounds down) */
#define TE_RECIPE_E4M3_ONLY 2u	/* delayed, current: E4M3 gradients; the default is E5M2 */
#define TE_RECIPE_E5M2_GRADS 4u	/* block, mxfp8: E5M2 gradients; the default is E4M3 */
#define TE_RECIPE_FP32_SCALES 8u /* block: scales of any value; the default is powers of two */

struct te_recipe {
	size_t size;		/* set by the INIT macro; lets the struct grow */
	enum te_recipe_kind kind;
	enum te_dtype compute;	/* BF16 or FP32: activations and unquantized operands */
	int32_t margin;		/* delayed: fmt_max * 2^-margin; -32..32 */
	int32_t history_len;	/* delayed: 1..65536 */
	enum te_amax_algo algo;	/* delayed */
	float amax_epsilon;	/* current, block: smaller amaxes are raised to this; >= 0 */
	uint32_t flags;		/* TE_RECIPE_* */
};
#define TE_RECIPE_INIT \
	{ sizeof(struct te_recipe), TE_RECIPE_NONE, TE_DTYPE_BF16, 0, 1024, TE_AMAX_MAX, 0.0f, 0 }

/**
 * te_recipe_from_name - fill in a recipe's defaults
 * @name:       one of TE_RECIPE_NAMES
 * @ret_recipe: initialised by TE_RECIPE_INIT
 *
 * Thread: any.  Since: 0.1
 * Errors: -EINVAL (the message lists the names).
 */
TE_EXPORT int te_recipe_from_name(const char *name, struct te_recipe *ret_recipe);
/* returns "?" if no recipe has this kind and compute dtype */
TE_EXPORT const char *te_recipe_name(const struct te_recipe *recipe);

/**
 * te_recipe_for_device - the recipe that a device trains with fastest
 * @device:     from te_device_info() or te_ctx_device_info()
 * @ret_recipe: initialised by TE_RECIPE_INIT
 *
 * fp8-delayed where there are FP8 tensor cores, else bf16.
 *
 * Returns: a static sentence with the name of the recipe and why; NULL: device or ret_recipe is
 * NULL or not initialised, see te_error_detail().
 * Thread: any.  Since: 0.1
 */
TE_EXPORT const char *te_recipe_for_device(const struct te_device_info *device,
					   struct te_recipe *ret_recipe);

struct te_quant; /* the device state of many quantizers ("slots"); opaque, reference counted */

/**
 * te_quant_create - create the state of @nslots quantizers of one FP8 recipe
 * @ctx:    the device; the state keeps a reference
 * @recipe: copied
 * @nslots: number of quantizers
 * @dtypes: nslots types, each E4M3 or E5M2
 * @ret_q:  the state, with one reference
 *
 * Scales start at 1, histories at 0. The state of all slots is in packed arrays in device memory,
 * so that one launch updates all slots. Block, mxfp8, nvfp4: slots have no such state.
 * Thread: any.  Since: 0.1
 */
TE_EXPORT int te_quant_create(struct te_ctx *ctx, const struct te_recipe *recipe, int nslots,
			      const enum te_dtype *dtypes, struct te_quant **ret_q);
TE_EXPORT struct te_quant *te_quant_ref(struct te_quant *q);
TE_EXPORT struct te_quant *te_quant_unref(struct te_quant *q);
TE_EXPORT int te_quant_nslots(const struct te_quant *q);
TE_EXPORT const struct te_recipe *te_quant_recipe(const struct te_quant *q);

#define TE_QUANTIZE_NO_AMAX 1u	/* delayed: do not record this tensor's amax (evaluation) */
#define TE_QUANTIZE_STOCHASTIC 2u /* nvfp4, TE_SCALING_1X16: round stochastically (gradients) */

/**
 * te_quantize - cast a tensor to FP8 by a slot's recipe
 * @stream: work is queued on it
 * @q:      the quantizers
 * @slot:   number of the quantizer, from 0
 * @x:      [rows, cols] FP32 or BF16
 * @y:      FP8 of the slot's dtype, with the elements of x, or [rows, cols] rounded up to multiples
 *          of 16, as te_gemm needs. Padding gets codes of 0. All copies that y has are written
 * @noop:   device FP32 word or NULL: 1.0 leaves y, its scale_inv and all state as they are
 * @flags:  TE_QUANTIZE_*
 *
 * Delayed: casts with the slot's scale and folds this tensor's amax into the newest entry of the
 * history. Current: computes the amax, then the scale, then casts. Block: does this for each block
 * of y's scaling, which is TE_SCALING_1X128 or _128X128. Mxfp8: the same by TE_SCALING_1X32, where
 * scale_inv is the least power of two, from 2^-127 on, not below amax / fmt_max, and 2^127 for an
 * infinite amax. Nvfp4: scales by TE_SCALING_1X16 or _16X16, and a word for each copy; the
 * column-wise copy of 1X16 is cast from a transform of x. y's scale_inv is 1/scale, stored by the
 * cast, so later updates never invalidate y. An amax ignores NaN elements.
 * Source: te_quantize(3); t/quant/quant.c, block.c and nvfp4.c have every edge case.
 * Stream: asynchronous, captures.  Errors: -EINVAL, -TE_ESHAPE, -TE_EDTYPE.
 * Thread: one stream by one thread at a time.  Since: 0.1
 */
TE_EXPORT int te_quantize(struct te_stream *stream, struct te_quant *q, int slot,
			  const struct te_tensor *x, struct te_tensor *y, const float *noop,
			  uint32_t flags);
/* y may have the extents of x without the padding */
TE_EXPORT int te_dequantize(struct te_stream *stream, const struct te_tensor *x,
			    struct te_tensor *y);

/**
 * te_quant_update - delayed: fold amaxes into scales for slots [first, first + count)
 * @stream:        work is queued on it
 * @q:             the quantizers
 * @first, @count: the slots
 *
 * A slot whose newest amax is 0 is left untouched. amax is the maximum over the window, or the
 * newest entry; the history rotates by one and its newest entry is cleared; scale = (fmt_max *
 * 2^-margin) / amax; an amax of 0, infinity or NaN keeps the old scale; an infinite scale becomes
 * FLT_MAX. Other recipes: does nothing.
 * Thread: one stream by one thread at a time.  Since: 0.1
 */
TE_EXPORT int te_quant_update(struct te_stream *stream, struct te_quant *q, int first, int count);

/* device words for user-defined kernels: the scale, and the amax, which is folded by atomic maximum
 * (delayed: newest entry of the history; current: the word that te_quantize clears first). NULL: no
 * such slot, or a recipe without such words (block, mxfp8, nvfp4) */
TE_EXPORT float *te_quant_scale_ptr(const struct te_quant *q, int slot);
TE_EXPORT float *te_quant_amax_ptr(const struct te_quant *q, int slot);
TE_EXPORT enum te_dtype te_quant_dtype(const struct te_quant *q, int slot);
/* copy the scale and history_len floats (current: 1; block, mxfp8, nvfp4: none, scale 1) to host,
 * synchronously */
TE_EXPORT int te_quant_peek(struct te_quant *q, int slot, float *ret_scale, float *ret_history);

/**
 * te_quant_save, te_quant_load - copy the state to or from a little-endian blob
 * @q:         the quantizers
 * @dst, @src: the blob, in host memory
 * @nbytes:    size of the blob: te_quant_nbytes()
 *
 * Layout in te_quant_save(3): magic, version, recipe, slots, scales, histories, CRC-32.
 * te_quant_load refuses the state of another recipe or other slots (-EINVAL), damaged bytes
 * (-TE_ECORRUPT), and a blob of another format or a later version (-TE_EFORMAT), and then changes
 * nothing.
 * Thread: one q by one thread at a time.  Since: 0.1
 */
TE_EXPORT size_t te_quant_nbytes(const struct te_quant *q);
TE_EXPORT int te_quant_save(struct te_quant *q, void *dst, size_t nbytes);
TE_EXPORT int te_quant_load(struct te_quant *q, const void *src, size_t nbytes);

TE_END_DECLS

#endif
