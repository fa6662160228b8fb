/* host_kernels.c - kernel ids to the reference functions of libtecore/host. */
#include "config.h"

#include "libtecore/backend/host.h"

/*
 * Reference functions that are not written yet: weak, so that the library links
 * and a launch says -TE_EKERNEL. The commit that adds one drops its line.
 */
#pragma GCC diagnostic ignored "-Waddress"
#pragma weak te__h_attn_fwd
#pragma weak te__h_attn_bwd_pre
#pragma weak te__h_attn_bwd_dkv
#pragma weak te__h_attn_bwd_dq
#pragma weak te__h_gemm

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
		return te__h_##host ? run_##host : NULL;
#include "kernels/te_k.def"
#undef TE_K
	case TE_K_COUNT:
		break;
	}
	return NULL;
}
