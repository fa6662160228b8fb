/* launch.c - device function and launch geometry of the loss kernels. */
#define TE_LOG_CATEGORY "core/cuda"
#include "config.h"

#include <te/dtype.h>

#include "kernels/launch.h"
#include "kernels/loss/geometry.h"

int te__geo_ce_fwd(const void *args, struct te__geometry *k)
{
	const struct te_k_ce_fwd *a = args;

	return LAUNCH_T(k, a->dtype, "te_k_ce_fwd", a->rows,
			threads_for(a->nclasses < a->cols ? a->nclasses : a->cols, TE_V,
				    CE_THREADS));
}

int te__geo_ce_join(const void *args, struct te__geometry *k)
{
	const struct te_k_ce_join *a = args;

	return te__geo_launch(k, "te_k_ce_join", ceil_div(a->rows, CE_JOIN_THREADS),
			      CE_JOIN_THREADS);
}

int te__geo_ce_reduce(const void *args, struct te__geometry *k)
{
	const struct te_k_ce_reduce *a = args;

	return te__geo_launch(k, "te_k_ce_reduce", 1,
			      threads_for(a->rows, CE_REDUCE_ROWS, CE_REDUCE_THREADS));
}

int te__geo_ce_bwd(const void *args, struct te__geometry *k)
{
	const struct te_k_ce_bwd *a = args;

	return LAUNCH_T(k, a->dtype, "te_k_ce_bwd", a->rows,
			threads_for(a->cols, TE_V, CE_THREADS));
}
