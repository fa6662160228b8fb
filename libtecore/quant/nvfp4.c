/*
 * nvfp4.c - recipe nvfp4: E2M1 codes with two levels of scales, a word for a copy and an E4M3 byte
 * for 16 elements of its rows or, of weights, for a square of 16 rows and columns. The column-wise
 * copies of activations and gradients, which are the operands of weight gradients, are cast from
 * randomized Hadamard transforms of their columns. Gradients are rounded stochastically. No state
 * is kept from step to step: the amax of a copy is known after its producer has run.
 *
 * Results are as of Transformer Engine 2.19, with two differences: a block with a NaN becomes NaN,
 * and the random numbers are a function of the input.
 *
 * Source: NVIDIA, "Pretraining Large Language Models with NVFP4" (arXiv 2509.25149, appendix C);
 * kernels/quant/quant.h has the formulas, t/data/gen_nvfp4.py the bits.
 */
#include "config.h"

#include "libtecore/quant/recipe.h"

static struct te__operand nvfp4_operand(const struct te_recipe *r, enum te__role role)
{
	(void)r;
	return (struct te__operand){
		.dtype = TE_DTYPE_E2M1,
		.scaling = role == TE__ROLE_WEIGHT ? TE_SCALING_16X16 : TE_SCALING_1X16,
		.stochastic = role == TE__ROLE_GRADIENT,
	};
}

const struct te__recipe_ops te__recipe_nvfp4 = {
	.name = "nvfp4",
	.kind = TE_RECIPE_NVFP4,
	.compute = TE_DTYPE_BF16,
	.operand = nvfp4_operand,
	.begin = te__quantize_later,
	.keeps_x = 1,
	.weights = TE__WEIGHTS_OWN_AMAX,
};
