/* geometry.h - launch constants of rope.cu and of launch.c. */
#ifndef TE_ROPE_GEOMETRY_H
#define TE_ROPE_GEOMETRY_H

#define ROPE_THREADS 256
#define ROPE_Q_TILES 4 /* tiles of columns of a block of rope_q */
#define ROPE_HEADS_TILES 8 /* the same of rope_heads, at most */

#endif
