/* geometry.h - launch constants of forward.cu, backward.cu and launch.c. */
#ifndef TE_NORM_GEOMETRY_H
#define TE_NORM_GEOMETRY_H

#define NORM_NV 4			     /* vectors of a row that a thread holds */
#define NORM_THREADS 512		     /* at most */
#define NORM_WARP_COLS (32 * NORM_NV * TE_V) /* columns of a row that a warp holds */
#define NORM_BLOCK_COLS (NORM_THREADS * NORM_NV * TE_V)
#define NORM_SMALL_M_ROWS 4 /* rows of a block, one per warp */

/* norm_rows_NV: X(vectors of a row that a lane holds, rows at a time, blocks of a
 * multiprocessor) */
#define NORM_ROWS(X) X(3, 2, 6) X(5, 1, 7) X(8, 1, 5)
#define NORM_ROWS_THREADS 128
#define NORM_WIDE_ROWS 2     /* rows of a block of norm_rows_wide, at a time */
#define NORM_WIDE_COLS 1024  /* columns of a row that a warp of it holds */
#define NORM_WIDE_BLOCK 256   /* threads of a block of it, at most */
#define NORM_WIDE_THREADS 512 /* threads of a multiprocessor, all blocks together */
#define NORM_ROWS_COLS 8192
#define NORM_ROW_NV 8 /* vectors of a row that a thread holds, at most */

/* norm_cast_NV: X(vectors of a row that a lane holds, rows at a time, warps, blocks of a
 * multiprocessor) */
#define NORM_CASTS(X) X(3, 4, 8, 2) X(5, 2, 8, 2) X(8, 1, 8, 2)
#define NORM_CAST_ROWS 32 /* rows of a block */
#define NORM_CAST_STATIC 128
#define NORM_CAST_PITCH(cols) (((cols) + 127) & ~127) /* bytes of a row of codes */
#define NORM_CAST_CLUSTER_THREADS 256
#define NORM_CAST_CLUSTER_COLS 1024 /* columns of a block of norm_cast_clusterC */
#define NORM_CAST_CLUSTER_PITCH (NORM_CAST_CLUSTER_COLS + 4) /* words of 4 rows */

/* C and N of norm_bwd_colCxN, which holds two matrices */
#define NORM_BWD_COL_CLUSTERS(X) X(1, 1) X(2, 1) X(4, 1) X(8, 1) X(8, 2) X(8, 3) X(8, 4)

/*
 * norm_once_NAME and norm_once_cast_NAME: X(NAME, columns at most, blocks of a multiprocessor at
 * least, rows at a time, groups of these in shared memory, whether terms are held in registers,
 * NORM_ONCE_* that limit it). The first that has the columns, and whose limits hold, is launched.
 * _few waits for half as many sums; _res, for a residual, has half the shared memory.
 */
#define NORM_ONCE_ALL 0u
#define NORM_ONCE_FEW 1u   /* only where each block has a multiprocessor */
#define NORM_ONCE_PLAIN 2u /* only without a residual */
#define NORM_ONCE(X)                                   \
	X(few, 1280, 1, 4, 3, true, NORM_ONCE_FEW)     \
	X(1280, 1280, 4, 2, 3, true, NORM_ONCE_ALL)    \
	X(4096, 4096, 1, 2, 3, true, NORM_ONCE_ALL)    \
	X(8192, 8192, 1, 2, 2, false, NORM_ONCE_PLAIN) \
	X(8192_res, 8192, 1, 1, 3, false, NORM_ONCE_ALL)
#define NORM_ONCE_CAST(X)                            \
	X(few, 1280, 1, 4, 3, true, NORM_ONCE_FEW)   \
	X(768, 768, 2, 4, 3, false, NORM_ONCE_ALL)   \
	X(1280, 1280, 4, 2, 3, false, NORM_ONCE_ALL) \
	X(2048, 2048, 2, 2, 2, false, NORM_ONCE_ALL) \
	X(4096, 4096, 1, 1, 3, false, NORM_ONCE_ALL)
#define NORM_ONCE_STATIC 2688 /* bytes of static shared memory, at most */
#define NORM_ONCE_CAST_ROWS 32 /* rows of column-wise codes in shared memory */
#define NORM_ONCE_PAD 4 /* unused words after each four of them */

/* norm_bothR: threads, at most, and columns of each */
#define NORM_BOTH_THREADS4 320
#define NORM_BOTH_THREADS2 512
#define NORM_BOTH_THREADS1 1024
#define NORM_BOTH_V(R) ((R) == 4 ? 4 : 8)
#define NORM_BOTH_STATIC 2688 /* bytes of static shared memory, at most */
#define NORM_BOTH_STAGES 2 /* groups of R rows that are in shared memory */

#define NORM_DW_THREADS 128
#define NORM_DW_COLS 64

#define QK_THREADS 256
#define QK_DW_COLS 128 /* a thread each */

#endif
