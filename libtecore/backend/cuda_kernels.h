/*
 * cuda_kernels.h - which device function runs a launch, and how many threads.
 *
 * A device function is extern "C" in kernels/te_<module>.cu, <module> as in the id's
 * row of te_k.def, and takes the struct of the id by value as its only
 * parameter. All functions of all modules are loaded when a device is
 * opened, so launching one inside a capture loads nothing.
 */
#ifndef TE__CUDA_KERNELS_H
#define TE__CUDA_KERNELS_H

#include "libtecore/backend/backend.h"

struct te__cuda_kernel {
	const char *func;  /* a string that lives for ever, as "te_k_add_bf16" */
	unsigned grid[3];  /* blocks */
	unsigned block[3]; /* threads */
	unsigned smem;	   /* dynamic shared memory in bytes, up to 232448 less the static part */
};

/*
 * One a kernel id: looks at the struct and fills the kernel. grid and block come
 * in as { 1, 1, 1 }, smem as 0. A grid[0] of 0 says that there is nothing to do.
 * Pure: no memory is touched that args points at. Errors are recorded with te__fail().
 */
typedef int te__cuda_geometry_fn(const void *args, struct te__cuda_kernel *ret);

static inline int64_t ceil_div(int64_t a, int64_t b)
{
	return (a + b - 1) / b;
}

/* functions that live outside cuda_kernels.c, one file a topic */
te__cuda_geometry_fn te__cuda_geo_attn_fwd;
te__cuda_geometry_fn te__cuda_geo_attn_bwd_pre;
te__cuda_geometry_fn te__cuda_geo_attn_bwd_dkv;
te__cuda_geometry_fn te__cuda_geo_attn_bwd_dq;
te__cuda_geometry_fn te__cuda_geo_gemm;

/*
 * Whether te__cuda_geo_gemm() takes the product; cuBLASLt computes the others. By shape and types
 * alone: other memory gives the same bits, and may be put into a node.
 */
int te__cuda_gemm_is_ours(const struct te_k_gemm *g);

/* -TE_EKERNEL names the id when no row is there */
int te__cuda_geometry(const struct te__launch *l, struct te__cuda_kernel *ret);

#endif
