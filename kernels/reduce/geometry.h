/* geometry.h - launch constants of reduce.cu and of launch.c. */
#ifndef TE_REDUCE_GEOMETRY_H
#define TE_REDUCE_GEOMETRY_H

#define COLSUM_THREADS 128
#define COLSUM_COLS 64 /* columns of a block */

#define PART_SUM_WARPS 16 /* at most, one per group of parts */
#define PART_SUM_COLS 32  /* columns of a block, one per lane */
#define ARGMAX_THREADS 128

#endif
