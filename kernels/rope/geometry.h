/* geometry.h - launch constants of rope.cu and of launch.c. */
#ifndef TE_ROPE_GEOMETRY_H
#define TE_ROPE_GEOMETRY_H

#define ROPE_THREADS 256

#endif
