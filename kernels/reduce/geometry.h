/* geometry.h - launch constants of reduce.cu and of launch.c. */
#ifndef TE_REDUCE_GEOMETRY_H
#define TE_REDUCE_GEOMETRY_H

#define COLSUM_THREADS 128
#define COLSUM_COLS 64 /* columns of a block */

#define PART_SUM_THREADS 256
#define PART_SUM_COLS 32 /* columns of a block, one per lane */
#define PART_SUM_SMALL 8 /* maximum number of parts for blocks of one warp */

#endif
