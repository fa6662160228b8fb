/* launch.c - device function and launch geometry of rotary position embedding. */
#define TE_LOG_CATEGORY "core/cuda"
#include "config.h"

#include <errno.h>

#include <te/dtype.h>

#include "kernels/launch.h"
#include "kernels/rope/geometry.h"
#include "libtecore/base/base.h"

int te__geo_rope(const void *args, struct te__geometry *k)
{
	const struct te_k_rope *a = args;
	const int64_t cols = (int64_t)a->nheads * a->head_dim;

	if (a->head_dim > 2 * TE_K_ROPE_CUDA_HALF)
		return te__fail(-EOPNOTSUPP, "rope on cuda takes a head_dim of at most %d, not %d",
				2 * TE_K_ROPE_CUDA_HALF, a->head_dim);
	if (is_block_scaled(&a->q))
		return te__fail(-EOPNOTSUPP, "rope on cuda writes no block-scaled copies");
	if (a->q.row || a->q.col || a->q.amax)
		return LAUNCH_T(k, a->dtype, "te_k_rope_q",
				ceil_div(a->rows, TILE_ROWS) *
					ceil_div(cols, TILE_COLS * ROPE_Q_TILES), TILE_THREADS);
	return LAUNCH_T(k, a->dtype, "te_k_rope", a->rows, ROPE_THREADS);
}
