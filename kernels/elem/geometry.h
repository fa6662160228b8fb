/* geometry.h - launch constants of elem.cu and of launch.c. */
#ifndef TE_ELEM_GEOMETRY_H
#define TE_ELEM_GEOMETRY_H

#define TRANSPOSE_TILE 64 /* rows and columns */
#define TRANSPOSE_THREADS 256

#endif
