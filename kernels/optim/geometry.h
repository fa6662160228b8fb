/* geometry.h - launch constants of optim.cu and of launch.c. */
#ifndef TE_OPTIM_GEOMETRY_H
#define TE_OPTIM_GEOMETRY_H

#define SUMSQ_THREADS 128
#define ADAMW_BEGIN_THREADS 256
#define ADAMW_THREADS 256
#define ADAMW_NELEMS 4 /* elements of a thread */
#define ADAMW_SMALL_NELEMS 8 /* with smaller states: TE_ROUND_GROUP */

#endif
