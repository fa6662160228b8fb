/*
 * quant.h - recipes and quantizers for ops and plans, which do not depend on a recipe's kind:
 * the rows of recipe.h have all differences between recipes.
 */
#ifndef TE__QUANT_QUANT_H
#define TE__QUANT_QUANT_H

#include <te/quant.h>
#include <te/region.h>

#include "kernels/te_k.h"
#include "libtecore/base/private.h"

/* a stand-in address for tensors and quantizers that are only described; never dereferenced */
#define TE__NOWHERE ((char *)(uintptr_t)4096)

/* Role of a GEMM operand. */
enum te__role { TE__ROLE_ACTIVATION, TE__ROLE_WEIGHT, TE__ROLE_GRADIENT };

/* The element type and the scaling of an operand's copies. */
struct te__operand {
	enum te_dtype dtype; /* no codes: the operand is not cast */
	enum te_scaling scaling;
	int stochastic; /* 1: casts have TE_QUANTIZE_STOCHASTIC */
};

/* 0, or -EINVAL: the kind is unknown, or a field is out of range. recipe has all members of this
 * version; fn begins the message */
int te__recipe_check(const char *fn, const struct te_recipe *recipe);
/* 1: some operands are cast, and quantizers exist */
int te__recipe_casts(const struct te_recipe *recipe);
struct te__operand te__recipe_operand(const struct te_recipe *recipe, enum te__role role);
/* 1: scales computed from the present amax of a tensor or block are powers of two */
int te__recipe_pow2(const struct te_recipe *recipe);
/* 1: a slot of its quantizers has device memory: a scale, amaxes */
int te__recipe_has_state(const struct te_recipe *recipe);
/* 1: a cast waits for the amax of the whole tensor */
int te__recipe_waits(const struct te_recipe *recipe);
/* the recipe, but with scales from present amaxes where it has them from a history */
struct te_recipe te__recipe_present(const struct te_recipe *recipe);
/* 1: both recipes can use the same quantizers: they differ in the compute dtype at most */
int te__recipe_same(const struct te_recipe *a, const struct te_recipe *b);
/* 1: so can they, with slots of different types: they may differ in the type of gradients, too */
int te__recipe_shares(const struct te_recipe *a, const struct te_recipe *b);

/* te_quant_create() without device memory, for plans that do not run */
int te__quant_describe(struct te_ctx *ctx, const struct te_recipe *recipe, int nslots,
		       const enum te_dtype *dtypes, struct te_quant **ret_q);
/* quantizers that repeat casts by q with q's earlier scales: scale is a copy of the scales of the
 * first nslots. They record no amax. For a recipe without scales the result is q itself */
int te__quant_repeat(struct te_quant *q, float *scale, int nslots, struct te_quant **ret_q);
/* bytes of device memory held, or described by te__quant_describe() */
size_t te__quant_device_nbytes(const struct te_quant *q);

/*
 * Fills the members of args that depend on the recipe, for a launch that refreshes copies of
 * weights with slots [first, first + count). Returns TE__WEIGHTS_* flags.
 */
#define TE__WEIGHTS_OWN_AMAX 1u /* WEIGHTS_AMAX goes first: it computes the scales */
#define TE__WEIGHTS_RECORD 2u	/* WEIGHTS_CAST of a training pass records amaxes */
uint32_t te__quant_weights(const struct te_quant *q, int first, int count,
			   struct te_k_weights *args);
/* returns 1 if the recipe keeps amaxes and none of the first count slots has one, because nothing
 * was cast or loaded; else, and if q is NULL, 0. Waits for the device */
int te__quant_is_fresh(struct te_quant *q, const char *fn, int count);
/* clear the histories and keep the scales, in stream order */
int te__quant_forget(struct te_quant *q, struct te_stream *stream);
/* list the memory that casts and updates change: scales, amaxes, histories */
int te__quant_regions(const struct te_quant *q, te_region_fn fn, void *arg);

/* A cast of a value by the kernel that computes it, the producer, which also writes FP8 copies. */
struct te__quantize {
	struct te_stream *stream;
	struct te_quant *quant;
	int slot;
	struct te_tensor *y; /* receives the copies that it has */
	const float *noop;   /* as in te_quantize(); only for casts without a producer */
	uint32_t flags;	     /* TE_QUANTIZE_* */
	/* called between amax and scale if the scale is computed from the tensor's present amax:
	 * work that it queues runs in between. Or NULL */
	int (*amax)(const struct te__quantize *z);
	void *arg; /* for amax */
};

/* returns 0, or an error for an invalid slot, flags or y; the message has fn and y's name */
int te__quantize_check(const char *fn, const char *y, const struct te__quantize *z);
/* call it before the producer; *ret_q describes the copies that the producer writes */
int te__quantize_begin(const struct te__quantize *z, struct te_k_q *ret_q);
/* call it after the producer; x: its full-precision result, of type dtype. NULL if
 * te__quantize_keeps_x() returned 0 and the result is not kept */
int te__quantize_end(const struct te__quantize *z, const void *x, enum te_dtype dtype);
/* TE__LAUNCH() of a producer, and its cast. z: NULL: there is none; x: as above, of type dtype */
#define TE__LAUNCH_CAST(stream, ID, argsp, z, x)                                          \
	te__launch_cast((stream), TE_K_##ID, (argsp), sizeof(*(argsp)), &(argsp)->q, (z), (x), \
			(argsp)->dtype)
int te__launch_cast(struct te_stream *stream, int id, const void *args, size_t nbytes,
		    struct te_k_q *q, const struct te__quantize *z, const void *x, int32_t dtype);
/* te_quantize() */
int te__quantize_alone(const struct te__quantize *z, const struct te_tensor *x);
/* cast a part of y's input; y has one scale */
int te__quantize_part(const struct te__quantize *z, const struct te__quantize_part *part);

#endif
