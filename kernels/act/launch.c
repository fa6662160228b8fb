/* launch.c - device function and launch geometry of the act kernels. */
#define TE_LOG_CATEGORY "core/cuda"
#include "config.h"

#include <errno.h>
#include <stdbool.h>

#include <te/dtype.h>
#include <te/op.h>

#include "kernels/launch.h"
#include "libtecore/base/private.h"

/* a function for each activation: te_k_act_fwd_gelu_bf16, te_k_act_fwd_small_m_gated_gelu_bf16 */
#define ACT_TYPES(NAME)                         \
	{                                       \
		NAME "_fp32", NAME "_bf16"      \
	}
#define ACT_NAMES(NAME, act)                                                                    \
	{                                                                                       \
		{ ACT_TYPES(NAME "_" act), ACT_TYPES(NAME "_gated_" act) },                     \
		{                                                                               \
			ACT_TYPES(NAME "_small_m_" act), ACT_TYPES(NAME "_small_m_gated_" act)  \
		},                                                                              \
		{                                                                               \
			ACT_TYPES(NAME "_block_" act), ACT_TYPES(NAME "_block_gated_" act)      \
		}                                                                               \
	}
#define ACT_TABLE(NAME)                                         \
	{                                                       \
		[TE_ACT_GELU] = ACT_NAMES(NAME, "gelu"),        \
		[TE_ACT_QGELU] = ACT_NAMES(NAME, "qgelu"),      \
		[TE_ACT_RELU] = ACT_NAMES(NAME, "relu"),        \
		[TE_ACT_SRELU] = ACT_NAMES(NAME, "srelu"),      \
		[TE_ACT_SILU] = ACT_NAMES(NAME, "silu"),        \
		[TE_ACT_SIGMOID] = ACT_NAMES(NAME, "sigmoid"),  \
		[TE_ACT_GELU_ERF] = ACT_NAMES(NAME, "gelu_erf"), \
		[TE_ACT_TANH] = ACT_NAMES(NAME, "tanh"),        \
	}

enum variant { LARGE, SMALL_M, BLOCK_SCALED };

/* [activation][variant][gated][type] */
static const char *const act_fwd[TE_ACT_COUNT][3][2][2] = ACT_TABLE("te_k_act_fwd");
static const char *const act_bwd[TE_ACT_COUNT][3][2][2] = ACT_TABLE("te_k_act_bwd");

/* qcols: columns of the result that q quantizes */
static int geo_act(const char *const (*func)[3][2][2], const char *name, int32_t act, int32_t gated,
		   int32_t dtype, int64_t rows, int64_t cols, bool vec, const struct te_k_q *q,
		   int64_t qcols, struct te__geometry *k)
{
	const enum variant v = is_block_scaled(q)	     ? BLOCK_SCALED :
			       small_tiles(rows, cols, vec) ? SMALL_M :
							      LARGE;
	const char *f;

	if (dtype != TE_DTYPE_FP32 && dtype != TE_DTYPE_BF16)
		return te__geo_no_type(name, dtype);
	if (act < 0 || act >= TE_ACT_COUNT)
		return te__fail(-EINVAL, "%s: no activation has number %d", name, act);
	f = func[act][v][!!gated][dtype == TE_DTYPE_BF16];
	return v == BLOCK_SCALED ? te__geo_blocks(k, f, rows, qcols) :
				   te__geo_tiles(k, f, rows, cols, v == SMALL_M);
}

int te__geo_act_fwd(const void *args, struct te__geometry *k)
{
	const struct te_k_act_fwd *a = args;

	return geo_act(act_fwd, "te_k_act_fwd", a->act, a->gated, a->dtype, a->rows, a->cols,
		       whole_vectors(a->cols, a->x, a->y, a->q.row, NULL), &a->q, a->cols, k);
}

int te__geo_act_bwd(const void *args, struct te__geometry *k)
{
	const struct te_k_act_bwd *a = args;

	return geo_act(act_bwd, "te_k_act_bwd", a->act, a->gated, a->dtype, a->rows, a->cols,
		       whole_vectors(a->cols, a->x, a->dx, a->q.row, a->dy), &a->q,
		       a->gated ? 2 * a->cols : a->cols, k);
}
