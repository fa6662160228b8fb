/* launch.c - device function and launch geometry of the norm kernels. */
#define TE_LOG_CATEGORY "core/cuda"
#include "config.h"

#include <errno.h>
#include <stdbool.h>

#include <te/dtype.h>

#include "kernels/launch.h"
#include "kernels/norm/geometry.h"
#include "libtecore/base/base.h"

#define SMALL_M_MAX_ROWS (HOPPER_SMS * NORM_SMALL_M_ROWS) /* one block per multiprocessor */
#define BLOCK_TILES 8 /* maximum tiles that a block of norm_fwd_blockC reads repeatedly */

/* the variant for rows of this width, with its blocks and threads */
#define NORM_VARIANT(k, a, vec, NAME)                                            \
	((vec) && norm_small_m((a)->rows, (a)->cols) ?                           \
		 ((a)->cols <= 256 ? NORM_LAUNCH(k, a, NAME "_small_m256") :     \
				     NORM_LAUNCH(k, a, NAME "_small_m1024")) :   \
	 !(vec)			     ? NORM_LAUNCH(k, a, NAME "_unaligned") :    \
	 (a)->cols > NORM_BLOCK_COLS ? NORM_LAUNCH(k, a, NAME "_long") :         \
				       NORM_LAUNCH(k, a, NAME))
#define NORM_LAUNCH(k, a, NAME) \
	LAUNCH_T(k, (a)->dtype, NAME, norm_blocks((a)->rows, (a)->cols), norm_threads((a)->cols))

static bool norm_small_m(int64_t rows, int64_t cols)
{
	return rows <= SMALL_M_MAX_ROWS && cols <= NORM_WARP_COLS;
}

/* rows of up to NORM_WARP_COLS columns: a warp each */
static int64_t norm_blocks(int64_t rows, int64_t cols)
{
	return cols > NORM_WARP_COLS ? rows : ceil_div(rows, NORM_SMALL_M_ROWS);
}

static unsigned norm_threads(int64_t cols)
{
	if (cols <= NORM_WARP_COLS)
		return 32 * NORM_SMALL_M_ROWS;
	return threads_for(cols, NORM_NV * TE_V, NORM_THREADS);
}

/*
 * te_k_norm_fwd_colCxN holds N tiles in each of the C blocks of a cluster. Choose the variant with
 * the fewest unused tiles and, if there are fewer than two blocks per multiprocessor, with few
 * tiles in a block.
 */
static int norm_fwd_cluster(const struct te_k_norm_fwd *a, struct te__geometry *k)
{
#define COL(C, N) { C, N, "te_k_norm_fwd_col" #C "x" #N "_bf16" },
	static const struct {
		int c, n;
		const char *func;
	} variant[] = { NORM_COL_CLUSTERS(COL) };
#undef COL
	const int64_t ntiles = ceil_div(a->cols, TILE_COLS), nrows = ceil_div(a->rows, TILE_ROWS);
	size_t best = sizeof(variant) / sizeof(variant[0]) - 1;
	int64_t least = INT64_MAX;

	for (size_t i = 0; i < sizeof(variant) / sizeof(variant[0]); i++) {
		const int64_t spare = variant[i].c * variant[i].n - ntiles;
		const int64_t cost =
			2 * spare + (nrows * variant[i].c < 2 * HOPPER_SMS ? variant[i].n : 0);

		if (spare < 0 || cost >= least)
			continue;
		least = cost;
		best = i;
	}
	return te__geo_launch(k, variant[best].func, nrows * variant[best].c, TILE_THREADS);
}

/* the kernel of cast.cu that holds the rows in registers: 1; or 0 if there is none */
static int norm_cast(const struct te_k_norm_fwd *a, bool vec, struct te__geometry *k)
{
	const int64_t smem = NORM_CAST_ROWS * NORM_CAST_PITCH(a->cols);
	int r;

	if (!vec || a->dtype != TE_DTYPE_BF16 || a->rows % 16 || (uintptr_t)a->q.col % 16 ||
	    smem + NORM_CAST_STATIC > k->target.smem_max)
		return 0;
#define LAUNCH_CAST(NV, P, WARPS, BLOCKS)                                               \
	if (a->cols <= (NV) * 32 * TE_V) {                                              \
		k->smem = (unsigned)smem;                                               \
		r = te__geo_launch(k, "te_k_norm_cast_" #NV,                            \
				   ceil_div(a->rows, NORM_CAST_ROWS), (WARPS) * 32);    \
		return r < 0 ? r : 1;                                                   \
	}
	NORM_CASTS(LAUNCH_CAST)
#undef LAUNCH_CAST
	return 0;
}

/*
 * te_k_norm_fwd_blockC reads its tiles repeatedly, from L2 if these are few. Choose the smallest C
 * with at most BLOCK_TILES tiles in a thread block and enough blocks for all multiprocessors, or 1
 * where there are no clusters.
 */
static int norm_fwd_block(const struct te_k_norm_fwd *a, struct te__geometry *k)
{
	static const char *const func[4][2] = {
		{ "te_k_norm_fwd_block1_fp32", "te_k_norm_fwd_block1_bf16" },
		{ "te_k_norm_fwd_block2_fp32", "te_k_norm_fwd_block2_bf16" },
		{ "te_k_norm_fwd_block4_fp32", "te_k_norm_fwd_block4_bf16" },
		{ "te_k_norm_fwd_block8_fp32", "te_k_norm_fwd_block8_bf16" },
	};
	const int64_t ntiles = ceil_div(a->cols, TE_K_BLOCK), nrows = ceil_div(a->rows, TE_K_BLOCK);
	const bool clusters = k->target.features & TE_FEATURE_CLUSTERS;
	int log2 = 0;

	if (a->dtype != TE_DTYPE_FP32 && a->dtype != TE_DTYPE_BF16)
		return te__geo_no_type("te_k_norm_fwd", a->dtype);
	while (clusters && log2 < 3 && ntiles > INT64_C(1) << log2 &&
	       (ceil_div(ntiles, INT64_C(1) << log2) > BLOCK_TILES ||
		nrows << log2 < HOPPER_SMS))
		log2++;
	return te__geo_launch(k, func[log2][a->dtype == TE_DTYPE_BF16], nrows << log2,
			      BLOCK_THREADS);
}

int te__geo_norm_fwd(const void *args, struct te__geometry *k)
{
	const struct te_k_norm_fwd *a = args;

	const bool vec = whole_vectors(a->cols, a->x, a->gamma, a->beta, a->y) &&
			 whole_vectors(a->cols, a->q.row, NULL, NULL, NULL);
	int r;

	if (is_block_scaled(&a->q))
		return norm_fwd_block(a, k);
	if (!a->q.col || (vec && norm_small_m(a->rows, a->cols)))
		return NORM_VARIANT(k, a, vec, "te_k_norm_fwd");
	r = norm_cast(a, vec, k);
	if (r)
		return r < 0 ? r : 0;
	if (k->target.features & TE_FEATURE_CLUSTERS && vec && a->dtype == TE_DTYPE_BF16 &&
	    a->cols <= NORM_COL_MAX_TILES * TILE_COLS)
		return norm_fwd_cluster(a, k);
	return LAUNCH_T(k, a->dtype, "te_k_norm_fwd_col", ceil_div(a->rows, TILE_ROWS),
			TILE_THREADS);
}

/* the smallest cluster of te_k_norm_bwd_colCxN that holds the rows; _col if none does */
static int norm_bwd_cluster(const struct te_k_norm_bwd *a, struct te__geometry *k)
{
	const int64_t ntiles = ceil_div(a->cols, TILE_COLS), nrows = ceil_div(a->rows, TILE_ROWS);

#define COL(C, N)                                                                        \
	if (ntiles <= C * N)                                                             \
		return te__geo_launch(k, "te_k_norm_bwd_col" #C "x" #N "_bf16", nrows * C, \
				      TILE_THREADS);
	NORM_BWD_COL_CLUSTERS(COL)
#undef COL
	return te__geo_launch(k, "te_k_norm_bwd_col_bf16", nrows, TILE_THREADS);
}

int te__geo_norm_bwd(const void *args, struct te__geometry *k)
{
	const struct te_k_norm_bwd *a = args;
	const bool vec = whole_vectors(a->cols, a->x, a->gamma, a->dy, a->dx) &&
			 whole_vectors(a->cols, a->dres, a->q.row, NULL, NULL);

	if (is_block_scaled(&a->q))
		return te__fail(-EOPNOTSUPP, "the backward pass of norms on cuda writes no "
					     "block-scaled copies");
	if ((!a->q.row && !a->q.col && !a->q.amax) || (vec && norm_small_m(a->rows, a->cols)))
		return NORM_VARIANT(k, a, vec, "te_k_norm_bwd");
	if (k->target.features & TE_FEATURE_CLUSTERS && vec && a->dtype == TE_DTYPE_BF16)
		return norm_bwd_cluster(a, k);
	return LAUNCH_T(k, a->dtype, "te_k_norm_bwd_col", ceil_div(a->rows, TILE_ROWS),
			TILE_THREADS);
}

int te__geo_norm_dw(const void *args, struct te__geometry *k)
{
	const struct te_k_norm_dw *a = args;

	return LAUNCH_T(k, a->dtype, "te_k_norm_dw",
			TE_K_NPARTS(a->rows) * ceil_div(a->cols, NORM_DW_COLS), NORM_DW_THREADS);
}

/* rows of whole vectors are copied to shared memory ahead, if it has space for them */
int te__geo_norm_both(const void *args, struct te__geometry *k)
{
	const struct te_k_norm_both *a = args;
	const bool casts = a->q.row || a->q.col || a->q.amax || a->part_dx;
	const int nrows = a->cols <= NORM_BOTH_THREADS4 * NORM_BOTH_V(4) ? 4 :
			  a->cols <= NORM_BOTH_THREADS2 * NORM_BOTH_V(2) ? 2 : 1;
	const unsigned nthreads = threads_for(a->cols, NORM_BOTH_V(nrows), NORM_BOTH_THREADS1);
	const int64_t nblocks = TE_K_NPARTS(a->rows);
	const unsigned size = a->dtype == TE_DTYPE_BF16 ? 2 : 4;
	const bool many = size == 2 && nrows == 4 && nblocks > HOPPER_SMS &&
			  nthreads > NORM_BOTH_TWICE;
	const unsigned nstages = casts && (many || nrows == 2) ? NORM_BOTH_STAGES_CAST2 :
								 NORM_BOTH_STAGES(size);
	unsigned smem = nstages * (unsigned)(nrows * NORM_BOTH_V(nrows)) * nthreads * size *
			(a->dres ? 3 : 2);
	bool ahead;
	int r;

	if (a->cols > TE_K_NORM_BOTH_COLS(a->dtype))
		return te__fail(-EOPNOTSUPP, "te_k_norm_both: %lld columns, not up to %d",
				(long long)a->cols, TE_K_NORM_BOTH_COLS(a->dtype));
	if (a->q.col)
		smem += (unsigned)(NORM_BOTH_CAST_ROWS * (a->cols + NORM_BOTH_CAST_PAD));
	ahead = smem + NORM_BOTH_STATIC <= k->target.smem_max &&
		whole_vectors(a->cols, a->dy, a->x, a->gamma, a->dx) &&
		whole_vectors(a->cols, a->dres, a->part_gamma, a->part_beta, NULL) &&
		whole_vectors(a->cols, a->part_dx, a->q.row, a->q.col, NULL);
	if (casts && (!ahead || is_block_scaled(&a->q) ||
		      !TE_K_NORM_BOTH_CASTS(a->dtype, a->rows, a->cols)))
		return te__fail(-EOPNOTSUPP, "te_k_norm_both: no kernel casts this");
	if (!ahead) {
		if (nrows == 1)
			return te__geo_launch(k, "te_k_norm_both_odd1_bf16", nblocks, nthreads);
		if (nrows == 2)
			return LAUNCH_T(k, a->dtype, "te_k_norm_both_odd2", nblocks, nthreads);
		return LAUNCH_T(k, a->dtype, "te_k_norm_both_odd4", nblocks, nthreads);
	}
	if (casts)
		r = te__geo_launch(k, many	   ? "te_k_norm_both4_many_cast_bf16" :
				      nrows == 4 ? "te_k_norm_both4_cast_bf16" :
						   "te_k_norm_both2_cast_bf16",
				   nblocks, nthreads);
	else if (many)
		r = te__geo_launch(k, "te_k_norm_both4_many_bf16", nblocks, nthreads);
	else if (nrows == 1)
		r = te__geo_launch(k, "te_k_norm_both1_bf16", nblocks, nthreads);
	else
		r = nrows == 4 ? LAUNCH_T(k, a->dtype, "te_k_norm_both4", nblocks, nthreads) :
				 LAUNCH_T(k, a->dtype, "te_k_norm_both2", nblocks, nthreads);
	k->smem = smem;
	return r;
}

/* a warp for each group of a row, or a block where queries have more columns than a warp holds */
static int64_t qk_blocks(int64_t ngroups, int64_t qcols)
{
	return qcols > NORM_WARP_COLS ? ngroups : ceil_div(ngroups, QK_THREADS / 32);
}

int te__geo_qk_norm_fwd(const void *args, struct te__geometry *k)
{
	const struct te_k_qk_norm_fwd *a = args;

	return LAUNCH_T(k, a->dtype, "te_k_qk_norm_fwd",
			qk_blocks(a->rows * (a->nq + 2 * a->nk), a->qcols), QK_THREADS);
}

int te__geo_qk_norm_bwd(const void *args, struct te__geometry *k)
{
	const struct te_k_qk_norm_bwd *a = args;

	return LAUNCH_T(k, a->dtype, "te_k_qk_norm_bwd",
			qk_blocks(a->rows * (a->nq + 2 * a->nk), a->qcols), QK_THREADS);
}

int te__geo_qk_norm_dw(const void *args, struct te__geometry *k)
{
	const struct te_k_qk_norm_dw *a = args;

	return LAUNCH_T(k, a->dtype, "te_k_qk_norm_dw",
			TE_K_NPARTS(a->rows) * ceil_div(a->qcols + a->kcols, QK_DW_COLS),
			QK_DW_COLS);
}
