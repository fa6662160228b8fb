/* few_rows.c - a product of few rows with the steps before and after it, one after another. */
#include "config.h"

#include <te/op.h>

#include "kernels/ref.h"
#include "libtecore/base/base.h"

static void norm(const struct te_k_few_rows *a, struct te_k_gemm *g, char *ws)
{
	const struct te_k_norm_fwd k = {
		.x = g->a,
		.gamma = a->gamma,
		.y = ws + te_k_few_rows_at(a, TE_K_FEW_ROWS_NORMED),
		.rstd = (float *)(void *)(ws + te_k_few_rows_at(a, TE_K_FEW_ROWS_RSTD)),
		.rows = g->m,
		.cols = g->k,
		.eps = a->eps,
		.zero_centered = a->zero_centered,
		.dtype = TE_DTYPE_BF16,
	};

	te__h_norm_fwd(&k);
	g->a = k.y;
}

static void cast(const struct te_k_few_rows *a, struct te_k_gemm *g, char *ws)
{
	const struct te_k_quantize k = {
		.x = g->a,
		.rows = g->m,
		.cols = g->k,
		.q = {
			.row = ws + te_k_few_rows_at(a, TE_K_FEW_ROWS_CODES),
			.scale_inv = (float *)(void *)(ws +
						       te_k_few_rows_at(a, TE_K_FEW_ROWS_SCALES)),
			.epsilon = a->epsilon,
			.dtype = TE_DTYPE_E4M3,
			.scaling = TE_K_SCALING_1X128,
			.pow2 = a->pow2,
		},
		.dtype = TE_DTYPE_BF16,
	};

	te__h_quantize(&k);
	g->a = k.q.row;
	g->sa = k.q.scale_inv;
	g->asc = TE_K_SCALING_1X128;
}

void te__h_few_rows(const struct te_k_few_rows *a)
{
	struct te_k_gemm g = a->g;
	char *const ws = a->ws;
	struct te_k_act_fwd act = {
		.y = g.d,
		.rows = g.m,
		.cols = g.n / (a->gated ? 2 : 1),
		.act = a->act == TE_K_FEW_ROWS_GELU ? TE_ACT_GELU : TE_ACT_SILU,
		.gated = a->gated,
		.dtype = TE_DTYPE_BF16,
	};

	if (a->gamma)
		norm(a, &g, ws);
	if (te__is_fp8(g.adtype))
		cast(a, &g, ws);
	if (a->act != TE_K_FEW_ROWS_LINEAR)
		act.x = g.d = ws + te_k_few_rows_at(a, TE_K_FEW_ROWS_Y);
	te__h_gemm(&g);
	if (a->act != TE_K_FEW_ROWS_LINEAR)
		te__h_act_fwd(&act);
}
