/* launch.c - device function and launch geometry of the weights kernels. */
#define TE_LOG_CATEGORY "core/cuda"
#include "config.h"

#include <te/dtype.h>

#include "kernels/launch.h"

#include "kernels/weights/geometry.h"

/* a half and a quarter of an H100's threads: other nodes run concurrently */
#define AMAX_BLOCKS (132 * 4)
#define CAST_BLOCKS (132 * 2)

int te__geo_weights_changed(const void *args, struct te__geometry *k)
{
	(void)args;
	return te__geo_launch(k, "te_k_weights_changed", 1, 1);
}

int te__geo_weights_amax(const void *args, struct te__geometry *k)
{
	const struct te_k_weights *a = args;

	return te__geo_launch(k, a->split ? "te_k_weights_amax_split" : "te_k_weights_amax",
			      clamp(a->ntiles, 0, AMAX_BLOCKS), TILE_THREADS);
}

int te__geo_weights_cast(const void *args, struct te__geometry *k)
{
	static const char *const name[2][2] = {
		{ "te_k_weights_cast", "te_k_weights_cast_blocks" },
		{ "te_k_weights_cast_split", "te_k_weights_cast_blocks_split" },
	};
	const struct te_k_weights *a = args;

	if (a->scaling >= TE_K_SCALING_1X32)
		return te__geo_weights_mx(a, clamp(a->ntiles, 0, CAST_BLOCKS), k);
	return te__geo_launch(k, name[a->split != 0][a->scaling != TE_K_SCALING_TENSOR],
			      clamp(a->ntiles, 0, CAST_BLOCKS), TILE_THREADS);
}

int te__geo_weight_transpose(const void *args, struct te__geometry *k)
{
	const struct te_k_weight_transpose *a = args;
	const int64_t ntiles = ceil_div(a->rows, TURN) * ceil_div(a->cols, TURN);

	return te__geo_launch(k, "te_k_weight_transpose", clamp(ntiles, 1, AMAX_BLOCKS),
			      TILE_THREADS);
}
