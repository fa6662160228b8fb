/*
 * more.cu - attention that is more than plain causal attention: in a window, with a softcap, of
 * documents, or full.
 *
 * Bodies, shapes and grids are as in attn/tile.cuh (BF16) and attn/fp32.cuh, with tiles outside of
 * all windows and documents of a block skipped, and with dropout as a branch of the whole launch.
 * BF16 blocks have 8 warps of 16 rows; dkv has 512 bytes more of shared memory.
 */
#include "kernels/attn/fp32.cuh"
#include "kernels/attn/tile.cuh"

#define BWD_WARPS(D) ATTN_MORE_BWD_WARPS(TE_ARCH, D)
#define BWD_ROWS(D) ATTN_BWD_ROWS(TE_ARCH, D)
#define BF16(D, C)                                                                        \
	KERNEL(te_k_attn_fwd_bf16_d##D##_more, 32 * ATTN_MORE_WARPS, 1, te_k_attn_fwd,    \
	       FWD(D, ATTN_MORE_WARPS, ATTN_ROWS, true, true))                            \
	KERNEL(te_k_attn_bwd_dkv_bf16_d##D##_more, 32 * BWD_WARPS(D), 1, te_k_attn_bwd,   \
	       BWD(true, D, BWD_WARPS(D), BWD_ROWS(D), C, true, true))                    \
	KERNEL(te_k_attn_bwd_dq_bf16_d##D##_more, 32 * BWD_WARPS(D), 1, te_k_attn_bwd,    \
	       BWD(false, D, BWD_WARPS(D), BWD_ROWS(D), C, true, true))

BF16(32, 32)
BF16(64, 32)
BF16(96, 64)
BF16(128, 64)

#define FWD32(D) fwd_fp32<D, true>
#define BWD32(DKV, D) bwd_fp32<DKV, D, true>
#define FP32(D)                                                                            \
	KERNEL(te_k_attn_fwd_fp32_d##D##_more, ATTN_FP32_THREADS, 1, te_k_attn_fwd,        \
	       FWD32(D))                                                                   \
	KERNEL(te_k_attn_bwd_dkv_fp32_d##D##_more, ATTN_FP32_THREADS, 1, te_k_attn_bwd,    \
	       BWD32(true, D))                                                             \
	KERNEL(te_k_attn_bwd_dq_fp32_d##D##_more, ATTN_FP32_THREADS, 1, te_k_attn_bwd,     \
	       BWD32(false, D))

FP32(64)
FP32(128)
