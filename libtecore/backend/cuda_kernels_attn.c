/* cuda_kernels_attn.c - device function and launch geometry of attention. */
#include "config.h"

#include <errno.h>
#include <te/dtype.h>

#define TE_LOG_CATEGORY "core/cuda"
#include "libtecore/backend/cuda_kernels.h"
#include "libtecore/internal.h"

#define FEW 66		     /* blocks of 128 rows: half of a Hopper GPU's processors */
#define STRIPS (4 * FEW)     /* of 16 rows; beyond, the passes take as long by _few */
#define MAX_STRIDE (1 << 24) /* elements of a row: offsets within a tile are 32-bit */

enum { FWD, DKV, DQ, PASSES };

/* kernels/te_attn.cu, by the smallest head_dim that fits */
static const struct {
	int head_dim;
	unsigned nthreads[PASSES], nthreads_drop[PASSES];
	const char *func[PASSES], *func_drop[PASSES], *func_few[PASSES];
	const char *fwd_strip, *bwd_strip;
} bf16[] = {
#define FUNCS(D, variant)                                                                  \
	{ "te_k_attn_fwd_bf16_d" #D variant, "te_k_attn_bwd_dkv_bf16_d" #D variant,        \
	  "te_k_attn_bwd_dq_bf16_d" #D variant }
#define ROW(D, bwd)                                                                        \
	{ D, { 128, bwd, bwd }, { 256, bwd, bwd }, FUNCS(D, ""), FUNCS(D, "_drop"),        \
	  FUNCS(D, "_few"), "te_k_attn_fwd_bf16_d" #D "_strip",                            \
	  "te_k_attn_bwd_bf16_d" #D "_strip" },
	ROW(32, 128)
	ROW(64, 128)
	ROW(96, 256)
	ROW(128, 256)
#undef ROW
#undef FUNCS
}, fp32[] = {
#define ROW(D)                                                                             \
	{ D, { 256, 256, 256 }, { 0 },                                                     \
	  { "te_k_attn_fwd_fp32_d" #D, "te_k_attn_bwd_dkv_fp32_d" #D,                      \
	    "te_k_attn_bwd_dq_fp32_d" #D },                                                \
	  { NULL }, { NULL }, NULL, NULL },
	ROW(64)
	ROW(128)
#undef ROW
};

static int check(int32_t dtype, int64_t batch, int64_t seqlen, int32_t nheads, int32_t nkv,
		 int32_t head_dim, float scale, uintptr_t pointers)
{
	if (dtype != TE_DTYPE_FP32 && dtype != TE_DTYPE_BF16)
		return te__fail(-EINVAL, "attention on cuda takes FP32 and BF16, not %s",
				te_dtype_name((enum te_dtype)dtype));
	if (head_dim < 1 || head_dim > TE_K_ATTN_MAX_HEAD_DIM)
		return te__fail(-EINVAL, "attention takes a head_dim of 1 to %d, not %d",
				TE_K_ATTN_MAX_HEAD_DIM, head_dim);
	if (nkv < 1 || nheads < nkv || nheads % nkv)
		return te__fail(-EINVAL,
				"attention: %d query heads are no multiple of %d key heads",
				nheads, nkv);
	if (((int64_t)nheads + 2 * (int64_t)nkv) * head_dim > MAX_STRIDE ||
	    batch * nheads > INT32_MAX || seqlen > 65535 * 64)
		return te__fail(-EINVAL, "attention on cuda: too large a shape");
	if (!(scale > 0.0f))
		return te__fail(-EINVAL, "attention takes a scale above 0");
	if (pointers % 16 && head_dim * te_dtype_nbytes((enum te_dtype)dtype) % 16 == 0)
		return te__fail(-EINVAL,
				"attention on cuda, head_dim %d: qkv, out or a gradient of theirs "
				"is not aligned to 16 bytes", head_dim);
	return 0;
}

static int check_bwd(const struct te_k_attn_bwd *a)
{
	return check(a->dtype, a->batch, a->seqlen, a->nheads, a->nkv, a->head_dim, a->scale,
		     (uintptr_t)a->qkv | (uintptr_t)a->out | (uintptr_t)a->dout |
			     (uintptr_t)a->dqkv);
}

/*
 * Whether the kernels that own 16 rows run: of all passes or of none. There is one for the whole
 * backward pass, launched as dkv: it makes delta itself, and has blocks of dkv and of dq.
 */
static int is_strips(int32_t dtype, int64_t batch, int64_t seqlen, int32_t nheads, int32_t head_dim,
		     uint32_t threshold)
{
	return dtype == TE_DTYPE_BF16 && !threshold && head_dim % 8 == 0 &&
	       batch * nheads <= STRIPS && batch * nheads * ((seqlen + 15) / 16) <= STRIPS;
}

static int is_bwd_strips(const struct te_k_attn_bwd *a)
{
	return is_strips(a->dtype, a->batch, a->seqlen, a->nheads, a->head_dim, a->threshold);
}

/* nx: heads that own rows */
static void strips(int bwd, int64_t batch, int64_t seqlen, int32_t nx, int32_t head_dim,
		   struct te__cuda_kernel *ret)
{
	/* rows of D elements, and bytes of what is exchanged */
	static const unsigned rows[] = { 16 + 256, 32 + 256 };
	static const unsigned more[] = { 16 * 72 * 4 + 256, 2 * 16 * 72 * 2 + 3 * 256 };
	int i = 0;

	while (bf16[i].head_dim < head_dim)
		i++;
	ret->func = bwd ? bf16[i].bwd_strip : bf16[i].fwd_strip;
	ret->block[0] = 128;
	ret->grid[0] = seqlen && batch ? (unsigned)nx : 0;
	ret->grid[1] = (unsigned)((seqlen + 15) / 16);
	ret->grid[2] = (unsigned)batch;
	ret->smem = rows[bwd] * (unsigned)(bf16[i].head_dim + 8) * 2 + more[bwd];
}

/* nx: heads of the whole batch that own rows */
static void tiles(int pass, int32_t dtype, int64_t nx, int64_t seqlen, int32_t head_dim,
		  uint32_t threshold, struct te__cuda_kernel *ret)
{
	int i = 0;
	unsigned d, rows, bytes;

	if (dtype == TE_DTYPE_BF16) {
		while (bf16[i].head_dim < head_dim)
			i++;
		d = (unsigned)bf16[i].head_dim;
		rows = !threshold && nx * ((seqlen + 127) / 128) <= FEW ? 64 : 128;
		ret->func = threshold  ? bf16[i].func_drop[pass] :
			    rows == 64 ? bf16[i].func_few[pass] :
					 bf16[i].func[pass];
		ret->block[0] = threshold  ? bf16[i].nthreads_drop[pass] :
				rows == 64 ? 128 :
					     bf16[i].nthreads[pass];
		bytes = ((pass == FWD ? 1 : 2) * rows + 256) * (d + 8) * 2 +
			(pass == DKV ? 1024 : 0);
	} else {
		while (fp32[i].head_dim < head_dim)
			i++;
		d = (unsigned)fp32[i].head_dim;
		ret->func = fp32[i].func[pass];
		ret->block[0] = fp32[i].nthreads[pass];
		rows = 64;
		bytes = ((pass == FWD ? 3 : 4) * (d + 4) + (pass == FWD ? 1 : 2) * 68) * 64 * 4;
	}
	ret->grid[0] = seqlen ? (unsigned)nx : 0;
	ret->grid[1] = (unsigned)((seqlen + rows - 1) / rows);
	ret->smem = bytes;
}

int te__cuda_geo_attn_fwd(const void *args, struct te__cuda_kernel *ret)
{
	const struct te_k_attn_fwd *a = args;
	int r = check(a->dtype, a->batch, a->seqlen, a->nheads, a->nkv, a->head_dim, a->scale,
		      (uintptr_t)a->qkv | (uintptr_t)a->out);

	if (r)
		return r;
	if (is_strips(a->dtype, a->batch, a->seqlen, a->nheads, a->head_dim, a->threshold))
		strips(0, a->batch, a->seqlen, a->nheads, a->head_dim, ret);
	else
		tiles(FWD, a->dtype, a->batch * a->nheads, a->seqlen, a->head_dim, a->threshold,
		      ret);
	return 0;
}

int te__cuda_geo_attn_bwd_pre(const void *args, struct te__cuda_kernel *ret)
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
	while (lanes * per < a->head_dim)
		lanes *= 2;
	nblocks = (a->batch * a->seqlen * a->nheads * lanes + 255) / 256;
	if (nblocks > INT32_MAX)
		return te__fail(-EINVAL, "attention on cuda: too large a shape");
	ret->func = a->dtype == TE_DTYPE_BF16 ? "te_k_attn_bwd_pre_bf16" :
						"te_k_attn_bwd_pre_fp32";
	ret->grid[0] = (unsigned)nblocks;
	ret->block[0] = 256;
	return 0;
}

static int geo_bwd(int pass, const struct te_k_attn_bwd *a, struct te__cuda_kernel *ret)
{
	const int32_t nrowheads = pass == DKV ? a->nkv : a->nheads;
	int r = check_bwd(a);

	if (r)
		return r;
	if (!is_bwd_strips(a))
		tiles(pass, a->dtype, a->batch * nrowheads, a->seqlen, a->head_dim, a->threshold,
		      ret);
	else if (pass == DKV)
		strips(1, a->batch, a->seqlen, a->nkv + a->nheads, a->head_dim, ret);
	else
		ret->grid[0] = 0;
	return 0;
}

int te__cuda_geo_attn_bwd_dkv(const void *args, struct te__cuda_kernel *ret)
{
	return geo_bwd(DKV, args, ret);
}

int te__cuda_geo_attn_bwd_dq(const void *args, struct te__cuda_kernel *ret)
{
	return geo_bwd(DQ, args, ret);
}
