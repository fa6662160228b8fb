/*
 * mxfp8.c - recipe mxfp8: a power of two for each 32 elements of a row, stored as an E8M0 byte. The
 * row-wise and the column-wise copy of every operand, weights too, are cast separately from high
 * precision, each along its own rows, as a GEMM reads them. No state is kept from step to step.
 *
 * Scales are as Transformer Engine computes them (2.19), but where the scale-inverse is below
 * 2^-126: its FP32 product of amax and 1 / fmt_max is then rounded before the exponent is.
 *
 * Source: OCP Microscaling Formats 1.0, te_quantize(3); t/data/gen_block.py has the bits.
 */
#include "config.h"

#include "libtecore/quant/recipe.h"

static struct te__operand mxfp8_operand(const struct te_recipe *r, enum te__role role)
{
	const int e5m2 = role == TE__ROLE_GRADIENT && (r->flags & TE_RECIPE_E5M2_GRADS);

	return (struct te__operand){ e5m2 ? TE_DTYPE_E5M2 : TE_DTYPE_E4M3, TE_SCALING_1X32, 0 };
}

static int mxfp8_begin(const struct te__quantize *z, struct te_k_q *ret_q)
{
	return te__quantize_keeps_x(z->quant) ? te__quantize_later(z, ret_q) :
						te__quantize_blocks(z, ret_q);
}

const struct te__recipe_ops te__recipe_mxfp8 = {
	.name = "mxfp8",
	.kind = TE_RECIPE_MXFP8,
	.compute = TE_DTYPE_BF16,
	.flags = TE_RECIPE_E5M2_GRADS,
	.operand = mxfp8_operand,
	.begin = mxfp8_begin,
	.keeps_x = TE__KEEPS_X_GPU,
};
