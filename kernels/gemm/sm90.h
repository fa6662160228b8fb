/* sm90.h - arguments and launch constants of sm90.cu. */
#ifndef TE_GEMM_SM90_H
#define TE_GEMM_SM90_H

#include "kernels/gemm/schedule.h"
#include "kernels/sm90.h"
#include "kernels/te_k.h"

#define SM90_CLUSTER 2			  /* blocks, of rows below each other */
#define SM90_THREADS 384		  /* a warpgroup that loads, and two that multiply */
#define SM90_ROWS 128			  /* rows of d of a block */
#define SM90_COLS 256			  /* columns of d of a block and of its cluster */
#define SM90_STEP 128			  /* bytes of k of a step */
#define SM90_BOX 64			  /* rows of d that are stored at once, 128 bytes each */
#define SM90_STORE (SM90_BOX * SM90_STEP) /* bytes */
#define SM90_STAGE ((SM90_ROWS + SM90_COLS) * SM90_STEP) /* bytes */
/*
 * Steps in shared memory, and boxes of each of the two warpgroups that multiply. A kernel that
 * holds its latest tile in registers needs fewer boxes.
 */
#define SM90_STAGES(holds) ((holds) ? 4 : 3)
#define SM90_STORES(holds) ((holds) ? 2 : 4)
/* bytes of a warpgroup: boxes, their barriers, the bias, eight words */
#define SM90_GROUP(holds) (SM90_STORES(holds) * (SM90_STORE + 8) + SM90_COLS * 4 + 32)
#define SM90_SCALES (SM90_COLS * 4) /* bytes of the scales of b in a stage, block scaling */
/* stages, with two barriers and words for a unit each, and the warpgroups' */
#define SM90_SMEM(kernel)                                                        \
	(SM90_STAGES(SM90_HOLDS(kernel)) * (SM90_STAGE + 16 + 32 +               \
					    (SM90_BLOCK(kernel) ? SM90_SCALES : 0)) + \
	 2 * SM90_GROUP(SM90_HOLDS(kernel)))

/*
 * The operation of struct te_k_gemm (gemm.h). sums: the slots of the schedule, each with the FP32
 * sums of the tile of a cluster. ready: for each tile that is cut, and each warpgroup of its
 * cluster that multiplies, the number of units that are stored; 0 before the launch.
 */
struct te_gemm_sm90 {
	struct te_tensor_map a, b, c, d;
	const void *bias;
	const float *sa, *sb;
	float *sums;
	uint32_t *ready;
	float alpha, beta;
	int32_t m, n;
	int32_t nrows, ncols; /* tiles of clusters */
	int32_t first_cut;    /* the first tile that is cut */
	int32_t d_fp32;	      /* d, c and bias are FP32, otherwise BF16 */
	/* block scaling: words between rows of scales; are they of 128x128 blocks? */
	int32_t sa_ld, sb_ld, sa_square, sb_square;
	struct te_gemm_schedule schedule;
};

enum te_sm90_kernel {
	TE_SM90_BF16,
	TE_SM90_BF16_BT,
	TE_SM90_BF16_TT,
	TE_SM90_E4M3_E4M3,
	TE_SM90_E5M2_E4M3,
	TE_SM90_E4M3_BLOCK,
	TE_SM90_COUNT
};
#define SM90_HOLDS(kernel) ((kernel) != TE_SM90_BF16_TT && (kernel) < TE_SM90_E5M2_E4M3)
#define SM90_BLOCK(kernel) ((kernel) == TE_SM90_E4M3_BLOCK)

struct te_sm90_plan {
	enum te_sm90_kernel kernel;
	int32_t nclusters; /* the grid's */
	struct te_sm90_map a, b, c, d;
	uint64_t ready_nbytes, sums_nbytes; /* multiples of 256; 0: not needed */
	struct te_gemm_sm90 args;	    /* maps, sums and ready are not set */
};

/*
 * plan.c: the GEMM on a device with nclusters pairs of multiprocessors, with ready and sums of at
 * most nbytes together. NULL, or why these kernels do not compute it: a phrase after "because".
 */
const char *te__sm90_plan(const struct te_k_gemm *g, int32_t nclusters, uint64_t nbytes,
			  struct te_sm90_plan *ret);

#endif
