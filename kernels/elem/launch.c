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

int te__geo_rng_next(const void *args, struct te__geometry *k)
{
	(void)args;
	return te__geo_launch(k, "te_k_rng_next", 1, 1);
}
