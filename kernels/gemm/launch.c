/* launch.c - GEMMs of gemm.cu, block.cu, mx.cu and any.cu: device function, launch geometry. */
#include "config.h"

#include <errno.h>
#include <te/dtype.h>

#define TE_LOG_CATEGORY "core/cuda"
#include "kernels/gemm/geometry.h"
#include "kernels/gemm/sm90.h"
#include "kernels/launch.h"
#include "libtecore/base/base.h"

/*
 * Limits of gemm_small_m. It reads b once for every 16 rows of d, so that cuBLASLt is faster for a
 * larger b: on an H100, te_perftest step takes 1364 us with gemm_small_m for all sizes and 1325 us
 * without at width 512, 4122 and 3657 us at width 1024.
 */
#define SMALL_M_ROWS 64
#define SMALL_M_NBYTES (1 << 19) /* bytes of b */
/* limits of gemm_few_rows: gemm_small_m has 32-bit offsets */
#define FEW_ROWS_NBYTES INT32_MAX
/* limits of gemm_short_k */
#define SHORT_K_MAX 128
#define SHORT_K_NELEMS (1 << 20) /* elements of d */
/* gemm_block, gemm_mxfp8, gemm_nvfp4: rows of an operand, with 32-bit numbers */
#define MAX_ROWS (1 << 30)

/* bytes of a row of k elements */
static int64_t k_nbytes(const struct te_k_gemm *g)
{
	return g->k * (te__is_fp8(g->adtype) ? 1 : 2);
}

static int is_small_m(const struct te_k_gemm *g)
{
	return g->ddtype == TE_DTYPE_BF16 && !g->a_t && g->m <= SMALL_M_ROWS &&
	       g->n * k_nbytes(g) <= SMALL_M_NBYTES && k_nbytes(g) % SMALL_M_STEP == 0;
}

/* at unaligned addresses gemm_small_m takes these, too */
static int is_few_rows(const struct te_k_gemm *g)
{
	return g->adtype == TE_DTYPE_BF16 && g->ddtype == TE_DTYPE_BF16 && !g->a_t && !g->b_t &&
	       g->m <= FEW_ROWS_MAX && k_nbytes(g) % SMALL_M_STEP == 0 &&
	       g->n * k_nbytes(g) <= FEW_ROWS_NBYTES;
}

static int is_short_k(const struct te_k_gemm *g)
{
	if (g->ddtype != TE_DTYPE_FP32 || g->bias || g->k > SHORT_K_MAX || g->m % 8 ||
	    g->m * g->n > SHORT_K_NELEMS)
		return 0;
	return te__is_fp8(g->adtype) ? g->k % GEMM_CHUNK == 0 : g->a_t && g->b_t;
}

int te__gemm_has_kernel(const struct te_k_gemm *g)
{
	return (g->adtype == TE_DTYPE_BF16 || te__is_fp8(g->adtype)) && g->n % 8 == 0 &&
	       !g->asc && !g->bsc && (is_small_m(g) || is_few_rows(g) || is_short_k(g));
}

/* limits of tile.cuh */
static int is_tiled(const struct te_k_gemm *g)
{
	return !g->a_t && !g->b_t && g->k % 16 == 0 && te_k_gemm_a_rows(g) <= MAX_ROWS &&
	       te_k_gemm_b_rows(g) <= MAX_ROWS;
}

static int is_fp8_by_fp8(const struct te_k_gemm *g)
{
	return te__is_fp8(g->adtype) && te__is_fp8(g->bdtype) &&
	       (g->adtype == TE_DTYPE_E4M3 || g->bdtype == TE_DTYPE_E4M3);
}

int te__gemm_is_block(const struct te_k_gemm *g)
{
	return is_fp8_by_fp8(g) && g->asc && g->bsc && g->asc < TE_K_SCALING_1X32 &&
	       g->bsc < TE_K_SCALING_1X32 && is_tiled(g);
}

static int is_mxfp8(const struct te_k_gemm *g)
{
	return is_fp8_by_fp8(g) && g->asc == TE_K_SCALING_1X32 && g->bsc == TE_K_SCALING_1X32;
}

static int is_nvfp4(const struct te_k_gemm *g)
{
	return g->adtype == TE_DTYPE_E2M1 && g->bdtype == TE_DTYPE_E2M1 &&
	       g->asc >= TE_K_SCALING_1X16 && g->bsc >= TE_K_SCALING_1X16;
}

int te__gemm_is_mx(const struct te_k_gemm *g)
{
	return (is_mxfp8(g) || is_nvfp4(g)) && is_tiled(g);
}

int te__gemm_is_any(const struct te_k_gemm *g)
{
	const int fp8 = te__is_fp8(g->adtype);

	return (g->adtype == TE_DTYPE_BF16 || fp8) && te__is_fp8(g->bdtype) == fp8 && !g->asc &&
	       !g->bsc && te_k_gemm_a_rows(g) <= MAX_ROWS && te_k_gemm_b_rows(g) <= MAX_ROWS;
}

/* are a and b aligned to 16 bytes, and c, d and bias to nbytes? */
static int is_aligned(const struct te_k_gemm *g, uintptr_t nbytes)
{
	const uintptr_t d = (uintptr_t)g->c | (uintptr_t)g->d | (uintptr_t)g->bias;

	return ((uintptr_t)g->a | (uintptr_t)g->b) % 16 == 0 && d % nbytes == 0;
}

enum { BF16, BF16_T, E4M3_E4M3, E4M3_E5M2, E5M2_E4M3, NTYPES };

static int types_of(const struct te_k_gemm *g)
{
	if (!te__is_fp8(g->adtype))
		return g->b_t ? BF16_T : BF16;
	return g->adtype == TE_DTYPE_E5M2 ? E5M2_E4M3 :
	       g->bdtype == TE_DTYPE_E5M2 ? E4M3_E5M2 :
					    E4M3_E4M3;
}

/* [types][unaligned] */
#define FUNC(NAME)                      \
	{                               \
		NAME, NAME "_unaligned" \
	}
static const char *const small_m[NTYPES][2] = {
	[BF16] = FUNC("te_k_gemm_small_m_bf16_bf16"),
	[BF16_T] = FUNC("te_k_gemm_small_m_bf16_bt"),
	[E4M3_E4M3] = FUNC("te_k_gemm_small_m_e4m3_e4m3"),
	[E4M3_E5M2] = FUNC("te_k_gemm_small_m_e4m3_e5m2"),
	[E5M2_E4M3] = FUNC("te_k_gemm_small_m_e5m2_e4m3"),
};
static const char *const short_k[NTYPES][2] = {
	[BF16_T] = FUNC("te_k_gemm_short_k_bf16_tt"),
	[E4M3_E4M3] = FUNC("te_k_gemm_short_k_e4m3_e4m3"),
	[E4M3_E5M2] = FUNC("te_k_gemm_short_k_e4m3_e5m2"),
	[E5M2_E4M3] = FUNC("te_k_gemm_short_k_e5m2_e4m3"),
};
#undef FUNC
static const char *const block[NTYPES] = {
	[E4M3_E4M3] = "te_k_gemm_block_e4m3_e4m3",
	[E4M3_E5M2] = "te_k_gemm_block_e4m3_e5m2",
	[E5M2_E4M3] = "te_k_gemm_block_e5m2_e4m3",
};

/*
 * each: columns of d of a tile, in tiles; fused: a is in shared memory whatever its size. Blocks of
 * two kernels share an SM, which then reads weights while one of them waits, but no two blocks of
 * one do: with norms, which come first, they have less than half of the memory, and others more.
 */
static int few_rows_launch(struct te__geometry *k, const struct te_k_gemm *g, int each, int fused,
			   int norm, const char *func)
{
	const int64_t ntiles = g->n / (FEW_ROWS_TILE * each);
	const int64_t x = FEW_ROWS_XBYTES(g->m, g->k, te__is_fp8(g->adtype), norm);
	const int64_t most = k->target.smem_max - 1024, sums = g->m * FEW_ROWS_SUMS;
	const int64_t rest = sums + (fused || 2 * FEW_ROWS_STAGE + sums + x <= most ? x : 0);
	int stages = FEW_ROWS_STAGES(k->target.arch);

	while (stages > 2 && stages * FEW_ROWS_STAGE + rest > most)
		stages -= 2;
	k->smem = (unsigned)(stages * FEW_ROWS_STAGE + rest);
	if (!norm && k->target.arch >= 90 && k->smem < FEW_ROWS_ALONE && FEW_ROWS_ALONE <= most)
		k->smem = FEW_ROWS_ALONE;
	return te__geo_launch(k, func, ntiles < HOPPER_SMS ? ntiles : HOPPER_SMS,
			      32 * FEW_ROWS_WARPS);
}

const char *te__few_rows_declines(const struct te_k_few_rows *a)
{
	const struct te_k_gemm *g = &a->g;
	const int fp8 = te__is_fp8(g->adtype);

	if (g->m > FEW_ROWS_MAX)
		return "it has more than 8 rows";
	if (g->n % (FEW_ROWS_TILE * (a->gated ? 2 : 1)) || k_nbytes(g) % SMALL_M_STEP ||
	    g->n * k_nbytes(g) > FEW_ROWS_NBYTES)
		return "its extents";
	if (FEW_ROWS_XBYTES(g->m, g->k, fp8, a->gamma) > FEW_ROWS_X)
		return "its first operand is too large";
	if (fp8 && g->bsc != TE_K_SCALING_128X128)
		return "its weights are not scaled by 128x128";
	return is_aligned(g, 16) && (uintptr_t)a->gamma % 16 == 0 ? NULL : "it is not aligned";
}

int te__geo_few_rows(const void *args, struct te__geometry *k)
{
	static const char *const func[2][2] = {
		{ "te_k_few_rows_bf16", "te_k_few_rows_glu_bf16" },
		{ "te_k_few_rows_e4m3", "te_k_few_rows_glu_e4m3" },
	};
	const struct te_k_few_rows *a = args;
	const char *why = te__few_rows_declines(a);

	if (why)
		return te__fail(-TE_EKERNEL, "te_k_few_rows: %s", why);
	if (te__is_fp8(a->g.adtype) && !(k->target.features & TE_FEATURE_FP8_MMA))
		return te__fail(-EOPNOTSUPP, "te_k_few_rows: compute capability %d.%d has no FP8 "
				"tensor cores", k->target.arch / 10, k->target.arch % 10);
	return few_rows_launch(k, &a->g, a->gated ? 2 : 1, 1, a->gamma != NULL,
			       func[te__is_fp8(a->g.adtype)][a->gated]);
}

void te__geo_sm90(const struct te_sm90_plan *p, struct te__geometry *k)
{
	static const char *const func[TE_SM90_COUNT] = {
		[TE_SM90_BF16] = "te_k_gemm_sm90_bf16",
		[TE_SM90_BF16_BT] = "te_k_gemm_sm90_bf16_bt",
		[TE_SM90_BF16_TT] = "te_k_gemm_sm90_bf16_tt",
		[TE_SM90_E4M3_E4M3] = "te_k_gemm_sm90_e4m3_e4m3",
		[TE_SM90_E5M2_E4M3] = "te_k_gemm_sm90_e5m2_e4m3",
		[TE_SM90_E4M3_BLOCK] = "te_k_gemm_sm90_e4m3_block",
	};

	*k = (struct te__geometry){
		.func = func[p->kernel],
		.grid = { (unsigned)p->nclusters * SM90_CLUSTER, 1, 1 },
		.block = { SM90_THREADS, 1, 1 },
		.smem = SM90_SMEM(p->kernel),
	};
}

int te__geo_gemm(const void *args, struct te__geometry *k)
{
	const struct te_k_gemm *g = args;
	const char *func = te__gemm_is_block(g)		? block[types_of(g)] :
			   !te__gemm_is_mx(g)		? "te_k_gemm_any" :
			   g->adtype != TE_DTYPE_E2M1	? "te_k_gemm_mxfp8" :
							  "te_k_gemm_nvfp4";
	const int own = te__gemm_has_kernel(g);
	int64_t nwarps;

	if (te__gemm_is_block(g) || te__gemm_is_mx(g) || (!own && te__gemm_is_any(g))) {
		k->smem = te__gemm_is_block(g) ? BLOCK_GEMM_SMEM : TWO_STEPS_SMEM;
		return te__geo_launch(k, func, ceil_div(g->m, BLOCK_GEMM_TILE) *
						       ceil_div(g->n, BLOCK_GEMM_TILE),
				      BLOCK_GEMM_THREADS);
	}
	if (!own)
		return te__fail(-TE_EKERNEL,
				"the cuda backend has no kernel for a GEMM of m %lld, n %lld, "
				"k %lld, %s by %s to %s",
				(long long)g->m, (long long)g->n, (long long)g->k,
				te_dtype_name((enum te_dtype)g->adtype),
				te_dtype_name((enum te_dtype)g->bdtype),
				te_dtype_name((enum te_dtype)g->ddtype));
	if (is_short_k(g)) {
		k->func = short_k[types_of(g)][!is_aligned(g, 16)];
		k->grid[0] = (unsigned)ceil_div(g->n, SHORT_K_COLS);
		k->grid[1] = (unsigned)ceil_div(g->m, SHORT_K_ROWS);
		k->block[0] = SHORT_K_THREADS;
		return 0;
	}
	if (is_few_rows(g) && is_aligned(g, 16))
		return few_rows_launch(k, g, 1, 0, 0, "te_k_gemm_few_rows_bf16");
	nwarps = clamp(k_nbytes(g) / SMALL_M_STEP, SMALL_M_MIN_WARPS, SMALL_M_MAX_WARPS);
	k->func = small_m[types_of(g)][!is_aligned(g, 4)];
	k->grid[0] = (unsigned)ceil_div(g->n, SMALL_M_TILE);
	k->grid[1] = (unsigned)ceil_div(g->m, SMALL_M_TILE);
	k->block[0] = 32 * (unsigned)nwarps;
	k->smem = (unsigned)nwarps * SMALL_M_TILE * SMALL_M_TILE * sizeof(float);
	return 0;
}

int te__geo_gemm_grouped(const void *args, struct te__geometry *k)
{
	const struct te_k_gemm_grouped *a = args;
	const int64_t rows = ceil_div(a->m, GROUPED_TILE), cols = ceil_div(a->n, GROUPED_TILE);

	if (rows > INT32_MAX || cols > UINT16_MAX || (a->by_k && a->groups > UINT16_MAX))
		return te__fail(-TE_ESHAPE, "te_gemm_grouped: N %lld, %lld groups: on a GPU N ends "
				"at %d and, by K, groups at %d", (long long)a->n,
				(long long)a->groups, UINT16_MAX * GROUPED_TILE, UINT16_MAX);
	k->func = "te_k_gemm_grouped";
	k->grid[0] = (unsigned)rows;
	k->grid[1] = (unsigned)cols;
	k->grid[2] = a->by_k ? (unsigned)a->groups : 1;
	k->block[0] = GROUPED_TILE * GROUPED_TILE;
	return 0;
}

int te__geo_gemm_finish(const void *args, struct te__geometry *k)
{
	const struct te_k_gemm_finish *a = args;

	return LAUNCH_T(k, a->dtype, "te_k_gemm_finish", ceil_div(a->m * a->n, FINISH_ELEMS),
			FINISH_THREADS);
}
