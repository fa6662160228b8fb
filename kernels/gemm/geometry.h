/* geometry.h - launch constants of gemm.cu and of launch.c. */
#ifndef TE_GEMM_GEOMETRY_H
#define TE_GEMM_GEOMETRY_H

#define GEMM_CHUNK 64 /* bytes of k that a warp loads at once, 16 for each of 4 lanes */

#define SMALL_M_TILE 16		      /* rows and columns of d of a block */
#define SMALL_M_STEP (2 * GEMM_CHUNK) /* bytes of k of a warp per iteration */
#define SMALL_M_MIN_WARPS 4	      /* one thread for two elements of the tile */
#define SMALL_M_MAX_WARPS 16

#define FEW_ROWS_MAX 8	      /* rows of d */
#define FEW_ROWS_CHUNKS 4 /* chunks of k that a warp loads at once */
#define FEW_ROWS_STEP (FEW_ROWS_CHUNKS * GEMM_CHUNK)
#define FEW_ROWS_WARPS 8
#define FEW_ROWS_MORE 16 /* warps, if a multiprocessor has one block at most */
#define FEW_ROWS_FIRST (2 * 132) /* blocks that run at once on an H200 */

#define SHORT_K_ROWS 32 /* rows of d in a block */
#define SHORT_K_COLS 64
#define SHORT_K_THREADS 128 /* four warps of 16 rows by 32 columns */

#define GROUPED_TILE 16 /* rows and columns of d of a block, one for each thread */

/* tile.cuh, block.cu and mx.cu */
#define BLOCK_GEMM_TILE 128 /* rows and columns of d of a block */
#define BLOCK_GEMM_BAND 8   /* rows of tiles that are computed before the next column of tiles */
#define BLOCK_GEMM_THREADS 256
#define BLOCK_GEMM_STAGES 3 /* steps in shared memory, 128 bytes of k each */
#define BLOCK_GEMM_SMEM (2 * BLOCK_GEMM_STAGES * BLOCK_GEMM_TILE * 128)
#define MX_GEMM_SMEM (2 * 2 * BLOCK_GEMM_TILE * 128)

#define FINISH_ELEMS 1024 /* elements of d of a block */
#define FINISH_THREADS 256

#endif
