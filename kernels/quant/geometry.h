/* geometry.h - launch constants of quant.cu and of launch.c. */
#ifndef TE_QUANT_GEOMETRY_H
#define TE_QUANT_GEOMETRY_H

#define FILL_THREADS 256
#define FILL_UNROLL 4 /* vectors of 16 bytes of a thread */

#define AMAX_THREADS 256
#define AMAX_UNROLL 4 /* vectors of a thread in flight */

#define DELAYED_THREADS 256
#define DELAYED_UNROLL 4 /* words of a thread */

#define NVFP4_THREADS 128 /* a tile of BF16; FP32: twice as many */
#define NVFP4_BEGIN_THREADS 32

#endif
