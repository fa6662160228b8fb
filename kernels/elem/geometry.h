/* geometry.h - launch constants of device code and of launch.c. */
#ifndef TE_ELEM_GEOMETRY_H
#define TE_ELEM_GEOMETRY_H

#define TRANSPOSE_TILE 64 /* rows and columns */
#define TRANSPOSE_THREADS 256

/* heads.cu: threads of a token at most, and vectors that each has in flight */
#define HEADS_THREADS 256
#define HEADS_UNROLL 4

#endif
