/* none.c - recipes fp32 and bf16: nothing is cast. */
#include "config.h"

#include "libtecore/quant/recipe.h"

const struct te__recipe_ops te__recipe_fp32 = {
	.name = "fp32",
	.kind = TE_RECIPE_NONE,
	.compute = TE_DTYPE_FP32,
	.flags = TE_RECIPE_POW2 | TE_RECIPE_E4M3_ONLY,
};

const struct te__recipe_ops te__recipe_bf16 = {
	.name = "bf16",
	.kind = TE_RECIPE_NONE,
	.compute = TE_DTYPE_BF16,
	.flags = TE_RECIPE_POW2 | TE_RECIPE_E4M3_ONLY,
};
