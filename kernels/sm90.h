/* sm90.h - tensor maps, which kernels of sm_90a get in their arguments. */
#ifndef TE_SM90_H
#define TE_SM90_H

#include <stdint.h>

/* a CUtensorMap */
struct te_tensor_map {
	uint64_t word[16];
} __attribute__((aligned(64)));

/* a dense array as tensor maps have it: x is innermost */
struct te_sm90_map {
	const void *p;
	int64_t nx, ny, nz;   /* extents; nz 0: a matrix */
	int32_t elem;	      /* bytes of an element: 1, 2 or 4 */
	int32_t box_x, box_y; /* extents of a box, of rows of 128 bytes */
};

#endif
