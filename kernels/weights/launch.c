/* launch.c - device function and launch geometry of the weights kernels. */
#define TE_LOG_CATEGORY "core/cuda"
#include "config.h"

#include <errno.h>
#include <stdbool.h>

#include <te/dtype.h>

#include "kernels/launch.h"

#define WEIGHTS_BLOCKS (132 * 4) /* half the threads of an H100: other nodes run concurrently */

int te__geo_weights_changed(const void *args, struct te__geometry *k)
{
	(void)args;
	return te__geo_launch(k, "te_k_weights_changed", 1, 1);
}

int te__geo_weights_amax(const void *args, struct te__geometry *k)
{
	const struct te_k_weights *a = args;

	return te__geo_launch(k, "te_k_weights_amax", clamp(a->ntiles, 0, WEIGHTS_BLOCKS),
			      TILE_THREADS);
}

int te__geo_weights_cast(const void *args, struct te__geometry *k)
{
	const struct te_k_weights *a = args;

	if (a->blocks)
		return te__geo_launch(k, "te_k_weights_cast_blocks",
				      clamp(a->ntiles, 0, WEIGHTS_BLOCKS / 2), TILE_THREADS);
	return te__geo_launch(k, "te_k_weights_cast", clamp(a->ntiles, 0, WEIGHTS_BLOCKS),
			      TILE_THREADS);
}
