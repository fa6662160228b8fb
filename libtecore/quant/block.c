/*
 * block.c - recipe fp8-block: a scale for each 128 elements of a row of an activation or gradient,
 * and for each 128x128 square of a weight. A kernel that has such a block computes the scale and
 * casts in one pass; no state is kept from step to step.
 *
 * Scales are powers of two unless TE_RECIPE_FP32_SCALES is set. The row-wise and the column-wise
 * copy of an activation or gradient are cast separately, each along its own rows, as a GEMM reads
 * them; both copies of a weight hold the same codes and scales.
 *
 * Source: the DeepSeek-V3 report (arXiv 2412.19437, 3.3), te_quantize(3); t/kernels has the bits.
 */
#include "config.h"

#include "libtecore/quant/recipe.h"

static struct te__operand block_operand(const struct te_recipe *r, enum te__role role)
{
	const int e5m2 = role == TE__ROLE_GRADIENT && (r->flags & TE_RECIPE_E5M2_GRADS);

	return (struct te__operand){
		.dtype = e5m2 ? TE_DTYPE_E5M2 : TE_DTYPE_E4M3,
		.scaling = role == TE__ROLE_WEIGHT ? TE_SCALING_128X128 : TE_SCALING_1X128,
	};
}

static int block_pow2(const struct te_recipe *r)
{
	return !(r->flags & TE_RECIPE_FP32_SCALES);
}

const struct te__recipe_ops te__recipe_block = {
	.name = "fp8-block",
	.kind = TE_RECIPE_BLOCK,
	.compute = TE_DTYPE_BF16,
	.flags = TE_RECIPE_E5M2_GRADS | TE_RECIPE_FP32_SCALES,
	.operand = block_operand,
	.pow2 = block_pow2,
	.begin = te__quantize_blocks,
};
