/* cuda_kernels.c - a table: kernel id to device function and launch geometry. */
#include "config.h"

#define TE_LOG_CATEGORY "core/cuda"
#include "libtecore/backend/cuda_kernels.h"
#include "libtecore/internal.h"

/* a row is [TE_K_ADD] = geo_add */
static te__cuda_geometry_fn *const geometry[TE_K_COUNT] = {
	[TE_K_GEMM] = NULL, /* runs through cublaslt.c */
};

int te__cuda_geometry(const struct te__launch *l, struct te__cuda_kernel *ret)
{
	*ret = (struct te__cuda_kernel){ NULL, { 1, 1, 1 }, { 1, 1, 1 }, 0 };
	if (!geometry[l->id])
		return te__fail(-TE_EKERNEL, "the cuda backend has no kernel of id %d",
				(int)l->id);
	return geometry[l->id](l->args, ret);
}
