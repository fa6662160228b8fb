/*
 * attn.cu - causal attention with grouped queries, forward and backward. sm_80 and up.
 *
 * qkv T [batch, seqlen, (nheads + 2 nkv) head_dim]; head_dim is 1 to 128 and is padded with zeros
 * in shared memory to the D of the variant (BF16: 32, 64, 96, 128; FP32: 64, 128). Rows whose size
 * is not a multiple of 16 bytes are loaded by element. The score matrix is never stored in global
 * memory. The variants are in attn/tile.cuh (BF16), attn/strip.cuh (BF16, short and few sequences)
 * and attn/fp32.cuh, and those for windows, softcaps, documents and full attention in attn/more.cu;
 * this file has the kernel that computes delta:
 *
 *   pre  grid ceil(batch seqlen nheads lanes / 256), 256 threads, no shared memory. lanes is
 *        the number of 16-byte loads of a row, rounded up to a power of two.
 */
#include "kernels/attn/fp32.cuh"
#include "kernels/attn/starts.cuh"
#include "kernels/attn/strip.cuh"
#include "kernels/attn/tile.cuh"

/* ---- delta ---- */

/* rows of hd elements by batch, seqlen and head; lanes of a row load 16 bytes each */
template <class E> DEV void bwd_pre(const struct te_k_attn_bwd &a)
{
	constexpr int PER = 16 / sizeof(E);
	const int hd = a.more.head_dim_v ? a.more.head_dim_v : a.head_dim;
	int lanes = 1;

	while (lanes * PER < hd)
		lanes *= 2;
	const int64_t at = (int64_t)blockIdx.x * ATTN_PRE_THREADS + threadIdx.x, row = at / lanes;
	const int c0 = (threadIdx.x % lanes) * PER;
	const bool ok = row < a.batch * a.seqlen * a.nheads;
	const E *x = (const E *)a.out, *y = (const E *)a.dout;
	float sum = 0.0f;

	if (a.more.k) {
		const int64_t bt = row / a.nheads, b = bt / a.seqlen;
		const int64_t from = b * a.more.os.batch + (bt - b * a.seqlen) * a.more.os.token +
				     (row - bt * a.nheads) * a.more.os.head;

		x += from;
		y += from;
	} else {
		x += row * hd;
		y += row * hd;
	}

	if (ok && c0 < hd && hd % PER == 0) {
		sum = dot16<E>(*(const uint4 *)(x + c0), *(const uint4 *)(y + c0));
	} else if (ok) {
		for (int c = c0; c < min(c0 + PER, hd); c++)
			sum = fmaf(to_float(x[c]), to_float(y[c]), sum);
	}
	sum = sum_lanes(sum, lanes);
	if (a.sums && at < te_k_attn_starts_at(&a))
		a.sums[at] = 0;
	if (a.sums && a.first) {
		const int64_t nwarps = (int64_t)gridDim.x * ATTN_PRE_THREADS / 32;

		for (int64_t b = at / 32; b < a.batch; b += nwarps)
			starts(a, b);
	}
	if (ok && c0 == 0) {
		const int64_t bt = row / a.nheads;

		a.delta[(bt / a.seqlen * a.nheads + row % a.nheads) * a.seqlen + bt % a.seqlen] =
			sum;
	}
}

/* ---- the functions that launch.c names ---- */

extern "C" __global__ void __launch_bounds__(ATTN_PRE_THREADS)
	te_k_attn_bwd_pre_bf16(struct te_k_attn_bwd a)
{
	te_begin();
	bwd_pre<uint16_t>(a);
}

extern "C" __global__ void __launch_bounds__(ATTN_PRE_THREADS)
	te_k_attn_bwd_pre_fp32(struct te_k_attn_bwd a)
{
	te_begin();
	bwd_pre<float>(a);
}

#define BWD_WARPS(D) ATTN_BWD_WARPS(TE_ARCH, D)
#define BWD_ROWS(D) ATTN_BWD_ROWS(TE_ARCH, D)
#define BWD_THREADS(D) (32 * BWD_WARPS(D))
/* C: columns that bwd_bf16() has in registers at a time; B: blocks per multiprocessor */
#define BF16(D, C, B)                                                                             \
	KERNEL(te_k_attn_fwd_bf16_d##D, 32 * ATTN_FWD_WARPS, 2, te_k_attn_fwd,                    \
	       FWD(D, ATTN_FWD_WARPS, ATTN_ROWS, false))                                          \
	KERNEL(te_k_attn_fwd_bf16_d##D##_drop, 32 * ATTN_FWD_DROP_WARPS, 1, te_k_attn_fwd,        \
	       FWD(D, ATTN_FWD_DROP_WARPS, ATTN_ROWS, true))                                      \
	KERNEL(te_k_attn_fwd_bf16_d##D##_small_m, 32 * ATTN_SMALL_M_WARPS, 2, te_k_attn_fwd,      \
	       FWD(D, ATTN_SMALL_M_WARPS, ATTN_SMALL_M_ROWS, false))                              \
	KERNEL(te_k_attn_bwd_dkv_bf16_d##D, BWD_THREADS(D), B, te_k_attn_bwd,                     \
	       BWD(true, D, BWD_WARPS(D), BWD_ROWS(D), C, false))                                 \
	KERNEL(te_k_attn_bwd_dkv_bf16_d##D##_drop, BWD_THREADS(D), B, te_k_attn_bwd,              \
	       BWD(true, D, BWD_WARPS(D), BWD_ROWS(D), C, true))                                  \
	KERNEL(te_k_attn_bwd_dkv_bf16_d##D##_small_m, 32 * ATTN_SMALL_M_WARPS, B, te_k_attn_bwd,  \
	       BWD(true, D, ATTN_SMALL_M_WARPS, ATTN_SMALL_M_ROWS, C, false))                     \
	KERNEL(te_k_attn_bwd_dq_bf16_d##D, BWD_THREADS(D), B, te_k_attn_bwd,                      \
	       BWD(false, D, BWD_WARPS(D), BWD_ROWS(D), C, false))                                \
	KERNEL(te_k_attn_bwd_dq_bf16_d##D##_drop, BWD_THREADS(D), B, te_k_attn_bwd,               \
	       BWD(false, D, BWD_WARPS(D), BWD_ROWS(D), C, true))                                 \
	KERNEL(te_k_attn_bwd_dq_bf16_d##D##_small_m, 32 * ATTN_SMALL_M_WARPS, B, te_k_attn_bwd,   \
	       BWD(false, D, ATTN_SMALL_M_WARPS, ATTN_SMALL_M_ROWS, C, false))

BF16(32, 32, 2)
BF16(64, 32, 2)
BF16(96, 64, 1)
BF16(128, 64, 1)

/* run: from fwd_strip() or bwd_strip(), which compute addresses before te_begin() waits */
template <class Body> DEV void strip(Body run)
{
	te_begin();
	run();
}

#define STRIPS(D)                                                               \
	extern "C" __global__ void __launch_bounds__(32 * ATTN_STRIP_WARPS, 2)  \
		te_k_attn_fwd_bf16_d##D##_strip(const struct te_k_attn_fwd a)   \
	{                                                                       \
		strip(fwd_strip<D>(a));                                         \
	}                                                                       \
	extern "C" __global__ void __launch_bounds__(32 * ATTN_STRIP_WARPS, 2)  \
		te_k_attn_bwd_bf16_d##D##_strip(const struct te_k_attn_bwd a)   \
	{                                                                       \
		/* blocks of dkv, then blocks of dq */                           \
		if (blockIdx.x < a.nkv)                                         \
			strip(bwd_strip<true, D>(a, blockIdx.x));               \
		else                                                            \
			strip(bwd_strip<false, D>(a, blockIdx.x - a.nkv));      \
	}

STRIPS(32)
STRIPS(64)
STRIPS(96)
STRIPS(128)

#define FWD32(D) fwd_fp32<D, false>
#define BWD32(DKV, D) bwd_fp32<DKV, D, false>
#define FP32(D)                                                                                   \
	KERNEL(te_k_attn_fwd_fp32_d##D, ATTN_FP32_THREADS, 1, te_k_attn_fwd, FWD32(D))            \
	KERNEL(te_k_attn_bwd_dkv_fp32_d##D, ATTN_FP32_THREADS, 1, te_k_attn_bwd, BWD32(true, D))  \
	KERNEL(te_k_attn_bwd_dq_fp32_d##D, ATTN_FP32_THREADS, 1, te_k_attn_bwd, BWD32(false, D))

FP32(64)
FP32(128)
