/* plan.c - which GEMMs sm90.cu computes, and its arguments for them. */
#include "config.h"

#include <string.h>

#include <te/dtype.h>

#include "kernels/gemm/sm90.h"
#include "libtecore/base/base.h"

#define MAX_EXTENT (1 << 30) /* coordinates of boxes outside of an operand are int32_t, too */

static int64_t ceil_of(int64_t a, int64_t b)
{
	return (a + b - 1) / b;
}

static uint64_t round_up(uint64_t nbytes)
{
	return (nbytes + 255) / 256 * 256;
}

/* the kernel for these types and layouts; TE_SM90_COUNT: none */
static enum te_sm90_kernel kernel_of(const struct te_k_gemm *g)
{
	if (g->adtype == TE_DTYPE_BF16 && g->bdtype == TE_DTYPE_BF16)
		return !g->a_t ? (g->b_t ? TE_SM90_BF16_BT : TE_SM90_BF16) :
		       g->b_t  ? TE_SM90_BF16_TT :
				 TE_SM90_COUNT;
	if (g->bdtype != TE_DTYPE_E4M3 || g->a_t || g->b_t)
		return TE_SM90_COUNT;
	if (g->asc)
		return g->adtype == TE_DTYPE_E4M3 && g->asc != TE_K_SCALING_1X32 ?
			       TE_SM90_E4M3_BLOCK :
			       TE_SM90_COUNT;
	return g->adtype == TE_DTYPE_E4M3 ? TE_SM90_E4M3_E4M3 :
	       g->adtype == TE_DTYPE_E5M2 ? TE_SM90_E5M2_E4M3 :
					    TE_SM90_COUNT;
}

static const char *declines(const struct te_k_gemm *g, int32_t nclusters, int32_t elem,
			    int32_t delem)
{
	const uintptr_t at = (uintptr_t)g->a | (uintptr_t)g->b | (uintptr_t)g->c | (uintptr_t)g->d |
			     (uintptr_t)g->bias;

	if (nclusters < 1)
		return "the GPU has one multiprocessor";
	if (g->adtype == TE_DTYPE_FP32)
		return "its operands are FP32";
	if (kernel_of(g) == TE_SM90_COUNT)
		return g->asc ? "no kernel has these types with block scaling" :
				"no kernel has these types and layouts";
	if (g->m > MAX_EXTENT || g->n > MAX_EXTENT || g->k > MAX_EXTENT)
		return "an extent is above 2^30";
	if ((g->a_t ? g->m : g->k) * elem % 16 || (g->b_t ? g->n : g->k) * elem % 16 ||
	    g->n * delem % 16)
		return "rows of a matrix are not a multiple of 16 bytes";
	if (at % 16)
		return "a matrix or the bias is not aligned to 16 bytes";
	if (g->asc && (te_k_scale_nfloats(g->asc, te_k_gemm_a_rows(g), g->k) > MAX_EXTENT ||
		       te_k_scale_nfloats(g->bsc, te_k_gemm_b_rows(g), g->k) > MAX_EXTENT))
		return "an operand has more than 2^30 scales";
	if (g->asc && (uintptr_t)g->sb % 16)
		return "scales are not aligned to 16 bytes";
	return NULL;
}

/* an operand of rows rows: boxes of box_rows rows, or transposed of 64 */
static struct te_sm90_map operand(const void *p, int32_t elem, int64_t rows, int64_t k,
				  int transposed, int32_t box_rows)
{
	struct te_sm90_map m = { p, k, rows, 0, elem, SM90_STEP / elem, box_rows };

	if (transposed) {
		m.nx = rows;
		m.ny = k;
		m.box_y = SM90_STEP / elem;
	}
	return m;
}

const char *te__sm90_plan(const struct te_k_gemm *g, int32_t nclusters, uint64_t nbytes,
			  struct te_sm90_plan *ret)
{
	const int32_t elem = te__is_fp8(g->adtype) ? 1 : 2;
	const int32_t delem = g->ddtype == TE_DTYPE_FP32 ? 4 : 2;
	const char *why = declines(g, nclusters, elem, delem);
	struct te_gemm_sm90 *s = &ret->args;
	int64_t ntiles, tile_nbytes;

	if (why)
		return why;
	memset(ret, 0, sizeof(*ret)); /* padding, too: arguments are compared as bytes */
	ret->kernel = kernel_of(g);
	s->bias = g->bias;
	s->sa = g->sa;
	s->sb = g->sb;
	s->alpha = g->alpha;
	s->beta = g->c ? g->beta : 0.0f;
	s->m = (int32_t)g->m;
	s->n = (int32_t)g->n;
	s->nrows = (int32_t)ceil_of(g->m, SM90_CLUSTER * SM90_ROWS);
	s->ncols = (int32_t)ceil_of(g->n, SM90_COLS);
	s->d_fp32 = g->ddtype == TE_DTYPE_FP32;
	if (g->asc) {
		s->sa_ld = (int32_t)te_k_scale_ld(g->asc, te_k_gemm_a_rows(g), g->k);
		s->sb_ld = (int32_t)te_k_scale_ld(g->bsc, te_k_gemm_b_rows(g), g->k);
		s->sa_square = g->asc == TE_K_SCALING_128X128;
		s->sb_square = g->bsc == TE_K_SCALING_128X128;
	}
	ntiles = (int64_t)s->nrows * s->ncols;
	if (ntiles > MAX_EXTENT)
		return "d has more than 2^30 tiles";
	/* four counters for each tile that is cut, fewer than clusters */
	ret->ready_nbytes = round_up(16 * (uint64_t)nclusters);
	tile_nbytes = SM90_CLUSTER * SM90_ROWS * SM90_COLS * (int64_t)sizeof(float);
	te__gemm_schedule(ntiles, ceil_of(g->k * elem, SM90_STEP), nclusters,
			  nbytes < ret->ready_nbytes ?
				  0 :
				  (int64_t)(nbytes - ret->ready_nbytes) / tile_nbytes,
			  &s->schedule);
	for (int i = s->schedule.nlevels - 1; i >= 0; i--)
		if (te_gemm_nparts(&s->schedule, s->schedule.level[i].tile) > 1)
			s->first_cut = s->schedule.level[i].tile;
	if (!s->schedule.nslots)
		ret->ready_nbytes = 0;
	ret->sums_nbytes = (uint64_t)(s->schedule.nslots * tile_nbytes);
	ret->nclusters = (int32_t)(ntiles < nclusters && !s->schedule.nslots ? ntiles : nclusters);
	ret->a = operand(g->a, elem, g->m, g->k, g->a_t, SM90_ROWS);
	ret->b = operand(g->b, elem, g->n, g->k, g->b_t, SM90_COLS / 2);
	ret->d = (struct te_sm90_map){ g->d, g->n, g->m, 0, delem, SM90_STEP / delem, SM90_BOX };
	ret->c = ret->d;
	if (g->c)
		ret->c.p = g->c;
	return NULL;
}
