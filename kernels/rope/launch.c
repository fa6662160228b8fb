/* launch.c - device function and launch geometry of rotary position embedding. */
#define TE_LOG_CATEGORY "core/cuda"
#include "config.h"

#include <te/dtype.h>

#include "kernels/launch.h"
#include "kernels/rope/geometry.h"

int te__geo_rope(const void *args, struct te__geometry *k)
{
	const struct te_k_rope *a = args;

	return LAUNCH_T(k, a->dtype, "te_k_rope", a->rows, ROPE_THREADS);
}
