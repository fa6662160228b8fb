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

/* BF16 in whole vectors, of up to NORM_ROWS_COLS columns: rows.cu */
static int norm_rows(const struct te_k_norm_fwd *a, struct te__geometry *k)
{
	unsigned nthreads = 64;
	int64_t nblocks = ceil_div(a->rows, NORM_WIDE_ROWS);

#define LAUNCH_ROWS(NV, P, BLOCKS)                                                           \
	if (a->cols <= (NV) * 32 * TE_V)                                                     \
		return te__geo_launch(k, "te_k_norm_rows_" #NV,                              \
				      ceil_div(a->rows, NORM_ROWS_THREADS / 32 * (P)),       \
				      NORM_ROWS_THREADS);
	NORM_ROWS(LAUNCH_ROWS)
#undef LAUNCH_ROWS
	/* 2, 4 or 8 warps, whose sums are added in the order of a cluster's blocks in cast.cu */
	while (nthreads / 32 * NORM_WIDE_COLS < a->cols)
		nthreads *= 2;
	nblocks = clamp(nblocks, 0, HOPPER_SMS * (NORM_WIDE_THREADS / nthreads));
	return te__geo_launch(k, "te_k_norm_rows_wide", nblocks, nthreads);
}

/* the cluster of cast.cu that holds BF16 in whole vectors: 1; or 0 if there is none */
static int norm_cast_cluster(const struct te_k_norm_fwd *a, struct te__geometry *k)
{
	static const char *const func[] = {
		"te_k_norm_cast_cluster1", "te_k_norm_cast_cluster2",
		"te_k_norm_cast_cluster4", "te_k_norm_cast_cluster8",
	};
	int log2 = 0, r;

	while (NORM_CAST_CLUSTER_COLS << log2 < a->cols)
		log2++;
	if (log2 > 3 || (log2 && !(k->target.features & TE_FEATURE_CLUSTERS)))
		return 0;
	k->smem = NORM_CAST_ROWS / 4 * NORM_CAST_CLUSTER_PITCH * 4;
	r = te__geo_launch(k, func[log2], ceil_div(a->rows, NORM_CAST_ROWS) << log2,
			   NORM_CAST_CLUSTER_THREADS);
	return r < 0 ? r : 1;
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
	if (!a->q.col && vec && !norm_small_m(a->rows, a->cols) && a->dtype == TE_DTYPE_BF16 &&
	    a->cols <= NORM_ROWS_COLS)
		return norm_rows(a, k);
	if (!a->q.col || (vec && norm_small_m(a->rows, a->cols)))
		return NORM_VARIANT(k, a, vec, "te_k_norm_fwd");
	r = norm_cast(a, vec, k);
	if (!r && vec && a->dtype == TE_DTYPE_BF16)
		r = norm_cast_cluster(a, k);
	if (r)
		return r < 0 ? r : 0;
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

/*
 * BF16 in whole vectors by once.cu: 1; or 0 if it has no kernel for this, or no shared memory.
 * casts: to FP8, or to the sums of dx.
 */
static int norm_once(const struct te_k_norm_both *a, bool casts, struct te__geometry *k)
{
	const unsigned nthreads = threads_for(a->cols, TE_V, NORM_BOTH_THREADS1);
	const unsigned cast_smem =
		a->q.col ? (unsigned)(NORM_ONCE_CAST_ROWS * (a->cols + NORM_ONCE_PAD)) : 0;
	const bool res = a->dres;
	const int64_t nblocks = TE_K_NPARTS(a->rows);
	static const struct {
		const char *func;
		int cols, nrows;
		bool casts;
		unsigned limits; /* NORM_ONCE_* */
	} variant[] = {
#define ONCE(NAME, COLS, BLOCKS, R, S, HOLD, LIMITS) \
	{ "te_k_norm_once_" #NAME, COLS, (R) * (S), false, LIMITS },
		NORM_ONCE(ONCE)
#undef ONCE
#define ONCE(NAME, COLS, BLOCKS, R, S, HOLD, LIMITS) \
	{ "te_k_norm_once_cast_" #NAME, COLS, (R) * (S), true, LIMITS },
		NORM_ONCE_CAST(ONCE)
#undef ONCE
	};

	for (size_t i = 0; i < sizeof(variant) / sizeof(variant[0]); i++) {
		const unsigned smem = cast_smem + (unsigned)variant[i].nrows * (res ? 3 : 2) *
						  nthreads * TE_V * 2;
		int r;

		if (casts != variant[i].casts || a->cols > variant[i].cols ||
		    (nblocks > HOPPER_SMS && variant[i].limits & NORM_ONCE_FEW) ||
		    (res && variant[i].limits & NORM_ONCE_PLAIN) ||
		    smem + NORM_ONCE_STATIC > k->target.smem_max)
			continue;
		k->smem = smem;
		r = te__geo_launch(k, variant[i].func, nblocks, nthreads);
		return r < 0 ? r : 1;
	}
	return 0;
}

/* FP32 rows of whole vectors are copied to shared memory ahead, if it has space for them */
int te__geo_norm_both(const void *args, struct te__geometry *k)
{
	const struct te_k_norm_both *a = args;
	const bool casts = a->q.row || a->q.col || a->q.amax || a->part_dx;
	const bool bf16 = a->dtype == TE_DTYPE_BF16;
	const int nrows = a->cols <= NORM_BOTH_THREADS4 * NORM_BOTH_V(4) ? 4 :
			  a->cols <= NORM_BOTH_THREADS2 * NORM_BOTH_V(2) ? 2 : 1;
	const unsigned nthreads = threads_for(a->cols, NORM_BOTH_V(nrows), NORM_BOTH_THREADS1);
	const int64_t nblocks = TE_K_NPARTS(a->rows);
	const unsigned smem = NORM_BOTH_STAGES * (unsigned)(nrows * NORM_BOTH_V(nrows)) * nthreads *
			      4 * (a->dres ? 3 : 2);
	const bool vec = whole_vectors(a->cols, a->dy, a->x, a->gamma, a->dx) &&
			 whole_vectors(a->cols, a->dres, a->part_gamma, a->part_beta, NULL) &&
			 whole_vectors(a->cols, a->part_dx, a->q.row, a->q.col, NULL);
	int r;

	if (a->cols > TE_K_NORM_BOTH_COLS(a->dtype))
		return te__fail(-EOPNOTSUPP, "te_k_norm_both: %lld columns, not up to %d",
				(long long)a->cols, TE_K_NORM_BOTH_COLS(a->dtype));
	if (bf16 && vec && !is_block_scaled(&a->q) &&
	    (!casts || TE_K_NORM_BOTH_CASTS(a->dtype, a->rows, a->cols))) {
		r = norm_once(a, casts, k);
		if (r)
			return r < 0 ? r : 0;
	}
	if (casts)
		return te__fail(-EOPNOTSUPP, "te_k_norm_both: no kernel casts this");
	if (bf16 || !vec || smem + NORM_BOTH_STATIC > k->target.smem_max) {
		if (nrows == 1)
			return te__geo_launch(k, "te_k_norm_both_odd1_bf16", nblocks, nthreads);
		if (nrows == 2)
			return LAUNCH_T(k, a->dtype, "te_k_norm_both_odd2", nblocks, nthreads);
		return LAUNCH_T(k, a->dtype, "te_k_norm_both_odd4", nblocks, nthreads);
	}
	k->smem = smem;
	return te__geo_launch(k, nrows == 4 ? "te_k_norm_both4_fp32" : "te_k_norm_both2_fp32",
			      nblocks, nthreads);
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
