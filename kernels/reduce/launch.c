/* launch.c - device function and launch geometry of the reduce kernels. */
#define TE_LOG_CATEGORY "core/cuda"
#include "config.h"

#include <te/dtype.h>

#include "kernels/launch.h"
#include "kernels/reduce/geometry.h"

int te__geo_colsum(const void *args, struct te__geometry *k)
{
	const struct te_k_colsum *a = args;

	return LAUNCH_T(k, a->dtype, "te_k_colsum",
			TE_K_NPARTS(a->rows) * ceil_div(a->cols, COLSUM_COLS), COLSUM_THREADS);
}

int te__geo_part_sum(const void *args, struct te__geometry *k)
{
	const struct te_k_part_sum *a = args;
	const int64_t ngroups = ceil_div(a->nparts, TE_K_PART_GROUP);

	k->grid[1] = a->out_b ? 2 : 1;
	return LAUNCH_T(k, a->dtype, "te_k_part_sum", ceil_div(a->cols, PART_SUM_COLS),
			(unsigned)clamp(ngroups, 1, PART_SUM_WARPS) * 32);
}

int te__geo_argmax(const void *args, struct te__geometry *k)
{
	const struct te_k_argmax *a = args;

	return te__geo_launch(k, "te_k_argmax", a->rows * TE_K_ARGMAX_PARTS, ARGMAX_THREADS);
}
