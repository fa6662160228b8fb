/* host_kernels.c - kernel ids to the reference functions of libtecore/host. */
#include "config.h"

#include "libtecore/backend/host.h"

/* typed calls: a function called through a pointer of another type is undefined */
#define TE_K(ID, name, module, host)                                                   \
	static void run_##host(const void *args)                                       \
	{                                                                              \
		te__h_##host(args);                                                    \
	}                                                                              \
	_Static_assert(sizeof(struct te_k_##name) <= HOST_ARGS_NBYTES, "fits a command");
#include "kernels/te_k.def"
#undef TE_K

host_kernel_fn host_kernel(enum te_k_id id)
{
	switch (id) {
#define TE_K(ID, name, module, host) \
	case TE_K_##ID:              \
		return run_##host;
#include "kernels/te_k.def"
#undef TE_K
	case TE_K_COUNT:
		break;
	}
	return NULL;
}
