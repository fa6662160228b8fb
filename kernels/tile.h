/* tile.h - launch constants of the tiled and flat kernels of several families. */
#ifndef TE_TILE_H
#define TE_TILE_H

#define TE_V 8 /* elements of a vector */

#define TILE_ROWS 64 /* = TE_K_PART_ROWS */
#define TILE_THREADS 256
#define TILE_R 4       /* rows of a thread */
#define TILE_SMALL_R 1 /* rows of a thread of the _small_m variants */
#define TILE_COLS (32 * TILE_R)
#define TILE_SMALL_COLS (32 * TILE_SMALL_R)

/* block.cuh: tiles of TE_K_BLOCK rows and columns */
#define BLOCK_THREADS 256
#define BLOCK_R 8 /* rows of a thread */

#define TE_FLAT_THREADS 256
#define TE_FLAT_UNROLL 2 /* vectors per thread, TE_FLAT_THREADS apart */
#define TE_FLAT_ELEMS (TE_FLAT_THREADS * TE_FLAT_UNROLL * TE_V) /* per block */

#endif
