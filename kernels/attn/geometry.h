/* geometry.h - launch constants of attn.cu and of launch.c. */
#ifndef TE_ATTN_GEOMETRY_H
#define TE_ATTN_GEOMETRY_H

#define ATTN_PRE_THREADS 256
#define ATTN_SINKS_THREADS 256

/* BF16, attn/tile.cuh and attn/strip.cuh */
#define ATTN_COLS 64 /* columns of scores that a block processes at a time */
#define ATTN_PAD 8   /* elements after each row in shared memory, against bank conflicts */

/*
 * Compute capability 8.6 and 8.9 have 99 KiB of shared memory a block: there, heads wider than 64
 * have fewer rows in backward, and heads of 97 to 128 no padding (tile_index() of dev.cuh). D is
 * the padded head_dim.
 */
#define ATTN_NARROW(arch, D) (((arch) == 86 || (arch) == 89) && (D) > 64)
#define ATTN_TILE_PAD(arch, D) (ATTN_NARROW(arch, D) && (D) == 128 ? 0 : ATTN_PAD)

/* attn/tile.cuh: rows of a block, warps of a block */
#define ATTN_ROWS 128
#define ATTN_FWD_WARPS 4
#define ATTN_FWD_DROP_WARPS 8
#define ATTN_BWD_ROWS(arch, D) (ATTN_NARROW(arch, D) ? 64 : ATTN_ROWS)
#define ATTN_BWD_WARPS(arch, D) ((D) <= 64 || ATTN_NARROW(arch, D) ? 4 : 8)
#define ATTN_MORE_WARPS 8
#define ATTN_MORE_BWD_WARPS(arch, D) (ATTN_NARROW(arch, D) ? 4 : ATTN_MORE_WARPS)
#define ATTN_SMALL_M_ROWS 64
#define ATTN_SMALL_M_WARPS 4

/*
 * attn/wide.cu, for a D of 256. In backward, SPLIT warps share rows, and SPLIT times COLS / SPLIT
 * columns are a tile.
 */
#define ATTN_WIDE_D 256
#define ATTN_WIDE_STAGES(arch) ((arch) >= 90 ? 2 : 1)
#define ATTN_WIDE_ROWS(arch) (ATTN_NARROW(arch, ATTN_WIDE_D) ? 64 : 128)
#define ATTN_WIDE_WARPS(arch) (ATTN_WIDE_ROWS(arch) / 16)
#define ATTN_WIDE_SPLIT(arch) (ATTN_NARROW(arch, ATTN_WIDE_D) ? 2 : 4)
#define ATTN_WIDE_BWD_ROWS(arch) (ATTN_NARROW(arch, ATTN_WIDE_D) ? 32 : 64)
#define ATTN_WIDE_BWD_COLS(arch) (ATTN_NARROW(arch, ATTN_WIDE_D) ? 32 : ATTN_COLS)
#define ATTN_WIDE_BWD_WARPS(arch) (ATTN_WIDE_BWD_ROWS(arch) / 16 * 2)

/* attn/strip.cuh */
#define ATTN_STRIP_MAX_D 128
#define ATTN_STRIP_ROWS 16
#define ATTN_STRIP_WARPS 4

/* attn/fp32.cuh */
#define ATTN_FP32_TILE 64 /* rows and columns */
#define ATTN_FP32_PAD(arch) ((arch) < 90 ? 0 : 4) /* 160 KiB of 8.0 are enough without */
#define ATTN_FP32_THREADS 256

/* attn/cached.cu */
#define ATTN_CACHED_THREADS 128

/* attn/step.cu; D is 64 or 128, the largest head_dim */
#define ATTN_STEP_PARTS 8 /* the most blocks of a cluster; with fewer, a block has half the warps */
#define ATTN_STEP_HEADS 8 /* query heads that share the loads of keys */
#define ATTN_STEP_KEYS 16 /* keys that a warp adds at once */
#define ATTN_STEP_STAGES(P) ((P) == 1 ? 3 : 2) /* times as many are in shared memory */
#define ATTN_STEP_WARPS(D, P) (((P) == ATTN_STEP_PARTS ? 512 : 256) / (D))
#define ATTN_STEP_SMEM(D, P) \
	(ATTN_STEP_WARPS(D, P) * ATTN_STEP_STAGES(P) * 2 * ATTN_STEP_KEYS * ((D) + 8) * 2)

#endif
