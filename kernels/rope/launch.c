/* launch.c - device function and launch geometry of rotary position embedding. */
#define TE_LOG_CATEGORY "core/cuda"
#include "config.h"

#include <errno.h>

#include <te/dtype.h>

#include "kernels/launch.h"
#include "kernels/rope/geometry.h"
#include "libtecore/base/base.h"

/* are heads whole in the tiles of rope_heads, and vectors in one half of a head? */
static bool is_rope_heads(const struct te_k_rope *a, int64_t cols)
{
	return a->dtype == TE_DTYPE_BF16 && !a->interleaved && a->head_dim >= 2 * TE_V &&
	       TILE_COLS % a->head_dim == 0 && whole_vectors(cols, a->x, a->y, a->q.row, NULL);
}

/* blocks that divide the tiles of 64 rows: two a multiprocessor, if there are so many tiles */
static int64_t head_groups(int64_t nr, int64_t cols)
{
	const int64_t ntiles = ceil_div(cols, TILE_COLS);

	return clamp(ceil_div(2 * HOPPER_SMS, nr), ceil_div(ntiles, ROPE_HEADS_TILES), ntiles);
}

int te__geo_rope(const void *args, struct te__geometry *k)
{
	const struct te_k_rope *a = args;
	const int64_t cols = (int64_t)a->nheads * a->head_dim, nr = ceil_div(a->rows, TILE_ROWS);

	if (is_block_scaled(&a->q))
		return te__fail(-EOPNOTSUPP, "rope on cuda writes no block-scaled copies");
	if (!a->q.row && !a->q.col && !a->q.amax)
		return LAUNCH_T(k, a->dtype, "te_k_rope", a->rows, ROPE_THREADS);
	if (is_rope_heads(a, cols))
		return te__geo_launch(k, "te_k_rope_heads_bf16", nr * head_groups(nr, cols),
				      TILE_THREADS);
	k->smem = TILE_ROWS * (unsigned)a->head_dim * (unsigned)sizeof(float);
	return LAUNCH_T(k, a->dtype, "te_k_rope_q",
			nr * ceil_div(cols, TILE_COLS * ROPE_Q_TILES), TILE_THREADS);
}
