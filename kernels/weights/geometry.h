/* geometry.h - launch constants of weights.cu and of launch.c. */
#ifndef TE_WEIGHTS_GEOMETRY_H
#define TE_WEIGHTS_GEOMETRY_H

#define TURN 64 /* rows and columns of a tile that weight_transpose turns */

#endif
