/*
 * quant.h - what ops and plans ask of recipes and quantizers. None of them looks at a recipe's
 * kind: what differs between recipes is in the rows of recipes.def.
 */
#ifndef TE__QUANT_QUANT_H
#define TE__QUANT_QUANT_H

#include <te/quant.h>
#include <te/region.h>

#include "kernels/te_k.h"
#include "libtecore/base/private.h"

/* a stand-in address for tensors and quantizers that are only described; never dereferenced */
#define TE__NOWHERE ((char *)(uintptr_t)4096)

/* What an operand of a GEMM is. */
enum te__role { TE__ROLE_ACTIVATION, TE__ROLE_WEIGHT, TE__ROLE_GRADIENT };

/* The element type of an operand's copies, and which elements share a scale. */
struct te__operand {
	enum te_dtype dtype; /* not FP8: the operand is not cast */
	enum te_scaling scaling;
};

/* a caller's recipe of any size; fields that it lacks get their defaults. fn begins the message */
/* 0, or -EINVAL: the kind is unknown, or a field is out of range. recipe is a whole one */
int te__recipe_check(const char *fn, const struct te_recipe *recipe);
/* 1: some operands are cast, and quantizers exist */
int te__recipe_casts(const struct te_recipe *recipe);
struct te__operand te__recipe_operand(const struct te_recipe *recipe, enum te__role role);
/* 1: scales that are computed from a tensor's or a block's own amax are powers of two */
int te__recipe_pow2(const struct te_recipe *recipe);
/* 1: quantizers of one recipe serve the other too: they differ in the compute dtype at most */
int te__recipe_same(const struct te_recipe *a, const struct te_recipe *b);

/* te_quant_create() without device memory, for plans that do not run */
int te__quant_describe(struct te_ctx *ctx, const struct te_recipe *recipe, int nslots,
		       const enum te_dtype *dtypes, struct te_quant **ret_q);
/* casts by the result do what those by q did, with the scales that q had: scale is a copy of the
 * first nslots, made since. They record nothing. Of a recipe without scales it is q itself */
int te__quant_repeat(struct te_quant *q, float *scale, int nslots, struct te_quant **ret_q);
/* device memory held, or that would be */
size_t te__quant_device_nbytes(const struct te_quant *q);

/*
 * Fill what the recipe decides of the launch that refreshes copies of weights, whose slots are
 * [first, first + count). Returns TE__WEIGHTS_* flags.
 */
#define TE__WEIGHTS_OWN_AMAX 1u /* WEIGHTS_AMAX goes first: it computes the scales */
#define TE__WEIGHTS_RECORD 2u	/* WEIGHTS_CAST of a training pass records amaxes */
uint32_t te__quant_weights(const struct te_quant *q, int first, int count,
			   struct te_k_weights *args);
/* 1: the recipe keeps amaxes, and none of the first count slots has one: nothing has been cast or
 * loaded. 0: else, also if q is NULL. Waits for the device */
int te__quant_is_fresh(struct te_quant *q, const char *fn, int count);
/* clear the histories and keep the scales, in stream order */
int te__quant_forget(struct te_quant *q, struct te_stream *stream);
/* what casts and updates change: scales, amaxes, histories */
int te__quant_regions(const struct te_quant *q, te_region_fn fn, void *arg);

/* The cast of a value that another kernel computes, the producer: it writes the FP8 copies too. */
struct te__quantize {
	struct te_stream *stream;
	struct te_quant *quant;
	int slot;
	struct te_tensor *y; /* receives the copies that it has */
	const float *noop;   /* te_quantize()'s; the producer does not see it */
	uint32_t flags;	     /* TE_QUANTIZE_* */
	/* called when the amax that the scale follows from is complete, if that is the tensor's
	 * own: what it queues runs in between. Or NULL */
	int (*amax)(const struct te__quantize *z);
	void *arg; /* for amax */
};

/* 0, or the code of a slot, flags or y that do not fit; fn and y's name are in the message */
int te__quantize_check(const char *fn, const char *y, const struct te__quantize *z);
/* before the producer: *ret_q is what its kernel writes in addition to its result */
int te__quantize_begin(const struct te__quantize *z, struct te_k_q *ret_q);
/* after the producer; x: its full-precision result, of dtype. NULL if it is not kept,
 * which te__quantize_keeps_x() tells */
int te__quantize_end(const struct te__quantize *z, const void *x, enum te_dtype dtype);
/* te_quantize() */
int te__quantize_alone(const struct te__quantize *z, const struct te_tensor *x);
/* of a part of what y is cast from; y has one scale */
int te__quantize_part(const struct te__quantize *z, const struct te__quantize_part *part);

#endif
