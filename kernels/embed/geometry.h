/* geometry.h - launch constants of embed.cu and of launch.c. */
#ifndef TE_EMBED_GEOMETRY_H
#define TE_EMBED_GEOMETRY_H

#define EMBED_FWD_THREADS 128 /* at most */

#define EMBED_BWD_THREADS 256
#define EMBED_BWD_SPAN 16	     /* table rows of a block of embed_bwd; 1 of a small table */
#define EMBED_BWD_MAX_ROWS (1 << 28) /* row * EMBED_BWD_SPAN + table row fits in 32 bits */

/* embed_bwd_small_m: a warp per row of dy and 256 columns */
#define EMBED_SMALL_M_ROWS 256 /* maximum rows of dy */
#define EMBED_SMALL_M_THREADS 128
#define EMBED_SMALL_M_COLS (32 * TE_V)

#define POS_BWD_THREADS 128

#endif
