/* launch.c - device function and launch geometry of the act kernels. */
#define TE_LOG_CATEGORY "core/cuda"
#include "config.h"

#include <errno.h>
#include <stdbool.h>

#include <te/dtype.h>
#include <te/op.h>

#include "kernels/launch.h"
#include "libtecore/base/private.h"

enum variant { LARGE, SMALL_M, BLOCK_SCALED };

/*
 * Functions in BF16: te_k_act_fwd_gelu_bf16, te_k_act_fwd_small_m_gated_gelu_bf16, ... Activations
 * that few models have use those for many rows in the place of small_m.
 */
#define GATED(NAME, act)                                        \
	{                                                       \
		NAME act "_bf16", NAME "gated_" act "_bf16"     \
	}
#define OF_COMMON(NAME, act)                                    \
	{                                                       \
		[LARGE] = GATED(NAME, act),                     \
		[SMALL_M] = GATED(NAME "small_m_", act),        \
		[BLOCK_SCALED] = GATED(NAME "block_", act),     \
	}
#define OF_OTHER(NAME, act)                                                             \
	{                                                                               \
		[LARGE] = GATED(NAME, act),                                             \
		[BLOCK_SCALED] = { NAME "block_bf16", NAME "block_gated_bf16" },        \
	}
#define ACT_TABLE(NAME)                                                 \
	{                                                               \
		[TE_ACT_GELU] = OF_COMMON(NAME, "gelu"),                \
		[TE_ACT_QGELU] = OF_OTHER(NAME, "qgelu"),               \
		[TE_ACT_RELU] = OF_OTHER(NAME, "relu"),                 \
		[TE_ACT_SRELU] = OF_OTHER(NAME, "srelu"),               \
		[TE_ACT_SILU] = OF_COMMON(NAME, "silu"),                \
		[TE_ACT_SIGMOID] = OF_OTHER(NAME, "sigmoid"),           \
		[TE_ACT_GELU_ERF] = OF_COMMON(NAME, "gelu_erf"),        \
		[TE_ACT_TANH] = OF_OTHER(NAME, "tanh"),                 \
	}

/* the functions of a direction */
struct funcs {
	const char *bf16[TE_ACT_COUNT][3][2]; /* [activation][variant][gated] */
	const char *fp32[2][2];		      /* for each activation [block-scaled][gated] */
};

#define FUNCS(NAME)                                                     \
	{                                                               \
		ACT_TABLE(NAME),                                        \
		{ { NAME "fp32", NAME "gated_fp32" },                   \
		  { NAME "block_fp32", NAME "block_gated_fp32" } }      \
	}
static const struct funcs act_fwd = FUNCS("te_k_act_fwd_");
static const struct funcs act_bwd = FUNCS("te_k_act_bwd_");

/* qcols: columns of the result that q quantizes */
static int geo_act(const struct funcs *func, const char *name, int32_t act, int32_t gated,
		   int32_t dtype, int64_t rows, int64_t cols, bool vec, const struct te_k_q *q,
		   int64_t qcols, struct te__geometry *k)
{
	const char *const(*names)[2]; /* BF16, this activation */
	const int block = is_block_scaled(q);
	bool small;

	if (dtype != TE_DTYPE_FP32 && dtype != TE_DTYPE_BF16)
		return te__geo_no_type(name, dtype);
	if (act < 0 || act >= TE_ACT_COUNT)
		return te__fail(-EINVAL, "%s: no activation has number %d", name, act);
	if (dtype == TE_DTYPE_FP32)
		return block ? te__geo_blocks(k, func->fp32[1][!!gated], rows, qcols) :
			       te__geo_tiles(k, func->fp32[0][!!gated], rows, cols, false);
	names = func->bf16[act];
	if (block)
		return te__geo_blocks(k, names[BLOCK_SCALED][!!gated], rows, qcols);
	small = names[SMALL_M][0] && small_tiles(rows, cols, vec);
	return te__geo_tiles(k, names[small ? SMALL_M : LARGE][!!gated], rows, cols, small);
}

int te__geo_act_fwd(const void *args, struct te__geometry *k)
{
	const struct te_k_act_fwd *a = args;

	return geo_act(&act_fwd, "te_k_act_fwd", a->act, a->gated, a->dtype, a->rows, a->cols,
		       whole_vectors(a->cols, a->x, a->y, a->q.row, NULL), &a->q, a->cols, k);
}

int te__geo_act_bwd(const void *args, struct te__geometry *k)
{
	const struct te_k_act_bwd *a = args;

	return geo_act(&act_bwd, "te_k_act_bwd", a->act, a->gated, a->dtype, a->rows, a->cols,
		       whole_vectors(a->cols, a->x, a->dx, a->q.row, a->dy), &a->q,
		       a->gated ? 2 * a->cols : a->cols, k);
}
