/* cuda_kernels_gemm.c - which products kernels/te_gemm.cu computes, and how. */
#include "config.h"

#include <te/dtype.h>

#define TE_LOG_CATEGORY "core/cuda"
#include "libtecore/backend/cuda_kernels.h"
#include "libtecore/internal.h"

/*
 * gemm_few: blocks read b for each 16 rows anew, so that cuBLASLt is faster where it is larger.
 * On an H100 te_perftest step of width 512 takes 1364 us with it for all and 1325 without, of width
 * 1024 4122 and 3657.
 */
#define FEW_ROWS 64
#define FEW_NBYTES (1 << 19) /* of b */
#define FEW_PIECE 128	     /* bytes of k that a warp takes at a time */
#define FEW_TILE 16	     /* rows and columns of d a block */
#define FEW_MIN_WARPS 4	     /* a thread for each two elements of that */
#define FEW_MAX_WARPS 16
/* gemm_short: of short sums */
#define SHORT_K 128
#define SHORT_NELEMS (1 << 20) /* of d */
#define SHORT_PIECE 64	       /* bytes of k */
#define SHORT_ROWS 32	       /* of d a block */
#define SHORT_COLS 64

/* of k elements */
static int64_t k_nbytes(const struct te_k_gemm *g)
{
	return g->k * (te__is_fp8(g->adtype) ? 1 : 2);
}

static int is_few(const struct te_k_gemm *g)
{
	return g->ddtype == TE_DTYPE_BF16 && !g->a_t && g->m <= FEW_ROWS &&
	       g->n * k_nbytes(g) <= FEW_NBYTES && k_nbytes(g) % FEW_PIECE == 0;
}

static int is_short(const struct te_k_gemm *g)
{
	if (g->ddtype != TE_DTYPE_FP32 || g->bias || g->k > SHORT_K || g->m % 8 ||
	    g->m * g->n > SHORT_NELEMS)
		return 0;
	return te__is_fp8(g->adtype) ? g->k % SHORT_PIECE == 0 : g->a_t && g->b_t;
}

int te__cuda_gemm_is_ours(const struct te_k_gemm *g)
{
	return (g->adtype == TE_DTYPE_BF16 || te__is_fp8(g->adtype)) && g->n % 8 == 0 &&
	       (is_few(g) || is_short(g));
}

/* whether none of the pointers lies between multiples of nbytes */
static int is_aligned(const struct te_k_gemm *g, uintptr_t nbytes)
{
	const uintptr_t d = (uintptr_t)g->c | (uintptr_t)g->d | (uintptr_t)g->bias;

	return ((uintptr_t)g->a | (uintptr_t)g->b) % 16 == 0 && d % nbytes == 0;
}

/* [at odd addresses][types] */
#define FUNCS(NAME, transposed)                                                             \
	{                                                                                   \
		{ NAME "bf16_bf16", NAME transposed, NAME "e4m3_e4m3", NAME "e4m3_e5m2",    \
		  NAME "e5m2_e4m3" },                                                       \
		{                                                                           \
			NAME "bf16_bf16_odd", NAME transposed "_odd", NAME "e4m3_e4m3_odd", \
				NAME "e4m3_e5m2_odd", NAME "e5m2_e4m3_odd"                  \
		}                                                                           \
	}

static int types_of(const struct te_k_gemm *g)
{
	if (!te__is_fp8(g->adtype))
		return g->b_t ? 1 : 0;
	return g->adtype == TE_DTYPE_E5M2 ? 4 : g->bdtype == TE_DTYPE_E5M2 ? 3 : 2;
}

int te__cuda_geo_gemm(const void *args, struct te__cuda_kernel *k)
{
	static const char *const few[2][5] = FUNCS("te_k_gemm_few_", "bf16_bt");
	static const char *const shrt[2][5] = FUNCS("te_k_gemm_short_", "bf16_tt");
	const struct te_k_gemm *g = args;
	int64_t nwarps;

	if (!te__cuda_gemm_is_ours(g))
		return te__fail(-TE_EKERNEL,
				"the cuda backend has no kernel for a product of m %lld, n %lld, "
				"k %lld, %s by %s to %s",
				(long long)g->m, (long long)g->n, (long long)g->k,
				te_dtype_name((enum te_dtype)g->adtype),
				te_dtype_name((enum te_dtype)g->bdtype),
				te_dtype_name((enum te_dtype)g->ddtype));
	if (is_short(g)) {
		k->func = shrt[!is_aligned(g, 16)][types_of(g)];
		k->grid[0] = (unsigned)ceil_div(g->n, SHORT_COLS);
		k->grid[1] = (unsigned)ceil_div(g->m, SHORT_ROWS);
		k->block[0] = 128;
		return 0;
	}
	nwarps = k_nbytes(g) / FEW_PIECE;
	if (nwarps < FEW_MIN_WARPS)
		nwarps = FEW_MIN_WARPS;
	if (nwarps > FEW_MAX_WARPS)
		nwarps = FEW_MAX_WARPS;
	k->func = few[!is_aligned(g, 4)][types_of(g)];
	k->grid[0] = (unsigned)ceil_div(g->n, FEW_TILE);
	k->grid[1] = (unsigned)ceil_div(g->m, FEW_TILE);
	k->block[0] = 32 * (unsigned)nwarps;
	k->smem = (unsigned)nwarps * FEW_TILE * FEW_TILE * sizeof(float);
	return 0;
}
