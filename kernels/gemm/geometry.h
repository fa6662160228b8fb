/* geometry.h - launch constants of gemm.cu and of launch.c. */
#ifndef TE_GEMM_GEOMETRY_H
#define TE_GEMM_GEOMETRY_H

#define GEMM_CHUNK 64 /* bytes of k that a warp loads at once, 16 for each of 4 lanes */

#define SMALL_M_TILE 16		      /* rows and columns of d of a block */
#define SMALL_M_STEP (2 * GEMM_CHUNK) /* bytes of k of a warp per iteration */
#define SMALL_M_MIN_WARPS 4	      /* one thread for two elements of the tile */
#define SMALL_M_MAX_WARPS 16

#define FEW_ROWS_MAX 8	  /* rows of d */
#define FEW_ROWS_TILE 8	  /* columns of d of a tile; a step is of two */
#define FEW_ROWS_CHUNKS 2 /* chunks of k of a warp's step */
#define FEW_ROWS_STEP (FEW_ROWS_CHUNKS * GEMM_CHUNK)
#define FEW_ROWS_WARPS 8
#define FEW_ROWS_STAGES(arch) ((arch) >= 90 ? 6 : 2) /* steps in shared memory, at most */
#define FEW_ROWS_BATCH 4 /* tiles whose sums are in shared memory */
#define FEW_ROWS_STAGE (FEW_ROWS_WARPS * FEW_ROWS_STEP * 2 * FEW_ROWS_TILE)
#define FEW_ROWS_SUMS \
	(2 * FEW_ROWS_BATCH * FEW_ROWS_WARPS * FEW_ROWS_TILE * 4) /* bytes, for a row of d */
#define FEW_ROWS_PAD 64 /* bytes between rows of a in shared memory */
#define FEW_ROWS_X 49152 /* bytes of rows of a in shared memory, at most, if they must be there */
/* rows of a in shared memory; FP8: as codes with scales, and with a norm as both */
#define FEW_ROWS_XBYTES(m, k, fp8, norm)                                         \
	((m) * ((!(fp8) || (norm) ? 2 * (k) + FEW_ROWS_PAD : 0) +                \
		((fp8) ? (k) + FEW_ROWS_PAD + (k) / TE_K_BLOCK * 4 : 0)))
#define FEW_ROWS_ALONE (116 * 1024) /* bytes of shared memory that no two blocks of an SM have */

#define SHORT_K_ROWS 32 /* rows of d in a block */
#define SHORT_K_COLS 64
#define SHORT_K_THREADS 128 /* four warps of 16 rows by 32 columns */

#define GROUPED_TILE 16 /* rows and columns of d of a block, one for each thread */

/* tile.cuh, block.cu, mx.cu and any.cu */
#define BLOCK_GEMM_TILE 128 /* rows and columns of d of a block */
#define BLOCK_GEMM_BAND 8   /* rows of tiles that are computed before the next column of tiles */
#define BLOCK_GEMM_THREADS 256
#define BLOCK_GEMM_STAGES 3 /* steps in shared memory, 128 bytes of k each */
#define BLOCK_GEMM_SMEM (2 * BLOCK_GEMM_STAGES * BLOCK_GEMM_TILE * 128)
#define TWO_STEPS_SMEM (2 * 2 * BLOCK_GEMM_TILE * 128) /* mx.cu and any.cu */

#define FINISH_ELEMS 1024 /* elements of d of a block */
#define FINISH_THREADS 256

#endif
