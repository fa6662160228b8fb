/*
 * current.c - recipe fp8-current: one scale for a tensor, from its own amax. A producer folds the
 * amax, which saves reading the result once; the copies are made from the result afterwards.
 *
 * Source: te_quantize(3); t/quant/quant.c has every edge case.
 */
#define TE_LOG_CATEGORY "core/quant"
#include "config.h"

#include "libtecore/quant/recipe.h"
#include "libtecore/tensor/ctx.h"

static struct te__operand current_operand(const struct te_recipe *r, enum te__role role)
{
	const int e5m2 = role == TE__ROLE_GRADIENT && !(r->flags & TE_RECIPE_E4M3_ONLY);

	return (struct te__operand){ e5m2 ? TE_DTYPE_E5M2 : TE_DTYPE_E4M3, TE_SCALING_TENSOR, 0 };
}

static int current_pow2(const struct te_recipe *r)
{
	return (r->flags & TE_RECIPE_POW2) != 0;
}

/* not saved: the amax is of no use once the scale is computed */
static struct te__slot_words current_words(const struct te_recipe *r)
{
	(void)r;
	return (struct te__slot_words){ .nscale = 1, .namax = 1 };
}

static int current_begin(const struct te__quantize *z, struct te_k_q *ret_q)
{
	const struct te_k_clear clear = {
		.word = te_quant_amax_ptr(z->quant, z->slot),
		.noop = z->noop,
	};

	*ret_q = (struct te_k_q){ .amax = clear.word };
	return TE__LAUNCH(z->stream, CLEAR, &clear);
}

static int current_scale(const struct te__quantize *z)
{
	const struct te_recipe *recipe = &z->quant->recipe;
	const struct te_k_scale_current scale = {
		.amax = te_quant_amax_ptr(z->quant, z->slot),
		.scale = te_quant_scale_ptr(z->quant, z->slot),
		.noop = z->noop,
		.fmt_max = te_dtype_max(te_tensor_dtype(z->y)),
		.epsilon = recipe->amax_epsilon,
		.pow2 = current_pow2(recipe),
	};
	int r = z->amax ? z->amax(z) : 0;

	return r ? r : TE__LAUNCH(z->stream, SCALE_CURRENT, &scale);
}

const struct te__recipe_ops te__recipe_current = {
	.name = "fp8-current",
	.kind = TE_RECIPE_CURRENT,
	.compute = TE_DTYPE_BF16,
	.flags = TE_RECIPE_POW2 | TE_RECIPE_E4M3_ONLY,
	.operand = current_operand,
	.pow2 = current_pow2,
	.words = current_words,
	.begin = current_begin,
	.keeps_x = 1,
	.scale = current_scale,
	.weights = TE__WEIGHTS_OWN_AMAX,
};
