/*
 * launch.h - device function, grid, block and shared memory of a launch.
 *
 * A device function is extern "C" in a .cu of kernels/<family>, <family> as in the id's row of
 * kernels.def, and takes the struct of the id by value as its only parameter. All functions of all
 * families are loaded when a device is opened, so that a launch during a capture loads nothing.
 */
#ifndef TE__LAUNCH_H
#define TE__LAUNCH_H

#include <stdbool.h>
#include <stdint.h>

#include <te/ctx.h>
#include <te/dtype.h>
#include <te/export.h>

#include "kernels/te_k.h"
#include "kernels/tile.h"

/* What launches depend on: a device, as far as the kernels that are loaded use it. */
struct te__target {
	int arch;	   /* compute capability of the kernels: 90 is 9.0 */
	unsigned smem_max; /* bytes of shared memory that a block may have, static and dynamic */
	uint32_t features; /* TE_FEATURE_* */
};

struct te__geometry {
	const char *func;  /* static storage; for example "te_k_add_bf16" */
	unsigned grid[3];  /* blocks */
	unsigned block[3]; /* threads */
	unsigned smem;	   /* dynamic shared memory in bytes */
	struct te__target target; /* on entry */
};

/*
 * Compute the geometry of a launch from its argument struct. On entry grid and block are
 * { 1, 1, 1 } and smem is 0. A grid[0] of 0 means that there is nothing to launch. The pointers in
 * args are not dereferenced. Errors are recorded with te__fail().
 */
typedef int te__geometry_fn(const void *args, struct te__geometry *ret);

#define TE_K(ID, name, args, family, ...) te__geometry_fn te__geo_##name;
#include "kernels/kernels.def"
#undef TE_K

/* the most that a GPU offers to kernels compiled for arch: 80, 86, 89 or 90 */
TE_EXPORT struct te__target te__target_of(int arch);
/* -TE_EKERNEL: no such id */
TE_EXPORT int te__geometry_for(const struct te__target *target, enum te_k_id id, const void *args,
			       struct te__geometry *ret);
/* for te__target_of(90) */
TE_EXPORT int te__geometry(enum te_k_id id, const void *args, struct te__geometry *ret);

/*
 * Does gemm.cu have a kernel for these shapes and types? cuBLASLt computes the others. The answer
 * does not depend on addresses, so that rebinding a node's memory changes neither the algorithm nor
 * the bits.
 */
int te__gemm_has_kernel(const struct te_k_gemm *g);
/* bytes of shared memory of a block of te_k_comm_norm or te_k_comm_norm_bwd */
TE_EXPORT uint32_t te__comm_norm_smem(const struct te_k_comm_norm *a);
/* why few_rows.cu does not compute it; NULL: it does. Depends on addresses by their alignment */
const char *te__few_rows_declines(const struct te_k_few_rows *a);
/* does block.cu have one? Devices use it on which te__cuda_blocks_by_mma() is true */
int te__gemm_is_block(const struct te_k_gemm *g);
/* does gemm/any.cu have one? All devices use it for GEMMs that would be cuBLASLt's without it */
int te__gemm_is_any(const struct te_k_gemm *g);
/* does gemm/mx.cu have one? All devices use it: nothing else computes by scales from 1X32 on */
int te__gemm_is_mx(const struct te_k_gemm *g);

/* the launches of a GEMM of gemm/sm90.cu, and of attention of attn/sm90.cu */
struct te_sm90_plan;
struct te_attn_sm90_plan;
struct te_attn_bwd_sm90_plan;
void te__geo_sm90(const struct te_sm90_plan *plan, struct te__geometry *ret);
void te__geo_attn_sm90(const struct te_attn_sm90_plan *plan, struct te__geometry *ret);
void te__geo_attn_bwd_sm90(const struct te_attn_bwd_sm90_plan *plan, struct te__geometry *ret);

/* ---- for the families' launch.c ---- */

/* nblocks of nthreads running func */
int te__geo_launch(struct te__geometry *k, const char *func, int64_t nblocks, unsigned nthreads);
int te__geo_no_type(const char *name, int32_t dtype);
/* tiles of tile.cuh over a [rows, cols] result; small: in tiles of TILE_SMALL_COLS columns */
int te__geo_tiles(struct te__geometry *k, const char *func, int64_t rows, int64_t cols,
		  bool small);

/* attention forward by the kernels of short and few sequences, of attn/strip.cuh */
int te__attn_fwd_is_small(const struct te_k_attn_fwd *a);

/* te_k_weights_cast from 1X32 on, in quant/mx.cu */
int te__geo_weights_mx(const struct te_k_weights *a, int64_t nblocks, struct te__geometry *k);
/* tiles of block.cuh */
int te__geo_blocks(struct te__geometry *k, const char *func, int64_t rows, int64_t cols);
/* is a te_k_q with codes block-scaled? */
static inline bool is_block_scaled(const struct te_k_q *q)
{
	return q->scaling != TE_K_SCALING_TENSOR && (q->row || q->col);
}

#define HOPPER_SMS 132 /* multiprocessors of an H100 or H200 SXM */

/* launch NAME_fp32 or NAME_bf16 */
#define LAUNCH_T(k, dtype, NAME, nblocks, nthreads)                                            \
	((dtype) == TE_DTYPE_FP32 ? te__geo_launch((k), NAME "_fp32", (nblocks), (nthreads)) : \
	 (dtype) == TE_DTYPE_BF16 ? te__geo_launch((k), NAME "_bf16", (nblocks), (nthreads)) : \
				    te__geo_no_type(NAME, (dtype)))

static inline int64_t ceil_div(int64_t a, int64_t b)
{
	return (a + b - 1) / b;
}

static inline int64_t clamp(int64_t x, int64_t least, int64_t most)
{
	return x < least ? least : x > most ? most : x;
}

/* threads for n elements, each per thread: whole warps, at most most */
static inline unsigned threads_for(int64_t n, int64_t each, unsigned most)
{
	const int64_t nwarps = n > 0 ? ceil_div(n, 32 * each) : 1;

	return nwarps * 32 < most ? (unsigned)nwarps * 32 : most;
}

/* are these matrices, of cols columns, made of whole aligned vectors? NULL counts as one */
static inline bool whole_vectors(int64_t cols, const void *p, const void *q, const void *r,
				 const void *s)
{
	return cols % TE_V == 0 &&
	       (((uintptr_t)p | (uintptr_t)q | (uintptr_t)r | (uintptr_t)s) & 15) == 0;
}

/* fewer tiles than a Hopper GPU has SMs? vec: whole_vectors() of everything accessed by rows */
static inline bool small_tiles(int64_t rows, int64_t cols, bool vec)
{
	return vec && ceil_div(rows, TILE_ROWS) * ceil_div(cols, TILE_COLS) < HOPPER_SMS;
}

#endif
