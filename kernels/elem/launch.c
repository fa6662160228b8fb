/* launch.c - device function and launch geometry of the elem kernels. */
#define TE_LOG_CATEGORY "core/cuda"
#include "config.h"

#include <te/dtype.h>

#include "kernels/elem/geometry.h"
#include "kernels/launch.h"

int te__geo_bias_fwd(const void *args, struct te__geometry *k)
{
	const struct te_k_bias_fwd *a = args;

	return LAUNCH_T(k, a->dtype, "te_k_bias_fwd", ceil_div(a->rows * a->cols, TE_FLAT_ELEMS),
			TE_FLAT_THREADS);
}

int te__geo_add(const void *args, struct te__geometry *k)
{
	const struct te_k_add *a = args;

	return LAUNCH_T(k, a->dtype, "te_k_add", ceil_div(a->n, TE_FLAT_ELEMS), TE_FLAT_THREADS);
}

int te__geo_scaled(const void *args, struct te__geometry *k)
{
	const struct te_k_scaled *a = args;

	return LAUNCH_T(k, a->dtype, "te_k_scaled", ceil_div(a->n, TE_FLAT_ELEMS), TE_FLAT_THREADS);
}

int te__geo_dropout(const void *args, struct te__geometry *k)
{
	const struct te_k_dropout *a = args;

	return LAUNCH_T(k, a->dtype, "te_k_dropout", ceil_div(a->n, TE_FLAT_ELEMS),
			TE_FLAT_THREADS);
}

int te__geo_transpose(const void *args, struct te__geometry *k)
{
	const struct te_k_transpose *a = args;

	return te__geo_launch(k,
			      a->elem == 1 ? "te_k_transpose_1" :
			      a->elem == 2 ? "te_k_transpose_2" : "te_k_transpose_4",
			      ceil_div(a->rows, TRANSPOSE_TILE) * ceil_div(a->cols, TRANSPOSE_TILE),
			      TRANSPOSE_THREADS);
}

/* a block for each token */
static int geo_heads(const struct te_k_heads *a, const char *fp32, const char *bf16,
		     struct te__geometry *k)
{
	const int64_t n = (int64_t)(a->nheads + 2 * a->nkv) * a->head_dim;

	if (a->dtype != TE_DTYPE_FP32 && a->dtype != TE_DTYPE_BF16)
		return te__geo_no_type("te_k_heads", a->dtype);
	return te__geo_launch(k, a->dtype == TE_DTYPE_FP32 ? fp32 : bf16, a->nseqs * a->ntokens,
			      threads_for(n, TE_V, HEADS_THREADS));
}

int te__geo_heads_split(const void *args, struct te__geometry *k)
{
	return geo_heads(args, "te_k_heads_split_fp32", "te_k_heads_split_bf16", k);
}

int te__geo_heads_join(const void *args, struct te__geometry *k)
{
	return geo_heads(args, "te_k_heads_join_fp32", "te_k_heads_join_bf16", k);
}

int te__geo_rng_next(const void *args, struct te__geometry *k)
{
	(void)args;
	return te__geo_launch(k, "te_k_rng_next", 1, 1);
}
