/*
 * wide.cu - attention in BF16 with a head_dim of 129 to 256, which is padded to 256. sm_80 and up.
 *
 * The bodies are in attn/tile.cuh. A warp cannot have 256 columns of dk and of dv in registers, so
 * that warps share rows in backward: four, of 32 rows, which is 5 % faster than two of 16. Dropout
 * is in the _more variants only.
 *
 *   fwd  grid (batch nheads, ceil(T / 128)), 256 threads, (128 + 128 stages) rows of smem
 *   dkv  grid (batch nkv, ceil(T / 64)), 256 threads, (128 + 128 stages) rows, 18 KiB and 512
 *        bytes a stage, _more 768
 *   dq   grid (batch nheads, ceil(T / 64)), 256 threads, the same rows and 9 KiB
 *
 * 9.0 has two stages, others one. With 99 KiB (8.6 and 8.9), blocks of fwd have 64 rows, and those
 * of backward 32 rows, of 32 columns a tile, which two warps share.
 */
#include "kernels/attn/tile.cuh"

#define D ATTN_WIDE_D
#define WARPS ATTN_WIDE_WARPS(TE_ARCH)
#define BWD_WARPS ATTN_WIDE_BWD_WARPS(TE_ARCH)
#define COLS ATTN_WIDE_BWD_COLS(TE_ARCH)
#define STAGES ATTN_WIDE_STAGES(TE_ARCH)
#define SPLIT ATTN_WIDE_SPLIT(TE_ARCH)
#define WIDE_BWD(DKV, DROP, MORE)                                                          \
	bwd_bf16<DKV, D, BWD_WARPS, MT(SPLIT * ATTN_WIDE_BWD_ROWS(TE_ARCH), BWD_WARPS),    \
		 COLS / SPLIT, DROP, MORE, COLS, STAGES, SPLIT>
#define WIDE(variant, MORE)                                                                \
	KERNEL(te_k_attn_fwd_bf16_d256##variant, 32 * WARPS, 1, te_k_attn_fwd,             \
	       fwd_bf16<D, WARPS, 1, MORE, MORE, STAGES>)                                  \
	KERNEL(te_k_attn_bwd_dkv_bf16_d256##variant, 32 * BWD_WARPS, 1, te_k_attn_bwd,     \
	       WIDE_BWD(true, MORE, MORE))                                                 \
	KERNEL(te_k_attn_bwd_dq_bf16_d256##variant, 32 * BWD_WARPS, 1, te_k_attn_bwd,      \
	       WIDE_BWD(false, MORE, MORE))

WIDE(, false)
WIDE(_more, true)
