/* cuda.c - the table of the cuda backend; see cuda.h for its files. */
#include "config.h"

#include "libtecore/backend/cuda/cuda.h"

const struct te__backend_ops te__backend_cuda = {
	.name = "cuda",
	.traits = TE__BACKEND_SEPARATE_SMALL,
	.workspace_nbytes = TE__CUDA_WORKSPACE_NBYTES,
#define TE__ENTRY(name, args) .name = te__cuda_##name,
#define TE__ENTRY_VOID TE__ENTRY
#define TE__ENTRY_OWN(type, name, args) TE__ENTRY(name, args)
#include "libtecore/backend/entries.def"
};
