/* cuda_kernels.c - a table: kernel id to device function and launch geometry. */
#include "config.h"

#define TE_LOG_CATEGORY "core/cuda"
#include <errno.h>
#include <stdbool.h>

#include <te/dtype.h>
#include <te/op.h>

#include "libtecore/backend/cuda_kernels.h"
#include "libtecore/internal.h"

#define FLAT_ELEMS 4096 /* a block of te_dev.cuh's flat kernels */
#define TILE_ROWS 64	/* te_tile.cuh */
#define TILE_COLS 128
#define TILE_FEW_COLS 32
#define TILE_FEW 132 /* fewer blocks than a Hopper GPU has processors */
#define FILL_NBYTES (256 * 4 * 16)
#define FILL_BLOCKS (132 * 4) /* half a processor: in a graph others begin beside them */
#define MAX_BLOCKS 0x7fffffff
#define AMAX_BLOCKS (132 * 8) /* enough in flight on every Hopper GPU */
#define EMBED_VOCAB 16	      /* table rows a block of embed_bwd owns, 1 of a small table */
#define EMBED_LARGE_VOCAB 4096
#define EMBED_FEW_ROWS 256
#define EMBED_FEW_WIDTH (256 * 65535) /* a grid has so many blocks in its second extent */
#define EMBED_MAX_ROWS (1 << 28)      /* a row and a place among these make 32 bits */
#define NORM_WARP_COLS 1024	      /* a warp holds so many columns in registers */
#define NORM_THREAD_COLS 32	      /* and a thread these */
#define NORM_BLOCK_COLS 16384
#define NORM_CLUSTER_COLS 8192
#define NORM_FEW_ROWS 4
#define NORM_FEW (132 * NORM_FEW_ROWS) /* rows that make a block a processor */
#define PART_SUM_FEW 8		       /* as many parts are one warp's */

/* whole warps for n elements of which a thread takes each, up to most threads */
static unsigned threads_for(int64_t n, int64_t each, unsigned most)
{
	const int64_t nwarps = n > 0 ? ceil_div(n, 32 * each) : 1;

	return nwarps * 32 < most ? (unsigned)nwarps * 32 : most;
}

static int64_t clamp(int64_t x, int64_t least, int64_t most)
{
	return x < least ? least : x > most ? most : x;
}

/* nblocks of nthreads running func */
static int launch(struct te__cuda_kernel *k, const char *func, int64_t nblocks, unsigned nthreads)
{
	if (nblocks < 0 || nblocks > MAX_BLOCKS)
		return te__fail(-TE_ESHAPE, "%s: %lld blocks are more than a grid can have", func,
				(long long)nblocks);
	k->func = func;
	k->grid[0] = (unsigned)nblocks;
	k->block[0] = nthreads;
	return 0;
}

/* launch NAME_fp32 or NAME_bf16 */
#define LAUNCH_T(k, dtype, NAME, nblocks, nthreads)                                    \
	((dtype) == TE_DTYPE_FP32 ? launch((k), NAME "_fp32", (nblocks), (nthreads)) : \
	 (dtype) == TE_DTYPE_BF16 ? launch((k), NAME "_bf16", (nblocks), (nthreads)) : \
				    no_type(NAME, (dtype)))

static int no_type(const char *name, int32_t dtype)
{
	return te__fail(-TE_EDTYPE, "%s takes FP32 and BF16, not %s", name,
			te_dtype_name((enum te_dtype)dtype));
}

/* te_dev.cuh: a row's vectors start on 16 bytes, whichever of these pointers it is of */
static bool whole_vectors(int64_t cols, const void *p, const void *q, const void *r, const void *s)
{
	return cols % 8 == 0 &&
	       (((uintptr_t)p | (uintptr_t)q | (uintptr_t)r | (uintptr_t)s) & 15) == 0;
}

/* te_tile.cuh; vec: whole_vectors() of all that is read and written by rows */
static bool few_tiles(int64_t rows, int64_t cols, bool vec)
{
	return vec && ceil_div(rows, TILE_ROWS) * ceil_div(cols, TILE_COLS) < TILE_FEW;
}

static int launch_tiles(struct te__cuda_kernel *k, const char *func, int64_t rows, int64_t cols,
			bool few)
{
	const int64_t nrows = ceil_div(rows, TILE_ROWS);

	if (!few)
		return launch(k, func, nrows * ceil_div(cols, TILE_COLS), 256);
	k->grid[1] = (unsigned)nrows;
	return launch(k, func, nrows ? ceil_div(cols, TILE_FEW_COLS) : 0, 256);
}

static int geo_clear(const void *args, struct te__cuda_kernel *k)
{
	(void)args;
	return launch(k, "te_k_clear", 1, 1);
}

static int geo_fill(const void *args, struct te__cuda_kernel *k)
{
	const struct te_k_fill *a = args;
	const int64_t nbytes = a->n * a->elem;

	/* ends without a whole vector are the first block's; one of nothing is a graph's root */
	return launch(k, "te_k_fill", clamp(ceil_div(nbytes, FILL_NBYTES), 1, FILL_BLOCKS), 256);
}

static int geo_amax(const void *args, struct te__cuda_kernel *k)
{
	const struct te_k_amax *a = args;

	return LAUNCH_T(k, a->dtype, "te_k_amax",
			clamp(ceil_div(a->n, 256 * 8 * 4), 0, AMAX_BLOCKS), 256);
}

static int geo_scale_current(const void *args, struct te__cuda_kernel *k)
{
	(void)args;
	return launch(k, "te_k_scale_current", 1, 1);
}

static int geo_scale_delayed(const void *args, struct te__cuda_kernel *k)
{
	const struct te_k_scale_delayed *a = args;

	return launch(k, "te_k_scale_delayed", a->count, 256);
}

static int geo_quantize(const void *args, struct te__cuda_kernel *k)
{
	static const char *const func[2][2][2] = {
		{ { "te_k_quantize_fp32_e4m3", "te_k_quantize_fp32_e5m2" },
		  { "te_k_quantize_bf16_e4m3", "te_k_quantize_bf16_e5m2" } },
		{ { "te_k_quantize_few_fp32_e4m3", "te_k_quantize_few_fp32_e5m2" },
		  { "te_k_quantize_few_bf16_e4m3", "te_k_quantize_few_bf16_e5m2" } },
	};
	const struct te_k_quantize *a = args;
	const bool few =
		few_tiles(a->rows, a->cols, whole_vectors(a->cols, a->x, a->q.row, NULL, NULL));

	if (a->dtype != TE_DTYPE_FP32 && a->dtype != TE_DTYPE_BF16)
		return no_type("te_k_quantize", a->dtype);
	/* without codes only the amax is wanted, whatever the type */
	return launch_tiles(k, func[few][a->dtype == TE_DTYPE_BF16][a->q.dtype == TE_DTYPE_E5M2],
			    a->rows, a->cols, few);
}

static int geo_dequantize(const void *args, struct te__cuda_kernel *k)
{
	static const char *const func[2][3] = {
		{ "te_k_dequantize_e4m3_fp32", "te_k_dequantize_e4m3_bf16",
		  "te_k_dequantize_e4m3_fp16" },
		{ "te_k_dequantize_e5m2_fp32", "te_k_dequantize_e5m2_bf16",
		  "te_k_dequantize_e5m2_fp16" },
	};
	const struct te_k_dequantize *a = args;

	if ((a->xdtype != TE_DTYPE_E4M3 && a->xdtype != TE_DTYPE_E5M2) || a->ydtype < 0 ||
	    a->ydtype > TE_DTYPE_FP16)
		return no_type("te_k_dequantize", a->ydtype);
	return launch(k, func[a->xdtype == TE_DTYPE_E5M2][a->ydtype], ceil_div(a->n, FLAT_ELEMS),
		      256);
}

static int geo_cast(const void *args, struct te__cuda_kernel *k)
{
	static const char *const func[3][3] = {
		{ "te_k_cast_fp32_fp32", "te_k_cast_fp32_bf16", "te_k_cast_fp32_fp16" },
		{ "te_k_cast_bf16_fp32", "te_k_cast_bf16_bf16", "te_k_cast_bf16_fp16" },
		{ "te_k_cast_fp16_fp32", "te_k_cast_fp16_bf16", "te_k_cast_fp16_fp16" },
	};
	const struct te_k_cast *a = args;

	if (a->xdtype < 0 || a->xdtype > TE_DTYPE_FP16 || a->ydtype < 0 ||
	    a->ydtype > TE_DTYPE_FP16)
		return no_type("te_k_cast", a->xdtype);
	return launch(k, func[a->xdtype][a->ydtype], ceil_div(a->n, FLAT_ELEMS), 256);
}

/* te_norm.cu: the variant for rows of this width, how many blocks, how many threads */
#define NORM_VARIANT(k, a, vec, NAME)                                      \
	((vec) && norm_few((a)->rows, (a)->cols) ?                         \
		 ((a)->cols <= 256 ? NORM_LAUNCH(k, a, NAME "_few256") :   \
				     NORM_LAUNCH(k, a, NAME "_few1024")) : \
	 !(vec)			     ? NORM_LAUNCH(k, a, NAME "_odd") :    \
	 (a)->cols > NORM_BLOCK_COLS ? NORM_LAUNCH(k, a, NAME "_long") :   \
				       NORM_LAUNCH(k, a, NAME))
#define NORM_LAUNCH(k, a, NAME) \
	LAUNCH_T(k, (a)->dtype, NAME, norm_blocks((a)->rows, (a)->cols), norm_threads((a)->cols))

/* NORM_FEW_ROWS of them make a block, as other rows of up to NORM_WARP_COLS columns do */
static bool norm_few(int64_t rows, int64_t cols)
{
	return rows <= NORM_FEW && cols <= NORM_WARP_COLS;
}

static int64_t norm_blocks(int64_t rows, int64_t cols)
{
	return cols > NORM_WARP_COLS ? rows : ceil_div(rows, NORM_FEW_ROWS);
}

/* four warps of a row each; or a row's threads, whole warps, up to 512 */
static unsigned norm_threads(int64_t cols)
{
	if (cols <= NORM_WARP_COLS)
		return 128;
	return cols > NORM_BLOCK_COLS ? 512 : (unsigned)ceil_div(cols, 32 * NORM_THREAD_COLS) * 32;
}

/*
 * te_k_norm_fwd_colCxN holds N tiles in each of a cluster's C blocks: as few too many as there
 * are, and few in a block where rows are too few for two blocks on each of 132
 * processors.
 */
static int norm_fwd_cluster(const struct te_k_norm_fwd *a, struct te__cuda_kernel *k)
{
#define COL(C, N)                                           \
	{                                                   \
		C, N, "te_k_norm_fwd_col" #C "x" #N "_bf16" \
	}
	static const struct {
		int c, n;
		const char *func;
	} variant[] = {
		COL(1, 1), COL(2, 1), COL(2, 2), COL(2, 3), COL(2, 4), COL(4, 1),
		COL(4, 2), COL(4, 3), COL(4, 4), COL(8, 1), COL(8, 2), COL(8, 3),
		COL(8, 4), COL(8, 5), COL(8, 6), COL(8, 8),
	};
#undef COL
	const int64_t ntiles = ceil_div(a->cols, TILE_COLS), nrows = ceil_div(a->rows, TILE_ROWS);
	size_t best = sizeof(variant) / sizeof(variant[0]) - 1;
	int64_t least = INT64_MAX;

	for (size_t i = 0; i < sizeof(variant) / sizeof(variant[0]); i++) {
		const int64_t spare = variant[i].c * variant[i].n - ntiles;
		const int64_t cost = 2 * spare + (nrows * variant[i].c < 264 ? variant[i].n : 0);

		if (spare < 0 || cost >= least)
			continue;
		least = cost;
		best = i;
	}
	return launch(k, variant[best].func, nrows * variant[best].c, 256);
}

static int geo_norm_fwd(const void *args, struct te__cuda_kernel *k)
{
	const struct te_k_norm_fwd *a = args;

	const bool vec = whole_vectors(a->cols, a->x, a->gamma, a->beta, a->y) &&
			 whole_vectors(a->cols, a->q.row, NULL, NULL, NULL);

	if (!a->q.col || (vec && norm_few(a->rows, a->cols)))
		return NORM_VARIANT(k, a, vec, "te_k_norm_fwd");
	if (vec && a->dtype == TE_DTYPE_BF16 && a->cols <= NORM_CLUSTER_COLS)
		return norm_fwd_cluster(a, k);
	return LAUNCH_T(k, a->dtype, "te_k_norm_fwd_col", ceil_div(a->rows, TILE_ROWS), 256);
}

static int geo_norm_bwd(const void *args, struct te__cuda_kernel *k)
{
	const struct te_k_norm_bwd *a = args;
	const bool vec = whole_vectors(a->cols, a->x, a->gamma, a->dy, a->dx) &&
			 whole_vectors(a->cols, a->dres, NULL, NULL, NULL);

	return NORM_VARIANT(k, a, vec, "te_k_norm_bwd");
}

static int geo_norm_dw(const void *args, struct te__cuda_kernel *k)
{
	const struct te_k_norm_dw *a = args;

	return LAUNCH_T(k, a->dtype, "te_k_norm_dw", TE_K_NPARTS(a->rows) * ceil_div(a->cols, 64),
			128);
}

static int geo_colsum(const void *args, struct te__cuda_kernel *k)
{
	const struct te_k_colsum *a = args;

	return LAUNCH_T(k, a->dtype, "te_k_colsum", TE_K_NPARTS(a->rows) * ceil_div(a->cols, 64),
			128);
}

static int geo_part_sum(const void *args, struct te__cuda_kernel *k)
{
	const struct te_k_part_sum *a = args;

	return launch(k, "te_k_part_sum", ceil_div(a->cols, 32),
		      a->nparts > PART_SUM_FEW ? 256 : 32);
}

static int geo_bias_fwd(const void *args, struct te__cuda_kernel *k)
{
	const struct te_k_bias_fwd *a = args;

	return LAUNCH_T(k, a->dtype, "te_k_bias_fwd", ceil_div(a->rows * a->cols, FLAT_ELEMS), 256);
}

static int geo_add(const void *args, struct te__cuda_kernel *k)
{
	const struct te_k_add *a = args;

	return LAUNCH_T(k, a->dtype, "te_k_add", ceil_div(a->n, FLAT_ELEMS), 256);
}

static int geo_dropout(const void *args, struct te__cuda_kernel *k)
{
	const struct te_k_dropout *a = args;

	return LAUNCH_T(k, a->dtype, "te_k_dropout", ceil_div(a->n, FLAT_ELEMS), 256);
}

static int geo_rng_next(const void *args, struct te__cuda_kernel *k)
{
	(void)args;
	return launch(k, "te_k_rng_next", 1, 1);
}

static int geo_rope(const void *args, struct te__cuda_kernel *k)
{
	const struct te_k_rope *a = args;

	return LAUNCH_T(k, a->dtype, "te_k_rope", a->rows, 256);
}

/* one function an activation: te_k_act_fwd_gelu_bf16, te_k_act_fwd_few_gated_gelu_bf16 */
#define ACT_TYPES(NAME)                    \
	{                                  \
		NAME "_fp32", NAME "_bf16" \
	}
#define ACT_NAMES(NAME, act)                                                           \
	{                                                                              \
		{ ACT_TYPES(NAME "_" act), ACT_TYPES(NAME "_gated_" act) },            \
		{                                                                      \
			ACT_TYPES(NAME "_few_" act), ACT_TYPES(NAME "_few_gated_" act) \
		}                                                                      \
	}
#define ACT_TABLE(NAME)                                        \
	{                                                      \
		[TE_ACT_GELU] = ACT_NAMES(NAME, "gelu"),       \
		[TE_ACT_QGELU] = ACT_NAMES(NAME, "qgelu"),     \
		[TE_ACT_RELU] = ACT_NAMES(NAME, "relu"),       \
		[TE_ACT_SRELU] = ACT_NAMES(NAME, "srelu"),     \
		[TE_ACT_SILU] = ACT_NAMES(NAME, "silu"),       \
		[TE_ACT_SIGMOID] = ACT_NAMES(NAME, "sigmoid"), \
	}

/* [activation][few][gated][type] */
static const char *const act_fwd[TE_ACT_COUNT][2][2][2] = ACT_TABLE("te_k_act_fwd");
static const char *const act_bwd[TE_ACT_COUNT][2][2][2] = ACT_TABLE("te_k_act_bwd");

static int geo_act(const char *const (*func)[2][2][2], const char *name, int32_t act, int32_t gated,
		   int32_t dtype, int64_t rows, int64_t cols, bool vec, struct te__cuda_kernel *k)
{
	const bool few = few_tiles(rows, cols, vec);

	if (dtype != TE_DTYPE_FP32 && dtype != TE_DTYPE_BF16)
		return no_type(name, dtype);
	if (act < 0 || act >= TE_ACT_COUNT)
		return te__fail(-EINVAL, "%s: no activation has number %d", name, act);
	return launch_tiles(k, func[act][few][!!gated][dtype == TE_DTYPE_BF16], rows, cols, few);
}

static int geo_act_fwd(const void *args, struct te__cuda_kernel *k)
{
	const struct te_k_act_fwd *a = args;

	return geo_act(act_fwd, "te_k_act_fwd", a->act, a->gated, a->dtype, a->rows, a->cols,
		       whole_vectors(a->cols, a->x, a->y, a->q.row, NULL), k);
}

static int geo_act_bwd(const void *args, struct te__cuda_kernel *k)
{
	const struct te_k_act_bwd *a = args;

	return geo_act(act_bwd, "te_k_act_bwd", a->act, a->gated, a->dtype, a->rows, a->cols,
		       whole_vectors(a->cols, a->x, a->dx, a->q.row, a->dy), k);
}

static int geo_embed_fwd(const void *args, struct te__cuda_kernel *k)
{
	const struct te_k_embed_fwd *a = args;

	return LAUNCH_T(k, a->dtype, "te_k_embed_fwd", a->rows, threads_for(a->width, 8, 128));
}

static int geo_embed_bwd(const void *args, struct te__cuda_kernel *k)
{
	const struct te_k_embed_bwd *a = args;
	const int64_t span = a->vocab > EMBED_LARGE_VOCAB ? EMBED_VOCAB : 1;

	if (a->rows > EMBED_MAX_ROWS)
		return te__fail(-TE_ESHAPE, "te_k_embed_bwd: %lld tokens are more than %d",
				(long long)a->rows, EMBED_MAX_ROWS);
	if (a->rows <= EMBED_FEW_ROWS && a->width <= EMBED_FEW_WIDTH) {
		k->grid[1] = (unsigned)ceil_div(a->width, 256);
		return LAUNCH_T(k, a->dtype, "te_k_embed_bwd_few", ceil_div(a->rows, 4), 128);
	}
	return LAUNCH_T(k, a->dtype, "te_k_embed_bwd", ceil_div(a->vocab, span), 256);
}

static int geo_pos_bwd(const void *args, struct te__cuda_kernel *k)
{
	const struct te_k_pos_bwd *a = args;

	return LAUNCH_T(k, a->dtype, "te_k_pos_bwd", ceil_div(a->seqlen * a->width, 128 * 8), 128);
}

static int geo_ce_fwd(const void *args, struct te__cuda_kernel *k)
{
	const struct te_k_ce_fwd *a = args;

	return LAUNCH_T(k, a->dtype, "te_k_ce_fwd", a->rows, threads_for(a->nclasses, 8, 512));
}

static int geo_ce_reduce(const void *args, struct te__cuda_kernel *k)
{
	const struct te_k_ce_reduce *a = args;

	return launch(k, "te_k_ce_reduce", 1, threads_for(a->rows, 4, 1024));
}

static int geo_ce_bwd(const void *args, struct te__cuda_kernel *k)
{
	const struct te_k_ce_bwd *a = args;

	return LAUNCH_T(k, a->dtype, "te_k_ce_bwd", a->rows, threads_for(a->cols, 8, 512));
}

static int geo_sumsq(const void *args, struct te__cuda_kernel *k)
{
	(void)args;
	return launch(k, "te_k_sumsq", TE_K_SUMSQ_PARTS, 128);
}

static int geo_adamw_begin(const void *args, struct te__cuda_kernel *k)
{
	(void)args;
	return launch(k, "te_k_adamw_begin", 1, 256);
}

static int geo_adamw(const void *args, struct te__cuda_kernel *k)
{
	const struct te_k_adamw *a = args;

	return launch(k, "te_k_adamw", ceil_div(a->n, 256 * 4), 256);
}

static te__cuda_geometry_fn *const geometry[TE_K_COUNT] = {
	[TE_K_CLEAR] = geo_clear,
	[TE_K_FILL] = geo_fill,
	[TE_K_AMAX] = geo_amax,
	[TE_K_SCALE_CURRENT] = geo_scale_current,
	[TE_K_SCALE_DELAYED] = geo_scale_delayed,
	[TE_K_QUANTIZE] = geo_quantize,
	[TE_K_DEQUANTIZE] = geo_dequantize,
	[TE_K_CAST] = geo_cast,
	[TE_K_NORM_FWD] = geo_norm_fwd,
	[TE_K_NORM_BWD] = geo_norm_bwd,
	[TE_K_NORM_DW] = geo_norm_dw,
	[TE_K_COLSUM] = geo_colsum,
	[TE_K_PART_SUM] = geo_part_sum,
	[TE_K_BIAS_FWD] = geo_bias_fwd,
	[TE_K_ADD] = geo_add,
	[TE_K_DROPOUT] = geo_dropout,
	[TE_K_RNG_NEXT] = geo_rng_next,
	[TE_K_ROPE] = geo_rope,
	[TE_K_ACT_FWD] = geo_act_fwd,
	[TE_K_ACT_BWD] = geo_act_bwd,
	[TE_K_EMBED_FWD] = geo_embed_fwd,
	[TE_K_EMBED_BWD] = geo_embed_bwd,
	[TE_K_POS_BWD] = geo_pos_bwd,
	[TE_K_ATTN_FWD] = te__cuda_geo_attn_fwd,
	[TE_K_ATTN_BWD_PRE] = te__cuda_geo_attn_bwd_pre,
	[TE_K_ATTN_BWD_DKV] = te__cuda_geo_attn_bwd_dkv,
	[TE_K_ATTN_BWD_DQ] = te__cuda_geo_attn_bwd_dq,
	[TE_K_CE_FWD] = geo_ce_fwd,
	[TE_K_CE_REDUCE] = geo_ce_reduce,
	[TE_K_CE_BWD] = geo_ce_bwd,
	[TE_K_SUMSQ] = geo_sumsq,
	[TE_K_ADAMW_BEGIN] = geo_adamw_begin,
	[TE_K_ADAMW] = geo_adamw,
	[TE_K_GEMM] = te__cuda_geo_gemm,
};

int te__cuda_geometry(const struct te__launch *l, struct te__cuda_kernel *ret)
{
	*ret = (struct te__cuda_kernel){ NULL, { 1, 1, 1 }, { 1, 1, 1 }, 0 };
	if ((unsigned)l->id >= TE_K_COUNT || !geometry[l->id])
		return te__fail(-TE_EKERNEL, "the cuda backend has no kernel of id %d", (int)l->id);
	return geometry[l->id](l->args, ret);
}
