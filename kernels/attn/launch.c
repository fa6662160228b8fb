/* launch.c - device function and launch geometry of attention. */
#include "config.h"

#include <errno.h>
#include <te/dtype.h>

#define TE_LOG_CATEGORY "core/cuda"
#include "kernels/attn/geometry.h"
#include "kernels/attn/sm90.h"
#include "kernels/launch.h"
#include "libtecore/base/base.h"

#define SMALL_M_BLOCKS (HOPPER_SMS / 2) /* blocks of ATTN_ROWS rows */
#define MAX_STRIPS (4 * SMALL_M_BLOCKS) /* with more, _small_m is as fast */
#define MAX_STRIDE (1 << 24) /* elements of a row: offsets within a tile are 32-bit */
#define MAX_GRID_Y 65535
#define LEAST_ROWS 32 /* blocks of strips, which are for few rows, have fewer */

enum { FWD, DKV, DQ, PASSES };

/* the functions of attn.cu, more.cu and wide.cu by padded head_dim, ascending */
static const struct {
	int head_dim;
	const char *func[PASSES], *func_drop[PASSES], *func_more[PASSES], *func_small_m[PASSES];
	const char *fwd_strip, *bwd_strip;
} bf16[] = {
#define FUNCS(D, variant)                                                                  \
	{ "te_k_attn_fwd_bf16_d" #D variant, "te_k_attn_bwd_dkv_bf16_d" #D variant,        \
	  "te_k_attn_bwd_dq_bf16_d" #D variant }
#define ROW(D)                                                                             \
	{ D, FUNCS(D, ""), FUNCS(D, "_drop"), FUNCS(D, "_more"), FUNCS(D, "_small_m"),     \
	  "te_k_attn_fwd_bf16_d" #D "_strip", "te_k_attn_bwd_bf16_d" #D "_strip" },
	ROW(32)
	ROW(64)
	ROW(96)
	ROW(128)
#undef ROW
	{ ATTN_WIDE_D, FUNCS(256, ""), FUNCS(256, "_more"), FUNCS(256, "_more"), FUNCS(256, ""),
	  NULL, NULL },
#undef FUNCS
}, fp32[] = {
#define ROW(D)                                                                             \
	{ D,                                                                               \
	  { "te_k_attn_fwd_fp32_d" #D, "te_k_attn_bwd_dkv_fp32_d" #D,                      \
	    "te_k_attn_bwd_dq_fp32_d" #D },                                                \
	  { NULL },                                                                        \
	  { "te_k_attn_fwd_fp32_d" #D "_more", "te_k_attn_bwd_dkv_fp32_d" #D "_more",      \
	    "te_k_attn_bwd_dq_fp32_d" #D "_more" },                                        \
	  { NULL }, NULL, NULL },
	ROW(64)
	ROW(128)
#undef ROW
};

/* most: the largest head_dim */
static int check(int32_t dtype, int64_t batch, int64_t seqlen, int32_t nheads, int32_t nkv,
		 int32_t head_dim, int32_t most, float scale, uintptr_t pointers)
{
	if (dtype != TE_DTYPE_FP32 && dtype != TE_DTYPE_BF16)
		return te__fail(-EINVAL, "attention on cuda takes FP32 and BF16, not %s",
				te_dtype_name((enum te_dtype)dtype));
	if (head_dim < 1 || head_dim > most)
		return te__fail(-EOPNOTSUPP, "attention on cuda takes a head_dim of 1 to %d in %s, "
				"not %d", most, te_dtype_name((enum te_dtype)dtype), head_dim);
	if (nkv < 1 || nheads < nkv || nheads % nkv)
		return te__fail(-EINVAL,
				"attention: %d query heads are no multiple of %d key heads",
				nheads, nkv);
	if (((int64_t)nheads + 2 * (int64_t)nkv) * head_dim > MAX_STRIDE ||
	    batch * nheads > INT32_MAX || seqlen > MAX_GRID_Y * LEAST_ROWS)
		return te__fail(-EINVAL, "attention on cuda: too large a shape");
	if (!(scale > 0.0f))
		return te__fail(-EINVAL, "attention takes a scale above 0");
	if (pointers % 16 && head_dim * te_dtype_nbytes((enum te_dtype)dtype) % 16 == 0)
		return te__fail(-EINVAL,
				"attention on cuda, head_dim %d: qkv, out or a gradient of theirs "
				"is not aligned to 16 bytes", head_dim);
	return 0;
}

static int32_t most_of(int32_t dtype)
{
	return dtype == TE_DTYPE_BF16 ? TE_K_ATTN_CUDA_HEAD_DIM : TE_K_ATTN_CUDA_HEAD_DIM_FP32;
}

/* heads of d channels at these addresses */
static int check_operand(const char *name, int32_t dtype, int32_t d, const struct te_k_strides *s,
			 const void *p, const void *gradient)
{
	const int64_t nbytes = (int64_t)te_dtype_nbytes((enum te_dtype)dtype);
	const int64_t strides = (s->batch | s->token | s->head) * nbytes;

	if (s->token < 0 || s->token > MAX_STRIDE)
		return te__fail(-EINVAL, "attention on cuda: tokens of %s are %lld elements apart, "
				"expected 0 to %d", name, (long long)s->token, MAX_STRIDE);
	if (d * nbytes % 16 == 0 && ((uintptr_t)p | (uintptr_t)gradient | (uintptr_t)strides) % 16)
		return te__fail(-EINVAL, "attention on cuda: heads of %s have %d channels, but "
				"not all of them and of its gradient are aligned to 16 bytes",
				name, d);
	return 0;
}

/* what both passes have besides packed attention */
static int check_more(const struct te_k_attn_more *m, int32_t dtype, int32_t head_dim)
{
	if (m->head_dim_v < 0 || m->head_dim_v > most_of(dtype))
		return te__fail(-EOPNOTSUPP, "attention on cuda takes values of 1 to %d channels "
				"in %s, not %d", most_of(dtype),
				te_dtype_name((enum te_dtype)dtype), m->head_dim_v);
	if (m->klen > MAX_GRID_Y * LEAST_ROWS)
		return te__fail(-EINVAL, "attention on cuda: %lld keys, at most %d",
				(long long)m->klen, MAX_GRID_Y * LEAST_ROWS);
	if (!m->k && m->head_dim_v && m->head_dim_v != head_dim)
		return te__fail(-EINVAL, "attention: packed values have %d channels, and queries "
				"%d", m->head_dim_v, head_dim);
	return 0;
}

static int check_fwd(const struct te_k_attn_fwd *a)
{
	const struct te_k_attn_more *m = &a->more;
	const int32_t dv = m->head_dim_v ? m->head_dim_v : a->head_dim;
	int r = check(a->dtype, a->batch, a->seqlen, a->nheads, a->nkv, a->head_dim,
		      most_of(a->dtype), a->scale,
		      m->k ? 0 : (uintptr_t)a->qkv | (uintptr_t)a->out);

	if (!r)
		r = check_more(m, a->dtype, a->head_dim);
	if (r || !m->k)
		return r;
	r = check_operand("q", a->dtype, a->head_dim, &m->qs, a->qkv, NULL);
	r = r ? r : check_operand("k", a->dtype, a->head_dim, &m->ks, m->k, NULL);
	r = r ? r : check_operand("v", a->dtype, dv, &m->vs, m->v, NULL);
	return r ? r : check_operand("out", a->dtype, dv, &m->os, a->out, NULL);
}

static int check_bwd(const struct te_k_attn_bwd *a)
{
	const struct te_k_attn_more *m = &a->more;
	const int32_t dv = m->head_dim_v ? m->head_dim_v : a->head_dim;
	int r = check(a->dtype, a->batch, a->seqlen, a->nheads, a->nkv, a->head_dim,
		      most_of(a->dtype), a->scale,
		      m->k ? 0 : (uintptr_t)a->qkv | (uintptr_t)a->out | (uintptr_t)a->dout |
				      (uintptr_t)a->dqkv);

	if (!r)
		r = check_more(m, a->dtype, a->head_dim);
	if (r || !m->k)
		return r;
	r = check_operand("q", a->dtype, a->head_dim, &m->qs, a->qkv, a->dqkv);
	r = r ? r : check_operand("k", a->dtype, a->head_dim, &m->ks, m->k, a->dk);
	r = r ? r : check_operand("v", a->dtype, dv, &m->vs, m->v, a->dv);
	r = r ? r : check_operand("out", a->dtype, dv, &m->os, a->out, NULL);
	return r ? r : check_operand("the gradient of out", a->dtype, dv, &m->os, a->dout, NULL);
}

/*
 * Do the kernels of attn/strip.cuh run? They do for all passes or for none. One of them is the
 * whole backward pass, launched as dkv: it computes delta itself and has blocks of dkv and of dq.
 */
static int is_strips(int32_t dtype, int64_t batch, int64_t seqlen, int32_t nheads, int32_t head_dim,
		     uint32_t threshold, bool more)
{
	return dtype == TE_DTYPE_BF16 && !threshold && !more && head_dim % 8 == 0 &&
	       head_dim <= ATTN_STRIP_MAX_D &&
	       batch * nheads <= MAX_STRIPS &&
	       batch * nheads * ceil_div(seqlen, ATTN_STRIP_ROWS) <= MAX_STRIPS;
}

static int is_bwd_strips(const struct te_k_attn_bwd *a)
{
	return is_strips(a->dtype, a->batch, a->seqlen, a->nheads, a->head_dim, a->threshold,
			 TE_K_ATTN_HAS_MORE(a));
}

int te__attn_fwd_is_small(const struct te_k_attn_fwd *a)
{
	return is_strips(a->dtype, a->batch, a->seqlen, a->nheads, a->head_dim, a->threshold,
			 TE_K_ATTN_HAS_MORE(a));
}

/* nx: heads whose rows are distributed over blocks */
static void strips(int bwd, int64_t batch, int64_t seqlen, int32_t nx, int32_t head_dim,
		   struct te__geometry *ret)
{
	enum { ROWS = ATTN_STRIP_ROWS, COLS = ATTN_COLS, LDS = COLS + ATTN_PAD };
	/* rows of D elements: of the block's, and two stages of two operands of COLS columns */
	static const unsigned rows[] = { ROWS + 4 * COLS, 2 * ROWS + 4 * COLS };
	/* exchanged bytes: FP32 P and maxima; BF16 P and dS, delta and two stages of lse */
	static const unsigned more[] = {
		ROWS * LDS * 4 + ROWS * ATTN_STRIP_WARPS * 4,
		2 * ROWS * LDS * 2 + 3 * COLS * 4,
	};
	int i = 0;

	while (bf16[i].head_dim < head_dim)
		i++;
	ret->func = bwd ? bf16[i].bwd_strip : bf16[i].fwd_strip;
	ret->block[0] = 32 * ATTN_STRIP_WARPS;
	ret->grid[0] = seqlen && batch ? (unsigned)nx : 0;
	ret->grid[1] = (unsigned)ceil_div(seqlen, ATTN_STRIP_ROWS);
	ret->grid[2] = (unsigned)batch;
	ret->smem = rows[bwd] * (unsigned)(bf16[i].head_dim + ATTN_PAD) * 2 + more[bwd];
}

/* the warps of a block of bf16 kernels that are not _small_m */
static int warps_of(int pass, int arch, int d, bool drop, bool more)
{
	if (pass == FWD)
		return more ? ATTN_MORE_WARPS : drop ? ATTN_FWD_DROP_WARPS : ATTN_FWD_WARPS;
	return more ? ATTN_MORE_BWD_WARPS(arch, d) : ATTN_BWD_WARPS(arch, d);
}

/* The following set threads and shared memory of a block, and return its rows. */

/* wide.cu */
static int wide(int pass, int arch, bool more, struct te__geometry *ret)
{
	const int stages = ATTN_WIDE_STAGES(arch), cols = ATTN_WIDE_BWD_COLS(arch);
	const int rows = pass == FWD ? ATTN_WIDE_ROWS(arch) : ATTN_WIDE_BWD_ROWS(arch);
	const int nbytes = (ATTN_WIDE_D + ATTN_TILE_PAD(arch, ATTN_WIDE_D)) * 2;
	const int part = rows * (cols + ATTN_PAD) * 2; /* dS or P */
	int n;

	if (pass == FWD)
		n = (rows + 2 * stages * ATTN_COLS) * nbytes;
	else
		n = (2 * rows + 2 * stages * cols) * nbytes + part;
	if (pass == DKV)
		n += part + (more ? 5 : 2) * stages * cols * 4;
	ret->block[0] = 32 * (pass == FWD ? ATTN_WIDE_WARPS(arch) : ATTN_WIDE_BWD_WARPS(arch));
	ret->smem = (unsigned)n;
	return rows;
}

/* attn.cu and more.cu; d: padded head_dim */
static int narrow(int pass, int arch, int d, bool drop, bool more, bool small,
		  struct te__geometry *ret)
{
	const int rows = small	     ? ATTN_SMALL_M_ROWS :
			 pass == FWD ? ATTN_ROWS :
				       ATTN_BWD_ROWS(arch, d);

	ret->block[0] = 32u * (unsigned)(small ? ATTN_SMALL_M_WARPS :
					 warps_of(pass, arch, d, drop, more));
	/* Q, or two row operands; two stages of two column operands; dkv: lse, delta and, with
	 * more, keys of queries */
	ret->smem = (unsigned)(((pass == FWD ? 1 : 2) * rows + 4 * ATTN_COLS) *
				       (d + ATTN_TILE_PAD(arch, d)) * 2 +
			       (pass == DKV ? (more ? 5 : 2) * 2 * ATTN_COLS * 4 : 0));
	return rows;
}

static int32_t widest(const struct te_k_attn_more *m, int32_t head_dim)
{
	return m->head_dim_v > head_dim ? m->head_dim_v : head_dim;
}

/* nx: the same, of the whole batch; seqlen: keys in dkv; head_dim: the largest */
static void tiles(int pass, int32_t dtype, int64_t nx, int64_t seqlen, int32_t head_dim,
		  uint32_t threshold, bool more, struct te__geometry *ret)
{
	const int arch = ret->target.arch;
	int i = 0, d, rows, pad;
	bool small;

	if (dtype == TE_DTYPE_BF16) {
		while (bf16[i].head_dim < head_dim)
			i++;
		d = bf16[i].head_dim;
		small = !threshold && !more && nx * ceil_div(seqlen, ATTN_ROWS) <= SMALL_M_BLOCKS;
		rows = d == ATTN_WIDE_D ?
			       wide(pass, arch, more || threshold, ret) :
			       narrow(pass, arch, d, threshold, more, small, ret);
		ret->func = more      ? bf16[i].func_more[pass] :
			    threshold ? bf16[i].func_drop[pass] :
			    small     ? bf16[i].func_small_m[pass] :
					bf16[i].func[pass];
	} else {
		while (fp32[i].head_dim < head_dim)
			i++;
		d = fp32[i].head_dim;
		ret->func = more ? fp32[i].func_more[pass] : fp32[i].func[pass];
		ret->block[0] = ATTN_FP32_THREADS;
		rows = ATTN_FP32_TILE;
		pad = ATTN_FP32_PAD(arch);
		/* Q, K and V, or two row and two column operands; P, or P and dS */
		ret->smem = (unsigned)(((pass == FWD ? 3 : 4) * (d + pad) +
					(pass == FWD ? 1 : 2) * (ATTN_FP32_TILE + pad)) *
				       ATTN_FP32_TILE * 4);
	}
	ret->grid[0] = seqlen ? (unsigned)nx : 0;
	ret->grid[1] = (unsigned)ceil_div(seqlen, rows);
}

int te__geo_attn_fwd(const void *args, struct te__geometry *ret)
{
	const struct te_k_attn_fwd *a = args;
	const int r = check_fwd(a);

	if (r)
		return r;
	if ((a->q.row || a->q.col || a->q.amax) &&
	    (a->dtype != TE_DTYPE_BF16 || is_block_scaled(&a->q)))
		return te__fail(-EOPNOTSUPP, "attention on cuda quantizes BF16 only, and writes no "
					     "block-scaled copies");
	if (is_strips(a->dtype, a->batch, a->seqlen, a->nheads, a->head_dim, a->threshold,
		      TE_K_ATTN_HAS_MORE(a)))
		strips(0, a->batch, a->seqlen, a->nheads, a->head_dim, ret);
	else
		tiles(FWD, a->dtype, a->batch * a->nheads, a->seqlen,
		      widest(&a->more, a->head_dim), a->threshold, TE_K_ATTN_HAS_MORE(a), ret);
	return 0;
}

void te__geo_attn_sm90(const struct te_attn_sm90_plan *p, struct te__geometry *ret)
{
	static const char *const func[2][3] = {
		{ "te_k_attn_fwd_sm90_d128", "te_k_attn_fwd_sm90_d128_window",
		  "te_k_attn_fwd_sm90_d128_documents" },
		{ "te_k_attn_fwd_sm90_d64", "te_k_attn_fwd_sm90_d64_window",
		  "te_k_attn_fwd_sm90_d64_documents" },
	};
	const int d64 = p->head_dim == 64;

	*ret = (struct te__geometry){
		.func = func[d64][ATTN_SM90_MASK(p->args)],
		.grid = { (unsigned)p->nblocks, 1, 1 },
		.block = { ATTN_SM90_THREADS(p->head_dim), 1, 1 },
		.smem = ATTN_SM90_SMEM(p->head_dim),
	};
}

void te__geo_attn_bwd_sm90(const struct te_attn_bwd_sm90_plan *p, struct te__geometry *ret)
{
	static const char *const func[2][3] = {
		{ "te_k_attn_bwd_sm90_d128", "te_k_attn_bwd_sm90_d128_window",
		  "te_k_attn_bwd_sm90_d128_documents" },
		{ "te_k_attn_bwd_sm90_d64", "te_k_attn_bwd_sm90_d64_window",
		  "te_k_attn_bwd_sm90_d64_documents" },
	};
	const int d64 = p->head_dim == 64;

	*ret = (struct te__geometry){
		.func = func[d64][ATTN_SM90_MASK(p->args)],
		.grid = { (unsigned)p->nblocks, 1, 1 },
		.block = { ATTN_SM90_BWD_THREADS(p->head_dim), 1, 1 },
		.smem = ATTN_SM90_BWD_SMEM(p->head_dim),
	};
}

int te__geo_attn_bwd_pre(const void *args, struct te__geometry *ret)
{
	const struct te_k_attn_bwd *a = args;
	int r = check_bwd(a);
	int per = a->dtype == TE_DTYPE_BF16 ? 8 : 4, lanes = 1;
	int64_t nblocks;

	if (r)
		return r;
	if (is_bwd_strips(a)) {
		ret->grid[0] = 0;
		return 0;
	}
	while (lanes * per < (a->more.head_dim_v ? a->more.head_dim_v : a->head_dim))
		lanes *= 2;
	nblocks = ceil_div(a->batch * a->seqlen * a->nheads * lanes, ATTN_PRE_THREADS);
	if (nblocks > INT32_MAX)
		return te__fail(-EINVAL, "attention on cuda: too large a shape");
	ret->func = a->dtype == TE_DTYPE_BF16 ? "te_k_attn_bwd_pre_bf16" :
						"te_k_attn_bwd_pre_fp32";
	ret->grid[0] = (unsigned)nblocks;
	ret->block[0] = ATTN_PRE_THREADS;
	return 0;
}

static int geo_bwd(int pass, const struct te_k_attn_bwd *a, struct te__geometry *ret)
{
	const int32_t nrowheads = pass == DKV ? a->nkv : a->nheads;
	int r = check_bwd(a);

	if (!r && a->softcap != 0.0f && (a->more.bias || a->more.slopes) &&
	    a->dtype == TE_DTYPE_BF16)
		r = te__fail(-EOPNOTSUPP, "backward of attention on cuda in BF16 takes a bias or "
				"slopes, or a softcap, not both");
	if (r)
		return r;
	if (!is_bwd_strips(a))
		tiles(pass, a->dtype, a->batch * nrowheads,
		      pass == DKV && a->more.klen ? a->more.klen : a->seqlen,
		      widest(&a->more, a->head_dim), a->threshold, TE_K_ATTN_HAS_MORE(a), ret);
	else if (pass == DKV)
		strips(1, a->batch, a->seqlen, a->nkv + a->nheads, a->head_dim, ret);
	else
		ret->grid[0] = 0;
	return 0;
}

int te__geo_attn_bwd_dkv(const void *args, struct te__geometry *ret)
{
	return geo_bwd(DKV, args, ret);
}

int te__geo_attn_bwd_dq(const void *args, struct te__geometry *ret)
{
	return geo_bwd(DQ, args, ret);
}

int te__geo_attn_bwd_bias(const void *args, struct te__geometry *ret)
{
	const struct te_k_attn_bwd *a = args;
	const int64_t klen = a->more.klen ? a->more.klen : a->seqlen;
	const int64_t nx = (a->more.bias_head ? a->nheads : 1) * ceil_div(klen, ATTN_FP32_TILE);
	const int r = check_bwd(a);

	if (r)
		return r;
	ret->grid[1] = (unsigned)ceil_div(a->seqlen, ATTN_FP32_TILE);
	return te__geo_launch(ret, a->dtype == TE_DTYPE_BF16 ? "te_k_attn_bwd_bias_bf16" :
							       "te_k_attn_bwd_bias_fp32",
			      a->seqlen ? nx : 0, ATTN_FP32_THREADS);
}

int te__geo_attn_bwd_sinks(const void *args, struct te__geometry *ret)
{
	const struct te_k_attn_sinks *a = args;

	return te__geo_launch(ret, a->dtype == TE_DTYPE_BF16 ? "te_k_attn_bwd_sinks_bf16" :
							       "te_k_attn_bwd_sinks_fp32",
			      a->nheads, ATTN_SINKS_THREADS);
}

/* funcs: of FP32 and BF16, with caches of FP32, BF16 and E4M3 */
static int geo_cached(const struct te_k_attn_cached *a, const char *const funcs[2][3],
		      int64_t nblocks, struct te__geometry *ret)
{
	const int cache = a->cache_dtype == TE_DTYPE_E4M3 ? 2 : a->cache_dtype == TE_DTYPE_BF16;
	int r = check(a->dtype, 1, a->rows, a->nheads, a->nkv, a->head_dim,
		      TE_K_ATTN_CUDA_HEAD_DIM, a->scale, 0);

	if (!r && !cache && a->cache_dtype != TE_DTYPE_FP32)
		r = te__fail(-EINVAL, "attention on cuda takes caches of FP32, BF16 and E4M3, "
			     "not %s", te_dtype_name((enum te_dtype)a->cache_dtype));
	if (!r && cache == 2 && (!a->k_scale || !a->v_scale))
		r = te__fail(-EINVAL, "attention to a cache of E4M3: there are no scales");
	return r ? r : te__geo_launch(ret, funcs[a->dtype == TE_DTYPE_BF16][cache], nblocks,
				      ATTN_CACHED_THREADS);
}

int te__geo_attn_append(const void *args, struct te__geometry *ret)
{
	static const char *const funcs[2][3] = {
		{ "te_k_attn_append_fp32_fp32", "te_k_attn_append_fp32_bf16",
		  "te_k_attn_append_fp32_e4m3" },
		{ "te_k_attn_append_bf16_fp32", "te_k_attn_append_bf16_bf16",
		  "te_k_attn_append_bf16_e4m3" },
	};
	const struct te_k_attn_cached *a = args;

	return geo_cached(a, funcs, a->rows, ret);
}

int te__geo_attn_cached(const void *args, struct te__geometry *ret)
{
	static const char *const funcs[2][3] = {
		{ "te_k_attn_cached_fp32_fp32", "te_k_attn_cached_fp32_bf16",
		  "te_k_attn_cached_fp32_e4m3" },
		{ "te_k_attn_cached_bf16_fp32", "te_k_attn_cached_bf16_bf16",
		  "te_k_attn_cached_bf16_e4m3" },
	};
	const struct te_k_attn_cached *a = args;
	const int64_t size = a->nkv > 0 ? a->nheads / a->nkv : 1;
	const int64_t nsplits = a->nsplits > 1 ? a->nsplits : 1;

	if (nsplits > TE_K_ATTN_CACHED_SPLITS || (nsplits > 1 && (!a->parts || !a->ready)))
		return te__fail(-EINVAL, "attention to a cache: %d parts, expected 1 to %d and "
				"memory for them", a->nsplits, TE_K_ATTN_CACHED_SPLITS);
	return geo_cached(a, funcs,
			  a->rows * a->nkv * ceil_div(size, TE_K_ATTN_CACHED_HEADS) * nsplits, ret);
}

/* a kernel of step.cu: its largest head_dim, type of the cache and blocks of a cluster */
#define STEP(d, cache)                                                                        \
	{ "te_k_attn_step_" #d "_" #cache "_1", "te_k_attn_step_" #d "_" #cache "_2",           \
	  "te_k_attn_step_" #d "_" #cache "_4", "te_k_attn_step_" #d "_" #cache "_8" }

int te__geo_attn_step(const void *args, struct te__geometry *ret)
{
	const struct te_k_attn_step *step = args;
	const struct te_k_attn_cached *a = &step->c;
	static const char *const funcs[2][2][4] = {
		{ STEP(64, bf16), STEP(64, e4m3) },
		{ STEP(128, bf16), STEP(128, e4m3) },
	};
	const int wide = a->head_dim > 64, d = wide ? 128 : 64, codes = a->k_scale && a->v_scale;
	int which = 0, r = check(a->dtype, 1, a->rows, a->nheads, a->nkv, a->head_dim,
				 TE_K_ATTN_CUDA_HEAD_DIM, a->scale, 0);

	if (r)
		return r;
	if (!(ret->target.features & TE_FEATURE_CLUSTERS) || a->head_dim % 16 ||
	    a->head_dim > TE_K_ATTN_STEP_CUDA_HEAD_DIM || a->dtype != TE_DTYPE_BF16 ||
	    a->cache_dtype != (codes ? TE_DTYPE_E4M3 : TE_DTYPE_BF16) || a->slopes || a->sinks)
		return te__fail(-TE_EKERNEL, "attention to a cache with rope needs clusters, BF16, "
				"a cache of BF16 or E4M3, no slopes and sinks, and a head_dim that "
				"is a multiple of 16 and at most %d", TE_K_ATTN_STEP_CUDA_HEAD_DIM);
	while (which < 3 && 1 << which < a->nsplits)
		which++;
	if (1 << which != a->nsplits)
		return te__fail(-EINVAL, "attention to a cache with rope: %d parts, expected 1, 2, "
				"4 or 8", a->nsplits);
	ret->smem = ATTN_STEP_SMEM(d, a->nsplits);
	return te__geo_launch(ret, funcs[wide][codes][which],
			      a->nsplits * a->rows * a->nkv *
				      ceil_div(a->nheads / a->nkv, ATTN_STEP_HEADS),
			      32 * ATTN_STEP_WARPS(d, a->nsplits));
}
