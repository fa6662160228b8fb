/* launch.c - device function and launch geometry of the embed kernels. */
#define TE_LOG_CATEGORY "core/cuda"
#include "config.h"

#include <te/dtype.h>

#include "kernels/embed/geometry.h"
#include "kernels/launch.h"
#include "libtecore/base/private.h"

#define LARGE_VOCAB 4096 /* a block owns several rows of a table that has more */
#define MAX_GRID_Y 65535

/* LAUNCH_T for the type of a's table, too */
#define LAUNCH_TO(k, a, NAME, nblocks, nthreads)                                       \
	((a)->table_dtype == TE_DTYPE_BF16 ?                                           \
		 LAUNCH_T(k, (a)->dtype, NAME "_to_bf16", nblocks, nthreads) :         \
		 LAUNCH_T(k, (a)->dtype, NAME, nblocks, nthreads))

int te__geo_embed_fwd(const void *args, struct te__geometry *k)
{
	const struct te_k_embed_fwd *a = args;

	if (a->split)
		return LAUNCH_T(k, a->dtype, "te_k_embed_fwd_split", a->rows,
				threads_for(a->width, TE_V, EMBED_FWD_THREADS));
	return LAUNCH_T(k, a->dtype, "te_k_embed_fwd", a->rows,
			threads_for(a->width, TE_V, EMBED_FWD_THREADS));
}

int te__geo_embed_bwd(const void *args, struct te__geometry *k)
{
	const struct te_k_embed_bwd *a = args;
	const int64_t span = a->vocab > LARGE_VOCAB ? EMBED_BWD_SPAN : 1;

	if (a->rows > EMBED_BWD_MAX_ROWS)
		return te__fail(-TE_ESHAPE, "te_k_embed_bwd: %lld tokens are more than %d",
				(long long)a->rows, EMBED_BWD_MAX_ROWS);
	if (a->rows <= EMBED_SMALL_M_ROWS && a->width <= EMBED_SMALL_M_COLS * MAX_GRID_Y) {
		k->grid[1] = (unsigned)ceil_div(a->width, EMBED_SMALL_M_COLS);
		return LAUNCH_TO(k, a, "te_k_embed_bwd_small_m",
				 ceil_div(a->rows, EMBED_SMALL_M_THREADS / 32),
				 EMBED_SMALL_M_THREADS);
	}
	return LAUNCH_TO(k, a, "te_k_embed_bwd", ceil_div(a->vocab, span), EMBED_BWD_THREADS);
}

int te__geo_pos_bwd(const void *args, struct te__geometry *k)
{
	const struct te_k_pos_bwd *a = args;

	return LAUNCH_TO(k, a, "te_k_pos_bwd",
			 ceil_div(a->seqlen * a->width, POS_BWD_THREADS * TE_V), POS_BWD_THREADS);
}
