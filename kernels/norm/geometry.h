/* geometry.h - launch constants of forward.cu, backward.cu and launch.c. */
#ifndef TE_NORM_GEOMETRY_H
#define TE_NORM_GEOMETRY_H

#define NORM_NV 4			     /* vectors of a row that a thread holds */
#define NORM_THREADS 512		     /* at most */
#define NORM_WARP_COLS (32 * NORM_NV * TE_V) /* columns of a row that a warp holds */
#define NORM_BLOCK_COLS (NORM_THREADS * NORM_NV * TE_V)
#define NORM_SMALL_M_ROWS 4 /* rows of a block, one per warp */

/* norm_fwd_colCxN: X(blocks of a cluster, tiles of a block) */
#define NORM_COL_CLUSTERS(X)                                                        \
	X(1, 1) X(2, 1) X(2, 2) X(2, 3) X(2, 4) X(4, 1) X(4, 2) X(4, 3) X(4, 4)     \
	X(8, 1) X(8, 2) X(8, 3) X(8, 4) X(8, 5) X(8, 6) X(8, 8)
#define NORM_COL_MAX_TILES (8 * 8)

/* norm_cast_NV: X(vectors of a row that a lane holds, rows at a time, warps, blocks of a
 * multiprocessor) */
#define NORM_CASTS(X) X(3, 4, 8, 2) X(5, 2, 8, 2) X(8, 1, 8, 2) X(16, 1, 8, 1)
#define NORM_CAST_ROWS 32 /* rows of a block */
#define NORM_CAST_STATIC 128
#define NORM_CAST_PITCH(cols) (((cols) + 127) & ~127) /* bytes of a row of codes */

/* C and N of norm_bwd_colCxN, which holds two matrices */
#define NORM_BWD_COL_CLUSTERS(X) X(1, 1) X(2, 1) X(4, 1) X(8, 1) X(8, 2) X(8, 3) X(8, 4)

/* norm_bothR: threads, at most, and columns of each */
#define NORM_BOTH_THREADS4 320
#define NORM_BOTH_TWICE 192 /* threads of both4 of which two blocks are on a multiprocessor */
#define NORM_BOTH_THREADS2 512
#define NORM_BOTH_THREADS1 1024
#define NORM_BOTH_V(R) ((R) == 4 ? 4 : 8)
#define NORM_BOTH_STATIC 2688 /* bytes of static shared memory, at most */
/* groups of R rows that are in shared memory, of elements of that size */
#define NORM_BOTH_STAGES(size) ((size) == 2 ? 3 : 2)
/* the same of both2_cast and both4_many_cast */
#define NORM_BOTH_STAGES_CAST2 2
/* column-wise codes: rows in shared memory, and unused words after each four rows */
#define NORM_BOTH_CAST_ROWS 32
#define NORM_BOTH_CAST_PAD 4

#define NORM_DW_THREADS 128
#define NORM_DW_COLS 64

#define QK_THREADS 256
#define QK_DW_COLS 128 /* a thread each */

#endif
